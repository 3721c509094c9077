"""Two variants of a model in worker processes of their own, behind one name: through HTTP, Redis and plans that change."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator

import pytest

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, Route
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.invokers import HttpInvoker
from sluice.buffer_service.redis_store import RedisStore
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import Plans, Running, serving

pytestmark = pytest.mark.full

SECONDS = {"small": "0.002", "large": "0.03"}  # a batch of one
MODEL = "family"


class Worker:
    """A process that serves a variant."""

    def __init__(self, process: asyncio.subprocess.Process, url: str) -> None:
        self.process, self.url = process, url


@pytest.fixture
async def workers() -> AsyncIterator[dict[str, Worker]]:
    """A worker for each variant."""
    command, pipe = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"], asyncio.subprocess.PIPE
    environments = [
        os.environ | {"SLUICE_MODEL_NAME": name, "SLUICE_SLEEPER_INTERCEPT": seconds, "SLUICE_SLEEPER_SLOPE": "0.0005"}
        for name, seconds in SECONDS.items()
    ]
    starting = (asyncio.create_subprocess_exec(*command, env=environment, stdout=pipe) for environment in environments)
    processes = await asyncio.gather(*starting)
    try:
        urls = [(await process.stdout.readline()).decode().strip() for process in processes if process.stdout is not None]
        yield {name: Worker(*worker) for name, worker in zip(SECONDS, zip(processes, urls, strict=True), strict=True)}
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


def shares(workers: dict[str, Worker], **share: float) -> Plan:
    """A plan in which each variant has a greedy table and this share."""
    policy = PolicyDocument.of(constructors.greedy(8))
    return Plan(model=MODEL, routes=[Route(f"{name}.cpu", workers[name].url, policy, part, name) for name, part in share.items()])


def ask(buffer: Running, n: int) -> list[asyncio.Task[tuple[int, dict[str, str], bytes]]]:
    return [asyncio.create_task(buffer.post(f"/v2/models/{MODEL}/infer", b"%d" % i)) for i in range(n)]


async def answered_by(requests: list[asyncio.Task[tuple[int, dict[str, str], bytes]]]) -> Counter[str]:
    """How many answers each route gave, if everyone got his own."""
    answers = await asyncio.gather(*requests)
    assert [(status, body) for status, _, body in answers] == [(200, b"%d" % i) for i in range(len(answers))]
    return Counter(headers["sluice-route"] for _, headers, _ in answers)


async def test_two_variants_serve_one_name_by_their_shares_and_nobody_notices_that_these_change_or_that_a_worker_goes(
    workers: dict[str, Worker], redis_server: RedisServer
) -> None:
    plans = Plans(shares(workers, small=0.75, large=0.25))
    store = RedisStore(redis_server.url, new_process_name())
    async with serving(None, None, store, plans, HttpInvoker(timeout=10), plan_interval=0.02, lease=0.5) as buffer:

        async def in_force(plan: Plan) -> None:
            plans.plans = [plan]
            while buffer.service.model(MODEL).plan != plan:
                await asyncio.sleep(0.01)

        assert await answered_by(ask(buffer, 200)) == {"small.cpu": 150, "large.cpu": 50}
        await in_force(shares(workers, small=0.1, large=0.9))
        assert await answered_by(ask(buffer, 50)) == {"small.cpu": 5, "large.cpu": 45}
        waiting = ask(buffer, 200)  # the large one needs 0.7 s for its part
        await asyncio.sleep(0.1)
        await in_force(shares(workers, small=1.0))
        workers["large"].process.kill()  # with a batch
        counts = await answered_by(waiting)
        assert counts.total() == 200
        assert counts["small.cpu"] > 100
        assert await answered_by(ask(buffer, 20)) == {"small.cpu": 20}
