"""What the rows come to."""

from __future__ import annotations

from collections.abc import Sequence

from .results import CONTROL, POLICIES, Row


def of(rows: Sequence[Row], load: str) -> list[Row]:
    """Those of one load, in the order of the policies."""
    return sorted((row for row in rows if row.load == load), key=lambda row: POLICIES.index(row.policy))


def loads(rows: Sequence[Row]) -> list[str]:
    """Their names."""
    return list(dict.fromkeys(row.load for row in rows))


def controlled(rows: Sequence[Row]) -> list[Row]:
    """What control did with each load."""
    return [row for row in rows if row.policy == CONTROL]


def static_of(rows: Sequence[Row], load: str) -> list[Row]:
    """What plans that stay did with a load."""
    return [row for row in of(rows, load) if row.policy.endswith("static")]


def over_static(rows: Sequence[Row], load: str) -> float:
    """Cost of control over that of the cheapest plan that stays, whether or not that kept the promise."""
    (mine,) = (row for row in controlled(rows) if row.load == load)
    return mine.cost / min(row.cost for row in static_of(rows, load))
