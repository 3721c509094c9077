"""Which route a request takes: dealt by the shares, without chance, the route of its size, or that of its class. What may live
here: the choice, no queue and no clock.

By size, a request takes the first route whose ``up_to`` is at least its size, and the last one where it is not told. By class, it
takes the route that its class names; where its class is gone, as of one who waited under another plan, that of the first.

The rule of the deal is Tijdeman's for the chairman assignment problem. At the ``n``-th request a route of share ``s`` that got
``x`` of those before is owed ``n s - x``. Who is owed at least ``1 / (2 k - 2)`` may get it, where ``k`` is the number of routes;
of these it goes to the one that would soonest be owed more than ``1 - 1 / (2 k - 2)``, the first named of equals. So no route ever
has a whole request more or less than its share, whatever the shares and however many routes; dealing to whom the most is owed does
not promise that.

Where a dealt route takes nothing now, for its functions do nothing but fail, its requests are dealt to the others by their shares.
Routes of sizes and classes have no others: what they promise is another thing.

Reference: R. Tijdeman, The chairman assignment problem, Discrete Mathematics 32 (1980), 323-330.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from sluice.batching.documents import Plan, RequestClass, Route
from sluice.buffer_service.told import NOTHING_TOLD, Told

ROUNDING = 1e-9  # of a request: what is owed is a sum of many shares


class Choice(Protocol):
    """What chooses routes."""

    def next(self, told: Told = NOTHING_TOLD) -> str:
        """The route of the next request, which told this of itself."""


def always(name: str) -> bool:
    """Every route takes requests."""
    return True


class Router:
    """Deals requests to routes; ``shares`` (> 0, by name) count from the first request after they were given.

    ``takes`` says of a route that is about to get one whether it takes it; where none does, it gets it all the same.
    """

    def __init__(self, shares: Mapping[str, float], takes: Callable[[str], bool] = always) -> None:
        self._shares: dict[str, float] = {}
        self._takes = takes
        self._others: Router | None = None  # deals what routes do not take
        self.follow(shares)

    def follow(self, shares: Mapping[str, float]) -> None:
        """Other shares rule from now on; what the same routes are owed, they are owed still."""
        total = sum(shares.values())
        normalised = {name: share / total for name, share in shares.items()}
        self._others = None
        if normalised.keys() == self._shares.keys():
            self._shares = normalised  # who is owed goes on being owed
            return
        self._shares = normalised
        self._only = next(iter(shares)) if len(shares) == 1 else None
        self._slack = 1 / (2 * len(shares) - 2) if len(shares) > 1 else 0.0
        self._owed = dict.fromkeys(shares, 0.0)

    def next(self, told: Told = NOTHING_TOLD) -> str:
        """The route of the next request, whatever it told."""
        if self._only is not None:
            return self._only
        dealt = self._dealt()
        return dealt if self._takes(dealt) else self._instead_of(dealt)

    def _instead_of(self, refusing: str) -> str:
        """Of the routes that take requests, if any does; those that do not are owed nothing for it later."""
        willing = {name: share for name, share in self._shares.items() if name != refusing and self._takes(name)}
        if not willing:
            return refusing
        if self._others is None or self._others._shares.keys() != willing.keys():
            self._others = Router(willing)
        return self._others.next()

    def _dealt(self) -> str:
        owed, slack = self._owed, self._slack
        soonest, chosen = float("inf"), ""
        for name, share in self._shares.items():
            owed[name] += share
            if owed[name] >= slack - ROUNDING and (time_left := (1 - slack - owed[name]) / share) < soonest - ROUNDING:
                soonest, chosen = time_left, name
        chosen = chosen or max(owed, key=owed.__getitem__)  # rounding of a hundred million requests
        owed[chosen] -= 1
        return chosen


class SizeClasses:
    """The routes of a plan that tells sizes, ascending by ``up_to``."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._names = [route.name for route in routes]
        self._bounds = [math.inf if route.up_to is None else route.up_to for route in routes]

    def next(self, told: Told = NOTHING_TOLD) -> str:
        """The route of a request of this size."""
        return self._names[-1 if told.size is None else bisect_left(self._bounds, told.size)]


class ClassRoutes:
    """The routes of a plan whose classes choose them."""

    def __init__(self, classes: Sequence[RequestClass]) -> None:
        self._routes = {each.name: each.route for each in classes}
        self._first = classes[0].route

    def next(self, told: Told = NOTHING_TOLD) -> str:
        """The route of a request of this class."""
        return self._routes.get(told.name, self._first)


def choice(plan: Plan, deal: Router) -> Choice:
    """What chooses the routes of a plan: ``deal`` where nothing that a request tells does."""
    if plan.size is not None:
        return SizeClasses(plan.all_routes)
    return ClassRoutes(plan.classes) if plan.routed_by_class else deal
