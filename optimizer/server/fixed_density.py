"""Whom a request meets, and what that comes to, where service times are fixed (docs/model.md, section 4.6).

The notation is that of ``latency``. The density of (4.25) goes down in r, the seconds left of the service met, from edge to
edge: 0 = e_0 < e_1 < ... < e_P are all service times of the table and, between them, steps of at most one mean gap. With * the
convolution over x,

    W(.; r) = W(.; e_{p+1}) * Poisson(lambda (e_{p+1} - r)),                                            e_p <= r < e_{p+1}
    W(x; e_p) = [W(.; e_{p+1}) * Poisson(lambda (e_{p+1} - e_p))](x) + sum_{l(a) = e_p} D(x + a) 1[a(x + a) = a].

Of x = i + m A ahead, m full batches go first, i < Q being left: m is 0 or the least that is enough. By then Poisson(lambda (r +
m l(A))) came behind the request, so that with the outcomes p of ``fixed_outcomes``

    early:  h_{m,(c,k)}(r) = sum_i W(i + m A; r) sum_{n < known(i)} P(Poisson(lambda (r + m l(A))) = n) p_{i,n}(c, k)
    late:   h_j(r) = sum over m + floor(i / A) + 1 = j of W(i + m A; r) P(Poisson(lambda (r + m l(A))) >= known(i))

are the densities of those answered c + E_k after the service met and m full ones, and after it and j full ones. From m =
``settled`` on, where P(Poisson(m lambda l(A)) < Q) < 1e-17, there are only the late ones.

r stands at the nodes of Gauss-Legendre panels between the edges: W is analytic between two service times, and so is h. Densities
are per second; arrays have a row of nodes for each (c, k) or j, and W a row of x for each node.
"""

from __future__ import annotations

from itertools import pairwise
from math import exp, lgamma, log
from typing import NamedTuple

import numpy as np
from numpy.polynomial.legendre import leggauss

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled, inlined
from sluice.optimizer.server.epochs import DecisionEpochs
from sluice.optimizer.server.fixed_outcomes import Outcomes

GAUSS = leggauss(12)  # nodes and weights of a panel, if it were (-1, 1)
_WIDEST = 1.0  # a panel, in mean gaps
_SAME = 1e-12  # of the longest service time: those no farther apart are one
_NO_WEIGHT = 1e-17
_NO_DENSITY = 1e-20  # of x that is met, and probability of arrivals at which a convolution ends
_NO_CHANCE = 1e-18  # of so many behind
_ARRIVALS = 64  # more never come within a panel
_RECURSIVE = 600.0  # exp(-x) is a normal number up to beyond here


class Panels(NamedTuple):
    """Panels over the seconds left of a service.

    Parameters
    ----------
    edges : array, shape (n_panels + 1,)
    nodes, weights : array, shape (n_panels * n_points,)
        Of the quadrature, panel by panel.
    """

    edges: Array
    nodes: Array
    weights: Array


class FullBatches(NamedTuple):
    """The batches of the last row.

    Parameters
    ----------
    rate : float
        Arrivals per second.
    row, size : int
        Q and A.
    seconds : float
        l(A).
    settled : int
        After so many no row but the last is met.
    most : int
        More than j can be.
    """

    rate: float
    row: int
    size: int
    seconds: float
    settled: int
    most: int


def panels_of(epochs: DecisionEpochs, service: Array) -> Panels:
    """Panels whose edges are 0, every service time of the table, and steps between them of at most ``_WIDEST`` mean gaps."""
    ends = np.unique(np.concatenate([[0.0], service[epochs.sizes - 1]]))
    # Service times that agree but for rounding are one.
    ends = ends[np.concatenate([[True], np.diff(ends) > _SAME * ends[-1]])]
    steps = [np.linspace(a, b, int(np.ceil(epochs.arrival_rate * (b - a) / _WIDEST)) + 1)[:-1] for a, b in pairwise(ends)]
    edges = np.concatenate([*steps, ends[-1:]])
    x, w = GAUSS
    half = np.diff(edges)[:, None] / 2
    return Panels(edges, (edges[:-1, None] + half + half * x).ravel(), (half * w).ravel())


