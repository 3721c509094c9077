"""A connection to a name: each of its addresses has its share of the time, and what is said where none takes it."""

import asyncio
import gc
from contextlib import asynccontextmanager

import pytest
import uvloop

from sluice.buffer_service import addresses


@asynccontextmanager
async def listening():
    """A port of 127.0.0.1 that takes connections."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


def has(monkeypatch, *found):
    """Every name has these addresses."""

    async def known(host, port):
        return list(found)

    monkeypatch.setattr(addresses, "addresses_of", known)


async def reached(port, within=2.0):
    transport, _ = await addresses.connect(asyncio.Protocol, "server.example", port, within)
    transport.close()
    return transport.get_extra_info("peername")[0]


async def test_each_address_of_a_name_is_tried(monkeypatch):
    has(monkeypatch, "127.0.0.2", "127.0.0.1")  # nobody listens at the first
    async with listening() as port:
        assert await reached(port) == "127.0.0.1"


async def test_an_address_that_takes_no_connection_in_its_share_of_the_time_is_passed_over(monkeypatch):
    async def silent_at_the_first(made, address, *args, **kwargs):
        if address == "127.0.0.2":
            await asyncio.Event().wait()
        return await create_connection(made, address, *args, **kwargs)

    create_connection = asyncio.get_running_loop().create_connection
    has(monkeypatch, "127.0.0.2", "127.0.0.1")
    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", silent_at_the_first)
    async with listening() as port:
        assert await reached(port, within=0.2) == "127.0.0.1"
    has(monkeypatch, "127.0.0.2")
    with pytest.raises(TimeoutError, match="^no connection within 0.02 s$"):
        await reached(port, within=0.02)


async def test_the_error_is_that_of_the_last_address(monkeypatch):
    has(monkeypatch, "127.0.0.1", "127.0.0.2")
    async with listening() as port:
        pass
    with pytest.raises(ConnectionRefusedError, match=r"127\.0\.0\.2"):
        await reached(port)
    has(monkeypatch)
    with pytest.raises(OSError, match=r"^server\.example has no address$"):
        await reached(port)


async def test_a_name_that_is_looked_up_for_too_long_is_said(monkeypatch):
    async def silent(host, port):
        await asyncio.Event().wait()

    monkeypatch.setattr(addresses, "addresses_of", silent)
    with pytest.raises(TimeoutError, match=r"^no address within 0\.02 s$"):
        await reached(80, within=0.02)


def test_a_name_that_is_looked_up_for_longer_than_somebody_waits_leaves_no_error_behind():
    told = []

    async def given_up():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context["message"]))
        connecting = asyncio.create_task(addresses.connect(asyncio.Protocol, "nowhere.invalid", 6379, 20.0))
        await asyncio.sleep(0)
        connecting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await connecting
        for _ in range(5):  # which end after that which nobody waits for
            with pytest.raises(OSError, match="not known|resolution"):
                await loop.getaddrinfo("nowhere.invalid", 6379)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(given_up())
        gc.collect()
    assert told == []
