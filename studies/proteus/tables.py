"""Runs and claims as tables of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from ..claims import Claim, claimed
from ..markdown import table
from .results import Run, Study


def said(claims: Iterable[Claim]) -> str:
    """Claims as a table."""
    return claimed(claims, spaced=True)


def share(value: float) -> str:
    """A share of 1 as a percentage with as many digits as tell it from none."""
    return "0" if value < 5e-6 else f"{100 * value:.3f}" if value < 0.001 else f"{100 * value:.2f}"


COLUMNS: dict[str, Callable[[Run], str]] = {
    "violations, %": lambda run: share(run.violations),
    "effective accuracy, %": lambda run: f"{run.accuracy:.2f}",
    "over all requests, %": lambda run: f"{run.accuracy * (1 - run.violations):.2f}",
    "largest drop, points": lambda run: f"{run.drop:.2f}",
    "in time, 1/s": lambda run: f"{run.throughput:.1f}",
    "never answered, %": lambda run: share(run.unanswered),
    "devices busy, %": lambda run: "" if math.isnan(run.utilisation) else f"{100 * run.utilisation:.0f}",
    "plans": lambda run: str(run.plans or ""),
    "loads": lambda run: str(run.swaps or "") if run.plans else "",
}
FEW = ("violations, %", "effective accuracy, %", "over all requests, %", "largest drop, points")


def runs_table(runs: Iterable[Run], columns: Iterable[str] = COLUMNS, first: str = "") -> str:
    """Runs, one a row."""
    columns = list(columns)
    rows = ([run.system, *(COLUMNS[column](run) for column in columns)] for run in runs)
    return table([first, *columns], rows, spaced=True)


def by_case(study: Study, part: str, first: str, measures: Sequence[str] = FEW[:2]) -> str:
    """A part's cases by its systems, the measures in one cell."""
    systems = study.systems(part)
    rows = []
    for case in study.cases(part):
        found = [study.run(part, case, system) for system in systems]
        rows.append([case, *("" if run is None else ", ".join(COLUMNS[m](run) for m in measures) for run in found)])
    return table([first, *systems], rows, spaced=True)
