"""One connection of HTTP/1.1 as its server sees it, without a clock and without I/O: bytes in, records out; answers in, bytes out.

What may live here: how far a request has come, whose turn it is, what must come next and by when. What may not: a socket, a task, a
path. httptools parses; here it is only given bytes that can belong to no other request than the one that is being read, so that
there is one request at a time, and what a client sends behind it waits as bytes:

    stage      what comes of the client    what is due to it       goes on when
    IDLE       nothing yet                 nothing                 the next request begins -> HEAD
    HEAD       request line and headers    nothing                 they end -> BODY
    BODY       the body                    an answer               it ends -> TURN; it is answered before -> REST
    REST       the body                    nothing more            it ends -> IDLE
    TURN       what waits                  an answer               it is answered -> IDLE
    ENDED      nothing that is read        nothing                 never

A connection that is not kept goes to ``ENDED`` where it would be ``IDLE``. What is not allowed is refused (``Refused``), and ends
the connection; of a request whose turn has not come it is found out when it comes.

A client says much the same of every request that it sends: a head that was parsed once is known again, byte for byte, where a
request comes whole and alone, and then nothing is parsed.
"""

from __future__ import annotations

import urllib.parse
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import httptools

MAX_HEADER_BYTES = 64 * 1024
MAX_FIELDS = 128
"""Of a head: each is kept as an object or two, which take fifteen times the bytes of the shortest."""
MAX_REST = 64 * 1024 * 1024
"""Bytes that are read of a body whose request is answered already: a client that is cut off while it sends sees no answer."""
HELD_FROM = 4096
"""Bytes from which on a head that waits for its answer is counted as held: what is smaller counts as part of its request."""
AHEAD = 64 * 1024
"""Bytes that are read while a request waits for its answer, as a client that goes away is noticed by reading."""
PORTIONS = 1000
"""Pieces that are parsed at a time: of chunks of a byte a read has tens of thousands, which would hold up all others for 0.1 s."""
MAX_KNOWN = 256
"""Heads that are known again, of at most ``MAX_KNOWN_BYTES`` bytes each."""
MAX_KNOWN_BYTES = 4096

Fields = tuple[tuple[bytes, bytes], ...]
"""Names in lower case, and values."""


class Stage:
    """How far a connection is; a member of ``Enum`` takes ten times as long to look up."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


IDLE, HEAD, BODY, REST, TURN, ENDED = (Stage(name) for name in ("IDLE", "HEAD", "BODY", "REST", "TURN", "ENDED"))

# What happened -> from which stage to which. What is not here cannot happen there, but for the end of the connection.
HEAD_BEGINS: dict[Stage, Stage] = {IDLE: HEAD}
HEAD_ENDS: dict[Stage, Stage] = {HEAD: BODY}
BODY_ENDS: dict[Stage, Stage] = {BODY: TURN, REST: IDLE}
ANSWERED: dict[Stage, Stage] = {BODY: REST, TURN: IDLE}
DUE = frozenset((BODY, TURN))
"""Stages in which there is a request without an answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """Seconds that a client has for a request's headers, for its body, and for beginning its next request."""

    header: float
    body: float
    keep_alive: float


class Head:
    """What a request says before its body: its ``path`` is decoded, its ``query`` is not, names of fields are in lower case.

    ``length`` is that of the body (bytes), 0 where it comes in chunks. ``seen`` is for what its reader makes of it, and is there
    again where the same head comes again; nothing else of a head changes. ``start`` is the head as it came, and ``whole`` the bytes
    of its request, where it is known again.
    """

    __slots__ = (
        *("__weakref__", "chunked", "expects", "fields", "keep_alive", "length", "method", "path", "query", "seen", "start"),
        "whole",
    )

    def __init__(self, method: str, path: str, fields: Fields, keep_alive: bool = True, query: str = "") -> None:
        self.method = method
        self.path = path
        self.query = query
        self.fields = fields
        self.keep_alive = keep_alive
        self.length = 0
        self.chunked = False
        self.expects = False
        self.seen: Any = None
        self.start = b""
        self.whole = 0
        for name, value in fields:
            if name == b"content-length":
                self.length = int(value)
            elif name == b"transfer-encoding":
                self.chunked = True
            elif name == b"expect" and value.lower() == b"100-continue":
                self.expects = True


