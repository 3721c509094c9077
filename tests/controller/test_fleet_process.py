"""The process that follows a fleet, on a real Redis: what it learns of the batches that buffers record."""

from __future__ import annotations

import asyncio
import uuid
from math import nan
from pathlib import Path

import pytest

from sluice.batching import policy as constructors
from sluice.batching.errors import StoreUnavailable
from sluice.batching.measured import MeasuredBatch
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import Events, Limits
from sluice.buffer_service.unanswered import Unanswered, UnansweredCounts
from sluice.controller.fleet_process import FleetProcess
from sluice.controller.journal import Journal, read_journal
from sluice.controller.live_fleet import LiveFleet
from sluice.local.redis_server import RedisServer
from sluice.optimizer.control import ControlledFleet, ControlSettings
from sluice.optimizer.control.overhead import FEWEST
from sluice.optimizer.fleet import solve_fleet
from sluice.optimizer.fleet.specification import Fleet
from tests.controller.test_live_fleet import small


async def told(
    fleet: Fleet, batches: list[MeasuredBatch], url: str, journal: Path, namespace: str
) -> tuple[FleetProcess, list[str]]:
    """A process that reads these batches of slow on gpu, when its journal has begun, and the words of that."""
    store = RedisStore(url, "aaaaaaaa", namespace)
    queue = store.queue("family", Limits(), "slow.gpu")
    await queue.install(constructors.greedy(8, servers=1))
    await queue.advance(Events(measured=batches))
    plans = RedisPlans(url, namespace)
    process = FleetProcess(fleet, solve_fleet, ControlSettings(), plans, "one", Journal(journal, plans), url, namespace)
    running = asyncio.create_task(process.run())
    async with asyncio.timeout(20):
        while not journal.exists() or not list(read_journal(journal)):
            await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await plans.close()
    await store.close()
    return process, [entry["words"] for entry in read_journal(journal)]


async def test_what_recorded_batches_took_beyond_their_profiles_is_planned_with_and_told(
    redis_server: RedisServer, tmp_path: Path, namespace: str
) -> None:
    fleet = small()
    expected = float(fleet.profiles["gpu", "slow"].service.mean_response[3])
    batch = MeasuredBatch(0.0, "slow.gpu", 0, "http://a:1", "", 4, expected + 0.02, nan, nan, False, 0, ())
    _, words = await told(fleet, [batch] * FEWEST, redis_server.url, tmp_path / "journal.jsonl", namespace)
    assert words == ["batches take longer than their profiles say: 20 ms of family"]


async def test_a_worker_that_recorded_batches_say_is_slower_than_its_profile_is_planned_with_what_it_takes(
    redis_server: RedisServer, tmp_path: Path, namespace: str
) -> None:
    fleet = small()
    expected = fleet.profiles["gpu", "slow"].service.mean_response
    took = [(size, 1.5 * float(expected[size - 1])) for size in (1, 2, 4, 8)]
    batches = [MeasuredBatch(0.0, "slow.gpu", 0, "http://a:1", "", *each, nan, nan, False, 0, ()) for each in took]
    process, words = await told(fleet, batches * (FEWEST // 4), redis_server.url, tmp_path / "journal.jsonl", namespace)
    assert words == ["batches take 1.5 times as long for slow on gpu"]
    true = ControlledFleet.of(fleet.slower({("gpu", "slow"): 1.5})).problem.throughput
    assert process._controller.problem.throughput == pytest.approx(true)


async def test_what_came_while_redis_was_away_is_told_as_not_known(tmp_path: Path, namespace: str) -> None:
    with RedisServer(append_only=True) as server:
        plans, journal = RedisPlans(server.url, namespace), tmp_path / "journal.jsonl"
        process = FleetProcess(small(), solve_fleet, ControlSettings(), plans, "one", Journal(journal, None), server.url, namespace)
        running = asyncio.create_task(process.run())
        await asyncio.sleep(0.5)
        server.kill()
        await asyncio.sleep(0.5)
        server.start()
        async with asyncio.timeout(20):
            while not any("is not known, as Redis did not answer" in entry["words"] for entry in read_journal(journal)):
                await asyncio.sleep(0.02)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await plans.close()


async def test_who_broke_the_promise_in_no_batch_is_known_since_the_placement_came(
    redis_server: RedisServer, tmp_path: Path, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, journal = redis_server.url, tmp_path / "journal.jsonl"
    counts, plans = UnansweredCounts(url, namespace), RedisPlans(url, namespace)
    process = FleetProcess(small(), solve_fleet, ControlSettings(), plans, "one", Journal(journal, None), url, namespace)
    running = asyncio.create_task(process.run())
    await asyncio.sleep(0)
    assert await process._in_no_batch() == {}, "nothing is placed yet"
    monkeypatch.setattr(LiveFleet, "placed_since", process._clock() - 30.0)
    assert await process._in_no_batch() == {"family": 0}
    await counts.add("family", {"DeadlinePassed": 5, "QueueFull": 2}, 6, 0.0)
    assert await process._in_no_batch() == {"family": 6}
    monkeypatch.setattr(process._unanswered, "of", away)
    assert await process._in_no_batch() == {} and process._trouble == "Redis is away"
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await asyncio.gather(counts.close(), plans.close())


async def away(model: str, window: float) -> Unanswered:
    raise StoreUnavailable("Redis is away")


@pytest.fixture
def namespace() -> str:
    return uuid.uuid4().hex
