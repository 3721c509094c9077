"""Relative value iteration on a finite approximation: the papers' table, the chain written out, units, and its limits."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from benchmarks.approximate_iterations import approximate_policy_iteration, approximate_value_iteration
from sluice.batching.errors import InvalidInput, NotConverged
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.service.law import ServiceLaw, deterministic, hyperexponential
from sluice.optimizer.smdp import SmdpProblem, affine, evaluate, solve
from sluice.optimizer.smdp.policy_iteration import greedy
from sluice.optimizer.smdp.value_iteration import (
    evaluate_in_finite_chain,
    largest_eta,
    smallest_max_state,
    solve_by_value_iteration,
)
from tests.optimizer.smdp_problems import LAWS, googlenet, random_problem

TOLERANCE = 0.001

# Table II of the journal version, Table I of the conference version: c_o, least s_max, iterations, Delta, gain
TABLE = [
    (10000.0, 89, 1847, 9.36e-4, 66.1384),
    (1000.0, 78, 1635, 9.78e-4, 66.1383),
    (100.0, 70, 1483, 8.36e-4, 66.1377),
    pytest.param(10.0, 161, 10000, 6.14e-12, 66.1374, marks=pytest.mark.proof),
    pytest.param(0.0, 192, 10000, 1.30e-14, 66.1374, marks=pytest.mark.proof),
]


@pytest.mark.parametrize(("overflow_cost", "max_state", "iterations", "delta", "gain"), TABLE)
def test_the_papers_table_of_least_state_spaces(
    overflow_cost: float, max_state: int, iterations: int, delta: float, gain: float
) -> None:
    problem = googlenet(0.9)
    solution = solve_by_value_iteration(problem, max_state=max_state, overflow_cost=overflow_cost)
    smaller = solve_by_value_iteration(problem, max_state=max_state - 1, overflow_cost=overflow_cost)
    assert solution.overflow_cost < TOLERANCE <= smaller.overflow_cost
    # the papers count the sweep that reads the table off as well
    assert solution.iterations == (iterations if iterations == 10000 else iterations - 1)
    assert solution.converged == (iterations < 10000)
    if overflow_cost > 0:  # at 0 the printed Delta is the rounding of a linear solver
        assert solution.overflow_cost == pytest.approx(delta, rel=1.5e-3)
    else:
        assert solution.overflow_cost < 2e-14
    assert solution.gain == pytest.approx(gain, abs=0.009)  # what the rounding of the printed coefficients may make


@pytest.mark.parametrize(("overflow_cost", "max_state", "iterations", "delta", "gain"), TABLE)
def test_coefficients_that_round_to_the_printed_ones_give_the_papers_gains(
    overflow_cost: float, max_state: int, iterations: int, delta: float, gain: float
) -> None:
    mean = affine(1.0524e-3, 0.3050534e-3, 32)  # 0.3051 in print
    problem = SmdpProblem(0.9 * 32 / mean[-1], deterministic(mean), affine(19.603e-3, 19.899e-3, 32), 1, 1e3, 1.0)
    solution = solve_by_value_iteration(problem, max_state=max_state, overflow_cost=overflow_cost)
    assert solution.gain == pytest.approx(gain, abs=6e-5)
    if overflow_cost > 0:
        assert solution.overflow_cost == pytest.approx(delta, rel=6e-4)


def test_the_smallest_state_space_is_found() -> None:
    problem = googlenet(0.9)
    assert smallest_max_state(problem, 100.0, TOLERANCE) == 70
    assert smallest_max_state(problem, 100.0, 3.0) == 32  # the largest batch is the least there is


@pytest.mark.parametrize("overflow_cost", [0.0, 30.0, 3000.0])
def test_the_gain_tends_to_that_of_the_endless_queue(overflow_cost: float) -> None:
    problem = googlenet(0.7, 1.0, 8)
    exact = solve(problem).gain
    gaps = []
    for max_state in (60, 80, 100):
        solution = solve_by_value_iteration(problem, max_state=max_state, overflow_cost=overflow_cost, epsilon=1e-8)
        gaps.append(abs(solution.gain - exact))
    assert gaps[2] <= gaps[1] <= gaps[0]
    assert gaps[2] < 1e-11 * exact


def chain_written_out(problem: SmdpProblem, table: np.ndarray, overflow_cost: float) -> tuple[float, float]:
    """(21) and (22) of a table that ends with the action in S_o, by a dense linear solve."""
    n = len(table)
    rate, law = problem.arrival_rate, problem.service
    counts = law.counts(rate, 2 * n)
    moves, cost, time = np.zeros((n, n)), np.zeros(n), np.zeros(n)
    for s, a in enumerate(table):
        waiting = min(s, n - 2)
        if a == 0:
            moves[s, min(s + 1, n - 1)] = 1
            time[s] = 1 / rate
            cost[s] = problem.latency_weight * waiting / rate**2
        else:
            moves[s, waiting - a : n - 1] = counts[a - 1, : n - 1 - waiting + a]
            moves[s, n - 1] = 1 - moves[s].sum()
            time[s] = law.mean[a - 1]
            holding = waiting * time[s] / rate + law.second_moment[a - 1] / 2
            cost[s] = problem.power_weight * problem.energy[a - 1] + problem.latency_weight * holding
    cost[-1] += overflow_cost * time[-1]
    equations = np.vstack([moves.T - np.eye(n), np.ones(n)])
    stationary = np.linalg.lstsq(equations, np.eye(n + 1)[-1], rcond=None)[0]
    return float(stationary @ cost / (stationary @ time)), float(stationary[-1] * cost[-1] / (stationary @ time))


@pytest.mark.parametrize("name", LAWS)
def test_gain_and_overflow_are_those_of_the_chain_written_out(name: str) -> None:
    problem = googlenet(0.8, 2.0, 6, LAWS[name])
    solution = solve_by_value_iteration(problem, max_state=25, overflow_cost=300.0, epsilon=1e-6)
    # in S_o, where time costs more, a smaller batch than elsewhere may be best
    tables = [np.append(solution.actions[0], a) for a in range(7)]
    chains = [chain_written_out(problem, table, 300.0) for table in tables]
    gain, delta = min(chains)
    assert solution.gain == pytest.approx(gain, rel=1e-10)
    assert solution.overflow_cost == pytest.approx(delta, rel=1e-8)
    for table, written_out in zip(tables, chains, strict=True):
        assert evaluate_in_finite_chain(problem, table, 300.0) == pytest.approx(written_out, rel=1e-8)
    rates = solution.performance.batch_rates @ np.arange(1, 7)
    assert rates < problem.arrival_rate  # who comes in S_o is not served
    assert rates == pytest.approx(problem.arrival_rate, rel=0.2)


def test_the_table_is_as_good_as_the_span_says() -> None:
    rng = np.random.default_rng(3)
    for law in LAWS.values():
        problem = random_problem(rng, law, 6)
        problem = problem if problem.load < 0.6 else SmdpProblem(
            problem.arrival_rate * 0.6, problem.service, problem.energy, problem.min_batch_size,
            problem.latency_weight, problem.power_weight,
        )  # fmt: skip
        best = solve(problem)
        epsilon = 1e-3 * best.gain
        solution = solve_by_value_iteration(problem, max_state=150, overflow_cost=20 * best.gain, epsilon=epsilon)
        assert solution.converged and solution.residual < epsilon
        performance = evaluate(problem, solution.actions[0])
        cost = problem.cost(performance.mean_latency, performance.power)
        assert best.gain * (1 - 1e-10) <= cost < best.gain + epsilon


def test_milliseconds_and_seconds_give_the_same_figures() -> None:
    seconds = googlenet(0.8, 1.5, 8)
    millis = SmdpProblem(seconds.arrival_rate / 1e3, deterministic(1e3 * seconds.service.mean), 1e3 * seconds.energy, 1, 1.0, 1.5)
    ours = solve_by_value_iteration(seconds, max_state=40, overflow_cost=100.0)
    papers = solve_by_value_iteration(millis, max_state=40, overflow_cost=100.0)
    assert ours.iterations == papers.iterations
    assert ours.gain == pytest.approx(papers.gain, rel=1e-12)
    assert ours.residual == pytest.approx(papers.residual, rel=1e-9)
    assert ours.overflow_cost == pytest.approx(papers.overflow_cost, rel=1e-9)
    assert 1e3 * ours.bias == pytest.approx(papers.bias, rel=1e-9)
    assert (ours.actions == papers.actions).all()


def test_a_smaller_step_gives_the_same_table_later() -> None:
    problem = googlenet(0.6, 1.0, 8)
    quick = solve_by_value_iteration(problem, max_state=50, overflow_cost=100.0, epsilon=1e-6)
    slow = solve_by_value_iteration(problem, max_state=50, overflow_cost=100.0, epsilon=1e-6, eta=1e-4)
    assert slow.iterations > quick.iterations
    assert (slow.actions == quick.actions).all() and slow.gain == quick.gain
    assert slow.bias == pytest.approx(quick.bias, abs=1e-6)


def test_the_bias_is_that_of_policy_iteration() -> None:
    problem = googlenet(0.9, 1.0, 8)
    exact = solve(problem)
    solution = solve_by_value_iteration(problem, max_state=120, overflow_cost=100.0, epsilon=1e-9)
    shown = min(exact.bias.shape[1], 2 * problem.max_batch_size)
    assert solution.bias[0, :shown] == pytest.approx(exact.bias[0, :shown], rel=1e-9, abs=1e-9)


def test_without_an_overflow_cost_a_short_queue_waits_for_ever() -> None:
    problem = googlenet(0.5)
    solution = solve_by_value_iteration(problem, max_state=50, overflow_cost=0.0)
    assert solution.actions[0, -1] == 0 and (solution.actions == 0).all()
    assert solution.gain == pytest.approx(1e3 * 50 / problem.arrival_rate)  # 50 wait, no one is served
    assert solution.overflow_cost == pytest.approx(solution.gain)
    assert solution.power == 0


@pytest.mark.parametrize(("rho", "largest", "max_state"), [(5e-5, 128, 200), (0.08, 128, 400), (0.5, 8, 1200)])
def test_states_next_to_never_seen_do_not_spoil_the_others(rho: float, largest: int, max_state: int) -> None:
    problem = googlenet(rho, 1.0, largest)
    if rho < 1e-4:  # with 128 waiting and taken the probability of more arrivals is 0 as a number
        assert problem.service.counts(problem.arrival_rate, 129)[-1, -1] == 0
    table = np.minimum(np.arange(max_state + 2), largest)
    gain, delta = evaluate_in_finite_chain(problem, table, 1e4)
    performance = evaluate(problem, greedy(problem))
    assert gain == pytest.approx(problem.cost(performance.mean_latency, performance.power), rel=1e-9)
    assert 0 <= delta < 1e-200


def test_no_batch_is_smaller_than_allowed() -> None:
    problem = googlenet(0.3, 0.0, 8, min_batch_size=4)
    solution = solve_by_value_iteration(problem, max_state=60, overflow_cost=100.0, epsilon=1e-8)
    assert set(np.unique(solution.actions)) <= {0, 4, 5, 6, 7, 8}
    exact = solve(problem).gain
    assert solution.gain == pytest.approx(exact, rel=1e-10)
    assert exact > 1.05 * solve(googlenet(0.3, 0.0, 8)).gain  # smaller ones would be used


def seldom_long(mean: np.ndarray) -> ServiceLaw:
    """A tenth of the services is a thousand times as long as the others."""
    return hyperexponential(mean, (0.9, 0.1), (0.01, 9.91))


@pytest.mark.parametrize(
    ("rho", "largest", "law"), [(0.05, 4, deterministic), (0.3, 4, deterministic), (0.9, 4, deterministic), (0.95, 1, seldom_long)]
)
def test_the_bound_on_the_step_is_the_largest_that_keeps_probabilities(
    rho: float, largest: int, law: Callable[[np.ndarray], ServiceLaw]
) -> None:
    problem = googlenet(rho, 1.0, largest, law)
    counts = problem.service.counts(problem.arrival_rate, 5)
    steps = [1 / problem.arrival_rate]  # while waiting nothing stays as it is but in S_o
    for a, sojourn in enumerate(problem.service.mean, 1):
        steps.append(sojourn / (1 - counts[a - 1, a]))  # as many arrive as leave
        steps.append(sojourn / counts[a - 1, : a + 1].sum())  # in S_o no more than leave
    assert largest_eta(problem) == pytest.approx(min(steps), rel=1e-12)


def test_it_ends_after_the_iterations_allowed() -> None:
    solution = solve_by_value_iteration(googlenet(0.9), max_state=70, overflow_cost=100.0, max_iterations=7)
    assert solution.iterations == 7 and not solution.converged and solution.residual > 0.01
    assert solution.method == "value-iteration"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_state": 31}, "max_state: 31 is not allowed; allowed: an integer >= 32, the largest batch"),
        ({"max_state": 70.5}, "max_state: 70.5 is not allowed; allowed: an integer >= 32"),
        ({"overflow_cost": -1.0}, "overflow_cost: -1.0 is not allowed; allowed: a number >= 0"),
        ({"overflow_cost": np.inf}, "overflow_cost: inf is not allowed"),
        ({"epsilon": 0.0}, "epsilon: 0.0 is not allowed; allowed: a number > 0"),
        ({"max_iterations": 0}, "max_iterations: 0 is not allowed; allowed: an integer >= 1"),
        ({"eta": 0.0}, "eta: 0.0 is not allowed; allowed: a number of seconds > 0 and < 0.000375542, the bound"),
        ({"eta": 0.1}, "eta: 0.1 is not allowed"),
    ],
)
def test_what_is_not_allowed_is_named(change: dict[str, float], message: str) -> None:
    arguments = {"max_state": 70, "overflow_cost": 100.0, **change}
    with pytest.raises(InvalidInput, match=message):
        solve_by_value_iteration(googlenet(0.9), **arguments)  # type: ignore[arg-type]


def test_iterations_on_a_growing_state_space_come_to_the_same_gain_where_they_have_converged() -> None:
    problem = googlenet(0.5, 1.0, 8)
    exact = solve(problem)
    for steps in (approximate_value_iteration(problem, 100, 500), approximate_policy_iteration(problem, 10)):
        queues = [queue for _, queue in steps]
        table = queues[-1].table
        assert queues[-1].values[0] == 0
        assert len(table) >= 508  # one state more with every iteration
        gain, _ = evaluate_in_finite_chain(problem, table[:42], 100.0)
        assert gain == pytest.approx(exact.gain, rel=1e-9)
        waits, _ = evaluate_in_finite_chain(problem, table, 100.0)  # waiting is best in the states of the last iterations
        assert waits == pytest.approx(100.0 + 1e3 * (len(table) - 2) / problem.arrival_rate)


def test_a_table_that_is_not_allowed_in_the_finite_chain_is_named() -> None:
    problem = googlenet(0.5, 1.0, 2)
    with pytest.raises(InvalidInput, match=r"actions\[1\]: 2 is not allowed; allowed: 0 or a batch size from 1 to 2"):
        evaluate_in_finite_chain(problem, np.array([0, 2, 2, 2]), 0.0)
    with pytest.raises(InvalidInput, match="max_state: 1 is not allowed; allowed: an integer >= 2, the largest batch"):
        evaluate_in_finite_chain(problem, np.array([0, 1, 1]), 0.0)


def test_arrivals_with_phases_are_refused() -> None:
    problem = googlenet(0.5)
    with_phases = SmdpProblem(mmpp2(500, 100, 1, 1), problem.service, problem.energy, 1, 1e3, 1.0)
    with pytest.raises(InvalidInput, match="arrivals.n_phases: 2 is not allowed; allowed: 1, Poisson arrivals"):
        solve_by_value_iteration(with_phases, max_state=70, overflow_cost=100.0)


def test_a_tolerance_out_of_reach_is_told() -> None:
    with pytest.raises(InvalidInput, match="tolerance: 0 is not allowed"):
        smallest_max_state(googlenet(0.5), 100.0, 0)
    with pytest.raises(NotConverged, match="the search for the smallest max_state"):
        smallest_max_state(googlenet(0.5, 1.0, 1), 0.0, 1e-3, max_iterations=1)  # one sweep serves no one: waits for ever
