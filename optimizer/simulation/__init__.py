"""What tables do when run: one event loop that interprets any of them, with confidence intervals.

``simulate`` keeps every request of one table; ``simulate_deployments`` runs several deployments side by side and keeps statistics.
Whatever has a ``percentile`` here answers with an ``Estimate`` that counts the unanswered as answered never. The nouns of lower
rooms that a deployment and its arrivals are made of are exported with them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sluice.optimizer.when_asked import names_when_asked

if TYPE_CHECKING:
    from sluice.batching.documents import RequestClass
    from sluice.optimizer.arrivals import ArrivalProcess, mmpp2, poisson
    from sluice.optimizer.billing import Billing
    from sluice.optimizer.service import ServiceTimes, service_times
    from sluice.optimizer.simulation.batch_means import Estimate
    from sluice.optimizer.simulation.chunks import Arrivals, MergedArrivals, SampledArrivals, TraceArrivals
    from sluice.optimizer.simulation.deployment import Adaptation, Beside, Deployment, Environments, Serving
    from sluice.optimizer.simulation.event_loop import (
        ClassResult,
        SimulationResult,
        simulate,
        simulate_deployment,
        simulate_schedule,
    )
    from sluice.optimizer.simulation.function import Function
    from sluice.optimizer.simulation.latency_statistics import ClassStatistics
    from sluice.optimizer.simulation.schedule import KEEP, Schedule
    from sluice.optimizer.simulation.several_queues import RoutedDeployment, SeveralQueues
    from sluice.optimizer.simulation.sized_deployment import SizedDeployment, SizedQueue
    from sluice.optimizer.simulation.sized_run import SizedRun, simulate_sizes
    from sluice.optimizer.simulation.statistics import (
        RunStatistics,
        Series,
        ServingStatistics,
        cheapest_kept,
        cheapest_perhaps_kept,
    )
    from sluice.optimizer.simulation.streaming import simulate_deployments
else:
    __getattr__ = names_when_asked(__name__)

__all__ = [
    "KEEP",
    "Adaptation",
    "ArrivalProcess",
    "Arrivals",
    "Beside",
    "Billing",
    "ClassResult",
    "ClassStatistics",
    "Deployment",
    "Environments",
    "Estimate",
    "Function",
    "MergedArrivals",
    "RequestClass",
    "RoutedDeployment",
    "RunStatistics",
    "SampledArrivals",
    "Schedule",
    "Series",
    "ServiceTimes",
    "Serving",
    "ServingStatistics",
    "SeveralQueues",
    "SimulationResult",
    "SizedDeployment",
    "SizedQueue",
    "SizedRun",
    "TraceArrivals",
    "cheapest_kept",
    "cheapest_perhaps_kept",
    "mmpp2",
    "poisson",
    "service_times",
    "simulate",
    "simulate_deployment",
    "simulate_deployments",
    "simulate_schedule",
    "simulate_sizes",
]
