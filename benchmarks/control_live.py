"""Live control at work: a buffer process, a controller process and Redis, and two things that happen to them unannounced.

The function is a sleeper over HTTP in this process, elastic, that tells its own time; it takes ``BASE + EACH * size`` seconds.
The controller knows its profile. Requests come at random (Poisson) at ``--rate``; then three times as many within a second; then
at the first rate again, while every batch takes half as long again. Printed are, for both changes, the seconds until another plan
was in force, and until the percentile of the requests of the last two seconds was within the SLO for good, as it is of the first
phase from its first request on; the same until no window was late with 95 % confidence any more, as one of 80 requests of which 4
% are late in truth has more than 5 % late oftener than every fifth time (of windows at exactly what is promised, one in twenty is
late so by chance all the same); who was late in each phase; how late requests were sent, half of them and 1 %; what the buffer
and the controller used of a core, and the memory of the controller; whether every request was answered. Of the same ``--seed``
are the gaps between arrivals; the machine's jitter is not.

``python -m benchmarks control_live [--rate 40] [--slo 0.15] [--phase 60] [--seed 7] [--journal FILE]``
"""

from __future__ import annotations

import argparse
import asyncio
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path

import aiohttp
import numpy as np
from scipy.stats import binom

from benchmarks.buffer_throughput import cpu, peak_memory
from benchmarks.smoke import usually
from benchmarks.told import positive
from sluice.batching import policy as policies
from sluice.batching.documents import LinearServiceTime, Plan, PolicyDocument, ServiceProfile, Slo, write
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.local.ports import chosen_port
from sluice.local.redis_server import RedisServer
from sluice.local.sleeper import Sleeper

MODEL, MEMORY = "sleeper", 1769
BASE, EACH = 0.03, 0.002  # s
SLOWER, MORE = 1.5, 3.0
WINDOW = usually(2.0, smoke=0.4)  # s, of which the percentile is looked at
CONFIDENCE = 0.95  # one-sided, with which a window is late
STARTED = 30.0  # s that a process may take to start


class Clients:
    """Requests, when each came and how long it took; ``nan`` of those that were not answered with 200."""

    def __init__(self, url: str, http: aiohttp.ClientSession, rng: np.random.Generator) -> None:
        self._url, self._http, self._rng = url, http, rng
        self.answered: list[tuple[float, float]] = []
        self.sent_late: list[float] = []
        self._asking: set[asyncio.Task[None]] = set()

    async def come(self, rate: float, seconds: float) -> None:
        """Poisson arrivals for so long."""
        clock = time.perf_counter
        until, due = clock() + seconds, clock()
        while (due := due + self._rng.exponential(1 / rate)) < until:
            await asyncio.sleep(due - clock())
            self.sent_late.append(clock() - due)
            task = asyncio.create_task(self._ask())
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _ask(self) -> None:
        came, status = time.perf_counter(), 0
        with suppress(aiohttp.ClientError):
            async with self._http.post(self._url, json=1) as response:
                await response.read()
                status = response.status
        self.answered.append((came, time.perf_counter() - came if status == 200 else math.nan))

    async def all_answered(self) -> None:
        """Wait for who still waits."""
        while self._asking:
            await asyncio.wait(self._asking)

    def late(self, since: float, until: float, slo: float) -> float:
        """Share of those who came in between that waited for longer, or had no answer."""
        late, n = self._late_of(since, until, slo)
        return late / n if n else math.nan

    def _late_of(self, since: float, until: float, slo: float) -> tuple[int, int]:
        latencies = np.array([latency for came, latency in self.answered if since <= came < until])
        return int(np.sum(~(latencies <= slo))), len(latencies)

    def within_again(self, since: float, until: float, slo: Slo) -> tuple[float, float]:
        """Seconds from ``since`` until the percentile of a window was within the SLO, and stayed so in all later ones; and the
        same of windows that were late with ``CONFIDENCE``.
        """
        ends = np.arange(since + WINDOW, until, WINDOW / 4)
        told = [(end, *self._late_of(end - WINDOW, end, slo.latency)) for end in ends]
        broken = [end for end, late, n in told if n and late / n > slo.error_budget]
        surely = [end for end, late, n in told if late and binom.sf(late - 1, n, slo.error_budget) < 1 - CONFIDENCE]
        return max(broken, default=since) - since, max(surely, default=since) - since


class Followed:
    """When which plan came into force."""

    def __init__(self, plans: RedisPlans) -> None:
        self._plans = plans
        self.changes: list[tuple[float, str]] = []

    async def follow(self) -> None:
        """Note every change, until cancelled."""
        while True:
            for plan in await self._plans.plans():
                if not self.changes or self.changes[-1][1] != plan.digest:
                    self.changes.append((time.perf_counter(), plan.digest))
            await asyncio.sleep(0.05)

    def first_after(self, since: float, until: float) -> float | None:
        """Seconds from ``since`` to the first change."""
        return next((at - since for at, _ in self.changes if since <= at < until), None)


