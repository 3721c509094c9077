"""What is counted of a run, batch by batch: latencies in bins, answers in time, sizes, seconds.

Nothing is kept by request. Latencies are counted in bins, 1024 to a doubling, so a quantile is at most 0.1 % above the true one
(from half a microsecond to 97 days; what is shorter or longer counts as that); the share within a given latency is counted exactly.
Both are counted by block of successive requests, for the intervals (``batch_means``).
"""

from __future__ import annotations

from math import frexp
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array, Counts, Indices
from sluice.optimizer.compiled import compiled
from sluice.optimizer.simulation.batch_means import BLOCKS
from sluice.optimizer.simulation.queue_loop import Records

_PER_DOUBLING = 1024
_LOWEST, _HIGHEST = -20, 24  # powers of two: half a microsecond to 97 days
N_BINS = (_HIGHEST - _LOWEST) * _PER_DOUBLING
_SHORTEST = 2.0**_LOWEST / 2


class Tally(NamedTuple):
    """Counts by block (the first one is left out of every estimate), by size and mark, and by bin of time."""

    latencies: NDArray[np.int32]  # (BLOCKS + 1, N_BINS)
    in_time: Counts  # (n_latencies, BLOCKS + 1)
    latency_sums: Array  # (BLOCKS + 1,)
    answered: Counts  # (BLOCKS + 1,)
    sizes: Counts  # (2 n_tables, max_batch_size + 1), by mark
    batches: Counts  # (2 n_tables, BLOCKS + 1), by mark and the block of the first member
    seconds: Array  # (2 n_tables,), from dispatch to answer, by mark
    arrivals_at: Counts  # (n_bins,)
    answered_at: Counts
    in_time_at: Counts
    latency_at: Array

    @classmethod
    def empty(cls, n_tables: int, max_batch_size: int, n_latencies: int, n_bins: int) -> Tally:
        """Nothing counted yet."""
        return cls(
            np.zeros((BLOCKS + 1, N_BINS), dtype=np.int32),
            np.zeros((n_latencies, BLOCKS + 1), dtype=np.int64),
            np.zeros(BLOCKS + 1),
            np.zeros(BLOCKS + 1, dtype=np.int64),
            np.zeros((2 * n_tables, max_batch_size + 1), dtype=np.int64),
            np.zeros((2 * n_tables, BLOCKS + 1), dtype=np.int64),
            np.zeros(2 * n_tables),
            np.zeros(n_bins, dtype=np.int64),
            np.zeros(n_bins, dtype=np.int64),
            np.zeros(n_bins, dtype=np.int64),
            np.zeros(n_bins),
        )


def upper_edges() -> Array:
    """The largest latency of each bin, (N_BINS,), s."""
    power, step = np.divmod(np.arange(N_BINS), _PER_DOUBLING)
    return np.asarray(np.ldexp(0.5 + (step + 1) / (2 * _PER_DOUBLING), power + _LOWEST))


@compiled
def count(
    came: Array,
    arrivals: Array,
    batches: Records,
    places: Indices,
    counted_from: int,
    length: int,
    limits: Array,
    edges: Array,
    tally: Tally,
) -> float:
    """Add what a chunk led to, and who ``came`` in it; the time of the last answer.

    ``places`` are those of the ``arrivals`` among all.
    """
    n_bins = len(edges) - 1
    if n_bins > 0:
        for time in came:
            tally.arrivals_at[_bin(time, edges)] += 1
    ended = -np.inf
    for k in range(len(batches.first)):
        start, size = batches.first[k], batches.sizes[k]
        leaves, response, mark = batches.dispatched[k], batches.responses[k], batches.marks[k]
        tally.sizes[mark, size] += 1
        tally.seconds[mark] += response
        tally.batches[mark, _block(places[start] - counted_from, length)] += 1
        ended = max(ended, leaves + response)
        for i in range(start, start + size):
            latency = leaves - arrivals[i] + response
            block = _block(places[i] - counted_from, length)
            fraction, power = frexp(max(latency, _SHORTEST))
            at = (power - _LOWEST) * _PER_DOUBLING + int((fraction - 0.5) * (2 * _PER_DOUBLING))
            tally.latencies[block, min(N_BINS - 1, at)] += 1
            tally.latency_sums[block] += latency
            tally.answered[block] += 1
            for j in range(len(limits)):
                if latency <= limits[j]:
                    tally.in_time[j, block] += 1
            if n_bins > 0:
                bin_at = _bin(arrivals[i], edges)
                tally.answered_at[bin_at] += 1
                tally.latency_at[bin_at] += latency
                if len(limits) > 0 and latency <= limits[0]:
                    tally.in_time_at[bin_at] += 1
    return ended


@compiled
def _block(place: int, length: int) -> int:
    """Of a request, by its place among those that are counted; the first one is before them."""
    return 0 if place < 0 else 1 + place // length


@compiled
def largest_of(sizes: Array, batches: Records) -> Array:
    """The size of the largest member of each batch, (n_batches,); who was dropped between two batches is in none."""
    largest = np.empty(len(batches.first))
    for k in range(len(batches.first)):
        largest[k] = sizes[batches.first[k] : batches.first[k] + batches.sizes[k]].max()
    return largest


@compiled
def _bin(time: float, edges: Array) -> int:
    """Which of the equal bins between ``edges`` holds a time, or is nearest."""
    n_bins = len(edges) - 1
    return max(0, min(n_bins - 1, int((time - edges[0]) * (n_bins / (edges[-1] - edges[0])))))
