"""How long requests of a run took to be answered: percentiles with their confidence intervals, and shares that are late.

Nothing is kept by request; what is counted, and how exactly, stands in ``tally``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from sluice.batching.documents import RequestClass, Slo, quantile_of
from sluice.batching.errors import require
from sluice.optimizer.arrays import Array, Counts, Indices
from sluice.optimizer.simulation.batch_means import (
    BLOCKS,
    FEWEST_REQUESTS,
    Estimate,
    estimate_quantile_of_counts,
    estimate_ratio,
    share_of_blocks,
    slowest_of_counts,
)
from sluice.optimizer.simulation.queue_run import NONE, Progress
from sluice.optimizer.simulation.tally import Tally, count, upper_edges


@dataclass(frozen=True, eq=False)
class LatencyStatistics:
    """How long ``n_requests`` took from arrival to answer.

    Parameters
    ----------
    latencies : tuple of float
        The latencies within which answers were counted, s.
    dropped : int
        Requests that grew too old.
    unanswered : int
        Requests that waited still when no event was left to release them.
    """

    _: KW_ONLY
    n_requests: int
    latencies: tuple[float, ...]
    dropped: int
    unanswered: int
    _tally: Tally
    _length: int

    @property
    def estimates(self) -> bool:
        """Whether there are enough requests for estimates with their intervals; of a class there may not be."""
        return self.n_requests >= FEWEST_REQUESTS

    @property
    def answered(self) -> int:
        """Requests that were answered, however late."""
        return self.n_requests - self.dropped - self.unanswered

    @property
    def mean_latency(self) -> Estimate:
        """Mean latency of the answered requests in equilibrium, s; ``nan`` where none was."""
        return estimate_ratio(self._tally.latency_sums[1:], self._tally.answered[1:])

    def percentile(self, percentile: float) -> Estimate:
        """Percentile (0-100) of the latency in equilibrium, s; what is not answered counts as answered never."""
        return estimate_quantile_of_counts(*self._counted, quantile_of(percentile))

    def share_within(self, latencies: Array) -> Array:
        """Share of all arrivals that were answered within these seconds, to the width of a bin."""
        answered = np.append(0, np.cumsum(self._tally.latencies.sum(axis=0)))
        return np.asarray(answered[np.searchsorted(upper_edges(), latencies, side="right")] / self.n_requests)

    def violations(self, k: int = 0) -> Estimate:
        """Share of the requests that in equilibrium are not answered within ``latencies[k]``."""
        return share_of_blocks(self._length - self._in_time(k)[1:], self._length, among=slowest_of_counts(*self._counted))

    def violation_ratio(self, k: int = 0) -> float:
        """Share of all arrivals that were not answered within ``latencies[k]``."""
        return (self.n_requests - int(self._in_time(k).sum())) / max(1, self.n_requests)

    def keeps(self, slos: Sequence[Slo]) -> bool:
        """Whether of all arrivals no more were late than the SLOs allow; their latencies are those asked for, in their order."""
        return all(self.violation_ratio(k) <= slo.error_budget for k, slo in enumerate(slos))

    def surely_keeps(self, slos: Sequence[Slo]) -> bool | None:
        """Whether all SLOs are surely kept, as the intervals of the violations have it, surely not, or neither.

        What was not kept in the run itself, its beginning included, is not surely kept.
        """
        verdicts = [surely_keeps(self.violations(k), slo) for k, slo in enumerate(slos)]
        return False if False in verdicts else None if None in verdicts or not self.keeps(slos) else True

    @cached_property
    def _counted(self) -> tuple[Counts, Array]:
        """Requests by block and latency, (BLOCKS, n_seen), and those seen, (n_seen,), s; the last, ``inf``, of the unanswered."""
        seen = np.flatnonzero(self._tally.latencies[1:].any(axis=0))  # some hundreds of the bins
        unanswered = self._length - self._tally.answered[1:]
        return np.column_stack([self._tally.latencies[1:, seen], unanswered]), np.append(upper_edges()[seen], np.inf)

    def _in_time(self, k: int) -> Counts:
        require(0 <= k < len(self.latencies), "k", k, f"the place of one of the {len(self.latencies)} latencies")
        return np.asarray(self._tally.in_time[k])


@dataclass(frozen=True, eq=False)
class ClassStatistics(LatencyStatistics):
    """The same of the requests of one class; the only one of its ``latencies`` is that of its promise, if it has one."""

    request_class: RequestClass

    @property
    def slos(self) -> tuple[Slo, ...]:
        """Its promise, if it has one."""
        return () if self.request_class.slo is None else (self.request_class.slo,)

    @property
    def kept(self) -> bool | None:
        """Whether its promise is surely kept, surely not, or neither, as where there are too few requests to say."""
        return self.surely_keeps(self.slos) if self.estimates or not self.slos else None


def surely_keeps(violations: Estimate, slo: Slo) -> bool | None:
    """Whether the share of violations is surely within what the SLO allows, surely beyond (``False``), or neither."""
    if violations.high <= slo.error_budget:
        return True
    return False if violations.low > slo.error_budget else None


class LatencyCounter:
    """Counts what a queue's progress says of ``n_requests``, in a tally for so many tables, sizes of batches and bins of time."""

    def __init__(
        self, n_requests: int, latencies: tuple[float, ...], n_tables: int, max_batch_size: int, edges: Array | None = None
    ) -> None:
        self.n_requests, self.latencies = n_requests, latencies
        self._edges = np.empty(0) if edges is None else edges
        self._length = max(1, n_requests // (BLOCKS + 1))
        self.tally = Tally.empty(n_tables, max_batch_size, len(latencies), max(0, len(self._edges) - 1))
        self._fed = 0  # requests that came
        self._seen = 0  # those of them that left or were dropped

    def add(self, progress: Progress, places: Indices = NONE) -> float:
        """What another chunk led to, and the time of the last answer, s (-inf: none).

        ``places`` are those of its requests among all, where others came in between.
        """
        arrivals, places = progress.requests.times, places if len(places) else progress.requests.places
        most = self.n_requests - self._seen
        require(len(arrivals) <= most, "arrivals", len(arrivals), f"at most {most}, as {self.n_requests} requests were announced")
        ended = count(
            progress.came.times,
            arrivals,
            progress.batches,
            places if len(places) else np.arange(self._seen, self._seen + len(arrivals)),
            self.n_requests - BLOCKS * self._length,
            self._length,
            np.array(self.latencies),
            self._edges,
            self.tally,
        )
        self._seen += progress.n_left
        self._fed += len(progress.came.times)
        return ended

    def counted(self) -> dict[str, Any]:
        """The fields of ``LatencyStatistics``, when all is added."""
        require(self._fed == self.n_requests, "arrivals", self._fed, f"the {self.n_requests} requests that were announced")
        return {
            "n_requests": self.n_requests,
            "latencies": self.latencies,
            "dropped": self._seen - int(self.tally.answered.sum()),
            "unanswered": self.n_requests - self._seen,
            "_tally": self.tally,
            "_length": self._length,
        }
