"""One model's plan while its requests come: what is proposed, rehearsed and decided (docs/control.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec import UNSET, structs
from scipy.stats import binom

from sluice.batching.documents import (
    Beside,
    Plan,
    PolicyDocument,
    ProfilePoint,
    RequestClass,
    ServiceProfile,
    ServiceTime,
    Slo,
    WarmEnvironments,
)
from sluice.batching.errors import InvalidInput
from sluice.batching.measured import MeasuredBatch
from sluice.batching.policy import greedy, no_batching, size_or_timeout
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.recommend.offers import machine_offer
from sluice.optimizer.simulation import Beside as BesideOf
from sluice.optimizer.simulation import Deployment, Function, TraceArrivals, simulate_deployment, simulate_deployments
from sluice.optimizer.simulation.batch_means import Estimate, share_of_next
from sluice.optimizer.simulation.bill import Bill
from sluice.optimizer.simulation.deployment import LAMBDA
from sluice.optimizer.simulation.queue_run import QueueRun
from sluice.optimizer.tuning import candidates
from sluice.optimizer.tuning.canary import CANARY, SERVING, plain, single_route, trying
from sluice.optimizer.tuning.candidates import unbatched
from sluice.optimizer.tuning.changes import Alarm
from sluice.optimizer.tuning.day_counts import BUCKET, DAY, MOST_BUCKETS
from sluice.optimizer.tuning.decision import Decision, Trigger
from sluice.optimizer.tuning.deployments import deployment_of
from sluice.optimizer.tuning.proposal import Proposal
from sluice.optimizer.tuning.recent_arrivals import RecentArrivals
from sluice.optimizer.tuning.rehearsal import rehearse
from sluice.optimizer.tuning.setup import TuningSettings, TuningSetup
from sluice.optimizer.tuning.simulated import ServiceChange, simulate_control, simulate_plans
from sluice.optimizer.tuning.slow_drift import PAUSE
from sluice.optimizer.tuning.stretched import stretched
from sluice.optimizer.tuning.trials import Trials, Tried
from sluice.optimizer.tuning.tuner import Tuner

SLO = Slo(0.1, 95)


def profile_of(
    *memory_sizes: int, intercept: float = 0.006, slope: float = 0.001, init: float = 0.2, largest: int = 8
) -> ServiceProfile:
    points = [
        ProfilePoint(mb, b, ServiceTime((intercept + slope * b) * 1769 / mb), (intercept + slope * b) * 1769 / mb)
        for mb in memory_sizes
        for b in (1, largest)
    ]
    inits = {mb: ServiceTime(init) for mb in memory_sizes}
    return ServiceProfile(function="f-{memory_mb}", points=points, init=inits, max_batch_size=largest)


PROFILE = profile_of(1769)
SETUP = TuningSetup("m", (SLO,), PROFILE)


def poisson_times(rate: float, n: int, seed: int = 0) -> Array:
    return np.asarray(1.7e9 + np.cumsum(np.random.default_rng(seed).exponential(1 / rate, n)))


def plan_without_batching(memory_mb: int = 1769) -> Plan:
    return Plan(model="m", function=f"f-{memory_mb}", policy=PolicyDocument.of(no_batching()), slo=SLO, memory_mb=memory_mb)


# --- what the next window may be


def test_the_next_window_exceeds_what_is_foretold_no_oftener_than_the_confidence_leaves() -> None:
    rng = np.random.default_rng(1)
    beyond = 0
    for _ in range(400):
        bursts = np.repeat(rng.random(600) < 0.1, 5)  # five in a row are late together
        beyond += bursts[2000:].mean() > share_of_next(bursts[:2000], 1000).most(0.95)
    assert beyond / 400 <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_who_was_never_late_may_be_late_as_often_as_so_few_requests_leave_open() -> None:
    never = np.zeros(3300, dtype=bool)
    assert share_of_next(never, 1e9).most(0.95) == pytest.approx(np.log(20) / 3296, rel=0.01)


def test_a_promise_that_is_to_be_kept_in_every_four_seconds_allows_fewer_late_than_one_of_five_minutes() -> None:
    times, setup = poisson_times(52, 20_000, 3), TuningSetup("m", (Slo(0.1, 93),), PROFILE)
    plan = Plan(model="m", function="f-1769", policy=PolicyDocument.of(size_or_timeout(8, 0.088)), slo=Slo(0.1, 93), memory_mb=1769)
    keeps = {}
    for kept_in in (4.0, 300.0):
        trials = Trials(setup, TuningSettings(kept_in=kept_in), PROFILE, float(times[-1]), 0.0, times)
        tried = trials.tried(Proposal("6 % late", plan))
        assert tried is not None and tried.runs[0].late[0].value == pytest.approx(0.061, abs=0.001)
        keeps[kept_in] = tried.keeps
    assert keeps == {4.0: False, 300.0: True}


# --- a queue that is taken over


def test_a_queue_that_the_same_deployment_takes_over_goes_on_as_if_it_had_not() -> None:
    times = poisson_times(60, 600) - 1.7e9
    function = Function(profile_of(885, 1769), 1769, environments=LAMBDA)
    single, full = PolicyDocument(hold=[None, 0.03, 0.02, 0.0], take=[0, 1, 2, 3]), PolicyDocument(hold=[None, 0.01], take=[0, 1])
    deployment = function.under(
        single.policy(), [BesideOf(full.policy(), function.at(885).service, function.at(885).platform, function="f-885")]
    )
    whole = QueueRun(deployment, np.random.default_rng(0)).feed(times, True).batches
    run, found = QueueRun(deployment, np.random.default_rng(0)), []
    for piece in np.split(times, 12):
        found.append(run.feed(piece, False).batches)
        run = run.taken_over(float(piece[-1]), deployment)
    found.append(run.feed(np.empty(0), True).batches)
    for name in ("sizes", "dispatched", "responses", "marks"):
        np.testing.assert_allclose(np.concatenate([getattr(of, name) for of in found]), getattr(whole, name))


def test_environments_of_a_function_that_comes_back_are_still_warm() -> None:
    function = Function(profile_of(885, 1769), 1769, environments=LAMBDA)
    parked: dict[str, Array] = {}
    run = QueueRun(function.under(no_batching()), np.random.default_rng(0))
    first = run.feed(np.array([0.0, 1.0, 2.0]), False)
    other = run.taken_over(2.5, function.at(885).under(no_batching()), parked)
    between = other.feed(np.array([3.0, 4.0]), False)
    again = other.taken_over(4.5, function.under(no_batching()), parked).feed(np.array([5.0]), True)
    assert (first.batches.marks % 2).tolist() == [1, 0]
    assert (between.batches.marks % 2).tolist() == [1, 0]  # the first is of 2 s, whose moment was not over
    assert (again.batches.marks % 2).tolist() == [0, 0]


def test_workers_that_come_back_have_ended_what_they_were_given() -> None:
    service = Function(profile_of(1769), 1769).service
    workers = Deployment(PolicyDocument(hold=[None, 0.0], take=[0, 1], servers=2).policy(), service, function="http://workers")
    elastic, parked = Deployment(no_batching(), service, function="f"), dict[str, Array]()
    run = QueueRun(workers, np.random.default_rng(0))
    assert run.feed(np.array([0.0, 0.0001, 0.0002]), False).n_left == 2  # whose moment is not over waits
    away = run.taken_over(0.0002, elastic, parked)
    away.feed(np.array([2.0]), False)
    back = away.taken_over(3.0, workers, parked).feed(np.array([4.0, 4.0, 4.0]), True)
    dispatched = back.batches.dispatched
    assert "http://workers" not in parked
    assert dispatched[1:].tolist() == pytest.approx([4.0, 4.0, 4.0 + float(service.mean_response[0])])


def test_plans_that_nobody_tunes_are_followed_as_the_simulator_follows_them() -> None:
    times = poisson_times(40, 1000)
    whole = simulate_deployment(
        deployment_of(single_route(plan_without_batching()), SETUP, PROFILE), times, np.random.default_rng(0)
    )
    again = plan_without_batching()
    run = simulate_plans(SETUP, times, [(float(times[0]), again), (float(times[400]), again), (float(times[700]), again)])
    np.testing.assert_allclose(run.latency, whole.latency)
    assert (run.batches, run.cold) == (1000, int(whole.cold.sum()))
    slow = simulate_plans(SETUP, times, [(float(times[0]), again)], changes=[ServiceChange(float(times[500]), 2.0)])
    np.testing.assert_allclose(slow.latency[501:], 2 * run.latency[501:])


# --- rehearsal


def test_a_rehearsal_bills_what_the_simulator_does() -> None:
    times = poisson_times(40, 3300)
    deployment = deployment_of(single_route(plan_without_batching()), SETUP, PROFILE)
    cost = simulate_deployments({"": deployment}, TraceArrivals(times))[""].cost.per_request
    run = simulate_deployment(deployment, times, np.random.default_rng(0))
    bill = Bill.of(deployment).usd(run.batch_sizes, run.tables.astype(np.int64), run.cold.astype(np.int64))
    assert bill.sum() / len(times) == pytest.approx(cost, rel=1e-9)
    assert rehearse(deployment, times, [SLO], 300).cost_per_request.value == pytest.approx(cost, rel=0.05)


def test_what_starts_cold_at_the_beginning_is_not_part_of_the_promise() -> None:
    deployment = deployment_of(single_route(plan_without_batching()), SETUP, PROFILE)
    assert rehearse(deployment, poisson_times(40, 3300), [SLO], 300).late[0].value == 0


def test_a_bias_makes_late_who_would_have_been_just_in_time() -> None:
    deployment = deployment_of(single_route(plan_without_batching()), SETUP, PROFILE)
    times = poisson_times(40, 3300)
    assert rehearse(deployment, times, [SLO], 300, bias=0.092).keeps([SLO])
    assert rehearse(deployment, times, [SLO], 300, bias=0.094).cannot_keep([SLO])


def test_what_a_plan_saves_is_by_request_also_where_blocks_are_longer_as_environments_start() -> None:
    setup, times = workers_and_function(1769), poisson_times(200, 12_000)
    assert setup.profile is not None
    function = deployment_of(single_route(plan_without_batching(1769)), setup, setup.profile)
    all_that_waits = Plan(model="m", function="http://workers", policy=PolicyDocument.of(greedy(32, 1)))
    workers = deployment_of(single_route(all_that_waits), setup, setup.profile)
    one, other = (rehearse(each, times, setup.slos, 1000) for each in (workers, function))
    assert one.requests[0] != other.requests[0]
    apart = other.cost_per_request.value - one.cost_per_request.value
    assert one.saving(other, 0.95).value == pytest.approx(apart, rel=1e-3)
    assert other.saving(one, 0.95).value == pytest.approx(-apart, rel=1e-3)


# --- arrivals that are remembered


def test_arrivals_and_counts_are_bounded() -> None:
    recent = RecentArrivals(seconds=1e9, most=500)
    for day in range(4):
        recent.see(day * DAY + np.linspace(0, DAY - 1, 3 * MOST_BUCKETS))
    assert len(recent.times()) == 500
    assert len(recent.counts) == MOST_BUCKETS
    assert len(recent.counts.packed()) <= 9 + 4 * MOST_BUCKETS


def test_of_arrivals_that_are_looked_at_after_each_no_more_is_kept_than_is_told() -> None:
    recent = RecentArrivals(seconds=1e9, most=50)
    for at in range(2000):
        recent.see(np.array([float(at)]))
        assert recent.span == min(at, 49)
    assert recent._n == sum(map(len, recent._pieces)) == 50
    recent.see(np.linspace(3000, 9000, 40))
    assert len(RecentArrivals(100.0, 50).times()) == 0 and len(recent) == 50


def test_where_few_come_so_many_are_remembered_for_up_to_a_day() -> None:
    recent = RecentArrivals(seconds=100.0, most=50, fewest=5)
    for at in (0.0, 1000.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0):
        recent.see(np.array([at]))
    assert recent.times().tolist() == [2000.0, 3000.0, 4000.0, 5000.0, 6000.0]
    recent.see(np.linspace(6100, 6150, 20))
    assert len(recent) == 20 and recent.span == 50.0
    recent.see(np.array([6150.0 + DAY - 10.0]))
    assert len(recent) == 5  # the last of those of that moment, and the one of now
    recent.see(np.array([6150.0 + 1.5 * DAY]))
    assert recent.times().tolist() == [6150.0 + DAY - 10.0, 6150.0 + 1.5 * DAY]


def test_arrivals_of_a_clock_that_was_set_back_stay_in_order() -> None:
    recent = RecentArrivals(seconds=1e9, most=100)
    recent.see(np.array([10.0, 20.0]))
    recent.see(np.array([5.0, 25.0]))
    assert recent.times().tolist() == [10.0, 20.0, 20.0, 25.0]


def test_a_plan_is_rehearsed_at_the_rate_that_yesterday_came_next_as_well() -> None:
    setup, now = workers_and_function(1769), 1.7e9 + 2 * DAY
    times = now - 90 + np.arange(0, 90, 1 / 250)
    chosen = {}
    for rose in (False, True):
        tuner = Tuner(setup)
        tuner.in_force(plan_without_batching(1769), now - 2 * DAY)
        for k in range(-8, 8):  # buckets around this time of yesterday
            tuner.arrived(now - DAY + k * BUCKET + np.linspace(0, BUCKET - 1, 30 if rose and k > 0 else 10))
        tuner.arrived(times)
        decision = tuner.decide(now, Trigger("periodic", now, "it is time"))
        assert decision.arrival_rate == pytest.approx(250, rel=0.01)
        assert decision.plan is not None
        alone = {one.keeps for one in decision.considered if "1 ×" in one.name and one.name.endswith(("at once", "ms"))}
        chosen[rose] = "f-1769" in decision.plan.all_routes[-1].functions, alone
    assert chosen[False][1] == {True} and chosen[True] == (True, {False})


# --- decisions


def test_plans_are_compared_as_soon_as_enough_was_seen_and_not_a_period_later() -> None:
    tuner = Tuner(SETUP)
    tuner.in_force(plan_without_batching(), 1.7e9)
    times = poisson_times(50, 4000)
    tuner.arrived(times[:100])
    assert tuner.due(times[99] + 1) is None
    tuner.arrived(times[100:2500])
    assert times[2499] - times[0] < tuner.settings.shortest and tuner.due(times[2499] + 1) is None
    tuner.arrived(times[2500:3200])
    now = float(times[3199])
    trigger = tuner.due(now)
    assert trigger is not None and trigger.words == "enough was seen to compare plans"
    assert tuner.decide(now, trigger).considered
    assert tuner.due(now + 30) is None


def test_plans_are_compared_again_when_twice_as_long_was_seen_until_that_is_a_period() -> None:
    tuner = Tuner(SETUP)
    tuner.in_force(plan_without_batching(), 1.7e9)
    times = poisson_times(10, 12_000)
    seen, compared = 0, []
    for now in np.arange(times[0], times[-1], 5.0):
        upto = int(np.searchsorted(times, now))
        tuner.arrived(times[seen:upto])
        seen = upto
        if (trigger := tuner.due(float(now))) is not None and trigger.kind in ("start", "periodic"):
            tuner.decide(float(now), trigger)
            compared.append(float(now - times[0]))
    assert compared[:5] == pytest.approx([65, 130, 260, 520, 820], abs=15)
    assert np.diff(compared[3:]) == pytest.approx(tuner.settings.period, abs=5)


def test_the_cheapest_that_surely_keeps_the_promise_takes_the_place_of_no_batching() -> None:
    tuner = Tuner(SETUP)
    tuner.in_force(plan_without_batching(), 1.7e9)
    tuner.arrived(poisson_times(50, 4000))
    trigger = tuner.due(1.7e9 + 81)
    assert trigger is not None and trigger.kind == "start"
    decision = tuner.decide(1.7e9 + 81, trigger)
    assert decision.plan is not None and decision.plan.policy is not None and decision.plan.policy.policy().max_batch_size > 1
    kept = [one for one in decision.considered if one.keeps]
    assert kept[0].name == decision.chosen
    assert decision.saving_per_hour == pytest.approx(
        3600 * decision.arrival_rate * (next(o for o in kept if o.name == decision.in_force).usd.value - kept[0].usd.value)
    )
    assert decision.plan.predicted is not None and decision.plan.predicted.cost_per_request == kept[0].usd.value
    assert msgspec.json.decode(msgspec.json.encode(decision.document()))["digest"] == decision.plan.digest


def test_a_plan_that_is_the_best_stays() -> None:
    tuner = Tuner(SETUP)
    tuner.in_force(plan_without_batching(), 1.7e9)
    tuner.arrived(poisson_times(50, 4000))
    first = tuner.decide(1.7e9 + 81, tuner.due(1.7e9 + 81))  # type: ignore[arg-type]
    assert first.plan is not None
    tuner.in_force(first.plan, 1.7e9 + 81)
    assert tuner.due(1.7e9 + 82) is None
    second = tuner.decide(1.7e9 + 400, tuner.due(1.7e9 + 400))  # type: ignore[arg-type]
    assert second.plan is None


def test_too_few_arrivals_change_nothing() -> None:
    tuner = Tuner(SETUP)
    tuner.in_force(plan_without_batching(), 1.7e9)
    tuner.arrived(poisson_times(50, 150))
    decision = tuner.decide(1.7e9 + 400, tuner.due(1.7e9 + 400))  # type: ignore[arg-type]
    assert decision.plan is None and "150 requests are remembered" in decision.why


def test_a_hole_in_the_record_is_no_pause_of_the_arrivals() -> None:
    tuner = Tuner(SETUP)
    tuner.in_force(plan_without_batching(), 1.7e9)
    tuner.arrived(poisson_times(50, 4000))
    tuner.missed(1.7e9 + 80, 1.7e9 + 300)
    tuner.arrived(poisson_times(50, 4000) + 300)
    decision = tuner.decide(1.7e9 + 381, tuner.due(1.7e9 + 381))  # type: ignore[arg-type]
    assert decision.arrival_rate == pytest.approx(50, rel=0.1)


def test_latencies_that_no_rehearsal_explains_are_added_to_every_rehearsal() -> None:
    tuner = Tuner(SETUP)
    plan = plan_without_batching()
    tuner.in_force(plan, 1.7e9)
    times = poisson_times(50, 4000)
    tuner.arrived(times)
    # Of each batch one request was another process's, so that it does not tell the way through the buffer.
    tuner.batches(
        [MeasuredBatch(t + 0.037, "", 0, "f-1769", plan.digest, 2, 0.008, 0.008, 0.008, False, 0, (0.037,)) for t in times]
    )
    decision = tuner.decide(1.7e9 + 81, tuner.due(1.7e9 + 81))  # type: ignore[arg-type]
    assert decision.bias == tuner.bias == pytest.approx(0.015, rel=0.01)  # half of the 30 ms
    alone = next(one for one in decision.considered if one.digest == plan.digest)
    assert alone.percentile.value == pytest.approx(0.022, rel=0.01)


def batches_of(times: Array, digest: str, latency: float) -> list[MeasuredBatch]:
    """Of each batch one request was another process's, so that it does not tell the way through the buffer."""
    return [MeasuredBatch(t + latency, "", 0, "f-1769", digest, 2, 0.008, 0.008, 0.008, False, 0, (latency,)) for t in times]


