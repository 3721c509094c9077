"""Workers with a function beside them at work: what `sluice recommend` says of the plan, and what clients of a real buffer see.

Workers and function are sleepers of GoogLeNet's 46.7 ms a request on one core: workers over HTTP, the function in the local Lambda,
a buffer process with its Redis, clients over HTTP, all on this machine. The way to each is measured first, one request after the
other, and added to its times; the function's environments are started before. Arrivals are an MMPP(2). The plan is that of
``choose_overflow`` with a tenth of the SLO kept free. Printed are its prediction, a simulation on the very arrivals of the run, and
the run, and in the last line both p95 and their ratio. A run of 1000 requests takes one to two minutes, half of it to start, to
measure the ways and to choose.

``python -m benchmarks overflow_live [--requests 1000] [--slo 0.2]``
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from benchmarks.sleeper import sleeper, sleeping_worker
from benchmarks.smoke import usually
from benchmarks.told import count, positive
from benchmarks.verdict import verdict
from sluice.batching import policy as policies
from sluice.batching.documents import Plan, PolicyDocument, ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.policy import Policy
from sluice.local.redis_server import RedisServer
from sluice.local.stack import BufferProcess, buffer_process, lambda_process
from sluice.optimizer.arrays import Array
from sluice.optimizer.recommend import Goal, OverflowSetting, Question, choose_overflow, choose_workers, machine_offer, mmpp2
from sluice.optimizer.recommend.candidate import plan_of
from sluice.optimizer.simulation import Function
from sluice.optimizer.simulation.event_loop import simulate_deployment

MODEL, MEMORY = "googlenet", 1769
EACH = 0.0467  # s of a request
SLEEPER = sleeper(MODEL, 0.0, EACH)
LARGEST, LARGEST_OF_FUNCTION = 16, 4
ARRIVALS = usually(mmpp2(60, 6, 0.2, 0.1), smoke=mmpp2(30, 2, 0.2, 0.1))
MOST_WORKERS = usually(4, smoke=2)
PRICE = 0.0425  # USD an hour of a worker, a quarter of a c5.xlarge
HEADROOM = 0.1
ALONE, GAP, SETTLING = usually((80, 0.15, 20), smoke=(8, 0.05, 2))  # that measure the way: requests, s between, not counted
WARM = usually(14, smoke=2)  # environments that are started before
BESIDE = "1"  # as the answer's header names the function beside


class Answered(NamedTuple):
    """Latency of every request (s), and whether the function beside served it."""

    latency: Array
    by_function: NDArray[np.bool_]


def main() -> None:
    """Print a row for the prediction, the simulation and the run, and a line that compares the first and the last."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--requests", type=count, default=usually(1000, smoke=30))
    parser.add_argument("--slo", type=positive, default=usually(0.2, smoke=1.0))  # a slow machine takes longer than 0.2 s
    options = parser.parse_args()
    name = f"{MODEL}-{MEMORY}"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        log = stack.enter_context((folder / "log").open("wb"))
        addresses = [stack.enter_context(sleeping_worker(SLEEPER, log.fileno())) for _ in range(MOST_WORKERS)]
        function = {"name": name, "environment": SLEEPER, "concurrency_limit": 4 * WARM}
        cloud = stack.enter_context(lambda_process([function]))
        redis = stack.enter_context(RedisServer())
        (plans := folder / "plans").mkdir()
        buffer = stack.enter_context(buffer_process(redis.url, cloud.url, plans, log))
        last = asyncio.run(compare(buffer, addresses, f"{name}:live", Slo(options.slo), options.requests))
    print(last)


