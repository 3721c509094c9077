"""The loop's end of the computer (computer.py): starts it, asks it, hears of its death and starts it again.

What may live here: sockets, numbers of questions. What may not: what becomes of a caller (served_model.py).
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import pickle
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

from ..batch_frames import Sealed
from ..loading import LoadingError
from ..pipeline.frames import Frame, FrameSocket, pack
from ..pipeline.payloads import Encoded, MemoryFile
from .computer import Said
from .execution import Asked, Outcome, decode_outcome, encode_asked

END_WITHIN = 5.0
"""Seconds that the process has to end once it is told to, or killed."""
CAUSE_WITHIN = 0.1
"""Seconds after which the death of a process is told though it is not gone yet, and nobody knows what it died of."""
MOST_LEFT = 3
"""Processes that were killed, and are there still: a driver may keep one for as long as its device hangs."""
LOOK_AFTER = 0.005
"""Seconds between two looks at whether it is gone."""
PAUSES = (0.0, 0.3, 0.6, 1.2, 2.5, 5.0)
"""Seconds before it is started for the next time, where it did not last for ``LASTING`` s; the last stays."""
LASTING = 30.0
MOST_SPARE = 64 * 1024 * 1024
"""Bytes of the file of a batch that is kept for the next one."""

_log = logging.getLogger(__name__)


class LoadFailed(LoadingError):
    """A model cannot be loaded: ``said`` with the type of the error, ``cause`` the traceback of its cause where it has one."""

    def __init__(self, message: str, said: str, cause: str) -> None:
        super().__init__(message)
        self.said = said
        self.cause = cause


class Computed(Protocol):
    """A computer as its link sees it: a process (``ChildProcess``), or a thread of this one (``ComputerThread``)."""

    stream: FrameSocket
    pidfd: int | None

    def kill(self) -> None: ...
    def has_ended(self) -> bool: ...
    def close(self) -> None: ...
    def cause_of_death(self) -> str: ...


class Link:
    """Asks a computer, which ``begin`` starts; where it has died, the next question starts another.

    One that was killed, or whose socket has ended, may be there for a while, with all that it holds: the memory of a GPU is freed
    by its driver. The loop goes on meanwhile. Its death is told as soon as it is gone, after ``CAUSE_WITHIN`` at the latest, and
    the next is started when it is gone, after ``END_WITHIN`` at the latest; not while ``MOST_LEFT`` are left from before.
    """

    def __init__(self, begin: Callable[[], Computed]) -> None:
        self._begin = begin
        self._computer: Computed | None = None
        self._control: _Stream | None = None  # once a loop listens
        self._numbers = itertools.count()
        self._asked: dict[int, asyncio.Future[Any]] = {}
        self._loaded: dict[int, Loaded] = {}
        self._deaths = 0
        self._begun = 0.0
        self._starting = asyncio.Lock()
        self._burial: asyncio.Task[None] | None = None
        self._left: list[Computed] = []  # that were killed, and perhaps are not gone

    def make(self, key: int) -> str:
        """Before a loop runs: make the model of this number, to be loaded later; its name. Raises ``LoadFailed``."""
        if self._computer is None:
            self._start()
        assert self._computer is not None
        stream = self._computer.stream
        stream.connection.setblocking(True)
        number = next(self._numbers)
        stream.flush()
        stream.send(*_question(number, ("make", key)))
        while not (frames := stream.frames()):
            if not stream.read():
                raise _died(self._computer.cause_of_death())
        stream.connection.setblocking(False)
        ((_, failed, payload),) = frames[0].payloads
        return str(_answer(failed, payload))

    async def load(self, key: int, executions: int) -> Loaded:
        """Load the model of this number; raises ``LoadFailed``."""
        async with self._starting:
            await self._buried()
            self._check_left()
            if self._computer is None and self._deaths:
                await asyncio.sleep(PAUSES[min(self._deaths, len(PAUSES)) - 1])
            self._listen()
        ours, theirs = socket.socketpair()
        number = next(self._numbers)
        loaded = Loaded(self, number, ours)
        self._loaded[number] = loaded
        try:
            loaded.name, loaded.measures_energy = await self._ask(number, ("load", key, executions), theirs)
        except BaseException:
            self._loaded.pop(number, None)
            loaded.close()
            raise
        if number not in self._loaded:  # it died in the round of the loop in which it said that it has loaded it
            await self._buried()
            raise _died(loaded.lost)
        return loaded

    async def describe(self, loaded: Loaded) -> dict[str, Any]:
        """The metadata of a model."""
        return dict(await self._ask(next(self._numbers), ("describe", loaded.number)))

    async def unload(self, loaded: Loaded) -> None:
        """Give up a model that computes nothing."""
        if self._loaded.pop(loaded.number, None) is None:
            return  # it died with the computer
        loaded.close()
        await self._ask(next(self._numbers), ("unload", loaded.number))

    async def end(self) -> None:
        """Tell it to end, and wait for that; then nothing of it is left, unless it cannot even be killed."""
        for loaded in self._loaded.values():
            loaded.on_lost = _nobody_asks
        if self._computer is not None and self._control is not None:
            self._control.send(*_question(next(self._numbers), ("end",)))
            until = time.monotonic() + END_WITHIN
            while self._computer is not None and time.monotonic() < until:
                await asyncio.sleep(LOOK_AFTER)
            self._end_of_computer()
        await self._buried()
        self.close()

    def close(self) -> None:
        """End it at once, and wait for that; for when the loop has nothing else to do any more."""
        for loaded in self._loaded.values():
            loaded.on_lost = _nobody_asks
        if self._computer is not None:
            self._computer.kill()
            death = self._let_go(self._computer)
            until = time.monotonic() + END_WITHIN
            while not death.computer.has_ended() and time.monotonic() < until:
                time.sleep(LOOK_AFTER)
            death.tell()

    # -- its life

    def _start(self) -> None:
        self._begun = time.monotonic()
        self._computer = self._begin()

    def _listen(self) -> None:
        if self._computer is None:
            self._start()
        if self._control is None:
            assert self._computer is not None
            self._control = _Stream(self._computer.stream, self._hear, self._end_of_computer)
            if self._computer.pidfd is not None:
                asyncio.get_running_loop().add_reader(self._computer.pidfd, self._end_of_computer)

    def _end_of_computer(self) -> None:
        computer = self._computer
        if computer is None:
            return
        self._deaths = 1 if time.monotonic() - self._begun > LASTING else self._deaths + 1
        for loaded in self._loaded.values():
            loaded.hear_rest()
        computer.kill()  # where only its socket has ended, it has nothing to say any more
        death = self._let_go(computer)
        if computer.has_ended():
            death.tell()
        else:
            self._left.append(computer)
            self._burial = asyncio.get_running_loop().create_task(_bury(death))

    def _let_go(self, computer: Computed) -> _Death:
        """Nothing is asked of it, nor heard, any more."""
        self._computer = None
        if self._control is not None:
            if computer.pidfd is not None:
                self._control.loop.remove_reader(computer.pidfd)
            self._control.close()
            self._control = None
        computer.close()
        death = _Death(computer, list(self._asked.values()), list(self._loaded.values()))
        self._asked, self._loaded = {}, {}
        for one in death.loaded:
            one.close()
        return death

    async def _buried(self) -> None:
        """Return when the last one is gone, or is left behind."""
        if self._burial is not None:
            await asyncio.wait([self._burial])

    def _check_left(self) -> None:
        """Raise ``LoadFailed`` where no other can be started beside those that are not gone."""
        self._left = [computer for computer in self._left if not computer.has_ended()]
        if self._computer is None and len(self._left) >= MOST_LEFT:
            said = f"{len(self._left)} processes that computed were killed and are still there"
            raise LoadFailed(said, said, "")

    # -- questions

    async def _ask(self, number: int, question: tuple[Any, ...], beside: socket.socket | None = None) -> Any:
        if self._control is None:
            if beside is not None:
                beside.close()
            raise _died("it is not running")
        future = self._asked[number] = asyncio.get_running_loop().create_future()
        self._control.send(*_question(number, question, beside))
        try:
            return await future
        finally:
            self._asked.pop(number, None)

    def _hear(self, frame: Frame) -> None:
        ((number, failed, payload),) = frame.payloads
        if frame.kind == Said.BROKEN:
            if (loaded := self._loaded.get(number)) is not None:
                loaded.broken = payload.head.decode()
            return
        future = self._asked.get(number)
        if future is None or future.done():
            return
        try:
            future.set_result(_answer(failed, payload))
        except LoadFailed as error:
            future.set_exception(error)


class _Death(NamedTuple):
    """A computer that is asked no more, and who is to be told of it."""

    computer: Computed
    asked: list[asyncio.Future[Any]]
    loaded: list[Loaded]

    def tell(self) -> None:
        """Tell what it died of, as far as that is known."""
        ended = self.computer.has_ended()
        cause = self.computer.cause_of_death() if ended else "it was killed, and has not ended yet"
        for future in self.asked:
            if not future.done():
                future.set_exception(_died(cause))
        for one in self.loaded:
            one.lost = cause
            one.on_lost(cause)


async def _bury(death: _Death) -> None:
    """Tell of a death, and wait until nothing is left, or for ``END_WITHIN``."""
    began = time.monotonic()
    await _gone(death.computer, began + CAUSE_WITHIN)
    death.tell()
    if not await _gone(death.computer, began + END_WITHIN):
        _log.error("the process that computed was killed and has not ended within %g s; it is left behind", END_WITHIN)


async def _gone(computer: Computed, until: float) -> bool:
    """Whether it has ended by then (s, monotonic)."""
    while not computer.has_ended():
        if time.monotonic() >= until:
            return False
        await asyncio.sleep(LOOK_AFTER)
    return True


class Loaded:
    """A model that is loaded: computes batches. ``on_lost`` is called once, with the cause, if the computer dies.

    Attributes
    ----------
    broken : str
        Why the model says it cannot serve any more; empty: it does not.
    """

    def __init__(self, link: Link, number: int, batches: socket.socket) -> None:
        self.number = number
        self.name = ""
        self.measures_energy = False
        self.broken = ""
        self.lost = ""  # why the computer died
        self.on_lost: Callable[[str], None] = _nobody_asks
        self._link = link
        self._numbers = itertools.count()
        self._jobs: dict[int, tuple[Callable[[Outcome], None], MemoryFile | None]] = {}
        self._spare: MemoryFile | None = None  # that nothing is read from any more
        batches.setblocking(False)
        self._stream = _Stream(FrameSocket(batches), self._hear, lambda: None)

    def begin(self, callers: Sequence[Asked], measured: bool, done: Callable[[Outcome], None]) -> None:
        """Have a batch computed; ``done`` gets what came of it, unless the computer dies before."""
        number = next(self._numbers)
        if type(callers[0].items) is Sealed:
            spare, self._spare = self._spare, None
            asked = encode_asked(callers, spare)
            self._jobs[number] = done, asked.file or spare
        else:
            asked = encode_asked(callers)
            self._jobs[number] = done, None
        self._stream.send(*pack(Said.ASKED, [(number, measured, asked)]))

    async def describe(self) -> dict[str, Any]:
        """The metadata."""
        return await self._link.describe(self)

    async def unload(self) -> None:
        """Give it up; it computes nothing."""
        await self._link.unload(self)

    def hear_rest(self) -> None:
        """What it said before it died."""
        while self._stream.hear():
            pass

    def close(self) -> None:
        """Nothing is heard of it any more."""
        self._stream.close()
        self._jobs.clear()
        self._spare = None

    def _hear(self, frame: Frame) -> None:
        ((number, _, payload),) = frame.payloads
        done, file = self._jobs.pop(number)
        if file is not None and file.size <= MOST_SPARE:
            self._spare = file  # who has computed has read it
        done(decode_outcome(payload))


def _nobody_asks(cause: str) -> None:
    """The death of a computer whose models nobody wants."""


class Source(NamedTuple):
    """Where a model comes from: the computer, and its number there."""

    link: Link
    key: int

    async def load(self, executions: int) -> Loaded:
        """Raises ``LoadFailed``."""
        return await self.link.load(self.key, executions)


class _Stream:
    """Frames between the loop and a socket."""

    def __init__(self, stream: FrameSocket, heard: Callable[[Frame], None], ended: Callable[[], None]) -> None:
        self.loop = asyncio.get_running_loop()
        self._stream = stream
        self._heard = heard
        self._ended = ended
        self._fd = stream.connection.fileno()
        self._closed = False
        self.loop.add_reader(self._fd, self.hear)
        if not stream.flush():  # what it was told before there was a loop
            self.loop.add_writer(self._fd, self._flush)

    def send(self, data: bytes, files: list[MemoryFile]) -> None:
        if not self._closed and not self._stream.send(data, files):
            self.loop.add_writer(self._fd, self._flush)

    def hear(self) -> bool:
        """Read once; whether there may be more now."""
        if self._closed:
            return False
        try:
            is_open = self._stream.read()
        except BlockingIOError:
            return False
        for frame in self._stream.frames():
            self._heard(frame)
        if not is_open and not self._closed:
            self.close()
            self._ended()
        return is_open

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.loop.remove_reader(self._fd)
            self.loop.remove_writer(self._fd)
            self._stream.close()

    def _flush(self) -> None:
        if self._stream.flush():
            self.loop.remove_writer(self._fd)


def _question(number: int, question: tuple[Any, ...], beside: socket.socket | None = None) -> tuple[bytes, list[MemoryFile]]:
    file = None if beside is None else MemoryFile(beside.detach(), 0)
    return pack(Said.ASKED, [(number, False, Encoded(pickle.dumps(question, 5), file))])


def _answer(failed: bool, payload: Encoded) -> Any:
    answer = pickle.loads(payload.head)
    if not failed:
        return answer
    by_loading, message, said, cause = answer
    raise LoadFailed(message if by_loading else f"a model cannot be loaded: {said}", said, cause)


def _died(cause: str) -> LoadFailed:
    said = f"the process that computes has ended: {cause}"
    return LoadFailed(said, said, "")
