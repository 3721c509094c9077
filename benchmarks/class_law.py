"""Speed of the law of classes that share a table, beside a plain reference in the same run.

The reference integrates docs/model.md, (2.13), row by row by adaptive quadrature between the ends of the windows: what one writes
down first. Both answers are compared. One core, compiled code warm, CPU time, median of the runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import pairwise
from math import exp, lgamma, log

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.integrate import quad

from benchmarks.analysis import PERCENTILES, service, timed
from benchmarks.one_core import on_one_core
from benchmarks.smoke import usually
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.function.class_holds import shared_holds_law

HOLDS = np.linspace(0.2, 0.05, 31)
SLOWEST = 2.0  # s, the longest slack
RATE = 200.0  # requests/s of all


def reaching_by_quadrature(rates: Array, slacks: Array, holds: Array) -> Array:
    """``P(N >= n)``, (len(holds) + 1,)."""
    total = rates.sum()

    def density(t: float, n: int) -> float:
        windows = holds[n - 1] + slacks
        mean = float(rates @ np.minimum(t, windows))
        return float(rates[windows > t].sum()) * (exp((n - 1) * log(mean) - total * t - lgamma(n)) if t > 0 else float(n == 1))

    reached = [1.0]
    for n in range(1, len(holds) + 1):
        longest = (n + 8 * n**0.5 + 40) / total  # by then n more have surely come
        ends = np.unique(np.minimum(np.append(0.0, holds[n - 1] + slacks), longest)).tolist()
        reached.append(sum(quad(density, *span, (n,), epsabs=1e-13, epsrel=1e-11, limit=200)[0] for span in pairwise(ends)))
    return np.array(reached)


def sizes_of(classes: Sequence[ArrivalProcess], slacks: Sequence[float]) -> Array:
    """The sizes under every largest batch."""
    return shared_holds_law(classes, slacks, HOLDS).batch_size_pmf


def percentiles_of(classes: Sequence[ArrivalProcess], slacks: Sequence[float]) -> str:
    """Ask four percentiles of the first class and of the last; the method."""
    law, times = shared_holds_law(classes, slacks, HOLDS), service(1769, len(HOLDS) + 1, random=True)
    of_two = [law.latency(c, times) for c in (0, len(classes) - 1)]
    for latency in of_two:
        for percentile in PERCENTILES:
            latency.percentile(percentile)
    return of_two[0].method


def poisson_classes(console: Console) -> None:
    """The sizes of batches of Poisson classes."""
    table = Table(title=f"sizes of batches up to {len(HOLDS) + 1}, Poisson classes of {RATE:g}/s together")
    for name in ("classes", "ours", "quadrature", "ratio", "greatest difference"):
        table.add_column(name, justify="right")
    for n_classes in usually((1, 10, 100), smoke=(1, 10)):
        rng = np.random.default_rng(n_classes)
        rates, slacks = rng.dirichlet(np.ones(n_classes)) * RATE, np.sort(rng.uniform(0, SLOWEST, n_classes))
        slacks[0] = 0.0
        classes = [poisson(rate) for rate in rates]

        quick, pmf = timed(partial(sizes_of, classes, slacks.tolist()))
        slow, expected = timed(partial(reaching_by_quadrature, rates, slacks, HOLDS))
        difference = np.abs(np.cumsum(pmf[-1][::-1])[::-1] - expected).max()
        shown = (f"{1e3 * quick:.2f} ms", f"{1e3 * slow:.0f} ms", f"{slow / quick:.0f}", f"{difference:.0e}")
        table.add_row(str(n_classes), *shown)
    console.print(table)


def bursty_classes(console: Console) -> None:
    """Sizes, and four percentiles of two classes, of MMPP(2) classes."""
    table = Table(title=f"batches up to {len(HOLDS) + 1}, MMPP(2) classes, slacks up to {SLOWEST:g} s")
    for name in ("classes", "phases", "sizes", "and four percentiles of two classes", "method"):
        table.add_column(name, justify="right")
    for n_classes in usually((1, 2, 3, 4, 5), smoke=(1, 2)):
        classes = [mmpp2(60 * (c + 1), 10, 2, 1) for c in range(n_classes)]
        slacks = np.linspace(0, SLOWEST, n_classes).tolist()

        (quick, _), (all_of_it, method) = timed(partial(sizes_of, classes, slacks)), timed(partial(percentiles_of, classes, slacks))
        table.add_row(str(n_classes), str(2**n_classes), f"{1e3 * quick:.0f} ms", f"{1e3 * all_of_it:.0f} ms", method)
    console.print(table)


def main() -> None:
    """Measure in a process that has one core."""
    on_one_core("class_law", measured)


def measured() -> None:
    """Print all tables."""
    terminal = Console()
    poisson_classes(terminal)
    bursty_classes(terminal)


if __name__ == "__main__":
    main()
