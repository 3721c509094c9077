"""Requests per second of the compiled event loop, one core, beside plain Python and SimPy models of the same queues.

*simulate* is given its arrivals and gives the latency of every request; *streaming* (``simulate_deployments``) draws its arrivals
itself, keeps statistics and no request. *Python* is the specification, a clock around ``batching.Batcher`` or ``decide``; the SimPy
models know queues and no tables. The loop, the specification and the model are first seen to answer with the same latencies.
Arrivals are Poisson, a batch of b takes 1.05 + 0.305 b ms. CPU time, with the compiled code warm; ratios are taken within a round,
in which all are run one after the other. Memory is the peak of a process of its own beyond what it held when its code was warm, as
Linux tells it.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Callable, Generator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import simpy
from rich.console import Console
from rich.table import Table

from benchmarks.smoke import usually
from sluice.batching import policy
from sluice.batching.documents import RequestClass
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.chunks import MergedArrivals, SampledArrivals
from sluice.optimizer.simulation.deployment import Beside, Deployment, Environments
from sluice.optimizer.simulation.event_loop import simulate, simulate_deployment
from sluice.optimizer.simulation.queue_run import QueueRun
from sluice.optimizer.simulation.streaming import simulate_deployments
from tests.optimizer.batcher_loop import run_batcher
from tests.optimizer.deployment_loop import run_deployment

Process = Generator[simpy.Event, None, None]

ROUNDS = usually(3, smoke=1)
COMPILED, PLAIN = usually((3_000_000, 60_000), smoke=(6_000, 200))  # requests a run
LENGTHS = usually((10**6, 10**7, 10**8), smoke=(10**4,))  # of the runs whose memory is measured
KEPT_LENGTHS = usually(LENGTHS[:-1], smoke=LENGTHS)  # of those that keep all latencies
BATCH_SIZE = 32
TIMEOUT = 0.005
SECONDS: Array = 0.00105 + 0.000305 * np.arange(1, BATCH_SIZE + 1, dtype=np.float64)
FULL = BATCH_SIZE / float(SECONDS[-1])  # requests/s of one server
SERVICE = ServiceTimes(1024, SECONDS[:, None], np.zeros(BATCH_SIZE), SECONDS)
RANDOM = ServiceTimes(1024, SECONDS[:, None] * [0.5, 1.0, 1.5], np.zeros(BATCH_SIZE), SECONDS)
LAMBDA = Environments(init_duration=0.3, keep_alive=1.0, concurrency=3)


class Case(NamedTuple):
    """A queue, and what its SimPy model knows of it: ``timeout`` of its function's batches; ``None`` where there is none."""

    deployment: Deployment
    arrival_rate: float
    timeout: float | None


CASES = {
    "size or timeout": Case(Deployment(policy.size_or_timeout(BATCH_SIZE, TIMEOUT), SERVICE), 0.7 * FULL, TIMEOUT),
    "greedy, 1 server": Case(Deployment(policy.greedy(BATCH_SIZE), SERVICE), 0.7 * FULL, None),
    "no batching, 16 servers": Case(Deployment(policy.greedy(1, servers=16), SERVICE), 0.7 * 16 / float(SECONDS[0]), None),
    "Lambda, 3 at once": Case(Deployment(policy.size_or_timeout(BATCH_SIZE, TIMEOUT), SERVICE, LAMBDA), 1.4 * FULL, TIMEOUT),
    "1 server and Lambda": Case(
        Deployment(policy.greedy(BATCH_SIZE), SERVICE, beside=[Beside(policy.size_or_timeout(BATCH_SIZE, 0.008), SERVICE, LAMBDA)]),
        0.9 * FULL,
        0.008,
    ),
}
CLASSED, N_CLASSES = "size or timeout", usually((1, 2, 4, 16), smoke=(1, 4))
BEYOND_A_TABLE = ("Lambda, 3 at once", "1 server and Lambda")  # ``simulate`` knows tables alone


