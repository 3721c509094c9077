"""The figures of the tests."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.change_tests import TABLES, Cell, cells

HOURS = 6  # of steady arrivals, after the first
RUNS = 12  # of a change


def compute(traces: Sequence[str]) -> list[Cell]:
    """Everything."""
    return list(cells(TABLES, HOURS, RUNS, traces))
