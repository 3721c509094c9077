"""What the rows come to: the most that a plan costs beyond the cheapest table of a rate."""

from __future__ import annotations

from collections.abc import Sequence

from .results import Row


def of(rows: Sequence[Row], latency: float, made_for: str) -> list[Row]:
    """Those of one plan, from the slowest to the fastest arrivals."""
    return [row for row in rows if (row.latency, row.made_for) == (latency, made_for)]


def worst(rows: Sequence[Row], made_for: str) -> float:
    """The largest ratio of cost to the least, over rates and SLOs."""
    return max(row.ratio for row in rows if row.made_for == made_for)


def best(rows: Sequence[Row], made_for: str) -> float:
    """The smallest."""
    return min(row.ratio for row in rows if row.made_for == made_for)
