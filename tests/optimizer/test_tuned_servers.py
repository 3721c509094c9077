"""Fixed servers under a tuner: their table follows the rate, and nothing else serves (docs/control.md)."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from msgspec import structs

from sluice.batching.documents import Plan, PolicyDocument, ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import greedy, size_or_timeout
from sluice.optimizer.arrays import Array
from sluice.optimizer.recommend.offers import machine_offer
from sluice.optimizer.tuning.decision import Decision, Trigger
from sluice.optimizer.tuning.deployments import deployment_of
from sluice.optimizer.tuning.rate_tables import LARGEST, tables_of
from sluice.optimizer.tuning.setup import TuningSettings, TuningSetup
from sluice.optimizer.tuning.simulated import ControlledRun, ServiceChange, simulate_control, simulate_plans
from sluice.optimizer.tuning.tuner import Tuner

ADDRESS, BATCH, SLO = "http://gpu:8500", 8, Slo(0.6, 95)


def profile_of(energy: bool = True) -> ServiceProfile:
    points = [
        ProfilePoint(1, b, ServiceTime(0.1 + 0.03 * b), 0.1 + 0.03 * b, energy=2.0 + 0.5 * b if energy else None) for b in (1, 4, 8)
    ]
    return ServiceProfile(function=ADDRESS, points=points, max_batch_size=BATCH)


def setup_of(energy: bool = True, servers: int = 1, price: float = 0.5) -> TuningSetup:
    profile = profile_of(energy)
    offers = (machine_offer("gpu", profile, price, BATCH),)
    return TuningSetup("m", (SLO,), profile, offers=offers, max_batch_size=BATCH, servers=servers)


@cache
def busy_at_three_times(servers: int, seed: int) -> tuple[ControlledRun, float]:
    """Workers of whom each answers 340 requests/s at the most, before whom 200/s become 600/s at once; and when (s)."""
    points = [ProfilePoint(1, b, ServiceTime(0.03 + 0.002 * b), 0.03 + 0.002 * b) for b in (1, 2, 4, 8, 16, 32)]
    profile = ServiceProfile(function=ADDRESS, points=points, max_batch_size=32)
    offers = (machine_offer("gpu", profile, 0.02, 32),)
    setup = TuningSetup("m", (Slo(0.15),), profile, offers=offers, max_batch_size=32, servers=servers)
    times = np.concatenate([arrivals(200.0, 180.0, seed=seed), arrivals(600.0, 60.0, 180.0, seed + 1)])
    return simulate_control(setup, times, decision=2.0), 180.0


def arrivals(rate: float, seconds: float, begin: float = 0.0, seed: int = 0) -> Array:
    rng = np.random.default_rng(seed)
    return begin + np.sort(rng.random(rng.poisson(rate * seconds))) * seconds


def all_that_waits(servers: int = 1) -> Plan:
    return Plan(model="m", function=ADDRESS, policy=PolicyDocument.of(greedy(BATCH, servers)), slo=SLO)


def test_a_table_that_names_no_servers_has_those_that_are_there_at_their_price() -> None:
    setup = setup_of(servers=2)
    plan = Plan(model="m", function=ADDRESS, policy=PolicyDocument.of(size_or_timeout(4, 0.02)), slo=SLO)
    (route,) = plan.all_routes
    assert setup.profile is not None
    deployment = deployment_of(route, setup, setup.profile)
    assert not deployment.elastic and deployment.schedule.tables[0].servers == 2
    assert deployment.price_per_worker_hour == 0.5


def test_the_way_to_servers_is_in_latencies_and_keeps_none_of_them_busy() -> None:
    """A batch of 8 takes 0.34 s: 23 requests/s at the most, of which 0.15 s on the way would leave 16."""
    setup, behind = setup_of(), structs.replace(profile_of(), way=ServiceTime(0.15))
    far = replace(setup, profile=behind)
    for rate in (5.0, 17.0):
        by_name = {each.name: each.percentile.value for each in decided(setup, rate).considered}
        greedy_there = next(each for each in decided(far, rate).considered if each.name.endswith("greedy"))
        assert greedy_there.percentile.value == pytest.approx(by_name[greedy_there.name] + 0.15)
    few = decided(far, 5.0)
    assert not few.alarm and few.plan is not None and few.plan.slo == SLO
    assert next(each for each in few.considered if each.name.endswith("last moment")).late.value < 0.05


def test_a_simulated_run_has_the_way_to_servers_in_its_latencies_and_in_no_batch() -> None:
    setup = replace(setup_of(), profile=structs.replace(profile_of(), way=ServiceTime(0.15)))
    times = arrivals(5.0, 600)
    run = simulate_control(setup, times, first=all_that_waits())
    alone = simulate_plans(setup_of(), times, [(float(times[0]) - 1, all_that_waits())])
    assert run.latency.min() == pytest.approx(alone.latency.min() + 0.15)
    assert not [decision for decision in run.decisions if decision.trigger.kind == "service"]


def decided(setup: TuningSetup, rate: float) -> Decision:
    tuner = Tuner(setup, TuningSettings(least_between=0.0))
    tuner.in_force(all_that_waits(setup.servers or 1), 0.0)
    tuner.arrived(arrivals(rate, 600))
    return tuner.decide(600.0, Trigger("start", 600.0, ""))


def test_the_energy_of_a_batch_is_that_of_the_profile_between_its_points() -> None:
    offer = setup_of().offers[0]
    assert offer.energy is not None
    assert offer.energy == pytest.approx(2.0 + 0.5 * np.arange(1, 9))
    assert setup_of(energy=False).offers[0].energy is None


def test_workers_alone_for_whom_too_many_come_are_told_at_once_with_how_many_would_do() -> None:
    times = np.concatenate([arrivals(16.0, 300), arrivals(48.0, 15, 300.0, 1)])  # 8 in 0.34 s are 23.5/s
    run = simulate_control(setup_of(), times, decision=2.0)
    first = next(decision for decision in run.decisions if decision.alarm)
    assert 300 < first.at <= 310
    assert re.fullmatch(
        r"nothing keeps p95 within 600 ms: 4\d(\.\d+)? requests/s come, and 1 × http://gpu:8500 answer 23\.53/s at the most, so "
        r"that it grows by [01](\.\d+)? s in each second, to \d+(\.\d)? s in a minute, whatever the plan; [23] would carry them",
        first.alarm,
    )


def test_workers_without_a_price_are_decided_about_as_those_with_one() -> None:
    for rate in (8.0, 40.0):  # and more than they carry
        free, paid = decided(setup_of(price=0.0), rate), decided(setup_of(), rate)
        assert (free.chosen, free.why, free.alarm) == (paid.chosen, paid.why, paid.alarm)


def test_of_tables_that_cost_the_same_the_one_of_least_energy_that_surely_keeps_the_promise_comes() -> None:
    decision = decided(setup_of(), 16.0)
    assert decision.plan is not None and decision.plan.policy is not None
    assert decision.plan.function == ADDRESS and decision.plan.policy.servers == 1
    assert "optimal at" in decision.chosen and "of the energy" in decision.why
    assert all(one.name.startswith(("1 × gpu", "in force: 1 × gpu")) for one in decision.considered)
    times = arrivals(16.0, 1200, seed=5)
    before, after = (simulate_plans(setup_of(), times, [(0.0, plan)]) for plan in (all_that_waits(), decision.plan))
    assert float(after.joules.mean()) < 0.95 * float(before.joules.mean())
    assert float((after.latency > SLO.latency).mean()) < SLO.error_budget


def test_where_no_energy_is_known_a_table_comes_only_where_answers_come_sooner() -> None:
    decision = decided(setup_of(energy=False), 6.0)
    assert decision.plan is None
    assert "stays" in decision.why or "is the best" in decision.why


def test_several_servers_keep_their_number() -> None:
    decision = decided(setup_of(servers=2), 16.0)
    assert decision.plan is not None and decision.plan.policy is not None and decision.plan.policy.servers == 2


@pytest.mark.full
def test_the_table_follows_the_rate() -> None:
    times = np.concatenate([arrivals(4.0, 400), arrivals(16.0, 400, 400.0, 1)])
    run = simulate_control(setup_of(), times, settings=TuningSettings(period=100.0), step=5.0)
    first, last = ([d.chosen for d in run.decisions if d.plan is not None and (d.at > 400) is later] for later in (False, True))
    assert "last moment" in first[-1] and last and "last moment" not in last[-1]
    late = run.latency[run.arrival_times > 400] > SLO.latency
    assert float(late.mean()) < SLO.error_budget


@pytest.mark.full
@pytest.mark.parametrize("seed", [1, pytest.param(4, marks=pytest.mark.proof), pytest.param(7, marks=pytest.mark.proof)])
def test_workers_that_become_busy_at_once_keep_the_promise_within_ten_seconds(seed: int) -> None:
    run, step = busy_at_three_times(2, seed)
    late, since = run.latency > 0.15, run.arrival_times - step
    windows = [late[(since >= begin) & (since < begin + 10)].mean() for begin in (10, 20, 30, 40, 50)]
    assert max(windows) <= 0.05
    assert "last moment" in next(d.chosen for d in run.decisions if d.at > step and d.plan is not None)


def test_a_rate_that_rose_is_no_proof_of_longer_latencies_than_are_rehearsed() -> None:
    run, step = busy_at_three_times(2, 1)
    first = next(d for d in run.decisions if d.at > step)
    assert first.trigger.kind in ("rate", "promise") and first.at - step <= 3
    assert first.bias < 0.002


@pytest.mark.full
def test_service_times_of_the_servers_are_learnt() -> None:
    times = arrivals(6.0, 500)
    run = simulate_control(setup_of(), times, settings=TuningSettings(period=100.0), step=5.0, changes=[ServiceChange(400.0, 1.6)])
    known = {decision.at: profile for decision, profile in zip(run.decisions, run.profiles, strict=True) if 400 < decision.at < 460}
    assert known  # of which the first may be for the promise, which the longer times break
    learnt = {point.batch_size: point.service_time.mean for point in known[max(known)].points}  # type: ignore[union-attr]
    before = {point.batch_size: point.service_time.mean for point in profile_of(True).points}
    assert learnt[1] == pytest.approx(1.6 * before[1]) and learnt[BATCH] == pytest.approx(1.6 * before[BATCH])


def test_servers_without_the_one_offer_and_profile_that_are_theirs_are_refused() -> None:
    setup = setup_of()
    with pytest.raises(InvalidInput, match="offers: 0 is not allowed; allowed: one, of which there are so many servers"):
        replace(setup, offers=())
    with pytest.raises(InvalidInput, match=f"profile.function: 'other' is not allowed; allowed: {ADDRESS}"):
        replace(setup, function="other")
    with pytest.raises(InvalidInput, match="servers: 0"):
        replace(setup, servers=0)


def test_servers_of_larger_batches_than_can_be_solved_for_have_no_optimal_table() -> None:
    small = machine_offer("gpu", profile_of(), 0.5, BATCH)
    assert tables_of(small, [SLO], 1, BATCH) is not None
    long = [ProfilePoint(1, b, ServiceTime(0.1 + 0.03 * b), 1.0) for b in (1, LARGEST + 1)]
    large = machine_offer("gpu", ServiceProfile(function=ADDRESS, points=long), 0.5, LARGEST + 1)
    assert tables_of(large, [SLO], 1, LARGEST + 1) is None
    assert tables_of(large, [SLO], 1, LARGEST) is not None
