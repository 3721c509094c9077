"""The threads that compute: as many as a model has executions at once.

They are daemons: a model that never comes back cannot keep the process from ending.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import TypeVar

Result = TypeVar("Result")
_Job = tuple[Callable[[], object], Callable[[object], None]]


class Executions:
    """``number`` threads; ``begin`` gives one of them a job, whose result ``done`` gets in the loop. A job does not raise."""

    def __init__(self, name: str, number: int, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._number = number
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        for index in range(number):
            threading.Thread(target=self._work, name=f"{name}-{index}", daemon=True).start()

    def begin(self, job: Callable[[], Result], done: Callable[[Result], None]) -> None:
        self._jobs.put((job, done))  # type: ignore[arg-type]

    def stop(self) -> None:
        """Each thread ends when what it computes is done."""
        for _ in range(self._number):
            self._jobs.put(None)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            compute, done = job
            result = compute()
            try:
                self._loop.call_soon_threadsafe(done, result)
            except RuntimeError:  # the loop is closed: nobody waits
                return
            del job, compute, done, result  # a thread that waits holds no batch


async def apart(work: Callable[[], Result]) -> Result:
    """What ``work`` returns or raises, in a thread of its own; one that never ends does not keep the process."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[Result] = loop.create_future()

    def settle(result: Result | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:
            error = raised if not isinstance(raised, StopIteration) else RuntimeError(repr(raised))
        with suppress(RuntimeError):  # the loop has ended, and nobody waits
            loop.call_soon_threadsafe(settle, result, error)

    threading.Thread(target=run, name="apart", daemon=True).start()
    return await future
