"""HTTP: paths to the service's methods, errors to status codes.

    POST /models/{model}                              any body, passed through untouched
    POST /v2/models/{model}[/versions/{v}]/infer      Open Inference Protocol v2 (JSON, or with the binary tensor extension)
    GET  /v2/models                                   the models that are served
    GET  /v2/models/{model}[/versions/{v}][/ready]    the model's metadata; whether it is served
    GET  /v2/models/{model}/results/{id}              an answer that is kept (kept_requests.py); DELETE gives it up
    GET  /v2  /v2/health/live  /v2/health/ready       the server; ready where all models are, and not while it is shut down
    GET  /openapi.json                                this interface (openapi.py)
    GET  /metrics                                     Prometheus
    GET  /  /status                                   the live page, and what it reads (page/)

Where GET is, HEAD is; OPTIONS says which methods a path has.

A body is never parsed for its meaning, but for the size, the class or the deadline of a request where the plan has them told there;
JSON is only checked to be JSON, because it is embedded as it is into a batch. Errors are
problem details (RFC 9457) with one more member, ``error``, where clients of the Open Inference Protocol look for the text.

A request for an inference is a record that is told what comes of it, and no task; what asks others before it answers is one.

Every answer to a request that has an id in ``x-request-id`` has it too; one for an inference, and an error, have one in any case.
What is told of an answer that is kept has the id of the request that was served.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
import secrets
from collections.abc import Callable, Coroutine, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import msgspec
from prometheus_client import CONTENT_TYPE_LATEST

from sluice.batching.errors import (
    AnotherRequest,
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
    ResultGone,
    ResultsFull,
    SluiceError,
    StillWaiting,
    StoreUnavailable,
    TokenRefused,
    UnknownKey,
    UnknownModel,
    UnknownResult,
    UnsupportedEncoding,
    require,
)
from sluice.buffer_service.callers import Waiting
from sluice.buffer_service.compression import AT_ONCE, ZIPPED_AT_ONCE, accepts_gzip, unzipped, zipped
from sluice.buffer_service.kept_requests import (
    REPLAYED,
    REQUEST_ID,
    STATE,
    WISHED_BY,
    Keeper,
    KeptRequest,
    Wish,
    check_key,
)
from sluice.buffer_service.openapi import describe_interface
from sluice.buffer_service.page.door import HTML, Door
from sluice.buffer_service.results import ADDRESS
from sluice.buffer_service.route_batches import LEFT_HEADER
from sluice.buffer_service.served_model import ServedModel
from sluice.buffer_service.settings import Settings
from sluice.buffer_service.telemetry import Telemetry, reason_of
from sluice.buffer_service.told import CLASS_HEADER, DEADLINE_HEADER, SHOWN
from sluice.http.connection import Fields, Head
from sluice.http.pieces import Pieces
from sluice.http.room import Room
from sluice.http.server import Client, Request
from sluice.lambda_fn.contract import (
    BINARY,
    INFERENCE_HEADER,
    JSON,
    MOST_DIGITS,
    PROBLEM,
    Answer,
    WireError,
    check_json,
    is_json,
    json_end,
    problem,
)

if TYPE_CHECKING:
    from sluice.buffer_service.traces import Traces  # whose library is there where spans are wanted

# The one table from errors to status codes; the nearest named ancestor counts.
STATUS_CODES: dict[type[SluiceError], HTTPStatus] = {
    InvalidInput: HTTPStatus.BAD_REQUEST,
    UnknownModel: HTTPStatus.NOT_FOUND,
    PayloadTooLarge: HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
    UnsupportedEncoding: HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
    UnknownResult: HTTPStatus.NOT_FOUND,
    ResultGone: HTTPStatus.GONE,
    StillWaiting: HTTPStatus.CONFLICT,
    AnotherRequest: HTTPStatus.UNPROCESSABLE_ENTITY,
    KeyRefused: HTTPStatus.FORBIDDEN,
    UnknownKey: HTTPStatus.UNAUTHORIZED,
    TokenRefused: HTTPStatus.UNAUTHORIZED,
    ModelNotAllowed: HTTPStatus.FORBIDDEN,
    RateExceeded: HTTPStatus.TOO_MANY_REQUESTS,
    DispatchFailed: HTTPStatus.BAD_GATEWAY,
    QueueFull: HTTPStatus.TOO_MANY_REQUESTS,
    Overloaded: HTTPStatus.TOO_MANY_REQUESTS,
    NoRoom: HTTPStatus.SERVICE_UNAVAILABLE,
    ResultsFull: HTTPStatus.SERVICE_UNAVAILABLE,
    StoreUnavailable: HTTPStatus.SERVICE_UNAVAILABLE,
    Draining: HTTPStatus.SERVICE_UNAVAILABLE,
    FunctionFailed: HTTPStatus.BAD_GATEWAY,
    FunctionSuspended: HTTPStatus.SERVICE_UNAVAILABLE,
    DeadlinePassed: HTTPStatus.GATEWAY_TIMEOUT,
    # The optimizer's errors do not occur while serving.
    Infeasible: HTTPStatus.INTERNAL_SERVER_ERROR,
    NotConverged: HTTPStatus.INTERNAL_SERVER_ERROR,
}

_INFERENCE_HEADER = INFERENCE_HEADER.encode()
TOLD_BY = (CLASS_HEADER, DEADLINE_HEADER)
TRACE = (b"traceparent", b"tracestate")
"""The trace that a request belongs to, as W3C's Trace Context has it."""
PASSED_ON = frozenset((_INFERENCE_HEADER, REQUEST_ID, *TRACE))
"""Headers of a request that its function sees."""
WAITED, BATCH_SIZE = b"sluice-waited", b"sluice-batch-size"
"""Headers of an answer: the seconds that its request was in the queue, and with how many in a batch it left."""
_OURS = frozenset(name.decode() for name in (REQUEST_ID, *TRACE, WAITED, BATCH_SIZE, STATE, REPLAYED, b"date")) | {LEFT_HEADER}
"""Headers that no function sets: one that answers with those of its request would."""
_OF_KEPT = (STATE, REPLAYED)
"""Headers of what is told of an answer that is kept, which has an id already."""
MAX_PASSED_ON = 512  # bytes of the value of one, as W3C's Trace Context has propagated at the least
REQUEST_BYTES = 8 * 1024  # that a request takes of the memory beside its body while it waits (7 KB measured)
MAX_DISCARDED = 64 * 1024 * 1024  # bytes

