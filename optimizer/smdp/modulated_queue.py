"""The batch queue with phases of the arrivals, evaluated and improved exactly under a table per phase (docs/model.md, section 4.5).

No decision is taken during a service. So of the phases shifting meanwhile only the joint law of the number of arrivals and the
final phase matters, E[C_k(G_a)]: with the uniformized chain U of (1.4), of rate r,

    E[C_k(G_a)] = sum_m p_m U_{m,k},    p_m = P(m events of rate r during G_a),                                        (4.8)
    E int_0^G_a N(t) dt = r^-2 sum_m p_m sum_{n<m-1} (m - 1 - n) P^n D1 1,    P = I + (D0 + D1) / r,                    (4.9)

without a quadrature, and every term positive. Waiting is one more row of the same kind: in phase ``i`` it lasts ``1 / -D0[i, i]``
and ends in a shift of the phase or an arrival.

Above the last row of the tables, where phase ``i`` serves batches of ``b_i``, let ``P`` and ``M`` be the phase transitions over a
service and the mean change of the number waiting with them, ``pi P = pi``, ``L_i = l(b_i)``, ``drift = -pi M 1 > 0``. There

    h(s) = A s^2 1 + s u + c + e(s),    A = pi L / (2 lambda drift),
    (I - P) u = L / lambda + 2 A M 1,                                                                                 (4.11)
    (I - P) c = q - g L + A E[(K - b)^2] + M u,

for the holding cost s / lambda (for the energy A = 0, and no L / lambda); ``q`` is what a service costs whatever s. The multiple
of 1 that is open in ``u`` makes the last line solvable. ``e`` has no cost of its own and stays bounded: it is the sum of
``descents[i - 1] e(s - i)`` over i (``modulated_ladder``). Nothing is cut off or approximated; unknown are e(0) ... e(S) in every
phase and the gain, which takes the place of e(0) in the first.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import stationary_distribution
from sluice.optimizer.smdp.modulated_kernels import extend, fill_moves, moves_above, weights_above
from sluice.optimizer.smdp.modulated_ladder import first_descents
from sluice.optimizer.smdp.modulated_services import NEGLIGIBLE, counts_of_services
from sluice.optimizer.smdp.problem import SmdpProblem
from sluice.optimizer.smdp.solution import Actions, Performance
from sluice.optimizer.when_asked import module_when_asked

linalg = module_when_asked("scipy.linalg")


@dataclass(frozen=True, eq=False)
class ModulatedValues:
    """Tables evaluated; index 0 of the last axis is the holding cost s / lambda, 1 the energy.

    Parameters
    ----------
    gains : array, shape (2,)
        Mean latency (s) and power (W).
    quadratic : array, shape (2,)
        A of (4.11).
    linear, constant : array, shape (n_phases, 2)
        u and c of (4.11).
    rest : array, shape (n_rows, n_phases, 2)
        e(s), from 0 in the first phase on; some rows beyond those of the table.
    rates : array, shape (n_states, n_phases)
        Decisions per second with ``s`` waiting, up to the last row.
    overflow_rate : float
        How often per second the queue grows beyond the last row.
    """

    gains: Array
    quadratic: Array
    linear: Array
    constant: Array
    rest: Array
    rates: Array
    overflow_rate: float

    def relative(self, n_states: int) -> Array:
        """h(0) ... h(n_states - 1), shape (n_states, n_phases, 2), from 0 with nothing waiting in the first phase on."""
        s = np.arange(n_states)[:, None, None]
        return np.asarray(self.quadratic * s**2 + self.linear * s + self.constant - self.constant[0] + self.rest[:n_states])


class ModulatedTail:
    """What lies above the last row of tables that end in batches of ``batch_sizes``, (n_phases,): (4.11) and (4.12)."""

    def __init__(self, queue: ModulatedQueue, batch_sizes: Actions) -> None:
        n = len(batch_sizes)
        at = batch_sizes, np.arange(n)
        self.batch_sizes = batch_sizes
        self.largest = int(batch_sizes.max())
        self._rate = queue.rate  # lambda
        self.transitions = queue.transitions[at]  # P
        self.service_time = queue.duration[at]  # L
        self._stationary = stationary_distribution(self.transitions - np.eye(n))  # pi
        moved = queue.arrived[at] - batch_sizes[:, None] * self.transitions  # M
        self._moved, self._moved_in_all = moved, moved.sum(axis=1)  # M, M 1
        self._squared = queue.squared(*at, -batch_sizes)  # E[(K - b)^2]
        self.drift = -float(self._stationary @ self._moved_in_all)
        if self.drift <= 0:
            served = float(self._stationary @ batch_sizes / (self._stationary @ self.service_time))
            raise InvalidInput(
                "actions, last column",
                batch_sizes.tolist(),
                f"batch sizes that serve more than {queue.rate:.6g} requests/s (not {served:.6g})",
            )
        # (I - P + 1 pi)^-1 y is the x with (I - P) x = y and pi x = 0, where pi y = 0
        self._fundamental = np.linalg.inv(np.eye(n) - self.transitions + self._stationary)
        # u and c are these times the gain less than at gain 0: -g L in the last line of (4.11), and what keeps it solvable
        self.gain_slope = float(self._stationary @ self.service_time) / self.drift
        self.gain_constant = self._fundamental @ (self.service_time + self.gain_slope * self._moved_in_all)
        counts = queue.counts[batch_sizes, :, at[1]].transpose(1, 0, 2)
        self.descents = first_descents(np.ascontiguousarray(counts), batch_sizes, self._stationary)  # delta of (4.12)
        self.weights = weights_above(self.descents, queue.counts.shape[1])

    def polynomial(self, costs: Array) -> tuple[Array, Array, Array]:
        """A (n,), u and c (n_phases, n) of (4.11) at gain 0; ``costs`` (n_phases, n) are q, with s / lambda beside the first."""
        quadratic = np.zeros(costs.shape[1])
        quadratic[0] = self._stationary @ self.service_time / (2 * self._rate * self.drift)  # A = pi L / (2 lambda drift)
        slope = 2 * np.outer(self._moved_in_all, quadratic)
        slope[:, 0] += self.service_time / self._rate  # L / lambda + 2 A M 1
        linear = self._fundamental @ slope  # u, but for a multiple of 1
        fixed = costs + np.outer(self._squared, quadratic) + self._moved @ linear  # q + A E[(K - b)^2] + M u
        level = self._stationary @ fixed / self.drift  # the multiple of 1 in u, with which pi times the last line is 0
        return quadratic, linear + level, self._fundamental @ (fixed + np.outer(self._moved_in_all, level))

    def extended(self, rest: Array, n_rows: int) -> Array:
        """``rest`` (n_states, n_phases, n) with more rows, ``n_rows`` in all."""
        result = np.empty((n_rows, *rest.shape[1:]))
        result[: len(rest)] = rest
        extend(result, len(rest), self.descents)
        return result


class ModulatedQueue:
    """A server whose arrivals have phases: what its tables come to, and how they get better.

    The storage is ``counts``, (max_batch_size + 1, n_counts, n_phases, n_phases); there are no transitions from state to state by
    action. Index 0 of the first axis, here and below, is to wait, ``a`` to serve a batch of ``a``.
    """

    def __init__(self, problem: SmdpProblem) -> None:
        self.problem = problem
        self.rate = problem.arrival_rate
        self.n_phases = problem.arrivals.n_phases
        D0, D1 = problem.arrivals.D0, problem.arrivals.D1
        leave = -D0.diagonal()
        counts, held = counts_of_services(problem)
        self.counts = np.zeros((len(counts) + 1, *counts.shape[1:]))
        self.counts[1:] = counts
        self.counts[0, 0] = (D0 + np.diag(leave)) / leave[:, None]
        self.counts[0, 1] = D1 / leave[:, None]
        largest = self.counts.max(axis=(2, 3))
        self.reach = largest.shape[1] - (largest[:, ::-1] >= NEGLIGIBLE).argmax(axis=1)  # counts that matter, by action
        k = np.arange(self.counts.shape[1])
        self.transitions = self.counts.sum(axis=1)
        self.arrived = np.tensordot(self.counts, k, axes=(1, 0))  # mean arrivals, with the phase after them
        self._mean = self.arrived.sum(axis=2)
        self._second = np.tensordot(self.counts.sum(axis=3), k**2, axes=(1, 0))
        self.duration = np.empty((len(self.counts), self.n_phases))
        self.duration[0], self.duration[1:] = 1 / leave, problem.service.mean[:, None]
        self.costs = np.zeros((len(self.counts), self.n_phases, 2))
        self.costs[1:, :, 0] = held / self.rate
        self.costs[1:, :, 1] = problem.energy[:, None]
        self._tails: dict[tuple[int, ...], ModulatedTail] = {}
        self._spectra: dict[int, NDArray[np.complex128]] = {}

    def squared(self, actions: Actions, phases: Actions, start: Actions | Array) -> Array:
        """Mean square of ``start`` and the arrivals together, by action and phase before."""
        return np.asarray(self._second[actions, phases] + 2 * start * self._mean[actions, phases] + start**2)

    def tail(self, batch_sizes: Actions) -> ModulatedTail:
        """That of tables which end in ``batch_sizes``, (n_phases,)."""
        key = tuple(batch_sizes.tolist())
        if key not in self._tails:
            self._tails[key] = ModulatedTail(self, batch_sizes)
        return self._tails[key]

    def evaluate(self, actions: Actions) -> ModulatedValues:
        """The values of tables (n_phases, n_states)."""
        n_states = actions.shape[1]
        tail = self.tail(actions[:, -1])
        equations = _Equations(self, actions, tail)
        polynomial = tail.polynomial(self.costs[tail.batch_sizes, np.arange(self.n_phases)])
        gains, rest = equations.solve(equations.sides(self.costs, *polynomial))
        quadratic, linear, constant = polynomial
        rates = equations.rates().reshape(n_states, self.n_phases)
        return ModulatedValues(
            gains,
            quadratic,
            linear - tail.gain_slope * gains,
            constant - np.outer(tail.gain_constant, gains),
            tail.extended(rest, 2 * n_states + self.problem.max_batch_size + self.counts.shape[1]),
            rates,
            float((rates * equations.leaves).sum()),
        )

    def performance(self, actions: Actions) -> Performance:
        """Mean latency, power, and the batches of each size per second, of tables (n_phases, n_states)."""
        tail = self.tail(actions[:, -1])
        equations = _Equations(self, actions, tail)
        n = self.problem.max_batch_size
        costs = np.zeros((n + 1, self.n_phases, n + 1))
        costs[..., 0] = self.costs[..., 0]
        costs[1:, :, 1:] = np.eye(n)[:, None, :]
        polynomial = tail.polynomial(costs[tail.batch_sizes, np.arange(self.n_phases)])
        gains = equations.rates() @ equations.sides(costs, *polynomial)
        batches = np.maximum(gains[1:], 0.0)
        return Performance(float(gains[0]), float(batches @ self.problem.energy), batches)

    def action_values(self, values: ModulatedValues, latency_weight: float, power_weight: float, n_states: int) -> Array:
        """Weighted cost of each action followed by the tables evaluated, shape (n_states, n_phases, max_batch_size + 1).

        Relative to nothing waiting in the first phase; infinite where an action is not allowed.
        """
        weights = np.array([latency_weight, power_weight])
        gain, quadratic, linear, constant = (x @ weights for x in (values.gains, values.quadratic, values.linear, values.constant))
        constant = constant - constant[0]
        n_actions = len(self.counts)
        sizes = np.arange(n_actions)
        x = np.arange(n_states)[:, None, None]  # left behind
        # (n_states, n_actions, n_phases): the quadratic and what the rest comes to after the service
        value = (
            quadratic * (x**2 + 2 * x * self._mean + self._second)
            + x * (self.transitions @ linear)
            + (self.arrived @ linear + self.transitions @ constant + self.costs @ weights - gain * self.duration)
            + self._averaged(values.rest @ weights, n_states)
        )
        s = np.arange(n_states)[:, None]
        allowed = ((sizes >= self.problem.min_batch_size) & (sizes <= s)) | (sizes == 0)
        behind = np.where(allowed, s - sizes, 0)
        holding = latency_weight / self.rate * s[:, :, None] * self.duration
        return np.where(allowed[:, :, None], value[behind, sizes] + holding, np.inf).transpose(0, 2, 1)

    def tail_values(self, values: ModulatedValues, latency_weight: float, power_weight: float) -> Array:
        """What is left of the cost of each batch size in an endless queue, (n_phases, max_batch_size), of the largest throughput.

        Batch sizes of the largest throughput differ there by a constant; infinite for the others.
        """
        weights = np.array([latency_weight, power_weight])
        gain, quadratic, linear, constant = (x @ weights for x in (values.gains, values.quadratic, values.linear, values.constant))
        sizes = np.arange(1, len(self.counts))[:, None]
        mean, second, moves = self._mean[1:], self._second[1:], self.transitions[1:]
        limit = (
            (self.costs @ weights - gain * self.duration)[1:]
            + quadratic * (second - 2 * sizes * mean + sizes**2)
            + self.arrived[1:] @ linear
            - sizes * (moves @ linear)
            + moves @ constant
        )
        throughput = self.problem.throughput
        possible = throughput >= throughput[-1] * (1 - 1e-12)
        possible[: self.problem.min_batch_size - 1] = False
        return np.where(possible, limit.T, np.inf)

    def _averaged(self, rest: Array, n_states: int) -> Array:
        """``sum_k counts[a, k] rest[x + k]``, (n_states, n_actions, n_phases), by the fast Fourier transform."""
        n_rows = n_states + self.counts.shape[1]
        length = 2 ** int(np.ceil(np.log2(n_rows)))
        if length not in self._spectra:
            self._spectra[length] = np.conj(np.fft.rfft(self.counts, length, axis=1))
        spectrum = np.einsum("afij,fj->fai", self._spectra[length], np.fft.rfft(rest[:n_rows], length, axis=0))
        return np.asarray(np.fft.irfft(spectrum, length, axis=0)[:n_states])


class _Equations:
    """The linear system of tables: (4.10) with the actions of the tables, less what (4.11) has of it, a row per state and phase.

    Unknown are e(0) ... e(S), the gain in the place of the first.
    """

    def __init__(self, queue: ModulatedQueue, actions: Actions, tail: ModulatedTail) -> None:
        self._queue, self._tail = queue, tail
        n, n_states = actions.shape
        self._shape = n_states, n
        self._actions = actions.T.ravel()  # state by state
        self._phases = np.tile(np.arange(n), n_states)
        self._s = np.repeat(np.arange(n_states), n)
        self._behind = self._s - self._actions
        at = self._actions, self._phases
        self._next = self._behind + queue.arrived[at].sum(axis=1)
        self._squared = queue.squared(*at, self._behind)
        self._duration = queue.duration[at]
        # mean number waiting then, with the phase then: what u is multiplied by
        self._with_phase = self._behind[:, None] * queue.transitions[at] + queue.arrived[at]
        matrix, self.leaves = self._moves_inside(np.ascontiguousarray(actions))
        self._fold_in_moves_above(matrix, np.ascontiguousarray(actions))
        matrix[:, 0] = self._times_gain()
        # The transpose has LAPACK's order and is factored in place.
        self._factors = linalg.lu_factor(matrix.T, overwrite_a=True, check_finite=False)

    def _moves_inside(self, actions: Actions) -> tuple[Array, Array]:
        """e(s) less Sum_k C_k e(s - a + k) of (4.10) as a matrix, up to the last row; and the probability of moves beyond it."""
        matrix, leaves = np.zeros((actions.size, actions.size)), np.zeros(self._shape)
        fill_moves(matrix, leaves, self._queue.counts, self._queue.reach, actions)
        return matrix, leaves

    def _fold_in_moves_above(self, matrix: Array, actions: Actions) -> None:
        """Put for e of the states above the last row what (4.12) says: sums of e of the ``largest`` rows below them."""
        (n_states, n), tail = self._shape, self._tail
        farthest = int((self._behind + self._queue.reach[self._actions] - 1).max())
        above = min(farthest - n_states + 1, len(tail.weights))
        if above <= 0:
            return
        moves = moves_above(self._queue.counts, actions, above).reshape(n_states * n, above * n)
        below = tail.weights[:above].transpose(0, 2, 1, 3).reshape(above * n, -1)
        matrix[:, (n_states - tail.largest) * n :] -= moves @ below

    def _times_gain(self) -> Array:
        """What the gain is multiplied by, (n_states * n_phases,): the duration, and the parts of u and c that it has in (4.11)."""
        tail = self._tail
        moved_on = self._queue.transitions[self._actions, self._phases]
        gain = self._duration + tail.gain_slope * (self._next - self._s)
        return np.asarray(gain + moved_on @ tail.gain_constant - tail.gain_constant[self._phases])

    def sides(self, costs: Array, quadratic: Array, linear: Array, constant: Array) -> Array:
        """Right sides, (n_states * n_phases, n), for ``n`` costs of an action, s / lambda beside the first."""
        at = self._actions, self._phases
        sides = costs[at].copy()
        sides[:, 0] += self._s * self._duration / self._queue.rate
        sides += np.outer(self._squared - self._s**2, quadratic)
        sides += self._with_phase @ linear - self._s[:, None] * linear[self._phases]
        sides += self._queue.transitions[at] @ constant - constant[self._phases]
        return np.asarray(sides)

    def solve(self, sides: Array) -> tuple[Array, Array]:
        """Gains (n,) and e(0) ... e(S), (n_states, n_phases, n)."""
        solved = linalg.lu_solve(self._factors, sides, trans=1, check_finite=False)
        gains = solved[0].copy()
        solved[0] = 0.0
        return gains, solved.reshape(*self._shape, -1)

    def rates(self) -> Array:
        """What a unit of each right side adds to the gain: decisions per second in a state and phase, (n_states * n_phases,)."""
        unit = np.zeros(len(self._actions))
        unit[0] = 1.0
        return np.asarray(linalg.lu_solve(self._factors, unit, check_finite=False))
