"""The optimal table at work: buffer, Redis script and HTTP worker under Poisson traffic, measured against the prediction.

The worker is the sleeper with the constants of the paper's basic scenario, GoogLeNet on a Tesla P4: a batch of b takes
l(b) = 1.0524 + 0.3051 b ms and 19.603 + 19.899 b mJ, b at most 32 (Xu, Zhou, Niu, journal version, section VII). A load rho is
rho = rate * l(32) / 32. The energy is booked by the size of each batch; nothing here measures watts.

What is predicted. The server of the queueing model is busy from the moment the script releases a batch until the moment it hears
that the batch is complete: l(b), and the way to the worker and back, the script's own calls among it. That way is profiled, by
requests at the same rate under tables that are not among those compared: the occupancy is fitted by a line in b, and so is what a
request spends outside, from its intended time to the script and from the completion to the last byte of its answer. The SMDP's
table is optimal for that. Every run begins with a pilot under its own table, whose mean occupancy (and its variation) and mean time
outside move the lines: a batch that leaves when another comes back takes longer than one that leaves when a request comes, and a
machine does not keep its speed. For the moved lines ``sluice.optimizer.smdp.evaluate`` predicts exactly. No request that counts
enters its prediction. Two more columns tell the errors apart:

    same arrivals   against a simulation of the queueing model on the very arrivals of the run: what is left without their luck
    own way         against the prediction where not the pilot but the run itself moves the lines: what is left without changes of
                    the machine's speed in between; ``drift`` is that change, in ms of a batch

What is measured. Every policy meets the same arrivals: a Poisson process given its number, so that its rate is exact, between a
warm-up and an end that do not count. Latencies are the client's, from the intended times (sluice/local/replay.py). Where the system
permits, all processes are scheduled before ordinary ones (SCHED_RR), so that other work on the machine is measured less.

The weight w2 of the power is the one of ``WEIGHTS`` at which, by the prediction, the optimal table leads most; w1 is 1 per ms.
``--scale`` stretches every time of the model, so that the way weighs less; all figures are shown in the model's own time.

With ``--servers k`` there are k workers, at k times the rate. The table is that of one server with its share of the traffic, read
at the queue that they share: not optimal for k (that one would also look at how many are busy), and predicted by simulation.

    python -m benchmarks smdp_live --scale 1
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.sleeper import sleeper, sleeping_worker
from benchmarks.smoke import usually
from benchmarks.told import count, positive
from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import Policy, control_limit, greedy, static
from sluice.local.parent_death import die_with_parent
from sluice.local.ports import chosen_port
from sluice.local.redis_server import RedisServer
from sluice.local.replay import Replay, ReplayProgress, replay
from sluice.local.replay import run as run_replay
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.service.law import ServiceLaw, gamma
from sluice.optimizer.simulation.event_loop import simulate
from sluice.optimizer.smdp import SmdpProblem, affine, evaluate, solve

INTERCEPT, SLOPE = 1.0524e-3, 0.3051e-3  # s
ENERGY_INTERCEPT, ENERGY_SLOPE = 19.603e-3, 19.899e-3  # J
LARGEST = 32
STATIC_SIZES = usually((8, 16, 32), smoke=())
LOADS = usually((0.3, 0.7), smoke=(0.3,))
WEIGHTS = (0.5, 1.0, 1.6, 2.0, 3.0, 5.0, 8.0)
REQUESTS = usually(20_000, smoke=100)
PROFILE_LIMITS = usually((1, 3, 6, 12, 24), smoke=(1, 24))
PROFILE = usually(1200, smoke=100)  # requests for each of them
PILOT = usually(4000, smoke=120)
SETTLING = usually(400, smoke=40)  # requests after which a table is in force, and its queue in equilibrium
ENDING = 4 * LARGEST
BLOCKS = 20  # of a standard error
SIMULATED = usually(2_000_000, smoke=100_000)  # requests, where a prediction is by simulation
TOLERANCE = 0.05
MODEL = "googlenet"
START = 30.0  # s that a process may take to start
PRIORITY = 10  # of 1 to 99; the kernel's own threads are at 50
ENERGY = affine(ENERGY_INTERCEPT, ENERGY_SLOPE, LARGEST)
SIZES = np.arange(1, LARGEST + 1)


@dataclass(frozen=True)
class Setting:
    """A load, and how it is run."""

    load: float
    scale: float
    servers: int

    @property
    def rate(self) -> float:
        """Requests per second of real time."""
        return self.servers * self.load * LARGEST / (self.scale * (INTERCEPT + SLOPE * LARGEST))


@dataclass(frozen=True, eq=False)
class Run:
    """What was measured, in real seconds: by request, for those that count, and by the batches they were in.

    ``times`` are the intended arrivals of all requests, and ``counted`` says which count. ``in_queue`` is from the script's stamp
    of a request to the completion of its batch, ``sizes`` is of that batch.
    """

    times: Array
    counted: slice
    latency: Array
    lateness: Array
    failures: int
    in_queue: Array
    sizes: Array
    batch_sizes: Array
    occupancy: Array

    @property
    def seconds(self) -> float:
        """Of the arrivals that count."""
        return float(self.times[self.counted.stop] - self.times[self.counted.start])

    @property
    def outside(self) -> Array:
        """Seconds that each request was neither in the queue nor in service."""
        return self.latency - self.in_queue

    @property
    def figures(self) -> Figures:
        """Every request counts as its part of a batch, so that the first and the last batch do not matter."""
        batches = float((1 / self.sizes).sum())
        energy = ENERGY_INTERCEPT * batches + ENERGY_SLOPE * len(self.sizes)
        return Figures(float(self.latency.mean()), batches / self.seconds, energy / self.seconds)

    @property
    def standard_error(self) -> float:
        """Of the mean latency, by the means of blocks, s."""
        means = [block.mean() for block in np.array_split(self.latency, BLOCKS)]
        return float(np.std(means, ddof=1)) / math.sqrt(BLOCKS)


@dataclass(frozen=True)
class Figures:
    """Of a policy: s, 1/s, W; in real time."""

    mean_latency: float
    batch_rate: float
    power: float

    def cost(self, setting: Setting, weight: float) -> float:
        """Mean latency (ms) and ``weight`` times the power (W), in the model's time."""
        return self.mean_latency * 1e3 / setting.scale + weight * self.power * setting.scale


