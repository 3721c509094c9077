"""What the rows come to."""

from __future__ import annotations

from collections.abc import Sequence

from .computation import LOAD, RATIO
from .results import Row


def by_load(rows: Sequence[Row], energy: float) -> list[Row]:
    """At the ratio of weights that stands while the load varies, from the least load on."""
    return sorted((row for row in rows if (row.ratio, row.energy) == (RATIO, energy)), key=lambda row: row.load)


def by_ratio(rows: Sequence[Row], energy: float) -> list[Row]:
    """At the load that stands while the ratio of weights varies, from the least ratio on."""
    return sorted((row for row in rows if (row.load, row.energy) == (LOAD, energy)), key=lambda row: row.ratio)


def most_saved(rows: Sequence[Row], energy: float) -> Row:
    """The setting in which most of the cost in order of arrival is saved."""
    return max((row for row in rows if row.energy == energy), key=lambda row: row.saved)
