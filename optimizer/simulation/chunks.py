"""Arrivals in chunks, so that a simulation needs the memory of one, however long it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.service.mix import SizeMix, checked_sizes
from sluice.optimizer.simulation.queue_run import checked_times

CHUNK = 1 << 18  # arrivals


class Arrivals(Protocol):
    """``n_requests`` arrivals, the first at 0 s or later, the last near ``span`` s."""

    @property
    def n_requests(self) -> int: ...

    @property
    def span(self) -> float: ...

    def chunks(self) -> Iterator[Array]:
        """Ascending times, piece by piece; the same at every call."""
        ...

    def size_chunks(self) -> Iterator[Array] | None:
        """The sizes of the requests, in pieces as long as those of ``chunks``; ``None`` where they are not told apart."""


class TraceArrivals:
    """Recorded arrivals.

    Parameters
    ----------
    times : array, shape (n_requests,)
        Ascending, s.
    sizes : array, shape (n_requests,), optional
        Of the requests.
    """

    def __init__(self, times: Array, sizes: Array | None = None) -> None:
        self.times, self.sizes = checked_times(times), None if sizes is None else checked_sizes(sizes)
        require(
            sizes is None or len(sizes) == len(times), "sizes", 0 if sizes is None else len(sizes), f"one for each of {len(times)}"
        )

    @property
    def n_requests(self) -> int:
        return len(self.times)

    @property
    def span(self) -> float:
        return float(self.times[-1])

    def chunks(self) -> Iterator[Array]:
        return _pieces(self.times)

    def size_chunks(self) -> Iterator[Array] | None:
        return None if self.sizes is None else _pieces(self.sizes)


class SampledArrivals:
    """Arrivals of a process that starts just after an arrival in equilibrium.

    Parameters
    ----------
    process : ArrivalProcess
    n_requests : int
    seed : int
        Of the generator that draws them.
    mix : SizeMix, optional
        From which the sizes of the requests are drawn, independently.
    """

    def __init__(self, process: ArrivalProcess, n_requests: int, seed: int, mix: SizeMix | None = None) -> None:
        require(n_requests >= 1, "n_requests", n_requests, "an integer >= 1")
        require(seed >= 0, "seed", seed, "an integer >= 0")
        self._process, self._n_requests, self._seed, self._mix = process, n_requests, seed, mix

    @property
    def n_requests(self) -> int:
        return self._n_requests

    @property
    def span(self) -> float:
        return self._n_requests / self._process.arrival_rate

    def _rng(self, stream: int) -> np.random.Generator:
        """Not that of the same seed alone, from which a simulation may draw its service times."""
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(stream,)))

    def chunks(self) -> Iterator[Array]:
        now = 0.0
        for gaps in self._process.sample_chunks(self._n_requests, CHUNK, self._rng(1)):
            times = now + np.cumsum(gaps)
            now = float(times[-1])
            yield times

    def size_chunks(self) -> Iterator[Array] | None:
        return None if self._mix is None else _drawn(self._mix, self._n_requests, self._rng(2))


def _drawn(mix: SizeMix, n_requests: int, rng: np.random.Generator) -> Iterator[Array]:
    """Independent sizes of requests, piece by piece."""
    for start in range(0, n_requests, CHUNK):
        yield mix.draw(min(CHUNK, n_requests - start), rng)


def _pieces(values: Array) -> Iterator[Array]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]