@dataclass(frozen=True)
class Way:
    """What lies around the sleep: lines in the batch size, intercept and slope in s, and the variation of the occupancy."""

    occupancy: tuple[float, float]
    outside: tuple[float, float]
    scv: float

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Way:
        """The lines of least squares."""
        sizes, seconds = np.concatenate([run.batch_sizes for run in runs]), np.concatenate([run.occupancy for run in runs])
        occupancy = _of_a_law(*_line(sizes, seconds))
        outside = _line(np.concatenate([run.sizes for run in runs]), np.concatenate([run.outside for run in runs]))
        return cls(occupancy, outside, float(np.mean((seconds / (occupancy[0] + occupancy[1] * sizes) - 1) ** 2)))

    @property
    def law(self) -> ServiceLaw:
        """The service law of the queueing model."""
        return gamma(affine(*self.occupancy, LARGEST), 1 / self.scv)

    def drift(self, run: Run) -> float:
        """Seconds by which the batches of a run took longer in the mean."""
        return float(np.mean(run.occupancy - self.occupancy[0] - self.occupancy[1] * run.batch_sizes))

    def moved_to(self, run: Run) -> Way:
        """The lines through a run's means, for policies that take too few sizes for lines of their own."""
        outside = self.outside[0] + float(np.mean(run.outside - self.outside[0] - self.outside[1] * run.sizes))
        intercept, slope = _of_a_law(self.occupancy[0] + self.drift(run), self.occupancy[1])
        scv = float(np.mean((run.occupancy / (intercept + slope * run.batch_sizes) - 1) ** 2))
        return Way((intercept, slope), (outside, self.outside[1]), scv)


def problem(setting: Setting, law: ServiceLaw, weight: float) -> SmdpProblem:
    """For one server with its share of the traffic; weights in the model's time, and of the power of all servers."""
    weights = 1e3 / setting.scale, weight * setting.scale * setting.servers
    return SmdpProblem(poisson(setting.rate / setting.servers), law, ENERGY, 1, *weights)


def predict(policy: Policy, setting: Setting, way: Way) -> Figures | None:
    """What the theory expects of a policy; ``None`` where the queue grows for ever."""
    law, largest = way.law, policy.max_batch_size
    if largest * setting.servers <= setting.rate * law.mean[largest - 1]:
        return None
    if setting.servers == 1:
        performance = evaluate(problem(setting, law, 1.0), np.array(policy.take))
        latency, batch_rates = performance.mean_latency, performance.batch_rates
    else:
        rng = np.random.default_rng(0)
        times = rng.exponential(1 / setting.rate, SIMULATED).cumsum()
        result = simulate(policy, times, law.service_times(), rng)
        latency = float(np.nanmean(result.latency))
        batch_rates = np.bincount(result.batch_sizes, minlength=LARGEST + 1)[1:] / times[-1]
    outside = way.outside[0] + way.outside[1] * float(batch_rates @ SIZES**2) / setting.rate
    return Figures(latency + outside, float(batch_rates.sum()), float(batch_rates @ ENERGY))


