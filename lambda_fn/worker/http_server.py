"""HTTP/1.1 with a bound on everything: connections, headers, bodies, pipelined requests, answers that nobody takes, and time.

What may live here: the protocol. What may not: paths and models. A request is handed over when its body is complete, and answered
by ``Request.reply``, at once or later; the answers of a connection leave in the order of its requests. A request that is refused is
read to its end all the same, up to ``MAX_DISCARDED`` bytes, for a client that is cut off while it sends sees no answer.

There is no task and no timer for a request: once a second all connections are looked at, and those that are overdue are given up.
A client says the same of every request that it sends: a head that was parsed once is known again, byte for byte, where a request
comes whole and alone, and then nothing is parsed.
"""

from __future__ import annotations

import asyncio
import email.utils
import logging
import socket
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum, auto
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple, cast

import httptools

from .. import contract

MAX_DISCARDED = 64 * 1024 * 1024
"""Bytes of the body of a refused request that are read."""
MAX_PIPELINED = 64
"""Requests of one connection that wait for the answer to the one before."""
MAX_KNOWN = 256
"""Heads that are known again, of at most ``MAX_KNOWN_BYTES`` bytes each."""
MAX_KNOWN_BYTES = 4096
LOOK = 1.0
"""Seconds between two looks at the connections."""

