"""uvicorn's HTTP protocol with the limits it lacks, in time and in bytes: of headers, of bodies, of pipelined requests, of answers.

The size of a body is bounded by the application (routes.py), which uvicorn calls as soon as the headers are complete. Time is kept
here, because a request that comes whole, as most do, then costs no timer. A request whose connection ends is cancelled here too.

What a connection may make the process hold. Its requests are parsed one after the other: while one waits for the answer to the one
before, nothing behind it is parsed, but for what came with it in one read, and of that at most ``PART`` bytes or ``LINES`` lines
are requests already. Nothing more is read than ``AHEAD`` bytes behind it: so many, as a client that goes away is noticed by
reading. Nor is anything read, or the next request begun, while the client leaves more of an answer untaken than the transport
buffers. All connections together hold what rooms (room.py) allow: of bytes that are read and no request yet, of answers that are
written and not taken. Beyond that it is the connection that brings the bytes, or the one that has not taken its answer for the
longest, that is given up. Connections themselves are bounded too, so that descriptors are left for the ways to functions and to the
store: one more is told 503 as soon as it is taken.
"""

from __future__ import annotations

import asyncio
from typing import Any, cast

import httptools
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from sluice.buffer_service.room import Connections, Room
from sluice.buffer_service.routes import CONNECTION, Connection

MAX_HEADER_BYTES = 64 * 1024
PART = 1024  # bytes that are parsed at once where it is not known what they are; a request has 18 at least
LINES = 40  # that are parsed at once in the same way; a request has 2 at least
AHEAD = 64 * 1024  # bytes that are read while a request waits for its turn
_HEAD_ENDS = b"\r\n\r\n"
_REFUSAL = b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
_BAD_REQUEST = b"400 Bad Request"
_TOO_LARGE = b"431 Request Header Fields Too Large"
_TOO_SLOW = b"408 Request Timeout"
_NO_ROOM = b"503 Service Unavailable"


