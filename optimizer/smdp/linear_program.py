"""The batching problem as a linear program: another road to its gain, for small problems and tests (docs/model.md, section 4).

How often per second each action is taken in each state, x(s, a) >= 0, of the policy that minimises

    sum c(s, a) x(s, a)   subject to   sum_a x(j, a) = sum m(j | s, a) x(s, a) for all j,   sum y(s, a) x(s, a) = 1.

The queue is cut at ``max_state``: who arrives beyond it is turned away, at the price that a request more has there if the queue
drains like a fluid, holding ``max_state`` requests for 1 / (B / l(B) - lambda) s more, and the most energy that a request takes. So
it never pays to turn requests away. All moves are written down one by one, so
memory grows with the square of ``max_state``, and nothing is shared with the other methods but the problem. The error of the cut
falls geometrically with ``max_state``; ``overflow_cost`` tells whether it is large enough.

Reference: Puterman, Markov Decision Processes, sections 8.8 and 11.4.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import InvalidInput, NotConverged, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.smdp.problem import SmdpProblem
from sluice.optimizer.smdp.solution import Performance, SmdpSolution
from sluice.optimizer.when_asked import module_when_asked

optimize = module_when_asked("scipy.optimize")
sparse = module_when_asked("scipy.sparse")

METHOD = "linear-program"

States = NDArray[np.int64]

_MOST_ARRIVALS = 4096
_TAKEN_FOR_ZERO = 1e-9  # coefficients up to this the solver leaves out, and the probabilities no longer sum to 1
_OPTIONS = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}  # the least that the solver takes


def solve_by_linear_program(problem: SmdpProblem, max_state: int) -> SmdpSolution:
    """The optimal table of the queue cut at ``max_state``, by ``scipy.optimize.linprog``.

    For small problems: it needs 8 max_state^2 max_batch_size bytes, and a second for 200 states and batches of up to 12. Its gain
    is good to 6 digits or better, the accuracy of the solver.

    Parameters
    ----------
    max_state : int
        The most requests that wait; at least the largest batch.

    Returns
    -------
    solution : SmdpSolution
        In a state that is next to never seen (below 1e-9 times per arrival) the program says nothing, and the table is greedy.
        ``overflow_cost`` is the part of the gain made with ``max_state`` waiting.

    Raises
    ------
    InvalidInput
        ``max_state`` below the largest batch, or arrivals with phases.
    NotConverged
        The program was not solved; carries the solver's message.
    """
    if problem.arrivals.n_phases > 1:
        raise InvalidInput("arrivals.n_phases", problem.arrivals.n_phases, "1, Poisson arrivals, by this method")
    largest, rate = problem.max_batch_size, problem.arrival_rate
    require(max_state >= largest, "max_state", max_state, f"an integer >= {largest}, the largest batch")
    states, actions = _pairs(problem, max_state)
    sizes = np.maximum(actions, 1) - 1
    waits = actions == 0
    # In units of 1 / rate, so that the frequencies are per arrival.
    sojourn = np.where(waits, 1.0, rate * problem.service.mean[sizes])
    half_square = np.where(waits, 0.0, problem.service.second_moment[sizes] / 2)
    latency = states / rate * sojourn + rate * half_square
    energy = np.where(waits, 0.0, rate * problem.energy[sizes])
    moves, turned_away = _moves(problem, max_state, states, actions)
    each = problem.energy / np.arange(1, largest + 1)
    price = problem.latency_weight * max_state / (problem.throughput[-1] - rate) + rate * problem.power_weight * each.max()
    cost = problem.latency_weight * latency + problem.power_weight * energy + price * turned_away
    stays = sparse.csc_array((np.ones(len(states)), (states, np.arange(len(states)))), shape=(max_state + 1, len(states)))
    balance = sparse.vstack([stays - moves, sparse.csc_array(sojourn[None, :])])
    scale = float(cost @ sojourn / (sojourn @ sojourn))
    result = optimize.linprog(cost / scale, A_eq=balance, b_eq=np.eye(max_state + 2)[-1], method="highs-ds", options=_OPTIONS)
    if result.status != 0:
        raise NotConverged(f"the linear program: {result.message}", None, float("nan"))

    frequency = np.asarray(result.x)
    prices = np.asarray(result.eqlin.marginals) * scale
    gain, bias = float(cost @ frequency), prices[:-1] - prices[0]
    action_values = np.full((max_state + 1, largest + 1), np.inf)
    action_values[states, actions] = cost - gain * sojourn + moves.T @ bias
    taken = np.zeros_like(action_values)
    taken[states, actions] = frequency
    seen = taken.max(axis=1) > 1e-9
    most = np.minimum(np.arange(max_state + 1), largest)
    table = np.where(seen, taken.argmax(axis=1), np.where(most >= problem.min_batch_size, most, 0))
    missed = np.abs(action_values[seen].min(axis=1) - bias[seen]).max() / (gain * rate * problem.service.mean[-1])
    batch_rates = rate * taken[:, 1:].sum(axis=0)
    performance = Performance(float(latency @ frequency), float(energy @ frequency), batch_rates)
    last = states == max_state
    return SmdpSolution(
        problem, METHOD, table[None, :], gain, bias[None, :] / rate, performance, int(result.nit), True, float(missed),
        float(cost[last] @ frequency[last]),
    )  # fmt: skip


def _pairs(problem: SmdpProblem, max_state: int) -> tuple[States, States]:
    """States and the actions allowed in them, one pair after the other."""
    pairs = []
    for s in range(max_state + 1):
        sizes = range(problem.min_batch_size, min(s, problem.max_batch_size) + 1)
        pairs += [(s, a) for a in (0, *sizes)]
    states, actions = np.array(pairs).T
    return states, actions


def _moves(problem: SmdpProblem, max_state: int, states: States, actions: States) -> tuple[Any, Array]:
    """Probability of each next state, (max_state + 1, n_pairs), and the mean number turned away, (n_pairs,)."""
    laws = [_likely(p) for p in problem.service.counts(problem.arrival_rate, _MOST_ARRIVALS)]
    moves = np.zeros((max_state + 1, len(states)))
    turned_away = np.zeros(len(states))
    for i, (s, a) in enumerate(zip(states, actions, strict=True)):
        arrivals, probabilities = laws[a - 1] if a else (np.ones(1, dtype=np.int64), np.ones(1))
        after = s - a + arrivals
        np.add.at(moves[:, i], np.minimum(after, max_state), probabilities)
        turned_away[i] = probabilities @ np.maximum(after - max_state, 0)
    return sparse.csc_array(moves), turned_away


def _likely(counts: Array) -> tuple[States, Array]:
    """Numbers of arrivals, and their probabilities, with those at the ends that the solver would take for 0 given to the next."""
    likely = np.flatnonzero(counts > _TAKEN_FOR_ZERO)
    first, last = likely[0], likely[-1]
    probabilities = counts[first : last + 1].copy()
    probabilities[0] += counts[:first].sum()
    probabilities[-1] += 1 - probabilities.sum()
    return np.arange(first, last + 1), probabilities
