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
from sluice.buffer_service.unanswered import MOST_ERRORS, Unanswered, UnansweredCounts, UnansweredRecord
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import NO_BATCHING, Function, Plans, plan


@pytest.fixture
async def counts(redis_server: RedisServer) -> AsyncIterator[UnansweredCounts]:
    one = UnansweredCounts(redis_server.url, uuid.uuid4().hex)
    yield one
    await one.close()


class Counted:
    """What a process counted."""

    def __init__(self) -> None:
        self.errors: dict[str, int] = {}

    def __call__(self) -> dict[str, dict[str, int]]:
        return {"m": dict(self.errors)}


async def test_what_is_new_of_every_process_is_added_once(counts: UnansweredCounts) -> None:
    one, other = Counted(), Counted()
    records = [UnansweredRecord(counts, each, lambda: 1.7e9) for each in (one, other)]
    for more in ({"Overloaded": 2}, {"Overloaded": 2}, {"Overloaded": 5, "ClientLeft": 1}):
        one.errors = more
        await records[0].look()
    other.errors = {"Overloaded": 1}
    await records[1].look()
    assert await counts.of("m") == Unanswered(1.7e9, {"ClientLeft": 1, "Overloaded": 6})
    assert await counts.of("another") == Unanswered(None, {})


async def test_a_model_that_is_counted_anew_goes_on_from_there(counts: UnansweredCounts) -> None:
    counted = Counted()
    record = UnansweredRecord(counts, counted, lambda: 1.7e9)
    for errors in ({"Overloaded": 5}, {"Overloaded": 2}, {"Overloaded": 3}):
        counted.errors = errors
        await record.look()
    assert (await counts.of("m")).by_error == {"Overloaded": 8}


async def test_what_a_redis_that_is_away_was_not_told_is_added_when_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    with RedisServer() as server:
        counts, counted = UnansweredCounts(server.url), Counted()
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
        await counts.add("m", {f"Error{i:03}": 1 for i in range(2 * MOST_ERRORS)}, 1.7e9)
        found = await counts.of("m")
        assert (found.since, len(found.by_error), set(found.by_error.values())) == (None, MOST_ERRORS, {1})
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
    await service.stop()
    found = await counts.of("m")
    assert found.by_error == {"StoreUnavailable": 2} and found.since is not None
    await counts.close()
