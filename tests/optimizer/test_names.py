"""Baselines by name: what they are made for, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from msgspec import structs

from sluice.batching import policy as policies
from sluice.batching.documents import Beside, LinearServiceTime, Plan, PolicyDocument, Route, ServiceProfile, Slo
from sluice.batching.errors import InvalidInput
from sluice.optimizer.baselines import NAMES, Situation, Workload, all_names, named, named_deployments, require_all_taken, written
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.billing.prices import default_prices
from sluice.optimizer.recommend import WorkerOffer
from sluice.optimizer.simulation import Function, RunStatistics, cheapest_kept, poisson, service_times, simulate_deployments
from sluice.optimizer.traces.trace import Trace

PROFILE = ServiceProfile(function="f", service_time=LinearServiceTime(0.01, 0.002), max_batch_size=8)
SMALL = structs.replace(PROFILE, max_batch_size=4)  # for which policies are found soon
SLO = Slo(0.2, 95)


def situation(*slos: Slo, workers: int | None = 2, profile: ServiceProfile = PROFILE) -> Situation:
    worker = WorkerOffer("worker", service_times(profile, 1769), 0.04)
    return Situation(Workload.of_process(poisson(50), 5000, 0), Function(profile, 1769), slos, 1769, worker, workers)


@pytest.mark.full
def test_every_policy_can_be_had_by_name() -> None:
    deployments, refused = named_deployments(["all"], situation(SLO))
    assert list(deployments) == all_names() and refused == {}
    assert {name.partition(":")[0] for name in deployments} == set(NAMES)


def test_what_goes_by_no_slo_needs_none() -> None:
    free = [name for name in all_names() if not NAMES[name.partition(":")[0]].needs_slo]
    assert list(named_deployments(free, situation())[0]) == free
    with pytest.raises(InvalidInput, match="slo: none was given; needed: an SLO, by which policy aimd goes"):
        named("aimd", situation())


@pytest.mark.full
def test_of_all_those_that_cannot_be_had_are_told() -> None:
    deployments, refused = named_deployments(["all"], situation(Slo(0.02, 95), profile=SMALL))  # one request alone takes 12 ms
    assert "at least twice the service time of one request" in refused["early-drop"] and "no-batching" in deployments
    with pytest.raises(InvalidInput, match="at least twice the service time"):
        named_deployments(["early-drop", "all"], situation(Slo(0.02, 95)))


def test_a_plan_runs_on_what_its_table_names() -> None:
    elastic = Plan(model="m", function="f", policy=PolicyDocument.of(policies.size_or_timeout(4, 0.05)), memory_mb=512)
    assert written(elastic, situation()).service.memory_mb == 512
    held = Plan(model="m", function="f", policy=PolicyDocument.of(policies.greedy(8, 2)))
    assert named_deployments(["p"], situation(), {"p": held})[0]["p"].price_per_worker_hour == 0.04
    routed = Plan(model="m", routes=[Route("r", "f", PolicyDocument.of(policies.greedy(8, 2)), 1.0)])
    with pytest.raises(InvalidInput, match="p: routes: 1 is not allowed; allowed: none: a plan of one queue"):
        written(routed, situation(), "p")


def test_the_functions_of_a_plan_are_those_that_it_names() -> None:
    """By the name with its memory size, the address of workers, or what is left: the only workers that are given."""
    elastic, held = (PolicyDocument.of(table) for table in (policies.size_or_timeout(4, 0.05), policies.greedy(8, 2)))
    other = Function(
        ServiceProfile(function="g-{memory_mb}:live", service_time=LinearServiceTime(0.02, 0.004), max_batch_size=8), 1
    )
    third = WorkerOffer("third", service_times(PROFILE, 1769), 0.4, function="http://third:1")
    given = replace(situation(), other_functions=[other], other_workers=[third])
    plan = Plan(
        model="m",
        function="g-512:live",
        policy=elastic,
        beside=[Beside("g-1024:live", elastic), Beside("http://other:1,http://third:1", held), Beside("f", elastic)],
        memory_mb=1769,
    )
    serving = named_deployments(["p"], given, {"p": plan})[0]["p"].serving
    assert [side.function for side in serving] == ["g-512:live", "g-1024:live", "http://other:1,http://third:1", "f"]
    assert [side.service.memory_mb for side in serving if side.elastic] == [512, 1024, 1769]
    assert serving[2].price_per_worker_hour == 0.4 and serving[1].service.seconds[0, 0] == 0.024
    beside = structs.replace(plan, function="http://elsewhere:1", policy=held, beside=[Beside("f", elastic)], digest="")
    of_workers, function = written(beside, situation()).serving
    assert of_workers.price_per_worker_hour == 0.04 and function.service.memory_mb == 1769
    provisioned = structs.replace(beside, function="f", beside=[Beside("g-512:live", elastic)], digest="")
    first, _ = written(provisioned, replace(given, worker=None)).serving
    assert first.price_per_worker_hour == pytest.approx(default_prices().provisioned(1769, "x86_64").reserved_per_hour)


def test_functions_that_are_none_of_those_given_are_refused() -> None:
    elastic, held = (PolicyDocument.of(table) for table in (policies.size_or_timeout(4, 0.05), policies.greedy(8, 2)))
    g = ServiceProfile(function="g-{memory_mb}", service_time=LinearServiceTime(0.02, 0.004), max_batch_size=8)
    given = replace(situation(), other_functions=[Function(g, 1)])
    plan = Plan(model="m", function="f", policy=elastic, beside=[Beside("g-512:live", elastic)])
    with pytest.raises(InvalidInput, match=r"p: beside\[0\].function: 'g-512:live' .* whose profile is given: f, g-{memory_mb}"):
        written(plan, given, "p")
    workers = structs.replace(plan, beside=[Beside("http://a", held), Beside("http://b", held)], digest="")
    with pytest.raises(InvalidInput, match=r"p: beside\[0\].function: 'http://a' .* workers whose profile is given: worker; or a"):
        written(workers, given, "p")
    alone = Plan(model="m", function="f", policy=elastic)
    with pytest.raises(InvalidInput, match="--profile: 'g-{memory_mb}' .* a function that a plan given as --policy names"):
        require_all_taken(given, ["p"], {"p": alone})
    third = WorkerOffer("third", service_times(PROFILE, 1769), 0.4, function="http://third:1")
    with pytest.raises(InvalidInput, match="--worker: 'http://third:1' .* workers that a plan given as --policy names"):
        require_all_taken(replace(situation(), other_workers=[third]), ["p"], {"p": alone})
    with pytest.raises(InvalidInput, match="profile: 'f' .* each function once"):
        replace(situation(), other_functions=[Function(PROFILE, 512)])
    unsaid = structs.replace(plan, beside=[Beside("h", elastic)], digest="")
    h = Function(ServiceProfile(function="h", service_time=LinearServiceTime(0.02, 0.004), max_batch_size=8), 1)
    with pytest.raises(InvalidInput, match="memory size of h: none .* told by the plan"):
        written(unsaid, replace(situation(), other_functions=[h]))


def test_workers_that_serve_no_policy_are_refused() -> None:
    elastic, held = (PolicyDocument.of(table) for table in (policies.size_or_timeout(4, 0.05), policies.greedy(8, 2)))
    alone = Plan(model="m", function="f", policy=elastic)
    own = Plan(model="m", function="http://own:1", policy=held)
    beside = structs.replace(alone, beside=[Beside("http://own:1", held)], digest="")
    of = situation()
    offer = replace(of.offers[0], name="own", function="http://own:1")
    third = WorkerOffer("third", service_times(PROFILE, 1769), 0.4, function="http://third:1")
    of_two = replace(of, worker=offer, other_workers=[third])
    of_third = structs.replace(alone, beside=[Beside("http://third:1", held)], digest="")
    third_alone = Plan(model="m", function="http://third:1", policy=held)
    assert named_deployments(["p"], of_two, {"p": third_alone})[0]["p"].price_per_worker_hour == 0.4
    assert named_deployments(["p"], of_two, {"p": own})[0]["p"].price_per_worker_hour == 0.04
    with pytest.raises(InvalidInput, match="--worker: 'own' .* or a plan of these workers"):
        require_all_taken(of_two, ["p"], {"p": third_alone})
    for names, plans in ((["no-batching", "batch", "p"], {"p": alone}), (["no-batching"], {})):
        with pytest.raises(InvalidInput, match="--worker: 'worker' .* policy that workers serve .*, recommended, greedy, .*overf"):
            require_all_taken(of, names, plans)
    with pytest.raises(InvalidInput, match="--worker: 'own' .* or a plan of these workers"):
        require_all_taken(of_two, ["p"], {"p": of_third})
    for name in ("all", "control", "recommended", "greedy:4", "smdp", "workers", "overflow"):
        require_all_taken(of, ["no-batching", name], {})
    for plan in (own, beside):
        require_all_taken(of, ["p"], {"p": plan})
        require_all_taken(replace(of, worker=offer), ["p"], {"p": plan})
    require_all_taken(of_two, ["p", "q"], {"p": of_third, "q": beside})
    require_all_taken(of_two, ["control", "no-batching"], {})


def test_a_trace_is_cut_where_it_is_told_and_planned_by_its_first_part() -> None:
    rng = np.random.default_rng(0)
    gaps = np.concatenate([rng.exponential(1 / 20, 1000), rng.exponential(1 / 80, 1000)])
    trace = Trace(gaps, "a trace that speeds up")
    workload = Workload.of_trace(trace, 0.5)
    assert workload.process.arrival_rate == pytest.approx(20, rel=0.1)
    assert len(workload.past) + workload.run.n_requests == len(trace.times)
    assert workload.past[-1] <= trace.duration / 2 < next(workload.run.chunks())[0]
    with pytest.raises(InvalidInput, match="past: 1.0 is not allowed; allowed: a part of the trace"):
        Workload.of_trace(trace, 1.0)


def test_the_cheapest_that_keeps_the_slo_is_none_where_none_does() -> None:
    of = situation(SLO)
    deployments, _ = named_deployments(["no-batching", "size-or-timeout:8,0.1", "size-or-timeout:8,3"], of)
    runs = simulate_deployments(deployments, of.workload.run, [SLO.latency])
    assert [run.keeps([SLO]) for run in runs.values()] == [True, True, False]
    cost = {name: run.cost.per_request for name, run in runs.items()}
    assert cheapest_kept(runs, [SLO]) == "size-or-timeout:8,0.1" and cost["size-or-timeout:8,3"] < cost["size-or-timeout:8,0.1"]
    late = simulate_deployments(deployments, of.workload.run, [0.005])
    assert cheapest_kept(late, [Slo(0.005, 95)]) is None and cheapest_kept(late, []) is None


def test_a_number_of_workers_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="servers: 0 is not allowed; allowed: an integer >= 1"):
        situation(SLO, workers=0)


def test_the_cheapest_is_that_of_the_least_cost_that_is_shown_with_the_bytes_that_move() -> None:
    def run(cost: BatchCost) -> RunStatistics:
        return cast("RunStatistics", SimpleNamespace(cost=cost, promises=True, surely_keeps=lambda slos: True))

    runs = {"no-batching": run(BatchCost(compute=6e-7)), "recommended": run(BatchCost(compute=1e-7, network=7e-7))}
    assert cheapest_kept(runs, [SLO]) == "no-batching"
