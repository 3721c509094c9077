"""Batch sizes under any table that takes all who wait, whether its holds fall with the number waiting or not (docs/model.md, 2.8).

In front of an elastic function a batch opens with its first request, and with ``n`` members it leaves ``hold[n]`` seconds after it
opened, or at once where it is older; ``hold[B] = 0``. Where holds fall, what a batch has reached is told by the last of them
alone (``falling_holds``). Where ``hold[n + 1] > hold[n]``, as when more than ``n`` go to a quicker function, a batch must have
got its ``n + 1``-th by ``hold[n]`` and then has longer. So the law of members and phase is followed through time, from one end of
a hold to the next: a batch that gets to a size whose hold has ended leaves with it at that moment, one whose hold ends leaves
then.

Between two ends it is uniformized as in ``CountingProcess``, without those sizes: with ``V`` the law at the beginning and ``U`` one
event of rate ``r``, after ``t`` seconds it is ``sum_m poisson(m; r t) V U^m``, and ``sum_m P(more than m) V U^m / r`` is its
integral, which times ``D1`` gives who left with an arrival. No term is negative, so nothing cancels.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess, stationary_distribution
from sluice.optimizer.compiled import compiled

_MOST_JUMPS = 256.0  # of the uniformized chain at a time, far from where the weight of no jump underflows
_NO_WEIGHT = 1e-18
_GONE = 1e-15  # probability that a batch is still held, below which its time to leave says nothing


class AnyHolds:
    """What such tables do to an arrival process: the law of the batch size at any multiple of its rate.

    Parameters
    ----------
    arrivals : ArrivalProcess
    """

    def __init__(self, arrivals: ArrivalProcess) -> None:
        self.arrivals = arrivals
        self._rate = float(-arrivals.D0.diagonal().min())
        self._rows = np.flatnonzero(arrivals.D1.any(axis=0))  # phases that follow an arrival, as a batch opens with one
        self._hidden = np.eye(arrivals.n_phases) + arrivals.D0 / self._rate
        self._arriving = arrivals.D1 / self._rate

    def batch_size_pmf(self, holds: Array, factor: float = 1.0) -> Array:
        """Probability of a batch of 1, 2, ..., (max_batch_size,).

        Parameters
        ----------
        holds : array, shape (max_batch_size - 1,)
            ``holds[n - 1]`` is the hold (s) with ``n`` waiting.
        factor : float
            How many times as fast requests come, in the same pattern.

        Raises
        ------
        InvalidInput
            Holds that are negative or infinite.
        """
        left, _ = self._left(holds, factor)
        return self._pmf(left)

    def by_largest(self, holds: Array, factor: float = 1.0) -> Array:
        """``[b - 1, n - 1]``: the same when at most ``b`` are taken; square, lower triangular."""
        left, reached = self._left(holds, factor)
        pmf = np.zeros((len(holds) + 1, len(holds) + 1))
        for b in range(len(pmf)):
            pmf[b, : b + 1] = self._pmf(np.concatenate([left[:, :b], reached[:, b : b + 1]], axis=1))
        return pmf

    def _left(self, holds: Array, factor: float) -> tuple[Array, Array]:
        held = np.asarray(holds, dtype=np.float64)
        require(bool((np.isfinite(held) & (held >= 0)).all()), "holds", held.tolist(), "seconds >= 0")
        holds = np.append(held * factor, 0.0)
        return _left(self._hidden, self._arriving, self._rate, self._rows, holds, np.unique(holds))

    def _pmf(self, left: Array) -> Array:
        """Batch sizes from the phase in which batches of each leave, by the phase at their opening, which is the stationary one."""
        to_next = left.sum(axis=1) @ self.arrivals.to_next_arrival[:, self._rows]
        openings = stationary_distribution(to_next - np.eye(len(self._rows)))
        pmf = openings @ left.sum(axis=2)
        return np.asarray(pmf / pmf.sum())


@compiled
def _left(hidden: Array, arriving: Array, rate: float, rows: NDArray[np.intp], holds: Array, ends: Array) -> tuple[Array, Array]:
    """Phase as a batch leaves with 1, 2, ... members, and as it gets the last of them: (len(rows), len(holds), n_phases) each.

    ``ends`` has each of the holds once, ascending.
    """
    largest, n = len(holds), len(hidden)
    left, reached = np.zeros((len(rows), largest, n)), np.zeros((len(rows), largest, n))
    held, after, passed, there = np.zeros((largest, n)), np.zeros((largest, n)), np.zeros((largest, n)), np.zeros((largest, n))
    for start in range(len(rows)):
        held[:] = 0.0
        held[0, rows[start]] = reached[start, 0, rows[start]] = 1.0
        begins = 0.0
        for end in ends:
            if end > begins:
                pieces = math.ceil(rate * (end - begins) / _MOST_JUMPS)
                for _ in range(pieces):
                    _follow(hidden, arriving, rate * (end - begins) / pieces, holds > begins, held, after, passed, there)
                    for k in range(1, largest):
                        if holds[k - 1] <= begins:
                            continue
                        for i in range(n):
                            for j in range(n):
                                got = passed[k - 1, i] * arriving[i, j]
                                reached[start, k, j] += got
                                if holds[k] <= begins:
                                    left[start, k, j] += got
                    if held.sum() < _GONE:
                        break
            for k in range(largest):
                if holds[k] == end:
                    for i in range(n):
                        left[start, k, i] += held[k, i]
                        held[k, i] = 0.0
            begins = end
            if held.sum() < _GONE:
                break
    return left, reached


@compiled
def _follow(
    hidden: Array, arriving: Array, jumps: float, open_at: NDArray[np.bool_], held: Array, after: Array, passed: Array, there: Array
) -> None:
    """``held`` after some expected ``jumps``, its integral in ``passed``, in jumps; who gets to a size that is not open is gone."""
    largest, n = held.shape
    from_0, to_0 = np.nonzero(hidden)  # few, of a hidden Markov model with Erlang gaps
    from_1, to_1 = np.nonzero(arriving)
    weight, m = math.exp(-jumps), 0
    more = 1.0 - weight
    first, last = largest, 0
    for k in range(largest):
        for i in range(n):
            after[k, i], passed[k, i] = weight * held[k, i], more * held[k, i]
            if held[k, i] > _NO_WEIGHT:
                first, last = min(first, k), k
    now, then = held, there
    while first < largest and more > _NO_WEIGHT and not (m > jumps and weight < _NO_WEIGHT):
        m += 1
        weight *= jumps / m
        more = max(0.0, more - weight)
        lowest, highest = largest, 0
        for k in range(first, min(last + 2, largest)):
            if not open_at[k]:
                then[k] = 0.0
                continue
            come = k > first and open_at[k - 1]
            then[k] = 0.0
            if k <= last:
                for e in range(len(from_0)):
                    then[k, to_0[e]] += now[k, from_0[e]] * hidden[from_0[e], to_0[e]]
            if come:
                for e in range(len(from_1)):
                    then[k, to_1[e]] += now[k - 1, from_1[e]] * arriving[from_1[e], to_1[e]]
            for j in range(n):
                after[k, j] += weight * then[k, j]
                passed[k, j] += more * then[k, j]
                if then[k, j] > _NO_WEIGHT:
                    lowest, highest = min(lowest, k), k
        now, then = then, now
        first, last = lowest, highest
    for k in range(largest):
        for i in range(n):
            held[k, i] = after[k, i]
