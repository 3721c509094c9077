"""The baselines by name, as `sluice simulate --policy` and the studies call them: NAME, or NAME:NUMBER,...

``NAMES`` says of each what makes it of a ``Situation``, which numbers it takes, and whether it goes by an SLO.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np

from sluice.batching.documents import Plan, RequestClass, Route
from sluice.batching.durations import LONGEST, MEANT_MS, MOST, seconds
from sluice.batching.errors import Infeasible, InvalidInput, NotConverged, SluiceError, require
from sluice.batching.policy import INF, MAX_ROWS
from sluice.optimizer.baselines.autoscaling import SAFETY, TargetTracking, autoscaled
from sluice.optimizer.baselines.functions import (
    last_moment,
    no_batching,
    past_windows,
    recommended,
    reoptimised,
    size_or_timeout,
    with_headroom,
)
from sluice.optimizer.baselines.in_time import largest_throughput
from sluice.optimizer.baselines.overflow import Forecasting, with_overflow
from sluice.optimizer.baselines.situation import Situation
from sluice.optimizer.baselines.workers import aimd, deadline, early_drop, fixed_workers, greedy, smdp, static
from sluice.optimizer.recommend import WorkerOffer
from sluice.optimizer.recommend.offers import kept_warm
from sluice.optimizer.recommend.words import milliseconds
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.simulation.several_queues import RoutedDeployment, SeveralQueues
from sluice.optimizer.simulation.sized_deployment import SizedDeployment, SizedQueue
from sluice.optimizer.smdp import PhaseTables

FIXED = (8, 0.05)  # size-or-timeout that nobody chose: batch size, and seconds
STATIC = 8
BY_SYSTEM = {"proteus": "deadline", "clipper": "aimd", "nexus": "early-drop"}
"""The policies of workers by the systems that they are of."""
WINDOWS = 5  # of the arrivals, that reoptimised learns from
LAG = 180.0  # s, until a new worker serves
DURATIONS = {"timeout": (MEANT_MS, LONGEST), "window": (INF, MOST), "lag": (INF, LONGEST)}
"""Numbers that may have a unit: from how many seconds on one without is a question, and how many there may be."""

Make = Callable[..., Deployment]


@dataclass(frozen=True)
class Named:
    """A policy by name: its ``parameters`` in their order, how many of them must be given, whether it goes by an SLO.

    ``in_all`` are the numbers that it has where all policies are asked for. What is ``fixed`` is told all but its memory size, and
    learns nothing of arrivals; nor does what is ``fixed_on_servers`` where it is told how many these are. What is ``on_servers`` is
    told so, too. What is ``offered`` workers finds their number itself.
    """

    make: Make
    parameters: tuple[str, ...] = ()
    needed: int = 0
    needs_slo: bool = True
    in_all: tuple[float, ...] = ()
    fixed: bool = False
    fixed_on_servers: bool = False
    on_servers: bool = False
    offered: bool = False

    @property
    def of_workers(self) -> bool:
        """Whether workers that are given may serve it."""
        return self.on_servers or self.fixed_on_servers or self.offered

    def usage(self, name: str) -> str:
        """How it is written."""
        given = ",".join(parameter.upper() for parameter in self.parameters)
        return f"{name}:{given}" if self.needed else f"{name}[:{given}]" if given else name


def _no_batching(of: Situation) -> Deployment:
    return no_batching(of.function(lambda answer: answer.no_batching.memory_mb))


def _size_or_timeout(of: Situation, size: float, timeout: float) -> Deployment:
    return size_or_timeout(of.function(), _whole("batch_size", size), timeout)


def _recommended(of: Situation, headroom: float = 0.0) -> Deployment:
    made = recommended(of.answer(headroom), of.any_function)
    return made if of.any_function.mix is None else replace(made, note=ONE_QUEUE)


def _batch(of: Situation, headroom: float = 0.0) -> Deployment:
    return recommended(of.answer(headroom, "size-or-timeout"), of.any_function)


def _reoptimised(of: Situation, window: float | None = None) -> Deployment:
    times, past = of.times, of.past
    start = float(times[0])
    seconds = float(times[-1] - start) / WINDOWS if window is None else window
    history = np.minimum(past - max(float(past[-1]) - start, 0.0), start)  # what was sampled comes before the run as well
    windows = past_windows(np.concatenate([history, times]), seconds, start=start)
    best = of.answer(policies="size-or-timeout").best
    return reoptimised(of.any_function.at(best.memory_mb), of.slos, windows, best.policy)


def _greedy(of: Situation, size: float | None = None) -> Deployment:
    slo, largest = of.slo if of.slos else None, None if size is None else _whole("b", size)
    return of.with_workers(lambda k: greedy(of.offer, k, slo, largest))


def _static(of: Situation, size: float) -> Deployment:
    return of.with_workers(lambda k: static(of.offer, k, _whole("b", size)))


def _autoscaled(of: Situation, lag: float = LAG) -> Deployment:
    tracking = TargetTracking(SAFETY * largest_throughput(of.offer.service, of.slo), lag=lag)
    first = of.workers or tracking.wanted(of.process.arrival_rate)
    return autoscaled(of.offer, of.slo, of.times, tracking, first)


def _with_overflow(of: Situation, lag: float = LAG) -> Deployment:
    return with_overflow(of.offer, of.function(), of.slo, of.times, Forecasting(lag=lag), of.process.arrival_rate)


def _whole(name: str, value: float) -> int:
    require(value == int(value) and value <= MAX_ROWS, name, value, f"an integer from 1 to {MAX_ROWS}")
    return int(value)


ONE_QUEUE = "one queue for all sizes; `sluice recommend` may give classes of sizes their own, which --policy PLAN.json has"

NAMES: dict[str, Named] = {
    "no-batching": Named(_no_batching, needs_slo=False, fixed=True),
    "size-or-timeout": Named(_size_or_timeout, ("b", "timeout"), 2, False, FIXED, fixed=True),
    "recommended": Named(_recommended, ("headroom",), offered=True),
    "batch": Named(_batch, ("headroom",)),
    "headroom": Named(lambda of: with_headroom(of.any_function, of.slos, of.process, of.past, of.memory_sizes)),
    "reoptimised": Named(_reoptimised, ("window",)),
    "last-moment": Named(lambda of: last_moment(of.function(), of.slos)),
    "greedy": Named(_greedy, ("b",), needs_slo=False, fixed_on_servers=True),
    "static": Named(_static, ("b",), 1, False, (STATIC,), fixed_on_servers=True),
    "smdp": Named(lambda of: of.with_workers(lambda k: smdp(of.offer, k, of.process.arrival_rate, of.slos)), on_servers=True),
    "deadline": Named(lambda of: of.with_workers(lambda k: deadline(of.offer, k, of.slo)), fixed_on_servers=True),
    "aimd": Named(lambda of: of.with_workers(lambda k: aimd(of.offer, k, of.slo)), fixed_on_servers=True),
    "early-drop": Named(lambda of: of.with_workers(lambda k: early_drop(of.offer, k, of.slo)), fixed_on_servers=True),
    "workers": Named(lambda of: fixed_workers(of.offer, of.process, of.slos, of.workers), on_servers=True),
    "autoscaling": Named(_autoscaled, ("lag",), on_servers=True),
    "overflow": Named(_with_overflow, ("lag",), offered=True),
}
ALL, CONTROL = "all", "control"  # which `sluice simulate` knows beside these names
USAGE = ", ".join(named.usage(name) for name, named in NAMES.items())
SERVED = ", ".join(name for name, named in NAMES.items() if named.on_servers or named.fixed_on_servers)
OF_WORKERS = ", ".join(name for name, named in NAMES.items() if named.of_workers)


def all_names() -> list[str]:
    """Every policy by name, those that need numbers with the usual ones."""
    given = {name: ",".join(f"{number:g}" for number in named.in_all) for name, named in NAMES.items()}
    return [f"{name}:{numbers}" if numbers else name for name, numbers in given.items()]


def counts_servers(text: str) -> bool:
    """Whether what ``text`` names is told how many workers there are; raises ``InvalidInput`` as ``policy_named``."""
    policy = policy_named(text)
    return policy.on_servers or policy.fixed_on_servers


def policy_named(text: str) -> Named:
    """What ``text`` names, whatever its numbers; raises ``InvalidInput`` where there is no policy of that name."""
    name = text.partition(":")[0]
    if name not in NAMES:
        asked_for = name.lower().replace("_", "-").partition("=")[0]
        near = (
            [BY_SYSTEM[asked_for]] if asked_for in BY_SYSTEM else difflib.get_close_matches(asked_for, [*NAMES, ALL, CONTROL], n=1)
        )
        asked = "".join(f"; did you mean {NAMES[meant].usage(meant) if meant in NAMES else meant}?" for meant in near)
        raise InvalidInput("policy", text, f"{ALL}, {CONTROL}, a file, or one of {USAGE}{asked}")
    return NAMES[name]


def named(text: str, of: Situation) -> Deployment:
    """The policy that ``text`` names, for a situation.

    Raises
    ------
    InvalidInput
        No policy of that name; numbers missing, too many or none; an SLO that the policy goes by and that was not given.
    Infeasible
        From a policy that finds nothing.
    """
    policy = policy_named(text)
    name, _, rest = text.partition(":")
    parts = rest.split(",") if rest else []
    require(policy.needed <= len(parts) <= len(policy.parameters), "policy", text, policy.usage(name))
    numbers = [
        _number(parameter, part, text, policy.usage(name)) for parameter, part in zip(policy.parameters, parts, strict=False)
    ]
    require(all(np.isfinite(numbers)), "policy", text, f"{policy.usage(name)} with finite numbers")
    require(bool(of.slos) or not policy.needs_slo, "slo", None, f"an SLO, by which policy {name} goes")
    return _of_workers(policy.make(of, *numbers), of)


def _number(parameter: str, part: str, text: str, usage: str) -> float:
    """What one of the numbers of ``text`` is."""
    try:
        if parameter not in DURATIONS:
            return float(part)
        meant_ms, most = DURATIONS[parameter]
        return seconds(part, meant_ms, most=most)
    except ValueError as error:
        asked = f", {parameter.upper()} {error}" if parameter in DURATIONS else ""
        raise InvalidInput("policy", text, usage + asked) from None


def written(plan: Plan | PhaseTables, of: Situation, source: str = "plan") -> Deployment | SeveralQueues:
    """What a plan does, of one queue or of several by size or by class; or tables by phase, which swap as the phase is guessed.

    Functions beside one another are those that the plan names; a function alone is the one given, if none is called so. The phase
    is guessed from the arrivals of the run.

    Raises
    ------
    InvalidInput
        Routes by shares; queues by size and no sizes of the requests, classes and none of the requests; a function beside another
        that is none of those given.
    """
    if isinstance(plan, PhaseTables):
        return _of_workers(of.offer.under(plan.schedule(of.times)), of)
    allowed = "none: a plan of one queue, or of queues by size or by class; fleets are `sluice fleet`'s"
    one = plan.policy is not None
    require(one or plan.size is not None or plan.routed_by_class, f"{source}: routes", len(plan.routes), allowed)
    routes, classes = plan.all_routes, _classes(plan, of, source) if plan.classes else []
    if one:
        return replace(_queue(routes[0], plan.memory_mb, of, source), classes=classes)
    if plan.routed_by_class:
        taken = {each.route for each in classes}  # a trace may have no requests of some
        queues = {
            route.name: _queue(route, plan.memory_mb, of, f"{source}: routes.{route.name}")
            for route in routes
            if route.name in taken
        }
        return RoutedDeployment(classes, queues)
    require(not classes, f"{source}: classes", len(classes), "none, as the routes are chosen by size")
    ends = [INF if route.up_to is None else route.up_to for route in routes]
    by_size = [
        SizedQueue(up_to, _queue(route, plan.memory_mb, of, f"{source}: routes.{route.name}", (above, up_to)))
        for route, above, up_to in zip(routes, [-1.0, *ends], ends, strict=False)
    ]
    return SizedDeployment(by_size)


def _classes(plan: Plan, of: Situation, source: str) -> list[RequestClass]:
    """Those of a plan in the order in which the requests of the run have them."""
    by_name = {each.name: each for each in plan.classes}
    names = of.workload.classes
    if not names:
        told = "arrivals of each: --class NAME:ARRIVALS, or --trace with --class-column"
        raise InvalidInput(f"{source}: classes", ", ".join(by_name), told)
    for name in names:
        require(name in by_name, "class", name, f"one of {source}: {', '.join(by_name)}")
    if of.workload.by_class:
        for name in by_name:
            require(name in names, f"{source}: class", name, f"one with arrivals: --class {name}:ARRIVALS")
    return [by_name[name] for name in names]


def _queue(route: Route, memory_mb: int | None, of: Situation, source: str, sizes: tuple[float, float] | None = None) -> Deployment:
    """One queue of a plan, which may be that of the requests larger than the one of ``sizes`` and at most the other."""
    policy = route.policy.policy()
    if route.beside:
        tables = [policy, *(beside.policy.policy() for beside in route.beside)]
        fields = [f"{source}: function", *(f"{source}: beside[{i}].function" for i in range(len(route.beside)))]
        alone = sum(table.servers is not None for table in tables) == 1
        own, *others = (
            _function(name, memory_mb, of, field, sizes).there_first(route)
            if table.servers is None
            else _workers(name, alone, of, field)
            for name, table, field in zip(route.functions, tables, fields, strict=True)
        )
        beside = [
            replace(other.beside(table), function=name)
            for other, table, name in zip(others, tables[1:], route.functions[1:], strict=True)
        ]
        deployment = own.under(policy, beside=beside)
        memory_sizes = [each.memory_mb for each in (own, *others) if isinstance(each, Function)]
        return _of_workers(_noted(replace(deployment, function=route.function), memory_sizes, of), of)
    if policy.servers is not None:
        return _of_workers((of.offered(route.function) or of.offer).under(policy), of)
    named = of.function_named(route.function, memory_mb)
    function = named or (of.function() if memory_mb is None else of.any_function.at(memory_mb))
    function = function if sizes is None else function.between(*sizes)
    deployment = kept_warm(function, policy, route.warm) if route.warm else function.there_first(route).under(policy)
    return _noted(deployment, [function.memory_mb], of)


def _of_workers(deployment: Deployment, of: Situation) -> Deployment:
    """The deployment, with the function's bill where workers come first; it says that workers are not behind the function's way."""
    if not deployment.elastic:
        deployment = replace(deployment, billing=of.any_function.billing)
    way = of.any_function.profile.way
    workers = any(not side.elastic and not side.provisioned for side in deployment.serving)
    if not workers or way is None or not way.mean:
        return deployment
    without = f"the latencies of workers are without the {milliseconds(way.mean)} of the way through buffer and network"
    return _with_note(deployment, without)


def _noted(deployment: Deployment, memory_sizes: Sequence[int], of: Situation) -> Deployment:
    """The deployment, which says where it runs with other memory sizes than is asked for."""
    others = sorted({mb for mb in memory_sizes if of.memory_mb is not None and mb != of.memory_mb})
    if not others:
        return deployment
    runs = f"runs with {' and '.join(map(str, others))} MB, as the plan has it, and not with {of.memory_mb}"
    return _with_note(deployment, runs)


def _with_note(deployment: Deployment, more: str) -> Deployment:
    return replace(deployment, note="; ".join(filter(None, (deployment.note, more))))


def _function(name: str, memory_mb: int | None, of: Situation, field: str, sizes: tuple[float, float] | None) -> Function:
    """What a plan calls so."""
    function = of.function_named(name, memory_mb)
    if function is None:
        given = ", ".join(other.profile.function for other in of.functions)
        raise InvalidInput(field, name, f"a function whose profile is given: {given}")
    return function if sizes is None else function.between(*sizes)


def _workers(name: str, alone: bool, of: Situation, field: str) -> WorkerOffer:
    """What a plan calls so; where its workers are ``alone`` the only ones given, as those measured may be elsewhere."""
    offer = of.workers_named(name)
    if offer is None and alone and len(of.offers) == 1:
        return of.offers[0]
    if offer is None:
        given = ", ".join(other.function or other.name for other in of.offers) or "none"
        raise InvalidInput(field, name, f"workers whose profile is given: {given}; or a function's, as provisioned concurrency")
    return offer


def require_all_taken(of: Situation, texts: Iterable[str], plans: Mapping[str, Plan | PhaseTables]) -> None:
    """Raise unless each function beside the first, and all workers, are of some policy of ``texts``, of which ``plans`` are files.

    Policies by name take the first workers, policy control all.
    """
    routes = [route for plan in plans.values() if isinstance(plan, Plan) for route in plan.all_routes]
    names = [name for route in routes for name in route.functions]
    for function in of.other_functions:
        used = any(function.called(name) is not None for name in names)
        require(used, "--profile", function.profile.function, "a function that a plan given as --policy names")
    policies = [text for text in texts if text not in plans]
    if CONTROL in policies:
        return
    for offer in of.other_workers:
        used = any(offer.function in (name, *name.split(",")) for name in names)
        require(used, "--worker", offer.function or offer.name, "workers that a plan given as --policy names")
    if of.worker is not None:
        by_name = any(text == ALL or policy_named(text).of_workers for text in policies)
        of_plan = any(isinstance(plan, PhaseTables) for plan in plans.values()) or any(_takes_first(route, of) for route in routes)
        allowed = f"only with a policy that workers serve ({ALL}, {CONTROL}, {OF_WORKERS}), or a plan of these workers"
        require(by_name or of_plan, "--worker", of.worker.name, allowed)


def _takes_first(route: Route, of: Situation) -> bool:
    """Whether the first of the workers given serve one of the tables of a route, as ``_queue`` has it."""
    policies = [route.policy, *(beside.policy for beside in route.beside)]
    held = [name for name, policy in zip(route.functions, policies, strict=True) if policy.policy().servers is not None]
    if not route.beside:
        return bool(held) and of.offered(route.function) in (None, of.worker)
    alone = len(held) == len(of.offers) == 1 and of.workers_named(held[0]) is None
    return alone or any(of.workers_named(name) is of.worker for name in held)


def named_deployments(
    texts: Sequence[str], of: Situation, plans: Mapping[str, Plan | PhaseTables] = MappingProxyType({})
) -> tuple[dict[str, Deployment | SeveralQueues], dict[str, str]]:
    """What is named, ``all`` among the names; and why some of all policies cannot be had.

    What knows no classes serves those of the run alike; their promises are those that a plan has for them.

    Parameters
    ----------
    plans : mapping of str to Plan or PhaseTables
        What some of the names are, which are then no names of baselines.

    Raises
    ------
    SluiceError
        From a policy that was named by itself, or where none of all can be had.
    """
    deployments: dict[str, Deployment | SeveralQueues] = {}
    promised = {each.name: each.slo for plan in plans.values() if isinstance(plan, Plan) for each in plan.classes}
    alike = [RequestClass(name, promised.get(name), 0.0) for name in of.workload.classes]
    refused: dict[str, str] = {}
    errors: list[SluiceError] = []
    for text in dict.fromkeys(text for given in texts for text in (all_names() if given == ALL else [given])):
        try:
            made = written(plans[text], of, text) if text in plans else named(text, of)
            if isinstance(made, Deployment) and not made.classes:
                made = replace(made, classes=alike)
            deployments[text] = made
        except (Infeasible, InvalidInput, NotConverged) as error:
            if text in texts:
                raise
            refused[text] = str(error)
            errors.append(error)
    if not deployments:
        raise errors[0]
    return deployments, refused
