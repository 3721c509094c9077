"""Two workers and a Lambda function beside them, all real processes, under a load that triples; then the workers are killed."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np
import pytest

from sluice.batching import policy as policies
from sluice.batching.documents import Beside, Plan, PolicyDocument, Slo
from sluice.local.redis_server import RedisServer
from sluice.local.stack import buffer_process, lambda_process

pytestmark = pytest.mark.full

SIZE, SERVICE = 4, 0.1  # of a worker's batch: requests, and seconds that they take
BASE = 40.0  # requests/s, half of what two workers serve
SECONDS = 4.0  # of each load
MODEL = f"overflow-{uuid.uuid4().hex[:8]}"
WORKERS, FUNCTION = "0", "1"  # as the header says


class Ended(NamedTuple):
    """A request that was ``sent`` (s) and came back with a status, perhaps with the right answer, and by whom."""

    sent: float
    status: int
    right: bool
    by: str | None


@pytest.fixture
def workers() -> Iterator[list[tuple[str, subprocess.Popen[bytes]]]]:
    """The addresses of two workers, and their processes."""
    sleeper = {"SLUICE_MODEL_NAME": MODEL, "SLUICE_SLEEPER_INTERCEPT": str(SERVICE), "SLUICE_SLEEPER_SLOPE": "0"}
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"]
    processes = [subprocess.Popen(command, env=os.environ | sleeper, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        yield [(process.stdout.readline().decode().strip(), process) for process in processes]  # type: ignore[union-attr]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


async def test_workers_serve_the_base_load_a_function_what_they_leave_waiting_and_everything_when_they_are_killed(
    workers: list[tuple[str, subprocess.Popen[bytes]]], redis_server: RedisServer, tmp_path: Path
) -> None:
    sleeper = {"SLUICE_MODEL_NAME": MODEL, "SLUICE_SLEEPER_INTERCEPT": "0.02", "SLUICE_SLEEPER_SLOPE": "0"}
    name = f"{MODEL}-1769"
    overflow = Beside(f"{name}:live", PolicyDocument.of(policies.size_or_timeout(2 * SIZE, 0.4)))
    plan = Plan(
        model=MODEL,
        function=",".join(address for address, _ in workers),
        policy=PolicyDocument.of(policies.greedy(SIZE, servers=2)),
        beside=[overflow],
        slo=Slo(0.5),
    )
    plans = tmp_path / "plans"
    plans.mkdir()
    with (
        (tmp_path / "log").open("wb") as log,
        lambda_process([{"name": name, "environment": sleeper, "concurrency_limit": 16}]) as function,
        buffer_process(redis_server.url, function.url, plans, log) as buffer,
    ):
        buffer.apply(plan)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
            base = await _load(http, buffer.url, BASE)
            tripled = await _load(http, buffer.url, 3 * BASE)
            async with http.get(f"{buffer.url}/v2/models/{MODEL}") as answer:
                assert (answer.status, (await answer.json())["name"]) == (200, MODEL)
            killing = asyncio.create_task(_kill(workers, SECONDS / 2))
            killed = await _load(http, buffer.url, BASE)
            async with http.get(f"{buffer.url}/metrics") as answer:
                metrics = await answer.text()
    assert all(ended.status == 200 and ended.right for ended in base + tripled)
    assert {ended.by for ended in base} <= {WORKERS, FUNCTION} == {ended.by for ended in tripled}
    assert share_of_workers(tripled) < share_of_workers(base)  # how large they are is the machine's, and held in virtual time
    died = await killing
    lost = [ended for ended in killed if ended.status != 200]
    assert len(lost) <= 2 * SIZE and all(ended.sent <= died for ended in lost)
    assert all(ended.right for ended in killed if ended.status == 200)
    assert {ended.by for ended in killed if ended.sent > died} == {FUNCTION}
    served = Counter(ended.by for ended in base + tripled + killed if ended.status == 200)
    line = f'sluice_function_requests_total{{function="{name}:live",model="{MODEL}"}} {float(served[FUNCTION])}'
    assert line in metrics.splitlines()


def share_of_workers(answers: list[Ended]) -> float:
    return sum(ended.by == WORKERS for ended in answers) / len(answers)


async def _kill(workers: list[tuple[str, subprocess.Popen[bytes]]], after: float) -> float:
    """Both workers end without a word; when."""
    await asyncio.sleep(after)
    for _, process in workers:
        process.kill()
        await asyncio.to_thread(process.wait)
    return asyncio.get_running_loop().time()


async def _load(http: aiohttp.ClientSession, url: str, rate: float) -> list[Ended]:
    """Requests as a Poisson process of this rate, for ``SECONDS``."""
    loop = asyncio.get_running_loop()
    times = np.cumsum(np.random.default_rng(3).exponential(1 / rate, int(rate * SECONDS)))

    async def ask(i: int, at: float) -> Ended:
        await asyncio.sleep(at)
        sent, body = loop.time(), b"%d" % i
        async with http.post(f"{url}/models/{MODEL}", data=body, headers={"content-type": "application/json"}) as answer:
            return Ended(sent, answer.status, await answer.read() == body, answer.headers.get("sluice-function"))

    return await asyncio.gather(*(ask(i, at) for i, at in enumerate(times.tolist())))
