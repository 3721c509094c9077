"""Requests per second of the compiled event loop, one core, beside what one would write in plain Python for the same queue.

The alternatives are the specification itself (a clock around ``batching.Batcher``) and, where SimPy is installed, a SimPy model of
each queue. Every run has a process of its own; the load is Poisson, a batch of b takes 1.05 + 0.305 b ms. The code is compiled, and
the arrivals are drawn, before the clock starts. Memory is the peak beyond what the process held by then.
"""

from __future__ import annotations

import importlib.util
import math
import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from batching import Policy, policy
from optimizer.analysis.service import ServiceTimes
from optimizer.arrivals.map import Array
from optimizer.simulation.event_loop import simulate
from tests.optimizer.batcher_loop import run_batcher

ROUNDS = 3
BATCH_SIZE = 32
TIMEOUT = 0.005
SECONDS = 0.00105 + 0.000305 * np.arange(1, BATCH_SIZE + 1)
RATE = 0.7 * BATCH_SIZE / SECONDS[-1]  # requests/s: 70 % of what one server can do

TABLES: dict[str, Policy] = {
    "size or timeout, elastic": policy.size_or_timeout(BATCH_SIZE, TIMEOUT),
    "greedy, 1 server": policy.greedy(BATCH_SIZE),
    "no batching, 16 servers": policy.greedy(1, servers=16),
}


def main() -> None:
    """Measure every body on every table ``ROUNDS`` times, interleaved, and print medians."""
    kinds = ["compiled", "Batcher", *(["SimPy"] if importlib.util.find_spec("simpy") else [])]
    results: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for _ in range(ROUNDS):
        for name in TABLES:
            for kind in kinds:
                # one process per run, so that the peak of its memory is its own
                with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
                    results.setdefault((kind, name), []).append(process.submit(measure, kind, name).result())
    middle = {key: [statistics.median(column) for column in zip(*runs, strict=True)] for key, runs in results.items()}
    table = Table(
        title=f"One core, batch size {BATCH_SIZE}, timeout {TIMEOUT * 1000:g} ms, {RATE:.0f} requests/s, median of {ROUNDS}"
    )
    for heading in ("", *TABLES):
        table.add_column(heading, justify="right" if heading else "left")
    for kind in kinds:
        table.add_row(f"{kind}: requests/s", *(f"{middle[kind, name][0]:.3g}" for name in TABLES))
    for kind in kinds[1:]:
        table.add_row(f"compiled over {kind}", *(f"{middle['compiled', name][0] / middle[kind, name][0]:.0f}" for name in TABLES))
    for kind in kinds:
        table.add_row(f"{kind}: peak bytes per request", *(f"{middle[kind, name][1]:.0f}" for name in TABLES))
    Console(width=120).print(table)


def measure(kind: str, name: str) -> tuple[float, float]:
    """Requests per second of CPU, and peak bytes of memory per request, of one run."""
    n = 10_000_000 if kind == "compiled" else 200_000
    service = ServiceTimes(1024, SECONDS[:, None], np.zeros(BATCH_SIZE), SECONDS)
    rng = np.random.default_rng(1)
    body = BODIES[kind]
    body(name, np.cumsum(rng.exponential(1 / RATE, 100)), service)
    times = rng.exponential(1 / RATE, n)
    np.cumsum(times, out=times)
    held = peak_memory()
    start = time.process_time()
    latencies = body(name, times, service)
    elapsed = time.process_time() - start
    assert np.isfinite(latencies).all()
    return n / elapsed, (peak_memory() - held) / n


def run_compiled(name: str, times: Array, service: ServiceTimes) -> Array:
    """Latencies by the compiled event loop."""
    return simulate(TABLES[name], times, service, np.random.default_rng(0)).latency


def run_specification(name: str, times: Array, service: ServiceTimes) -> Array:
    """Latencies by ``Batcher``."""
    latency = np.full(len(times), math.nan)
    for now, response, members in run_batcher(TABLES[name], times, service, np.random.default_rng(0)):
        latency[members] = now + response - times[members]
    return latency


def run_simpy(name: str, times: Array, service: ServiceTimes) -> Array:
    """Latencies by a SimPy model of the queue, its servers as processes."""
    import simpy

    table = TABLES[name]
    environment = simpy.Environment()
    seconds = service.seconds[:, 0].tolist()
    latencies: list[float] = []
    waiting: list[float] = []
    idle: list[Any] = []

    def source() -> Iterator[Any]:
        for arrival in times.tolist():
            yield environment.timeout(arrival - environment.now)
            waiting.append(environment.now)
            if table.servers is None:
                if len(waiting) == 1:
                    environment.process(close(waiting[0]))
                elif len(waiting) == BATCH_SIZE:
                    dispatch()
            elif idle:
                idle.pop().succeed()

    def close(opened: float) -> Iterator[Any]:
        yield environment.timeout(TIMEOUT)
        if waiting and waiting[0] == opened:
            dispatch()

    def dispatch() -> None:
        batch = waiting[:]
        waiting.clear()
        environment.process(serve(batch))

    def serve(batch: list[float]) -> Iterator[Any]:
        yield environment.timeout(seconds[len(batch) - 1])
        latencies.extend(environment.now - arrival for arrival in batch)

    def server() -> Iterator[Any]:
        while True:
            if not waiting:
                idle.append(environment.event())
                yield idle[-1]
            batch = waiting[: table.max_batch_size]
            del waiting[: table.max_batch_size]
            if batch:
                yield from serve(batch)

    environment.process(source())
    for _ in range(table.servers or 0):
        environment.process(server())
    environment.run()
    return np.array(latencies)


def peak_memory() -> int:
    """Most resident bytes of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


BODIES: dict[str, Callable[[str, Array, ServiceTimes], Array]] = {
    "compiled": run_compiled,
    "Batcher": run_specification,
    "SimPy": run_simpy,
}


if __name__ == "__main__":
    main()
