"""An event loop without a clock, a socket or a thread: when nothing is ready, its time jumps to the next timer.

Programs of several processes run on one loop. What a process does carries its name in ``PROCESS``; a process that is stopped takes
no step, whatever happens to it, and when it goes on all that became ready meanwhile is there at once, in order. One that is never
resumed has crashed. The same program takes the same steps, in every interpreter, whatever its hash seed.
"""

from __future__ import annotations

import asyncio
import functools
import heapq
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar
from typing import Any, TypeVar

PROCESS: ContextVar[str] = ContextVar("process", default="")
T = TypeVar("T")


class Deadlock(Exception):
    """Everybody waits, and nothing will ever happen."""


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop in virtual time (s), which begins at ``now``."""

    def __init__(self, now: float = 0.0) -> None:
        super().__init__()
        self._now = now
        self._stopped: dict[str, list[asyncio.Handle]] = {}

    def time(self) -> float:
        return self._now

    def stop_process(self, name: str) -> None:
        """The process takes no step from now on."""
        held = self._stopped[name] = []
        for handle in [handle for handle in self._ready if handle._context.get(PROCESS, "") == name]:
            self._ready.remove(handle)
            held.append(handle)

    def resume_process(self, name: str) -> None:
        """The process goes on."""
        self._ready.extend(self._stopped.pop(name))

    def call_soon(self, callback: Any, *args: Any, context: Context | None = None) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._enqueue(handle)
        return handle

    def call_at(self, when: float, callback: Any, *args: Any, context: Context | None = None) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        timer._scheduled = True
        heapq.heappush(self._scheduled, timer)
        return timer

    def run_in_executor(self, executor: Any, work: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """There are no threads: the work is done at once."""
        done: asyncio.Future[T] = self.create_future()
        try:
            done.set_result(work(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    def _enqueue(self, handle: asyncio.Handle) -> None:
        if self._stopped and (held := self._stopped.get(handle._context.get(PROCESS, ""))) is not None:
            held.append(handle)
        else:
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
            self._now = max(self._now, scheduled[0]._when)
        while scheduled and scheduled[0]._when <= self._now:
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            self._enqueue(timer)
        for _ in range(len(self._ready)):
            handle = self._ready.popleft()
            if not handle._cancelled:
                handle._run()


def in_virtual_time(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that runs on a loop of its own in virtual time."""

    @functools.wraps(test)
    def run_test(*args: Any, **fixtures: Any) -> None:
        run(lambda loop: test(*args, **fixtures))

    return run_test


def run(main: Callable[[VirtualLoop], Coroutine[Any, Any, T]]) -> T:
    """Run a program in virtual time; what it leaves under way is dropped as it is."""
    loop = VirtualLoop()
    try:
        return loop.run_until_complete(main(loop))
    finally:
        for task in asyncio.all_tasks(loop):
            task._log_destroy_pending = False  # type: ignore[attr-defined]
        loop.close()
