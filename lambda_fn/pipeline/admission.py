"""Who may enter a pipeline: its bounds in items and bytes, and those who wait at them."""

from __future__ import annotations

import threading
import time

from .errors import DeadlinePassed, PipelineFull, PipelineStopped

NOT_RUNNING = "the pipeline is not running; start it before, or use it in a with statement"


class Admission:
    """At most ``max_items`` items, which hold at most ``max_bytes`` when one enters; used by any thread."""

    def __init__(self, max_items: int, max_bytes: int) -> None:
        self.max_items = max_items
        self.max_bytes = max_bytes
        self.items = 0
        self.bytes = 0
        self.open = False
        self._closed_because = NOT_RUNNING
        self._changed = threading.Condition(threading.Lock())
        self._waiting = 0

    def enter(self, size: int, deadline: float | None, block: bool) -> None:
        """One item of ``size`` bytes enters, at once or when there is room, before ``deadline`` (s, monotonic).

        Raises ``PipelineFull`` where it may not wait, ``DeadlinePassed`` and ``PipelineStopped``.
        """
        with self._changed:
            while self.open and not self._room(size):
                if not block:
                    raise PipelineFull(
                        f"the pipeline holds {self.items} items of {self.bytes} bytes; "
                        f"allowed: {self.max_items} (max_items) and {self.max_bytes} (max_bytes)"
                    )
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise DeadlinePassed(f"deadline: no room among {self.items} items of {self.bytes} bytes within the item's time")
                self._waiting += 1
                self._changed.wait(left)
                self._waiting -= 1
            if not self.open:
                raise PipelineStopped(self._closed_because)
            self.items += 1
            self.bytes += size

    def change(self, items: int, size: int) -> None:
        """So many more items and bytes are in it, or fewer."""
        with self._changed:
            self.items += items
            self.bytes += size
            if (self._waiting or not self.open) and (items < 0 or size < 0):
                self._changed.notify_all()

    def empty(self) -> None:
        """Nothing is in it."""
        self.change(-self.items, -self.bytes)

    def set_open(self, is_open: bool, because: str = NOT_RUNNING) -> bool:
        """Let items enter, or no more, and tell who comes why; whether that was a change."""
        with self._changed:
            changed = self.open != is_open
            self.open = is_open
            self._closed_because = because
            self._changed.notify_all()
            return changed

    def wait_empty(self, timeout: float) -> bool:
        """Wait until no item is in it, for ``timeout`` seconds at most; whether none is."""
        with self._changed:
            return self._changed.wait_for(lambda: self.items == 0, timeout)

    def _room(self, size: int) -> bool:
        return self.items < self.max_items and (self.items == 0 or self.bytes + size <= self.max_bytes)
