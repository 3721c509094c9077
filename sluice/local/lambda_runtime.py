"""AWS Lambda on one machine: the Invoke API in front, the Runtime API behind, real ``awslambdaric`` processes between.

    POST /2015-03-31/functions/{name}/invocations        Invoke, as boto3's ``lambda`` client with this ``endpoint_url`` calls it
    GET  /2015-03-31/functions/{name}[/configuration]    GetFunction, GetFunctionConfiguration
    …    /{environment}/2018-06-01/runtime/…             the Runtime API, under a path of its own for every environment
    GET  /                                               what runs here, the CPU asked and granted, what was used
    GET  /usage/{name}     DELETE /usage[/{name}]        counters and bills; reset
    GET  /logs/{name}                                    what the function's processes wrote lately
    DELETE /environments/{name}                          forget the warm ones, so that the next invocation is a cold start

Every concurrent invocation has a process of its own, started when none is free and ended when it was idle for ``keep_alive``
seconds; the most recently used is taken first, as Lambda does. As many start at once as there are cores, and the others when one of
these has started: each has a core of its own on Lambda, and side by side on one would be billed longer. Signatures are not looked
at. What may live here: HTTP and the choice of an environment. The life of one environment is in ``environments.py``, limits and
bills in ``functions.py``.

    python -m sluice.local.lambda_runtime CONFIG.json    {"functions": [{"name": …, "memory_mb": …, "environment": {…}}], "port": 0}

prints its URL on one line and serves until SIGTERM or Ctrl-C.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import binascii
import logging
import os
import re
import signal
import sys
import uuid
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn
from urllib.parse import unquote

import msgspec
from aiohttp import web

from sluice.batching.errors import InvalidInput, SluiceError
from sluice.batching.log_lines import last_words, log_to_stderr
from sluice.lambda_fn.contract import JSON, PAYLOAD_LIMIT
from sluice.lambda_fn.loading import named_file
from sluice.local.environments import Environment, EnvironmentGone
from sluice.local.functions import LATEST, MAX_ASYNC_REQUEST, Function, Invocation, Outcome, Usage

logger = logging.getLogger(__name__)

KEEP_ALIVE = 300.0
FUNCTION_NAME = re.compile(r"(?:(?:arn:aws[\w-]*:lambda:[\w-]+:)?\d{12}:function:)?([\w.-]+)(?::(\$LATEST|[\w-]+))?", re.ASCII)
MODEL = "SLUICE_MODEL"
HEADER_LIMIT = 2 * 1024 * 1024
"""awslambdaric sends an error's stack trace in a header, up to 1 MB of it."""


