"""A buffer in the test's own loop: real HTTP, a store and a function of the test's choice."""

from __future__ import annotations

import asyncio
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import aiohttp
import botocore.loaders
import botocore.session
import pytest
import redis

from sluice.batching import Policy
from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, Route, Slo, write
from sluice.buffer_service.app import BufferService, Server
from sluice.buffer_service.invokers import LocalInvoker
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.routes import Routes
from sluice.buffer_service.settings import Settings
from sluice.http.connection import Fields, Head
from sluice.lambda_fn.contract import Answer, Batch, decode_batch, encode_answers, encode_metadata
from sluice.local.functions import REGION
from sluice.local.redis_server import RedisServer
from tests.buffer_service.aws_fakes import KEY, SECRET
from tests.buffer_service.virtual_time import VirtualLoop

NO_BATCHING = constructors.no_batching()


class Plans:
    """A plan source that a test may change."""

    def __init__(self, *plans: Plan) -> None:
        self.plans = list(plans)

    def documents(self) -> dict[str, bytes]:
        return {plan.model: write(plan) for plan in self.plans}


class Function:
    """An in-process function that remembers its batches; ``answer`` may be replaced."""

    def __init__(self) -> None:
        self.batches: list[Batch] = []
        self.answer: Callable[[Batch], Awaitable[list[Answer]]] = self.echo

    async def echo(self, batch: Batch) -> list[Answer]:
        return [Answer(item.id, 200, item.content_type, item.body, item.headers) for item in batch.items]

    async def __call__(self, payload: bytes) -> bytes:
        batch = decode_batch(payload)
        if batch.describe:
            return encode_metadata({"name": batch.model, "inputs": [], "outputs": []})
        self.batches.append(batch)
        return encode_answers(await self.answer(batch))


def memory() -> MemoryBackend:
    """What memory stores share, by the clock of the running loop where that is virtual."""
    loop = asyncio.get_running_loop()
    return MemoryBackend(loop.time) if isinstance(loop, VirtualLoop) else MemoryBackend()


def plan(policy: Policy, model: str = "m", function: str = "f") -> Plan:
    return Plan(model=model, function=function, policy=PolicyDocument.of(policy), slo=Slo(0.5))


def routed(*routes: tuple[str, float], policy: Policy = NO_BATCHING, model: str = "m") -> Plan:
    """A plan with routes of these names and shares, all under one policy, each on the function of its name."""
    return Plan(model=model, routes=[Route(name, name, PolicyDocument.of(policy), share) for name, share in routes])


class Running:
    """A running buffer and a client for it, over HTTP."""

    def __init__(self, service: BufferService, url: str, http: aiohttp.ClientSession, stop: Callable[[], Awaitable[None]]) -> None:
        self.service, self.url, self.http, self.stop = service, url, http, stop

    async def post(self, path: str, body: bytes, content_type: str = "application/json", **headers: str) -> tuple[int, Any, bytes]:
        async with self.http.post(self.url + path, data=body, headers={"content-type": content_type, **headers}) as response:
            return response.status, response.headers, await response.read()

    async def get(self, path: str, **headers: str) -> tuple[int, Any, bytes]:
        async with self.http.get(self.url + path, headers=headers) as response:
            return response.status, response.headers, await response.read()


class Asking:
    """A client in virtual time, who waits for one answer."""

    def __init__(self) -> None:
        self.answered: asyncio.Future[tuple[int, dict[str, str], bytes]] = asyncio.get_running_loop().create_future()

    def go_ahead(self) -> None: ...

    def reply(self, status: int, content_type: str, body: bytes, fields: Fields = (), close: bool = False) -> None:
        headers = {"content-type": content_type} | {name.decode(): value.decode() for name, value in fields}
        self.answered.set_result((int(status), headers, body))


