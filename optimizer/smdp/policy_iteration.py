"""Policy iteration with an exact tail, for Poisson arrivals (docs/model.md, section 4.3): the default solver.

Evaluate the table exactly (``queue``), take in every state the action of least value, and go on until no action changes. The table
ends where from there on the largest batch is best; whether it is, is looked at a quarter of a table further, and the table grown if
not.

Stopping rule: no action improves the value of its state by more than rounding; or for some iterations all improvements together
have been worth next to nothing, because the states where they are made are next to never seen.
Reference: Howard, Dynamic Programming and Markov Processes (1960), for semi-Markov processes Puterman, section 11.4.
"""

from __future__ import annotations

import numpy as np

from sluice.batching.errors import InvalidInput, NotConverged
from sluice.optimizer.smdp.problem import SmdpProblem, checked_actions
from sluice.optimizer.smdp.queue import BatchQueue
from sluice.optimizer.smdp.solution import Actions, Performance, SecondsLeft, SmdpSolution, endless, long_enough

METHOD = "policy-iteration"

_MOST_ITERATIONS = 200
_MOST_ROWS = 12_000  # the linear system then takes a gigabyte
_ROUNDING = 1e-11
_WORTH = 1e-11  # part of the gain for which no row is added
_UNSEEN = 1e-9  # part of the gain that rows left out may be worth
_SETTLED = 1e-13  # part of the gain that is next to nothing
_SETTLED_FOR = 4  # iterations


def evaluate(problem: SmdpProblem, actions: Actions) -> Performance:
    """Mean latency, power and batches per second of any table under Poisson arrivals, exactly.

    Parameters
    ----------
    actions : array of int, shape (n_states,)
        How many leave with ``s`` waiting; 0 waits. The last one speaks for every longer queue.

    Raises
    ------
    InvalidInput
        A table that is not allowed, or under which the queue grows for ever; arrivals with phases.
    """
    _refuse_phases(problem)
    table = long_enough(checked_actions(problem, actions), problem)
    return BatchQueue(problem).performance(table)


def greedy(problem: SmdpProblem) -> Actions:
    """The table that serves as many as it can whenever it can, (max_batch_size + 1,)."""
    states = np.arange(problem.max_batch_size + 1)
    return np.where(states >= problem.min_batch_size, states, 0)


def static(problem: SmdpProblem) -> Actions:
    """The table that serves full batches alone, long enough to be evaluated."""
    return long_enough(np.append(np.zeros(problem.max_batch_size, dtype=np.int64), problem.max_batch_size), problem)


def solve_by_policy_iteration(
    problem: SmdpProblem, start: Actions | None = None, queue: BatchQueue | None = None, seconds_left: SecondsLeft = endless
) -> SmdpSolution:
    """The optimal table.

    Parameters
    ----------
    start : array of int, shape (n_states,), optional
        The table to begin with, that of a neighbouring problem perhaps; by default the greedy one.
    queue : BatchQueue, optional
        That of the same server under any weights, so that its preparations are used again.
    seconds_left : callable
        When there are none left the table evaluated last, the best so far, is returned with its ``bound``.

    Raises
    ------
    InvalidInput
        Arrivals with phases.
    NotConverged
        After 200 iterations, which was never seen.
    """
    _refuse_phases(problem)
    queue = queue or BatchQueue(problem)
    weights = problem.latency_weight, problem.power_weight
    largest = problem.max_batch_size
    table = long_enough(checked_actions(problem, greedy(problem) if start is None else start), problem)
    settled, bound = 0, None
    durations = np.append(1 / problem.arrival_rate, problem.service.mean)
    for iteration in range(1, _MOST_ITERATIONS + 1):  # noqa: B007
        values = queue.evaluate(table)
        gain = float(values.gains @ np.array(weights))
        beyond = max(largest, len(table) // 4)  # states above the last row in which it is seen whether that may stand for them
        n_states = len(table) + beyond
        action_values = queue.action_values(values, *weights, n_states)
        current = np.append(table, np.full(beyond, table[-1]))
        gained = action_values[np.arange(n_states), current] - action_values.min(axis=1)
        slack = _ROUNDING * (np.abs(action_values.min(axis=1)) + gain * queue.service_time[-1])
        better = np.where(gained > slack, action_values.argmin(axis=1), current)
        end = _last_action(queue.tail_values(values, *weights), int(table[-1]), float(slack[-1]))
        # What the next table saves per second, by state; a stay above the last row has some 1 / (1 - load) decisions.
        rates = np.append(np.maximum(values.rates, 0.0), np.full(beyond, values.overflow_rate / (1 - problem.load)))
        worth = rates * np.where(gained > slack, gained, 0.0)
        rows = len(table) - 1  # the last one speaks for longer queues too, and changes only into more rows
        above = np.flatnonzero(np.cumsum(worth[: rows - 1 : -1])[::-1] > _WORTH * gain)
        rows = min(rows + (int(above[-1]) + 1 if len(above) else 0), _MOST_ROWS - 1)
        residual = float(worth[:rows].sum()) / gain
        settled = settled + 1 if residual < _SETTLED else 0
        if end == table[-1] and ((better[:rows] == current[:rows]).all() or settled > _SETTLED_FOR):
            break
        if seconds_left() <= 0:
            present = action_values[np.arange(n_states), current]
            limits = queue.tail_values(values, *weights)
            saved = ((present[:, None] - action_values) / durations).max()  # per second, at most
            bound = gain - max(0.0, float(saved), float(((limits[table[-1] - 1] - limits) / durations[1:]).max()))
            break
        table = np.append(better[:rows], end)
    else:
        raise NotConverged("policy iteration", table.tolist(), residual)
    bias = values.relative(len(table)) @ np.array(weights)
    performance = queue.performance(table)
    unseen = float(worth[rows:].sum()) / gain
    converged, residual = bound is None and unseen < _UNSEEN, residual + unseen
    return SmdpSolution(
        problem, METHOD, table[None, :], gain, bias[None, :], performance, iteration, converged, residual, bound=bound
    )


def _last_action(limits: np.ndarray[tuple[int, ...], np.dtype[np.float64]], current: int, slack: float) -> int:
    """The best batch size in an endless queue, the present one unless another is really better."""
    best = int(limits.argmin()) + 1
    return best if limits[best - 1] < limits[current - 1] - slack else current


def _refuse_phases(problem: SmdpProblem) -> None:
    if problem.arrivals.n_phases > 1:
        raise InvalidInput("arrivals.n_phases", problem.arrivals.n_phases, "1, Poisson arrivals, by this method")
