"""Roads that meet: linear program, value iteration, policy iteration, a dense chain, and every table there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from scipy.optimize import OptimizeResult

from sluice.batching.errors import InvalidInput, NotConverged
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.service.law import EmpiricalLaw, ServiceLaw, erlang
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.smdp import SmdpProblem, evaluate, linear_program
from sluice.optimizer.smdp.linear_program import solve_by_linear_program
from sluice.optimizer.smdp.policy_iteration import greedy, solve_by_policy_iteration
from sluice.optimizer.smdp.value_iteration import solve_by_value_iteration
from tests.optimizer.smdp_problems import LAWS, googlenet, random_problem

LEVELS = np.array([0, 0.5, 0.9, 0.99, 1.0])
SHAPE = np.array([0.7, 0.95, 1.3, 2.0, 4.0])


def empirical(mean: np.ndarray) -> ServiceLaw:
    """Five points of a quantile function."""
    shape = SHAPE / ((SHAPE[1:] + SHAPE[:-1]) / 2 @ np.diff(LEVELS))
    return EmpiricalLaw(ServiceTimes(1, np.outer(mean, shape), np.zeros(len(mean)), mean, LEVELS))


EVERY_LAW = {**LAWS, "erlang of 2": lambda mean: erlang(mean, 2), "empirical": empirical}


def bounded_problem(rng: np.random.Generator, name: str) -> SmdpProblem:
    """A random problem whose queue stays short enough for a cut."""
    random = name in ("exponential", "hyperexponential", "gamma", "empirical")
    problem = random_problem(rng, EVERY_LAW[name], 7 if random else 12)
    rate = problem.arrival_rate * min(1, (0.65 if random else 0.9) / problem.load)
    return replace(problem, arrivals=poisson(rate))


def long_enough(problem: SmdpProblem) -> int:
    """A length that the queue, served in the largest batches, passes with a probability of some 1e-12, by diffusion."""
    mean = problem.load * problem.max_batch_size
    drift = problem.max_batch_size - mean
    scatter = mean + problem.arrival_rate**2 * (problem.service.second_moment[-1] - problem.service.mean[-1] ** 2)
    return 3 * problem.max_batch_size + int(14 * (scatter + drift**2) / drift)


@pytest.mark.parametrize("name", EVERY_LAW)
@pytest.mark.full
def test_three_methods_find_the_same_gain_and_table(name: str) -> None:
    rng = np.random.default_rng(11)
    for _ in range(5):
        problem = bounded_problem(rng, name)
        exact = solve_by_policy_iteration(problem)
        max_state = long_enough(problem)
        program = solve_by_linear_program(problem, max_state)
        iterated = solve_by_value_iteration(
            problem, max_state=max_state, overflow_cost=10 * exact.gain, epsilon=1e-9 * exact.gain, max_iterations=100_000
        )
        assert iterated.converged
        cut = 10 * max(program.overflow_cost, iterated.overflow_cost)
        assert program.gain == pytest.approx(exact.gain, rel=3e-7, abs=cut)
        assert iterated.gain == pytest.approx(exact.gain, rel=1e-9, abs=cut)
        assert cut < 1e-5 * exact.gain
        for other in (program, iterated):
            assert other.mean_latency == pytest.approx(exact.mean_latency, rel=1e-6, abs=cut)
            assert other.power == pytest.approx(exact.power, rel=1e-5)
            seen = min(states_seen(problem, exact.actions[0]), other.actions.shape[1], exact.actions.shape[1] - 1)
            differ = np.flatnonzero(exact.actions[0, :seen] != other.actions[0, :seen])
            for s in differ:  # where two actions are equally good
                table = exact.actions[0].copy()
                table[s] = other.actions[0, s]
                performance = evaluate(problem, table)
                assert problem.cost(performance.mean_latency, performance.power) == pytest.approx(exact.gain, rel=1e-9)


def states_seen(problem: SmdpProblem, table: np.ndarray) -> int:
    """States up to the last one in which a share of more than 1e-6 of the decisions falls."""
    moves = chain(problem, table, long_enough(problem) + len(table))
    stationary = stationary_distribution(moves)
    return int(np.flatnonzero(stationary > 1e-6)[-1]) + 1


def chain(problem: SmdpProblem, table: np.ndarray, n_states: int) -> np.ndarray:
    """Probabilities of moves under a table, in a queue cut at ``n_states`` - 1."""
    counts = problem.service.counts(problem.arrival_rate, n_states)
    moves = np.zeros((n_states, n_states))
    for s in range(n_states):
        a = table[min(s, len(table) - 1)]
        if a == 0:
            moves[s, s + 1] = 1
        else:
            moves[s, s - a :] = counts[a - 1, : n_states - s + a]
            moves[s, -1] += 1 - moves[s].sum()
    return moves


def stationary_distribution(moves: np.ndarray) -> np.ndarray:
    """Of a chain, by a dense linear solve."""
    n = len(moves)
    equations = moves.T - np.eye(n)
    equations[0] = 1
    return np.linalg.solve(equations, np.eye(n)[0])


@pytest.mark.parametrize("name", EVERY_LAW)
@pytest.mark.full
def test_a_table_comes_to_what_its_chain_written_out_does(name: str) -> None:
    rng = np.random.default_rng(12)
    for _ in range(4):
        problem = bounded_problem(rng, name)
        largest, smallest = problem.max_batch_size, problem.min_batch_size
        table = []
        for s in range(int(rng.integers(largest, 3 * largest + 2))):  # any actions, in no order
            allowed = [0, *range(smallest, min(s, largest) + 1)]
            table.append(int(rng.choice(allowed)))
        table = np.array([*table, largest])
        performance = evaluate(problem, table)
        n = 2 * long_enough(problem) + len(table)
        stationary = stationary_distribution(chain(problem, table, n))
        actions = table[np.minimum(np.arange(n), len(table) - 1)]
        law, rate = problem.service, problem.arrival_rate
        time = np.append(1 / rate, law.mean)[actions]
        waiting = np.arange(n) / rate * time + np.append(0.0, law.second_moment / 2)[actions]
        total = stationary @ time
        assert performance.mean_latency == pytest.approx(stationary @ waiting / total, rel=1e-8)
        assert performance.power == pytest.approx(stationary @ np.append(0.0, problem.energy)[actions] / total, rel=1e-8)
        batches = [stationary[actions == b].sum() / total for b in range(1, largest + 1)]
        assert performance.batch_rates == pytest.approx(np.array(batches), rel=1e-7, abs=1e-9 * rate)


@pytest.mark.parametrize("name", EVERY_LAW)
def test_no_table_of_all_tables_is_cheaper(name: str) -> None:
    rng = np.random.default_rng(13)
    largest = 3
    for rho in (0.3, 0.8):
        problem = replace(
            googlenet(rho, float(rng.uniform(0, 3)), largest, EVERY_LAW[name]), min_batch_size=int(rng.integers(1, 3))
        )
        choices = [[0, *range(problem.min_batch_size, min(s, largest) + 1)] for s in range(6)]
        costs = []
        for table in product(*choices):
            performance = evaluate(problem, np.array([*table, largest]))
            costs.append(problem.cost(performance.mean_latency, performance.power))
        solution = solve_by_policy_iteration(problem)
        assert solution.gain <= min(costs) * (1 + 1e-12)
        if (solution.actions[0, 6:] == largest).all():
            assert solution.gain == pytest.approx(min(costs), rel=1e-10)


def test_the_program_is_as_good_as_greedy_where_waiting_never_pays() -> None:
    problem = googlenet(0.5, 0.0, 2)
    solution = solve_by_linear_program(problem, 40)
    performance = evaluate(problem, greedy(problem))
    assert solution.gain == pytest.approx(problem.cost(performance.mean_latency, performance.power), rel=1e-7)
    assert solution.method == "linear-program" and solution.converged and solution.residual < 1e-9
    assert problem.cost(solution.mean_latency, solution.power) == pytest.approx(solution.gain, rel=1e-9)
    exact = solve_by_policy_iteration(problem)
    assert solution.bias[0, :3] == pytest.approx(exact.bias[0, :3], rel=1e-6, abs=1e-8)
    served = solution.performance.batch_rates @ np.array([1, 2])
    assert served == pytest.approx(problem.arrival_rate, rel=1e-7)


def test_turning_requests_away_never_saves_energy() -> None:
    problem = googlenet(0.6, 50.0, 4)
    exact = solve_by_policy_iteration(problem)
    solution = solve_by_linear_program(problem, 60)
    assert solution.gain == pytest.approx(exact.gain, rel=1e-7)
    assert solution.overflow_cost < 1e-9 * exact.gain


def test_what_the_program_does_not_take_is_named() -> None:
    with pytest.raises(InvalidInput, match="max_state: 7 is not allowed; allowed: an integer >= 8, the largest batch"):
        solve_by_linear_program(googlenet(0.5, 1.0, 8), 7)
    with_phases = replace(googlenet(0.5, 1.0, 4), arrivals=mmpp2(300, 100, 1, 1))
    with pytest.raises(InvalidInput, match="arrivals.n_phases: 2 is not allowed; allowed: 1, Poisson arrivals"):
        solve_by_linear_program(with_phases, 40)


def test_a_program_that_is_not_solved_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    def unsolved(*arguments: object, **options: object) -> OptimizeResult:
        return OptimizeResult(status=4, message="numerical difficulties")

    monkeypatch.setattr(linear_program.optimize, "linprog", unsolved)
    with pytest.raises(NotConverged, match="the linear program: numerical difficulties"):
        solve_by_linear_program(googlenet(0.5, 1.0, 2), 20)
