"""The control loop on a fleet of three devices of one type and two of another, two families of two variants each."""

from dataclasses import replace

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from sluice.optimizer.control.control import ControlledFleet, ControlSettings, run_control
from sluice.optimizer.control.demand import DemandForecast, ForecastSettings, count_arrivals
from sluice.optimizer.control.headroom import HeadroomChoice, expected_accuracy
from sluice.optimizer.control.rollout import IDLE, Rollout
from sluice.optimizer.fleet.milp import solve_fleet
from sluice.optimizer.fleet.problem import FleetProblem, solution_of
from sluice.optimizer.fleet.tables import queue_table
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.fleet_queues import simulate_fleet

SLO = 0.2
SECONDS = np.array(
    [[0.05, 0.01, 0.08, 0.02], [0.02, 0.005, 0.03, 0.01]]
)  # of one request, by (type, variant); batches gain nothing
ACCURACY = np.array([100.0, 80.0, 100.0, 70.0])
FAMILY = np.array([0, 0, 1, 1])


def fleet(expected=(20.0, 10.0), devices=(3, 2)):
    problem = FleetProblem(np.array(devices), 1 / SECONDS, ACCURACY, FAMILY, np.array(expected))
    services, policies = {}, {}
    for pair in np.ndindex(SECONDS.shape):
        seconds = SECONDS[pair] * np.arange(1, 5)
        services[pair] = ServiceTimes(1, seconds[:, None], np.zeros(4), seconds)
        policies[pair] = queue_table("brief_hold", seconds, SLO, 1)
    return ControlledFleet(problem, np.full(2, SLO), services, policies)


def poisson(rates, seed):
    """Arrivals with another rate in each second."""
    rng = np.random.default_rng(seed)
    n = rng.poisson(rates)
    return np.sort(np.repeat(np.arange(len(rates)), n) + rng.random(n.sum()))


def steady(rate, seconds, seed):
    return poisson(np.full(seconds, rate), seed)


def scripted(*placements):
    """A planner that answers with these counts, one after the other, and then stays."""
    left = list(placements)
    return lambda problem: solution_of(problem, left.pop(0) if len(left) > 1 else left[0])


def simulated(controlled, operation, arrivals):
    return simulate_fleet(operation.schedule, arrivals, controlled.slos, np.random.default_rng(0))


# --- the forecast


def test_counts_are_by_family_and_second():
    assert count_arrivals([np.array([0.1, 0.9, 1.0]), np.array([2.5])], 3).tolist() == [[2, 0], [1, 0], [0, 1]]


def test_the_forecast_of_a_steady_demand_is_that_demand_with_ratios_of_one():
    forecast = DemandForecast(np.array([5.0, 500.0]), horizon=3.0)
    for _ in range(60):
        forecast.see(np.array([40.0, 10.0]))
    assert forecast.rate == pytest.approx([40.0, 10.0])
    assert forecast.ratios() == pytest.approx(1.0)


def test_ratios_are_learnt_from_what_the_demand_does():
    """Every fourth second brings four times what the others bring."""
    forecast = DemandForecast(np.array([7.0]), 4.0, ForecastSettings(level=50.0))
    for second in range(400):
        forecast.see(np.array([16.0 if second % 4 == 0 else 4.0]))
    ratios = forecast.ratios(100)
    assert np.mean(ratios > 1) == pytest.approx(0.25, abs=0.03)
    assert np.quantile(ratios, 0.9) == pytest.approx(16 / 7, rel=0.1)


def test_bursts_within_a_second_are_seen_by_its_parts():
    """All of a second's six requests come in its first third."""
    forecast = DemandForecast(np.array([6.0]), horizon=3.0)
    for _ in range(60):
        forecast.see(np.array([[6.0], [0.0], [0.0]]))
    assert forecast.rate == pytest.approx([6.0])
    assert np.unique(forecast.ratios(30).round(6)).tolist() == [0.0, 3.0]


def test_before_anything_was_seen_ratios_are_wider_for_a_rarer_family():
    ratios = DemandForecast(np.array([4.0, 400.0]), 3.0).ratios(200)
    assert ratios.mean(axis=0) == pytest.approx(1.0, abs=0.02)
    assert ratios.std(axis=0) == pytest.approx(np.sqrt(0.09 + 1 / np.array([4.0, 400.0])), rel=0.05)


