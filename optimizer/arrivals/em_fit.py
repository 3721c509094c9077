"""Fit of a hidden Markov model with Erlang gaps by expectation-maximization (docs/model.md, section 1.3).

Each gap is drawn in a hidden state ``i`` from an Erlang law of ``orders[i]`` stages and mean ``means[i]``; the states form a Markov
chain from gap to gap. Orders of one make it a MAP with diagonal ``D0`` (two states: an MMPP(2), where one exists); larger orders
make it smoother than Poisson. E step: scaled forward and backward recursions (Rabiner 1989). M step: with posterior state
probabilities ``g`` and transition counts ``x``, ``means[i] = sum g_i gap / sum g_i`` and ``transitions[i, j] = x_ij / sum_j x_ij``.
The sequence is closed to a circle (its last gap is followed by its first), which makes the counts balance, so that the mean gap
of the fit is exactly that of the data (but for stages held at ``SHORTEST_STAGE``). Stops when an iteration gains less than
``tolerance`` in log-likelihood per gap.

The recursions run over blocks of the sequence at once: the product of the one-step matrices of every block first, then the
vectors at the block ends, then all blocks side by side; numpy sees sqrt(n) steps instead of n.

References: Okamura, Dohi, Trivedi (2009) on EM for MAPs; Horváth and Okamura, A fast EM algorithm for fitting marked Markovian
arrival processes with a new special structure (2013), whose structure (ErCHMM) this is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammaln

from optimizer.arrivals.map import Array, ArrivalProcess
from optimizer.arrivals.mmpp import mmpp2_of_hidden_markov

# Of the mean gap: what happens faster does not show in batching, but predictions pay for the fastest rate.
SHORTEST_STAGE = 1 / 100
MAX_ORDER = 8  # stages of an Erlang gap: a MAP's phases are their sum, and predictions cost phases squared


@dataclass(frozen=True)
class HiddenMarkovFit:
    """How a fit ended: the model, its log-likelihood (nats, gaps in s), and whether it converged."""

    orders: tuple[int, ...]
    means: Array
    transitions: Array
    log_likelihood: float
    n_gaps: int
    iterations: int
    converged: bool
    residual: float

    @property
    def n_parameters(self) -> int:
        """Free parameters: a mean per state, the transition rows and the integer orders above one."""
        n = len(self.orders)
        return n + n * (n - 1) + sum(order > 1 for order in self.orders)

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


def fit_hidden_markov(
    interarrivals: Array,
    orders: Sequence[int],
    means: Array | None = None,
    transitions: Array | None = None,
    max_iterations: int = 300,
    tolerance: float = 1e-7,
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
    """
    gaps = np.asarray(interarrivals, dtype=float)
    stages = np.asarray(orders, dtype=float)
    n_states = len(stages)
    if means is None:
        means = _spread_means(gaps, n_states)
    if transitions is None:
        transitions = np.full((n_states, n_states), 0.3 / n_states) + 0.7 * np.eye(n_states)
    log_gaps = np.log(gaps)
    shortest = SHORTEST_STAGE * float(gaps.mean()) * stages
    means = np.maximum(means, shortest)
    previous, likelihood, gain, iteration = -np.inf, -np.inf, np.inf, 0
    for iteration in range(1, max_iterations + 1):  # noqa: B007
        posterior, counts, likelihood = _expectation(gaps, log_gaps, stages, means, transitions)
        gain = (likelihood - previous) / len(gaps)
        if gain < tolerance:
            break
        previous = likelihood
        weights = posterior.sum(axis=0)
        means = np.maximum((gaps @ posterior) / np.maximum(weights, 1e-300), shortest)
        transitions = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1e-300)
        transitions = np.maximum(transitions, 1e-12)
        transitions /= transitions.sum(axis=1, keepdims=True)
    return HiddenMarkovFit(
        tuple(int(r) for r in orders),
        means,
        transitions,
        float(likelihood),
        len(gaps),
        iteration,
        bool(gain < tolerance),
        float(gain),
    )


def fit_mmpp2(interarrivals: Array) -> HiddenMarkovFit:
    """MMPP(2) of greatest likelihood from two starts; a MAP(2) where its gaps alternate and no MMPP(2) has that law."""
    gaps = np.asarray(interarrivals, dtype=float)
    loose = np.array([[0.6, 0.4], [0.4, 0.6]])
    sticky = np.array([[0.98, 0.02], [0.02, 0.98]])
    mean = float(gaps.mean())
    starts = [(_spread_means(gaps, 2), loose), (mean * np.array([0.5, 2.0]), sticky)]
    return max((fit_hidden_markov(gaps, (1, 1), m, p) for m, p in starts), key=lambda fit: fit.log_likelihood)


