"""The plan of `sluice smdp --class` through the buffer, in virtual time: both classes wait as long as was solved."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from sluice.batching.documents import Plan, read, write
from sluice.buffer_service.plans import check_waits
from sluice.optimizer.service.law import deterministic
from sluice.optimizer.simulation.batch_means import estimate_mean
from sluice.optimizer.smdp import ClassProblem, WeightedClass, affine, answer_classes, class_document
from tests.buffer_service.conftest import Function
from tests.buffer_service.test_served_model import serving_plan
from tests.buffer_service.virtual_time import in_virtual_time

LARGEST, REQUESTS = 6, 3000
SECONDS = affine(0.05, 0.02, LARGEST)


@pytest.mark.full
@in_virtual_time
async def test_served_by_the_buffer_each_class_has_the_mean_latency_that_was_solved() -> None:
    rate = 0.6 * LARGEST / SECONDS[-1]
    classes = [WeightedClass("quick", 0.3 * rate, 10.0), WeightedClass("slow", 0.7 * rate, 1.0)]
    found = answer_classes(ClassProblem.of(classes, deterministic(SECONDS), affine(1.0, 0.2, LARGEST), 1, 10.0, 0.2))
    plan = class_document(found, 50.0, "m", "http://worker:8500")
    assert isinstance(plan, Plan) and read(Plan, write(plan)) == plan
    check_waits(plan, 60.0)
    worker, at_work = Function(), []

    async def work(batch: object) -> object:
        assert not at_work  # there is one server
        at_work.append(batch)
        await asyncio.sleep(float(SECONDS[len(batch.items) - 1]))  # type: ignore[attr-defined]
        at_work.clear()
        return await worker.echo(batch)

    worker.answer = work
    rng = np.random.default_rng(5)
    urgent, gaps = rng.random(REQUESTS) < 0.3, rng.exponential(1 / rate, REQUESTS)
    took = np.zeros(REQUESTS)
    async with serving_plan(plan, {plan.function: worker}, request_timeout=60.0) as buffer:
        loop = asyncio.get_running_loop()

        async def ask(i: int) -> None:
            came = loop.time()
            status, _, _ = await buffer.post("/models/m", b"1", **{"sluice-class": "quick" if urgent[i] else "slow"})
            assert status == 200
            took[i] = loop.time() - came

        asking = []
        for i, gap in enumerate(gaps):
            await asyncio.sleep(gap)
            asking.append(asyncio.create_task(ask(i)))
        done = asyncio.gather(*asking[:-LARGEST])  # the last may wait for others who do not come
        await done
        for last in asking[-LARGEST:]:
            last.cancel()
    took, urgent = took[:-LARGEST], urgent[:-LARGEST]
    for solved, mine in zip(found.solution.performance.mean_latency, (urgent, ~urgent), strict=True):
        estimate = estimate_mean(took[mine])
        assert estimate.low <= solved <= estimate.high
