"""Policy iteration over the lengths of two queues (docs/model.md, section 4.8).

Evaluate the table (``class_queue``), take in every state the action of least value, and go on until none is better by more than
rounding. The grid is doubled on both sides until that neither changes the gain nor finds a table that is better than the one
before, by more than a part of 1e-6: states that are next to never seen may have another action.

What a table comes to takes four more evaluations like the one that found its gain. So where time is bounded, a step is given up
once four times what it has taken is more than what is left, and the table before it is the answer.

Reference: Howard, Dynamic Programming and Markov Processes (1960), for semi-Markov processes Puterman, section 11.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.batching import policy as policies
from sluice.batching.errors import InvalidInput, NotConverged, require
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.smdp.class_problem import ClassProblem
from sluice.optimizer.smdp.class_queue import ClassQueue, ClassWeights, OutOfTime
from sluice.optimizer.smdp.solution import Actions, SecondsLeft, endless

_MOST_ITERATIONS = 100
MOST_STATES = 257
"""Of a side of the grid."""
_ROUNDING = 1e-9
_SAME = 1e-9  # part of the gain by which tables differ that are as good
_SETTLED_FOR = 3  # iterations
_TO_TELL = 4  # evaluations of a table that tell what it comes to
_SETTLED = 1e-6  # part of the gain by which a grid twice as large changes it


@dataclass(frozen=True)
class ClassPerformance:
    """What a table over two classes comes to in the long run.

    Parameters
    ----------
    mean_latency : tuple of two floats
        Mean time from arrival to answer of urgent and patient requests, s.
    power : float
        Energy per second, W.
    mean_batch_size : float
    """

    mean_latency: tuple[float, float]
    power: float
    mean_batch_size: float


@dataclass(frozen=True, eq=False)
class ClassSolution:
    """A table over the lengths of two queues, what it costs, and how it was found.

    Parameters
    ----------
    problem : ClassProblem
    actions : array of int, shape (n_urgent, n_patient)
        How many leave with so many urgent and patient requests waiting, urgent ones first; 0: wait. The last row and the last
        column speak for all beyond.
    gain : float
        The weighted cost (4.27).
    performance : ClassPerformance
    iterations : int
        Of policy iteration, on all grids.
    converged : bool
        Whether the grid was large enough.
    truncation : float
        Part of the gain by which the last doubling of the grid changed it, or its table was better than the one before, whichever
        is more; infinite where there was none.
    bound : float or None
        Where policy iteration was stopped before its end, what no table costs less than on the grid.
    """

    problem: ClassProblem
    actions: Actions
    gain: float
    performance: ClassPerformance
    iterations: int
    converged: bool
    truncation: float
    bound: float | None = None

    @property
    def switching_curve(self) -> list[int | None]:
        """By number of patient requests waiting, the fewest urgent ones with which a batch leaves; ``None``: none on the grid."""
        serves = self.actions > 0
        return [int(column.argmax()) if column.any() else None for column in serves.T]

    @property
    def monotone(self) -> bool:
        """Whether one more request waiting, of either class, never turns serving into waiting."""
        return _never_falls(self.actions > 0)

    @property
    def larger_with_more(self) -> bool:
        """Whether one more request waiting, of either class, never makes a batch smaller."""
        return _never_falls(self.actions)

    def policy(self, servers: int | None = 1) -> Policy:
        """The table as a policy with columns; rows and columns that repeat the one before the end are left out.

        Raises
        ------
        NotConverged
            A table that waits for ever in a long queue.
        """
        table = self.actions
        if not (table[-1].all() and table[:, -1].all()):
            raise NotConverged("policy iteration: its table waits for ever in a long queue", table.tolist(), self.truncation)
        while len(table) > 2 and (table[-1] == table[-2]).all():
            table = table[:-1]
        while table.shape[1] > 2 and (table[:, -1] == table[:, -2]).all():
            table = table[:, :-1]
        return policies.smdp(table.ravel().tolist(), servers, columns=table.shape[1])


def solve_classes(problem: ClassProblem, seconds_left: SecondsLeft = endless, most_states: int = MOST_STATES) -> ClassSolution:
    """The optimal table over the lengths of the two queues.

    Parameters
    ----------
    seconds_left : callable
        In time for what a table comes to, a step is given up: the table evaluated last, the best so far, is returned with its
        ``bound``, or that of the smaller grid. The first table is evaluated however long that takes.
    most_states : int
        Of a side of the grid; beyond it it is not doubled.

    Raises
    ------
    NotConverged
        A table whose values are not found, or whose gain is not what its latencies and its power come to, on the first grid; on
        a larger one the table of the smaller is returned.
    """
    states = problem.together.max_batch_size + 2
    found = _on_grid(problem, _greedy(problem, states), None, seconds_left)
    iterations, changed, settled, smaller = found.iterations, inf, False, None
    while not settled and found.bound is None and states < most_states and seconds_left() > 0:
        states = min(2 * states - 1, most_states)
        pad = ((0, states - len(found.actions)),) * 2
        table, values = np.pad(found.actions, pad, mode="edge"), np.pad(found.values, pad, mode="edge")
        try:
            larger = _on_grid(problem, table, values, seconds_left)
        except (NotConverged, OutOfTime):
            break
        smaller, found = _Evaluated(found, changed), larger
        iterations += found.iterations
        changed = max(abs(found.gain / smaller.found.gain - 1), found.began / found.gain - 1)
        settled = changed < _SETTLED
    try:
        performance = _performance(problem, found)
    except NotConverged:
        if smaller is None:
            raise
        (found, changed), settled = smaller, False
        performance = _performance(problem, found)
    converged = settled and found.bound is None
    return ClassSolution(problem, found.actions, found.gain, performance, iterations, converged, changed, found.bound)


def _performance(problem: ClassProblem, found: _OnGrid) -> ClassPerformance:
    """What the table comes to; the gain, of one linear system, must be that of its latencies and its power, which are of others."""
    performance = evaluate_classes(problem, found.actions)
    off = abs(problem.cost(performance.mean_latency, performance.power) / found.gain - 1)
    if not off < _SETTLED:
        raise NotConverged("the gain of a table over two classes", found.actions.tolist(), off)
    return performance


def evaluate_classes(problem: ClassProblem, actions: Actions, seconds_left: SecondsLeft = endless) -> ClassPerformance:
    """What any table over the lengths of the two queues comes to, but for what the grid misses.

    Parameters
    ----------
    actions : array of int, shape (n_urgent, n_patient)
        As ``ClassSolution`` has them; far out full batches leave.

    Raises
    ------
    InvalidInput
        A table that is not allowed.
    NotConverged
        Its values are not found.
    OutOfTime
        There are no ``seconds_left`` before they are.
    """
    one = problem.together
    largest = one.max_batch_size
    least = f"a grid of {largest + 1} x {largest + 1} states at least"
    require(actions.ndim == 2 and min(actions.shape) > largest, "actions", actions.shape, least)
    sizes = f"0 or a batch size from {one.min_batch_size} to {largest}, and at most the number waiting"
    waiting = np.add.outer(np.arange(actions.shape[0]), np.arange(actions.shape[1]))
    for q1, q2 in np.argwhere((actions != 0) & ((actions < one.min_batch_size) | (actions > np.minimum(waiting, largest)))):
        raise InvalidInput(f"actions[{q1}][{q2}]", int(actions[q1, q2]), sizes)
    queue, none = ClassQueue(problem, (actions.shape[0], actions.shape[1])), np.zeros(largest)
    weights = [ClassWeights(*seconds, none) for seconds in ((1.0, 0.0), (0.0, 1.0))]
    weights += [ClassWeights(0.0, 0.0, each) for each in (one.energy, np.ones(largest))]
    *numbers, power, batches = (queue.evaluate(actions, each, None, seconds_left)[0] for each in weights)
    urgent, patient = (number / each.arrival_rate for number, each in zip(numbers, problem.classes, strict=True))
    return ClassPerformance((urgent, patient), power, one.arrival_rate / batches)


def urgent_first(problem: ClassProblem, actions: Actions, states: int = 0) -> Actions:
    """The table of one queue, (n_states,), read with the number waiting of both classes, on a grid for ``evaluate_classes``.

    The grid has ``states`` a side, and more where the table or a batch needs them.
    """
    states = max(states, len(actions), problem.together.max_batch_size + 2)
    waiting = np.add.outer(np.arange(states), np.arange(states))
    return np.asarray(actions[np.minimum(waiting, len(actions) - 1)])


@dataclass(frozen=True, eq=False)
class _OnGrid:
    """A table on one grid; ``began`` is the gain of the first, ``values`` are e with the gain in the place of the first."""

    actions: Actions
    gain: float
    began: float
    values: Array
    iterations: int
    bound: float | None


class _Evaluated(NamedTuple):
    """A table on one grid, and by how much that grid changed it."""

    found: _OnGrid
    changed: float


def _on_grid(problem: ClassProblem, table: Actions, values: Array | None, seconds_left: SecondsLeft) -> _OnGrid:
    """Policy iteration on one grid; raises ``OutOfTime`` on a grid that is not the first, which has no ``values`` yet."""
    one = problem.together
    each_second = one.latency_weight / one.arrival_rate
    urgent, patient = (each_second * each.weight for each in problem.classes)
    weights = ClassWeights(urgent, patient, one.power_weight * one.energy)
    queue = ClassQueue(problem, (table.shape[0], table.shape[1]))
    saved = began = before = bound = 0.0
    settled = 0
    found: _OnGrid | None = None
    for iteration in range(1, _MOST_ITERATIONS + 1):
        start = seconds_left()
        first = iteration == 1 and values is None
        try:
            gain, rest = queue.evaluate(table, weights, values, endless if first else _to_tell(start, seconds_left))
        except OutOfTime:
            if found is None:
                raise
            return found
        left = _less(seconds_left, _TO_TELL * (start - seconds_left()) if start < inf else 0.0)
        values = rest.copy()
        values[0, 0] = gain
        began = began or gain
        best, better, saved = np.full(table.shape, inf), table.copy(), 0.0
        try:
            for action, value in queue.action_values(weights, gain, rest, left):
                duration = 1 / one.arrival_rate if action == 0 else float(one.service.mean[action - 1])
                saved = max(saved, float((rest - value).max()) / duration)
                better = np.where(value < best, action, better)
                best = np.minimum(best, value)
        except OutOfTime:
            return _OnGrid(table, gain, began, values, iteration, bound)
        improved = rest - best > _ROUNDING * (np.abs(best) + gain * one.service.mean[-1])
        settled = settled + 1 if abs(gain - before) <= _SAME * gain else 0
        before, bound = gain, max(bound, float(gain - saved))
        if not improved.any() or settled > _SETTLED_FOR:
            return _OnGrid(table, gain, began, values, iteration, None)
        found = _OnGrid(table, gain, began, values, iteration, bound)
        if left() <= 0:
            return found
        table = np.where(improved, better, table)
    raise NotConverged("policy iteration over two classes", table.tolist(), saved)


def _less(seconds_left: SecondsLeft, seconds: float) -> SecondsLeft:
    return lambda: seconds_left() - seconds


def _to_tell(start: float, seconds_left: SecondsLeft) -> SecondsLeft:
    """What is left of the time beyond what it takes to tell what the table comes to, by what was spent since ``start``."""
    if start == inf:
        return endless
    return lambda: (left := seconds_left()) - _TO_TELL * (start - left)


def _greedy(problem: ClassProblem, states: int) -> Actions:
    """Serves as many as it can whenever it can."""
    waiting = np.add.outer(np.arange(states), np.arange(states))
    smallest = problem.together.min_batch_size
    return np.where(waiting >= smallest, np.minimum(waiting, problem.together.max_batch_size), 0)


def _never_falls(grid: Actions | NDArray[np.bool_]) -> bool:
    return all(bool((np.diff(grid.astype(np.int64), axis=axis) >= 0).all()) for axis in (0, 1))