Headers = Iterable[tuple[str, str]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bytes, seconds and numbers that the server allows.

    ``max_held`` bounds the bodies of all requests that are read or unanswered, and the answers that are not taken, each. A client
    has ``header_timeout`` s for a request's headers, ``body_timeout`` s for its body and for taking some of its answer; a
    connection may be idle for ``keep_alive`` s, since the buffer keeps those for its next batch.
    """

    max_body: int = 256 * 1024 * 1024
    max_held: int = 1024 * 1024 * 1024
    max_headers: int = 64 * 1024
    max_connections: int = 4096
    header_timeout: float = 10.0
    body_timeout: float = 60.0
    keep_alive: float = 3600.0


class Failure(NamedTuple):
    """Why a request is not answered as it asks: a problem document; ``retry_after`` in seconds, where it may come again."""

    status: int
    title: str
    detail: str
    retry_after: float | None = None
    allow: str = ""


class Request:
    """One request, complete. ``on_gone`` is called once if its client goes before the answer."""

    __slots__ = ("_connection", "body", "headers", "keep_alive", "method", "on_gone", "path", "query", "refusal")

    def __init__(self, connection: _Connection, method: str, path: str, query: str, headers: dict[str, str]) -> None:
        self._connection = connection
        self.method = method
        self.path = path
        self.query = query
        self.headers = headers
        self.body = b""
        self.keep_alive = True
        self.refusal: Failure | None = None
        self.on_gone: Callable[[], None] | None = None

    def reply(self, status: int, content_type: str, body: bytes, headers: Headers = ()) -> None:
        """Answer; an answer to a client that has gone is dropped, and so is a second one."""
        self.on_gone = None
        self._connection.reply(self, status, content_type, body, headers)

    def fail(self, failure: Failure, told: Headers = ()) -> None:
        """Answer with a problem document, and what is ``told`` beside it."""
        headers = [*told]
        if failure.retry_after is not None:
            headers.append(("retry-after", str(max(1, -int(-failure.retry_after // 1)))))
        if failure.allow:
            headers.append(("allow", failure.allow))
        problem = contract.problem(failure.status, failure.title, failure.detail)
        self.reply(failure.status, contract.PROBLEM, problem, headers)

    def defect(self) -> None:
        """Answer that the exception which is handled now is not the client's."""
        _log.exception("request failed: %s %s", self.method, self.path)
        self.fail(Failure(500, "Internal server error", "an error inside the worker; its log has the details"))


class _Head(NamedTuple):
    """A head that came before: what was parsed of it, and the bytes of the body behind it."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    length: int


class HttpServer:
    """Serves one socket.

    Parameters
    ----------
    handle
        Gets each complete request, and sees to it that ``reply`` or ``fail`` is called.
    screen
        Looks at the method and the headers before the body is read; what it returns is the answer.
    """

    def __init__(
        self,
        handle: Callable[[Request], None],
        limits: HttpLimits | None = None,
        screen: Callable[[Request], Failure | None] = lambda request: None,
    ) -> None:
        self.handle = handle
        self.screen = screen
        self.limits = limits or HttpLimits()
        self.connections: set[_Connection] = set()
        self.held = 0  # bytes of bodies
        self.untaken: dict[_Connection, int] = {}  # bytes of answers, by who has not taken them for the longest
        self.leaving = False
        self.date = b""
        self.known: dict[bytes, _Head] = {}
        self.knows = True
        """Whether a head that was let through once is let through again, unscreened."""
        self._listener: asyncio.Server | None = None
        self._look: asyncio.TimerHandle | None = None

    async def start(self, listener: socket.socket) -> None:
        """Listen; returns when connections are taken."""
        self.loop = asyncio.get_running_loop()
        self._look_around()
        self._listener = await self.loop.create_server(lambda: _Connection(self), sock=listener, backlog=1024)

    def leave(self) -> None:
        """From now on connections end with the answers that are due, and those that are idle at once."""
        self.leaving = True
        for connection in list(self.connections):
            connection.leave()

    def close(self) -> None:
        """End at once."""
        if self._listener is not None:
            self._listener.close()
        if self._look is not None:
            self._look.cancel()
        for connection in list(self.connections):
            connection.transport.close()

    def stop_listening(self) -> None:
        """No new connections from now on."""
        if self._listener is not None:
            self._listener.close()

    def _look_around(self) -> None:
        self.date = email.utils.formatdate(usegmt=True).encode()
        now = self.loop.time()
        for connection in list(self.connections):
            connection.check(now)
        self._look = self.loop.call_later(LOOK, self._look_around)

    def fits(self, size: int) -> bool:
        return self.held + size <= self.limits.max_held


class _Stage(Enum):
    IDLE = auto()  # nothing of the next request has come
    HEAD = auto()
    BODY = auto()


_IDLE, _HEAD, _BODY = _Stage  # a member of a class of Enum takes ten times as long to look up


class _Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._limits = server.limits
        self._parser = httptools.HttpRequestParser(self)
        self._stage = _HEAD  # who connects has something to say
        self._since = server.loop.time()  # when the stage began
        self._head_bytes = 0
        self._url = b""
        self._headers: dict[str, str] = {}
        self._chunks: list[bytes] = []
        self._size = 0  # bytes of the body so far
        self._held = 0  # of which, or of those that were declared, the server keeps account
        self._request: Request | None = None  # whose body comes
        self._completed = 0  # requests in what was parsed last
        self._turn: deque[Request] = deque()  # complete, and not begun
        self._active: Request | None = None  # being answered
        self._replying = False
        self._closing = False  # when the answers due are written
        self._paused = False  # nothing is read
        self._stalled = 0.0  # since when the client takes nothing of its answer; 0: it does
        self._left = 0  # bytes that it had not taken then

    # -- the transport's calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses
        if len(self._server.connections) >= self._limits.max_connections:
            self._cut_off(HTTPStatus.SERVICE_UNAVAILABLE)
            return
        self._server.connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server.connections.discard(self)
        self._server.untaken.pop(self, None)
        self._closing = True
        self._release(self._held)
        self._held = 0
        for request in (self._active, *self._turn):
            if request is not None:
                self._release(len(request.body))
                if request.on_gone is not None:
                    gone, request.on_gone = request.on_gone, None
                    gone()
        self._active = None
        self._turn.clear()

    def data_received(self, data: bytes) -> None:
        if self._closing:
            return
        begins = self._stage is _IDLE or (self._stage is _HEAD and not self._head_bytes)
        end = data.find(_HEAD_ENDS) + len(_HEAD_ENDS) if begins else 0
        if end >= MIN_HEAD and self._active is None and not self._turn and not self._stalled:
            head = self._server.known.get(data[:end])
            if head is not None and len(data) - end == head.length and self._take(head, data[end:]):
                return
        self._completed = 0
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._end_with(HTTPStatus.BAD_REQUEST)  # a request that asks for another protocol, with a body
            return
        except httptools.HttpParserError:
            self._end_with(HTTPStatus.BAD_REQUEST)
            return
        if self._completed == 1 and MIN_HEAD <= end <= MAX_KNOWN_BYTES and self._stage is _IDLE:
            self._know(data[:end], len(data) - end)
        elif self._stage is _HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > self._limits.max_headers:
                self._end_with(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)

    def pause_writing(self) -> None:
        self._stalled = self._server.loop.time()
        self._left = self.transport.get_write_buffer_size()
        untaken = self._server.untaken
        untaken[self] = self._left
        while sum(untaken.values()) > self._limits.max_held and untaken:
            longest = next(iter(untaken))
            del untaken[longest]
            longest.transport.abort()

    def resume_writing(self) -> None:
        self._stalled = 0.0
        self._server.untaken.pop(self, None)
        self._go_on()

    # -- the parser's calls

    def on_message_begin(self) -> None:
        self._enter(_HEAD)
        self._head_bytes = 0
        self._url = b""
        self._headers = {}

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._stage is _BODY:
            return  # a trailer, which nobody reads
        self._headers[_header_name(name)] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._stage = _BODY  # since the request began: a small body comes with its head
        path, query, invalid = _target(self._url)
        request = self._request = Request(self, self._parser.get_method().decode("latin-1"), path, query, self._headers)
        self._chunks = []
        self._size = 0
        declared = self._headers.get("content-length", "0")
        size = int(declared) if declared.isdecimal() else 0
        request.refusal = invalid or self._server.screen(request) or self._refuse_size(size)
        if request.refusal is None:
            self._hold(size)
        if self._headers.get("expect", "").lower() == "100-continue":
            if request.refusal is None:
                self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            else:
                request.keep_alive = False  # the body may not come
                self._complete(request)

    def on_body(self, chunk: bytes) -> None:
        request = self._request
        if request is None:
            return
        self._size += len(chunk)
        if request.refusal is None and self._size > self._held:
            request.refusal = self._refuse_size(self._size, self._held)
            if request.refusal is None:
                self._hold(self._size)
        if request.refusal is None:
            self._chunks.append(chunk)
            return
        if self._held:
            self._release(self._held)
            self._held = 0
            self._chunks = []
        if self._size > MAX_DISCARDED:
            request.keep_alive = False
            self._complete(request)

    def on_message_complete(self) -> None:
        request = self._request
        if request is None:
            return
        if self._parser.should_upgrade() and self._headers.get("content-length", "0") != "0":
            return  # the parser takes the body for another protocol's
        request.keep_alive = request.keep_alive and self._parser.should_keep_alive()
        self._complete(request)

    # -- requests and their answers

    def reply(self, request: Request, status: int, content_type: str, body: bytes, headers: Headers) -> None:
        """The answer to the request whose turn it is; of any other it is dropped."""
        if request is not self._active:
            return
        self._active = None
        self._since = self._server.loop.time()  # what comes next could not before
        self._release(len(request.body))
        if (self._server.leaving or self._closing) and not self._turn:
            request.keep_alive = False
        if headers or not request.keep_alive:
            head = _head(status, content_type, len(body), self._server.date, request.keep_alive, headers)
        else:
            head = b"%b%d\r\n\r\n" % (_start_of_head(status, content_type, self._server.date), len(body))
        if request.method == "HEAD":
            body = b""
        if len(body) < 65536:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))
        if not request.keep_alive:
            self._close()
        elif not self._replying and (self._turn or self._paused or self._closing):
            self._go_on()

    def leave(self) -> None:
        """The server is being shut down."""
        if self._active is None and not self._turn and self._stage is not _BODY:
            self._close()

    def check(self, now: float) -> None:
        """Give up what is overdue."""
        if self._stalled:
            left = self.transport.get_write_buffer_size()
            if left < self._left:
                self._stalled, self._left = now, left
            elif now - self._stalled > self._limits.body_timeout:
                self.transport.abort()
            return
        if self._active is not None or self._turn:
            return  # the server is to blame, if anybody
        waited = now - self._since
        if self._stage is _IDLE and waited > self._limits.keep_alive:
            self._close()
        elif self._stage is not _IDLE:
            in_head = self._stage is _HEAD
            if waited > (self._limits.header_timeout if in_head else self._limits.body_timeout):
                self._end_with(HTTPStatus.REQUEST_TIMEOUT)

    def _take(self, head: _Head, body: bytes) -> bool:
        """A request whose head is known, whole and alone; whether it is taken, and not refused."""
        server = self._server
        if not server.knows or server.held + head.length > self._limits.max_held:
            return False
        server.held += head.length
        self._stage = _IDLE
        request = Request(self, head.method, head.path, head.query, head.headers)
        request.body = body
        self._active = request
        self._replying = True
        self._handle(request)
        self._replying = False
        if self._active is None and (self._paused or self._closing):
            self._go_on()
        return True

    def _know(self, head: bytes, length: int) -> None:
        """Remember what was parsed of a request that came whole and alone, if nothing of it was out of the ordinary."""
        request, known = self._last, self._server.known
        if request.refusal is not None or not request.keep_alive or not _UNUSUAL.isdisjoint(request.headers):
            return
        if request.headers.get("content-length", "0") == str(length):
            if len(known) >= MAX_KNOWN:
                known.clear()
            known[head] = _Head(request.method, request.path, request.query, request.headers, length)

    def _complete(self, request: Request) -> None:
        self._request = None
        self._last = request
        self._completed += 1
        self._enter(_IDLE)
        if request.refusal is None:
            request.body = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks = []
        self._release(self._held - len(request.body))  # from here on what is kept account of is the body
        self._held = 0
        if len(self._turn) >= MAX_PIPELINED:
            self._closing = True
            self._release(len(request.body))
            return
        self._turn.append(request)
        if len(self._turn) > 1 and not self._paused:
            self._paused = True
            self.transport.pause_reading()
        self._go_on()

    def _go_on(self) -> None:
        """One request after the other, unless the client leaves its answers untaken."""
        self._replying = True
        while self._active is None and self._turn and not self._stalled:
            request = self._active = self._turn.popleft()
            if request.refusal is not None:
                request.fail(request.refusal)
            else:
                self._handle(request)
        self._replying = False
        if self._active is None and not self._turn:
            if self._closing:
                self._close()
            elif self._paused and not self.transport.is_closing():
                self._paused = False
                self.transport.resume_reading()

    def _handle(self, request: Request) -> None:
        try:
            self._server.handle(request)
        except Exception:
            request.defect()

    def _refuse_size(self, size: int, counted: int = 0) -> Failure | None:
        """Why a body of this size is not taken, of which so much is counted already."""
        if size > self._limits.max_body:
            return Failure(
                413, "Too large", f"body: {size} bytes or more are not allowed; allowed: at most {self._limits.max_body}"
            )
        if not self._server.fits(size - counted):
            detail = f"no room for another request: those that wait here hold all of the {self._limits.max_held} bytes they may"
            return Failure(429, "Too many requests", detail, retry_after=1.0)
        return None

    def _hold(self, size: int) -> None:
        self._server.held += size - self._held
        self._held = size

    def _release(self, size: int) -> None:
        self._server.held -= size

    def _enter(self, stage: _Stage) -> None:
        self._stage = stage
        self._since = self._server.loop.time()

    def _end_with(self, status: HTTPStatus) -> None:
        """This request will not be one; answers to those before it are still due."""
        if self._active is not None or self._turn:
            self._closing = True
        else:
            self._cut_off(status)

    def _cut_off(self, status: HTTPStatus) -> None:
        if not self.transport.is_closing():
            body = contract.problem(status, status.phrase, _CUT_OFF.get(status, status.phrase))
            self.transport.write(_head(status, contract.PROBLEM, len(body), self._server.date, False, ()) + body)
        self._close()

    def _close(self) -> None:
        self._closing = True
        self.transport.close()


_HEAD_ENDS = b"\r\n\r\n"
MIN_HEAD = len(b"GET / HTTP/1.1\r\n\r\n")
_UNUSUAL = frozenset(("connection", "expect", "transfer-encoding", "upgrade"))
_CUT_OFF = {
    HTTPStatus.BAD_REQUEST: "not a request of HTTP/1.1",
    HTTPStatus.REQUEST_TIMEOUT: "the rest of the request did not come in time",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "headers: larger than is allowed",
    HTTPStatus.SERVICE_UNAVAILABLE: "too many connections",
}
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


@lru_cache(maxsize=256)
def _header_name(name: bytes) -> str:
    return name.decode("latin-1").lower()


@lru_cache(maxsize=256)
def _target(url: bytes) -> tuple[str, str, Failure | None]:
    """Path and query of a request target, or why there are none."""
    try:
        target = httptools.parse_url(url)
    except httptools.HttpParserInvalidURLError:
        return "/", "", Failure(400, "Bad request", f"path: {url[:200]!r} is not allowed; allowed: a path")
    return (target.path or b"/").decode("latin-1"), (target.query or b"").decode("latin-1"), None


@lru_cache(maxsize=64)
def _start_of_head(status: int, content_type: str, date: bytes) -> bytes:
    """Up to the length of the body."""
    line = _LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return b"%bdate: %b\r\ncontent-type: %b\r\ncontent-length: " % (line, date, content_type.encode("latin-1"))


def _head(status: int, content_type: str, length: int, date: bytes, keep_alive: bool, headers: Headers) -> bytes:
    head = b"%b%d\r\n" % (_start_of_head(status, content_type, date), length)
    for name, value in headers:
        head += f"{name}: {value}\r\n".encode("latin-1")
    return head + (b"\r\n" if keep_alive else b"connection: close\r\n\r\n")
