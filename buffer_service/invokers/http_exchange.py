"""One connection to a server of HTTP/1.1 as its client sees it, without a clock and without I/O: bytes in, answers out.

What may live here: how far an answer has come, and what must come next. What may not: a socket, a task, who asked. httptools parses
heads and chunks; the bytes of a body whose length is known are taken as they come:

    stage     what comes                              goes on when
    IDLE      nothing: what comes breaks it           a request is sent -> HEAD
    HEAD      status line and headers                 they end, and are no interim answer -> LENGTH, CHUNKS, REST or DONE
    LENGTH    the body, of a known length             it is there -> DONE
    CHUNKS    the body in chunks                      the last one, and what trails it, is there -> DONE
    REST      the body, up to the connection's end    that comes -> DONE
    DONE      nothing                                 a request is sent, where the connection is kept -> HEAD

What comes behind an answer was not asked for, and the connection is not kept then.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Any

import httptools

MAX_HEAD_BYTES = 64 * 1024
"""Bytes of a head, and of what stands between two pieces of a body or behind the last."""


class Stage:
    """How far an answer is; a member of ``Enum`` takes ten times as long to look up."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


IDLE, HEAD, LENGTH, CHUNKS, REST, DONE = (Stage(name) for name in ("IDLE", "HEAD", "LENGTH", "CHUNKS", "REST", "DONE"))

ASKED: dict[Stage, Stage] = {IDLE: HEAD, DONE: HEAD}
"""What a request changes; elsewhere there can be none."""
WITHOUT_BODY = frozenset((204, 304))


class NotHttp(Exception):
    """What came is no answer of HTTP/1.1, or is larger than one may be; the message says which."""


class HttpExchange:
    """One connection: ``status`` and ``fields`` are those of the answer whose head came last, names in lower case."""

    __slots__ = ("_complete", "_framing", "_head", "_left", "_parser", "_pieces", "fields", "kept", "stage", "status")

    def __init__(self) -> None:
        self.stage = IDLE
        self.status = 0
        self.fields: dict[str, str] = {}
        self.kept = True
        """Whether the server takes another request when this one is answered."""
        self._head = b""  # what has come of a head
        self._left = 0  # bytes of the body that are to come
        self._framing = 0  # bytes since the last byte of a body in chunks
        self._pieces: list[bytes] = []
        self._complete = False  # the parser has seen the end of the answer
        self._parser: Any = None

    def ask(self) -> None:
        """A request is sent."""
        self.stage = ASKED[self.stage]

    def receive(self, data: bytes) -> bytes:
        """Bytes have come: what of the body is in them. Raises ``NotHttp``; nothing more is to be asked then."""
        stage = self.stage
        if stage is HEAD:
            return self._read_head(data)
        if stage is LENGTH:
            return self._read_length(data)
        if stage is CHUNKS:
            return self._read_chunks(data)
        if stage is REST:
            return data
        self.kept = False
        raise NotHttp("it says what it was not asked")

    def end(self) -> bool:
        """The connection has ended; whether an answer is complete by that."""
        self.kept = False
        self._parser = None
        if self.stage is not REST:
            return False
        self.stage = DONE
        return True

    # -- what the parser tells

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.stage is HEAD:  # else it trails the body, and nobody reads it
            self.fields[_name(name)] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        if not self._complete:  # else it is of what comes behind the answer, as is a body then
            self.kept = self._parser.should_keep_alive()

    def on_body(self, body: bytes) -> None:
        if not self._complete:
            self._pieces.append(body)

    def on_message_begin(self) -> None:
        if self._complete:
            self.kept = False

    def on_message_complete(self) -> None:
        self._complete = True

    # -- reading

    def _read_head(self, data: bytes) -> bytes:
        before = len(self._head)
        if before:
            data = self._head + data
        while True:
            found = _HEAD_ENDS.search(data, max(0, before - 3))
            if (found.end() if found else len(data)) > MAX_HEAD_BYTES:
                raise NotHttp(f"headers of more than {MAX_HEAD_BYTES} bytes")
            if found is None:
                self._head = data
                return b""
            self._parse(data[: found.end()])
            data, before = data[found.end() :], 0
            self._head = b""
            if self.status >= 200:  # what comes before is interim (RFC 9110, 15.2)
                return self._begin_body(data)

    def _parse(self, head: bytes) -> None:
        self.fields = {}
        self._complete = False
        parser = self._parser = httptools.HttpResponseParser(self)
        try:
            parser.feed_data(head)
        except httptools.HttpParserUpgrade:
            raise NotHttp("it goes on in another protocol") from None
        except httptools.HttpParserError as error:
            raise NotHttp(f"not an answer of HTTP/1.1: {error}") from None
        self.status = parser.get_status_code()

    def _begin_body(self, data: bytes) -> bytes:
        fields = self.fields
        parser, self._parser = self._parser, None  # which has this connection: it is freed now, not by the garbage collector
        if self.status in WITHOUT_BODY:
            length = 0
        elif "transfer-encoding" in fields:
            if fields["transfer-encoding"].rpartition(",")[2].strip().lower() != "chunked":
                return self._begin_rest(data)
            self.stage = CHUNKS
            self._parser = parser
            self._framing = 0
            return self._read_chunks(data) if data else b""
        elif "content-length" in fields:
            length = int(fields["content-length"])  # which the parser has seen to be a number
        else:
            return self._begin_rest(data)
        self._left = length
        self.stage = LENGTH
        return self._read_length(data)

    def _begin_rest(self, data: bytes) -> bytes:
        self.kept = False
        self.stage = REST
        return data

    def _read_length(self, data: bytes) -> bytes:
        left = self._left - len(data)
        if left > 0:
            self._left = left
            return data
        self.stage = DONE
        if left < 0:
            self.kept = False
            return data[: self._left]
        return data

    def _read_chunks(self, data: bytes) -> bytes:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._complete:
                raise NotHttp(f"not an answer of HTTP/1.1: {error}") from None
            self.kept = False
        pieces, self._pieces = self._pieces, []
        self._framing = 0 if pieces else self._framing + len(data)
        if self._framing > MAX_HEAD_BYTES:
            raise NotHttp(f"{MAX_HEAD_BYTES} bytes and more between two pieces of its body")
        if self._complete:
            self.stage = DONE
            self._parser = None
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


_HEAD_ENDS = re.compile(rb"\n\r?\n")


@lru_cache(maxsize=256)
def _name(name: bytes) -> str:
    return name.decode("latin-1").lower()
