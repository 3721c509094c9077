"""Markov-modulated Poisson processes: phases that differ in their rate of arrivals (docs/model.md, section 1).

Two roads lead to an MMPP(2): its four rates, and the two-state hidden Markov model with exponential gaps that has the same law.
That model, rates ``m1, m2`` and gap-to-gap transition matrix ``P``, is the MAP ``D0 = -diag(m)``, ``D1 = diag(m) P``. The law of
a MAP(2) is fixed by trace and determinant of ``D0`` and ``D1``, so equating these with an MMPP(2)'s gives: ``l1, l2`` are the
eigenvalues of ``D1``, ``w1 + w2 = -tr D0 - tr D1`` and ``l1 w2 + l2 w1 = det D0 - det D1``. There is a solution exactly
when ``det P >= 0``: gaps that alternate have no MMPP.
"""

from __future__ import annotations

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess


def mmpp(arrival_rates: Array, generator: Array) -> ArrivalProcess:
    """The MMPP with ``arrival_rates[i]`` requests/s in phase ``i``; ``generator`` (1/s), shape (n, n), moves the phases."""
    D1 = np.diag(np.asarray(arrival_rates, dtype=float))
    return ArrivalProcess(np.asarray(generator, dtype=float) - D1, D1, "mmpp")


def mmpp2(rate_1: float, rate_2: float, switch_1: float, switch_2: float) -> ArrivalProcess:
    """The MMPP(2) with arrival rates λ1, λ2 and rates ω1, ω2 of leaving phase 1 and 2, all in 1/s (BATCH, eq. (12))."""
    for name, value in (("rate_1", rate_1), ("rate_2", rate_2)):
        if not 0 <= value < np.inf:
            raise InvalidInput(name, value, "requests per second >= 0")
    for name, value in (("switch_1", switch_1), ("switch_2", switch_2)):
        if not 0 < value < np.inf:
            raise InvalidInput(name, value, "a rate (1/s) > 0")
    return mmpp(np.array([rate_1, rate_2]), np.array([[-switch_1, switch_1], [switch_2, -switch_2]]))


def mmpp2_rates(arrivals: ArrivalProcess) -> tuple[float, float, float, float]:
    """(λ1, λ2, ω1, ω2) in 1/s of an MMPP(2), the busier phase first."""
    order = np.argsort(-np.diag(arrivals.D1))
    rates = np.diag(arrivals.D1)[order]
    switches = (arrivals.D0.sum(axis=1) - np.diag(arrivals.D0))[order]
    return float(rates[0]), float(rates[1]), float(switches[0]), float(switches[1])


def mmpp2_of_hidden_markov(rates: Array, transitions: Array) -> ArrivalProcess | None:
    """The MMPP(2) with the law of a two-state hidden Markov model of exponential gaps, or ``None`` where there is none.

    Parameters
    ----------
    rates : array, shape (2,)
        1/s, of the gap in each state.
    transitions : array, shape (2, 2)
        From gap to gap.
    """
    trace_D1 = float(rates @ np.diag(transitions))
    det_D0 = float(rates.prod())
    det_D1 = det_D0 * float(np.linalg.det(transitions))
    root = np.sqrt(max(0.0, trace_D1**2 - 4 * det_D1))
    fast, slow = (trace_D1 + root) / 2, (trace_D1 - root) / 2
    total = float(rates.sum()) - trace_D1
    if det_D1 < 0 or root <= 1e-12 * trace_D1:
        return None
    leave_fast = (fast * total - (det_D0 - det_D1)) / root
    leave_slow = (det_D0 - det_D1 - slow * total) / root
    if leave_fast <= 0 or leave_slow <= 0:
        return None
    return mmpp2(fast, max(0.0, slow), leave_fast, leave_slow)