def limited_protocol(
    header_timeout: float, body_timeout: float, unparsed: Room, untaken: Room, connections: Connections
) -> type[asyncio.Protocol]:
    """The protocol class.

    A connection whose request line and headers are not complete ``header_timeout`` seconds after it was opened, or after its next
    request began, is answered 408 and closed; one whose headers are larger than ``MAX_HEADER_BYTES`` 431; one whose body is not
    complete ``body_timeout`` seconds after its headers 408. Where earlier requests of the connection are still being answered, it
    is closed behind their answers instead. A client that takes nothing of its answer for ``body_timeout`` seconds is cut off.
    ``unparsed`` and ``untaken`` bound the bytes of all connections, ``connections`` their number.
    """
    slow_readers: dict[LimitedProtocol, None] = {}  # whose answers are not taken, the longest first

    class LimitedProtocol(HttpToolsProtocol):
        _due: asyncio.TimerHandle | None = None  # when the rest of the headers, or of the body, must have come
        _in_headers = True
        _in_body = False
        _ends = False  # behind an answer that is due; nothing that comes is parsed any more
        _part = 0  # bytes that were parsed last
        _opening = 0  # of the part in which the headers began, which may hold the body of the request before
        _parts = 0  # from that one on
        _header_bytes = 0  # of those behind it
        _body_bytes = 0  # of the body that comes
        _other_bytes = 0  # since the last byte of a body: chunk headers and trailers
        _rest = b""  # what was read; from _parsed on it waits
        _parsed = 0
        _answered = False  # but the client has not taken it
        _progress: asyncio.TimerHandle | None = None  # when some of the answer must have been taken

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            connections.open += 1
            self.flow = _Flow(self)
            self._connection = Connection()
            self._unparsed, self._head, self._untaken = unparsed.share(), unparsed.share(), untaken.share()
            if connections.open > connections.most:
                connections.refused += 1
                self._refuse(_NO_ROOM)
                return
            self._due = self.loop.call_later(header_timeout, self._give_up_headers)

        def connection_lost(self, exc: Exception | None) -> None:
            connections.open -= 1
            self._disarm()
            self._drop_rest()
            self._head.resize(0)
            self._has_taken()
            super().connection_lost(exc)
            self._connection.lose()

        # -- reading

        @property
        def held(self) -> bool:
            """Whether nothing more may be read: an answer waits for its reader, or too much for its turn."""
            return self.flow.write_paused or len(self._rest) > AHEAD

        def _in_turn(self) -> bool:
            """Whether what comes next is to be parsed: no request waits for its turn, nor an answer for its reader."""
            return not (self.pipeline or self.flow.write_paused)

        def data_received(self, data: bytes) -> None:
            if self._ends:
                return
            if not self._rest and self._in_turn() and data.count(b"\n") <= LINES:
                self._parse(data)
            else:
                self._rest += data
                self._parse_rest()
            self._has_read()
            if self._rest:
                self._hold_rest()

        def _parse_rest(self) -> None:
            """One request after the other, until one has to wait for its turn."""
            while self._rest and self._in_turn() and not self.transport.is_closing():
                end = self._parsed + self._next_part()
                part, self._parsed = self._rest[self._parsed : end], end
                self._parse(part)
                if self._parsed >= len(self._rest):
                    self._drop_rest()

        def _next_part(self) -> int:
            """How many bytes are certainly no more than one request, or few enough."""
            if self._in_body:
                left = self._declared() - self._body_bytes
                return left if left > 0 else PART
            end = self._rest.find(_HEAD_ENDS, self._parsed, self._parsed + PART)
            return PART if end < 0 else end + len(_HEAD_ENDS) - self._parsed

        def _decline_upgrade(self) -> None:
            """A request that offers another protocol is served as any (RFC 9110, 7.8), though the parser skips its body."""
            if (framing := self._framing()) is not None:
                callbacks = _AfterHead(self)
                self.parser = httptools.HttpRequestParser(callbacks)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
                self.parser.feed_data(b"POST / HTTP/1.1\r\n%s\r\n\r\n" % framing)
                callbacks.over = True

        def _framing(self) -> bytes | None:
            """The header that says where the body ends, if there is one."""
            names = (b"content-length", b"transfer-encoding")
            return next((b"%s: %s" % (name, value) for name, value in self.headers if name in names and value != b"0"), None)

        def _declared(self) -> int:
            return next((int(value) for name, value in self.headers if name == b"content-length"), 0)

        def _hold_rest(self) -> None:
            """What was read waits, if there is room for that; else the connection is closed behind the answers that are due."""
            size = len(self._rest)
            if self.transport.is_closing():
                self._drop_rest()
            elif self._unparsed.fits(size):
                self._unparsed.resize(size)
                if self.held:
                    self.flow.pause_reading()
            else:
                self._refuse(_NO_ROOM)

        def _drop_rest(self) -> None:
            self._rest, self._parsed = b"", 0
            self._unparsed.resize(0)

        def _parse(self, data: bytes) -> None:
            self._part, body_bytes = len(data), self._body_bytes
            self._unset_keepalive_if_required()
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                self._decline_upgrade()
                if rest := data[upgrade.args[0] :]:
                    self._parse(rest)
                    return
            except httptools.HttpParserError as error:
                if not isinstance(error.__context__, _Refused):
                    self.logger.warning("Invalid HTTP request received.")
                    self._refuse(_BAD_REQUEST)
            if self._in_headers:
                if self._parts:
                    self._header_bytes += len(data)
                else:
                    self._opening = len(data)
                self._parts += 1
            elif self._in_body and self._body_bytes == body_bytes:
                self._other_bytes += len(data)
                if self._other_bytes > MAX_HEADER_BYTES:
                    self._refuse(_TOO_LARGE)

        def _has_read(self) -> None:
            """Something was read, and parsed but for what is held: what is half-sent must come to its end in time."""
            if self._ends or self.transport.is_closing():
                return
            if not self._in_headers:
                if self.timeout_keep_alive_task is None and self.cycle.response_complete and not self._answered:
                    # The rest of a body that was answered early, or empty lines: uvicorn has disarmed its timer for good.
                    self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
                if self._in_body and self._due is None:
                    self._due = self.loop.call_later(body_timeout, self._give_up_body)
                return
            # Most requests come whole and never get here: only what is left half-sent is counted and timed.
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(_TOO_LARGE)
                return
            size = self._opening + self._header_bytes
            if not self._head.fits(size):
                self._refuse(_NO_ROOM)
                return
            self._head.resize(size)
            if self._due is None:
                self._due = self.loop.call_later(header_timeout, self._give_up_headers)

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_headers = True
            self._header_bytes = self._parts = 0

        def on_headers_complete(self) -> None:
            if self._parts or self._part > MAX_HEADER_BYTES:
                size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
                if size > MAX_HEADER_BYTES:
                    self._refuse(_TOO_LARGE)
                    raise _Refused  # stops the parser
            if self._head.size:
                self._head.resize(0)
            self._body_bytes = self._other_bytes = 0
            self._disarm()
            self._before = self.cycle
            super().on_headers_complete()
            self._in_headers, self._in_body = False, True
            if self.scope["method"] != "HEAD":
                self.cycle.transport = cast(asyncio.Transport, _Joined(self.transport, self.cycle))
            scope: Any = self.cycle.scope
            scope[CONNECTION] = self._connection  # the task that reads it begins later
            if self.pipeline:
                self.flow.resume_reading()  # uvicorn reads no more

        def on_body(self, body: bytes) -> None:
            self._body_bytes += len(body)
            self._other_bytes = 0
            super().on_body(body)

        def on_message_complete(self) -> None:
            if self.parser.should_upgrade() and self._framing() is not None:
                return  # the parser takes what follows for another protocol's
            self._in_body = False
            self._disarm()
            super().on_message_complete()

        def on_response_complete(self) -> None:
            if self.transport.is_closing():
                self._watch_reader()
            elif self.flow.write_paused:
                self._answered = True  # the next request begins when the client has taken this answer
            else:
                super().on_response_complete()
                self._go_on()

        # -- writing

        def pause_writing(self) -> None:
            super().pause_writing()
            if not self.transport.is_closing():
                self.flow.pause_reading()
            self._watch_reader()
            while untaken.taken > untaken.limit and slow_readers:
                next(iter(slow_readers))._give_up_reader()

        def resume_writing(self) -> None:
            self._has_taken()
            super().resume_writing()
            if self._answered:
                self._answered = False
                self.on_response_complete()
            else:
                self._go_on()

        def _go_on(self) -> None:
            if self._rest:
                self._parse_rest()
                self._has_read()
            if not self.transport.is_closing():
                self.flow.resume_reading()

        def timeout_keep_alive_handler(self) -> None:
            super().timeout_keep_alive_handler()
            self._watch_reader()

        def _watch_reader(self) -> None:
            """From now on the client must take what is left of its answers, also of a connection that is being closed."""
            size = self.transport.get_write_buffer_size()
            if size and self._progress is None:
                slow_readers[self] = None
                self._untaken.resize(size)
                self._progress = self.loop.call_later(body_timeout, self._check_progress)

        def _check_progress(self) -> None:
            size = self.transport.get_write_buffer_size()
            if size >= self._untaken.size:
                self._give_up_reader()
                return
            self._untaken.resize(size)
            self._progress = self.loop.call_later(body_timeout, self._check_progress)

        def _give_up_reader(self) -> None:
            self._has_taken()
            self.transport.abort()

        def _has_taken(self) -> None:
            """The client has taken its answers, or never will."""
            slow_readers.pop(self, None)
            self._untaken.resize(0)
            if self._progress is not None:
                self._progress.cancel()
                self._progress = None

        # -- ends

        def _disarm(self) -> None:
            if self._due is not None:
                self._due.cancel()
                self._due = None

        def _refuse(self, status: bytes) -> None:
            """What comes is not taken. Its client is told, unless answers are due before: then the connection ends behind these."""
            self._disarm()
            self._drop_rest()
            if self._ends or self.transport.is_closing():
                return
            last = None if self._in_body else self.cycle
            if self._in_body and self.pipeline:  # the request waits for its turn, and is as if it had not come
                self.pipeline.popleft()
                last = self._before
            if last is not None and not last.response_complete:
                self._ends = True
                last.keep_alive = False
                self.flow.pause_reading()
                return
            if not self._in_body or not self.cycle.response_started:
                self.transport.write(_REFUSAL % status)
            self.transport.close()
            self._watch_reader()

        def _give_up_headers(self) -> None:
            """The headers did not come in time, unless they are not being read: then it is an earlier answer that they wait for."""
            self._disarm()
            if self._rest or not self._in_turn():
                self._due = self.loop.call_later(header_timeout, self._give_up_headers)
            else:
                self._refuse(_TOO_SLOW)

        def _give_up_body(self) -> None:
            """The body did not come in time; as with headers."""
            self._disarm()
            if self._rest or not self._in_turn():
                self._due = self.loop.call_later(body_timeout, self._give_up_body)
            else:
                self._refuse(_TOO_SLOW)

    class _Flow(FlowControl):
        """Reading goes on when nothing is held."""

        def __init__(self, protocol: LimitedProtocol) -> None:
            super().__init__(protocol.transport)
            self._protocol = protocol

        def resume_reading(self) -> None:
            if self.read_paused and not self._protocol.held:
                super().resume_reading()

    return LimitedProtocol


