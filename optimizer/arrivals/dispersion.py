"""Index of dispersion for counts of a Markovian arrival process, in closed form (docs/traces.md).

With ``Q = D0 + D1``, its deviation matrix ``D = (1 pi - Q)^-1 - 1 pi`` and the process stationary in time, the number ``N(t)`` of
arrivals has

    Var N(t) = lambda t + 2 pi D1 [ D t - (I - exp(Q t)) D^2 ] D1 1          I(t) = Var N(t) / (lambda t)

since arrivals at distance ``s`` are correlated by ``pi D1 (exp(Q s) - 1 pi) D1 1``, whose double integral this is. Poisson has
``I = 1``; as ``t`` grows ``I`` tends to ``1 + 2 pi D1 D D1 1 / lambda``.

References: Neuts, Structured Stochastic Matrices of M/G/1 Type (1989), chapter 5; Heffes and Lucantoni, IEEE JSAC 4 (1986).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess


def dispersion_of_counts(arrivals: ArrivalProcess, windows: ArrayLike) -> Array:
    """Variance over mean of the number of arrivals in ``windows`` (seconds > 0), same shape."""
    generator, ones = arrivals.D0 + arrivals.D1, np.ones(arrivals.n_phases)
    ergodic = np.outer(ones, arrivals.stationary)
    deviation = np.linalg.inv(ergodic - generator) - ergodic
    before = arrivals.stationary @ arrivals.D1
    after = deviation @ (arrivals.D1 @ ones)
    settled = float(before @ after)
    unsettled = deviation @ after
    lengths = np.atleast_1d(np.asarray(windows, dtype=float))
    moved = _moved(generator, ergodic, lengths, unsettled)
    missing = np.array([float(before @ (unsettled - after_time)) / t for t, after_time in zip(lengths, moved, strict=True)])
    return np.asarray(1 + 2 * (settled - missing) / arrivals.arrival_rate)


def _moved(generator: Array, ergodic: Array, lengths: Array, values: Array) -> list[Array]:
    """exp(Q t) values for each t. Of two phases Q is its trace times (I - 1 pi), and the exponential known."""
    if len(values) <= 2:
        settled = ergodic @ values
        return [settled + np.exp(np.trace(generator) * t) * (values - settled) for t in lengths.tolist()]
    from scipy.linalg import expm  # 0.05 s, which who fits two phases does without

    return [expm(generator * t) @ values for t in lengths.tolist()]
