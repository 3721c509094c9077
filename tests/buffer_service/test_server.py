"""The life of a process that serves: it begins whole or not at all; it ends with its drain, or at once if asked twice."""

from __future__ import annotations

import asyncio
import socket
import threading

import aiohttp
import pytest

from sluice.batching.errors import InvalidInput
from sluice.buffer_service.app import BufferService, Server
from sluice.buffer_service.invokers import LocalInvoker
from sluice.buffer_service.memory_store import MemoryStore
from sluice.buffer_service.settings import Settings
from sluice.buffer_service.unwaited import unwaited
from tests.buffer_service.conftest import NO_BATCHING, Plans, memory, plan


def service_of(function, port=0):
    settings = Settings(port=port, log_level="error", leave_delay=0.0)
    return BufferService(settings, MemoryStore(memory(), "tttttttt"), LocalInvoker({"f": function}), Plans(plan(NO_BATCHING)))


async def test_who_asks_twice_for_the_end_need_not_wait_for_what_is_under_way(function):
    gate, entered = asyncio.Event(), asyncio.Event()

    async def answer(batch):
        entered.set()
        await gate.wait()
        return await function.echo(batch)

    function.answer = answer
    service = service_of(function)
    server = Server(service)
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(60), aiohttp.ClientSession() as http:
        await server.listening.wait()
        asked = asyncio.create_task(http.post(f"http://127.0.0.1:{server.http.port}/models/m", data=b"1"))
        await entered.wait()
        server.stop(at_once=True)
        await asyncio.sleep(0.05)
        assert not serving.done() and not asked.done()
        server.stop(at_once=True)
        await serving
        with pytest.raises(aiohttp.ClientConnectionError):
            await asked
        gate.set()
        await service.stop()


async def test_a_port_that_cannot_be_had_is_an_error_that_leaves_nothing_running(function):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        server = Server(service_of(function, port := taken.getsockname()[1]))
        with pytest.raises(InvalidInput, match=rf"SLUICE_PORT: {port} is not allowed; allowed: a free port of 127.0.0.1"):
            await server.serve()
    assert not server.listening.is_set() and len(asyncio.all_tasks()) == 1


async def test_who_is_told_to_end_while_it_starts_ends_and_leaves_nothing_running(function, monkeypatch):
    asked = threading.Event()

    def never(self):
        asked.set()
        threading.Event().wait()  # a parameter store that does not answer

    monkeypatch.setattr(Plans, "documents", never)
    server = Server(service_of(function))
    serving = asyncio.create_task(server.serve())
    async with asyncio.timeout(60):
        await asyncio.to_thread(asked.wait)
        server.stop()
        await serving
    assert not server.listening.is_set() and len(asyncio.all_tasks()) == 1


def test_a_loop_ends_though_what_it_asked_for_never_comes():
    begun = threading.Event()

    def never():
        begun.set()
        threading.Event().wait()

    async def asks():
        with pytest.raises(ZeroDivisionError):
            await unwaited(divmod, 7, 0)
        asking = asyncio.create_task(unwaited(never))
        assert await unwaited(divmod, 7, 2) == (3, 1)
        await asyncio.to_thread(begun.wait)
        asking.cancel()

    asyncio.run(asks())