_log = logging.getLogger(__name__)


class Service(Protocol):
    """What the routes need of the composition root."""

    settings: Settings
    telemetry: Telemetry
    waiting: Room
    page: Door | None
    keeper: Keeper
    traces: Traces | None

    def asker(self, headers: Fields) -> str: ...

    def model(self, name: str) -> ServedModel: ...

    def admit(self, name: str, headers: Fields, counts: bool = True) -> str: ...

    def opened(self, headers: Fields) -> list[str]: ...

    async def describe(self, name: str) -> dict[str, Any]: ...

    async def unready(self, name: str | None = None) -> str | None: ...


class Said(NamedTuple):
    """What the head of a request says of the inference that it asks for."""

    content_type: str
    is_json: bool
    carried: dict[str, str]  # headers that its item carries
    told: Mapping[bytes, bytes]  # those of TOLD_BY that are there
    of_protocol: bool  # whether the body is one of the Open Inference Protocol, which may have parameters
    encoding: str  # of the body, where that is encoded
    takes_gzip: bool = False
    wish: Wish | None = None  # how its answer is kept


class Place(NamedTuple):
    """Where a request leads: the methods that are allowed there, with GET also HEAD, and what answers it, for a model if any."""

    method: str
    begin: Callable[[Head, Client, Place], Request | None]
    model: str = ""
    said: Said | None = None
    named: bytes = b""  # the id that the request has


