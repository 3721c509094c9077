"""The computer: models, and the threads that call them, in a process of its own, so that nothing they do holds up the loop.

The loop (link.py) asks over one socket, and every model has another for its batches. A message is a pickled tuple in a frame
(pipeline/frames.py), an answer has the number of its question:

    make, key                                        the model's name; it is kept for the first load
    load, key, executions (and a socket beside it)   the name, and whether energy is measured; its number is the model's from now on
    describe, number of its load                     the metadata
    unload, number of its load                       nothing, once its socket is closed
    end                                              there is no answer

Batches come and go on the socket of their model: as many are there at once as it has executions. Its threads take turns to read:
who has read one lets the next read, and computes. So nothing is handed from thread to thread. They are daemons: a model that never
comes back cannot keep the process from ending.
"""

from __future__ import annotations

import gc
import os
import pickle
import select
import socket
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from functools import partial
from typing import Any

from sluice.batching.heap import keep_freed_memory
from sluice.batching.log_lines import log_to_stderr

from ..loading import LoadingError, load_model
from ..models.base import Model
from ..models.memory import WithinMemory
from ..pipeline.child import first_words
from ..pipeline.frames import Frame, FrameSocket, pack
from ..pipeline.payloads import Encoded
from .energy import Energy, open_energy
from .execution import compute, decode_asked, encode_outcome

Load = Callable[[], Model]
LOOK = 0.25
"""Seconds between two looks at whether a model says that it is broken."""
SWITCH = 0.0005
"""Seconds that a thread may keep others from going on: Python's 5 ms are a batch's, and at 0.1 ms the switches cost a third."""
UNLOAD_WITHIN = 10.0
"""Seconds that the threads of a model have to end once their socket is closed."""


class Said(IntEnum):
    """What a frame is."""

    ASKED = 1
    ANSWERED = 2  # flag: it failed
    BROKEN = 3  # of the model whose load has this number


class Computer:
    """What is at the other end of the loop's socket: makes the models that ``loads`` make, and has them computed."""

    def __init__(self, stream: FrameSocket, loads: Sequence[Load], energy: Energy | None) -> None:
        self._stream = stream
        self._loads = loads
        self._energy = energy
        self._made: dict[int, Model] = {}
        self._models: dict[int, _Executions] = {}
        self._broken: dict[int, str] = {}
        self._writing = threading.Lock()

    def run(self) -> None:
        """Until it is told to end, or the other end is closed."""
        poll = select.poll()
        poll.register(self._stream.connection, select.POLLIN)
        while True:
            for frame in self._stream.frames():
                ((number, _, payload),) = frame.payloads
                what, *arguments = pickle.loads(payload.head)
                if what == "end":
                    return
                if payload.file is not None:
                    arguments.append(socket.socket(fileno=os.dup(payload.file.fd)))
                # Each apart: a model may take long to load, and another is to be asked meanwhile.
                work = partial(getattr(self, f"_{what}"), number, *arguments)
                threading.Thread(target=self._answer, args=(number, work), name=what, daemon=True).start()
            while not poll.poll(LOOK * 1000):
                self._tell_broken()
            if not self._stream.read():
                return

    def _answer(self, number: int, work: Callable[[], object]) -> None:
        try:
            failed, said = False, pickle.dumps(work(), 5)
        except BaseException as error:
            failed, said = True, pickle.dumps(_failure(error), 5)
        self._say(Said.ANSWERED, number, failed, said)

    def _say(self, kind: Said, number: int, failed: bool, said: bytes) -> None:
        with self._writing:
            self._stream.send(*pack(kind, [(number, failed, Encoded(said))]))

    def _tell_broken(self) -> None:
        for number, executions in list(self._models.items()):
            broken = executions.model.broken
            if broken != self._broken.get(number, ""):
                self._broken[number] = broken
                self._say(Said.BROKEN, number, True, broken.encode(errors="backslashreplace"))

    # -- what it is asked

    def _make(self, number: int, key: int) -> str:
        model = self._made[key] = self._loads[key]()
        return model.name

    def _load(self, number: int, key: int, executions: int, batches: socket.socket) -> tuple[str, bool]:
        try:
            model = self._made.pop(key) if key in self._made else self._loads[key]()
        except BaseException:
            batches.close()
            raise
        # What is there now stays: full collections, which stop everything, need not look at it again.
        gc.collect()
        gc.freeze()
        self._models[number] = _Executions(WithinMemory(model), batches, executions, self._energy)
        return model.name, self._energy is not None

    def _describe(self, number: int, load: int) -> Mapping[str, Any]:
        return self._models[load].model.metadata()

    def _unload(self, number: int, load: int) -> None:
        executions = self._models.pop(load)
        self._broken.pop(load, None)
        executions.join(UNLOAD_WITHIN)
        close = getattr(executions.model.model, "close", None)
        del executions
        if close is not None:
            close()
        del close
        gc.unfreeze()
        gc.collect()
        gc.freeze()


