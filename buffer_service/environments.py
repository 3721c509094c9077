"""Environments of a function that are there before requests ask for them: started with a plan, and kept where it says so.

Else the first requests wait for INIT, burst by burst until there are as many environments as bursts take, and of them more are late
than a percentile allows; and after a lull longer than a platform keeps what nobody uses so do those of the next burst. So many
pings as the plan says leave at the same moment, each of which holds its environment for a while: no two of them get the same. One
of all processes does it: the first that follows the plan, and of what is kept whoever asks first when its time has come.

What may live here: the pings of one route on one process. What may not: what is asked of the function beside them.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Sequence
from functools import partial
from logging import DEBUG, INFO
from typing import Any, TypeVar

from sluice.batching.documents import Route, WarmEnvironments
from sluice.batching.environments import PREPARED_WITHIN, held_by_ping
from sluice.batching.errors import FunctionFailed, StoreUnavailable
from sluice.buffer_service.invokers.port import Invoker
from sluice.buffer_service.store import Queue, Turn
from sluice.lambda_fn.contract import Batch, encode_batch

READY_WITHIN = 10.0  # seconds for which a route that is new at a process is not ready, as its environments start
AGAIN = 1.0  # seconds after which a store is asked once more that does not say whose turn it is,
ASKED = 60  # times at most
TURN = 15.0  # seconds for which nobody else pings what somebody is to; again after that, where not all were answered
LOOKED = 0.05  # seconds from one look to the next of who waits for another to start them
T = TypeVar("T")
_log = logging.getLogger(__name__)


class RouteEnvironments:
    """Of one route on one process.

    Parameters
    ----------
    name : str
        What the log calls the route.
    queue : Queue
        It knows whose turn it is.
    clock : callable
        Monotonic, s.
    """

    def __init__(self, name: str, queue: Queue, invoker: Invoker, clock: Callable[[], float]) -> None:
        self._name, self._queue, self._invoker, self._clock = name, queue, invoker, clock
        self._edition: str | None = None
        self._pinging: asyncio.Task[None] | None = None
        self._there, self._ready_at = False, -math.inf

    @property
    def starting(self) -> bool:
        """Whether those of a route start that is new here, so that requests are better sent elsewhere; not for long."""
        under_way = self._pinging is not None and not self._pinging.done()
        return under_way and not self._there and self._clock() < self._ready_at

    def follow(self, route: Route, model: str, edition: str) -> None:
        """A plan is in force, by whose ``model`` the function is asked; of another ``edition`` they are started anew."""
        if edition == self._edition:
            return
        self._ready_at = self._clock() + READY_WITHIN if self._edition is None else -math.inf  # who serves goes on being ready
        self.stop()
        self._edition, self._there = edition, False
        work = None
        if route.pinged:
            work = self._keep(route.functions, route.pinged, model, edition)
        elif route.started:
            work = self._start(route.functions, route.started, model, edition)
        if work is not None:
            self._pinging = asyncio.get_running_loop().create_task(self._logged(work))

    def stop(self) -> None:
        """Nobody waits for what the pings under way come to, and what they have started is there all the same."""
        self._edition = ""
        if self._pinging is not None:
            self._pinging.cancel()
            self._pinging = None

    async def _start(self, functions: Sequence[str], number: int, model: str, edition: str) -> None:
        if await self._told(partial(self._queue.turn, edition)) is Turn.FIRST:
            await self._ping(functions, number, model)
            await self._told(partial(self._queue.there, edition))

    async def _keep(self, functions: Sequence[str], warm: WarmEnvironments, model: str, edition: str) -> None:
        while True:
            wait = await self._told(partial(self._queue.pings_in, edition, min(TURN, warm.pinged_every)))
            if wait == 0 and await self._ping(functions, warm.pinged, model):
                await self._told(partial(self._queue.pinged, edition, warm.pinged_every))
            self._there = True
            await asyncio.sleep(wait or 0)

    async def _told(self, ask: Callable[[], Awaitable[T]]) -> T | None:
        """What the store says; ``None`` where it is away for long."""
        for _ in range(ASKED):
            try:
                return await ask()
            except StoreUnavailable:
                await asyncio.sleep(AGAIN)
        return None

    async def _ping(self, functions: Sequence[str], number: int, model: str) -> bool:
        return await _ping_all(self._name, functions, number, model, self._invoker, DEBUG if self._there else INFO)

    async def _logged(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:  # a defect; requests are served all the same
            _log.exception("%s: environments are started and kept no more", self._name)


async def prepare(route: Route, new: Collection[str], model: str, edition: str, queue: Queue, invoker: Invoker) -> None:
    """Start what a plan that is to come asks for of functions that are ``new``; who waits goes on being served by the others.

    One of all processes does it, and the others wait for it; no longer than ``PREPARED_WITHIN``, nor for a store that is away.
    """
    kept = route.pinged.pinged_every if route.pinged else 0.0
    functions = [function for function in route.functions if function in new]
    try:
        async with asyncio.timeout(PREPARED_WITHIN):
            while (turn := await queue.turn(edition)) is Turn.STARTING:
                await asyncio.sleep(LOOKED)
            if turn is Turn.FIRST and not (kept and await queue.pings_in(edition, min(TURN, kept))):
                name, asked_for = route.name or model, route.variant or model
                there = await _ping_all(name, functions, route.there_first, asked_for, invoker, INFO)
                if kept and there and functions == route.functions:
                    await queue.pinged(edition, kept)
                await queue.there(edition)
    except (TimeoutError, StoreUnavailable):
        return
    except Exception:  # a defect; the plan is followed all the same
        _log.exception("%s: environments were not started", route.name or model)


async def _ping_all(name: str, functions: Sequence[str], number: int, model: str, invoker: Invoker, level: int) -> bool:
    """So many at once of each function, and whether all were answered; what fails is logged, and harms nobody."""
    ping = encode_batch(Batch(model, [], ping=True, hold=held_by_ping(number)))
    pings = (invoker.invoke(function, ping) for function in functions for _ in range(number))
    found = await asyncio.gather(*pings, return_exceptions=True)
    failures = [each for each in found if isinstance(each, BaseException)]
    for defect in (each for each in failures if not isinstance(each, FunctionFailed)):
        raise defect
    which = " and ".join(functions)
    if failures:
        _log.warning("%s: %d of %d pings of %s failed: %s", name, len(failures), len(found), which, failures[0])
    else:
        _log.log(level, "%s: %d environments of %s are there", name, len(found), which)
    return not failures
