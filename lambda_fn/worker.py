"""The same function as an HTTP worker, for a GPU or any machine.

    POST /         a batch document in, its answers out: what the Lambda handler does
    GET  /health   200 once the model is loaded

One execution at a time (``servers=1`` of a policy), in a thread, so that health is answered meanwhile; later batches wait in order.

    SLUICE_MODEL=mlp.onnx python -m sluice.lambda_fn.worker --port 8500
"""

from __future__ import annotations

import argparse
import asyncio
import socket
import sys
import traceback
from collections.abc import Awaitable, Callable, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NoReturn

import uvicorn

from . import contract
from .answering import answer
from .loading import LoadingError, load_model
from .models.base import Model

MAX_BODY = 256 * 1024 * 1024
GRACE = 30
"""Seconds a batch that runs at SIGTERM has to end."""
KEEP_ALIVE = 3600
"""Seconds a connection may be idle: its other end is the buffer, which keeps them for the next batch."""

Message = MutableMapping[str, Any]


class Worker:
    """The ASGI application."""

    def __init__(self, model: Model) -> None:
        self._model = model
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="model")

    async def __call__(
        self, scope: Message, receive: Callable[[], Awaitable[Message]], send: Callable[[Message], Awaitable[None]]
    ) -> None:
        if scope["type"] != "http":
            return
        status, content_type, body = await self._respond(scope["method"], scope["path"], receive)
        headers = [(b"content-type", content_type.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _respond(self, method: str, path: str, receive: Callable[[], Awaitable[Message]]) -> tuple[int, str, bytes]:
        if (method, path) == ("GET", "/health"):
            return 200, contract.JSON, b'{"status":"ok"}'
        if path not in ("/", "/health"):
            return _problem(404, "Not found", f"path: {path!r} is not allowed; allowed: / and /health")
        if (method, path) != ("POST", "/"):
            return _problem(405, "Method not allowed", f"method: {method!r} is not allowed; allowed: POST / and GET /health")
        chunks: list[bytes] = []
        size, more = 0, True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return _problem(400, "Bad request", "body: the connection ended before it")
            chunk = message.get("body", b"")
            size += len(chunk)
            if size <= MAX_BODY:
                chunks.append(chunk)
            more = message.get("more_body", False)
        if size > MAX_BODY:
            return _problem(413, "Too large", f"body: {size} bytes are not allowed; allowed: at most {MAX_BODY}")
        try:
            answers = await asyncio.get_running_loop().run_in_executor(self._executor, self._answer, b"".join(chunks))
        except contract.WireError as error:
            return _problem(400, "Bad request", str(error))
        except Exception as error:
            return _problem(500, "Model failed", f"{type(error).__name__}: {error}")
        return 200, contract.JSON, answers

    def _answer(self, document: bytes) -> bytes:
        batch = contract.decode_batch(document)
        if batch.describe:
            return contract.encode_metadata(self._model.metadata())
        return contract.encode_answers(answer(self._model, batch))


def _problem(status: int, title: str, detail: str) -> tuple[int, str, bytes]:
    return status, contract.PROBLEM, contract.problem(status, title, detail)


def main() -> None:
    """Serve the model that the environment describes until SIGTERM or Ctrl-C; prints its URL on one line."""
    parser = argparse.ArgumentParser(prog="python -m sluice.lambda_fn.worker", description="A model behind HTTP, in batches.")
    parser.add_argument("--port", type=int, required=True, help="0 is a free one")
    parser.add_argument("--host", default="127.0.0.1")
    arguments = parser.parse_args()
    try:
        model = load_model()
    except LoadingError as error:
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        _end(str(error))
    config = uvicorn.Config(
        Worker(model),
        log_level="warning",
        access_log=False,
        lifespan="off",
        timeout_graceful_shutdown=GRACE,
        timeout_keep_alive=KEEP_ALIVE,
    )
    try:
        listener = socket.create_server((arguments.host, arguments.port), backlog=1024)
    except (OSError, OverflowError) as error:
        _end(f"--host, --port: {arguments.host}:{arguments.port} is not allowed; allowed: an address that is free here ({error})")
    host, port = listener.getsockname()[:2]
    print(f"http://{host}:{port}", flush=True)
    uvicorn.Server(config).run(sockets=[listener])


def _end(reason: str) -> NoReturn:
    print(f"sluice.lambda_fn.worker: {reason}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