def predict_on(policy: Policy, run: Run, way: Way) -> float:
    """Mean latency (s) that the queueing model has on the very arrivals of a run, by simulation."""
    result = simulate(policy, run.times, way.law.service_times(), np.random.default_rng(0))
    size = result.batch_sizes[result.batch_of]
    return float(np.mean((result.latency + way.outside[0] + way.outside[1] * size)[run.counted]))


def choose_weight(setting: Setting, law: ServiceLaw, rivals: Sequence[Policy]) -> float:
    """The weight at which the optimal table is expected to lead the best of the others by most, relative to its latency."""

    def lead(weight: float) -> float:
        smdp = problem(setting, law, weight)
        solution = solve(smdp)
        costs = []
        for policy in rivals:
            with contextlib.suppress(InvalidInput):  # under which the queue grows for ever
                performance = evaluate(smdp, np.array(policy.take))
                costs.append(smdp.cost(performance.mean_latency, performance.power))
        return (min(costs) - solution.gain) / (smdp.latency_weight * solution.mean_latency)

    return max(WEIGHTS, key=lead)


def _of_a_law(intercept: float, slope: float) -> tuple[float, float]:
    """A line by which larger batches serve more, as by every law of service; what was measured for a moment may say otherwise."""
    return max(intercept, slope / 100), slope


def _line(sizes: Array, seconds: Array) -> tuple[float, float]:
    """Intercept and slope of least squares."""
    slope, intercept = np.polyfit(sizes, seconds, 1)
    return float(intercept), float(slope)


# --- the live side


def arrival_times(rate: float, before: int, counted: int, rng: np.random.Generator) -> Array:
    """Poisson arrivals of ``rate`` (1/s): some ``before``, ``counted`` that come in exactly their mean time, an end."""
    start = rng.exponential(1 / rate, before).cumsum()
    middle = start[-1] + np.sort(rng.uniform(0, counted / rate, counted))
    end = start[-1] + counted / rate + rng.exponential(1 / rate, ENDING).cumsum()
    return np.concatenate([start, middle, end])


def run(phases: Sequence[tuple[Policy, int]], setting: Setting, rng: np.random.Generator) -> list[Run]:
    """Start a system and send it so many requests under each policy in turn: what was measured of each.

    Of all phases but the last the first ``SETTLING`` requests do not count.
    """
    ends = np.cumsum([requests for _, requests in phases]).tolist()
    counted = [slice(end - requests + SETTLING, end) for (_, requests), end in zip(phases, ends, strict=True)]
    counted[-1] = slice(ends[-1] - phases[-1][1], ends[-1])
    times = arrival_times(setting.rate, counted[-1].start, phases[-1][1], rng)
    changes = [(end, policy) for end, (policy, _) in zip(ends, phases[1:], strict=False)]
    # The last ones, which do not count, are drained: a policy may never release them.
    changes.append((ends[-1], greedy(LARGEST, setting.servers)))
    with tempfile.TemporaryDirectory() as directory, contextlib.ExitStack() as stack:
        redis = stack.enter_context(RedisServer())
        told = sleeper(MODEL, setting.scale * INTERCEPT, setting.scale * SLOPE)
        function = ",".join(stack.enter_context(sleeping_worker(told)) for _ in range(setting.servers))
        plan, record_file = Path(directory, "plan.json"), Path(directory, "record.npz")

        def follow(policy: Policy) -> None:
            part = plan.with_suffix(".part")
            part.write_bytes(write(Plan(model=MODEL, function=function, policy=PolicyDocument.of(policy))))
            part.replace(plan)

        def look(progress: ReplayProgress) -> None:
            if changes and progress.ended >= changes[0][0]:
                follow(changes.pop(0)[1])

        follow(phases[0][0])
        with buffer(redis.url, directory, record_file) as url:
            replayed = run_replay(replay(times, url, body=lambda index: b"%d" % index, timeout=60, on_progress=look))
        with np.load(record_file) as file:
            record = dict(file)
    return [part(times, which, replayed, record) for which in counted]


def part(times: Array, counted: slice, replayed: Replay, record: dict[str, Any]) -> Run:
    """What was measured of the requests that count."""
    batch_of = record["batch_of"]
    sizes = np.bincount(batch_of)
    batches = np.unique(batch_of[counted])
    return Run(
        times,
        counted,
        replayed.latency[counted],
        replayed.lateness[counted],
        int((~replayed.answered[counted]).sum()),
        (record["completed_at"][batch_of] - record["arrived_at"])[counted],
        sizes[batch_of[counted]],
        sizes[batches],
        (record["completed_at"] - record["released_at"])[batches],
    )


