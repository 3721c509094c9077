"""Decisions in a process of their own, which is there while something is decided: what decides takes 200 MB more than what watches.

The process is started for a decision, serves all that are due one after the other, and ends when nothing was decided for ``IDLE``
seconds. A message is its length in 8 bytes, little-endian, and a pickle; ``deciding_process.py`` is the other end.

    there   the tuner as it is, the time, and what is due
    back    the decision and the tuner as it is after it, or what went wrong

A tuner is bounded, and so is a message (``MOST_BYTES``). Of a process that dies, or is at it for longer than ``HANGS``, the
decision is lost, the tuner here is as it was, and the next decision starts another process. It ends itself when this one has.
"""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
from typing import Protocol

from sluice.batching.errors import SluiceError
from sluice.controller.model_control import ModelTuner
from sluice.optimizer.tuning.decision import Decision, Trigger

IDLE = 5.0  # s
HANGS = 300.0  # s; the first decision after an installation compiles its loops
MOST_BYTES = 64 * 1024 * 1024
COMMAND = (sys.executable, "-m", "sluice.controller.deciding_process")


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


class DecidingProcess:
    """Starts and ends the process; ``command`` is its other end."""

    def __init__(self, command: tuple[str, ...] = COMMAND, idle: float = IDLE, hangs: float = HANGS) -> None:
        self._command, self._idle, self._hangs = command, idle, hangs
        self._process: asyncio.subprocess.Process | None = None
        self._turn = asyncio.Lock()
        self._ending: asyncio.TimerHandle | None = None

    @property
    def running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.returncode is None

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
            self._ending = asyncio.get_running_loop().call_later(self._idle, self._kill)
        if isinstance(found, str):
            raise DecisionLost(found)
        return found

    async def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._ending is not None:
            self._ending.cancel()
        await self._end()

    async def _ask(self, asked: bytes) -> tuple[Decision, ModelTuner] | str:
        if not self.running:
            pipe = asyncio.subprocess.PIPE
            self._process = await asyncio.create_subprocess_exec(*self._command, stdin=pipe, stdout=pipe)
        process = self._process
        assert process is not None and process.stdin is not None and process.stdout is not None
        process.stdin.write(len(asked).to_bytes(8, "little") + asked)
        await process.stdin.drain()
        length = int.from_bytes(await process.stdout.readexactly(8), "little")
        if length > MOST_BYTES:
            raise EOFError(f"it answers with {length} bytes")
        answer: tuple[Decision, ModelTuner] | str = pickle.loads(await process.stdout.readexactly(length))
        return answer

    def _kill(self) -> None:
        process, self._process = self._process, None  # of which it is heard later that it has ended: none is asked meanwhile
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()

    async def _end(self) -> int | None:
        """Have it ended; with which code it has, where it did so itself."""
        process, self._process = self._process, None
        if process is None:
            return None
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), 0.1)
        code = process.returncode
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        return code
