"""A client of HTTP/1.1 for batches: connections that are kept, one write a request, its answer handed on in one pass.

What may live here: sockets, the clock, which connection is asked. What may not: what an answer means. ``http_exchange.py`` has said
what the bytes are. There are as many connections as requests under way. Of those that wait for their next request at one server at
most ``MOST_KEPT`` stay, none for longer than ``KEPT_FOR``, and the one that was used last is asked first: what a server needs stays
warm, and the rest goes. A connection costs no task, a request one timer.
"""

from __future__ import annotations

import asyncio
import base64
import functools
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple, cast
from urllib.parse import quote, unquote_to_bytes, urlsplit

from sluice.buffer_service.addresses import connect
from sluice.buffer_service.invokers.http_exchange import DONE, HEAD, HttpExchange, NotHttp
from sluice.buffer_service.invokers.port import BatchTooLarge, NoRoomForAnswer
from sluice.buffer_service.prompt import Promised
from sluice.http.pieces import Pieces
from sluice.http.room import Room, Share

CONNECT_TIMEOUT = 5.0  # seconds; who has not taken a connection by then is gone
MOST_KEPT = 64
"""Connections to one server that wait for their next request."""
KEPT_FOR = 50.0
"""Seconds that a connection waits; what stands before a server often ends those that were idle for a minute."""
JOINED = 65536  # bytes of a body that are copied behind its head rather than written beside it

Fields = Iterable[tuple[str, str]]


class ClientError(Exception):
    """There is no answer; the message says why."""


class NotConnected(ClientError):
    """No connection came about, so that nothing was sent; ``errno`` where the system said one."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


class Disconnected(ClientError):
    """The connection ended before there was an answer."""


class Unreadable(ClientError):
    """What came is no answer: whoever sent it had the request."""


class BrokenOff(ClientError):
    """The connection ended within the answer."""


class Reply(NamedTuple):
    """An answer; names of ``fields`` are in lower case."""

    status: int
    fields: dict[str, str]
    body: bytes


class Origin(NamedTuple):
    """A server: connections to the same one can serve each other's requests."""

    host: str
    port: int
    tls: bool


class Target(NamedTuple):
    """Where a request goes, and the bytes that it begins with."""

    origin: Origin
    start: bytes


