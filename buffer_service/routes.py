"""HTTP: paths to the service's methods, errors to status codes. Raw ASGI, since the frameworks cost more than the buffer itself.

    POST /models/{model}                              any body, passed through untouched
    POST /v2/models/{model}[/versions/{v}]/infer      Open Inference Protocol v2 (JSON, or with the binary tensor extension)
    GET  /v2/models/{model}[/versions/{v}][/ready]    the model's metadata; whether it is served
    GET  /v2  /v2/health/live  /v2/health/ready       the server; ready where all models are, and not while it is shut down
    GET  /metrics                                     Prometheus
    GET  /  /status                                   the live page, and what it reads (page/)

A body is never parsed for its meaning, but for the size or the class of a request where the plan has them told there; JSON is only
checked to be JSON, because it is embedded as it is into a batch. Errors are
problem details (RFC 9457) with one more member, ``error``, where clients of the Open Inference Protocol look for the text.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from http import HTTPStatus
from types import TracebackType
from typing import Any, Protocol

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from sluice.batching.errors import (
    DeadlinePassed,
    DispatchFailed,
    Draining,
    FunctionFailed,
    FunctionSuspended,
    Infeasible,
    InvalidInput,
    KeyRefused,
    ModelNotAllowed,
    NoRoom,
    NotConverged,
    Overloaded,
    PayloadTooLarge,
    QueueFull,
    RateExceeded,
    SluiceError,
    StoreUnavailable,
    UnknownKey,
    UnknownModel,
    UnsupportedEncoding,
)
from sluice.buffer_service.page.door import HTML, Door
from sluice.buffer_service.room import Room, Share
from sluice.buffer_service.served_model import ServedModel
from sluice.buffer_service.settings import Settings
from sluice.buffer_service.telemetry import Telemetry
from sluice.buffer_service.told import CLASS_HEADER, DEADLINE_HEADER
from sluice.lambda_fn.contract import INFERENCE_HEADER, JSON, PROBLEM, WireError, check_json, is_json, problem

# The one table from errors to status codes; the nearest named ancestor counts.
STATUS_CODES: dict[type[SluiceError], HTTPStatus] = {
    InvalidInput: HTTPStatus.BAD_REQUEST,
    UnknownModel: HTTPStatus.NOT_FOUND,
    PayloadTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    UnsupportedEncoding: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    KeyRefused: HTTPStatus.FORBIDDEN,
    UnknownKey: HTTPStatus.UNAUTHORIZED,
    ModelNotAllowed: HTTPStatus.FORBIDDEN,
    RateExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    DispatchFailed: HTTPStatus.BAD_GATEWAY,
    QueueFull: HTTPStatus.TOO_MANY_REQUESTS,
    Overloaded: HTTPStatus.TOO_MANY_REQUESTS,
    NoRoom: HTTPStatus.SERVICE_UNAVAILABLE,
    StoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    Draining: HTTPStatus.SERVICE_UNAVAILABLE,
    FunctionFailed: HTTPStatus.BAD_GATEWAY,
    FunctionSuspended: HTTPStatus.SERVICE_UNAVAILABLE,
    DeadlinePassed: HTTPStatus.GATEWAY_TIMEOUT,
    # The optimizer's errors do not occur while serving.
    Infeasible: HTTPStatus.INTERNAL_SERVER_ERROR,
    NotConverged: HTTPStatus.INTERNAL_SERVER_ERROR,
}

WITHOUT_BODY = frozenset({HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED})
CONNECTION = "sluice.connection"
"""In the scope of a request: the ``Connection`` that it came by, where that can be lost."""
_INFERENCE_HEADER = INFERENCE_HEADER.encode()
TOLD_BY = (CLASS_HEADER, DEADLINE_HEADER)
BINARY = "application/octet-stream"
REQUEST_BYTES = 8 * 1024  # that a request takes of the memory beside its body while it waits (7 KB measured)
MAX_DISCARDED = 64 * 1024 * 1024  # bytes

Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Headers = Iterable[tuple[bytes, bytes]]

_log = logging.getLogger(__name__)


class Connection:
    """What a request needs of the connection that it came by: to be cancelled when that is lost.

    As a context: the task waits for an answer that nobody needs without the connection.
    """

    __slots__ = ("_task", "lost")

    def __init__(self) -> None:
        self.lost = False
        self._task: asyncio.Task[Any] | None = None

    def __enter__(self) -> None:
        self._task = asyncio.current_task()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._task = None

    def lose(self) -> None:
        """The client has gone."""
        self.lost = True
        if self._task is not None:
            self._task.cancel()


class Service(Protocol):
    """What the routes need of the composition root."""

    settings: Settings
    telemetry: Telemetry
    waiting: Room
    page: Door | None

    def model(self, name: str) -> ServedModel: ...

    def admit(self, name: str, headers: Headers, counts: bool = True) -> str: ...

    async def describe(self, name: str) -> dict[str, Any]: ...

    async def unready(self, name: str | None = None) -> str | None: ...


class Routes:
    """The ASGI application, but for its lifespan."""

    def __init__(self, service: Service, version: str) -> None:
        self._service = service
        self._max_body_bytes = service.settings.max_body_bytes
        self._server = {"name": "sluice", "version": version, "extensions": ["binary_tensor_data"]}

    async def __call__(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        try:
            await self._route(scope, receive, send)
        except SluiceError as error:
            extra: list[tuple[bytes, bytes]] = []
            if isinstance(error, (QueueFull, Overloaded, NoRoom, FunctionSuspended, RateExceeded)):
                extra.append((b"retry-after", str(max(1, math.ceil(error.retry_after))).encode()))
            if isinstance(error, StoreUnavailable):
                extra.append((b"retry-after", b"1"))  # the store is tried ten times as often
            if isinstance(error, UnknownKey):
                extra.append((b"www-authenticate", b"Bearer"))
            if isinstance(error, PayloadTooLarge):
                extra.append((b"connection", b"close"))  # there may be more of it than was read
            await _refuse(send, status_code(error), str(error), extra)
        except asyncio.CancelledError:
            if not (connection := scope.get(CONNECTION)) or not connection.lost:
                raise  # the server gives up; else the client did, and there is nobody to be told
        except Exception:
            _log.exception("request failed: %s %s", scope["method"], scope["path"])
            await _refuse(send, HTTPStatus.INTERNAL_SERVER_ERROR, "an error inside the buffer; its log has the details")

    async def _route(self, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        method = scope["method"]
        match scope["path"].strip("/").split("/"):
            case ["models", model] | ["v2", "models", model, "infer"] | ["v2", "models", model, "versions", _, "infer"]:
                if method == "POST":
                    of_class = self._service.admit(model, scope["headers"])
                    return await self._infer(model, of_class, scope, receive, send)
                allowed = "POST"
            case ["v2", "models", model] | ["v2", "models", model, "versions", _]:
                if method == "GET":
                    self._service.admit(model, scope["headers"], counts=False)
                    return await _send_json(send, await self._service.describe(model))
                allowed = "GET"
            case ["v2", "models", model, "ready"] | ["v2", "models", model, "versions", _, "ready"]:
                if method == "GET":
                    return await self._tell_ready(send, {"name": model}, model)
                allowed = "GET"
            case ["v2"]:
                if method == "GET":
                    return await _send_json(send, self._server)
                allowed = "GET"
            case ["v2", "health", "live"]:
                if method == "GET":
                    return await _send_json(send, {"live": True})
                allowed = "GET"
            case ["v2", "health", "ready"]:
                if method == "GET":
                    return await self._tell_ready(send, {})
                allowed = "GET"
            case ["metrics"]:
                if method == "GET":
                    text = generate_latest(self._service.telemetry.registry)
                    return await _respond(send, HTTPStatus.OK, CONTENT_TYPE_LATEST, text)
                allowed = "GET"
            case [""] if (page := self._service.page) is not None:
                if method == "GET":
                    return await _send_page(send, page, scope["headers"])
                allowed = "GET"
            case ["status"] if (page := self._service.page) is not None:
                if method == "GET":
                    return await _respond(send, HTTPStatus.OK, JSON, await page.status(), page.status_headers)
                allowed = "GET"
            case _:
                return await _refuse(send, HTTPStatus.NOT_FOUND, f"path: {scope['path']!r} is not served")
        detail = f"method: {method!r} is not allowed; allowed: {allowed}"
        await _refuse(send, HTTPStatus.METHOD_NOT_ALLOWED, detail, [(b"allow", allowed.encode())])

    async def _tell_ready(self, send: Send, document: dict[str, Any], model: str | None = None) -> None:
        reason = await self._service.unready(model)
        if reason is None:
            return await _send_json(send, document | {"ready": True})
        await _send_json(send, document | {"ready": False, "reason": reason}, HTTPStatus.SERVICE_UNAVAILABLE)

    async def _infer(self, model: str, of_class: str, scope: dict[str, Any], receive: Receive, send: Send) -> None:
        served = self._service.model(model)
        served.telemetry.came += 1
        content_type = ""
        declared = 0
        headers: dict[str, str] = {}
        said: dict[bytes, bytes] = {}
        for name, value in scope["headers"]:
            if name == b"content-type":
                content_type = value.decode("latin-1")
            elif name == b"content-length":
                declared = int(value)
            elif name == _INFERENCE_HEADER:
                headers[INFERENCE_HEADER] = value.decode("latin-1")
            elif name == b"content-encoding" and value.lower() != b"identity":
                raise UnsupportedEncoding("content-encoding", value.decode("latin-1"), "identity")
            elif name in TOLD_BY:
                said[name] = value
        if of_class:
            said[CLASS_HEADER] = of_class.encode()
        if not content_type:
            content_type = JSON if scope["path"].endswith("/infer") and not headers else BINARY
        with self._service.waiting.share() as held:
            try:
                body = await self._read_body(declared, receive, held)
            except NoRoom as error:
                served.telemetry.refused(error)
                raise
            if is_json(content_type):
                try:
                    check_json(body)
                except WireError as error:
                    raise InvalidInput("body", body[:80], f"what {content_type} says it is ({error})") from None
            with scope.get(CONNECTION) or Connection():
                told = served.told(scope["headers"], said, headers, body)
                answer = await served.submit(content_type, headers, body, told)
        extra = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
        await _respond(send, answer.status, answer.content_type, answer.body, extra)

    async def _read_body(self, declared: int, receive: Receive, held: Share) -> bytes:
        """The body; one that is too large is read to its end all the same, for a client cut off while it sends sees no answer.

        Raises ``NoRoom`` as soon as it finds none; the server discards what still comes.
        """
        if declared <= self._max_body_bytes:
            held.require(REQUEST_BYTES + declared)
        held.grow(REQUEST_BYTES)
        chunks: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise InvalidInput("body", f"{size} bytes", "a complete body; the client went away")
            chunk = message.get("body", b"")
            size += len(chunk)
            if size <= self._max_body_bytes:
                held.grow(len(chunk))
                chunks.append(chunk)
            if not message.get("more_body") or size > MAX_DISCARDED:
                break
        if size > self._max_body_bytes:
            raise PayloadTooLarge(max(size, declared), self._max_body_bytes)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def status_code(error: SluiceError) -> HTTPStatus:
    """The status code of an error."""
    return next(STATUS_CODES[kind] for kind in type(error).__mro__ if kind in STATUS_CODES)


async def _respond(send: Send, status: int, content_type: str, body: bytes, extra: Headers = ()) -> None:
    if status in WITHOUT_BODY:
        body = b""  # such an answer ends with its headers; more would be taken for the next one
    headers = [(b"content-type", content_type.encode("latin-1")), (b"content-length", b"%d" % len(body)), *extra]
    await send({"type": "http.response.start", "status": int(status), "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_page(send: Send, page: Door, headers: Headers) -> None:
    """The live page, unless the client has it."""
    status, body = (HTTPStatus.NOT_MODIFIED, b"") if page.has(headers) else (HTTPStatus.OK, page.page)
    await _respond(send, status, HTML, body, page.page_headers)


async def _send_json(send: Send, document: Any, status: int = HTTPStatus.OK) -> None:
    await _respond(send, status, JSON, msgspec.json.encode(document))


async def _refuse(send: Send, status: HTTPStatus, detail: str, extra: Headers = ()) -> None:
    await _respond(send, status, PROBLEM, problem(status, status.phrase, detail), extra)
