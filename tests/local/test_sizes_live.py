"""A trace with sizes, replayed to a buffer whose plan has classes of sizes, before workers that take as long as the largest."""

from __future__ import annotations

import numpy as np

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, RequestSize, Route
from sluice.buffer_service.invokers import InvokerBySyntax
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.lambda_fn.models.sleeper import Sleeper
from sluice.local.replay import replay
from tests.buffer_service.conftest import NO_BATCHING, Plans, serving
from tests.lambda_fn.worker_sockets import running, served


class Noting(Sleeper):
    """A sleeper that keeps the sizes of its batches."""

    def __init__(self) -> None:
        super().__init__("ruler", intercept=0.002, slope=0.001, size_slope=0.0001)
        self.batches: list[list[float]] = []

    def answer(self, items):  # type: ignore[no-untyped-def]
        self.batches.append([float(item.body) for item in items])
        return super().answer(items)


async def test_every_request_of_a_replay_waits_with_its_own_class_and_takes_the_time_of_its_size_at_least() -> None:
    rng = np.random.default_rng(2)
    sizes = np.where(rng.random(60) < 0.7, rng.integers(1, 17, 60), rng.integers(17, 129, 60)).astype(float)
    times = np.cumsum(rng.exponential(0.005, 60))
    model = Noting()
    table = PolicyDocument.of(constructors.greedy(8, servers=1))
    backend = MemoryBackend()
    async with running(served(model)) as (_, url):
        routes = [Route("short", url, table, 0.7, up_to=16.0), Route("long", url, table, 0.3)]
        plan = Plan(model="ruler", routes=routes, size=RequestSize("header"))
        store = MemoryStore(backend, "aaaaaaaa")
        async with serving(None, NO_BATCHING, store, Plans(plan), InvokerBySyntax(30.0)) as buffer:  # type: ignore[arg-type]
            bodies = [b"%d" % size for size in sizes]
            run = await replay(times, f"{buffer.url}/models/ruler", body=bodies.__getitem__, sizes=sizes)
    assert run.answered.all() and run.sizes == sizes.tolist()
    assert run.routes == ["short" if size <= 16 else "long" for size in sizes]
    assert all(latency >= model.service_time(1, size) for latency, size in zip(run.latency, sizes, strict=True))
    assert all(max(batch) <= 16 or min(batch) > 16 for batch in model.batches)
    assert sorted(size for batch in model.batches for size in batch) == sorted(sizes) == sorted(backend.arrivals("ruler").sizes)
