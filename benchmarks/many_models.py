"""What models cost that nobody asks for: 1000 idle ones on one process and one Redis, against a single one in the same run.

    CPU                of the process, while nothing is asked of it
    commands/s         that Redis executes for it, by INFO commandstats, and its connections
    longest stretch    of CPU between two rounds of the loop (ms): so long nobody is served, however fast the machine is. While
                       nothing is asked, and while ``/metrics`` is scraped again and again
    a request          to one model meanwhile, and how many of them failed

``python -m benchmarks.many_models [--models N] [--seconds S]``.
"""

from __future__ import annotations

import argparse
import asyncio
import http.client
import logging
import signal
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import redis
import uvloop
from rich.console import Console
from rich.table import Table

from benchmarks.buffer_server import noop
from benchmarks.buffer_throughput import cpu, peak_memory
from benchmarks.smoke import usually
from benchmarks.told import count, positive
from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.batching.policy import size_or_timeout
from sluice.buffer_service.app import BufferService, run
from sluice.buffer_service.invokers import LocalInvoker
from sluice.buffer_service.settings import Settings
from sluice.lambda_fn.contract import decode_batch, encode_metadata
from sluice.local.ports import chosen_port
from sluice.local.redis_server import RedisServer

MODELS = usually(1000, smoke=20)
SECONDS = usually(20.0, smoke=0.5)
SCRAPES = usually(5, smoke=1)
LOOKED = usually(6.0, smoke=0.2)  # seconds for which the idle loop is watched: the page takes a sample in 5
ASKED = usually(100, smoke=10)  # requests meanwhile, at least
SETTLES = usually(5.0, smoke=0.3)  # seconds after the start, in which every queue is announced
STARTS = 120.0  # seconds
ASKED_EVERY = 0.02  # seconds between two requests to one model
PLACE = "model-%04d"


def main() -> None:
    """Measure one model and many, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=count, default=MODELS)
    parser.add_argument("--seconds", type=positive, default=SECONDS, help="in which nothing is asked")
    parser.add_argument("--serve", nargs=2, metavar=("PORT", "URL"), help=argparse.SUPPRESS)
    told = parser.parse_args()
    if told.serve:
        serve(int(told.serve[0]), told.serve[1], told.models)
        return
    columns = {models: measure(models, told.seconds) for models in (*usually((1,), smoke=()), told.models)}
    table = Table(title=f"Idle models on one process, {told.seconds:g} s")
    for name in ("", *(f"{models} models" if models > 1 else "1 model" for models in columns), "ratio"):
        table.add_column(name, justify="right" if name else "left")
    for name, show in LINES:
        values = [column[name] for column in columns.values()]
        table.add_row(name, *map(show, values), f"{values[-1] / values[0]:.3g}" if values[0] else "")
    Console().print(table)


LINES: list[tuple[str, Callable[[float], str]]] = [
    ("CPU, % of a core", "{:.2f}".format),
    ("Redis commands/s", "{:.1f}".format),
    ("Redis connections", "{:.0f}".format),
    ("longest stretch, idle, ms", "{:.1f}".format),
    ("longest stretch, scraped, ms", "{:.1f}".format),
    ("CPU of a scrape, ms", "{:.0f}".format),
    ("size of a scrape, MB", "{:.2f}".format),
    ("a request meanwhile, p50 ms", "{:.1f}".format),
    ("a request meanwhile, p99 ms", "{:.1f}".format),
    ("requests that failed", "{:.0f}".format),
    ("peak memory, MB", "{:.0f}".format),
]


def measure(models: int, seconds: float) -> dict[str, float]:
    """One process with so many models."""
    with RedisServer() as server, redis.Redis.from_url(server.url) as admin:
        port = chosen_port()
        command = [sys.executable, "-m", "benchmarks.many_models", "--models", str(models), "--serve", str(port), server.url]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        try:
            until_all_serve(port)
            ask(port, "POST", f"/models/{PLACE % 0}", b"[1]")
            time.sleep(SETTLES)
            found = {"CPU, % of a core": -cpu(process.pid), "Redis commands/s": -commands(admin)}
            time.sleep(seconds)
            found["CPU, % of a core"] = 100 * (found["CPU, % of a core"] + cpu(process.pid)) / seconds
            found["Redis commands/s"] = (found["Redis commands/s"] + commands(admin)) / seconds
            found["Redis connections"] = info(admin, "clients")["connected_clients"] - 1
            found["longest stretch, idle, ms"] = longest(process, lambda: time.sleep(LOOKED))
            took = -cpu(process.pid)
            sizes = [len(ask(port, "GET", "/metrics")[1]) for _ in range(SCRAPES)]
            found["CPU of a scrape, ms"] = 1000 * (took + cpu(process.pid)) / SCRAPES
            found["size of a scrape, MB"] = sizes[-1] / 1e6
            answers: list[tuple[int, float]] = []
            found["longest stretch, scraped, ms"] = longest(process, lambda: answers.extend(asked_while_scraped(port)))
            times = sorted(1000 * seconds for _, seconds in answers)
            found["a request meanwhile, p50 ms"] = statistics.median(times)
            found["a request meanwhile, p99 ms"] = times[int(0.99 * len(times))]
            found["requests that failed"] = sum(status != 200 for status, _ in answers)
            found["peak memory, MB"] = peak_memory(process.pid)
            return found
        finally:
            process.terminate()
            try:
                process.wait(30.0)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def until_all_serve(port: int) -> None:
    """The process listens once all plans are in force."""
    deadline = time.monotonic() + STARTS
    while time.monotonic() < deadline:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise RuntimeError(f"nothing listens after {STARTS:g} s")


def longest(process: subprocess.Popen[str], meanwhile: Callable[[], None]) -> float:
    """The longest stretch of CPU (ms) between two rounds of the process's loop ``meanwhile``."""
    process.send_signal(signal.SIGUSR1)
    meanwhile()
    process.send_signal(signal.SIGUSR1)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("stretch "):
            return 1000 * float(line.split()[1])
    raise RuntimeError("the process ended")