class RunningVirtually:
    """A running buffer in virtual time and a client for it, past HTTP: requests go to the routes as the server gives them."""

    def __init__(self, service: BufferService) -> None:
        self.service = service
        self._routes = Routes(service, "0")
        self._under_way: set[asyncio.Future[Any]] = set()

    async def post(self, path: str, body: bytes, content_type: str = "application/json", **headers: str) -> tuple[int, Any, bytes]:
        return await self._ask("POST", path, body, {"content-type": content_type, **headers})

    async def get(self, path: str, **headers: str) -> tuple[int, Any, bytes]:
        return await self._ask("GET", path, b"", headers)

    async def stop(self) -> None:
        """As the server: answers that are due are waited for, then the service stops."""
        self.service.begin_drain()
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=self.service.settings.drain_timeout)
        await self.service.stop()

    async def _ask(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, Any, bytes]:
        fields = {"content-length": str(len(body)), **headers}
        head = Head(method, path, tuple((name.encode(), value.encode()) for name, value in fields.items()))
        client = Asking()
        self._under_way.add(client.answered)
        request = self._routes.begin(head, client)
        try:
            if request is not None:
                if body:
                    request.piece(body)
                request.end()
            return await client.answered
        except asyncio.CancelledError:
            if request is not None:
                request.gone()
            raise
        finally:
            self._under_way.discard(client.answered)


@asynccontextmanager
async def _serving_virtually(service: BufferService) -> AsyncIterator[RunningVirtually]:
    await service.start()
    buffer = RunningVirtually(service)
    stopping: list[asyncio.Future[None]] = []
    stop = buffer.stop

    async def stop_once() -> None:
        if not stopping:
            stopping.append(asyncio.ensure_future(stop()))
        await stopping[0]

    buffer.stop = stop_once  # type: ignore[method-assign]
    try:
        yield buffer
    finally:
        await buffer.stop()


@asynccontextmanager
async def serving(
    function: Function,
    policy: Policy,
    store: Any = None,
    plans: Plans | None = None,
    invoker: Any = None,
    clock: Any = time.perf_counter,
    journal: Any = None,
    **settings: Any,
) -> AsyncIterator[Any]:
    """Serve ``function`` under ``policy`` as model ``m``, or what is given instead: on a port of its own, or in virtual time."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        clock = loop.time
    store = store if store is not None else MemoryStore(memory(), "tttttttt")
    source = plans if plans is not None else Plans(plan(policy))
    invoker = invoker if invoker is not None else LocalInvoker({"f": function})
    given = Settings(port=0, log_level="error", **{"leave_delay": 0.0, **settings})
    service = BufferService(given, store, invoker, source, clock, journal=journal)
    if isinstance(loop, VirtualLoop):
        async with _serving_virtually(service) as buffer:
            yield buffer
        return
    running = Server(service)
    task = asyncio.create_task(running.serve())
    listening = asyncio.create_task(running.listening.wait())
    await asyncio.wait((task, listening), return_when=asyncio.FIRST_COMPLETED)
    assert not task.done(), task.exception()

    async def stop() -> None:
        running.stop()
        await task

    async with AsyncExitStack() as stack:
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        try:
            yield Running(service, f"http://127.0.0.1:{running.http.port}", http, stop)
        finally:
            await http.close()
            await stop()


@pytest.fixture
def function() -> Function:
    return Function()


@pytest.fixture
def model() -> str:
    """A model that nothing else on the server is named by."""
    return uuid.uuid4().hex


@pytest.fixture
def client(redis_server: RedisServer) -> Iterator[redis.Redis]:
    with redis.Redis.from_url(redis_server.url) as client:
        yield client


@pytest.fixture(scope="module")
def botocore_reads_its_data_once():
    """Each client reads megabytes of JSON otherwise: most of the time of these tests."""
    loader = botocore.loaders.create_loader()

    def get_session():
        session = botocore.session.Session()
        session.register_component("data_loader", loader)
        return session

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(botocore.session, "get_session", get_session)
        yield


@pytest.fixture
def aws_environment(monkeypatch, tmp_path):
    """Credentials of the examples of AWS's documentation, and nothing else that botocore would find."""
    for name in ("AWS_PROFILE", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for service in ("LAMBDA", "SAGEMAKER_RUNTIME"):
        monkeypatch.delenv(f"AWS_ENDPOINT_URL_{service}", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "no config"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "no credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setenv("AWS_REGION", REGION)
