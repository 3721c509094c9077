"""Requests over HTTP as the worker takes them: whole, within bounds, each answered once.

What may live here: how much of bodies may be held, and how a failure is told. What may not: paths and models; nor sockets and the
protocol, which the worker shares with the buffer (sluice/http). A request is handed over when its body is complete, and answered by
``Request.reply``, at once or later. A request that is refused is read to its end all the same, up to ``MAX_DISCARDED`` bytes, for a
client that is cut off while it sends sees no answer.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import NamedTuple

from sluice.http import server
from sluice.http.connection import Head, Patience
from sluice.http.pieces import Pieces
from sluice.http.room import Connections, Room
from sluice.http.server import Client

from .. import contract

MAX_DISCARDED = 64 * 1024 * 1024
"""Bytes of the body of a refused request that are read."""

Headers = Iterable[tuple[str, str]]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class HttpLimits:
    """Bytes, seconds and numbers that the server allows.

    ``max_held`` bounds what is read and not answered, bodies and what waits behind them, and the answers that are not taken, each.
    A client has ``header_timeout`` s for a request's headers, ``body_timeout`` s for its body and for taking some of its answer; a
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
    """One request. Its body is there when it is handed over; ``on_gone`` is called once if its client goes before the answer.

    ``pieces`` are the body as it came, none of them empty but where it is alone; ``body`` is all of it, in one copy where it came
    in several.
    """

    __slots__ = (
        *("_client", "_coming", "_counted", "_server", "_size"),
        *("headers", "method", "on_gone", "path", "pieces", "query", "refusal"),
    )

    def __init__(self, server: HttpServer, head: Head, client: Client) -> None:
        if head.seen is None:
            head.seen = {name.decode("latin-1"): value.decode("latin-1") for name, value in head.fields}
        self._server = server
        self._client: Client | None = client
        self._counted = 0  # bytes of the body for which there is room
        self._size = 0  # of which so many have come
        self._coming: Pieces | None = None  # where it comes in several
        self.method = head.method
        self.path = head.path
        self.query = head.query
        self.headers: dict[str, str] = head.seen
        self.pieces: Sequence[bytes] = (b"",)
        self.on_gone: Callable[[], None] | None = None
        self.refusal = server.screen(self)
        if head.length and self.refusal is None:
            self.refusal = self._refuse_size(head.length)

    @property
    def body(self) -> bytes:
        """All of it."""
        if len(self.pieces) > 1:
            self.pieces = (b"".join(self.pieces),)
        return self.pieces[0]

    def reply(self, status: int, content_type: str, body: bytes, headers: Headers = (), close: bool = False) -> None:
        """Answer; an answer to a client that has gone is dropped, and so is a second one. ``close``: and end the connection."""
        client, self._client = self._client, None
        self.on_gone = None
        if self._counted:
            self._count(0)
        if client is not None:
            fields = tuple([(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]) if headers else ()
            client.reply(status, content_type, body, fields, close)

    def fail(self, failure: Failure, told: Headers = (), close: bool = False) -> None:
        """Answer with a problem document, and what is ``told`` beside it."""
        headers = [*told]
        if failure.retry_after is not None:
            headers.append(("retry-after", str(max(1, -int(-failure.retry_after // 1)))))
        if failure.allow:
            headers.append(("allow", failure.allow))
        problem = contract.problem(failure.status, failure.title, failure.detail)
        self.reply(failure.status, contract.PROBLEM, problem, headers, close)

    def defect(self) -> None:
        """Answer that the exception which is handled now is not the client's."""
        _log.exception("request failed: %s %s", self.method, self.path)
        self.fail(Failure(500, "Internal server error", "an error inside the worker; its log has the details"))

    # -- what the server tells

    def piece(self, body: bytes) -> None:
        """Some of the body has come."""
        self._size += len(body)
        if self._size > self._counted and self.refusal is None:  # it comes in chunks, and nothing was declared
            self.refusal = self._refuse_size(self._size)
        if self.refusal is not None:
            self._count(0)
            self.pieces, self._coming = (b"",), None
            if self._size > MAX_DISCARDED:
                self.fail(self.refusal, close=True)
        elif self._coming is not None:
            self._coming.add(body)
        elif self.pieces[0]:
            self._coming = Pieces()
            self._coming.add(self.pieces[0])
            self._coming.add(body)
        else:
            self.pieces = (body,)

    def end(self, last: bytes = b"") -> None:
        """It is complete: what is done with it is said by whoever serves."""
        if last:
            self.piece(last)
        if self.refusal is not None:
            self.fail(self.refusal)
            return
        if self._coming is not None:
            self.pieces, self._coming = self._coming.take_all(), None
        try:
            self._server.handle(self)
        except Exception:
            self.defect()

    def gone(self) -> None:
        """Nobody waits for an answer any more."""
        gone, self.on_gone = self.on_gone, None
        self._client = None
        self._count(0)
        if gone is not None:
            gone()

    def _count(self, size: int) -> None:
        """So many bytes take room from now on."""
        self._server.bodies.taken += size - self._counted
        self._counted = size

    def _refuse_size(self, size: int) -> Failure | None:
        """Why a body of this size is not taken; where it is, there is room for it from now on."""
        limits, bodies = self._server.limits, self._server.bodies
        if size > limits.max_body:
            return Failure(413, "Too large", f"body: {size} bytes or more are not allowed; allowed: at most {limits.max_body}")
        if bodies.taken + size - self._counted > bodies.limit:
            detail = f"no room for another request: those that wait here hold all of the {limits.max_held} bytes they may"
            return Failure(429, "Too many requests", detail, retry_after=1.0)
        self._count(size)
        return None


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
        self.limits = limits = limits or HttpLimits()
        self.bodies, self.untaken = Room(limits.max_held), Room(limits.max_held)
        patience = Patience(header=limits.header_timeout, body=limits.body_timeout, keep_alive=limits.keep_alive)
        connections = Connections(limits.max_connections)
        self.sockets = server.HttpServer(
            self._begin, patience, self.bodies, self.untaken, connections, limits.max_headers, _cut_off
        )

    @property
    def held(self) -> int:
        """Bytes of what is read and not answered."""
        return self.bodies.taken

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self.sockets.connections)

    async def start(self, listener: socket.socket) -> None:
        """Listen; returns when connections are taken."""
        await self.sockets.start_on(listener)

    def stop_listening(self) -> None:
        """No new connections from now on."""
        self.sockets.stop_listening()

    async def leave(self, timeout: float) -> None:
        """From now on connections end with the answers that are due, and those that are idle at once; for ``timeout`` s at most."""
        await self.sockets.leave(timeout)

    def close(self) -> None:
        """End at once."""
        self.sockets.close()

    def _begin(self, head: Head, client: Client) -> Request | None:
        request = Request(self, head, client)
        if head.expects:
            if request.refusal is not None:
                request.fail(request.refusal)  # and none of the body is asked for
                return None
            client.go_ahead()
        return request


_SAID = {
    HTTPStatus.BAD_REQUEST: "not a request of HTTP/1.1, which has one host",
    HTTPStatus.NOT_IMPLEMENTED: "transfer-encoding: chunked is understood alone",
    HTTPStatus.HTTP_VERSION_NOT_SUPPORTED: "HTTP/1.1 is understood, and HTTP/1.0",
    HTTPStatus.REQUEST_TIMEOUT: "the rest of the request did not come in time",
    HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE: "headers: larger than is allowed",
    HTTPStatus.SERVICE_UNAVAILABLE: "too many connections, or too much on them that waits",
}


@lru_cache(maxsize=16)
def _cut_off(status: HTTPStatus) -> bytes:
    """What a client is told that breaks the rules, before its connection ends."""
    body = contract.problem(status, status.phrase, _SAID.get(status, status.phrase))
    head = f"HTTP/1.1 {status.value} {status.phrase}\r\ncontent-type: {contract.PROBLEM}\r\nconnection: close\r\n"
    return b"%bcontent-length: %d\r\n\r\n%b" % (head.encode(), len(body), body)
