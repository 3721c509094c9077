"""What a fleet did with the requests of a day, counted honestly.

A request is in time if it was answered within its family's SLO. Whatever else became of it, dropped, late, or routed nowhere, is a
violation: the violation ratio is one minus the requests in time over all that arrived. The effective accuracy is the mean accuracy
of the variants that served the requests in time.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array, Indices

ROUNDING = 1 + 1e-9  # times the SLO: an answer at the very deadline is in time, however its latency was rounded


@dataclass(frozen=True, eq=False)
class FleetSeries:
    """A fleet's run by windows of time, each array (n_windows,).

    Parameters
    ----------
    edges : array, shape (n_windows + 1,)
        Ends of the windows, s.
    arrivals, in_time : array of int
        Requests that arrived in the window, and those of them that were answered within their SLO.
    effective_accuracy : array
        Mean accuracy of those in time, percent; ``nan`` without any.
    """

    edges: Array
    arrivals: Indices
    in_time: Indices
    effective_accuracy: Array

    @property
    def arrival_rate(self) -> Array:
        """Requests/s."""
        return np.asarray(self.arrivals / np.diff(self.edges))

    @property
    def throughput(self) -> Array:
        """Requests in time, 1/s."""
        return np.asarray(self.in_time / np.diff(self.edges))

    @property
    def violation_ratio(self) -> Array:
        """Share of the window's requests that were not in time; ``nan`` where none arrived."""
        missed = np.full(len(self.arrivals), np.nan)
        np.divide(self.arrivals - self.in_time, self.arrivals, out=missed, where=self.arrivals > 0)
        return missed


@dataclass(frozen=True, eq=False)
class FleetRun:
    """What happened to every request of a fleet, in order of arrival over all families.

    Parameters
    ----------
    arrival_times : array, shape (n_requests,)
        s.
    family, queue : array of int, shape (n_requests,)
        Whose request it is, and which queue it was routed to, -1 for nowhere.
    latency : array, shape (n_requests,)
        Seconds from arrival to answer; ``nan`` without one.
    accuracy : array, shape (n_requests,)
        Percent, of the variant behind the queue; ``nan`` for nowhere.
    slos : array, shape (n_families,)
        s.
    batches : array of int, shape (n_queues,)
        How many each queue released.
    busy_seconds, server_seconds : array, shape (n_queues,)
        Seconds in which its servers served, and in which they were there.
    """

    arrival_times: Array
    family: Indices
    queue: Indices
    latency: Array
    accuracy: Array
    slos: Array
    batches: Indices
    busy_seconds: Array
    server_seconds: Array

    @property
    def n_requests(self) -> int:
        """All that arrived."""
        return len(self.arrival_times)

    @property
    def in_time(self) -> NDArray[np.bool_]:
        """Which requests were answered within the SLO of their family, to rounding, (n_requests,)."""
        return np.asarray(self.latency <= self.slos[self.family] * ROUNDING)

    @property
    def violation_ratio(self) -> float:
        """One minus those in time over all that arrived."""
        return 1.0 - float(self.in_time.sum()) / self.n_requests if self.n_requests else np.nan

    @property
    def effective_accuracy(self) -> float:
        """Mean accuracy of the requests in time, percent; ``nan`` without any."""
        in_time = self.in_time
        return float(self.accuracy[in_time].mean()) if in_time.any() else np.nan

    @property
    def throughput(self) -> float:
        """Requests in time per second, from the first arrival to the last; ``nan`` without two moments."""
        span = float(np.ptp(self.arrival_times)) if self.n_requests else 0.0
        return float(self.in_time.sum()) / span if span else np.nan

    @property
    def utilisation(self) -> float:
        """Share of the servers' time in which they served; ``nan`` where there were none."""
        there = float(self.server_seconds.sum())
        return float(self.busy_seconds.sum()) / there if there else np.nan

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch, over all queues; ``nan`` without any."""
        batches = int(self.batches.sum())
        return int((~np.isnan(self.latency)).sum()) / batches if batches else np.nan

    def of_family(self, family: int) -> FleetRun:
        """The requests of one family alone; batches, busy and server seconds stay those of all queues."""
        require(0 <= family < len(self.slos), "family", family, f"an integer from 0 to {len(self.slos) - 1}")
        mine = self.family == family
        columns = ("arrival_times", "family", "queue", "latency", "accuracy")
        return replace(self, **{name: getattr(self, name)[mine] for name in columns})

    def series(self, window: float = 10.0) -> FleetSeries:
        """The run by windows of ``window`` seconds, from time 0, a request counting where it arrived."""
        require(0 < window < np.inf, "window", window, "a number of seconds > 0")
        of = (self.arrival_times // window).astype(np.int64)
        n = int(of[-1]) + 1 if len(of) else 0
        in_time = self.in_time
        arrivals, timely = np.bincount(of, minlength=n), np.bincount(of[in_time], minlength=n)
        earned = np.bincount(of[in_time], self.accuracy[in_time], minlength=n)
        accuracy: Array = np.full(n, np.nan)
        np.divide(earned, timely, out=accuracy, where=timely > 0)
        return FleetSeries(window * np.arange(n + 1, dtype=np.float64), arrivals, timely, accuracy)

    def max_accuracy_drop(self, window: float) -> float:
        """How far the effective accuracy of a window fell below 100, at the most, percentage points."""
        return 100.0 - float(np.nanmin(self.series(window).effective_accuracy))
