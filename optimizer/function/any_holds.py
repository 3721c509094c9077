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
from sluice.optimizer.compiled import compiled, inlined

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
        return np.asarray(self._pmf(left[None])[0])

    def by_largest(self, holds: Array, factor: float = 1.0) -> Array:
        """``[b - 1, n - 1]``: the same when at most ``b`` are taken; square, lower triangular."""
        left, reached = self._left(holds, factor)
        at, largest = np.arange(len(left)), np.arange(len(left))[:, None]
        smaller, full = (at < largest)[:, :, None, None], (at == largest)[:, :, None, None]
        return self._pmf(smaller * left + full * reached)

    def _left(self, holds: Array, factor: float) -> tuple[Array, Array]:
        held = np.asarray(holds, dtype=np.float64)
        require(bool((np.isfinite(held) & (held >= 0)).all()), "holds", held.tolist(), "seconds >= 0")
        holds = np.append(held * factor, 0.0)
        return _left(self._hidden, self._arriving, self._rate, self._rows, holds, np.unique(holds))

    def _pmf(self, left: Array) -> Array:
        """Batch sizes of several tables, by row, from the phase in which batches of each size leave, by that at their opening.

        Batches open in the phases that are stationary from one to the next.
        """
        to_next = np.swapaxes(left.sum(axis=1), 1, 2) @ self.arrivals.to_next_arrival[:, self._rows]
        openings = stationary_distribution(to_next - np.eye(len(self._rows)))
        pmf = np.einsum("bnjs,bs->bn", left, openings)
        return np.asarray(pmf / pmf.sum(axis=1, keepdims=True))


@compiled
def _left(hidden: Array, arriving: Array, rate: float, rows: NDArray[np.intp], holds: Array, ends: Array) -> tuple[Array, Array]:
    """Phase as a batch leaves with 1, 2, ... members, and as it gets the last of them: (len(holds), n_phases, len(rows)) each.

    ``ends`` has each of the holds once, ascending. Batches that open in any of the ``rows`` are followed together, and all sizes,
    as one row of numbers a phase.
    """
    largest, n, openings = len(holds), len(hidden), len(rows)
    left, reached = np.zeros((largest, n, openings)), np.zeros((largest, n, openings))
    shape = (n, largest * openings)
    held, after, passed, there = np.zeros(shape), np.zeros(shape), np.zeros(shape), np.zeros(shape)
    from_1, to_1 = np.nonzero(arriving)
    for start in range(openings):
        held[rows[start], start] = reached[0, rows[start], start] = 1.0
    begins = 0.0
    for end in ends:
        if end > begins:
            pieces = math.ceil(rate * (end - begins) / _MOST_JUMPS)
            for _ in range(pieces):
                _follow(hidden, arriving, rate * (end - begins) / pieces, holds > begins, held, after, passed, there)
                for k in range(1, largest):
                    for e in range(len(from_1)):
                        for start in range(openings):
                            got = passed[from_1[e], (k - 1) * openings + start] * arriving[from_1[e], to_1[e]]
                            reached[k, to_1[e], start] += got
                            if holds[k] <= begins:
                                left[k, to_1[e], start] += got
                if held.sum() < _GONE:
                    break
        for k in range(largest):
            if holds[k] == end:
                for i in range(n):
                    for start in range(openings):
                        left[k, i, start] += held[i, k * openings + start]
                        held[i, k * openings + start] = 0.0
        begins = end
        if held.sum() < _GONE:
            break
    return left, reached


@compiled
def _follow(
    hidden: Array, arriving: Array, jumps: float, open_at: NDArray[np.bool_], held: Array, after: Array, passed: Array, there: Array
) -> None:
    """``held`` after some expected ``jumps``, its integral in ``passed``, in jumps; who gets to a size that is not open is gone.

    Nobody is held at such a size. Each of these has a row of numbers for each phase: those of a size, then those of the next.
    """
    n, largest = len(held), len(open_at)
    each = held.shape[1] // largest
    from_0, to_0 = np.nonzero(hidden)  # few, of a hidden Markov model with Erlang gaps
    from_1, to_1 = np.nonzero(arriving)
    weight, m = math.exp(-jumps), 0
    more = 1.0 - weight
    after[:], passed[:] = weight * held, more * held
    now, then = held, there
    first, last = _seen(now, 0, largest - 1, each)
    while first <= last and more > _NO_WEIGHT and not (m > jumps and weight < _NO_WEIGHT):
        m += 1
        weight *= jumps / m
        more = max(0.0, more - weight)
        reach = min(last + 1, largest - 1)
        begin, end, beyond = first * each, (last + 1) * each, (reach + 1) * each
        then[:, begin:beyond] = 0.0
        for e in range(len(from_0)):
            _add(hidden[from_0[e], to_0[e]], now[from_0[e], begin:end], then[to_0[e], begin:end])
        for e in range(len(from_1)):
            _add(arriving[from_1[e], to_1[e]], now[from_1[e], begin : beyond - each], then[to_1[e], begin + each : beyond])
        for k in range(first, reach + 1):
            if not open_at[k]:
                then[:, k * each : (k + 1) * each] = 0.0
        for j in range(n):
            if weight > _NO_WEIGHT:
                _add(weight, then[j, begin:beyond], after[j, begin:beyond])
            _add(more, then[j, begin:beyond], passed[j, begin:beyond])
        first, last = _seen(then, first, reach, each)
        now, then = then, now
    held[:] = after


@inlined
def _add(weight: float, source: Array, target: Array) -> None:
    for k in range(len(target)):
        target[k] += weight * source[k]


@inlined
def _seen(held: Array, first: int, last: int, each: int) -> tuple[int, int]:
    """The sizes among which somebody is held who counts; the first beyond the last where nobody is."""
    while first <= last and not _counts(held[:, first * each : (first + 1) * each]):
        first += 1
    while first <= last and not _counts(held[:, last * each : (last + 1) * each]):
        last -= 1
    return first, last


@inlined
def _counts(held: Array) -> bool:
    for row in held:
        for value in row:
            if value > _NO_WEIGHT:
                return True
    return False
