"""One model on one process of the buffer: its routes, each with a dispatcher and a queue of its own, and what moves between them.

A plan without routes is one way without a name, so that a plan may gain and lose its routes while running. A route that the plan in
force has no more gets no new requests; its dispatcher is retired, and closed once nobody waits there.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Coroutine
from typing import Any

from sluice.batching.documents import Plan, Route
from sluice.batching.errors import FunctionFailed
from sluice.buffer_service.callers import Callers
from sluice.buffer_service.dispatcher import Dispatcher
from sluice.buffer_service.invokers import Invoker
from sluice.buffer_service.routing import Router
from sluice.buffer_service.store import Limits, Store
from sluice.buffer_service.telemetry import ModelTelemetry
from sluice.lambda_fn.contract import Answer


class ServedModel:
    """Takes the requests of a model, each by the route whose turn it is; needs a running event loop."""

    def __init__(
        self, plan: Plan, store: Store, limits: Limits, callers: Callers, invoker: Invoker, telemetry: ModelTelemetry
    ) -> None:
        self.plan = plan
        self.telemetry = telemetry
        self._store = store
        self._limits = limits
        self._callers = callers
        self._invoker = invoker
        self._dispatchers: dict[str, Dispatcher] = {}  # of the routes in force and of those that are retired
        self._retiring: dict[str, asyncio.Task[None]] = {}
        for route in plan.ways:
            self._open(route)
        self._router = Router({route.name: route.share for route in plan.ways})

    async def follow(self, plan: Plan) -> None:
        """Another plan is in force, also for those who wait already."""
        ways = {route.name: route for route in plan.ways}
        for name in self._retiring.keys() & ways.keys():
            await self._keep(name)
        self.plan = plan
        self.telemetry.follow(plan)
        for name, route in ways.items():
            if name in self._dispatchers:
                self._dispatchers[name].follow(route)
            else:
                self._open(route)
        self._router.follow({name: route.share for name, route in ways.items()})
        for name in self._dispatchers.keys() - ways.keys() - self._retiring.keys():
            self._dispatchers[name].retire()
            self._retiring[name] = asyncio.create_task(self._retire(name))

    def submit(self, content_type: str, headers: dict[str, str], body: bytes) -> Coroutine[Any, Any, Answer]:
        """``Dispatcher.submit`` of the route whose turn it is."""
        return self._dispatchers[self._router.next()].submit(content_type, headers, body)

    async def describe(self) -> dict[str, Any]:
        """The metadata of the model, from the first route whose function answers, and the plan in force.

        Raises ``FunctionFailed`` where none answers.
        """
        ways = self.plan.ways
        ours = {"name": self.plan.model, "plan": {"digest": self.plan.digest, "made_at": self.plan.made_at}}
        for route in ways:
            try:
                return await self._dispatchers[route.name].describe() | ours
            except FunctionFailed:
                if route is ways[-1]:
                    raise
        raise AssertionError("unreachable: a plan has a way")

    async def close(self) -> None:
        """Take no new batches and finish those under way; retired routes first, since they give theirs to the others."""
        retired = []
        for name in self._retiring.keys() & self._dispatchers.keys():
            self._retiring.pop(name).cancel()
            retired.append(self._dispatchers.pop(name))
        await asyncio.gather(*self._retiring.values(), *(dispatcher.close() for dispatcher in retired))
        await asyncio.gather(*(dispatcher.close() for dispatcher in self._dispatchers.values()))

    def _open(self, route: Route) -> None:
        telemetry = self.telemetry.route(route.name) if route.name else self.telemetry
        dispatcher = Dispatcher(
            self.plan.model, route, self._store, self._limits, self._callers, self._invoker, telemetry, self._move
        )
        dispatcher.start()
        self._dispatchers[route.name] = dispatcher

    async def _move(self, members: list[bytes]) -> None:
        """What waited at a retired route, to those in force."""
        by_route: defaultdict[str, list[bytes]] = defaultdict(list)
        for member in members:
            by_route[self._router.next()].append(member)
        for name, theirs in by_route.items():
            if name in self._dispatchers:
                await self._dispatchers[name].adopt(theirs)
            else:  # gone since they were dealt
                await self._move(theirs)

    async def _retire(self, name: str) -> None:
        dispatcher = self._dispatchers[name]
        await dispatcher.drained()
        del self._dispatchers[name]  # from here on it does not return
        await dispatcher.close()
        self.telemetry.forget(name)
        del self._retiring[name]

    async def _keep(self, name: str) -> None:
        """A route that is being retired is wanted again; where it is closing already, a new one follows when it has closed."""
        if name in self._dispatchers:
            self._retiring.pop(name).cancel()
        elif (closing := self._retiring.get(name)) is not None:
            await closing
