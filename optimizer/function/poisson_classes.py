"""Batch sizes, and the latency of every class, where Poisson classes share a table whose holds fall, exactly (docs/model.md, 2.9).

A request of class ``c`` waits its slack ``s_c`` longer than the table says: with ``n`` waiting at most ``w_{c,n} = h_n + s_c``, and
not at all where the hold is 0, which is over for everybody. As the holds, and the moment that the first of those who wait must
leave at, only fall while a batch fills, it is still open ``t`` after it opened, with ``n`` members, exactly if ``n - 1`` came in
time for that and nobody who came before ``t - w_{c,n}`` is of class ``c``. With the rates ``l_c``, their sum ``L``, those whose
opener may still wait ``A_n(t)`` and the mean number of those who came late enough ``m_n(t)``

    A_n(t) = sum of l_c over w_{c,n} > t,    m_n(t) = sum_c l_c min(t, w_{c,n}),    v_n(t) = e^{-L t} m_n(t)^{n-1} / (n-1)!  (2.12)

    P(N >= n + 1) = integral_0^inf A_n(t) v_n(t) dt                                                                        (2.13)

The expected number, per batch, of requests of class ``c`` that still wait, with ``n - 1`` others, ``w`` after they came is
``l_c/L`` times ``V_n(w) = L integral_w^inf v_n(t) dt`` for w < w_{c,n}: the batch opened with it, or at any moment before, and from
a request Poisson arrivals look as from any other moment. Those in batches of ``n`` that wait at most ``w`` are who was one of ``n``
by then, having come as the last or before, less who became one of ``n + 1`` and who still waits. Over ``l_c/L`` they are

    M_{n,c}(w) = P(N >= n) + L integral_0^min(w, w_{c,n-1}) V_{n-1} - L integral_0^min(w, w_{c,n}) V_n - [V_n(w) where w < w_{c,n}]
                                                                                                                           (2.14)

with ``V_0 = V_B = 0``, B being the largest batch. All that depends on the class is where the windows end, and the latency
follows as in 2.4. Between the ends of windows ``m_n`` is linear: panels on which ``v_n`` varies little are summed by Gauss-
Legendre, or kept as Chebyshev series, to rounding.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.polynomial.chebyshev import chebint
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled, inlined
from sluice.optimizer.function.class_latency import exact_latency, longest_wait
from sluice.optimizer.function.latency import LatencyPrediction
from sluice.optimizer.function.wait_pieces import WaitPiece, WaitPieces, series_through
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

_DEGREE = 16  # of a series over a panel
_NOTHING = -45.0  # the logarithm of what is no longer felt
_NOBODY = 1e-300  # requests: 0 that has a logarithm
_LEAST = 1e-12  # of P(N >= n): no batch is larger
_FALL = 4.0  # by which the logarithm of v_n falls in a panel at most
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(10)
_FEW_NODES, _FEW_WEIGHTS = np.polynomial.legendre.leggauss(5)
_NARROW = 0.3  # of the deviation of v_n: a panel for which few nodes are enough


class PoissonClasses:
    """What tables with falling holds do to Poisson classes with slacks, for every largest batch up to ``len(holds) + 1``.

    Parameters
    ----------
    rates : array, shape (n_classes,)
        Requests/s.
    slacks : array, shape (n_classes,)
        Seconds >= 0 that a request of the class may wait longer than the table says.
    holds : array, shape (max_batch_size - 1,)
        ``holds[n - 1]`` is the hold (s) with ``n`` waiting, falling.
    """

    def __init__(self, rates: Array, slacks: Array, holds: Array) -> None:
        order = np.argsort(slacks, kind="stable")
        self.max_batch_size = len(holds) + 1
        self._rank = np.argsort(order)  # where each class stands among the slacks in order
        self._rates, self._slacks = rates[order], slacks[order]
        self._holds = np.ascontiguousarray(holds[: np.count_nonzero(holds)])  # a batch is full where nobody may wait

    @cached_property
    def _reaching(self) -> Array:
        """``[n - 1]``: probability that a batch reaches ``n`` members, (2.13)."""
        reaching = np.zeros(self.max_batch_size)
        reaching[: len(self._holds) + 1] = _reaching(self._rates, self._slacks, self._holds)
        return reaching

    @cached_property
    def batch_size_pmf(self) -> Array:
        """``[b - 1, n - 1]``: probability that a batch has size ``n`` when at most ``b`` are taken; square, lower triangular."""
        pmf = np.tril(np.broadcast_to(self._reaching, (self.max_batch_size, self.max_batch_size)))
        pmf[:, :-1] -= pmf[:, 1:]
        return pmf

    @cached_property
    def mean_batch_size(self) -> Array:
        """Mean size of a batch, by largest batch: (max_batch_size,)."""
        return np.cumsum(self._reaching)

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
        """(2.14) of the class with the ``rank``-th slack: the panels of its windows, and atoms where they end and at 0."""
        if not len(self._holds):
            return WaitPieces.of([WaitPiece(1, 0.0, 0.0, 1.0, np.zeros(1), 1.0)])
        row, largest = self._rows, len(self._holds) + 1
        own = row.window <= rank
        n, panels = row.size[own], np.zeros(np.count_nonzero(own))
        last = np.append(np.flatnonzero(np.diff(n)), len(n) - 1)  # the panel that ends with the window, of each hold
        atoms = np.concatenate([row.left[own][last], self._reaching[1:largest] - np.append(row.made[1:], 0.0)])
        at = np.concatenate([self._holds + self._slacks[rank], np.zeros(largest - 1)])
        to_next, to_full = row.to_next[own], row.to_full[own]
        return WaitPieces.side_by_side(
            np.concatenate([n + 1, n, np.arange(1, largest), np.arange(2, largest + 1)]),
            np.concatenate([row.start[own], row.start[own], at]),
            np.concatenate([row.end[own], row.end[own], at]),
            np.concatenate([panels, panels, atoms]),
            np.concatenate([to_next.sum(axis=1), to_full.sum(axis=1), atoms]),
            np.concatenate([to_next, to_full, np.zeros((len(atoms), to_next.shape[1]))]),
        )

    @cached_property
    def _rows(self) -> _Rows:
        """What (2.14) has of each hold, panel by panel."""
        total = float(self._rates.sum())
        parts = [_panels(n, hold, self._rates, self._slacks) for n, hold in enumerate(self._holds.tolist(), 1)]
        size = np.repeat(np.arange(1, len(parts) + 1), [len(panels.start) for panels, _ in parts])
        window, start, end, mean, rate = (np.concatenate(column) for column in zip(*(panels for panels, _ in parts), strict=True))
        half = (end - start)[:, None] / 2
        after = half * (1 - np.cos(np.pi * np.arange(_DEGREE + 1) / _DEGREE))  # s from the start of a panel
        logarithm = special.xlogy(size[:, None] - 1, mean[:, None] + rate[:, None] * after)
        density = np.exp(logarithm - total * (start[:, None] + after) - special.gammaln(size)[:, None]) @ series_through(_DEGREE).T
        passed = total * half * chebint(density, lbnd=-1, axis=1)
        sums, left = passed.sum(axis=1), np.empty(len(size))  # a series at its end is the sum of its terms
        made = np.empty(len(parts))
        for n, (_, beyond) in enumerate(parts, 1):
            of = size == n
            later = np.append(sums[of], beyond)[::-1].cumsum()[::-1]
            left[of], made[n - 1] = later[1:], later[0]
        waiting = -passed  # V_n as a series
        waiting[:, 0] += left + sums
        to_next = total * half * chebint(waiting, lbnd=-1, axis=1)
        to_full = -to_next
        to_full[:, :-1] += passed
        return _Rows(size, window, start, end, to_next, to_full, left, made)


class _Rows(NamedTuple):
    """What (2.14) has of each hold, panel by panel.

    Parameters
    ----------
    size, window : array of int, shape (n_panels,)
        The hold's ``n``, and the place of the first slack whose window the panel is in.
    start, end : array, shape (n_panels,)
        Seconds.
    to_next, to_full : array, shape (n_panels, n_terms)
        Series of ``L integral V_n`` and ``V_n(start) - V_n - L integral V_n`` from the start.
    left : array, shape (n_panels,)
        ``V_n`` at the end.
    made : array, shape (n_holds,)
        ``V_n(0)``.
    """

    size: NDArray[np.int64]
    window: NDArray[np.int64]
    start: Array
    end: Array
    to_next: Array
    to_full: Array
    left: Array
    made: Array


class _Panels(NamedTuple):
    """Stretches of time, in order, in which ``m_n`` is linear and ``v_n`` varies little, (n_panels,) each.

    ``window`` is the place of the first slack whose window it is in, ``start`` and ``end`` are s, ``mean`` is ``m_n`` at the start
    and ``rate`` its slope ``A_n``.
    """

    window: NDArray[np.int64]
    start: Array
    end: Array
    mean: Array
    rate: Array


@inlined
def _room(n: int, classes: int) -> _Panels:
    """For the panels of a hold, or of one with fewer waiting."""
    most = classes + 2 + int(_longest(1) + _longest(n) / _FALL)  # a panel has sqrt(n) or _FALL arrivals, or ends a window
    return _Panels(np.empty(most, np.int64), np.empty(most), np.empty(most), np.empty(most), np.empty(most))


@inlined
def _longest(n: int) -> float:
    """Mean number of arrivals in a time in which more than ``n`` surely come."""
    return n + 8 * math.sqrt(n) + 40


@inlined
def _fill(n: int, hold: float, rates: Array, slacks: Array, into: _Panels) -> tuple[int, float]:
    """The panels of a hold: their number, and ``V_n`` at the end of the last."""
    total = rates.sum()
    here, end, log_factorial = 0.0, _longest(n) / total, math.lgamma(n)
    rate, mean, count = total, _NOBODY, 0
    for c in range(len(slacks)):
        ends = hold + slacks[c]
        while here < ends:
            until = min(ends, here + math.sqrt(n) / total)
            falls = total - (n - 1) * rate / (mean + rate * (until - here))  # -d log v_n / dt at the end, where it is steepest
            if falls > 0:
                until = min(until, here + _FALL / falls)
            into.window[count], into.start[count], into.end[count] = c, here, until
            into.mean[count], into.rate[count] = mean, rate
            count += 1
            mean += rate * (until - here)
            here = until
            logarithm = (n - 1) * math.log(mean) - total * here - log_factorial
            if here >= end or (falls > 0 and logarithm < _NOTHING):
                return count, 0.0
        rate -= rates[c]
    return count, math.exp((n - 1) * math.log(mean) - total * here - log_factorial)


@compiled
def _panels(n: int, hold: float, rates: Array, slacks: Array) -> tuple[_Panels, float]:
    """The panels of a hold, and ``V_n`` at the end of the last."""
    room = _room(n, len(slacks))
    count, beyond = _fill(n, hold, rates, slacks, room)
    return _Panels(room.window[:count], room.start[:count], room.end[:count], room.mean[:count], room.rate[:count]), beyond


@compiled
def _reaching(rates: Array, slacks: Array, holds: Array) -> Array:
    """(2.13): ``[n - 1]`` is the probability that a batch reaches ``n`` members, (len(holds) + 1,)."""
    reaching = np.zeros(len(holds) + 1)
    reaching[0] = 1.0
    panels, total = _room(len(holds) + 1, len(slacks)), rates.sum()
    for n in range(1, len(holds) + 1):
        count, _ = _fill(n, holds[n - 1], rates, slacks, panels)
        deviation, log_factorial = math.sqrt(n) / total, math.lgamma(n)
        reached = 0.0
        for p in range(count):
            half = (panels.end[p] - panels.start[p]) / 2
            few = 2 * half < _NARROW * deviation
            nodes, weights = (_FEW_NODES, _FEW_WEIGHTS) if few else (_NODES, _WEIGHTS)
            mean, rate, clock = panels.mean[p], panels.rate[p], total * panels.start[p] + log_factorial
            panel = 0.0
            for i in range(len(nodes)):
                after = half * (1 + nodes[i])
                logarithm = -clock - total * after
                if n > 1:
                    logarithm += (n - 1) * math.log(mean + rate * after)
                panel += weights[i] * math.exp(logarithm)
            reached += rate * half * panel
        reaching[n] = min(reaching[n - 1], reached)
        if reached < _LEAST:
            break
    return reaching