def full_batches_of(epochs: DecisionEpochs, service: Array) -> FullBatches:
    """Those of a table."""
    rows, last, n = len(epochs.actions) - 1, int(epochs.actions[-1]), len(epochs.rates)
    seconds = float(service[last - 1])
    may_go_first = max(1, -(-max(n - rows, 0) // last) + 1)
    m = 1
    while m < may_go_first and arrivals_during(epochs.arrival_rate, np.array([m * seconds]), rows).sum() > _NO_WEIGHT:
        m += 1
    return FullBatches(epochs.arrival_rate, rows, last, seconds, m, (n + rows) // last + 2)


def arrivals_during(rate: float, seconds: Array, n_counts: int) -> Array:
    """Probabilities of 0 ... ``n_counts`` - 1 arrivals within ``seconds``, (len(seconds), n_counts)."""
    result = np.empty((len(seconds), n_counts))
    for law, time in zip(result, seconds, strict=True):
        _poisson(rate * float(time), law)
    return result


def met(epochs: DecisionEpochs, service: Array, panels: Panels) -> Array:
    """(4.25) at the nodes, shape (n_nodes, n)."""
    begun = np.zeros((len(panels.edges), len(epochs.rates)))
    for size in epochs.sizes:
        begun[int(np.argmin(np.abs(panels.edges - service[size - 1])))] += epochs.begun(int(size))
    return _met(epochs.arrival_rate, panels, begun)


def densities(found: Array, panels: Panels, outcomes: Outcomes, full: FullBatches) -> tuple[Array, Array]:
    """h at the nodes: early, shape (settled, n_outcomes, n_nodes), and late, shape (most, n_nodes), of ``found`` as in (4.25)."""
    early, late = _densities(found, panels.nodes, outcomes, full)
    return early, late.T


@compiled
def _poisson(expected: float, law: Array) -> None:
    """Fill ``law`` with the Poisson probabilities of 0, 1, ..."""
    if expected < _RECURSIVE:
        value = exp(-expected)
        for k in range(len(law)):
            law[k] = value
            value *= expected / (k + 1)
    else:  # exp(-expected) may be 0, and a recursion from it would stay there
        for k in range(len(law)):
            law[k] = exp(k * log(expected) - expected - lgamma(k + 1.0))


@compiled
def _met(rate: float, panels: Panels, begun: Array) -> Array:
    """``begun[e, x]``: services of the length ``edges[e]`` begun per second that leave x waiting."""
    edges, nodes = panels.edges, panels.nodes
    n_panels, n = len(edges) - 1, begun.shape[1]
    n_points = len(nodes) // n_panels
    found = np.zeros((len(nodes), n))
    at_edge = begun[n_panels].copy()
    law = np.empty(_ARRIVALS)
    below = np.empty(n)
    for panel in range(n_panels - 1, -1, -1):  # r falls: a service of any length has every r below it
        for node in range(panel * n_points, (panel + 1) * n_points):
            _poisson(rate * (edges[panel + 1] - nodes[node]), law)
            _convolve(at_edge, law, found[node])
        _poisson(rate * (edges[panel + 1] - edges[panel]), law)
        _convolve(at_edge, law, below)
        for x in range(n):
            at_edge[x] = below[x] + begun[panel, x]
    return found


@compiled
def _convolve(values: Array, law: Array, result: Array) -> None:
    """``result[x] = sum_k law[k] values[x - k]``; the law falls from where it is left out."""
    result[:] = 0.0
    n = len(values)
    for k in range(len(law)):
        if law[k] < _NO_DENSITY:
            break
        for x in range(k, n):
            result[x] += law[k] * values[x - k]


@compiled
def _densities(found: Array, nodes: Array, outcomes: Outcomes, full: FullBatches) -> tuple[Array, Array]:
    """``early`` and, a row for each node, ``late``."""
    n_nodes, n_outcomes = len(nodes), len(outcomes.seconds)
    early = np.zeros((full.settled, n_outcomes, n_nodes))
    late = np.zeros((n_nodes, full.most))
    law = np.empty(max(1, full.row))
    by_outcome = np.empty(n_outcomes)
    for node in range(n_nodes):
        for m in range(full.settled):
            _poisson(full.rate * (nodes[node] + m * full.seconds), law)
            by_outcome[:] = 0.0
            _after_full_batches(m, found[node], law, outcomes, full, by_outcome, late[node])
            for j in range(n_outcomes):
                early[m, j, node] = by_outcome[j]
        # Those with so many ahead only meet the last row, whatever comes: of x, every A begun takes one service.
        for x in range(full.row + (full.settled - 1) * full.size, found.shape[1]):
            late[node, x // full.size + 1] += found[node, x]
    return early, late


@inlined
def _after_full_batches(
    m: int, found: Array, law: Array, outcomes: Outcomes, full: FullBatches, by_outcome: Array, by_services: Array
) -> None:
    """Add those at one node who see ``m`` full batches go first; ``law`` is that of n."""
    first, known, begin, outcome, weight, _, _ = outcomes
    least = 0 if m == 0 else full.row - full.size  # with fewer left, fewer would have gone first
    for i in range(least, min(full.row, len(found) - m * full.size)):
        density = found[i + m * full.size]
        if density >= _NO_DENSITY:
            told = _mix(density, law, begin[first[i] : first[i] + known[i] + 1], outcome, weight, by_outcome)
            by_services[m + i // full.size + 1] += density * max(0.0, 1 - told)


@inlined
def _mix(density: float, law: Array, begin: Indices, outcome: Indices, weight: Array, by_outcome: Array) -> float:
    """Add ``density`` times the p_{i,n} of all n < known(i), mixed by ``law``; the probability of these n."""
    told = 0.0
    for n in range(len(begin) - 1):
        p = law[n]
        told += p
        if p > _NO_CHANCE:
            for entry in range(begin[n], begin[n + 1]):
                by_outcome[outcome[entry]] += density * p * weight[entry]
    return told