class Routes:
    """Answers the requests of a service: ``begin`` takes each when its headers are complete."""

    def __init__(self, service: Service, version: str, asked: bool = True, operated: bool = True) -> None:
        """``asked``: those for who asks models; ``operated``: those for who operates the buffer."""
        self._service = service
        self._server = {"name": "sluice", "version": version, "extensions": ["binary_tensor_data"]}
        self._takes = self._infer if service.traces is None else self._infer_traced
        self._under_way: set[asyncio.Task[None]] = set()
        self._interface = msgspec.json.encode(describe_interface(version, service.settings.request_timeout))
        # As openapi.py has them, which a test holds beside it.
        self.paths: dict[str, tuple[str, Callable[[Head, Client, Place], Request | None]]] = {
            "/v2": ("GET", self._tell_server),
            "/v2/health/live": ("GET", self._tell_alive),
            "/v2/health/ready": ("GET", self._tell_ready),
            "/openapi.json": ("GET", self._tell_interface),
        }
        if asked:
            self.paths |= self._of_models()
        if operated:
            self.paths["/metrics"] = "GET", self._tell_metrics
        if operated and service.page is not None:
            self.paths |= {"/": ("GET", self._show_page), "/status": ("GET", self._tell_status)}

    def _of_models(self) -> dict[str, tuple[str, Callable[[Head, Client, Place], Request | None]]]:
        return {
            "/models/{model}": ("POST", self._takes),
            "/v2/models/{model}/infer": ("POST", self._takes),
            "/v2/models/{model}/versions/{version}/infer": ("POST", self._takes),
            "/v2/models": ("GET", self._tell_models),
            "/v2/models/{model}": ("GET", self._describe),
            "/v2/models/{model}/versions/{version}": ("GET", self._describe),
            "/v2/models/{model}/results/{id}": ("GET DELETE", self._keep_or_give_up),
            "/v2/models/{model}/ready": ("GET", self._tell_model_ready),
            "/v2/models/{model}/versions/{version}/ready": ("GET", self._tell_model_ready),
        }

    def begin(self, head: Head, client: Client) -> Request | None:
        """Answer a request, or take it until it is answered."""
        try:
            place: Place | None = head.seen
            if place is None:
                place = head.seen = self._place(head)
            if place.named:
                client = _Named(client, place.named)
            if head.method != place.method and not self._allowed(head, client, place):
                return None
            return place.begin(head, client, place)
        except Exception as error:
            if head.seen is None and (named := _request_id(head)):
                client = _Named(client, named)  # as its place would have been
            _fail(client, head, error, self._service.telemetry)
            return None

    def _place(self, head: Head) -> Place:
        path, model = template(head.path)
        method, begin = self.paths.get(path, ("", self._tell_nowhere))
        said = _said(head, path.startswith("/v2/")) if begin == self._takes else None
        return Place(method, begin, model, said, _request_id(head))

    def _allowed(self, head: Head, client: Client, place: Place) -> bool:
        """Whether a method is allowed that is not the one; who asks which are is told here, as is who uses another."""
        allowed = place.method.replace("GET", "GET HEAD").split()
        if not place.method or head.method in allowed:
            return True
        methods = ", ".join((*allowed, "OPTIONS"))
        fields = ((b"allow", methods.encode()),)
        if head.method == "OPTIONS":
            client.reply(HTTPStatus.NO_CONTENT, JSON, b"", fields)
        else:
            detail = f"method: {head.method!r} is not allowed; allowed: {methods}"
            self._service.telemetry.turned_away("MethodNotAllowed")
            _refuse(client, HTTPStatus.METHOD_NOT_ALLOWED, detail, fields)
        return False

    def _tell_nowhere(self, head: Head, client: Client, place: Place) -> None:
        self._service.telemetry.turned_away("PathNotServed")
        _refuse(client, HTTPStatus.NOT_FOUND, f"path: {head.path!r} is not served")

    def _infer(self, head: Head, client: Client, place: Place) -> Request:
        of_class = self._service.admit(place.model, head.fields)
        served = self._service.model(place.model)
        said = place.said
        assert said is not None
        if said.encoding and said.encoding.lower() not in ("gzip", "x-gzip"):
            raise UnsupportedEncoding("content-encoding", said.encoding, "identity or gzip")
        if of_class:
            said = said._replace(told={**said.told, CLASS_HEADER: of_class.encode()})
        if said.wish is not None:
            return self._infer_and_keep(head, client, place, said, said.wish)
        return _Inference(head, client, said, served, self._service)

    def _infer_traced(self, head: Head, client: Client, place: Place) -> Request | None:
        traces, said = self._service.traces, place.said
        assert traces is not None and said is not None
        traced = traces.request(client, said.carried, template(head.path)[0], place.model)
        try:
            below = place._replace(said=said._replace(carried=traced.carried(said.carried)))
            return traced.around(self._infer(head, traced, below))
        except Exception as error:
            _fail(traced, head, error, self._service.telemetry)
            return None

    def _infer_and_keep(self, head: Head, client: Client, place: Place, said: Said, wish: Wish) -> Request:
        """One whose answer is fetched later, or asked for again."""
        service = self._service
        if wish.key is not None:
            check_key(wish.key)
        inference = said._replace(takes_gzip=False)  # who fetches the answer may not accept it
        served = service.model(place.model)
        if not service.keeper.bounds.kept and wish.key is None:
            return _Inference(head, client, said, served, service)  # what is preferred is no more than that
        if not (request_id := place.named):
            request_id = secrets.token_hex(8).encode()
            head = Head(head.method, head.path, ((REQUEST_ID, request_id), *head.fields), head.keep_alive, head.query)
        # Its function sees the id, and so does who keeps its answer where this process is no more.
        carried = {**said.carried, REQUEST_ID.decode(): request_id.decode()}
        return KeptRequest(
            client,
            service.keeper,
            place.model,
            service.asker(head.fields),
            wish,
            {
                "path": head.path,
                "content-type": said.content_type,
                INFERENCE_HEADER: said.carried.get(INFERENCE_HEADER),
                "sluice-class": said.told.get(CLASS_HEADER),
                "sluice-deadline": said.told.get(DEADLINE_HEADER),
                "content-encoding": said.encoding,
            },
            request_id,
            lambda kept: _Inference(head, kept, inference._replace(carried={**carried, ADDRESS: kept.address}), served, service),
            lambda client, error: _fail(client, head, error, service.telemetry),
        )

    def _keep_or_give_up(self, head: Head, client: Client, place: Place) -> Request:
        """GET and DELETE of an answer that is kept."""
        service, result = self._service, head.path.rstrip("/").rpartition("/")[2]
        service.admit(place.model, head.fields, counts=False)
        service.model(place.model)
        asker = service.asker(head.fields)

        async def remove() -> None:
            await service.keeper.remove(place.model, result, asker)
            client.reply(HTTPStatus.NO_CONTENT, JSON, b"")

        tell = service.keeper.tell(place.model, result, asker, client)
        if head.method == "DELETE":
            tell.close()
            return self._later(head, client, remove())
        return self._later(head, client, tell)

    def _describe(self, head: Head, client: Client, place: Place) -> Request:
        self._service.admit(place.model, head.fields, counts=False)

        async def describe() -> None:
            _send_json(client, await self._service.describe(place.model))

        return self._later(head, client, describe())

    def _tell_ready(self, head: Head, client: Client, place: Place) -> Request:
        return self._later(head, client, self._ask_ready(client, {}, None))

    def _tell_model_ready(self, head: Head, client: Client, place: Place) -> Request:
        return self._later(head, client, self._ask_ready(client, {"name": place.model}, place.model))

    async def _ask_ready(self, client: Client, document: dict[str, Any], model: str | None) -> None:
        reason = await self._service.unready(model)
        if reason is None:
            _send_json(client, document | {"ready": True})
        else:
            _send_json(client, document | {"ready": False, "reason": reason}, HTTPStatus.SERVICE_UNAVAILABLE)

    def _tell_server(self, head: Head, client: Client, place: Place) -> None:
        _send_json(client, self._server)

    def _tell_interface(self, head: Head, client: Client, place: Place) -> None:
        client.reply(HTTPStatus.OK, JSON, self._interface)

    def _tell_models(self, head: Head, client: Client, place: Place) -> None:
        _send_json(client, {"models": self._service.opened(head.fields)})

    def _tell_alive(self, head: Head, client: Client, place: Place) -> None:
        _send_json(client, {"live": True})

    def _tell_metrics(self, head: Head, client: Client, place: Place) -> Request:
        async def tell() -> None:
            client.reply(HTTPStatus.OK, CONTENT_TYPE_LATEST, await self._service.telemetry.scrape())

        return self._later(head, client, tell())

    def _show_page(self, head: Head, client: Client, place: Place) -> None:
        """The live page, unless the client has it."""
        page = self._service.page
        assert page is not None
        status, body = (HTTPStatus.NOT_MODIFIED, b"") if page.has(head.fields) else (HTTPStatus.OK, page.page)
        client.reply(status, HTML, body, page.page_headers)

    def _tell_status(self, head: Head, client: Client, place: Place) -> Request:
        page = self._service.page
        assert page is not None

        async def tell() -> None:
            client.reply(HTTPStatus.OK, JSON, await page.status(), page.status_headers)

        return self._later(head, client, tell())

    def _later(self, head: Head, client: Client, work: Coroutine[Any, Any, None]) -> Request:
        """Work that waits for others before it answers."""

        async def answer() -> None:
            try:
                await work
            except Exception as error:
                _fail(client, head, error, self._service.telemetry)

        task = asyncio.get_running_loop().create_task(answer())
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        task.add_done_callback(lambda _: work.close())  # where it was cancelled before it began
        return _Task(task)


