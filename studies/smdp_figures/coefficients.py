"""The coefficients behind the printed ones: the papers computed with more digits than they print, and other numbers show these."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product

import numpy as np

from .servers import PRINTED, Server


@dataclass(frozen=True)
class Stated:
    """A printed number that is ``slopes * slope + intercepts * intercept``, rounded to ``digits`` decimals."""

    what: str
    slopes: float
    intercepts: float
    value: float
    digits: int

    def by(self, slope: float, intercept: float) -> float:
        """What it would be, not rounded."""
        return self.slopes * slope + self.intercepts * intercept


PAPER_LENGTHS = (
    Stated("slope of l, ms", 1, 0, 0.3051, 4),
    Stated("intercept of l, ms", 0, 1, 1.0524, 4),
    Stated("mean of l(1) ... l(8): the service time of Case 2, ms", 4.5, 1, 2.4252, 4),
    Stated("l(8) / 2: the service time of Case 3, ms", 4, 0.5, 1.7465, 4),
    Stated("mean of l(1) ... l(32): the service time of figure 7, ms", 16.5, 1, 6.0859, 4),
    Stated("160 waiting for ever at load 0.5, 10 l(32): first row of Table III", 320, 10, 108.14, 2),
)


def corners() -> list[tuple[float, float]]:
    """Corners of the (slope, intercept) with which every printed number comes out as printed."""
    edges = [(s.slopes, s.intercepts, s.value + side * 0.5 * 10**-s.digits) for s in PAPER_LENGTHS for side in (-1, 1)]
    found = set()
    for (a, b, c), (d, e, f) in combinations(edges, 2):
        determinant = a * e - b * d
        if abs(determinant) < 1e-12:
            continue
        corner = (c * e - b * f) / determinant, (a * f - c * d) / determinant
        if all(abs(s.by(*corner) - s.value) <= 0.5 * 10**-s.digits + 1e-9 for s in PAPER_LENGTHS):
            found.add(corner)
    return sorted(found)


def refined() -> Server:
    """In the middle of what the printed numbers allow."""
    slope, intercept = np.mean(corners(), axis=0)
    return Server(float(slope), float(intercept))


def allowed() -> list[Server]:
    """The extremes of what the printed numbers allow, the energies within their own rounding."""
    sides = list(product((-5e-4, 5e-4), repeat=2))
    return [Server(a, b, PRINTED.energy_slope + c, PRINTED.energy_intercept + d) for a, b in corners() for c, d in sides]
