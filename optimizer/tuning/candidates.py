"""Plans that analysis proposes for the latest arrivals, to be rehearsed (docs/control.md).

A process is fitted to the latest arrivals and the searches of ``recommend`` are asked: no batching at every memory size, the
cheapest size-or-timeout for the promise and for parts of the error budget (where the mean is just in time the next window may not
be), the tables that wait to the last moment, up to their cheapest batch and up to the largest, the plan for every load, workers,
alone, with the function for what they leave, and with the function beside them for what costs too many of them. Of fixed servers
the tables are proposed that are optimal at the rate, for all of the error budget, a half and a quarter. What each does is found by
rehearsal, with cold starts, so that the fit may be quick, two phases, and the searches leave cold starts out, which take most of
their time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
from msgspec import UNSET

from sluice.batching import policy as policies
from sluice.batching.documents import Beside, Plan, PolicyDocument, ServiceProfile, Slo
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.recommend.candidate import Candidate
from sluice.optimizer.recommend.every_load import choose_every_load
from sluice.optimizer.recommend.function_choice import cheapest_timeout
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.recommend.last_moment import cheapest_last_moments, last_moment, last_moment_beside
from sluice.optimizer.recommend.overflow_choice import choose_overflow
from sluice.optimizer.recommend.question import Goal, Limits, Question
from sluice.optimizer.recommend.words import leaves
from sluice.optimizer.recommend.worker_number import choose_workers
from sluice.optimizer.recommend.worker_setting import WorkerSetting
from sluice.optimizer.service.times import ServiceTimes, service_times
from sluice.optimizer.traces.trace import Trace
from sluice.optimizer.tuning.latest_fit import FITTED
from sluice.optimizer.tuning.proposal import Proposal
from sluice.optimizer.tuning.setup import TuningSetup

if TYPE_CHECKING:  # who decides about servers has it, and what solves tables with it
    from sluice.optimizer.tuning.rate_tables import RateTables

BUDGETS = (1.0, 0.97, 0.94, 0.9, 0.8, 0.5)
"""Of what the promise allows to be late, for which a setting that rests on the fit is asked for.

