"""The queue of two classes under a table over both lengths: what it costs, and how it gets better (docs/model.md, section 4.8).

With ``q1`` urgent and ``q2`` patient requests waiting a batch of ``a`` takes the urgent ones first and leaves

    x1 = max(q1 - a, 0),    x2 = q2 - max(a - q1, 0)                                                                  (4.28)

behind. Those that come meanwhile are ``k1`` and ``k2`` with probability p_{k1 + k2}^[a] times a binomial law. Far out, where full
batches of B leave, the relative values grow as

    f(q1, q2) = w1 / (2 lambda) [ weight_2 L / d (q1 + q2)^2 + (weight_1 - weight_2) L / d1 q1^2 ],                   (4.29)
    L = l(B),  d = B - lambda L,  d1 = B - lambda_1 L,

and what is left, e = h - f, is linear there but for what decays geometrically. So beyond the last row and column ``e`` goes on as a
line, with the slope that it has there; ``f`` is averaged in closed form. How much that misses, a larger grid tells.

The values of a table are the solution of a linear system in e and the gain, of which no matrix is made: GMRES asks for products
alone. States that a batch of the same size leaves alike share what is behind it.

Reference: for (4.29) the drift of a priority queue, urgent requests being served as if alone; Saad, Schultz, GMRES (1986).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sluice.batching.errors import InvalidInput, NotConverged
from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled, inlined
from sluice.optimizer.smdp.class_problem import ClassProblem
from sluice.optimizer.smdp.solution import Actions, SecondsLeft, endless
from sluice.optimizer.when_asked import module_when_asked

fft = module_when_asked("scipy.fft")
linalg = module_when_asked("scipy.sparse.linalg")
special = module_when_asked("sluice.optimizer.special_functions")

_NEGLIGIBLE = 1e-14  # probability of so many arrivals, or more
_MOST_COUNTS = 2**14
MOST_PROBABILITIES = 2**25
"""Of so many of each class meanwhile, by batch size: 0.25 GiB, and while they are made four times as much."""
_ACCURACY = 1e-12  # of the linear system wanted, over its right side
_ENOUGH = 1e-8  # where rounding lets it come no nearer
_RESTART = 100
_RESTARTS = 4
_ROUNDS = 8  # of so many restarts, while not enough


@dataclass(frozen=True, eq=False)
class ClassWeights:
    """What is counted: a second of a request of each class, and a batch by its size, (max_batch_size,)."""

    urgent: float
    patient: float
    batch: Array


class OutOfTime(Exception):
    """There are no seconds left for what is under way; whoever has a table already goes on with that."""


class ClassQueue:
    """A server with two classes and a grid of ``shape`` states: row by urgent requests waiting, column by patient ones."""

    def __init__(self, problem: ClassProblem, shape: tuple[int, int]) -> None:
        one = problem.together
        self.problem, self.shape = problem, shape
        self.rate, self.rates = one.arrival_rate, tuple(each.arrival_rate for each in problem.classes)
        self.mean, self.second_moment = one.service.mean, one.service.second_moment
        self.variance = self.second_moment - self.mean**2
        self.joint = _joint_counts(problem)
        self.reach = np.array([[_reach(law, axis) for axis in (1, 0)] for law in self.joint])
        self._urgent, self._patient = np.indices(shape)
        self._size = (
            fft.next_fast_len(shape[0] + self.joint.shape[1], real=True),
            fft.next_fast_len(shape[1] + self.joint.shape[2], real=True),
        )
        self._full = np.conj(fft.rfft2(self.joint[-1], self._size))

    def evaluate(
        self, actions: Actions, weights: ClassWeights, start: Array | None = None, seconds_left: SecondsLeft = endless
    ) -> tuple[float, Array]:
        """The gain under a table and the relative values e on the grid, from e(0, 0) = 0 on.

        Parameters
        ----------
        start : array, shape ``shape``, optional
            Values near by, those of a neighbouring table perhaps, with the gain in the place of the first.
        seconds_left : callable
            Asked before every product.

        Raises
        ------
        OutOfTime
            None are left.
        NotConverged
            The linear system.
        """
        largest = float(self.mean[-1])
        duration = np.append(1 / self.rate, self.mean)[actions] / largest
        sides = self._sides(actions, weights)

        def times(values: Array) -> Array:
            if seconds_left() <= 0:
                raise OutOfTime
            rest = values.reshape(self.shape).copy()
            gain, rest[0, 0] = rest[0, 0], 0.0
            return np.asarray(rest - self._averaged(rest, actions) + gain * duration).ravel()

        size = actions.size
        operator = linalg.LinearOperator((size, size), matvec=times, dtype=np.float64)
        begin = None
        if start is not None:
            begin = start.copy()
            begin[0, 0] *= largest
            begin = begin.ravel()
        missed, rounds = np.inf, 0
        while missed > _ENOUGH and rounds < _ROUNDS:
            begin, ended = linalg.gmres(operator, sides.ravel(), begin, rtol=_ACCURACY, restart=_RESTART, maxiter=_RESTARTS)
            missed = float(np.linalg.norm(times(begin) - sides.ravel()) / np.linalg.norm(sides)) if ended else 0.0
            rounds += 1
        if missed > _ENOUGH:
            raise NotConverged("the values of a table over two classes", None, missed)
        rest = np.asarray(begin).reshape(self.shape)
        gain = float(rest[0, 0]) / largest
        rest[0, 0] = 0.0
        return gain, rest

    def action_values(
        self, weights: ClassWeights, gain: float, rest: Array, seconds_left: SecondsLeft = endless
    ) -> Iterator[tuple[int, Array]]:
        """Each action and what it comes to followed by the table evaluated, less f; infinite where it is not allowed.

        Raises
        ------
        OutOfTime
            There are no ``seconds_left`` before the last action.
        """
        spectrum = self._spectrum(self._padded(rest))
        waits = np.zeros(self.shape, dtype=np.int64)
        waiting = self._sides(waits, weights) - gain / self.rate + self._averaged(rest, waits)
        waiting[-1], waiting[:, -1] = np.inf, np.inf  # they speak for all beyond, where somebody must be served
        yield 0, waiting
        for a in range(self.problem.together.min_batch_size, len(self.mean) + 1):
            if seconds_left() <= 0:
                raise OutOfTime
            allowed = self._urgent + self._patient >= a
            x1, x2 = np.where(allowed, self._left(a), 0)
            value = self._sides(np.full(self.shape, a), weights) - gain * self.mean[a - 1] + self._behind(spectrum, a)[x1, x2]
            yield a, np.where(allowed, value, np.inf)

    def _left(self, actions: Actions | int) -> tuple[Actions, Actions]:
        """(4.28)."""
        return np.maximum(self._urgent - actions, 0), self._patient - np.maximum(actions - self._urgent, 0)

    def _sides(self, actions: Actions, weights: ClassWeights) -> Array:
        """What a decision costs until the next, with what f grows by meanwhile, on the grid."""
        waits = actions == 0
        row = np.maximum(actions - 1, 0)
        time = np.where(waits, 1 / self.rate, self.mean[row])
        cost = (weights.urgent * self._urgent + weights.patient * self._patient) * time
        mixed = weights.urgent * self.rates[0] + weights.patient * self.rates[1]
        cost = cost + np.where(waits, 0.0, mixed * self.second_moment[row] / 2 + weights.batch[row])
        x1, x2 = self._left(actions)
        variance = np.where(waits, 0.0, self.variance[row])
        for (before, behind, rate), factor in zip(
            ((self._urgent + self._patient, x1 + x2, self.rate), (self._urgent, x1, self.rates[0])),
            self._growth(weights),
            strict=True,
        ):
            came = rate * time
            second = np.where(waits, came, came + came**2 + rate**2 * variance)  # mean square of the arrivals
            cost = cost + factor * (behind**2 - before**2 + 2 * behind * came + second)
        return np.asarray(cost)

    def _growth(self, weights: ClassWeights) -> tuple[float, float]:
        """The factors of (q1 + q2)^2 and q1^2 in (4.29)."""
        largest, time = len(self.mean), float(self.mean[-1])
        all_drift, urgent_drift = (largest - rate * time for rate in (self.rate, self.rates[0]))
        return weights.patient * time / (2 * all_drift), (weights.urgent - weights.patient) * time / (2 * urgent_drift)

    def _averaged(self, rest: Array, actions: Actions) -> Array:
        """The mean of e after the action of each state."""
        padded = self._padded(rest)
        full = self._behind(self._spectrum(padded), len(self.mean))
        return _averages(padded, full, self.joint, self.reach, actions, self.rates[0] / self.rate)

    def _spectrum(self, padded: Array) -> Array:
        """By which a batch of any size averages them."""
        return np.asarray(fft.rfft2(padded, self._size))

    def _behind(self, spectrum: Array, batch_size: int) -> Array:
        """The mean after a batch that leaves so many of each class behind, on the grid."""
        law = self._full if batch_size == len(self.mean) else np.conj(fft.rfft2(self.joint[batch_size - 1], self._size))
        return np.asarray(fft.irfft2(spectrum * law, self._size)[: self.shape[0], : self.shape[1]])

    def _padded(self, rest: Array) -> Array:
        """``rest`` with as many rows and columns more as may arrive in a service."""
        n, m = self.shape
        padded = np.empty((n + self.joint.shape[1], m + self.joint.shape[2]))
        padded[:n, :m] = rest
        beyond = np.arange(1, self.joint.shape[1] + 1)[:, None]
        padded[n:, :m] = rest[-1] + beyond * (rest[-1] - rest[-2])
        beyond = np.arange(1, self.joint.shape[2] + 1)
        padded[:, m:] = padded[:, m - 1 : m] + beyond * (padded[:, m - 1 : m] - padded[:, m - 2 : m - 1])
        return padded


def _joint_counts(problem: ClassProblem) -> Array:
    """Probabilities of k1 urgent and k2 patient arrivals during a service of each size, (max_batch_size, n1, n2).

    Raises
    ------
    InvalidInput
        More than ``MOST_PROBABILITIES`` before any is made.
    """
    rate, law = problem.together.arrival_rate, problem.together.service
    n = 64
    while (counts := law.counts(rate, n))[-1, -1] >= _NEGLIGIBLE and n < _MOST_COUNTS:
        n *= 2
    n = int(np.flatnonzero(counts.max(axis=0) >= _NEGLIGIBLE)[-1]) + 1
    if len(counts) * n * n > MOST_PROBABILITIES:
        most = int((MOST_PROBABILITIES / len(counts)) ** 0.5)
        few = f"at most {most - 1} with two classes and batches of up to {len(counts)}: a smaller largest batch, or shorter tails"
        raise InvalidInput("arrivals during a service", f"up to {n - 1}", few)
    k = np.arange(n)
    total = k[:, None] + k
    shares = np.array(problem.shares)
    split = np.exp(
        special.gammaln(total + 1)
        - special.gammaln(k + 1)[:, None]
        - special.gammaln(k + 1)
        + special.xlogy(k, shares[0])[:, None]
        + special.xlogy(k, shares[1])
    )
    split[total >= n] = 0.0
    joint = counts[:, np.minimum(total, n - 1)] * split
    largest = joint.max(axis=0)
    ends = (int(np.flatnonzero(largest.max(axis=axis) >= _NEGLIGIBLE)[-1]) + 1 for axis in (1, 0))
    joint = joint[:, : next(ends), : next(ends)]
    return np.ascontiguousarray(joint / joint.sum(axis=(1, 2), keepdims=True))


def _reach(law: Array, axis: int) -> int:
    """How many counts of one class matter."""
    return int(np.flatnonzero(law.max(axis=axis) >= _NEGLIGIBLE)[-1]) + 1


@compiled
def _averages(padded: Array, full: Array, joint: Array, reach: Actions, actions: Actions, urgent_share: float) -> Array:
    """The mean of ``padded`` after the action of each state, (n_rows, n_columns); ``full`` is that after the largest batch."""
    n_rows, n_columns = actions.shape
    largest = len(joint)
    result, behind = np.empty((n_rows, n_columns)), np.empty((largest, n_columns))
    first, end = np.full(largest, n_columns), np.zeros(largest, dtype=np.int64)  # patient ones that batches of a size leave alone
    for q1 in range(n_rows):
        for q2 in range(n_columns):
            a = actions[q1, q2]
            if q1 <= a < largest and a > 0:
                first[a], end[a] = min(first[a], q1 + q2 - a), max(end[a], q1 + q2 - a + 1)
    for a in range(1, largest):
        _average(padded, joint[a - 1], reach[a - 1], 0, first[a], end[a], behind[a])
    for q1 in range(n_rows):
        q2 = 0
        while q2 < n_columns:
            a, start = actions[q1, q2], q2
            while q2 < n_columns and actions[q1, q2] == a:
                q2 += 1
            if 0 < a < min(q1, largest):
                _average(padded, joint[a - 1], reach[a - 1], q1 - a, start, q2, result[q1])
                continue
            for column in range(start, q2):
                if a == 0:
                    came = urgent_share * padded[q1 + 1, column]
                    result[q1, column] = came + (1 - urgent_share) * padded[q1, column + 1]
                elif a == largest:
                    result[q1, column] = full[max(q1 - a, 0), column - max(a - q1, 0)]
                else:
                    result[q1, column] = behind[a, q1 + column - a]
    return result


@inlined
def _average(padded: Array, law: Array, reach: Actions, x1: int, first: int, end: int, result: Array) -> None:
    """The mean where ``x1`` urgent ones and from ``first`` to before ``end`` patient ones are left behind."""
    for x2 in range(first, end):
        result[x2] = 0.0
    for k1 in range(reach[0]):
        for k2 in range(reach[1]):
            p = law[k1, k2]
            for x2 in range(first, end):
                result[x2] += p * padded[x1 + k1, x2 + k2]
