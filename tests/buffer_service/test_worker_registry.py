"""The registry of workers: who is known, who counts as dead, and what it does not take."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import pytest
import redis

from sluice.batching.errors import InvalidInput, StoreUnavailable
from sluice.buffer_service import worker_registry
from sluice.buffer_service.worker_registry import Registered, Registration, Variant, WorkerRegistry
from sluice.local.redis_server import RedisServer

KEY = "%s:{workers}:registry"
MODEL = """
class Doubler:
    def predict(self, inputs):
        return [2 * x for x in inputs]
"""


@asynccontextmanager
async def opened(server: RedisServer, namespace: str) -> AsyncIterator[WorkerRegistry]:
    registry = WorkerRegistry(server.url, namespace)
    try:
        yield registry
    finally:
        await registry.close()


def registration(address: str = "http://a:1", **changes: object) -> Registration:
    told: dict[str, object] = {"address": address, "device": "gpu", "heartbeat": 1.0, "variants": {"m": Variant("READY", 0.5)}}
    return Registration(**(told | changes))  # type: ignore[arg-type]


def set_back(server: RedisServer, namespace: str, address: str, seconds: float) -> None:
    """The worker was heard of so much earlier."""
    client = redis.Redis.from_url(server.url)
    record = client.hget(KEY % namespace, address)
    assert isinstance(record, bytes)
    beat, _, told = record.partition(b" ")
    client.hset(KEY % namespace, address, b"%f " % (float(beat) - seconds) + told)


async def test_a_worker_is_known_with_what_it_said_last_until_it_leaves(redis_server: RedisServer) -> None:
    async with opened(redis_server, "known") as registry:
        await registry.beat(registration(variants={}))
        await registry.beat(registration())
        await registry.beat(registration("http://b:1", device="cpu"))
        found = await registry.workers()
        assert [worker.registration for worker in found.values()] == [registration(), registration("http://b:1", device="cpu")]
        assert all(worker.alive for worker in found.values())
        await registry.leave("http://a:1")
        assert list(await registry.workers()) == ["http://b:1"]


async def test_a_worker_that_was_silent_for_two_heartbeats_counts_as_dead(redis_server: RedisServer) -> None:
    async with opened(redis_server, "silent") as registry:
        await registry.beat(registration(heartbeat=30.0))
        set_back(redis_server, "silent", "http://a:1", 40)
        assert (await registry.workers())["http://a:1"].alive
        set_back(redis_server, "silent", "http://a:1", 25)
        assert not (await registry.workers())["http://a:1"].alive


async def test_who_is_silent_when_the_clock_is_set_back_is_dead_two_heartbeats_later(redis_server: RedisServer) -> None:
    async with opened(redis_server, "back") as registry:
        for address in ("http://a:1", "http://b:1"):
            await registry.beat(registration(address, heartbeat=30.0))
            set_back(redis_server, "back", address, -3600)  # as a clock leaves it that is an hour behind by now
        await registry.beat(registration("http://a:1", heartbeat=30.0))
        for address in ("http://a:1", "http://b:1"):
            set_back(redis_server, "back", address, 61)
        await registry.beat(registration("http://a:1", heartbeat=30.0))
        found = await registry.workers()
        assert [found[address].alive for address in ("http://a:1", "http://b:1")] == [True, False]
        assert found["http://b:1"].registration == registration("http://b:1", heartbeat=30.0)


def test_a_worker_that_leaves_is_not_alive() -> None:
    assert not Registered(registration(leaving=True), 0.0).alive


async def test_the_silent_are_forgotten_when_there_is_no_room_and_not_before(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_registry, "MAX_REGISTERED", 2)
    async with opened(redis_server, "room") as registry:
        await registry.beat(registration("http://a:1"))
        await registry.beat(registration("http://b:1"))
        with pytest.raises(InvalidInput, match="at most 2 workers"):
            await registry.beat(registration("http://c:1"))
        await registry.beat(registration("http://b:1", device="other"))
        set_back(redis_server, "room", "http://a:1", worker_registry.FORGOTTEN + 1)
        await registry.beat(registration("http://c:1"))
        assert list(await registry.workers()) == ["http://b:1", "http://c:1"]


async def test_a_registration_too_large_is_refused(redis_server: RedisServer) -> None:
    async with opened(redis_server, "large") as registry:
        with pytest.raises(InvalidInput, match=r"variants.*at most"):
            await registry.beat(registration(variants={"m" * 100 + str(i): Variant("READY") for i in range(3000)}))


@pytest.mark.parametrize(
    "record", [b"", b"1 ", b"x {}", b'1 {"address": 3}', b'1 {"address": "ftp://a", "device": "x", "heartbeat": 1}']
)
async def test_a_record_that_cannot_be_read_is_left_out_and_keeps_nobody_from_being_known(
    redis_server: RedisServer, record: bytes
) -> None:
    redis.Redis.from_url(redis_server.url).hset(KEY % "foreign", "http://x:1", record)
    async with opened(redis_server, "foreign") as registry:
        await registry.beat(registration())
        assert list(await registry.workers()) == ["http://a:1"]


async def test_a_key_of_another_kind_is_told_as_what_it_is(redis_server: RedisServer) -> None:
    redis.Redis.from_url(redis_server.url).set(KEY % "kind", "mine")
    async with opened(redis_server, "kind") as registry:
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            await registry.beat(registration())


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"address": "a:1"}, "address"),
        ({"device": ""}, "device"),
        ({"heartbeat": 0.0}, "heartbeat"),
        ({"heartbeat": 61.0}, "heartbeat"),
    ],
)
def test_a_registration_names_what_is_not_allowed(changes: dict[str, object], names: str) -> None:
    with pytest.raises(InvalidInput, match=names):
        registration(**changes)


# -- the worker


@contextmanager
def worker(folder: Path, server: RedisServer, namespace: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    (folder / "code.py").write_text(MODEL)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    told = ["--register", server.url, "--device", "v100", "--heartbeat", "0.3", "--namespace", namespace, "--port", "0"]
    models = ["first=code.py:Doubler", "later=code.py:Doubler", "--unloaded", "later"]
    command = [sys.executable, "-m", "sluice.cli.main", "worker", *models, *told]
    process = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


async def until(registry: WorkerRegistry, seen: Callable[[dict[str, Registered]], bool]) -> dict[str, Registered]:
    began = time.monotonic()
    while True:
        found = await registry.workers()
        if seen(found):
            return found
        assert time.monotonic() < began + 30, found
        await asyncio.sleep(0.02)


async def test_a_worker_tells_of_its_variants_and_is_missed_when_it_is_killed(tmp_path: Path, redis_server: RedisServer) -> None:
    async with opened(redis_server, "worker") as registry:
        with worker(tmp_path, redis_server, "worker") as (process, url):
            found = await until(registry, bool)
            told = found[url].registration
            assert (told.device, told.heartbeat, found[url].alive) == ("v100", 0.3, True)
            assert told.variants["later"] == Variant("UNAVAILABLE")
            first = told.variants["first"]
            assert first.state == "READY"
            assert first.load_seconds is not None
            assert first.load_seconds > 0
            with urllib.request.urlopen(f"{url}/v2/repository/models/later/load", b"") as answer:
                assert json.load(answer) == {}
            await until(registry, lambda known: known[url].registration.variants["later"].state == "READY")
            os.kill(process.pid, signal.SIGKILL)
            await until(registry, lambda known: not known[url].alive)


async def test_a_worker_that_ends_is_forgotten_at_once(tmp_path: Path, redis_server: RedisServer) -> None:
    async with opened(redis_server, "ends") as registry:
        with worker(tmp_path, redis_server, "ends") as (process, _):
            await until(registry, bool)
            process.terminate()
            assert process.wait(20) == 0
            assert await registry.workers() == {}
