"""What may block for minutes, done in a thread that nobody waits for when the process ends.

A loop waits for the threads of ``asyncio.to_thread`` before it closes, whoever was cancelled: a parameter store that does not
answer would keep a process that is told to end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

Result = TypeVar("Result")


async def unwaited(function: Callable[..., Result], *arguments: Any) -> Result:
    """What the function returns, or raises; where who asks is cancelled, it goes on alone."""
    return await asyncio.get_running_loop().run_in_executor(_DAEMONS, function, *arguments)


class _Daemons(Executor):
    """A thread for each call; those of ``concurrent.futures`` are waited for at the end."""

    def submit(self, function: Callable[..., Result], /, *arguments: Any, **named: Any) -> Future[Result]:
        done: Future[Result] = Future()
        done.set_running_or_notify_cancel()

        def run() -> None:
            try:
                done.set_result(function(*arguments, **named))
            except BaseException as error:
                done.set_exception(error)

        threading.Thread(target=run, daemon=True).start()
        return done


_DAEMONS = _Daemons()
