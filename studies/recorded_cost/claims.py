"""What the rows come to: how far what is said is from what is billed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from .results import Row

NEAR = 0.03  # of what is billed
Pair = Callable[[Row], tuple[float, float]]


def fit(row: Row) -> tuple[float, float]:
    """Said by the fitted process, and billed on the whole trace."""
    return row.fit_said, row.fit_billed


def record(row: Row) -> tuple[float, float]:
    """Said on the record, and billed on the whole trace."""
    return row.said, row.billed


def half_fit(row: Row) -> tuple[float, float]:
    """Said by the process that was fitted to the first half, and billed on the second."""
    return row.half_fit_said, row.half_fit_billed


def half_record(row: Row) -> tuple[float, float]:
    """Said on the record of the first half, and billed on the second."""
    return row.half_said, row.half_billed


def off(pair: tuple[float, float]) -> float:
    """The part by which what is said is more than what is billed."""
    said, billed = pair
    return said / billed - 1


def near(rows: Sequence[Row], of: Pair) -> int:
    """Cells in which what is said is within ``NEAR`` of what is billed."""
    return sum(abs(off(of(row))) <= NEAR for row in rows)


def between(rows: Sequence[Row]) -> int:
    """Cells in which the second half is billed between the ends that the record of the first says."""
    return sum(row.again_low <= row.half_billed <= row.again_high for row in rows)


def width(rows: Sequence[Row]) -> float:
    """Half of the part of what is said that is between these ends, in the median."""
    return median((row.again_high - row.again_low) / 2 / row.half_said for row in rows)


def farthest(rows: Sequence[Row], of: Pair) -> float:
    """The largest part by which what is said is off, with its sign."""
    return max((off(of(row)) for row in rows), key=abs)


def cheaper(rows: Sequence[Row]) -> float:
    """The mean part by which the second half costs less under what the record of the first chose than under what its fit did."""
    return sum(1 - row.half_billed / row.half_fit_billed for row in rows) / len(rows)


def other_choice(rows: Sequence[Row]) -> list[Row]:
    """Those in which the record of the first half chose another plan than its fit, as far as the second half can tell."""
    return [row for row in rows if abs(row.half_billed / row.half_fit_billed - 1) > 1e-6]
