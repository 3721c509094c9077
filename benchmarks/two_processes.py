"""What a request costs where two processes of the buffer share one queue in Redis, and where there is one.

One worker that parses JSON, sums and writes JSON, a plan of batches of 32 within 5 ms, closed loops from so many connections in
all, as many to each process. One process, two, and two that share no queue (each has its own, in memory) are measured alternately,
each with its own worker, the others stopped meanwhile; ratios are the medians of the rounds'. CPU is a request's, of the buffers,
the worker and Redis: what two that share nothing cost beyond one is the machine's, where it has two cores for all.

``python -m benchmarks two_processes [--connections 64 80 128 256] [--seconds 3] [--rounds 3]``
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from benchmarks.peers import Scenario, buffers, load, numbers_in_json, stopped
from benchmarks.request_load import WARM
from benchmarks.smoke import usually
from benchmarks.told import count, positive
from benchmarks.worker import cpu_of_tree
from sluice.local.redis_server import RedisServer

CONNECTIONS = usually((64, 80, 128, 256), smoke=(4,))
SECONDS = usually(3.0, smoke=0.1)
ROUNDS = usually(3, smoke=1)
ONE, APART = "one process", "two, a queue each"
WAYS = {ONE: (1, True), "two, one queue": (2, True)} | usually({APART: (2, False)}, smoke={})
"""How many processes serve, and whether they share a queue."""


class Measured(NamedTuple):
    """Of one round: requests a second, CPU of a request (us), the longer p99 (ms) of the processes'."""

    rate: float
    cpu_us: float
    p99_ms: float


def main() -> None:
    """Measure, and print a table for each number of connections."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks two_processes")
    parser.add_argument("--connections", type=count, nargs="+", default=CONNECTIONS)
    parser.add_argument("--seconds", type=positive, default=SECONDS)
    parser.add_argument("--rounds", type=count, default=ROUNDS)
    given = parser.parse_args()
    for connections in given.connections:
        print_table(connections, measure(connections, given.seconds, given.rounds))


def print_table(connections: int, found: dict[str, list[Measured]]) -> None:
    """A row for each way of serving, with what a request costs beside ``ONE``."""
    rounds = len(found[ONE])
    table = Table("", "requests/s", "p99 ms", "CPU us", "of one's", title=f"{connections} connections; median of {rounds}")
    for name, runs in found.items():
        rate, cpu_us, p99_ms = map(statistics.median, zip(*runs, strict=True))
        ratio = statistics.median(run.cpu_us / one.cpu_us for run, one in zip(runs, found[ONE], strict=True))
        table.add_row(name, f"{rate:.0f}", f"{p99_ms:.2f}", f"{cpu_us:.1f}", f"{ratio:.2f}")
    Console().print(table)


def measure(connections: int, seconds: float, rounds: int) -> dict[str, list[Measured]]:
    """Of each way of serving, round by round."""
    found: dict[str, list[Measured]] = {name: [] for name in WAYS}
    with ExitStack() as running, tempfile.TemporaryDirectory() as folder:
        scenario = Scenario("work", "total", numbers_in_json(64), (), connections)
        body = Path(folder) / "body.json"
        body.write_bytes(scenario.body)
        at = {name: running.enter_context(started(scenario, *way)) for name, way in WAYS.items()}
        for number in range(rounds):
            for name in WAYS if number % 2 == 0 else reversed(WAYS):
                urls, pids = at[name]
                with stopped(pid for others, (_, theirs) in at.items() if others != name for pid in theirs):
                    share = scenario._replace(connections=max(1, connections // len(urls)))
                    found[name].append(one_round(urls, pids, share, body, seconds))
    return found


def one_round(urls: Sequence[str], pids: Sequence[int], scenario: Scenario, body: Path, seconds: float) -> Measured:
    """A load generator for each process, at the same time."""
    before = sum(map(cpu_of_tree, pids))
    with ThreadPoolExecutor(len(urls)) as pool:
        results = list(pool.map(lambda url: load(url, [], scenario, body, seconds), urls))
    spent = sum(map(cpu_of_tree, pids)) - before
    if failures := sum(result["failures"] for result in results):
        sys.exit(f"{failures:.0f} requests failed")
    rate = sum(result["requests_per_second"] for result in results)
    return Measured(rate, 1e6 * spent / (rate * (seconds + WARM)), max(result["p99_ms"] for result in results))


@contextmanager
def started(scenario: Scenario, processes: int, shared: bool) -> Iterator[tuple[list[str], list[int]]]:
    """So many of the buffer, with one queue or each its own: where they answer, and all processes with Redis and the worker."""
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        urls, pids = buffers(stack, scenario, redis.url if shared else "memory://", processes)
        yield urls, [redis.pid, *pids]


if __name__ == "__main__":
    main()
