"""The phase of the arrivals, followed from the times between them (docs/model.md, section 4.5).

The phase is hidden; what is seen are arrivals. With ``belief`` the phase probabilities given all that was seen, a silence of ``t``
and an arrival after a gap of ``x`` make of it, up to a factor that makes the sum 1,

    belief(t) ~ belief exp(D0 t),        belief' ~ belief exp(D0 x) D1.                                              (4.14)

A silence says something as well: the likeliest phase may change while nothing happens. Between two arrivals, two phases swap places
once at most, since the ratio of their probabilities is monotone; more phases are looked at every quarter of the shortest mean stay,
less often where their probabilities hardly move.

``exp(D0 t)`` has the rows of powers of ``exp(D0 h)``, h that quarter, and what is left of ``t`` by uniformization. All terms are
positive, and each power is kept as a matrix whose rows sum to 1 and the logarithms of what they were divided by, so that no
silence is too long.

Reference: Rabiner, A tutorial on hidden Markov models (1989), section III.A, in continuous time.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.compiled import compiled, inlined

_PART = 0.25  # of the shortest mean stay in a phase: the step
_TERMS = 20  # of the uniformized exponential over less than a step, more than enough
_NO_TERM = 1e-18
_POWERS = 64  # powers of two of a step: longer than any silence
_SLOW = 0.01  # change of the belief over a stride below which the next one is twice as long
_LONGEST = 2.0**50  # steps of the stride at which nothing is waited for any more
_EQUAL = 1e-9  # relative difference up to which two phases are as likely
_PRECISE = 1e-6  # of a step, to which the moment of a change is found


@dataclass(frozen=True, eq=False)
class FilteredPhases:
    """What the arrivals tell of their phase.

    Parameters
    ----------
    arrivals : ArrivalProcess
    times : array, shape (n,)
        When they came, s.
    beliefs : array, shape (n, n_phases)
        Phase probabilities just after each arrival, given all up to it.
    first : int
        The likeliest phase before the first of them.
    change_times : array, shape (n_changes,)
        When the likeliest phase changed, s: at an arrival or in the silence after one.
    change_to : array of int, shape (n_changes,)
        To which.
    """

    arrivals: ArrivalProcess
    times: Array
    beliefs: Array
    first: int
    change_times: Array
    change_to: NDArray[np.int64]

    def likeliest(self, at: Array) -> NDArray[np.int64]:
        """The likeliest phase at each of the times ``at`` (s), same shape; at a change already the new one."""
        changes = np.searchsorted(self.change_times, at, side="right")
        return np.asarray(np.append(self.first, self.change_to)[changes], dtype=np.int64)

    def belief(self, at: Array) -> Array:
        """Phase probabilities at each of the times ``at`` (s), (len(at), n_phases), given the arrivals up to then."""
        at = np.ascontiguousarray(at, dtype=np.float64)
        last = np.searchsorted(self.times, at, side="right") - 1
        result = np.where(last[:, None] < 0, self.arrivals.embedded, self.beliefs[last])
        _advance_each(result, np.where(last < 0, 0.0, at - self.times[last]), *_powers(self.arrivals))
        return result


def filter_phases(arrivals: ArrivalProcess, times: Array) -> FilteredPhases:
    """The phase probabilities after each of ``times`` (s, ascending), and when the likeliest phase changed.

    Nothing is known before the first arrival: there the phase is one as after any arrival, ``arrivals.embedded``. After the last
    one the silence is taken to last for ever.

    Raises
    ------
    InvalidInput
        Times that are not finite or not ascending, or none; an arrival that the process says cannot happen.
    """
    times = np.ascontiguousarray(times, dtype=np.float64)
    if not len(times) or not np.isfinite(times).all() or (times[1:] < times[:-1]).any():
        raise InvalidInput("times", f"{len(times)} times", "finite times in ascending order, at least one")
    beliefs = np.empty((len(times), arrivals.n_phases))
    start = arrivals.embedded
    change_times, change_to, impossible = _filter(times, start, np.ascontiguousarray(arrivals.D1), *_powers(arrivals), beliefs)
    if impossible >= 0:
        raise InvalidInput(
            f"times[{impossible}]", float(times[impossible]), "a time at which the process can have an arrival, given those before"
        )
    return FilteredPhases(arrivals, times, beliefs, int(start.argmax()), change_times, change_to)


def _powers(arrivals: ArrivalProcess) -> tuple[float, Array, Array, Array]:
    """The step h (s), ``I + D0 / rate``, rate = ``_PART`` / h, and exp(D0 h 2^k): rows of sum 1, logarithms of the sums."""
    rate = float(-arrivals.D0.diagonal().min())
    step = _PART / rate
    n = arrivals.n_phases
    silent = np.eye(n) + arrivals.D0 / rate
    power, term = np.zeros((n, n)), np.eye(n) * np.exp(-_PART)
    for k in range(1, _TERMS):
        power += term
        term = term @ silent * (_PART / k)
    matrices, logarithms = np.empty((_POWERS, n, n)), np.empty((_POWERS, n))
    logarithm = np.zeros(n)
    for k in range(_POWERS):
        sums = power.sum(axis=1)
        matrices[k], logarithms[k] = power / sums[:, None], logarithm + np.log(sums)
        # row i of the square: sum_j matrices[i, j] exp(logarithms[i] + logarithms[j]) matrices[j]
        largest = np.where(matrices[k] > 0, logarithms[k], -np.inf).max(axis=1)
        power = (matrices[k] * np.exp(np.minimum(logarithms[k] - largest[:, None], 0.0))) @ matrices[k]
        logarithm = logarithms[k] + largest
    return step, silent, matrices, logarithms


@compiled
def _advance(belief: Array, seconds: float, step: float, silent: Array, matrices: Array, logarithms: Array, work: Array) -> None:
    """Make of ``belief`` what it is after a silence of ``seconds``; ``work`` (2, n_phases) is written over."""
    n = len(belief)
    moved, term = work[0], work[1]
    steps = np.floor(seconds / step)
    jumps = max(0.0, _PART * (seconds / step - steps))  # expected in what is left
    k = 0
    while steps > 0:
        half = np.floor(steps / 2)
        if steps > 2 * half:
            largest = -np.inf
            for i in range(n):
                if belief[i] > 0:
                    largest = max(largest, logarithms[k, i])
            for j in range(n):
                moved[j] = 0.0
            for i in range(n):
                if belief[i] > 0:
                    weight = belief[i] * np.exp(logarithms[k, i] - largest)
                    for j in range(n):
                        moved[j] += weight * matrices[k, i, j]
            _to_sum_one(moved, belief)
        steps = half
        k += 1
    for i in range(n):
        term[i] = belief[i]
    factor = 1.0
    for m in range(1, _TERMS):
        factor *= jumps / m
        if factor < _NO_TERM:
            break
        for j in range(n):
            moved[j] = 0.0
            for i in range(n):
                moved[j] += term[i] * silent[i, j]
        for j in range(n):
            term[j] = moved[j]
            belief[j] += factor * moved[j]
    _to_sum_one(belief, belief)


@compiled
def _advance_each(beliefs: Array, seconds: Array, step: float, silent: Array, matrices: Array, logarithms: Array) -> None:
    """``_advance`` for every row of ``beliefs``."""
    work = np.empty((2, beliefs.shape[1]))
    for i in range(len(beliefs)):
        _advance(beliefs[i], seconds[i], step, silent, matrices, logarithms, work)


@compiled
def _to_sum_one(weights: Array, belief: Array) -> None:
    total = 0.0
    for i in range(len(weights)):
        total += weights[i]
    inverse = 1.0 / total
    for i in range(len(weights)):
        belief[i] = weights[i] * inverse


@compiled
def _likeliest(belief: Array, present: int) -> int:
    """The likeliest phase; the present one unless another is likelier."""
    for i in range(len(belief)):
        if belief[i] > belief[present] * (1 + _EQUAL):
            present = i
    return present


@compiled
def _until_change(
    belief: Array, phase: int, seconds: float, step: float, silent: Array, matrices: Array, logarithms: Array, work: Array
) -> float:
    """How long ``phase`` stays the likeliest, s, where it is not any more after ``seconds``; a moment at which it is not."""
    stays, changed = 0.0, seconds
    while changed - stays > _PRECISE * step:
        middle = (stays + changed) / 2
        then = belief.copy()
        _advance(then, middle, step, silent, matrices, logarithms, work)
        if _likeliest(then, phase) == phase:
            stays = middle
        else:
            changed = middle
    return changed


@inlined
def _copy(values: NDArray[Any], to: NDArray[Any]) -> None:
    """Value by value: to have one array put into a part of another compiles, for 2 s, what would say that they do not fit."""
    for i in range(len(values)):
        to[i] = values[i]


@compiled
def _filter(
    times: Array, start: Array, D1: Array, step: float, silent: Array, matrices: Array, logarithms: Array, beliefs: Array
) -> tuple[Array, NDArray[np.int64], int]:
    """Fill ``beliefs``; the times and phases of changes, and the place of an impossible arrival, or -1."""
    n = len(start)
    change_times, change_to = np.empty(16), np.empty(16, dtype=np.int64)
    n_changes = 0
    belief, before, work = start.copy(), np.empty(n), np.empty((2, n))
    moved = work[0]
    phase = int(np.argmax(start))
    _copy(start, beliefs[0])
    for t in range(1, len(times) + 1):
        elapsed = 0.0
        left = times[t] - times[t - 1] if t < len(times) else np.inf
        stride = step
        while left > 0 and (left < np.inf or stride < step * _LONGEST):
            length = left if n <= 2 and left < np.inf else min(stride, left)  # two phases change places once at most
            _copy(belief, before)
            _advance(belief, length, step, silent, matrices, logarithms, work)
            if _likeliest(belief, phase) != phase:
                length = _until_change(before, phase, length, step, silent, matrices, logarithms, work)
                _copy(before, belief)
                _advance(belief, length, step, silent, matrices, logarithms, work)
                phase = _likeliest(belief, phase)
                change_times, change_to = _recorded(change_times, change_to, n_changes, times[t - 1] + elapsed + length, phase)
                n_changes += 1
            stride = 2 * stride if np.abs(belief - before).max() < _SLOW else max(step, stride / 2)
            elapsed += length
            left -= length
        if t == len(times):
            break
        for j in range(n):
            moved[j] = 0.0
            for i in range(n):
                moved[j] += belief[i] * D1[i, j]
        if not moved.sum() > 0:
            return change_times[:n_changes].copy(), change_to[:n_changes].copy(), t
        _to_sum_one(moved, belief)
        _copy(belief, beliefs[t])
        if _likeliest(belief, phase) != phase:
            phase = _likeliest(belief, phase)
            change_times, change_to = _recorded(change_times, change_to, n_changes, times[t], phase)
            n_changes += 1
    return change_times[:n_changes].copy(), change_to[:n_changes].copy(), -1


@compiled
def _recorded(times: Array, phases: NDArray[np.int64], n: int, time: float, phase: int) -> tuple[Array, NDArray[np.int64]]:
    """The arrays, ``n`` of each in use, with one more; longer ones where they are full."""
    if n == len(times):
        more_times, more_phases = np.empty(2 * n), np.empty(2 * n, dtype=np.int64)
        _copy(times, more_times)
        _copy(phases, more_phases)
        times, phases = more_times, more_phases
    times[n], phases[n] = time, phase
    return times, phases