@contextlib.contextmanager
def buffer(redis_url: str, plans: str, record: Path) -> Iterator[str]:
    """A buffer that follows the plans; where the model is asked. In the end its record is written."""
    port = chosen_port()
    with child(["benchmarks.recorded_buffer", redis_url, str(port), plans, str(record)]) as process:
        deadline = time.monotonic() + START
        while process.poll() is None and time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.02)
        yield f"http://127.0.0.1:{port}/models/{MODEL}"


@contextlib.contextmanager
def child(arguments: list[str]) -> Iterator[subprocess.Popen[bytes]]:
    """A module of this project as a process that ends with its owner."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdout=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=die_with_parent(),
    )
    try:
        yield process
    finally:
        process.terminate()
        process.communicate()


@contextlib.contextmanager
def before_ordinary_processes(wanted: bool) -> Iterator[bool]:
    """This process and those it starts are scheduled first, where that is wanted and permitted; says whether they are."""
    granted = False
    if wanted:
        with contextlib.suppress(AttributeError, OSError):
            os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(PRIORITY))
            granted = True
    try:
        yield granted
    finally:
        if granted:
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))


# --- the comparison


def compare(setting: Setting, requests: int, rng: np.random.Generator, console: Console) -> dict[str, Any]:
    """Profile, solve, predict, measure; print as it goes."""
    servers, seed = setting.servers, int(rng.integers(2**63))
    profiling = [(control_limit(limit, LARGEST, servers), PROFILE) for limit in PROFILE_LIMITS]
    way = Way.of(run([*profiling, (greedy(LARGEST, servers), SETTLING)], setting, rng)[:-1])
    rivals = {"greedy": greedy(LARGEST, servers)} | {f"static {size}": static(size, servers) for size in STATIC_SIZES}
    weight = choose_weight(setting, way.law, list(rivals.values()))
    table = solve(problem(setting, way.law, weight)).policy(servers=servers)
    console.print(described(setting, way, weight, table))
    rows = {}
    for name, policy in ({"SMDP": table} | rivals).items():
        pilot, measured = run([(policy, PILOT), (policy, requests)], setting, np.random.default_rng(seed))
        rows[name] = row(policy, setting, weight, way, pilot, measured)
    console.print(shown(setting, weight, rows))
    for line in verdict(rows):
        console.print(line)
    return {"setting": asdict(setting), "way": asdict(way), "weight": weight, "actions": table.take, "policies": rows}


def row(policy: Policy, setting: Setting, weight: float, way: Way, pilot: Run, run: Run) -> dict[str, Any]:
    """One policy in the model's time, ms, 1/s and W; ``None`` where the theory says that the queue grows for ever."""
    scale = setting.scale
    bare = Way((scale * INTERCEPT, scale * SLOPE), (0.0, 0.0), 1e-6)  # of no length

    def of(figures: Figures | None) -> dict[str, float] | None:
        if figures is None:
            return None
        latency, rate, power = figures.mean_latency * 1e3 / scale, figures.batch_rate * scale, figures.power * scale
        return {"latency": latency, "batch_rate": rate, "power": power, "cost": figures.cost(setting, weight)}

    measured, before = run.figures, way.moved_to(pilot)
    predicted, own = predict(policy, setting, before), predict(policy, setting, way.moved_to(run))
    return {
        "bare": of(predict(policy, setting, bare)),
        "way": asdict(before),
        "predicted": of(predicted),
        "measured": of(measured),
        "standard_error": run.standard_error * 1e3 / scale,
        "difference": None if predicted is None else measured.mean_latency / predicted.mean_latency - 1,
        "same_arrivals": measured.mean_latency / predict_on(policy, run, before) - 1,
        "own_way": None if own is None else measured.mean_latency / own.mean_latency - 1,
        "drift": before.drift(run) * 1e3 / scale,
        "mean_batch_size": len(run.sizes) / float((1 / run.sizes).sum()),
        "lateness_p99": float(np.percentile(run.lateness, 99)) * 1e3 / scale,
        "failures": run.failures,
    }