class _Joined:
    """The transport of one answer with a body: its head waits for the first of the body, since it is writes that cost most."""

    __slots__ = ("_cycle", "_head", "_transport", "is_closing")

    def __init__(self, transport: asyncio.Transport, cycle: RequestResponseCycle) -> None:
        self._transport = transport
        self._cycle = cycle
        self._head: bytes | None = None  # b"" once it is written
        self.is_closing = transport.is_closing

    def write(self, data: bytes) -> None:
        if self._head:
            data, self._head = self._head + data, b""
        elif self._head is None and self._cycle.response_started:
            self._head = data
            del self._cycle  # it has this transport: a request that was answered is freed at once, not by the garbage collector
            return
        self._transport.write(data)

    def close(self) -> None:
        if self._head:
            self.write(b"")
        self._transport.close()


class _AfterHead:
    """The callbacks of a parser that is told the head of a request again: the protocol's, from when that is ``over``."""

    def __init__(self, protocol: HttpToolsProtocol) -> None:
        self.over = False
        self._protocol = protocol
        self.on_body = protocol.on_body
        self.on_message_complete = protocol.on_message_complete

    def on_message_begin(self) -> None:
        if self.over:
            self._protocol.on_message_begin()

    def on_url(self, url: bytes) -> None:
        if self.over:
            self._protocol.on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.over:
            self._protocol.on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.over:
            self._protocol.on_headers_complete()


class _Refused(Exception):
    """The request was answered before it reached the application."""
