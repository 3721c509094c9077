"""Where a function of one number is least: Brent's method (Algorithms for Minimization without Derivatives, 1973, chapter 5).

The next point is the vertex of the parabola through the best three, where it falls inside of what is left and the steps shrink;
else the golden section of the longer side. Of a function with one minimum there it is found; of another a local one. To import
`scipy.optimize` for its own takes longer than a fit does.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign, inf, sqrt

from sluice.batching.errors import require

STEPS = 500
GOLDEN = (3 - sqrt(5)) / 2
ROUNDING = sqrt(2.2e-16)  # of a minimum: nearer than this the function is level


def find_minimum(function: Callable[[float], float], low: float, high: float, *, absolute: float) -> float:
    """Where ``function`` is least between ``low`` and ``high``, to within ``absolute`` and the half of its digits.

    Raises
    ------
    InvalidInput
        No such interval, or no number > 0.
    """
    require(-inf < low <= high < inf, "low, high", (low, high), "the ends of an interval")
    require(0 < absolute < inf, "absolute", absolute, "a number > 0")
    best = second = third = low + GOLDEN * (high - low)
    at_best = at_second = at_third = function(best)
    before = step = 0.0
    for _ in range(STEPS):
        middle, tolerance = (low + high) / 2, ROUNDING * abs(best) + absolute / 3
        if abs(best - middle) <= 2 * tolerance - (high - low) / 2:
            break
        vertex = None
        if abs(before) > tolerance:
            left, right = (best - second) * (at_best - at_third), (best - third) * (at_best - at_second)
            above, below = (best - third) * right - (best - second) * left, 2 * (right - left)
            above, below = (-above, below) if below > 0 else (above, -below)
            if abs(above) < abs(below * before / 2) and below * (low - best) < above < below * (high - best):
                vertex = above / below
        if vertex is not None:
            before, step = step, vertex
            if min(best + step - low, high - best - step) < 2 * tolerance:
                step = copysign(tolerance, middle - best)
        else:
            before = (high if best < middle else low) - best
            step = GOLDEN * before
        tried = best + (step if abs(step) >= tolerance else copysign(tolerance, step))
        at_tried = function(tried)
        if at_tried <= at_best:
            low, high = (best, high) if tried >= best else (low, best)
            third, second, best = second, best, tried
            at_third, at_second, at_best = at_second, at_best, at_tried
            continue
        low, high = (tried, high) if tried < best else (low, tried)
        if at_tried <= at_second or second == best:
            third, second, at_third, at_second = second, tried, at_second, at_tried
        elif at_tried <= at_third or third in (best, second):
            third, at_third = tried, at_tried
    return best