def described(setting: Setting, way: Way, weight: float, table: Policy) -> str:
    """The profile, and what was solved for it."""
    (a, b), (c, d) = np.array(way.occupancy) * 1e3, np.array(way.outside) * 1e3
    load = setting.rate * way.law.mean[-1] / LARGEST / setting.servers
    return (
        f"\n[bold]rho = {setting.load:g}[/], scale {setting.scale:g}: {setting.rate:.1f} requests/s. The sleeper takes "
        f"{1e3 * INTERCEPT * setting.scale:.4g} + {1e3 * SLOPE * setting.scale:.4g} b ms; profiled: a batch holds its server for "
        f"{a:.3f} + {b:.4f} b ms, scv {way.scv:.4f}, and a request spends {c:.3f} + {d:.4f} b ms outside. "
        f"So rho is really {load:.3f}. Optimal at w2 = {weight:g}: with 0, 1, ... waiting take {_shortened(table.take)}."
    )


def _shortened(actions: Sequence[int]) -> str:
    """A table in words: what it waits for, and what it takes then."""
    limit = next(s for s, a in enumerate(actions) if a)
    takes_all = all(a == min(s, LARGEST) for s, a in enumerate(actions[limit:], limit))
    return f"none below {limit}, then " + ("all" if takes_all else ", ".join(map(str, actions[limit:])))


def shown(setting: Setting, weight: float, rows: dict[str, dict[str, Any]]) -> Table:
    """The comparison for people."""
    title = (
        f"rho = {setting.load:g}, servers = {setting.servers}, scale {setting.scale:g}, predicted / measured in the model's time"
    )
    table = Table(title=title, caption=f"cost = mean latency in ms + {weight:g} x mean power in W")
    heads = (
        "mean latency, ms",
        "off by",
        "same arrivals",
        "own way",
        "drift",
        "batches/s",
        "mean size",
        "power, W",
        "cost",
        "late p99",
    )
    for head in ("", *heads):
        table.add_column(head, justify="right" if head else "left")
    for name, figures in rows.items():
        predicted, measured = figures["predicted"], figures["measured"]

        def pair(key: str, digits: int, p: dict[str, float] | None = predicted, m: dict[str, float] = measured) -> str:
            return f"{'unstable' if p is None else format(p[key], f'.{digits}f')} / {m[key]:.{digits}f}"

        table.add_row(
            name,
            pair("latency", 2) + f" ± {figures['standard_error']:.2f}",
            *("" if figures[key] is None else f"{100 * figures[key]:+.1f} %" for key in ("difference", "same_arrivals", "own_way")),
            f"{figures['drift']:+.2f}",
            pair("batch_rate", 1),
            f"{figures['mean_batch_size']:.2f}",
            pair("power", 2),
            pair("cost", 2),
            f"{figures['lateness_p99']:.2f}",
        )
    return table


def verdict(rows: dict[str, dict[str, Any]]) -> list[str]:
    """What the run says about the two claims."""
    smdp = rows["SMDP"]
    leads = {name: figures["measured"]["cost"] - smdp["measured"]["cost"] for name, figures in rows.items() if name != "SMDP"}
    nearest = min(leads, key=leads.__getitem__)
    within = "within" if abs(smdp["difference"]) <= TOLERANCE else "NOT within"
    failures = sum(figures["failures"] for figures in rows.values())
    lowest = "below" if leads[nearest] > 0 else "NOT below"
    return [
        f"SMDP: measured mean latency {100 * smdp['difference']:+.1f} % off the prediction, {within} {TOLERANCE:.0%}.",
        f"SMDP: measured cost {lowest} all others; the next is {nearest}, {leads[nearest]:+.2f}.",
        *([f"{failures} requests FAILED."] if failures else []),
    ]


def main() -> None:
    """Compare at every load."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks smdp_live", description="The optimal table, live.")
    parser.add_argument(
        "--scale", type=positive, default=usually(1.0, smoke=3.0), help="how many times slower than the model everything goes"
    )
    parser.add_argument("--requests", type=count, default=REQUESTS, help="that count, for each policy")
    parser.add_argument("--load", type=positive, action="append", help="rho; may be repeated")
    parser.add_argument("--servers", type=count, default=1, help="workers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--real-time", action=argparse.BooleanOptionalAction, default=True, help="SCHED_RR where permitted")
    parser.add_argument("--out", type=Path, help="write the figures there, as JSON")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 180)
    rng = np.random.default_rng(options.seed)
    started = time.monotonic()
    results = []
    with before_ordinary_processes(options.real_time) as first:
        console.print("Scheduled before ordinary processes." if first else "Scheduled as ordinary processes.")
        for load in options.load or LOADS:
            results.append(compare(Setting(load, options.scale, options.servers), options.requests, rng, console))
    console.print(f"{time.monotonic() - started:.0f} s")
    if options.out is not None:
        options.out.write_text(json.dumps(results, indent=1, default=float))


if __name__ == "__main__":
    main()
