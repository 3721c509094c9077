"""Three stages (decode JSON, a network in batches, postprocess) as this package or mpservice runs them; one JSON document out.

Run in an environment that has mpservice: ``python -m benchmarks.pipeline_run sluice|mpservice --rate 1000``. With a rate, requests
come at random times (Poisson) and their latency is measured; without one, ``IN_FLIGHT`` callers each ask again when answered.
Both are called from asyncio, as a server would.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import numpy as np

from benchmarks.smoke import usually

WIDTH = 256
IN_FLIGHT = 128
BATCH_SIZE, WAIT = 32, 0.002  # s
WARM = usually(1.0, smoke=0.1)  # s

Call = Callable[[bytes], Awaitable[Any]]


class Decode:
    """A vector from JSON."""

    def predict(self, body: bytes) -> Any:
        """One item."""
        return np.asarray(json.loads(body), np.float32)


class Network:
    """Four dense layers."""

    def __init__(self) -> None:
        rng = np.random.default_rng(0)
        self.layers = [rng.standard_normal((WIDTH, WIDTH)).astype(np.float32) / 16 for _ in range(4)]

    def predict(self, vectors: list[Any]) -> list[Any]:
        """A batch."""
        hidden = np.stack(vectors)
        for layer in self.layers:
            hidden = np.maximum(hidden @ layer, 0)
        return list(hidden)


class Postprocess:
    """The five largest."""

    def predict(self, scores: Any) -> list[int]:
        """One item."""
        return [int(i) for i in np.argsort(scores)[-5:]]


try:
    from mpservice.mpserver import Worker
except ImportError:
    pass
else:

    class DecodeWorker(Worker):  # type: ignore[misc]
        """``Decode`` as mpservice runs it."""

        call = Decode.predict

    class NetworkWorker(Worker):  # type: ignore[misc]
        """``Network`` as mpservice runs it."""

        def __init__(self, **kwargs: Any) -> None:
            super().__init__(**kwargs)
            Network.__init__(self)

        call = Network.predict

    class PostprocessWorker(Worker):  # type: ignore[misc]
        """``Postprocess`` as mpservice runs it."""

        call = Postprocess.predict


@asynccontextmanager
async def sluice() -> Any:
    """The pipeline of this package."""
    from sluice.lambda_fn.pipeline import Pipeline, Sequential, Stage

    stages = Sequential(Stage(Decode), Stage(Network, batch_size=BATCH_SIZE, wait=WAIT), Stage(Postprocess))
    with Pipeline(stages) as pipeline:
        yield pipeline.ask


@asynccontextmanager
async def mpservice() -> Any:
    """The same in mpservice."""
    from mpservice.mpserver import AsyncServer, ProcessServlet, SequentialServlet

    network = ProcessServlet(NetworkWorker, batch_size=BATCH_SIZE, batch_wait_time=WAIT)
    stages = SequentialServlet(ProcessServlet(DecodeWorker), network, ProcessServlet(PostprocessWorker))
    async with AsyncServer(stages, capacity=1024) as server:
        yield server.call


KINDS: dict[str, Callable[[], AbstractAsyncContextManager[Call]]] = {"sluice": sluice, "mpservice": mpservice}


async def measure(kind: str, rate: float | None, seconds: float) -> dict[str, float]:
    """One run."""
    rng = np.random.default_rng(1)
    bodies = [json.dumps([round(float(v), 3) for v in rng.standard_normal(WIDTH)]).encode() for _ in range(64)]
    latencies: list[float] = []
    failures: list[Exception] = []

    async def ask(call: Call, i: int, due: float) -> None:
        try:
            answer = await call(bodies[i % 64])
        except Exception as error:  # where the machine does not keep up, the queue is full
            failures.append(error)
            return
        assert len(answer) == 5
        latencies.append(time.perf_counter() - due)

    async with KINDS[kind]() as call:
        ends = time.perf_counter() + WARM + seconds

        async def ask_again(i: int) -> None:
            while (now := time.perf_counter()) < ends:
                await ask(call, i, now)

        async def come() -> None:
            dice, due, asked, i = random.Random(2), time.perf_counter(), set(), 0
            assert rate is not None
            while due < ends:
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                asked.add(task := asyncio.create_task(ask(call, i, due)))
                task.add_done_callback(asked.discard)
                due += dice.expovariate(rate)
                i += 1
            await asyncio.gather(*asked)

        load = [come()] if rate is not None else [ask_again(i) for i in range(IN_FLIGHT)]
        tasks = [asyncio.create_task(run) for run in load]
        await asyncio.sleep(WARM)
        latencies.clear()
        started = time.perf_counter()
        await asyncio.gather(*tasks)
        elapsed, count = time.perf_counter() - started, len(latencies)
    p50, p99 = np.quantile(latencies, [0.5, 0.99])
    spent = os.times()  # children are counted when they have ended
    cpu = (spent.user + spent.system + spent.children_user + spent.children_system) / (count * (1 + WARM / seconds))
    return {
        "items_per_second": count / elapsed,
        "p50_ms": 1e3 * float(p50),
        "p99_ms": 1e3 * float(p99),
        "cpu_us": 1e6 * cpu,
        "failures": len(failures),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=KINDS)
    parser.add_argument("--rate", type=float)
    parser.add_argument("--seconds", type=float, default=3.0)
    arguments = parser.parse_args()
    print(json.dumps(asyncio.run(measure(arguments.kind, arguments.rate, arguments.seconds))))
