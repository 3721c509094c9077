"""What `sluice control` costs with many models: the CPU of what reads, watches and decides, and the memory of all its processes.

A writer puts what buffers would record of ``--models`` models into both streams, in their format: ``--rate`` requests/s in all, an
entry each (Poisson), and batches of ``--size`` of them that take what their profile says. A real controller watches them in a real
Redis. Beside it, with the same records under another namespace, is one that decides in its own process and whose loops are machine
code: what it is to be compared with. After ``--warm`` seconds CPU and memory of both are watched for ``--seconds``; PSS counts what
processes share in parts. Then reading and watching are timed apart, by a reader and a tuner of each model in this process.
``--idle`` models have a plan and no requests besides.

``python -m benchmarks control_many [--models 10] [--rate 500] [--size 4] [--period 300] [--warm 60] [--seconds 330] [--idle 0]``
"""

from __future__ import annotations

import argparse
import asyncio
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import numpy as np
import redis

from benchmarks.buffer_throughput import TICKS
from benchmarks.control_live import sluice
from benchmarks.smoke import usually
from benchmarks.told import count, positive
from sluice.batching import policy as policies
from sluice.batching.documents import LinearServiceTime, Plan, PolicyDocument, ServiceProfile, Slo, write
from sluice.batching.measured import MeasuredBatch
from sluice.buffer_service.arrival_stream import FIELD, pack_floats, stream_key
from sluice.buffer_service.batch_stream import BATCHES, batch_stream_key, pack_batches
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.stream_reader import RecordReader
from sluice.controller.journal import Entry, Journal, read_journal
from sluice.controller.leadership import lead
from sluice.controller.model_control import ModelControl, ModelTuner
from sluice.controller.model_process import ModelProcess
from sluice.controller.model_setups import ModelSetups
from sluice.local.redis_server import RedisServer
from sluice.optimizer.compiled import without_numba
from sluice.optimizer.tuning.decision import Decision, Trigger
from sluice.optimizer.tuning.drift import ServiceWatch
from sluice.optimizer.tuning.setup import TuningSettings

MEMORY_MB, MOST = 1769, 32
BASE, EACH, SPREAD = 0.03, 0.002, 0.05  # s, s, and of the logarithm
WAITS = 0.08  # s, at most
SLO = Slo(0.15)
TICK = 0.05  # s, between two calls of a buffer that bring batches
TIMED = usually(20.0, smoke=0.5)  # s for which reading and watching are timed apart


def profile_of(model: str) -> ServiceProfile:
    """The profile of a model."""
    return ServiceProfile(function=f"f-{model}", model=model, service_time=LinearServiceTime(BASE, EACH), max_batch_size=MOST)


def plan_of(model: str, size: int) -> Plan:
    """The plan to begin with."""
    table = PolicyDocument.of(policies.size_or_timeout(size, WAITS))
    return Plan(model=model, function=f"f-{model}", policy=table, slo=SLO, memory_mb=MEMORY_MB)


class Writer:
    """Records what buffers would, in several namespaces."""

    def __init__(self, url: str, namespaces: tuple[str, ...], models: list[str], rate: float, size: int) -> None:
        self._client, self._namespaces, self._models, self._rate, self._size = (
            redis.Redis.from_url(url),
            namespaces,
            models,
            rate,
            size,
        )
        self._rng = np.random.default_rng(7)
        self._arrivals, self._batches = dict.fromkeys(models, 0), dict.fromkeys(models, 0)
        self.digests: dict[str, str] = {}

    async def run(self) -> None:
        """Until cancelled."""
        at = time.monotonic()
        while True:
            at += TICK
            await asyncio.sleep(max(0.0, at - time.monotonic()))
            await asyncio.to_thread(self._tick)

    def _tick(self) -> None:
        rng, now = self._rng, time.time()
        made = struct.pack("<d", now)
        pipeline: Any = self._client.pipeline(transaction=False)
        for model in self._models:
            for age in np.sort(rng.uniform(0, TICK, rng.poisson(self._rate / len(self._models) * TICK)))[::-1]:
                self._arrivals[model] += 1
                for namespace in self._namespaces:
                    entry = {FIELD: struct.pack("<d", now - age) + pack_floats([0.0])}
                    pipeline.xadd(stream_key(model, namespace), entry, id=f"{self._arrivals[model]}-0")
            ended = self._arrivals[model] // self._size - self._batches[model]
            if ended:
                self._batches[model] += ended
                for namespace in self._namespaces:
                    packed = {FIELD: made, BATCHES: pack_batches([self._batch(model, namespace) for _ in range(ended)])}
                    pipeline.xadd(batch_stream_key(model, namespace), packed, id=f"{self._batches[model]}-0")
        pipeline.execute()

    def _batch(self, model: str, namespace: str) -> MeasuredBatch:
        seconds = (BASE + EACH * self._size) * float(np.exp(self._rng.normal(0, SPREAD)))
        waits = np.append(np.sort(self._rng.uniform(0, WAITS, self._size - 1))[::-1], 0.0)  # the last has it leave
        latencies = (waits + seconds).tolist()
        digest = self.digests.get(f"{namespace} {model}", "")
        return MeasuredBatch(0.0, "", 0, f"f-{model}", digest, self._size, seconds, seconds, seconds, False, 0, tuple(latencies))


