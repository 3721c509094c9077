"""Fits of arrivals: MMPP(2) from 10^5 arrivals against plain EM, and `auto` on traces.

Traces beside the example are named as in ``python -m benchmarks arrival_fits FILE...``.

The reference is Baum and Welch's EM as the textbook has it, in plain Python, one start, stopped where an iteration gains less than
1e-3 nats. Parameters are held against the estimate that sees the hidden phases: events over time spent, per phase. One core;
the first fit, which compiles or loads compiled code, is not counted.
"""

from __future__ import annotations

import argparse
import math
import resource
import statistics
import time
import tracemalloc
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.smoke import usually
from benchmarks.told import existing
from sluice.optimizer.arrivals.mmpp import mmpp2, mmpp2_rates
from sluice.optimizer.fits import fit_arrivals, fit_mmpp2
from sluice.optimizer.traces.trace import Trace, read_trace
from tests.optimizer.phases_seen import seen_with_phases

PROCESSES = {"A": (100.0, 10.0, 0.1, 0.05)} | usually({"B": (50.0, 5.0, 1.0, 2.0), "C": (400.0, 20.0, 2.0, 0.2)}, smoke={})
ARRIVALS = usually(100_000, smoke=1_000)
SEEDS = usually(5, smoke=1)
EXCERPT = Path(__file__).parents[1] / "examples/traces/azure_llm_code_excerpt.csv.gz"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser()
    parser.add_argument("traces", nargs="*", type=existing, help="files to fit beside the excerpt of the examples")
    traces = parser.parse_args().traces
    fit_arrivals(Trace(mmpp2(50, 5, 1, 2).sample(2000, np.random.default_rng(0))))
    console = Console()
    console.print(_known_processes())
    console.print(_traces([str(EXCERPT), *traces]))


def _known_processes() -> Table:
    table = Table(title=f"MMPP(2) by likelihood from {ARRIVALS} arrivals, median and mean of {SEEDS} samples")
    for name in ("process", "seconds", "plain EM, s", "ratio", "error of l1, l2, w1, w2, %", "nats above plain EM", "peak MB"):
        table.add_column(name, justify="left" if name == "process" else "right")
    for name, rates in PROCESSES.items():
        seconds, errors, peaks = [], [], []
        for seed in range(SEEDS):
            gaps, complete = seen_with_phases(rates, ARRIVALS, np.random.default_rng(seed))
            began = time.perf_counter()
            fit = fit_mmpp2(gaps)
            seconds.append(time.perf_counter() - began)
            errors.append(100 * np.abs(np.array(mmpp2_rates(fit.arrivals())) / complete - 1))
            tracemalloc.start()
            fit_mmpp2(gaps)
            peaks.append(tracemalloc.get_traced_memory()[1] / 2**20)
            tracemalloc.stop()
        began = time.perf_counter()
        reference = plain_em(gaps.tolist())
        plain = time.perf_counter() - began
        ours = statistics.median(seconds)
        table.add_row(
            name,
            f"{ours:.3f}",
            f"{plain:.1f}",
            f"{plain / ours:.0f}",
            ", ".join(f"{error:.2f}" for error in np.mean(errors, axis=0)),
            f"{open_log_likelihood(gaps.tolist(), fit.means.tolist(), fit.transitions.tolist()) - reference:+.4f}",
            f"{max(peaks):.0f}",
        )
    return table


def _traces(files: list[str]) -> Table:
    """``n`` gaps (s) of an MMPP(2), and its four rates as they are estimated where the phases are seen."""
    columns: list[list[str]] = []
    for file in files:
        trace = read_trace(file)
        began, cpu = time.perf_counter(), time.process_time()
        fit = fit_arrivals(trace)
        seconds, cpu = time.perf_counter() - began, time.process_time() - cpu
        errors = fit.error
        assert errors is not None
        columns.append(
            [
                str(len(trace)),
                fit.best.name,
                str(fit.arrivals.n_phases),
                f"{seconds:.1f}",
                f"{cpu:.1f}",
                *(f"{100 * share:.2f}" for share in (errors.p95, errors.worst_p95, errors.area)),
                f"{resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f}",
            ]
        )
    title = "auto: waits predicted from the fit against batching the trace itself (B 4, 8, 16; two timeouts each)"
    names = ("arrivals", "fit", "phases", "seconds", "CPU s", "p95 error, %", "worst, %", "area, % of timeout", "peak MB")
    table = Table("", *(Path(file).name for file in files), title=title)
    for name, *row in zip(names, *columns, strict=True):
        table.add_row(name, *row)
    return table


def plain_em(gaps: list[float]) -> float:
    """Log-likelihood (nats) that plain EM for two states with exponential gaps ends with, start law stationary."""
    mean = sum(gaps) / len(gaps)
    means, moves = [0.3 * mean, 3 * mean], [[0.9, 0.1], [0.1, 0.9]]
    reached = -math.inf
    while True:
        forward, norms = _forward(gaps, means, moves)
        likelihood = sum(map(math.log, norms))
        if likelihood - reached < 1e-3:
            return likelihood
        reached = likelihood
        weights, sums, counts = [0.0, 0.0], [0.0, 0.0], [[0.0, 0.0], [0.0, 0.0]]
        follow = [1.0, 1.0]
        for t in range(len(gaps) - 1, -1, -1):
            for i in (0, 1):
                here = forward[t][i] * follow[i]
                weights[i] += here
                sums[i] += here * gaps[t]
            if t:
                ahead = [math.exp(-gaps[t] / means[j]) / means[j] * follow[j] / norms[t] for j in (0, 1)]
                for i in (0, 1):
                    for j in (0, 1):
                        counts[i][j] += forward[t - 1][i] * moves[i][j] * ahead[j]
                follow = [moves[i][0] * ahead[0] + moves[i][1] * ahead[1] for i in (0, 1)]
        means = [sums[i] / weights[i] for i in (0, 1)]
        moves = [[counts[i][j] / sum(counts[i]) for j in (0, 1)] for i in (0, 1)]


def open_log_likelihood(gaps: list[float], means: list[float], moves: list[list[float]]) -> float:
    """Nats of the sequence as it is, not closed to a circle, from the stationary state law."""
    return sum(map(math.log, _forward(gaps, means, moves)[1]))


def _forward(gaps: list[float], means: list[float], moves: list[list[float]]) -> tuple[list[tuple[float, float]], list[float]]:
    law = (moves[1][0] / (moves[0][1] + moves[1][0]), moves[0][1] / (moves[0][1] + moves[1][0]))
    forward, norms = [], []
    for gap in gaps:
        first = (law[0] * moves[0][0] + law[1] * moves[1][0]) * math.exp(-gap / means[0]) / means[0]
        second = (law[0] * moves[0][1] + law[1] * moves[1][1]) * math.exp(-gap / means[1]) / means[1]
        norm = first + second
        law = (first / norm, second / norm)
        forward.append(law)
        norms.append(norm)
    return forward, norms


if __name__ == "__main__":
    main()
