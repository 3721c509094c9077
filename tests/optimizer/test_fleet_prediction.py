"""What a plan of a fleet is predicted to do, beside closed forms, the batcher, and the same fleet run in other ways."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from sluice.batching.batcher import Batcher, Step
from sluice.batching.documents import Slo
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.fleet import DEPLOYABLE, DeviceType, Family, Fleet, FleetPlan, Profile, Variant, plan_fleet
from sluice.optimizer.fleet.group import Group
from sluice.optimizer.fleet.prediction import PERCENTILES, run_family, simulate_plan
from sluice.optimizer.fleet.tables import Deployable
from sluice.optimizer.simulation.routing import route as deal

SLO = Slo(0.3, 99)


def fleet(demand: dict[str, float]) -> Fleet:
    """Two types, two families; on the gpus batches gain much, on the cpus little."""
    return Fleet(
        devices=(DeviceType("gpu", 2), DeviceType("cpu", 3)),
        families=(
            Family("seen", SLO, (Variant("small", 70.0), Variant("large", 80.0))),
            Family("read", Slo(1.0), (Variant("only", 60.0),)),
        ),
        profiles={
            ("gpu", "small"): Profile.of_line(0.01, 0.001, 32),
            ("gpu", "large"): Profile.of_line(0.02, 0.01, 32),
            ("cpu", "small"): Profile.of_points({1: 0.02, 8: 0.13}),
            ("cpu", "large"): Profile.of_points({1: 0.12}),
            ("cpu", "only"): Profile.of_points({1: 0.1, 4: 0.2}),
        },
        demand=demand,
    )  # fmt: skip


def one_by_one(seconds: float, slo: float, rate: float) -> tuple[Fleet, Group]:
    """One device that serves one request after the other, all of them, each in the same time."""
    alone = Fleet(
        (DeviceType("gpu", 1),),
        (Family("seen", Slo(slo), (Variant("small", 70.0),)),),
        {("gpu", "small"): Profile.of_points({1: seconds})},
        {"seen": rate},
    )
    return alone, Group("gpu", "small", "seen", 70.0, ("gpu-1",), 1.0, rate, 1 / seconds, Policy((math.inf, 0.0), (0, 1), 1))


def later_than(wait: float, rate: float, seconds: float) -> float:
    """P(W > t) of M/D/1 (Erlang, 1909)."""
    terms = range(int(wait / seconds) + 1)
    load = [rate * (j * seconds - wait) for j in terms]
    return 1 - (1 - rate * seconds) * math.fsum(x**j / math.factorial(j) * math.exp(-x) for j, x in zip(terms, load, strict=True))


@pytest.mark.parametrize("waits", [1.5, 3.5, 6.5])
def test_of_one_device_without_batches_as_many_are_late_as_erlang_says(waits: float) -> None:
    seconds, rate = 0.02, 35.0
    predicted = simulate_plan(*_with(one_by_one(seconds, (1 + waits) * seconds, rate)))
    assert predicted is not None
    late, expected = predicted.violations, later_than(waits * seconds, rate, seconds)
    assert abs(late.value - expected) < 1.5 * (late.high - late.value)  # three standard errors
    assert predicted.effective_accuracy == 70.0 and predicted.families["seen"].mean_batch_size == 1.0


def _with(of: tuple[Fleet, Group]) -> tuple[Fleet, tuple[Group]]:
    return of[0], (of[1],)


# --- the batcher, which is the specification of the live buffer


def batched(policy: Policy, times: Array, seconds: Array) -> Array:
    """Latency of each request through the batcher, nan for one given up; its servers take ``seconds`` for a batch of 1, 2, ..."""
    batcher: Batcher[int] = Batcher(policy)
    latency = np.full(len(times), np.nan)
    ends: list[float] = []
    wake_at, place = None, 0
    while place < len(times) or ends or wake_at is not None:
        due = [*ends, *([times[place]] if place < len(times) else []), *([wake_at] if wake_at is not None else [])]
        now = float(min(due))
        completed, ends = sum(end == now for end in ends), [end for end in ends if end != now]
        arriving = []
        while place < len(times) and times[place] == now:
            arriving.append(place)
            place += 1
        step: Step[int] = batcher.advance(now, arriving, completed)
        wake_at = step.wake_at
        for batch in step.batches:
            ends.append(now + seconds[len(batch) - 1])
            for member in batch:
                latency[member] = now - times[member] + seconds[len(batch) - 1]
    return latency


@pytest.mark.full
@pytest.mark.parametrize("batching", DEPLOYABLE)
def test_the_written_plan_driven_through_the_batcher_answers_every_request_as_predicted(batching: Deployable) -> None:
    """Every route's table with as many servers as it has workers, on the same arrivals, dealt by the same shares."""
    addressed = replace(
        fleet({"seen": 230.0, "read": 30.0}),
        devices=(
            DeviceType("gpu", 2, workers=("http://g:1", "http://g:2")),
            DeviceType("cpu", 3, workers=("http://c:1", "http://c:2", "http://c:3")),
        ),
    )
    plan = plan_fleet(addressed, headroom=1.0, batching=batching)
    for document in plan.plans():
        groups = [group for group in plan.groups if group.family == document.model and group.share]
        rng = np.random.default_rng(5)
        times = np.cumsum(poisson(plan.families[document.model].asked).sample(2000, rng))
        run = run_family(plan.fleet, groups, times, rng)
        places = deal(times, np.empty(0), np.array([[route.share for route in document.routes]]))
        for i, route in enumerate(document.routes):
            policy, mine = route.policy.policy(), places == i
            assert policy.servers == len(route.function.split(","))
            seconds = plan.fleet.profiles[groups[i].device_type, route.variant].service.mean_response
            through = batched(policy, times[mine], seconds)
            assert np.array_equal(np.isnan(through), np.isnan(run.latency[mine]))
            assert through == pytest.approx(run.latency[mine], rel=1e-9, abs=1e-12, nan_ok=True)


