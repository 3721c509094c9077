"""What the measurements come to: the power that time grows as, and the time at the base setting."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .computation import BASE
from .results import Point


def exponent(points: Sequence[Point]) -> float:
    """Slope of log time over log parameter through the last three points."""
    x, y = np.log([(point.value, point.seconds) for point in points[-3:]]).T
    return float(np.polyfit(x, y, 1)[0])


def at_base(points: Sequence[Point], task: str) -> Point:
    """The task at the base setting: the quickest of the times it was measured there."""
    base = [p for p in points if p.task == task and p.value == getattr(BASE, p.parameter)]
    return min(base, key=lambda point: point.seconds)
