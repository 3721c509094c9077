"""Latency in front of one server whose service times are fixed, by batch size (docs/model.md, section 4.6).

The notation is that of ``server_latency``. A request that finds a service with ``r`` seconds left meets ``x`` waiting with the
density

    W(x; r) = sum_q D(q) P(Poisson(lambda (l(a(q)) - r)) = x - q + a(q)) 1[r < l(a(q))],                                (4.25)

so that, going down in ``r``, W is convolved with a Poisson law, and at ``r = l(a)`` the services of ``a`` that begin there come
in. Of the x ahead, m full batches go first until i = x - m A < Q are left, at ``r + m l(A)``. From there the latency of (i, n) is
a mixture of sums ``c`` of service times, each with the wait for ``k`` arrivals, an Erlang law E_k. With h_{c,k}(r) what all x, m
and n together give to (c, k), everything counted from the arrival,

    P(R <= t) = sum_{c,k} integral_0^{t-c} h_{c,k}(r) P(E_k <= t - c - r) dr + the same, without r, of who finds it idle,   (4.26)

and the latter with k = 0 are atoms. W is analytic between two service times: so is h, and (4.26) is summed by Gauss-Legendre panels
that end there and at t - c, no wider than one mean gap, with an error below 1e-11.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import exp, lgamma, log
from typing import NamedTuple

import numpy as np
from numpy.polynomial.legendre import leggauss

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled
from sluice.optimizer.server.epochs import DecisionEpochs

_POINTS = 12  # per panel
_WIDEST = 1.0  # a panel, in mean gaps
_NO_WEIGHT = 1e-17
_UNLIKELY = 1e-14  # of the outcomes of a decision: the rarest are left out, their share going to the others
_MOST_OUTCOMES = 2**15
_SAME = 1e-12  # of the last row's service time: sums no farther apart are one
_MOST = 2**25  # numbers kept: a quarter of a gigabyte


@dataclass(frozen=True, eq=False)
class _Outcomes:
    """What (i, n) come to: mixtures of ``seconds`` with the wait for ``awaited`` arrivals.

    State (i, n) is ``first[i] + n``, n < ``known[i]``; its outcomes are ``outcome[begin[state] : begin[state + 1]]``.
    """

    first: Indices
    known: Indices
    begin: Indices
    outcome: Indices
    weight: Array
    seconds: Array
    awaited: Indices


class FixedServiceLatency:
    """Latency of a request, s, where a batch of ``b`` takes exactly ``service[b - 1]`` seconds.

    Parameters
    ----------
    epochs : DecisionEpochs
    service : array, shape (max_batch_size,)
        Seconds.

    Raises
    ------
    InvalidInput
        Where the table's partial batches add up to so many different sums that they do not fit into memory.
    """

    def __init__(self, epochs: DecisionEpochs, service: Array) -> None:
        self.epochs = epochs
        rate = epochs.arrival_rate
        last = int(epochs.actions[-1])
        rows = len(epochs.actions) - 1
        full = float(service[last - 1])
        outcomes = _outcomes(epochs, service)

        edges = _edges(rate, service[epochs.sizes - 1])
        x, w = leggauss(_POINTS)
        half = np.diff(edges) / 2
        nodes = (edges[:-1] + half)[:, None] + half[:, None] * x
        begun = np.zeros((len(edges), len(epochs.rates)))
        for size in epochs.sizes:
            begun[int(np.argmin(np.abs(edges - service[size - 1])))] += epochs.begun(int(size))
        met = _met(rate, edges, nodes, begun)

        n_full = max(1, -(-max(len(epochs.rates) - rows, 0) // last) + 1)  # full batches that may go first
        settled = _settled(rate * full, rows, n_full)
        n_outcomes, n_sums = len(outcomes.seconds), (len(epochs.rates) + rows) // last + 2
        if (n_outcomes * settled + n_sums) * nodes.size > _MOST:
            raise _too_many(epochs)
        early, late = _densities(rate, full, last, rows, settled, n_outcomes, n_sums, met, nodes.ravel(), *_arrays(outcomes))
        seconds = np.concatenate([full * m + outcomes.seconds for m in range(settled)] + [full * np.arange(n_sums)])
        awaited = np.concatenate([outcomes.awaited] * settled + [np.zeros(n_sums, dtype=np.int64)])
        values = np.concatenate([early.reshape(-1, nodes.size), late])
        self._from_idle(outcomes, full, last)

        weights = (half[:, None] * w).ravel()
        present = values.max(axis=1) > 0
        order = np.lexsort((awaited[present], seconds[present]))
        self._seconds = seconds[present][order]
        self._awaited = awaited[present][order]
        self._values = np.ascontiguousarray(values[present][order])
        self._edges, self._nodes, self._weights = edges, nodes.ravel(), weights
        panels = (self._values * weights).reshape(len(self._values), len(half), _POINTS).sum(axis=2)
        self._summed = np.concatenate([np.zeros((len(panels), 1)), np.cumsum(panels, axis=1)], axis=1)
        mean = self._summed[:, -1] @ (self._seconds + self._awaited / rate) + (self._values @ (weights * self._nodes)).sum()
        self.mean = float(mean + self._idle_weight @ (self._idle_seconds + self._idle_awaited / rate))
        self._rule = (x + 1) / 2, w / 2, _barycentric((x + 1) / 2)

    def _from_idle(self, outcomes: _Outcomes, full: float, last: int) -> None:
        """Requests that find the server idle: no time in service lies before them, and what waits for no arrival is an atom."""
        seconds, awaited, weight = [], [], []
        for i, probability in enumerate(self.epochs.idle):
            if outcomes.known[i] == 0:
                found = [((i // last + 1) * full, 0, 1.0)]
            else:
                state = outcomes.first[i]
                of = slice(outcomes.begin[state], outcomes.begin[state + 1])
                which = outcomes.outcome[of]
                found = list(zip(outcomes.seconds[which], outcomes.awaited[which], outcomes.weight[of], strict=True))
            for c, k, p in found:
                if probability * p > 0:
                    seconds.append(float(c))
                    awaited.append(int(k))
                    weight.append(float(probability * p))
        self._idle_seconds, self._idle_awaited = np.array(seconds), np.array(awaited, dtype=np.int64)
        self._idle_weight = np.array(weight)
        at_once = self._idle_awaited == 0
        self.atoms = np.unique(self._idle_seconds[at_once])
        self.atom_weights = np.array([self._idle_weight[at_once & (self._idle_seconds == c)].sum() for c in self.atoms])

    def cdf(self, times: Array) -> Array:
        """(4.26) at ``times`` (s), same shape."""
        times = np.asarray(times, dtype=np.float64)
        result = _cdf(
            times.ravel(),
            self.epochs.arrival_rate,
            self._edges,
            self._nodes,
            self._weights,
            self._values,
            self._summed,
            self._seconds,
            self._awaited,
            self._idle_seconds,
            self._idle_awaited,
            self._idle_weight,
            *self._rule,
        )
        return np.asarray(result.reshape(times.shape))


def _arrays(outcomes: _Outcomes) -> tuple[Indices, Indices, Indices, Indices, Array]:
    return outcomes.first, outcomes.known, outcomes.begin, outcomes.outcome, outcomes.weight


def _edges(rate: float, service: Array) -> Array:
    """Ends of the panels: 0, every service time, and between them so many that none is wider than ``_WIDEST`` mean gaps."""
    ends = np.unique(np.concatenate([[0.0], service]))
    # Service times that agree but for rounding are one.
    ends = ends[np.concatenate([[True], np.diff(ends) > _SAME * ends[-1]])]
    pieces = [np.linspace(a, b, int(np.ceil(rate * (b - a) / _WIDEST)) + 1)[:-1] for a, b in pairwise(ends)]
    return np.concatenate([*pieces, ends[-1:]])


def _settled(expected: float, rows: int, n_full: int) -> int:
    """After so many full batches no table row below the last is met: P(Poisson(m expected) < rows) is nothing."""
    m = 1
    while m < n_full and _below(m * expected, rows, np.empty(rows)) > _NO_WEIGHT:
        m += 1
    return m


@compiled
def _poisson(expected: float, law: Array) -> None:
    """Fill ``law`` with the Poisson probabilities of 0, 1, ..."""
    if expected < 600:
        value = exp(-expected)
        for k in range(len(law)):
            law[k] = value
            value *= expected / (k + 1)
    else:
        for k in range(len(law)):
            law[k] = exp(k * log(expected) - expected - lgamma(k + 1.0))


@compiled
def _below(expected: float, n: int, law: Array) -> float:
    """P(Poisson(expected) < n); ``law`` has room for ``n`` numbers."""
    if n == 0:
        return 0.0
    _poisson(expected, law[:n])
    return float(law[:n].sum())


@compiled
def _met(rate: float, edges: Array, nodes: Array, begun: Array) -> Array:
    """(4.25) at the nodes, (n_nodes, n): ``begun[e]`` are the services whose length is ``edges[e]``, by those they leave behind."""
    n_panels, n_points = nodes.shape
    n = begun.shape[1]
    met = np.zeros((n_panels * n_points, n))
    at_edge = begun[n_panels].copy()
    law = np.empty(64)
    following = np.empty(n)
    for panel in range(n_panels - 1, -1, -1):
        for point in range(n_points):
            _poisson(rate * (edges[panel + 1] - nodes[panel, point]), law)
            _convolve(at_edge, law, met[panel * n_points + point])
        _poisson(rate * (edges[panel + 1] - edges[panel]), law)
        _convolve(at_edge, law, following)
        for x in range(n):
            at_edge[x] = following[x] + begun[panel, x]
    return met


@compiled
def _convolve(values: Array, law: Array, result: Array) -> None:
    result[:] = 0.0
    n = len(values)
    for k in range(len(law)):
        if law[k] < 1e-20:
            break
        for x in range(k, n):
            result[x] += law[k] * values[x - k]


class _Mixtures(NamedTuple):
    """What the states with one number ahead come to: row n of ``weight`` are the probabilities of (seconds, awaited)."""

    seconds: Array
    awaited: Indices
    weight: Array


def _outcomes(epochs: DecisionEpochs, service: Array) -> _Outcomes:
    """Mixtures that (i, n), i < Q, come to, n being counted as far as it tells one row from another.

    A batch that leaves the request behind leads to smaller i, so mixtures are made from i = 0 on.
    """
    table, next_rows = epochs.actions, epochs.next_rows
    rows, last = len(table) - 1, int(table[-1])
    full = float(service[last - 1])
    known = rows - 1 - np.arange(rows) % last  # from so many behind on, the last row is all that is met
    law = np.empty(rows + 1)
    mixtures: list[_Mixtures] = []
    for ahead in range(rows):
        row = np.minimum(ahead + 1 + np.arange(known[ahead]), rows)
        until = next_rows[row]
        actions, waits = table[until], until - row
        # Rows with one action after one wait have the same outcomes, if with other probabilities.
        pairs, kind = np.unique(np.column_stack([actions, waits]), axis=0, return_inverse=True)
        kind = kind.ravel()
        ends = pairs[:, 0] > ahead  # in the next batch
        seconds, awaited = [service[pairs[ends, 0] - 1]], [pairs[ends, 1]]
        for action, wait in pairs[~ends]:
            # to what follows, and last to where the last row is all that is met
            left = ahead - action
            seconds.append(np.append(mixtures[left].seconds, (left // last + 1) * full) + service[action - 1])
            awaited.append(np.append(mixtures[left].awaited, 0) + wait)
        first, merged = _merged(np.concatenate(seconds), np.concatenate(awaited), full)
        weight = np.zeros((len(row), len(first)))
        of = np.flatnonzero(ends[kind])
        weight[of, merged[np.cumsum(ends)[kind[of]] - 1]] = 1.0
        start = len(seconds[0])
        for j, part in zip(np.flatnonzero(~ends), seconds[1:], strict=True):
            action, wait = pairs[j]
            then = mixtures[ahead - action].weight
            _poisson(epochs.arrival_rate * float(service[action - 1]), law)
            to = merged[start : start + len(part)]
            start += len(part)
            for behind in np.flatnonzero(kind == j):
                arrived = law[: len(then) - behind - wait]
                chances = np.append(arrived @ then[behind + wait :], max(0.0, 1 - arrived.sum()))
                weight[behind] = np.bincount(to, chances, len(first))
        if len(seconds) > 1:
            ordered = np.sort(weight, axis=1)
            kept_from = np.count_nonzero(np.cumsum(ordered, axis=1) <= _UNLIKELY, axis=1)
            weight[weight < ordered[np.arange(len(row)), kept_from][:, None]] = 0.0
            weight /= weight.sum(axis=1, keepdims=True)
        used = weight.any(axis=0)
        kept = first[used]
        mixtures.append(_Mixtures(np.concatenate(seconds)[kept], np.concatenate(awaited)[kept], weight[:, used]))
        if len(kept) > _MOST_OUTCOMES:
            raise _too_many(epochs)
    all_seconds = np.concatenate([mixture.seconds for mixture in mixtures])
    all_awaited = np.concatenate([mixture.awaited for mixture in mixtures])
    first, merged = _merged(all_seconds, all_awaited, full)
    if len(first) > _MOST_OUTCOMES:
        raise _too_many(epochs)
    begin, outcome, weights, start = [np.zeros(1, dtype=np.int64)], [], [], 0
    for mixture in mixtures:
        state, column = np.nonzero(mixture.weight)
        begin.append(begin[-1][-1] + np.cumsum(np.bincount(state, minlength=len(mixture.weight))))
        outcome.append(merged[start + column])
        weights.append(mixture.weight[state, column])
        start += len(mixture.seconds)
    return _Outcomes(
        np.concatenate([[0], np.cumsum(known)[:-1]]),
        known,
        np.concatenate(begin),
        np.concatenate(outcome),
        np.concatenate(weights),
        all_seconds[first],
        all_awaited[first],
    )


def _merged(seconds: Array, awaited: Indices, full: float) -> tuple[Indices, Indices]:
    """One index for each different pair, and of which of them each pair is; sums that differ by rounding are the same."""
    rounded = np.column_stack([np.round(seconds / (full * _SAME)).astype(np.int64), awaited])
    _, first, inverse = np.unique(rounded, axis=0, return_index=True, return_inverse=True)
    return first.astype(np.int64), inverse.astype(np.int64).ravel()


def _too_many(epochs: DecisionEpochs) -> InvalidInput:
    allowed = "a table with fewer ways in which batches that leave requests behind add up, or simulation"
    return InvalidInput("actions", epochs.actions.tolist(), allowed)


@compiled
def _densities(
    rate: float,
    full: float,
    last: int,
    rows: int,
    settled: int,
    n_outcomes: int,
    n_sums: int,
    met: Array,
    nodes: Array,
    first: Indices,
    known: Indices,
    begin: Indices,
    outcome: Indices,
    weight: Array,
) -> tuple[Array, Array]:
    """h of (4.26) at the nodes: by full batches first and outcome, and for those that meet the last row alone by services."""
    early = np.zeros((settled, n_outcomes, len(nodes)))
    late = np.zeros((n_sums, len(nodes)))
    law = np.empty(max(1, rows))
    here = np.empty(n_outcomes)
    n = met.shape[1]
    for node in range(len(nodes)):
        for m in range(settled):
            _poisson(rate * (nodes[node] + m * full), law)
            here[:] = 0.0
            for i in range(0 if m == 0 else rows - last, rows):
                if i + m * last >= n:
                    break
                density = met[node, i + m * last]
                if density < 1e-20:
                    continue
                below = 0.0
                for behind in range(known[i]):
                    p = law[behind]
                    below += p
                    if p > 1e-18:
                        state = first[i] + behind
                        for entry in range(begin[state], begin[state + 1]):
                            here[outcome[entry]] += density * p * weight[entry]
                late[m + i // last + 1, node] += density * max(0.0, 1 - below)
            early[m, :, node] = here
        for x in range(rows + (settled - 1) * last, n):
            late[x // last + 1, node] += met[node, x]
    return early, late


def _barycentric(points: Array) -> Array:
    """Weights of barycentric interpolation through ``points``."""
    apart = points[:, None] - points
    np.fill_diagonal(apart, 1.0)
    return np.asarray(1 / apart.prod(axis=1))


@compiled
def _cdf(
    times: Array,
    rate: float,
    edges: Array,
    nodes: Array,
    weights: Array,
    values: Array,
    summed: Array,
    seconds: Array,
    awaited: Indices,
    idle_seconds: Array,
    idle_awaited: Indices,
    idle_weight: Array,
    rule_points: Array,
    rule_weights: Array,
    barycentric: Array,
) -> Array:
    result = np.zeros(len(times))
    n_points = len(rule_points)
    n_panels = len(edges) - 1
    most = 0
    for k in awaited:
        most = max(most, k)
    for k in idle_awaited:
        most = max(most, k)
    law = np.empty(most + 1)
    cardinal = np.empty((n_points, n_points))  # at sub-point j: weights of the panel's points
    part = np.empty(n_points)
    for at in range(len(times)):
        t = times[at]
        total = 0.0
        for j in range(len(idle_seconds)):
            if t >= idle_seconds[j]:
                total += idle_weight[j] * (1 - _below(rate * (t - idle_seconds[j]), idle_awaited[j], law))
        start = 0
        while start < len(seconds) and seconds[start] < t:
            end = start
            while end < len(seconds) and seconds[end] == seconds[start]:
                end += 1
            s = t - seconds[start]
            if s >= edges[n_panels] and _below(rate * (s - edges[n_panels]), awaited[end - 1], law) < 1e-17:
                for j in range(start, end):
                    total += summed[j, n_panels]
                start = end
                continue
            panel = min(n_panels, np.searchsorted(edges, s, side="right") - 1)
            width = 0.0
            if panel < n_panels:
                width = s - edges[panel]
                scale = width / (edges[panel + 1] - edges[panel])
                part[:] = 0.0
                for j in range(n_points):
                    _cardinal(scale * rule_points[j], rule_points, barycentric, cardinal[j])
                    for i in range(n_points):
                        part[i] += width * rule_weights[j] * cardinal[j, i]
            group_most = awaited[end - 1]
            if awaited[start] == 0:
                total += summed[start, panel]
                if panel < n_panels:
                    for i in range(n_points):
                        total += part[i] * values[start, panel * n_points + i]
                start += 1
            if start < end:
                for i in range(panel * n_points):
                    _poisson(rate * (s - nodes[i]), law[: group_most + 1])
                    below, k = 0.0, 0
                    for j in range(start, end):
                        while k < awaited[j]:
                            below += law[k]
                            k += 1
                        total += weights[i] * values[j, i] * (1 - below)
                if panel < n_panels:
                    for p in range(n_points):
                        _poisson(rate * width * (1 - rule_points[p]), law[: group_most + 1])
                        below, k = 0.0, 0
                        for j in range(start, end):
                            while k < awaited[j]:
                                below += law[k]
                                k += 1
                            density = 0.0
                            for i in range(n_points):
                                density += cardinal[p, i] * values[j, panel * n_points + i]
                            total += width * rule_weights[p] * density * (1 - below)
            start = end
        result[at] = min(1.0, max(0.0, total))
    return result


@compiled
def _cardinal(at: float, points: Array, barycentric: Array, result: Array) -> None:
    """Values at ``at`` of the polynomials that are 1 at one of the ``points`` and 0 at the others."""
    total = 0.0
    for i in range(len(points)):
        away = at - points[i]
        if away == 0:
            result[:] = 0.0
            result[i] = 1.0
            return
        result[i] = barycentric[i] / away
        total += result[i]
    for i in range(len(points)):
        result[i] /= total
