"""Plans in Redis: pushed to every process, written by one leader at a time or a person, and what was in force before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis
from msgspec import structs

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument
from sluice.batching.errors import InvalidInput, StoreUnavailable
from sluice.buffer_service import redis_plans
from sluice.buffer_service.plans import PlanFollower, plan_source
from sluice.buffer_service.redis_plans import NotLeading, RedisPlans
from sluice.buffer_service.settings import Settings
from sluice.local.redis_server import RedisServer


def plan(model: str = "m", batch: int = 1) -> Plan:
    return Plan(model=model, function="f", policy=PolicyDocument.of(constructors.greedy(batch)))


@asynccontextmanager
async def opened(server: RedisServer, namespace: str) -> AsyncIterator[RedisPlans]:
    plans = RedisPlans(server.url, namespace)
    try:
        yield plans
    finally:
        await plans.close()


class Followed:
    """A process that follows plans in Redis: which it took, and when."""

    def __init__(self, server: RedisServer, namespace: str, interval: float = 30.0) -> None:
        self.taken: list[tuple[str, float]] = []
        self.came = asyncio.Event()
        settings = Settings(redis_url=server.url, namespace=namespace, plans="redis:")
        self.follower = PlanFollower(plan_source(settings), interval, self.take)

    async def take(self, taken: Plan) -> None:
        self.taken.append((taken.digest, time.monotonic()))
        self.came.set()

    async def next(self) -> str:
        async with asyncio.timeout(20):
            await self.came.wait()
        self.came.clear()
        return self.taken[-1][0]


@asynccontextmanager
async def following(server: RedisServer, namespace: str, n: int = 1, interval: float = 30.0) -> AsyncIterator[list[Followed]]:
    processes = [Followed(server, namespace, interval) for _ in range(n)]
    for process in processes:
        await process.follower.look()
    tasks = [asyncio.create_task(process.follower.follow()) for process in processes]
    await asyncio.sleep(0)
    try:
        yield processes
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for process in processes:
            await process.follower.close()


async def test_a_change_is_pushed_to_every_process_long_before_they_look(redis_server: RedisServer) -> None:
    async with opened(redis_server, "pushed") as plans, following(redis_server, "pushed", 3) as processes:
        for batch in (1, 2, 3):
            written = plan(batch=batch)
            await plans.write(written, "test")
            assert [await process.next() for process in processes] == [written.digest] * 3


async def test_a_plan_that_is_there_is_followed_from_the_start(redis_server: RedisServer) -> None:
    async with opened(redis_server, "start") as plans:
        await plans.write(plan(batch=4), "test")
        async with following(redis_server, "start") as [process]:
            assert await process.next() == plan(batch=4).digest


async def test_a_redis_that_has_lost_its_data_leaves_the_plan_in_force_and_the_next_is_taken() -> None:
    with RedisServer() as server:
        async with opened(server, "lost") as plans:
            await plans.write(plan(), "test")
            async with following(server, "lost", interval=0.1) as [process]:
                await process.next()
                redis.Redis.from_url(server.url).flushall()
                await asyncio.sleep(0.3)
                assert len(process.taken) == 1
                await plans.write(plan(batch=2), "test")
                assert await process.next() == plan(batch=2).digest


async def test_a_redis_that_was_away_is_followed_again_long_before_the_next_look_is_due() -> None:
    with RedisServer() as server:
        async with opened(server, "away") as plans, following(server, "away", interval=3600.0) as [process]:
            await plans.write(plan(), "test")
            await process.next()
            server.kill()
            await asyncio.sleep(0.2)
            server.start()
            async with asyncio.timeout(20):
                while True:
                    try:
                        await plans.write(plan(batch=2), "test")
                        break
                    except StoreUnavailable:
                        await asyncio.sleep(0.05)
            assert await process.next() == plan(batch=2).digest


async def test_what_is_no_plan_is_refused_and_the_one_in_force_goes_on(redis_server: RedisServer) -> None:
    async with opened(redis_server, "refused") as plans, following(redis_server, "refused", interval=0.05) as [process]:
        await plans.write(plan(), "test")
        await process.next()
        client = redis.Redis.from_url(redis_server.url)
        client.hset("refused:{plans}:documents", "m", b"{}")
        client.xadd("refused:{plans}:history", {"document": b"{}"})
        async with asyncio.timeout(20):
            while not process.follower.refusals():
                await asyncio.sleep(0.01)
        assert len(process.taken) == 1
        assert [written.plan for written in await plans.history()] == [plan()]


async def test_one_leads_until_its_lease_is_over_and_the_other_after_it(redis_server: RedisServer) -> None:
    async with opened(redis_server, "lease") as plans:
        assert await plans.lead("a", 30)
        assert not await plans.lead("b", 30)
        assert await plans.lead("a", 30)
        assert await plans.leader() == "a"
        await plans.resign("b")
        assert await plans.leader() == "a"
        await plans.resign("a")
        assert await plans.lead("b", 0.05)
        async with asyncio.timeout(20):
            while not await plans.lead("a", 30):
                await asyncio.sleep(0.01)


async def test_what_one_writes_who_does_not_lead_any_more_is_not_taken(redis_server: RedisServer) -> None:
    async with opened(redis_server, "fence") as plans:
        with pytest.raises(NotLeading):
            await plans.write(plan(), "a", leader="a")
        await plans.lead("a", 30)
        await plans.write(plan(), "a", leader="a")
        await plans.resign("a")
        await plans.lead("b", 30)
        with pytest.raises(NotLeading):
            await plans.write(plan(batch=2), "a", leader="a")
        assert await plans.plans() == [plan()]
        await plans.write(plan(batch=3), "a person", "by hand")
        assert await plans.plans() == [plan(batch=3)]


async def test_the_history_has_the_newest_first_by_model_and_no_more_than_it_keeps(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_plans, "HISTORY", 3)
    async with opened(redis_server, "history") as plans:
        for batch in (1, 2, 3):
            await plans.write(plan(batch=batch), "who", f"reason {batch}")
        await plans.write(plan("other"), "who")
        assert [(w.plan.model, w.why) for w in await plans.history()] == [("other", ""), ("m", "reason 3"), ("m", "reason 2")]
        assert [w.plan for w in await plans.history("m")] == [plan(batch=3), plan(batch=2)]
        assert all(abs(w.at - time.time()) < 60 and w.by == "who" for w in await plans.history())


async def test_a_document_too_large_and_one_model_too_many_are_refused(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_plans, "MAX_PLANS", 1)
    async with opened(redis_server, "bounds") as plans:
        large = structs.replace(plan(), policy=PolicyDocument.of(constructors.greedy(60_000)), digest="")
        monkeypatch.setattr(redis_plans, "MAX_DOCUMENT_BYTES", 50_000)
        with pytest.raises(InvalidInput, match="at most 50000 bytes"):
            await plans.write(large, "test")
        await plans.write(plan(), "test")
        await plans.write(plan(batch=2), "test")
        with pytest.raises(InvalidInput, match="at most 1 models"):
            await plans.write(plan("other"), "test")


async def test_a_redis_that_has_lost_its_data_gets_back_once_what_was_read_before_and_nothing_over_what_is_newer() -> None:
    with RedisServer() as server:
        async with opened(server, "lost") as one, opened(server, "lost") as two, opened(server, "lost") as new:
            for model in ("m", "n"):
                await one.write(plan(model), "somebody")
            known = await one.read()
            assert await two.read() == known
            redis.Redis.from_url(server.url).flushall()
            assert await one.read() == await two.read() == await new.read() == known
            assert [(each.plan.model, each.why) for each in await new.history()] == [
                ("n", "Redis had lost it"),
                ("m", "Redis had lost it"),
            ]
            redis.Redis.from_url(server.url).flushall()
            await new.write(plan("m", 2), "somebody")
            assert (await one.read()).keys() == {"redis:m"}
            assert await new.plans() == await one.plans() == [plan("m", 2)]


async def test_what_somebody_gave_is_kept_beside_what_who_leads_writes(redis_server: RedisServer) -> None:
    async with opened(redis_server, "given") as plans:
        assert await plans.given("m") is None
        await plans.write(plan(), "somebody")
        assert await plans.lead("one", 10.0)
        await plans.write(plan(batch=2), "one", leader="one")
        assert (await plans.given("m"), await plans.plans()) == (plan(), [plan(batch=2)])
        await plans.write(plan(batch=3), "file:declared", leader="one")
        assert await plans.given("m") == plan(batch=3)


async def test_a_key_of_another_kind_is_told_as_what_it_is(redis_server: RedisServer) -> None:
    redis.Redis.from_url(redis_server.url).set("kind:{plans}:documents", "mine")
    async with opened(redis_server, "kind") as plans:
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            await plans.read()


async def test_no_redis_is_said(redis_server: RedisServer) -> None:
    plans = RedisPlans("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable, match="does not answer"):
        await plans.read()
    await plans.close()


@pytest.mark.parametrize("changes", [{"plans": "redis:x"}, {"plans": "redis:", "redis_url": "memory://"}])
def test_plans_in_redis_need_a_redis(changes: dict[str, str]) -> None:
    with pytest.raises(InvalidInput, match="SLUICE_PLANS"):
        Settings(**changes)  # type: ignore[arg-type]


async def test_a_plan_is_checked_again_when_it_is_another(redis_server: RedisServer) -> None:
    async with opened(redis_server, "checked") as plans:
        for model in ("m", "n"):
            await plans.write(plan(model), "somebody")
        first = {each.model: each for each in await plans.plans()}
        await plans.write(plan("n", 2), "somebody")
        then = {each.model: each for each in await plans.plans()}
        assert then["m"] is first["m"]
        assert then["n"] == plan("n", 2)


def all_read(server: RedisServer) -> int:
    """How often somebody read every plan."""
    return int(redis.Redis.from_url(server.url).info("commandstats").get("cmdstat_hgetall", {"calls": 0})["calls"])


@pytest.mark.parametrize("written", [1, 2, 3, 99, 100, 101, 250])
async def test_what_was_written_since_is_read_and_nothing_else_where_the_history_tells_it(
    redis_server: RedisServer, written: int
) -> None:
    async with opened(redis_server, f"since{written}") as plans, opened(redis_server, f"since{written}") as new:
        for model in range(20):
            await plans.write(plan(f"m{model}"), "somebody")
        await plans.read()
        before = all_read(redis_server)
        for k in range(written):
            await plans.write(plan(f"m{15 + k % 7}", 2 + k), "somebody")
        found = await plans.read()
        assert all_read(redis_server) - before == (written >= redis_plans.HISTORY)
        assert found == await new.read()
        assert plans.revision == new.revision
        assert dict(plans.digests()) == dict(new.digests())


async def test_of_a_history_that_holds_what_is_no_plan_all_are_read(redis_server: RedisServer) -> None:
    async with opened(redis_server, "foreign") as plans:
        await plans.write(plan(), "somebody")
        await plans.read()
        client = redis.Redis.from_url(redis_server.url)
        client.hset("foreign:{plans}:documents", "n", b"no plan")
        client.xadd("foreign:{plans}:history", {"document": b"no plan", "by": "somebody"})
        assert (await plans.read())["redis:n"] == b"no plan"