@asynccontextmanager
async def sluice(*arguments: str, **environment: str) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A command of Sluice as a process, which is told to end."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sluice.cli.main", *arguments], env=os.environ | environment, stdout=subprocess.DEVNULL
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            await asyncio.to_thread(process.wait, STARTED)
        except subprocess.TimeoutExpired:
            process.kill()


async def ready(http: aiohttp.ClientSession, url: str) -> None:
    """Wait for a buffer."""
    async with asyncio.timeout(STARTED):
        while True:
            with suppress(aiohttp.ClientError):
                async with http.get(f"{url}/v2/health/ready") as response:
                    if response.status == 200:
                        return
            await asyncio.sleep(0.05)


async def run(rate: float, slo: Slo, phase: float, seed: int, journal: Path | None) -> None:
    """Print what came of it."""
    sleeper, rng = Sleeper(MODEL, lambda path, size: (BASE + EACH * size, 0.0)), np.random.default_rng(seed)
    async with AsyncExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        function = await stack.enter_async_context(sleeper.serving())
        profile = ServiceProfile(function=function, model=MODEL, service_time=LinearServiceTime(BASE, EACH), max_batch_size=32)
        (folder / "profile.json").write_bytes(write(profile))
        plans = RedisPlans(redis.url)
        stack.push_async_callback(plans.close)
        first = Plan(model=MODEL, function=function, policy=PolicyDocument.of(policies.no_batching()), slo=slo, memory_mb=MEMORY)
        await plans.write(first, "benchmark")
        port = chosen_port()
        url = f"http://127.0.0.1:{port}"
        settings = {"SLUICE_REDIS_URL": redis.url, "SLUICE_PLANS": "redis:", "SLUICE_PORT": str(port), "SLUICE_LOG_LEVEL": "error"}
        buffer = await stack.enter_async_context(sluice("serve", **settings))
        command = ["control", "--profile", str(folder / "profile.json"), "--memory", str(MEMORY), "--max-batch-size", "32"]
        command += [] if journal is None else ["--journal", str(journal)]
        controller = await stack.enter_async_context(sluice(*command, "--redis-url", redis.url))
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        followed = Followed(plans)
        following = asyncio.create_task(followed.follow())
        await ready(http, url)
        clients = Clients(f"{url}/models/{MODEL}", http, rng)
        began = time.perf_counter()
        await clients.come(rate, phase)
        before, marks = (cpu(controller.pid), cpu(buffer.pid)), [time.perf_counter()]
        await clients.come(MORE * rate, phase)
        marks.append(time.perf_counter())
        sleeper.factor = SLOWER
        await clients.come(rate, phase)
        marks.append(time.perf_counter())
        await clients.all_answered()
        used = cpu(controller.pid) - before[0], cpu(buffer.pid) - before[1]
        memory = peak_memory(controller.pid)
        following.cancel()
    print(f"{len(clients.answered)} requests, {sum(math.isnan(latency) for _, latency in clients.answered)} without an answer")
    half, most = np.quantile(clients.sent_late, [0.5, 0.99])
    print(f"requests were sent {1000 * half:.1f} ms late (median), 1 % by more than {1000 * most:.1f} ms")
    within, surely = clients.within_again(began, marks[0], slo)
    print(
        f"before: {slo.name} within {slo.latency:g} s for good after {within:.1f} s, not surely late after {surely:.1f} s; ", end=""
    )
    print(f"{100 * clients.late(marks[0] - phase / 2, marks[0], slo.latency):.1f} % late in its second half")
    for name, since, until in (("rate x 3", marks[0], marks[1]), ("service time x 1.5, rate / 3", marks[1], marks[2])):
        changed, (back, surely) = followed.first_after(since, until), clients.within_again(since, until, slo)
        words = "the plan stayed" if changed is None else f"another plan after {changed:.1f} s"
        print(f"{name}: {words}; {slo.name} within {slo.latency:g} s for good after {back:.1f} s, ", end="")
        print(f"not surely late after {surely:.1f} s; ", end="")
        print(f"{100 * clients.late(since, until, slo.latency):.1f} % late")
    seconds = marks[2] - marks[0]
    print(
        f"controller: {100 * used[0] / seconds:.1f} % of a core, {memory:.0f} MB at most; buffer: {100 * used[1] / seconds:.1f} %"
    )


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rate", type=positive, default=40.0)
    parser.add_argument("--slo", type=positive, default=0.15)
    parser.add_argument("--phase", type=positive, default=usually(60.0, smoke=1.0))
    parser.add_argument("--seed", type=int, default=7, help="of the arrivals")
    parser.add_argument("--journal", type=Path, help="where the controller writes what it decided")
    options = parser.parse_args()
    asyncio.run(run(options.rate, Slo(options.slo), options.phase, options.seed, options.journal))


if __name__ == "__main__":
    main()
