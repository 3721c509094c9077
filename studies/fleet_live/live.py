"""The live fleet: Redis, a buffer, a controller and workers as processes, requests at their times, and a worker killed."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import aiohttp
import numpy as np

from sluice.batching.documents import Plan
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.stream_reader import RecordReader
from sluice.controller.journal import read_journal
from sluice.local.parent_death import die_with_parent
from sluice.local.redis_server import RedisServer
from sluice.local.stack import buffer_process
from sluice.optimizer.arrays import Array

from .demand import FOLDER, KILLED, SETTINGS, fleet

HEARTBEAT = 1.0  # s
WAIT = 120.0  # s, for processes to start
TICKS = os.sysconf("SC_CLK_TCK")
CLASSES = {
    "vision-accurate": "VisionAccurate",
    "vision-quick": "VisionQuick",
    "text-accurate": "TextAccurate",
    "text-quick": "TextQuick",
}


class Answered(NamedTuple):
    """A request: its family by its place, when it came and how long its answer took, s, and its accuracy; ``nan`` without one."""

    family: int
    came: float
    latency: float
    accuracy: float


class InForce(NamedTuple):
    """From when on, s, so many workers host each variant that gets requests, and these parts of its family's."""

    since: float
    hosts: dict[str, int]
    shares: dict[str, float]


@dataclass(frozen=True)
class Live:
    """What became of a run.

    Parameters
    ----------
    idle : float
        Seconds from when the controller took its first worker to the first request.
    answered : sequence of Answered
        All of the day and after it, their times since the first of the day.
    placements : sequence of InForce
    overhead, longest : float
        Seconds that a batch took longer than its profile says, as the buffer saw it: in the mean, and 95 % of them at most.
    lag : float
        Seconds by which the latest percent of the requests were sent late: what the machine did to all of this.
    controller : float
        CPU of the controller, of a core, while requests came.
    killed, moved : float
        When the worker was killed, and when no plan in force routed to it any more, s since the first request.
    workers : int
        That the plan in force named before.
    decisions : int
        Lines of the journal.
    """

    idle: float
    answered: Sequence[Answered]
    placements: Sequence[InForce]
    overhead: float
    longest: float
    lag: float
    controller: float
    killed: float
    moved: float
    workers: int
    decisions: int


