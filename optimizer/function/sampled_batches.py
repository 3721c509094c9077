"""Batch sizes and waits from drawn arrivals, where the exact law would take too long (docs/model.md, 2.7).

The exact law counts arrivals by uniformization, and its work grows with the jumps of the phases within a hold. Where that is too
much, arrivals are drawn instead: independent parts, each begun in equilibrium just after an arrival, the first phases spread over
the parts as evenly as can be. In front of an elastic function no batch depends on how long another is served, so that for one table
with holds that do not rise (size-or-timeout is one with equal holds) all that counts is how many requests a batch that opens with
the ``i``-th would hold if there were no largest batch: ``reach[i]``. With batches of at most ``b`` the one after it opens with
``i + min(b, reach[i])``.

Requests are counted by the batch that they are in, and batches by where they open, after the first and before the last few requests
of each part. Shares are ratios of sums over the parts, their intervals those of a ratio of means (Student's t over the parts); a
share that is never, or always, seen is left the room that independent requests would leave, as in ``simulation.batch_means``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import log
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import InvalidInput, require
from sluice.optimizer.arrays import Array, Counts, Indices
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.compiled import compiled, inlined
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

CONFIDENCE = 0.95
SEED = 0
_BATCHES = 12  # of the largest size, that a part holds at the least
_LEVELS = 4096  # of the response, drawn evenly
_SAME = 1e-9  # of a hold: moments no further apart are one, as an atom must not be missed by rounding


class Draw(NamedTuple):
    """How much is drawn: independent ``parts`` of at least so many ``requests`` each."""

    parts: int
    requests: int


class DrawnParts:
    """Arrival times ``times`` (parts, requests), s, each part drawn independently, and from its first arrival on.

    They are for batches of at most ``max_batch_size``; ``levels`` are of the response, in random order.
    """

    def __init__(self, times: Array, max_batch_size: int, rng: np.random.Generator) -> None:
        length = times.shape[1]
        self.times, self.max_batch_size = times, max_batch_size
        self.first, self.end = max(length // 8, 2 * max_batch_size), length - max_batch_size  # batches that open there count
        self.levels = np.asarray(rng.permutation((np.arange(_LEVELS) + rng.random(_LEVELS)) / _LEVELS))


def requests_of_part(max_batch_size: int, draw: Draw) -> int:
    """How many a part has."""
    require(max_batch_size >= 1, "batch_size", max_batch_size, "an integer >= 1")
    return max(draw.requests, _BATCHES * max_batch_size)


def even_draws(probabilities: Array, parts: int, rng: np.random.Generator) -> Indices:
    """A place for each part by its probability, evenly spread in order, so that what is seldom left has its share, (parts,)."""
    levels = (np.arange(parts) + rng.random()) / parts
    return np.minimum(np.searchsorted(np.cumsum(probabilities), levels), len(probabilities) - 1)


class ArrivalSample(DrawnParts):
    """Parts of a process, each begun in equilibrium just after an arrival.

    Parameters
    ----------
    arrivals : ArrivalProcess
    max_batch_size : int
        The largest batch that will be asked for.
    draw : Draw
    """

    def __init__(self, arrivals: ArrivalProcess, max_batch_size: int, draw: Draw) -> None:
        self.arrivals = arrivals
        length = requests_of_part(max_batch_size, draw)
        rng = np.random.default_rng(SEED)
        times = np.zeros((draw.parts, length))
        for part, phase in enumerate(even_draws(arrivals.embedded, draw.parts, rng).tolist()):
            times[part, 1:] = np.cumsum(arrivals.sample(length - 1, rng, phase))
        super().__init__(times, max_batch_size, rng)


class SampledHolds:
    """What tables with holds that do not rise do to drawn arrivals, for every largest batch up to ``len(holds) + 1``.

    Parameters
    ----------
    sample : DrawnParts
        For batches of that size at least.
    holds : array, shape (max_batch_size - 1,)
        ``holds[n - 1]`` is the hold (s) with ``n`` waiting; all the timeout in size-or-timeout. They may rise with ``due``.
    due : array, shape (parts, requests), optional
        When the hold of each request begins (s); by default as it comes.

    Raises
    ------
    InvalidInput
        Holds that are negative or infinite, or rise without ``due``.
    """

    def __init__(self, sample: DrawnParts, holds: Array, due: Array | None = None) -> None:
        self.sample, self.max_batch_size = sample, len(holds) + 1
        self.holds = np.append(np.asarray(holds, dtype=np.float64), 0.0)
        falling = bool((np.diff(self.holds) <= 0).all())
        allowed = "seconds >= 0" + (" that do not rise with the number waiting" if due is None else "")
        possible = bool(np.isfinite(self.holds).all() and (self.holds >= 0).all())
        require(possible and (falling or due is not None), "holds", self.holds[:-1].tolist(), allowed)
        if self.max_batch_size > sample.max_batch_size:
            raise InvalidInput("holds", len(holds), f"at most {sample.max_batch_size - 1}, as the sample is for")
        if due is None:
            self._reach, self._due = _reach(sample.times, self.holds), sample.times
        else:
            reach_of = _reach_of_earliest if falling else _reach_of_any
            self._reach, self._due = reach_of(sample.times, due, self.holds)

    @cached_property
    def batch_size_pmf(self) -> Array:
        """``[b - 1, n - 1]``: share of the batches that have size ``n`` when at most ``b`` are taken; square, lower triangular."""
        counts = _sizes(self._reach, self.sample.first, self.sample.end, self.max_batch_size)
        return np.asarray(counts / counts.sum(axis=1, keepdims=True))

    @cached_property
    def mean_batch_size(self) -> Array:
        """Mean size of a batch, by largest batch: (max_batch_size,)."""
        return np.asarray(self.batch_size_pmf @ np.arange(1, self.max_batch_size + 1))

    def fraction_within(self, response: Array, levels: Array, times: Array) -> Array:
        """Share of the requests whose wait and response time are surely together at most ``times``: the lower end of its interval.

        Parameters and result are those of ``SizeOrTimeout.fraction_within``.
        """
        place, share = _places(levels, self.sample.levels)
        seconds = np.ascontiguousarray(response, dtype=np.float64)
        sums = _sums_within(self._drawn, seconds, place, share, np.asarray(times, dtype=np.float64))
        value, half = _ratio(sums, len(self.sample.times))
        return np.clip(value - half, 0.0, 1.0)

    def latencies(self, response: Array, levels: Array, asked: NDArray[np.bool_] | None = None) -> SampledLatencies:
        """Latency of every request that is ``asked`` for, (parts, requests) of the sample, or of all, under the largest batch.

        ``response`` (max_batch_size, n_levels) is as in ``fraction_within``.
        """
        place, share = _places(levels, self.sample.levels)
        of = np.ones(self.sample.times.shape, dtype=np.bool_) if asked is None else asked
        found, counts = _latencies(self._drawn, np.ascontiguousarray(response, dtype=np.float64), place, share, of)
        found.sort(axis=1)  # what was not counted is infinite
        return SampledLatencies(found, counts, float(self.holds[0]))

    @property
    def _drawn(self) -> _Drawn:
        return _Drawn(self.sample.times, self._due, self._reach, self.holds, self.sample.first, self.sample.end)


@dataclass(frozen=True, eq=False)
class SampledLatencies:
    """Latencies of drawn requests, s: ascending by part, of which ``counts`` (parts,) are finite; ``hold`` is the longest."""

    seconds: Array
    counts: Counts
    hold: float

    def share(self, times: Array) -> Array:
        """Share of the requests answered within ``times`` (s), (n_times,)."""
        return self._within(times)[0]

    def half(self, times: Array) -> Array:
        """Half the width of its interval."""
        return self._within(times)[1]

    def _within(self, times: Array) -> tuple[Array, Array]:
        at = np.asarray(times, dtype=np.float64) + _SAME * max(self.hold, 1e-6)
        below = np.array([np.searchsorted(part, at, side="right") for part in self.seconds], dtype=np.float64)
        n = np.broadcast_to(self.counts[:, None].astype(np.float64), below.shape)
        sums = np.stack([part.sum(axis=0) for part in (below, n, below**2, below * n, n**2)], axis=-1)
        return _ratio(sums, len(self.counts))


class _Drawn(NamedTuple):
    """Arrivals under a table: those of batches that open from ``first`` on and before ``end`` count.

    ``due`` is from when the hold of the batch that opens with each runs, its ``reach`` being taken.
    """

    times: Array
    due: Array
    reach: NDArray[np.int64]
    holds: Array
    first: int
    end: int


def _places(levels: Array, drawn: Array) -> tuple[NDArray[np.int64], Array]:
    """Between which of the quantile levels each drawn level lies, and where."""
    if len(levels) == 1:
        return np.zeros(1, dtype=np.int64), np.zeros(1)
    place = np.clip(np.searchsorted(levels, drawn, side="right") - 1, 0, len(levels) - 2)
    return place, (drawn - levels[place]) / (levels[place + 1] - levels[place])


def _ratio(sums: Array, parts: int) -> tuple[Array, Array]:
    """Ratio of means and half its interval, of sums over the parts of x, n, x^2, x n, n^2 on the last axis."""
    x, n, xx, xn, nn = np.moveaxis(sums, -1, 0)
    none = n == 0  # nothing was seen of them, and anything may be
    n = np.maximum(n, 1)
    value = x / n
    spread = np.clip(xx - 2 * value * xn + value**2 * nn, 0.0, None) * parts / (parts - 1)
    half = float(special.stdtrit(parts - 1, (1 + CONFIDENCE) / 2)) * np.sqrt(spread) / n
    return np.asarray(value), np.where(none, 1.0, np.maximum(half, log(2 / (1 - CONFIDENCE)) / n))


@compiled
def _reach(times: Array, holds: Array) -> NDArray[np.int64]:
    """How many requests a batch that opens with each would hold, at most as many as there are holds; fewer near the end."""
    parts, length = times.shape
    reach = np.empty((parts, length), dtype=np.int64)
    largest = len(holds)
    for part in range(parts):
        n = 1
        for i in range(length):
            n = max(1, n - 1)  # holds do not rise: who was in time for the request before is for this one
            while n < largest and i + n < length and times[part, i + n] - times[part, i] <= holds[n - 1]:
                n += 1
            reach[part, i] = n
    return reach


@compiled
def _reach_of_earliest(times: Array, due: Array, holds: Array) -> tuple[NDArray[np.int64], Array]:
    """The same where the hold of each request runs from when it is ``due``, and the earliest such moment in each batch.

    It is apart from ``_reach``, as to know who is due first takes longer than all the rest.
    """
    parts, length = times.shape
    reach, earliest = np.empty((parts, length), dtype=np.int64), np.empty((parts, length))
    largest = len(holds)
    urgent = np.empty(length, dtype=np.int64)  # of who waits those that none who came later is due before, in order
    for part in range(parts):
        n, head, tail, joined = 1, 0, 0, 0
        for i in range(length):
            n = max(1, n - 1)  # holds do not rise: who was in time for the request before is for this one
            if head < tail and urgent[head] < i:
                head += 1
            while True:
                while joined < i + n:
                    while tail > head and due[part, urgent[tail - 1]] >= due[part, joined]:
                        tail -= 1
                    urgent[tail] = joined
                    tail += 1
                    joined += 1
                hold = holds[n - 1]
                ends = due[part, urgent[head]] + hold if hold > 0 else times[part, i + n - 1]
                if n == largest or i + n == length or times[part, i + n] > ends:
                    break
                n += 1
            reach[part, i], earliest[part, i] = n, due[part, urgent[head]]
    return reach, earliest


@compiled
def _reach_of_any(times: Array, due: Array, holds: Array) -> tuple[NDArray[np.int64], Array]:
    """The same where holds may rise: who was in time for the request before may not be for this one, so each begins anew."""
    parts, length = times.shape
    reach, earliest = np.empty((parts, length), dtype=np.int64), np.empty((parts, length))
    largest = len(holds)
    for part in range(parts):
        for i in range(length):
            n, first_due = 1, due[part, i]
            while n < largest and i + n < length:
                hold = holds[n - 1]
                ends = max(first_due + hold, times[part, i + n - 1]) if hold > 0 else times[part, i + n - 1]
                if times[part, i + n] > ends:
                    break
                first_due = min(first_due, due[part, i + n])
                n += 1
            reach[part, i], earliest[part, i] = n, first_due
    return reach, earliest


@compiled
def _sizes(reach: NDArray[np.int64], first: int, end: int, largest: int) -> Array:
    """Batches by largest batch and size, (largest, largest)."""
    counts = np.zeros((largest, largest))
    fullest = reach.max()
    for b in range(1, largest + 1):
        if b > fullest:  # none is so large: as with the one before
            counts[b - 1] = counts[b - 2]
            continue
        for part in range(len(reach)):
            i = 0
            while i < end:
                size = min(b, reach[part, i])
                if i >= first:
                    counts[b - 1, size - 1] += 1
                i += size
    return counts


@compiled
def _sums_within(drawn: _Drawn, response: Array, place: NDArray[np.int64], share: Array, within: Array) -> Array:
    """Sums over the parts for a ratio, (n_services, largest, n_times, 5), of the requests in time and of all."""
    times, due, reach, holds, first, end = drawn
    n_services, largest, _ = response.shape
    sums = np.zeros((n_services, largest, len(within), 5))
    fullest, turn = reach.max(), 0
    in_time = np.empty((n_services, len(within)))
    for b in range(1, largest + 1):
        if b > fullest + 1:  # none was full with one less either: all are as there
            sums[:, b - 1] = sums[:, b - 2]
            continue
        for part in range(len(times)):
            in_time[:] = 0.0
            n, i = 0, 0
            while i < end:
                size = min(b, reach[part, i])
                if i >= first:
                    n += size
                    turn = (turn + 1) % len(place)
                    hold = holds[size - 1] if size < b else 0.0
                    leaves = _leaves(times[part, i + size - 1], due[part, i], hold)
                    for service in range(n_services):
                        seconds = _response(response[service, size - 1], place[turn], share[turn])
                        for time in range(len(within)):
                            wait = within[time] - seconds
                            in_time[service, time] += _members_within(times[part, i : i + size], leaves, wait, holds[0])
                i += size
            for service in range(n_services):
                for time in range(len(within)):
                    _add(sums[service, b - 1, time], in_time[service, time], n)
    return sums


@inlined
def _add(sums: Array, x: float, n: float) -> None:
    """A part's requests in time, and all of its requests."""
    sums[0] += x
    sums[1] += n
    sums[2] += x * x
    sums[3] += x * n
    sums[4] += n * n


