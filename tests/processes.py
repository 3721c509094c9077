"""Processes that tests have started, directly or not: whether they end, and what holds them up until a test says so."""

from __future__ import annotations

import os
import select
import threading
from pathlib import Path

LONG = 60.0  # s: no process takes so long to end, however busy the machine


def ended(pid: int) -> bool:
    """Whether the process ends; waited for or not."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([descriptor], [], [], LONG)[0])
    finally:
        os.close(descriptor)


class Gate:
    """A named pipe: whoever opens it to read, in whatever process, waits until the gate is open.

    Of a test that fails before it has opened the gate nobody waits for ever: it opens by itself after a while.
    """

    def __init__(self, path: Path) -> None:
        self.path = str(path)
        os.mkfifo(path)
        self._opened: int | None = None
        self._at_last = threading.Timer(LONG, self.open)
        self._at_last.daemon = True
        self._at_last.start()

    def open(self) -> None:
        """Let all pass who wait, or come later."""
        if self._opened is None:
            self._opened = os.open(self.path, os.O_RDWR)  # which waits for no reader

    def close(self) -> None:
        """Give the descriptor back, once nobody waits any more."""
        self._at_last.cancel()
        if self._opened is not None:
            os.close(self._opened)
