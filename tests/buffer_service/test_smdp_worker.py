"""The table of a semi-Markov decision process through a real Redis, in front of real worker processes."""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator

import numpy as np
import pytest

from sluice.batching import policy as constructors
from sluice.buffer_service.invokers import HttpInvoker
from sluice.buffer_service.redis_store import RedisStore
from sluice.lambda_fn.contract import Batch
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import Function, Plans, plan, serving

pytestmark = pytest.mark.full

ACTIONS = (0, 0, 0, 3, 4, 4, 4, 7, 8)  # waits for three; takes fewer than wait at 5 and 6 and beyond 8
REQUESTS = 400


class Watched(HttpInvoker):
    """Counts what goes to workers: batches by size, and the most at once."""

    def __init__(self) -> None:
        super().__init__(timeout=10)
        self.sizes: Counter[int] = Counter()
        self.at_once = self.most_at_once = 0

    async def ask(self, function: str, batch: Batch, avoid: str = "") -> bytes:
        self.sizes[len(batch.items)] += 1
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            return await super().ask(function, batch, avoid)
        finally:
            self.at_once -= 1


@pytest.fixture
async def workers(request: pytest.FixtureRequest) -> AsyncIterator[list[str]]:
    """The addresses of as many workers; a batch takes each 2 ms and a tenth more per request."""
    sleeper = {"SLUICE_MODEL_NAME": f"smdp-{request.param}", "SLUICE_SLEEPER_INTERCEPT": "0.002", "SLUICE_SLEEPER_SLOPE": "0.0002"}
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"]
    pipe = asyncio.subprocess.PIPE
    starting = [asyncio.create_subprocess_exec(*command, env=os.environ | sleeper, stdout=pipe) for _ in range(request.param)]
    processes = await asyncio.gather(*starting)
    try:
        yield [(await process.stdout.readline()).decode().strip() for process in processes]
    finally:
        for process in processes:
            process.kill()
            await process.wait()


@pytest.mark.parametrize("workers", [1, 2], indirect=True)
async def test_an_smdp_table_releases_the_batches_it_names_to_workers_that_are_free_and_everyone_gets_his_own_answer(
    workers: list[str], redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluice.buffer_service.redis_servers.COMMAND_TIMEOUT", 60.0)  # a busy Redis is not one that hangs
    name, function = f"smdp-{len(workers)}", ",".join(workers)
    plans = Plans(plan(constructors.smdp(ACTIONS, servers=len(workers)), name, function))
    store = RedisStore(redis_server.url, f"smdp{len(workers):04d}")
    invoker = Watched()
    async with serving(Function(), None, store, plans, invoker, plan_interval=0.02) as buffer:
        answering = []
        for i, gap in enumerate(np.random.default_rng(3).exponential(0.0008, REQUESTS)):
            answering.append(asyncio.create_task(buffer.post(f"/models/{name}", b"%d" % i)))
            await asyncio.sleep(gap if i >= 30 else 0)  # a burst first, which keeps every worker busy
        while sum(not answer.done() for answer in answering) >= ACTIONS.index(3):
            await asyncio.wait([a for a in answering if not a.done()], return_when=asyncio.FIRST_COMPLETED, timeout=10)
        assert set(invoker.sizes) <= set(ACTIONS)
        assert invoker.most_at_once == len(workers)
        plans.plans = [plan(constructors.greedy(8), name, function)]  # for the one or two that the table lets wait
        answers = await asyncio.gather(*answering)
    assert [(status, body) for status, _, body in answers] == [(200, b"%d" % i) for i in range(REQUESTS)]
    assert sum(size * count for size, count in invoker.sizes.items()) == REQUESTS
