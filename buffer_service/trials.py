"""Whose turn a trial is, where many queues of one process are cut off at once: few try at a time, as many hold up one another.

Of up to ``AT_ONCE`` each tries as if it were alone. Of more, all together try as often as so many; and whoever is let in brings two
more, so that a thousand are back within ten trials one behind the other, or as fast as a slow server takes them.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress

AT_ONCE = 10


class Trials:
    """Those of one process."""

    def __init__(self) -> None:
        self._shut = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @contextmanager
    def shut(self) -> Iterator[None]:
        """One more is cut off meanwhile."""
        self._shut += 1
        try:
            yield
        finally:
            self._shut -= 1

    async def turn(self, wait: float, interval: float) -> None:
        """Return after ``wait`` seconds, which are ``interval`` between two trials of the same; where many wait, in turn."""
        if self._shut <= AT_ONCE:
            await asyncio.sleep(wait)
            return
        brought = asyncio.get_running_loop().create_future()
        self._waiting.append(brought)
        try:
            async with asyncio.timeout(interval * self._shut / AT_ONCE):
                await brought
        except TimeoutError:
            pass
        finally:
            with suppress(ValueError):  # it was brought
                self._waiting.remove(brought)

    def worked(self) -> None:
        """A trial worked: two more have their turn."""
        turns = 0
        while self._waiting and turns < 2:
            brought = self._waiting.popleft()
            if not brought.done():
                brought.set_result(None)
                turns += 1