async def compare(buffer: BufferProcess, addresses: list[str], function: str, slo: Slo, requests: int) -> str:
    """Measure the ways, choose, run, print; the last line."""
    to_worker = await way(buffer, addresses[0], policies.greedy(1))
    to_function = await way(buffer, function, policies.no_batching())
    await load(buffer, np.zeros(WARM))
    profile, machine = profile_of(function, to_function, LARGEST_OF_FUNCTION), profile_of(addresses[0], to_worker, LARGEST)
    offer = machine_offer("core", machine, PRICE, LARGEST)
    question = Question(ARRIVALS, profile, (slo,), offers=(offer,), goal=Goal(headroom=HEADROOM))
    both = choose_overflow(question, {"core": choose_workers(ARRIVALS, offer, question.promised).workers})
    plan = plan_of(both, [slo], MODEL)
    served_by = ",".join(addresses[: both.workers])
    buffer.apply(Plan(model=MODEL, function=served_by, policy=plan.policy, beside=plan.beside, slo=slo))
    times = np.cumsum(ARRIVALS.sample(requests, np.random.default_rng(11)))
    measured = await load(buffer, times)
    simulated = simulate_deployment(both.deployment(Function(profile, MEMORY)), times, np.random.default_rng(0))
    console = Console()
    console.print(
        both.instruction, f"The way takes {1e3 * to_worker:.1f} ms to a worker, {1e3 * to_function:.1f} ms to the function."
    )
    on_these = Answered(simulated.latency, simulated.by_function[simulated.batch_of])
    console.print(shown(both, slo, {"simulated on these arrivals": on_these, "measured": measured}))
    return verdict("p95", both.percentile(95).value, float(np.percentile(measured.latency, 95)))


def shown(both: OverflowSetting, slo: Slo, runs: dict[str, Answered]) -> Table:
    """Percentiles, lateness, share of the function."""
    table = Table("", "p50 ms", "p95 ms", "p99 ms", f"beyond {1e3 * slo.latency:g} ms", "by the function")
    predicted = [f"{1e3 * both.percentile(p).value:.1f}" for p in (50, 95, 99)]
    table.add_row("predicted", *predicted, f"{100 * both.violations[0].value:.2f} %", f"{100 * both.by_function.value:.1f} %")
    for name, run in runs.items():
        percentiles = [f"{1e3 * np.percentile(run.latency, p):.1f}" for p in (50, 95, 99)]
        late = float((run.latency > slo.latency).mean())
        table.add_row(name, *percentiles, f"{100 * late:.2f} %", f"{100 * run.by_function.mean():.1f} %")
    return table


async def way(buffer: BufferProcess, function: str, policy: Policy) -> float:
    """Seconds that a request alone takes beyond its service."""
    buffer.apply(Plan(model=MODEL, function=function, policy=PolicyDocument.of(policy)))
    answered = await load(buffer, np.linspace(0.0, GAP * (ALONE - 1), ALONE))
    return float(np.median(answered.latency[SETTLING:])) - EACH


async def load(buffer: BufferProcess, times: Array) -> Answered:
    """Requests at these times (s), each answered with 200 and its own body."""
    loop = asyncio.get_running_loop()
    start = loop.time() + GAP
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:

        async def ask(i: int, at: float) -> tuple[float, bool]:
            await asyncio.sleep(start + at - loop.time())
            body = b"%d" % i
            async with http.post(f"{buffer.url}/models/{MODEL}", data=body, headers={"content-type": "application/json"}) as answer:
                if answer.status != 200 or await answer.read() != body:
                    raise RuntimeError(f"request {i}: {answer.status}")
                return loop.time() - start - at, answer.headers.get("sluice-function") == BESIDE

        answered = await asyncio.gather(*(ask(i, at) for i, at in enumerate(times.tolist())))
    return Answered(np.array([latency for latency, _ in answered]), np.array([beside for _, beside in answered]))


def profile_of(function: str, overhead: float, largest: int) -> ServiceProfile:
    """A sleeper behind its way."""
    points = [ProfilePoint(MEMORY, b, ServiceTime(EACH * b), EACH * b, overhead) for b in range(1, largest + 1)]
    return ServiceProfile(function=function, points=points)


if __name__ == "__main__":
    main()
