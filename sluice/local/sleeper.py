"""A function over HTTP that sleeps: as elastic as a platform, and of whatever service time, on a machine of two cores.

What the machine would take from real computations that run side by side it does not take from sleepers, which wake by the kernel's
timer, somewhat early, and wait for the rest awake; what it tells of itself is what a function tells (``measured`` in
``lambda_fn/contract.py``).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import NamedTuple

from aiohttp import web

from sluice.buffer_service.alarms import Alarms, LoopAlarms, open_alarms
from sluice.lambda_fn.contract import Answer, Measured, decode_batch, encode_answers, encode_metadata

AWAKE = 0.0002
"""Seconds before its end from which a sleep is waited out awake: a loop that does other things is woken so much too late."""


class Slept(NamedTuple):
    """One batch: when it ended (s, of ``time.perf_counter``), at which path, its size, and the function's own seconds."""

    ended: float
    path: str
    size: int
    seconds: float


class Sleeper:
    """Answers every batch with its own bodies.

    Parameters
    ----------
    model : str
        What it says it serves.
    times : callable
        Seconds in the function, and on the way to it, of a batch: by the path that it was posted to, and its size.
    """

    def __init__(self, model: str, times: Callable[[str, int], tuple[float, float]]) -> None:
        self._model, self._times = model, times
        self.factor = 1.0
        """Times as long as it is said to take it takes in the function."""
        self.slept: list[Slept] = []
        self._alarms: Alarms = LoopAlarms()

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Sleep, and tell for how long."""
        batch = decode_batch(await request.read())
        if batch.describe:
            return web.Response(body=encode_metadata({"name": self._model}))
        size = len(batch.items)
        inside, on_the_way = self._times(request.path, size)
        await self._sleep(on_the_way)
        begun = time.perf_counter()
        await self._sleep(self.factor * inside)
        ended = time.perf_counter()
        self.slept.append(Slept(ended, request.path, size, ended - begun))
        answers = [Answer(item.id, 200, item.content_type, item.body) for item in batch.items]
        return web.Response(body=encode_answers(answers, Measured(service=ended - begun, billed=ended - begun)))

    async def _sleep(self, seconds: float) -> None:
        ends = time.perf_counter() + seconds
        if seconds > AWAKE:
            woken = asyncio.Event()
            alarm = self._alarms.after(seconds - AWAKE, woken.set)
            try:
                await woken.wait()
            finally:
                alarm.cancel()  # who asked may be gone
        while time.perf_counter() < ends:
            pass

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[str]:
        """The URL that it listens at, which any path may follow."""
        runner = web.ServerRunner(web.Server(self.answer))
        await runner.setup()
        self._alarms = open_alarms()
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            yield f"http://127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()
            self._alarms.close()
