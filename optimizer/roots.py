"""Where a function crosses zero: Brent's method (Algorithms for Minimization without Derivatives, 1973, chapter 4).

A bracket is kept whose ends differ in sign. The next point is that of the inverse parabola through the last three, or of the secant
through two, where it falls well inside of the bracket and the steps shrink; else the middle. So it ends no later than bisection
squared, and mostly in a few steps. To import `scipy.optimize` for its own takes longer than most commands compute.
"""

from __future__ import annotations

from collections.abc import Callable
from math import copysign

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


def _tried(last: float, best: float, other: float, at_last: float, at_best: float, at_other: float) -> float:
    """The step from the best point to the zero of the secant, or of the inverse parabola where there are three points."""
    if last == other:
        return -at_best * (best - last) / (at_best - at_last)
    to_last, to_other = (at_last - at_best) / (last - best), (at_other - at_best) / (other - best)
    return -at_best * (at_other * to_other - at_last * to_last) / (to_other * to_last * (at_other - at_last))
