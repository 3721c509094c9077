"""Workers for the base load and the function for what they cannot serve in time, as simulated (docs/model.md, section 7).

The workers read a table of theirs; whenever it releases nothing, the function's table is read, which takes the oldest at the last
moment at which they would still be in time (``last_moment_beside``). So where service times are fixed and no environment has to
start nobody is late, whatever the arrivals do; what is simulated then is the cost. Where the profile knows how long an environment
takes to start, cold starts are simulated as the platform has them, in the latency and in the bill.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.batching.policy import Policy
from sluice.optimizer.billing.cost import BatchCost, Billing, predict_cost
from sluice.optimizer.recommend.demand import Demand
from sluice.optimizer.recommend.horizon import MOST_REQUESTS, Horizon
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.simulated_setting import SimulatedSetting, estimates
from sluice.optimizer.simulation.batch_means import Estimate, estimate_share
from sluice.optimizer.simulation.deployment import Beside, Deployment
from sluice.optimizer.simulation.event_loop import SimulationResult
from sluice.optimizer.simulation.function import Function


@dataclass(frozen=True, eq=False, kw_only=True)
class OverflowSetting(SimulatedSetting):
    """Workers under a policy with the function beside them: a ``Candidate``.

    Parameters
    ----------
    overflow : Beside
        The function: its table, its service times at its memory size, its environments.
    called : str
        The function, as a plan names it.
    by_function : Estimate
        Share of the requests that the function serves.
    cold_starts : float
        Share of the function's batches whose environment had to start.
    """

    rests_on_fit = False  # whoever the workers cannot serve in time, the function does
    overflow: Beside
    called: str
    by_function: Estimate
    cold_starts: float

    @property
    def name(self) -> str:
        """Both."""
        return f"{self.offer.name} and function"

    @property
    def memory_mb(self) -> int | None:
        """Of the function."""
        return self.overflow.service.memory_mb

    @property
    def beside(self) -> Sequence[tuple[str, Policy]]:
        """The function."""
        return ((self.called, self.overflow.policy),)

    @property
    def for_any_arrivals(self) -> bool:
        """Who waits is taken at the last moment, which is in time where no environment has to start."""
        environments = self.overflow.environments
        return environments is None or environments.starts_at_once

    @property
    def runs_on(self) -> str:
        """How many of what, and with how much memory."""
        return f"{self.workers} × {self.offer.name}, {self.memory_mb} MB"

    @property
    def instruction(self) -> str:
        """What to do, in one sentence."""
        largest = self.overflow.policy.max_batch_size
        taken = "one by one" if largest == 1 else f"up to {largest} together"
        return (
            f"{self.by_workers}; at the last moment the function with {self.memory_mb} MB takes the oldest, {taken}, "
            f"{100 * self.by_function.value:.2g} % of all."
        )

    def deployment(self, function: Function) -> Deployment:
        """The workers under their table with the function beside them."""
        beside = function.at(self.overflow.service.memory_mb).beside(self.overflow.policy)
        return self.offer.under(self.policy, beside=[beside], billing=function.billing)


def simulate_overflow(
    question: Question,
    offer: WorkerOffer,
    policy: Policy,
    overflow: Beside,
    *,
    demand: Demand | None = None,
    slacks: Sequence[float] = (),
    confidence: float = 0.95,
    seed: int = 0,
) -> OverflowSetting:
    """Latency and cost of the workers that ``policy`` names as its servers, and of the function beside them.

    The queue is bounded by the function, so that a run of ``MOST_REQUESTS`` shows its equilibrium at any load. It begins without
    environments, and where these have to start it lasts for some of their lives if it can: cold starts are rather too many.

    Parameters
    ----------
    demand : Demand, optional
        By default the requests of the question, which are alike; ``slacks`` are those of its classes, s.

    Raises
    ------
    InvalidInput
        A policy without servers.
    """
    demand = Demand(question.arrivals, question.promised) if demand is None else demand
    arrivals = demand.arrivals
    if policy.servers is None:
        raise InvalidInput("policy.servers", None, "the number of workers")
    horizon = Horizon.beside(arrivals, offer, policy, overflow.policy, overflow.environments, demand.longer(slacks))
    n = max((demand.stages(horizon) or horizon.stages)[-1], int(min(horizon.lives, MOST_REQUESTS)))
    rng = np.random.default_rng(seed)
    drawn = demand.drawn(horizon, n, rng)
    run = demand.run(offer.under(policy, beside=[overflow]), drawn, slacks, rng)
    blocks = horizon.blocks(n)
    at_function = run.by_function[run.batch_of]
    return OverflowSetting(
        offer=offer,
        policy=policy,
        overflow=overflow,
        called=question.function_at(overflow.service.memory_mb),
        by_function=estimate_share(at_function, confidence, blocks),
        cold_starts=cold_share(run),
        settled=n >= horizon.settled,
        cost=overflow_cost(run, offer, policy, overflow, arrivals.arrival_rate, question.billing),
        arrival_rate=arrivals.arrival_rate,
        seed=seed,
        slacks=tuple(slacks),
        **estimates(run, demand, drawn, confidence, blocks),
    )


def overflow_cost(
    run: SimulationResult, offer: WorkerOffer, policy: Policy, overflow: Beside, arrival_rate: float, billing: Billing
) -> BatchCost:
    """Of a request in a run: the workers' hours, what each side bills for its part, and what stands before both.

    Cold starts are the run's where environments have to start in it, and else those of ``billing``, as of the function alone.
    """
    workers, function = run.batch_sizes[~run.by_function], run.batch_sizes[run.by_function]
    part = float(function.sum() / run.batch_sizes.sum())
    pmf = np.bincount(function, minlength=2)[1:] / len(function) if len(function) else np.ones(1)
    init = 0.0 if overflow.environments is None else overflow.environments.init_duration
    if init > 0:
        billing = replace(billing, cold_start_probability=cold_share(run))
    of_function = predict_cost(pmf, overflow.service, billing, init_duration=init)
    of_workers = offer.serving(workers, billing) if len(workers) else BatchCost()
    served = of_workers.terms()
    terms = {name: (1 - part) * served[name] + part * usd for name, usd in of_function.terms().items()}
    terms["machines"] = offer.hours(policy.servers or 0, arrival_rate)
    return BatchCost(**terms, fixed_terms=of_function.fixed_terms)


def cold_share(run: SimulationResult) -> float:
    """Share of the function's batches that waited for an environment to start."""
    return float(run.cold.sum() / max(1, run.by_function.sum()))