class HttpClient:
    """Asks servers; ``timeout`` (s) bounds an exchange, its connection included, and ``patience`` (s) that alone."""

    def __init__(self, timeout: float, patience: float = CONNECT_TIMEOUT) -> None:
        self._timeout = timeout
        self._patience = min(timeout, patience)
        self._connections: set[_Connection] = set()
        self._kept: dict[Origin, deque[_Connection]] = {}  # the one that was used last stands last
        self._look: asyncio.TimerHandle | None = None

    async def post(self, url: str, fields: Fields, parts: Sequence[bytes], limit: int, room: Room, fresh: bool = False) -> Reply:
        """The answer to a request with the body ``parts``; it takes its part of ``room`` while it is read.

        ``fresh``: not over a connection that was kept. Raises ``ClientError``, ``TimeoutError``, ``BatchTooLarge`` before an answer
        takes more memory than ``limit`` bytes, or than the whole room, and ``NoRoomForAnswer`` where others have left too little.
        """
        target = parse(url)
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._timeout
        connection = None if fresh else self._take(target.origin)
        if connection is None:
            connection = await self._connected(target.origin)
        with room.share() as share:
            answered = connection.ask(_message(target.start, fields, parts), min(limit, room.limit), room, share)
            timer = loop.call_at(ends, connection.give_up, answered)
            try:
                return await answered
            finally:
                timer.cancel()
                if answered.cancelled():
                    connection.drop(answered)

    async def close(self) -> None:
        """End all connections; who waits is told."""
        if self._look is not None:
            self._look.cancel()
        for connection in list(self._connections):
            connection.transport.abort()
        self._kept.clear()

    @property
    def kept(self) -> int:
        """Connections that wait for their next request."""
        return sum(map(len, self._kept.values()))

    # -- connections

    def _take(self, origin: Origin) -> _Connection | None:
        kept = self._kept.get(origin)
        while kept:
            connection = kept.pop()
            if not connection.transport.is_closing():
                return connection
        return None

    def keep(self, connection: _Connection) -> None:
        """It may be asked again."""
        kept = self._kept.get(connection.origin)
        if kept is None:
            kept = self._kept[connection.origin] = deque()
        kept.append(connection)
        connection.since = connection.loop.time()
        if len(kept) > MOST_KEPT:
            kept.popleft().transport.close()
        if self._look is None:
            self._look = connection.loop.call_later(KEPT_FOR / 4, self._end_old)

    def opened(self, connection: _Connection) -> None:
        """There is one more."""
        self._connections.add(connection)

    def lost(self, connection: _Connection) -> None:
        """There is one less."""
        self._connections.discard(connection)
        kept = self._kept.get(connection.origin)
        if kept is not None and connection in kept:
            kept.remove(connection)

    def _end_old(self) -> None:
        """End the connections that nobody has needed for long; again and again while there are others."""
        self._look = None
        for origin, kept in list(self._kept.items()):
            while kept and kept[0].loop.time() - kept[0].since > KEPT_FOR:
                kept.popleft().transport.close()
            if not kept:
                del self._kept[origin]
        if self._kept:
            self._look = asyncio.get_running_loop().call_later(KEPT_FOR / 4, self._end_old)

    async def _connected(self, origin: Origin) -> _Connection:
        """A new connection, for who is no task. Raises ``NotConnected``."""
        connecting = asyncio.get_running_loop().create_task(self._connect(origin))
        try:
            return await connecting
        except asyncio.CancelledError:
            if connecting.done() and not connecting.cancelled() and connecting.exception() is None:
                connecting.result().transport.abort()  # which came about when nobody wanted it any more
            raise

    async def _connect(self, origin: Origin) -> _Connection:
        """A new connection. Raises ``NotConnected``."""
        loop = asyncio.get_running_loop()
        place = f"Cannot connect to host {origin.host}:{origin.port}"
        try:
            context = await _tls_context() if origin.tls else None
            made = functools.partial(_Connection, self, origin, loop)
            _, connection = await connect(made, origin.host, origin.port, self._patience, context)
        except OSError as error:
            raise _not_connected(place, error) from None
        except (OverflowError, UnicodeError) as error:
            raise NotConnected(f"{place}: {error}") from None
        return connection


class _Connection(asyncio.Protocol):
    """One connection; it waits for the answer to at most one request."""

    transport: asyncio.Transport

    def __init__(self, client: HttpClient, origin: Origin, loop: asyncio.AbstractEventLoop) -> None:
        self.origin = origin
        self.loop = loop
        self.since = 0.0  # when it was asked last (s), while it is kept
        self._client = client
        self._http = HttpExchange()
        self._answered: Promised[Reply] | None = None
        self._pieces = Pieces()
        self._most = 0
        self._room: Room
        self._share: Share

    def ask(self, message: Sequence[bytes], most: int, room: Room, share: Share) -> Promised[Reply]:
        """Send a request, and take at most so many bytes of its answer, for which ``share`` keeps ``room``."""
        self._most, self._room, self._share = most, room, share
        self._http.ask()
        answered = self._answered = Promised(loop=self.loop)
        if self.transport.is_closing():  # it was lost while it was asked
            self._fail(Disconnected("Server disconnected"))
        elif len(message) == 1:
            self.transport.write(message[0])
        else:
            self.transport.writelines(message)
        return answered

    def give_up(self, answered: Promised[Reply]) -> None:
        """The time of this exchange is over; in the round of the loop in which it ended there may be another."""
        if self._answered is answered:
            self._fail(TimeoutError())

    def drop(self, answered: Promised[Reply]) -> None:
        """Nobody waits for this one any more."""
        if self._answered is answered:
            self._fail(ClientError("nobody waits any more"))

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._client.opened(self)

    def data_received(self, data: bytes) -> None:
        http = self._http
        if self._answered is None:  # it says what it was not asked
            self.transport.abort()
            return
        try:
            piece = http.receive(data)
        except NotHttp as error:
            self._fail(Unreadable(str(error)))
            return
        if piece and not self._takes(piece):
            return
        if http.stage is DONE:
            self._finish()

    def connection_lost(self, error: Exception | None) -> None:
        before = self._http.stage
        if self._http.end():
            self._finish()
        elif before is HEAD:
            self._fail(Disconnected(str(error) if error is not None and str(error) else "Server disconnected"))
        else:
            self._fail(BrokenOff("the connection ended within it"))
        self._client.lost(self)

    # -- the answer

    def _takes(self, piece: bytes) -> bool:
        share = self._share
        size = share.size + len(piece)
        if size > self._most:
            self._fail(BatchTooLarge(f"an answer of more than {self._most} bytes"))
        elif not share.fits(size):
            room = self._room
            held = f"those that this process has hold {room.taken} of {room.limit} bytes"
            self._fail(NoRoomForAnswer(f"no room for an answer: {held}"))
        else:
            share.resize(size)
            self._pieces.add(piece)
            return True
        return False

    def _finish(self) -> None:
        answered, self._answered = self._answered, None
        body = self._pieces.take()
        http = self._http
        unsent = self.transport.get_write_buffer_size()
        if http.kept and not unsent and not self.transport.is_closing():
            self._client.keep(self)
        elif unsent:
            self.transport.abort()  # who has answered already may never take the rest
        else:
            self.transport.close()
        if answered is not None and not answered.done():
            answered.set_result(Reply(http.status, http.fields, body))

    def _fail(self, error: Exception) -> None:
        answered, self._answered = self._answered, None
        self._pieces.take()
        self.transport.abort()
        if answered is not None and not answered.done():
            answered.set_exception(error)


