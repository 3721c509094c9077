"""What a flood of best effort does to a class with a promise: its p95 without and with one, at ten times the capacity.

One worker (a sleeper), a real buffer process, clients over HTTP. The strict class comes at a third of the capacity, which is what a
closed loop gets out of the same two processes, for ``--seconds``, and for as long again beside best effort at ``--multiple`` times
the capacity. First under a greedy table, which fills its batches with whoever waits, so that a strict request waits for larger
ones. Then under tables with columns that tell the two apart: while somebody in a hurry waits best effort gets no place, and alone
it leaves in batches of so many of ``--alone``, the largest rest that a strict request can find before it.

``python -m benchmarks flood [--stores memory,redis] [--alone 2,4] [--seconds 20] [--multiple 10]``
"""

from __future__ import annotations

import argparse
import asyncio
import urllib.request
from contextlib import ExitStack, suppress

import numpy as np

from benchmarks.buffer_throughput import cpu
from benchmarks.overload import BATCH_SIZE, INTERCEPT, SLOPE, closed_loop, serving
from benchmarks.smoke import usually
from benchmarks.told import positive
from sluice.batching.documents import RequestClass, Slo
from sluice.batching.policy import INF, Policy, greedy
from sluice.local.redis_server import RedisServer
from sluice.local.replay import Replay, replay, run
from sluice.optimizer.arrays import Array

STRICT, BEST_EFFORT = RequestClass("strict", Slo(0.25)), RequestClass("best-effort", slack=50.0)
SHARE = 1 / 3  # of the capacity, that the strict class asks for
PATIENCE = 60.0  # s
SEED = 7


def main() -> None:
    """Print a row for each store and table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--stores", default=usually("memory,redis", smoke="memory"))
    parser.add_argument("--alone", default=usually("2,4", smoke="2"))
    parser.add_argument("--seconds", type=positive, default=usually(20.0, smoke=0.3))
    parser.add_argument("--multiple", type=positive, default=usually(10.0, smoke=2.0))
    options = parser.parse_args()
    tables = {"greedy": greedy(BATCH_SIZE, servers=1)}
    tables |= {f"{alone} alone": apart(int(alone)) for alone in filter(None, options.alone.split(","))}
    tables = dict(list(tables.items())[usually(0, smoke=1) :])
    print(
        f"batches of up to {BATCH_SIZE} requests, {INTERCEPT + SLOPE * BATCH_SIZE:g} s; best effort {options.multiple:g} x capacity"
    )
    print(
        "store   table     capacity  p95 of strict without, with  ratio  answered  best effort  generator late by p99  buffer CPU"
    )
    for store in options.stores.split(","):
        capacity = 0.0
        for name, table in tables.items():
            with ExitStack() as stack:
                where = stack.enter_context(RedisServer()).url if store == "redis" else "memory://"
                plan = {"slo": STRICT.slo, "classes": [STRICT, BEST_EFFORT]}
                buffer, address = stack.enter_context(serving(where, table, **plan))
                url = f"{address}/models/sleeper"
                capacity = capacity or closed_loop(url, 3 * BATCH_SIZE)
                rng = np.random.default_rng(SEED)
                strict = arrivals(SHARE * capacity, 2 * options.seconds, rng)
                flood = arrivals(options.multiple * capacity, options.seconds, rng)
                before = cpu(buffer)
                ran = run(with_a_flood(url, strict, flood, options.seconds))
                busy = (cpu(buffer) - before) / ran.seconds
                part = answered(address, BEST_EFFORT) / (capacity * options.seconds)
            latency, flooded = np.where(ran.answered, ran.latency, np.inf), ran.intended >= options.seconds
            p95 = [1e3 * np.percentile(latency[which], 95, method="inverted_cdf") for which in (~flooded, flooded)]
            late = 1e3 * ran.lateness_percentile(99)
            shown = f"{p95[0]:6.1f}, {p95[1]:6.1f} ms  {p95[1] / p95[0]:.2f}  {ran.answered.mean():.1%}"
            print(
                f"{store:6s}  {name:8s}  {capacity:5.0f}/s  {shown}  {part:.1%} of capacity  {late:.1f} ms  {busy:.0%}", flush=True
            )


def apart(alone: int) -> Policy:
    """A table for one server: those in a hurry leave at once and by themselves, so many of the patient where nobody else waits."""
    hold, take = [], []
    for urgent in range(BATCH_SIZE + 1):
        for patient in range(alone + 1):
            hold.append(0.0 if urgent or patient else INF)
            take.append(urgent or patient)
    return Policy(hold, take, servers=1, columns=alone + 1)


def arrivals(rate: float, seconds: float, rng: np.random.Generator) -> Array:
    """Poisson."""
    return np.sort(rng.uniform(0, seconds, rng.poisson(rate * seconds)))


async def asked(url: str, each: RequestClass, times: Array) -> Replay:
    """Requests of a class at these times."""
    return await replay(times, url, body=b"1", headers={"sluice-class": each.name}, timeout=PATIENCE)


async def with_a_flood(url: str, strict: Array, flood: Array, after: float) -> Replay:
    """The strict class; best effort comes beside it so many seconds later, and goes when all of the former are answered.

    The strict class has its connections from before: where the flood keeps a process from taking new ones the kernel drops some.
    """
    following = asyncio.ensure_future(asked(url, STRICT, strict))
    await asyncio.sleep(after)
    best_effort = asyncio.ensure_future(asked(url, BEST_EFFORT, flood))
    ran = await following
    best_effort.cancel()
    with suppress(asyncio.CancelledError):
        await best_effort
    return ran


def answered(address: str, each: RequestClass) -> float:
    """Requests of a class that were, by the metrics."""
    with urllib.request.urlopen(f"{address}/metrics") as response:
        lines = response.read().decode().splitlines()
    start = f'sluice_class_latency_seconds_count{{class="{each.name}",'
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(start))


if __name__ == "__main__":
    main()
