"""The HTTP worker does what the Lambda handler does, one execution at a time."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import uvicorn

from sluice.lambda_fn.contract import Answer, Batch, Item, decode_answers, decode_metadata, encode_batch
from sluice.lambda_fn.models.sleeper import Sleeper
from sluice.lambda_fn.worker import Worker

BATCH = Batch("echo", [Item("a", "application/json", b'{"x": 1}'), Item("b", "application/octet-stream", b"\0\1")])


class Server:
    """A worker on a free port of this process."""

    def __init__(self, worker: Worker) -> None:
        config = uvicorn.Config(worker, port=0, log_level="warning", lifespan="off")
        self._server = uvicorn.Server(config)
        self._serving: asyncio.Task[None] | None = None

    async def __aenter__(self) -> str:
        ready = asyncio.Event()
        startup = self._server.startup

        async def start(sockets: Any = None) -> None:
            await startup(sockets)
            ready.set()

        self._server.startup = start  # type: ignore[method-assign]
        self._serving = asyncio.create_task(self._server.serve())
        await ready.wait()
        return f"http://127.0.0.1:{self._server.servers[0].sockets[0].getsockname()[1]}"

    async def __aexit__(self, *_: object) -> None:
        assert self._serving is not None
        self._server.should_exit = True
        await self._serving


async def test_a_batch_is_answered_and_errors_are_told() -> None:
    async with Server(Worker(Sleeper("echo"))) as url, aiohttp.ClientSession() as client:
        async with client.post(f"{url}/", data=encode_batch(BATCH)) as response:
            assert response.status == 200
            answers = decode_answers(await response.read(), BATCH)
        assert [(a.status, a.body) for a in answers] == [(200, b'{"x": 1}'), (200, b"\0\1")]

        async with client.post(f"{url}/", data=encode_batch(Batch("echo", [], describe=True))) as response:
            assert decode_metadata(await response.read())["name"] == "echo"
        async with client.get(f"{url}/health") as response:
            assert (response.status, await response.json()) == (200, {"status": "ok"})
        for method, path, data, status, message in [
            ("POST", "/", b"{", 400, "not a batch: Input data was truncated"),
            ("GET", "/", None, 405, "method: 'GET' is not allowed; allowed: POST / and GET /health"),
            ("POST", "/other", b"{}", 404, "path: '/other' is not allowed; allowed: / and /health"),
        ]:
            async with client.request(method, url + path, data=data) as response:
                assert response.status == status
                assert message in (await response.json(content_type="application/problem+json"))["detail"]


async def test_a_model_that_raises_is_a_500_with_what_it_raised() -> None:
    class Broken(Sleeper):
        def answer(self, items: Sequence[Item]) -> list[Answer]:
            raise RuntimeError("out of order")

    async with Server(Worker(Broken("echo"))) as url, aiohttp.ClientSession() as client:
        response = await client.post(f"{url}/", data=encode_batch(BATCH))
        assert response.status == 500
        assert "RuntimeError: out of order" in await response.text()


async def test_a_body_over_the_limit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.lambda_fn.worker.MAX_BODY", 10)
    async with Server(Worker(Sleeper("echo"))) as url, aiohttp.ClientSession() as client:
        response = await client.post(f"{url}/", data=b"x" * 11)
        assert response.status == 413
        assert "body: 11 bytes are not allowed; allowed: at most 10" in await response.text()


async def test_one_execution_at_a_time_and_health_is_answered_meanwhile() -> None:
    class Gated(Sleeper):
        running = most = 0

        def __init__(self) -> None:
            super().__init__("echo")
            self.entered, self.gate = threading.Event(), threading.Event()

        def answer(self, items: Sequence[Item]) -> list[Answer]:
            self.running += 1
            self.most = max(self.most, self.running)
            self.entered.set()
            self.gate.wait(10)
            self.running -= 1
            return super().answer(items)

    model = Gated()
    async with Server(Worker(model)) as url, aiohttp.ClientSession() as client:

        async def send() -> int:
            async with client.post(f"{url}/", data=encode_batch(BATCH)) as response:
                return response.status

        sending = [asyncio.create_task(send()) for _ in range(3)]
        await asyncio.to_thread(model.entered.wait, 10)
        async with client.get(f"{url}/health") as response:
            assert response.status == 200
        assert not any(task.done() for task in sending)
        model.gate.set()
        assert await asyncio.gather(*sending) == [200] * 3
    assert model.most == 1


@pytest.fixture
def started(network: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "SLUICE_MODEL": str(network)}
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"]
    worker = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    yield worker
    worker.kill()
    worker.wait()


async def test_started_as_a_program_it_prints_its_url_and_ends_at_sigterm(started: subprocess.Popen[str]) -> None:
    assert started.stdout is not None
    url = (await asyncio.to_thread(started.stdout.readline)).strip()
    async with aiohttp.ClientSession() as client:
        response = await client.post(f"{url}/", data=encode_batch(Batch("small", [], describe=True)))
        assert decode_metadata(await response.read())["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}]
    started.terminate()
    assert await asyncio.to_thread(started.wait, 10) in (0, -15)


def test_started_at_a_port_that_somebody_else_has_it_names_the_port(network: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as somebody_else:
        port = somebody_else.getsockname()[1]
        command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", str(port)]
        environment = {**os.environ, "SLUICE_MODEL": str(network)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.startswith(f"sluice.lambda_fn.worker: --host, --port: 127.0.0.1:{port} is not allowed; allowed: an address ")
    assert "Address already in use" in done.stderr and done.stderr.count("\n") == 1


def test_started_without_a_model_it_says_which_variable_is_missing() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 2
    assert (
        done.stderr
        == "sluice.lambda_fn.worker: SLUICE_MODEL: not set; allowed: package.module:Class, file.py:Class or network.onnx\n"
    )
