"""Environments under way: how many an invocation of a MAP finds, and whether it starts cold (3.2; ``cold_starts`` has the law).

Phases are few and levels many, so that everything here is loops of machine code over small matrices; they get copies, as of an
array that may not be written there would be other code.
"""

from __future__ import annotations

from functools import lru_cache
from math import comb, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess, stationary_distribution
from sluice.optimizer.compiled import compiled, inlined

MOST_LEVELS = 320  # environments looked at; of more the number is scaled down, which makes of a small share a rough one
_NEVER = 1e-11  # of the time that so many are under way
_NODES = 9  # of the Euler method, which is then exact to 1e-6


def lost(invocations: ArrivalProcess, busy: float, servers: int, beside: Array | None = None) -> float:
    """Share of the invocations that find so many environments busy and go elsewhere: Erlang's loss, of a MAP.

    Of those that find any under way the part ``beside`` comes, by phase after it (n_phases,); by default all.
    """
    some = _some_of(invocations, beside)
    phases = _under_way(invocations.D0, invocations.D1, *some, 1 / busy, servers)
    return float((phases[-1] @ some[1]).sum()) / invocations.arrival_rate


def by_level(invocations: ArrivalProcess, busy: float, keep_alive: float, beside: Array | None = None) -> Array:
    """Share of the invocations that find 0, 1, ... under way and start cold, by phase after them: (n_levels, n_phases).

    It ends where next to nobody is; ``beside`` as ``lost`` has it.
    """
    m, (n, part) = 1 / busy, _most_levels(invocations, busy)
    D0, D1 = invocations.D0 + (1 - part) * invocations.D1, part * invocations.D1
    some = _some_of(invocations, part * (np.ones(len(D0)) if beside is None else beside))
    phases = _under_way(D0, D1, *some, m, n)
    tails = np.cumsum(phases[::-1].sum(axis=1))[::-1]
    levels = int(np.argmax(tails[1:] < _NEVER)) if (tails[1:] < _NEVER).any() else n
    down = phases * (np.arange(n + 1) * m / float((phases @ D1).sum()))[:, None]
    nodes, weights = _euler(_NODES)
    s = np.append(nodes, 1e-12) / keep_alive
    return _cold(
        np.array(D0), np.array(D1), np.array(some[0]), np.array(some[1]), m, down[: levels + 1], s, weights / (s[:-1] * keep_alive)
    )


def _some_of(invocations: ArrivalProcess, part: Array | None) -> tuple[Array, Array]:
    """Both rates of invocations of which a ``part`` comes, by phase after it; all for ``None``."""
    coming = invocations.D1 * (1.0 if part is None else part)
    return invocations.D0 + invocations.D1 - coming, coming


def lost_by_level(invocations: ArrivalProcess, busy: float, most: int, beside: Array) -> Array:
    """Erlang's loss of 0 to ``most`` environments at the load of those who come in one invocation, by phase: (most + 1, n_phases).

    Of environments and invocations as ``by_level`` counts them.
    """
    _, part = _most_levels(invocations, busy)
    return _losses(part * seen(invocations, busy, beside), most)


@compiled
def _losses(load: Array, most: int) -> Array:
    found = np.ones((most + 1, len(load)))
    for k in range(1, most + 1):
        for i in range(len(load)):
            found[k, i] = load[i] * found[k - 1, i] / (k + load[i] * found[k - 1, i])
    return found


def _most_levels(invocations: ArrivalProcess, busy: float) -> tuple[int, float]:
    """As many environments as are looked at, and which part of all invocations that is for."""
    load = float(seen(invocations, busy).max())
    n = int(load + 8 * sqrt(load) + 12)
    return min(n, MOST_LEVELS), min(1.0, MOST_LEVELS / n)


def seen(arrivals: ArrivalProcess, seconds: float, part: Array | None = None) -> Array:
    """Mean number of arrivals within an exponential time, by phase at its beginning: (n_phases,).

    Of those of which a ``part`` counts, by phase after them; by default all.
    """
    coming = arrivals.D1.sum(axis=1) if part is None else arrivals.D1 @ part
    return np.asarray(np.linalg.solve(np.eye(arrivals.n_phases) / seconds - arrivals.D0 - arrivals.D1, coming))


def _under_way(first0: Array, first1: Array, D0: Array, D1: Array, m: float, most: int) -> Array:
    """Probability of every phase with 0, 1, ... under way, those that find ``most`` being lost: (most + 1, n_phases).

    ``first0`` and ``first1`` are of those who find none, ``D0`` and ``D1`` of the others.
    """
    up = _one_more(np.array(first1), np.array(D0), np.array(D1), float(m), most)
    return _following(stationary_distribution(first0 + m * up[0]), up)


