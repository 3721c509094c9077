"""The optimal placement of a fleet against other roads to it: one boolean per device, and every placement one by one."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations_with_replacement, product
from typing import Any

import numpy as np
import pytest

from benchmarks.fleet_milp import PROTEUS, Size, random_fleet, solve_per_device
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Counts
from sluice.optimizer.fleet import FleetProblem, best_flows, milp, solution_of, solve_fleet
from sluice.optimizer.fleet.pareto import worth_hosting

SMALL = Size(6, 2, 8, 3)
TINY = Size(5, 2, 4, 2)
EXACT = 1e-5  # percentage points


def every_placement(problem: FleetProblem) -> Iterator[Counts]:
    """All counts, idle devices among them."""
    n_variants = len(problem.accuracy)
    rows = []
    for devices in problem.devices:
        hosted = combinations_with_replacement(range(n_variants + 1), int(devices))
        rows.append([np.bincount(row, minlength=n_variants + 1)[:n_variants] for row in hosted])
    for chosen in product(*rows):
        yield np.array(chosen)


def best_by_enumeration(problem: FleetProblem) -> tuple[float, float, int]:
    """The most served, the greatest accuracy at that, the fewest swaps at both."""
    outcomes = []
    for counts in every_placement(problem):
        solution = solution_of(problem, counts)
        outcomes.append((float(solution.flows.sum()), solution.accuracy, solution.swaps))
    most = max(served for served, _, _ in outcomes) * (1 - 1e-9)
    accurate = max(accuracy for served, accuracy, _ in outcomes if served >= most) - EXACT
    return most, accurate, min(swaps for served, accuracy, swaps in outcomes if served >= most and accuracy >= accurate)


@pytest.mark.parametrize("seed", range(24))
def test_counts_per_type_find_the_optimum_of_one_boolean_per_device(seed: int) -> None:
    problem = random_fleet(np.random.default_rng(seed), SMALL, 0.3 + 0.02 * seed)
    solution, other = solve_fleet(problem, gap=EXACT), solve_per_device(problem, gap=EXACT)
    if np.isnan(other.accuracy):  # what fractions of devices could serve, devices cannot
        assert solution.missing.sum() > 0
    else:
        assert solution.converged and solution.accuracy == pytest.approx(other.accuracy, abs=2 * EXACT)


@pytest.mark.parametrize("load", [0.4, 0.8, 1.5])
def test_the_most_served_then_the_most_accurate_then_the_fewest_swaps_of_all_placements(load: float) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        problem = random_fleet(rng, TINY, load)
        # a placement that runs what may no longer be best, with a device that runs nothing
        running = np.array([rng.multinomial(max(0, n - 1), np.ones(TINY.variants) / TINY.variants) for n in problem.devices])
        problem = problem.with_running(running)
        solution = solve_fleet(problem, gap=EXACT)
        served, accuracy, swaps = best_by_enumeration(problem)
        assert solution.flows.sum() >= served and solution.accuracy >= accuracy and solution.swaps == swaps
        assert solution.converged and solution.accuracy <= solution.bound <= solution.accuracy + 5e-4


@pytest.mark.full
def test_of_many_placements_as_good_the_one_with_the_fewest_swaps_is_taken() -> None:
    for seed in range(6):
        rng = np.random.default_rng(seed)
        devices = rng.integers(1, 4, 2)
        running = np.array([rng.multinomial(n, np.ones(4) / 4) for n in devices])
        throughput = rng.choice([4.0, 5.0, 10.0], (2, 4))
        demand = rng.integers(4, 16, 2)
        problem = FleetProblem(devices, throughput, rng.choice([80, 90], 4), [0, 0, 0, 1], demand, running)
        served, accuracy, swaps = best_by_enumeration(problem)
        solution = solve_fleet(problem, gap=EXACT)
        assert solution.swaps == swaps and solution.flows.sum() >= served and solution.accuracy >= accuracy, seed


def test_pruning_leaves_the_optimum_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    problems = [random_fleet(np.random.default_rng(seed), Size(8, 2, 12, 2), 0.1 * seed) for seed in range(2, 12, 2)]
    pruned = [solve_fleet(problem, gap=EXACT) for problem in problems]
    assert sum(worth_hosting(p).sum() for p in problems) < 0.9 * sum((p.throughput > 0).sum() for p in problems)
    monkeypatch.setattr(milp, "worth_hosting", lambda problem: problem.throughput > 0)
    for problem, solution in zip(problems, pruned, strict=True):
        whole = solve_fleet(problem, gap=EXACT)
        assert solution.flows.sum() == pytest.approx(whole.flows.sum(), rel=1e-6)
        assert solution.accuracy == pytest.approx(whole.accuracy, abs=3 * EXACT)


def test_pruning_keeps_one_of_two_alike_and_drops_who_is_matched_on_that_type() -> None:
    problem = FleetProblem(
        devices=[1, 1],
        throughput=[[9, 9, 8, 10, 9], [9, 9, 10, 0, 9]],
        accuracy=[90, 90, 90, 80, 95],
        family=[0, 0, 0, 0, 1],
        demand=[1, 1],
    )
    assert worth_hosting(problem).tolist() == [[True, False, False, True, True], [False, False, True, False, True]]


def test_flows_are_within_reach_and_demand_and_nobody_waits_whom_a_better_variant_could_serve() -> None:
    problem = random_fleet(np.random.default_rng(3), PROTEUS, 0.8)
    counts = solve_fleet(problem, time_limit=1, gap=1).counts
    flows = best_flows(problem, counts)
    reach = problem.throughput * counts
    assert (flows <= reach * (1 + 1e-12)).all() and (counts.sum(axis=1) <= problem.devices).all()
    assert solution_of(problem, counts).served == pytest.approx(problem.demand)
    for q in range(problem.n_families):
        members = np.flatnonzero(problem.family == q)
        by_accuracy = members[np.argsort(-problem.accuracy[members])]
        used = [flows[:, m].sum() / reach[:, m].sum() for m in by_accuracy if reach[:, m].sum()]
        assert used == sorted(used, reverse=True) and sum(0 < part < 1 - 1e-9 for part in used) <= 1


def test_units_do_not_change_the_answer() -> None:
    problem = random_fleet(np.random.default_rng(5), SMALL, 0.7)
    one = solve_fleet(problem, gap=EXACT)
    for scale in (1e-4, 1e6):
        scaled = FleetProblem(problem.devices, problem.throughput * scale, problem.accuracy, problem.family, problem.demand * scale)
        assert solve_fleet(scaled, gap=EXACT).accuracy == pytest.approx(one.accuracy, abs=2 * EXACT)


def test_demand_that_takes_whole_devices_exactly_is_served() -> None:
    problem = FleetProblem([3], [[10.0, 0.1]], [90, 99], [0, 1], [20.0, 0.1])
    solution = solve_fleet(problem)
    assert solution.counts.tolist() == [[2, 1]] and not solution.missing.any()


def test_where_not_all_can_be_served_no_family_is_left_with_nothing() -> None:
    """A device serves 100/s of the one family or 1/s of the other: in sum the other gets nothing, alike each gets a third."""
    problem = FleetProblem([4], [[100.0, 1.0]], [90, 90], [0, 1], [600.0, 6.0])
    assert solve_fleet(problem, least=0.0).served.tolist() == [400, 0]
    served = solve_fleet(problem).served
    assert served.tolist() == [300, 1] and (served / problem.demand >= milp.LEAST * 2 / 6).all()


def test_what_every_family_gets_at_least_changes_nothing_where_all_is_served() -> None:
    problem = random_fleet(np.random.default_rng(8), SMALL, 0.5)
    assert solve_fleet(problem).counts.tolist() == solve_fleet(problem, least=0.0).counts.tolist()


def test_a_family_that_no_device_serves_takes_nothing_from_the_others() -> None:
    problem = FleetProblem([2], [[10.0, 1.0, 0.0]], [90, 90, 90], [0, 1, 2], [100.0, 10.0, 5.0])
    assert solve_fleet(problem).served.tolist() == [10, 1, 0]


@pytest.mark.parametrize("least", [-0.1, 1.5, np.nan])
def test_a_least_part_that_is_no_share_is_refused(least: float) -> None:
    with pytest.raises(InvalidInput, match=f"least: {least} is not allowed; allowed: a share, 0 to 1"):
        solve_fleet(FleetProblem([1], [[1.0]], [90], [0], [1.0]), least=least)


def test_a_demand_that_nothing_can_serve_hides_no_accuracy() -> None:
    throughput, demand = [[2460.0, 0.0884]], [47.0, 7.0, 28712.0]
    solution = solve_fleet(FleetProblem([3], throughput, [31.5787, 38.4796], [0, 0], demand, [[1, 0]]), gap=EXACT)
    assert solution.counts.tolist() == [[1, 2]] and solution.served.tolist() == [47, 0, 0]
    assert solution.bound - EXACT <= solution.accuracy == pytest.approx((31.5787 * (47 - 0.1768) + 38.4796 * 0.1768) / 47)


@pytest.mark.parametrize("demand", [1e9, 1e15, 1e300])
def test_a_demand_beyond_all_measure_is_served_as_far_as_can_be(demand: float) -> None:
    solution = solve_fleet(FleetProblem([2, 1], [[80.0, 8.0, 100.0], [900.0, 80.0, 0.0]], [70, 80, 60], [0, 0, 1], [demand, 20.0]))
    assert solution.counts.tolist() == [[2, 0, 0], [1, 0, 0]] and solution.served.tolist() == [1060, 0] and solution.converged


@pytest.mark.parametrize("demand", [1e-6, 1e-8, 1e-12])
def test_a_demand_of_nearly_nothing_is_served_beside_a_large_one(demand: float) -> None:
    solution = solve_fleet(FleetProblem([1, 1], [[80.0, 8.0, 100.0], [80.0, 8.0, 0.0]], [70, 80, 60], [0, 0, 1], [demand, 20.0]))
    assert solution.counts[:, 2].tolist() == [1, 0] and not solution.missing.any()


def test_the_largest_headroom_serves_all_and_a_larger_one_does_not() -> None:
    for seed in range(2):
        problem = random_fleet(np.random.default_rng(seed), SMALL, 0.5)
        room = milp.largest_headroom(problem, 100.0)
        assert 1 < room < 100 and milp.largest_headroom(problem, 1.01) == pytest.approx(1.01)
        for factor, missing in ((room, False), (1.002 * room, True)):
            assert solve_fleet(problem.with_demand(factor * problem.demand), gap=1.0).missing.any() == missing
    assert milp.largest_headroom(FleetProblem([2], [[10.0, 0.0]], [90, 90], [0, 1], [15.0, 5.0]), 2.0) == 0


def test_what_converged_is_within_the_gap_of_the_bound_also_from_a_placement_that_runs() -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        first = solve_fleet(random_fleet(rng, SMALL, 0.4), gap=0.5)
        moved = first.problem.with_demand(first.problem.demand * rng.uniform(0.8, 1.2, SMALL.families))
        solution = solve_fleet(moved.with_running(first.counts), gap=0.5)
        assert solution.converged and solution.gap <= 0.5 + EXACT


def test_what_is_missing_within_the_solvers_tolerance_is_not_missing() -> None:
    for excess, missing in ((2e-7, False), (1e-4, True)):
        solution = solve_fleet(FleetProblem([3], [[10.0]], [90], [0], [30.0 * (1 + excess)]))
        assert solution.counts.tolist() == [[3]] and solution.missing.any() == missing


def test_idle_devices_keep_what_they_run() -> None:
    running = [[1, 2, 1]]
    problem = FleetProblem([5], [[10.0, 10.0, 10.0]], [80, 90, 70], [0, 0, 1], [5.0, 5.0], running)
    solution = solve_fleet(problem)
    assert solution.counts.tolist() == running and solution.swaps == 0
    assert solution.flows.sum(axis=0).tolist() == [0, 5, 5]


def test_what_is_replaced_first_is_what_is_not_needed() -> None:
    problem = FleetProblem([3], [[10.0, 4.0, 10.0]], [80, 90, 70], [0, 0, 1], [1.0, 5.0], [[1, 2, 0]])
    solution = solve_fleet(problem)
    assert solution.counts.tolist() == [[1, 1, 1]] and solution.swaps == 1


def test_of_two_that_are_not_needed_the_slower_is_replaced() -> None:
    for fast, slow in ((0, 1), (1, 0)):
        throughput = [[0.0, 0.0, 10.0]]
        throughput[0][fast], throughput[0][slow] = 9.0, 3.0
        solution = solve_fleet(FleetProblem([2], throughput, [80, 80, 70], [0, 0, 1], [0.0, 5.0], [[1, 1, 0]]))
        assert solution.counts[0, [fast, slow, 2]].tolist() == [1, 0, 1]


def test_as_accurate_a_placement_with_fewer_swaps_is_taken_though_it_is_slower() -> None:
    problem = FleetProblem([2], [[10.0, 9.0]], [90, 90], [0, 0], [15.0], [[0, 2]])
    solution = solve_fleet(problem)
    assert worth_hosting(problem).tolist() == [[True, False]]
    assert solution.counts.tolist() == [[0, 2]] and solution.swaps == 0 and not solution.missing.any()


def test_a_family_that_nothing_can_serve_is_missing_and_the_rest_is_served() -> None:
    problem = FleetProblem([2], [[10.0, 0.0]], [90, 90], [0, 1], [15.0, 5.0])
    solution = solve_fleet(problem)
    assert solution.served.tolist() == [15, 0] and solution.missing.tolist() == [0, 5] and solution.accuracy == 90
    assert milp.devices_wanted(problem) == [None]


def test_nothing_can_be_served() -> None:
    solution = solve_fleet(FleetProblem([0, 2], [[5.0], [0.0]], [90], [0], [1.0]))
    assert solution.served.tolist() == [0] and np.isnan(solution.accuracy) and not solution.counts.any() and solution.converged


def test_devices_wanted_are_the_fewest_that_serve_all() -> None:
    for seed in range(2):
        problem = random_fleet(np.random.default_rng(seed), SMALL, 1.6)
        for d, wanted in enumerate(milp.devices_wanted(problem)):
            assert wanted is not None and wanted > 0
            for more, enough in ((wanted, True), (wanted - 1, False)):
                devices = problem.devices.copy()
                devices[d] += more
                larger = FleetProblem(devices, problem.throughput, problem.accuracy, problem.family, problem.demand)
                assert bool(solve_fleet(larger, gap=1.0).missing.sum() < 1e-6) is enough


def test_a_time_limit_leaves_a_placement_with_a_gap() -> None:
    problem = random_fleet(np.random.default_rng(0), Size(160, 3, 450, 17), 0.9)
    solution = solve_fleet(problem, time_limit=0.3, gap=1e-4)
    assert solution.seconds < 1.5 and not solution.converged and not solution.missing.sum() > 1e-6
    assert 1e-4 < solution.gap < 100 and solution.bound >= solution.accuracy > 50


def test_a_search_that_was_stopped_is_not_called_proven(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_fleet(np.random.default_rng(1), SMALL, 0.5)
    assert solve_fleet(problem).converged
    whole = milp.optimize.milp

    def stopped(*arguments: Any, **options: Any) -> Any:
        found = whole(*arguments, **options)
        found.status = 1  # scipy's for a limit reached
        return found

    monkeypatch.setattr(milp.optimize, "milp", stopped)
    assert not solve_fleet(problem).converged


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"devices": [1.5, 1]}, r"devices\[0\]: 1.5 is not allowed; allowed: an integer"),
        ({"devices": [-1, 1]}, r"devices\[0\]: -1 .* >= 0"),
        ({"throughput": [[1.0, 2.0]]}, r"throughput: \(1, 2\) .* \(2, 2\)"),
        ({"throughput": [[1.0, np.inf], [1, 1]]}, r"throughput\[0\]\[1\]: inf .* requests/s >= 0"),
        ({"accuracy": [90, -1]}, r"accuracy\[1\]: -1.0 .* 0 to 100"),
        ({"accuracy": [101, 90]}, r"accuracy\[0\]: 101.0 .* 0 to 100"),
        ({"family": [0, 1]}, r"family\[1\]: 1 .* 0 to 0"),
        ({"demand": [np.nan]}, r"demand\[0\]: nan .* >= 0"),
        ({"demand": [0.0]}, r"demand: \[0.0\] .* a rate > 0 for at least one family"),
        ({"running": [[1, 1], [0, 0]]}, r"running\[0\]: 2 .* at most the 1 devices"),
    ],
)
def test_bad_problems_are_refused_by_name(changed: dict[str, Any], message: str) -> None:
    good = {"devices": [1, 1], "throughput": [[1.0, 2.0], [3.0, 4.0]], "accuracy": [80, 90], "family": [0, 0], "demand": [1.0]}
    FleetProblem(**good)
    with pytest.raises(InvalidInput, match=message):
        FleetProblem(**good | changed)


def test_bad_limits_and_counts_are_refused_by_name() -> None:
    problem = FleetProblem([1], [[1.0]], [90], [0], [1.0])
    with pytest.raises(InvalidInput, match="time_limit: 0 .* seconds > 0"):
        solve_fleet(problem, time_limit=0)
    with pytest.raises(InvalidInput, match="gap: 0 .* percentage points above 0 and below 100"):
        solve_fleet(problem, gap=0)
    with pytest.raises(InvalidInput, match=r"counts\[0\]: 2 .* at most the 1 devices"):
        solution_of(problem, [[2]])