@lru_cache(maxsize=256)
def parse(url: str) -> Target:
    """Where a request to ``url`` goes; its user and password are told as RFC 7617 has them. Raises ``ClientError``."""
    try:
        parts = urlsplit(url)
        port = parts.port
        host = (parts.hostname or "").encode("ascii" if (parts.hostname or "").isascii() else "idna").decode("ascii")
    except ValueError as error:
        raise ClientError(f"no address of a server: {error}") from None
    if not re.fullmatch(r"[A-Za-z0-9._~:%-]+", host):
        raise ClientError("no address of a server: it names no host")
    tls = parts.scheme == "https"
    usual = 443 if tls else 80
    origin = Origin(host, usual if port is None else port, tls)
    named = f"[{host}]" if ":" in host else host
    if origin.port != usual:
        named += f":{origin.port}"
    path = quote(parts.path or "/", safe="/%:@!$&'()*+,;=~")
    if parts.query:
        path += "?" + quote(parts.query, safe="/%:@!$&'()*+,;=~?")
    start = f"POST {path} HTTP/1.1\r\nhost: {named}\r\naccept-encoding: identity\r\nuser-agent: sluice\r\n"
    if parts.username is not None or parts.password is not None:
        known = unquote_to_bytes(parts.username or "") + b":" + unquote_to_bytes(parts.password or "")
        start += f"authorization: Basic {base64.b64encode(known).decode()}\r\n"
    return Target(origin, start.encode("ascii"))


def _message(start: bytes, fields: Fields, parts: Sequence[bytes]) -> Sequence[bytes]:
    """What is written: small bodies in one piece with the head, for each piece is a system call or an entry of one."""
    told = "".join([f"{name}: {value}\r\n" for name, value in fields])
    size = sum(map(len, parts))
    head = b"%b%bcontent-length: %d\r\n\r\n" % (start, told.encode("latin-1"), size)
    return (b"".join((head, *parts)),) if size < JOINED else (head, *parts)


def _not_connected(place: str, error: OSError) -> NotConnected:
    """Event loops word what the system said each in their own way."""
    if isinstance(error, ssl.SSLError):  # whose numbers are its own
        return NotConnected(f"{place}: {error}")
    said = os.strerror(error.errno) if error.errno is not None and error.errno > 0 else error.strerror
    return NotConnected(f"{place}: {said or error}", error.errno)


async def _tls_context() -> ssl.SSLContext:
    """In a thread: reading the certificates that are trusted takes 20 to 50 ms."""
    return _trusting() if _trusting.cache_info().currsize else await asyncio.to_thread(_trusting)


@functools.cache
def _trusting() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context
