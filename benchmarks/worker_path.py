"""The way of a batch from the buffer to a worker and back: what it costs each process, how long it holds the worker beyond l(b).

A buffer before one worker in processes of their own; the worker is a sleeper that sends bodies back, and never rests. From one
batch to the next it takes l(b), the way there and back, and what the buffer does before it sends the next, where the queue is in
Redis also the call that ends one and takes the next. Three loads, each a closed loop: JSON of 64 floats from 64 connections, l(b) =
1.05 + 0.305 b ms at 16, and bodies of 600 KB from 8. With ``--other PATH``, a checkout of another version, its processes
alternately with these, and the ratio of each round.

``python -m benchmarks worker_path [--store redis] [--seconds 4] [--rounds 3] [--other PATH]``
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.buffer_throughput import cpu, wait_for
from benchmarks.http_connection import Connection, connect
from benchmarks.smoke import usually
from benchmarks.told import count, positive
from sluice.local.ports import chosen_port
from sluice.local.redis_server import RedisServer

ROOT = Path(__file__).parents[1]
BUFFER = """
import sys, uvloop
from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.batching.policy import greedy
from sluice.buffer_service.app import BufferService, run
from sluice.buffer_service.settings import Settings
port, store, function, batch = sys.argv[1:]
plan = Plan(model="echo", function=function, policy=PolicyDocument.of(greedy(int(batch))))
class OnePlan:
    def documents(self): return {"benchmark": write(plan)}
settings = Settings(redis_url=store, port=int(port), leave_delay=0.0, log_level="warning")
uvloop.run(run(BufferService(settings, plans=OnePlan())))
"""


class Load(NamedTuple):
    """Requests of one kind; the service time of a batch of b is ``intercept + slope * b`` s."""

    name: str
    content_type: str
    body: bytes
    connections: int
    batch: int
    intercept: float = 0.0
    slope: float = 0.0


LOADS = (
    Load("JSON of 64 floats", "application/json", json.dumps([round(i * 0.37 % 1, 3) for i in range(64)]).encode(), 64, 32),
    Load("the same, l(b) = 1.05 + 0.305 b ms", "application/json", b"[0.5]", 16, 8, 0.00105, 0.000305),
    Load("600 KB", "application/octet-stream", bytes(range(256)) * 2344, 8, 8),
)
Result = dict[str, float]


def main() -> None:
    """Measure, and print medians."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.worker_path", description=__doc__)
    parser.add_argument("--seconds", type=positive, default=usually(4.0, smoke=0.1), help="of a run")
    parser.add_argument("--rounds", type=count, default=usually(3, smoke=1))
    parser.add_argument("--store", choices=["memory", "redis"], default="memory")
    parser.add_argument("--other", type=Path, help="the checkout of another version")
    given = parser.parse_args()
    trees = {"this": ROOT} | ({"other": given.other.resolve()} if given.other else {})
    for load in LOADS:
        runs: dict[str, list[Result]] = {name: [] for name in trees}
        for _ in range(given.rounds):
            for name, tree in trees.items():
                runs[name].append(measure(load, tree, given.store, given.seconds))
        Console().print(table(load, given.store, runs))


def table(load: Load, store: str, runs: dict[str, list[Result]]) -> Table:
    """A row a figure."""
    shown = Table(title=f"{load.name}, {load.connections} connections, queue in {store}; median of {len(runs['this'])}")
    for column in ("", *runs, *(["ratio, round by round"] if "other" in runs else [])):
        shown.add_column(column, justify="right" if column else "left")
    for key in runs["this"][0]:
        medians = [statistics.median(run[key] for run in results) for results in runs.values()]
        row = [f"{middle:.4g}" for middle in medians]
        if "other" in runs:
            ratios = [ours[key] / theirs[key] for ours, theirs in zip(runs["this"], runs["other"], strict=True) if theirs[key]]
            row.append(f"{statistics.median(ratios):.2f}" if ratios else "")
        shown.add_row(key, *row)
    return shown


