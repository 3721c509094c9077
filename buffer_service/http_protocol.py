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
    request began, is answered 408 and closed; one whose headers are larger than ``MAX_HEADER_BYTES`` 431. Where earlier requests of
    the connection are still being answered, it is closed behind their answers instead.
    """

    class LimitedProtocol(HttpToolsProtocol):
        _headers_due: asyncio.TimerHandle | None = None
        _in_headers = True
        _header_bytes = 0
        _reads = 0  # since the one in which the request began
        _read = 0  # bytes of the last

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._headers_due = self.loop.call_later(header_timeout, self._refuse, b"408 Request Timeout")

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            self._read = len(data)
            super().data_received(data)
            if not self._in_headers:
                if self.timeout_keep_alive_task is None and self.cycle.response_complete:
                    # The rest of a body that was answered early, or empty lines: uvicorn has disarmed its timer for good.
                    self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
                return
            # Most requests come whole and never get here: only what is left half-sent is counted and timed. The read in which a
            # request began may hold the body of the one before, and is not counted.
            if self._reads:
                self._header_bytes += len(data)
            self._reads += 1
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")
            elif self._headers_due is None:
                self._headers_due = self.loop.call_later(header_timeout, self._refuse, b"408 Request Timeout")

        def on_message_begin(self) -> None:
            super().on_message_begin()
            self._in_headers = True
            self._header_bytes = self._reads = 0

        def on_headers_complete(self) -> None:
            if self._reads or self._read > MAX_HEADER_BYTES:
                size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
                if size > MAX_HEADER_BYTES:
                    self._refuse(b"431 Request Header Fields Too Large")
                    raise _Refused  # stops the parser
            self._in_headers = False
            self._disarm()
            super().on_headers_complete()

        def send_400_response(self, msg: str) -> None:
            if not self._answers_under_way() and not self.transport.is_closing():
                super().send_400_response(msg)

        def _disarm(self) -> None:
            if self._headers_due is not None:
                self._headers_due.cancel()
                self._headers_due = None

        def _refuse(self, status: bytes) -> None:
            self._disarm()
            if not self._answers_under_way() and not self.transport.is_closing():
                self.transport.write(_REFUSAL % status)
                self.transport.close()

        def _answers_under_way(self) -> bool:
            """Whether earlier requests are being answered; if so, the connection closes behind the last of them."""
            if self.cycle is None or self.cycle.response_complete:
                return False
            self.cycle.keep_alive = False
            self.flow.pause_reading()
            return True

    return LimitedProtocol


class _Refused(Exception):
    """The request was answered before it reached the application."""
