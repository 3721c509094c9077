"""What a body costs on its way through the queue: CPU of the buffer and of Redis for a request, by the size of its body.

``python -m benchmarks bodies [SECONDS]`` starts a Redis, then one and two processes of the buffer for each size, without HTTP and
with a function that takes no time, so that what is measured is the queue: its calls, its mail, and what of a body crosses it. It
prints the median of three runs of so many seconds each. ``python -m benchmarks bodies SECONDS --serve URL MODEL SIZE`` is one such
process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
import uuid
from typing import Any

import uvloop
from redis import Redis

from benchmarks.smoke import usually
from benchmarks.told import positive
from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument
from sluice.batching.heap import keep_freed_memory
from sluice.buffer_service.callers import Callers, new_process_name
from sluice.buffer_service.invokers.port import BatchAnswer
from sluice.buffer_service.lending import Lending
from sluice.buffer_service.mail import hand_out
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.served_model import ServedModel
from sluice.buffer_service.store import Limits
from sluice.buffer_service.telemetry import Telemetry
from sluice.lambda_fn.contract import NOTHING_MEASURED, Answer, Batch
from sluice.local.redis_server import RedisServer

SIZES = usually((1_000, 10_000, 30_000, 100_000, 600_000), smoke=(100_000,))
AT_ONCE, LARGEST = 32, 8  # requests of a process that wait at once; of a batch
WARM = usually(1.5, smoke=0.1)  # s until processes know of each other
RUNS = usually(3, smoke=1)


class _Nothing:
    """A function that takes no time; what batches are written in and answers read from is another benchmark's."""

    async def ask(self, function: str, batch: Batch, avoid: str) -> BatchAnswer:
        await asyncio.sleep(0)
        return BatchAnswer([Answer(item.id, 200, "", b"1") for item in batch.items], NOTHING_MEASURED, 0)


async def _receive(store: RedisStore, callers: Callers) -> None:
    lending = Lending(store.send, callers.lendable)
    while True:
        hand_out(await store.receive(), callers, lending.asked, print)


async def _serve(url: str, model: str, size: int, seconds: float) -> dict[str, float]:
    """Requests in a closed loop at one process; how many were answered, and what CPU that took."""
    store = RedisStore(url, new_process_name())
    callers = Callers(store.process, 60.0, time.monotonic)
    plan = Plan(model=model, function="f", policy=PolicyDocument.of(constructors.greedy(LARGEST, servers=2)))
    invoker: Any = _Nothing()
    served = ServedModel(plan, store, Limits(), callers, invoker, Telemetry().model(plan))
    mail = asyncio.create_task(_receive(store, callers))
    answered = refused = 0

    async def ask() -> None:
        nonlocal answered, refused
        while True:
            answer = await served.ask("application/octet-stream", {}, bytes(size)).answered
            answered, refused = answered + (answer.status == 200), refused + (answer.status != 200)

    client = Redis.from_url(url)
    asking = [asyncio.create_task(ask()) for _ in range(AT_ONCE)]
    await asyncio.sleep(WARM)
    before, used, redis = answered, time.process_time(), _used(client)
    await asyncio.sleep(seconds)
    found = {"answered": answered - before, "cpu": time.process_time() - used, "redis": _used(client) - redis, "refused": refused}
    await asyncio.sleep(usually(0.5, smoke=0.1))  # the other is measured still
    for task in (*asking, mail):
        task.cancel()
    return found


def measure(url: str, processes: int, size: int, seconds: float) -> tuple[float, float, float]:
    """CPU of the buffer and of Redis for a request (us), and requests/s, while so many processes serve one queue."""
    model = uuid.uuid4().hex
    command = [sys.executable, "-m", "benchmarks.bodies", str(seconds), "--serve", url, model, str(size)]
    with Redis.from_url(url) as client:
        client.flushall()
        running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
        found = [json.loads(each.communicate()[0]) for each in running]
    answered = sum(each["answered"] for each in found)
    if any(each["refused"] for each in found):
        raise SystemExit(f"requests were refused: {found}")
    cpu, redis = sum(each["cpu"] for each in found), statistics.mean(each["redis"] for each in found)
    return cpu / answered * 1e6, redis / answered * 1e6, answered / seconds


def _used(client: Any) -> float:
    cpu = client.info("cpu")
    return float(cpu["used_cpu_sys"] + cpu["used_cpu_user"])


def main() -> None:
    """Measure all sizes; or be one process of the buffer."""
    parser = argparse.ArgumentParser()
    parser.add_argument("seconds", nargs="?", type=positive, default=usually(3.0, smoke=0.1), help="of a run")
    parser.add_argument("--serve", nargs=3, metavar=("URL", "MODEL", "SIZE"), help="be one such process")
    told = parser.parse_args()
    if told.serve:
        url, model, size = told.serve
        keep_freed_memory()  # as a process that serves does
        print(json.dumps(uvloop.run(_serve(url, model, int(size), told.seconds))))
        return
    print("| bytes | processes | CPU of the buffer, us a request | of Redis | requests/s |\n|---|---|---|---|---|")
    with RedisServer(port=0) as server:
        for size in SIZES:
            for processes in (1, 2):
                runs = [measure(server.url, processes, size, told.seconds) for _ in range(RUNS)]
                buffer, redis, rate = (statistics.median(run[i] for run in runs) for i in range(3))
                print(f"| {size} | {processes} | {buffer:.0f} | {redis:.0f} | {rate:.0f} |", flush=True)


if __name__ == "__main__":
    main()
