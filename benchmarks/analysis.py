"""Speed of the exact latency law and of the search, beside a plain reference in the same run.

The reference computes docs/model.md, (2.1)-(2.6), for one setting at a time by ``scipy.linalg.expm`` of the dense block matrix of
BATCH, eq. (11), at the moments that are needed: what one writes down first. Both answers are compared before any ratio is printed.
One core, compiled code warm, CPU time, median of the runs.
"""

from __future__ import annotations

import resource
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.linalg import expm

from benchmarks.one_core import on_one_core
from benchmarks.smoke import usually
from sluice.batching.documents import Slo
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.counting import CountingProcess
from sluice.optimizer.arrivals.map import ArrivalProcess, stationary_distribution
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.function.waiting_time import SizeOrTimeout
from sluice.optimizer.recommend.search import Search
from sluice.optimizer.service.times import ServiceTimes

R = TypeVar("R")

RUNS = usually(5, smoke=1)
ARRIVALS = mmpp2(400, 20, 2, 0.2)
LATENCY = 0.2
SLO = Slo(LATENCY, 95.0)
BATCH_SIZE, TIMEOUT = 32, 0.15
LARGEST, MEMORY_SIZES = usually(64, smoke=16), np.linspace(128, 10240, usually(46, smoke=6)).astype(int)
TIMEOUTS = np.linspace(0, 2 * LATENCY, 65)[1:]
SUBSET = tuple((batch_size, i) for batch_size in range(8, LARGEST + 1, 8) for i in (15, 31))  # and the index of the timeout
PERCENTILES = (50, 90, 95, 99)
SHAPE = np.array([0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.8])  # of the mean service time
LEVELS = np.array([0, 0.1, 0.5, 0.9, 0.95, 0.99, 1])


def service(memory_mb: int, batch_size: int, random: bool) -> ServiceTimes:
    """6 + b ms at 1769 MB, slower with less memory; deterministic or by seven quantile points."""
    mean = (0.006 + 0.001 * np.arange(1.0, batch_size + 1)) * max(1769 / memory_mb, 0.2)
    levels, shape = (LEVELS, SHAPE) if random else (np.zeros(1), np.ones(1))
    return ServiceTimes(int(memory_mb), mean[:, None] * shape, np.zeros(batch_size), mean, levels)


# --- the reference


def counts_by_expm(arrivals: ArrivalProcess, n_counts: int, seconds: float) -> tuple[Array, Array]:
    """``C_k`` at a moment and its integral up to it, each (n_counts, n_phases, n_phases), by one dense exponential."""
    n = arrivals.n_phases
    generator = np.kron(np.eye(n_counts), arrivals.D0) + np.kron(np.eye(n_counts, k=1), arrivals.D1)
    rows = expm(generator * seconds)[:n]
    integral = np.linalg.solve(generator.T, (rows - np.eye(n, n * n_counts)).T).T
    return rows.reshape(n, n_counts, n).transpose(1, 0, 2), integral.reshape(n, n_counts, n).transpose(1, 0, 2)


def fraction_within_by_expm(arrivals: ArrivalProcess, response: Array, batch_size: int, timeout: float, latency: float) -> float:
    """Probability of a latency at most ``latency`` (s) where a batch of n takes ``response[n - 1]`` (s); batch_size >= 2."""
    B, ones = batch_size, np.ones(arrivals.n_phases)
    at_timeout, until = counts_by_expm(arrivals, B, timeout)
    kernel = (at_timeout[: B - 1].sum(axis=0) + until[B - 2] @ arrivals.D1) @ arrivals.to_next_arrival
    opening = stationary_distribution(kernel - np.eye(arrivals.n_phases))
    sizes = opening @ at_timeout @ ones
    sizes[-1] = 1 - sizes[:-1].sum()
    expected = 0.0
    for n in range(1, B + 1):
        wait = latency - response[n - 1]
        if wait >= timeout:
            expected += n * sizes[n - 1]
        elif wait >= 0:
            before, passed = (opening @ x for x in counts_by_expm(arrivals, B, timeout - wait))
            exactly = counts_by_expm(arrivals, B, wait)[0] @ ones
            if n < B:
                expected += sum((n - i) * before[i - 1] @ exactly[n - i] for i in range(1, n))
            else:
                at_least = 1 - np.cumsum(exactly, axis=0) + exactly
                expected += sizes[-1] + opening @ at_least[B - 1]
                expected += sum(passed[k] @ arrivals.D1 @ at_least[B - 2 - k] for k in range(B - 2))
                expected += sum((B - 1 - i) * before[i - 1] @ at_least[B - i] for i in range(1, B))
    return float(expected / (sizes @ np.arange(1, B + 1)))


# --- what is measured