def test_a_forecast_without_a_horizon_is_refused():
    with pytest.raises(InvalidInput, match=r"horizon: 0.0 is not allowed; allowed: a number of seconds > 0"):
        DemandForecast(np.ones(1), 0.0)


# --- the headroom


def test_expected_accuracy_counts_what_is_carried_of_each_demand():
    """One device of 20/s at 100 % serves a family that brings 10 or 40: 10 and 20 of 50 in all."""
    problem = FleetProblem(np.array([1]), np.array([[20.0]]), np.array([100.0]), np.array([0]), np.array([10.0]))
    plan = solution_of(problem, [[1]])
    assert expected_accuracy(plan, np.array([[10.0], [40.0]])) == pytest.approx(100 * 30 / 50)


def test_a_demand_that_varies_more_gets_more_headroom():
    problem = fleet().problem
    rate = np.array([60.0, 30.0])

    def headroom(ratios):
        return HeadroomChoice(solve_fleet, (1.0, 1.5, 2.0, 3.0)).choose(problem, rate, np.repeat([ratios], 2, axis=0).T).headroom

    assert headroom([1.0, 1.0, 1.0, 1.0]) < headroom([0.2, 0.2, 0.2, 3.4])


def test_the_placement_that_runs_is_kept_where_another_earns_no_more():
    problem = fleet().problem
    rate, ratios = np.array([20.0, 10.0]), np.ones((1, 2))
    running = solve_fleet(problem.with_demand(3 * rate)).counts
    chosen = HeadroomChoice(solve_fleet, away=0.1).choose(problem.with_running(running), rate, ratios)
    assert chosen.plan.swaps == 0


def test_one_headroom_is_kept_to():
    asked = []

    def planner(problem):
        asked.append(problem.demand)
        return solve_fleet(problem)

    chosen = HeadroomChoice(planner, (1.05,)).choose(fleet().problem, np.array([20.0, 10.0]), np.ones((1, 2)))
    assert chosen.headroom == 1.05 and len(asked) == 1
    assert asked[0] == pytest.approx([21.0, 10.5])


# --- the rollout


def placement(*rows):
    return np.array(rows)


def rolled_out(before, after, demand, kept=(0.0, 0.0)):
    controlled = fleet()
    rollout = Rollout(np.array([3, 2]), 4)
    rollout.start(0.0, solution_of(controlled.problem.with_demand(demand), before))
    plan = solution_of(controlled.problem.with_demand(demand).with_running(before), after)
    rollout.move(10.0, plan, np.array(kept), drain=0.2, load_time=1.0)
    return rollout


def test_devices_that_stay_do_not_move():
    rollout = rolled_out(placement([2, 0, 1, 0], [1, 0, 1, 0]), placement([1, 0, 2, 0], [1, 0, 1, 0]), (30.0, 10.0))
    assert (rollout.moments[0].hosts != rollout.moments[-1].hosts).sum() == 1
    assert rollout.counts().tolist() == [[1, 0, 2, 0], [1, 0, 1, 0]]


def test_a_device_drains_then_loads_then_serves():
    rollout = rolled_out(placement([2, 0, 1, 0], [1, 0, 1, 0]), placement([1, 0, 2, 0], [1, 0, 1, 0]), (30.0, 10.0))
    assert [moment.time for moment in rollout.moments] == pytest.approx([0.0, 10.0, 10.2, 11.2])
    assert [(moment.hosts == IDLE).sum() for moment in rollout.moments] == [0, 0, 1, 0]
    assert rollout.settled_at == pytest.approx(11.2)


def test_shares_alone_change_at_once():
    same = placement([2, 0, 1, 0], [1, 0, 1, 0])
    assert rolled_out(same, same, (30.0, 10.0)).settled_at == 10.0


def test_families_keep_what_they_are_asked_for_while_devices_move():
    """All devices of one family change places with those of the other: they go one after the other."""
    demand = (30.0, 10.0)
    rollout = rolled_out(placement([3, 0, 0, 0], [0, 0, 2, 0]), placement([0, 0, 3, 0], [2, 0, 0, 0]), demand, kept=demand)
    problem = fleet().problem
    for moment in rollout.moments[1:]:
        reach = np.bincount(FAMILY, (problem.throughput * rollout.counts(moment.hosts)).sum(axis=0), 2)
        assert (reach >= demand).all()


