"""Programs of several processes on one loop in virtual time.

What a process does carries its name in ``PROCESS``; a process that is stopped takes no step, whatever happens to it, and when it
goes on all that became ready meanwhile is there at once, in order. One that is never resumed has crashed.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from contextvars import ContextVar
from typing import Any, TypeVar

from sluice.testing import virtual_time
from sluice.testing.virtual_time import Deadlock

__all__ = ["PROCESS", "Deadlock", "VirtualLoop", "in_virtual_time", "run"]

PROCESS: ContextVar[str] = ContextVar("process", default="")
T = TypeVar("T")


class VirtualLoop(virtual_time.VirtualLoop):
    """An event loop in virtual time (s), whose processes can be stopped."""

    def __init__(self, now: float = 0.0) -> None:
        super().__init__(now)
        self._stopped: dict[str, list[asyncio.Handle]] = {}

    def stop_process(self, name: str) -> None:
        """The process takes no step from now on."""
        held = self._stopped[name] = []
        for handle in [handle for handle in self._ready if handle._context.get(PROCESS, "") == name]:
            self._ready.remove(handle)
            held.append(handle)

    def resume_process(self, name: str) -> None:
        """The process goes on."""
        self._ready.extend(self._stopped.pop(name))

    def _enqueue(self, handle: asyncio.Handle) -> None:
        if self._stopped and (held := self._stopped.get(handle._context.get(PROCESS, ""))) is not None:
            held.append(handle)
        else:
            self._ready.append(handle)


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
