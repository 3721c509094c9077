"""Where a function crosses zero: Brent's method (Algorithms for Minimization without Derivatives, 1973, chapter 4).

A bracket is kept whose ends differ in sign. The next point is that of the inverse parabola through the last three, or of the secant
through two, where it falls well inside of the bracket and the steps shrink; else the middle. So it ends no later than bisection
squared, and mostly in a few steps. To import `scipy.optimize` for its own takes longer than most commands compute.

Among whole numbers the next is that of the secant through the last two, kept within the bracket, and each fourth is its middle, so
that it takes at most four times as many steps as bisection, and mostly half as many.
"""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, copysign

from sluice.batching.errors import NotConverged, require

STEPS = 200  # bisection alone takes 60 to the last bit


def find_root(function: Callable[[float], float], low: float, high: float, *, absolute: float, relative: float) -> float:
    """A zero of ``function`` between ``low`` and ``high``, where it differs in sign, to within ``absolute + relative * |zero|``.

    Raises
    ------
    InvalidInput
        The same sign at both ends.
    NotConverged
        More than ``STEPS`` steps.
    """
    last, best = low, high
    at_last, at_best = function(last), function(best)
    if at_last == 0 or at_best == 0:
        return last if at_last == 0 else best
    signs = f"{at_last:g} and {at_best:g}"
    require((at_last > 0) != (at_best > 0), "function at the ends", signs, "one above 0 and one below")
    other, at_other = last, at_last  # the end of the bracket beyond the zero, seen from the best point
    before = step = best - last
    for _ in range(STEPS):
        if at_last != 0 and (at_last > 0) != (at_best > 0):
            other, at_other = last, at_last
            before = step = best - last
        if abs(at_other) < abs(at_best):
            last, best, other = best, other, best
            at_last, at_best, at_other = at_best, at_other, at_best
        tolerance = (absolute + relative * abs(best)) / 2
        half = (other - best) / 2
        if at_best == 0 or abs(half) < tolerance:
            return best
        tried = (
            _tried(last, best, other, at_last, at_best, at_other)
            if abs(before) > tolerance and abs(at_best) < abs(at_last)
            else None
        )
        if tried is not None and 2 * abs(tried) < min(abs(before), 3 * abs(half) - tolerance):
            before, step = step, tried
        else:
            before = step = half
        last, at_last = best, at_best
        best += step if abs(step) > tolerance else copysign(tolerance, half)
        at_best = function(best)
    raise NotConverged(f"no root within {STEPS} steps", best=best, residual=at_best)


def find_step(function: Callable[[int], float], low: int, high: int) -> int:
    """The least whole number at which ``function`` is above 0, where it is not at ``low``, is at ``high``, and crosses once.

    Raises
    ------
    InvalidInput
        Other signs at the ends.
    """
    last, best = low, high
    at_last, at_best = function(last), function(best)
    require(at_last <= 0 < at_best, "function at the ends", f"{at_last:g} and {at_best:g}", "one not above 0 and one above")
    steps = 0
    while high - low > 1:
        steps += 1
        tried = (low + high) // 2
        if steps % 4 and at_last != at_best:
            crossed = best - at_best * ((best - last) / (at_best - at_last))
            tried = ceil(min(max(crossed, low + 1), high - 1))
        last, at_last, best, at_best = best, at_best, tried, function(tried)
        low, high = (low, tried) if at_best > 0 else (tried, high)
    return high


def _tried(last: float, best: float, other: float, at_last: float, at_best: float, at_other: float) -> float:
    """The step from the best point to the zero of the secant, or of the inverse parabola where there are three points."""
    if last == other:
        return -at_best * (best - last) / (at_best - at_last)
    to_last, to_other = (at_last - at_best) / (last - best), (at_other - at_best) / (other - best)
    return -at_best * (at_other * to_other - at_last * to_last) / (to_other * to_last * (at_other - at_last))
