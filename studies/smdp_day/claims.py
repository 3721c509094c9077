"""What the rows come to."""

from __future__ import annotations

from collections.abc import Sequence

from .results import CLAIRVOYANT, Row


def row_of(rows: Sequence[Row], policy: str) -> Row:
    """That of a policy."""
    return next(row for row in rows if row.policy == policy)


def over_clairvoyant(rows: Sequence[Row], policy: str) -> float:
    """Energy over that of the best table of each window, known beforehand."""
    return row_of(rows, policy).joules / row_of(rows, CLAIRVOYANT).joules


def spared(rows: Sequence[Row], policy: str, other: str) -> float:
    """The part of another policy's energy that a policy spares."""
    return 1 - row_of(rows, policy).joules / row_of(rows, other).joules
