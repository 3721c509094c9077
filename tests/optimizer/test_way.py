"""The way through the buffer: seen from both ends of a batch, planned with, and no part of the function's own times."""

from __future__ import annotations

from itertools import cycle
from math import ceil, inf, isnan

import numpy as np
import pytest
from msgspec.structs import replace

from sluice.batching.documents import LinearServiceTime, Plan, PolicyDocument, ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.measured import MeasuredBatch
from sluice.batching.policy import Policy
from sluice.optimizer.service.times import service_times
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.tuning.canary import single_route
from sluice.optimizer.tuning.deployments import deployment_of
from sluice.optimizer.tuning.setup import TuningSetup
from sluice.optimizer.tuning.simulated import simulate_control
from sluice.optimizer.tuning.tuner import Tuner
from sluice.optimizer.tuning.way import FEWEST, WayWatch

SLO = Slo(0.1, 95)
PROFILE = ServiceProfile(
    function="f-{memory_mb}",
    points=[ProfilePoint(1769, b, ServiceTime(0.006 + 0.001 * b), 0.006 + 0.001 * b) for b in (1, 4, 8)],
    max_batch_size=8,
)
SETUP = TuningSetup("m", (SLO,), PROFILE)
TABLE = Policy([inf, 0.08, 0.06, 0.04, 0.0], [0, 1, 2, 3, 4])
PLAN = Plan(model="m", function="f-1769", policy=PolicyDocument.of(TABLE), slo=SLO, memory_mb=1769)


def served(rate: float, n: int, way: float, plan: Plan = PLAN) -> tuple[np.ndarray, list[MeasuredBatch]]:
    """When requests came, and the batches of a buffer on whose way each request is for so many seconds, as the plan says."""
    times = 1.7e9 + np.cumsum(np.random.default_rng(1).exponential(1 / rate, n))
    run = simulate_deployment(deployment_of(single_route(plan), SETUP, PROFILE), times, np.random.default_rng(0))
    batches = []
    for b in range(len(run.batch_sizes)):
        members = np.flatnonzero(run.batch_of == b)
        ended = float(times[members[0]] + run.latency[members[0]])
        seconds = 0.006 + 0.001 * len(members)
        latencies = tuple((run.latency[members] + way).tolist())
        batches.append(
            MeasuredBatch(ended, "", 0, "f-1769", plan.digest, len(members), seconds, seconds, seconds, False, 0, latencies)
        )
    return times, sorted(batches)


@pytest.mark.parametrize("rate", [5, 40, 300])  # holds that end, arrivals that fill a batch, and both
def test_the_way_is_found_whichever_end_of_a_batch_it_shows_at(rate: float) -> None:
    watch = WayWatch([SLO])
    watch.follow(PLAN)
    watch.see(served(rate, 2000, 0.003)[1])
    assert watch.measured == pytest.approx(0.003, abs=1e-6)  # times since 1970 have no more digits


def seen_by(watch: WayWatch, ways: np.ndarray, size: int = 0) -> None:
    """Batches on whose way requests were for so long, of any size or of one."""
    watch.follow(PLAN)
    for batch, way in zip(cycle(served(5, 1000, 0.0)[1]), ways, strict=False):
        batch = batch._replace(size=size, latencies=(batch.seconds + TABLE.hold[size],) * size) if size else batch
        watch.see([batch._replace(latencies=tuple(x + way for x in batch.latencies))])


def test_it_is_the_quantile_that_is_promised_of_the_latest_batches() -> None:
    watch = WayWatch([Slo(0.1, 90), Slo(0.2, 99)])
    ways = np.random.default_rng(2).permutation(np.linspace(0, 0.02, 800))
    ways[:500] = 0.03
    seen_by(watch, ways)
    assert watch.measured == pytest.approx(float(np.quantile(ways[-256:], 0.99, method="inverted_cdf")), abs=1e-6)


