"""The frontier of the weights, the weight that keeps an SLO, and percentiles under a table."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from sluice.batching.documents import Slo
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.optimizer.server import fixed_outcomes
from sluice.optimizer.service.law import erlang, exponential, gamma
from sluice.optimizer.smdp import SmdpProblem, SmdpSolution, evaluate, solve
from sluice.optimizer.smdp.frontier import choose_weight, solve_frontier, solve_weights
from sluice.optimizer.smdp.latency_percentiles import LatencyPercentiles
from sluice.optimizer.smdp.policy_iteration import greedy
from tests.optimizer.smdp_problems import LAWS, googlenet, random_problem


def test_warm_starts_find_what_each_weight_alone_finds() -> None:
    problem = googlenet(0.6)
    weights = np.linspace(0, 12, 13)
    for weight, solution in zip(weights, solve_weights(problem, weights), strict=True):
        assert solution.gain == pytest.approx(solve(problem.weighted(1e3, weight)).gain, rel=1e-12)


def test_the_corners_are_best_between_their_weights_and_equal_at_them() -> None:
    rng = np.random.default_rng(5)
    for law in LAWS.values():
        problem = random_problem(rng, law)
        corners = solve_frontier(problem)
        assert corners[0].least_weight == 0 and corners[-1].largest_weight == np.inf
        for one, next_one in pairwise(corners):
            edge = one.largest_weight
            assert edge == next_one.least_weight
            both = [problem.latency_weight * c.solution.mean_latency + edge * c.solution.power for c in (one, next_one)]
            assert both[0] == pytest.approx(both[1], rel=1e-9)
            assert solve(problem.weighted(problem.latency_weight, edge)).gain >= both[0] * (1 - 3e-7)
            assert next_one.solution.power < one.solution.power and next_one.solution.mean_latency > one.solution.mean_latency


def test_the_ends_are_the_least_latency_and_the_least_power() -> None:
    problem = googlenet(0.7)
    corners = solve_frontier(problem)
    assert corners[0].solution.mean_latency == pytest.approx(solve(problem.weighted(1e3, 0.0)).mean_latency)
    full = evaluate(problem, np.array([0] * 32 + [32]))  # the maximum batching of the paper
    assert corners[-1].solution.power == pytest.approx(full.power, rel=1e-9)
    assert corners[-1].solution.mean_latency == pytest.approx(full.mean_latency, rel=1e-9)


def test_where_nothing_can_be_weighed_there_is_one_corner() -> None:
    corners = solve_frontier(SmdpProblem(100.0, exponential([1e-3]), np.array([1.0])))
    assert len(corners) == 1 and (corners[0].least_weight, corners[0].largest_weight) == (0.0, np.inf)
    with pytest.raises(InvalidInput, match="energy: .* more than 0 for some batch size"):
        solve_frontier(SmdpProblem(100.0, exponential([1e-3]), np.array([0.0])))
    with pytest.raises(InvalidInput, match="power_weights: 0 is not allowed; allowed: at least one"):
        solve_weights(googlenet(0.5), [])


@pytest.mark.proof
@pytest.mark.parametrize("slo", [Slo(0.010, 95), Slo(0.012, 99), Slo(0.020, 50)])
def test_the_weight_chosen_is_the_largest_whose_table_keeps_the_slo(slo: Slo) -> None:
    problem = googlenet(0.7)
    percentile = LatencyPercentiles(problem)
    corners = solve_frontier(problem)
    kept = [corner for corner in corners if percentile(corner.solution, slo.percentile) <= slo.latency]
    chosen = choose_weight(problem, [slo], percentile)
    assert chosen.solution.power == pytest.approx(kept[-1].solution.power)


def test_every_slo_is_kept() -> None:
    problem = googlenet(0.7)
    percentile = LatencyPercentiles(problem)
    slos = [Slo(0.010, 95), Slo(0.011, 99)]
    chosen = choose_weight(problem, slos, percentile)
    assert all(percentile(chosen.solution, slo.percentile) <= slo.latency for slo in slos)
    assert chosen.solution.power > choose_weight(problem, slos[:1], percentile).solution.power


def test_an_slo_that_no_weight_keeps_comes_with_the_best_found() -> None:
    problem = googlenet(0.7)
    with pytest.raises(Infeasible, match=r"no weight keeps p95 within 0.003 s: the best reached is p95 0.0081") as raised:
        choose_weight(problem, [Slo(0.003, 95)], LatencyPercentiles(problem))
    assert raised.value.best is not None and raised.value.best["power_weight"] == 0
    with pytest.raises(InvalidInput, match="slos: 0 is not allowed"):
        choose_weight(problem, [], LatencyPercentiles(problem))


def test_exact_and_simulated_percentiles_agree() -> None:
    problem = googlenet(0.6, 1.0, 8, lambda mean: erlang(mean, 2))
    table = solve(problem).actions[0]
    exact = LatencyPercentiles(problem).estimate(table, 95)
    almost = googlenet(0.6, 1.0, 8, lambda mean: gamma(mean, 2.0 + 1e-9))
    simulated = LatencyPercentiles(almost)
    assert not simulated.exact
    estimate = simulated.estimate(table, 95)
    assert exact.low == exact.value == exact.high
    assert estimate.low < exact.value < estimate.high


def test_a_table_whose_batches_add_up_in_too_many_ways_is_simulated(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = googlenet(0.6, 1.0, 8)
    table = np.array([0, 1, 1, 2, 1, 2, 3, 1, 2, 3, 8])
    exact = LatencyPercentiles(problem).estimate(table, 95)
    monkeypatch.setattr(fixed_outcomes, "_MOST_OUTCOMES", 10)
    percentiles = LatencyPercentiles(problem)
    simulated = percentiles.estimate(table, 95)
    assert not percentiles.exact
    assert simulated.low < exact.value < simulated.high


def test_the_upper_end_of_a_simulated_percentile_counts() -> None:
    problem = googlenet(0.6, 1.0, 8, lambda mean: gamma(mean, 0.7))
    percentile = LatencyPercentiles(problem)
    solution = solve(problem)
    assert (
        percentile(solution, 95)
        == percentile.estimate(solution.actions[0], 95).high
        > percentile.estimate(solution.actions[0], 95).value
    )


def test_greedy_has_a_shorter_median_and_the_optimal_table_less_power() -> None:
    problem = googlenet(0.3, 3.0)
    solution, percentile = solve(problem), LatencyPercentiles(problem)
    assert percentile.estimate(greedy(problem), 50).value < percentile(solution, 50)
    assert solution.power < evaluate(problem, greedy(problem)).power


def test_corners_far_beyond_the_first_weights_are_found() -> None:
    nearly_proportional = 1e-3 + 19.899e-3 * np.arange(1.0, 9.0)  # so that power weighs little until its weight is huge
    basic = googlenet(0.3, 1.0, 8)
    problem = SmdpProblem(basic.arrivals, basic.service, nearly_proportional, 1, 1e3, 1.0)
    corners = solve_frontier(problem)
    full = evaluate(problem, np.array([0] * 8 + [8]))
    assert len(corners) > 2 and corners[-1].solution.power == pytest.approx(full.power, rel=1e-7)
    first = corners[0].solution
    assert corners[0].largest_weight > 8 * 1e3 * first.mean_latency / first.power


def test_an_exception_to_the_growth_of_a_percentile_with_the_weight_is_no_obstacle() -> None:
    problem = googlenet(0.7)
    corners = solve_frontier(problem)
    slowest = corners[-3].solution  # the only one that keeps the SLO, say

    def percentile(solution: SmdpSolution, p: float) -> float:
        return 0.001 if solution is slowest else 1.0

    assert choose_weight(problem, [Slo(0.01)], percentile, corners) is corners[-3]
