"""Each process of the buffer tells of itself, and of the plans in force that it does not follow; it is bounded, and forgotten."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis
from msgspec.structs import replace

from sluice.batching.documents import Plan, write
from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service import presence
from sluice.buffer_service.app import BufferService
from sluice.buffer_service.followers import followers
from sluice.buffer_service.invokers import LocalInvoker
from sluice.buffer_service.plans import PlanSource, Refusal
from sluice.buffer_service.presence import (
    MOST_LETTERS,
    MOST_MODELS,
    Heard,
    OtherPlan,
    Presence,
    PresenceRecord,
    Presences,
    presence_of,
)
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.settings import Settings
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import NO_BATCHING, Function, Plans, plan
from tests.buffer_service.redis_cluster import cluster

SOMEBODY = Presence(host="h", release="1", plans="redis:")
PLAN, GONE = plan(NO_BATCHING), plan(NO_BATCHING, function="gone")


class Place:
    """A namespace of a Redis: its plans, and the processes that tell of themselves there."""

    def __init__(self, url: str, namespace: str) -> None:
        self.url, self.namespace = url, namespace
        self.plans, self.presences = RedisPlans(url, namespace), Presences(url, namespace)

    def buffer(self, plans: str, source: PlanSource | None = None) -> BufferService:
        settings = Settings(port=0, log_level="error", redis_url=self.url, namespace=self.namespace, plans=plans)
        return BufferService(settings, None, LocalInvoker({"f": Function()}), source)

    def record(self) -> PresenceRecord:
        """Of a process that serves ``PLAN``, from elsewhere."""
        plans = RedisPlans(self.url, self.namespace)
        return PresenceRecord(self.presences, SOMEBODY, plans, True, lambda: {"m": PLAN.digest}, list)

    async def until(self, found: Callable[[list[Heard]], bool]) -> list[Heard]:
        async with asyncio.timeout(30):
            while not found(heard := await self.presences.heard()):
                await asyncio.sleep(0.02)
        return heard

    async def close(self) -> None:
        await self.plans.close()
        await self.presences.close()


@pytest.fixture
async def place(redis_server: RedisServer) -> AsyncIterator[Place]:
    one = Place(redis_server.url, uuid.uuid4().hex)
    yield one
    await one.close()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence, "EVERY", 0.02)


@asynccontextmanager
async def started(*services: BufferService) -> AsyncIterator[None]:
    for service in services:
        await service.start()
    try:
        yield
    finally:
        for service in services:
            await service.stop()


@pytest.mark.usefixtures("often")
async def test_an_idle_buffer_that_refuses_the_plan_in_force_tells_why(place: Place) -> None:
    await place.plans.write(PLAN, "test")
    async with started(place.buffer("redis:")):
        [one] = await place.until(lambda heard: len(heard) == 1)
        assert (one.presence.plans, one.presence.models, one.presence.others) == ("redis:", 1, {})
        assert one.presence.host and one.presence.release and one.presence.read_at > 1.7e9
        await place.plans.write(GONE, "test")
        [one] = await place.until(lambda heard: bool(heard[0].presence.others) and bool(heard[0].presence.others["m"].refused))
        other = OtherPlan(PLAN.digest, GONE.digest, "function: 'gone' does not exist")
        assert one.presence.others == {"m": other}
        [written] = await place.plans.reasons(1)
        [astray] = followers("m", GONE.digest, written.at, [one]).astray
        assert (astray.process, astray.follows, astray.reason) == (one.process, PLAN.digest, other.reason)
        await place.plans.write(PLAN, "test", "back")
        [one] = await place.until(lambda heard: not heard[0].presence.others)
    assert await place.presences.heard() == []  # who ends takes himself out


@pytest.mark.usefixtures("often")
async def test_an_idle_buffer_whose_plans_come_from_elsewhere_tells_which_plans_in_redis_it_does_not_follow(place: Place) -> None:
    async with started(place.buffer("file:plans", Plans(PLAN))):
        [one] = await place.until(lambda heard: len(heard) == 1)
        assert (one.presence.read, one.presence.others) == ("", {})
        await place.plans.write(PLAN, "test")
        await place.until(lambda heard: bool(heard[0].presence.read))
        await place.plans.write(GONE, "test")
        await place.plans.write(plan(NO_BATCHING, "other"), "test")
        [one] = await place.until(lambda heard: len(heard[0].presence.others) == 2)
    assert one.presence.others == {"m": OtherPlan(PLAN.digest), "other": OtherPlan()}
    assert followers("m", GONE.digest, 0.0, [one]).words().endswith(f" follows plan {PLAN.digest}: its plans come from file:plans")


async def test_a_process_that_was_killed_is_there_no_more_and_forgotten_by_the_next_that_tells(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "plan.json").write_bytes(write(Plan(model="m", function="http://127.0.0.1:1", policy=PLAN.all_routes[0].policy)))
    settings = {"PLANS": f"file:{tmp_path}", "REDIS_URL": place.url, "NAMESPACE": place.namespace, "PORT": "0"}
    environment = os.environ | {f"SLUICE_{name}": value for name, value in settings.items()}
    command = sys.executable, "-m", "sluice.cli.main", "serve"
    process = await asyncio.create_subprocess_exec(*command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        [one] = await place.until(lambda heard: len(heard) == 1)
        process.send_signal(signal.SIGKILL)
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()
    assert [each.process for each in await place.presences.heard()] == [one.process]
    monkeypatch.setattr(presence, "GONE_AFTER", 0.1)
    await place.until(lambda heard: not heard)
    key = f"{place.namespace}:{{plans}}:"
    with redis.Redis.from_url(place.url) as client:
        assert client.hkeys(f"{key}buffers") == [one.process.encode()]
        await place.presences.tell("next", SOMEBODY)
        assert (client.hkeys(f"{key}buffers"), client.zrange(f"{key}heard", 0, -1)) == ([b"next"], [b"next"])


async def test_what_a_redis_that_is_away_was_not_told_is_told_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        place = Place(server.url, "n")
        record = place.record()
        await record.look()
        server.kill()
        for _ in range(2):
            await record.look()
        assert caplog.text.count("this process is not told of in Redis: ") == 1
        with pytest.raises(StoreUnavailable):
            await place.presences.heard()
        server.start()
        async with asyncio.timeout(30):
            while len(await _heard(place)) != 1:
                await record.look()
                await asyncio.sleep(0.05)
        server.kill()
        await record.look()
        assert caplog.text.count("this process is not told of in Redis: ") == 2  # away again, and said again
        await record.close()
        await place.plans.close()


async def _heard(place: Place) -> list[Heard]:
    """``heard``, or nobody while Redis is not back."""
    try:
        return await place.presences.heard()
    except StoreUnavailable:
        return []


@pytest.mark.parametrize("models", [1, 300])
async def test_a_process_takes_one_command_to_tell_of_itself_however_many_models_have_a_plan(models: int, place: Place) -> None:
    for i in range(models):
        await place.plans.write(plan(NO_BATCHING, f"m{i}"), "test")
    record = place.record()
    await record.look()
    with redis.Redis.from_url(place.url) as client:
        before = _calls(client)
        for _ in range(5):
            await record.look()
        told = {name: n - before.get(name, 0) for name, n in _calls(client).items() if n != before.get(name, 0)}
    asked = {"evalsha": 5, "xrevrange": 5, "hgetall": None}  # the second by the script itself
    assert {name: told.get(name) for name in asked} == asked
    await record.close()


def _calls(client: redis.Redis) -> dict[str, int]:
    return {name.removeprefix("cmdstat_"): stats["calls"] for name, stats in client.info("commandstats").items()}


async def test_of_a_process_no_more_is_told_than_has_a_bound() -> None:
    in_force = {f"m{i:03}": "d" for i in range(100)}
    refusals = [Refusal("place", "z" * 1000, "d", "invalid", "why " * 1000), Refusal("place", "m099", "d", "invalid", "wrong")]
    told = presence_of(SOMEBODY, in_force, {"m099": "c", "m001": "d"}, refusals, "1-1")
    assert list(told.others)[:4] == ["z" * MOST_LETTERS, "m099", "m000", "m002"]
    assert told.others["m099"] == OtherPlan("c", "d", "wrong") and len(told.others["z" * MOST_LETTERS].reason) == MOST_LETTERS
    assert (len(told.others), told.left_out, told.models) == (MOST_MODELS, 100 - MOST_MODELS, 2)  # m001 follows, and z comes to it


async def test_there_are_no_more_processes_than_a_bound_and_one_that_ended_makes_room(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(presence, "MOST_PROCESSES", 2)
    for process in ("a", "b", "a"):
        await place.presences.tell(process, SOMEBODY)
    record = place.record()
    await record.look()
    assert "this process is not told of in Redis: 2 other processes are told of there" in caplog.text
    await place.presences.leave("a")
    await record.look()
    assert [each.process for each in await place.presences.heard()] == ["", "b"]
    await record.close()


async def test_nobody_is_there_for_longer_where_the_clock_of_redis_is_set_back(place: Place) -> None:
    await place.presences.tell("a", SOMEBODY)
    with redis.Redis.from_url(place.url) as client:
        client.zadd(f"{place.namespace}:{{plans}}:heard", {"a": 4e9})  # as the clock was then
        await place.presences.tell("b", SOMEBODY)
        assert [each.process for each in await place.presences.heard()] == ["b"]
        await place.presences.tell("a", SOMEBODY)
        assert [each.process for each in await place.presences.heard()] == ["a", "b"]


async def test_what_somebody_else_wrote_is_passed_over_or_told_as_trouble(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    key = f"{place.namespace}:{{plans}}:buffers"
    with redis.Redis.from_url(place.url) as client:
        for process, document in (("a", b"{}"), ("b", b"\xff"), ("c", b'{"host":1}'), ("d", b"")):
            await place.presences.tell(process, SOMEBODY)
            client.hset(key, process, document)
        client.hset(key, "nobody heard of it", b"{}")
        await place.presences.tell("e", replace(SOMEBODY, read="odd"))
        [one] = await place.presences.heard()
        assert (one.process, one.presence.read_at) == ("e", 0.0)
        client.delete(key)
        client.set(key, "mine")
    with pytest.raises(StoreUnavailable, match="Redis refused: WRONGTYPE"):
        await place.presences.heard()
    await place.record().look()
    assert "this process is not told of in Redis: Redis refused: " in caplog.text


async def test_who_looks_at_the_plans_for_that_puts_back_none_that_redis_lost(redis_server: RedisServer, place: Place) -> None:
    await place.plans.write(PLAN, "test")
    record = place.record()
    await record.look()
    with redis.Redis.from_url(place.url) as client:
        client.delete(*(f"{place.namespace}:{{plans}}:{name}" for name in ("documents", "history")))
        for _ in range(2):
            await record.look()
        assert not client.exists(f"{place.namespace}:{{plans}}:documents")
    [one] = await place.presences.heard()
    assert one.presence.others == {}  # none is in force that it does not follow
    await record.close()


async def test_a_document_without_a_digest_is_no_plan_that_somebody_follows_or_not(place: Place) -> None:
    await place.plans.write(PLAN, "test")
    with redis.Redis.from_url(place.url) as client:
        client.hset(f"{place.namespace}:{{plans}}:documents", mapping={"x": b"garbage", "y": b'{"model": "y"}'})
    await place.plans.look()
    assert place.plans.digests() == {"m": PLAN.digest}


@pytest.mark.full
async def test_processes_tell_of_themselves_in_a_cluster() -> None:
    with cluster() as three:
        place = Place(three.url, "n")
        await place.plans.write(GONE, "test")
        record = place.record()
        await record.look()
        [one] = await place.presences.heard()
        assert one.presence.others == {"m": OtherPlan(PLAN.digest)}
        await record.close()
        await place.close()