def measure(load: Load, tree: Path, store: str, seconds: float) -> Result:
    """One run of one version."""
    sleeper = {"SLUICE_SLEEPER_INTERCEPT": str(load.intercept), "SLUICE_SLEEPER_SLOPE": str(load.slope)}
    environment = os.environ | {"PYTHONPATH": str(tree), "SLUICE_MODEL_NAME": "echo"} | sleeper
    with RedisServer() as redis:
        worker_port, port = chosen_port(), chosen_port()
        worker = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", str(worker_port)]
        url = "memory://" if store == "memory" else redis.url
        function = f"http://127.0.0.1:{worker_port}"
        buffer = [sys.executable, "-c", BUFFER, str(port), url, function, str(load.batch)]
        with started(worker, environment, tree, worker_port) as at_worker, started(buffer, environment, tree, port) as at_buffer:
            where = f"http://127.0.0.1:{port}/models/echo"
            uvloop.run(closed_loop(where, load, min(1.0, seconds / 4)))
            before = times(at_worker, at_buffer, redis.pid), held(port), held(worker_port)
            began = time.perf_counter()
            count = uvloop.run(closed_loop(where, load, seconds))
            took = time.perf_counter() - began
            after = times(at_worker, at_buffer, redis.pid), held(port), held(worker_port)
    used = [1e6 * (b - a) / count for a, b in zip(before[0], after[0], strict=True)]
    batches = after[1][1] - before[1][1]
    invoked, computed = after[1][0] - before[1][0], after[2][0] - before[2][0]
    return {
        "requests/s": count / took,
        "MB/s, each way": count * len(load.body) / took / 1e6,
        "requests a batch": count / batches,
        "ms that a batch is on its way to the worker and back": 1e3 * (invoked - computed) / batches,
        "ms from one batch to the next, beyond l(b)": 1e3 * (took - batches * load.intercept - count * load.slope) / batches,
        "CPU us a request: buffer": used[1],
        "CPU us a request: worker": used[0],
        "CPU us a request: Redis": used[2],
    }


async def closed_loop(url: str, load: Load, seconds: float) -> int:
    """Requests that were answered."""
    where = urlsplit(url)
    head = f"POST {where.path} HTTP/1.1\r\nhost: {where.netloc}\r\ncontent-type: {load.content_type}\r\n"
    request = head.encode() + b"content-length: %d\r\n\r\n" % len(load.body) + load.body
    ends = time.perf_counter() + seconds
    count = 0

    def answered(connection: Connection, head: bytes, body: bytes) -> None:
        nonlocal count
        if not head.startswith(b"HTTP/1.1 200") or body != load.body:
            raise SystemExit(f"not its own body: {head!r} {body[:100]!r}")
        count += 1
        if time.perf_counter() < ends:
            connection.send(request)
        else:
            connection.transport.close()

    connections = [await connect(where, answered) for _ in range(load.connections)]
    for connection in connections:
        connection.send(request)
    await asyncio.wait([connection.closed for connection in connections])
    return count


@contextmanager
def started(command: list[str], environment: dict[str, str], tree: Path, port: int) -> Iterator[int]:
    """A server's process."""
    process = subprocess.Popen(command, env=environment, cwd=tree, stdout=subprocess.DEVNULL)
    try:
        wait_for(port)
        for _ in range(100):  # its model may not be loaded yet, its plan not be followed
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/v2/health/ready").close()
                break
            except OSError:
                time.sleep(0.05)
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def times(worker: int, *others: int) -> list[float]:
    """CPU seconds so far: of the worker with the process that computes, and of each other."""
    children = Path(f"/proc/{worker}/task/{worker}/children").read_text().split()
    return [cpu(worker) + sum(cpu(int(child)) for child in children), *map(cpu, others)]


def held(port: int) -> tuple[float, float]:
    """Seconds that a buffer waited for a worker, or that a worker computed, and how often."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
        text = answer.read().decode()
    name = r"^sluice_(?:worker_service|invocation)_seconds_"
    seconds, count = (re.findall(name + what + r"\{[^}]*\} (\S+)", text, re.MULTILINE) for what in ("sum", "count"))
    return sum(map(float, seconds)), sum(map(float, count))


if __name__ == "__main__":
    main()
