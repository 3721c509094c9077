"""Batch sizes, and the latency of every class, where Markovian classes share a table whose holds fall (docs/model.md, 2.10).

All classes together are one process whose phase is that of each: ``D0`` is the Kronecker sum of theirs, ``E_c`` their arrivals
and ``E`` the sum of these. With ``n`` waiting a request of class ``c`` waits at most ``w_{c,n} = h_n + s_c``. Let the classes
be in the order of their slacks, and ``C^p_k(t)`` be the matrices of ``k`` arrivals in ``t`` of the classes from the ``p``-th
on, no other coming. A batch is open with ``n`` members if nobody has waited for longer: looked back at, all classes may have
come in the last ``h_n + s_0`` seconds, all but the strictest in ``s_1 - s_0`` before, and so on, and it opened in one of these
spans. Only the last of them depends on ``n``. With ``*`` for the convolution over ``k``, and ``N_p`` for ``(-D0)^-1`` times the
``E_c`` from the ``p``-th on, the law of who opened and came until ``x`` after a span begins, d_p long, is, from the phase as
the batch before left, read back

    B_p(x) = B_{p+1}(d_{p+1}) * C^p(x) + N_p integral_0^x C^p,     d_p = s_p - s_{p-1},     d_0 = h_n + s_0                (2.15)

with nothing before the first span; and ``W_n = [B_0(h_n + s_0)]_{n-1}`` are the seconds that a batch is open with ``n``
members. As what joins them less what leaves is ``-W_n D0``, the phase ``l`` as batches of at most ``b`` leave is

    l = l [ N_0 + sum_{n<b} W_n (D0 + E) ],     P(N >= n + 1) = l W_n E 1                                                  (2.16)

A request of class ``c`` that came ``w`` ago, ``x`` before the end of span ``p``, opened its batch or found it so. The phases of
those that wait, ``n`` together, are per batch

    U_n(w) = [ ( l N_c + l B_p(d_p - x) E_c ) * C^p(x) * C^{p-1}(d_{p-1}) * ... * C^0(h_n + s_0) ]_{n-1}                   (2.17)

(``E_c`` being one arrival, and for p = 0 without the factors after the second), and those in batches of ``n`` that wait at most
``w`` are who was one of ``n`` by then, less who became one of ``n + 1`` and who still waits:

    M_{n,c}(w) = l W_{n-1} E_c 1 + integral_0^w U_{n-1} E 1 - integral_0^w U_n E 1 - U_n(w) 1                              (2.18)

with ``U_n = 0`` from ``w_{c,n}`` on, and ``l N_c 1`` in the first place for n = 1. Within a span all is analytic: Chebyshev series.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from math import prod
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebint, chebvander

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.counting import CountingProcess, TooManyJumps
from sluice.optimizer.arrivals.map import ArrivalProcess, stationary_distribution
from sluice.optimizer.function.class_latency import exact_latency, longest_wait
from sluice.optimizer.function.latency import LatencyPrediction
from sluice.optimizer.function.wait_pieces import WaitPiece, WaitPieces, series_through
from sluice.optimizer.service.times import ServiceTimes


class _Span(NamedTuple):
    """That of the classes from the ``p``-th on, p > 0.

    ``rank`` is p, ``counting`` counts their arrivals, ``length`` is ``d_p`` (s), ``before`` ``B_{p+1}(d_{p+1})``, ``openers`` is
    ``N_p`` and ``since`` ``C^{p-1}(d_{p-1}) * ... * C^1(d_1)``: (n_counts, n_phases, n_phases), but ``openers``.
    """

    rank: int
    counting: CountingProcess
    length: float
    before: Array
    openers: Array
    since: Array


class PhasedClasses:
    """What tables with falling holds do to Markovian classes with slacks, for every largest batch up to ``len(holds) + 1``.

    Parameters
    ----------
    classes : sequence of ArrivalProcess
        Independent of each other.
    slacks : array, shape (n_classes,)
        Seconds >= 0 that a request of the class may wait longer than the table says.
    holds : array, shape (max_batch_size - 1,)
        ``holds[n - 1]`` is the hold (s) with ``n`` waiting, falling.
    room : float
        Numbers that the uniformized chain of a span may have.

    Raises
    ------
    TooManyJumps
        Where there is no room for so many phases, or so many jumps of them within a hold or between two slacks.
    """

    def __init__(self, classes: Sequence[ArrivalProcess], slacks: Array, holds: Array, room: float) -> None:
        order = np.argsort(slacks, kind="stable")
        self.max_batch_size = len(holds) + 1
        self._rank, self._slacks = np.argsort(order), slacks[order]
        self._holds = holds[: np.count_nonzero(holds)]  # a batch is full where nobody may wait
        n_counts = max(1, len(self._holds))
        n_phases = float(np.prod([float(arrivals.n_phases) for arrivals in classes]))
        if n_counts * n_phases**2 * len(classes) > room:
            most = (room / (n_counts * len(classes))) ** 0.5
            raise TooManyJumps("classes", f"{n_phases:.3g} phases together", f"at most {most:.3g} for batches of {n_counts + 1}")
        D0, self._each = _superposed([classes[c] for c in order])
        self._all = ArrivalProcess(D0, self._each.sum(axis=0))
        self._shares = np.array([classes[c].arrival_rate for c in order]) / self._all.arrival_rate
        self._openers = np.linalg.solve(-D0, self._each)  # N_c
        self._counting = CountingProcess(self._all, n_counts, float(self._holds.max(initial=0.0)) + self._slacks[0], room=room)
        # d_0, or the time after which every batch has filled
        self._held = np.minimum(self._holds + self._slacks[0], self._counting.settled)
        self._spans, self._before = self._back(n_counts, room)

    def _back(self, n_counts: int, room: float) -> tuple[list[_Span], Array]:
        """The spans before the last, the latest first, and who opened in them, ``B_1(d_1)``."""
        n_phases, spans = self._all.n_phases, []
        nothing = np.zeros((n_counts, n_phases, n_phases))
        lengths = np.diff(self._slacks)
        for p in np.flatnonzero(lengths > 0) + 1:
            counting = CountingProcess(self._all, n_counts, lengths[p - 1], room=room, allowed=self._each[p:].sum(axis=0))
            length = min(lengths[p - 1], counting.settled)  # beyond it somebody has waited for too long
            spans.append(_Span(int(p), counting, length, nothing, self._openers[p:].sum(axis=0), nothing))
        since, before = nothing.copy(), nothing
        since[0] = np.eye(n_phases)
        across = [span.counting.matrices(np.array([span.length])) for span in spans]
        for place, span in enumerate(spans):
            spans[place] = span._replace(since=since)
            since = _convolved(across[place][0], since)
        for place in reversed(range(len(spans))):
            span = spans[place] = spans[place]._replace(before=before)
            opened = span.openers @ span.counting.integrals(across[place])[0]
            before = _convolved(before, across[place][0]) + opened
        return spans, before

    @cached_property
    def _at_holds(self) -> Array:
        """``C^0_k`` after each hold, (n_holds, n_counts, n_phases, n_phases)."""
        return self._counting.matrices(self._held[::-1])[::-1]

    @cached_property
    def _open(self) -> Array:
        """``[n - 1]``: ``W_n``, (n_holds, n_phases, n_phases)."""
        opened = self._openers.sum(axis=0) @ self._counting.integrals(self._at_holds)
        return np.array(
            [opened[n, n] + (self._before[: n + 1] @ at[n::-1]).sum(axis=0) for n, at in enumerate(self._at_holds)]
        ).reshape(-1, self._all.n_phases, self._all.n_phases)

    @cached_property
    def _leaving(self) -> Array:
        """Phase probabilities as a batch leaves, by largest batch: (n_holds + 1, n_phases); (2.16)."""
        kept = self._openers.sum(axis=0) + np.zeros((len(self._holds) + 1, 1, 1))
        kept[1:] += np.cumsum(self._open @ (self._all.D0 + self._all.D1), axis=0)
        return stationary_distribution(kept - np.eye(self._all.n_phases))

    @cached_property
    def batch_size_pmf(self) -> Array:
        """``[b - 1, n - 1]``: probability that a batch has size ``n`` when at most ``b`` are taken; square, lower triangular."""
        largest = len(self._holds) + 1
        reaching = np.zeros((self.max_batch_size, self.max_batch_size))
        reaching[:, 0] = 1.0
        filled = np.einsum("bi,nij,j->bn", self._leaving, self._open, self._all.D1.sum(axis=1))
        reaching[:largest, 1:largest] = np.clip(filled, 0.0, 1.0)
        reaching[largest:] = reaching[largest - 1]
        reaching = np.tril(np.minimum.accumulate(reaching, axis=1))
        reaching[:, :-1] -= reaching[:, 1:]
        return reaching

    @cached_property
    def mean_batch_size(self) -> Array:
        """Mean size of a batch, by largest batch: (max_batch_size,)."""
        return np.asarray(self.batch_size_pmf @ np.arange(1, self.max_batch_size + 1))

    def latency(self, of: int, service: ServiceTimes) -> LatencyPrediction:
        """Latency of a request of class ``of`` under the largest batch; ``batch_size_pmf`` of it is that of all batches.

        Raises
        ------
        InvalidInput
            A batch size beyond the profile's.
        """
        rank, service = int(self._rank[of]), service.up_to(self.max_batch_size)
        return exact_latency(self._pieces(rank), self.batch_size_pmf[-1], service, longest_wait(self._holds, self._slacks[rank]))

    def _pieces(self, rank: int) -> WaitPieces:
        """(2.18) of the class with the ``rank``-th slack, over its share of the arrivals."""
        if not len(self._holds):
            return WaitPieces.of([WaitPiece(1, 0.0, 0.0, 1.0, np.zeros(1), 1.0)])
        share, phases = self._shares[rank], self._leaving[-1]
        came = phases @ self._open @ self._each[rank].sum(axis=-1)
        joined = np.append((phases @ self._openers[rank]).sum(), came) / share
        within, before = (
            self._within_last(rank),
            [(span.rank, self._within(span, rank)) for span in self._spans if span.rank <= rank],
        )
        pieces = [_atom(len(joined), 0.0, joined[-1])]
        for n, hold in enumerate(self._holds.tolist(), 1):
            spans = [(0.0, self._held[n - 1], within[n - 1] / share)]
            for (p, values), span in zip(before, self._spans, strict=False):
                spans.append((hold + self._slacks[p - 1], span.length, values[:, n - 1] / share))
            pieces += [
                _atom(n, 0.0, joined[n - 1] - spans[0][2][0, 0]),
                *(piece for span in spans for piece in _of_span(n, *span)),
                _atom(n, hold + self._slacks[rank], spans[-1][2][-1, 0]),
            ]
        return WaitPieces.of(pieces)

    def _within_last(self, rank: int) -> list[Array]:
        """``U_n 1`` and ``U_n E 1`` at Chebyshev points of the last span, by n: (n_points, 2) each."""
        longest = self._held[0]
        counts = self._counting.matrices(_points(self._degree(longest), longest))
        opened = self._opened(self._before, self._openers.sum(axis=0), counts, self._counting)
        values = np.concatenate([opened[..., None], counts @ self._told], axis=-1)  # by what passed, and by what is ahead
        series = np.tensordot(series_through(len(counts) - 1), values, 1)
        found = []
        for n, hold in enumerate(self._held.tolist(), 1):
            where = 2 * _points(self._degree(hold), hold) / longest - 1
            here = np.tensordot(chebvander(where, len(series) - 1), series[:, :n], 1)
            passed = self._came(rank, here[::-1, ..., 0])  # from the points w to T - w, their mirror image
            found.append(np.einsum("wim,wimv->wv", passed, here[:, ::-1, :, 1:]))
        return found

    def _within(self, span: _Span, rank: int) -> Array:
        """The same of one before, (n_points, n_holds, 2)."""
        counts = span.counting.matrices(_points(self._degree(span.length), span.length))
        opened = self._opened(span.before, span.openers, counts, span.counting)
        passed = _convolved(_convolved(self._came(rank, opened[::-1])[..., None, :], counts), span.since)[..., 0, :]
        ahead = self._at_holds @ self._told
        by_hold = [np.einsum("wim,imv->wv", passed[:, : n + 1], ahead[n, n::-1]) for n in range(len(ahead))]
        return np.stack(by_hold, axis=1)

    def _opened(self, before: Array, openers: Array, counts: Array, counting: CountingProcess) -> Array:
        """``l B_p`` at the times of ``counts``, (n_points, n_counts, n_phases)."""
        phases = self._leaving[-1]
        return np.asarray(_convolved((phases @ before)[:, None], counts)[..., 0, :] + phases @ openers @ counting.integrals(counts))

    def _came(self, rank: int, opened: Array) -> Array:
        """Phases as a request of the class has come, by the arrivals since its batch opened: same shape."""
        came = np.zeros_like(opened)
        came[:, 0] = self._leaving[-1] @ self._openers[rank]
        came[:, 1:] = opened[:, :-1] @ self._each[rank]
        return came

    @cached_property
    def _told(self) -> Array:
        """What sums the phases, and the arrivals from them: (n_phases, 2)."""
        return np.column_stack([np.ones(self._all.n_phases), self._all.D1.sum(axis=1)])

    def _degree(self, time: float) -> int:
        """Of a Chebyshev series over (0, ``time``) that has eight digits and more, as in ``SizeOrTimeout``."""
        return int(24 + 6 * np.sqrt(self._counting.rate * time))


def _superposed(classes: Sequence[ArrivalProcess]) -> tuple[Array, Array]:
    """``D0`` of all together, and the ``E_c``, (n_classes, n_phases, n_phases)."""
    sizes = [arrivals.n_phases for arrivals in classes]

    def among(c: int, matrix: Array) -> Array:
        return np.kron(np.kron(np.eye(prod(sizes[:c])), matrix), np.eye(prod(sizes[c + 1 :])))

    D0 = sum(among(c, arrivals.D0) for c, arrivals in enumerate(classes))
    return np.asarray(D0), np.array([among(c, arrivals.D1) for c, arrivals in enumerate(classes)])


def _convolved(left: Array, right: Array) -> Array:
    """Over the counts: (..., n_counts, n_rows, n_phases) with (..., n_counts, n_phases, n_phases)."""
    n_counts = right.shape[-3]
    result = np.zeros((*np.broadcast_shapes(left.shape[:-3], right.shape[:-3]), *left.shape[-3:]))
    for i in range(n_counts):
        result[..., i:, :, :] += left[..., i : i + 1, :, :] @ right[..., : n_counts - i, :, :]
    return result


def _points(degree: int, end: float) -> Array:
    """Ascending, from 0 to ``end`` (s), and symmetric."""
    return np.asarray(end / 2 * (1 - np.cos(np.pi * np.arange(degree + 1) / degree)))


def _atom(size: int, moment: float, requests: float) -> WaitPiece:
    return WaitPiece(size, moment, moment, requests, np.zeros(1), requests)


def _of_span(n: int, start: float, length: float, values: Array) -> tuple[WaitPiece, WaitPiece]:
    """What (2.18) has of ``U_n 1`` and ``U_n E 1`` in a span: who becomes one of ``n + 1``, and who no longer is one of ``n``."""
    still, made = (series_through(len(values) - 1) @ values).T
    onward = chebint(made, lbnd=-1) * length / 2
    total, end = onward.sum(), start + length
    left = -onward
    left[:-1] -= still
    left[0] += values[0, 0]
    return WaitPiece(n + 1, start, end, 0.0, onward, total), WaitPiece(n, start, end, 0.0, left, left.sum())