class _Executions:
    """The threads of a model, which take turns to read its socket."""

    def __init__(self, model: WithinMemory, batches: socket.socket, number: int, energy: Energy | None) -> None:
        self.model = model
        self._energy = energy
        self._stream = FrameSocket(batches)
        self._frames: deque[Frame] = deque()
        self._reading, self._writing = threading.Lock(), threading.Lock()
        names = [f"model-{model.name}-{index}" for index in range(number)]
        self._threads = [threading.Thread(target=self._work, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()

    def join(self, timeout: float) -> None:
        """Wait for the end of the threads."""
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        self._stream.close()

    def _work(self) -> None:
        try:
            while (frame := self._next()) is not None:
                ((number, measured, payload),) = frame.payloads
                outcome = compute(self.model, decode_asked(payload), self._energy if measured else None)
                answer = pack(Said.ANSWERED, [(number, False, encode_outcome(outcome))])
                with self._writing:
                    self._stream.send(*answer)
                del frame, payload, outcome, answer  # a thread that waits holds no batch
        except BaseException:  # not even the memory to read a batch: the loop hears of the end of the process
            traceback.print_exc()
            os._exit(1)

    def _next(self) -> Frame | None:
        with self._reading:
            while not self._frames:
                if not self._stream.read():
                    return None
                self._frames.extend(self._stream.frames())
            return self._frames.popleft()


class ComputerThread:
    """A computer in a thread of this process, for tests: what ``ChildProcess`` is to the loop."""

    pidfd = None

    def __init__(self, loads: Sequence[Load], energy: Energy | None = None) -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        self.stream = FrameSocket(ours)
        self._computer = Computer(FrameSocket(theirs), loads, energy)
        self._thread = threading.Thread(target=self._run, args=(theirs,), daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """It ends with its socket."""

    def has_ended(self) -> bool:
        """Whether nothing of it is left."""
        return not self._thread.is_alive()

    def close(self) -> None:
        """Let go of it."""
        self.stream.close()

    def cause_of_death(self) -> str:
        """How it ended."""
        return "its thread ended"

    def _run(self, theirs: socket.socket) -> None:
        with theirs:
            self._computer.run()


def main(fd: int) -> None:
    """The process: it is told the environments of its models."""
    told = first_words(fd)
    if told is None:
        return
    stream, environments = told
    keep_freed_memory()
    log_to_stderr("warning")
    sys.setswitchinterval(SWITCH)
    Computer(stream, [partial(load_model, environment) for environment in environments], open_energy()).run()


def _failure(error: BaseException) -> tuple[bool, str, str, str]:
    """Whether it is what loading says, what it says, the same with its type, and the traceback of its cause."""
    cause = "" if error.__cause__ is None else "".join(traceback.format_exception(error.__cause__))
    return isinstance(error, LoadingError), _plain(str(error)), _plain(f"{type(error).__name__}: {error}"), _plain(cause)


def _plain(text: str) -> str:
    return text.encode(errors="backslashreplace").decode()
