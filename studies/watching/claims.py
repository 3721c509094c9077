"""What the figures come to."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.change_tests import Cell

from .computation import HOURS

AFTER = f"{HOURS} hours after"


def rows_of(cells: Sequence[Cell], table: str) -> dict[str, dict[str, str]]:
    """By row and column."""
    rows: dict[str, dict[str, str]] = {}
    for cell in cells:
        if cell.table == table:
            rows.setdefault(cell.row, {})[cell.column] = cell.value
    return rows


def alarms(cells: Sequence[Cell], table: str, column: str) -> int:
    """Of all rows of a table together."""
    return sum(int(row[column].partition(" ")[0]) for row in rows_of(cells, table).values())


def median(value: str) -> float:
    """Of what stands as median and 95 %."""
    return float(value.partition(",")[0])
