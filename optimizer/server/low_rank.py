"""Rows that are much alike as a product with few rows: rows = shares @ directions, to rounding.

By Gram and Schmidt: the row of which most is left gives the next direction v, its share of every row x is x.v and is taken off,
until no row has more left than 1e-15 of the longest. Neither this nor the product is left to a BLAS, whose threads wait for each
other where another process has one of the cores.
"""

from __future__ import annotations

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled, inlined

_SAME = 1e-15
_NOTHING = 1e-19  # a factor that is left out of a product
_BLOCK = 512  # columns of a product that stay in the cache
_LANES = 8  # sums side by side, which the processor adds at once


@compiled
def low_rank(rows: Array) -> tuple[Array, Array]:
    """``rows``, (n_rows, n), as shares, (n_rows, rank), times directions, (rank, n)."""
    n_rows, n = rows.shape
    rest = rows.copy()
    shares, directions = np.zeros((n_rows, n_rows)), np.empty((n_rows, n))  # a row for each direction
    sizes = np.empty(n_rows)  # squares of the lengths of what is left
    for i in range(n_rows):
        sizes[i] = _dot(rest[i], rest[i])
    enough = _SAME**2 * sizes.max() if n_rows else 0.0
    rank = 0
    while rank < n_rows:
        most = np.argmax(sizes)
        if sizes[most] <= enough:
            break
        for x in range(n):
            directions[rank, x] = rest[most, x] / np.sqrt(sizes[most])
        _take_off(rest, sizes, enough, directions[rank], shares[rank])
        sizes[most] = 0.0  # what rounding left of it is no direction
        rank += 1
    return shares[:rank].T.copy(), directions[:rank].copy()


@compiled
def product(a: Array, b: Array) -> Array:
    """``a @ b``."""
    result = np.zeros((len(a), b.shape[1]))
    for begin in range(0, b.shape[1], _BLOCK):
        _multiply(a, b, begin, min(b.shape[1], begin + _BLOCK), result)
    return result


@inlined
def _take_off(rest: Array, sizes: Array, enough: float, direction: Array, shares: Array) -> None:
    """Take each row's share of ``direction`` off it."""
    for i in range(len(rest)):
        if sizes[i] > enough:
            along = _dot(rest[i], direction)
            shares[i] = along
            for x in range(len(direction)):
                rest[i, x] -= along * direction[x]
            sizes[i] = _dot(rest[i], rest[i])


@compiled
def _dot(a: Array, b: Array) -> float:
    parts = np.zeros(_LANES)
    for i in range(0, len(a) - _LANES + 1, _LANES):
        for j in range(_LANES):
            parts[j] += a[i + j] * b[i + j]
    total = parts.sum()
    for i in range(len(a) - len(a) % _LANES, len(a)):
        total += a[i] * b[i]
    return float(total)


@inlined
def _multiply(a: Array, b: Array, begin: int, end: int, result: Array) -> None:
    """The columns from ``begin`` to ``end`` - 1 of the product."""
    for i in range(len(a)):
        for k in range(len(b)):
            factor = a[i, k]
            if abs(factor) <= _NOTHING:
                continue
            for j in range(begin, end):
                result[i, j] += factor * b[k, j]