def test_a_device_that_is_leaving_gets_no_requests():
    """Nor does one of two that host the same variant, of which the other stays."""
    rollout = rolled_out(placement([2, 0, 1, 0], [1, 0, 1, 0]), placement([1, 0, 2, 0], [1, 0, 1, 0]), (30.0, 10.0))
    draining = rollout.moments[1]
    leaving = rollout.moments[2].hosts == IDLE
    assert (draining.hosts[leaving] == 0).all() and (draining.receives[leaving] == IDLE).all()
    assert (draining.receives[~leaving] == draining.hosts[~leaving]).all()


# --- the loop


@pytest.mark.parametrize("grouped", [True, False])
def test_a_change_of_plan_loses_nobody(grouped):
    """Every device changes its variant, at a load that the others can carry meanwhile."""
    controlled = fleet()
    arrivals = [np.arange(0.0, 30.0, 0.07), np.arange(0.0, 30.0, 0.1)]
    before, after = placement([2, 0, 1, 0], [1, 0, 1, 0]), placement([0, 1, 0, 2], [0, 1, 0, 1])
    settings = ControlSettings(headrooms=(1.0,), grouped=grouped)
    operation = run_control(controlled, arrivals, scripted(before, after), settings)
    assert operation.decisions[1].solution.swaps == 5
    result = simulated(controlled, operation, arrivals)
    assert result.violation_ratio == 0
    assert result.of_family(0).accuracy[[0, -1]].tolist() == [100.0, 80.0]


def test_what_is_decided_uses_no_future():
    controlled = fleet()
    arrivals = [steady(60.0, 40, 3), steady(20.0, 40, 4)]
    other = [np.concatenate([times[times < 30.0], steady(100.0, 10, 5) + 30.0]) for times in arrivals]
    settings = ControlSettings(headrooms=(1.0, 2.0))
    one, two = (run_control(controlled, a, solve_fleet, settings).decisions for a in (arrivals, other))
    before = [(d.asked, d.headroom, d.solution.counts.tolist(), d.solution.flows.tolist()) for d in one if d.asked <= 30.0]
    assert before == [(d.asked, d.headroom, d.solution.counts.tolist(), d.solution.flows.tolist()) for d in two if d.asked <= 30.0]
    assert len(before) >= 3


def burst(at, seconds):
    rates = np.full(60, 10.0)
    rates[at : at + seconds] = 150.0
    return [poisson(rates, 6), steady(10.0, 60, 7)]


def test_a_burst_asks_for_a_plan_at_once_and_raises_what_can_be_served():
    operation = run_control(fleet(), burst(33, 20), solve_fleet, ControlSettings(period=30.0, headrooms=(1.5,)))
    first = next(decision for decision in operation.decisions if decision.burst)
    before = operation.decisions[operation.decisions.index(first) - 1]
    assert first.asked in (34.0, 35.0) and first.in_force == first.asked + 0.5
    reach = [(d.solution.counts * (1 / SECONDS))[:, FAMILY == 0].sum() for d in (before, first)]
    assert reach[1] > reach[0]


def test_without_the_trigger_plans_come_by_the_period_alone():
    operation = run_control(fleet(), burst(33, 20), solve_fleet, ControlSettings(bursts=False, period=20.0, headrooms=(1.5,)))
    assert [decision.asked for decision in operation.decisions] == [0.0, 20.0, 40.0, 60.0]
    assert not any(decision.burst for decision in operation.decisions)


def test_answering_bursts_has_fewer_violations_than_waiting_for_the_period():
    controlled, arrivals = fleet(), burst(33, 20)
    ratio = {}
    for bursts in (True, False):
        operation = run_control(controlled, arrivals, solve_fleet, ControlSettings(bursts=bursts, period=30.0, headrooms=(1.5,)))
        ratio[bursts] = simulated(controlled, operation, arrivals).violation_ratio
    assert ratio[True] < ratio[False]


def test_a_plan_comes_into_force_as_late_as_its_planner_was():
    def slow(problem):
        return replace(solve_fleet(problem), seconds=2.5)

    settings = ControlSettings(decision_time=None, headrooms=(1.0,))
    decisions = run_control(fleet(), [steady(20.0, 30, 8), steady(10.0, 30, 9)], slow, settings).decisions
    assert [decision.in_force - decision.asked for decision in decisions[1:]] == [2.5] * (len(decisions) - 1)
    assert len(decisions) > 1


