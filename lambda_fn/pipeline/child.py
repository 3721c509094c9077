"""A process of this program's own: both ends of its life.

It is started with a socket, is told over it what it is, and ends when the other end of the socket is closed, also by the death of
who held it; a thread sees to that while it computes.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from .frames import Frame, FrameSocket, Kind, pack
from .payloads import Encoded

LEAVE_WITHIN = 1.0  # s for a call to end after the other end has gone


class ChildProcess:
    """A process that runs ``main`` of a module with the descriptor of its socket; it is running from the start.

    ``setup`` is pickled: it is what ``first_words`` returns there. ``shared`` are descriptors that it has under the same numbers.
    """

    def __init__(self, module: str, setup: object, shared: Sequence[int] = ()) -> None:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        with theirs:
            ours.setblocking(False)
            command = _command(module, theirs.fileno())
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=[theirs.fileno(), *shared])
        self.stream = FrameSocket(ours)
        # The death of a process is told by its descriptor; the end of its socket too, but for what it forked and left.
        try:
            self.pidfd: int | None = os.pidfd_open(self.process.pid)
        except (AttributeError, OSError):
            self.pidfd = None
        self.stream.send(*pack(Kind.SETUP, [(0, False, Encoded(pickle.dumps(setup, 5)))]))

    def read(self) -> tuple[list[Frame], bool]:
        """What has come, and whether the process can still say more."""
        try:
            is_open = self.stream.read()
        except BlockingIOError:
            return [], True
        return self.stream.frames(), is_open

    def read_rest(self) -> list[Frame]:
        """All that a process said before it died."""
        frames: list[Frame] = []
        with contextlib.suppress(BlockingIOError):
            while self.stream.read():
                frames += self.stream.frames()
        return frames

    def kill(self) -> None:
        """It dies; that is heard of as any death is."""
        self.process.kill()

    def has_ended(self) -> bool:
        """Whether it is dead."""
        return self.process.poll() is not None

    def wait(self, until: float) -> None:
        """It ends by itself, or is killed at ``until`` (s, monotonic); nothing of it is left."""
        try:
            self.process.wait(max(0.0, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def close(self) -> None:
        """Let go of it: the process is told to end."""
        self.stream.close()
        if self.pidfd is not None:
            os.close(self.pidfd)
            self.pidfd = None

    def cause_of_death(self) -> str:
        """How a process that is dead died."""
        code = self.process.wait()
        if code >= 0:
            return f"it ended with exit code {code}"
        try:
            return f"it was killed by {signal.Signals(-code).name}"
        except ValueError:
            return f"it was killed by signal {-code}"


def first_words(fd: int) -> tuple[FrameSocket, Any] | None:
    """In the process: its socket, and what it was told first; ``None`` where nobody is there to tell it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Whoever started this process decides when it ends. A handler, for what is ignored stays so in what it starts itself.
        signal.signal(number, lambda *_: None)
    os.set_inheritable(fd, False)
    stream = FrameSocket(socket.socket(fileno=fd))
    threading.Thread(target=_end_with, args=(fd,), daemon=True).start()
    while not (frames := stream.frames(1)):  # what comes behind it is for who reads it next
        if not stream.read():
            return None
    return stream, pickle.loads(frames[0].payloads[0][2].head)


def _command(module: str, fd: int) -> list[str]:
    path = [entry or os.getcwd() for entry in sys.path]
    code = f"import sys; sys.path[:] = {path!r}; from {module} import main; main({fd})"
    return [sys.executable, "-c", code]


def _end_with(fd: int) -> None:
    poll = select.poll()
    poll.register(fd, getattr(select, "POLLRDHUP", select.POLLHUP))
    poll.poll()
    time.sleep(LEAVE_WITHIN)
    os._exit(1)
