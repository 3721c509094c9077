"""Decisions in a process of their own, which is there while something is decided.

What decides needs more than what watches: libraries, and room for what it computes. So the controller makes a copy of itself
(``fork``) for a decision, which shares with it all that neither changes, serves what else is due, one after the other, and is ended
when nothing was decided for ``IDLE`` seconds. A message is its length in 8 bytes, little-endian, and a pickle;
``deciding_process.py`` is the other end of the socket.

    there   the tuner as it is, the time, and what is due
    back    the decision and the tuner as it is after it, or what went wrong

A tuner is bounded, and so is a message (``MOST_BYTES``). Of a process that dies, or is at it for longer than ``HANGS``, the
decision is lost, the tuner here is as it was, and the next decision starts another process. It ends itself when this one has.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import pickle
import signal
import socket
from typing import NamedTuple, Protocol

from sluice.batching.errors import SluiceError
from sluice.controller.deciding_process import serve_parent
from sluice.controller.model_control import ModelTuner
from sluice.optimizer.tuning.decision import Decision, Trigger

IDLE = 5.0  # s
HANGS = 300.0  # s; the first decision after an installation compiles its loops
MOST_BYTES = 64 * 1024 * 1024


class DecisionLost(SluiceError):
    """Nothing was decided: what decides died, hung, or has a defect."""


class Decider(Protocol):
    """What decides for tuners, one after the other."""

    @property
    def running(self) -> bool:
        """Whether another decision is cheap now."""
        ...

    async def decide(self, tuner: ModelTuner, now: float, trigger: Trigger) -> tuple[Decision, ModelTuner]:
        """What is decided, and the tuner after it; raises ``DecisionLost``."""
        ...

    async def close(self) -> None: ...


class _Process(NamedTuple):
    """One that decides, and the socket to it."""

    pid: int
    answers: asyncio.StreamReader
    asked: asyncio.StreamWriter

    async def end(self) -> int | None:
        """Have it ended; with which code it has, which is its own where it had already; ``None`` where the system keeps none."""
        self.asked.transport.abort()
        _kill(self.pid)
        return await asyncio.to_thread(_code_of, self.pid)  # one that waits for a disk ends when it has its answer


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def _code_of(pid: int) -> int | None:
    """With which code a process has ended, once it has; ``None`` where those of children are not kept, as SIGCHLD is ignored."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        return None


class DecidingProcess:
    """Starts and ends the process."""

    def __init__(self, idle: float = IDLE, hangs: float = HANGS) -> None:
        self._idle, self._hangs = idle, hangs
        self._process: _Process | None = None
        self._turn = asyncio.Lock()
        self._ending: asyncio.TimerHandle | None = None
        self._ended: set[asyncio.Task[int | None]] = set()  # of whom it is not yet known

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and not self._process.answers.at_eof()

    @property
    def pid(self) -> int | None:
        """Of the process, where there is one."""
        return self._process.pid if self._process is not None and self.running else None

    async def decide(self, tuner: ModelTuner, now: float, trigger: Trigger) -> tuple[Decision, ModelTuner]:
        """What is decided, and the tuner after it.

        Raises
        ------
        DecisionLost
            As ``Decider`` says.
        """
        asked = pickle.dumps((tuner, now, trigger, self._hangs), pickle.HIGHEST_PROTOCOL)
        if len(asked) > MOST_BYTES:
            raise DecisionLost(f"what is known of the model is {len(asked)} bytes, and {MOST_BYTES} is the most")
        async with self._turn:
            if self._ending is not None:
                self._ending.cancel()
            try:
                async with asyncio.timeout(self._hangs):
                    found = await self._ask(asked)
            except TimeoutError:
                await self._end()
                raise DecisionLost(f"it was not decided within {self._hangs:g} s, and the process that decides was ended") from None
            except (OSError, EOFError) as error:
                code = await self._end()
                raise DecisionLost(f"the process that decides died ({code if code is not None else error})") from None
            except BaseException:
                await self._end()
                raise
            self._ending = asyncio.get_running_loop().call_later(self._idle, self._end_idle)
        if isinstance(found, str):
            raise DecisionLost(found)
        return found

    async def close(self) -> None:
        """End the process; who waits for a decision is cancelled before."""
        if self._ending is not None:
            self._ending.cancel()
        await self._end()
        await asyncio.gather(*self._ended)

    async def _ask(self, asked: bytes) -> tuple[Decision, ModelTuner] | str:
        if not self.running:
            self._end_idle()  # one that has ended by itself
            self._process = await _started()
        process = self._process
        assert process is not None
        process.asked.write(len(asked).to_bytes(8, "little") + asked)
        await process.asked.drain()
        length = int.from_bytes(await process.answers.readexactly(8), "little")
        if length > MOST_BYTES:
            raise EOFError(f"it answers with {length} bytes")
        answer: tuple[Decision, ModelTuner] | str = pickle.loads(await process.answers.readexactly(length))
        return answer

    async def _end(self) -> int | None:
        """Have the process ended, if there is one; its code."""
        process = self._left()
        return None if process is None else await process.end()

    def _end_idle(self) -> None:
        if (process := self._left()) is not None:
            ended = asyncio.create_task(process.end())
            self._ended.add(ended)
            ended.add_done_callback(self._ended.discard)

    def _left(self) -> _Process | None:
        """The process, if there is one, which is not asked any more from now on."""
        process, self._process = self._process, None
        return process


async def _started() -> _Process:
    """A copy of this process that decides.

    The other threads are not in it. So nothing is used there that they may have locked: neither the loop nor a connection. Between
    ``ModelProcess._decide`` choosing what is decided, while its own thread reads nothing, and the fork nobody else has his turn.
    """
    here, there = socket.socketpair()
    with contextlib.ExitStack() as failed:
        failed.callback(here.close)
        told = {signal.SIGINT, signal.SIGTERM}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, told)  # as until it ignores them it would tell this loop of one
        try:
            with there:
                pid = os.fork()
                if not pid:
                    serve_parent(there.detach(), before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        failed.callback(_code_of, pid)
        failed.callback(_kill, pid)
        process = _Process(pid, *await asyncio.open_unix_connection(sock=here))
        failed.pop_all()
    return process
