"""The latency of a class that shares a table with others, as a prediction."""

from __future__ import annotations

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.function.latency import LatencyPrediction
from sluice.optimizer.function.wait_pieces import WaitPieces
from sluice.optimizer.service.times import ServiceTimes


def longest_wait(holds: Array, slack: float) -> float:
    """What a request with a slack waits at the longest, s; a hold of 0 is over for everybody."""
    longest = float(holds.max(initial=0.0))
    return longest + float(slack) if longest > 0 else 0.0


def exact_latency(pieces: WaitPieces, pmf: Array, service: ServiceTimes, hold: float) -> LatencyPrediction:
    """By (2.6): ``pieces`` are of a class over its share of the arrivals, ``pmf`` of all batches; no wait exceeds ``hold`` (s)."""
    mean = float(pmf @ np.arange(1, len(pmf) + 1))

    def cdf(times: Array) -> Array:
        within = pieces.within(service.response, service.quantile_levels, np.asarray(times, dtype=np.float64))
        return np.asarray(np.clip(within / mean, 0.0, 1.0))

    return LatencyPrediction("exact", len(pmf), hold, pmf, cdf, float(service.response.max()) + hold)
