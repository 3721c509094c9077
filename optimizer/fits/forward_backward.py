"""Hidden Markov model with Erlang gaps: likelihood and expected statistics (docs/model.md, section 1.3).

Each gap is drawn in a hidden state ``i`` from a gamma law of ``shapes[i]`` stages and mean ``means[i]`` (an Erlang law where
the shape is an integer); the states form a Markov chain from gap to gap, ``transitions``. The sequence is closed to a circle:
its last gap is followed by its first, as if the trace were repeated for ever. Then as many transitions lead into a state as out
of it, and the mean gap of a model fitted to these statistics is exactly that of the data.

With densities ``b_t`` of gap ``t``, forward laws ``a_t = (a_{t-1} P) b_t / s_t`` of norm one and backward vectors ``u_{t-1} = P
(b_t u_t) / s_t``, ``a_t u_t`` sums to one for every ``t``, so that the state probabilities are ``a_t(i) u_t(i)``, the expected
transitions ``a_{t-1}(i) P_ij b_t(j) u_t(j) / s_t``, and the log-likelihood is ``sum log s_t`` (Rabiner 1989, section V.A). The
closing law ``a_0 = a_n`` is the Perron vector of the whole turn, found by turning again until it stands still. Densities are
kept, forward laws at the start of each block of gaps alone and computed again within the block, which costs no exponential:
memory is n_states * n numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

_BLOCK = 256
_RUN_UP = 512  # gaps before the first that are run through for a first idea of the closing law
_TURNS = 50
_STANDS_STILL = 1e-9


@dataclass(frozen=True)
class ExpectedStatistics:
    """What the M step needs: the log-likelihood (nats, on the circle) and per state, in expectation over the hidden states, the
    number of gaps, their sum (s), the sum of their logarithms, each (n_states,), and the transitions, (n_states, n_states).
    """

    log_likelihood: float
    weights: Array
    sums: Array
    log_sums: Array
    transitions: Array


def expect(gaps: Array, log_gaps: Array, shapes: Array, means: Array, transitions: Array) -> ExpectedStatistics:
    """Expected statistics on the circle of ``gaps`` (s, > 0), shape (n,), and their logarithms."""
    n, m = len(gaps), len(means)
    rates = shapes / means
    density, starts = np.empty((n, m)), np.empty(((n - 1) // _BLOCK + 1, m))
    run_up = slice(max(0, n - _RUN_UP), n)
    first = np.full(m, 1 / m)
    offset = _densities(gaps, log_gaps, shapes - 1.0, rates, shapes * np.log(rates) - special.gammaln(shapes), density)
    _forward(density[run_up], transitions, first, starts)
    for _ in range(_TURNS):
        before = first.copy()
        log_likelihood = _forward(density, transitions, first, starts) + offset
        if np.abs(first - before).max() < _STANDS_STILL:
            break
    last = np.ones(m)
    weights, sums, log_sums, counts = np.empty(m), np.empty(m), np.empty(m), np.empty((m, m))
    run_up = slice(0, min(n, _RUN_UP))
    _backward(gaps[run_up], log_gaps[run_up], density[run_up], transitions, last, starts, weights, sums, log_sums, counts)
    for _ in range(_TURNS):
        last /= last.max()
        before = last.copy()
        _backward(gaps, log_gaps, density, transitions, last, starts, weights, sums, log_sums, counts)
        if np.abs(last / last.max() - before).max() < _STANDS_STILL:
            break
    return ExpectedStatistics(log_likelihood, weights, sums, log_sums, counts * transitions)


@compiled
def _densities(gaps: Array, log_gaps: Array, powers: Array, rates: Array, constants: Array, density: Array) -> float:
    """Fills ``density``, (n, n_states), each row over its largest; the sum of the logarithms of what they were divided by."""
    n, m = density.shape
    total = 0.0
    for t in range(n):
        largest = -np.inf
        for i in range(m):
            density[t, i] = constants[i] + powers[i] * log_gaps[t] - rates[i] * gaps[t]
            largest = max(largest, density[t, i])
        for i in range(m):
            density[t, i] = np.exp(density[t, i] - largest)
        total += largest
    return total


@compiled
def _forward(density: Array, transitions: Array, law: Array, starts: Array) -> float:
    """Log-likelihood from the state law ``law``, which becomes the law after the last gap; fills ``starts``, the laws before
    each block.
    """
    n, m = density.shape
    moved = np.empty(m)
    total, product = 0.0, 1.0
    for t in range(n):
        if t % _BLOCK == 0:
            for i in range(m):
                starts[t // _BLOCK, i] = law[i]
        norm = 0.0
        for j in range(m):
            sum_j = 0.0
            for i in range(m):
                sum_j += law[i] * transitions[i, j]
            moved[j] = sum_j * density[t, j]
            norm += moved[j]
        inverse = 1.0 / norm
        for j in range(m):
            law[j] = moved[j] * inverse
        product *= norm
        if product < 1e-200:
            total += np.log(product)
            product = 1.0
    return float(total + np.log(product))


@compiled
def _backward(
    gaps: Array,
    log_gaps: Array,
    density: Array,
    transitions: Array,
    ahead: Array,
    starts: Array,
    weights: Array,
    sums: Array,
    log_sums: Array,
    counts: Array,
) -> None:
    """Fills the statistics (transitions without their factor ``P_ij``) given what follows the last gap, ``ahead``, which
    becomes what follows the one before the first, and the forward laws at the block starts.
    """
    n, m = density.shape
    laws = np.empty((_BLOCK + 1, m))
    inverse = np.empty(_BLOCK)
    likely = np.empty(m)
    weights[:] = 0.0
    sums[:] = 0.0
    log_sums[:] = 0.0
    counts[:] = 0.0
    for block in range((n - 1) // _BLOCK, -1, -1):
        first = block * _BLOCK
        length = min(_BLOCK, n - first)
        laws[0] = starts[block]
        for t in range(length):
            norm = 0.0
            for j in range(m):
                sum_j = 0.0
                for i in range(m):
                    sum_j += laws[t, i] * transitions[i, j]
                laws[t + 1, j] = sum_j * density[first + t, j]
                norm += laws[t + 1, j]
            inverse[t] = 1.0 / norm
            for j in range(m):
                laws[t + 1, j] *= inverse[t]
        norm = 0.0
        for i in range(m):
            norm += laws[length, i] * ahead[i]
        for i in range(m):
            ahead[i] /= norm
        for t in range(length - 1, -1, -1):
            gap, log_gap, scale = gaps[first + t], log_gaps[first + t], inverse[t]
            for i in range(m):
                here = laws[t + 1, i] * ahead[i]
                weights[i] += here
                sums[i] += here * gap
                log_sums[i] += here * log_gap
                likely[i] = density[first + t, i] * ahead[i] * scale
            for i in range(m):
                law, sum_i = laws[t, i], 0.0
                for j in range(m):
                    counts[i, j] += law * likely[j]
                    sum_i += transitions[i, j] * likely[j]
                ahead[i] = sum_i
