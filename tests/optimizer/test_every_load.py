"""A plan for every load: what it costs beyond who knew the rate, what it says, and the document that the buffer follows."""

import itertools
from dataclasses import replace
from functools import cache

import msgspec
import numpy as np
import pytest

from sluice.batching.documents import LinearServiceTime, Plan, ProfilePoint, ServiceProfile, ServiceTime, Slo, read, write
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals import mmpp2, poisson
from sluice.optimizer.billing import Billing
from sluice.optimizer.billing.cost import cost_of_parts, predict_cost
from sluice.optimizer.recommend import Answer, EveryLoad, Goal, Limits, Question, choose_every_load, machine_offer, recommend
from sluice.optimizer.recommend import every_load as module
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.report import wording
from sluice.optimizer.report.alternatives import alternatives
from sluice.optimizer.report.documents import answer_document
from sluice.optimizer.service.composed import composed
from sluice.optimizer.simulation.function import Function

CORE = 1769


@cache
def perceptron() -> ServiceProfile:
    """That of docs/policy-zoo.md: 5.6 + 0.74 b ms on a core, up to 32."""
    points = []
    for memory_mb, n in itertools.product((885, CORE), (1, 2, 4, 8, 16, 32)):
        seconds = (0.0056 + 0.00074 * n) * CORE / memory_mb
        points.append(ProfilePoint(memory_mb, n, ServiceTime(seconds), seconds))
    init = {memory_mb: ServiceTime(0.5) for memory_mb in (885, CORE)}
    return ServiceProfile(function="perceptron-{memory_mb}:live", points=points, init=init)


def question(rate: float = 5.0, latency: float = 0.1, **others: object) -> Question:
    return Question(poisson(rate), perceptron(), (Slo(latency, 95),), **{"goal": Goal(loads=(0.1, 1000.0)), **others})  # type: ignore[arg-type]


@cache
def plan_for(rate: float = 5.0, latency: float = 0.1, loads: tuple[float, float] = (0.1, 1000.0)) -> EveryLoad:
    return chosen(question(rate, latency), loads)


def chosen(asked: Question, loads: tuple[float, float] = (0.1, 1000.0)) -> EveryLoad:
    plan = choose_every_load(FunctionSettings(asked), loads)
    assert plan is not None
    return plan


@cache
def answer() -> Answer:
    return recommend(question())


@pytest.mark.full
@pytest.mark.parametrize("latency", [0.1, pytest.param(0.5, marks=pytest.mark.proof)])
def test_one_plan_is_within_two_per_cent_of_the_cheapest_table_at_every_rate_and_keeps_the_promise(latency: float) -> None:
    plan = plan_for(5.0, latency)
    for rate in (0.5, 5.0, 50.0, 300.0):
        factor = rate / 5.0
        assert plan.sizes.usd(plan.assignment, factor) <= 1.02 * plan.sizes.cheapest_table(factor)[1]
        run = plan.run_at(factor)
        in_time = (run.latency <= latency) | run.cold[run.batch_of]
        assert run.answered.all() and in_time.all() and run.estimate_violations(latency).high < 0.01


def test_the_cost_at_each_load_is_met_by_simulation() -> None:
    warm = Question(poisson(5), msgspec.structs.replace(perceptron(), init={}), (Slo(0.1, 95),))
    for at in chosen(warm).loads:
        assert at.simulated_cost == pytest.approx(at.cost_per_request, rel=0.006)  # four standard errors of a run
        assert at.late[0].value == 0


@pytest.mark.full
@pytest.mark.parametrize("latency", [0.1, pytest.param(0.5, marks=pytest.mark.proof)])
def test_it_is_met_with_cold_starts_as_well_and_late_are_those_alone(latency: float) -> None:
    for at in plan_for(5.0, latency).loads:
        assert at.simulated_cost == pytest.approx(at.cost_per_request, rel=0.006)
        assert at.late[0].value <= 3 * at.cold_starts + 0.001  # the environments that the first batches start


@pytest.mark.full
def test_where_a_run_ends_before_environments_have_started_they_are_there_and_the_answer_says_so() -> None:
    slow = {memory_mb: ServiceTime(20.0) for memory_mb in (885, CORE)}  # at 1000/s a sixth of the run
    asked = Question(poisson(1000), msgspec.structs.replace(perceptron(), init=slow), (Slo(0.1, 95),), goal=Goal(loads=(0.1, 1.0)))
    found = recommend(asked)
    plan = found.every_load
    assert plan is not None and [at.warm for at in plan.loads] == [False, True, True]
    assert plan.percentile(95).high <= 0.1 and plan.keeps(asked.slos)
    assert all(at.late[0].value < 0.001 for at in plan.loads)
    assert "Runs at 316.2 requests/s and more are over before" in wording.every_load(found)[-1]
    assert [at["warm"] for at in answer_document(found, found.plan("perceptron"))["every_load"]["loads"]] == [False, True, True]


