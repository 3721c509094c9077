"""Fit of a hidden Markov model with Erlang gaps by expectation-maximization (docs/model.md, section 1.3).

M step, from the expected statistics of ``hidden_markov``: ``means[i] = sum_i / weight_i``, ``transitions[i, j] = n_ij / sum_j
n_ij``; shapes stay, or, where they are left free, solve ``log k - digamma(k) = log means[i] - log_sum_i / weight_i`` (a gamma
law). Orders of one make the model a MAP with diagonal ``D0`` (two states: an MMPP(2), where one exists).

Plain EM crawls where states overlap. SQUAREM takes two EM steps ``r = F(x) - x``, ``v = F(F(x)) - F(x) - r`` and leaps to ``x -
2 a r + a^2 v``, ``a = -|r| / |v|``; the leap is kept only where the likelihood is no less than after the first of the two EM
steps, so it never falls. ``x`` is ``log means``, ``log shapes`` and ``2 sqrt(transitions)``, in which Fisher's information is
about even. It stops when what is left to gain, extrapolated from the last EM step's gain and its rate of contraction, is below
``tolerance`` nats.

References: Okamura, Dohi, Trivedi (2009) on EM for MAPs; Horváth and Okamura, A fast EM algorithm for fitting marked Markovian
arrival processes with a new special structure (2013), whose structure (ErCHMM) this is; Varadhan and Roland, Simple and globally
convergent methods for accelerating the convergence of any EM algorithm (2008), scheme S3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import digamma, polygamma

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2_of_hidden_markov
from sluice.optimizer.fits.hidden_markov import expect

# What happens faster does not show in batching, but predictions pay for the fastest rate: a hundredth of the mean gap, less where
# most gaps are much shorter than the mean, as in bursts between silences, but not for ever, as some arrive at one time.
SHORTEST_OF_MEAN = 1 / 100
SHORTEST_OF_MEDIAN = 1 / 20
SHORTEST_OF_ALL = 1 / 2000
LARGEST_SHAPE = 64.0
RAREST = 1e-12  # transition probability that is kept, so that no gap is impossible
_FIRST_LEAP = 4.0
FIRST_LOOK = 10_000  # gaps from which starts are compared


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
class HiddenMarkovFit:
    """A hidden Markov model with Erlang gaps, and how its fit to ``n_gaps`` gaps ended (likelihood on the circle, gaps in s)."""

    orders: tuple[int, ...]
    means: Array
    transitions: Array
    n_gaps: int
    convergence: Convergence

    @property
    def log_likelihood(self) -> float:
        """Nats."""
        return self.convergence.value

    @property
    def n_parameters(self) -> int:
        """Free parameters: a mean per state, the transition rows and the integer orders above one."""
        n = len(self.orders)
        return n + n * (n - 1) + sum(order > 1 for order in self.orders)

    @property
    def bic(self) -> float:
        """Bayesian information criterion."""
        return self.n_parameters * float(np.log(self.n_gaps)) - 2 * self.log_likelihood

    def arrivals(self) -> ArrivalProcess:
        """The same law as a MAP of ``sum(orders)`` phases, or as an MMPP(2) where there is one."""
        n = len(self.orders)
        if n == 1 and self.orders[0] == 1:
            rate = 1 / float(self.means[0])
            return ArrivalProcess(np.array([[-rate]]), np.array([[rate]]), "poisson")
        rates = np.array(self.orders) / self.means
        if self.orders == (1, 1):
            modulated = mmpp2_of_hidden_markov(rates, self.transitions)
            if modulated is not None:
                return modulated
        size = sum(self.orders)
        starts = np.concatenate([[0], np.cumsum(self.orders)[:-1]])
        D0, D1 = np.zeros((size, size)), np.zeros((size, size))
        for i, (start, order) in enumerate(zip(starts, self.orders, strict=True)):
            for stage in range(start, start + order):
                D0[stage, stage] = -rates[i]
                if stage + 1 < start + order:
                    D0[stage, stage + 1] = rates[i]
            D1[start + order - 1, starts] = rates[i] * self.transitions[i]
        return ArrivalProcess(D0, D1, "map")


@dataclass(frozen=True)
class GammaStates:
    """A point of the ascent: shape and mean (s) of the gap per state, and the transitions from gap to gap."""

    shapes: Array
    means: Array
    transitions: Array


def fit_hidden_markov(
    interarrivals: Array,
    orders: Sequence[int],
    means: Array | None = None,
    transitions: Array | None = None,
    max_iterations: int = 600,
    tolerance: float = 1e-3,
) -> HiddenMarkovFit:
    """Hidden Markov model with Erlang gaps of (locally) greatest likelihood.

    Parameters
    ----------
    interarrivals : array, shape (n,)
        Seconds, > 0 (``Trace.dithered``).
    orders : sequence of int
        Stages of the Erlang law of each state.
    means, transitions : array, shape (n_states,) and (n_states, n_states), optional
        Where to start; by default the sorted gaps are cut into ``n_states`` groups that hold equal shares of their logarithm's
        range, and states are sticky.
    max_iterations : int
        Times the gaps may be gone through.
    tolerance : float
        Nats left to gain, in all, at which to stop.

    Raises
    ------
    InvalidInput
        A gap that is not > 0, or an order below one.
    """
    gaps = checked_gaps(interarrivals)
    if not len(orders) or min(orders) < 1:
        raise InvalidInput("orders", tuple(orders), "integers >= 1, one per state")
    n_states = len(orders)
    if means is None:
        means = spread_means(gaps, n_states)
    if transitions is None:
        transitions = np.full((n_states, n_states), 0.3 / n_states) + 0.7 * np.eye(n_states)
    start = GammaStates(np.asarray(orders, dtype=float), np.asarray(means, dtype=float), np.asarray(transitions, dtype=float))
    found, convergence = climb(gaps, start, max_iterations, tolerance)
    return HiddenMarkovFit(tuple(int(r) for r in orders), found.means, found.transitions, len(gaps), convergence)


def fit_mmpp2(interarrivals: Array) -> HiddenMarkovFit:
    """MMPP(2) of greatest likelihood; a MAP(2) where its gaps alternate and no MMPP(2) has that law.

    Starts differ in how far the states are apart and how long they last, one looks for long spells; they are compared on at most
    10 000 gaps, in stretches spread over the trace, and the best is carried on with all.
    """
    gaps = checked_gaps(interarrivals)
    sample = stretches(gaps, FIRST_LOOK)
    one = np.ones(2)
    starts = [
        GammaStates(one, spread_means(sample, 2), sticky(2, 0.6)),
        GammaStates(one, float(sample.mean()) * np.array([0.5, 2.0]), sticky(2, 0.98)),
        spells(sample, 2),
    ]
    found = [climb(sample, start, 30, 0.1) for start in starts]
    best = max(found, key=lambda pair: pair[1].value)[0]
    return fit_hidden_markov(gaps, (1, 1), best.means, best.transitions)


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


def checked_gaps(interarrivals: Array) -> Array:
    """Gaps as floats, all of them finite and > 0."""
    gaps = np.ascontiguousarray(interarrivals, dtype=float)
    bad = np.flatnonzero(~(np.isfinite(gaps) & (gaps > 0)))
    if len(bad):
        raise InvalidInput(f"inter-arrival time {bad[0] + 1}", float(gaps[bad[0]]), "a number of seconds > 0 (Trace.dithered)")
    if len(gaps) < 2:
        raise InvalidInput("inter-arrival times", len(gaps), "at least 2")
    return gaps


def log_likelihood(interarrivals: Array, orders: Sequence[int], means: Array, transitions: Array) -> float:
    """Nats of a hidden Markov model with Erlang gaps, on the circle."""
    gaps = checked_gaps(interarrivals)
    return expect(gaps, np.log(gaps), np.asarray(orders, dtype=float), means, np.maximum(transitions, RAREST)).log_likelihood


def shortest_stage(gaps: Array) -> float:
    """The shortest mean (s) that a stage of a fit may have."""
    mean, median = float(gaps.mean()), float(np.median(gaps))
    return min(SHORTEST_OF_MEAN * mean, max(SHORTEST_OF_MEDIAN * median, SHORTEST_OF_ALL * mean))


def stretches(gaps: Array, n: int, count: int = 40) -> Array:
    """About ``n`` of the gaps: ``count`` stretches of successive ones, spread evenly; all where there are no more than ``n``."""
    if len(gaps) <= n:
        return gaps
    length = n // count
    starts = np.linspace(0, len(gaps) - length, count).astype(int)
    return np.concatenate([gaps[start : start + length] for start in starts])


def spread_means(gaps: Array, n_states: int, tail: float = 0.005) -> Array:
    """A mean gap per state: those of groups that divide log(gap) evenly, but for its least 2 % and its largest ``tail``."""
    low, high = np.quantile(gaps, [0.02, 1 - tail])
    low = max(low, shortest_stage(gaps))
    edges = np.geomspace(low, max(high, low * 1.5), n_states + 1)[1:-1]
    group = np.searchsorted(edges, gaps)
    fallback = np.quantile(gaps, (np.arange(n_states) + 0.5) / n_states)
    return np.array([gaps[group == i].mean() if (group == i).any() else fallback[i] for i in range(n_states)])


def sticky(n_states: int, stay: float) -> Array:
    """Transitions that stay with that probability and else go anywhere else."""
    if n_states == 1:
        return np.ones((1, 1))
    return np.full((n_states, n_states), (1 - stay) / (n_states - 1)) + (stay - (1 - stay) / (n_states - 1)) * np.eye(n_states)


def spells(gaps: Array, n_states: int, window: int = 32) -> GammaStates:
    """States as spells of busy and quiet times: gaps grouped by the mean of the ``window`` around them, in equal shares."""
    window = max(2, min(window, len(gaps) // 4))
    total = np.concatenate([[0.0], np.cumsum(gaps)])
    local = (total[window:] - total[:-window]) / window
    seen = gaps[window // 2 : window // 2 + len(local)]
    state = np.searchsorted(np.quantile(local, np.arange(1, n_states) / n_states), local, side="right")
    means = np.array([seen[state == i].mean() if (state == i).any() else gaps.mean() for i in range(n_states)])
    counts = np.full((n_states, n_states), 0.5)
    np.add.at(counts, (state[:-1], state[1:]), 1.0)
    return GammaStates(np.ones(n_states), means, counts / counts.sum(axis=1, keepdims=True))


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
        shapes = shapes - (np.log(shapes) - digamma(shapes) - spread) / (1 / shapes - polygamma(1, shapes))
    return np.asarray(shapes)
