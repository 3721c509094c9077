"""Workers for the base load and a function for the rest: the cheapest that keep the SLOs, against all others and by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batching import policy as policies
from sluice.batching.documents import LinearServiceTime, Plan, ProfilePoint, ServiceProfile, ServiceTime, Slo, read, write
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.baselines import Situation, Workload, written
from sluice.optimizer.billing import Billing
from sluice.optimizer.recommend import (
    Answer,
    Goal,
    Limits,
    Question,
    WorkerOffer,
    choose_overflow,
    choose_workers,
    demand,
    mmpp2,
    overflow_choice,
    poisson,
    recommend,
    simulate_overflow,
)
from sluice.optimizer.recommend.demand import Demand, Drawn
from sluice.optimizer.recommend.horizon import Horizon
from sluice.optimizer.recommend.last_moment import last_moment_beside
from sluice.optimizer.recommend.overflow_setting import OverflowSetting, overflow_cost
from sluice.optimizer.recommend.question import LAMBDA
from sluice.optimizer.recommend.worker_trials import WorkerTrials
from sluice.optimizer.report import wording
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation import Beside, Function
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.simulation.streaming import simulate_deployments

SLO = Slo(0.2, 95)
CORE = 0.0425  # USD per hour
BURSTY = mmpp2(60, 6, 0.2, 0.1)
FUNCTION = ServiceProfile(function="net-{memory_mb}", service_time=LinearServiceTime(0.0, 0.0467), max_batch_size=16)
STARTING = ServiceProfile(
    function="net-{memory_mb}",
    points=[ProfilePoint(1769, b, ServiceTime(0.0467 * b), 0.0467 * b) for b in (1, 2, 4)],
    init={1769: ServiceTime(0.5)},
)


def linear(intercept: float, slope: float, largest: int = 16) -> ServiceTimes:
    mean = intercept + slope * np.arange(1, largest + 1)
    return ServiceTimes(1769, mean[:, None], np.zeros(largest), mean)


CORES = WorkerOffer("core", linear(0.0, 0.0467), CORE, function="http://core:8500")
GPU = WorkerOffer("gpu", linear(0.004, 0.001), 0.526, function="http://gpu:8500")


def asked(arrivals: ArrivalProcess, *offers: WorkerOffer, slo: Slo = SLO, profile: ServiceProfile = FUNCTION) -> Question:
    return Question(arrivals, profile, slo, offers=offers, limits=Limits((1769,)))


def overflow(question: Question, offer: WorkerOffer, policy: policies.Policy, size: int) -> Beside:
    service = question.services[0]
    table = last_moment_beside(service, offer.service, question.promised, size, policy.max_batch_size)
    return Beside(table, service, question.environments_at(1769))


def cost_of(question: Question, policy: policies.Policy, size: int, times: Array, offer: WorkerOffer = CORES) -> float:
    beside = overflow(question, offer, policy, size)
    run = simulate_deployment(offer.under(policy, beside=[beside]), times, np.random.default_rng(8))
    rate = question.arrivals.arrival_rate
    return overflow_cost(run, offer, policy, beside, rate, question.billing).in_all(rate)


@pytest.mark.proof
@pytest.mark.parametrize("arrivals", [poisson(50), BURSTY], ids=["poisson", "bursty"])
def test_no_other_number_of_workers_and_no_other_tables_cost_less(arrivals: ArrivalProcess) -> None:
    question = asked(arrivals, CORES)
    alone = choose_workers(arrivals, CORES, SLO).workers
    best = choose_overflow(question, {"core": alone})
    assert best.keeps_slos and 1 <= best.workers < alone
    times = np.cumsum(arrivals.sample(1 << 18, np.random.default_rng(77)))  # that the search has not seen
    trials = WorkerTrials(Demand(arrivals, (SLO,)), CORES, 0.95, 0)
    tables = [table for workers in range(1, alone) for table in trials.candidates(workers)]
    least = min(cost_of(question, table, size, times) for table, size in product(tables, (1, 2, 4)))
    assert cost_of(question, best.policy, best.overflow.policy.max_batch_size, times) <= 1.01 * least


@pytest.mark.proof
def test_no_table_costs_less_than_the_bound_of_its_number_of_workers() -> None:
    question = asked(BURSTY, CORES)
    search = overflow_choice._Search(question, Demand(BURSTY, (SLO,)), overflow_choice.MOST_SIMULATED, 0.95, 0)
    trials = WorkerTrials(Demand(BURSTY, (SLO,)), CORES, 0.95, 0)
    times = np.cumsum(BURSTY.sample(1 << 18, np.random.default_rng(5)))
    times *= len(times) / BURSTY.arrival_rate / times[-1]  # the bound is for the mean rate
    for side in search.sides(trials, 5):
        costs = [cost_of(question, table, size, times) for table in trials.candidates(side.workers) for size in (1, 2, 4)]
        assert side.least <= min(costs)


def test_a_search_takes_what_nobody_was_late_under_though_its_bursts_are_too_few_to_rely_on_it() -> None:
    question, policy = asked(mmpp2(60, 6, 0.002, 0.001), CORES), policies.greedy(4, 2)
    demand, rng = Demand(question.arrivals, question.promised), np.random.default_rng(1)
    drawn = Drawn(np.cumsum(question.arrivals.sample(33_000, rng)))
    run = demand.run(CORES.under(policy, beside=[overflow(question, CORES, policy, 2)]), drawn, (), rng)
    (again,), (at_last,) = (demand.violations(run, drawn, 0.95, 32, run_again=run_again) for run_again in (True, False))
    assert again.value == at_last.value == 0
    assert again.high < 0.001 and at_last.high > 0.01


@pytest.mark.proof
def test_what_overflows_falls_by_less_and_less_with_every_worker() -> None:
    question = asked(BURSTY, CORES)
    shares = []
    for workers in range(1, 8):
        policy = policies.greedy(4, workers)
        setting = simulate_overflow(question, CORES, policy, overflow(question, CORES, policy, 2))
        shares.append(setting.by_function.value)
    fallen = -np.diff(shares)
    assert (fallen > 0).all() and (np.diff(fallen) < 0.005).all()


@given(st.lists(st.sampled_from([0.0004, 0.003, 0.02, 0.3]), min_size=70, max_size=120), st.data())
@settings(max_examples=40, deadline=None)
def test_nobody_is_late_whatever_the_arrivals_do(gaps: list[float], data: st.DataObject) -> None:
    times = np.cumsum(gaps)
    question = asked(poisson(20), CORES)
    policy = data.draw(
        st.sampled_from(WorkerTrials(Demand(poisson(20), (SLO,)), CORES, 0.95, 0).candidates(data.draw(st.integers(1, 3))))
    )
    beside = overflow(question, CORES, policy, data.draw(st.sampled_from([1, 2, 4])))
    run = simulate_deployment(CORES.under(policy, beside=[beside]), times, np.random.default_rng(0))
    assert run.answered.all() and run.latency.max() <= SLO.latency


def test_it_costs_the_hours_of_the_workers_and_what_the_function_bills() -> None:
    question = asked(BURSTY, CORES, profile=STARTING, slo=Slo(0.2, 90))
    setting = choose_overflow(question, {"core": 5})
    rate, prices = BURSTY.arrival_rate, question.billing.prices
    assert setting.cost.machines == pytest.approx(setting.workers * CORE / 3600 / rate)
    share = setting.by_function.value
    compute = share * 0.0467 * 1769 / 1024 * prices.gb_second("x86_64")
    assert setting.cost.compute == pytest.approx(compute, rel=0.03)  # the first block is not in the share
    per_batch = setting.cost.requests / prices.function.request
    assert share / setting.overflow.policy.max_batch_size <= 1.03 * per_batch and per_batch <= 1.03 * share
    init = per_batch * setting.cold_starts * 0.5 * 1769 / 1024 * prices.gb_second("x86_64")
    assert setting.cold_starts > 0 and setting.cost.init == pytest.approx(init)
    assert setting.cost.fixed_terms == prices.fixed_terms() and setting.cost.logs == per_batch * prices.logs_per_invocation


def test_cold_starts_are_in_the_latency_where_the_profile_knows_how_long_they_take() -> None:
    arrivals = poisson(6.0)
    cold, warm = (asked(arrivals, CORES, profile=profile) for profile in (STARTING, FUNCTION))
    policy = policies.greedy(1, 1)
    starting, started = (simulate_overflow(q, CORES, policy, overflow(q, CORES, policy, 1)) for q in (cold, warm))
    assert starting.violations[0].value > 0 == started.violations[0].value
    assert started.for_any_arrivals and not starting.for_any_arrivals


def test_cold_starts_are_those_told_where_the_profile_does_not_know_how_long_they_take() -> None:
    told = Billing(cold_start_probability=0.25, snap_start=True)
    question, policy = replace(asked(BURSTY, CORES), billing=told), policies.greedy(4, 2)
    setting = simulate_overflow(question, CORES, policy, overflow(question, CORES, policy, 1))
    gb = told.prices.function.snap_start.restore_gb * 1769 / 1024
    assert setting.cost.init == 0 < setting.cost.restore == pytest.approx(0.25 * gb * setting.by_function.value, rel=0.02)


@pytest.mark.full
def test_the_larger_of_two_offers_of_one_price_is_taken() -> None:
    slower = replace(CORES, name="slow", service=linear(0.0, 0.06), function="http://slow:8500")
    setting = choose_overflow(asked(BURSTY, slower, CORES), {"core": 4, "slow": 5}, most=1 << 20)
    assert setting.offer.name == "core" and setting.function == "http://core:8500"


@pytest.mark.parametrize(
    ("offer", "alone", "message"),
    [
        (CORES, {"core": 1}, r"one worker \(core\) keeps the SLOs alone"),
        (replace(CORES, service=linear(0.3, 0.0)), {}, "no number of workers .core. keeps p95 within 0.2 s: a request alone takes"),
        (replace(CORES, function="net-1769"), {}, "no memory size of another function than net-1769 answers a request in time"),
    ],
)
def test_it_is_said_why_there_is_nothing_beside(offer: WorkerOffer, alone: dict[str, int], message: str) -> None:
    with pytest.raises(Infeasible, match=message):
        choose_overflow(asked(BURSTY, offer), alone)


def test_a_function_too_slow_is_nothing_to_overflow_to() -> None:
    fast = replace(CORES, service=linear(0.0, 0.01))
    with pytest.raises(Infeasible, match="of another function than http://core:8500 answers a request in time"):
        choose_overflow(asked(poisson(300), fast, slo=Slo(0.04, 95)))


def test_nothing_is_simulated_where_the_bound_is_beyond_what_something_else_costs(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object) -> None:
        raise AssertionError("a run")

    monkeypatch.setattr(demand, "simulate_deployment", refused)
    with pytest.raises(Infeasible, match="none was found that costs less; no table with any number of them goes below 2") as caught:
        choose_overflow(asked(BURSTY, CORES), cheaper_than=1e-7)
    assert caught.value.best is not None and caught.value.best["cost_per_request"] > 1e-7


def test_the_search_ends_after_so_many_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    simulated = []
    simulate = demand.simulate_deployment

    def counted(deployment, times, rng):  # type: ignore[no-untyped-def]
        if len(times) <= overflow_choice.SEARCHED:  # and not to confirm
            simulated.append(len(times))
        return simulate(deployment, times, rng)

    monkeypatch.setattr(demand, "simulate_deployment", counted)
    assert choose_overflow(asked(BURSTY, CORES), {"core": 6}, most=1 << 21).keeps_slos
    assert 1 << 21 <= sum(simulated) <= (1 << 21) + overflow_choice.SEARCHED


def test_one_function_is_tried_where_none_is_left_anything_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """A core serves all at once for its hours alone: whichever function stands beside it costs the same."""
    simulated = []
    simulate = demand.simulate_deployment

    def counted(deployment, times, rng):  # type: ignore[no-untyped-def]
        simulated.append(deployment.beside[0].service.memory_mb)
        return simulate(deployment, times, rng)

    monkeypatch.setattr(demand, "simulate_deployment", counted)
    points = [ProfilePoint(m, b, ServiceTime(0.02 * b), 0.02 * b) for m in range(512, 1537, 64) for b in (1, 2, 4)]
    quick = replace(CORES, service=linear(0.0, 0.001))
    question = Question(poisson(1), ServiceProfile(function="net-{memory_mb}", points=points), SLO, offers=(quick,))
    setting = choose_overflow(question, {"core": 2})
    assert setting.by_function.value == 0 and setting.memory_mb == 512 and set(simulated) == {512} and len(simulated) < 20


@pytest.mark.full
def test_one_seed_has_one_answer() -> None:
    first, second = (choose_overflow(asked(BURSTY, CORES), {"core": 3}, most=1 << 20, seed=4) for _ in range(2))
    assert first.latency == second.latency and first.policy == second.policy and first.cost == second.cost


def test_a_queue_that_the_function_bounds_forgets_at_any_load() -> None:
    for rate in (18.0, 21.4, 24.0, 200.0):  # of 21.4 that a core serves
        policy = policies.greedy(4, 1)
        horizon = Horizon.beside(poisson(rate), CORES, policy, overflow(asked(poisson(rate), CORES), CORES, policy, 4).policy)
        assert 1 <= horizon.queue < 1000


def test_a_policy_without_servers_is_no_workers() -> None:
    question = asked(poisson(10), CORES)
    with pytest.raises(InvalidInput, match=r"policy.servers: none was given; needed: the number of workers"):
        simulate_overflow(question, CORES, policies.no_batching(), overflow(question, CORES, policies.greedy(1), 1))


@pytest.fixture(scope="module")
def answer() -> Answer:
    return recommend(asked(BURSTY, CORES))


def test_each_of_the_three_wins_where_it_is_cheapest(answer: Answer) -> None:
    assert answer.winner is answer.overflow is not None and next(iter(answer.kinds)) == "workers and function"
    calm = recommend(asked(poisson(3000), replace(GPU, price_per_hour=0.3)))
    assert calm.winner in calm.workers and calm.overflow is None
    assert "Workers with the function beside them are not in the answer: " in " ".join(wording.proof(calm))
    rare = recommend(asked(poisson(0.1), CORES))
    assert rare.winner is rare.best and rare.overflow is None


def test_the_first_sentence_says_what_is_saved_against_the_next_kind(answer: Answer) -> None:
    costs = [candidate.cost.in_all(answer.arrival_rate) for candidate in answer.kinds.values()]
    assert costs == sorted(costs) and len(costs) == 3
    saved = 100 * (1 - costs[0] / costs[1])
    assert wording.headline(answer).endswith(f": {saved:.2g} % less in all than {list(answer.kinds)[1]}.")
    assert "workers and function with a buffer" in wording.verdict(answer)
    assert wording.kept(answer).startswith("95 % within 200 ms: kept for any arrivals one by one, by simulation")


def test_no_tables_are_put_beside_workers_where_none_are_considered() -> None:
    question = replace(asked(BURSTY, CORES), limits=Limits((1769,), policies="size-or-timeout"))
    answer = recommend(question)
    assert answer.overflow is None and answer.refused_overflow == ""


@pytest.mark.full
def test_beyond_the_budget_it_is_not_in_the_answer(answer: Answer) -> None:
    assert answer.overflow is not None
    dear = Goal(max_cost=0.99 * answer.overflow.cost.per_request)
    with pytest.raises(Infeasible, match="no setting keeps"):
        recommend(replace(answer.question, goal=dear))


def test_the_plan_is_what_was_simulated_and_runs_as_predicted(answer: Answer) -> None:
    both = answer.overflow
    assert both is not None
    plan = read(Plan, write(answer.plan("net")))
    assert plan.function == "http://core:8500" and [beside.function for beside in plan.beside] == ["net-1769"]
    assert plan.memory_mb == 1769 and plan.policy is not None and plan.policy.servers == both.workers
    workload = Workload.of_process(BURSTY, 300_000, 9)
    of = Situation(workload, Function(FUNCTION, 1769, environments=LAMBDA), (SLO,), worker=CORES)
    run = simulate_deployments({"plan": written(plan, of)}, workload.run, [SLO.latency])["plan"]
    assert run.violation_ratio() == 0 and run.by_function == pytest.approx(both.by_function.value, rel=0.05)
    assert run.cost.per_request == pytest.approx(both.cost.per_request, rel=0.03)
    assert run.percentile(95).value == pytest.approx(both.percentile(95).value, rel=0.02)
    assert plan.predicted is not None and plan.predicted.cost_per_request == both.cost.per_request


def test_the_first_sentence_compares_with_the_cheapest_of_the_others(answer: Answer) -> None:
    """Which need not be the next: a table of the function that rests on no fit stands before workers that cost less."""
    both, (workers,) = answer.overflow, answer.workers
    assert both is not None and not answer.best.rests_on_fit

    def costing(setting: Any, part: float) -> Any:
        more = part * both.cost.in_all(answer.arrival_rate) - setting.cost.in_all(answer.arrival_rate)
        return replace(setting, cost=replace(setting.cost, machines=setting.cost.machines + more))

    of = replace(answer, best=costing(answer.best, 1.005), workers=(costing(workers, 0.996),))
    assert list(of.kinds) == ["workers and function", "the function alone", "workers alone"]
    assert wording.headline(of).endswith("for 0.4 % more in all than workers alone it rests on no fit.")


@pytest.mark.proof
def test_what_proves_dearer_than_something_else_in_the_longer_run_is_not_taken(
    answer: Answer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The search takes it for cheaper; a longer run that the search did not see comes to a tenth more."""
    question = answer.question
    assert answer.overflow is not None
    seen = answer.overflow.cost.in_all(answer.arrival_rate)

    def dearer(*asked: Any, **others: Any) -> OverflowSetting:
        setting = simulate_overflow(*asked, **others)
        return replace(setting, cost=replace(setting.cost, machines=setting.cost.machines + 0.1 * seen))

    monkeypatch.setattr(overflow_choice, "simulate_overflow", dearer)
    assert choose_overflow(question, cheaper_than=1.2 * seen).keeps_slos
    with pytest.raises(Infeasible, match="none was found that costs less"):
        choose_overflow(question, cheaper_than=1.05 * seen)


def test_what_rests_on_no_fit_may_cost_a_premium_more(answer: Answer) -> None:
    both, (workers,) = answer.overflow, answer.workers
    assert both is not None and both.rests_on_fit is False and workers.rests_on_fit is True
    at = both.cost.in_all(answer.arrival_rate)

    def beside(part: float) -> Answer:
        """Workers alone that cost so much in all, part of what both do, and no function."""
        cheaper = replace(workers, cost=replace(workers.cost, machines=workers.cost.machines + part * at - now))
        return replace(answer, workers=(cheaper,), feasible=False)

    now = workers.cost.in_all(answer.arrival_rate)
    assert beside(0.995).winner is both and beside(0.98).winner is not both
    assert "for 0.5 % more in all than workers alone it rests on no fit." in wording.headline(beside(0.995))
