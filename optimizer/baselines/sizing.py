"""How many workers a baseline gets that does not say: the fewest that would have done for arrivals already seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from sluice.batching.documents import Slo
from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.simulation.chunks import TraceArrivals
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.streaming import simulate_deployments

MOST_WORKERS = 64
NEAR = 1.1  # times the violations that even the most workers leave


def fewest_workers(
    with_workers: Callable[[int], Deployment],
    arrival_times: Array,
    slos: Sequence[Slo],
    *,
    least: int = 1,
    most: int = MOST_WORKERS,
    seed: int = 0,
) -> int:
    """The fewest workers with which a baseline keeps the SLOs on ``arrival_times`` (s).

    Found by running them: doubled until enough, then halved in. Where not even ``most`` keep an SLO, the fewest that are about as
    good as these.

    Parameters
    ----------
    with_workers : callable
        The baseline with a number of workers.
    least, most : int
        The numbers considered; ``least`` where fewer cannot keep up.
    """
    require(1 <= least <= most, "least", least, f"an integer from 1 to {most}")
    arrivals = TraceArrivals(arrival_times)
    latencies = [slo.latency for slo in slos]
    tried: dict[int, list[float]] = {}

    def violations(workers: int) -> list[float]:
        if workers not in tried:
            run = simulate_deployments({"": with_workers(workers)}, arrivals, latencies, seed)[""]
            tried[workers] = [run.violation_ratio(k) for k in range(len(slos))]
        return tried[workers]

    def enough(workers: int, allowed: Sequence[float]) -> bool:
        return all(share <= most_allowed for share, most_allowed in zip(violations(workers), allowed, strict=True))

    allowed = [slo.error_budget for slo in slos]
    too_few, workers = least - 1, least
    while workers < most and not enough(workers, allowed):
        too_few, workers = workers, min(2 * workers, most)
    if not enough(workers, allowed):
        allowed = [max(share, NEAR * least_share) for share, least_share in zip(allowed, violations(most), strict=True)]
        too_few = least - 1
    while workers - too_few > 1:
        middle = (too_few + workers) // 2
        if enough(middle, allowed):
            workers = middle
        else:
            too_few = middle
    return workers
