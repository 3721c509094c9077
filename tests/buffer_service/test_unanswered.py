"""Who had no answer is counted by error, of all processes together, and bounded."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator

import pytest
import redis

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service import unanswered
from sluice.buffer_service.app import BufferService
from sluice.buffer_service.invokers import LocalInvoker
from sluice.buffer_service.settings import Settings
from sluice.buffer_service.unanswered import MOST_ERRORS, Counted, Unanswered, UnansweredCounts, UnansweredRecord
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import NO_BATCHING, Function, Plans, plan


@pytest.fixture
async def counts(redis_server: RedisServer) -> AsyncIterator[UnansweredCounts]:
    one = UnansweredCounts(redis_server.url, uuid.uuid4().hex)
    yield one
    await one.close()


class Process:
    """What a process counted."""

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}
        self.late = 0

    def __call__(self) -> dict[str, Counted]:
        return {"m": Counted(dict(self.errors), self.late)}


async def test_what_is_new_of_every_process_is_added_once(counts: UnansweredCounts) -> None:
    one, other = Process(), Process()
    records = [UnansweredRecord(counts, each, lambda: 1.7e9) for each in (one, other)]
    for more in ({"Overloaded": 2}, {"Overloaded": 2}, {"Overloaded": 5, "ClientLeft": 1}):
        one.errors = more
        await records[0].look()
    other.errors = {"Overloaded": 1}
    await records[1].look()
    assert await counts.of("m") == Unanswered(1.7e9, {"ClientLeft": 1, "Overloaded": 6})
    assert await counts.of("another") == Unanswered(None, {})


async def test_who_broke_the_promise_lately_is_told_apart(counts: UnansweredCounts) -> None:
    process = Process()
    record = UnansweredRecord(counts, process, lambda: 1.7e9)
    for process.errors, process.late in (({"Overloaded": 2}, 2), ({"Overloaded": 2, "ClientLeft": 3}, 2), ({"Overloaded": 7}, 7)):
        await record.look()
        await record.look()
    told = await counts.of("m", window=60.0)
    assert (told.late, told.by_error) == (7, {"ClientLeft": 3, "Overloaded": 7}) and 0 < told.late_for < 60
    assert (await counts.of("m", window=0.0)).late == 0
    await asyncio.sleep(0.3)
    await counts.add("m", {"Overloaded": 1}, 1, 1.7e9)
    assert (await counts.of("m", window=0.2)).late == 1


async def test_of_those_that_broke_it_so_many_entries_are_kept(counts: UnansweredCounts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unanswered, "MOST_LATE", 100)  # Redis keeps whole nodes of its stream, of 100 entries
    for _ in range(350):
        await counts.add("m", {"Overloaded": 1}, 1, 1.7e9)
    monkeypatch.setattr(unanswered, "MOST_LATE", 1000)
    told = await counts.of("m", window=600.0)
    assert 100 <= told.late <= 200 and told.by_error == {"Overloaded": 350}


async def test_a_model_that_is_counted_anew_goes_on_from_there(counts: UnansweredCounts) -> None:
    counted = Process()
    record = UnansweredRecord(counts, counted, lambda: 1.7e9)
    for errors in ({"Overloaded": 5}, {"Overloaded": 2}, {"Overloaded": 3}):
        counted.errors = errors
        await record.look()
    assert (await counts.of("m")).by_error == {"Overloaded": 8}


async def test_what_a_redis_that_is_away_was_not_told_is_added_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        counts, counted = UnansweredCounts(server.url), Process()
        record = UnansweredRecord(counts, counted, lambda: 1.7e9)
        server.kill()
        for n in (1, 2):
            counted.errors = {"StoreUnavailable": n}
            await record.look()
        assert caplog.text.count("who had no answer is not counted in Redis: ") == 1
        with pytest.raises(StoreUnavailable):
            await counts.of("m")
        server.start()
        async with asyncio.timeout(30):
            while (await told(counts)).by_error != {"StoreUnavailable": 2}:
                await record.look()
                await asyncio.sleep(0.05)
        await record.close()


async def told(counts: UnansweredCounts) -> Unanswered:
    """``of``, or nothing while Redis is not back."""
    try:
        return await counts.of("m")
    except StoreUnavailable:
        return Unanswered(None, {})


async def test_errors_are_bounded_and_what_somebody_else_wrote_is_passed_over(redis_server: RedisServer) -> None:
    namespace = uuid.uuid4().hex
    counts = UnansweredCounts(redis_server.url, namespace)
    key = f"{namespace}:{{m}}:unanswered"
    with redis.Redis.from_url(redis_server.url) as client:
        client.hset(key, mapping={"since": "long ago", "odd": "many"})
        await counts.add("m", {f"Error{i:03}": 1 for i in range(2 * MOST_ERRORS)}, 0, 1.7e9)
        found = await counts.of("m")
        assert (found.since, len(found.by_error), set(found.by_error.values())) == (None, MOST_ERRORS, {1})
        client.xadd(f"{key}-late", {"n": "many"})
        client.xadd(f"{key}-late", {"odd": "1"})
        assert (await counts.of("m", window=60.0)).late == 0
        client.set(f"{namespace}:{{n}}:unanswered", "mine")
    with pytest.raises(StoreUnavailable, match="Redis refused: WRONGTYPE"):
        await counts.of("n")
    await counts.close()


async def test_a_buffer_counts_in_its_redis_what_was_left_without_an_answer(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(unanswered, "EVERY", 0.02)
    settings = Settings(port=0, log_level="error", redis_url=redis_server.url, namespace=uuid.uuid4().hex)
    counts = UnansweredCounts(redis_server.url, settings.namespace)
    service = BufferService(settings, None, LocalInvoker({"f": Function()}), Plans(plan(NO_BATCHING)))
    await service.start()
    service.model("m").telemetry.refused(StoreUnavailable("away"))
    async with asyncio.timeout(30):
        while not (await counts.of("m")).by_error:
            await asyncio.sleep(0.02)
    service.model("m").telemetry.refused(StoreUnavailable("away"))
    for waited, in_batch in ((0.01, False), (30.0, False), (30.0, True)):
        service.model("m").telemetry.left(waited, in_batch=in_batch)
    await service.stop()
    found = await counts.of("m", window=60.0)
    assert found.by_error == {"StoreUnavailable": 2, "ClientLeft": 3} and found.since is not None
    assert found.late == 3  # who left soon was promised nothing by then, and of who was in a batch its record tells
    await counts.close()
