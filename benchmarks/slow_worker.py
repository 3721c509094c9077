"""One of four workers becomes slow beside the others: how long batches take where it is found and asked last, and where it is not.

Workers are sleepers in processes of their own, of 5 ms and 1 ms a request, one of them so many times as slow; the buffer's client
for workers gives them batches of 1 to 16, so many at once as many workers are needed, each when the last has ended. Beside it, in
the same rounds, the same client that does not compare workers: it asks the one with the fewest batches in flight, of equals the
earliest named, which is the slow one here. Printed are the latencies of batches, the part that went to the slow worker, and of p95
the ratio.

``python -m benchmarks slow_worker [--times 4] [--batches 600]``
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.sleeper import sleeper, sleeping_worker
from benchmarks.smoke import usually
from benchmarks.told import count, positive
from sluice.buffer_service.invokers import HttpInvoker
from sluice.buffer_service.invokers.worker_pace import Paces
from sluice.lambda_fn.contract import JSON, Batch, Item
from sluice.optimizer.arrays import Array

MODEL, INTERCEPT, SLOPE = "sleeper", 0.005, 0.001  # s, s for each request
WORKERS, LARGEST = usually(4, smoke=2), 16
AT_ONCE = usually((1, 2, 3, 4), smoke=(1,))
ROUNDS = usually(3, smoke=1)


class Ran(NamedTuple):
    """Seconds of each batch, and the part of them that the slow worker had."""

    latency: Array
    by_slow: float


class Uncompared(Paces):
    """Workers of which nothing is learned, and which take no turns."""

    def preference(self, worker: str) -> tuple[float, int]:
        return 1.0, 0

    def in_turn(self) -> Iterator[str]:
        return iter(())

    def took(self, worker: str, size: int, seconds: float) -> list[str]:
        return []


class FewestInFlight(HttpInvoker):
    """The client for workers that does not compare them."""

    def _paces_of(self, function: str, addresses: Sequence[str]) -> Paces:
        return self._paces.setdefault(function, Uncompared(addresses))


def main() -> None:
    """Print a row for each number of batches at once."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--times", type=positive, default=4.0, help="as long as the others the slow worker takes")
    parser.add_argument("--batches", type=count, default=usually(600, smoke=30))
    options = parser.parse_args()
    with ExitStack() as stack:
        times = (options.times, *[1.0] * (WORKERS - 1))
        slow, *others = (stack.enter_context(sleeping_worker(sleeper(MODEL, by * INTERCEPT, by * SLOPE))) for by in times)
        asyncio.run(compare(slow, others, options.batches))


async def compare(slow: str, others: Sequence[str], batches: int) -> None:
    """Both clients alternately."""
    table = Table(
        "at once", *(f"{name}: {what}" for name in ("compared", "not compared") for what in ("p50, p95 ms", "slow")), "p95"
    )
    for at_once in AT_ONCE:
        ran: dict[HttpInvoker, list[Ran]] = {HttpInvoker(timeout=10.0): [], FewestInFlight(timeout=10.0): []}
        for _ in range(ROUNDS):
            for client, runs in ran.items():
                runs.append(await load(client, slow, others, at_once, batches))
        cells, p95 = [], []
        for client, runs in ran.items():
            middle, high = (float(np.median([np.percentile(run.latency, of) for run in runs])) for of in (50, 95))
            cells += [f"{1e3 * middle:.1f}, {1e3 * high:.1f}", f"{100 * np.mean([run.by_slow for run in runs]):.1f} %"]
            p95.append(high)
            await client.close()
        table.add_row(str(at_once), *cells, f"{p95[0] / p95[1]:.2f}")
    Console().print(table)


async def load(client: HttpInvoker, slow: str, others: Sequence[str], at_once: int, batches: int) -> Ran:
    """So many batches, so many at once."""
    function = ",".join((slow, *others))
    sizes = iter(np.random.default_rng(1).integers(1, LARGEST + 1, batches).tolist())
    latency: list[float] = []
    by_slow = 0

    async def ask() -> None:
        nonlocal by_slow
        for size in sizes:
            batch = Batch(MODEL, [Item(id=str(i), content_type=JSON, body=b"1") for i in range(size)])
            before, begun = client.health(function)[slow].in_flight, time.perf_counter()
            asked = asyncio.ensure_future(client.ask(function, batch))
            await asyncio.sleep(0)
            by_slow += client.health(function)[slow].in_flight > before
            await asked
            latency.append(time.perf_counter() - begun)

    await asyncio.gather(*(ask() for _ in range(at_once)))
    return Ran(np.array(latency), by_slow / batches)


if __name__ == "__main__":
    main()
