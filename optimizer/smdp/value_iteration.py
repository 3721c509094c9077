"""Relative value iteration on a finite approximation, as the papers solve the batching problem (docs/model.md, section 4).

All states beyond ``max_state`` are one, S_o, in which ``max_state`` requests wait and which costs ``overflow_cost`` a second more,

    c^(s, a) = c(s, a),    c^(S_o, a) = c(max_state, a) + overflow_cost y(s, a).                                     (18)-(19)

Costs per decision become costs per second, and moves per decision moves per ``eta`` seconds,

    c~ = c^ / y,    m~(j | s, a) = eta m^(j | s, a) / y for j != s,                                                  (23)
    0 < eta < min { 1 / lambda, l(a) / (1 - p_a^[a]), l(a) / sum_{i <= a} p_i^[a] },                                 (25)

so that, with E_a(x) = sum_k p_k^[a] H(x + k), what is behind a batch taken, an iteration is

    J(s) = c~(s, a) + H(s) + eta / y (E_a(s - a) - H(s)),  the least over a,    H = J - J(0).                        (29)

No transition matrix is made: the counts p_k^[a] are all there is, and memory is linear in ``max_state`` times the largest batch.

Stopping rule: span(H_{i+1} - H_i) < epsilon. The gain and the part of it that S_o makes are then those of the table in the finite
chain, (21) and (22), from its stationary distribution, which is found without a subtraction: states are eliminated from 0 upwards,
each of which is entered from the next few only.

Units: ``overflow_cost`` and ``epsilon`` are in the unit of the gain (4.2). A weight of 1 per ms is one of 1000 per s, and mJ per ms
are W, so the papers' figures for all three stand here as they are printed; only ``eta`` is in seconds.

Reference: Xu, Zhou, Niu, SMDP-based dynamic batching (journal version), section V, whose equations these are; Grassmann, Taksar,
Heyman, Regenerative analysis and steady state distributions for Markov chains (1985).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sluice.batching.errors import InvalidInput, NotConverged, require
from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled, inlined
from sluice.optimizer.smdp.problem import SmdpProblem
from sluice.optimizer.smdp.solution import Actions, Performance, SmdpSolution

METHOD = "value-iteration"

_BELOW_THE_BOUND = 0.99  # of (25)
_NEGLIGIBLE = 1e-18  # probability of a count that an expectation leaves out
_ROUNDING = 1e-12  # of a sum of probabilities
_MOST_STATES = 2**14
_LARGE = 1e200  # ratio of probabilities at which those above no longer matter


def solve_by_value_iteration(
    problem: SmdpProblem,
    *,
    max_state: int,
    overflow_cost: float,
    epsilon: float = 0.01,
    max_iterations: int = 10_000,
    eta: float | None = None,
) -> SmdpSolution:
    """The optimal table of the finite approximation, with its gain there.

    Parameters
    ----------
    max_state : int
        s_max, the most requests that are told apart; at least the largest batch.
    overflow_cost : float
        c_o, what a second beyond ``max_state`` costs on top, in the unit of the gain.
    epsilon : float
        The span at which it stops, in the unit of the gain.
    max_iterations : int
        After so many it stops as well, with ``converged`` false.
    eta : float, optional
        Step of the discrete-time problem, s; by default 0.99 times its bound (25).

    Returns
    -------
    solution : SmdpSolution
        ``actions`` is the table (30) for 0 to ``max_state`` waiting; its last column is 0 where ``overflow_cost`` is so low that
        waiting for ever is best. ``gain`` is (21), overflow cost included, ``overflow_cost`` the part of it that S_o makes (22).
        ``performance`` is that of the finite chain, in which ``max_state`` requests wait in S_o; ``evaluate`` has that of the table
        in an endless queue. ``iterations`` counts (29), ``residual`` is the last span.

    Raises
    ------
    InvalidInput
        Names what is wrong; arrivals with phases.
    """
    chain = _FiniteChain(problem, max_state)
    require(0 <= overflow_cost < np.inf, "overflow_cost", overflow_cost, "a number >= 0")
    require(0 < epsilon < np.inf, "epsilon", epsilon, "a number > 0")
    require(max_iterations >= 1, "max_iterations", max_iterations, "an integer >= 1")
    bound = largest_eta(problem)
    if eta is None:
        eta = _BELOW_THE_BOUND * bound
    require(0 < eta < bound, "eta", eta, f"a number of seconds > 0 and < {bound:.6g}, the bound (25)")

    holding = problem.latency_weight / problem.arrival_rate * chain.waiting
    holding[-1] += overflow_cost
    fixed = chain.fixed_costs()
    values = np.zeros(len(holding))
    actions = np.zeros(len(holding), dtype=np.int64)
    step = _Step(chain.counts, chain.reach, chain.beyond, eta / chain.sojourn, fixed, holding, problem.min_batch_size)
    iterations, span = _iterate(step, epsilon, max_iterations, values, actions)
    performance, gain, from_overflow = chain.evaluate(actions, overflow_cost)
    table, bias = actions[None, :-1], eta * values[None, :-1]
    return SmdpSolution(problem, METHOD, table, gain, bias, performance, iterations, span < epsilon, span, from_overflow)


def evaluate_in_finite_chain(problem: SmdpProblem, actions: Actions, overflow_cost: float) -> tuple[float, float]:
    """(21) and (22) of any table: its gain in the finite chain, and the part of it that S_o makes.

    Parameters
    ----------
    actions : array of int, shape (max_state + 2,)
        The last is the action in S_o.

    Raises
    ------
    InvalidInput
        A table that is not allowed or too short; arrivals with phases.
    """
    chain = _FiniteChain(problem, len(actions) - 2)
    sizes = f"0 or a batch size from {problem.min_batch_size} to {problem.max_batch_size}, and at most the number waiting"
    for s, a in enumerate(actions):
        waiting = min(s, len(actions) - 2)
        require(a == 0 or problem.min_batch_size <= a <= min(waiting, problem.max_batch_size), f"actions[{s}]", int(a), sizes)
    _, gain, from_overflow = chain.evaluate(np.asarray(actions, dtype=np.int64), overflow_cost)
    return gain, from_overflow


def largest_eta(problem: SmdpProblem) -> float:
    """The bound (25), s: a step must be below."""
    counts = problem.service.counts(problem.arrival_rate, problem.max_batch_size + 1)
    sizes = np.arange(1, problem.max_batch_size + 1)
    stays = counts[sizes - 1, sizes]
    falls = np.array([counts[a - 1, : a + 1].sum() for a in sizes])
    mean = problem.service.mean
    return float(min(1 / problem.arrival_rate, (mean / (1 - stays)).min(), (mean / falls).min()))


def smallest_max_state(
    problem: SmdpProblem, overflow_cost: float, tolerance: float = 0.001, epsilon: float = 0.01, max_iterations: int = 10_000
) -> int:
    """The smallest ``max_state`` for which S_o makes less than ``tolerance`` of the gain, in its unit.

    Found by bisection: a larger one is taken to do as well.

    Raises
    ------
    NotConverged
        None up to 16384 is large enough.
    """
    require(0 < tolerance < np.inf, "tolerance", tolerance, "a number > 0")

    def excess(max_state: int) -> float:
        solution = solve_by_value_iteration(
            problem, max_state=max_state, overflow_cost=overflow_cost, epsilon=epsilon, max_iterations=max_iterations
        )
        return solution.overflow_cost - tolerance

    enough = problem.max_batch_size
    too_small = enough - 1
    while (missed := excess(enough)) >= 0:
        if 2 * enough > _MOST_STATES:
            raise NotConverged("the search for the smallest max_state", enough, missed + tolerance)
        too_small, enough = enough, 2 * enough
    while enough - too_small > 1:
        middle = (enough + too_small) // 2
        if excess(middle) < 0:
            enough = middle
        else:
            too_small = middle
    return enough


class _Step(NamedTuple):
    """What an iteration asks for.

    Parameters
    ----------
    counts : array, shape (max_batch_size, n_counts)
        p_k^[a].
    reach : array of int, shape (max_batch_size,)
        How many of them matter.
    beyond : array, shape (max_batch_size, max_state + 1)
        Probability of more than 0, 1, ... ``max_state`` arrivals.
    speed, fixed : array, shape (max_batch_size + 1,)
        eta / y, and c~ but for the holding cost, by action, 0 being to wait.
    holding : array, shape (n_states,)
        The holding cost, per second.
    smallest : int
        The smallest batch.
    """

    counts: Array
    reach: Actions
    beyond: Array
    speed: Array
    fixed: Array
    holding: Array
    smallest: int


class _FiniteChain:
    """The states 0 to ``max_state`` and S_o; the last axis of what hangs on an action is 0 (wait), then the batch sizes."""

    def __init__(self, problem: SmdpProblem, max_state: int) -> None:
        if problem.arrivals.n_phases > 1:
            raise InvalidInput("arrivals.n_phases", problem.arrivals.n_phases, "1, Poisson arrivals, by this method")
        largest = problem.max_batch_size
        allowed = f"an integer >= {largest}, the largest batch"
        require(max_state == int(max_state) and max_state >= largest, "max_state", max_state, allowed)
        self.problem = problem
        rate = problem.arrival_rate
        n_counts = int(max_state) + largest + 1
        probabilities = problem.service.counts(rate, 2 * n_counts)
        rest = 1 - probabilities.sum(axis=1)
        # Summed from the end, the probability of many arrivals has no error but its own.
        above = np.cumsum(probabilities[:, ::-1], axis=1)[:, ::-1] + np.where(rest > _ROUNDING, rest, 0.0)[:, None]
        self.counts = np.ascontiguousarray(probabilities[:, :n_counts])  # p_k^[a], (max_batch_size, n_counts)
        self.beyond = np.ascontiguousarray(above[:, 1 : int(max_state) + 2])  # P(more than 0 ... max_state arrivals)
        self.reach = n_counts - (self.counts[:, ::-1] >= _NEGLIGIBLE).argmax(axis=1)
        self.waiting = np.minimum(np.arange(int(max_state) + 2), max_state).astype(np.float64)
        self.sojourn = np.append(1 / rate, problem.service.mean)
        services = np.column_stack([problem.service.second_moment / 2, problem.energy])
        self.costs = np.vstack([np.zeros(2), services])  # of a decision, beside the holding cost of those who wait by then

    def fixed_costs(self) -> Array:
        """c~ without the holding cost of those who wait at the decision, per s, (max_batch_size + 1,)."""
        return np.asarray(self.costs @ np.array([self.problem.latency_weight, self.problem.power_weight]) / self.sojourn)

    def evaluate(self, actions: Actions, overflow_cost: float) -> tuple[Performance, float, float]:
        """What a table (max_state + 2,) comes to in this chain, its gain (21), and the part of it that S_o makes (22)."""
        stationary = _stationary(self.counts, self.beyond, actions)
        time = stationary * self.sojourn[actions]
        share = time / time.sum()
        rates = stationary / time.sum()  # decisions per second
        seconds, joules = rates @ self.costs[actions]
        seconds += float(share @ self.waiting) / self.problem.arrival_rate
        batch_rates = np.bincount(actions, rates, minlength=len(self.sojourn))[1:].astype(np.float64)
        performance = Performance(float(seconds), float(joules), batch_rates)
        gain = self.problem.cost(performance.mean_latency, performance.power) + overflow_cost * float(share[-1])
        holding = self.problem.latency_weight / self.problem.arrival_rate * self.waiting[-1]
        from_overflow = float(share[-1] * (holding + overflow_cost + self.fixed_costs()[actions[-1]]))
        return performance, gain, from_overflow


@compiled
def _iterate(step: _Step, epsilon: float, max_iterations: int, values: Array, actions: Actions) -> tuple[int, float]:
    """Iterate (29) in place from ``values`` (n_states,), with the ``actions`` that attain it; the iterations and the last span."""
    n_states = len(values)
    expected = np.empty(n_states - 1)
    best = np.empty(n_states)
    iterations = 0
    span = np.inf
    while iterations < max_iterations and not span < epsilon:
        iterations += 1
        for s in range(n_states):
            best[s] = step.speed[0] * (values[min(s + 1, n_states - 1)] - values[s])
            actions[s] = 0
        for a in range(step.smallest, len(step.counts) + 1):
            _expect(step, a, values, expected)
            _improve(step, a, values, expected, best, actions)
        least, most = np.inf, -np.inf
        for s in range(n_states):
            best[s] += step.holding[s]
            least, most = min(least, best[s]), max(most, best[s])
        at_zero = best[0]
        for s in range(n_states):
            values[s] += best[s] - at_zero
        span = most - least
    return iterations, span


@inlined
def _expect(step: _Step, a: int, values: Array, expected: Array) -> None:
    """E_a(x) for every x that a batch of ``a`` may leave behind."""
    counts, beyond = step.counts, step.beyond
    max_state = len(values) - 2
    n_left = max_state - a + 1
    for x in range(n_left):
        expected[x] = beyond[a - 1, max_state - x] * values[max_state + 1]
    for k in range(step.reach[a - 1]):
        p = counts[a - 1, k]
        for x in range(min(n_left, max_state + 1 - k)):
            expected[x] += p * values[x + k]


@inlined
def _improve(step: _Step, a: int, values: Array, expected: Array, best: Array, actions: Actions) -> None:
    """Take batches of ``a`` wherever they come to less than the ``best`` so far."""
    fixed, speed = step.fixed[a], step.speed[a]
    for s in range(a, len(values)):
        # S_o, the last, leaves as many behind as the state before it
        value = fixed + speed * (expected[min(s, len(values) - 2) - a] - values[s])
        if value < best[s]:
            best[s] = value
            actions[s] = a


@compiled
def _stationary(counts: Array, beyond: Array, actions: Actions) -> Array:
    """Stationary distribution of the decisions under a table that ends with the action in S_o, (n_states,)."""
    n_states = len(actions)
    width = len(counts) + 1  # S_o leads one further down than any other
    rows = np.zeros((width + 1, n_states))  # those from the state eliminated upwards, in turn
    down = np.zeros((n_states, width))  # probability of a move to a state from the next ones, all below it left out
    up = np.zeros(n_states)
    made = 0
    for i in range(n_states - 1):
        while made < n_states and made <= i + width:
            _fill_row(made, actions[made], counts, beyond, rows[made % (width + 1)])
            made += 1
        row = rows[i % (width + 1)]
        for j in range(i + 1, n_states):
            up[i] += row[j]
        for r in range(i + 1, min(i + width, n_states - 1) + 1):
            above = rows[r % (width + 1)]
            down[i, r - i - 1] = above[i]
            if above[i] <= 0 or up[i] <= 0:
                continue
            for j in range(i + 1, n_states):
                above[j] += above[i] * row[j] / up[i]
    result = np.zeros(n_states)
    result[n_states - 1] = 1.0
    for i in range(n_states - 2, -1, -1):
        inflow = 0.0
        for r in range(i + 1, min(i + width, n_states - 1) + 1):
            inflow += result[r] * down[i, r - i - 1]
        if inflow > 0 and inflow > up[i] * _LARGE:
            result[i + 1 :] = 0.0
            result[i] = 1.0
        elif inflow > 0:
            result[i] = inflow / up[i]
    result /= result.sum()
    return result


@inlined
def _fill_row(s: int, a: int, counts: Array, beyond: Array, row: Array) -> None:
    """Probabilities of the moves from ``s`` by the action ``a`` to every state."""
    max_state = len(row) - 2
    row[:] = 0.0
    if a == 0:
        row[min(s + 1, max_state + 1)] = 1.0
    else:
        first = min(s, max_state) - a
        for k in range(max_state + 1 - first):
            row[first + k] = counts[a - 1, k]
        row[max_state + 1] = beyond[a - 1, max_state - first]
