"""Two controllers as processes, one killed in the middle of a change, and Redis too: one plan in force, every request answered."""

from __future__ import annotations

import asyncio
import struct
import subprocess
import sys
import time
import uuid

import pytest
import redis
from msgspec.structs import replace

from sluice.buffer_service.arrival_stream import FIELD, stream_key
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.redis_store import RedisStore
from sluice.local.redis_server import RedisServer
from sluice.optimizer.tuning.day_counts import BUCKET, DAY, DayCounts
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


async def counts_of(plans: RedisPlans, model: str) -> DayCounts:
    """What is kept of a model, as soon as something is."""
    found = DayCounts()
    async with asyncio.timeout(120):
        while found.until < 0:
            await asyncio.sleep(0.05)
            found.restore(await plans.counts(model))
    return found


async def test_what_yesterday_brought_is_known_to_who_takes_over_from_a_leader_that_was_killed() -> None:
    namespace, yesterday = uuid.uuid4().hex, (int(time.time() - DAY) // int(BUCKET) - 8) * BUCKET
    with RedisServer() as server, redis.Redis.from_url(server.url) as client:
        plans = RedisPlans(server.url, namespace)
        [first, *_] = plans_of("m", "f")
        await plans.write(replace(first, memory_mb=1769, digest=""), "somebody")
        key, recorded = stream_key("m", namespace), 0

        def record(at: float, n: int) -> None:
            nonlocal recorded
            recorded += n
            client.xadd(key, {FIELD: struct.pack(f"<d{n}f", at, *[0.0] * n)}, id=f"{recorded}-0")

        for k in range(20):
            record(yesterday + k * BUCKET, 10 if k < 9 else 30)
        command = [sys.executable, "-m", "sluice.cli.main", "control", "--redis-url", server.url, "--namespace", namespace]
        controllers = [subprocess.Popen([*command, "--lease", "1"])]
        try:
            before = await counts_of(plans, "m")
            client.xtrim(key, maxlen=0, approximate=False)
            controllers[0].kill()
            controllers.append(subprocess.Popen([*command, "--lease", "1"]))
            record(yesterday + DAY, 1)
            record(yesterday + DAY + BUCKET, 1)
            async with asyncio.timeout(120):
                while (after := await counts_of(plans, "m")).until == before.until:
                    await asyncio.sleep(0.05)
            now = yesterday + DAY + 8.5 * BUCKET
            assert before.ratio_to_come(now, 4 * BUCKET) == after.ratio_to_come(now, 4 * BUCKET) == 3
        finally:
            for process in controllers:
                process.kill()
                process.wait()
            await plans.close()