Most are near the whole: where half may be late, the cheapest that the next window keeps, too, leaves a few percent of it free.
"""
LOADS = (0.1, 10.0)
MOST_LAST_MOMENTS = 3
OVERFLOW_SIMULATED = 1 << 22  # requests, about a second


def unbatched(setup: TuningSetup) -> list[Proposal]:
    """No batching at every memory size, the largest first; fixed servers take all that wait."""
    if setup.servers is not None:
        largest = min(setup.offers[0].service.max_batch_size, setup.max_batch_size)
        return [_of_servers(setup, policies.greedy(largest, setup.servers), "greedy")]
    table = PolicyDocument.of(policies.no_batching())
    return [
        Proposal(f"no batching, {mb} MB", _plan(setup, setup.function_at(mb), table, (), mb)) for mb in reversed(setup.memory_sizes)
    ]


def fitted(times: Array) -> ArrivalProcess:
    """The process of the latest arrivals (s, ascending, at least as many as a trace has)."""
    latest = times[-FITTED:]
    try:
        return fit_arrivals(Trace(np.diff(latest), "the latest arrivals"), "mmpp2").arrivals
    except InvalidInput:  # all at one moment
        return poisson(len(latest) / max(float(latest[-1] - latest[0]), 1e-3))


def propose(setup: TuningSetup, profile: ServiceProfile, arrivals: ArrivalProcess, in_time: Sequence[Slo]) -> Iterator[Proposal]:
    """Settings of the function and workers for this process, the function having these service times.

    Tables that wait to the last moment are ``in_time`` at these percentiles; of a function that is not, at those that are promised.
    """
    question = _question(setup, profile, arrivals)
    settings = FunctionSettings(question)
    settings.search.asked_once = True  # for the promise, by its parts, and nothing else
    least, behind = np.inf, None
    strictly = [Slo(kept.latency, slo.percentile) for kept, slo in zip(question.promised, in_time, strict=True)]
    strict = {table.service: table for table in cheapest_last_moments(settings.search, strictly)[0]}
    for latest in cheapest_last_moments(settings.search, question.promised)[0][:MOST_LAST_MOMENTS]:
        table = strict.get(latest.service, latest)
        held, service = settings.held(table.service, table.policy), settings.search.services[table.service]
        behind = behind or (service, table.policy.max_batch_size)
        least = min(least, held.cost.in_all(arrivals.arrival_rate))
        yield _of(held, setup, "last moment")
        whole = _last_moment_of(setup, service, in_time) or _last_moment_of(setup, service, setup.slos)
        if whole is not None and whole != table.policy:  # where the largest batch is the cheapest by what is not quite known
            yield _waiting(setup, service.memory_mb, whole)
    for part in BUDGETS:
        slos = [Slo(slo.latency, 100 - part * (100 - slo.percentile)) for slo in question.promised]
        found = cheapest_timeout(settings, slos)
        if found is not None and found.batch_size > 1:
            yield _of(found, setup, "size or timeout")
    yield from _with_workers(setup, question, least, behind)


def to_last_moment(setup: TuningSetup, profile: ServiceProfile, memory_mb: int) -> Proposal | None:
    """A memory size (MB) with the table that waits to the last moment; ``None`` where it answers nobody in time."""
    table = _last_moment_of(setup, service_times(profile, memory_mb), setup.slos)
    return None if table is None else _waiting(setup, memory_mb, table)


def _last_moment_of(setup: TuningSetup, service: ServiceTimes, slos: Sequence[Slo]) -> Policy | None:
    return last_moment(service.up_to(min(service.max_batch_size, setup.max_batch_size)), slos)


def _waiting(setup: TuningSetup, memory_mb: int, table: Policy) -> Proposal:
    plan = _plan(setup, setup.function_at(memory_mb), PolicyDocument.of(table), (), memory_mb)
    return Proposal(f"last moment, {memory_mb} MB, {leaves(table)}", plan)


def _with_workers(
    setup: TuningSetup, question: Question, least: float, behind: tuple[ServiceTimes, int] | None
) -> Iterator[Proposal]:
    """Workers of each offer alone, the same with a function beside them, and the cheapest with the function beside them.

    The last if they cost less than ``least``, what the function alone costs in all (USD per request). The function in ``behind``,
    its service times and largest batch, stands beside workers that need none for what nobody expects.
    """
    alone: dict[str, int] = {}
    for offer in setup.offers:
        try:
            found = choose_workers(question.arrivals, offer, setup.slos, billing=setup.billing)
        except Infeasible:
            continue
        alone[offer.name] = found.workers
        yield _of(found, setup, "workers")
        if behind is not None:
            yield _behind(found, setup, *behind)
    if not setup.offers:
        return
    offered = replace(question, offers=setup.offers)
    try:
        yield _of(choose_overflow(offered, alone, cheaper_than=least, most=OVERFLOW_SIMULATED), setup, "overflow")
    except Infeasible:
        return


def tables(
    setup: TuningSetup, service: ServiceTimes, slos: Sequence[Slo], optimal: RateTables | None, arrival_rate: float
) -> Iterator[Proposal]:
    """Of fixed servers the table that waits to the last moment for these SLOs, and those optimal about this rate (requests/s)."""
    latest = last_moment(service, slos)
    if latest is not None:
        yield _of_servers(setup, replace(latest, servers=setup.servers), "last moment")
    if optimal is None:
        return
    middle = optimal.middle(arrival_rate)
    for part, policy in zip(optimal.budgets, optimal.all_at(arrival_rate), strict=True):
        of_budget = f" with {part:g} of the error budget" if part < 1 else ""
        yield _of_servers(setup, policy, f"optimal at {middle:.4g} requests/s{of_budget}")


def every_load(setup: TuningSetup, profile: ServiceProfile, arrival_rate: float, in_time: Sequence[Slo]) -> Proposal | None:
    """The plan for every load; ``None`` where no function answers even one request with a moment to spare."""
    question = _question(setup, profile, poisson(arrival_rate), LOADS)
    strictly = replace(question, slos=tuple(in_time))
    plan = choose_every_load(FunctionSettings(strictly), LOADS) or choose_every_load(FunctionSettings(question), LOADS)
    if plan is None:
        return None
    beside = [(function, PolicyDocument.of(table)) for function, table in plan.beside]
    made = _plan(setup, plan.function, PolicyDocument.of(plan.policy), beside, plan.memory_mb)
    return Proposal(f"every load, {plan.runs_on}", made, plan.cost.per_request)


def _question(
    setup: TuningSetup, profile: ServiceProfile, arrivals: ArrivalProcess, loads: tuple[float, float] | None = None
) -> Question:
    measured = [mb for mb in setup.memory_sizes if not profile.points or mb in profile.memory_sizes]
    limits = Limits(tuple(measured), setup.max_batch_size)
    of_function = profile, setup.slos, replace(setup.billing, cold_start_probability=0.0)
    return Question(arrivals, *of_function, limits=limits, goal=Goal(loads=loads), environments=setup.environments)


def _of(candidate: Candidate, setup: TuningSetup, kind: str) -> Proposal:
    beside = [(function, PolicyDocument.of(table)) for function, table in candidate.beside]
    plan = _plan(setup, candidate.function, PolicyDocument.of(candidate.policy), beside, candidate.memory_mb)
    name = f"{kind}, {candidate.runs_on}, {candidate.leaves}"
    percentile = candidate.percentile(setup.slos[0].percentile).value
    return Proposal(name, plan, candidate.cost.per_request, percentile, candidate.rests_on_fit)


def _behind(workers: WorkerSetting, setup: TuningSetup, function: ServiceTimes, batch_size: int) -> Proposal:
    """Workers that keep the promise, and the function for whoever they leave too late, however many come."""
    name, largest = setup.function_at(function.memory_mb), workers.policy.max_batch_size
    table = last_moment_beside(function, workers.offer.service, setup.slos, batch_size, largest)
    beside = [(name, PolicyDocument.of(table))]
    plan = _plan(setup, workers.function, PolicyDocument.of(workers.policy), beside, function.memory_mb)
    return Proposal(f"workers, {workers.runs_on}, {workers.leaves}, {function.memory_mb} MB for the rest", plan)


def _of_servers(setup: TuningSetup, policy: Policy, name: str) -> Proposal:
    offer = setup.offers[0]
    plan = _plan(setup, offer.function, PolicyDocument.of(policy), (), None)
    return Proposal(f"{setup.servers} × {offer.name}, {name}", plan)


def _plan(
    setup: TuningSetup,
    function: str,
    policy: PolicyDocument,
    beside: Sequence[tuple[str, PolicyDocument]],
    memory_mb: int | None,
) -> Plan:
    return Plan(
        model=setup.model,
        function=function,
        policy=policy,
        beside=[Beside(name, table) for name, table in beside],
        slo=setup.slos[0],
        other_slos=list(setup.slos[1:]),
        memory_mb=memory_mb,
        warm=setup.warm_of([function, *(name for name, _ in beside)]) or UNSET,
    )