def test_what_a_new_plan_is_found_to_take_counts_before_all_that_is_remembered_is_of_it() -> None:
    tuner = Tuner(SETUP)
    plan, times = plan_without_batching(), poisson_times(50, 4000)
    tuner.arrived(times)
    tuner.batches(batches_of(times[:3000], "another", 0.09))
    tuner.in_force(plan, times[3000])
    tuner.batches(batches_of(times[2990:3000], "another", 0.09))
    tuner.batches(batches_of(times[2500:3000], plan.digest, float(times[3000] - times[2500])))  # who waited for it
    tuner.batches(batches_of(times[3000:], plan.digest, 0.037))
    assert tuner.decide(times[-1], Trigger("periodic", times[-1], "")).bias == pytest.approx(0.015, rel=0.01)
    # A promise that was surely broken is believed at once.
    assert tuner.decide(times[-1], Trigger("promise", times[-1], "")).bias == pytest.approx(0.030, rel=0.01)


def test_a_promise_whose_alarms_change_nothing_is_decided_about_ever_more_seldom() -> None:
    tuner = Tuner(SETUP)
    plan, times = plan_without_batching(), poisson_times(50, 1000)
    tuner.in_force(plan, times[0] - 1)
    tuner.arrived(times)
    at, waited = float(times[-1]), []
    for _ in range(4):
        failed = [one._replace(failed=1, latencies=(0.0075,)) for one in batches_of(times[-200:], plan.digest, 0.0075)]
        tuner.batches(failed)
        seconds = next(k for k in range(1, 100) if (due := tuner.due(at + k)) is not None and due.kind == "promise")
        at += seconds
        waited.append(seconds)
        decision = tuner.decide(at, Trigger("promise", at, ""))
        if decision.plan is not None:  # the cheapest takes its place, and then nothing is better
            plan = decision.plan
            tuner.in_force(plan, times[0] - 1)
    assert waited[-1] > waited[-2] >= 5