def asked_while_scraped(port: int) -> list[tuple[int, float]]:
    """Status and time (s) of requests to one model, while all metrics are scraped ``SCRAPES`` times, one after the other."""
    scrapes = threading.Thread(target=lambda: [ask(port, "GET", "/metrics") for _ in range(SCRAPES)])
    answers: list[tuple[int, float]] = []
    scrapes.start()
    while scrapes.is_alive() or len(answers) < ASKED:
        began = time.perf_counter()
        status, _ = ask(port, "POST", f"/models/{PLACE % 0}", b"[1]")
        answers.append((status, time.perf_counter() - began))
        time.sleep(ASKED_EVERY)
    return answers


def ask(port: int, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, {"content-type": "application/json"} if body else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def info(admin: redis.Redis, section: str) -> dict[str, Any]:
    """A section of INFO."""
    found: Any = admin.info(section)
    return dict(found)


def commands(admin: redis.Redis) -> float:
    """Commands that clients have sent, but for this one; those that a script calls are none of them."""
    stats = info(admin, "commandstats")
    counted = ("cmdstat_evalsha", "cmdstat_eval", "cmdstat_blmove", "cmdstat_cluster|slots")
    return float(sum(stats[name]["calls"] for name in counted if name in stats))


# -- the process under test


class Plans:
    """A plan source for so many."""

    def __init__(self, models: int) -> None:
        policy = PolicyDocument.of(size_or_timeout(32, 0.005))
        plans = (Plan(model=PLACE % i, function="noop", policy=policy) for i in range(models))
        self._documents = {plan.model: write(plan) for plan in plans}

    def documents(self) -> dict[str, bytes]:
        return self._documents


async def any_model(payload: bytes) -> bytes:
    """The no-op, which says of itself that it is whichever model it is asked for."""
    batch = decode_batch(payload)
    return encode_metadata({"name": batch.model}) if batch.describe else await noop(payload)


class Stretches:
    """The longest stretch of CPU (s) between two rounds of the loop, from one signal to the next."""

    def __init__(self) -> None:
        self._watching: asyncio.Task[None] | None = None

    def turn(self) -> None:
        """Begin, or end and say."""
        if self._watching is None:
            self._watching = asyncio.get_running_loop().create_task(self._watch())
        else:
            self._watching.cancel()
            self._watching = None
            print("stretch", self._longest, flush=True)

    async def _watch(self) -> None:
        self._longest, last = 0.0, time.thread_time()
        while True:
            await asyncio.sleep(0.0005)
            now = time.thread_time()
            self._longest, last = max(self._longest, now - last), now


def serve(port: int, url: str, models: int) -> None:
    """The buffer, until it is told to end; SIGUSR1 begins and ends a look at its loop."""
    logging.basicConfig(level="CRITICAL")
    settings = Settings(redis_url=url, port=port, leave_delay=0.0, drain_timeout=5.0, log_level="error")
    service = BufferService(settings, invoker=LocalInvoker({"noop": any_model}), plans=Plans(models))

    async def watched() -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, Stretches().turn)
        await run(service)

    uvloop.run(watched())


if __name__ == "__main__":
    main()
