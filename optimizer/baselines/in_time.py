"""How many requests a worker may take at once so that they are in time."""

from __future__ import annotations

import numpy as np

from sluice.batching.documents import Slo
from sluice.optimizer.arrays import Array
from sluice.optimizer.service.times import ServiceTimes

CYCLES = 2  # batches that fit into an SLO: who just missed one is still in time with the next


def seconds_in_time(service: ServiceTimes, slo: Slo, cycles: float = CYCLES) -> Array:
    """Seconds of a batch of 1, 2, ... at the SLO's percentile, as far as ``cycles`` of them fit into the SLO; of 1 at least."""
    seconds = service.quantile(slo.quantile)
    fitting = int(np.searchsorted(cycles * seconds, slo.latency * (1 + 1e-12), side="right"))
    return seconds[: max(fitting, 1)]


def largest_throughput(service: ServiceTimes, slo: Slo) -> float:
    """Requests/s that a worker serves at most in batches of which two fit into the SLO."""
    sizes = len(seconds_in_time(service, slo))
    return float((np.arange(1, sizes + 1) / service.mean_response[:sizes]).max())
