"""A plan for every load: all rows that the promise admits, and the size of a batch chooses its function (docs/model.md, 3.4).

Its cost is exact for the arrivals and for every multiple of their rate, but for cold starts, which are estimated. Its promise rests
on no fit: each row keeps it where no environment has to start. Its latencies are simulated, and the cost at each load once more,
with cold starts as the platform has them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np

from sluice.batching.documents import Slo, quantile_of
from sluice.batching.policy import INF, Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing.cold_starts import NONE_COLD, Share
from sluice.optimizer.billing.cost import BatchCost, cost_of_parts
from sluice.optimizer.recommend.confidence import FEW
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.recommend.functions_by_size import Assignment, FunctionsBySize
from sluice.optimizer.recommend.last_moment import seconds_to_spare
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.words import leaves
from sluice.optimizer.service.composed import composed
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.batch_means import BLOCKS, Estimate, estimate_quantile
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate_deployment
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.simulation.latency_statistics import surely_keeps

N_SIMULATED = 1 << 17  # requests at each load
CONFIDENCE = 0.95


@dataclass(frozen=True, eq=False)
class FunctionOfSizes:
    """One of the functions: as a plan names it, its service times, its table, and the share of its batches that start cold."""

    called: str
    service: ServiceTimes
    policy: Policy
    cold_starts: float

    @property
    def stretches(self) -> list[tuple[int, int]]:
        """The sizes that it serves, from the first to the last of each stretch."""
        own = [n for n, (hold, take) in enumerate(zip(self.policy.hold, self.policy.take, strict=True)) if hold < INF and take == n]
        found: list[tuple[int, int]] = []
        for n in own:
            first = found.pop()[0] if found and found[-1][1] == n - 1 else n
            found.append((first, n))
        return found

    @property
    def said(self) -> str:
        """The sizes, in words: ``3 to 31``, ``1 and 32``, ``1, 3 to 31 and 40``."""
        stretches = [str(first) if first == last else f"{first} to {last}" for first, last in self.stretches]
        return stretches[0] if len(stretches) == 1 else f"{', '.join(stretches[:-1])} and {stretches[-1]}"


@dataclass(frozen=True)
class AtLoad:
    """What the plan does when requests come ``factor`` times as fast, in the same pattern.

    Parameters
    ----------
    arrival_rate : float
        Requests/s.
    cost_per_request, least_cost : float
        USD: of the plan, and of the cheapest table at this rate that waits to the last moment.
    simulated_cost : float
        USD, of the plan in a run.
    late : tuple of Estimate
        Share of the requests of the run beyond each SLO: those whose environment had to start, and those that random service times
        made late.
    cold_starts : float
        Predicted share of the batches.
    warm : bool
        Whether every environment was there in the run, which was too short for them to start in.
    """

    factor: float
    arrival_rate: float
    cost_per_request: float
    least_cost: float
    simulated_cost: float
    late: tuple[Estimate, ...]
    mean_batch_size: float
    cold_starts: float
    warm: bool

    @property
    def regret(self) -> float:
        """Part of the least cost that the plan costs beyond it; negative where no one table is as cheap."""
        return self.cost_per_request / self.least_cost - 1

    @property
    def simulated_regret(self) -> float:
        """The same of the cost in the run."""
        return self.simulated_cost / self.least_cost - 1


@dataclass(frozen=True, eq=False)
class EveryLoad:
    """A plan for every load: a ``Candidate``.

    Parameters
    ----------
    sizes : FunctionsBySize
    assignment : tuple of int
        Which of the question's functions serves a batch of 1, 2, ...
    seed : int
        Of what is simulated: ``N_SIMULATED`` requests at each load, the same arrivals and the same luck.
    recorded : BatchCost or None
        What it costs on arrivals that were recorded, where there are any.
    """

    name = "function"
    confidence = CONFIDENCE  # of the latencies, which are simulated
    rests_on_fit = False  # every row keeps the promise
    sizes: FunctionsBySize
    assignment: Assignment
    seed: int = 0
    recorded: BatchCost | None = None

    @cached_property
    def functions(self) -> tuple[FunctionOfSizes, ...]:
        """In the order in which their tables are read."""
        question, cold = self._question, self._here.cold_by_function
        return tuple(
            FunctionOfSizes(
                question.function_at(question.services[j].memory_mb), question.services[j], policy, cold.get(j, NONE_COLD).batches
            )
            for j, policy in self.sizes.tables(self.assignment)
        )

    @property
    def function(self) -> str:
        """The one whose table is read first: that of the largest batch."""
        return self.functions[0].called

    @property
    def memory_mb(self) -> int:
        """Its memory."""
        return self.functions[0].service.memory_mb

    @property
    def policy(self) -> Policy:
        """Its table."""
        return self.functions[0].policy

    @property
    def beside(self) -> Sequence[tuple[str, Policy]]:
        """The others."""
        return [(of.called, of.policy) for of in self.functions[1:]]

    @cached_property
    def whole(self) -> Policy:
        """The rows of all functions as one table."""
        return self.sizes.whole(self.assignment)

    @property
    def batch_size(self) -> int:
        """The largest."""
        return len(self.assignment)

    @property
    def cost(self) -> BatchCost:
        """On the arrivals recorded, or else at the rate of the process."""
        return self._here.cost if self.recorded is None else self.recorded

    @property
    def fitted(self) -> BatchCost | None:
        """At the rate of the process, where ``cost`` is that on arrivals that were recorded."""
        return None if self.recorded is None else self._here.cost

    @property
    def mean_batch_size(self) -> float:
        """At the rate of the arrivals."""
        return self._here.mean_batch_size

    @property
    def cold(self) -> Share:
        """Which share of all starts cold, at the rate of the arrivals."""
        return self._here.cold

    @property
    def cold_starts(self) -> float:
        """The same of the batches."""
        return self.cold.batches

    @property
    def for_any_arrivals(self) -> bool:
        """Every row keeps the promise, which is in time where no environment has to start."""
        return all(side.environments is None or side.environments.starts_at_once for side in self._deployment.serving)

    @property
    def runs_on(self) -> str:
        """The memory sizes, that of the smallest batches first."""
        return ", ".join(str(of.service.memory_mb) for of in self.by_size) + " MB"

    @property
    def leaves(self) -> str:
        """With how many requests, or after how long."""
        return leaves(self.whole)

    @property
    def instruction(self) -> str:
        """What to do, in one sentence."""
        if self.batch_size == 1:
            return f"Call the function directly, with {self.memory_mb} MB and no buffer."
        held = f"Hold requests until {self.batch_size} are there or waiting for one more would make the oldest late"
        if len(self.functions) == 1:
            return f"{held}, and run the function with {self.memory_mb} MB, which is best for all sizes."
        served = "; ".join(f"{of.said} with {of.service.memory_mb} MB" for of in self.by_size)
        return f"{held}, and let the size of the batch choose the function: {served}."

    @cached_property
    def loads(self) -> tuple[AtLoad, ...]:
        """From the slowest to the fastest arrivals."""
        question, found = self._question, []
        for factor, least in zip(self.sizes.factors.tolist(), self.sizes.least.tolist(), strict=True):
            predicted = Mixture.predicted(self.sizes, self.assignment, factor)
            run = self._run if factor == 1 else self.run_at(factor)
            found.append(
                AtLoad(
                    factor,
                    question.arrivals.arrival_rate * factor,
                    predicted.cost.by_request,
                    least + predicted.cost.moving,
                    self.cost_in(run) + predicted.cost.moving,
                    tuple(run.estimate_violations(slo.latency, CONFIDENCE) for slo in question.slos),
                    predicted.mean_batch_size,
                    predicted.cold.batches,
                    self.too_short(factor),
                )
            )
        return tuple(found)

    @property
    def worst(self) -> AtLoad:
        """The load with the largest regret."""
        return max(self.loads, key=lambda at: at.regret)

    def cost_at(self, factor: float) -> BatchCost:
        """When requests come ``factor`` times as fast."""
        return Mixture.predicted(self.sizes, self.assignment, factor).cost

    def run_at(self, factor: float) -> SimulationResult:
        """The same simulated: ``N_SIMULATED`` requests, with every environment there where the run is ``too_short``."""
        deployment = self._warm if self.too_short(factor) else self._deployment
        return simulate_deployment(deployment, np.cumsum(self._gaps) / factor, np.random.default_rng([self.seed, 1]))

    def too_short(self, factor: float) -> bool:
        """Whether environments that start with a run have not all answered once as its first block ends, which is not counted."""
        starts = max((side.environments.init_duration for side in self._deployment.serving if side.environments), default=0.0)
        return starts > 0 and float(self._gaps[: N_SIMULATED // (BLOCKS + 1)].sum()) / factor < starts + self._longest

    def cost_in(self, run: SimulationResult) -> float:
        """USD per request of a run, less its first block, in which every environment is new."""
        return Mixture.seen(self.sizes, self.assignment, run).cost.per_request

    def percentile(self, percentile: float) -> Estimate:
        """As simulated, s; nothing beyond what the rows allow is expected where nothing beyond it was seen."""
        value, low, high = estimate_quantile(self._latency, quantile_of(percentile), CONFIDENCE)
        longest = self._longest
        return Estimate(value, low, min(high, longest) if self._latency.max() <= longest else high)

    def keeps(self, slos: Sequence[Slo], in_doubt: Sequence[float] = ()) -> bool:
        """Whether each is as lenient as one that every row keeps, and cold starts surely do not make more late than it allows.

        Of what is late in a run where few start cold, the rows allow all. Of each SLO so much is ``in_doubt`` for cold starts.
        """
        promised, run = self._question.promised, self._run
        rows = [any(k.latency <= slo.latency and k.percentile >= slo.percentile for k in promised) for slo in slos]
        return all(rows) and all(
            self._starts_in_time(run.estimate_violations(slo.latency, CONFIDENCE), slo, doubt)
            for slo, doubt in zip(slos, in_doubt or [0.0] * len(slos), strict=True)
        )

    def _starts_in_time(self, late: Estimate, slo: Slo, doubt: float) -> bool:
        if self._here.cold.requests < FEW * slo.error_budget:
            return surely_keeps(late, slo) is not False
        return late.value == 0 or late.high + doubt <= slo.error_budget

    def billed(self, cost: BatchCost) -> Self:
        """The same with its cost on arrivals that were recorded."""
        return replace(self, recorded=cost)

    def deployment(self, function: Function) -> Deployment:
        """The functions beside one another, each with its table."""
        first, *others = (function.at(of.service.memory_mb) for of in self.functions)
        beside = [at.beside(of.policy) for at, of in zip(others, self.functions[1:], strict=True)]
        return replace(first.under(self.policy), beside=beside)

    @property
    def _question(self) -> Question:
        return self.sizes.question

    @cached_property
    def _deployment(self) -> Deployment:
        return self.deployment(self._function)

    @cached_property
    def _warm(self) -> Deployment:
        return self.deployment(replace(self._function, environments=None))

    @property
    def _function(self) -> Function:
        question = self._question
        most = question.limits.max_batch_size
        return Function(question.profile, self.memory_mb, question.billing, question.environments, most)

    @cached_property
    def _run(self) -> SimulationResult:
        return self.run_at(1.0)

    @cached_property
    def _here(self) -> Mixture:
        return Mixture.predicted(self.sizes, self.assignment, 1.0)

    @property
    def by_size(self) -> list[FunctionOfSizes]:
        """The functions, that of the smallest batches first."""
        return sorted(self.functions, key=lambda of: of.stretches[0])

    @cached_property
    def _gaps(self) -> Array:
        return self._question.arrivals.sample(N_SIMULATED, np.random.default_rng(self.seed))

    @cached_property
    def _latency(self) -> Array:
        """Of the run at the rate of the arrivals, without the rounding that would tell apart who leaves at the same age."""
        return np.asarray(np.round(self._run.latency, 9))

    @property
    def _longest(self) -> float:
        """Seconds that no request takes longer than, but for cold starts: its batch leaves by its hold, or by the one before."""
        service = composed(self._question.services, self.assignment)
        hold = np.array(self.whole.hold[1:])
        before = np.concatenate([[0.0], hold[:-1]])
        return float((np.maximum(hold, before) + service.response[:, -1]).max())


class Mixture:
    """An assignment with the batch sizes that it comes to, (max_batch_size,), and which of each function's start cold."""

    def __init__(self, sizes: FunctionsBySize, assignment: Assignment, pmf: Array, cold_by_function: Mapping[int, Share]) -> None:
        self.sizes, self.assignment, self.pmf, self.cold_by_function = sizes, assignment, pmf, cold_by_function

    @classmethod
    def predicted(cls, sizes: FunctionsBySize, assignment: Assignment, factor: float) -> Mixture:
        """At a multiple of the rate."""
        pmf = sizes.batch_size_pmf(assignment, factor)
        return cls(sizes, assignment, pmf, sizes.cold_starts(pmf, assignment, factor))

    @classmethod
    def seen(cls, sizes: FunctionsBySize, assignment: Assignment, run: SimulationResult) -> Mixture:
        """In a run, less its first block, in which every environment is new."""
        n = len(run.arrival_times)
        counted = run.first_of_batch >= n - BLOCKS * (n // (BLOCKS + 1))
        batches, cold = run.batch_sizes[counted], run.cold[counted]
        served_by = np.array(assignment)[batches - 1]
        shares = {}
        for j in np.unique(served_by).tolist():
            own = served_by == j
            shares[j] = Share(float(cold[own].mean()), float(batches[own & cold].sum() / batches[own].sum()))
        return cls(sizes, assignment, np.bincount(batches, minlength=len(assignment) + 1)[1:] / len(batches), shares)

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return float(self.pmf @ np.arange(1, len(self.pmf) + 1))

    @property
    def cold(self) -> Share:
        """Of all batches, and of all requests."""
        batches = sum(float(self._batches_of(j).sum()) * cold.batches for j, cold in self.cold_by_function.items())
        return Share(batches, sum(self._requests_of(j) * cold.requests for j, cold in self.cold_by_function.items()))

    @property
    def cost(self) -> BatchCost:
        """Of a request, function by function, each with its own cold starts."""
        question, parts = self.sizes.question, []
        for j, cold in self.cold_by_function.items():
            batches, service = self._batches_of(j), question.services[j]
            largest = int(np.flatnonzero(np.array(self.assignment) == j)[-1]) + 1
            billing = replace(question.billing, cold_start_probability=cold.batches)
            cost = billing.cost(batches[:largest] / batches.sum(), service, question.profile, buffered=len(self.assignment) > 1)
            parts.append((self._requests_of(j), service.memory_mb, cost))
        return cost_of_parts(parts)

    def _requests_of(self, j: int) -> float:
        """Share of the requests that are this function's."""
        return float(self._batches_of(j) @ np.arange(1, len(self.pmf) + 1)) / self.mean_batch_size

    def _batches_of(self, j: int) -> Array:
        """Share of the batches that have each size and this function, (max_batch_size,)."""
        return np.where(np.array(self.assignment) == j, self.pmf, 0.0)


def choose_every_load(settings: FunctionSettings, loads: tuple[float, float], seed: int = 0) -> EveryLoad | None:
    """The plan for multiples of the arrival rate from the first of ``loads`` to the second; the same seed gives the same answer.

    ``None`` where no function answers even one request with a moment to spare.
    """
    if not any(len(seconds_to_spare(service, settings.question.promised)) for service in settings.services):
        return None
    sizes = FunctionsBySize(settings, loads)
    return EveryLoad(sizes, sizes.best(), seed)
