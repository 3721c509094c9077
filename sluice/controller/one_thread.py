"""A thread that does one thing after the other, at low priority, and keeps nobody from ending.

The threads of ``concurrent.futures`` are waited for when the interpreter ends; what this one still does then nobody needs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import Any, TypeVar

from sluice.controller.niceness import NICENESS

Result = TypeVar("Result")


class OneThread:
    """Of the running loop; begins with the first call."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None

    async def call(self, function: Callable[..., Result], *arguments: object) -> Result:
        """What the function returns, or raises, when its turn has come."""
        loop = asyncio.get_running_loop()
        outcome: asyncio.Future[Result] = loop.create_future()

        def settle(result: Any, error: BaseException | None) -> None:
            if outcome.cancelled():
                return
            if error is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(result)

        def run() -> None:
            result, failed = None, None
            try:
                result = function(*arguments)
            except BaseException as error:
                failed = error
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(settle, result, failed)

        self.do(run)
        return await outcome

    def do(self, function: Callable[[], None]) -> None:
        """Have it done; nobody waits for it, and it must not raise."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._work.put(function)

    def end(self) -> None:
        """Let the thread end when all that was given to it is done."""
        self._work.put(None)

    def _run(self) -> None:
        with contextlib.suppress(OSError, AttributeError):  # of this thread alone, where the system can
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
        while (work := self._work.get()) is not None:
            work()
