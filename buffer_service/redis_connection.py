"""One connection to a Redis: the calls of everybody in one pipe, one behind the other, and their answers in the same order.

A call is some commands; its bytes lie together in the pipe. What may become of it:

    answered        an answer for each of its commands, those that are errors as values
    too late        its deadline has passed: whoever asked is told so, and its answers are dropped when they come. Those behind it
                    wait for their own, up to their own deadlines: a server that is only slow loses nobody's answer
    given up        whoever asked has gone: as if it were too late
    broken          the connection has ended, or what comes over it is no RESP: all that are in it learn that. Nothing is sent twice

What is bounded. ``MOST_CALLS`` are in the pipe and before it; who comes then is refused at once, and nothing of him is sent. While
more than ``MOST_BYTES`` wait to be written, as the server, or the network, takes no more, calls wait before the pipe, in their
order; who is too late there was never sent. A deadline costs no timer of its own: one is set for the first, and rings at most once
in ``TICK``.

A pipe that is left (``leave``) takes no more calls, and closes when the last that is in it has ended, at the latest after a while.

redis-py reads the URL and its options, has the TLS context, and gives the errors their names: what it does with connections costs
a call four times as much (``docs/decisions/0015-redis-in-one-pipe.md``).
"""

from __future__ import annotations

import asyncio
import math
import socket
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, cast

import hiredis
import redis.asyncio as redis
from redis.exceptions import (
    AskError,
    AuthenticationError,
    BusyLoadingError,
    ClusterDownError,
    InvalidResponse,
    MasterDownError,
    MovedError,
    NoPermissionError,
    NoScriptError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
    ResponseError,
    TryAgainError,
)

from sluice.buffer_service.addresses import connect
from sluice.buffer_service.prompt import Promised

MOST_CALLS = 10_000  # in a pipe and before it: a queue has one at a time
MOST_BYTES = 1024 * 1024  # that wait to be written; one call may have more
LARGE = 64 * 1024  # bytes of a word from which on it is written from where it lies
TICK = 0.01  # seconds; the limits of calls are a hundred times as long
ERRORS: dict[str, Callable[[str], RedisError]] = {
    "ASK": AskError,
    "CLUSTERDOWN": ClusterDownError,
    "ERR": ResponseError,
    "LOADING": BusyLoadingError,
    "MASTERDOWN": MasterDownError,
    "MOVED": MovedError,
    "NOAUTH": lambda _: AuthenticationError("it asks for a password, and its URL has none"),  # Redis speaks of its own commands
    "NOPERM": NoPermissionError,
    "NOSCRIPT": NoScriptError,
    "OOM": OutOfMemoryError,
    "READONLY": ReadOnlyError,
    "TRYAGAIN": TryAgainError,
    "WRONGPASS": AuthenticationError,
}
"""What an error that Redis gives this word of its own is, without the word; the others are a ``ResponseError`` with theirs."""
Command = Sequence[Any]
_NOT_YET = object()


def error_of(said: str) -> RedisError:
    """The error that a server answered."""
    word, _, detail = said.partition(" ")
    return ERRORS[word](detail) if word in ERRORS else ResponseError(said)


class TooManyCalls(RedisError):
    """There is no room for one more call: it was not sent."""


class Endpoint:
    """Where a URL leads, and with which commands a connection there begins."""

    def __init__(self, url: str) -> None:
        pool: Any = redis.Redis.from_url(url).connection_pool
        self._told = pool.make_connection()

    def check(self) -> None:
        """Raise ``ValueError`` or ``OSError`` where the files of its TLS cannot be used."""
        if isinstance(self._told, redis.SSLConnection):
            self._told.ssl_context.get()

    def greeting(self) -> list[Command]:
        """Which protocol, which user, which name, which database."""
        told = self._told
        signs_in = bool(told.username or told.password)
        commands: list[Command] = []
        if int(told.protocol) > 2:
            user = ("AUTH", told.username or "default", told.password or "") if signs_in else ()
            commands.append(("HELLO", told.protocol, *user))
        elif signs_in:
            commands.append(("AUTH", *([told.username] if told.username else []), told.password or ""))
        if told.client_name:
            commands.append(("CLIENT", "SETNAME", told.client_name))
        if told.db:
            commands.append(("SELECT", told.db))
        return commands

    async def connect(self, protocol: asyncio.Protocol, within: float) -> None:
        """Open a connection for a protocol within so many seconds; raises as ``addresses.connect``."""
        told, loop = self._told, asyncio.get_running_loop()
        if isinstance(told, redis.UnixDomainSocketConnection):
            await loop.create_unix_connection(lambda: protocol, told.path)
            return
        context = told.ssl_context.get() if isinstance(told, redis.SSLConnection) else None
        transport, _ = await connect(lambda: protocol, told.host, told.port, within, context)
        if told.socket_keepalive and (opened := transport.get_extra_info("socket")) is not None:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option, value in told.socket_keepalive_options.items():
                opened.setsockopt(socket.SOL_TCP, option, value)