def test_several_devices_and_several_groups_are_among_those_plans() -> None:
    groups = [group for group in plan_fleet(fleet({"seen": 230.0, "read": 30.0}), headroom=1.0).groups if group.share]
    assert max(len(group.devices) for group in groups) > 1 and len([g for g in groups if g.family == "seen"]) > 1


# --- the prediction itself


def predicted_of(plan: FleetPlan) -> tuple[float, float]:
    assert plan.predicted is not None
    return plan.predicted.violations.value, plan.predicted.effective_accuracy


def test_the_whole_is_the_mean_of_the_families_weighted_by_their_demand() -> None:
    plan = plan_fleet(fleet({"seen": 230.0, "read": 55.0}), headroom=1.0)
    assert plan.predicted is not None
    late = {name: of.violations.value for name, of in plan.predicted.families.items()}
    value, accuracy = predicted_of(plan)
    assert value == pytest.approx((230 * late["seen"] + 55 * late["read"]) / 285)
    in_time = {"seen": 230 * (1 - late["seen"]), "read": 55 * (1 - late["read"])}
    earned = sum(in_time[name] * plan.predicted.families[name].effective_accuracy for name in in_time)
    assert accuracy == pytest.approx(earned / sum(in_time.values()))
    assert plan.predicted.violations.low <= value <= plan.predicted.violations.high


@pytest.mark.full
def test_the_same_plan_is_always_predicted_the_same() -> None:
    first, second = (plan_fleet(fleet({"seen": 230.0, "read": 30.0}), headroom=1.1) for _ in range(2))
    assert predicted_of(first) == predicted_of(second)


def test_percentiles_rise_and_those_that_are_never_reached_are_left_out() -> None:
    calm = plan_fleet(fleet({"seen": 100.0, "read": 30.0}), headroom=1.2).predicted
    short = plan_fleet(fleet({"seen": 100.0, "read": 100.0}), headroom=1.0).predicted
    assert calm is not None and short is not None
    latency = calm.families["seen"].latency
    assert list(latency) == ["p50", "p95", "p99"] and list(latency.values()) == sorted(latency.values())
    assert set(short.families["read"].latency) < {f"p{percentile:g}" for percentile in PERCENTILES}


def test_of_a_demand_beyond_the_devices_what_is_missing_is_a_violation_at_least() -> None:
    plan = plan_fleet(fleet({"seen": 10.0, "read": 100.0}), batching="early_drop")
    assert plan.predicted is not None and not plan.feasible and not plan.kept
    assert plan.predicted.families["read"].violations.high >= plan.families["read"].missing / 100


