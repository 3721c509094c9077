"""How often the sequential tests of ``optimizer.tuning`` speak while nothing changes, and how soon after a change.

``python -m benchmarks.change_tests [rate] [burstiness] [promise] [service] [--days 10] [--runs 40] [--traces FILE ...]``

Everything is drawn in virtual time (docs/watching.md has the figures). A trace is made steady, its burstiness kept, by drawing
stretches of it in random order.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from copy import deepcopy
from functools import partial
from itertools import islice
from time import process_time

import numpy as np

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.measured import MeasuredBatch
from sluice.batching.quantiles import quantile_points
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.traces.trace import Trace, read_trace
from sluice.optimizer.tuning.changes import DAY, Alarm, BurstinessTest, RateTest
from sluice.optimizer.tuning.drift import ServiceWatch
from sluice.optimizer.tuning.promise import PromiseWatch

HOUR = 3600.0
PIECE = 1 << 18  # arrivals drawn at a time
STRETCHES = 64  # of a trace
FACTORS = (1.25, 1.5, 3.0, 1 / 1.25, 1 / 1.5, 1 / 3)
CENSORED = 600.0  # s after which a change counts as not noticed
PROCESSES: dict[str, ArrivalProcess] = {
    "Poisson, 50/s": poisson(50.0),
    "Poisson, 2/s": poisson(2.0),
    "80 and 20/s, 1 s each": mmpp2(80.0, 20.0, 1.0, 1.0),
    "80 and 40/s, 10 s each": mmpp2(80.0, 40.0, 0.1, 0.1),
    "200/s for 1 s, 20/s for 5 s": mmpp2(200.0, 20.0, 1.0, 0.2),
    "500/s for 0.1 s, 10/s for 1 s": mmpp2(500.0, 10.0, 10.0, 1.0),
    "100/s for 60 s, 25/s for 120 s": mmpp2(100.0, 25.0, 1 / 60, 1 / 120),
}
Times = Iterator[Array]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--days", type=int, default=10)
    parser.add_argument("--runs", type=int, default=40)
    parser.add_argument("--traces", nargs="*", default=["examples/traces/azure_llm_code_excerpt.csv.gz"])
    options = parser.parse_args()
    tables: dict[str, Callable[[], None]] = {
        "rate": lambda: rate(options.days, options.runs, options.traces),
        "burstiness": lambda: burstiness(options.days, options.runs, options.traces),
        "promise": lambda: promise(options.runs),
        "service": lambda: service(options.runs),
    }
    for name in options.tests or tables:
        tables[name]()


def drawn(process: ArrivalProcess, seed: int) -> Times:
    """Arrivals without end, in pieces."""
    end, rng = 0.0, np.random.default_rng(seed)
    while True:
        times = end + np.cumsum(process.sample(PIECE, rng))
        end = float(times[-1])
        yield times


def steady(trace: Trace, seed: int) -> Times:
    """Arrivals without end: stretches of a trace in random order."""
    rng, length, end = np.random.default_rng(seed), trace.duration / STRETCHES, 0.0
    while True:
        begin = float(rng.uniform(0, trace.duration - length))
        inside = trace.times[(trace.times >= begin) & (trace.times < begin + length)]
        yield end + inside - begin
        end += length


def watch(test: RateTest | BurstinessTest, pieces: Times, until: float, begin: float = 0.0, step: float = 1.0) -> Iterator[Alarm]:
    """The alarms of arrivals that are seen ``step`` seconds after ``step`` seconds, up to ``until``."""
    end = begin
    for piece in pieces:
        times = begin + piece
        last = min(float(times[-1]) if len(times) else end, until)
        ends = np.arange(end + step, last, step)
        for part, at in zip(np.split(times, np.searchsorted(times, ends)), ends.tolist(), strict=False):
            test.see(part, at)
            if test.alarm is not None:
                yield test.alarm
                test.clear()
        test.see(times[(times >= (ends[-1] if len(ends) else end)) & (times <= last)], last)
        end = last
        if last >= until:
            return


def _steady_days(make: Callable[[], RateTest | BurstinessTest], sources: dict[str, Callable[[int], Times]], days: int) -> None:
    print(f"{'steady':44}  alarms a day  (days)  alarms in the first hour (mean)  CPU s a day")
    for name, source in sources.items():
        began, found, first = process_time(), 0, 0
        for seed in range(days):
            for alarm in watch(make(), source(seed), DAY + HOUR):
                first += alarm.at < HOUR
                found += alarm.at >= HOUR
        print(f"{name:44}  {found / days:12.2f}  {days:6}  {first / days:31.2f}  {(process_time() - began) / days:.2g}", flush=True)


def _sources(files: list[str]) -> dict[str, Callable[[int], Times]]:
    sources: dict[str, Callable[[int], Times]] = {name: partial(drawn, process) for name, process in PROCESSES.items()}
    return sources | {f"{name}, stretches": partial(steady, trace) for name, trace in _traces(files).items()}


def _traces(files: list[str]) -> dict[str, Trace]:
    return {f"trace {file.rpartition('/')[2].partition('.')[0]}": read_trace(file) for file in files}


def _noticed(test: RateTest | BurstinessTest, after: ArrivalProcess, runs: int, step: float) -> str:
    delays = []
    for seed in range(runs):
        alarms = watch(deepcopy(test), drawn(after, 1000 + seed), HOUR + CENSORED, HOUR, step)
        delays.append(next((alarm.at - HOUR for alarm in alarms), np.inf))
    delays.sort()
    shown = [f"{delays[round(q * (runs - 1))]:.3g}" for q in (0.5, 0.95)]
    return " / ".join(shown).replace("inf", "-")


def rate(days: int, runs: int, files: list[str]) -> None:
    """``RateTest``."""
    print("RateTest")
    _steady_days(RateTest, _sources(files), days)
    for name, trace in _traces(files).items():
        found = len(list(watch(RateTest(), iter([trace.times]), trace.duration)))
        print(f"{name}, as it came: {found} alarms in {trace.duration:.0f} s")
    print(f"{'noticed after s, median / 95 %':44}  I(10 s)  " + "  ".join(f"x{factor:<10.3g}" for factor in FACTORS))
    for name, process in PROCESSES.items():
        test = RateTest()
        list(watch(test, drawn(process, 1), HOUR))
        cells = [_noticed(test, _at_rate(process, factor), runs, 0.1) for factor in FACTORS]
        index = float(dispersion_of_counts(process, 10.0)[0])
        print(f"{name:44}  {index:7.3g}  " + "  ".join(f"{cell:11}" for cell in cells), flush=True)


def _at_rate(process: ArrivalProcess, factor: float) -> ArrivalProcess:
    """The same with each phase's rate times a factor: bursts come as often and last as long."""
    return ArrivalProcess(process.D0 - np.diag((factor - 1) * process.D1.sum(axis=1)), process.D1 * factor, process.model)