def test_of_a_quantile_that_few_batches_do_not_show_as_many_are_asked_as_it_takes() -> None:
    ways = np.random.default_rng(2).permutation(np.linspace(0, 0.01, 2000))
    ways[1200], ways[800] = 0.02, 0.03
    for level, found in ((0.95, None), (0.998, 0.01), (0.9991, 0.02), (0.9999, 0.02)):
        watch = WayWatch([SLO])
        watch.in_time([Slo(0.1, 100 * level)])
        seen_by(watch, ways)
        latest = ways[-max(256, min(1024, ceil(1 / (1 - level)))) :]
        expected = float(np.quantile(latest, level, method="inverted_cdf"))
        assert watch.measured == pytest.approx(expected, abs=1e-6)
        assert found is None or expected == pytest.approx(found, abs=2e-4)


def test_batches_count_by_their_size_as_requests_see_it() -> None:
    watch = WayWatch([SLO])
    assert watch.batch_size == 1
    seen_by(watch, np.full(3, 0.001), 1)
    seen_by(watch, np.full(1, 0.001), 3)
    assert watch.batch_size == pytest.approx(2)


def test_what_was_profiled_is_taken_at_that_quantile_until_the_way_is_measured() -> None:
    watch = WayWatch([SLO], ServiceTime(0.005, [(0.0, 0.0), (0.95, 0.008), (1.0, 0.018)], 100))
    assert watch.seconds == pytest.approx(0.008)
    watch.in_time([Slo(0.1, 99.95)])
    assert watch.seconds == pytest.approx(0.0179)
    seen_by(watch, np.full(256, 0.001))
    watch.in_time([Slo(0.1, 99.95)])
    watch.settle()
    assert watch.seconds == pytest.approx(0.001, abs=1e-6)


def test_too_few_batches_and_those_that_cannot_tell_leave_it_open() -> None:
    batches = served(5, FEWEST + 20, 0.003)[1][:FEWEST]
    telling = WayWatch([SLO])
    telling.follow(PLAN)
    telling.see(batches[1:])
    assert isnan(telling.measured) and not telling.longer
    telling.see(batches[:1])
    assert telling.longer

    silent = WayWatch([SLO])
    silent.see(batches)  # no plan is followed
    silent.follow(PLAN)
    silent.see([b._replace(failed=1) for b in batches])
    silent.see([b._replace(rejected=True) for b in batches])
    silent.see([b._replace(latencies=()) for b in batches])  # other processes have the callers
    silent.see([b._replace(digest="another") for b in batches])
    silent.see([b._replace(table=1) for b in batches])
    servers = Plan(
        model="m", function="f-1769", policy=PolicyDocument.of(Policy(TABLE.hold, TABLE.take, servers=1)), slo=SLO, memory_mb=1769
    )
    silent.follow(servers)  # who is held may wait for the server
    silent.see([b._replace(digest=servers.digest) for b in batches])
    assert isnan(silent.measured)


def test_it_is_bounded_by_half_of_the_promise() -> None:
    watch = WayWatch([SLO, Slo(0.5, 99)])
    watch.follow(PLAN)
    watch.see(served(5, 100, 7.0)[1])
    assert watch.measured == 0.05


def test_what_is_planned_with_changes_where_another_was_measured_and_not_by_little() -> None:
    watch = WayWatch([SLO])
    watch.follow(PLAN)
    told = []
    for way in (0.0, 0.004, 0.0045, 0.0005):
        watch.see(served(5, 600, way)[1])
        watch.settle()
        told.append(round(watch.seconds, 6))
    assert told == [0, 0.004, 0.004, 0.0005]


def test_it_stands_before_the_function_in_the_place_of_what_was_profiled_and_is_no_part_of_what_is_billed() -> None:
    watch = WayWatch([SLO])
    watch.seconds = 0.002
    linear = ServiceProfile(function="f", service_time=LinearServiceTime(0.01, 0.001), max_batch_size=8, way=ServiceTime(0.005))
    for profile in (PROFILE, linear):
        bare, seen = (service_times(p, 1769, 8) for p in (replace(profile, way=None), watch.before(profile)))
        assert (seen.overhead - bare.overhead == 0.002).all() and (seen.billed_duration == bare.billed_duration).all()
    watch.seconds = 0.0
    assert watch.before(linear) == linear


