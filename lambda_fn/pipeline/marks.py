"""Up to where a worker has begun what it was given, and up to where it may begin no more of it: two numbers in memory they share.

What was written to a worker cannot be taken back from its socket, and while it is at an item it does not read. So it writes
here what it begins, before it looks whether it may; who gave it work writes up to where it is stopped, waits ``SETTLED``, and
looks what is begun: each writes first and looks then, so that one of them sees the other. What is seen by both is told
by the worker, which skips it. Places count what a worker was given from its start on; each number has one writer.
"""

from __future__ import annotations

import mmap

from .payloads import MemoryFile, write

SETTLED = 0.001  # s after which what one has written is seen by all
BEGUN, STOPPED = 0, 1


class Marks:
    """Those of one worker: of its process by the descriptor it is told, or of a thread."""

    def __init__(self, fd: int | None = None) -> None:
        self._memory: mmap.mmap | bytearray = bytearray(16) if fd is None else mmap.mmap(fd, 16)
        # A worker that goes through items of microseconds writes and looks itself, as ``begin`` does.
        self.places = memoryview(self._memory).cast("Q")

    def begin(self, place: int, count: int) -> bool:
        """In the worker: it begins so many from ``place`` on; whether it may."""
        self.places[BEGUN] = place + count
        return place >= self.places[STOPPED]

    def stop(self, place: int) -> None:
        """The worker is to begin nothing more that was given before ``place``."""
        self.places[STOPPED] = place

    @property
    def begun(self) -> int:
        """The first place that is not begun; of one that was stopped, after ``SETTLED``: and never will be."""
        return self.places[BEGUN]

    def close(self) -> None:
        """Let go of the memory."""
        self.places.release()
        if isinstance(self._memory, mmap.mmap):
            self._memory.close()


def memory_for_marks() -> MemoryFile | None:
    """What ``Marks`` of two processes lie in; ``None`` where there are no files in memory."""
    return write([bytes(16)], 16)