def test_a_family_that_nothing_serves_is_all_violations() -> None:
    plan = plan_fleet(replace(fleet({"seen": 1510.0, "read": 0.001}), devices=(DeviceType("gpu", 1),)))
    assert plan.predicted is not None and plan.families["read"].served == 0
    assert plan.predicted.families["read"].violations.value == 1 and plan.predicted.families["read"].n_requests == 0
    assert plan.document()["families"]["read"]["predicted"]["mean_batch_size"] is None


def test_bursts_make_more_of_them_late_than_poisson_arrivals_of_the_same_rate() -> None:
    bursts = {"seen": mmpp2(3.0, 1.0, 0.02, 0.02)}  # any rate: it is sped up to the demand
    calm, bursty = (plan_fleet(fleet({"seen": 150.0}), headroom=1.1, arrivals=a).predicted for a in ({}, bursts))
    assert calm is not None and bursty is not None and bursty.violations.low > calm.violations.high


def test_nothing_is_predicted_of_a_demand_that_no_bounded_run_can_show() -> None:
    large = replace(fleet({"seen": 1e8}), devices=(DeviceType("gpu", 100_000),))
    plan = plan_fleet(large)
    assert plan.predicted is None and plan.headroom == 1.0
    document = plan.document()
    assert document["predicted"] is None and document["families"]["seen"]["predicted"] is None


# --- the headroom that is chosen


@pytest.mark.full
def test_the_headroom_chosen_is_the_least_tried_that_keeps_every_slo() -> None:
    asked = fleet({"seen": 250.0, "read": 50.0})
    plan = plan_fleet(asked, batching="published")
    assert plan.kept and plan.headroom_asked is None and plan.headroom > 1
    less = plan_fleet(asked, batching="published", headroom=1.0)
    assert not less.kept and less.feasible and plan.feasible
    assert plan.accuracy <= less.accuracy + 1e-9


@pytest.mark.proof
def test_fewer_violations_are_had_for_less_accuracy() -> None:
    asked = fleet({"seen": 250.0, "read": 50.0})
    plans = [plan_fleet(asked, violations=share) for share in (0.3, 0.01, 0.0005)]
    assert all(plan.kept for plan in plans)
    headrooms, accuracies = [plan.headroom for plan in plans], [plan.accuracy for plan in plans]
    assert headrooms == sorted(headrooms) and headrooms[0] < headrooms[-1]
    assert accuracies == sorted(accuracies, reverse=True)
    for plan, share in zip(plans, (0.3, 0.01, 0.0005), strict=True):
        assert plan.predicted is not None and all(of.violations.high <= share for of in plan.predicted.families.values())


@pytest.mark.proof
@pytest.mark.parametrize("batching", DEPLOYABLE)
def test_a_headroom_that_is_chosen_never_serves_less_than_what_is_asked(batching: Deployable) -> None:
    for demand in ({"seen": 1510.0, "read": 2.0}, {"seen": 100.0, "read": 59.0}, {"seen": 10.0, "read": 100.0}):
        chosen, plain = plan_fleet(fleet(demand), batching=batching), plan_fleet(fleet(demand), batching=batching, headroom=1.0)
        for name, of in chosen.families.items():
            assert of.served == pytest.approx(plain.families[name].served, rel=1e-6)


def test_where_no_headroom_does_the_plan_that_comes_nearest_is_given() -> None:
    asked = fleet({"seen": 100.0, "read": 59.0})  # of at most 60
    plan, plain = (plan_fleet(asked, violations=1e-4, headroom=h) for h in (None, 1.0))
    assert plan.feasible and not plan.kept and plan.predicted is not None and plain.predicted is not None
    assert plan.predicted.excess <= plain.predicted.excess


def test_violations_that_are_no_share_and_arrivals_of_nobody_are_refused() -> None:
    for share in (0.0, 1.0, -0.1, math.nan):
        with pytest.raises(InvalidInput, match="violations: .* a share strictly between 0 and 1"):
            plan_fleet(fleet({"seen": 1.0}), violations=share)
    with pytest.raises(InvalidInput, match="arrivals: 'heard' .* one of the families: seen, read"):
        plan_fleet(fleet({"seen": 1.0}), arrivals={"heard": poisson(1.0)})
    with pytest.raises(InvalidInput, match="batching: 'aimd' is not allowed; allowed: brief_hold, deadline, published"):
        plan_fleet(fleet({"seen": 1.0}), batching="aimd")  # type: ignore[arg-type]
