"""Arrivals in chunks, so that a simulation needs the memory of one, however long it is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import ceil
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.service.mix import SizeMix, checked_sizes
from sluice.optimizer.simulation.queue_run import Scalar, checked_times

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

    def class_chunks(self) -> Iterator[Indices] | None:
        """The classes of the requests in the same way, each by its place among those that a deployment has."""


def rate_seen(arrivals: Arrivals) -> float:
    """Requests per second, from the first of two or more to the last."""
    pieces = arrivals.chunks()
    ends = next(pieces)[[0, -1]]
    for times in pieces:
        ends[1] = times[-1]
    return (arrivals.n_requests - 1) / max(float(np.ptp(ends)), np.finfo(float).tiny)


class TraceArrivals:
    """Recorded arrivals.

    Parameters
    ----------
    times : array, shape (n_requests,)
        Ascending, s.
    sizes : array, shape (n_requests,), optional
        Of the requests.
    classes : array of int, shape (n_requests,), optional
        Of the requests.
    """

    def __init__(self, times: Array, sizes: Array | None = None, classes: Indices | None = None) -> None:
        self.times, self.sizes = checked_times(times), None if sizes is None else checked_sizes(sizes)
        self.classes = None if classes is None else np.asarray(classes, dtype=np.int64)
        for name, values in (("sizes", sizes), ("classes", classes)):
            n = len(times) if values is None else len(values)
            require(n == len(times), name, n, f"one for each of {len(times)}")

    @property
    def n_requests(self) -> int:
        return len(self.times)

    @property
    def span(self) -> float:
        return float(self.times[-1])

    @property
    def arrival_rate(self) -> float:
        """Requests per second, from the first to the last."""
        return rate_seen(self)

    def chunks(self) -> Iterator[Array]:
        return _pieces(self.times)

    def size_chunks(self) -> Iterator[Array] | None:
        return None if self.sizes is None else _pieces(self.sizes)

    def class_chunks(self) -> Iterator[Indices] | None:
        return None if self.classes is None else _pieces(self.classes)


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

    def class_chunks(self) -> Iterator[Indices] | None:
        return None


class MergedArrivals:
    """Arrivals of several processes, each of a class, that know nothing of each other and start just after an arrival each.

    Parameters
    ----------
    processes : sequence of ArrivalProcess
        By class.
    n_requests : int
        Of all of them.
    seed : int
        Of the generators that draw them.
    """

    def __init__(self, processes: Sequence[ArrivalProcess], n_requests: int, seed: int) -> None:
        require(len(processes) >= 1, "processes", len(processes), "at least one")
        require(n_requests >= 1, "n_requests", n_requests, "an integer >= 1")
        require(seed >= 0, "seed", seed, "an integer >= 0")
        self._processes, self._n_requests, self._seed = tuple(processes), n_requests, seed

    @property
    def n_requests(self) -> int:
        return self._n_requests

    @property
    def span(self) -> float:
        return self._n_requests / self._rate

    @property
    def _rate(self) -> float:
        return sum(process.arrival_rate for process in self._processes)

    def chunks(self) -> Iterator[Array]:
        return (times for times, _ in self.merged())

    def size_chunks(self) -> Iterator[Array] | None:
        return None

    def class_chunks(self) -> Iterator[Indices] | None:
        return (classes for _, classes in self.merged())

    def merged(self) -> Iterator[tuple[Array, Indices]]:
        """Times with their classes, piece by piece: all that came up to the moment up to which every process is drawn."""
        drawn = [self._times(k) for k in range(len(self._processes))]
        known = [next(times) for times in drawn]
        left = self._n_requests
        while left > 0:
            until = min(times[-1] for times in known)
            ready = [times[: np.searchsorted(times, until, side="right")] for times in known]
            times, classes = np.concatenate(ready), np.repeat(np.arange(len(ready)), list(map(len, ready)))
            order = np.argsort(times, kind="stable")[:left]
            yield times[order], classes[order]
            left -= len(order)
            for k, gone in enumerate(ready):
                known[k] = known[k][len(gone) :]
                if len(known[k]) == 0:
                    known[k] = next(drawn[k])

    def _times(self, k: int) -> Iterator[Array]:
        """Those of one process, without an end."""
        process = self._processes[k]
        rng = np.random.default_rng(np.random.SeedSequence(self._seed, spawn_key=(4, k)))
        size = ceil(CHUNK * process.arrival_rate / self._rate)
        now = 0.0
        for gaps in process.sample_chunks(self._n_requests + size, size, rng):
            times = now + np.cumsum(gaps)
            now = float(times[-1])
            yield times


def _drawn(mix: SizeMix, n_requests: int, rng: np.random.Generator) -> Iterator[Array]:
    """Independent sizes of requests, piece by piece."""
    for start in range(0, n_requests, CHUNK):
        yield mix.draw(min(CHUNK, n_requests - start), rng)


def _pieces(values: NDArray[Scalar]) -> Iterator[NDArray[Scalar]]:
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK]
