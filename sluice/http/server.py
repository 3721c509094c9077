"""The HTTP server: sockets, the clock and rooms around ``HttpConnection``, which says what is read, refused and ended (its file).

There is no task and no timer for a request. A request is begun when its headers are complete, is told the pieces of its body, and
is answered by a call, at once or later; head and body of an answer are one write. All connections are looked at four times in the
shortest time that a client has, at least once a second, and those that are overdue are given up.

What a connection may make the process hold. One request at a time, and nothing more is read than ``AHEAD`` bytes behind it. Nor is
anything read, or the next request begun, while the client leaves more of an answer untaken than the transport buffers. All
connections together hold what rooms (room.py) allow: of bytes that are read and no request yet, of answers that are written and not
taken. Beyond that it is the connection that brings the bytes, or the one that has not taken its answer for the longest, that is
given up. Connections themselves are bounded too, so that descriptors are left for the ways to functions and to the store: one more
is told 503 as soon as it is taken.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
import socket
from collections.abc import Callable, Iterator
from http import HTTPStatus
from itertools import islice
from typing import Protocol, cast

from sluice.http.connection import (
    BODY,
    ENDED,
    MAX_HEADER_BYTES,
    Event,
    Fields,
    Head,
    HttpConnection,
    Patience,
    Refused,
    bare_refusal,
)
from sluice.http.room import Connections, Room

LOOK = 1.0
"""Seconds between two looks at the connections, at the most; a quarter of the shortest time that a client has."""
PORTION = 500  # connections that are looked at in one round of the loop
BACKLOG = 2048  # connections that the system keeps until they are taken
LINGER = 1.0
"""Seconds that a connection is kept whose client may still send: one that is cut off while it sends does not see why."""
LAST = 0.1
"""Seconds in which clients of a server that leaves may send a last request, which is likely to be on its way."""
JOINED = 65536  # bytes of an answer's body that are copied behind its head rather than written beside it
_TOO_LARGE = (HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
_NOT_UNDERSTOOD = (HTTPStatus.BAD_REQUEST, HTTPStatus.NOT_IMPLEMENTED, HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
UNREAD = frozenset((*_NOT_UNDERSTOOD, *_TOO_LARGE))
"""Statuses of refusals behind which more may come."""
WITHOUT_BODY = frozenset((HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED))
"""Statuses of answers that say neither of what type their body is nor how long (RFC 9110, 8.6)."""

_log = logging.getLogger(__name__)


class Client(Protocol):
    """Who sent a request, and waits for its answer."""

    def go_ahead(self) -> None:
        """The body of the request is wanted."""

    def reply(self, status: int, content_type: str, body: bytes, fields: Fields = (), close: bool = False) -> None:
        """Answer, and ``close`` the connection then; who has gone hears nothing."""


class Request(Protocol):
    """A request that has been begun, until it is answered."""

    def piece(self, body: bytes) -> None:
        """Some of its body has come."""

    def end(self, last: bytes = b"") -> None:
        """It is complete, with this as the last piece of its body where not all of it has come."""

    def gone(self) -> None:
        """Its client has gone, or broke it off; nothing is heard of it any more."""


Begin = Callable[[Head, Client], Request | None]
"""What takes a request when its headers are complete; ``None`` where it is answered already."""


class HttpServer:
    """Takes connections, and has each of their requests begun; ``unparsed`` and ``untaken`` bound their bytes in sum.

    ``max_head`` and ``refusal`` are those of ``HttpConnection``.
    """

    def __init__(
        self,
        begin: Begin,
        patience: Patience,
        unparsed: Room,
        untaken: Room,
        connections: Connections,
        max_head: int = MAX_HEADER_BYTES,
        refusal: Callable[[HTTPStatus], bytes] = bare_refusal,
    ) -> None:
        self.begin = begin
        self.told_off: Callable[[HTTPStatus], None] = lambda status: None
        """Is told of each connection that is ended with a status."""
        self.patience = patience
        self.max_head = max_head
        self.refusal = refusal
        self.unparsed = unparsed
        self.untaken = untaken
        self.count = connections
        self.connections: set[Connection] = set()
        self.slow_readers: dict[Connection, None] = {}  # whose answers are not taken, the longest first
        self.known: dict[bytes, Head] = {}
        self.date = b""
        self.listener: asyncio.Server | None = None
        self.keeps = True
        """Whether a connection goes on behind an answer, where its client wants it to."""
        self._leaving = False
        self._left: asyncio.Future[None] | None = None
        self._timer: asyncio.Handle | None = None
        self._look = min(LOOK, patience.header / 4, patience.body / 4, patience.keep_alive / 4)

    async def start(self, host: str, port: int) -> None:
        """Listen; returns when connections are taken."""
        self._begin_to_look()
        self.listener = await self.loop.create_server(lambda: Connection(self), host, port, backlog=BACKLOG)

    async def start_on(self, listener: socket.socket) -> None:
        """The same at a socket that is bound."""
        self._begin_to_look()
        self.listener = await self.loop.create_server(lambda: Connection(self), sock=listener, backlog=BACKLOG)

    @property
    def port(self) -> int:
        """The one that is listened on."""
        assert self.listener is not None
        return int(self.listener.sockets[0].getsockname()[1])

    def keep_none(self) -> None:
        """Each answer is the last of its connection from now on, and says so.

        Where one that is kept ends while its client sends the next request, the client cannot know whether that was served.
        """
        self.keeps = False

    def stop_listening(self) -> None:
        """No new connections from now on."""
        if self.listener is not None:
            self.listener.close()

    async def leave(self, timeout: float) -> bool:
        """End every connection with the answer that is due to it; whether that was done within ``timeout`` (s).

        Whose request is on its way is heard: he could not know whether it was served.
        """
        self.keep_none()
        last = min(LAST, timeout) if self.connections else 0.0
        if last:
            await asyncio.sleep(last)
        self._leaving = True
        for connection in list(self.connections):
            connection.leave()
        if self.connections:
            self._left = self.loop.create_future()
            await asyncio.wait((self._left,), timeout=timeout - last)
        return not self.connections

    def close(self) -> None:
        """End at once."""
        self.stop_listening()
        if self._timer is not None:
            self._timer.cancel()
        for connection in list(self.connections):
            connection.transport.abort()

    def lost(self, connection: Connection) -> None:
        """A connection is no more."""
        self.connections.discard(connection)
        if self._left is not None and not self.connections and not self._left.done():
            self._left.set_result(None)

    def taken(self, connection: Connection) -> None:
        """A new connection; none is taken any more once the server leaves."""
        self.connections.add(connection)
        if self._leaving:
            connection.leave()

    def _begin_to_look(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.look_around()

    def look_around(self) -> None:
        """Give up what is overdue, now and again and again."""
        self.date = email.utils.formatdate(usegmt=True).encode()
        self._look_at(iter(list(self.connections)))

    def _look_at(self, connections: Iterator[Connection]) -> None:
        """A portion of them in each round of the loop, so that requests need not wait for thousands."""
        now = self.loop.time()
        for connection in (portion := list(islice(connections, PORTION))):
            try:
                connection.look(now)
            except Exception:  # a defect; the time of every other connection is measured here too
                _log.exception("a connection could not be given up as it should be")
                connection.cut_off()
        if portion:
            self._timer = self.loop.call_soon(self._look_at, connections)
        else:
            self._timer = self.loop.call_later(self._look, self.look_around)


class Connection(asyncio.Protocol):
    """One connection of a client, who waits for the answer to at most one request."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = server.loop
        self._http = HttpConnection(server.patience, server.known, server.loop.time(), server.max_head, server.refusal)
        self._request: Request | None = None
        self._is_head = False  # an answer to HEAD has no body
        self._awaited = False  # an answer is due that was not given
        self._goes_on = False  # soon, with what waits
        self._paused = False  # nothing is read
        self._held = server.unparsed.share()
        self._untaken = server.untaken.share()
        self._stalled: float | None = None  # since when the client has taken nothing of what it is to take
        self._closes_at: float | None = None  # where it may still send, and nothing is read

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        count = self._server.count
        count.open += 1
        self._server.taken(self)
        if count.open > count.most:
            count.refused += 1
            self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.count.open -= 1
        self._http.close()
        self._held.resize(0)
        self._has_taken()
        self._break_off()
        self._server.lost(self)

    def data_received(self, data: bytes) -> None:
        now = self._loop.time()
        head = self._http.again(now, data)
        if head is None:
            self._tell(self._http.receive(now, data))
            return
        # As most are: nothing is left of what was read.
        self._is_head = head.method == "HEAD"
        self._awaited = True
        request = self._server.begin(head, self)
        if request is not None and self._awaited:
            self._request = request
            request.end(data[len(head.start) :] if head.length else b"")
        if self._held.size or self._paused:
            self._keep(0)

    def eof_received(self) -> None:
        # The transport closes itself, once its client has taken what is left.
        self._watch()

    def pause_writing(self) -> None:
        self._http.block()
        self._pause_or_read()
        self._watch()
        server = self._server
        while server.untaken.taken > server.untaken.limit and server.slow_readers:
            next(iter(server.slow_readers)).cut_off()

    def resume_writing(self) -> None:
        self._has_taken()
        if self.transport.is_closing() or self._closes_at is not None:
            self._watch()  # nothing else looks after the last bytes
        self._http.unblock(self._loop.time())
        if self._http.ready:
            self._go_on_soon()
        self._pause_or_read()

    # -- what was read

    def _tell(self, events: list[Event]) -> None:
        """Tell the request of what was read; the connection has parsed no further than that."""
        for event in events:
            if type(event) is bytes:
                if self._request is not None:
                    self._request.piece(event)
            elif type(event) is Head:
                self._is_head = event.method == "HEAD"
                self._awaited = True
                self._request = self._server.begin(event, self)
                if not self._awaited:
                    self._request = None
            elif type(event) is Refused:
                self._end_with(event)
            elif self._request is not None:
                self._request.end()
        http = self._http
        self._keep(0 if http.alone else http.held)

    def _keep(self, size: int) -> None:
        """So many bytes are held here from now on, for which there must be room."""
        http, held = self._http, self._held
        if not size and not held.size and not self._paused:
            return  # what came was a request, whole and alone
        if http.ready:
            self._go_on_soon()
        if size != held.size:
            if held.fits(size):
                held.resize(size)
            else:
                self._refuse(HTTPStatus.SERVICE_UNAVAILABLE)
        if self._paused or size:
            self._pause_or_read()

    def _go_on_soon(self) -> None:
        """In the next round of the loop, so that one connection does not keep the others waiting."""
        if not self._goes_on:
            self._goes_on = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._goes_on = False
        if not self.transport.is_closing():
            self._tell(self._http.go_on(self._loop.time()))

    def _pause_or_read(self) -> None:
        if self.transport.is_closing() or self._paused == self._http.full:
            return
        self._paused = not self._paused
        if self._paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # -- answers

    def go_ahead(self) -> None:
        """The body of the request is wanted."""
        if wanted := self._http.go_ahead():
            self.transport.write(wanted)

    def reply(self, status: int, content_type: str, body: bytes, fields: Fields = (), close: bool = False) -> None:
        """Answer the request, unless it has been, or its client has gone."""
        if not self._awaited:
            return
        http, was = self._http, self._http.stage
        if was is ENDED:
            return  # its body turned out to be none: it is told of that
        length: int | None = len(body)
        if status in WITHOUT_BODY:
            body, length = b"", None  # such an answer ends with its headers; more would be taken for the next one
        server = self._server
        head = http.answer(self._loop.time(), status, content_type, length, fields, server.date, close or not server.keeps)
        self._awaited = False
        self._request = None
        if self._held.size:
            self._held.resize(http.held)
        if self._is_head:
            body = b""
        if len(body) < JOINED:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))
        if http.stage is ENDED:
            self._close(linger=was is BODY)
        elif not http.alone and http.ready:
            self._go_on_soon()

    # -- ends

    def leave(self) -> None:
        """The server is being shut down."""
        self._http.leave()
        if self._http.stage is ENDED:
            self._close()

    def look(self, now: float) -> None:
        """Give up what is overdue: a request that does not come to its end, an answer that is not taken."""
        if self._closes_at is not None and now >= self._closes_at:
            self._closes_at = None
            self.transport.close()
        if self._stalled is not None:
            left = self.transport.get_write_buffer_size()
            if left < self._untaken.size:
                self._untaken.resize(left)
                self._stalled = now
            elif now - self._stalled > self._server.patience.body:
                self.cut_off()
        elif (refused := self._http.overdue(now)) is not None:
            self._end_with(refused)

    def cut_off(self) -> None:
        """The client does not take its answer, and never will."""
        self._has_taken()
        self.transport.abort()

    def _refuse(self, status: HTTPStatus) -> None:
        self._held.resize(0)
        if (refused := self._http.refuse(status)) is not None:
            self._end_with(refused)

    def _end_with(self, refused: Refused) -> None:
        if refused.status is HTTPStatus.BAD_REQUEST:
            _log.warning("Invalid HTTP request received.")
        self._break_off()
        if not self.transport.is_closing():
            if refused.answer:
                self._server.told_off(refused.status)
                self.transport.write(refused.answer)
            self._close(linger=refused.status in UNREAD)

    def _break_off(self) -> None:
        """There will be no answer to what was begun."""
        self._awaited = False
        request, self._request = self._request, None
        if request is not None:
            request.gone()

    def _close(self, linger: bool = False) -> None:
        if linger and self._closes_at is None:
            self._closes_at = self._loop.time() + LINGER
            self.transport.write_eof()
            self._pause_or_read()
        else:
            self.transport.close()
        self._held.resize(0)
        self._watch()

    def _watch(self) -> None:
        """From now on the client must take what is left of its answers, also of a connection that is being closed."""
        size = self.transport.get_write_buffer_size()
        if size and self._stalled is None:
            self._server.slow_readers[self] = None
            self._untaken.resize(size)
            self._stalled = self._loop.time()

    def _has_taken(self) -> None:
        self._server.slow_readers.pop(self, None)
        self._untaken.resize(0)
        self._stalled = None
