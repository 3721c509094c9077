"""Arrivals in chunks, so that a simulation needs the memory of one, however long it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
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


class TraceArrivals:
    """Recorded arrivals.

    Parameters
    ----------
    times : array, shape (n_requests,)
        Ascending, s.
    """

    def __init__(self, times: Array) -> None:
        self.times = checked_times(times)

    @property
    def n_requests(self) -> int:
        return len(self.times)

    @property
    def span(self) -> float:
        return float(self.times[-1])

    def chunks(self) -> Iterator[Array]:
        for start in range(0, self.n_requests, CHUNK):
            yield self.times[start : start + CHUNK]


class SampledArrivals:
    """Arrivals of a process that starts just after an arrival in equilibrium.

    Parameters
    ----------
    process : ArrivalProcess
    n_requests : int
    seed : int
        Of the generator that draws them.
    """

    def __init__(self, process: ArrivalProcess, n_requests: int, seed: int) -> None:
        require(n_requests >= 1, "n_requests", n_requests, "an integer >= 1")
        require(seed >= 0, "seed", seed, "an integer >= 0")
        self._process, self._n_requests, self._seed = process, n_requests, seed

    @property
    def n_requests(self) -> int:
        return self._n_requests

    @property
    def span(self) -> float:
        return self._n_requests / self._process.arrival_rate

    def _rng(self) -> np.random.Generator:
        """Not that of the same seed alone, from which a simulation may draw its service times."""
        return np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(1,)))

    def chunks(self) -> Iterator[Array]:
        now = 0.0
        for gaps in self._process.sample_chunks(self._n_requests, CHUNK, self._rng()):
            times = now + np.cumsum(gaps)
            now = float(times[-1])
            yield times
