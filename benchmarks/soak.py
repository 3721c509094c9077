"""Half the capacity for half an hour, and a fault every minute: what is lost, what grows, whose answer it is.

Two buffer processes on one Redis, two workers (sleepers) behind one plan, clients over HTTP who give up after 10 s and check that
what comes back is what they sent. Each minute one fault of ``FAULTS`` strikes, in turn. Every row is a minute: answers by status,
the longest latency, and what is in use at its end: memory and files of both buffers, keys and memory of Redis.

``python -m benchmarks soak [--minutes 30]`` exits with 1 where an answer was somebody else's, a request ended without a reason, or
memory, files or keys of the last minute are beyond those of the fourth by more than the noise of the first ten.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import aiohttp
import redis

from benchmarks.buffer_throughput import wait_for
from benchmarks.overload import BATCH_SIZE, INTERCEPT, SLOPE
from benchmarks.smoke import usually
from benchmarks.told import count
from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.batching.policy import greedy, size_or_timeout
from sluice.local.ports import chosen_port
from sluice.local.redis_server import RedisServer

RATE = usually(190.0, smoke=50.0)  # requests/s: half of what both workers serve
PATIENCE = 10.0  # s
MINUTE = usually(60.0, smoke=1.0)


class System:
    """The processes, and what may happen to them."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self._plan = directory / "plan.json"
        self._number = 0
        self._worker_ports, self.buffer_ports = ([chosen_port(), chosen_port()] for _ in range(2))
        self.redis = stack.enter_context(RedisServer())
        self.workers = [self._worker(port) for port in self._worker_ports]
        for port in self._worker_ports:
            wait_for(port)
        self.follow()
        self.buffers = [self._buffer(port) for port in self.buffer_ports]
        for port in self.buffer_ports:
            wait_for(port)

    def follow(self) -> None:
        """Another plan: the one with a hold, the one without."""
        self._number += 1
        table = greedy(BATCH_SIZE, servers=2)
        if self._number % 2 == 0:
            waits = size_or_timeout(BATCH_SIZE, 0.005)
            table = type(table)(waits.hold, waits.take, 2)
        function = ",".join(f"http://127.0.0.1:{port}/" for port in self._worker_ports)
        self._plan.write_bytes(write(Plan(model="sleeper", function=function, policy=PolicyDocument.of(table))))

    def kill_buffer(self) -> None:
        self.buffers[0].kill()
        self.buffers[0].wait()
        self.buffers[0] = self._buffer(self.buffer_ports[0])

    def replace_buffer(self) -> None:
        self.buffers[1].terminate()
        self.buffers[1].wait()
        self.buffers[1] = self._buffer(self.buffer_ports[1])

    def kill_worker(self) -> None:
        self.workers[0].kill()
        self.workers[0].wait()
        time.sleep(2.0)
        self.workers[0] = self._worker(self._worker_ports[0])

    def pause_worker(self) -> None:
        self._pause(self.workers[1].pid, 3.0)

    def pause_buffer(self) -> None:
        self._pause(self.buffers[0].pid, 3.0)

    def pause_redis(self) -> None:
        self._pause(self.redis.pid, 3.0)

    def empty_redis(self) -> None:
        with redis.Redis.from_url(self.redis.url) as client:
            client.flushall()

    def close(self) -> None:
        for process in [*self.buffers, *self.workers]:
            process.terminate()
            process.wait()

    def in_use(self) -> list[float]:
        """MB and open files of each buffer; keys, MB of Redis."""
        figures: list[float] = []
        for process in self.buffers:
            status = Path(f"/proc/{process.pid}/status").read_text()
            figures.append(next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS")))
            figures.append(len(os.listdir(f"/proc/{process.pid}/fd")))
        with redis.Redis.from_url(self.redis.url) as client:
            figures += [client.dbsize(), client.info("memory")["used_memory"] / 2**20]
        return figures

    def _pause(self, pid: int, seconds: float) -> None:
        os.kill(pid, signal.SIGSTOP)
        time.sleep(seconds)
        os.kill(pid, signal.SIGCONT)

    def _worker(self, port: int) -> subprocess.Popen[bytes]:
        model = {"SLUICE_MODEL_NAME": "sleeper", "SLUICE_SLEEPER_INTERCEPT": str(INTERCEPT), "SLUICE_SLEEPER_SLOPE": str(SLOPE)}
        return _start([sys.executable, "-m", "sluice.lambda_fn.worker", "--port", str(port)], model)

    def _buffer(self, port: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "sluice.cli.main", "serve", "--port", str(port), "--log-level", "error"]
        # As many arrival times as come in three minutes: what is kept must not be taken for what grows.
        kept = {"SLUICE_ARRIVALS_KEPT": str(int(3 * MINUTE * RATE)), "SLUICE_DRAIN_TIMEOUT": "10"}
        return _start([*command, "--redis-url", self.redis.url, "--plans", f"file:{self._plan}"], kept)


FAULTS: dict[str, Callable[[System], None]] = {
    "none": lambda system: None,
    "another plan": System.follow,
    "a buffer is killed": System.kill_buffer,
    "a worker is killed for 2 s": System.kill_worker,
    "Redis hangs for 3 s": System.pause_redis,
    "a buffer hangs for 3 s": System.pause_buffer,
    "a worker hangs for 3 s": System.pause_worker,
    "a buffer is replaced": System.replace_buffer,
    "Redis loses its data": System.empty_redis,
    "three times the load for 5 s": lambda system: None,
}


class Clients:
    """An open loop; ``counts`` are ends of this minute, ``wrong`` those that must not be."""

    def __init__(self, http: aiohttp.ClientSession, ports: Sequence[int]) -> None:
        self._http, self._ports = http, ports
        self._random = random.Random(3)
        self.counts: Counter[str] = Counter()
        self.wrong: Counter[str] = Counter()
        self.latency = 0.0
        self.rate = RATE
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, until: float) -> None:
        number, due = 0, time.monotonic()
        while due < until:
            due += self._random.expovariate(self.rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            task = asyncio.create_task(self._ask(number))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            number += 1
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _ask(self, number: int) -> None:
        body, came = b'{"request": %d}' % number, time.monotonic()
        url = f"http://127.0.0.1:{self._ports[number % 2]}/models/sleeper"
        try:
            async with asyncio.timeout(PATIENCE):
                async with self._http.post(url, data=body, headers={"content-type": "application/json"}) as response:
                    answer, status = await response.read(), str(response.status)
            if status == "200" and answer != body:
                self.wrong[f"{answer[:40]!r} for {body!r}"] += 1
            elif status not in ("200", "429", "502", "503", "504"):
                self.wrong[status] += 1
        except TimeoutError:
            status = "gave up"
        except aiohttp.ClientError:
            status = "connection"
        self.counts[status] += 1
        if status == "200":
            self.latency = max(self.latency, time.monotonic() - came)


async def soak(system: System, minutes: int) -> list[list[float]]:
    """The rows; raises ``SystemExit`` where an answer was wrong."""
    loop, rows = asyncio.get_running_loop(), []
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as http:
        clients = Clients(http, system.buffer_ports)
        begin = time.monotonic()
        running = asyncio.create_task(clients.run(begin + minutes * MINUTE))
        for minute in range(minutes):
            name, fault = list(FAULTS.items())[minute % len(FAULTS)]
            await asyncio.sleep(MINUTE / 6)
            clients.rate = 6 * RATE if name.startswith("three times") else RATE
            await loop.run_in_executor(None, fault, system)
            await asyncio.sleep(MINUTE / 12)
            clients.rate = RATE
            await asyncio.sleep(begin + (minute + 1) * MINUTE - time.monotonic())
            rows.append(system.in_use())
            ended, longest = ", ".join(f"{n} × {end}" for end, n in clients.counts.most_common()), clients.latency
            clients.counts.clear()
            clients.latency = 0.0
            shown = " ".join(f"{figure:6.1f}" for figure in rows[-1])
            print(f"{minute:3d}  {name:28s}  {longest:5.2f} s  {shown}  {ended}", flush=True)
        await running
    if clients.wrong:
        sys.exit(f"wrong: {clients.wrong}")
    return rows


def main() -> None:
    """Print a row a minute."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=count, default=usually(30, smoke=2))
    minutes = parser.parse_args().minutes
    print("min  fault                          longest   MB, files of buffer 0, of 1, keys, MB of Redis   requests by end")
    with ExitStack() as stack, tempfile.TemporaryDirectory() as directory:
        system = System(Path(directory), stack)
        try:
            rows = asyncio.run(soak(system, minutes))
        finally:
            system.close()
    if minutes > 10:
        names = ("MB of buffer 0", "files of buffer 0", "MB of buffer 1", "files of buffer 1", "keys", "MB of Redis")
        grown = []
        for index, name in enumerate(names):
            begin = [row[index] for row in rows[3:10]]
            if rows[-1][index] > max(begin) + (max(begin) - min(begin)):
                grown.append(f"{name}: {rows[-1][index]:.1f}, {min(begin):.1f} to {max(begin):.1f} at the begin")
        if grown:
            sys.exit("; ".join(grown))
    print("every answer was its caller's; nothing grows")


def _start(command: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
