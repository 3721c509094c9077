"""uvicorn's HTTP protocol with the limits it lacks: half-sent headers and bodies are cut off in time, headers in size.

The size of bodies is bounded by the application (routes.py), which uvicorn calls as soon as the headers are complete. Time is kept
here, because a request that comes whole, as most do, then costs no timer. A request whose connection ends is cancelled here too.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from sluice.buffer_service.routes import TASK

MAX_HEADER_BYTES = 64 * 1024
_REFUSAL = b"HTTP/1.1 %s\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"


def limited_protocol(header_timeout: float, body_timeout: float) -> type[asyncio.Protocol]:
    """The protocol class.

    A connection whose request line and headers are not complete ``header_timeout`` seconds after it was opened, or after its next
    request began, is answered 408 and closed; one whose headers are larger than ``MAX_HEADER_BYTES`` 431; one whose body is not
    complete ``body_timeout`` seconds after its headers 408. Where earlier requests of the connection are still being answered, it
    is closed behind their answers instead.
    """

    class LimitedProtocol(HttpToolsProtocol):
        _due: asyncio.TimerHandle | None = None  # when the rest of the headers, or of the body, must have come
        _in_headers = True
        _in_body = False
        _header_bytes = 0
        _reads = 0  # since the one in which the request began
        _read = 0  # bytes of the last

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._due = self.loop.call_later(header_timeout, self._refuse, b"408 Request Timeout")

        def connection_lost(self, exc: Exception | None) -> None:
            self._disarm()
            super().connection_lost(exc)
            if self.cycle is not None and not self.cycle.response_complete:
                scope: Any = self.cycle.scope
                if (task := scope.get(TASK)) is not None:
                    scope[TASK] = None
                    task.cancel()  # who asked has gone: nobody needs the answer

        def data_received(self, data: bytes) -> None:
            self._read = len(data)
            super().data_received(data)
            if not self._in_headers:
                if self.timeout_keep_alive_task is None and self.cycle.response_complete:
                    # The rest of a body that was answered early, or empty lines: uvicorn has disarmed its timer for good.
                    self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)
                if self._in_body and self._due is None:
                    self._due = self.loop.call_later(body_timeout, self._give_up_body)
                return
            # Most requests come whole and never get here: only what is left half-sent is counted and timed. The read in which a
            # request began may hold the body of the one before, and is not counted.
            if self._reads:
                self._header_bytes += len(data)
            self._reads += 1
            if self._header_bytes > MAX_HEADER_BYTES:
                self._refuse(b"431 Request Header Fields Too Large")
            elif self._due is None:
                self._due = self.loop.call_later(header_timeout, self._refuse, b"408 Request Timeout")

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
            self._in_headers, self._in_body = False, True
            self._disarm()
            super().on_headers_complete()

        def on_message_complete(self) -> None:
            self._in_body = False
            self._disarm()
            super().on_message_complete()

        def send_400_response(self, msg: str) -> None:
            if not self._answers_under_way() and not self.transport.is_closing():
                super().send_400_response(msg)

        def _disarm(self) -> None:
            if self._due is not None:
                self._due.cancel()
                self._due = None

        def _refuse(self, status: bytes) -> None:
            self._disarm()
            if not self._answers_under_way() and not self.transport.is_closing():
                self.transport.write(_REFUSAL % status)
                self.transport.close()

        def _give_up_body(self) -> None:
            """The body did not come in time, unless it is not being read: then an earlier answer is what keeps it waiting."""
            self._disarm()
            if self.pipeline:
                self._due = self.loop.call_later(body_timeout, self._give_up_body)
            elif not self.transport.is_closing():
                if not self.cycle.response_started:
                    self.transport.write(_REFUSAL % b"408 Request Timeout")
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