def main() -> None:
    """Measure every body on every queue ``ROUNDS`` times, interleaved, and print medians; then the memory."""
    for name in CASES:
        check(name)
    rounds = [{(kind, name): body(name) for name in CASES for kind, body in BODIES.items()} for _ in range(ROUNDS)]
    table = Table(title=f"One core, median of {ROUNDS}")
    for heading in ("", *CASES):
        table.add_column(heading, justify="right" if heading else "left")

    def add_row(label: str, digits: str, kind: str, over: str = "") -> None:
        cells = []
        for name in CASES:
            middle = statistics.median(speeds[kind, name] / (speeds[over, name] if over else 1) for speeds in rounds)
            cells.append("" if np.isnan(middle) else format(middle, digits))
        table.add_row(label, *cells)

    for kind in BODIES:
        add_row(f"{kind}: requests/s", ".2g", kind)
    for kind, over in (("streaming", "Python"), ("streaming", "SimPy"), ("simulate", "SimPy")):
        add_row(f"{kind} over {over}", ".0f", kind, over)
    console = Console(width=132)
    console.print(table)
    console.print(of_classes())
    memory = Table(title="Peak memory beyond the start, MB (greedy, 1 server)")
    for heading in ("", *(f"10^{len(str(n)) - 1} requests" for n in LENGTHS)):
        memory.add_column(heading, justify="right" if heading else "left")
    memory.add_row("streaming", *(f"{in_its_own_process(stream, n):.0f}" for n in LENGTHS))
    memory.add_row("streaming, random service", *(f"{in_its_own_process(stream_random, n):.0f}" for n in LENGTHS))
    memory.add_row("simulate", *(f"{in_its_own_process(keep_all, n):.0f}" for n in KEPT_LENGTHS))
    console.print(memory)


# --- the bodies: requests per second of CPU, by the name of a queue


def by_simulate(name: str) -> float:
    """The latencies of given arrivals."""
    if name in BEYOND_A_TABLE:
        return float("nan")
    times = arrivals(name, COMPILED)
    table = CASES[name].deployment.schedule.tables[0]
    return COMPILED / seconds_of(lambda: simulate(table, times, SERVICE, np.random.default_rng(0)).latency)


def by_streaming(name: str) -> float:
    """Arrivals, latencies, and their statistics."""
    return COMPILED / seconds_of(lambda: stream(COMPILED, name))


def by_specification(name: str) -> float:
    """The specification, in Python."""
    times = arrivals(name, PLAIN)
    return PLAIN / seconds_of(lambda: run_specification(name, times))


def by_simpy(name: str) -> float:
    """A SimPy model of the queue."""
    times = arrivals(name, PLAIN)
    return PLAIN / seconds_of(lambda: run_simpy(name, times))


BODIES = {"streaming": by_streaming, "simulate": by_simulate, "Python": by_specification, "SimPy": by_simpy}


def seconds_of(body: Callable[[], object]) -> float:
    """CPU seconds of a call."""
    start = time.process_time()
    body()
    return time.process_time() - start


def arrivals(name: str, n: int) -> Array:
    """Arrival times of a queue, (n,), s."""
    return np.cumsum(poisson(CASES[name].arrival_rate).sample(n, np.random.default_rng(1)))


def stream(n: int, name: str = "greedy, 1 server") -> object:
    """One queue with statistics, an SLO, and its time series."""
    return stream_through(CASES[name].deployment, CASES[name].arrival_rate, n)


def stream_random(n: int) -> object:
    """One greedy server whose service times are random."""
    return stream_through(Deployment(policy.greedy(BATCH_SIZE), RANDOM), 0.7 * FULL, n)


def stream_through(deployment: Deployment, arrival_rate: float, n: int) -> object:
    """Statistics of a deployment."""
    return simulate_deployments({"it": deployment}, SampledArrivals(poisson(arrival_rate), n, 1), [0.02], bins=100)


def keep_all(n: int, name: str = "greedy, 1 server") -> object:
    """The same with the latency of every request kept."""
    return simulate(policy.greedy(BATCH_SIZE), arrivals(name, n), SERVICE, np.random.default_rng(0)).latency