def one_setting(console: Console) -> None:
    """Counts, and the SLO's fraction, of one setting."""
    response = service(1769, BATCH_SIZE, random=False).response
    once, often = np.array([TIMEOUT]), np.linspace(0, TIMEOUT, 64)

    def counts(times: Array) -> Array:
        return CountingProcess(ARRIVALS, BATCH_SIZE, TIMEOUT).matrices(times)

    def counts_plainly(times: Array) -> Array:
        return np.array([counts_by_expm(ARRIVALS, BATCH_SIZE, seconds)[0] for seconds in times])

    def fraction() -> Array:
        law = SizeOrTimeout(ARRIVALS, BATCH_SIZE, TIMEOUT)
        return np.asarray(law.fraction_within(response[None], np.zeros(1), np.array([LATENCY / 2]))[0, -1])

    def fraction_plainly() -> Array:
        return np.array([fraction_within_by_expm(ARRIVALS, response[:, 0], BATCH_SIZE, TIMEOUT, LATENCY / 2)])

    table = Table(title=f"MMPP(2), B = {BATCH_SIZE}, T = {1e3 * TIMEOUT:g} ms")
    for name in ("", "ours", "dense expm", "ratio", "greatest difference"):
        table.add_column(name, justify="right" if name else "left")
    pairs: list[tuple[str, Callable[[], Array], Callable[[], Array]]] = [
        ("counts at one moment", lambda: counts(once), lambda: counts_plainly(once)),
        (f"counts at {len(often)} moments", lambda: counts(often), lambda: counts_plainly(often)),
        (f"share within {1e3 * LATENCY / 2:g} ms", fraction, fraction_plainly),
    ]
    for name, ours, reference in pairs:
        (quick, answer), (slow, expected) = timed(ours), timed(reference)
        difference = float(np.abs(answer - expected).max())
        table.add_row(name, f"{1e3 * quick:.2f} ms", f"{1e3 * slow:.2f} ms", f"{slow / quick:.1f}", f"{difference:.0e}")
    console.print(table)


def predictions(console: Console) -> None:
    """Four percentiles of one setting."""
    table = Table(title="p50, p90, p95 and p99 of that setting")
    table.add_column("service")
    table.add_column("ms to predict", justify="right")
    for name, times in (
        ("deterministic", service(1769, BATCH_SIZE, random=False)),
        (f"{len(LEVELS)} quantile points", service(1769, BATCH_SIZE, random=True)),
    ):
        seconds, _ = timed(partial(percentiles, times))
        table.add_row(name, f"{1e3 * seconds:.1f}")
    console.print(table)


def percentiles(times: ServiceTimes) -> list[float]:
    """The percentiles, s."""
    prediction = predict_latency(ARRIVALS, times, BATCH_SIZE, TIMEOUT)
    return [prediction.percentile(p) for p in PERCENTILES]


def whole_search(console: Console) -> None:
    """The search over the grid, and what the reference would take for it."""
    n_settings = len(MEMORY_SIZES) * LARGEST * len(TIMEOUTS)
    table = Table(title=f"{len(MEMORY_SIZES)} memory sizes x {LARGEST} batch sizes x {len(TIMEOUTS)} timeouts, MMPP(2)")
    for name in ("settings", "service", "s", "settings/s", "ratio", "difference"):
        table.add_column(name, justify="left" if name in ("settings", "service") else "right")
    before = resident()
    every = n_settings + 1
    quick, _ = timed(lambda: landscape(random=True, n_best=6))
    full, _ = timed(lambda: landscape(random=True, n_best=every))
    plain, margins = timed(lambda: landscape(random=False, n_best=every))
    after = resident()
    slow, difference = 0.0, 0.0
    for batch_size, i in SUBSET:
        response = service(MEMORY_SIZES[-1], batch_size, random=False).response[:, 0]
        start = time.process_time()
        expected = fraction_within_by_expm(ARRIVALS, response, batch_size, float(TIMEOUTS[i]), LATENCY)
        slow += time.process_time() - start
        difference = max(difference, abs(float(margins[i, -1, batch_size - 1]) + SLO.quantile - expected))
    slow *= n_settings / len(SUBSET)
    points = f"{len(LEVELS)} points"
    for name, law, seconds in (
        ("the best", points, quick),
        ("all", points, full),
        ("all", "deterministic", plain),
        ("all, by expm", "deterministic", slow),
    ):
        ratio, agreement = (f"{slow / plain:.0f}", f"{difference:.0e}") if seconds is plain else ("", "")
        table.add_row(name, law, f"{seconds:.3g}", f"{n_settings / seconds:.0f}", ratio, agreement)
    console.print(table)
    console.print(
        f"'The best' visits what can be the best setting of one of the six best memory sizes, of {n_settings} settings in all. "
        "Dense expm takes one setting after the other; "
        f"extrapolated from {len(SUBSET)} of them (batch sizes 8, 16, ... {LARGEST} at two timeouts). "
        f"Peak memory: {before:.0f} MB before the searches, {after:.0f} MB with them."
    )


def landscape(random: bool, n_best: int) -> Array:
    """Margins of the promise at every timeout, memory size and batch size."""
    functions = [service(memory_mb, LARGEST, random) for memory_mb in MEMORY_SIZES]
    compute = np.array([function.billed_duration * function.memory_mb for function in functions])
    search = Search(ARRIVALS, functions, compute, np.zeros(len(functions)), float(TIMEOUTS[-1]))
    land, _ = search.landscape([SLO], TIMEOUTS, n_best=n_best, refine=False)
    return land.margin


def timed(run: Callable[[], R]) -> tuple[float, R]:
    """Median CPU seconds of a run, after one to warm up, and its result."""
    result, seconds = run(), []
    for _ in range(RUNS):
        start = time.process_time()
        run()
        seconds.append(time.process_time() - start)
    return statistics.median(seconds), result


def resident() -> float:
    """Peak resident MB of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    """Measure in a process that has one core."""
    on_one_core("analysis", measured)


def measured() -> None:
    """Print all tables."""
    terminal = Console()
    one_setting(terminal)
    predictions(terminal)
    whole_search(terminal)


if __name__ == "__main__":
    main()
