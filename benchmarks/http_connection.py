"""One connection of a load generator: a request at a time, each when its owner says so."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Sequence
from typing import cast
from urllib.parse import SplitResult

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


class Connection(asyncio.Protocol):
    """A keep-alive connection; ``answered`` gets each whole answer, its head and its body."""

    def __init__(self, answered: Callable[[Connection, bytes, bytes], None]) -> None:
        self._answered = answered
        self._buffer = b""
        self.closed = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are no subclasses

    def send(self, request: bytes) -> None:
        """Send a request; the one before is answered."""
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer = self._buffer + data if self._buffer else data
        head = buffer.find(b"\r\n\r\n")
        if head < 0:
            return
        length = _LENGTH.search(buffer, 0, head)
        end = head + 4 + (int(length[1]) if length else 0)
        if len(buffer) < end:
            return
        self._buffer = b""
        self._answered(self, buffer[:head], buffer[head + 4 : end])

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed.done():
            self.closed.set_result(None)


def json_request(where: SplitResult, body: bytes) -> bytes:
    """A POST of JSON."""
    return request(where, body, ["content-type: application/json"])


def request(where: SplitResult, body: bytes, headers: Sequence[str]) -> bytes:
    """A POST with these headers, each ``name: value``."""
    head = "".join(f"{line}\r\n" for line in (f"POST {where.path} HTTP/1.1", f"host: {where.netloc}", *headers))
    return head.encode() + b"content-length: %d\r\n\r\n" % len(body) + body


async def connect(where: SplitResult, answered: Callable[[Connection, bytes, bytes], None]) -> Connection:
    """A connection to the host and port of a URL."""
    assert where.hostname is not None and where.port is not None
    _, connection = await asyncio.get_running_loop().create_connection(lambda: Connection(answered), where.hostname, where.port)
    return connection
