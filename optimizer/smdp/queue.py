"""The batch queue under a table, evaluated and improved exactly (docs/model.md, section 4.2 and 4.3).

Poisson arrivals, one server. Under a table whose last row serves ``b`` for ever the relative values of all states, infinitely many,
are those of a finite linear system: above the last row S

    h(s) = A s^2 + D s + e(s),    A = L / (2 lambda d),  d = b - lambda L,  L = l(b),                                 (4.6)
    D = [ E G_b^2 / 2 - g L + A (d^2 + Var K) ] / d       for the holding cost s / lambda,
    D = [ zeta(b) - g L ] / d,  A = 0                     for the energy,

where ``e`` has no cost of its own and tends to 0, so that it is the average ``e(s) = sum_i descents[i] e(s - i)`` of those
below (``ladder``). Every ``e`` above S is thereby a combination of the last ``b`` below: nothing is cut off or approximated. The
unknowns are e(0) ... e(S) and the gain. Holding cost and energy are solved side by side: both are properties of the table, and the
weights only combine them.

Reference: Xu, Zhou, Niu, journal version, eqs (7)-(17); the exact tail is ours.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sluice.batching.errors import InvalidInput, NotConverged
from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled
from sluice.optimizer.smdp.ladder import first_descents
from sluice.optimizer.smdp.problem import SmdpProblem
from sluice.optimizer.smdp.solution import Actions, Performance
from sluice.optimizer.when_asked import module_when_asked

lapack = module_when_asked("sluice.optimizer.lapack")

_MOST_COUNTS = 2**17
_NEGLIGIBLE = 1e-18  # probability of so many arrivals, or more
_ROWS = 64  # of a table whose moves beyond it are worked on together
_FAR, _RETURN = 1e12, 1e-13
_FORGOTTEN = 1e-16  # by how much a value high above may depend on one value below


@dataclass(frozen=True, eq=False)
class Values:
    """A table evaluated; index 0 of the last axis is the holding cost s / lambda, 1 the energy.

    Parameters
    ----------
    gains : array, shape (2,)
        Mean latency (s) and power (W).
    quadratic, linear : array, shape (2,)
        A and D of (4.6).
    rest : array, shape (n_states, 2)
        e(s), also above the last row as far as it differs from 0.
    rates : array, shape (n_states,)
        Decisions per second with ``s`` waiting, up to the last row.
    overflow_rate : float
        How often per second the queue grows beyond the last row.
    """

    gains: Array
    quadratic: Array
    linear: Array
    rest: Array
    rates: Array
    overflow_rate: float

    def relative(self, n_states: int) -> Array:
        """h(0) ... h(n_states - 1), shape (n_states, 2), from h(0) = 0 on."""
        s = np.arange(n_states)[:, None]
        rest = np.zeros((n_states, 2))
        shown = min(n_states, len(self.rest))
        rest[:shown] = self.rest[:shown]
        return np.asarray(self.quadratic * s**2 + self.linear * s + rest - self.rest[0])


class Tail:
    """What lies above the last row of a table, where batches of ``batch_size`` are served for ever."""

    def __init__(self, problem: SmdpProblem, counts: Array, batch_size: int) -> None:
        rate = problem.arrival_rate
        mean, second = problem.service.mean[batch_size - 1], problem.service.second_moment[batch_size - 1]
        self.batch_size = batch_size
        self.service_time = float(mean)
        self.drift = batch_size - rate * self.service_time
        variance = rate * self.service_time + rate**2 * float(second - mean**2)
        self.quadratic = np.array([self.service_time / (2 * rate * self.drift), 0.0])
        energy = problem.energy[batch_size - 1]
        # D at gain 0; the gain takes gain_slope of it each
        self.linear = np.array([second / 2 + self.quadratic[0] * (self.drift**2 + variance), energy]) / self.drift
        self.gain_slope = self.service_time / self.drift
        self.descents = first_descents(counts[batch_size - 1], batch_size, rate * self.service_time, variance)
        survival = 1 - np.concatenate([[0.0], np.cumsum(self.descents)[:-1]])  # P(a descent is by more than i)
        self.limit = (survival / survival.sum())[::-1]
        """What the b values up to a row, in their order, say of one high above it."""
        self.weights = _weights(self.descents, self.limit, counts.shape[1], _FORGOTTEN)


class BatchQueue:
    """A server with Poisson arrivals: what its tables come to, and how they get better.

    Memory is linear in the number of states times the largest batch.
    """

    def __init__(self, problem: SmdpProblem) -> None:
        self.problem = problem
        self.rate = problem.arrival_rate
        self.service_time, self.second_moment = problem.service.mean, problem.service.second_moment
        self.arrived = self.rate * self.service_time
        self.variance = self.arrived + self.rate**2 * (self.second_moment - self.service_time**2)
        self.counts = _counts(problem)
        self.reach = self.counts.shape[1] - (self.counts[:, ::-1] >= _NEGLIGIBLE).argmax(axis=1)  # counts that matter, by size
        self._tails: dict[int, Tail] = {}
        self._spectra: dict[int, Array] = {}

    def tail(self, batch_size: int) -> Tail:
        """That of tables which end in ``batch_size``."""
        if batch_size not in self._tails:
            self._tails[batch_size] = Tail(self.problem, self.counts, batch_size)
        return self._tails[batch_size]

    @cached_property
    def costs(self) -> Array:
        """Cost of a service in itself, (max_batch_size, 2): half the second moment (of the holding cost), and the energy."""
        return np.column_stack([self.second_moment / 2, self.problem.energy])

    def evaluate(self, actions: Actions) -> Values:
        """The values of a table (n_states,)."""
        tail = self.tail(int(actions[-1]))
        equations = _Equations(self, actions, tail)
        gains, rest = equations.solve(equations.sides(self.costs, tail.quadratic, tail.linear))
        rest = rest - tail.limit @ rest[len(rest) - tail.batch_size :]  # so that it tends to 0
        rest = np.vstack([rest, tail.weights @ rest[len(rest) - tail.batch_size :]])
        linear = tail.linear - tail.gain_slope * gains
        rates = equations.rates()
        return Values(gains, tail.quadratic, linear, rest, rates, max(0.0, float(rates @ equations.leaves)))

    def performance(self, actions: Actions) -> Performance:
        """Mean latency, power, and the batches of each size per second, of a table (n_states,)."""
        tail = self.tail(int(actions[-1]))
        equations = _Equations(self, actions, tail)
        n = self.problem.max_batch_size
        served = np.eye(n)[tail.batch_size - 1]
        costs = np.column_stack([self.second_moment / 2, np.eye(n)])
        sides = equations.sides(costs, np.append(tail.quadratic[0], np.zeros(n)), np.append(tail.linear[0], served / tail.drift))
        gains = equations.rates() @ sides
        batches = np.maximum(gains[1:], 0.0)
        return Performance(float(gains[0]), float(batches @ self.problem.energy), batches)

    def action_values(self, values: Values, latency_weight: float, power_weight: float, n_states: int) -> Array:
        """Weighted cost of each action followed by the table evaluated, relative to h(0) = 0: (n_states, max_batch_size + 1).

        Infinite where an action is not allowed.
        """
        weights = np.array([latency_weight, power_weight])
        gain, quadratic, linear = values.gains @ weights, values.quadratic @ weights, values.linear @ weights
        rest = values.rest @ weights
        largest = self.problem.max_batch_size
        sizes = np.arange(1, largest + 1)
        left = np.arange(n_states)
        after = left + self.arrived[:, None]  # mean number after the service, by batch size and number left behind
        fixed = self.costs @ weights - gain * self.service_time
        value = fixed[:, None] + quadratic * (after**2 + self.variance[:, None]) + linear * after + self._averaged(rest, n_states)
        result = np.full((n_states, largest + 1), np.inf)
        s = np.arange(n_states)[:, None]
        allowed = (sizes >= self.problem.min_batch_size) & (sizes <= s)
        behind = np.where(allowed, s - sizes, 0)
        holding = latency_weight / self.rate * s * self.service_time
        result[:, 1:] = np.where(allowed, value[sizes - 1, behind] + holding - rest[0], np.inf)
        ahead = values.relative(n_states + 1)[1:] @ weights
        result[:, 0] = (latency_weight * left / self.rate - gain) / self.rate + ahead
        return result

    def tail_values(self, values: Values, latency_weight: float, power_weight: float) -> Array:
        """What is left of the cost of each batch size in an endless queue, (max_batch_size,), where its throughput is the largest.

        Batch sizes of the largest throughput differ there by a constant; infinite for the others.
        """
        weights = np.array([latency_weight, power_weight])
        gain, quadratic, linear = values.gains @ weights, values.quadratic @ weights, values.linear @ weights
        drift = np.arange(1, self.problem.max_batch_size + 1) - self.arrived
        limit = self.costs @ weights - gain * self.service_time + quadratic * (drift**2 + self.variance) - linear * drift
        throughput = self.problem.throughput
        possible = throughput >= throughput[-1] * (1 - 1e-12)
        possible[: self.problem.min_batch_size - 1] = False
        return np.where(possible, limit, np.inf)

    def _averaged(self, rest: Array, n_states: int) -> Array:
        """``sum_k counts[a - 1, k] rest[x + k]``, (max_batch_size, n_states), by the fast Fourier transform."""
        n_counts = self.counts.shape[1]
        length = 2 ** int(np.ceil(np.log2(n_states + n_counts)))
        if length not in self._spectra:
            self._spectra[length] = np.conj(np.fft.rfft(self.counts, length))
        padded = np.zeros(length)
        shown = min(len(rest), length)
        padded[:shown] = rest[:shown]
        return np.fft.irfft(self._spectra[length] * np.fft.rfft(padded), length)[:, :n_states]


class _Equations:
    """The linear system of a table, in which the gain stands where the value of one state, often seen, is 0.

    Let N be the system with that state's column replaced by a unit: solved for costs it gives those of a cycle from the state back
    to it, solved for durations the time of one, and their ratio is the gain. N is a band: a row reaches down by a batch, and up by
    what may arrive in a service.

    A table may have states between which the queue changes over next to never; rounding then decides whether it ever does. Where
    the origin is farther than ``_FAR`` decisions from some state, the queue is returned to it with a probability of ``_RETURN``.
    """

    def __init__(self, queue: BatchQueue, actions: Actions, tail: Tail) -> None:
        n_states = len(actions)
        s = np.arange(n_states)
        self._waits = actions == 0
        self._row = np.maximum(actions - 1, 0)
        left = s - actions
        self._next = left + np.where(self._waits, 1.0, queue.arrived[self._row])  # mean number waiting then
        self._variance = np.where(self._waits, 0.0, queue.variance[self._row])
        self._duration = np.where(self._waits, 1 / queue.rate, queue.service_time[self._row])
        self._holding = s * self._duration / queue.rate
        self._cycle_time = self._duration + tail.gain_slope * (self._next - s)
        farthest = np.where(self._waits, s + 1, left + queue.reach[self._row] - 1)
        self._lower = int(actions.max())
        self._upper = int(min((farthest - s).max(), n_states - 1))
        self._origin = self._often_seen()
        self._factor(queue, actions, tail, farthest, 0.0)
        steps = self._solved(np.ones((n_states, 1)), 0)  # decisions until the origin is seen
        if not np.abs(steps).max() < _FAR:
            self._factor(queue, actions, tail, farthest, _RETURN)

    def _factor(self, queue: BatchQueue, actions: Actions, tail: Tail, farthest: Actions, back: float) -> None:
        """Factor N, with a probability ``back`` to return to the origin at once."""
        n_states, diagonal = len(actions), self._lower + self._upper
        band = np.zeros((self._lower + diagonal + 1, n_states), order="F")
        self.leaves = _fill(band, diagonal, queue.counts, queue.reach, actions)  # probability of a move beyond the last row
        for first in range(0, n_states, _ROWS):
            rows = slice(first, min(first + _ROWS, n_states))
            above = min(int(farthest[rows].max()) - n_states + 1, len(tail.weights))
            if above > 0:
                moves = _moves_above(queue.counts, actions, rows.start, rows.stop, above)
                hangs = moves @ tail.weights[:above] + np.outer(self.leaves[rows], tail.limit)
                _subtract(band, diagonal, hangs, rows.start, n_states - tail.batch_size)
        band[diagonal] += back
        _unit_column(band, self._lower, self._upper, self._origin)
        self._factors, self._pivots, _ = lapack.dgbtrf(band, self._lower, self._upper, overwrite_ab=True)

    def _often_seen(self) -> int:
        """The state most often seen on the way from the last row where as many arrive as are expected."""
        state, seen = len(self._next) - 1, np.zeros(len(self._next), dtype=np.int64)
        for _ in range(4 * len(seen) + 64):
            state = min(round(float(self._next[state])), len(seen) - 1)
            seen[state] += 1
        return int(seen.argmax())

    def sides(self, costs: Array, quadratic: Array, linear: Array) -> Array:
        """Right sides, (n_states, n), for ``n`` costs of a service, the first with the holding cost s / lambda beside."""
        s = np.arange(len(self._next))
        sides = np.where(self._waits[:, None], 0.0, costs[self._row])
        sides[:, 0] += self._holding
        return np.asarray(sides + np.outer(self._next**2 + self._variance - s**2, quadratic) + np.outer(self._next - s, linear))

    def solve(self, sides: Array) -> tuple[Array, Array]:
        """Gains (n,) and e(0) ... e(S) but for a constant, (n_states, n)."""
        cycles = self._solved(np.column_stack([sides, self._cycle_time]), 0)
        cost, time = cycles[:, :-1], cycles[:, -1]
        gains = cost[self._origin] / time[self._origin]
        if not np.isfinite(gains).all():
            raise NotConverged("the values of the table, whose states hardly reach each other", None, float("nan"))
        rest = cost - np.outer(time, gains)
        return gains, rest

    def rates(self) -> Array:
        """What a unit of each right side adds to the gain, (n_states,): decisions taken in the state per second."""
        unit = np.zeros((len(self._next), 1))
        unit[self._origin] = 1.0
        visits = self._solved(unit, 1)[:, 0]
        return np.asarray(visits / (visits @ self._cycle_time))

    def _solved(self, sides: Array, transposed: int) -> Array:
        solved, _ = lapack.dgbtrs(self._factors, self._lower, self._upper, sides, self._pivots, trans=transposed)
        return np.asarray(solved)


def _counts(problem: SmdpProblem) -> Array:
    """Probabilities of 0, 1, ... arrivals during a service of each batch size, as far as they matter."""
    n_counts = 64
    while n_counts <= _MOST_COUNTS:
        counts = problem.service.counts(problem.arrival_rate, n_counts)
        expected = problem.arrival_rate * problem.service.mean[-1]
        if n_counts > 2 * expected and counts[-1, -1] < _NEGLIGIBLE:
            return np.ascontiguousarray(counts[:, : int(np.flatnonzero(counts.max(axis=0) >= _NEGLIGIBLE)[-1]) + 1])
        n_counts *= 2
    allowed = f"a law by which {_MOST_COUNTS} arrivals during a service are next to impossible"
    raise InvalidInput("service", f"a law with {counts[-1, -1]:.2g} left for them", allowed)


@compiled
def _fill(band: Array, diagonal: int, counts: Array, reach: Actions, actions: Actions) -> Array:
    """Set ``band`` to one less the probabilities of moves, and return those of moves beyond the last row, (n_states,).

    Row ``i`` and column ``j`` of the matrix are at ``band[diagonal + i - j, j]``, as LAPACK has it.
    """
    n_states = len(actions)
    leaves = np.zeros(n_states)
    for s in range(n_states):
        band[diagonal, s] += 1.0
        a = actions[s]
        if a == 0:
            if s + 1 < n_states:
                band[diagonal - 1, s + 1] -= 1.0
            else:
                leaves[s] = 1.0
        else:
            inside = min(reach[a - 1], n_states - s + a)
            for k in range(inside):
                band[diagonal + a - k, s - a + k] -= counts[a - 1, k]
            for k in range(inside, reach[a - 1]):
                leaves[s] += counts[a - 1, k]
    return leaves


@compiled
def _subtract(band: Array, diagonal: int, block: Array, row: int, column: int) -> None:
    """Take a block off the matrix; rows of zeros, which may lie outside the band, are left out."""
    for i in range(block.shape[0]):
        for j in range(block.shape[1]):
            if block[i, j] != 0.0:
                band[diagonal + row + i - column - j, column + j] -= block[i, j]


@compiled
def _unit_column(band: Array, lower: int, upper: int, column: int) -> None:
    n_states = band.shape[1]
    for i in range(max(0, column - upper), min(n_states, column + lower + 1)):
        band[lower + upper + i - column, column] = 1.0 if i == column else 0.0


@compiled
def _moves_above(counts: Array, actions: Actions, first: int, end: int, above: int) -> Array:
    """Probabilities of moves from the rows ``first`` to ``end`` - 1 to each of ``above`` states beyond the last row."""
    n_states = len(actions)
    moves = np.zeros((end - first, above))
    for s in range(first, end):
        a = actions[s]
        if a == 0:
            if s + 1 >= n_states:
                moves[s - first, s + 1 - n_states] = 1.0
        else:
            start = n_states - s + a
            for k in range(start, min(counts.shape[1], start + above)):
                moves[s - first, k - start] = counts[a - 1, k]
    return moves


@compiled
def _weights(descents: Array, limit: Array, most: int, forgotten: float) -> Array:
    """How the values above a row hang on the ``b`` values up to it, (n_above, b), until all that is left is the limit.

    The limit, the weights high above, is orthogonal to a function that tends to 0 and is taken off.
    """
    b = len(descents)
    weights = np.zeros((most, b))
    for j in range(most):
        for i in range(1, b + 1):
            below = j - i
            if below >= 0:
                for n in range(b):
                    weights[j, n] += descents[i - 1] * weights[below, n]
            else:
                weights[j, b + below] += descents[i - 1]
        if j >= b and j % 16 == 0:
            spread = 0.0
            for n in range(b):
                spread = max(spread, abs(weights[j, n] - limit[n]))
            if spread < forgotten:
                most = j
                break
    result = weights[:most].copy()
    for j in range(most):
        for n in range(b):
            result[j, n] -= limit[n]
    return result
