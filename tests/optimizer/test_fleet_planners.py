"""The planners beside the optimum: the baselines of Proteus and its ablations, on small fleets."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from sluice.optimizer.control.headroom import Planner
from sluice.optimizer.control.infaas import infaas_accuracy
from sluice.optimizer.control.planners import (
    EqualShares,
    by_family,
    clipper_high_accuracy,
    clipper_high_throughput,
    divide,
    extreme,
    serves_all,
    sommelier,
    without_model_selection,
    without_placement,
    without_query_assignment,
)
from sluice.optimizer.fleet.milp import solve_fleet
from sluice.optimizer.fleet.problem import FleetProblem, FleetSolution, capacity_of, filled

# Two families of three variants on two types: 0 and 3 are the least accurate, 2 and 5 the most; 5 runs on the second type alone.
FLEET = FleetProblem(
    devices=np.array([4, 3]),
    throughput=np.array([[40.0, 20.0, 5.0, 60.0, 15.0, 0.0], [90.0, 50.0, 25.0, 80.0, 40.0, 20.0]]),
    accuracy=np.array([80.0, 90.0, 100.0, 70.0, 85.0, 95.0]),
    family=np.array([0, 0, 0, 1, 1, 1]),
    demand=np.array([60.0, 45.0]),
)
DYNAMIC: dict[str, Callable[[FleetProblem], Planner]] = {
    "clipper-ht": clipper_high_throughput,
    "clipper-ha": clipper_high_accuracy,
    "sommelier": sommelier,
    "infaas": lambda design: infaas_accuracy,
    "without placement": without_placement,
    "without model selection": lambda design: without_model_selection,
    "without query assignment": lambda design: without_query_assignment,
}
LOADS = (0.1, 1.0, 4.0)


@cache
def over_a_day(make: Callable[[FleetProblem], Planner]) -> list[tuple[FleetProblem, np.ndarray, np.ndarray]]:
    """Problems whose demand rises and falls, each with the counts and flows of the planner, one after the other."""
    planner, running, answers = make(FLEET), None, []
    for load in (*LOADS, *LOADS[::-1]):
        problem = FLEET.with_demand(FLEET.demand * load).with_running(running)
        found = planner(problem)
        answers.append((problem, found.counts, found.flows))
        running = found.counts
    return answers


@cache
def optimum(load: float) -> FleetSolution:
    return solve_fleet(FLEET.with_demand(FLEET.demand * load))


@pytest.mark.parametrize("name", DYNAMIC)
def test_no_planner_uses_more_devices_than_there_are_nor_hosts_what_cannot_run(name: str) -> None:
    for problem, counts, flows in over_a_day(DYNAMIC[name]):
        assert (counts >= 0).all()
        assert (counts.sum(axis=1) <= problem.devices).all()
        assert not counts[problem.throughput == 0].any()
        assert not flows[counts == 0].any()
        assert (np.bincount(problem.family, flows.sum(axis=0)) <= problem.demand * (1 + 1e-9)).all()


@pytest.mark.parametrize("name", [name for name in DYNAMIC if name != "without query assignment" and name != "sommelier"])
def test_planners_that_assign_by_capacity_never_flow_more_than_it(name: str) -> None:
    for problem, counts, flows in over_a_day(DYNAMIC[name]):
        assert (flows <= problem.throughput * counts + 1e-9).all()


@pytest.mark.parametrize("name", DYNAMIC)
def test_no_planner_serves_more_or_as_much_more_accurately_than_the_optimum(name: str) -> None:
    for problem, counts, flows in over_a_day(DYNAMIC[name]):
        best = optimum(float(problem.demand[0] / FLEET.demand[0]))
        served = np.minimum(flows, problem.throughput * counts)
        assert served.sum() <= best.served.sum() + 1e-6
        if served.sum() >= best.served.sum() - 1e-6:
            assert (served @ problem.accuracy).sum() <= served.sum() * (best.bound + 1e-6)


@pytest.mark.parametrize(("planner", "hosted"), [(clipper_high_throughput, [0, 3]), (clipper_high_accuracy, [2, 5])])
def test_clipper_hosts_one_variant_a_family_and_never_moves(planner: Callable[[FleetProblem], Planner], hosted: list[int]) -> None:
    answers = over_a_day(planner)
    assert np.flatnonzero(answers[0][1].any(axis=0)).tolist() == hosted
    assert all((counts == answers[0][1]).all() for _, counts, _ in answers)


def test_clipper_high_accuracy_picks_the_most_accurate_variant_that_some_device_can_serve() -> None:
    throughput = FLEET.throughput.copy()
    throughput[:, 5] = 0.0
    counts = clipper_high_accuracy(replace(FLEET, throughput=throughput))(FLEET).counts
    assert np.flatnonzero(counts.any(axis=0)).tolist() == [2, 4]


def test_clipper_divides_the_devices_for_the_mix_of_the_demand_whatever_its_level() -> None:
    low, high = (clipper_high_throughput(FLEET.with_demand(FLEET.demand * level)) for level in (0.5, 3.0))
    reach = [capacity_of(FLEET, planner.counts) / FLEET.demand for planner in (low, high)]
    assert reach[0].min() == pytest.approx(reach[1].min(), rel=0.02)


def test_the_division_serves_a_multiple_of_the_demand_that_no_placement_exceeds_by_much() -> None:
    problem = extreme(FLEET, -1)
    multiple = (capacity_of(problem, divide(problem).counts) / problem.demand).min()
    assert serves_all(solve_fleet(problem.with_demand(problem.demand * multiple)))
    assert not serves_all(solve_fleet(problem.with_demand(problem.demand * multiple * 1.02)))


def test_idle_devices_go_to_the_family_with_the_least_reserve() -> None:
    few = solve_fleet(FLEET.with_demand(FLEET.demand * 0.05))
    whole = filled(few)
    assert whole.counts.sum(axis=1).tolist() == FLEET.devices.tolist()
    assert (whole.counts >= few.counts).all()


@pytest.mark.parametrize("planner", [sommelier, without_placement])
def test_a_fixed_placement_changes_variants_but_never_the_family_of_a_device(planner: Callable[[FleetProblem], Planner]) -> None:
    families = []
    for problem, counts, _ in over_a_day(planner):
        families.append(by_family(replace(optimum(1.0), problem=problem, counts=counts)))
    assert all((one == families[0]).all() for one in families)
    counts = [counts for _, counts, _ in over_a_day(planner)]
    assert any((one != counts[0]).any() for one in counts)


def test_sommelier_takes_quicker_variants_under_more_demand_and_routes_as_ever() -> None:
    answers = over_a_day(sommelier)[: len(LOADS)]
    accuracies = [(flows @ problem.accuracy).sum() / flows.sum() for problem, _, flows in answers]
    assert accuracies == sorted(accuracies, reverse=True)
    assert accuracies[0] > accuracies[-1] + 10
    parts = [flows.sum(axis=1) / flows.sum() for _, _, flows in answers]
    assert all(part == pytest.approx(parts[0]) for part in parts)


def test_without_placement_is_the_optimum_where_the_demand_is_that_of_its_design() -> None:
    best, fixed = solve_fleet(FLEET), without_placement(FLEET)(FLEET)
    assert fixed.served.sum() == pytest.approx(best.served.sum())
    assert fixed.accuracy == pytest.approx(best.accuracy, abs=1e-2)


def test_without_model_selection_hosts_the_most_accurate_alone_and_serves_what_it_then_can() -> None:
    found = without_model_selection(FLEET)
    assert np.flatnonzero(found.counts.any(axis=0)).tolist() == [2, 5]
    assert found.missing.sum() > 0
    assert found.missing.sum() == pytest.approx(FLEET.demand.sum() - found.flows.sum())


def test_without_query_assignment_every_device_of_a_family_gets_the_same() -> None:
    problem = FLEET.with_demand([50.0, 90.0])
    placed, equal = solve_fleet(problem), EqualShares(solve_fleet)(problem)
    assert (equal.counts == placed.counts).all()
    for q in range(problem.n_families):
        hosts = (equal.counts > 0) & (problem.family == q)
        assert np.ptp(equal.flows[hosts] / equal.counts[hosts]) == pytest.approx(0.0, abs=1e-9)
        assert equal.flows[hosts].sum() == pytest.approx(problem.demand[q])


def test_infaas_serves_at_full_accuracy_while_devices_are_idle_and_downgrades_its_own_when_none_are() -> None:
    first = infaas_accuracy(FLEET.with_demand([20.0, 15.0]))
    assert first.accuracy == pytest.approx((20 * 100 + 15 * 95) / 35)
    second = infaas_accuracy(FLEET.with_demand([100.0, 80.0]).with_running(first.counts))
    assert serves_all(second)
    assert second.accuracy < first.accuracy
    third = infaas_accuracy(FLEET.with_demand([20.0, 15.0]).with_running(second.counts))
    assert third.accuracy == pytest.approx(first.accuracy)


def test_infaas_ends_in_a_local_optimum_where_another_familys_devices_would_help() -> None:
    running = np.zeros_like(FLEET.throughput, dtype=np.int64)
    running[0, 0], running[1, 0] = 4, 3  # all devices are of family 0, and it needs the quick ones
    problem = FLEET.with_demand([429.0, 80.0]).with_running(running)
    stuck, best = infaas_accuracy(problem), solve_fleet(problem)
    assert stuck.served[1] == 0
    assert best.served[1] > 0


@pytest.mark.parametrize("name", DYNAMIC)
def test_a_family_that_no_device_can_serve_is_missing_and_the_others_are_served(name: str) -> None:
    throughput = FLEET.throughput.copy()
    throughput[:, 3:] = 0.0
    problem = replace(FLEET, throughput=throughput)
    found = DYNAMIC[name](problem)(problem)
    assert not found.counts[:, 3:].any()
    assert found.served[0] > 0


def test_where_no_device_can_serve_anything_nothing_is_hosted() -> None:
    assert not clipper_high_accuracy(replace(FLEET, throughput=np.zeros_like(FLEET.throughput)))(FLEET).counts.any()
