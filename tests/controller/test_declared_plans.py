"""What is declared elsewhere goes into Redis once, and what was put there since stays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import redis

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.buffer_service.plans import source_at
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.controller.declared_plans import DeclaredPlans
from sluice.local.redis_server import RedisServer

NAME = "here:1"


def plan(batch: int, model: str = "m") -> Plan:
    return Plan(model=model, function="f", policy=PolicyDocument.of(constructors.greedy(batch)))


class Declaring:
    """A folder of plans, and who puts them into a Redis."""

    def __init__(self, folder: Path, plans: RedisPlans) -> None:
        self.folder, self.plans = folder, plans
        self.declared = self.anew()

    def anew(self) -> DeclaredPlans:
        return DeclaredPlans(source_at(f"file:{self.folder}"), self.plans, NAME)

    def declare(self, declared: Plan) -> None:
        (self.folder / f"{declared.model}.json").write_bytes(write(declared))

    async def in_force(self) -> dict[str, str]:
        return {each.model: each.digest for each in await self.plans.plans()}


@asynccontextmanager
async def declaring(server: RedisServer, namespace: str, folder: Path) -> AsyncIterator[Declaring]:
    plans = RedisPlans(server.url, namespace)
    try:
        assert await plans.lead(NAME, 60.0)
        yield Declaring(folder, plans)
    finally:
        await plans.close()


async def test_a_plan_is_put_once_and_what_was_written_since_stays(redis_server: RedisServer, tmp_path: Path) -> None:
    async with declaring(redis_server, "declared-once", tmp_path) as it:
        it.declare(plan(1))
        it.declare(plan(2, "n"))
        await it.declared.look()
        assert await it.in_force() == {"m": plan(1).digest, "n": plan(2, "n").digest}
        await it.plans.write(plan(5), "control", "it is cheaper", leader=NAME)
        for declared in (it.declared, it.anew()):  # also of another controller that takes over
            await declared.look()
            assert (await it.in_force())["m"] == plan(5).digest
        newest, *_ = await it.plans.history("n")
        assert (newest.by, newest.why) == (str(tmp_path / "n.json"), "declared")


async def test_what_is_declared_anew_is_put_over_what_control_wrote(redis_server: RedisServer, tmp_path: Path) -> None:
    async with declaring(redis_server, "declared-anew", tmp_path) as it:
        it.declare(plan(1))
        await it.declared.look()
        await it.plans.write(plan(5), "control", leader=NAME)
        it.declare(plan(3))
        await it.declared.look()
        assert (await it.in_force())["m"] == plan(3).digest
        (tmp_path / "m.json").unlink()
        await it.declared.look()
        assert (await it.in_force())["m"] == plan(3).digest


async def test_a_redis_that_lost_its_data_gets_what_is_declared(redis_server: RedisServer, tmp_path: Path) -> None:
    async with declaring(redis_server, "declared-lost", tmp_path) as it:
        it.declare(plan(1))
        await it.declared.look()
        with redis.Redis.from_url(redis_server.url) as client:
            client.delete(*client.keys("declared-lost:{plans}:[dh]*"))
        assert await it.in_force() == {}
        await it.declared.look()
        assert await it.in_force() == {"m": plan(1).digest}


async def test_what_is_no_plan_is_told_of_once_and_the_others_are_put(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with declaring(redis_server, "declared-none", tmp_path) as it:
        (tmp_path / "a.json").write_text('{"model": "a"}')
        it.declare(plan(1))
        await it.declared.look()
        await it.declared.look()
        assert await it.in_force() == {"m": plan(1).digest}
        [said] = [each.message for each in caplog.records if each.levelname == "ERROR"]
        assert "a.json: what is declared is not put into force" in said


async def test_that_nothing_is_declared_is_told_once(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with declaring(redis_server, "declared-nothing", tmp_path) as it:
        await it.declared.look()
        await it.declared.look()
        assert caplog.messages == ["nothing is declared yet where --declared says"]
        it.declare(plan(1))
        await it.declared.look()
        (tmp_path / "m.json").unlink()
        await it.declared.look()
        assert caplog.messages.count("nothing is declared yet where --declared says") == 2


async def test_who_leads_no_more_puts_nothing_and_a_place_that_is_not_there_is_named(
    redis_server: RedisServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with declaring(redis_server, "declared-led", tmp_path) as it:
        it.declare(plan(1))
        await it.plans.resign(NAME)
        await it.declared.look()
        assert await it.in_force() == {} and "another controller holds the lease" in caplog.text
        nowhere = DeclaredPlans(source_at(f"file:{tmp_path / 'gone.json'}"), it.plans, NAME)
        await nowhere.look()
        assert "gone.json" in caplog.text