def fit_erlang_states(interarrivals: Array, n_states: int, max_phases: int = 16) -> HiddenMarkovFit:
    """Hidden Markov model of ``n_states`` with the Erlang orders found by a search uphill in likelihood.

    Starts from exponential states, then doubles or halves one order at a time, keeping what gains, within ``max_phases`` in all.
    """
    gaps = np.asarray(interarrivals, dtype=float)
    best = fit_hidden_markov(gaps, (1,) * n_states, max_iterations=100, tolerance=1e-5)
    tried = {best.orders}
    improved = True
    while improved:
        improved = False
        for state in range(n_states):
            for order in (best.orders[state] * 2, best.orders[state] // 2):
                orders = (*best.orders[:state], order, *best.orders[state + 1 :])
                if not 1 <= order <= MAX_ORDER or sum(orders) > max_phases or orders in tried:
                    continue
                tried.add(orders)
                trial = fit_hidden_markov(gaps, orders, best.means, best.transitions, max_iterations=30, tolerance=1e-4)
                if trial.log_likelihood > best.log_likelihood + 1e-4 * len(gaps):
                    best, improved = trial, True
                    break
    return fit_hidden_markov(gaps, best.orders, best.means, best.transitions)


def _spread_means(gaps: Array, n_states: int) -> Array:
    """A mean gap per state: those of groups that divide the bulk of log(gap) evenly, each group non-empty."""
    low, high = np.quantile(gaps, [0.02, 0.995])
    edges = np.geomspace(low, max(high, low * 1.5), n_states + 1)[1:-1]
    group = np.searchsorted(edges, gaps)
    fallback = np.quantile(gaps, (np.arange(n_states) + 0.5) / n_states)
    return np.array([gaps[group == i].mean() if (group == i).any() else fallback[i] for i in range(n_states)])


def _expectation(gaps: Array, log_gaps: Array, stages: Array, means: Array, transitions: Array) -> tuple[Array, Array, float]:
    """Posterior state probabilities (n, m), expected transition counts (m, m) and log-likelihood on the circle."""
    n, m = len(gaps), len(means)
    rates = stages / means
    log_density = stages * np.log(rates) - gammaln(stages) + (stages - 1) * log_gaps[:, None] - gaps[:, None] * rates
    offset = log_density.max(axis=1)
    length = max(1, int(np.sqrt(n)))
    blocks = -(-n // length)
    # the ragged end is filled with steps that change nothing: they are masked out of the recursions below
    padded = np.ones((blocks * length, m))
    padded[:n] = np.exp(log_density - offset[:, None])
    density = padded.reshape(blocks, length, m)
    real = (np.arange(blocks * length) < n).reshape(blocks, length)

    products = np.broadcast_to(np.eye(m), (blocks, m, m)).copy()
    for step in range(length):
        moved = (products @ transitions) * density[:, step, None, :]
        moved /= moved.max(axis=(1, 2), keepdims=True)
        products = np.where(real[:, step, None, None], moved, products)

    forward_start, backward_end = _ends(products)
    forward = np.empty((blocks, length, m))  # state law after each step, normalised
    before = np.empty((blocks, length, m))
    norms = np.ones((blocks, length))
    vector = forward_start
    for step in range(length):
        before[:, step] = vector
        moved = (vector @ transitions) * density[:, step]
        norm = moved.sum(axis=1)
        norms[:, step] = np.where(real[:, step], norm, 1.0)
        vector = np.where(real[:, step, None], moved / norm[:, None], vector)
        forward[:, step] = vector
    backward = np.empty((blocks, length, m))
    vector = backward_end
    for step in range(length - 1, -1, -1):
        backward[:, step] = vector
        moved = (density[:, step] * vector) @ transitions.T
        vector = np.where(real[:, step, None], moved / moved.sum(axis=1, keepdims=True), vector)

    after, follow, previous, likely = (a.reshape(-1, m)[:n] for a in (forward, backward, before, density))
    posterior = after * follow
    posterior /= posterior.sum(axis=1, keepdims=True)
    ahead = likely * follow
    weight = np.einsum("ti,ij,tj->t", previous, transitions, ahead, optimize=True)
    counts = transitions * (previous.T @ (ahead / weight[:, None]))
    return posterior, counts, float(np.log(norms.reshape(-1)[:n]).sum() + offset.sum())


def _ends(products: Array) -> tuple[Array, Array]:
    """State law before each block and what follows after it, (blocks, m), on the circle: the Perron vectors of the whole turn."""
    blocks, m, _ = products.shape
    turn = np.eye(m)
    for product in products:
        turn = turn @ product
        turn /= turn.max()
    left = _perron_vector(turn)
    right = _perron_vector(turn.T)
    start, end = np.empty((blocks, m)), np.empty((blocks, m))
    for block in range(blocks):
        start[block] = left
        left = left @ products[block]
        left = left / left.sum()
    for block in range(blocks - 1, -1, -1):
        end[block] = right
        right = products[block] @ right
        right = right / right.sum()
    return start, end


def _perron_vector(matrix: Array) -> Array:
    """The left Perron vector of a non-negative matrix, summing to one; by power iteration (a long product has almost rank one)."""
    vector = np.full(len(matrix), 1 / len(matrix))
    for _ in range(100):
        following = vector @ matrix
        following = following / following.sum()
        if np.abs(following - vector).max() < 1e-13:
            break
        vector = following
    return vector
