"""Expectation-maximization for a hidden Markov model with gamma gaps, sped up by SQUAREM (docs/model.md, section 1.3).

E step: ``forward_backward``. M step, from its expected statistics: ``means[i] = sum_i / weight_i``, ``transitions[i, j] = n_ij /
sum_j n_ij``; shapes stay, or, where they are left free, solve ``log k - special.digamma(k) = log means[i] - log_sum_i / weight_i``.

Plain EM crawls where states overlap. SQUAREM takes two EM steps ``r = F(x) - x``, ``v = F(F(x)) - F(x) - r`` and leaps to ``x -
2 a r + a^2 v``, ``a = -|r| / |v|``; the leap is kept only where the likelihood is no less than after the first of the two EM
steps, so it never falls. ``x`` is ``log means``, ``log shapes`` and ``2 sqrt(transitions)``, in which Fisher's information is
about even. It stops when what is left to gain, extrapolated from the last EM step's gain and its rate of contraction, is below
``tolerance`` nats.

Reference: Varadhan and Roland, Simple and globally convergent methods for accelerating the convergence of any EM algorithm (2008),
scheme S3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.fits.forward_backward import expect
from sluice.optimizer.fits.gaps import shortest_stage
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

LARGEST_SHAPE = 64.0
RAREST = 1e-12  # transition probability that is kept, so that no gap is impossible
_FIRST_LEAP = 4.0


@dataclass(frozen=True)
class Convergence:
    """How an ascent ended: the log-likelihood reached (nats), whether by its own rule, how often the data were gone through, and an
    estimate of the nats left to gain.
    """

    value: float
    converged: bool
    iterations: int
    residual: float


@dataclass(frozen=True)
class GammaStates:
    """A point of the ascent: shape and mean (s) of the gap per state, and the transitions from gap to gap."""

    shapes: Array
    means: Array
    transitions: Array


def climb(
    gaps: Array, start: GammaStates, max_iterations: int, tolerance: float, free_shapes: bool = False
) -> tuple[GammaStates, Convergence]:
    """EM with SQUAREM from ``start`` on ``gaps`` (s, > 0): the point reached and how it ended."""
    log_gaps = np.log(gaps)
    shortest = shortest_stage(gaps)

    def step(point: GammaStates) -> tuple[float, GammaStates]:
        """Log-likelihood of a point, and where EM goes from it."""
        seen = expect(gaps, log_gaps, point.shapes, point.means, point.transitions)
        weights = np.maximum(seen.weights, 1e-300)
        means, shapes = seen.sums / weights, point.shapes
        if free_shapes:
            shapes = _gamma_shapes(np.log(means) - seen.log_sums / weights)
        empty = seen.weights < 1e-9  # no gap is drawn in this state: leave it as it is
        means = np.where(empty, point.means, means)
        rows = seen.transitions.sum(axis=1, keepdims=True)
        moves = np.where(empty[:, None], point.transitions, seen.transitions / np.maximum(rows, 1e-300))
        return seen.log_likelihood, admissible(GammaStates(shapes, means, moves), shortest)

    here = admissible(start, shortest)
    likelihood, ahead = step(here)
    iterations, residual, leap = 1, np.inf, _FIRST_LEAP
    while True:
        likelihood_ahead, after = step(ahead)
        iterations += 1
        x, r, v = _differences(here, ahead, after, free_shapes)
        length, bend = float(np.sqrt(r @ r)), float(np.sqrt(v @ v))
        gain = likelihood_ahead - likelihood
        contraction = min(0.99, float(np.sqrt((r + v) @ (r + v))) / max(length, 1e-300))
        residual = max(gain, 0.0) / (1 - contraction**2)
        if residual < tolerance or iterations >= max_iterations:
            return ahead, Convergence(likelihood_ahead, bool(residual < tolerance), iterations, residual)
        wanted = length / max(bend, 1e-300)
        stride = min(max(wanted, 1.0), leap)
        leapt = admissible(_point(x + 2 * stride * r + stride**2 * v, here, free_shapes), shortest)
        likelihood_leapt, ahead_leapt = step(leapt)
        iterations += 1
        if likelihood_leapt >= likelihood_ahead:
            here, likelihood, ahead = leapt, likelihood_leapt, ahead_leapt
            if stride == leap:
                leap *= 4
        else:
            here, likelihood, ahead = ahead, likelihood_ahead, after
            leap = max(_FIRST_LEAP / 2, leap / 4)


def admissible(point: GammaStates, shortest: float) -> GammaStates:
    """The point with shapes, stages (at least ``shortest`` s) and transitions moved within their bounds."""
    shapes = np.clip(point.shapes, 1.0, LARGEST_SHAPE)
    transitions = np.maximum(point.transitions, RAREST)
    means = np.maximum(point.means, shortest * shapes)
    return GammaStates(shapes, means, transitions / transitions.sum(axis=1, keepdims=True))


def _differences(here: GammaStates, ahead: GammaStates, after: GammaStates, free_shapes: bool) -> tuple[Array, Array, Array]:
    """Coordinates of ``here``, their first difference and their second."""
    x, y, z = (
        np.concatenate([np.log(p.means), np.log(p.shapes) if free_shapes else [], 2 * np.sqrt(p.transitions).ravel()])
        for p in (here, ahead, after)
    )
    return x, y - x, z - 2 * y + x


def _point(coordinates: Array, like: GammaStates, free_shapes: bool) -> GammaStates:
    """The point at ``coordinates``; shapes of ``like`` where they are not free."""
    n = len(like.means)
    spread = np.clip(coordinates, -700.0, 700.0)
    shapes = np.exp(spread[n : 2 * n]) if free_shapes else like.shapes
    transitions = np.maximum(coordinates[-n * n :].reshape(n, n) / 2, 0.0) ** 2
    return GammaStates(shapes, np.exp(spread[:n]), transitions + RAREST)


def _gamma_shapes(spread: Array) -> Array:
    """Shapes of the gamma laws whose log mean exceeds their mean log by ``spread``: two Newton steps on Minka's approximation."""
    spread = np.maximum(spread, 1e-6)
    shapes = (3 - spread + np.sqrt((spread - 3) ** 2 + 24 * spread)) / (12 * spread)
    for _ in range(2):
        shapes = shapes - (np.log(shapes) - special.digamma(shapes) - spread) / (1 / shapes - special.hurwitz_zeta(2, shapes))
    return np.asarray(shapes)
