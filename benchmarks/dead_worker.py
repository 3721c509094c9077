"""One of three workers dies: how long requests take where the server of an ejected worker counts as busy, and where it does not.

Workers are sleepers in processes of their own, of 20 ms and 2 ms a request, which compute one batch at a time, and one of them is
killed before the load begins. Before them is a buffer in this process with its queue in memory, whose plan gives three servers
batches of up to 16 as soon as one is free, and Poisson requests at some parts of what the two that are left answer at most. Beside
it, in the same rounds, the same buffer with a client for workers that does not say that one is ejected: it gives the two three
batches at once, one of which lies where nobody can join it. Printed are the latencies of requests, and the ratios of p50 and p95.

``python -m benchmarks dead_worker [--seconds 10]``
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import time
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial

import numpy as np
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.sleeper import sleeper, sleeping_worker
from benchmarks.smoke import usually
from benchmarks.told import positive
from sluice.batching.documents import Plan, PolicyDocument
from sluice.batching.policy import greedy
from sluice.buffer_service.callers import Callers, Waiting, new_process_name
from sluice.buffer_service.invokers import HttpInvoker
from sluice.buffer_service.invokers.port import Pool
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.served_model import ServedModel
from sluice.buffer_service.store import Limits
from sluice.buffer_service.telemetry import Telemetry
from sluice.lambda_fn.contract import JSON
from sluice.optimizer.arrays import Array

MODEL, INTERCEPT, SLOPE = "sleeper", 0.02, 0.002  # s, s for each request
WORKERS, LARGEST = usually(3, smoke=2), 16
LOADS = usually((0.4, 0.7, 0.9), smoke=(0.7,))  # of what the workers that are left answer at most
ROUNDS = usually(3, smoke=1)
PATIENCE = 10.0  # s


class AllCount(HttpInvoker):
    """The client for workers that does not say that one is ejected."""

    def worker_pool(self, function: str) -> Pool | None:
        return None


def main() -> None:
    """Print a row for each load."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=positive, default=usually(10.0, smoke=0.5))
    options = parser.parse_args()
    logging.disable(logging.WARNING)  # each client ejects the worker anew, and says so
    with ExitStack() as stack:
        environment = sleeper(MODEL, INTERCEPT, SLOPE)
        left = [stack.enter_context(sleeping_worker(environment)) for _ in range(WORKERS - 1)]
        with sleeping_worker(environment) as dead:
            function = ",".join((dead, *left))
        uvloop.run(compare(function, options.seconds))


async def compare(function: str, seconds: float) -> None:
    """Both clients alternately."""
    most = (WORKERS - 1) * LARGEST / (INTERCEPT + SLOPE * LARGEST)  # requests/s
    table = Table("load", *(f"{name}: p50, p95 ms" for name in ("ejected is busy", "all count")), "p50", "p95")
    for load in LOADS:
        ran: dict[type[HttpInvoker], list[Array]] = {HttpInvoker: [], AllCount: []}
        for number in range(ROUNDS):
            arrivals = np.cumsum(np.random.default_rng(number).exponential(1 / (load * most), round(load * most * seconds)))
            for client, latencies in ran.items():
                latencies.append(await latency(client(timeout=PATIENCE), function, arrivals.tolist()))
        found = [[np.median([np.percentile(run, of) for run in runs]) for of in (50, 95)] for runs in ran.values()]
        cells = [f"{1e3 * middle:.1f}, {1e3 * high:.1f}" for middle, high in found]
        table.add_row(f"{100 * load:.0f} %", *cells, *(f"{ours / its:.2f}" for ours, its in zip(*found, strict=True)))
    Console().print(table)


async def latency(client: HttpInvoker, function: str, arrivals: Sequence[float]) -> Array:
    """Seconds that each request took which came at these seconds, from when it should have come."""
    plan = Plan(model=MODEL, function=function, policy=PolicyDocument.of(greedy(LARGEST, servers=WORKERS)))
    store = MemoryStore(MemoryBackend(), new_process_name())
    callers = Callers(store.process, PATIENCE, time.perf_counter)
    model = ServedModel(plan, store, Limits(), callers, client, Telemetry().model(plan))
    began, took = time.perf_counter(), []

    def answered(due: float, waiting: Waiting) -> None:
        assert waiting.answer is not None and waiting.answer.status == 200, waiting.answer or waiting.error
        took.append(time.perf_counter() - due)

    for at in arrivals:
        due = began + at
        if due > time.perf_counter():
            await asyncio.sleep(due - time.perf_counter())
        model.ask(JSON, {}, b"1").then(partial(answered, due))
    while len(took) < len(arrivals):
        await asyncio.sleep(0.01)
    await model.close()
    await client.close()
    await store.close()
    return np.array(took)


if __name__ == "__main__":
    main()
