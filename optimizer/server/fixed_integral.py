"""The latency law from its densities at the nodes, where service times are fixed (docs/model.md, section 4.6).

The notation is that of ``fixed``. (4.26) is a sum over all pairs of c seconds and k arrivals awaited, those of one c
together, of

    I_{c,k}(t) = integral_0^{t-c} h_{c,k}(r) P(E_k <= t - c - r) dr,      P(E_k > s) = P(Poisson(lambda s) < k).

Panels that end below t - c have their nodes. In the one that t - c cuts, h is the polynomial through its nodes, and the part up to
t - c gets a panel of its own. With k = 0 the probability is 1, and the whole panels' integrals are known for every t.
"""

from __future__ import annotations

from math import exp, lgamma, log
from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled, inlined
from sluice.optimizer.server.fixed_density import GAUSS, Panels

_LATE = 1e-17  # a probability to be late that is left out
_RECURSIVE = 600.0  # exp(-x) is a normal number up to beyond here


class Densities(NamedTuple):
    """h by pairs (c, k), in the order of c and then of k.

    Parameters
    ----------
    seconds, awaited : array, shape (n,)
        c, s, and k.
    values : array, shape (n, n_nodes)
        h at the nodes, 1/s.
    summed : array, shape (n, n_panels + 1)
        Its integrals over the first 0, 1, ... panels.
    """

    seconds: Array
    awaited: Indices
    values: Array
    summed: Array


class Idle(NamedTuple):
    """Those who find the server idle, in no order: the pairs (c, k) and how probable they are, shape (n,)."""

    seconds: Array
    awaited: Indices
    weight: Array


class Rule(NamedTuple):
    """Gauss-Legendre quadrature over (0, 1) and barycentric interpolation through its points, shape (n_points,) each."""

    points: Array
    weights: Array
    barycentric: Array


class Law(NamedTuple):
    """Everything (4.26) asks for, at ``rate`` arrivals per second."""

    rate: float
    idle: Idle
    densities: Densities
    panels: Panels
    rule: Rule


class _Work(NamedTuple):
    """Room to work in.

    Parameters
    ----------
    late : array, shape (most k + 1,)
        P(E_k > s) for 0, 1, ...
    shares : array, shape (n_points, n_points)
        At each point of the part of a panel that t - c leaves, the shares of the panel's nodes in h there.
    part : array, shape (n_points,)
        The weights of the panel's nodes in the integral over that part.
    """

    late: Array
    shares: Array
    part: Array


def rule() -> Rule:
    """That of the panels."""
    x, w = GAUSS
    points = (x + 1) / 2
    apart = points[:, None] - points
    np.fill_diagonal(apart, 1.0)
    return Rule(points, w / 2, np.asarray(1 / apart.prod(axis=1)))


def integrated(seconds: Array, awaited: Indices, values: Array, panels: Panels) -> Densities:
    """Densities in their order, without those that are 0, and with their integrals."""
    present = values.max(axis=1) > 0
    order = np.lexsort((awaited[present], seconds[present]))
    values = np.ascontiguousarray(values[present][order])
    by_panel = (values * panels.weights).reshape(len(values), len(panels.edges) - 1, -1).sum(axis=2)
    summed = np.concatenate([np.zeros((len(values), 1)), np.cumsum(by_panel, axis=1)], axis=1)
    return Densities(seconds[present][order], awaited[present][order], values, summed)


def probabilities_within(law: Law, times: Array) -> Array:
    """(4.26) at ``times`` (s), shape (n_times,)."""
    most = max(int(of.awaited.max(initial=0)) for of in (law.idle, law.densities))
    n_points = len(law.rule.points)
    work = _Work(np.empty(most + 1), np.empty((n_points, n_points)), np.empty(n_points))
    return np.asarray(np.clip(_probabilities_within(law, times, work), 0.0, 1.0))


@compiled
def _probabilities_within(law: Law, times: Array, work: _Work) -> Array:
    result = np.zeros(len(times))
    for at in range(len(times)):
        result[at] = _add_busy(_from_idle(law.rate, law.idle, times[at], work.late), law, times[at], work)
    return result


@inlined
def _from_idle(rate: float, idle: Idle, t: float, late: Array) -> float:
    """Those found idle who are answered within ``t``."""
    total = 0.0
    for j in range(len(idle.seconds)):
        if t >= idle.seconds[j]:
            k = idle.awaited[j]
            _still_awaited(rate * (t - idle.seconds[j]), k, late)
            total += idle.weight[j] * (1 - late[k])
    return total


# Who adds to the total takes it and returns it, so that hundreds of thousands of terms are summed one after the other.