def test_plans_that_are_equally_late_do_not_take_turns() -> None:
    def tried(late: float, seconds: float) -> Tried:
        run: Any = SimpleNamespace(late=(Estimate(late, late - 0.02, late + 0.02),), percentile=Estimate(seconds, seconds, seconds))
        rehearsal: Any = SimpleNamespace(setup=SETUP)
        return Tried(rehearsal, Proposal("one", plan_without_batching()), [run])

    assert not tried(0.29, 0.15).fails_less(tried(0.30, 0.15))  # by chance
    assert tried(0.25, 0.15).fails_less(tried(0.30, 0.15))
    assert not tried(1.0, 0.145).fails_less(tried(1.0, 0.15))
    assert tried(1.0, 0.13).fails_less(tried(1.0, 0.15))
    assert not tried(0.36, 0.13).fails_less(tried(0.30, 0.15))


def test_lateness_under_several_promises_counts_by_what_each_allows() -> None:
    setup = TuningSetup("m", (Slo(0.15, 95), Slo(0.3, 99)), PROFILE)

    def tried(*late: float) -> Tried:
        shares = tuple(Estimate(share, 0.8 * share, 1.2 * share) for share in late)
        run: Any = SimpleNamespace(late=shares, percentile=Estimate(0.2, 0.2, 0.2))
        rehearsal: Any = SimpleNamespace(setup=setup)
        return Tried(rehearsal, Proposal("one", plan_without_batching()), [run])

    of_most, of_few = tried(0.10, 0.01), tried(0.05, 0.04)  # twice what may be late within 150 ms, four times within 300
    assert of_most.failing.beyond == pytest.approx(1.0) and of_few.failing.beyond == pytest.approx(3.0)
    assert of_most.fails_less(of_few) and not of_few.fails_less(of_most)
    assert not of_most.fails_less(of_few, 0.3) and of_most.fails_less(of_few, 0.5)
    assert tried(0.9, 0.02).failing.late == 0.9


def test_a_promise_of_which_little_is_known_hides_no_other() -> None:
    setup = TuningSetup("m", (Slo(0.15, 50), Slo(0.3, 99)), PROFILE)

    def tried(median: float, rest: Estimate) -> Tried:
        run: Any = SimpleNamespace(late=(Estimate(median, median - 0.01, median + 0.01), rest), percentile=Estimate(0.2, 0.2, 0.2))
        rehearsal: Any = SimpleNamespace(setup=setup)
        return Tried(rehearsal, Proposal("one", plan_without_batching()), [run])

    most, half = tried(0.9, Estimate(0.005, 0.004, 0.006)), tried(0.55, Estimate(0.03, 0.01, 0.06))
    assert half.fails_less(most) and not most.fails_less(half)


def test_where_nothing_keeps_the_promise_the_quickest_serves_and_an_alarm_names_the_best() -> None:
    setup = TuningSetup("m", (Slo(0.012, 95),), profile_of(885, 1769))
    run = simulate_control(
        setup, poisson_times(20, 2500, 2), truth=stretched(profile_of(885, 1769), 2.0), first=plan_without_batching(885)
    )
    assert run.plans[-1][1].function == "f-1769"
    assert run.plans[-1][1].policy is not None and run.plans[-1][1].policy.policy().max_batch_size == 1
    alarms = [decision.alarm for decision in run.decisions if decision.alarm]
    assert alarms and "nothing keeps p95 within 12 ms: the best that can be reached is 14 ms" in alarms[-1]


@pytest.mark.full
def test_without_a_profile_it_begins_with_no_batching_and_learns_to_batch() -> None:
    setup = TuningSetup("m", (SLO,), None, "f-{memory_mb}", (1769,), max_batch_size=8)
    settings = TuningSettings(period=20, least_between=10)
    run = simulate_control(setup, poisson_times(60, 6000), settings=settings, truth=PROFILE)
    sizes = [plan.all_routes[0].policy.policy().max_batch_size for _, plan in run.plans]
    assert sizes[0] == 1 and sizes[1] == 2 and max(sizes) > 4
    n, late = run.late_by_window(30, SLO.latency)
    assert (late / n).max() < 0.05


@pytest.mark.full
def test_a_plan_that_costs_some_per_cent_more_is_left_within_the_hour_at_one_request_a_second() -> None:
    """What is saved is not known with 99 % confidence from so few, and one that is dearer breaks no promise."""
    setup = TuningSetup("m", (SLO,), profile_of(885, 1769, intercept=0.0056, slope=0.00074, init=0.5, largest=32))
    for seed in range(2):
        run = simulate_control(setup, 1.7e9 + np.cumsum(np.random.default_rng(seed).exponential(1.0, 3600)))
        (_, first), (at, then) = run.plans
        assert len(first.beside) == 1 and not then.beside and at < 1.7e9 + 2400
        assert (run.latency > SLO.latency).mean() < 0.005


