"""Two controllers as processes, one killed in the middle of a change, and Redis too: one plan in force, every request answered."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import uuid

import pytest

from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.redis_store import RedisStore
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import NO_BATCHING, Function, serving
from tests.controller.flapping import plans_of

pytestmark = pytest.mark.full


async def writes(plans: RedisPlans, by: str, besides: set[float]) -> None:
    """Wait until this controller has put a plan into force that is not one of those."""
    async with asyncio.timeout(60):
        while not any(written.by == by and written.at not in besides for written in await plans.history()):
            await asyncio.sleep(0.05)


async def test_a_controller_killed_in_the_middle_of_a_change_and_a_redis_that_crashes_leave_one_plan_in_force() -> None:
    namespace, statuses = uuid.uuid4().hex, []
    with RedisServer(append_only=True) as server:
        plans, source = RedisPlans(server.url, namespace), RedisPlans(server.url, namespace)
        await plans.write(plans_of("m", "f")[0], "somebody")
        command = [sys.executable, "-m", "tests.controller.flapping", server.url, namespace]
        one = subprocess.Popen([*command, "one", "m", "f"])
        two = None
        try:
            async with serving(Function(), NO_BATCHING, RedisStore(server.url, "aaaaaaaa", namespace), plans=source) as buffer:

                async def ask_on() -> None:
                    while True:
                        statuses.append((await buffer.post("/models/m", b"1"))[0])

                await writes(plans, "one", set())
                asking = asyncio.create_task(ask_on())
                two = subprocess.Popen([*command, "two", "m", "f"])
                await asyncio.sleep(0.3)
                one.kill()
                await writes(plans, "two", set())
                assert set(statuses) == {200}
                assert [written.by for written in await plans.history()].count("one") > 1
                server.kill()
                await asyncio.sleep(0.3)
                server.start()
                async with asyncio.timeout(60):
                    while statuses[-1] != 200:
                        await asyncio.sleep(0.02)
                before = {written.at for written in await plans.history()}
                await writes(plans, "two", before)
                two.kill()
                two.wait()
                [in_force] = await plans.plans()
                async with asyncio.timeout(60):
                    while buffer.service.model("m").plan.digest != in_force.digest:
                        await asyncio.sleep(0.02)
                asking.cancel()
                assert set(statuses) <= {200, 503}
                assert statuses[-1] == 200
        finally:
            for process in (one, two):
                if process is not None:
                    process.kill()
                    process.wait()
            await plans.close()
