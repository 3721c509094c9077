"""The plan of `sluice recommend --class --worker` through the buffer: in virtual time, and before two worker processes."""

from __future__ import annotations

import asyncio
import itertools
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import numpy as np
import pytest

from sluice.batching.documents import LinearServiceTime, Plan, ServiceProfile, Slo, read, write
from sluice.buffer_service.plans import check_waits
from sluice.local.redis_server import RedisServer
from sluice.local.stack import buffer_process
from sluice.optimizer.arrivals import poisson
from sluice.optimizer.recommend import Application, Limits, Question, machine_offer, recommend_sharing
from tests.buffer_service.conftest import Function
from tests.buffer_service.test_served_model import serving_plan
from tests.buffer_service.virtual_time import in_virtual_time

SECONDS, LARGEST = 0.1, 4  # of a batch, whatever its size
CLASSES = [Application("web", poisson(50.0), Slo(0.35, 95)), Application("report", poisson(10.0), Slo(2.0, 95))]


def plan_before(address: str, model: str) -> Plan:
    """For both classes, where a worker costs next to nothing."""
    times = LinearServiceTime(SECONDS, 0.0)
    profile = ServiceProfile(function="net-{memory_mb}", service_time=times, max_batch_size=LARGEST, model=model)
    offer = machine_offer("core", ServiceProfile(function=address, service_time=times, max_batch_size=LARGEST), 1e-4, LARGEST)
    question = Question(poisson(1.0), profile, (Slo(1.0, 95),), offers=(offer,), limits=Limits((1769,)))
    plan = read(Plan, write(recommend_sharing(question, CLASSES).plan(model)))
    check_waits(plan, 60.0)
    assert plan.function == address and plan.policy is not None and plan.policy.servers == 2
    assert [of.slack for of in plan.classes] == [0.0, pytest.approx(1.65)]
    return plan


@in_virtual_time
async def test_every_class_is_answered_within_its_promise_by_no_more_workers_than_the_plan_has() -> None:
    plan, worker = plan_before("http://worker:8500", "m"), Function()
    at_work, most = 0, 0

    async def work(batch: object) -> object:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(SECONDS)
        at_work -= 1
        return await worker.echo(batch)

    worker.answer = work
    rng = np.random.default_rng(5)
    took: dict[str, list[float]] = {of.name: [] for of in CLASSES}
    async with serving_plan(plan, {plan.function: worker}, request_timeout=60.0) as buffer:
        loop = asyncio.get_running_loop()

        async def ask(name: str) -> None:
            came = loop.time()
            status, _, _ = await buffer.post("/models/m", b"1", **{"sluice-class": name})
            assert status == 200
            took[name].append(loop.time() - came)

        asking = []
        for _ in range(600):
            await asyncio.sleep(rng.exponential(1 / 60))
            asking.append(asyncio.create_task(ask("web" if rng.random() < 5 / 6 else "report")))
        await asyncio.gather(*asking)
    assert most == 2
    for of in CLASSES:
        assert np.mean(np.array(took[of.name]) > of.slo.latency) <= of.slo.error_budget


@pytest.fixture
def workers() -> Iterator[str]:
    """The addresses of two worker processes, as a plan has them."""
    sleeper = {"SLUICE_MODEL_NAME": "shared", "SLUICE_SLEEPER_INTERCEPT": str(SECONDS), "SLUICE_SLEEPER_SLOPE": "0"}
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"]
    processes = [subprocess.Popen(command, env=os.environ | sleeper, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        yield ",".join(process.stdout.readline().decode().strip() for process in processes)  # type: ignore[union-attr]
    finally:
        for process in processes:
            process.kill()
            process.communicate()


@pytest.mark.full
async def test_two_worker_processes_answer_both_classes(workers: str, redis_server: RedisServer, tmp_path: Path) -> None:
    plan, plans = plan_before(workers, "shared"), tmp_path / "plans"
    plans.mkdir()
    names = list(itertools.islice(itertools.cycle(["web"] * 5 + ["report"]), 120))
    with (tmp_path / "log").open("wb") as log, buffer_process(redis_server.url, "http://127.0.0.1:9", plans, log) as buffer:
        buffer.apply(plan)
        async with aiohttp.ClientSession() as http:

            async def ask(i: int, name: str) -> tuple[int, bytes]:
                await asyncio.sleep(i / 60)
                told = {"sluice-class": name, "content-type": "application/json"}
                async with http.post(f"{buffer.url}/models/shared", data=b"%d" % i, headers=told) as answer:
                    return answer.status, await answer.read()

            answers = await asyncio.gather(*(ask(i, name) for i, name in enumerate(names)))
            async with http.get(f"{buffer.url}/metrics") as told:
                metrics = (await told.text()).splitlines()
    assert answers == [(200, b"%d" % i) for i in range(len(names))]
    for name in ("web", "report"):
        line = f'sluice_class_requests_total{{class="{name}",model="shared"}} {float(names.count(name))}'
        assert line in metrics