@inlined
def _add_busy(total: float, law: Law, t: float, work: _Work) -> float:
    """I_{c,k}(t) of all pairs."""
    seconds, awaited, values, summed = law.densities
    points, rule_weights, barycentric = law.rule
    edges, rate = law.panels.edges, law.rate
    n_panels, n_points = len(edges) - 1, len(points)
    late, shares, part = work
    start = 0
    while start < len(seconds) and seconds[start] < t:
        end = _end_of_sum(seconds, start)
        left = t - seconds[start]
        panel = _panel(edges, left)
        # Long after all services are over, what is left is not worth a look at every node.
        if panel == n_panels and _certain(rate * (left - edges[n_panels]), awaited[end - 1], late):
            total = _add_integrals(total, summed, start, end)
        else:
            width = 0.0
            if panel < n_panels:
                width = left - edges[panel]
                _interpolate(points, barycentric, width / (edges[panel + 1] - edges[panel]), shares)
            # Pairs are in the order of k, so that only the first may wait for nobody.
            if awaited[start] == 0:
                _weigh(width, rule_weights, shares, part)
                total = _add_at_once(total + summed[start, panel], part, values, start, panel * n_points, width)
                start += 1
            if start < end:
                total = _add_whole_panels(total, law, start, end, panel, left, late)
                total = _add_cut_panel(total, law, start, end, panel, width, work)
        start = end
    return total


@inlined
def _panel(edges: Array, left: float) -> int:
    """The panel that ``left`` cuts, from its lower edge on; their number where it is beyond all."""
    below, above = 0, len(edges)
    if left >= edges[above - 1]:
        return above - 1
    while above - below > 1:
        middle = (below + above) // 2
        if edges[middle] <= left:
            below = middle
        else:
            above = middle
    return below


@inlined
def _end_of_sum(seconds: Array, start: int) -> int:
    """The pairs from ``start`` to there share c."""
    end = start + 1
    while end < len(seconds) and seconds[end] == seconds[start]:
        end += 1
    return end


@inlined
def _certain(expected: float, most: int, late: Array) -> bool:
    """Whether ``most`` have come where so many are expected."""
    if most > 0:
        _still_awaited(expected, most, late)
    return bool(most == 0 or late[most] < _LATE)


@inlined
def _add_integrals(total: float, summed: Array, start: int, end: int) -> float:
    """The integrals of h over all panels."""
    for j in range(start, end):
        total += summed[j, -1]
    return total


@inlined
def _weigh(width: float, weights: Array, shares: Array, part: Array) -> None:
    """Fill ``part`` with the weights of a panel's nodes in an integral over its first ``width`` seconds."""
    part[:] = 0.0
    for point in range(len(weights)):
        for node in range(len(weights)):
            part[node] += width * weights[point] * shares[point, node]


@inlined
def _add_at_once(total: float, part: Array, values: Array, j: int, first_node: int, width: float) -> float:
    """The integral of h over the first ``width`` seconds of a panel, by the weights of its nodes."""
    if width > 0:
        for node in range(len(part)):
            total += part[node] * values[j, first_node + node]
    return total


@inlined
def _add_whole_panels(total: float, law: Law, start: int, end: int, panel: int, left: float, late: Array) -> float:
    """I over the panels below ``panel``."""
    awaited, values = law.densities.awaited, law.densities.values
    _, nodes, weights = law.panels
    for node in range(panel * len(law.rule.points)):
        _still_awaited(law.rate * (left - nodes[node]), awaited[end - 1], late)
        for j in range(start, end):
            total += weights[node] * values[j, node] * (1 - late[awaited[j]])
    return total


@inlined
def _add_cut_panel(total: float, law: Law, start: int, end: int, panel: int, width: float, work: _Work) -> float:
    """I over the first ``width`` seconds of ``panel``, a share of h at each point of a rule of its own."""
    awaited, values = law.densities.awaited, law.densities.values
    points, weights, _ = law.rule
    late, shares, _ = work
    n_points = len(points) if width > 0 else 0
    for point in range(n_points):
        _still_awaited(law.rate * width * (1 - points[point]), awaited[end - 1], late)
        for j in range(start, end):
            density = 0.0
            for node in range(n_points):
                density += shares[point, node] * values[j, panel * n_points + node]
            total += width * weights[point] * density * (1 - late[awaited[j]])
    return total


@compiled
def _still_awaited(expected: float, most: int, late: Array) -> None:
    """Fill ``late`` with P(Poisson(expected) < k) for k = 0, 1, ... ``most``."""
    late[0] = 0.0
    value = exp(-expected)
    for k in range(most):
        if expected >= _RECURSIVE:  # exp(-expected) may be 0, and a recursion from it would stay there
            value = exp(k * log(expected) - expected - lgamma(k + 1.0))
        late[k + 1] = late[k] + value
        value *= expected / (k + 1)


@inlined
def _interpolate(points: Array, barycentric: Array, part: float, shares: Array) -> None:
    """Fill ``shares`` for the points of a rule over the first ``part`` of a panel of length 1."""
    for point in range(len(points)):
        _cardinal(part * points[point], points, barycentric, shares[point])


@compiled
def _cardinal(at: float, points: Array, barycentric: Array, result: Array) -> None:
    """Values at ``at`` of the polynomials that are 1 at one of the ``points`` and 0 at the others."""
    total = 0.0
    for node in range(len(points)):
        away = at - points[node]
        if away == 0:  # the barycentric formula has its limit there
            result[:] = 0.0
            result[node] = 1.0
            return
        result[node] = barycentric[node] / away
        total += result[node]
    for node in range(len(points)):
        result[node] /= total