class _Named:
    """Who sent a request that has an id, which its answer has too, unless that is kept: this has the id of the first that asked."""

    __slots__ = ("_client", "_field")

    def __init__(self, client: Client, request_id: bytes) -> None:
        self._client = client
        self._field = (REQUEST_ID, request_id)

    def go_ahead(self) -> None:
        self._client.go_ahead()

    def reply(self, status: int, content_type: str, body: bytes, fields: Fields = (), close: bool = False) -> None:
        if not any(name in _OF_KEPT for name, _ in fields):
            fields = (*(field for field in fields if field[0] != REQUEST_ID), self._field)
        self._client.reply(status, content_type, body, fields, close)


class _Task:
    """A request that a task answers; its body is not read."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def piece(self, body: bytes) -> None: ...

    def end(self, last: bytes = b"") -> None: ...

    def gone(self) -> None:
        self._task.cancel()


class _Inference:
    """A request for an inference: its body is put together within the room that there is, and submitted when it is complete."""

    __slots__ = (
        "_body",
        "_client",
        "_head",
        "_held",
        "_limit",
        "_over",
        "_room",
        "_said",
        "_served",
        "_service",
        "_size",
        "_waiting",
    )

    def __init__(self, head: Head, client: Client, said: Said, served: ServedModel, service: Service) -> None:
        self._head = head
        self._client = client
        self._said = said
        self._served = served
        self._service = service
        self._limit = limit = service.settings.max_body_bytes
        self._room = room = service.waiting
        self._held = 0  # bytes that it takes of the room
        self._body: Pieces | bytes = b""
        self._size = 0
        self._waiting: Waiting | None = None
        self._over = False  # it has failed, or its client has gone
        length = head.length
        if head.expects and length > limit:
            raise PayloadTooLarge(length, limit)  # and none of it is asked for
        # That there is room for all of it is asked; taken is what comes, as the rest may never do.
        if room.taken + REQUEST_BYTES + (length if length <= limit else 0) > room.limit:
            error = NoRoom(room.limit)
            served.telemetry.refused(error)
            raise error
        room.taken += REQUEST_BYTES
        self._held = REQUEST_BYTES
        if head.expects:
            client.go_ahead()

    def piece(self, body: bytes) -> None:
        """One of a body that is too large is forgotten, but read, for a client cut off while it sends sees no answer."""
        length, room = len(body), self._room
        self._size += length
        if not self._body and self._size <= self._limit and room.taken + length <= room.limit:
            room.taken += length
            self._held += length
            self._body = body  # as most come in one
            return
        if self._size > self._limit:
            self._body = b""
            self._hold(REQUEST_BYTES)
            if self._size > MAX_DISCARDED:
                self._fail(self._too_large())
            return
        try:
            self._grow(length)
        except NoRoom as error:
            self._fail(error)
            return
        if isinstance(self._body, bytes):
            first, self._body = self._body, Pieces()
            self._body.add(first)
        self._body.add(body)

    def end(self, last: bytes = b"") -> None:
        said, room, length = self._said, self._room, len(last)
        if not self._size and not said.encoding and length <= self._limit and room.taken + length <= room.limit:
            room.taken += length
            self._held += length
            self._submit(last)  # as most are: it came in one
            return
        if last:
            self.piece(last)
        if self._over:
            return
        came, self._body = self._body, b""
        body = came if isinstance(came, bytes) else came.take()
        try:
            if self._size > self._limit:
                raise self._too_large()
            if said.encoding:
                if len(body) > AT_ONCE:
                    undone = asyncio.get_running_loop().run_in_executor(None, unzipped, body, self._limit)
                    undone.add_done_callback(self._unzipped)
                    return
                body = self._grown(unzipped(body, self._limit))
        except Exception as error:
            self._fail(error)
        else:
            self._submit(body)

    def _grown(self, body: bytes) -> bytes:
        """What a body is without its encoding takes room too."""
        self._grow(max(0, len(body) - self._size))
        return body

    def _grow(self, more: int) -> None:
        """Take so many bytes more; raises ``NoRoom``."""
        room = self._room
        if room.taken + more > room.limit:
            error, telemetry = NoRoom(room.limit), self._served.telemetry
            telemetry.came += 1
            telemetry.refused(error)
            raise error
        room.taken += more
        self._held += more

    def _hold(self, size: int) -> None:
        """Take so many bytes from now on, whether there is room for them or not."""
        self._room.taken += size - self._held
        self._held = size

    def _unzipped(self, undone: asyncio.Future[bytes]) -> None:
        if self._over or undone.cancelled():
            return
        try:
            body = self._grown(undone.result())
        except Exception as error:
            self._fail(error)
        else:
            self._submit(body)

    def _submit(self, body: bytes) -> None:
        said = self._said
        try:
            end = said.carried.get(INFERENCE_HEADER)
            if end is not None and json_end(end, len(body)) is None:
                raise InvalidInput(INFERENCE_HEADER, end[:MOST_DIGITS], f"0 to {len(body)}, the length of the body")
            if said.is_json:
                try:
                    check_json(body)
                except WireError as error:
                    raise InvalidInput("body", body[:80], f"what {said.content_type} says it is ({error})") from None
            told = self._served.told(self._head.fields, said.told, said.carried, body, said.of_protocol)
            self._served.telemetry.came += 1  # who sends what is none is no demand
            self._waiting = self._served.ask(said.content_type, said.carried, body, told)
        except Exception as error:
            self._fail(error)
        else:
            self._waiting.then(self._tell)

    def gone(self) -> None:
        self._over = True
        self._hold(0)
        if self._waiting is not None:
            self._waiting.end()

    def _tell(self, waiting: Waiting) -> None:
        self._room.taken -= self._held
        self._held = 0
        if (answer := waiting.answer) is None:
            if waiting.error is not None:  # else there is nobody to be told
                self._fail(waiting.error)
            return
        try:
            fields = _fields(answer, waiting)
            if self._zips(answer):
                fields = (*fields, (b"vary", b"accept-encoding"))
                if self._said.takes_gzip:
                    self._reply_zipped(answer, fields)
                    return
            self._client.reply(answer.status, answer.content_type, answer.body, fields)
        except Exception as error:
            self._fail(error)

    def _zips(self, answer: Answer) -> bool:
        """Whether an answer goes zipped to who takes it so, and is another to who does not."""
        at_least = self._service.settings.gzip_from
        return bool(at_least) and len(answer.body) >= at_least and _may_zip(answer)

    def _reply_zipped(self, answer: Answer, fields: Fields) -> None:
        fields = (*fields, (b"content-encoding", b"gzip"))
        if len(answer.body) <= ZIPPED_AT_ONCE:
            self._client.reply(answer.status, answer.content_type, zipped(answer.body), fields)
            return

        def reply(done: asyncio.Future[bytes]) -> None:
            if not done.cancelled():
                self._client.reply(answer.status, answer.content_type, done.result(), fields)

        asyncio.get_running_loop().run_in_executor(None, zipped, answer.body).add_done_callback(reply)

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(max(self._size, self._head.length), self._limit)

    def _fail(self, error: Exception) -> None:
        self._over = True
        self._hold(0)
        _fail(self._client, self._head, error, self._service.telemetry)


def template(path: str) -> tuple[str, str]:
    """A path as the table of ``Routes`` has it, with names in braces where it has any, and the model that it names."""
    match path.strip("/").split("/"):
        case ["models", model]:
            return "/models/{model}", model
        case ["v2", "models", model, "versions", _, *rest]:
            return "/".join(("/v2/models/{model}/versions/{version}", *rest)), model
        case ["v2", "models", model, "results", _]:
            return "/v2/models/{model}/results/{id}", model
        case ["v2", "models", model, *rest]:
            return "/".join(("/v2/models/{model}", *rest)), model
        case parts:
            return "/" + "/".join(parts), ""


def status_code(error: SluiceError) -> HTTPStatus:
    """The status code of an error."""
    return next(STATUS_CODES[kind] for kind in type(error).__mro__ if kind in STATUS_CODES)


def _said(head: Head, of_protocol: bool) -> Said:
    content_type = encoding = ""
    takes_gzip = wishes = False
    carried: dict[str, str] = {}
    told: dict[bytes, bytes] = {}
    for name, value in head.fields:
        if name == b"content-type":
            content_type = value.decode("latin-1")
        elif name in PASSED_ON:
            if name == _INFERENCE_HEADER or (len(value) <= MAX_PASSED_ON and (name in TRACE or _REQUEST_ID.fullmatch(value))):
                carried[name.decode()] = value.decode("latin-1")
        elif name == b"content-encoding" and value.lower() != b"identity":
            encoding = value.decode("latin-1")
        elif name == b"accept-encoding":
            takes_gzip = accepts_gzip(value)
        elif name in TOLD_BY:
            require(name not in told, name.decode(), value[:SHOWN].decode("latin-1"), "given once")  # whose reading would count?
            told[name] = value
        elif name in WISHED_BY:
            wishes = True
    if not content_type:
        content_type = JSON if of_protocol and INFERENCE_HEADER not in carried else BINARY
    wish = Wish.of(head.fields) if wishes else None
    return Said(content_type, is_json(content_type), carried, told, of_protocol, encoding, takes_gzip, wish)


_REQUEST_ID = re.compile(rb"[A-Za-z0-9._:+/=-]{1,128}")


def _request_id(head: Head) -> bytes:
    """The id that a request has; one that is none, or too long for one, counts as none."""
    given = next((value for name, value in head.fields if name == REQUEST_ID), b"")
    return given if _REQUEST_ID.fullmatch(given) else b""


def _may_zip(answer: Answer) -> bool:
    """Whether an answer has a body whose function left it as it is."""
    return answer.status not in (HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED) and not any(
        name.lower() in ("content-encoding", "inference-header-content-length") for name in answer.headers
    )


def _fields(answer: Answer, waiting: Waiting) -> Fields:
    """The headers of an answer: its request's id and how that left the queue, and those that its function gave."""
    of_request = (REQUEST_ID, answer.id.encode())
    if waiting.batch_size:
        waited = b"%.4f" % (waiting.taken - waiting.came)
        told: Fields = (of_request, (WAITED, waited), (BATCH_SIZE, b"%d" % waiting.batch_size))
    else:
        told = (of_request,)
    if not answer.headers:
        return told  # as most have none
    given = ((name, value) for name, value in answer.headers.items() if name.lower() not in _OURS)
    return told + tuple((name.encode("latin-1"), value.encode("latin-1")) for name, value in given)


