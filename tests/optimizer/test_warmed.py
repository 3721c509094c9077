"""Environments that a plan of control has before requests ask for them: kept by pings, or started before it comes into force."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from msgspec import UNSET, structs

from sluice.batching.documents import Beside, Plan, PolicyDocument, ProfilePoint, ServiceProfile, ServiceTime, Slo, WarmEnvironments
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import no_batching, size_or_timeout
from sluice.optimizer.arrays import Array
from sluice.optimizer.service.times import service_times
from sluice.optimizer.simulation import Beside as Beside_
from sluice.optimizer.simulation import Deployment, Environments, TraceArrivals, simulate_deployments
from sluice.optimizer.simulation.bill import Bill
from sluice.optimizer.simulation.deployment import LAMBDA
from sluice.optimizer.simulation.queue_run import QueueRun
from sluice.optimizer.tuning.canary import trying
from sluice.optimizer.tuning.deployments import deployment_of
from sluice.optimizer.tuning.proposal import Proposal
from sluice.optimizer.tuning.rehearsal import rehearse
from sluice.optimizer.tuning.setup import TuningSettings, TuningSetup
from sluice.optimizer.tuning.simulated import simulate_control, simulate_plans
from sluice.optimizer.tuning.trials import Trials
from sluice.optimizer.tuning.tuner import Tuner
from sluice.optimizer.tuning.warmed import kept_warm, prepared

SLO = Slo(0.1, 95)


def profile_of(*sizes: int, init: float, intercept: float = 0.006, slope: float = 0.001) -> ServiceProfile:
    points = [
        ProfilePoint(mb, b, ServiceTime((intercept + slope * b) * 1769 / mb), (intercept + slope * b) * 1769 / mb)
        for mb in sizes
        for b in (1, 8, 32)
    ]
    return ServiceProfile(function="f-{memory_mb}", points=points, max_batch_size=32, init={mb: ServiceTime(init) for mb in sizes})


def plan_of(memory_mb: int, table: PolicyDocument, slo: Slo = SLO) -> Plan:
    return Plan(model="m", function=f"f-{memory_mb}", policy=table, slo=slo, memory_mb=memory_mb)


ALONE, BATCHES = PolicyDocument.of(no_batching()), PolicyDocument.of(size_or_timeout(8, 0.08))


def trials_of(setup: TuningSetup, times: Array, serving: Plan | None) -> Trials:
    assert setup.profile is not None
    trials = Trials(setup, TuningSettings(), setup.profile, float(times[-1]), 0.0, times)
    trials.compare([], serving)
    return trials


def poisson_times(rate: float, n: int) -> Array:
    return 1.7e9 + np.cumsum(np.random.default_rng(1).exponential(1 / rate, n))


@pytest.mark.full
def test_where_bursts_start_cold_environments_are_kept_for_as_many_batches_as_they_have_had() -> None:
    """Every six minutes 60/s for five seconds among 3/s, and an environment, kept for five, takes 12 s to start."""
    rng, slo = np.random.default_rng(0), Slo(2.0, 95)
    bursts = [at + rng.uniform(0, 5, 300) for at in range(100, 4320, 360)]
    times = 1.7e9 + np.sort(np.concatenate([rng.uniform(0, 4320, 12960), *bursts]))
    setup = TuningSetup("m", (slo,), profile_of(885, 1769, 3538, intercept=0.3, slope=0.06, init=12.0))
    run = simulate_control(setup, times, step=15.0)
    _, last = run.plans[-1]
    assert last.warm and last.warm.pinged > 1 and last.warm.pinged_every == 240.0
    stays = simulate_plans(setup, times, [(float(times[0]), structs.replace(last, warm=UNSET, digest=""))])
    (n, late), (_, late_without) = (each.late_by_window(300.0, 2.0) for each in (run, stays))
    assert (late[6:] <= 0.05 * n[6:]).all() and (late_without[6:] > 0.05 * n[6:]).any()
    assert run.cost_per_request <= 1.02 * stays.cost_per_request


def test_of_what_does_not_surely_keep_the_promise_the_cheapest_are_run_with_environments_kept() -> None:
    """One in a minute and a half: a twentieth starts cold."""
    setup, times = TuningSetup("m", (SLO,), profile_of(885, 1769, 3538, init=2.0)), poisson_times(0.011, 1500)
    plans = [plan_of(mb, table) for mb in (885, 1769, 3538) for table in (ALONE, BATCHES)]
    proposals = [Proposal(f"{plan.memory_mb}", structs.replace(plan, started=2)) for plan in plans]  # as one that has served
    trials = trials_of(setup, times, None)
    tried = [one for proposal in proposals if (one := trials.tried(proposal)) is not None]
    assert len(tried) == 6 and not any(one.keeps for one in tried)
    found = kept_warm(trials, tried)
    prices = sorted(one.usd for one in tried)
    assert [one.proposal.name for one in found] == [
        f"{one.proposal.name}, 1 environment warm by pings every 4 minutes" for one in sorted(tried, key=lambda one: one.price)[:3]
    ]
    assert all(one.keeps and one.proposal.plan.warm == WarmEnvironments(pinged_every=240.0) for one in found)
    assert found[0].usd < prices[0], "whoever starts cold is billed for it, which costs more than to be pinged"
    assert kept_warm(trials, [found[0], *tried]) == [], "nothing that costs less"
    soon = replace(setup, environments=replace(LAMBDA, keep_alive=60.0))
    trials = trials_of(soon, times, None)
    tried = [one for proposal in proposals if (one := trials.tried(proposal)) is not None]
    assert kept_warm(trials, tried) == [], "no ping comes so soon"


def test_a_plan_that_comes_keeps_environments_where_that_costs_next_to_nothing_and_else_starts_them() -> None:
    setup = TuningSetup("m", (SLO,), profile_of(885, 1769, init=0.5))
    serving, coming = plan_of(1769, ALONE), Proposal("new", plan_of(885, BATCHES))
    for rate, kept in ((500.0, True), (0.05, False)):
        trials = trials_of(setup, poisson_times(rate, 3000), serving)
        best = trials.tried(coming)
        assert best is not None
        found = prepared(trials, best)
        if kept:
            assert found.plan.warm and found.plan.warm.pinged >= 2 and not found.plan.started
            assert found.name == f"new, {found.plan.warm.pinged} environments warm by pings every 4 minutes"
        else:
            assert not found.plan.warm and found.plan.started == 1 and found.name == "new"
            assert found.plan.digest == coming.plan.digest
            again = trials.tried(replace(coming, plan=plan_of(1769, BATCHES)))
            assert again is not None and not prepared(trials, again).plan.started, "its function serves already"
            tried = trying(serving, found.plan, 0.05)
            assert [route.started or 0 for route in tried.routes] == [0, 1]


def test_nothing_is_started_or_kept_of_workers_nor_where_some_are_provisioned() -> None:
    times = poisson_times(5.0, 1000)
    url = TuningSetup("m", (SLO,), structs.replace(profile_of(1769, init=0.5), function="http://f"))
    provisioned = TuningSetup("m", (SLO,), profile_of(885, 1769, init=0.5), warm=WarmEnvironments(2), warm_function="f-885")
    of_url = structs.replace(plan_of(1769, BATCHES), function="http://f", digest="")
    of_provisioned = structs.replace(plan_of(885, BATCHES), warm=WarmEnvironments(2), digest="")
    for setup, plan, serving in ((url, of_url, None), (provisioned, of_provisioned, plan_of(1769, ALONE))):
        trials = trials_of(setup, times, serving)
        best = trials.tried(Proposal("new", plan))
        assert best is not None and prepared(trials, best).plan == structs.replace(best.plan(), started=UNSET)
        assert kept_warm(trials, [best]) == []


def test_both_functions_of_a_plan_are_kept_and_billed_for_it() -> None:
    setup = TuningSetup("m", (SLO,), profile_of(885, 1769, init=0.5))
    assert setup.profile is not None
    both = structs.replace(plan_of(885, BATCHES), beside=[Beside("f-1769", ALONE)], digest="")
    plan = structs.replace(both, warm=WarmEnvironments(pinged_every=240.0, pinged=2), digest="")
    deployment, without = (deployment_of(each.all_routes[0], setup, setup.profile) for each in (plan, both))
    assert [side.environments and side.environments.pinged for side in deployment.serving] == [2, 2]
    each = sum(setup.billing.prices.pings(2, mb, "x86_64") for mb in (885, 1769))
    assert Bill.of(deployment).pings_per_second == pytest.approx(each / 240) and Bill.of(without).pings_per_second == 0
    run = simulate_deployments({"": deployment}, TraceArrivals(np.arange(0.0, 2400.0, 7.0)))[""]
    assert run.cost.pings * run.answered == pytest.approx(each * run.span / 240, rel=1e-6) and run.cold_starts == 0


def test_a_plan_says_itself_what_its_pings_keep() -> None:
    """A tenth as many are late of one in a minute and a half."""
    setup, times = TuningSetup("m", (SLO,), profile_of(885, 1769, init=2.0)), poisson_times(0.011, 1500)
    alone = plan_of(1769, ALONE)
    pinged = structs.replace(alone, warm=WarmEnvironments(pinged_every=240.0), digest="")
    assert setup.profile is not None
    late = [rehearse(deployment_of(of.all_routes[0], setup, setup.profile), times, [SLO], 100.0).late[0] for of in (pinged, alone)]
    assert late[0].value < 0.003 and late[1].value > 0.03
    Tuner(setup).in_force(pinged, float(times[0]))
    with pytest.raises(InvalidInput, match=r"warm: Warm.*; allowed: environments that are provisioned: what pings keep"):
        TuningSetup("m", (SLO,), setup.profile, warm=WarmEnvironments(pinged_every=240.0), warm_function="f-1769")


def test_a_simulated_plan_of_another_function_comes_into_force_when_its_environments_are_there() -> None:
    setup, times = TuningSetup("m", (SLO,), profile_of(885, 1769, init=2.0)), np.arange(0.0, 30.0, 0.5)
    first = plan_of(1769, ALONE)
    for started in (0, 3):
        coming = structs.replace(plan_of(885, ALONE), started=started or UNSET)
        run = simulate_plans(setup, times, [(0.0, first), (10.25, coming)])
        cold = times[run.latency > 1.0]
        assert cold[cold > 10.0].tolist() == ([] if started else [10.5, 11.0, 11.5, 12.0])
        quicker = run.latency < 0.01  # at the larger memory size
        assert times[quicker].max() == (11.5 if started else 9.5)  # whoever comes last before a change is of its moment
        assert setup.profile is not None
        bill = Bill.of(deployment_of(coming.all_routes[0], setup, setup.profile))
        served = times >= (12.0 if started else 12.5)
        paid = run.usd[served].sum() - served.sum() * bill.by_size[0, 0]
        assert paid == pytest.approx(started * bill.cold[0], rel=1e-6, abs=1e-15)


@pytest.mark.parametrize("places", [2, 3, 8])
def test_as_many_functions_as_may_stand_beside_one_another_are_pinged(places: int) -> None:
    """All of them start theirs in one chunk: there is room for each."""
    setup = TuningSetup("m", (SLO,), profile_of(885, init=0.5))
    assert setup.profile is not None
    service = service_times(setup.profile, 885, 8)
    table = size_or_timeout(8, 0.08)

    def deployment(environments: Environments) -> Deployment:
        beside = [Beside_(table, service, environments, function=f"g{k}") for k in range(places - 1)]
        return Deployment(table, service, environments, function="g", beside=beside)

    run = QueueRun(deployment(Environments(0.5, 300.0)), np.random.default_rng(0))
    run.feed(np.array([1000.0]), False)
    kept = run.taken_over(1000.0, deployment(Environments(0.5, 300.0, pinged_every=240.0, pinged=100)), starts=False)
    progress = kept.feed(np.arange(1000.1, 1500.0, 50.0), True)
    assert len(progress.batches.sizes) == 11


def test_environments_that_were_given_up_meanwhile_are_started_again_and_those_that_are_there_are_not() -> None:
    setup, times = TuningSetup("m", (SLO,), profile_of(885, 1769, init=2.0)), np.arange(0.0, 7200.0, 1.0)
    assert setup.profile is not None
    first, other = plan_of(1769, ALONE), structs.replace(plan_of(885, ALONE), started=3)
    cost = Bill.of(deployment_of(other.all_routes[0], setup, setup.profile)).cold[0]
    paid = []
    for away in (100.0, 3000.0):
        plans = [(0.0, first), (1000.5, other), (1200.5, first), (1200.5 + away, other)]
        run = simulate_plans(setup, times, plans)
        assert (run.latency[10:] < 1.0).all()
        paid.append(run.cold_usd)
    assert paid[1] - paid[0] == pytest.approx(3 * cost)


def test_pings_for_a_function_that_serves_start_what_is_not_there_and_that_is_paid() -> None:
    setup, times = TuningSetup("m", (SLO,), profile_of(1769, init=2.0)), np.arange(0.0, 3600.0, 1.0)
    assert setup.profile is not None
    alone = plan_of(1769, ALONE)
    kept = structs.replace(alone, warm=WarmEnvironments(pinged_every=240.0, pinged=20), digest="")
    plain, pinged = (simulate_plans(setup, times, [(0.0, alone), (1000.5, plan)]) for plan in (alone, kept))
    bill = Bill.of(deployment_of(kept.all_routes[0], setup, setup.profile))
    more = pinged.usd.sum() - plain.usd.sum()
    assert more == pytest.approx(19 * bill.cold[0] + bill.pings_per_second * 2598.5, rel=1e-3)


def test_no_more_are_started_or_kept_than_run_at_once() -> None:
    times = poisson_times(500.0, 3000)
    setup = TuningSetup("m", (SLO,), profile_of(885, 1769, init=0.5), environments=replace(LAMBDA, concurrency=1))
    trials = trials_of(setup, times, plan_of(1769, ALONE))
    best = trials.tried(Proposal("new", plan_of(885, BATCHES)))
    assert best is not None
    warm = prepared(trials, best).plan.warm
    assert warm and warm.pinged == 1


def test_who_is_late_while_environments_start_counts_where_a_plan_does_not_wait_for_all_of_them() -> None:
    coming = plan_of(885, ALONE)
    for rate, init, sure in ((20.0, 2.0, True), (20.0, 8.0, False), (20000.0, 2.0, False)):
        setup = TuningSetup("m", (SLO,), profile_of(885, 1769, init=init))
        trials = trials_of(setup, poisson_times(rate, 4000), plan_of(1769, ALONE))
        assert trials.may_be_started(coming) == sure


def test_what_came_of_a_decision_has_its_pings() -> None:
    setup, times = TuningSetup("m", (SLO,), profile_of(1769, init=2.0)), poisson_times(0.05, 1200)
    kept = structs.replace(plan_of(1769, ALONE), warm=WarmEnvironments(pinged_every=240.0, pinged=3), digest="")
    run = simulate_control(setup, times, first=kept, step=300.0)
    told = [
        decision.since_last
        for decision in run.decisions
        if decision.since_last and decision.since_last.expected and decision.since_last.requests > 50
    ]
    near = [each.usd / each.expected_usd[0] - 1 for each in told]
    assert len(near) > 2 and abs(np.mean(near)) < 0.3, near


def test_a_plan_whose_pings_come_too_late_is_left_alone() -> None:
    plan = structs.replace(plan_of(1769, ALONE), warm=WarmEnvironments(pinged_every=600.0), digest="")
    with pytest.raises(InvalidInput, match=r"plan\.warm\.pinged_every: 600\.0 .*; allowed: 300 s at most"):
        Tuner(TuningSetup("m", (SLO,), profile_of(885, 1769, init=0.5))).in_force(plan, 0.0)