class _Call:
    """What was asked at once, and the answers so far."""

    __slots__ = ("answered", "answers", "commands", "count", "deadline")

    def __init__(self, answered: asyncio.Future[list[Any]], commands: Sequence[Command], deadline: float) -> None:
        self.answered = answered
        self.commands = commands
        self.count = len(commands)
        self.deadline = deadline
        self.answers: list[Any] = []


class Pipe(asyncio.Protocol):
    """A connection that begins by itself, ``within`` so many seconds.

    ``first`` is asked behind the greeting; ``greeted`` gets its answer, or the error that it is, before anybody else gets one.
    """

    def __init__(self, endpoint: Endpoint, first: Command, greeted: Callable[[Any], None], within: float) -> None:
        self._loop = asyncio.get_running_loop()
        self._endpoint = endpoint
        self._first = first
        self._greeted = greeted
        self._reader = hiredis.Reader(InvalidResponse, error_of, notEnoughData=_NOT_YET)
        self._transport: asyncio.Transport | None = None
        self._open = False  # for calls, that is: greeted, and the server takes what is written
        self._begun = False
        self._sent: deque[_Call] = deque()
        self._waiting: deque[_Call] = deque()
        self._left = False
        self._error: Exception | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._rings_at = math.inf
        self._looked = False  # whether the loop was given time to read what had come, after it stood still
        self._ends: asyncio.TimerHandle | None = None
        self.connected = False  # ever
        self.closed = self._loop.create_future()
        self._beginning = self._loop.create_task(self._begin(within))

    @property
    def ended(self) -> bool:
        """Whether it takes no calls any more."""
        return self._error is not None or self._left

    def ask(self, commands: Sequence[Command], deadline: float) -> asyncio.Future[list[Any]]:
        """The answers to these, or what the connection ended with, or ``TimeoutError`` at ``deadline`` (the loop's clock)."""
        if self._error is not None:
            raise _learnt(self._error)
        if len(self._sent) + len(self._waiting) >= MOST_CALLS:
            raise TooManyCalls(f"{MOST_CALLS} calls wait for its answers")
        call = _Call(Promised(loop=self._loop), commands, deadline)
        if self._open and not self._waiting:
            self._send(call)
        else:
            self._waiting.append(call)
        if deadline < self._rings_at:
            self._ring_at(deadline)
        return call.answered

    def leave(self, within: float) -> None:
        """Take no more calls, and close when the last has ended, or after so many seconds."""
        if not self.ended:
            self._left = True
            self._ends = self._loop.call_later(within, self.end, TimeoutError())
            self._close_if_left()

    def end(self, error: Exception) -> None:
        """Close now; whoever waits learns this error."""
        if self._error is not None:
            return
        self._error, self._open = error, False
        for timer in filter(None, (self._timer, self._ends)):
            timer.cancel()
        for call in (*self._sent, *self._waiting):
            if not call.answered.done():
                call.answered.set_exception(_learnt(error))
        self._sent.clear()
        self._waiting.clear()
        if self._transport is not None:
            self._transport.abort()  # not who begins: told to stop, uvloop closes what it has opened, and tells nobody
        else:
            self._beginning.cancel()
            self._has_closed()

    async def close(self) -> None:
        """Close now, and return when it is closed."""
        self.end(redis.ConnectionError("the connection is being closed"))
        await asyncio.wait([self._beginning])
        await self.closed

    # -- the beginning

    async def _begin(self, within: float) -> None:
        connected = False
        try:
            async with asyncio.timeout(within):
                await self._endpoint.connect(self, within)
                connected = True
                if self._error is not None:
                    return
                assert self._transport is not None
                greeting = _Call(self._loop.create_future(), (*self._endpoint.greeting(), self._first), math.inf)
                self._send(greeting)
                *greeted, first = await greeting.answered
            for answer in greeted:
                if isinstance(answer, Exception):
                    raise answer
        except Exception as error:  # whatever it is, who waits learns it
            self.end(error)
            if not connected:
                self._has_closed()  # as above: what had been opened is closed already
            return
        if self._error is not None:
            return
        self._greeted(first)
        self._begun = self._open = True
        self._send_who_wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(MOST_BYTES)
        self.connected = True
        if self._error is not None:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self.end(exc if isinstance(exc, OSError) else redis.ConnectionError("Connection closed by server."))
        self._has_closed()

    def _has_closed(self) -> None:
        if not self.closed.done():
            self.closed.set_result(None)

    # -- what is sent

    def _send(self, call: _Call) -> None:
        assert self._transport is not None
        try:
            pieces = _pieces(call.commands)
        except TypeError as error:
            call.answered.set_exception(error)
            return
        call.commands = ()
        self._sent.append(call)
        for piece in pieces:
            self._transport.write(piece)

    def pause_writing(self) -> None:
        self._open = False

    def resume_writing(self) -> None:
        self._open = self._begun and self._error is None
        self._send_who_wait()

    def _send_who_wait(self) -> None:
        while self._open and self._waiting:
            call = self._waiting.popleft()
            if not call.answered.done():
                self._send(call)
        self._close_if_left()

    # -- what comes

    def data_received(self, data: bytes) -> None:
        reader, sent = self._reader, self._sent
        try:
            reader.feed(data)
            while (answer := reader.gets()) is not _NOT_YET:
                if isinstance(answer, hiredis.PushNotification):
                    continue  # of what nobody asked for
                if not sent:
                    raise InvalidResponse(f"{answer}, and nothing was")
                call = sent[0]
                call.answers.append(answer)
                if len(call.answers) == call.count:
                    sent.popleft()
                    if not call.answered.done():
                        call.answered.set_result(call.answers)
        except InvalidResponse as error:
            self.end(redis.ConnectionError(f"what it answers is not what was asked for ({error})"))
        if self._left:
            self._close_if_left()

    def _close_if_left(self) -> None:
        if self._left and not self._sent and all(call.answered.done() for call in self._waiting):
            self.end(redis.ConnectionError("the connection was left"))

    # -- who is too late

    def _ring_at(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = deadline
        self._timer = self._loop.call_at(deadline, self._ring)

    def _ring(self) -> None:
        """Tell those who are too late, and wait for the next; one who waits before the pipe is in nobody's way there.

        Where the loop stood still, timers ring before what has come meanwhile is read: that comes first.
        """
        now, first, rang_at = self._loop.time(), math.inf, self._rings_at
        self._timer, self._rings_at = None, math.inf
        if now > rang_at + TICK and not self._looked:
            self._looked = True
            self._ring_at(now + TICK)
            return
        self._looked = False
        for call in (*self._sent, *self._waiting):
            if call.answered.done():
                continue
            if call.deadline <= now:
                call.answered.set_exception(TimeoutError())
            else:
                first = min(first, call.deadline)
        while self._waiting and self._waiting[0].answered.done():
            self._waiting.popleft()
        if first < math.inf:
            self._ring_at(max(first, now + TICK))
        if self._left:
            self._close_if_left()


def _pieces(commands: Sequence[Command]) -> list[bytes]:
    """The bytes of a call: what is small together, and each large word from where it lies; raises ``TypeError`` of what is no word.

    Packing a body and joining it with what follows copies it twice, which costs 62 us for 600 KB.
    """
    pieces: list[bytes] = []
    small: list[bytes] = []
    for command in commands:
        if not [word for word in command if type(word) is bytes and len(word) >= LARGE]:  # a generator costs as much as packing it
            small.append(hiredis.pack_command(tuple(command)))
            continue
        small.append(b"*%d\r\n" % len(command))
        for word in command:
            if type(word) is bytes and len(word) >= LARGE:
                small.append(b"$%d\r\n" % len(word))
                pieces += (b"".join(small), word)
                small = [b"\r\n"]
            else:
                small.append(hiredis.pack_command((word,))[len(b"*1\r\n") :])
    pieces.append(small[0] if len(small) == 1 else b"".join(small))
    return pieces


def _learnt(error: Exception) -> Exception:
    """What one of those learns who were in a pipe that ended: an exception of his own, as each that catches it writes into it."""
    learnt = TimeoutError() if isinstance(error, TimeoutError) else redis.ConnectionError(str(error) or type(error).__name__)
    learnt.__cause__ = error
    return learnt
