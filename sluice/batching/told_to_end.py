"""How a process that goes on until it is told to end does so while it starts: with success, and with nothing left behind.

A process that is the first of its container gets no signal that it has no handler for, and would be killed later.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def done_when_told() -> Iterator[None]:
    """SIGTERM and SIGINT end the process with 0, by ``SystemExit``; a loop that runs may have its own way."""
    before = {number: signal.signal(number, lambda *_: sys.exit(0)) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
