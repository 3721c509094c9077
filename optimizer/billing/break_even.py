"""The arrival rate from which on a buffer pays for itself (docs/model.md, section 3.2).

At a rate r a month of r * SECONDS_PER_MONTH requests saves ``saving(r)`` USD each, and costs the buffer's fixed sum. At a lower
rate batches are emptier and the saving smaller, so the root of

    r * SECONDS_PER_MONTH * saving(r) = fixed_per_month

is sought with the saving taken anew at every r: by doubling or halving from a rate until the sign changes, then by bisection in
log r. It ends when the bracket is narrower than ``tolerance``, as a part of the rate.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf, sqrt

from sluice.batching.errors import require
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH

LOWEST, HIGHEST = 1e-6, 1e5  # requests/s


def solve_break_even(
    saving_per_request: Callable[[float], float],
    fixed_per_month: float,
    *,
    start: float = 1.0,
    lowest: float = LOWEST,
    highest: float = HIGHEST,
    tolerance: float = 1e-3,
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

    Returns
    -------
    arrival_rate : float or None
        The upper end of the last bracket, so that the buffer pays there; ``lowest`` where it pays even at that.
    """
    require(0 <= fixed_per_month < inf, "fixed_per_month", fixed_per_month, "USD >= 0")
    require(0 < lowest < highest < inf, "lowest", lowest, f"requests/s > 0 and below highest ({highest:g})")
    require(lowest <= start <= highest, "start", start, f"{lowest:g} to {highest:g} requests/s")
    require(0 < tolerance < 1, "tolerance", tolerance, "a part of the rate, 0 < tolerance < 1")

    def pays(rate: float) -> bool:
        saving = saving_per_request(rate)
        return saving > 0 and rate * SECONDS_PER_MONTH * saving >= fixed_per_month

    if pays(start):
        high = start
        while pays(low := max(high / 2, lowest)):
            high = low
            if low == lowest:
                return lowest
    else:
        low = start
        while True:
            if low == highest:
                return None
            high = min(2 * low, highest)
            if pays(high):
                break
            low = high
    while high > low * (1 + tolerance):
        middle = sqrt(low * high)
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high