def descendants(pid: int) -> Iterator[int]:
    """A process and those that it started."""
    yield pid
    with suppress(OSError):
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield from descendants(int(child))


class Usage:
    """CPU seconds and MB of a process, and of those that it starts."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.own = self._begun = self._stat(pid)[0]
        self._reaped = self._stat(pid)[1]
        self.rss: list[float] = []
        self.pss: list[float] = []
        self.alone: list[float] = []

    @staticmethod
    def _stat(pid: int) -> tuple[float, float]:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        user, system, *of_children = (int(field) / TICKS for field in fields[11:15])
        return user + system, sum(of_children)

    def look(self) -> None:
        """Note what they hold now."""
        rss = pss = 0.0
        for pid in descendants(self._pid):
            with suppress(OSError):
                held = dict(line.split()[:2] for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:])
                rss, pss = rss + int(held["Rss:"]) / 1024, pss + int(held["Pss:"]) / 1024
                if pid == self._pid:
                    self.alone.append(int(held["Rss:"]) / 1024)
        self.rss.append(rss)
        self.pss.append(pss)

    def cpu(self) -> tuple[float, float]:
        """Of the process itself, and of those that it started, which ended or are there."""
        own, reaped = self._stat(self._pid)
        there = sum(self._stat(pid)[0] for pid in descendants(self._pid) if pid != self._pid)
        return own - self._begun, reaped - self._reaped + there


class Here:
    """Decides in the process that asks."""

    running = False

    async def decide(self, tuner: ModelTuner, now: float, trigger: Trigger) -> tuple[Decision, ModelTuner]:
        return await asyncio.to_thread(tuner.decide, now, trigger), tuner

    async def close(self) -> None:
        """Nothing is held."""


async def decide_here(url: str, namespace: str, models: int, period: float, journal: Path) -> None:
    """The controller that this is compared with, until it is told to end."""
    plans = RedisPlans(url, namespace)
    settings = TuningSettings(period=period)
    setups = ModelSetups({name: profile_of(name) for name in names(models)}, (SLO,), settings=settings, max_batch_size=MOST)
    setups = ModelSetups(setups.profiles, (SLO,), "", (MEMORY_MB,), max_batch_size=MOST, settings=settings)

    async def work() -> None:
        await ModelProcess(setups.tuner, plans, "here", Here(), Journal(journal, None), url, namespace).run()

    task = asyncio.ensure_future(lead(plans, "here", work))
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    with suppress(asyncio.CancelledError):
        await task


def names(models: int) -> list[str]:
    """Of the models with requests."""
    return [f"m{k}" for k in range(models)]


async def tell_plans(plans: dict[str, RedisPlans], writer: Writer) -> None:
    """Tell the writer which plans are in force, until cancelled."""
    while True:
        for namespace, of_it in plans.items():
            writer.digests |= {f"{namespace} {plan.model}": plan.digest for plan in await of_it.plans()}
        await asyncio.sleep(1.0)


async def time_apart(url: str, namespace: str, models: list[str]) -> tuple[float, float]:
    """CPU seconds a second of reading, and of watching, of all models."""
    setups = ModelSetups({name: profile_of(name) for name in models}, (SLO,), "", (MEMORY_MB,), max_batch_size=MOST)
    watched = []
    for name in models:
        tuner = setups.tuner(plan_of(name, 4))
        tuner._services = ServiceWatch(profile_of(name))
        control, reader = ModelControl(tuner), RecordReader(url, name, namespace)
        control.plan(plan_of(name, 4), 0.0)
        while any(each.more for each in reader.look()):
            pass
        watched.append((control, reader))
    reading = watching = 0.0
    begun = time.monotonic()
    while time.monotonic() < begun + TIMED:
        await asyncio.sleep(1.0)
        for control, reader in watched:
            at = time.thread_time()
            arrivals, batches = reader.look()
            read_at = time.thread_time()
            control.see(arrivals, batches)
            control.due(reader.now)
            reading, watching = reading + read_at - at, watching + time.thread_time() - read_at
    seconds = time.monotonic() - begun
    return reading / seconds, watching / seconds


async def run(models: int, rate: float, size: int, period: float, warm: float, seconds: float, idle: int) -> None:
    """Print what both controllers cost."""
    async with AsyncExitStack() as stack:
        server = stack.enter_context(RedisServer())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        spaces = ("control", "here")
        plans = {space: RedisPlans(server.url, space) for space in spaces}
        for space in spaces:
            stack.push_async_callback(plans[space].close)
            for name in [*names(models), *(f"idle{k}" for k in range(idle))]:
                await plans[space].write(plan_of(name, size), "benchmark")
        (folder / "profiles").mkdir()
        for name in names(models):
            (folder / "profiles" / f"{name}.json").write_bytes(write(profile_of(name)))
        writer = Writer(server.url, spaces, names(models), rate, size)
        tasks = [asyncio.create_task(writer.run()), asyncio.create_task(tell_plans(plans, writer))]
        journals = {space: folder / f"{space}.jsonl" for space in spaces}
        command = ["control", "--profile", str(folder / "profiles"), "--memory", str(MEMORY_MB), "--max-batch-size", str(MOST)]
        command += ["--period", str(period), "--namespace", "control", "--journal", str(journals["control"])]
        control = await stack.enter_async_context(sluice(*command, "--redis-url", server.url))
        other = [server.url, "here", str(models), str(period), str(journals["here"])]
        here = subprocess.Popen([sys.executable, "-m", "benchmarks.control_many", "--controller", *other])
        stack.callback(here.wait)
        stack.callback(here.terminate)
        await asyncio.sleep(warm)
        usage = {"control": Usage(control.pid), "here": Usage(here.pid)}
        before = {space: len(_entries(journals[space])) for space in spaces}
        begun = time.monotonic()
        while time.monotonic() < begun + seconds:
            for each in usage.values():
                each.look()
            await asyncio.sleep(0.5)
        took = time.monotonic() - begun
        print(f"{models} models, {rate:g} requests/s in all in batches of {size}, {idle} models without; ", end="")
        print(f"{took:.0f} s, period {period:g} s")
        total = {}
        for space, words in (("control", "sluice control"), ("here", "deciding in its own process, loops as machine code")):
            one = usage[space]
            own, started = (100 * seconds / took for seconds in one.cpu())
            total[space] = own + started
            decided = sum("trigger" in entry for entry in _entries(journals[space])[before[space] :])
            there = np.mean([all_of_them > alone + 1 for all_of_them, alone in zip(one.rss, one.alone, strict=True)])
            print(f"{words}: {own + started:.2f} % of a core, of which processes that decide {started:.2f} %")
            print(f"  {decided} decisions, a process for them {100 * there:.1f} % of the time")
            print(f"  PSS {np.mean(one.pss):.0f} MB on average, at most {max(one.pss):.0f}; ", end="")
            print(f"resident in all {np.mean(one.rss):.0f}, at most {max(one.rss):.0f}; ", end="")
            print(f"what watches alone {np.mean(one.alone):.0f} (at most {max(one.alone):.0f})")
        print(f"CPU, sluice control over the other: {total['control'] / max(total['here'], 0.01):.2f}")
        with without_numba():
            reading, watching = await time_apart(server.url, "control", names(models))
        print(f"of what watches: reading {100 * reading:.2f} %, watching {100 * watching:.2f} % of a core")
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _entries(journal: Path) -> list[Entry]:
    """What a controller has written; it makes the file with the first."""
    return list(read_journal(journal)) if journal.exists() else []


def main() -> None:
    """Read the options and run."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--models", type=count, default=usually(10, smoke=1))
    parser.add_argument("--rate", type=positive, default=usually(500.0, smoke=200.0))
    parser.add_argument("--size", type=int, default=4)
    parser.add_argument("--period", type=positive, default=usually(300.0, smoke=0.5))
    parser.add_argument("--warm", type=float, default=usually(60.0, smoke=2.0))
    parser.add_argument("--seconds", type=positive, default=usually(330.0, smoke=1.0))
    parser.add_argument("--idle", type=int, default=0)
    parser.add_argument("--controller", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.controller is not None:
        url, namespace, models, period, journal = options.controller
        asyncio.run(decide_here(url, namespace, int(models), float(period), Path(journal)))
        return
    asyncio.run(run(options.models, options.rate, options.size, options.period, options.warm, options.seconds, options.idle))


if __name__ == "__main__":
    main()
