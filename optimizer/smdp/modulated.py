"""Policy iteration for arrivals with phases: one table per phase (docs/model.md, section 4.5).

The state is the number waiting and the phase; decisions are taken when a batch is done, and while the server is idle at arrivals
and shifts of the phase. None is possible during a service, so that no shift then is a state (``modulated_queue``). The method, its
stopping rule and what happens at the end of the table are those of ``policy_iteration``.

The phase is not seen where the tables are to run: ``phase_filter`` follows it from the arrivals, and what the tables cost then is
simulated. ``evaluate_modulated`` is what they would cost were the phase seen, and exact for one table in all phases.

Reference: Xu, Zhou, Niu, SMDP-based dynamic batching (journal version), Remark 3, where the phase shifts during a service are
decision epochs as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sluice.batching.errors import InvalidInput, NotConverged, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.smdp.modulated_queue import ModulatedQueue
from sluice.optimizer.smdp.policy_iteration import METHOD, greedy
from sluice.optimizer.smdp.problem import SmdpProblem
from sluice.optimizer.smdp.solution import Actions, Performance, SecondsLeft, SmdpSolution, endless, long_enough

_MOST_ITERATIONS = 200
_MOST_ROWS = 12_000  # states times phases; the linear system then takes a gigabyte
_ROUNDING = 1e-10
_WORTH = 1e-11  # part of the gain for which no row is added
_UNSEEN = 1e-9  # part of the gain that rows left out may be worth
_SETTLED = 1e-13  # part of the gain that is next to nothing
_SETTLED_FOR = 4  # iterations


def evaluate_modulated(problem: SmdpProblem, actions: ArrayLike, queue: ModulatedQueue | None = None) -> Performance:
    """Mean latency, power and batches per second of tables, exactly, where the phase is seen or does not matter.

    Parameters
    ----------
    actions : array of int, shape (n_phases, n_states), or (n_states,) for one table in every phase
        How many leave with ``s`` waiting; 0 waits. The last ones speak for every longer queue.
    queue : ModulatedQueue, optional
        That of the same arrivals and server, so that its preparations are used again.

    Raises
    ------
    InvalidInput
        Tables that are not allowed, or under which the queue grows for ever.
    """
    queue = queue or ModulatedQueue(problem)
    return queue.performance(long_enough(_checked_tables(problem, actions), problem))


def solve_modulated(
    problem: SmdpProblem,
    start: ArrayLike | None = None,
    queue: ModulatedQueue | None = None,
    seconds_left: SecondsLeft = endless,
) -> SmdpSolution:
    """The optimal tables, one per phase, for any Markovian arrival process.

    Parameters
    ----------
    start : array of int, shape (n_phases, n_states) or (n_states,), optional
        The tables to begin with; by default the greedy one.
    queue : ModulatedQueue, optional
        That of the same arrivals and server under any weights, so that its preparations are used again.
    seconds_left : callable
        When there are none left the tables evaluated last, the best so far, are returned with their ``bound``.

    Raises
    ------
    InvalidInput
        Phases that shift so often that a service holds many thousand shifts.
    NotConverged
        After 200 iterations, which was never seen; a load so near 1 that the tail is beyond reach.
    """
    queue = queue or ModulatedQueue(problem)
    weights = problem.latency_weight, problem.power_weight
    largest, phases = problem.max_batch_size, np.arange(queue.n_phases)[:, None]
    tables = long_enough(_checked_tables(problem, greedy(problem) if start is None else start), problem)
    settled, bound = 0, None
    idle = -1 / problem.arrivals.D0.diagonal()
    durations = np.column_stack([idle, np.tile(problem.service.mean, (queue.n_phases, 1))])
    for iteration in range(1, _MOST_ITERATIONS + 1):  # noqa: B007
        values = queue.evaluate(tables)
        gain = float(values.gains @ np.array(weights))
        n_rows = tables.shape[1]
        beyond = max(largest, n_rows // 4)  # states above the last row in which it is seen whether that may stand for them
        action_values = queue.action_values(values, *weights, n_rows + beyond).transpose(1, 0, 2)
        current = np.append(tables, np.repeat(tables[:, -1:], beyond, axis=1), axis=1)
        best = action_values.min(axis=2)
        gained = action_values[phases, np.arange(n_rows + beyond), current] - best
        slack = _ROUNDING * (np.abs(best) + gain * problem.service.mean[-1])
        better = np.where(gained > slack, action_values.argmin(axis=2), current)
        end = _last_actions(queue.tail_values(values, *weights), tables[:, -1], slack[:, -1])
        # What the next tables save per second, by state; a stay above the last row has some 1 / (1 - load) decisions.
        above_rates = np.full((queue.n_phases, beyond), values.overflow_rate / (1 - problem.load))
        rates = np.append(np.maximum(values.rates.T, 0.0), above_rates, axis=1)
        worth = (rates * np.where(gained > slack, gained, 0.0)).sum(axis=0)
        rows = n_rows - 1  # the last one speaks for longer queues too, and changes only into more rows
        above = np.flatnonzero(np.cumsum(worth[: rows - 1 : -1])[::-1] > _WORTH * gain)
        rows = min(rows + (int(above[-1]) + 1 if len(above) else 0), _MOST_ROWS // queue.n_phases - 1)
        residual = float(worth[:rows].sum()) / gain
        settled = settled + 1 if residual < _SETTLED else 0
        if (end == tables[:, -1]).all() and ((better[:, :rows] == current[:, :rows]).all() or settled > _SETTLED_FOR):
            break
        if seconds_left() <= 0:
            present = action_values[phases, np.arange(n_rows + beyond), current]
            limits = queue.tail_values(values, *weights)
            saved = ((present[..., None] - action_values) / durations[:, None, :]).max()  # per second, at most
            far = ((limits[phases[:, 0], tables[:, -1] - 1][:, None] - limits) / durations[:, 1:]).max()
            bound = gain - max(0.0, float(saved), float(far))
            break
        tables = np.append(better[:, :rows], end[:, None], axis=1)
    else:
        raise NotConverged("policy iteration", tables.tolist(), residual)
    bias = values.relative(tables.shape[1]) @ np.array(weights)
    unseen = float(worth[rows:].sum()) / gain
    converged, residual = bound is None and unseen < _UNSEEN, residual + unseen
    performance = queue.performance(tables)
    return SmdpSolution(problem, METHOD, tables, gain, bias.T, performance, iteration, converged, residual, bound=bound)


def _last_actions(limits: Array, current: Actions, slack: Array) -> Actions:
    """The best batch sizes in an endless queue by phase, the present ones unless others are really better."""
    phases = np.arange(len(current))
    best = limits.argmin(axis=1) + 1
    better = limits[phases, best - 1] < limits[phases, current - 1] - slack
    return np.where(better, best, current)


def _checked_tables(problem: SmdpProblem, actions: ArrayLike) -> Actions:
    """Tables, one per phase, of the same length; whether the queue grows for ever is seen when they are evaluated."""
    given = np.array(actions, dtype=np.int64, ndmin=1)
    n_phases = problem.arrivals.n_phases
    require(
        given.ndim == 1 or (given.ndim == 2 and len(given) == n_phases),
        "actions",
        given.shape,
        f"the shape (n_states,) or ({n_phases}, n_states)",
    )
    tables = np.array(np.broadcast_to(given, (n_phases, given.shape[-1])))
    allowed = np.minimum(np.arange(tables.shape[1]), problem.max_batch_size)
    sizes = f"0 or a batch size from {problem.min_batch_size} to {problem.max_batch_size}, and at most the number waiting"
    for i, s in np.argwhere((tables != 0) & ((tables < problem.min_batch_size) | (tables > allowed))):
        raise InvalidInput(f"actions[{i}][{s}]", int(tables[i, s]), sizes)
    for i in np.flatnonzero(tables[:, -1] == 0):
        last = f"actions[{i}][{tables.shape[1] - 1}]"
        raise InvalidInput(last, 0, "a batch size: the last column speaks for every longer queue")
    return tables
