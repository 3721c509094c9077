"""A fleet that runs by itself: workers register, are told what to load, get requests, and one that dies is planned around."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import aiohttp
import pytest
import yaml

from sluice.buffer_service.redis_plans import RedisPlans
from sluice.controller.journal import read_journal
from sluice.local.redis_server import RedisServer
from sluice.local.stack import BufferProcess, buffer_process

pytestmark = pytest.mark.full

CODE = """
import time

class Quick:
    def predict(self, inputs: list[float]) -> list[float]:
        time.sleep(0.004 + 0.001 * len(inputs))
        return [70.0 for _ in inputs]

class Slow:
    def predict(self, inputs: list[float]) -> list[float]:
        time.sleep(0.02 + 0.005 * len(inputs))
        return [90.0 for _ in inputs]
"""
PROFILES = {
    "slow": {"intercept": 0.021, "slope": 0.006, "max_batch": 4},
    "quick": {"intercept": 0.005, "slope": 0.0015, "max_batch": 4},
}
HEARTBEAT = 0.5
WAIT = 60.0  # s, however busy the machine
RATE = 40.0


def fleet(count: int) -> dict[str, object]:
    variants = {name: {"accuracy": 90 if name == "slow" else 70, "profiles": {"gpu": PROFILES[name]}} for name in PROFILES}
    return {"devices": {"gpu": {"count": count}}, "families": {"net": {"slo": 1.0, "variants": variants}}, "demand": {"net": RATE}}


@contextmanager
def command(folder: Path, *arguments: str, log: str) -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    with (folder / log).open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "sluice.cli.main", *arguments],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()


@contextmanager
def worker(folder: Path, server: RedisServer, n: int) -> Iterator[tuple[subprocess.Popen[str], str]]:
    models = ["slow=code.py:Slow", "quick=code.py:Quick", "--unloaded", "slow", "--unloaded", "quick"]
    register = ["--register", server.url, "--device", "gpu", "--heartbeat", str(HEARTBEAT), "--port", "0"]
    with command(folder, "worker", *models, *register, log=f"worker-{n}.log") as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


async def workers_of(plans: RedisPlans) -> set[str]:
    return {address for plan in await plans.plans() for route in plan.routes for address in route.function.split(",")}


async def until_served(plans: RedisPlans, addresses: set[str], gone: str = "") -> float:
    """Seconds until a plan routes to workers of these alone, and not to who is gone."""
    began = time.monotonic()
    while True:
        found = await workers_of(plans)
        if found and found <= addresses and gone not in found:
            return time.monotonic() - began
        assert time.monotonic() < began + WAIT, found
        await asyncio.sleep(0.05)


async def ready(buffer: BufferProcess) -> None:
    began = time.monotonic()
    async with aiohttp.ClientSession() as http:
        while True:
            async with http.get(f"{buffer.url}/v2/models/net/ready") as answer:
                if answer.status == 200:
                    return
            assert time.monotonic() < began + WAIT
            await asyncio.sleep(0.05)


async def ask(buffer: BufferProcess, seconds: float) -> Counter[int]:
    """The statuses of requests at a steady rate."""
    statuses: Counter[int] = Counter()
    async with aiohttp.ClientSession() as http:

        async def one(at: float) -> None:
            await asyncio.sleep(at)
            async with http.post(f"{buffer.url}/models/net", data=b"1", headers={"content-type": "application/json"}) as answer:
                statuses[answer.status] += 1
                await answer.read()

        await asyncio.gather(*(one(i / RATE) for i in range(round(RATE * seconds))))
    return statuses


def test_workers_are_told_what_to_load_and_one_that_is_killed_is_planned_around_without_a_request_lost(
    tmp_path: Path,
) -> None:
    (tmp_path / "code.py").write_text(CODE)
    (tmp_path / "fleet.yaml").write_text(yaml.safe_dump(fleet(3)))
    journal = tmp_path / "journal.jsonl"
    with ExitStack() as stack:
        server = stack.enter_context(RedisServer())
        workers = [stack.enter_context(worker(tmp_path, server, n)) for n in range(3)]
        options = [
            "--fleet",
            "fleet.yaml",
            "--redis-url",
            server.url,
            "--journal",
            str(journal),
            "--period",
            "3",
            "--load-time",
            "0.5",
        ]
        controller = stack.enter_context(command(tmp_path, "control", *options, log="control.log"))
        log = stack.enter_context((tmp_path / "buffer.log").open("wb"))
        buffer = stack.enter_context(buffer_process(server.url, "http://127.0.0.1:1", tmp_path, log, plans="redis:"))

        async def scenario() -> None:
            plans = RedisPlans(server.url)
            addresses = {url for _, url in workers}
            await until_served(plans, addresses)
            await ready(buffer)
            assert await ask(buffer, 2) == {200: round(2 * RATE)}
            serving = await workers_of(plans)
            process, url = next(each for each in workers if each[1] in serving)

            async def kill() -> float:
                await asyncio.sleep(1)
                os.kill(process.pid, signal.SIGKILL)
                return await until_served(plans, addresses, gone=url)

            statuses, noticed = await asyncio.gather(ask(buffer, 5), kill())
            assert statuses == {200: round(5 * RATE)}
            print(f"planned around after {noticed:.2f} s")
            assert any(f"{url} is silent" in entry["words"] for entry in read_journal(journal))
            await plans.close()

        asyncio.run(scenario())
        controller.terminate()
        assert controller.wait(WAIT) == 0