def burstiness(days: int, runs: int, files: list[str]) -> None:
    """``BurstinessTest``."""
    print("BurstinessTest, counts of 1 s")
    _steady_days(BurstinessTest, _sources(files), days)
    print(f"{'noticed after s, median / 95 %':44}")
    for before, after in (
        ("Poisson, 50/s", "80 and 20/s, 1 s each"),
        ("80 and 20/s, 1 s each", "Poisson, 50/s"),
        ("Poisson, 50/s", "500/s for 0.1 s, 10/s for 1 s"),
        ("80 and 20/s, 1 s each", "200/s for 1 s, 20/s for 5 s"),
    ):
        test = BurstinessTest()
        list(watch(test, drawn(PROCESSES[before], 1), HOUR))
        index = [float(dispersion_of_counts(PROCESSES[name], 1.0)[0]) for name in (before, after)]
        cell = _noticed(test, PROCESSES[after], runs, 1.0)
        print(f"{before} to {after}: I(1 s) {index[0]:.3g} to {index[1]:.3g}: {cell}", flush=True)


def promise(runs: int) -> None:
    """``PromiseWatch``: batches of up to 8, ten a second, p95 of 0.2 s."""
    print("PromiseWatch, p95, 10 batches a second of 1 to 8 requests")
    slo = Slo(0.2, 95)
    for how in ("each request by itself", "whole batches", "whole batches, ten in a row"):
        n = 2_000_000
        found = _alarms(PromiseWatch(slo, 8), _late(0.05, how, n, 0))
        delays = {}
        for share in (0.1, 0.2, 0.5):
            after = []
            for seed in range(runs):
                watch = PromiseWatch(slo, 8)
                watch.see(list(_late(0.03, how, 6000, 2 * seed + 1)))
                watch.clear()
                after.append(
                    next((i / 10 for i, b in enumerate(_late(share, how, 9000, 2 * seed + 2)) if _spoke(watch, b)), np.inf)
                )
            delays[share] = [f"{sorted(after)[round(q * (runs - 1))]:.3g}" for q in (0.5, 0.95)]
        shown = ", ".join(f"{100 * share:g} %: {' / '.join(cell)}" for share, cell in delays.items())
        print(f"{how}: {found} alarms in {n} batches with 5 % late; noticed after s, median / 95 %: {shown}", flush=True)