def test_service_times_that_grow_by_half_are_noticed_and_corrected_within_a_minute() -> None:
    times = poisson_times(60, 18_000)
    at = 1.7e9 + 150
    run = simulate_control(SETUP, times, changes=[ServiceChange(at, 1.5)])
    noticed = [d for d in run.decisions if d.trigger.kind in ("service", "promise")]
    assert noticed and noticed[0].at < at + 60
    after = run.arrival_times > at + 60
    assert (run.latency[after] > SLO.latency).mean() < 0.05


@pytest.mark.full
def test_service_times_that_grow_by_little_are_planned_with_at_once_where_that_breaks_the_promise() -> None:
    """By a millisecond all are late who wait to the last moment, long before a seventh more is sure of each size."""
    times = poisson_times(5, 6000)
    at = float(times[0]) + 900
    run = simulate_control(SETUP, times, changes=[ServiceChange(at, 1.15)])
    (broken,) = (decision for decision in run.decisions if decision.trigger.kind in ("promise", "service"))
    assert at < broken.at < at + 30 and broken.plan is not None
    after = run.arrival_times > broken.at
    assert (run.latency[after] > SLO.latency).mean() < 0.005


@pytest.mark.full
def test_service_times_that_creep_by_less_than_an_alarm_tells_of_are_followed() -> None:
    """By a hundredth every two minutes, a third in all: who waits to the last moment is late by a millisecond."""
    slo = Slo(0.12, 95)
    setup, times = TuningSetup("m", (slo,), profile_of(1769, intercept=0.02, slope=0.004)), poisson_times(5, 27_000)
    creeping = [ServiceChange(float(times[0]) + 120.0 * k, 1.01**k) for k in range(5, 38)]
    run = simulate_control(setup, times, changes=creeping)
    assert len([decision for decision in run.decisions if "take another time than before" in decision.trigger.words]) >= 5
    windows = ((run.arrival_times - run.arrival_times[0]) // 300).astype(int)
    late = [run.latency[windows == window] > slo.latency for window in range(windows.max())]
    assert np.mean([window.mean() for window in late]) <= 0.025
    # Of none more than chance makes of the twentieth that is allowed, one-sided with 95 %.
    assert min(binom.sf(window.sum() - 1, len(window), 0.05) for window in late) > 0.05


def test_batches_that_take_another_time_again_and_again_ask_ever_more_seldom_while_the_plan_is_right() -> None:
    tuner = Tuner(SETUP)
    times = poisson_times(20, 12_000)
    tuner.arrived(times[:4000])
    now = float(times[3999])
    tuner.in_force(unbatched(SETUP)[-1].plan, now)
    tuner.decide(now, Trigger("start", now, ""))
    tuner.live.other_since = lambda since, least=0.0: True  # type: ignore[method-assign]
    noticed = []
    for k in range(1, 600):
        at = now + k
        tuner.arrived(times[(times > at - 1) & (times <= at)])
        tuner.batches([MeasuredBatch(at, "", 0, "f-1769", "", 1, 0.007, 0.007, 0.007, False, 0, (0.007,))] * 8)
        if (trigger := tuner.due(at)) is not None:
            decision = tuner.decide(at, trigger)
            assert decision.plan is None or tuner.in_force(decision.plan, at) is None
            noticed += [at - now] if trigger.kind == "service" else []
    assert noticed and len(noticed) <= 8 and min(np.diff([0.0, *noticed])) >= PAUSE


@pytest.mark.full
def test_latencies_under_other_service_times_are_no_bias() -> None:
    times = poisson_times(20, 20_000)
    changes = [ServiceChange(float(times[0]) + 400, 1.6), ServiceChange(float(times[0]) + 700, 1.0)]
    run = simulate_control(SETUP, times, changes=changes)
    assert [decision.trigger.kind for decision in run.decisions].count("service") >= 2
    assert all(decision.bias == 0 for decision in run.decisions)


def test_where_the_profile_is_wrong_it_begins_anew_before_there_are_enough_requests_to_compare_plans() -> None:
    setup, times = TuningSetup("m", (SLO,), profile_of(885, 1769)), poisson_times(0.2, 150)
    assert setup.profile is not None
    run = simulate_control(setup, times, truth=stretched(setup.profile, 3.0), step=1.0)
    assert run.decisions[0].why.startswith("it begins with every load")
    (anew,) = (decision for decision in run.decisions[1:] if decision.plan is not None)
    assert anew.trigger.kind in ("service", "promise") and anew.why.startswith("it begins anew with every load")
    assert (run.latency[run.arrival_times > anew.at] > SLO.latency).mean() < 0.05


@pytest.mark.full
def test_service_times_that_grow_before_plans_are_compared_are_noticed_too() -> None:
    """In less than a minute, while nobody asks whether another plan costs less."""
    times = poisson_times(60, 60 * 45)
    at = float(times[0]) + 20
    run = simulate_control(SETUP, times, changes=[ServiceChange(at, 3.0)])
    noticed = next(decision for decision in run.decisions if decision.trigger.kind == "service")
    assert at < noticed.at < at + 5 and "times as long as the profile says" in noticed.trigger.words
    assert noticed.at < run.decisions[0].at + TuningSettings().shortest


@pytest.mark.parametrize("started", [0, 2])
def test_a_memory_size_that_was_never_measured_gets_a_share_first(started: int) -> None:
    """Also beside a plan that had environments started."""
    alike = [msgspec.structs.replace(point, memory_mb=885) for point in PROFILE.points]
    profile = msgspec.structs.replace(PROFILE, points=[*alike, *PROFILE.points])
    setup = TuningSetup("m", (SLO,), profile)
    first = structs.replace(plan_without_batching(1769), started=started or msgspec.UNSET)
    run = simulate_control(setup, poisson_times(60, 9_000), settings=TuningSettings(period=60), first=first)
    tried = [plan for _, plan in run.plans if plan.routes]
    assert [route.share for route in tried[0].routes] == [0.95, 0.05]
    assert tried[0].routes[0].function == "f-1769" and "f-885" in tried[0].routes[1].functions
    assert run.plans[-1][1].function == "f-885"


def scaled(profile: ServiceProfile, factors: dict[int, float]) -> ServiceProfile:
    """The same function, whose batches take so many times as long by memory size (MB)."""
    points = [
        point
        for mb in profile.memory_sizes
        for point in stretched(structs.replace(profile, points=profile.points_at(mb)), factors.get(mb, 1.0)).points
    ]
    return structs.replace(profile, points=points)


@pytest.mark.parametrize("factor", [0.4, 1.6])
def test_a_size_that_a_wrong_profile_has_dearer_is_tried_with_few_and_serves_where_it_is_cheaper(factor: float) -> None:
    """By the profile the smaller size costs 1.2 times as much, and the one that serves takes two thirds of its time."""
    known = scaled(profile_of(885, 1769), {885: 1.2})
    truth = scaled(profile_of(885, 1769), {885: factor, 1769: 1.5})
    times = poisson_times(20, 8000)
    run = simulate_control(TuningSetup("m", (SLO,), known), times, truth=truth)
    trials = [(at, plan) for at, plan in run.plans if plan.routes]
    assert [plan.routes[1].share for _, plan in trials] == [0.025]  # all of whom may be late, and as many more
    assert trials[0][1].routes[1].functions == ["f-885"] and trials[0][1].routes[1].policy.kind == "no_batching"
    ended = next(decision for decision in run.decisions if decision.at > trials[0][0])
    assert ended.trigger.kind == "canary" and ended.trigger.words.endswith("batches were measured of f-885")
    tried = TuningSettings().canary_batches
    assert ended.at - trials[0][0] < tried / (20 * 0.025)
    assert "service" not in {decision.trigger.kind for decision in run.decisions if decision.at > ended.at}
    assert run.plans[-1][1].function == ("f-885" if factor < 1 else "f-1769")
    assert (run.late_by_window(300.0, SLO.latency)[1] < 0.05 * run.late_by_window(300.0, SLO.latency)[0]).all()


def test_where_the_profile_is_right_nothing_that_it_has_dearer_is_tried() -> None:
    known = scaled(profile_of(885, 1769), {885: 1.2})
    run = simulate_control(TuningSetup("m", (SLO,), known), poisson_times(20, 8000), truth=stretched(known, 1.1))
    assert not any(plan.routes for _, plan in run.plans)


class Doubting:
    """A tuner of whose sizes the one that serves takes 1.5 times as long as the profile says, and the other was not measured."""

    def __init__(self, slo: Slo = SLO, rate: float = 20.0) -> None:
        self.tuner = Tuner(TuningSetup("m", (slo,), scaled(profile_of(885, 1769), {885: 1.2})))
        self.times = poisson_times(rate, 6000)
        self.now = float(self.times[-1])
        plan = structs.replace(plan_without_batching(1769), slo=slo, digest="")
        self.tuner.in_force(plan, float(self.times[0]))
        self.tuner.arrived(self.times)
        self.serve(plan)
        best = self.decide(self.now).plan
        assert best is not None and not best.routes and best.function == "f-1769"
        self.tuner.in_force(best, self.now)
        self.best = best

    def serve(self, plan: Plan, n: int = 500) -> None:
        """That many batches ended until now, of the size that serves."""
        took = 0.0105, 0.0105, 0.011, False, 0, (0.0105,)
        self.tuner.batches([MeasuredBatch(self.now - k / 20, "", 0, "f-1769", plan.digest, 1, *took) for k in reversed(range(n))])

    def tried(self, plan: Plan, seconds: float, n: int = 9) -> None:
        """So many batches ended of the other size, each after so many seconds."""
        self.tuner.in_force(plan, self.now)
        took = seconds, seconds, seconds, False, 0, (seconds,)
        self.tuner.batches([MeasuredBatch(self.now + k, CANARY, 0, "f-885", plan.digest, 1, *took) for k in range(n)])

    def decide(self, now: float) -> Decision:
        self.now = now
        return self.tuner.decide(now, Trigger("periodic", now, ""))


def test_a_size_is_tried_out_of_doubt_once_an_hour_at_the_most_however_often_service_times_change() -> None:
    doubting, tried = Doubting(), []
    begin = doubting.now
    for after in (300.0, 900.0, 3800.0, 4000.0):
        plan = doubting.decide(begin + after).plan
        if plan is not None:
            tried.append(after)
            assert [route.functions for route in plan.routes] == [["f-1769"], ["f-885"]]
            doubting.tried(plan, 0.04)
            due = doubting.tuner.due(doubting.now + 10)
            assert due is not None and due.kind == "canary"
            ended = doubting.tuner.decide(doubting.now + 10, due)
            assert ended.plan is not None and ended.why.endswith("and what was tried beside it is not")
            assert ended.plan.policy == doubting.best.policy
            doubting.tuner.in_force(ended.plan, doubting.now + 10)
        doubting.now += 60
        doubting.serve(doubting.best)
        doubting.tuner._restart(doubting.now - 40)  # the function is another, of which only what serves is measured again
        assert doubting.tuner.live.measured(885) == 0
    assert tried == [300.0, 4000.0]


def test_what_was_measured_out_of_doubt_is_not_tried_again() -> None:
    doubting = Doubting()
    plan = doubting.decide(doubting.now + 300).plan
    assert plan is not None and plan.routes
    doubting.tried(plan, 0.04)
    ended = doubting.decide(doubting.now + 10).plan
    assert ended is not None and not ended.routes
    doubting.tuner.in_force(ended, doubting.now)
    assert doubting.decide(doubting.now + 7200).plan is None


def test_a_trial_out_of_doubt_ends_where_nothing_that_it_is_given_is_served_and_where_the_promise_is_broken() -> None:
    for others, kind in ((20, "canary"), (0, "promise")):
        doubting = Doubting()
        plan = doubting.decide(doubting.now + 300).plan
        assert plan is not None
        doubting.tuner.in_force(plan, doubting.now)
        served, failed = (0.0105, 0.0105, 0.011, False, 0, (0.0105,)), (0.04, 0.04, 0.04, False, 1, (0.04,))
        for k in range(32):
            assert doubting.tuner.due(doubting.now + 60) is None or kind == "promise"
            at = doubting.now + 20 + k
            of_others = [MeasuredBatch(at, SERVING, 0, "f-1769", plan.digest, 1, *served)] * others
            doubting.tuner.batches([*of_others, MeasuredBatch(at, CANARY, 0, "f-885", plan.digest, 1, *failed)])
        due = doubting.tuner.due(doubting.now + 60)
        assert due is not None and due.kind == kind
        ended = doubting.tuner.decide(doubting.now + 60, due)
        assert ended.plan is not None and ended.plan.policy == doubting.best.policy and ended.plan.function == "f-1769"


@pytest.mark.parametrize(("slo", "share"), [(Slo(0.1, 95), 0.025), (Slo(0.1, 99.5), 0.0025), (Slo(0.1, 80), 0.05)])
def test_the_stricter_the_promise_the_fewer_try_what_is_doubted(slo: Slo, share: float) -> None:
    doubting = Doubting(slo)
    plan = doubting.decide(doubting.now + 300).plan
    assert plan is not None and plan.routes[1].share == pytest.approx(share)


def test_what_is_doubted_is_tried_when_what_it_may_save_since_the_plan_serves_is_more_than_that_costs() -> None:
    doubting = Doubting(rate=0.5)
    begin = doubting.now
    decisions = [doubting.decide(begin + after) for after in (300.0, 900.0, 1800.0)]
    assert [decision.plan is not None for decision in decisions] == [False, False, True]
    assert "50 % off what is expected of it, and 885 MB then saves" in decisions[-1].why


def test_a_plan_that_the_buffers_do_not_follow_is_taken_back_and_its_function_is_left_alone_for_an_hour() -> None:
    setup = TuningSetup("m", (SLO,), profile_of(1769, 3538))
    tuner = Tuner(setup)
    plan, times = plan_without_batching(1769), poisson_times(50, 12_000)
    tuner.in_force(plan, 1.7e9)

    def goes_on(since: float, until: float, digest: str) -> None:
        came = times[(times > 1.7e9 + since) & (times <= 1.7e9 + until)]
        tuner.arrived(came)
        tuner.batches(batches_of(came, digest, 0.02))

    tuner.arrived(times[times <= 1.7e9 + 81])
    wanted = tuner.decide(1.7e9 + 81, tuner.due(1.7e9 + 81)).plan  # type: ignore[arg-type]
    assert wanted is not None
    tuner.in_force(wanted, 1.7e9 + 82)
    goes_on(81, 90, plan.digest)  # batches that were under way, and a buffer that is slow to ask its function
    due = tuner.due(1.7e9 + 90)
    assert due is None or due.kind != "refused"
    goes_on(90, 95, plan.digest)
    trigger = tuner.due(1.7e9 + 95)
    assert trigger is not None and trigger.kind == "refused" and trigger.urgent and wanted.digest in trigger.words
    back = tuner.decide(1.7e9 + 95, trigger)
    assert back.plan == plan and "is not tried again for 3600 s" in back.why
    tuner.in_force(plan, 1.7e9 + 96)
    goes_on(96, 200, plan.digest)
    tuner.decide(1.7e9 + 200, Trigger("periodic", 1.7e9 + 200, "later"))
    new = {name for route in wanted.all_routes for name in route.functions} - {plan.function}
    shunned = new or {wanted.digest}
    again = tuner.decide(1.7e9 + 220, Trigger("periodic", 1.7e9 + 220, "later"))
    assert not any(one.digest in shunned or "3538 MB" in one.name for one in again.considered)
    assert tuner._shuns(wanted, 1.7e9 + 95 + 3599) and not tuner._shuns(wanted, 1.7e9 + 95 + 3601)


def test_who_takes_over_a_plan_that_the_buffers_do_not_follow_goes_back_to_the_one_that_somebody_gave() -> None:
    tuner, given, written = Tuner(SETUP), plan_without_batching(), plan_without_batching()
    written = msgspec.structs.replace(written, policy=PolicyDocument.of(size_or_timeout(4, 0.01)), digest="")
    times = poisson_times(50, 4000)
    tuner.in_force(written, 1.7e9)
    tuner.given(given)
    tuner.arrived(times)
    tuner.batches(batches_of(times, "another", 0.02))
    trigger = tuner.due(1.7e9 + 80)
    assert trigger is not None and trigger.kind == "refused"
    assert tuner.decide(1.7e9 + 80, trigger).plan == given


def test_a_plan_that_somebody_gave_and_that_is_not_followed_is_left_to_him() -> None:
    tuner, plan, other = Tuner(SETUP), plan_without_batching(), plan_without_batching()
    other = msgspec.structs.replace(other, policy=PolicyDocument.of(size_or_timeout(4, 0.01)), digest="")
    times = poisson_times(50, 4000)
    tuner.in_force(plan, 1.7e9)
    tuner.in_force(other, 1.7e9 + 1)
    tuner.arrived(times)
    tuner.batches(batches_of(times, plan.digest, 0.02))
    due = tuner.due(1.7e9 + 80)
    assert due is None or due.kind != "refused"


def test_a_plan_that_control_cannot_follow_is_refused() -> None:
    policy = PolicyDocument.of(no_batching())
    classed = Plan(model="m", function="f-1769", policy=policy, classes=[RequestClass("a", slack=0.0)])
    with pytest.raises(InvalidInput, match=r"plan\.classes.*a plan of one queue"):
        Tuner(SETUP).in_force(classed, 0.0)
    foreign = Plan(model="m", function="f-1769", policy=policy, beside=[Beside("g-1", policy)])
    with pytest.raises(InvalidInput, match=r"plan\.function: 'g-1' is not allowed; allowed: a function of f-"):
        Tuner(SETUP).in_force(foreign, 0.0)


def test_setups_and_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(InvalidInput, match="function"):
        TuningSetup("m", (SLO,))
    with pytest.raises(InvalidInput, match="memory_sizes"):
        TuningSetup("m", (SLO,), PROFILE, memory_sizes=(512,))
    with pytest.raises(InvalidInput, match="canary"):
        TuningSettings(canary=1.0)
    with pytest.raises(InvalidInput, match="fewest"):
        TuningSettings(fewest=10)


def test_alarms_at_rates_at_which_the_plan_was_found_right_wait_and_one_at_another_does_not() -> None:
    tuner = Tuner(SETUP, TuningSettings(least_between=0.0))
    tuner.in_force(plan_without_batching(), 1.7e9)
    steady = poisson_times(50, 3000)
    tuner.arrived(steady)
    now = float(steady[-1])
    first = tuner.decide(now, Trigger("start", now, "enough was seen"))
    if first.plan is not None:
        tuner.in_force(first.plan, now)
        assert tuner.decide(now, Trigger("periodic", now, "")).plan is None
    for _ in range(3):
        assert tuner.decide(now, Trigger("burstiness", now, "")).plan is None
    silent = now + np.arange(1, 40) / 50  # at the same rate
    tuner.arrived(silent)
    tuner._burstiness.alarm = Alarm("burstiness", now, 1.0, 3.0, "bursts", now)
    assert tuner.due(now + 39) is None
    due = tuner.due(now + 40)
    assert due is not None and due.kind == "burstiness"
    tuner.arrived(float(silent[-1]) + np.cumsum(np.random.default_rng(3).exponential(1 / 150, 600)))
    due = tuner.due(now + 5)
    assert due is not None and due.kind == "rate"


def test_the_rate_is_watched_by_what_the_latest_fit_says_of_counts() -> None:
    tuner = Tuner(SETUP)
    tuner.in_force(plan_without_batching(), 1.7e9)
    gaps = mmpp2(200.0, 20.0, 1.0, 0.2).sample(2000, np.random.default_rng(1))
    times = 1.7e9 + np.cumsum(gaps)
    tuner.arrived(times)
    before = tuner._rate.dispersion(64.0)
    tuner.decide(float(times[-1]), Trigger("start", float(times[-1]), "enough was seen"))
    assert tuner._rate.dispersion(64.0) > 1.5 * before


def test_a_decision_tells_what_a_request_will_cost_at_other_rates() -> None:
    tuner = Tuner(SETUP)
    tuner.in_force(plan_without_batching(), 1.7e9)
    tuner.arrived(poisson_times(50, 4000))
    decision = tuner.decide(1.7e9 + 81, tuner.due(1.7e9 + 81))  # type: ignore[arg-type]
    assert decision.plan is not None
    for rate in (20, 150):
        times = poisson_times(rate, 4000, 5)
        expected = rehearse(deployment_of(single_route(decision.plan), SETUP, PROFILE), times, SETUP.slos, 1.0)
        assert decision.cost.at(rate).value == pytest.approx(expected.cost_per_request.value, rel=0.02)
    assert decision.cost.rates[0] == pytest.approx(decision.arrival_rate / 8)
    at_first = [1e6 * usd for usd in decision.cost.usd[0]]
    assert decision.document()["cost_by_rate"][0] == [decision.cost.rates[0], *at_first]


def workers_and_function(*memory_sizes: int) -> TuningSetup:
    """A function of these memory sizes, alike, and workers that may serve in its place, alike too."""

    def of(name: str, *sizes: int) -> ServiceProfile:
        points = [ProfilePoint(mb, b, ServiceTime(0.03 + 0.002 * b), 0.03 + 0.002 * b) for mb in sizes for b in (1, 32)]
        return ServiceProfile(function=name, points=points, init={mb: ServiceTime(0.5) for mb in sizes}, max_batch_size=32)

    offer = machine_offer("http://workers", of("http://workers", 1769), 0.02, 32)
    return TuningSetup("m", (Slo(0.15),), of("f-{memory_mb}", *memory_sizes), offers=(offer,))


@pytest.mark.full
def test_workers_that_are_overloaded_are_followed_by_what_serves_who_waits_as_well_as_who_comes() -> None:
    slo, step, setup = Slo(0.15), 1.7e9 + 80, workers_and_function(1769)
    before, after = poisson_times(200, 20_000), poisson_times(600, 5_000, 9) + 80
    run = simulate_control(
        setup, np.concatenate([before[before < step], after]), settings=TuningSettings(premium=0.0), decision=2.0
    )
    since = run.arrival_times - step
    first = [plan for at, plan in run.plans if at < step][-1]
    assert first.function == "http://workers" and first.policy is not None and first.policy.servers == 1
    late = run.latency > slo.latency
    assert late[(since > 0) & (since < 2)].mean() > 0.5  # one worker carries 340 a second
    assert late[(since > 4) & (since < 8)].mean() <= slo.error_budget  # two carry 680, and would for ten seconds more


@pytest.mark.full
def test_workers_with_the_function_for_the_rest_are_taken_where_that_costs_next_to_nothing_and_carry_three_times_as_much() -> None:
    slo, step, setup = Slo(0.15), 1.7e9 + 150, workers_and_function(1769)
    before, after = poisson_times(200, 40_000), poisson_times(600, 6_600, 9) + 150
    run = simulate_control(setup, np.concatenate([before[before < step], after]), decision=2.0)
    told = [decision.why for decision in run.decisions if decision.at < step]
    assert any("more, and carries whatever comes" in why for why in told)
    standing = [plan for at, plan in run.plans if at < step][-1]
    assert standing.all_routes[0].functions == ["http://workers", "f-1769"]
    since = run.arrival_times - step
    assert (run.latency > slo.latency)[(since > 0) & (since < 10)].mean() <= 0.02  # environments that start


def test_who_waited_before_a_plan_came_is_no_proof_against_it() -> None:
    tuner, plan, times = Tuner(SETUP), plan_without_batching(), poisson_times(50, 1000)
    since = float(times[500])
    tuner.in_force(plan, since)
    late = [batch._replace(size=1) for batch in batches_of(times, plan.digest, 1.0)]  # each tells the way
    tuner.batches(late[:500])
    assert tuner._promises[0].alarm is None and np.isnan(tuner._way.measured)
    tuner.batches(late[500:])
    assert tuner._promises[0].alarm is not None and tuner._way.measured > 0


def rises_for_a_moment(settings: TuningSettings) -> tuple[Tuner, float, Trigger, Decision]:
    """No batching serves, which keeps the promise at any rate; what comes rose to five times as much three seconds ago."""
    tuner = Tuner(SETUP, settings)
    tuner.in_force(plan_without_batching(), 1.7e9)
    steady = poisson_times(40, 2000)
    tuner.arrived(steady)
    tuner.arrived(float(steady[-1]) + poisson_times(200, 600, 1) - 1.7e9)
    now = float(steady[-1]) + 3.0
    trigger = tuner.due(now)
    assert trigger is not None and trigger.kind == "rate"
    return tuner, now, trigger, tuner.decide(now, trigger)


def test_a_rate_that_was_seen_for_a_moment_changes_no_plan_that_keeps_the_promise_and_is_decided_about_again() -> None:
    tuner, now, trigger, decision = rises_for_a_moment(TuningSettings())
    assert decision.plan is None and "requests have come at this rate for less than 60 s" in decision.why
    began = now - tuner._rate.seconds
    assert tuner.due(now + 10) is None
    tuner.arrived(now + poisson_times(200, 12_000, 2) - 1.7e9)
    assert tuner.due(began + 59) is None
    assert tuner.due(began + 60.1) == trigger
    again = tuner.decide(now + 60, trigger)
    assert again.plan is not None and again.why.endswith("USD per million requests")


def test_a_change_that_waits_is_made_after_a_period_however_often_the_rate_moves() -> None:
    tuner, now, trigger, decision = rises_for_a_moment(TuningSettings(period=20.0))
    assert decision.plan is None
    assert tuner.due(now + 19) is None and tuner.due(now + 20) == trigger
    assert tuner.decide(now + 20, trigger).plan is not None


def of_workers(servers: int, largest: int, timeout: float, beside: str = "") -> Plan:
    """So many workers, with a function beside them perhaps."""
    table = replace(size_or_timeout(largest, timeout), servers=servers)
    others = [Beside(beside, PolicyDocument.of(size_or_timeout(4, 0.05)))] if beside else []
    return Plan(model="m", function="http://workers", policy=PolicyDocument.of(table), beside=others, slo=Slo(0.15))


def test_of_workers_with_a_function_beside_them_that_was_not_measured_the_function_is_tried_alone() -> None:
    setup = workers_and_function(885, 1769)
    assert setup.profile is not None
    base, other = of_workers(2, 8, 0.02, "f-885"), of_workers(3, 8, 0.02, "f-1769")
    tried = trying(base, other, 0.05)
    assert [route.functions for route in tried.routes] == [["http://workers", "f-885"], ["f-1769"]]
    assert tried.routes[1].policy == other.beside[0].policy and tried.routes[1].beside == []
    bills = [Bill.of(deployment_of(route, setup, setup.profile)).per_second for route in (*base.all_routes, *tried.routes)]
    assert 0 < bills[0] == bills[1] and bills[2] == 0  # the workers are there once


def test_of_plans_that_cost_the_same_the_one_with_fewer_late_is_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = workers_and_function(1769)
    tuner, times = Tuner(setup), poisson_times(400, 8000)
    busy, quick = of_workers(2, 25, 0.08), of_workers(2, 25, 0.05)
    tuner.in_force(plan_without_batching(), float(times[0]))
    tuner.arrived(times)
    monkeypatch.setattr(Tuner, "_propose", lambda *_: None)
    for plans in ((busy, quick), (quick, busy)):
        tuner._proposals = {plan.digest: Proposal(str(plan.policy), plan) for plan in plans}
        decision = tuner.decide(float(times[-1]), Trigger("start", float(times[-1]), "enough was seen"))
        late = {one.digest: one.next_late for one in decision.considered if one.keeps}
        assert late[quick.digest] < late[busy.digest] < 0.05
        assert decision.plan is not None and decision.plan.digest == quick.digest
    tuner.in_force(busy, float(times[-1]))  # which keeps it too
    assert tuner.decide(float(times[-1]), Trigger("periodic", float(times[-1]), "")).why == "what serves is the best"


def test_a_plan_that_was_chosen_for_who_waited_is_looked_at_again_a_minute_later(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = workers_and_function(1769)
    tuner, times = Tuner(setup), poisson_times(500, 4000)
    few, now = of_workers(1, 32, 0.02), float(times[-1])
    tuner.in_force(few, float(times[0]) - 1)
    tuner.arrived(times)
    tuner.batches(batches_of(times, few.digest, 1.0))
    monkeypatch.setattr(Tuner, "_propose", lambda *_: None)
    tuner._proposals = {plan.digest: Proposal("enough", plan) for plan in (of_workers(3, 32, 0.02),)}
    decision = tuner.decide(now, Trigger("promise", now, ""))
    assert decision.plan is not None and decision.plan.policy is not None and decision.plan.policy.servers == 3
    tuner.in_force(decision.plan, now + 2)
    assert tuner.due(now + 59) is None
    again = tuner.due(now + 60)
    assert again is not None and again.kind == "periodic" and "who waited" in again.words


def test_who_comes_while_it_is_decided_waits_with_those_who_do_already() -> None:
    """Before servers that are too few; how long a decision takes until it serves is that of the one before."""
    setup = workers_and_function(1769)
    tuner, times = Tuner(setup), poisson_times(600, 6000)
    waiting = []
    for lag in (0.0, 2.0):
        tuner.decide(float(times[0]), Trigger("start", float(times[0]), ""))
        plan = of_workers(1, 32, 0.02 + lag / 1000)
        tuner._awaited = plan.digest
        tuner.in_force(plan, float(times[0]) + lag)
        tuner.batches(batches_of(times, plan.digest, 1.15))
        rehearsal: Any = SimpleNamespace(rate=600.0, profile=setup.profile)
        waiting.append(tuner._waiting(rehearsal))
    carried = 32 / (0.03 + 0.002 * 32)
    assert waiting[0] == pytest.approx(600, abs=2)  # a second more than is promised
    assert waiting[1] - waiting[0] == pytest.approx(2 * (600 - carried), abs=2)


def test_proposals_for_a_rate_that_was_seen_for_a_moment_are_made_anew_when_it_was_seen_for_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def propose(setup: TuningSetup, profile: ServiceProfile, arrivals: ArrivalProcess, in_time: Sequence[Slo]) -> list[Proposal]:
        asked.append(arrivals.arrival_rate)
        return []

    monkeypatch.setattr(candidates, "propose", propose)
    tuner, now, _, _ = rises_for_a_moment(TuningSettings())
    assert len(asked) == 1
    tuner.decide(now + 1, Trigger("periodic", now + 1, ""))
    assert len(asked) == 1
    for at in (now, now + 60):
        times = at + poisson_times(200, 14_000, 2) - 1.7e9
        tuner.arrived(times[times < at + 60])
        tuner.decide(at + 60, Trigger("periodic", at + 60, ""))
    assert asked == pytest.approx([200, 200], rel=0.15)


def test_a_change_must_save_what_it_costs_in_as_long_as_the_plan_in_force_has_served() -> None:
    alike = profile_of(1769, init=1.0)
    smaller = [msgspec.structs.replace(point, memory_mb=885) for point in alike.points]  # at half the price
    profile = msgspec.structs.replace(alike, points=[*smaller, *alike.points], init={885: ServiceTime(1.0), 1769: ServiceTime(1.0)})
    times = poisson_times(0.2, 600)
    now = float(times[-1])

    def told(since: float) -> tuple[Tuner, Decision]:
        tuner = Tuner(TuningSetup("m", (SLO,), profile))
        tuner.in_force(plan_without_batching(), since)
        tuner.arrived(times)
        return tuner, tuner.decide(now, Trigger("periodic", now, ""))

    def measured(tuner: Tuner, trial: Plan) -> Decision:
        """What is decided once what is tried beside the plan was measured."""
        tuner.in_force(trial, now)  # what serves most requests has served as long as before
        tried = trial.routes[1].function
        times = 0.007, 0.007, 0.007, False, 0, (0.007,)
        tuner.batches([MeasuredBatch(now + k, CANARY, 0, tried, trial.digest, 1, *times) for k in range(1, 33)])
        due = tuner.due(now + 90)
        assert due is not None and due.kind == "canary"
        return tuner.decide(now + 90, due)

    short, young = told(now - 100)
    assert young.plan is None and "USD in 300 s, and changing costs" in young.why
    tuner, old = told(float(times[0]))
    assert old.plan is not None and old.plan.routes
    after = measured(tuner, old.plan)
    assert after.plan is not None and after.plan.function == old.plan.routes[1].function
    ended = measured(short, old.plan)  # what was tried saves, and not surely what the change costs
    assert ended.plan is not None and ended.plan.digest == plan_without_batching().digest
    assert ended.why.startswith("the plan stays, without what was tried beside it: ")


def test_a_trial_ends_though_one_of_its_functions_serves_larger_batches_than_come_of_a_share() -> None:
    setup, times = TuningSetup("m", (SLO,), profile_of(885, 1769, 3538)), poisson_times(20, 6000)
    now, plan, tuner = float(times[-1]), plan_without_batching(1769), Tuner(setup)
    tuner.arrived(times)
    larger = Beside("f-3538", PolicyDocument(hold=[None, None, 0.0], take=[0, 1, 2]))
    other = structs.replace(plan_without_batching(885), beside=[larger], digest="")
    trial = trying(plan, other, 0.05)
    tuner.in_force(plan, float(times[0]))
    tuner.decide(now, Trigger("start", now, ""))
    tuner.in_force(trial, now)

    def told(first: int, end: int) -> str:
        took = 0.014, 0.014, 0.014, False, 0, (0.014,)
        tuner.batches([MeasuredBatch(now + k, CANARY, 0, "f-885", trial.digest, 1, *took) for k in range(first, end)])
        due = tuner.due(now + end)
        return "" if due is None or due.kind != "canary" else due.words

    assert told(1, 64) == ""
    assert told(64, 65) == "64 batches were measured of f-885 and f-3538"


def test_a_trial_ends_where_nothing_keeps_the_promise_either() -> None:
    alike = profile_of(1769, init=1.0)
    smaller = [msgspec.structs.replace(point, memory_mb=885, billed_duration=2 * point.billed_duration) for point in alike.points]
    profile = msgspec.structs.replace(alike, points=[*smaller, *alike.points], init={885: ServiceTime(1.0), 1769: ServiceTime(1.0)})
    times = poisson_times(0.2, 600)
    now = float(times[-1])
    tuner = Tuner(TuningSetup("m", (Slo(0.0066, 95),), profile))  # where one request alone takes 7 ms
    tuner.arrived(times)
    plan, smallest = plan_without_batching(1769), plan_without_batching(885)
    trial = trying(plan, smallest, 0.1)
    tuner.in_force(plan, float(times[0]))
    tuner.in_force(trial, now)
    took = 0.007, 0.007, 0.014, False, 0, (0.007,)  # billed for twice as long
    tuner.batches([MeasuredBatch(now + k, CANARY, 0, smallest.function, trial.digest, 1, *took) for k in range(1, 33)])
    due = tuner.due(now + 90)
    assert due is not None
    ended = tuner.decide(now + 90, due)
    assert ended.plan is not None and ended.plan.digest == plan.digest
    assert ended.why.startswith("the plan stays, without what was tried beside it: nothing surely keeps the promise")


@pytest.mark.full
def test_where_bursts_start_cold_whatever_the_plan_no_batching_at_ten_times_the_cost_is_no_remedy() -> None:
    """Every four minutes 60/s for five seconds among 3/s, and an environment takes 12 s to start: of a burst most are late."""
    rng = np.random.default_rng(0)
    bursts = [at + rng.uniform(0, 5, 300) for at in range(100, 1800, 240)]
    times = 1.7e9 + np.sort(np.concatenate([rng.uniform(0, 1800, 5400), *bursts]))
    platform = replace(LAMBDA, keep_alive=60.0)  # no ping comes so soon
    profile = profile_of(885, 1769, 3538, intercept=0.3, slope=0.06, init=12.0, largest=32)
    run = simulate_control(TuningSetup("m", (Slo(2.0, 95),), profile, environments=platform), times, step=15.0)
    assert any(decision.considered and not any(one.keeps for one in decision.considered) for decision in run.decisions)
    assert {plan.policy.kind for _, plan in run.plans if plan.policy is not None} <= {"last_moment", "deadline", "size_or_timeout"}


@pytest.mark.full
def test_a_silence_of_a_minute_among_many_who_come_is_no_rate_to_plan_for() -> None:
    """Gaps of a Pareto law, of 80 s at most: at the rate of the longest the plan in force would start cold too often."""
    rng, setup = np.random.default_rng(4), TuningSetup("m", (Slo(1.0, 99),), profile_of(885, 1769, init=1.0))
    gaps = np.minimum(0.02 * (1 + rng.pareto(1.15, 4500)), 80.0)
    run = simulate_control(setup, 1.7e9 + np.cumsum(gaps), step=1.0)
    fell = [decision for decision in run.decisions if decision.trigger.kind == "rate" and decision.arrival_rate < 0.02]
    assert fell and all(decision.plan is None for decision in fell)
    assert len(run.plans) == 1 and (run.latency <= 1.0).mean() > 0.99


@pytest.mark.parametrize("seed", [pytest.param(0, marks=pytest.mark.proof), 8])
def test_after_a_silence_behind_a_few_seconds_of_requests_nothing_is_changed_for_a_rate_of_zero(seed: int) -> None:
    rng = np.random.default_rng(seed)
    before, after = np.cumsum(rng.exponential(1 / 30, 450)), np.cumsum(rng.exponential(1 / 30, 3000))
    function = profile_of(885, 1769, 3538, intercept=0.02, slope=0.01, init=1.5, largest=32)
    setup = TuningSetup("m", (Slo(0.4, 95),), function)
    run = simulate_control(setup, 1.7e9 + np.concatenate([before, before[-1] + 420 + after]), step=1.0)
    silent = [decision for decision in run.decisions if decision.trigger.kind == "rate" and decision.at < 1.7e9 + 450]
    assert [decision.plan for decision in silent] == [None] and silent[0].why.startswith("the plan stays: ")
    assert len(run.plans) == 1


def test_what_it_begins_with_nobody_gave() -> None:
    run = simulate_control(TuningSetup("m", (SLO,), profile_of(885, 1769)), poisson_times(20, 3000), step=1.0)
    assert run.decisions[0].plan is not None
    assert not any(decision.given or "as it was given" in decision.chosen for decision in run.decisions)


def test_a_plan_that_is_late_as_often_as_is_allowed_stays_where_so_few_were_seen_that_nothing_is_sure() -> None:
    setup = TuningSetup("m", (Slo(1.0, 99),), profile_of(885, 1769, init=1.0))
    run = simulate_control(setup, poisson_times(4, 260), step=1.0)
    first, *_ = (decision for decision in run.decisions if decision.considered)
    assert not any(one.keeps for one in first.considered) and first.plan is None
    assert first.why == "the plan stays: nothing surely keeps the promise, and it has not broken it where it was rehearsed"


@pytest.mark.parametrize(("within", "most_late"), [pytest.param(1.0, 0.01, marks=pytest.mark.proof), (0.2, 0.1)])
def test_where_few_come_the_last_200_of_a_day_are_compared_and_the_cheapest_that_is_as_good_serves(
    within: float, most_late: float
) -> None:
    """A twentieth starts cold, for half a second: later than 0.2 s whatever the plan, in time for 1 s where nobody was held."""
    setup = TuningSetup("m", (Slo(within, 95),), profile_of(885, 1769, init=0.5))
    times = poisson_times(0.01, 450)
    run = simulate_control(setup, times, step=60.0)
    first, *others = (decision for decision in run.decisions if decision.considered)
    assert first.at == pytest.approx(times[200], abs=300) and 5 < len(others) < 20
    assert first.plan is not None and first.plan.memory_mb == 885 and len(run.plans) == 2
    assert (run.latency[210:] > within).mean() < most_late


# --- what is kept warm


def kept_warm(warm: WarmEnvironments, init: float = 2.0) -> TuningSetup:
    return TuningSetup("m", (SLO,), profile_of(885, 1769, init=init), warm=warm, warm_function="f-1769")


def test_a_plan_is_rehearsed_with_what_is_provisioned_for_its_function_and_goes_on_saying_so() -> None:
    """One in a minute and a half: a twentieth starts cold without it, and is late."""
    warm = WarmEnvironments(1)
    setup, times = kept_warm(warm), poisson_times(0.011, 1500)
    late = {}
    for name, of in (("warm", setup), ("cold", TuningSetup("m", (SLO,), setup.profile))):
        run = rehearse(
            deployment_of(plan_without_batching().all_routes[0], of, profile_of(885, 1769, init=2.0)), times, [SLO], 100.0
        )
        late[name] = run.late[0].value
    assert late["warm"] < 0.003 and late["cold"] > 0.03
    tuner = Tuner(setup)
    with pytest.raises(InvalidInput, match=r"plan\.warm: none was given; needed: what is there as far as is known: Warm"):
        tuner.in_force(plan_without_batching(), float(times[0]))
    tuner.in_force(structs.replace(plan_without_batching(), warm=warm, digest=""), float(times[0]))
    run = simulate_control(setup, times[:450], step=300.0)
    _, last = run.plans[-1]
    assert (last.function, last.warm) == ("f-1769", warm)  # the other memory size starts cold
    assert (run.latency[300:] > SLO.latency).mean() < 0.01
    proposed = {of.plan.function: of.plan.warm for of in unbatched(setup)}
    assert proposed == {"f-1769": warm, "f-885": UNSET}


def test_what_is_kept_warm_by_the_hour_is_in_the_cost_of_no_plan() -> None:
    times, setup = poisson_times(20, 4000), kept_warm(WarmEnvironments(5))
    route = plan_without_batching().all_routes[0]
    runs = [rehearse(deployment_of(route, of, PROFILE), times, [SLO], 100.0) for of in (setup, SETUP)]
    warm, cold = (run.cost_per_request.value for run in runs)
    assert 0.5 * cold < warm < cold  # what is provisioned is billed less by the second


def test_a_memory_size_is_tried_beside_what_is_kept_warm() -> None:
    warm = WarmEnvironments(1)
    serving, other = structs.replace(plan_without_batching(), warm=warm, digest=""), plan_without_batching(885)
    both = trying(serving, other, 0.05)
    assert [route.warm for route in both.routes] == [warm, UNSET] and not both.warm
    assert plain(both, both.routes[0], kept_warm(warm)).warm == warm
    with pytest.raises(InvalidInput, match=r"warm_function: 'g-1' is not allowed; allowed: one of the function's: f-885, f-1769"):
        TuningSetup("m", (SLO,), profile_of(885, 1769), warm=warm, warm_function="g-1")
