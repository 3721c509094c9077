"""Paths to actions, failures to status codes.

    POST /                                                a batch document (contract.py); its ``model`` chooses
    POST /invocations, GET /ping                          the same, and ready or not, as SageMaker asks
    POST /models/{model}                                  one request with any body
    POST /v2/models/{model}[/versions/1]/infer            one request of the Open Inference Protocol v2, in JSON or binary
    GET  /v2/models/{model}[/versions/1][/ready]          the model's metadata; whether it is loaded
    GET  /v2  /v2/health/live  /v2/health/ready           the server
    POST /v2/repository/index                             which models there are, and their state
    POST /v2/repository/models/{model}/load and /unload   of those that the worker was started with
    GET  /profile[?model=…]                               service times as measured, a profile document
    GET  /health  /metrics                                ready or not; Prometheus

Single requests are computed together with those that wait (turns.py). An answer to a batch says in its header
``sluice-service-time`` how many seconds it took to compute, in ``sluice-memory-mb`` what this process may use, and in ``accept``
in which formats it takes batches: in JSON, and in frames (batch_frames.py), in which it answers then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from functools import lru_cache
from urllib.parse import parse_qs

import msgspec

from .. import batch_frames, contract
from ..batch_frames import Sealed
from ..contract import BINARY, INFERENCE_HEADER, JSON, MEMORY, SERVICE_TIME, Answer, Item
from .execution import Answered
from .http_server import Failure, Headers, HttpServer, Request
from .link import LoadFailed
from .metrics import METRICS_TYPE, WorkerMetrics
from .repository import Repository
from .served_model import Life, ServedModel

MAX_PATHS = 1024
"""Paths of single requests whose model is known again."""
EXTENSIONS = ["binary_tensor_data", "model_repository"]

_encode = msgspec.json.Encoder().encode


_NO_HEADERS: dict[str, str] = {}
_ACCEPT = (("accept", batch_frames.TAKES),)
_Told = Callable[[Answered | Failure], None]


class _Index(msgspec.Struct):
    ready: bool = False


_decode_index = msgspec.json.Decoder(_Index).decode


class Routes:
    """What the worker answers.

    ``version`` is that of this package, ``memory_mb`` what the process may use.
    """

    def __init__(self, repository: Repository, version: str, memory_mb: int) -> None:
        self._repository = repository
        self._version = version
        self._memory_mb = memory_mb
        self._told = ((MEMORY, str(memory_mb)), *_ACCEPT)
        self._tasks: set[asyncio.Task[None]] = set()
        self._metrics: WorkerMetrics | None = None
        self._inference: dict[str, ServedModel] = {}

    def measure(self, server: HttpServer) -> None:
        """Tell of this server too."""
        self._metrics = WorkerMetrics(self._repository, server)

    def screen(self, request: Request) -> Failure | None:
        """What can be refused before the body is read."""
        if request.headers.get("content-encoding", "identity") not in ("identity", ""):
            encoding = request.headers["content-encoding"]
            return Failure(415, "Unsupported media type", f"content-encoding: {encoding!r} is not allowed; allowed: 'identity'")
        if request.method == "POST" and self._repository.draining:
            return Failure(503, "Service unavailable", "this process is being shut down", retry_after=1.0)
        return None

    def __call__(self, request: Request) -> None:
        model = self._inference.get(request.path) if request.method == "POST" else None
        if model is not None:
            self._answer_one(request, model)
            return
        allowed = self._route(request)
        if allowed:
            detail = f"method: {request.method!r} is not allowed; allowed: {allowed}"
            request.fail(Failure(405, "Method not allowed", detail, allow=allowed))

    def _route(self, request: Request) -> str:
        """Do what the path says; another method than is returned is allowed, and then nothing was done."""
        post = request.method == "POST"
        get = request.method in ("GET", "HEAD")
        match _parts(request.path):
            case ["v2", "models", name, "infer"] | ["models", name] | ["v2", "models", name, "versions", "1", "infer"]:
                if not post:
                    return "POST"
                if (model := self._model(request, name)) is not None:
                    if len(self._inference) < MAX_PATHS:
                        self._inference[request.path] = model
                    self._answer_one(request, model)
            case [""] | ["invocations"]:
                if not post:
                    return "POST"
                self._answer_batch(request)
            case ["ping"] | ["health"] | ["v2", "health", "ready"]:
                if not get:
                    return "GET"
                _tell_state(request, "ready", self._repository.unready())
            case ["v2", "health", "live"]:
                if not get:
                    return "GET"
                _tell_state(request, "live", self._repository.dead())
            case ["v2", "models", name] | ["v2", "models", name, "versions", "1"]:
                if not get:
                    return "GET"
                if (model := self._model(request, name)) is not None:
                    self._do(_tell_metadata(request, model))
            case ["v2", "models", name, "ready"] | ["v2", "models", name, "versions", "1", "ready"]:
                if not get:
                    return "GET"
                if (model := self._model(request, name)) is not None:
                    _tell_state(request, "ready", model.dead if model.life is Life.READY else model.reason, name=name)
            case ["v2"]:
                if not get:
                    return "GET"
                _send(request, {"name": "sluice-worker", "version": self._version, "extensions": EXTENSIONS})
            case ["v2", "repository", "index"]:
                if not post:
                    return "POST"
                self._tell_index(request)
            case ["v2", "repository", "models", name, ("load" | "unload") as what]:
                if not post:
                    return "POST"
                if (model := self._model(request, name)) is not None:
                    self._do(_change(request, model, what))
            case ["profile"]:
                if not get:
                    return "GET"
                self._tell_profile(request)
            case ["metrics"]:
                if not get:
                    return "GET"
                assert self._metrics is not None
                request.reply(200, METRICS_TYPE, self._metrics.text())
            case _:
                request.fail(Failure(404, "Not found", f"path: {request.path[:200]!r} is not served"))
        return ""

    def _answer_batch(self, request: Request) -> None:
        items: list[Item] | Sealed
        try:
            # Of a first piece that is too short to tell the whole does.
            if framed := batch_frames.is_framed(request.pieces[0]) or batch_frames.is_framed(request.body):
                items = Sealed(request.pieces)
                name, ids = items.model, items.ids
            else:
                batch = batch_frames.decode_batch(request.body)
                if batch.describe:
                    self._do(self._describe(request, batch.model))
                    return
                items, name, ids = batch.items, batch.model, [item.id for item in batch.items]
        except contract.WireError as error:
            request.fail(Failure(400, "Bad request", str(error)), _ACCEPT)
            return
        model = self._repository.find(name)
        if model is None:
            answers = [contract.failed(item_id, 404, "Unknown model", self._unknown(name)) for item_id in ids]
            self._send_answers(request, framed, answers)
            return
        if not ids:
            self._send_answers(request, framed, [])
            return

        def answered(result: Answered | Failure) -> None:
            if isinstance(result, Failure):
                request.fail(result, _ACCEPT)
                return
            status, content_type, body, _, seconds = result
            request.reply(status, content_type, body, ((SERVICE_TIME, f"{seconds:.9f}"), *self._told))

        _submit(request, model, items, False, answered)

    def _answer_one(self, request: Request, model: ServedModel) -> None:
        length = request.headers.get(INFERENCE_HEADER)
        headers = _NO_HEADERS if length is None else {INFERENCE_HEADER: length}
        content_type = request.headers.get("content-type", "")
        if not content_type:
            content_type = JSON if request.path.endswith("/infer") and length is None else BINARY
        item = Item("request", content_type, request.body, headers)

        def answered(result: Answered | Failure) -> None:
            if isinstance(result, Failure):
                request.fail(result)
                return
            status, content_type, body, headers, _ = result
            # Such statuses have no body; it would be taken for the next answer.
            request.reply(status, content_type, b"" if status in (204, 304) else body, headers.items())

        _submit(request, model, [item], True, answered)

    async def _describe(self, request: Request, name: str) -> None:
        try:
            metadata = contract.encode_metadata(await self._repository.describe(name))
        except Exception:
            request.defect()
            return
        request.reply(200, JSON, metadata, self._told)

    def _send_answers(self, request: Request, framed: bool, answers: list[Answer]) -> None:
        if framed:
            body = b"".join(batch_frames.encode_answers(answers))
            request.reply(200, batch_frames.MEDIA_TYPE, body, _ACCEPT)
        else:
            request.reply(200, JSON, contract.encode_answers(answers), _ACCEPT)

    def _model(self, request: Request, name: str) -> ServedModel | None:
        """The model of that name, or the request is answered that there is none."""
        model = self._repository.find(name)
        if model is None:
            request.fail(Failure(404, "Unknown model", self._unknown(name)))
        return model

    def _unknown(self, name: str) -> str:
        return f"model: {name[:200]!r} is not allowed; allowed: {self._repository.names}"

    def _tell_index(self, request: Request) -> None:
        try:
            wanted = _decode_index(request.body) if request.body.strip() else _Index()
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            request.fail(Failure(400, "Bad request", f"body: not an index request: {error}"))
            return
        _send(request, self._repository.index(wanted.ready))

    def _tell_profile(self, request: Request) -> None:
        names = parse_qs(request.query).get("model", [])
        if not names and len(self._repository.models) > 1:
            request.fail(Failure(400, "Bad request", f"model: none was given; needed: one of {self._repository.names}"))
            return
        model = self._model(request, names[0]) if names else next(iter(self._repository.models.values()))
        if model is None:
            return
        function = f"http://{request.headers.get('host', 'localhost')}"
        profile = model.measurements.profile(function, model.name, self._memory_mb, model.largest_batch)
        if profile is None:
            detail = f"model {model.name!r} has computed no batch yet, so that there is nothing to tell"
            request.fail(Failure(404, "Not found", detail))
            return
        request.reply(200, JSON, msgspec.json.format(_encode(profile), indent=2) + b"\n")

    def _do(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


@lru_cache(maxsize=256)
def _parts(path: str) -> list[str]:
    return path.strip("/").split("/")


def _submit(request: Request, model: ServedModel, items: list[Item] | Sealed, single: bool, answered: _Told) -> None:
    work = model.submit(items, single, answered)
    if work is not None and work.waits:
        request.on_gone = lambda: model.withdraw(work)


async def _change(request: Request, model: ServedModel, what: str) -> None:
    try:
        await (model.load() if what == "load" else model.unload())
    except BaseException as error:
        said = error.said if isinstance(error, LoadFailed) else f"{type(error).__name__}: {error}"
        detail = f"model {model.name!r} could not be {what}ed: {said}"
        request.fail(Failure(500, "Model failed", detail))
        return
    request.reply(200, JSON, b"{}")


async def _tell_metadata(request: Request, model: ServedModel) -> None:
    try:
        metadata = await model.metadata()
        _send(request, metadata)
    except Exception:
        request.defect()


def _tell_state(request: Request, state: str, reason: str, **more: str) -> None:
    if reason:
        _send(request, {**more, state: False, "reason": reason}, 503)
    else:
        _send(request, {**more, state: True})


def _send(request: Request, document: object, status: int = 200, headers: Headers = ()) -> None:
    request.reply(status, JSON, _encode(document), headers)
