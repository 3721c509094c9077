"""The loops of the batch queue with phases of the arrivals, compiled (docs/model.md, section 4.5)."""

from __future__ import annotations

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled, inlined
from sluice.optimizer.smdp.solution import Actions

_LOST = 1e-22  # of a probability that is not carried on


@compiled
def mixed(jumps: Array, silent: Array, arrival: Array, n_counts: int) -> Array:
    """``sum_m jumps[b, m] U_{m,k}`` with U of (1.4), k below ``n_counts``: (len(jumps), n_counts, n, n)."""
    n_batches, n_jumps = jumps.shape
    n = len(silent)
    width = n * n
    result = np.zeros((n_batches, n_counts * width))
    level, following = np.zeros((n_counts + 1, n, n)), np.zeros((n_counts + 1, n, n))
    for i in range(n):
        level[0, i, i] = 1.0
    first, last = 0, 0  # other counts have no weight
    for m in range(n_jumps):
        flat = level.reshape((n_counts + 1) * width)
        for b in range(n_batches):
            if jumps[b, m] > _LOST:
                _add_times(jumps[b, m], flat, first * width, (last + 1) * width, result[b])
        _jump(level, silent, arrival, first, last, following)
        level, following = following, level
        last = min(last + 1, n_counts - 1)
        while last > first and level[last].max() < _LOST:
            last -= 1
        while first < last and level[first].max() < _LOST:
            first += 1
        # the next jump reads one count beyond the last, from either array
        level[last + 1] = 0.0
        following[last + 1] = 0.0
    return result.reshape(n_batches, n_counts, n, n)


@inlined
def _add_times(weight: float, values: Array, first: int, end: int, result: Array) -> None:
    """``weight`` times the ``values`` from ``first`` to before ``end``."""
    for x in range(first, end):
        result[x] += weight * values[x]


@inlined
def _jump(level: Array, silent: Array, arrival: Array, first: int, last: int, following: Array) -> None:
    """U_{m+1,k} = U_{m,k} (I + D0 / r) + U_{m,k-1} D1 / r, up to one more than the ``last`` k."""
    n = len(silent)
    for k in range(first, last + 2):
        for i in range(n):
            for j in range(n):
                following[k, i, j] = _moved(level, k, i, j, silent, arrival, first)


@inlined
def _moved(level: Array, k: int, i: int, j: int, silent: Array, arrival: Array, first: int) -> float:
    moved = 0.0
    for between in range(len(silent)):
        moved += level[k, i, between] * silent[between, j]
        if k > first:
            moved += level[k - 1, i, between] * arrival[between, j]
    return moved


@compiled
def fill_moves(matrix: Array, leaves: Array, counts: Array, reach: Actions, actions: Actions) -> None:
    """Set ``matrix`` to one less the probabilities of moves, and ``leaves`` (n_states, n_phases) to those of moves beyond."""
    n, n_states = actions.shape
    for s in range(n_states):
        for i in range(n):
            row, a = s * n + i, actions[i, s]
            matrix[row, row] += 1.0
            inside = min(reach[a], n_states - s + a)
            for k in range(inside):
                for j in range(n):
                    matrix[row, (s - a + k) * n + j] -= counts[a, k, i, j]
            for k in range(inside, reach[a]):
                for j in range(n):
                    leaves[s, i] += counts[a, k, i, j]


@compiled
def moves_above(counts: Array, actions: Actions, above: int) -> Array:
    """Probabilities of moves to each of ``above`` states beyond the last row, (n_states, n_phases, above, n_phases)."""
    n, n_states = actions.shape
    moves = np.zeros((n_states, n, above, n))
    for s in range(n_states):
        for i in range(n):
            a = actions[i, s]
            start = n_states - s + a
            for k in range(start, min(counts.shape[1], start + above)):
                for j in range(n):
                    moves[s, i, k - start, j] = counts[a, k, i, j]
    return moves


@compiled
def weights_above(descents: Array, n_above: int) -> Array:
    """How the values above a row hang on the ``b`` values up to it, ascending: (n_above, b, n, n).

    A value is the sum of ``descents[d - 1]`` times that ``d`` below it, which is one of the b or has weights itself.
    """
    b, n = descents.shape[:2]
    weights = np.zeros((n_above, b, n, n))
    for above in range(n_above):
        for d in range(1, b + 1):
            if above < d:
                _add(descents[d - 1], weights[above, b + above - d])
            else:
                for x in range(b):
                    _add_product(descents[d - 1], weights[above - d, x], weights[above, x])
    return weights


@inlined
def _add(a: Array, result: Array) -> None:
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            result[i, j] += a[i, j]


@inlined
def _add_product(a: Array, b: Array, result: Array) -> None:
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            for x in range(b.shape[1]):
                result[i, x] += a[i, j] * b[j, x]


@compiled
def extend(rest: Array, first: int, descents: Array) -> None:
    """Fill ``rest`` (n_rows, n_phases, n) from row ``first`` on."""
    rest[first:] = 0.0
    for s in range(first, len(rest)):
        for d in range(1, len(descents) + 1):
            _add_product(descents[d - 1], rest[s - d], rest[s])