@compiled
def _following(none: Array, up: Array) -> Array:
    """The probabilities of which ``none`` are the first, but for a factor."""
    most, n = len(up), len(none)
    found, whole = np.zeros((most + 1, n)), 0.0
    found[0] = none
    for k in range(most):
        for i in range(n):
            for j in range(n):
                found[k + 1, j] += found[k, i] * up[k, i, j]
    for k in range(most + 1):
        for i in range(n):
            whole += found[k, i]
    return found / whole


@compiled
def _one_more(first: Array, D0: Array, D1: Array, m: float, most: int) -> Array:
    """By what the phases with 0, 1, ... under way are multiplied for those with one more: (most, n_phases, n_phases).

    ``R_k = D1 [(k + 1) m I - D0 - (k + 2) m R_{k+1}]^-1``, with ``first`` in place of the D1 before that where k = 0, and the last
    of them with ``D0 + D1``.
    """
    n = len(D0)
    up = np.zeros((most + 1, n, n))
    matrix, right = np.empty((n, n)), np.empty((n, n))
    for k in range(most - 1, -1, -1):
        for i in range(n):
            for j in range(n):  # transposed, as what is solved for stands on the left
                matrix[j, i] = -D0[i, j] - (k + 2) * m * up[k + 1, i, j]
                if k == most - 1:
                    matrix[j, i] -= D1[i, j]
                right[j, i] = first[i, j] if k == 0 else D1[i, j]
            matrix[i, i] += (k + 1) * m
        _solve(matrix, right)
        for i in range(n):
            for j in range(n):
                up[k, i, j] = right[j, i]
    return up[:most]


@compiled
def _cold(first0: Array, first1: Array, D0: Array, D1: Array, m: float, down: Array, s: Array, weights: Array) -> Array:
    """The clipped shares of ``by_level``: ``down`` by which level and phase one ends, ``s`` with its last as good as 0.

    ``first0`` and ``first1`` are of those who find none under way.
    """
    n, levels = len(D0), len(down) - 1
    entered = np.nonzero(D1.sum(axis=0))[0]  # no passage ends in another phase
    passage = np.zeros((len(s), n, len(entered)), np.complex128)
    matrix, right = np.empty((n, n), np.complex128), np.empty((n, len(entered)), np.complex128)
    shares = np.zeros((levels, n))
    for k in range(levels):
        for x in range(len(s)):
            for i in range(n):
                for j in range(n):
                    matrix[i, j] = -first0[i, j] if k == 0 else -D0[i, j]
                for e in range(len(entered)):
                    matrix[i, entered[e]] -= k * m * passage[x, i, e]
                    right[i, e] = first1[i, entered[e]] if k == 0 else D1[i, entered[e]]
                matrix[i, i] += s[x] + k * m
            _solve(matrix, right)
            passage[x] = right
        for e in range(len(entered)):
            share = 0.0
            for x in range(len(s) - 1):
                later = 0j
                for i in range(n):
                    later += down[k + 1, i] * (passage[-1, i, e] - passage[x, i, e])
                share += (weights[x] * later).real
            shares[k, entered[e]] = min(max(share, 0.0), 1.0)
    return shares


@inlined
def _solve(matrix: NDArray[Any], right: NDArray[Any]) -> None:
    """``right`` becomes ``matrix^-1 right``, and ``matrix`` is spent: elimination with the largest of each column first.

    Of complex numbers the largest is as LAPACK has it, by the sum of both parts: a root takes as long as a row.
    """
    n, columns = right.shape
    for k in range(n):
        pivot = k
        for i in range(k + 1, n):
            if _largeness(matrix[i, k]) > _largeness(matrix[pivot, k]):
                pivot = i
        if pivot != k:
            for j in range(n):
                matrix[k, j], matrix[pivot, j] = matrix[pivot, j], matrix[k, j]
            for j in range(columns):
                right[k, j], right[pivot, j] = right[pivot, j], right[k, j]
        for i in range(n):
            if i != k:
                factor = matrix[i, k] / matrix[k, k]
                for j in range(k + 1, n):
                    matrix[i, j] -= factor * matrix[k, j]
                for j in range(columns):
                    right[i, j] -= factor * right[k, j]
    for k in range(n):
        for j in range(columns):
            right[k, j] /= matrix[k, k]


@inlined
def _largeness(x: Any) -> float:
    return float(abs(x.real) + abs(x.imag))


@lru_cache(maxsize=1)
def _euler(m: int) -> tuple[Array, Array]:
    """Nodes and weights of the Euler method, to be divided by the time: (2 m + 1,)."""
    k = np.arange(2 * m + 1)
    xi = np.ones(2 * m + 1)
    xi[0], xi[2 * m] = 0.5, 2.0**-m
    for i in range(1, m):
        xi[2 * m - i] = xi[2 * m - i + 1] + 2.0**-m * comb(m, i)
    return m * np.log(10) / 3 + 1j * np.pi * k, 10 ** (m / 3) * (1 - 2 * (k % 2)) * xi
