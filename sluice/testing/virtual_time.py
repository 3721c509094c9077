"""An event loop without a clock, a socket or a thread: when nothing is ready, its time jumps to the next timer.

The same program takes the same steps, in every interpreter, whatever its hash seed.
"""

from __future__ import annotations

import asyncio
import heapq
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from contextvars import Context
from typing import Any, TypeVar

T = TypeVar("T")


class Deadlock(Exception):
    """Everybody waits, and nothing will ever happen."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time (s), which begins at ``now``."""

    _ready: deque[asyncio.Handle]
    _scheduled: list[asyncio.TimerHandle]
    _stopping: bool

    def __init__(self, now: float = 0.0) -> None:
        super().__init__()
        self._now = now

    def time(self) -> float:
        return self._now

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True  # type: ignore[attr-defined]
        heapq.heappush(self._scheduled, timer)
        return timer

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, work: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """There are no threads: the work is done at once."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(work(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _enqueue(self, handle: asyncio.Handle) -> None:
        self._ready.append(handle)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is left where it is, and passed over when its time comes."""

    def _run_once(self) -> None:
        """One round: what is ready now, and not what that makes ready."""
        scheduled = self._scheduled
        while scheduled and scheduled[0]._cancelled:
            heapq.heappop(scheduled)
        if not self._ready and not self._stopping:
            if not scheduled:
                raise Deadlock(f"everybody waits at {self._now:g} s")
            self._now = max(self._now, scheduled[0].when())
        while scheduled and scheduled[0].when() <= self._now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False  # type: ignore[attr-defined]
            self._enqueue(timer)
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle._cancelled:
                handle._run()
