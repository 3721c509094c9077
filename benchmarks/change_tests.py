"""How often the sequential tests of ``optimizer.tuning`` speak while nothing changes, and how soon after a change.

``python -m benchmarks change_tests [rate] [burstiness] [promise] [service] [--hours 6] [--runs 12] [--traces FILE ...]``

Everything is drawn in virtual time (``studies/watching`` makes docs/watching.md of it). A trace is made steady, its burstiness
kept, by drawing stretches of it in random order.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
from scipy.special import polygamma

from benchmarks.smoke import usually
from benchmarks.told import count, existing
from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.measured import MeasuredBatch
from sluice.batching.quantiles import quantile_points
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.arrivals.superposition import superposed
from sluice.optimizer.traces.trace import Trace, read_trace
from sluice.optimizer.tuning.candidates import fitted
from sluice.optimizer.tuning.changes import AFTERWARDS, LEAST_RATIO, Alarm, BurstinessTest, RateTest
from sluice.optimizer.tuning.drift import RUN_LENGTH, ServiceWatch
from sluice.optimizer.tuning.promise import PromiseWatch
from sluice.optimizer.tuning.recent_arrivals import RecentArrivals
from sluice.optimizer.tuning.setup import TuningSettings

HOUR = 3600.0
PIECE = 1 << 18  # arrivals drawn at a time
STRETCHES = 64  # of a trace
FACTORS = (1.25, 1.5, 3.0, 1 / 1.25, 1 / 1.5, 1 / 3)
CENSORED = 600.0  # s after which a change counts as not noticed
FITTED_FROM = 200  # arrivals
PROCESSES: dict[str, ArrivalProcess] = {
    "Poisson, 50/s": poisson(50.0),
    "Poisson, 2/s": poisson(2.0),
    "80 and 20/s, 1 s each": mmpp2(80.0, 20.0, 1.0, 1.0),
    "80 and 40/s, 10 s each": mmpp2(80.0, 40.0, 0.1, 0.1),
    "200/s for 1 s, 20/s for 5 s": mmpp2(200.0, 20.0, 1.0, 0.2),
    "500/s for 0.1 s, 10/s for 1 s": mmpp2(500.0, 10.0, 10.0, 1.0),
    "100/s for 60 s, 25/s for 120 s": mmpp2(100.0, 25.0, 1 / 60, 1 / 120),
    "bursts of 1 s, 10 s and 100 s together": superposed(
        [mmpp2(40.0, 5.0, 1.0, 1.0), mmpp2(25.0, 10.0, 0.1, 0.1), mmpp2(20.0, 15.0, 0.01, 0.01)]
    ),
}
LATE_BATCHES, SERVED_BATCHES = usually((500_000, 300_000), smoke=(2_000, 2_000))  # at which nothing changes
SCVS = (0.0025, 0.01, 0.04, 0.1, 0.2, 0.5)
RATIOS = (1.25, 1.5, 2.0, 3.0, 1 / 1.5)
OUTLIERS = 0.02  # batches that take longer: what is more is no outlier
HOW_LATE = ("each request by itself", "all of a batch together", "ten batches in a row, all late")
Times = Iterator[Array]


@dataclass(frozen=True)
class Cell:
    """A figure: of which table, in which row and column, and what it is."""

    table: str
    row: str
    column: str
    value: str


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("tests", nargs="*")
    parser.add_argument("--hours", type=count, default=usually(6, smoke=1))
    parser.add_argument("--runs", type=count, default=usually(12, smoke=1))
    parser.add_argument("--traces", nargs="*", type=existing, default=["examples/traces/azure_llm_code_excerpt.csv.gz"])
    options = parser.parse_args()
    for unknown in set(options.tests).difference(TABLES):
        parser.error(f"argument tests: {unknown!r} is not allowed; allowed: {', '.join(TABLES)}")
    table = row = ""
    for cell in cells(options.tests or usually(TABLES, smoke=("service",)), options.hours, options.runs, options.traces):
        if cell.table != table:
            print(f"\n{cell.table}", end="")
        if (cell.table, cell.row) != (table, row):
            print(f"\n  {cell.row:44}", end="")
        print(f"  {cell.column}: {cell.value}", end="", flush=True)
        table, row = cell.table, cell.row
    print()


def cells(tests: Sequence[str], hours: int, runs: int, traces: Sequence[str]) -> Iterator[Cell]:
    """The figures of these tests, table by table; so many hours of steady arrivals after the first, and runs of a change."""
    found = {name: read_trace(file) for file in traces for name in [f"trace {file.rpartition('/')[2].partition('.')[0]}"]}
    of = {
        "rate": lambda: rate(hours, runs, found),
        "burstiness": lambda: burstiness(hours, runs, found),
        "promise": lambda: promise(runs),
        "service": lambda: service(runs),
    }
    for name in tests:
        yield from of[name]()


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


def _fitting(test: RateTest, pieces: Times, until: float) -> Iterator[Alarm]:
    """The same of a test that is told a fit as the tuner tells it: when there is enough to fit to, and after each alarm."""
    recent = RecentArrivals(TuningSettings.memory, TuningSettings.max_requests)

    def remembered() -> Times:
        told = False
        for piece in pieces:
            for part in np.split(piece, range(FITTED_FROM, len(piece), FITTED_FROM)):
                recent.see(part)
                yield part
                if not told and len(recent) >= FITTED_FROM:
                    test.expect(fitted(recent.times()))
                    told = True

    for alarm in watch(test, remembered(), until):
        yield alarm
        if len(recent) >= FITTED_FROM:
            test.expect(fitted(recent.times()))


def _steady(table: str, make: Callable[[], RateTest | BurstinessTest], sources: dict[str, Source], hours: int) -> Iterator[Cell]:
    for name, source in sources.items():
        until = (hours + 1) * HOUR
        alarms = list(watch(make(), source(1), until))
        first = sum(alarm.at < HOUR for alarm in alarms)
        yield Cell(table, name, "first hour", f"{first}")
        if make is RateTest:
            test = RateTest()
            alarms = list(_fitting(test, source(1), until))
            told = sum(alarm.at < HOUR for alarm in alarms)
            yield Cell(table, name, "first hour, fits told", f"{told}")
            first = told
        yield Cell(table, name, f"{hours} hours after", f"{len(alarms) - first}")
        yield Cell(table, name, "thousand arrivals", _short(sum(len(piece) for piece in _until(source(1), until)) / 1000))


def _until(pieces: Times, until: float) -> Times:
    for piece in pieces:
        yield piece[piece <= until]
        if len(piece) and piece[-1] > until:
            return


def _sources(traces: dict[str, Trace]) -> dict[str, Source]:
    sources: dict[str, Source] = {name: partial(drawn, process) for name, process in PROCESSES.items()}
    return sources | {f"{name}, stretches": partial(steady, trace) for name, trace in traces.items()}


def _noticed(test: RateTest | BurstinessTest, after: ArrivalProcess, runs: int, step: float) -> str:
    delays = []
    for seed in range(runs):
        alarms = watch(deepcopy(test), drawn(after, 1000 + seed), HOUR + CENSORED, HOUR, step)
        delays.append(next((alarm.at - HOUR for alarm in alarms), np.inf))
    return _two(delays)


def _two(delays: list[float]) -> str:
    """Median and 95 %; a dash for what was not noticed."""
    ordered = sorted(delays)
    return ", ".join(_short(ordered[round(q * (len(ordered) - 1))]) for q in (0.5, 0.95)).replace("–, –", "–")


def _short(value: float) -> str:
    """Two digits, without an exponent."""
    return "–" if np.isinf(value) else f"{float(f'{value:.2g}'):g}"


def rate(hours: int, runs: int, traces: dict[str, Trace]) -> Iterator[Cell]:
    """``RateTest``."""
    yield from _steady("rate, steady", RateTest, _sources(traces), hours)
    for name, trace in traces.items():
        alarms = list(watch(RateTest(), iter([trace.times]), trace.duration))
        yield Cell("rate, as it came", name, "alarms", f"{len(alarms)}")
        yield Cell("rate, as it came", name, "false", f"{sum(_was_false(alarm, trace) for alarm in alarms)}")
        yield Cell("rate, as it came", name, "minutes", f"{trace.duration / 60:.0f}")
    for name, process in PROCESSES.items():
        test = RateTest(process)
        list(watch(test, drawn(process, 1), HOUR))
        yield Cell("rate, noticed", name, "I(10 s)", f"{float(dispersion_of_counts(process, 10.0)[0]):.3g}")
        for factor in FACTORS:
            yield Cell("rate, noticed", name, _times(factor), _noticed(test, _at_rate(process, factor), runs, 0.1))


def _was_false(alarm: Alarm, trace: Trace) -> bool:
    """Whether the rate of the two minutes after it is within a tenth of that of the two minutes before what it tells of."""
    until, since = min(alarm.at + AFTERWARDS, trace.duration), max(0.0, alarm.since - AFTERWARDS)
    before, _, after = np.diff(np.searchsorted(trace.times, [since, alarm.since, alarm.at, until])).tolist()
    ratio = after / max(until - alarm.at, 1.0) / max(before / max(alarm.since - since, 1.0), 1e-9)
    return bool(1 / LEAST_RATIO <= ratio <= LEAST_RATIO)


def _times(factor: float) -> str:
    return f"× {factor:g}" if factor >= 1 else f"÷ {1 / factor:g}"


def _at_rate(process: ArrivalProcess, factor: float) -> ArrivalProcess:
    """The same with each phase's rate times a factor: bursts come as often and last as long."""
    return ArrivalProcess(process.D0 - np.diag((factor - 1) * process.D1.sum(axis=1)), process.D1 * factor, process.model)