@dataclass(frozen=True, slots=True)
class Refused:
    """Nothing more is read of this connection: ``answer`` is to be written before it is closed."""

    status: HTTPStatus
    answer: bytes


class End:
    """The request is complete."""


END = End()
Event = Head | bytes | End | Refused
"""What was read: a request begins, a piece of its body, its end; or nothing more is."""


class HttpConnection:
    """One connection, from ``now`` (s) on; ``known`` are the heads that the connections of a server have parsed.

    Headers have at most ``max_head`` bytes and ``MAX_FIELDS`` fields; ``refusal`` writes what a client is told that breaks the
    rules. While ``blocked``, as when the client leaves an answer untaken, nothing is parsed.
    """

    __slots__ = (  # a dictionary of more than 30 attributes takes longer to look in, and more memory
        *("_asked_for_body", "_at", "_blocked", "_chunked", "_complete", "_events", "_fields", "_fresh", "_head", "_head_bytes"),
        *("_heard", "_held_bytes", "_kept", "_known", "_last", "_left", "_line", "_max_head", "_muted", "_other_bytes"),
        *("_parser", "_patience", "_refusal", "_rest_bytes", "_since", "_tail", "_trailers", "_url", "_waits", "_wrong"),
        *("alone", "stage"),
    )

    def __init__(
        self,
        patience: Patience,
        known: dict[bytes, Head],
        now: float,
        max_head: int = MAX_HEADER_BYTES,
        refusal: Callable[[HTTPStatus], bytes] | None = None,
    ) -> None:
        self.stage = IDLE
        self._patience = patience
        self._max_head = max_head
        self._refusal = refusal or bare_refusal
        self._known = known
        self._since = now  # when the stage began
        self._heard = now  # when a piece of a body came last
        self._fresh = True  # who connects has something to say
        self.alone = False  # what came last was a request with a head that is known, whole: nothing is held, and nothing waits
        self._last: weakref.ref[Head] | None = None  # that head: one that is known no more is kept by no idle connection
        self._kept = True  # after the answer that is due
        self._blocked = False
        self._waits = b""  # what was read and not parsed, from _at on
        self._at = 0
        self._tail = b""  # the last bytes of the head that were parsed
        self._head_bytes = 0
        self._held_bytes = 0  # of the head of the request that has no answer yet
        self._url = b""
        self._fields: list[tuple[bytes, bytes]] = []
        self._head: Head | None = None
        self._left = 0  # bytes of the body, or of its chunk, that are known to come
        self._line = b""  # what has come of a request line, then of a body in chunks of each that says how long the next one is
        self._chunked = self._trailers = False  # the body comes in chunks; they are all there
        self._other_bytes = 0  # since the last byte of a body: chunk headers and trailers
        self._rest_bytes = 0  # of a body that nobody reads
        self._asked_for_body = False
        self._complete = False  # the parser has seen the end of a message
        self._wrong: HTTPStatus | None = None  # with what is refused that came: no request, or more than one where one can be
        self._muted = False  # what the parser tells was told before
        self._events: list[Event] = []
        self._parser = self._new_parser()

    # -- what is there

    @property
    def held(self) -> int:
        """Bytes that are kept here: what waits, and the headers of a request that is half-sent or has no answer."""
        return len(self._waits) - self._at + self._held_bytes + (self._head_bytes if self.stage is HEAD else 0)

    @property
    def full(self) -> bool:
        """Whether nothing more is to be read for now."""
        return self._blocked or len(self._waits) - self._at > AHEAD

    @property
    def ready(self) -> bool:
        """Whether some of what waits can be parsed now."""
        return self._at < len(self._waits) and not self._blocked and self.stage is not TURN and self.stage is not ENDED

    # -- what happens

    def again(self, now: float, data: bytes) -> Head | None:
        """Bytes have come: the head of their request, where that comes whole and alone as the last did; else do ``receive``."""
        if not self.alone or self._blocked or self.stage is not IDLE or self._last is None or (head := self._last()) is None:
            return None
        if len(data) != head.whole or not data.startswith(head.start):
            return None
        self._head = head  # all else that _begin sets is as it was
        self._since = self._heard = now
        self.stage = TURN
        return head

    def receive(self, now: float, data: bytes) -> list[Event]:
        """Bytes have come: what they are, up to the end of the first request that has no answer yet."""
        if (head := self.again(now, data)) is not None:
            return [head, data[len(head.start) :], END] if head.length else [head, END]
        if self._waits or self._blocked or self.stage is not IDLE:
            self.alone = False
            if self.stage is ENDED or (self.stage is TURN and not self._kept):
                return []  # nobody reads what follows
            self._heard = now
            self._waits = self._waits[self._at :] + data
            self._at = 0
            return self.go_on(now)
        if (end := data.find(_HEAD_ENDS) + _ENDS) >= _SHORTEST and not self._tail:
            start = data[:end]
            head = self._known.get(start)
            if head is None:
                self.alone = False
                return self._receive_head(now, start, data)
            if len(data) - end == head.length:
                self._begin(now, head)
                self._left = 0
                self.alone, self._last = True, weakref.ref(head)
                self.stage = TURN
                return [head, data[end:], END] if head.length else [head, END]
        self.alone = False
        self._heard = now
        self._waits = data
        return self.go_on(now)

    def _receive_head(self, now: float, start: bytes, data: bytes) -> list[Event]:
        """What begins with a whole head ``start``, and is often a request alone: then nothing waits, and it is not looked for."""
        self._heard = now
        events = self._events = []
        self._parse(now, start)
        behind = len(data) - len(start)
        if behind and self._left == behind and not self._chunked and self.stage is BODY:
            self._take(now, data[len(start) :])
            behind = 0
        self._events = []  # an idle connection keeps nothing of what it read
        if not behind:
            if self.stage is TURN and len(start) <= MAX_KNOWN_BYTES:
                self._remember(start, len(data) - len(start))
        elif self.stage is not ENDED and not (self.stage is TURN and not self._kept):
            self._waits, self._at = data, len(start)
            events += self.go_on(now)
        return events

    def go_on(self, now: float) -> list[Event]:
        """What waits may have its turn: what it is, as ``receive``; of many small pieces the first, and it is ``ready`` then."""
        events: list[Event] = []
        self._events = events
        portions = PORTIONS
        while portions and self.ready:
            portions -= 1
            end = self._at + self._portion()
            part, self._at = self._waits[self._at : end], end
            if self._left and not self._chunked:
                self._take(now, part)
            else:
                self._parse(now, part)
        if self._at >= len(self._waits):
            self._waits, self._at = b"", 0
        self._events = []  # an idle connection keeps nothing of what it read
        return events

    def go_ahead(self) -> bytes:
        """The body is wanted: what a client has to be told that waits for that."""
        if self._head is None or not self._head.expects or self._asked_for_body or self.stage is not BODY:
            return b""
        self._asked_for_body = True
        return b"HTTP/1.1 100 Continue\r\n\r\n"

    def answer(
        self,
        now: float,
        status: int,
        content_type: str,
        length: int | None,
        fields: Fields = (),
        date: bytes = b"",
        close: bool = False,
    ) -> bytes:
        """The head of the answer to the request that is due, with a body of ``length`` bytes; ``None`` where it can have none."""
        stage = ANSWERED.get(self.stage)
        if stage is None or self._head is None:
            raise RuntimeError(f"an answer at stage {self.stage}, where none is due")
        start = _start_of_head(status, date) if length is None else _start_up_to_length(status, content_type, date)
        more = _FIELD * len(fields) % sum(fields, ()) if fields else b""
        if close or (self._head.expects and not self._asked_for_body and self.stage is BODY):
            self._kept = False  # a body that was not asked for may never come
        # From here on nothing fails: what cannot be written above leaves its place to another answer.
        self.stage = stage
        self._since = self._heard = now
        self._head = None
        self._held_bytes = 0
        if not self._kept:
            self._end()
            more += b"connection: close\r\n"
        return b"%b%b\r\n" % (start, more) if length is None else b"%b%d\r\n%b\r\n" % (start, length, more)

    def block(self) -> None:
        """Nothing is to be parsed from now on."""
        self._blocked = True

    def unblock(self, now: float) -> None:
        """What waits may be parsed again; for what comes now the client has all its time."""
        self._blocked = False
        self._since = self._heard = now

    def refuse(self, status: HTTPStatus) -> Refused | None:
        """What comes is not taken: the connection ends, or does so behind the answer that is due (``None``)."""
        self._waits, self._at = b"", 0
        if self.stage is TURN:
            self._kept = False
            return None
        answer = b"" if self.stage is REST or self.stage is ENDED else self._refusal(status)
        self._end()
        return Refused(status, answer)

    def leave(self) -> None:
        """The server is being shut down: the connection ends, with the answer that is due where there is one."""
        self._kept = False
        if self.stage not in DUE:
            self._end()

    def overdue(self, now: float) -> Refused | None:
        """What is to be done if the client has taken too long: it is told, unless it has only kept the connection."""
        stage, waited = self.stage, now - self._since
        if stage is TURN or stage is ENDED or self._blocked:
            return None  # nothing is expected of the client
        if stage is HEAD or self._fresh:
            return self.refuse(HTTPStatus.REQUEST_TIMEOUT) if waited > self._patience.header else None
        if stage is BODY:
            return self.refuse(HTTPStatus.REQUEST_TIMEOUT) if waited > self._patience.body else None
        silent = now - self._heard if stage is REST else waited
        if silent > self._patience.keep_alive or (stage is REST and waited > self._patience.body):
            self._end()
            return Refused(HTTPStatus.REQUEST_TIMEOUT, b"")
        return None

    def close(self) -> None:
        """The connection is lost."""
        self._end()
        del self._parser  # which has this connection: it is freed now, not by the garbage collector

    # -- what the parser tells

    def on_message_begin(self) -> None:
        if self._muted:
            return
        if self.stage is not IDLE:
            self._wrong = HTTPStatus.BAD_REQUEST
            return
        self._enter(HEAD_BEGINS)
        self._head = None
        self._url = b""
        self._fields = []

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.stage is HEAD and not self._muted:  # else it is a trailer, which nobody reads
            if len(self._fields) == MAX_FIELDS:
                self._wrong = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
                return
            self._fields.append((name.lower(), value.rstrip(b" \t")))

    def on_headers_complete(self) -> None:
        if self._muted:
            return
        if not self._line.rpartition(b" ")[2].startswith(_PROTOCOL):  # the parser takes others whose requests look the same
            self._wrong = HTTPStatus.BAD_REQUEST
            return
        parser = self._parser
        version = parser.get_http_version()
        if version == "0.9":
            raise ValueError(version)  # which has no headers, neither of requests nor of answers: the parser makes a refusal of it
        if version not in _VERSIONS:
            self._wrong = HTTPStatus.HTTP_VERSION_NOT_SUPPORTED
            return
        hosts = sum(name == b"host" for name, _ in self._fields)
        if hosts > 1 or (not hosts and version == "1.1"):  # whom it is for others may read differently (RFC 9112, 3.2)
            self._wrong = self._wrong or HTTPStatus.BAD_REQUEST
            return
        if _codes_beneath_chunks(b",".join(value for name, value in self._fields if name == b"transfer-encoding")):
            self._wrong = HTTPStatus.NOT_IMPLEMENTED
            return
        keep_alive = version == "1.1" and parser.should_keep_alive()
        url = httptools.parse_url(self._url)
        path, query = url.path.decode("ascii"), (url.query or b"").decode("ascii")
        if "%" in path:
            path = urllib.parse.unquote(path)
        self._head = Head(parser.get_method().decode("ascii"), path, tuple(self._fields), keep_alive, query)
        if version == "1.0":
            self._head.expects = False  # it would take the request for its body for the answer (RFC 9110, 10.1.1)
        self._url, self._fields = b"", []

    def on_body(self, body: bytes) -> None:
        self._other_bytes = 0
        if self.stage is BODY:
            self._events.append(body)
        else:
            self._rest_bytes += len(body)

    def on_message_complete(self) -> None:
        self._complete = True

    # -- parsing

    def _portion(self) -> int:
        """How many of the bytes that wait are certainly of the request that is being read."""
        waits, at = self._waits, self._at
        if self.stage is IDLE or self.stage is HEAD:
            seam = self._tail + waits[at : at + 3]  # the end of the head may lie across two reads
            if self._tail and (found := seam.find(_HEAD_ENDS)) >= 0:
                return found + _ENDS - len(self._tail)
            found = waits.find(_HEAD_ENDS, at)
            return len(waits) - at if found < 0 else found + _ENDS - at
        if self._left:
            return min(self._left, len(waits) - at)
        found = waits.find(b"\n", at)
        return len(waits) - at if found < 0 else found + 1 - at

    def _parse(self, now: float, part: bytes) -> None:
        before = self.stage
        if in_head := before is IDLE or before is HEAD:
            self._head_bytes += len(part)
            if self._head_bytes > self._max_head:
                self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
                return
            if not self._line.endswith(b"\n"):
                line = (self._line + part).lstrip(b"\r\n")  # empty lines before a request are passed over
                self._line = line[: line.find(b"\n") + 1] or line
        else:
            self._other_bytes += len(part)
        try:
            self._parser.feed_data(part)
        except httptools.HttpParserUpgrade:
            self._decline_upgrade()
        except httptools.HttpParserError:
            self._wrong = self._wrong or HTTPStatus.BAD_REQUEST
        if self._wrong is not None:
            self._refuse(self._wrong)
        elif not in_head:
            self._parsed_body(now, part)
        elif self.stage is HEAD and self._head is not None:
            self._events.append(self._head)
            self._begin(now, self._head)
            if not (self._left or self._head.chunked):
                self._end_body(now)
        else:
            self._tail = (self._tail + part)[-3:]
            if self.stage is not before and not self._fresh:
                self._since = now

    def _begin(self, now: float, head: Head) -> None:
        """A head is complete."""
        self.stage = HEAD_ENDS[HEAD]
        self._since = self._heard = now
        self._head = head
        self._kept = head.keep_alive
        self._left = head.length
        self._chunked = head.chunked
        self._held_bytes = self._head_bytes if self._head_bytes > HELD_FROM else 0
        self._head_bytes = self._other_bytes = self._rest_bytes = 0
        self._tail = self._line = b""
        self._fresh = self._asked_for_body = self._complete = self._trailers = False

    def _take(self, now: float, part: bytes) -> None:
        """A piece of a body whose length is known: nothing of it is parsed, and for what follows there is another parser."""
        self._left -= len(part)
        if self.stage is BODY:
            self._events.append(part)
        else:
            self._rest_bytes += len(part)
        if not self._left:
            self._parser = self._new_parser()
            self._end_body(now)
        elif self._rest_bytes > MAX_REST:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def _parsed_body(self, now: float, part: bytes) -> None:
        """A piece of a body in chunks was parsed, or of what is between them."""
        if self._left:
            self._left -= len(part)
        elif not self._trailers and not self._complete:
            self._line += part
            if part.endswith(b"\n"):
                size = int(self._line.partition(b";")[0], 16)
                self._line = b""
                self._trailers = not size
                self._left = size + len(b"\r\n") if size else 0
        if self._complete:
            self._end_body(now)
        elif self._other_bytes > self._max_head:
            self._refuse(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE)
        elif self._rest_bytes > MAX_REST:
            self._refuse(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def _end_body(self, now: float) -> None:
        if self.stage is BODY:
            self._events.append(END)
        self._left = 0
        self._enter(BODY_ENDS)
        if self.stage is IDLE:
            self._since = now
        if not self._kept:
            self._waits, self._at = b"", 0  # nobody reads what follows

    def _enter(self, table: dict[Stage, Stage]) -> None:
        self.stage = table[self.stage]

    def _refuse(self, status: HTTPStatus) -> None:
        if (refused := self.refuse(status)) is not None:
            self._events.append(refused)

    def _end(self) -> None:
        self.stage = ENDED
        self._held_bytes = 0
        self._waits, self._at = b"", 0

    def _new_parser(self) -> Any:
        return httptools.HttpRequestParser(self)

    def _decline_upgrade(self) -> None:
        """A request that offers another protocol is served as any (RFC 9110, 7.8), though the parser takes its body for that's."""
        self._parser = self._new_parser()
        fields = self._head.fields if self._head is not None else ()
        if framing := [field for field in fields if field[0] in (b"content-length", b"transfer-encoding")]:
            self._muted = True
            try:
                self._parser.feed_data(b"POST / HTTP/1.1\r\n%b: %b\r\n\r\n" % framing[0])
            except httptools.HttpParserError:  # it did not look at an encoding of the other protocol's
                self._wrong = HTTPStatus.BAD_REQUEST
            self._muted = False

    def _remember(self, head: bytes, length: int) -> None:
        """Know the head of a request again that came whole and alone, if nothing of it is out of the ordinary."""
        request = self._head
        if request is None or request.length != length or not request.keep_alive or request.chunked or request.expects:
            return
        if all(name not in _UNUSUAL for name, _ in request.fields):
            if len(self._known) >= MAX_KNOWN:
                self._known.clear()
            request.start, request.whole = head, len(head) + length
            self._known[head] = request


def _codes_beneath_chunks(transfer_encoding: bytes) -> bool:
    """Whether a body is in chunks and coded otherwise beneath, which nobody undoes (RFC 9112, 6.1)."""
    others, _, last = transfer_encoding.rpartition(b",")
    return bool(others) and last.strip().lower() == b"chunked"


def bare_refusal(status: HTTPStatus) -> bytes:
    """An answer that says no more than its status."""
    return b"HTTP/1.1 %d %b\r\nconnection: close\r\ncontent-length: 0\r\n\r\n" % (status, status.phrase.encode())


_PROTOCOL = b"HTTP/"
_VERSIONS = ("1.0", "1.1")
_FIELD = b"%b: %b\r\n"
_HEAD_ENDS = b"\r\n\r\n"
_ENDS = len(_HEAD_ENDS)
_SHORTEST = len(b"GET / HTTP/1.0\r\n\r\n")
_SECRET = (b"authorization", b"cookie", b"proxy-authorization", b"x-api-key")
_OWN = (b"idempotency-key", b"traceparent", b"x-request-id")
_UNUSUAL = frozenset((b"connection", b"upgrade", *_SECRET, *_OWN))
"""Names of fields whose heads are not known again: some are nothing to keep, others are different in each request."""
_LINES = {status.value: f"HTTP/1.1 {status.value} {status.phrase}\r\n".encode() for status in HTTPStatus}


@lru_cache(maxsize=64)
def _start_up_to_length(status: int, content_type: str, date: bytes) -> bytes:
    """Up to the length of the body."""
    return b"%bcontent-type: %b\r\ncontent-length: " % (_start_of_head(status, date), content_type.encode("latin-1"))


def _start_of_head(status: int, date: bytes) -> bytes:
    """What every answer begins with."""
    line = _LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
    return b"%bdate: %b\r\n" % (line, date)