@inlined
def _leaves(last: float, due: float, hold: float) -> float:
    """When a batch leaves, of which the ``last`` came then: he may find its hold over; a hold of 0 is over for everybody."""
    return max(last, due + hold) if hold > 0 else last


@inlined
def _response(quantiles: Array, place: int, share: float) -> float:
    """Response time at a drawn level."""
    if len(quantiles) == 1:
        return float(quantiles[0])
    return float(quantiles[place] + share * (quantiles[place + 1] - quantiles[place]))


@inlined
def _members_within(members: Array, leaves: float, wait: float, hold: float) -> int:
    """How many of a batch wait at most so long: its last ones."""
    longest = wait + _SAME * max(hold, 1e-6)
    if longest < 0:
        return 0
    if leaves - members[0] <= longest:
        return len(members)
    low, high = 0, len(members)  # the first that does is the low-th or a later one, and not beyond the high-th
    while low < high:
        middle = (low + high) // 2
        if leaves - members[middle] <= longest:
            high = middle
        else:
            low = middle + 1
    return len(members) - low


@compiled
def _latencies(
    drawn: _Drawn, response: Array, place: NDArray[np.int64], share: Array, asked: NDArray[np.bool_]
) -> tuple[Array, NDArray[np.int64]]:
    """Latency of each request ``asked`` for, in no order of time and infinite beyond them, (parts, length), and their number."""
    times, due, reach, holds, first, end = drawn
    parts, length = times.shape
    found, counts = np.full((parts, length), np.inf), np.zeros(parts, dtype=np.int64)
    turn = 0
    for part in range(parts):
        n, i = 0, 0
        while i < end:
            size = reach[part, i]
            if i >= first:
                turn = (turn + 1) % len(place)
                leaves = _leaves(times[part, i + size - 1], due[part, i], holds[size - 1])
                seconds = _response(response[size - 1], place[turn], share[turn])
                for member in range(i, i + size):
                    if asked[part, member]:
                        found[part, n] = leaves - times[part, member] + seconds
                        n += 1
            i += size
        counts[part] = n
    return found, counts
