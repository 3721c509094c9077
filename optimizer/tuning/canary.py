"""The plans that control follows: one queue, or that queue beside another that is tried with a share of the requests."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from sluice.batching.documents import Plan, Route
from sluice.batching.errors import InvalidInput
from sluice.optimizer.tuning.setup import TuningSetup

SERVING, CANARY = "serving", "canary"
"""The routes of a plan that tries another one with a share of the requests."""


def single_route(plan: Plan) -> Route:
    """The route of a plan that control may change, or the one that serves where another is tried beside it.

    Raises
    ------
    InvalidInput
        A plan with routes of another kind, with classes or with a size of requests.
    """
    require_plain(plan)
    return plan.all_routes[0]


def require_plain(plan: Plan) -> None:
    """Raise unless control knows how to follow this plan."""
    names = tuple(route.name for route in plan.all_routes)
    if names not in (("",), (SERVING, CANARY)) or plan.classes or plan.size is not None:
        what = "classes" if plan.classes else "size" if plan.size is not None else "routes"
        raise InvalidInput(f"plan.{what}", ", ".join(names), "a plan of one queue, as control makes them")


def plain(plan: Plan, route: Route, setup: TuningSetup) -> Plan:
    """One route of a plan, alone."""
    return replace(
        plan,
        function=route.function,
        policy=route.policy,
        beside=route.beside,
        routes=[],
        digest="",
        predicted=None,
        memory_mb=setup.memory_of(route.function),
        warm=route.warm,
        started=UNSET,
    )


def trying(base: Plan, other: Plan, share: float) -> Plan:
    """A plan that serves as ``base`` does, and a share of the requests as ``other`` does.

    Of workers with a function beside them the function is tried alone: another queue before the same workers would take them to be
    there for it, and leave the function nothing to do.
    """
    own, its = base.all_routes[0], other.all_routes[0]
    tried = Route(CANARY, its.function, its.policy, share, beside=its.beside, warm=its.warm, started=its.started)
    if its.policy.servers is not None:
        first, *others = its.beside
        tried = Route(CANARY, first.function, first.policy, share, beside=others)
    routes = [Route(SERVING, own.function, own.policy, 1 - share, beside=own.beside, warm=own.warm), tried]
    nothing: dict[str, Any] = {"function": "", "policy": None, "beside": [], "warm": UNSET, "started": UNSET, "memory_mb": None}
    return replace(base, routes=routes, digest="", predicted=None, **nothing)
