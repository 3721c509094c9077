"""The number per batch of requests that wait at most so long, as a sum of pieces, and what random responses make of it.

In front of an elastic function a law of waits is ``M_n(w)``, the expected number per batch of requests that are ``n`` together and
wait at most ``w``. Here it is a sum of pieces: nothing before a ``start``, a jump there, a Chebyshev series to its ``end`` and a
constant from there on; an atom is a piece with ``start = end``. The latency follows by (2.6) and (2.7) of docs/model.md: where the
response is uniform between two quantile levels, its mean over the piece is a difference of integrated series, so no quadrature.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebint, chebvander
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled, inlined

_SAME = 1e-9  # of a hold: moments no further apart are one, as an atom must not be missed by rounding
_NARROW = 1e-6  # of a hold: a piece of the response's law that is no wider is one moment
_SMALL = 1e-12  # requests per batch


class WaitPiece(NamedTuple):
    """A summand of ``M_n``: n, its start and end (s), its jump at the start, what is between as a series, and its value beyond."""

    size: int
    start: float
    end: float
    jump: float
    series: Array
    beyond: float


class WaitPieces(NamedTuple):
    """All of them, side by side.

    Parameters
    ----------
    size : array of int, shape (n_pieces,)
    start, end, jump, beyond : array, shape (n_pieces,)
    series, integrated : array, shape (n_pieces, n_terms)
        Chebyshev series over (start, end), without the jump, and those of their integrals from the start, one term more.
    """

    size: NDArray[np.int64]
    start: Array
    end: Array
    jump: Array
    beyond: Array
    series: Array
    integrated: Array

    @classmethod
    def of(cls, pieces: Sequence[WaitPiece]) -> WaitPieces:
        """Those of some account."""
        n_terms = max(len(piece.series) for piece in pieces)
        series = np.array([np.pad(piece.series, (0, n_terms - len(piece.series))) for piece in pieces])
        size = np.array([piece.size for piece in pieces])
        start, end, jump, beyond = (np.array([getattr(piece, of) for piece in pieces]) for of in ("start", "end", "jump", "beyond"))
        return cls.side_by_side(size, start, end, jump, beyond, series)

    @classmethod
    def side_by_side(
        cls, size: NDArray[np.int64], start: Array, end: Array, jump: Array, beyond: Array, series: Array
    ) -> WaitPieces:
        """The same, given as the record has them."""
        kept = np.maximum(np.abs(series).max(axis=1), np.maximum(np.abs(jump), np.abs(beyond))) > _SMALL
        size, start, end, jump, beyond, series = (of[kept] for of in (size, start, end, jump, beyond, series))
        integrated = np.ascontiguousarray((chebint(series.T, lbnd=-1) * (end - start) / 2).T)
        return cls(size, start, end, jump, beyond, np.ascontiguousarray(series), integrated)

    def within(self, response: Array, levels: Array, times: Array) -> Array:
        """Expected requests per batch whose wait and response time are together at most ``times`` (s), (n_times,).

        Parameters
        ----------
        response : array, shape (max_batch_size, n_levels)
            Quantile functions (s) at ``levels`` of the response times of batches of 1, 2, ...
        levels : array, shape (n_levels,)
            Ascending from 0 to 1; alone where responses are deterministic.
        """
        return _requests_within(
            np.ascontiguousarray(times, dtype=np.float64),
            np.ascontiguousarray(response, dtype=np.float64),
            np.ascontiguousarray(np.diff(levels), dtype=np.float64),
            self,
        )


class _PieceLaw(NamedTuple):
    """One of them, as the compiled sum reads it; ``series`` and ``integrated`` are (n_terms,)."""

    start: float
    end: float
    jump: float
    beyond: float
    series: Array
    integrated: Array


@lru_cache(maxsize=64)
def series_through(last: int) -> Array:
    """From values at the points -cos(pi j / last) to the coefficients of the Chebyshev series through them."""
    return np.asarray(np.linalg.inv(chebvander(-np.cos(np.pi * np.arange(last + 1) / last), last)))


@compiled
def _requests_within(times: Array, response: Array, shares: Array, pieces: WaitPieces) -> Array:
    """(2.6), (2.7) over the pieces.

    ``shares`` are the probabilities between the quantile levels of the response; none where it is deterministic.
    """
    size, start, end, jump, beyond, series, integrated = pieces
    result = np.zeros(len(times))
    for j in range(len(size)):
        quantiles = response[size[j] - 1]
        law = _PieceLaw(start[j], end[j], jump[j], beyond[j], series[j], integrated[j])
        for time in range(len(times)):
            result[time] = _add_piece(result[time], times[time], quantiles, shares, law)
    return result


@inlined
def _add_piece(total: float, time: float, quantiles: Array, shares: Array, law: _PieceLaw) -> float:
    """One piece of ``M_n``: where the response is uniform its mean, a difference of integrals, else its value at the wait."""
    start, end, jump, beyond, series, integrated = law
    narrow, slack = _NARROW * end, _SAME * max(end, 1e-6)
    for k in range(max(1, len(shares))):
        share = shares[k] if len(shares) else 1.0
        longest, shortest = time - quantiles[k], time - quantiles[min(k + 1, len(shares))]
        if longest < start - slack:
            continue
        if longest - shortest > narrow:
            mean = _integral(start, end, jump, beyond, integrated, longest)
            mean -= _integral(start, end, jump, beyond, integrated, shortest)
            total += share * mean / (longest - shortest)
        elif longest >= end - slack:
            total += share * beyond
        else:
            total += share * (jump + _value(series, max(longest, start), start, end))
    return total


@inlined
def _integral(start: float, end: float, jump: float, beyond: float, integrated: Array, wait: float) -> float:
    """That of a piece from its start to ``wait``, which may lie on either side of it."""
    inside = min(max(wait, start), end)
    integral = jump * (inside - start) + beyond * max(wait - end, 0.0)
    if end > start:
        integral += _value(integrated, inside, start, end)
    return integral


@compiled
def _value(series: Array, wait: float, start: float, end: float) -> float:
    """A Chebyshev series over (start, end) at a wait in it."""
    x = 2 * (wait - start) / (end - start) - 1
    later, last = 0.0, 0.0
    for k in range(len(series) - 1, 0, -1):
        later, last = last, 2 * x * last - later + series[k]
    return float(series[0] + x * last - later)
