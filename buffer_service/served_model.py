"""One model on one process of the buffer: its routes, each with a dispatcher and a queue of its own, and what moves between them.

A plan without routes is one route without a name, so that a plan may gain and lose them while running. A route that the plan in
force has no more gets no new requests; its dispatcher is retired, and closed once nobody waits there.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec

from sluice.batching.documents import Plan, Route
from sluice.batching.environments import not_serving
from sluice.batching.errors import FunctionFailed
from sluice.batching.urls import without_password
from sluice.buffer_service.callers import Callers, Waiting
from sluice.buffer_service.dispatcher import Dispatcher
from sluice.buffer_service.environments import prepare
from sluice.buffer_service.invokers import Invoker
from sluice.buffer_service.members import member_told
from sluice.buffer_service.request_size import Headers, size_reader
from sluice.buffer_service.route_facts import Caller
from sluice.buffer_service.route_functions import Standing
from sluice.buffer_service.routing import Router, choice
from sluice.buffer_service.store import Limits, Store
from sluice.buffer_service.telemetry import ModelTelemetry
from sluice.buffer_service.told import NOTHING_TOLD, Classes, Told
from sluice.http.room import Room


class ServedModel:
    """Takes the requests of a model, each by the route that its plan chooses; needs a running event loop.

    Answers of functions take ``room`` until their batch has ended.
    """

    def __init__(
        self,
        plan: Plan,
        store: Store,
        limits: Limits,
        callers: Callers,
        invoker: Invoker,
        telemetry: ModelTelemetry,
        room: Room | None = None,
    ) -> None:
        self.plan = plan
        self.telemetry = telemetry
        self._store = store
        self._limits = limits
        self._callers = callers
        self._invoker = invoker
        self._room = room if room is not None else Room.without_end()
        self._dispatchers: dict[str, Dispatcher] = {}  # of the routes in force and of those that are retired
        self._closing: dict[str, asyncio.Task[None]] = {}
        self._in_force = {route.name for route in plan.all_routes}
        for route in plan.all_routes:
            self._open(route)
        self._deal = Router({route.name: route.share for route in plan.all_routes}, self._takes_share)
        self._read_as(plan)
        self._new = True

    async def follow(self, plan: Plan) -> None:
        """Another plan is in force, also for those who wait already, when what it asks for of functions that are new is there."""
        await self._prepare(plan)
        self._new = False
        routes = {route.name: route for route in plan.all_routes}
        while closing := [task for name, task in self._closing.items() if name in routes]:
            await asyncio.wait(closing)  # a new one follows when it has closed; others may begin to close meanwhile
        # From here on one breath: what another plan finds is this one or the last.
        gone = [name for name in self._dispatchers if name not in routes and name in self._in_force]
        self.plan = plan
        self.telemetry.follow(plan)
        for name, route in routes.items():
            if name in self._dispatchers:
                self._dispatchers[name].follow(route, plan.promised(name), plan.digest, _edition(plan))
            else:
                self._open(route)
        self._deal.follow({name: route.share for name, route in routes.items()})
        self._read_as(plan)
        self._in_force = set(routes)
        for name in gone:
            self._dispatchers[name].retire()

    def told(
        self, came_with: Headers, said: Mapping[bytes, bytes], headers: dict[str, str], body: bytes, of_protocol: bool = False
    ) -> Told:
        """What a request that ``came_with`` these headers tells of itself, as the plan in force has it.

        ``said`` are those of ``CLASS_HEADER`` and ``DEADLINE_HEADER`` that are there; a body ``of_protocol`` is one of the Open
        Inference Protocol. Raises ``InvalidInput``, naming the field.
        """
        if self._tells_nothing and not said and not of_protocol:
            return NOTHING_TOLD
        told = self._classes.of(said, headers, body if of_protocol else None)
        return told if self._read_size is None else told._replace(size=self._read_size(came_with, headers, body))

    def ask(self, content_type: str, headers: dict[str, str], body: bytes, told: Told = NOTHING_TOLD) -> Waiting:
        """``Dispatcher.ask`` of the route that is chosen."""
        if self._only is not None:
            return self._dispatchers[self._only].ask(content_type, headers, body, told)
        if told.size is not None:
            self.telemetry.sized(told.size)
        return self._dispatchers[self._router.next(told)].ask(content_type, headers, body, told)

    async def describe(self) -> dict[str, Any]:
        """The metadata of the model, from the first route whose function answers, and the plan in force.

        Of the plan also where its first route sends a request that nobody follows, and after how long: ``alone``.

        Raises ``FunctionFailed`` where none answers.
        """
        routes = self.plan.all_routes
        function, hold = routes[0].alone
        plan: dict[str, Any] = {"digest": self.plan.digest, "made_at": self.plan.made_at}
        if hold < math.inf:
            plan["alone"] = {"function": without_password(function), "hold": hold}
        if self.plan.classes:
            plan["classes"] = msgspec.to_builtins(self.plan.classes)
        ours = {"name": self.plan.model, "plan": plan}
        for route in routes:
            try:
                return await self._dispatchers[route.name].describe() | ours
            except FunctionFailed:
                if route is routes[-1]:
                    raise
        raise AssertionError("unreachable: a plan has a route")

    def standings(self, route: str) -> list[Standing]:
        """How each function of a route in force stands at this process."""
        return self._dispatchers[route].standings()

    @property
    def starting(self) -> bool:
        """Whether environments start of a model that is new at this process."""
        return self._new and any(dispatcher.starting for dispatcher in self._dispatchers.values())

    async def check(self) -> None:
        """Raise ``StoreUnavailable`` unless calls to the queues of all routes in force would be executed."""
        await asyncio.gather(*(self._dispatchers[route.name].check() for route in self.plan.all_routes))

    async def _prepare(self, plan: Plan) -> None:
        new, edition = not_serving(self.plan, plan), _edition(plan)
        asking = [route for route in plan.all_routes if route.there_first and not new.isdisjoint(route.functions)]
        queues = [(route, self._store.queue(plan.model, self._limits, route.name)) for route in asking]
        if queues:
            await asyncio.gather(*(prepare(route, new, plan.model, edition, queue, self._invoker) for route, queue in queues))

    async def close(self) -> None:
        """Take no new batches and finish those under way; retired routes first, since they give theirs to the others."""
        retired = [self._dispatchers.pop(name) for name in list(self._dispatchers) if name not in self._in_force]
        await asyncio.gather(*self._closing.values(), *(dispatcher.close() for dispatcher in retired))
        await asyncio.gather(*(dispatcher.close() for dispatcher in self._dispatchers.values()))

    def _read_as(self, plan: Plan) -> None:
        """What requests tell of themselves, and whether the routes of the plan are chosen by that."""
        self._classes = Classes(plan, self._callers.request_timeout)
        self._read_size = size_reader(plan.size) if plan.size is not None else None
        self._router = choice(plan, self._deal)
        self._tells_nothing = not plan.classes and plan.size is None
        self._only = plan.all_routes[0].name if self._tells_nothing and len(plan.all_routes) == 1 else None

    def _takes_share(self, name: str) -> bool:
        return self._dispatchers[name].takes_share()

    def _open(self, route: Route) -> None:
        telemetry = self.telemetry.route(route.name) if route.name else self.telemetry
        parts = self._store, self._limits, self._callers, self._invoker, telemetry
        dispatcher = Dispatcher(
            self.plan.model,
            route,
            *parts,
            elsewhere=self._move,
            drained=partial(self._close, route.name),
            left=self._left,
            room=self._room,
            slo=self.plan.promised(route.name),
            digest=self.plan.digest,
            edition=_edition(self.plan),
        )
        self._dispatchers[route.name] = dispatcher
        dispatcher.start()

    async def _move(self, members: list[bytes]) -> None:
        """What waited at a retired route, to those in force."""
        by_route: defaultdict[str, list[bytes]] = defaultdict(list)
        for member in members:
            by_route[self._router.next(member_told(member))].append(member)
        for name, theirs in by_route.items():
            if name in self._dispatchers:
                await self._dispatchers[name].adopt(theirs)
            else:  # gone since they were dealt
                await self._move(theirs)

    def _left(self, caller: Caller) -> None:
        """A caller waits no more."""
        for dispatcher in self._dispatchers.values():
            dispatcher.gone(caller)

    def _close(self, name: str) -> None:
        """Nobody waits at a retired route any more: from here on it does not return."""
        if (dispatcher := self._dispatchers.pop(name, None)) is not None:
            self._closing[name] = asyncio.get_running_loop().create_task(self._close_one(name, dispatcher))

    async def _close_one(self, name: str, dispatcher: Dispatcher) -> None:
        await dispatcher.close()
        self.telemetry.forget(name)
        del self._closing[name]


def _edition(plan: Plan) -> str:
    """What a plan has in common with itself alone: another with its digest may be of another function behind the same name."""
    return f"{plan.digest} {plan.made_at or ''}".rstrip()
