"""uvicorn's HTTP protocol with the two limits it lacks: headers that do not end in time or in size close the connection.

Bodies are bounded by the application (routes.py), which uvicorn calls as soon as the headers are complete.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 64 * 1024
_REFUSAL = b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def limited_protocol(header_timeout: float) -> type[asyncio.Protocol]:
    """The protocol class.

    A connection whose request line and headers are not complete ``header_timeout`` seconds after it was opened, or after its next
    request began, is answered 408 and closed.
    """

    class LimitedProtocol(HttpToolsProtocol):
        _headers_due: asyncio.TimerHandle | None = None
        _in_headers = True
        _header_bytes = 0

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._headers_due = self.loop.call_later(header_timeout, self._refuse, b"408 Request Timeout")

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if not self._in_headers:
                return
            # Most requests come whole and never get here: only what is left half-sent is counted and timed.
            self._header_bytes += len(data)
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")
            elif self._headers_due is None:
                self._headers_due = self.loop.call_later(header_timeout, self._refuse, b"408 Request Timeout")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_headers = True
            self._header_bytes = 0

        def on_headers_complete(self) -> None:
            self._in_headers = False
            self._disarm()
            super().on_headers_complete()

        def _disarm(self) -> None:
            if self._headers_due is not None:
                self._headers_due.cancel()
                self._headers_due = None

        def _refuse(self, status: bytes) -> None:
            self._disarm()
            if not self.transport.is_closing():
                self.transport.write(_REFUSAL % status)
                self.transport.close()

    return LimitedProtocol
