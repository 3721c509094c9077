"""The arrival rate from which on a buffer pays for itself (docs/model.md, section 3.2).

At a rate r a month of r * SECONDS_PER_MONTH requests saves ``saving(r)`` USD each, and costs the buffer's fixed sum. At a lower
rate batches are emptier and the saving smaller, so the root of

    r * SECONDS_PER_MONTH * saving(r) = fixed_per_month

is sought with the saving taken anew at every r: by doubling or halving from a rate until the sign changes, then among rates between
that are even in log r, nearer to one another than ``tolerance``, as a part of the rate. A saving takes tens of milliseconds, so
that it is not asked for where the largest there may be would not pay.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from math import ceil, inf, log, log1p, log2

from sluice.batching.errors import require
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH
from sluice.optimizer.roots import find_step

LOWEST, HIGHEST = 1e-6, 1e5  # requests/s


def solve_break_even(
    saving_per_request: Callable[[float], float],
    fixed_per_month: float,
    *,
    start: float = 1.0,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
    tolerance: float = 1e-3,
    largest: float = inf,
) -> float | None:
    """Requests/s from which on the saving pays ``fixed_per_month`` (USD); ``None`` where it does not up to ``highest``.

    Parameters
    ----------
    saving_per_request : callable
        USD saved per request at a rate (requests/s), everything but the fixed cost counted; it may be negative. It is called at
        rates from ``lowest`` to ``highest``.
    start : float
        The rate from which the search goes up or down, best the present one. Where the sign changes more than once, the change
        next to ``start`` in that direction is the answer.
    largest : float
        USD, which no rate saves more than.

    Returns
    -------
    arrival_rate : float or None
        The least of the rates looked at, so that the buffer pays there; ``lowest`` where it pays even at that.
    """
    require(0 <= fixed_per_month < inf, "fixed_per_month", fixed_per_month, "USD >= 0")
    require(0 < lowest < highest < inf, "lowest", lowest, f"requests/s > 0 and below highest ({highest:g})")
    require(lowest <= start <= highest, "start", start, f"{lowest:g} to {highest:g} requests/s")
    require(0 < tolerance < 1, "tolerance", tolerance, "a part of the rate, 0 < tolerance < 1")

    @cache
    def gain(rate: float) -> float:
        """USD a request, above 0 where it pays; where not even the largest saving pays, what that comes to."""
        fixed = fixed_per_month / (rate * SECONDS_PER_MONTH)
        return largest - fixed if largest < fixed else saving_per_request(rate) - fixed

    low = high = start
    if gain(start) > 0:
        while gain(low := max(high / 2, lowest)) > 0:
            if low == lowest:
                return lowest
            high = low
    else:
        while gain(high := min(2 * low, highest)) <= 0:
            if high == highest:
                return None
            low = high
    steps = 1 << max(0, ceil(log2(log(high / low) / log1p(tolerance))))
    return _between(low, high, find_step(lambda step: gain(_between(low, high, step / steps)), 0, steps) / steps)


def _between(low: float, high: float, part: float) -> float:
    """From ``low`` to ``high`` as a part of the way in log r, the ends as they are."""
    return high if part == 1 else low * (high / low) ** part