class Config(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What ``python -m sluice.local.lambda_runtime`` reads."""

    functions: tuple[Function, ...]
    host: str = "127.0.0.1"
    port: int = 0
    keep_alive: float = KEEP_ALIVE


class ApiError(Exception):
    """A refusal of the Invoke API, in AWS's shape."""

    def __init__(self, status: int, kind: str, message: str, **more: str) -> None:
        super().__init__(message)
        self.status, self.kind, self.message, self.more = status, kind, message, more


class Fleet:
    """The environments of one function: who is idle, who is busy, what was used."""

    def __init__(self, function: Function, keep_alive: float, starting: asyncio.Semaphore) -> None:
        self.function = function
        self.keep_alive = keep_alive
        self._starting = starting
        self.usage = Usage()
        self.environments: dict[str, Environment] = {}
        self.busy = 0
        self.log_of_the_gone: deque[bytes] = deque(maxlen=100)
        self._idle: list[Environment] = []

    async def invoke(self, invocation: Invocation, runtime_api: str) -> Outcome:
        """Run it in the most recently used idle environment, else in a new one; raises ``ApiError`` at the limit."""
        if self.busy >= self.function.concurrency_limit:
            self.usage.throttles += 1
            raise ApiError(
                429, "TooManyRequestsException", "Rate Exceeded.", Reason="ReservedFunctionConcurrentInvocationLimitExceeded"
            )
        self.busy += 1
        self.usage.max_concurrency = max(self.usage.max_concurrency, self.busy)
        environment = None
        try:
            environment = self._idle_one() or await self._start(runtime_api)
            outcome = await environment.run(invocation)
        except BaseException:
            if environment is not None:
                environment.kill()  # whoever waited is gone, and what the process does now nobody can say
            raise
        finally:
            self.busy -= 1
        self._give_back(environment)
        self.usage.add(outcome, self.function.memory_mb)
        if outcome.error is not None:
            logger.info("%s: %s", self.function.name, outcome.payload[:500].decode(errors="replace"))
        return outcome

    def retire(self) -> int:
        """End every idle environment; returns how many."""
        idle, self._idle = self._idle, []
        for environment in idle:
            if environment.reap is not None:
                environment.reap.cancel()
            environment.end()
        return len(idle)

    def kill(self) -> None:
        """End every environment, whatever it does."""
        everyone = list(self.environments.values())
        for environment in everyone:
            environment.end()  # all at once first: each takes a while to give its memory back
        for environment in everyone:
            environment.kill()

    def log(self) -> bytes:
        """What its processes wrote lately, environment by environment."""
        chunks = list(self.log_of_the_gone)
        for environment in self.environments.values():
            chunks += environment.log
        return b"".join(chunks)

    def status(self, cores: int) -> dict[str, Any]:
        asked = self.function.cpu_share
        return {
            "memory_mb": self.function.memory_mb,
            "timeout": self.function.timeout,
            "concurrency_limit": self.function.concurrency_limit,
            "cpu_share": {"asked": asked, "granted": min(asked, float(cores))},
            "environments": len(self.environments),
            "busy": self.busy,
            "usage": self.usage.as_dict(),
        }

    def _idle_one(self) -> Environment | None:
        while self._idle:
            environment = self._idle.pop()
            if environment.reap is not None:
                environment.reap.cancel()
            if not environment.gone:
                return environment
        return None

    async def _start(self, runtime_api: str) -> Environment:
        """A new one, when a core is free for its start."""
        await self._starting.acquire()
        try:
            environment = Environment(self.function, runtime_api, self._forget)
        except BaseException:
            self._starting.release()
            raise
        environment.started.add_done_callback(lambda _: self._starting.release())
        self.environments[environment.id] = environment
        return environment

    def _give_back(self, environment: Environment) -> None:
        if not environment.gone:
            self._idle.append(environment)
            environment.reap = asyncio.get_running_loop().call_later(self.keep_alive, self._reap, environment)

    def _reap(self, environment: Environment) -> None:
        self._idle.remove(environment)
        environment.end()

    def _forget(self, environment: Environment) -> None:
        self.environments.pop(environment.id, None)
        self.log_of_the_gone.extend(environment.log)


class LambdaRuntime:
    """The server, an asynchronous context manager.

    Parameters
    ----------
    functions : sequence of Function
    host, port
        Where to listen; port 0 is a free one.
    keep_alive : float
        Seconds after which an idle environment ends.
    """

    def __init__(
        self, functions: Sequence[Function], host: str = "127.0.0.1", port: int = 0, keep_alive: float = KEEP_ALIVE
    ) -> None:
        self.cores = len(os.sched_getaffinity(0))
        starting = asyncio.Semaphore(self.cores)
        self._fleets = {function.name: Fleet(function, keep_alive, starting) for function in functions}
        if len(self._fleets) != len(functions):
            raise InvalidInput("functions", [function.name for function in functions], "every name once")
        self._host, self._port = host, port
        self._address = ""
        self._runner: web.ServerRunner | None = None
        self._background: set[asyncio.Task[None]] = set()

    @property
    def url(self) -> str:
        """The ``endpoint_url`` of the Invoke API."""
        return f"http://{self._address}"

    def usage(self, name: str) -> Usage:
        """The counters of a function; they go on counting."""
        return self._fleet(name).usage

    def reset_usage(self, name: str | None = None) -> None:
        """Count from zero, for one function or all."""
        for fleet in self._fleets.values() if name is None else [self._fleet(name)]:
            fleet.usage = Usage()

    def retire(self, name: str) -> int:
        """End the idle environments of a function, so that its next invocation is a cold start; returns how many there were."""
        return self._fleet(name).retire()

    def log(self, name: str) -> str:
        """What the function's processes wrote lately."""
        return self._fleet(name).log().decode(errors="replace")

    def status(self) -> dict[str, Any]:
        """What ``GET /`` answers."""
        return {"cores": self.cores, "functions": {name: fleet.status(self.cores) for name, fleet in self._fleets.items()}}

    async def start(self) -> LambdaRuntime:
        for fleet in self._fleets.values():
            if fleet.function.cpu_share > self.cores:
                logger.warning(
                    "%s asks for %.2f vCPU (%d MB), this machine has %d: it will be slower here than on Lambda",
                    *(fleet.function.name, fleet.function.cpu_share, fleet.function.memory_mb, self.cores),
                )
        server = web.Server(
            self._serve,
            access_log=None,
            keepalive_timeout=3600.0,
            max_line_size=65536,
            max_field_size=HEADER_LIMIT,
        )
        self._runner = web.ServerRunner(server)
        await self._runner.setup()
        site = web.TCPSite(self._runner, self._host, self._port, backlog=1024)
        await site.start()
        host, port = self._runner.addresses[0][:2]
        self._address = f"{host}:{port}"
        return self

    async def stop(self) -> None:
        """End every process and close the server."""
        for fleet in self._fleets.values():
            fleet.kill()
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        if self._runner is not None:
            await self._runner.cleanup()

    async def __aenter__(self) -> LambdaRuntime:
        return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop()

    def _fleet(self, name: str) -> Fleet:
        try:
            return self._fleets[name]
        except KeyError:
            raise InvalidInput("function", name, "one of " + ", ".join(sorted(self._fleets))) from None

    # --- HTTP -------------------------------------------------------------------------------------------------------------------

    async def _serve(self, request: web.BaseRequest) -> web.StreamResponse:
        parts = request.rel_url.raw_path.split("/")[1:]
        try:
            if len(parts) > 2 and parts[1] == "2018-06-01":
                return await self._runtime_api(request, parts[0], parts[3:])
            if parts[:2] == ["2015-03-31", "functions"] and len(parts) > 2:
                return await self._lambda_api(request, unquote(parts[2]), parts[3:])
            return self._own_api(request, [unquote(part) for part in parts])
        except ApiError as error:
            body = {**error.more, "Type": "User", "message": error.message}
            return _json(body, error.status, {"x-amzn-errortype": error.kind})

    async def _lambda_api(self, request: web.BaseRequest, name: str, rest: list[str]) -> web.StreamResponse:
        fleet, qualifier = self._resolve(name, request.query.get("Qualifier"))
        if rest == ["invocations"] and request.method == "POST":
            return await self._invoke(request, fleet, qualifier)
        if rest == ["configuration"] and request.method == "GET":
            return _json(fleet.function.configuration())
        if rest in ([], [""]) and request.method == "GET":
            concurrency = {"ReservedConcurrentExecutions": fleet.function.concurrency_limit}
            return _json({"Configuration": fleet.function.configuration(), "Code": {}, "Concurrency": concurrency})
        raise ApiError(404, "UnknownOperationException", f"{request.method} {request.path} is not served by the local runtime")

    def _resolve(self, name: str, query: str | None) -> tuple[Fleet, str]:
        match = FUNCTION_NAME.fullmatch(name)
        if match is None:
            raise ApiError(400, "ValidationException", f"functionName: {name!r} is not a function name, a partial or a full ARN")
        short, suffix = match.groups()
        if suffix is not None and query is not None and suffix != query:
            text = "The derived qualifier from the function name does not match the specified qualifier."
            raise ApiError(400, "InvalidParameterValueException", text)
        qualifier = suffix or query or LATEST
        fleet = self._fleets.get(short)
        if fleet is None or (qualifier != LATEST and qualifier not in fleet.function.aliases):
            arn = Function(name=short).arn + (f":{qualifier}" if suffix or query else "")
            raise ApiError(404, "ResourceNotFoundException", f"Function not found: {arn}")
        return fleet, qualifier

    async def _invoke(self, request: web.BaseRequest, fleet: Fleet, qualifier: str) -> web.StreamResponse:
        headers = request.headers
        kind = headers.get("X-Amz-Invocation-Type", "RequestResponse")
        if kind not in ("RequestResponse", "Event", "DryRun"):
            text = f"Value {kind!r} at 'invocationType' failed to satisfy constraint: one of RequestResponse, Event, DryRun"
            raise ApiError(400, "InvalidParameterValueException", text)
        limit = MAX_ASYNC_REQUEST if kind == "Event" else PAYLOAD_LIMIT
        payload = await _read(request, limit)
        if payload is None:
            text = f"Request must be smaller than {limit} bytes for the InvokeFunction operation"
            raise ApiError(413, "RequestTooLargeException", text)
        payload = payload or b"{}"
        try:
            msgspec.json.decode(payload, type=msgspec.Raw)
        except msgspec.DecodeError as error:
            raise ApiError(400, "InvalidRequestContentException", f"Could not parse request body into json: {error}") from None
        request_id = str(uuid.uuid4())
        arn = fleet.function.arn if qualifier == LATEST else f"{fleet.function.arn}:{qualifier}"
        invocation = Invocation(request_id, payload, arn, _runtime_headers(headers))
        answer_headers = {"x-amzn-RequestId": request_id}
        if kind == "DryRun":
            return web.Response(status=204, headers=answer_headers)
        if kind == "Event":
            task = asyncio.create_task(self._invoke_later(fleet, invocation))
            self._background.add(task)
            task.add_done_callback(self._background.discard)
            return web.Response(status=202, headers=answer_headers)
        outcome = await fleet.invoke(invocation, self._address)
        version = LATEST if qualifier == LATEST else "1"
        answer_headers["X-Amz-Executed-Version"] = version
        if outcome.error is not None:
            answer_headers["X-Amz-Function-Error"] = outcome.error
        if headers.get("X-Amz-Log-Type") == "Tail":
            tail = outcome.log_tail(fleet.function.memory_mb, version)
            answer_headers["X-Amz-Log-Result"] = base64.b64encode(tail).decode()
        return web.Response(body=outcome.payload, headers=answer_headers, content_type=JSON)

    async def _invoke_later(self, fleet: Fleet, invocation: Invocation) -> None:
        """An asynchronous invocation: once, where Lambda would try a failure twice more."""
        try:
            await fleet.invoke(invocation, self._address)
        except ApiError as error:
            logger.warning("%s: asynchronous invocation refused: %s", fleet.function.name, error)

    async def _runtime_api(self, request: web.BaseRequest, environment_id: str, rest: list[str]) -> web.StreamResponse:
        environment = next((e for f in self._fleets.values() if (e := f.environments.get(environment_id)) is not None), None)
        if environment is None:
            return _json({"errorType": "EnvironmentGone", "errorMessage": environment_id}, 410)
        match request.method, rest:
            case "GET", ["invocation", "next"]:
                try:
                    invocation = await environment.next_invocation()
                except EnvironmentGone:
                    return web.Response(status=410)
                headers = {
                    "Lambda-Runtime-Aws-Request-Id": invocation.request_id,
                    "Lambda-Runtime-Deadline-Ms": str(environment.deadline_ms()),
                    "Lambda-Runtime-Invoked-Function-Arn": invocation.arn,
                    **invocation.headers,
                }
                return web.Response(body=invocation.payload, headers=headers, content_type=JSON)
            case "POST", ["invocation", request_id, ("response" | "error") as what]:
                known = environment.answer(request_id, await request.content.read(), "Unhandled" if what == "error" else None)
                return _json({"status": "OK"}, 202) if known else _json({"errorType": "InvalidRequestID"}, 400)
            case "POST", ["init", "error"]:
                environment.init_error(await request.content.read())
                return _json({"status": "OK"}, 202)
        return _json({"errorType": "NotFound", "errorMessage": request.path}, 404)

    def _own_api(self, request: web.BaseRequest, parts: list[str]) -> web.StreamResponse:
        try:
            match request.method, parts:
                case "GET", [""]:
                    return _json(self.status())
                case "GET", ["usage", name]:
                    return _json(self.usage(name).as_dict())
                case "DELETE", ["usage"]:
                    self.reset_usage()
                    return web.Response(status=204)
                case "DELETE", ["usage", name]:
                    self.reset_usage(name)
                    return web.Response(status=204)
                case "GET", ["logs", name]:
                    return web.Response(text=self.log(name))
                case "DELETE", ["environments", name]:
                    return _json({"retired": self.retire(name)})
        except InvalidInput as error:
            raise ApiError(404, "ResourceNotFoundException", str(error)) from None
        raise ApiError(404, "UnknownOperationException", f"{request.method} {request.path} is not served by the local runtime")


def _runtime_headers(headers: Any) -> dict[str, str]:
    """What of the caller's headers the runtime is told."""
    told = {
        "Lambda-Runtime-Trace-Id": headers.get("X-Amzn-Trace-Id")
        or f"Root=1-{uuid.uuid4().hex[:8]}-{uuid.uuid4().hex[:24]};Sampled=0"
    }
    client_context = headers.get("X-Amz-Client-Context")
    if client_context is not None:
        try:
            told["Lambda-Runtime-Client-Context"] = base64.b64decode(client_context, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            raise ApiError(
                400, "InvalidRequestContentException", "Client context must be a valid Base64-encoded JSON object."
            ) from None
    return told


async def _read(request: web.BaseRequest, limit: int) -> bytes | None:
    """The body; ``None`` when it is larger than the limit (then it is read to its end, or the caller would see a reset)."""
    if (request.content_length or 0) <= limit:
        body = await request.content.read()
        if len(body) <= limit:
            return body
    async for _ in request.content.iter_chunked(1 << 20):
        pass
    return None


def _json(document: Any, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(body=msgspec.json.encode(document), status=status, headers=headers, content_type=JSON)


async def _run(config: Config) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    runtime = LambdaRuntime(config.functions, config.host, config.port, config.keep_alive)
    try:
        await runtime.start()
    except OSError as error:
        await runtime.stop()
        raise InvalidInput(
            "port", config.port, f"a free port of {config.host}, 0 for any ({os.strerror(error.errno or 0)})"
        ) from None
    try:
        print(runtime.url, flush=True)
        await stopped.wait()
    finally:
        await runtime.stop()


def missing_files(functions: Sequence[Function]) -> dict[Path, list[str]]:
    """The files of models that do not exist, with the names of the functions that are to load them."""
    missing: dict[Path, list[str]] = {}
    for function in functions:
        named = named_file(function.environment)
        if named and not (path := Path(function.working_directory, named)).exists():
            missing.setdefault(path, []).append(function.name)
    return missing


def _require_files(functions: Sequence[Function]) -> None:
    """Warn of what cannot be invoked; refuse to serve where nothing can."""
    missing = missing_files(functions)
    for path, names in missing.items():
        logger.warning("%s of %s does not exist: %s; their invocations will fail", MODEL, ", ".join(names), path)
    if functions and sum(map(len, missing.values())) == len(functions):
        allowed = "a file that exists, by its path from where this is started (python -m sluice.local.networks makes one)"
        raise InvalidInput(MODEL, str(next(iter(missing))), allowed)


def _fail(text: str) -> NoReturn:
    last_words("sluice.local.lambda_runtime", text)
    sys.exit(2)


def main() -> None:
    """Serve the functions of a configuration file until SIGTERM or Ctrl-C."""
    import uvloop

    parser = argparse.ArgumentParser(prog="python -m sluice.local.lambda_runtime", description="AWS Lambda on one machine.")
    parser.add_argument("config", help='{"functions": [{"name": …, "memory_mb": …, "environment": {…}}], "port": 0}')
    path = parser.parse_args().config
    try:
        log_to_stderr("warning")
    except InvalidInput as error:
        _fail(str(error))
    try:
        with open(path, "rb") as file:
            config = msgspec.json.decode(file.read(), type=Config)
    except OSError as error:
        _fail(f"{path}: {error.strerror}")
    except (msgspec.DecodeError, SluiceError) as error:
        _fail(f"{path}: {error}")
    try:
        _require_files(config.functions)
        uvloop.run(_run(config))
    except InvalidInput as error:
        _fail(f"{path}: {error}")


if __name__ == "__main__":
    main()
