"""Environments that a buffer starts and keeps of functions in real processes, which are given up after two seconds without use."""

from __future__ import annotations

import asyncio
import time
import uuid
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from sluice.batching import policy as policies
from sluice.batching.documents import Plan, PolicyDocument, Slo, WarmEnvironments
from sluice.local.redis_server import RedisServer
from sluice.local.stack import buffer_process, lambda_process

pytestmark = pytest.mark.full

KEEP_ALIVE, EVERY, NUMBER, SECONDS = 2.0, 1.0, 3, 0.2
TOGETHER = 0.4  # s, within which requests sent at once come on a busy machine: no more batches than environments
MODEL = f"kept-{uuid.uuid4().hex[:8]}"
FIRST, OTHER = (f"{MODEL}-{memory_mb}" for memory_mb in (1769, 885))


async def test_a_plan_of_another_function_finds_its_environments_there_and_they_stay_while_nobody_comes(
    redis_server: RedisServer, tmp_path: Path
) -> None:
    sleeper = {"SLUICE_MODEL_NAME": MODEL, "SLUICE_SLEEPER_INTERCEPT": str(SECONDS), "SLUICE_SLEEPER_SLOPE": "0"}
    functions = [{"name": name, "environment": sleeper, "concurrency_limit": 16} for name in (FIRST, OTHER)]
    table, slo, warm = PolicyDocument.of(policies.size_or_timeout(3, TOGETHER)), Slo(2.0), WarmEnvironments(0, EVERY, NUMBER)
    first = Plan(model=MODEL, function=f"{FIRST}:live", policy=table, slo=slo)
    kept = Plan(model=MODEL, function=f"{OTHER}:live", policy=table, slo=slo, warm=warm)
    plans = tmp_path / "plans"
    plans.mkdir()
    with (
        (tmp_path / "log").open("wb") as log,
        lambda_process(functions, keep_alive=KEEP_ALIVE) as function,
        buffer_process(redis_server.url, function.url, plans, log) as buffer,
        buffer_process(redis_server.url, function.url, plans, log) as another,
    ):
        async with aiohttp.ClientSession() as http:

            async def ask(url: str) -> tuple[int, float]:
                began = time.monotonic()
                async with http.post(f"{url}/models/{MODEL}", json=1) as answer:
                    await answer.read()
                    return answer.status, time.monotonic() - began

            async def told(name: str) -> dict[str, Any]:
                async with http.get(function.url) as answer:
                    found: dict[str, Any] = (await answer.json())["functions"][name]
                    return found

            async def served_by() -> set[str]:
                found = set()
                for url in (buffer.url, another.url):
                    async with http.get(f"{url}/v2/models/{MODEL}") as answer:
                        found.add((await answer.json())["plan"]["digest"])
                return found

            buffer.apply(first)
            assert (await ask(buffer.url))[0] == (await ask(another.url))[0] == 200
            buffer.apply(kept)
            until = time.monotonic() + 30.0
            while await served_by() != {kept.digest} and time.monotonic() < until:
                assert (await ask(buffer.url))[0] == 200  # by the one that serves
            assert await served_by() == {kept.digest}
            await asyncio.sleep(2 * KEEP_ALIVE)
            before = await told(OTHER)
            assert before["environments"] == NUMBER and (await told(FIRST))["environments"] == 0
            answers = await asyncio.gather(*(ask(url) for url in (buffer.url, another.url) for _ in range(NUMBER)))
            after = await told(OTHER)
    assert {status for status, _ in answers} == {200}
    assert after["usage"]["cold_starts"] == before["usage"]["cold_starts"] and after["environments"] == NUMBER
