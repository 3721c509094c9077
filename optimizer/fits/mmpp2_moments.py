"""MMPP(2) from moments: mean, SCV, third moment, decay of the autocorrelation (docs/model.md, section 1.3).

The inter-arrival time of an MMPP(2) is hyperexponential, rates ``m1, m2`` with probabilities ``p, 1 - p``, and its
autocorrelation is geometric, ``rho_k = (1 - 1/scv)/2 * decay^k``. With normalised moments ``r_k = E[X^k] / (k! E[X]^k)`` the
hyperexponential law has ``1/m1, 1/m2`` (in units of the mean) as the roots of ``x^2 - s x + d``, ``s = (r3 - r2)/(r2 - 1)``,
``d = (r3 - r2^2)/(r2 - 1)``; it exists when ``r2 > 1`` (SCV > 1) and ``r3 > r2^2``. Gap to gap the chain moves by
``P = decay I + (1 - decay) 1 (p, 1 - p)``, which has that autocorrelation; ``mmpp2_of_hidden_markov`` turns the pair into rates.

So mean, SCV, third moment and decay are matched exactly, as BATCH had KPC-Toolbox do, wherever an MMPP(2) has them: SCV > 1,
``r3 > r2^2``, decay in [0, 1). Of these, pairs that need a state faster than ``SHORTEST`` of the mean gap are left out; what
remains is ``r3 >= (r2^2 - SHORTEST r2) / (1 - SHORTEST)``. Elsewhere the nearest is taken. The mean is kept, the decay is
brought to the nearer end of [0, 1), and SCV and third moment move together: the nearest pair lies on that edge, as SCV must
fall and the third moment rise, which leaves one number to be searched for. With SCV <= 1 it is the Poisson process, to which
MMPP(2)s tend as their SCV falls to one. ``distance`` is the root of the sum of squares of the relative changes of SCV and third
moment, each against the larger of old and new (0 to 1), and of the change of the decay.

References: Whitt (1982) for the hyperexponential law; Casale, Zhang, Smirni, KPC-Toolbox (2010) for the choice of moments.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2_of_hidden_markov
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.minima import find_minimum
from sluice.optimizer.traces.trace import Trace

SHORTEST = 1e-3  # of the mean gap: at r3 = r2^2 one state would last no time at all
_LARGEST_DECAY = 1 - 1e-6
_ROUNDING, _EXACT = 1e-9, 1e-6
N_LAGS = 200


@dataclass(frozen=True, eq=False)
class MomentFit:
    """The process; how far its moments had to be moved (0: they are met), and a sentence where they were.

    ``hidden`` is the same law as a hidden Markov model with exponential gaps: mean gap (s) per state, (2,), and transitions
    from gap to gap, (2, 2); ``None`` for Poisson.
    """

    arrivals: ArrivalProcess
    distance: float
    note: str = ""
    hidden: tuple[Array, Array] | None = None


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

    Raises
    ------
    InvalidInput
        Moments that no inter-arrival time has: ``E[X^3] E[X] < E[X^2]^2`` (Cauchy and Schwarz), an SCV below 0, a decay outside
        (-1, 1).
    """
    _check(mean, scv, third_moment, decay)
    r3 = third_moment / (6 * mean**3)
    if scv <= 1 + _ROUNDING:
        return MomentFit(
            poisson(1 / mean),
            float(np.hypot(_change(scv, 1.0), _change(r3, 1.0))) if scv < 1 - _ROUNDING else 0.0,
            f"no MMPP(2) has an SCV of {scv:.4g} <= 1: the nearest is Poisson",
        )
    notes, moved = [], 0.0
    if r3 < _least_r3(scv):
        asked = scv, r3
        scv, r3 = _nearest(scv, r3)
        moved = float(np.hypot(_change(asked[0], scv), _change(asked[1], r3)))
        notes.append(
            f"no MMPP(2) has so low a third moment at this SCV: it is raised by {100 * (r3 / asked[1] - 1):.3g} % "
            f"and the SCV lowered by {100 * (1 - scv / asked[0]):.3g} %"
        )
    feasible = float(np.clip(decay, 0.0, _LARGEST_DECAY))
    if feasible != decay:
        notes.append(f"decay {decay:.4g} moved to {feasible:.6g}")
    means, share = _hyperexponential((scv + 1) / 2, r3)
    share = float(np.clip(share, 0.0, 1.0))  # 1e-16 beyond, where the arrivals are all but Poisson
    transitions = feasible * np.eye(2) + (1 - feasible) * np.array([share, 1 - share])
    arrivals = mmpp2_of_hidden_markov(1 / (means * mean), transitions)
    if arrivals is None or _change(arrivals.moment(3), 6 * mean**3 * r3) > _EXACT:  # rounding hides the switches: the same as a MAP
        rates = 1 / (means * mean)
        arrivals = ArrivalProcess(-np.diag(rates), rates[:, None] * transitions, "map")
    return MomentFit(arrivals, float(np.hypot(moved, feasible - decay)), "; ".join(notes), (means * mean, transitions))


def _check(mean: float, scv: float, third_moment: float, decay: float) -> None:
    if not 0 < mean < np.inf:
        raise InvalidInput("mean", mean, "a number of seconds > 0")
    if not 0 <= scv < np.inf:
        raise InvalidInput("scv", scv, "a number >= 0")
    least = mean**3 * (1 + scv) ** 2
    if not least * (1 - _ROUNDING) <= third_moment < np.inf:
        raise InvalidInput(
            "third_moment", third_moment, f"at least E[X^2]^2 / E[X] = {least:.6g} s^3, as any law with this mean and SCV has"
        )
    if not -1 < decay < 1:
        raise InvalidInput("decay", decay, "a ratio of autocorrelations in (-1, 1)")


def _least_r3(scv: float) -> float:
    r2 = (scv + 1) / 2
    return r2 * (r2 - SHORTEST) / (1 - SHORTEST)


def _change(old: float, new: float) -> float:
    """Relative to the larger."""
    return abs(new - old) / max(new, old)


def _nearest(scv: float, r3: float) -> tuple[float, float]:
    """The pair on the edge of the feasible that is nearest to an SCV > 1 with too low a third moment."""

    def distance(candidate: float) -> float:
        return float(np.hypot(_change(scv, candidate), _change(r3, _least_r3(candidate))))

    grid = np.linspace(1 + _ROUNDING, scv, 65)
    best = int(np.argmin([distance(value) for value in grid]))
    low, high = grid[max(0, best - 1)], grid[min(64, best + 1)]
    found = find_minimum(distance, float(low), float(high), absolute=1e-10 * scv)
    nearest = found if distance(found) < distance(grid[best]) else float(grid[best])
    return nearest, _least_r3(nearest)


def _hyperexponential(r2: float, r3: float) -> tuple[Array, float]:
    """Means of the two exponential laws, in units of the mean gap, and the probability of the first."""
    total, product = (r3 - r2) / (r2 - 1), (r3 - r2**2) / (r2 - 1)
    longer = (total + np.sqrt(total**2 - 4 * product)) / 2
    shorter = product / longer  # the difference of the roots would cancel
    return np.array([longer, shorter]), float((1 - shorter) / (longer - shorter))


def fit_mmpp2_to_moments_of(trace: Trace) -> MomentFit:
    """The MMPP(2) with the sample moments of a trace; the decay is that of least squares over the first ``N_LAGS`` lags."""
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
    return float(1 / (1 + np.exp(-find_minimum(squares, centre - 0.5, centre + 0.5, absolute=1e-5))))