def test_it_stands_for_the_function_and_its_plan_has_each_function_beside_the_first() -> None:
    found, plan = answer(), answer().every_load
    assert plan is not None and found.winner is plan and plan.keeps(found.slos)
    written = read(Plan, write(found.plan("perceptron")))
    names = [written.function, *(beside.function for beside in written.beside)]
    assert names == [f"perceptron-{of.service.memory_mb}:live" for of in plan.functions] and len(set(names)) == 2
    assert written.memory_mb == plan.memory_mb
    rule = written.all_routes[0].rule()
    for n, j in enumerate(plan.assignment, 1):
        table = rule.tables[names.index(f"perceptron-{found.question.services[j].memory_mb}:live")]
        assert table.hold[n] == plan.whole.hold[n] and table.take[n] == n


def test_the_bill_is_that_of_each_function_by_its_share_of_the_requests() -> None:
    plan = plan_for()
    pmf = plan.sizes.batch_size_pmf(plan.assignment, 1.0)
    billed = 0.0
    for n, j in enumerate(plan.assignment, 1):
        alone = np.zeros(n)
        alone[-1] = 1.0
        service = plan.sizes.question.services[j]
        cold = plan.sizes.cold_starts(pmf, plan.assignment, 1.0)[j].batches
        batch = predict_cost(alone, service, Billing(cold_start_probability=cold), init_duration=0.5)
        billed += float(pmf[n - 1]) * n * batch.per_request
    assert plan.cost.per_request == pytest.approx(billed / plan.mean_batch_size, rel=1e-9)
    assert plan.cost.per_request == pytest.approx(plan.sizes.usd(plan.assignment, 1.0), rel=1e-9)
    assert plan.cost.init > 0


def test_what_a_month_costs_is_paid_once_and_a_snapshot_for_each_memory_size() -> None:
    snap = Billing(snap_start=True)
    small, large = (predict_cost(np.ones(2) / 2, s, snap) for s in question().services)
    both = cost_of_parts([(0.25, 885, small), (0.75, CORE, large)])
    assert both.compute == pytest.approx(0.25 * small.compute + 0.75 * large.compute)
    assert both.fixed_terms["snapshot"] == small.fixed_terms["snapshot"] + large.fixed_terms["snapshot"]
    assert both.fixed_terms["cache"] == small.fixed_terms["cache"]


def test_what_it_says() -> None:
    plan = answer().every_load
    assert plan is not None
    assert plan.instruction == (
        "Hold requests until 32 are there or waiting for one more would make the oldest late, and let the size of the batch choose "
        "the function: 1 and 32 with 885 MB; 2 to 31 with 1769 MB."
    )
    assert wording.kept(answer()).startswith("95 % within 100 ms: kept, by simulation p95 100 ms")
    worst = f"From 0.5 to 5000 requests/s the plan costs at most {100 * plan.worst.regret:.2f} % more than the cheapest table of"
    assert wording.every_load(answer())[0].startswith(worst)
    assert "times less than no batching" in wording.saving(answer()) and "; it pays from" in wording.verdict(answer())


def test_where_one_function_is_best_for_all_sizes_it_says_that() -> None:
    points = [
        msgspec.structs.replace(point, billed_duration=point.billed_duration * (1 + (point.memory_mb < CORE)))
        for point in perceptron().points
    ]
    dearer = msgspec.structs.replace(perceptron(), points=points)  # with little memory at every size
    plan = chosen(Question(poisson(5), dearer, (Slo(0.1, 95),)))
    assert len(plan.functions) == 1 and plan.beside == []
    assert plan.instruction.endswith("and run the function with 1769 MB, which is best for all sizes.")


def test_its_document_tells_the_functions_their_sizes_and_the_regret_at_each_load() -> None:
    found = answer()
    document = answer_document(found, found.plan("perceptron"))["every_load"]
    assert isinstance(document, dict)
    assert [(of["memory_mb"], of["sizes"]) for of in document["functions"]] == [(885, [(1, 1), (32, 32)]), (1769, [(2, 31)])]
    assert [at["factor"] for at in document["loads"]] == pytest.approx(np.geomspace(0.1, 1000, 9))
    assert document["loads"][2]["simulated_regret"] == pytest.approx(document["loads"][2]["regret"], abs=0.006)
    assert document["loads"][2]["regret"] == document["loads"][2]["cost_per_request"] / document["loads"][2]["least_cost"] - 1