def test_demand_that_no_fleet_can_meet_is_served_as_far_as_possible():
    """One device that serves 100/s at the most, 150 requests/s: two thirds, within what chance and the start take."""
    controlled = replace(fleet(), problem=FleetProblem([1, 0], 1 / SECONDS, ACCURACY, FAMILY, np.array([150.0, 0.0])))
    arrivals = [steady(150.0, 60, 10), np.empty(0)]
    result = simulated(controlled, run_control(controlled, arrivals, solve_fleet), arrivals)
    assert 1 - result.violation_ratio == pytest.approx(2 / 3, abs=0.03)


@pytest.mark.parametrize("grouped", [True, False])
def test_a_moderate_load_is_served_in_time_and_accurately(grouped):
    controlled, arrivals = fleet(), [steady(40.0, 60, 11), steady(15.0, 60, 12)]
    operation = run_control(controlled, arrivals, solve_fleet, ControlSettings(grouped=grouped, period=20.0))
    result = simulated(controlled, operation, arrivals)
    assert result.violation_ratio < 0.01 and result.effective_accuracy > 95


@pytest.fixture(scope="module", params=[True, False], ids=["groups", "devices"])
def eventful(request):
    """The schedule of a day on which each family's demand multiplies in turn."""
    arrivals = [poisson(np.repeat([10.0, 120.0, 30.0], 12), 13), poisson(np.repeat([20.0, 5.0, 60.0], 12), 14)]
    return run_control(fleet(), arrivals, solve_fleet, ControlSettings(headrooms=(1.2,), grouped=request.param)).schedule


def test_devices_in_use_are_never_more_than_there_are(eventful):
    for kind, there in enumerate((3, 2)):
        of_kind = np.array([queue.device_type == kind for queue in eventful.queues])
        assert eventful.servers[:, of_kind].sum(axis=1).max() <= there


def test_no_queue_gets_requests_just_before_its_last_server_goes(eventful):
    emptied = (eventful.servers[1:] == 0) & (eventful.servers[:-1] > 0)
    assert emptied.any()
    assert (eventful.shares[:-1][emptied] == 0).all()


def test_requests_go_only_where_servers_are(eventful):
    assert len(eventful.times) > 5
    assert (eventful.servers[eventful.shares > 0] > 0).all()


def test_the_same_arrivals_give_the_same_decisions():
    arrivals = [steady(50.0, 25, 15), steady(20.0, 25, 16)]
    one, two = (run_control(fleet(), arrivals, solve_fleet, ControlSettings(headrooms=(1.0, 2.0))).schedule for _ in range(2))
    assert np.array_equal(one.times, two.times) and np.array_equal(one.shares, two.shares)
    assert np.array_equal(one.servers, two.servers)


@pytest.mark.parametrize("seconds", [0, 1, 290])
def test_days_of_any_length_run(seconds):
    arrivals = [np.arange(0.5, seconds, 5.0), np.empty(0)]
    controlled = fleet()
    operation = run_control(
        controlled, arrivals, scripted(placement([2, 0, 1, 0], [1, 0, 1, 0])), ControlSettings(headrooms=(1.0,))
    )
    result = simulated(controlled, operation, arrivals)
    assert result.n_requests == len(arrivals[0]) and result.in_time.all()


def test_arrivals_of_too_few_families_are_refused():
    with pytest.raises(InvalidInput, match="arrivals: 1 is not allowed; allowed: one array for each of 2 families"):
        run_control(fleet(), [np.zeros(1)], solve_fleet)


def test_a_pair_that_serves_without_a_table_is_refused_by_its_place():
    controlled = fleet()
    policies = {pair: table for pair, table in controlled.policies.items() if pair != (1, 2)}
    with pytest.raises(InvalidInput, match=r"policies\[1, 2\]: None is not allowed; allowed: one for each pair with a throughput"):
        replace(controlled, policies=policies)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"period": 0.0}, "period: 0.0 is not allowed; allowed: a number of seconds > 0"),
        ({"load_time": -1.0}, "load_time: -1.0 is not allowed; allowed: a number of seconds >= 0"),
        ({"headrooms": ()}, r"headrooms: \(\) is not allowed; allowed: at least one"),
        ({"headrooms": (1.0, -2.0)}, r"headrooms\[1\]: -2.0 is not allowed; allowed: a number > 0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(change, message):
    with pytest.raises(InvalidInput, match=message):
        ControlSettings(**change)