def burstiness(hours: int, runs: int, traces: dict[str, Trace]) -> Iterator[Cell]:
    """``BurstinessTest``, by counts of 1 s."""
    yield from _steady("burstiness, steady", BurstinessTest, _sources(traces), hours)
    for before, after in (
        ("Poisson, 50/s", "80 and 20/s, 1 s each"),
        ("80 and 20/s, 1 s each", "Poisson, 50/s"),
        ("Poisson, 50/s", "500/s for 0.1 s, 10/s for 1 s"),
        ("80 and 20/s, 1 s each", "200/s for 1 s, 20/s for 5 s"),
    ):
        test = BurstinessTest()
        list(watch(test, drawn(PROCESSES[before], 1), HOUR))
        index = [float(dispersion_of_counts(PROCESSES[name], 1.0)[0]) for name in (before, after)]
        row = f"{before}, then {after}"
        yield Cell("burstiness, noticed", row, "I(1 s)", f"{index[0]:.3g} to {index[1]:.3g}")
        yield Cell("burstiness, noticed", row, "seconds", _noticed(test, PROCESSES[after], runs, 1.0))


def promise(runs: int) -> Iterator[Cell]:
    """``PromiseWatch``: batches of up to 8, ten a second, p95 of 0.2 s."""
    slo = Slo(0.2, 95)
    for how in HOW_LATE:
        found = _alarms(PromiseWatch(slo), _late(0.05, how, LATE_BATCHES, 0))
        yield Cell("promise", how, "alarms", f"{found} in {LATE_BATCHES}")
        for share in (0.1, 0.2, 0.5):
            after = []
            for seed in range(runs):
                watch = PromiseWatch(slo)
                watch.see(list(_late(0.03, how, 6000, 2 * seed + 1)))
                watch.clear()
                batches = enumerate(_late(share, how, 3000, 2 * seed + 2))
                after.append(next((i / 10 for i, batch in batches if _spoke(watch, batch)), np.inf))
            yield Cell("promise", how, f"{100 * share:g} % late", _two(after))


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
    run = 10 if how.startswith("ten") else 1
    late = np.repeat(rng.random(n // run + 1) < share, run)[:n]
    each = rng.random((n, 8)) < share
    for i, size in enumerate(sizes.tolist()):
        lateness = each[i, :size] if how.startswith("each") else [late[i]] * size
        latencies = tuple(0.3 if one else 0.1 for one in lateness)
        yield MeasuredBatch(i / 10, "", 0, "f", "", size, 0.1, np.nan, np.nan, False, 0, latencies)


def service(runs: int) -> Iterator[Cell]:
    """``ServiceWatch``: batches of 1 to 8; also with one batch in fifty ten times as long; alarms alone with one in ten."""
    for slow, table in ((0.0, "service"), (OUTLIERS, "service, one in fifty ten times as long"), (0.1, "service, one in ten")):
        for scv in SCVS:
            rng = np.random.default_rng(0)
            sample = rng.gamma(1 / scv, scv, 400)
            profile = ServiceProfile(function="f-512", points=[_point(size, sample) for size in (1, 2, 4, 8)])
            found = _alarms(ServiceWatch(profile), _batches(scv, 1.0, slow, SERVED_BATCHES, 1))
            yield Cell(table, f"{scv:g}", "alarms", f"{found} in {SERVED_BATCHES}")
            if slow > OUTLIERS:
                continue
            for factor in RATIOS:
                yield Cell(table, f"{scv:g}", _times(factor), _slow_by(factor, profile, scv, slow, runs))
            yield Cell(table, f"{scv:g}", "least for × 1.5", _short(least_delay(1.5, scv)))


def least_delay(factor: float, scv: float) -> float:
    """Batches that no test with so few false alarms can do without in the mean (Lorden): of normal logarithms of that variance."""
    return float(np.log(RUN_LENGTH) * 2 * polygamma(1, 1 / scv) / np.log(factor) ** 2)


def _slow_by(factor: float, profile: ServiceProfile, scv: float, slow: float, runs: int) -> str:
    after = []
    for seed in range(runs):
        watch = ServiceWatch(profile)
        watch.see(list(_batches(scv, 1.0, slow, 1000, 2 * seed)))
        watch.clear()
        changed = _batches(scv, factor, slow, 2000, 2 * seed + 1, begin=1000)
        after.append(next((i + 1.0 for i, batch in enumerate(changed) if _spoke(watch, batch)), np.inf))
    return _two(after)


def _point(size: int, sample: Array) -> ProfilePoint:
    mean = 0.01 + 0.004 * size
    time = ServiceTime(mean, [(q, x * mean) for q, x in quantile_points((sample / sample.mean()).tolist())], len(sample))
    return ProfilePoint(512, size, time, mean, 0.002)


def _batches(scv: float, factor: float, slow: float, n: int, seed: int, begin: int = 0) -> Iterator[MeasuredBatch]:
    """One a second, none beside another; the first is that of number ``begin``."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 9, n)
    seconds = factor * (0.01 + 0.004 * sizes) * rng.gamma(1 / scv, scv, n) * np.where(rng.random(n) < slow, 10.0, 1.0)
    overhead = 0.002 * rng.gamma(4.0, 0.25, n)
    for i in range(n):
        own = float(seconds[i])
        yield MeasuredBatch(float(begin + i), "", 0, "f-512", "", int(sizes[i]), own + float(overhead[i]), own, own, False, 0, ())


TABLES = ("rate", "burstiness", "promise", "service")
Source = Callable[[int], Times]


if __name__ == "__main__":
    main()