def test_under_bursts_and_random_service_times_no_more_are_late_than_the_percentile_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "N_SIMULATED", 1 << 15)
    points = []
    for memory_mb, n in itertools.product((885, CORE), (1, 8)):
        mean = (0.0056 + 0.00074 * n) * CORE / memory_mb
        points.append(ProfilePoint(memory_mb, n, ServiceTime(mean, [(0.5, mean), (0.95, 1.2 * mean), (1, 1.5 * mean)], 50), mean))
    profile = ServiceProfile(function="f-{memory_mb}", points=points)
    asked = Question(mmpp2(200, 5, 4, 1), profile, (Slo(0.05, 95), Slo(0.06, 99)))
    plan = chosen(asked, (0.1, 10.0))
    for at in plan.loads:
        assert all(share.low <= slo.error_budget for share, slo in zip(at.late, asked.slos, strict=True))
    assert plan.percentile(95).value <= 0.05 and plan.percentile(99).high <= 0.08


def test_service_times_composed_are_those_of_the_function_of_each_size() -> None:
    small, large = question().services
    of = composed((small, large), (0, 0, 1))
    assert of.response[:, 0] == pytest.approx([small.response[0, 0], small.response[1, 0], large.response[2, 0]])
    assert of.billed_duration == pytest.approx([*small.billed_duration[:2], large.billed_duration[2]])
    with pytest.raises(InvalidInput, match="batch_size: 3 is not allowed; allowed: 1 to 2, as the profile measured at 1769 MB"):
        composed((small, large.up_to(2)), (0, 0, 1))


def test_it_can_be_run_as_a_deployment() -> None:
    plan = plan_for()
    deployment = plan.deployment(Function(perceptron(), CORE))
    assert [side.function for side in deployment.serving] == ["perceptron-885:live", "perceptron-1769:live"]
    assert deployment.max_batch_size == 32 and not plan.for_any_arrivals


def test_it_is_taken_within_premium_and_budget_and_else_the_answer_says_what_it_costs() -> None:
    found, plan = answer(), answer().every_load
    assert plan is not None and found.by_function is found.winner is plan

    def beside_a_setting_for(part: float) -> Answer:
        cost = replace(found.best.cost, compute=part * plan.cost.compute, requests=part * plan.cost.requests)
        return replace(found, best=replace(found.best, cost=cost), runners_up=())

    assert beside_a_setting_for(0.995).by_function is plan
    without = beside_a_setting_for(0.98)
    assert without.by_function is without.winner is without.best
    assert wording.every_load(without) == [
        "A plan for every load costs 2.04 % more at this rate than the cheapest setting; --premium says how much it may."
    ]
    poor = replace(found.question, goal=Goal(max_cost=plan.cost.per_request * 0.999, loads=(0.1, 1000.0)))
    asked = replace(found, settings=FunctionSettings(poor))
    assert asked.by_function is found.best
    assert wording.every_load(asked) == [
        f"A plan for every load costs {1e6 * plan.cost.per_request:.4f} USD per million requests, beyond the budget."
    ]
    alone = replace(found, best=found.no_batching)
    assert alone.by_function is alone.best and wording.every_load(alone) == []


def test_where_workers_win_the_function_shown_is_the_plan_for_every_load_and_said_not_to_be_written() -> None:
    machine = ServiceProfile(function="http://gpu:8500", service_time=LinearServiceTime(0.004, 0.0005), max_batch_size=8)
    offers = (machine_offer("gpu", machine, price_per_hour=0.0001, max_batch_size=8),)
    found = recommend(question(goal=Goal(loads=(1.0, 10.0)), offers=offers))
    assert found.every_load is found.by_function and found.winner in found.workers
    function = next(of for of in alternatives(found) if of.name == "function")
    assert function.cost == found.by_function.cost and f"{1e6 * function.cost.per_request:.4f}" in wording.saving(found)
    said = "the function alone, by a plan for every load that is not the one written, costs at most"
    assert said in wording.every_load(found)[0]


def test_there_is_none_where_no_function_has_a_moment_to_spare() -> None:
    quickest = min(service.response[0, 0] for service in question().services)
    assert choose_every_load(FunctionSettings(question(latency=float(quickest))), (0.1, 10.0)) is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (lambda: Goal(loads=(2.0, 10.0)), "loads: .* allowed: two multiples of the arrival rate with 1 between them, 1e-06 to 1e"),
        (lambda: Goal(loads=(0.1, 1e7)), "loads: "),
        (lambda: Goal(loads=(0.1, 1.0, 10.0)), "loads: "),  # type: ignore[arg-type]
        (lambda: Goal("latency", 1e-6, loads=(0.1, 10.0)), "loads: .* allowed: none for objective latency"),
        (lambda: question(limits=Limits(policies="size-or-timeout")), "loads: .* allowed: none where tables .* are not considered"),
        (lambda: question(limits=Limits(timeouts=(0.1,))), "loads: .* allowed: none where tables"),
    ],
)
def test_what_makes_no_sense_is_refused_with_the_field(asked: object, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        asked()  # type: ignore[operator]
