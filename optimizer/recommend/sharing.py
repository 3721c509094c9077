"""How to serve several applications: who shares a queue, what it costs, and what each may expect (docs/model.md, 3.7)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cache, cached_property
from itertools import combinations
from math import prod

import numpy as np
from msgspec import UNSET, UnsetType

from sluice.batching.documents import (
    MAX_STARTED,
    Beside,
    Plan,
    PolicyDocument,
    Prediction,
    RequestClass,
    Route,
    WarmEnvironments,
    percentile_name,
)
from sluice.batching.errors import Infeasible, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.arrivals.superposition import superposed
from sluice.optimizer.billing.cold_starts import NONE_COLD
from sluice.optimizer.billing.cost import BatchCost, cost_of_parts, invocation_costs
from sluice.optimizer.function.batching_law import SEARCH
from sluice.optimizer.function.class_holds import shared_holds_law
from sluice.optimizer.recommend.application import Application, by_promise
from sluice.optimizer.recommend.comparisons import MOST_JUMPS, earned_from, usd_by_rate
from sluice.optimizer.recommend.function_starts import FunctionStarts
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.queue_by_size import for_every_load
from sluice.optimizer.recommend.queues_kept_warm import QueuesKeptWarm
from sluice.optimizer.recommend.queues_on_record import billed, merged
from sluice.optimizer.recommend.served_queue import Served, ServedQueue, cost_of_queues
from sluice.optimizer.recommend.shared_queues import Shared, SharedQueue, SharedQueues
from sluice.optimizer.recommend.shared_workers import SharedWorkers
from sluice.optimizer.recommend.words import milliseconds
from sluice.optimizer.recommend.worker_queue import WorkerQueue

MOST_PHASES = 16  # of the arrivals of a queue, for which its cold starts are estimated
MOST_FOR_EVERY_LOAD = 8  # applications; it takes some tenths of a second a queue
NEAR = 0.01  # of the cost of two queues, beyond which one for both is not made for every load
WORTH = 0.01  # of the cost: what sharing saves, or is told to be worth nothing
ONE_SIZE = (
    "a profile of requests of one size, and no sizes, for several applications: measure that of their largest requests, "
    "whose times keep every promise, or ask for each application by itself with its sizes"
)


@dataclass(frozen=True, eq=False)
class SharingAnswer:
    """How to serve several applications.

    Parameters
    ----------
    question : Question
        The profile, the bill and the limits.
    queues : tuple of ServedQueue or WorkerQueue
        The cheapest grouping, that of the strictest promise first.
    separate : tuple of ServedQueue or WorkerQueue
        A queue for each application, the strictest first.
    at_the_strictest : ServedQueue or None
        One queue in which nobody may wait longer than the strictest promise allows.
    unbatched : tuple of ServedQueue or WorkerQueue
        Every application alone and without batching, where a function is in time for it.
    cut_short : bool
        Whether workers were not simulated for every group for which they may have been cheaper, as there were too many.
    fitted : BatchCost or None
        What ``cost`` is by the processes, where all costs are those of runs over the arrivals that were recorded.
    """

    question: Question
    queues: tuple[Served, ...]
    separate: tuple[Served, ...]
    at_the_strictest: ServedQueue | None
    unbatched: tuple[Served, ...]
    cut_short: bool = False
    fitted: BatchCost | None = None

    @property
    def applications(self) -> tuple[Application, ...]:
        """All, the strictest promise first."""
        return tuple(of for queue in self.queues for of in queue.applications)

    @property
    def arrival_rate(self) -> float:
        """Requests/s of all of them."""
        return sum(of.arrival_rate for of in self.queues)

    @property
    def cost(self) -> BatchCost:
        """Of a request of any application."""
        return cost_of_queues(self.queues)

    @property
    def compared(self) -> Mapping[str, BatchCost]:
        """The same, and of what it is compared with, by name."""
        strict = {} if self.at_the_strictest is None else {"one queue at the strictest promise": self.at_the_strictest.cost}
        none = {"no batching": cost_of_queues(self.unbatched)} if len(self.unbatched) == len(self.applications) else {}
        return {"recommended": self.cost, "a queue for each": cost_of_queues(self.separate), **strict, **none}

    @property
    def saving(self) -> float:
        """The part of the cost of a queue for each application that is saved."""
        return 1 - self.cost.by_request / cost_of_queues(self.separate).by_request

    @cached_property
    def break_even_arrival_rate(self) -> float | None:
        """Requests/s of all applications from which on the queues earn the buffer.

        ``None``: at no rate, or no function is in time for an application.
        """
        if len(self.unbatched) < len(self.applications):
            return None
        here, cost, none = self.arrival_rate, self.cost, cost_of_queues(self.unbatched)

        def usd_of(queues: tuple[Served, ...], billed: BatchCost) -> Callable[[float], float]:
            def bill(rate: float) -> BatchCost:
                return cost_of_parts([(of.arrival_rate / here, of.memory_mb, of.bill(rate / here)) for of in queues])

            return usd_by_rate(bill, here, billed, recorded=True)

        fixed = cost.fixed_per_month - none.fixed_per_month
        return earned_from(usd_of(self.queues, cost), usd_of(self.unbatched, none), fixed, here)

    def plan(self, model: str, made_at: datetime | None = None) -> Plan:
        """The plan for the buffer: plain where all share one queue, else a route for each queue, that its classes name."""
        alone = len(self.queues) == 1
        kept = pinged_by_function(self.queues)

        def warm_of(queue: Served) -> WarmEnvironments | UnsetType:
            """By pings on the first route of a function alone: those of another, at another moment, would keep the same ones."""
            if not queue.warm or not queue.warm.pinged_every:
                return queue.warm or UNSET
            return kept.pop(queue.function, UNSET)

        routes = [
            Route(
                queue.applications[0].name,
                queue.function,
                PolicyDocument.of(queue.tables[0][1]),
                queue.arrival_rate / self.arrival_rate,
                beside=[Beside(function, PolicyDocument.of(table)) for function, table in queue.tables[1:]],
                warm=warm_of(queue),
            )
            for queue in self.queues
        ]
        classes = [
            RequestClass(of.name, of.slo, slack, "" if alone else route.name)
            for queue, route in zip(self.queues, routes, strict=True)
            for of, slack in zip(queue.applications, queue.slacks, strict=True)
        ]
        memory = {memory_mb for queue in self.queues for memory_mb in queue.memory_sizes}
        (first, *_) = self.applications
        # what the plan's one prediction speaks of is the strictest application
        latency = {percentile_name(first.slo.percentile): self.queues[0].reached(0).value}
        mean = self.arrival_rate / sum(queue.arrival_rate / queue.mean_batch_size for queue in self.queues)
        return Plan(
            model=model,
            function=routes[0].function if alone else "",
            policy=routes[0].policy if alone else None,
            beside=routes[0].beside if alone else [],
            warm=routes[0].warm if alone else UNSET,
            routes=[] if alone else routes,
            slo=first.slo,
            classes=classes,
            memory_mb=memory.pop() if len(memory) == 1 else None,
            predicted=Prediction(latency, self.cost.per_request, mean),
            made_at=(made_at or datetime.now(UTC)).isoformat(timespec="seconds"),
        )


def pinged_by_function(queues: Sequence[Served]) -> dict[str, WarmEnvironments | UnsetType]:
    """What pings keep of each function: for all of its queues, or as many as each has for itself."""
    found: dict[str, WarmEnvironments | UnsetType] = {}
    for queue in queues:
        if queue.warm and queue.warm.pinged_every:
            before = found.get(queue.function) or None
            number = queue.warm.pinged
            if before is not None:
                alone = isinstance(queue, ServedQueue) and queue.warm_queues == 1
                number = before.pinged + number if alone else max(before.pinged, number)
            found[queue.function] = WarmEnvironments(pinged_every=queue.warm.pinged_every, pinged=min(number, MAX_STARTED))
    return found


def recommend_sharing(question: Question, applications: Sequence[Application]) -> SharingAnswer:
    """The cheapest queues for the applications, every promise kept.

    Workers of which more would be needed, for all queues together, than can be had do not compete.

    Parameters
    ----------
    question : Question
        Of which profile, bill, headroom and limits are taken; its arrivals and SLOs are those of the applications here.

    Raises
    ------
    Infeasible
        An application's promise that no function keeps; names it, and the least that can be promised.
    InvalidInput
        No application, a name twice; a question with sizes, a budget, or another objective.
    """
    _check(question)
    promised = [Application(of.name, of.arrivals, question.kept(of.slo)) for of in applications]
    services, billing = question.services, question.billing
    usd = [compute + fee for compute, fee in (invocation_costs(service, billing) for service in services)]
    starts, together = FunctionStarts(question), cache(_superposed)

    def cold_starts(j: int, mean_batch_size: Array, group: tuple[Application, ...]) -> Array:
        """Those after a silence, in the choice; what is told counts all (an estimate takes a while, and there are many groups)."""
        rate = sum(of.arrivals.arrival_rate for of in group)
        share = np.exp(-rate / mean_batch_size * question.environments.keep_alive)
        return np.asarray(starts.usd[j] * (share if starts.told is None else np.full(len(share), starts.told)))

    def in_time(j: int, mean_batch_size: Array, group: tuple[Application, ...]) -> Array:
        """The same where they make nobody late beyond his promise."""
        usd, share = cold_starts(j, mean_batch_size, group), np.zeros(len(mean_batch_size))
        if starts.usd[j]:
            share = usd / starts.usd[j]
        cold = float(starts.seconds[j]) + services[j].response[0, 0]
        allowed = min((of.slo.error_budget for of in group if cold > of.slo.latency), default=1.0)
        return np.where(share > allowed, np.inf, usd)

    workers = SharedWorkers(by_promise(promised), question) if question.offers else None
    _check_in_time(SharedQueues(promised, services, usd, None, workers), question)
    anyhow = SharedQueues(promised, services, usd, cold_starts if starts.matter else None, workers)
    kept = SharedQueues(promised, services, usd, in_time, workers) if starts.matter else anyhow
    asked, warm = {of.name: of for of in applications}, QueuesKeptWarm(question, starts, together)
    # A queue is found with headroom and told with what was asked for.

    def served(queue: SharedQueue, buffered: bool = True) -> ServedQueue:
        service, pmf, j = services[queue.service], queue.batch_size_pmf, queue.service
        holds = np.array(queue.policy.hold[1:-1])
        cold = starts.share(j, pmf, holds, together(queue.applications)) if starts.matter else NONE_COLD
        cost = replace(billing, cold_start_probability=cold.batches).cost(pmf, service, question.profile, buffered)
        function = question.function_at(service.memory_mb)
        jumps = sum(-float(of.arrivals.D0.diagonal().min()) for of in queue.applications) * holds.max(initial=0.0)
        fullest = max(1.0, MOST_JUMPS / max(jumps, 1e-300))  # beyond it batches are taken to be as there

        @cache
        def bill(factor: float) -> BatchCost:
            faster = tuple(replace(of, arrivals=of.arrivals.sped_up(factor)) for of in queue.applications)
            full = [of.arrivals.sped_up(min(factor, fullest)) for of in queue.applications]
            sizes = shared_holds_law(full, queue.slacks, holds, SEARCH).batch_size_pmf[-1]
            cold = starts.share(j, sizes, holds, _superposed(faster)) if starts.matter else NONE_COLD
            return replace(billing, cold_start_probability=cold.batches).cost(sizes, service, question.profile, buffered)

        return ServedQueue(queue.of(asked), service, function, cost, cold, float(starts.seconds[j]), bill)

    def told(queues: Sequence[Shared | None]) -> tuple[Served, ...]:
        return warm.pooled(
            [warm.alone(served(of)) if isinstance(of, SharedQueue) else of.of(asked) for of in queues if of is not None]
        )

    def worse(queues: tuple[Served, ...]) -> tuple[int, float]:
        return sum(of.missed for of in queues), cost_of_queues(queues).per_request

    cheapest = kept.cheapest()
    separate, strict = told(anyhow.separate()), anyhow.at_the_strictest()
    queues = told(cheapest or ()) or separate
    if worse(queues)[0] or any(of.warm for of in separate):
        # Who comes seldom is alone beside an environment of his own, or shares. Where nothing helps the answer says so.
        queues = min((told(anyhow.cheapest() or ()), separate, queues), key=worse)
    elif workers is not None:
        queues = min(queues, separate, key=worse)  # a function beside the workers of each is not in the search of the grouping

    if beyond := _beyond(queues):
        fewer = tuple(offer for offer in question.offers if offer not in beyond)
        return recommend_sharing(replace(question, offers=fewer), applications)

    every_load = question.goal.loads is not None and len(applications) <= MOST_FOR_EVERY_LOAD

    @cache
    def for_loads_alone(of: Served) -> Served:
        return for_every_load(question, of, together(of.queue.applications)) if isinstance(of, ServedQueue) else of

    def for_loads(queues: tuple[Served, ...]) -> tuple[Served, ...]:
        return tuple(map(for_loads_alone, queues)) if every_load else queues

    def joined(queues: tuple[Served, ...]) -> tuple[Served, ...]:
        """The queues for every load; two of them as one where that costs less when the size of a batch chooses the function."""
        found, places = for_loads(queues), {of.name: k for k, of in enumerate(kept.applications)}
        for first, second in combinations(queues if every_load else (), 2):
            group = tuple(sorted(places[of.name] for queue in (first, second) for of in queue.applications))
            one = told([kept.together(group)])
            near = (1 + NEAR) * cost_of_queues((first, second)).per_request
            if one and not any(of.warm for of in (first, second, *one)) and one[0].cost.per_request <= near:
                others = tuple(of for of in queues if of is not first and of is not second)
                way = tuple(sorted(for_loads((*others, *one)), key=lambda of: places[of.applications[0].name]))
                found = min(found, way, key=worse)
        return found

    answer = SharingAnswer(
        question,
        joined(queues),
        for_loads(separate),
        None if strict is None else warm.alone(served(strict)),
        tuple(served(queue, buffered=False) for queue in anyhow.unbatched() if queue is not None),
        workers is not None and workers.spent,
    )
    return _on_record(answer, applications)


def _on_record(answer: SharingAnswer, applications: Sequence[Application]) -> SharingAnswer:
    """The answer with what is billed of all queues on the arrivals recorded; itself where there are none."""
    recorded = merged([of.recorded for of in applications])
    ways = [answer.queues, answer.separate, () if answer.at_the_strictest is None else (answer.at_the_strictest,)]
    if recorded is None or any(isinstance(of, ServedQueue) and of.warm_queues > 1 for way in ways for of in way):
        return answer
    question = answer.question
    queues, separate, strict = (billed(question, recorded, applications, way) if way else () for way in ways)
    every = len(answer.unbatched) == len(applications)
    return replace(
        answer,
        question=replace(question, recorded=recorded),
        queues=queues,
        separate=separate,
        at_the_strictest=next((of for of in strict if isinstance(of, ServedQueue)), None),
        unbatched=billed(question, recorded, applications, answer.unbatched) if every else answer.unbatched,
        fitted=answer.cost,
    )


def _beyond(queues: Sequence[Served]) -> list[WorkerOffer]:
    """The offers of which more workers would be needed, for all queues, than can be had."""
    wanted: dict[WorkerOffer, int] = {}
    for of in queues:
        if isinstance(of, WorkerQueue):
            wanted[of.setting.offer] = wanted.get(of.setting.offer, 0) + of.setting.workers
    return [offer for offer, n in wanted.items() if n > offer.max_workers]


def _superposed(applications: tuple[Application, ...]) -> ArrivalProcess:
    """All their arrivals; where their phases together are many, as if they were Poisson."""
    processes = [of.arrivals for of in applications]
    if prod(of.n_phases for of in processes) <= MOST_PHASES:
        return superposed(processes)
    return poisson(sum(of.arrival_rate for of in processes))


def _check(question: Question) -> None:
    require(question.mix is None, "sizes", "given", ONE_SIZE)
    goal = question.goal
    require(goal.objective == "cost", "objective", goal.objective, "cost, where there are several applications")
    require(goal.max_cost is None, "max_cost", goal.max_cost, "none, where there are several applications")
    limits = question.limits
    last_moment = "none beside several applications, whose tables wait to the last moment"
    require(limits.max_timeout is None, "max_timeout", limits.max_timeout, last_moment)
    require(not limits.timeouts, "timeouts", list(limits.timeouts), last_moment)
    require(limits.considers_tables, "policies", limits.policies, "all, where there are several applications")


def _check_in_time(shared: SharedQueues, question: Question) -> None:
    for k, of in enumerate(shared.applications):
        if shared.together((k,)) is None and shared.best((k,)) is None:
            least = min(float(service.quantile(of.slo.quantile)[0]) for service in question.services)
            others = (
                f", and workers do not either ({', '.join(offer.name for offer in question.offers)})" if question.offers else ""
            )
            raise Infeasible(
                f"class {of.name}: no function answers {of.slo.name} within {milliseconds(of.slo.latency)}; "
                f"the quickest takes {milliseconds(least)} for one request{others}"
            )