def check(name: str) -> None:
    """See that all answer alike, which also compiles what is compiled."""
    times = arrivals(name, PLAIN // 2)
    run = QueueRun(CASES[name].deployment, np.random.default_rng(0)).feed(times, last=True).batches
    batches = zip(run.first, run.sizes, run.dispatched, run.responses, strict=True)
    latencies = np.concatenate([now + response - times[first : first + size] for first, size, now, response in batches])
    for other in (run_specification(name, times), run_simpy(name, times)):
        assert np.allclose(np.sort(latencies), np.sort(other), rtol=0, atol=1e-9), name
    stream(1000, name)


def run_specification(name: str, times: Array) -> Array:
    """Latencies by ``Batcher``; by ``decide``, where there is more than a table."""
    deployment, rng = CASES[name].deployment, np.random.default_rng(0)
    if name in BEYOND_A_TABLE:
        return np.concatenate([now + took - times[members] for now, took, members, *_ in run_deployment(deployment, times, rng)])
    batches = run_batcher(deployment.schedule.tables[0], times, SERVICE, rng)
    return np.concatenate([now + took - times[members] for now, took, members in batches])


def run_simpy(name: str, times: Array) -> Array:
    """Latencies by SimPy: processes for the source, for timeouts, and for every batch in service."""
    case = CASES[name]
    n_servers = case.deployment.schedule.tables[0].servers or 0
    largest = case.deployment.schedule.max_batch_size
    lambda_ = case.deployment.serving[-1].environments
    limit = lambda_.concurrency if lambda_ and lambda_.concurrency else float("inf")
    timeout = case.timeout or 0.0
    environment = simpy.Environment()
    seconds = SECONDS.tolist()
    waiting: list[float] = []
    latencies: list[float] = []
    idle: list[float] = []  # since when environments of the function are
    n_busy = n_running = 0

    def source() -> Process:
        for arrival in times.tolist():
            yield environment.timeout(arrival - environment.now)
            waiting.append(environment.now)
            release()
            if waiting and len(waiting) == 1 and case.timeout is not None:
                environment.process(expire(waiting[0]))

    def expire(opened: float) -> Process:
        yield environment.timeout(max(0.0, opened + timeout - environment.now))
        if waiting and waiting[0] == opened:
            release()

    def due(now: float) -> bool:
        return len(waiting) >= largest or now >= waiting[0] + timeout - 1e-12

    def release() -> None:
        nonlocal n_busy, n_running
        while waiting:
            now, cold = environment.now, 0.0
            if n_busy < n_servers:
                n_busy += 1
                by_function = False
            elif case.timeout is not None and n_running < limit and due(now):
                n_running += 1
                by_function = True
                if lambda_ and not (idle and now - idle.pop() <= lambda_.keep_alive):
                    idle.clear()
                    cold = lambda_.init_duration
            else:
                return
            batch = waiting[:largest]
            del waiting[:largest]
            environment.process(serve(batch, seconds[len(batch) - 1] + cold, by_function))
            if waiting and case.timeout is not None:
                environment.process(expire(waiting[0]))

    def serve(batch: list[float], duration: float, by_function: bool) -> Process:
        nonlocal n_busy, n_running
        yield environment.timeout(duration)
        latencies.extend(environment.now - arrival for arrival in batch)
        if by_function:
            n_running -= 1
            idle.append(environment.now)
        else:
            n_busy -= 1
        release()

    environment.process(source())
    environment.run()
    return np.array(latencies)


# --- classes


def of_classes() -> Table:
    """Requests per second of the function's queue where the same arrivals are of several classes, each with a slack of its own."""
    table = Table(title=f"size or timeout, requests of several classes, one core, median of {ROUNDS}")
    for heading in ("classes", "streaming: requests/s", "simulate: requests/s"):
        table.add_column(heading, justify="right")
    for n in N_CLASSES:
        check_classes(n)
        rounds = [(by_streaming_classes(n), by_simulate_classes(n)) for _ in range(ROUNDS)]
        table.add_row(str(n), *(format(statistics.median(speeds), ".2g") for speeds in zip(*rounds, strict=True)))
    return table


def classed(n: int) -> Deployment:
    """The queue, its first class as it is without classes, the others each 4 ms more patient than the one before."""
    return replace(CASES[CLASSED].deployment, classes=[RequestClass(f"class {k}", slack=0.004 * k) for k in range(n)])


def by_streaming_classes(n: int) -> float:
    """Arrivals of a process a class, latencies, and the statistics of each class."""
    arrivals = MergedArrivals([poisson(CASES[CLASSED].arrival_rate / n)] * n, COMPILED, 1)
    return COMPILED / seconds_of(lambda: simulate_deployments({"it": classed(n)}, arrivals, [0.02], bins=100))


def by_simulate_classes(n: int) -> float:
    """The latencies of given arrivals."""
    times, of = arrivals(CLASSED, COMPILED), np.arange(COMPILED) % n
    run = classed(n)
    return COMPILED / seconds_of(lambda: simulate_deployment(run, times, np.random.default_rng(0), classes=of).latency)


def check_classes(n: int) -> None:
    """See that the specification answers alike."""
    times, of, rng = arrivals(CLASSED, PLAIN // 2), np.arange(PLAIN // 2) % n, np.random.default_rng(0)
    slacks = [0.004 * k for k in of.tolist()]
    expected = np.empty(len(times))
    for now, took, members in run_batcher(CASES[CLASSED].deployment.schedule, times, SERVICE, rng, slacks=slacks):
        expected[members] = now + took - times[members]
    assert np.allclose(simulate_deployment(classed(n), times, rng, classes=of).latency, expected, rtol=0, atol=1e-9), n


# --- memory


def in_its_own_process(body: Callable[[int], object], n: int) -> float:
    """Peak MB of ``body(n)`` beyond what a process held when the code was warm."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        return process.submit(peak_of, body, n).result()


def peak_of(body: Callable[[int], object], n: int) -> float:
    """The same, in this process."""
    body(1000)
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    held = peak_memory()
    body(n)
    return peak_memory() - held


def peak_memory() -> float:
    """Most resident MB of this process; not ``getrusage``, which counts what its parent held as well."""
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return int(status["VmHWM"].split()[0]) * 1024 / 1e6


if __name__ == "__main__":
    main()
