"""Policy iteration with the exact tail: published figures, closed forms, the Bellman equation itself, and simulation."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.service.law import deterministic, exponential
from sluice.optimizer.simulation.batch_means import estimate_mean
from sluice.optimizer.simulation.event_loop import simulate
from sluice.optimizer.smdp import SmdpProblem, affine, evaluate, solve
from sluice.optimizer.smdp.policy_iteration import greedy, solve_by_policy_iteration
from tests.optimizer.smdp_problems import LAWS, googlenet, random_problem


@pytest.mark.parametrize(("rho", "gain"), [(0.9, 66.1307), (0.5, 38.8599)])
def test_the_gain_of_the_basic_scenario_is_known(rho: float, gain: float) -> None:
    solution = solve(googlenet(rho))
    assert solution.gain == pytest.approx(gain, abs=6e-5)
    assert solution.converged and solution.residual < 1e-12 and solution.overflow_cost == 0


def bellman_gaps(problem: SmdpProblem) -> np.ndarray:
    """By how much each state of the table misses the optimality equation (17) of the journal version, sums written out."""
    largest = problem.max_batch_size
    long = np.append(greedy(problem), np.full(12 * largest, largest))  # so long that sums end within it
    solution = solve_by_policy_iteration(problem, long)
    bias = solution.bias[0]
    rate, law = problem.arrival_rate, problem.service
    counts = law.counts(rate, 4000)
    known = len(bias)
    gaps = []
    for s in range(5 * largest):
        values = [problem.latency_weight * s / rate**2 - solution.gain / rate + bias[s + 1]]
        for a in range(problem.min_batch_size, min(s, problem.max_batch_size) + 1):
            arrived = counts[a - 1, : known - s + a]
            assert counts[a - 1, known - s + a :].sum() < 1e-15
            holding = problem.latency_weight * (s * law.mean[a - 1] / rate + law.second_moment[a - 1] / 2)
            cost = holding + problem.power_weight * problem.energy[a - 1] - solution.gain * law.mean[a - 1]
            values.append(cost + arrived @ bias[s - a : s - a + len(arrived)])
        gaps.append(abs(min(values) - bias[s]) / solution.gain)
    return np.array(gaps)


@pytest.mark.parametrize("rho", [0.2, 0.6])
def test_the_bias_solves_the_optimality_equation(rho: float) -> None:
    assert bellman_gaps(googlenet(rho, 1.0, 16)).max() < 1e-12


def test_the_gain_is_the_weighted_sum_of_latency_and_power() -> None:
    rng = np.random.default_rng(1)
    for name, law in LAWS.items():
        for _ in range(8):
            problem = random_problem(rng, law)
            solution = solve(problem)
            assert problem.cost(solution.mean_latency, solution.power) == pytest.approx(solution.gain, rel=1e-9), name
            rates = solution.performance.batch_rates @ np.arange(1, problem.max_batch_size + 1)
            assert rates == pytest.approx(problem.arrival_rate, rel=1e-9)  # what comes is served


@pytest.mark.proof
def test_no_benchmark_policy_is_cheaper() -> None:
    rng = np.random.default_rng(2)
    for law in LAWS.values():
        for _ in range(8):
            problem = random_problem(rng, law)
            best = solve(problem).gain
            largest, smallest = problem.max_batch_size, problem.min_batch_size
            tables = [greedy(problem).tolist()]
            tables += [[0] * q + [min(s, largest) for s in range(q, max(q, largest) + 1)] for q in range(smallest, largest + 5)]
            tables += [[0] * b + [b] for b in range(smallest, largest + 1) if problem.throughput[b - 1] > problem.arrival_rate]
            for table in tables:
                performance = evaluate(problem, np.array(table))
                assert best <= problem.cost(performance.mean_latency, performance.power) * (1 + 1e-10)


def test_a_single_request_at_a_time_is_the_pollaczek_khinchine_formula() -> None:
    rng = np.random.default_rng(3)
    for law in LAWS.values():
        service = law(np.array([2e-3]))
        rate = rng.uniform(0.1, 0.95) / 2e-3
        waiting = rate * service.second_moment[0] / 2 / (1 - rate * 2e-3)
        performance = evaluate(SmdpProblem(rate, service, np.array([1.0])), np.array([0, 1]))
        assert performance.mean_latency == pytest.approx(2e-3 + waiting, rel=1e-10)
        assert performance.power == pytest.approx(rate)


def test_one_request_at_a_time_with_batches_allowed_is_the_same_queue() -> None:
    problem = SmdpProblem(300.0, exponential(np.full(4, 2e-3)), np.ones(4))
    assert evaluate(problem, np.array([0, 1, 1, 1, 1, 1, 1])).mean_latency == pytest.approx(1 / (500 - 300), rel=1e-10)


@pytest.mark.parametrize("name", list(LAWS))
def test_the_predicted_latency_and_power_are_those_of_simulation(name: str) -> None:
    rng = np.random.default_rng(4)
    problem = googlenet(0.7, 2.0, 16, LAWS[name])
    solution = solve(problem)
    times = np.cumsum(problem.arrivals.sample(1_000_000, rng))
    run = simulate(solution.policy(), times, problem.service.service_times(), rng)
    latency = estimate_mean(run.latency[run.answered], 0.9999)
    assert latency.low < solution.mean_latency < latency.high
    energy = estimate_mean(problem.energy[run.batch_sizes - 1] / run.batch_sizes.mean(), 0.9999)
    assert energy.low < solution.power / problem.arrival_rate < energy.high


def test_rescaling_time_rescales_the_answer() -> None:
    slow = solve(googlenet(0.6))
    problem = googlenet(0.6)
    quick = solve(
        SmdpProblem(1000 * problem.arrival_rate, deterministic(problem.service.mean / 1000), problem.energy / 1000, 1, 1e6, 1.0)
    )
    assert quick.gain == pytest.approx(slow.gain, rel=1e-10)
    assert quick.mean_latency == pytest.approx(slow.mean_latency / 1000, rel=1e-10)
    assert quick.policy() == slow.policy()


def test_a_smallest_batch_and_partial_batches_are_respected() -> None:
    solution = solve(googlenet(0.1, 0.0, 8, min_batch_size=5))
    taken = set(solution.actions[0].tolist())
    assert taken <= {0, 5, 6, 7, 8} and solution.actions[0][:5].tolist() == [0] * 5
    assert solution.control_limit() is None  # it takes fewer than it could, as the paper's case 4 has it


def test_a_warm_start_finds_the_same_table() -> None:
    cold = solve(googlenet(0.5, 2.0))
    warm = solve_by_policy_iteration(googlenet(0.5, 2.0), solve(googlenet(0.5, 1.9)).actions[0])
    assert warm.gain == pytest.approx(cold.gain, rel=1e-13) and warm.iterations < cold.iterations


def test_where_all_batches_serve_alike_the_tail_takes_the_cheapest() -> None:
    mean = 1e-3 * np.arange(1.0, 9.0)  # proportional: every batch size has the same throughput
    requests_cost = SmdpProblem(500.0, deterministic(mean), np.full(8, 1.0), 1, 1e3, 0.0)
    assert solve(requests_cost).policy().take == (0, 1)  # nothing is won by waiting, nor by taking two
    batches_cost = requests_cost.weighted(1e3, 1.0)
    assert solve(batches_cost).actions[0][-1] == 8
    singles = evaluate(batches_cost, np.array([0, 1]))
    assert solve(batches_cost).gain < batches_cost.cost(singles.mean_latency, singles.power)


def test_heavy_service_at_high_load_needs_no_cut() -> None:
    problem = googlenet(0.99, 1.0, 32, LAWS["hyperexponential"])
    solution = solve(problem)
    assert solution.converged
    limit = evaluate(problem, greedy(problem))
    assert solution.gain < problem.cost(limit.mean_latency, limit.power)
    assert (np.diff(solution.actions[0][np.flatnonzero(solution.actions[0])[0] :]) >= -1).all()


def test_phases_and_bad_tables_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"arrivals.n_phases: 2 is not allowed"):
        solve_by_policy_iteration(replace(googlenet(0.5), arrivals=mmpp2(1500, 1000, 1, 1)))
    problem = googlenet(0.5, 1.0, 8, min_batch_size=2)
    for table, message in (
        ([0, 1, 2], r"actions\[1\]: 1 is not allowed; allowed: 0 or a batch size from 2 to 8"),
        ([0, 0, 3], r"actions\[2\]: 3 is not allowed"),
        ([0, 0, 2, 0], r"actions\[3\]: 0 is not allowed; allowed: a batch size"),
        ([0, 0, 2], r"actions\[2\]: 2 is not allowed; allowed: a batch size that serves more than 1250 requests/s, not 1202.94"),
    ):
        with pytest.raises(InvalidInput, match=message):
            evaluate(replace(problem, arrivals=1250.0) if table == [0, 0, 2] else problem, np.array(table))


def test_a_solved_table_can_be_evaluated_as_it_is_and_what_is_no_table_is_refused() -> None:
    problem = googlenet(0.5, 1.0, 8)
    solution = solve(problem)
    assert evaluate(problem, solution.actions).mean_latency == pytest.approx(solution.mean_latency, rel=1e-12)
    for table, message in (
        ([], r"actions: \(0,\) is not allowed; allowed: one row of integers"),
        ([0], r"actions: \(1,\) is not allowed"),
        ([[0, 1], [0, 1]], r"actions: \(2, 2\) is not allowed"),
        ([0, 1.7], "actions: 'float64' is not allowed; allowed: integers"),
    ):
        with pytest.raises(InvalidInput, match=message):
            evaluate(problem, np.array(table))


def test_an_option_of_another_method_is_refused() -> None:
    with pytest.raises(InvalidInput, match="overflow_cost: 5.0 is not allowed; allowed: none with policy-iteration"):
        solve(googlenet(0.5), overflow_cost=5.0)
    with pytest.raises(InvalidInput, match="method: 'guess' is not allowed; allowed: policy-iteration, value-iteration"):
        solve(googlenet(0.5), "guess")


def test_costs_need_not_be_affine() -> None:
    sizes = np.arange(1.0, 17.0)
    problem = SmdpProblem(2000.0, deterministic(affine(1e-3, 0.2e-3, 16)), 0.105 * np.log(sizes) + 0.06, 1, 1e3, 1.0)
    assert bellman_gaps(problem).max() < 1e-12


def test_tables_with_two_regimes_on_the_way_do_not_hinder() -> None:
    """A greedy table, long, under a dear energy: tables come by under which a queue of 60 never falls, nor one of 5 ever grows."""
    sizes = np.arange(1.0, 17.0)
    problem = SmdpProblem(2000.0, deterministic(affine(1e-3, 0.2e-3, 16)), 0.105 * np.log(sizes) + 0.06, 1, 1e3, 1.0)
    long = np.append(greedy(problem), np.full(192, 16))
    assert solve_by_policy_iteration(problem, long).gain == pytest.approx(solve(problem).gain, rel=1e-12)


def test_energy_in_steps_at_a_large_weight_needs_no_thousands_of_rows() -> None:
    energy = np.ceil(np.arange(1, 14) / 4)
    problem = SmdpProblem(0.9 * 13 / 4.9e-3, deterministic(affine(1e-3, 0.3e-3, 13)), energy, 1, 1e3, 1000.0)
    solution = solve(problem)
    assert solution.converged and set(solution.actions[0][20:60].tolist()) <= {12, 13}