def _send_json(client: Client, document: Any, status: int = HTTPStatus.OK) -> None:
    client.reply(status, JSON, msgspec.json.encode(document))


def _fail(client: Client, head: Head, error: Exception, telemetry: Telemetry) -> None:
    """Answer with what is wrong."""
    telemetry.turned_away(reason_of(error) if isinstance(error, SluiceError) else "Defect")
    if not isinstance(error, SluiceError):
        request_id = _request_id(head) or secrets.token_hex(8).encode()
        _log.error("request %s failed: %s %s", request_id.decode(), head.method, head.path, exc_info=error)
        client = _Named(client, request_id)
        _refuse(client, HTTPStatus.INTERNAL_SERVER_ERROR, "an error inside the buffer; its log has the details")
        return
    fields: list[tuple[bytes, bytes]] = []
    if isinstance(error, (QueueFull, Overloaded, NoRoom, ResultsFull, StillWaiting, FunctionSuspended, RateExceeded)):
        fields.append((b"retry-after", str(max(1, math.ceil(error.retry_after))).encode()))
    if isinstance(error, StoreUnavailable):
        fields.append((b"retry-after", b"1"))  # the store is tried ten times as often
    if isinstance(error, UnknownKey):
        fields.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, TokenRefused):
        fields.append((b"www-authenticate", b'Bearer error="invalid_token"'))
    # Of a body that is too large there may be more than was read.
    _refuse(client, status_code(error), str(error), tuple(fields), close=isinstance(error, PayloadTooLarge))


def _refuse(client: Client, status: HTTPStatus, detail: str, fields: Fields = (), close: bool = False) -> None:
    if type(client) is not _Named:
        client = _Named(client, secrets.token_hex(8).encode())
    client.reply(status, PROBLEM, problem(status, status.phrase, detail), fields, close)