@contextmanager
def sluice(folder: Path, *arguments: str, log: str) -> Iterator[subprocess.Popen[str]]:
    """A command of Sluice as a process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")}
    with (folder / log).open("w") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "sluice.cli.main", *arguments],
            cwd=FOLDER,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            preexec_fn=die_with_parent(),
        )
        try:
            yield process
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(10.0)
            process.kill()
            process.communicate()


def run_live(arrivals: Sequence[Array], calm: Sequence[Array], length: float) -> Live:
    """The day, ``length`` s, then what is calm, with a worker killed on the way."""
    with ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        models = [f"{name}=sleepers.py:{made}" for name, made in CLASSES.items()]
        unloaded = [word for name in CLASSES for word in ("--unloaded", name)]
        register = ["--register", redis.url, "--device", "cpu", "--heartbeat", str(HEARTBEAT), "--port", "0"]
        (count,) = (device.count for device in fleet().devices)
        workers = [
            stack.enter_context(sluice(folder, "worker", *models, *unloaded, *register, log=f"worker-{n}.log"))
            for n in range(count)
        ]
        addresses = [_said(worker) for worker in workers]
        options = ["--redis-url", redis.url, "--journal", str(folder / "journal.jsonl"), "--load-time", str(SETTINGS.load_time)]
        controller = stack.enter_context(sluice(folder, "control", "--fleet", "fleet.yaml", *options, log="control.log"))
        log = stack.enter_context((folder / "buffer.log").open("wb"))
        buffer = stack.enter_context(buffer_process(redis.url, "http://127.0.0.1:1", folder, log, plans="redis:"))
        pids = {address: worker.pid for address, worker in zip(addresses, workers, strict=True)}
        run = _Run(redis.url, buffer.url, controller.pid, pids)
        found = asyncio.run(run.whole(arrivals, calm, length))
        noted = [datetime.fromisoformat(entry["at"]) for entry in read_journal(folder / "journal.jsonl")]
    idle = (run.began_at - noted[0]).total_seconds()
    return Live(idle, *found, len(noted))


def _said(worker: subprocess.Popen[str]) -> str:
    assert worker.stdout is not None
    return worker.stdout.readline().strip()


class _Run:
    def __init__(self, redis_url: str, url: str, controller: int, workers: dict[str, int]) -> None:
        self._redis_url, self._url, self._controller, self._workers = redis_url, url, controller, workers
        self._answered: list[Answered] = []
        self._placements: list[InForce] = []
        self._plans: list[Plan] = []
        self._lags: list[float] = []
        self._families = fleet().family_names

    async def whole(
        self, arrivals: Sequence[Array], calm: Sequence[Array], length: float
    ) -> tuple[list[Answered], list[InForce], float, float, float, float, float, float, int]:
        plans = RedisPlans(self._redis_url)
        async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as self._http:
            await self._served(plans)
            for family in self._families:
                await self._ready(family)
            cpu, self._began, self.began_at = _cpu(self._controller), time.monotonic(), datetime.now(UTC)
            following = asyncio.create_task(self._follow(plans))
            dying = asyncio.create_task(self._kill(length + KILLED))
            later = [np.concatenate([of_day, length + after]) for of_day, after in zip(arrivals, calm, strict=True)]
            await self._come(later)
            used = (_cpu(self._controller) - cpu) / (time.monotonic() - self._began)
            killed, moved, workers = await dying
            following.cancel()
        await plans.close()
        lag = float(np.quantile(self._lags, 0.99))
        return self._answered, self._placements, *self._overhead(), lag, used, killed, moved, workers

    async def _served(self, plans: RedisPlans) -> None:
        """Until every worker gets requests."""
        async with asyncio.timeout(WAIT):
            while self._named(self._plans) != set(self._workers):
                self._plans = await plans.plans()
                await asyncio.sleep(0.05)

    async def _ready(self, family: str) -> None:
        async with asyncio.timeout(WAIT):
            while True:
                async with self._http.get(f"{self._url}/v2/models/{family}/ready") as response:
                    if response.status == 200:
                        return
                await asyncio.sleep(0.05)

    async def _come(self, arrivals: Sequence[Array]) -> None:
        """Every request at its time."""
        order = sorted((float(at), family) for family, times in enumerate(arrivals) for at in times)
        asking: set[asyncio.Task[None]] = set()
        for at, family in order:
            await asyncio.sleep(self._began + at - time.monotonic())
            self._lags.append(time.monotonic() - self._began - at)
            task = asyncio.create_task(self._ask(family, at))
            asking.add(task)
            task.add_done_callback(asking.discard)
        await asyncio.gather(*asking)

    async def _ask(self, family: int, at: float) -> None:
        latency = accuracy = math.nan
        with suppress(aiohttp.ClientError):
            async with self._http.post(f"{self._url}/models/{self._families[family]}", json=1.0) as response:
                answer = await response.json(content_type=None)
                if response.status == 200:
                    latency, accuracy = time.monotonic() - self._began - at, float(answer)
        self._answered.append(Answered(family, at, latency, accuracy))

    async def _follow(self, plans: RedisPlans) -> None:
        """Which plans are in force, until it is cancelled."""
        while True:
            self._plans = await plans.plans()
            routes = [route for plan in self._plans for route in plan.routes]
            hosts = {route.variant: len(route.function.split(",")) for route in routes}
            shares = {route.variant: route.share for route in routes}
            if not self._placements or self._placements[-1][1:] != (hosts, shares):
                self._placements.append(InForce(time.monotonic() - self._began, hosts, shares))
            await asyncio.sleep(0.05)

    async def _kill(self, at: float) -> tuple[float, float, int]:
        """At this time the worker dies that has the greatest part of a family's requests."""
        await asyncio.sleep(self._began + at - time.monotonic())
        routes = [(route.share, route.function.split(",")) for plan in self._plans for route in plan.routes]
        serving = [(share / len(named), address) for share, named in routes for address in named]
        _, address = max(serving)
        os.kill(self._workers[address], signal.SIGKILL)
        killed = time.monotonic()
        async with asyncio.timeout(WAIT):
            while address in self._named(self._plans):
                await asyncio.sleep(0.02)
        return killed - self._began, time.monotonic() - self._began, len({address for _, address in serving})

    def _named(self, plans: Sequence[Plan]) -> set[str]:
        """The addresses that get requests."""
        return {address for plan in plans for route in plan.routes for address in route.function.split(",")}

    def _overhead(self) -> tuple[float, float]:
        """Seconds beyond the profile, of batches that served all: in the mean, and 95 % of them at most."""
        described = fleet()
        beyond = []
        for family in described.families:
            reader = RecordReader(self._redis_url, family.name)
            more = True
            while more:
                found = reader.batches()
                more = found.more
                for batch in found.batches:
                    variant, _, device = batch.route.rpartition(".")
                    expected = described.profiles[device, variant].service.mean_response[batch.size - 1]
                    beyond += [batch.seconds - float(expected)] if batch.served else []
            reader.close()
        return float(np.mean(beyond)), float(np.quantile(beyond, 0.95))


def _cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS
