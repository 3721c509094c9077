"""The control loop on a fleet of three devices of one type and two of another, two families of two variants each."""

import pickle
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from sluice.batching.documents import Slo
from sluice.batching.errors import InvalidInput
from sluice.optimizer.control.control import Fault, Truth, run_control
from sluice.optimizer.control.controlled_fleet import ControlledFleet
from sluice.optimizer.control.controller import ControlSettings, FleetController
from sluice.optimizer.control.demand import DemandForecast, ForecastSettings, count_arrivals
from sluice.optimizer.control.headroom import OF_SHARES, HeadroomChoice, Moving
from sluice.optimizer.control.rehearsal import Rehearsal
from sluice.optimizer.control.rollout import IDLE, Rollout
from sluice.optimizer.fleet.fleet_file import read_fleet
from sluice.optimizer.fleet.milp import solve_fleet
from sluice.optimizer.fleet.problem import FleetProblem, solution_of
from sluice.optimizer.fleet.specification import DeviceType, Family, Fleet, Variant
from sluice.optimizer.fleet.tables import queue_table
from sluice.optimizer.fleet.throughput import Profile
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.fleet_queues import simulate_fleet

FLEET_LIVE = Path(__file__).parents[2] / "studies" / "fleet_live" / "fleet.yaml"
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


def test_the_forecast_of_a_steady_demand_is_that_demand():
    forecast = DemandForecast(np.array([5.0, 500.0]), horizon=3.0)
    for _ in range(60):
        forecast.see(np.array([40.0, 10.0]))
    assert forecast.rate == pytest.approx([40.0, 10.0])
    assert forecast.followed == pytest.approx([40.0, 10.0])


def test_what_shares_follow_is_at_once_where_demand_rises_and_falls_as_slowly_as_the_forecast():
    forecast = DemandForecast(np.array([10.0]), horizon=3.0, settings=ForecastSettings(quick=0.5))
    rates = [10.0] * 30 + [40.0] * 2 + [10.0] * 2
    followed, level = [], []
    for rate in rates:
        forecast.see(np.array([rate]))
        followed.append(float(forecast.followed[0]))
        level.append(float(forecast.rate[0]))
    assert followed[31] > 0.95 * 40.0 > level[31]
    assert followed[33] == level[33] > 10.0


def test_shares_follow_a_jump_as_soon_as_a_look_has_seen_it():
    forecast = DemandForecast(np.array([400.0, 8.0]), horizon=3.0, step=0.25)
    for _ in range(40):
        forecast.see(np.array([100.0, 2.0]))
    forecast.see(np.array([625.0, 3.0]))
    assert forecast.followed[0] > 0.9 * 2500.0 > 2 * forecast.quick[0]
    assert forecast.followed[1] == forecast.quick[1]  # one more of two is chance


def test_remembered_demand_comes_at_the_rate_of_now_with_the_burstiness_that_it_had():
    """A tenth of the demand of now, in pairs: the same pairs, ten times as close."""
    forecast = DemandForecast(np.array([2.0]), horizon=1.0, settings=ForecastSettings(memory=30.0))
    for _ in range(60):
        forecast.see(np.array([[2.0], [0.0], [0.0], [0.0]]))
    slow = forecast.remembered(0, 2.0, 4)
    quick = forecast.remembered(0, 20.0, 4)
    assert len(slow.arrival_times) == len(quick.arrival_times) == 60
    assert slow.ends[-1] == pytest.approx(30.0) and quick.ends[-1] == pytest.approx(3.0)
    assert quick.arrival_times == pytest.approx(slow.arrival_times / 10)
    assert np.diff(slow.arrival_times)[::2] == pytest.approx(0.125)


def test_remembered_demand_is_beyond_what_shares_follow_by_as_much_as_it_was():
    """A second of four times the demand: shares are made for a quarter of it, and a plan of three seconds before too."""
    forecast = DemandForecast(np.array([10.0]), horizon=3.0)
    for rate in [10.0] * 40 + [40.0]:
        forecast.see(np.array([rate]))
    remembered = forecast.remembered(0, 10.0, 1)
    lengths = np.diff(np.concatenate([[0.0], remembered.ends]))
    arrived = np.histogram(remembered.arrival_times, np.concatenate([[0.0], remembered.ends]))[0] / lengths
    assert arrived[-1] == pytest.approx(4 * remembered.followed[-1])
    assert arrived[:-1] == pytest.approx(remembered.followed[:-1])


def test_what_was_not_seen_is_drawn_and_gives_way_to_what_was():
    forecast = DemandForecast(np.array([50.0]), horizon=3.0)
    drawn = forecast.remembered(0, 50.0, 10)
    assert drawn.ends[-1] == pytest.approx(30.0)
    assert len(drawn.arrival_times) / 30 == pytest.approx(50.0, rel=0.2)
    assert np.array_equal(drawn.arrival_times, forecast.remembered(0, 50.0, 10).arrival_times)
    for _ in range(31):
        forecast.see(np.array([50.0]))
    assert len(forecast.remembered(0, 50.0, 10).arrival_times) == 1500


def seen_by_second(counts):
    """A forecast that has seen these counts, a second each."""
    forecast = DemandForecast(np.array([counts[0]], dtype=float), horizon=3.0)
    for count in counts:
        forecast.see(np.array([count], dtype=float))
    return forecast


def test_demand_that_goes_up_and_down_within_a_minute_is_likely_to_come_again():
    assert seen_by_second([5.0] * 60).comes_again(0) == 0.0
    assert seen_by_second([50.0] * 120).comes_again(0) == 0.0
    assert seen_by_second(np.linspace(10, 200, 120)).comes_again(0) < 0.02
    rng = np.random.default_rng(0)
    wandering = rng.poisson(50 * np.exp(np.cumsum(rng.normal(0, 0.1, 120))))
    assert seen_by_second(wandering).comes_again(0) < 0.1
    assert seen_by_second(([5.0] * 20 + [60.0] * 20) * 3).comes_again(0) > 0.3
    assert seen_by_second(([20.0] * 25 + [80.0] * 5) * 4).comes_again(0) > 0.5


def test_before_two_counts_nothing_is_known_to_come_again():
    assert DemandForecast(np.ones(1), horizon=1.0).comes_again(0) == 0.0
    assert seen_by_second([3.0, 4.0]).comes_again(0) == 0.0


def test_demand_is_remembered_as_it_came_too():
    forecast = seen_by_second([5.0] * 30 + [60.0] * 30)
    remembered = forecast.remembered(0, 60.0, 1, stretched=False)
    assert remembered.ends == pytest.approx(np.arange(1.0, 60.0))  # the first second had nothing forecast for it
    assert np.histogram(remembered.arrival_times, np.arange(60.0))[0].tolist() == [5] * 29 + [60] * 30
    assert remembered.followed[1] == pytest.approx(5.0) and remembered.followed[-1] == pytest.approx(60.0, rel=0.01)


def test_a_forecast_without_a_horizon_is_refused():
    with pytest.raises(InvalidInput, match=r"horizon: 0.0 is not allowed; allowed: a number of seconds > 0"):
        DemandForecast(np.ones(1), 0.0)


# --- the rehearsal and the headroom


def seen(*rates, seconds=60, controlled=None):
    """What is rehearsed after so long at these rates, evenly."""
    controlled = controlled or fleet()
    forecast = DemandForecast(np.array(rates), horizon=1.0)
    for _ in range(seconds):
        forecast.see(np.tile(np.array(rates) / 20, (20, 1)))
    return Rehearsal(controlled, forecast, forecast.rate, 20), forecast.rate


def test_a_family_of_a_few_requests_counts_for_a_hundredth_of_all():
    rehearsal, _ = seen(500.0, 0.0)
    assert rehearsal.part_of == pytest.approx([1.0, 0.01], abs=0.001)


def test_a_family_that_ended_is_rehearsed_with_next_to_nothing():
    forecast = DemandForecast(np.array([500.0, 20.0]), horizon=1.0, settings=ForecastSettings(memory=20.0))
    for _ in range(60):
        forecast.see(np.array([0.0, 20.0]))
    rehearsal = Rehearsal(fleet(), forecast, forecast.rate, 20)
    assert rehearsal.part_of[0] == 0.01
    assert rehearsal.of_family(0, placement([1, 0, 1, 0], [0, 0, 1, 0]), 1.0).late == 0.0


def test_a_rehearsal_is_of_what_would_come_now_and_of_what_came(monkeypatch):
    """In a lull: what does for now is too little for what may come again, which counts by its requests."""
    forecast = DemandForecast(np.array([150.0, 5.0]), horizon=3.0)
    for rate in ([150.0] * 20 + [5.0] * 20) * 2:
        forecast.see(np.array([rate, 5.0]))
    late, rate = {}, {0.0: forecast.rate[0], 1.0: 77.5}
    for again in (0.0, 1.0, 0.25):
        monkeypatch.setattr(DemandForecast, "comes_again", lambda self, family, again=again: again)
        rehearsal = Rehearsal(fleet(), forecast, forecast.rate, 20)
        late[again] = rehearsal.of_family(0, placement([2, 0, 1, 0], [0, 0, 1, 0]), 1.0).late
    assert late[0.0] < late[1.0]
    assert late[0.25] == pytest.approx(np.average([late[0.0], late[1.0]], weights=[0.75 * rate[0.0], 0.25 * rate[1.0]]), rel=0.02)


def test_a_rehearsal_is_what_a_simulated_day_comes_to():
    """The same placement on the same Poisson arrivals, seen by the loop and by the simulator."""
    controlled, counts = fleet(), placement([2, 0, 1, 0], [1, 0, 1, 0])
    arrivals = [steady(60.0, 60, 31), steady(20.0, 60, 32)]
    settings = ControlSettings(headrooms=(1.3,), bursts=False, period=1e6, forecast=ForecastSettings(level=1e6, quick=1e6))
    expected = replace(controlled, problem=controlled.problem.with_demand([60.0, 20.0]))
    result = simulated(controlled, run_control(expected, arrivals, scripted(counts), settings), arrivals)
    forecast = DemandForecast(np.array([60.0, 20.0]), 1.0, settings.forecast, settings.look)
    for within in count_arrivals(arrivals, 60 * 400, 0.0025).reshape(-1, 100, 2):
        forecast.see(within)
    rehearsal = Rehearsal(controlled, forecast, forecast.rate, 100)
    for family in (0, 1):
        outcome, run = rehearsal.of_family(family, counts, 1.3), result.of_family(family)
        assert outcome.late == pytest.approx(run.violation_ratio, abs=0.01)
        assert outcome.accuracy == pytest.approx(run.effective_accuracy, abs=1.0)


def test_a_family_that_no_device_serves_is_late_in_all():
    rehearsal, _ = seen(20.0, 10.0)
    assert rehearsal.of_family(1, placement([3, 0, 0, 0], [2, 0, 0, 0]), 1.0).late == 1


def test_the_plan_taken_is_the_most_accurate_of_those_that_keep_what_may_be_late():
    """A second's requests come in its first quarter: who may be late in part is served more accurately."""
    forecast = DemandForecast(np.array([60.0, 20.0]), horizon=1.0)
    for _ in range(60):
        forecast.see(np.vstack([np.tile([11.0, 2.0], (5, 1)), np.zeros((15, 2))]))
    rehearsal, problem = Rehearsal(fleet(), forecast, forecast.rate, 20), fleet().problem.with_demand(forecast.rate)

    def outcomes(violations):
        chosen = HeadroomChoice(solve_fleet, violations=violations).choose(problem, rehearsal)
        return [rehearsal.of_family(q, chosen.plan.counts, chosen.of_shares[q]) for q in (0, 1)]

    strict, lax = outcomes(0.01), outcomes(0.6)
    assert max(outcome.late for outcome in strict) <= 0.01 < max(outcome.late for outcome in lax) <= 0.6
    assert sum(outcome.accuracy for outcome in lax) > sum(outcome.accuracy for outcome in strict)


def test_shares_have_the_least_headroom_that_keeps_what_may_be_late():
    rehearsal, rate = seen(60.0, 20.0)
    chosen = HeadroomChoice(solve_fleet).choose(fleet().problem.with_demand(rate), rehearsal)
    for q, headroom in enumerate(chosen.of_shares):
        less = [rehearsal.of_family(q, chosen.plan.counts, other).late for other in OF_SHARES if other < headroom]
        assert all(late > 0.005 for late in less)


def test_a_family_that_nobody_asks_for_keeps_the_others_from_nothing():
    rehearsal, rate = seen(60.0, 0.0, seconds=130)
    choice = HeadroomChoice(solve_fleet).choose(fleet().problem.with_demand(rate), rehearsal)
    assert rehearsal.of_family(0, choice.plan.counts, choice.of_shares[0]).late <= 0.005


def test_what_is_decided_is_what_was_known_when_it_was_asked_for():
    made, _ = begun(solve_fleet, headrooms=(1.0, 2.0))
    decide = made.deciding()
    for second in range(1, 30):
        made.see(float(second), np.array([200.0, 1.0]))
    assert decide().plan.problem.demand == pytest.approx(controller(solve_fleet, headrooms=(1.0, 2.0)).decide().plan.problem.demand)


def test_devices_that_a_plan_leaves_over_are_used():
    rehearsal, rate = seen(5.0, 5.0)
    choice = HeadroomChoice(solve_fleet).choose(fleet().problem.with_demand(rate), rehearsal)
    assert choice.plan.counts.sum() == 5


def test_the_placement_that_runs_is_kept_where_another_earns_no_more():
    rehearsal, rate = seen(20.0, 10.0)
    running = solve_fleet(fleet().problem.with_demand(3 * rate)).counts
    chosen = HeadroomChoice(solve_fleet, moving=Moving(1.0)).choose(
        fleet().problem.with_demand(rate).with_running(running), rehearsal
    )
    assert (chosen.plan.counts >= running).all()


def test_loading_that_takes_as_long_as_a_period_does_not_freeze_the_placement():
    """All host the quick variants, as a burst left them; the accurate ones would do now, and are worth the way."""
    rehearsal, rate = seen(20.0, 10.0)
    problem = fleet().problem.with_demand(rate).with_running(placement([0, 2, 0, 1], [0, 1, 0, 1]))
    chosen = HeadroomChoice(solve_fleet, moving=Moving(seconds=10.0)).choose(problem, rehearsal)
    assert chosen.plan.swaps > 0
    assert chosen.plan.accuracy > 95


def test_one_headroom_is_kept_to():
    asked = []

    def planner(problem):
        asked.append(problem.demand)
        return solve_fleet(problem)

    chosen = HeadroomChoice(planner, (1.05,)).keep_to_one(fleet().problem.with_demand([20.0, 10.0]))
    assert chosen.headroom.tolist() == chosen.of_shares.tolist() == [1.05, 1.05] and len(asked) == 1
    assert asked[0] == pytest.approx([21.0, 10.5])


# --- the rollout


def placement(*rows):
    return np.array(rows)


class Rolling:
    """A rollout, and devices that load in a second what they are told to: every moment at which something happened."""

    def __init__(self, before, kept=(0.0, 0.0)):
        self.problem, self.kept, self.now = fleet().problem, np.array(kept), 10.0
        self.rollout = Rollout(np.array([3, 2]), 4, drain=0.2)
        self.loading, self.moments = {}, []
        for device, _variant in self._aimed(before):
            self.rollout.loaded(device)
        self.loading.clear()
        self.moments = [(self.now, self.rollout.hosts.copy(), self.rollout.receives.copy(), [], [])]

    def _aimed(self, counts):
        self.rollout.aim(counts)
        return self._advance()

    def _advance(self):
        unload, load = self.rollout.advance(self.now, self.problem, self.kept)
        self.loading |= {device: self.now + 1.0 for device, _ in load}
        self.moments.append((self.now, self.rollout.hosts.copy(), self.rollout.receives.copy(), unload, load))
        return load

    def move(self, after):
        self._aimed(after)
        while (now := min(self.rollout.wake_at, *self.loading.values(), np.inf)) < np.inf:
            self.now = now
            for device in [device for device, at in self.loading.items() if at <= now]:
                self.rollout.loaded(device)
                del self.loading[device]
            self._advance()
        assert self.rollout.settled
        return self


def reach(problem, rollout, hosts):
    return np.bincount(FAMILY, (problem.throughput * rollout.counts(hosts)).sum(axis=0), 2)


def test_devices_that_stay_do_not_move():
    moved = Rolling(placement([2, 0, 1, 0], [1, 0, 1, 0])).move(placement([1, 0, 2, 0], [1, 0, 1, 0]))
    assert len([device for *_, load in moved.moments[1:] for device in load]) == 1
    assert moved.rollout.counts(moved.rollout.hosts).tolist() == [[1, 0, 2, 0], [1, 0, 1, 0]]


def test_a_device_drains_then_loads_then_serves():
    moved = Rolling(placement([2, 0, 1, 0], [1, 0, 1, 0])).move(placement([1, 0, 2, 0], [1, 0, 1, 0]))
    assert [time for time, *_ in moved.moments[1:]] == pytest.approx([10.0, 10.2, 11.2])
    assert [(hosts == IDLE).sum() for _, hosts, *_ in moved.moments[1:]] == [0, 1, 0]
    assert [(len(unload), len(load)) for *_, unload, load in moved.moments[1:]] == [(0, 0), (1, 1), (0, 0)]


def test_a_device_that_hosts_nothing_loads_at_once():
    moved = Rolling(placement([2, 0, 0, 0], [1, 0, 1, 0])).move(placement([2, 0, 1, 0], [1, 0, 1, 0]))
    assert [time for time, *_ in moved.moments[1:]] == [10.0, 11.0]


def test_families_keep_what_they_are_asked_for_while_devices_move():
    """All devices of one family change places with those of the other: they go a few at a time."""
    demand = (30.0, 10.0)
    moved = Rolling(placement([3, 0, 0, 0], [0, 0, 2, 0]), demand).move(placement([0, 0, 3, 0], [2, 0, 0, 0]))
    for _, hosts, *_ in moved.moments:
        assert (reach(moved.problem, moved.rollout, hosts) >= demand).all()


def test_where_all_are_missed_they_go_all_the_same_one_after_the_other():
    moved = Rolling(placement([3, 0, 0, 0], [0, 0, 2, 0]), (1e6, 1e6)).move(placement([0, 0, 3, 0], [2, 0, 0, 0]))
    assert max((hosts == IDLE).sum() for _, hosts, *_ in moved.moments) == 1


def test_the_only_device_of_a_family_is_stood_in_for_before_it_loads_another_of_its_variants():
    """One that its family can spare loads the new variant first, and the old one's device takes its place."""
    moved = Rolling(placement([3, 0, 0, 0], [0, 0, 0, 0]), (20.0, 10.0))
    moved.rollout = Rollout(np.array([3, 0]), 4, drain=0.2)
    moved.loading.clear()
    for device, _variant in moved._aimed(placement([2, 0, 1, 0], [0, 0, 0, 0])):
        moved.rollout.loaded(device)
    moved.loading.clear()
    moved.moments.clear()
    moved.move(placement([2, 0, 0, 1], [0, 0, 0, 0]))
    assert moved.rollout.counts(moved.rollout.hosts).tolist() == [[2, 0, 0, 1], [0, 0, 0, 0]]
    for _, hosts, receives, *_ in moved.moments:
        assert (FAMILY[hosts[hosts != IDLE]] == 1).any() and (FAMILY[receives[receives != IDLE]] == 1).any()
    assert sum(len(load) for *_, load in moved.moments) == 2


def test_a_family_that_leaves_with_its_only_device_is_asked_until_that_unloads():
    rolling = Rolling(placement([2, 0, 1, 0], [2, 0, 0, 0]), (1e6, 1e6))
    rolling.moments.clear()
    rolling.rollout.aim(placement([3, 0, 0, 0], [2, 0, 0, 0]))
    rolling._advance()
    leaving = rolling.rollout.hosts == 2
    assert leaving.sum() == 1 and (rolling.rollout.receives[leaving] == IDLE).all()
    assert (rolling.rollout.asked(FAMILY)[leaving] == 2).all()
    rolling.now = rolling.rollout.wake_at
    rolling._advance()
    assert (rolling.rollout.asked(FAMILY)[leaving] == IDLE).all()


def test_of_those_that_are_missed_the_only_device_of_a_family_goes_last():
    moved = Rolling(placement([2, 0, 1, 0], [2, 0, 0, 0]), (1e6, 1e6)).move(placement([1, 2, 0, 0], [0, 2, 0, 0]))
    gone = [next(i for i, (_, hosts, *_) in enumerate(moved.moments) if (hosts[device] == IDLE)) for device in (2, 3)]
    assert gone[0] > gone[1]


def test_a_device_that_is_leaving_gets_no_requests():
    """Nor does one of two that host the same variant, of which the other stays."""
    moved = Rolling(placement([2, 0, 1, 0], [1, 0, 1, 0])).move(placement([1, 0, 2, 0], [1, 0, 1, 0]))
    _, hosts, receives, *_ = moved.moments[1]
    leaving = moved.moments[2][1] == IDLE
    assert (hosts[leaving] == 0).all() and (receives[leaving] == IDLE).all()
    assert (receives[~leaving] == hosts[~leaving]).all()


def test_a_device_that_drains_stays_where_the_next_plan_wants_it():
    rolling = Rolling(before := placement([2, 0, 1, 0], [1, 0, 1, 0]))
    rolling._aimed(placement([1, 0, 2, 0], [1, 0, 1, 0]))
    assert (rolling.rollout.receives == IDLE).any()
    rolling._aimed(before)
    assert rolling.rollout.settled and not (rolling.rollout.receives == IDLE).any()


def test_a_device_that_loads_is_not_disturbed_and_moves_on_when_it_has():
    rolling = Rolling(placement([3, 0, 0, 0], [0, 0, 0, 0]))
    assert rolling._aimed(placement([3, 0, 0, 0], [0, 0, 1, 0])) == [(3, 2)]
    assert rolling._aimed(placement([3, 0, 0, 0], [2, 0, 0, 0])) == [(4, 0)]
    rolling.move(placement([3, 0, 0, 0], [2, 0, 0, 0]))
    assert rolling.rollout.counts(rolling.rollout.hosts).tolist() == [[3, 0, 0, 0], [2, 0, 0, 0]]


def test_a_device_that_is_gone_is_planned_around():
    rolling = Rolling(placement([3, 0, 0, 0], [2, 0, 0, 0]))
    rolling.rollout.died(1)
    assert rolling.rollout.devices.tolist() == [2, 2]
    rolling.move(placement([0, 2, 0, 0], [2, 0, 0, 0]))
    assert rolling.rollout.hosts.tolist() == [1, IDLE, 1, 0, 0]
    rolling.rollout.joined(1, hosts=0)
    assert rolling.rollout.hosts.tolist() == [1, 0, 1, 0, 0] and rolling.rollout.settled


# --- the loop without a simulation


def controller(planner=None, **settings):
    planner = planner or scripted(placement([2, 0, 1, 0], [1, 0, 1, 0]))
    return FleetController(fleet(), planner, ControlSettings(**{"headrooms": (1.0,), "look": 1.0, **settings}))


def begun(planner=None, **settings):
    """A controller all of whose devices have loaded the first placement, and what it said last."""
    made = controller(planner, **settings)
    told = made.adopt(0.0, made.decide())
    for device, _ in told.load:
        told = made.loaded(0.0, device)
    return made, told


def shares(told):
    return {(queue.device_type, queue.variant): queue.share for queue in told.queues}


def test_the_first_plan_has_every_device_load_and_its_queues_open_as_they_have():
    made = controller()
    told = made.adopt(0.0, made.decide())
    assert [device for device, _ in told.load] == [0, 1, 2, 3, 4] and not told.unload and not told.queues
    told = made.loaded(1.0, 0)
    assert [(queue.devices, queue.share) for queue in told.queues] == [((0,), 1.0)]


def test_queues_have_the_devices_shares_and_tables_of_the_placement():
    _, told = begun()
    assert {queue.devices for queue in told.queues} == {(0, 1), (2,), (3,), (4,)}
    assert [queue.table.servers for queue in told.queues] == [len(queue.devices) for queue in told.queues]
    for family in (0, 1):
        assert sum(queue.share for queue in told.queues if FAMILY[queue.variant] == family) == pytest.approx(1.0)


def test_a_plan_is_asked_for_when_a_period_has_passed_and_once_alone():
    made, _ = begun(period=3.0, bursts=False)
    assert [made.see(float(second), np.array([20.0, 10.0])).plan_wanted for second in range(1, 6)] == [0, 0, 1, 0, 0]
    made.adopt(5.5, made.decide())
    assert made.see(6.0, np.array([20.0, 10.0])).plan_wanted


def test_a_burst_that_the_placement_on_the_way_does_not_carry_asks_for_a_plan_before_that_is_there():
    before, after = placement([2, 0, 1, 0], [1, 0, 1, 0]), placement([2, 0, 1, 0], [1, 0, 0, 1])
    made, _ = begun(scripted(before, after), period=1e6)
    assert made.see(1.0, np.array([20.0, 10.0])).plan_wanted
    made.adopt(1.5, made.decide())
    assert not made.settled
    assert not made.see(2.0, np.array([20.0, 80.0])).plan_wanted  # more than the second family has, and less than it will have
    assert made.see(3.0, np.array([300.0, 80.0])).plan_wanted and not made.settled


def test_a_look_that_comes_a_little_early_is_the_periods_all_the_same():
    """A live clock is not the simulated one: a plan is not put off for another look by a millisecond."""
    made, _ = begun(period=3.0, bursts=False, look=1.0)
    wanted = [made.see(now, np.array([10.0, 10.0])).plan_wanted for now in (1.0, 2.0, 2.999)]
    assert wanted == [False, False, True]


def test_what_came_counts_for_all_of_it_though_only_its_end_is_run(monkeypatch):
    forecast = DemandForecast(np.array([150.0, 5.0]), horizon=3.0)
    for rate in [5.0, *([150.0] * 20 + [5.0] * 20) * 2]:  # the first second had nothing forecast for it
        forecast.see(np.array([rate, 5.0]))
    monkeypatch.setattr(DemandForecast, "comes_again", lambda self, family: float(family == 0))
    monkeypatch.setattr("sluice.optimizer.control.rehearsal.MOST_REQUESTS", 50)  # of the lull
    assert Rehearsal(fleet(), forecast, forecast.rate, 20).part_of[0] == pytest.approx(77.5 / 82.5)


@pytest.mark.parametrize(("again", "runs"), [(0.0, 1), (0.5, 2), (1.0, 1)])
def test_only_what_is_likely_to_come_is_rehearsed(again, runs, monkeypatch):
    asked = []

    def run(*args):
        asked.append(args)
        return simulate_fleet(*args)

    monkeypatch.setattr(DemandForecast, "comes_again", lambda self, family: again)
    monkeypatch.setattr("sluice.optimizer.control.rehearsal.simulate_fleet", run)
    rehearsal, _ = seen(20.0, 10.0)
    rehearsal.of_family(0, placement([1, 0, 1, 0], [0, 0, 1, 0]), 1.0)
    assert len(asked) == runs


@pytest.mark.full
def test_where_demand_alternates_within_a_minute_placements_are_kept_for_what_comes_again():
    """Each family by turns, for half a minute: plans for the moment alone have 1.2 to 1.8 % late, at the jumps."""
    described = read_fleet(FLEET_LIVE)
    controlled = ControlledFleet.of(described)
    turns = np.arange(180) // 30 % 2 == 0
    arrivals = [poisson(np.where(up, 60.0, 5.0), seed) for seed, up in enumerate((turns, ~turns), 1)]
    settings = ControlSettings(look=0.5, decision_time=0.1)
    operation = run_control(controlled, arrivals, solve_fleet, settings)
    run = simulate_fleet(operation.schedule, arrivals, controlled.slos, np.random.default_rng(1))
    learnt = run.arrival_times > 60
    assert 1 - run.in_time[learnt].mean() < 0.005


def test_what_batches_take_longer_than_was_known_is_planned_with_from_then_on():
    described = read_fleet(FLEET_LIVE)
    made = FleetController(ControlledFleet.of(described), solve_fleet, ControlSettings())
    told = made.adopt(0.0, made.decide())
    for device, _ in told.load:
        before = made.loaded(0.0, device)
    known = ControlledFleet.of(described.behind({"vision": 0.03}))
    after = made.follow(1.0, known)
    assert after.plan_wanted
    for old, new in zip(before.queues, after.queues, strict=True):
        assert old.devices == new.devices
        assert (old.table == new.table) == (FAMILY[old.variant] == 1)
        assert new.table == replace(known.policies[0, new.variant], servers=len(new.devices))


def test_a_second_after_the_first_look_a_plan_is_asked_for_that_is_no_guess():
    made, _ = begun(look=0.5, period=1e6)
    assert [made.see(at, np.array([10.0, 5.0])).plan_wanted for at in (0.5, 1.0, 1.5, 2.0)] == [0, 1, 0, 0]


def test_before_anything_was_seen_all_devices_of_a_family_get_a_part():
    _, told = begun(scripted(placement([1, 1, 1, 0], [0, 0, 1, 0])))
    assert shares(told)[0, 1] == pytest.approx(100 / 120)


def test_shares_follow_the_demand_between_plans_unless_they_are_those_of_the_plan():
    """With more demand the less accurate variant gets a part; the plan was made for less."""
    both = placement([1, 1, 1, 0], [0, 0, 1, 0])
    for follow, moves in ((True, True), (False, False)):
        made, _ = begun(scripted(both), period=1e6, bursts=False, follow_demand=follow)
        before = made.see(1.0, np.array([20.0, 10.0]))
        for second in range(2, 20):
            after = made.see(float(second), np.array([60.0, 10.0]))
        assert (shares(after)[0, 1] > shares(before)[0, 1]) == moves


def test_the_part_of_a_device_that_dies_goes_to_the_others_at_once_and_a_plan_is_asked_for():
    made, before = begun(period=1e6)
    (lost,) = next(queue.devices for queue in before.queues if (queue.device_type, queue.variant) == (1, 0))
    told = made.died(7.0, lost)
    assert told.plan_wanted
    assert shares(told)[0, 0] == pytest.approx(1.0) and (1, 0) not in shares(told)
    assert made.problem.devices.tolist() == [3, 1]


def test_a_device_that_joins_is_planned_with():
    made, _ = begun(solve_fleet, period=1e6)
    made.died(7.0, 4)
    made.adopt(7.5, made.decide())
    told = made.joined(20.0, 4)
    assert told.plan_wanted and made.problem.devices.tolist() == [3, 2]


def test_nothing_that_the_loop_keeps_grows_with_the_time_it_runs():
    made, _ = begun(period=1e6, forecast=ForecastSettings(memory=5.0))

    def kept():
        return len(pickle.dumps([vars(made._forecast), vars(made._rollout)]))

    sizes = []
    for second in range(1, 400):
        made.see(float(second), np.array([20.0, 10.0]))
        sizes.append(kept())
    assert max(sizes[200:]) <= max(sizes[100:200]) + 8


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


@pytest.mark.proof
def test_what_is_decided_uses_no_future():
    controlled = fleet()
    arrivals = [steady(60.0, 40, 3), steady(20.0, 40, 4)]
    other = [np.concatenate([times[times < 30.0], steady(100.0, 10, 5) + 30.0]) for times in arrivals]
    settings = ControlSettings(headrooms=(1.0, 2.0))
    one, two = (run_control(controlled, a, solve_fleet, settings).decisions for a in (arrivals, other))
    before = [(d.asked, d.headroom.tolist(), d.solution.counts.tolist(), d.solution.flows.tolist()) for d in one if d.asked <= 30.0]
    assert before == [
        (d.asked, d.headroom.tolist(), d.solution.counts.tolist(), d.solution.flows.tolist()) for d in two if d.asked <= 30.0
    ]
    assert len(before) >= 3


def burst(at, seconds):
    rates = np.full(60, 10.0)
    rates[at : at + seconds] = 150.0
    return [poisson(rates, 6), steady(10.0, 60, 7)]


def test_a_burst_asks_for_a_plan_at_once_and_raises_what_can_be_served():
    operation = run_control(fleet(), burst(33, 20), solve_fleet, ControlSettings(period=30.0, headrooms=(1.5,)))
    first = next(decision for decision in operation.decisions if decision.burst and decision.asked > 2.0)
    before = operation.decisions[operation.decisions.index(first) - 1]
    assert 33.0 < first.asked <= 34.5 and first.in_force == first.asked + 0.5
    carried = [(d.solution.counts * (1 / SECONDS))[:, FAMILY == 0].sum() for d in (before, first)]
    assert carried[1] > carried[0]


def test_of_those_that_burst_the_demand_of_now_is_planned_for_and_of_others_the_forecast():
    made, _ = begun()
    for second in range(1, 40):
        made.see(float(second), np.array([20.0, 10.0]))
        made.adopt(float(second), made.decide())
    told = made.see(40.0, np.array([2000.0, 20.0]))
    assert told.plan_wanted
    jumped, steady = made.problem.demand
    assert jumped > 1000.0 and steady == pytest.approx(made.forecast[1]) and steady < 13.0


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


def test_no_queue_gets_requests_just_before_its_last_server_goes_unless_its_family_has_no_other(eventful):
    emptied = (eventful.servers[1:] == 0) & (eventful.servers[:-1] > 0)
    assert emptied.any()
    family = np.array([queue.family for queue in eventful.queues])
    for at, queue in np.argwhere(emptied):
        others = (family == family[queue]) & (np.arange(len(family)) != queue)
        assert (eventful.shares[at, queue] == 0) == (eventful.shares[at, others] > 0).any()


def test_requests_go_only_where_servers_are(eventful):
    assert len(eventful.times) > 5
    assert (eventful.servers[eventful.shares > 0] > 0).all()


def test_a_dead_device_costs_no_more_than_what_it_gets_until_that_is_noticed():
    """The only device of the queue that has most of a family's requests; without the loop half of the day would be lost."""
    controlled, arrivals = fleet(), [steady(40.0, 60, 21), steady(15.0, 60, 22)]
    faults = [Fault(3, 30.3)]
    operation = run_control(controlled, arrivals, solve_fleet, ControlSettings(), faults, noticed_after=2.0)
    result = simulated(controlled, operation, arrivals)
    missed = ~result.in_time & (result.arrival_times > 2.0)
    of_the_fault = (result.arrival_times > 30.0) & (result.arrival_times < 33.5)
    assert missed[of_the_fault].any()
    assert missed[~of_the_fault].mean() < ControlSettings().violations


def test_a_device_that_comes_back_serves_again():
    controlled, arrivals = fleet(devices=(1, 0), expected=(10.0, 0.0)), [np.arange(0.0, 40.0, 0.1), np.empty(0)]
    operation = run_control(controlled, arrivals, solve_fleet, ControlSettings(), [Fault(0, 10.0, 20.0)])
    result = simulated(controlled, operation, arrivals)
    late = result.arrival_times[~result.in_time]
    assert late.min() >= 10.0 - SLO and late.max() < 22.0


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (Fault(5, 1.0), r"faults\[0\].device: 5 is not allowed; allowed: an integer from 0 to 4"),
        (Fault(0, 3.0, 2.0), r"faults\[0\]: \(3.0, 2.0\) is not allowed; allowed: a time >= 0, and a later one"),
    ],
)
def test_faults_that_mean_nothing_are_refused(fault, message):
    with pytest.raises(InvalidInput, match=message):
        run_control(fleet(), [np.zeros(1)] * 2, solve_fleet, faults=[fault])


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
    with pytest.raises(InvalidInput, match=r"policies\[1, 2\]: none was given; needed: one for each pair with a throughput"):
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


def test_a_worker_that_is_slower_than_its_profile_is_planned_with_what_it_takes_within_a_minute():
    """Live the same class measures it (tests/controller/test_fleet_process.py)."""
    variants = (Variant("one", 80.0),)
    known = Fleet(
        (DeviceType("gpu", 6),), (Family("a", Slo(0.5), variants),), {("gpu", "one"): Profile.of_line(0.02, 0.01, 8)}, {"a": 60.0}
    )
    takes = known.slower({("gpu", "one"): 1.5})
    true, profiled = (ControlledFleet.of(fleet).problem.throughput[0, 0] for fleet in (takes, known))
    arrivals = [poisson(np.tile([30.0, 90.0], 45), 3)]
    operations = [
        run_control(ControlledFleet.of(known), arrivals, solve_fleet, ControlSettings(headrooms=(1.2,)), truth=truth)
        for truth in (Truth(known, takes), Truth(known, known))
    ]
    slower, same = ([d.solution.problem.throughput[0, 0] for d in operation.decisions] for operation in operations)
    first = next(d for d in operations[0].decisions if d.solution.problem.throughput[0, 0] == pytest.approx(true, rel=0.01))
    assert first.in_force < 60 and slower[-1] == pytest.approx(true, rel=0.01)
    assert same == pytest.approx([profiled] * len(same))
    result = simulate_fleet(operations[0].schedule, arrivals, np.array([0.5]), np.random.default_rng(0))
    late = result.arrival_times[0][~(result.latency[0] <= 0.5)]
    assert (late < first.in_force + 5).all()
