"""MMPP(2) from moments: mean, SCV, third moment, decay of the autocorrelation (docs/model.md, section 1.3).

The inter-arrival time of an MMPP(2) is hyperexponential, rates ``m1, m2`` with probabilities ``p, 1 - p``, and its
autocorrelation is geometric, ``rho_k = (1 - 1/scv)/2 * decay^k``. With normalised moments ``r_k = E[X^k] / (k! E[X]^k)`` the
hyperexponential law has ``1/m1, 1/m2`` (in units of the mean) as the roots of ``x^2 - s x + d``, ``s = (r3 - r2)/(r2 - 1)``,
``d = (r3 - r2^2)/(r2 - 1)``; it exists when ``r2 > 1`` (SCV > 1) and ``r3 > r2^2``. Gap to gap the chain moves by
``P = decay I + (1 - decay) 1 (p, 1 - p)``, which has that autocorrelation; ``mmpp2_of_hidden_markov`` turns the pair into rates.

Infeasible moments: with SCV <= 1 the nearest is the Poisson process; a third moment too low is raised to the bound, a decay is
taken within [0, 1). ``distance`` is how far the moments had to be moved, as a sum of relative changes.

References: Whitt (1982) for the hyperexponential law; Casale, Zhang, Smirni, KPC-Toolbox (2010) for the choice of moments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from batching.errors import InvalidInput
from optimizer.arrivals.map import Array, ArrivalProcess
from optimizer.arrivals.mmpp import mmpp2_of_hidden_markov
from optimizer.arrivals.poisson import poisson
from optimizer.arrivals.trace import Trace

_MARGIN = 1e-6  # relative distance kept from r3 = r2^2, where one phase would have an infinite rate
_LARGEST_DECAY = 1 - 1e-6
N_LAGS = 200


@dataclass(frozen=True)
class MomentFit:
    """The process, what its moments were moved by (0: they are met), and a sentence where they were."""

    arrivals: ArrivalProcess
    distance: float
    note: str = ""


def fit_mmpp2_moments(mean: float, scv: float, third_moment: float, decay: float) -> MomentFit:
    """The MMPP(2) with these moments of the inter-arrival time, or the nearest feasible.

    Parameters
    ----------
    mean : float
        Seconds.
    scv : float
        Squared coefficient of variation.
    third_moment : float
        E[X^3], s^3.
    decay : float
        Ratio of successive autocorrelations.
    """
    if not 0 < mean < np.inf:
        raise InvalidInput("mean", mean, "a number of seconds > 0")
    if not 0 <= scv < np.inf:
        raise InvalidInput("scv", scv, "a number >= 0")
    if not 0 < third_moment < np.inf:
        raise InvalidInput("third_moment", third_moment, "a number (s^3) > 0")
    if scv <= 1 + 1e-9:
        return MomentFit(poisson(1 / mean), abs(1 - scv), f"no MMPP(2) has an SCV of {scv:.4g} <= 1: the nearest is Poisson")
    notes, distance = [], 0.0
    r2, r3 = (scv + 1) / 2, third_moment / (6 * mean**3)
    lowest = r2**2 * (1 + _MARGIN)
    if r3 < lowest:
        distance += (lowest - r3) / r3
        notes.append(f"third moment raised by {(lowest - r3) / r3:.3g} of itself to the least for this SCV")
        r3 = lowest
    feasible = float(np.clip(decay, 0.0, _LARGEST_DECAY))
    if feasible != decay:
        distance += abs(feasible - decay)
        notes.append(f"decay {decay:.4g} moved to {feasible:.6g}")
    total, product = (r3 - r2) / (r2 - 1), (r3 - r2**2) / (r2 - 1)
    root = np.sqrt(total**2 - 4 * product)
    means = np.array([(total + root) / 2, (total - root) / 2])  # of the gaps, in units of the mean
    share = (1 - means[1]) / (means[0] - means[1])
    stationary = np.array([share, 1 - share])
    transitions = feasible * np.eye(2) + (1 - feasible) * stationary
    arrivals = mmpp2_of_hidden_markov(1 / (means * mean), transitions)
    if arrivals is None:  # no memory at all: the renewal process itself is a MAP, only not an MMPP
        rates = 1 / (means * mean)
        arrivals = ArrivalProcess(-np.diag(rates), rates[:, None] * transitions, "map")
    return MomentFit(arrivals, distance, "; ".join(notes))


def fit_mmpp2_to_moments_of(trace: Trace) -> MomentFit:
    """The MMPP(2) with the sample moments of a trace; the decay is that of least squares over the first lags."""
    gaps = trace.interarrivals
    mean = float(gaps.mean())
    scv = float(gaps.var()) / mean**2
    return fit_mmpp2_moments(mean, scv, float((gaps**3).mean()), _fit_decay(trace, scv))


def _fit_decay(trace: Trace, scv: float) -> float:
    """Least squares of ``(1 - 1/scv)/2 * decay^k`` to the sample autocorrelation."""
    if scv <= 1:
        return 0.0
    lags = np.arange(1, min(N_LAGS, len(trace) // 10) + 1)
    observed = trace.autocorrelation(lags)
    level = (1 - 1 / scv) / 2

    def squares(logit: float) -> float:
        decay = 1 / (1 + np.exp(-logit))
        return float(((observed - level * decay**lags) ** 2).sum())

    grid = np.linspace(-6, 10, 33)
    centre = grid[int(np.argmin([squares(x) for x in grid]))]
    found = minimize_scalar(squares, bounds=(centre - 0.5, centre + 0.5), method="bounded")
    return float(1 / (1 + np.exp(-found.x)))


def moments_of(arrivals: ArrivalProcess) -> Array:
    """(mean, scv, third moment) of the inter-arrival time, for comparison."""
    return np.array([arrivals.moment(1), arrivals.scv, arrivals.moment(3)])
