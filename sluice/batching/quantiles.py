"""The quantiles that a profile gives of measured durations.

They are given at those of ``LEVELS`` beyond which at least one of the sample is expected, n min(q, 1 - q) >= 1: with 20 values from
5 % to 95 %, with 100 from 1 % to 99 %. They are interpolated between order statistics, median-unbiased (Hyndman & Fan 1996, type
8).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

LEVELS = (0.01, 0.05, 0.10, 0.25, 0.50, 0.75, 0.90, 0.95, 0.99)


def quantile_points(durations: Sequence[float]) -> list[tuple[float, float]]:
    """Points ``(q, duration)`` of the quantile function of a sample, at those of ``LEVELS`` that its size allows; rising."""
    ordered = sorted(durations)
    n = len(ordered)
    return [(q, _quantile(ordered, q)) for q in LEVELS if n * min(q, 1 - q) >= 1 - 1e-9]


def _quantile(ordered: Sequence[float], q: float) -> float:
    position = min(max((len(ordered) + 1 / 3) * q + 1 / 3, 1.0), float(len(ordered)))
    below = math.floor(position)
    low = ordered[below - 1]
    high = ordered[min(below, len(ordered) - 1)]
    return low + (position - below) * (high - low)
