"""Latencies that were seen rather than predicted: of a simulation, or of a replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from sluice.batching.documents import quantile_of
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.recommend import Answer, FunctionSetting
from sluice.optimizer.recommend.recorded import function_of
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.chunks import TraceArrivals
from sluice.optimizer.simulation.event_loop import simulate
from sluice.optimizer.simulation.statistics import RunStatistics
from sluice.optimizer.simulation.streaming import simulate_deployments

LEVELS = np.unique(np.concatenate([np.arange(1, 200) / 200, 1 - np.geomspace(0.1, 1e-4, 31)]))


@dataclass(frozen=True, eq=False)
class Seen:
    """Latencies of ``n_requests`` as points of their quantile function.

    Parameters
    ----------
    name : str
        How they were seen.
    quantiles, latencies : array, shape (n_levels,)
        ``latencies`` (s) that a part ``quantiles`` of the requests did not exceed; both ascending. The last quantile is below one
        where requests failed.
    estimates : mapping of float to Estimate
        Of some percentiles, with their 95 % confidence intervals; s.
    batch_size_pmf : array, shape (batch_size,), optional
        Probabilities of the sizes of batches, where they were seen.
    """

    name: str
    n_requests: int
    quantiles: Array
    latencies: Array
    estimates: Mapping[float, Estimate] = field(default_factory=dict)
    batch_size_pmf: Array | None = None

    def __post_init__(self) -> None:
        rising = len(self.quantiles) > 1 and (np.diff(self.quantiles) > 0).all() and (np.diff(self.latencies) >= 0).all()
        if not rising or not 0 <= self.quantiles[0] < self.quantiles[-1] <= 1 or not np.isfinite(self.latencies).all():
            pairs = list(zip(self.quantiles.tolist(), self.latencies.tolist(), strict=True))
            raise InvalidInput(f"{self.name}: quantiles", pairs, "at least two pairs [q, seconds], ascending, with q in 0..1")

    def percentile(self, percentile: float) -> float | None:
        """Latency (s) at a percentile (0-100); ``None`` beyond what was seen."""
        if percentile in self.estimates:
            return self.estimates[percentile].value
        quantile = quantile_of(percentile)
        if not self.quantiles[0] <= quantile <= self.quantiles[-1]:
            return None
        return float(np.interp(quantile, self.quantiles, self.latencies))


def on_trace(answer: Answer, arrival_times: Array) -> RunStatistics:
    """What the recommended workers, with or without a function beside them, do with arrivals at these times (s)."""
    deployment = answer.winner.deployment(function_of(answer.question))
    return simulate_deployments({"": deployment}, TraceArrivals(arrival_times), [slo.latency for slo in answer.slos])[""]


def simulate_setting(
    name: str,
    setting: FunctionSetting,
    service: ServiceTimes,
    arrival_times: Array,
    percentiles: Sequence[float],
    rng: np.random.Generator,
) -> Seen:
    """What the requests that arrive at ``arrival_times`` (s) see when the setting's policy is run by the event loop."""
    result = simulate(setting.policy, arrival_times, service, rng)
    latency = result.latency[result.answered]
    sizes = np.bincount(result.batch_sizes, minlength=setting.batch_size + 1)[1:]
    return Seen(
        name,
        len(latency),
        LEVELS,
        np.quantile(latency, LEVELS, method="inverted_cdf"),
        result.percentiles(percentiles),
        sizes / sizes.sum(),
    )
