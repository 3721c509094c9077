"""Lines that the process says of itself never hold it up: whoever reads them may be slow, or not read at all.

A write into a pipe that is full blocks whoever writes until somebody reads. So a thread writes, and what it cannot keep up with is
dropped and counted: the log of a process is worth less than its requests.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TextIO

from sluice.batching.log_lines import TEXT, LogLines

PENDING = 1024 * 1024  # bytes that wait to be written, at most
SELDOM = 60.0  # seconds between two lines of one kind
MOST_KINDS = 256  # of lines that are counted


class UnblockedStream:
    """A text stream onto a file descriptor whose writer never waits; lines that found no room are ``dropped``.

    ``lines`` is how the one looks that says so in their place; ``pending`` bounds the bytes that wait to be written.
    """

    def __init__(self, descriptor: int, lines: LogLines = TEXT, pending: int = PENDING) -> None:
        self.dropped = 0
        self._descriptor = descriptor
        self._form = lines
        self._pending = self._room = pending
        self._lines: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._ends = False
        self._thread = threading.Thread(target=self._work, name=f"writer of {descriptor}", daemon=True)
        self._thread.start()

    def write(self, line: str) -> int:
        """Have a line written, or drop it."""
        data = line.encode("utf-8", "backslashreplace")
        with self._changed:
            if len(data) > self._room:
                self.dropped += 1
            else:
                self._room -= len(data)
                self._lines.append(data)
                self._changed.notify()
        return len(line)

    def flush(self) -> None:
        """Nothing: what was written is on its way."""

    def close(self, patience: float) -> None:
        """Have what waits written, for so many seconds at most."""
        with self._changed:
            self._ends = True
            self._changed.notify()
        self._thread.join(patience)

    def _work(self) -> None:
        told = 0
        while (data := self._next()) is not None:
            try:
                self._write(data)
                if self.dropped > told and self._room > self._pending // 2:
                    told, missed = self.dropped, self.dropped - told
                    said = f"{missed} lines were dropped here, as nobody read them in time"
                    self._write(self._form.line(__name__, logging.WARNING, said).encode() + b"\n")
            except OSError:  # nobody will ever read: the other end is closed
                with self._changed:
                    self.dropped += 1
            with self._changed:
                self._room += len(data)

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._lines or self._ends)
            return self._lines.popleft() if self._lines else None

    def _write(self, data: bytes) -> None:
        # Not through the interpreter's own stream, whose lock a thread that never comes back would hold when the process ends.
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._descriptor, rest) :]


class Seldom:
    """A line of each kind once in ``interval`` seconds; the next one says how many were left out.

    Of more than ``MOST_KINDS`` the one of which a line was written longest ago is forgotten.
    """

    def __init__(self, log: Callable[[str], None], interval: float = SELDOM, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._interval = interval
        self._clock = clock
        self._said: dict[str, float] = {}  # when, the last at the end
        self._left_out: dict[str, int] = {}

    def say(self, kind: str, line: str) -> None:
        """Log this line, or count it."""
        now = self._clock()
        if kind in self._said and now < self._said[kind] + self._interval:
            self._left_out[kind] += 1
            return
        left_out = self._left_out.get(kind, 0)
        self._said.pop(kind, None)
        self._said[kind], self._left_out[kind] = now, 0
        if len(self._said) > MOST_KINDS:
            forgotten = next(iter(self._said))
            del self._said[forgotten], self._left_out[forgotten]
        self._log(line + (f" ({left_out} more like it since the last such line)" if left_out else ""))


def unblocked(stream: TextIO | None, lines: LogLines = TEXT) -> UnblockedStream:
    """Where ``stream`` goes, without waiting; it is ``None`` where the process was started without one."""
    return UnblockedStream(os.open(os.devnull, os.O_WRONLY) if stream is None else stream.fileno(), lines)