def test_plans_leave_the_way_free_and_it_is_not_taken_for_slower_service() -> None:
    def chosen(way: float) -> tuple[Tuner, Plan]:
        tuner = Tuner(SETUP)
        tuner.in_force(PLAN, 1.7e9)
        times, batches = served(40, 4000, way)
        tuner.arrived(times)
        tuner.batches(batches)
        trigger = tuner.due(float(times[-1]))
        assert trigger is not None and (trigger.kind == "way") == (way > 0), trigger
        decision = tuner.decide(float(times[-1]), trigger)
        assert decision.plan is not None and decision.way == decision.document()["way"] == pytest.approx(way, abs=1e-6)
        tuner.batches([b._replace(digest=decision.plan.digest) for b in batches])
        after = tuner.due(float(times[-1]) + 10)
        assert after is None or after.kind not in ("service", "way"), after
        return tuner, decision.plan

    (_, without), (_, plan) = chosen(0.0), chosen(0.005)
    assert without.policy is not None and plan.policy is not None
    assert max(plan.policy.policy().hold[1:]) <= 0.1 - 0.007 - 0.005 < max(without.policy.policy().hold[1:])


def test_a_way_that_may_break_the_promise_is_acted_on_though_fewer_come_than_a_moment_ago() -> None:
    tuner = Tuner(SETUP)
    tuner.in_force(PLAN, 1.7e9)
    times, batches = served(60, 6000, 0.0)
    tuner.arrived(times)
    tuner.batches(batches)
    trigger = tuner.due(since := float(times[-1]))
    assert trigger is not None
    plan = tuner.decide(since, trigger).plan
    assert plan is not None
    tuner.in_force(plan, since)

    fewer, batches = served(25, 800, 0.0, plan)
    move = since - float(fewer[0])
    ways = np.where(np.random.default_rng(3).random(len(batches)) < 0.12, 0.008, 0.0)  # no more are late than is allowed
    tuner.arrived(fewer + move)
    tuner.batches(
        [
            b._replace(ended_at=b.ended_at + move, latencies=tuple(x + way for x in b.latencies))
            for b, way in zip(batches, ways, strict=True)
        ]
    )
    trigger = tuner.due(now := float(fewer[-1]) + move)
    assert trigger is not None and trigger.kind == "way" and now < since + 60
    assert tuner.decide(now, trigger).plan is not None


def test_what_was_profiled_or_is_assumed_of_the_way_is_planned_with_until_it_is_measured() -> None:
    quantiles = [(q, 0.01 * q) for q in (0.0, 0.5, 0.95, 1.0)]
    for way, seconds in ((ServiceTime(0.005), 0.005), (ServiceTime(0.005, quantiles, 100), 0.0095), (ServiceTime(7.0), 0.05)):
        tuner = Tuner(TuningSetup("m", (SLO,), replace(PROFILE, way=way)))
        trigger = tuner.due(0.0)
        assert trigger is not None
        plan = tuner.decide(0.0, trigger).plan
        assert plan is not None and plan.policy is not None
        assert max(hold for hold in plan.policy.policy().hold if hold < inf) <= 0.1 - 0.007 - seconds

    tuner = Tuner(TuningSetup("m", (SLO,), replace(PROFILE, way=ServiceTime(0.005))))
    tuner.in_force(PLAN, 1.7e9)
    times, batches = served(40, 1500, 0.001)  # as they were profiled; the way is shorter than was assumed
    tuner.arrived(times)
    tuner.batches(batches)
    for seconds in (10, 20):
        trigger = tuner.due(float(times[-1]) + seconds)
        if trigger is not None:
            assert trigger.kind not in ("service", "way")
            assert tuner.decide(float(times[-1]) + seconds, trigger).way == pytest.approx(0.001, abs=1e-6)
        tuner.batches([b._replace(digest="another") for b in batches])


@pytest.mark.full
def test_a_simulated_buffer_has_the_way_in_its_latencies_and_in_no_invocation() -> None:
    setup = TuningSetup("m", (SLO,), replace(PROFILE, way=ServiceTime(0.004)))
    times = 1.7e9 + np.cumsum(np.random.default_rng(1).exponential(1 / 40, 4000))
    run = simulate_control(setup, times, first=PLAN)
    assert {decision.trigger.kind for decision in run.decisions} <= {"start", "periodic", "promise"}
    assert [decision.way for decision in run.decisions] == pytest.approx([0.004] * len(run.decisions), abs=1e-6)