def _alarms(watch: PromiseWatch | ServiceWatch, batches: Iterator[MeasuredBatch]) -> int:
    """How often it speaks, if it sees a hundred at a time."""
    found = 0
    while some := list(islice(batches, 100)):
        watch.see(some)
        if watch.alarm is not None:
            found += 1
            watch.clear()
    return found


def _spoke(watch: PromiseWatch | ServiceWatch, batch: MeasuredBatch) -> bool:
    watch.see([batch])
    return watch.alarm is not None


def _late(share: float, how: str, n: int, seed: int) -> Iterator[MeasuredBatch]:
    """Batches of which a share of the requests is late."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, n)
    run = 10 if how.endswith("row") else 1
    late = np.repeat(rng.random(n // run + 1) < share, run)[:n]
    each = rng.random((n, 8)) < share
    for i, size in enumerate(sizes.tolist()):
        lateness = each[i, :size] if how.startswith("each") else [late[i]] * size
        latencies = tuple(0.3 if one else 0.1 for one in lateness)
        yield MeasuredBatch(i / 10, "", 0, "f", "", size, 0.1, np.nan, np.nan, False, 0, latencies)


def service(runs: int) -> None:
    """``ServiceWatch``: batches of 1 to 8."""
    print("ServiceWatch, batches of 1 to 8")
    for scv in (0.0025, 0.01, 0.04, 0.1):
        rng = np.random.default_rng(0)
        sample = rng.gamma(1 / scv, scv, 400)
        points = [_point(size, sample) for size in (1, 2, 4, 8)]
        profile = ServiceProfile(function="f-512", points=points)
        for slow in (0.0, 0.02):
            n = 1_000_000
            found = _alarms(ServiceWatch(profile), _batches(scv, 1.0, slow, n, 1))
            told = [f"x{factor:.3g} {_slow_by(factor, profile, scv, slow, runs)}" for factor in (1.25, 1.5, 2.0, 1 / 1.5)]
            how = f"scv {scv:g}, {100 * slow:g} % of the batches ten times as long"
            print(f"{how}: {found} alarms in {n}; noticed after batches: {', '.join(told)}", flush=True)


def _slow_by(factor: float, profile: ServiceProfile, scv: float, slow: float, runs: int) -> str:
    after = []
    for seed in range(runs):
        watch = ServiceWatch(profile)
        watch.see(list(_batches(scv, 1.0, slow, 1000, 2 * seed)))
        watch.clear()
        changed = _batches(scv, factor, slow, 2000, 2 * seed + 1)
        after.append(next((i + 1 for i, batch in enumerate(changed) if _spoke(watch, batch)), np.inf))
    return f"{sorted(after)[runs // 2]:g} / {sorted(after)[round(0.95 * (runs - 1))]:g}"


def _point(size: int, sample: Array) -> ProfilePoint:
    mean = 0.01 + 0.004 * size
    time = ServiceTime(mean, [(q, x * mean) for q, x in quantile_points((sample / sample.mean()).tolist())], len(sample))
    return ProfilePoint(512, size, time, mean, 0.002)


def _batches(scv: float, factor: float, slow: float, n: int, seed: int) -> Iterator[MeasuredBatch]:
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, n)
    seconds = factor * (0.01 + 0.004 * sizes) * rng.gamma(1 / scv, scv, n) * np.where(rng.random(n) < slow, 10.0, 1.0)
    overhead = 0.002 * rng.gamma(4.0, 0.25, n)
    for i in range(n):
        own = float(seconds[i])
        yield MeasuredBatch(i / 10, "", 0, "f-512", "", int(sizes[i]), own + float(overhead[i]), own, own, False, 0, ())


if __name__ == "__main__":
    main()
