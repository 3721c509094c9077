"""What tables do when run: one event loop that interprets any of them, with confidence intervals.

``simulate`` keeps every request of one table; ``simulate_deployments`` runs several deployments side by side and keeps statistics.
Whatever has a ``percentile`` here answers with an ``Estimate`` that counts the unanswered as answered never.
"""

from __future__ import annotations

from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.chunks import Arrivals, SampledArrivals, TraceArrivals
from sluice.optimizer.simulation.deployment import Adaptation, Deployment, Environments, Overflow
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate, simulate_deployment, simulate_schedule
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.simulation.schedule import KEEP, Schedule
from sluice.optimizer.simulation.statistics import RunStatistics, Series, cheapest_kept
from sluice.optimizer.simulation.streaming import simulate_deployments

__all__ = [
    "KEEP",
    "Adaptation",
    "Arrivals",
    "Deployment",
    "Environments",
    "Estimate",
    "Function",
    "Overflow",
    "RunStatistics",
    "SampledArrivals",
    "Schedule",
    "Series",
    "SimulationResult",
    "TraceArrivals",
    "cheapest_kept",
    "simulate",
    "simulate_deployment",
    "simulate_deployments",
    "simulate_schedule",
]
