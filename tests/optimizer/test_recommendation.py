"""The search held against brute force by simulation, and what stands beside its answer."""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs

from sluice.batching import policy as policies
from sluice.batching.documents import LinearServiceTime, Plan, ProfilePoint, ServiceProfile, ServiceTime, Slo, read, write
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.buffer_service.plans import check_waits
from sluice.buffer_service.settings import Settings
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing.cost import Billing, invocation_costs, predict_cost
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH, default_prices
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.function.waiting_time import SizeOrTimeout, predict_batch_size_pmf
from sluice.optimizer.recommend import Goal, Limits, Question, WorkerOffer, WorkerSetting, recommend
from sluice.optimizer.service.times import service_times
from sluice.optimizer.simulation.event_loop import simulate
from sluice.optimizer.simulation.size_or_timeout import simulate_size_or_timeout


def profile(memory_sizes: tuple[int, ...] = (512, 1769), batch_sizes: tuple[int, ...] = (1, 4, 8)) -> ServiceProfile:
    points = []
    for memory_mb in memory_sizes:
        for batch_size in batch_sizes:
            mean = (0.006 + 0.001 * batch_size) * 1769 / memory_mb
            time = ServiceTime(mean, [(0.05, 0.95 * mean), (0.5, mean), (0.95, 1.1 * mean)], 50)
            points.append(ProfilePoint(memory_mb, batch_size, time, math.ceil(mean * 1000) / 1000, 0.002))
    return ServiceProfile(function="mlp-{memory_mb}", points=points)


LINEAR = ServiceProfile(function="f", service_time=LinearServiceTime(0.001, 0.0003), max_batch_size=32)


def test_no_cheaper_setting_keeps_the_slo_by_brute_force_simulation() -> None:
    arrivals, slo = mmpp2(300, 20, 2, 0.5), Slo(0.06, 95)
    answer = recommend(Question(arrivals, profile(), slo))
    times = np.cumsum(arrivals.sample(40_000, np.random.default_rng(6)))
    cheapest = math.inf
    for memory_mb in (512, 1769):
        service = service_times(profile(), memory_mb)
        for batch_size in range(1, 9):
            for timeout in np.linspace(0, 0.06, 25):
                waits, sizes = simulate_size_or_timeout(times, batch_size, timeout)
                slowest = np.repeat(np.quantile(service.response, 0.5, axis=1)[sizes - 1], sizes)
                if np.quantile(waits + slowest, 0.95) <= 0.06 * 0.98:  # in time with 2 % to spare for the noise of one path
                    pmf = np.bincount(sizes, minlength=batch_size + 1)[1:] / len(sizes)
                    cheapest = min(cheapest, predict_cost(pmf, service).per_request)
    best = answer.best
    assert best.cost.per_request < cheapest * 1.02
    run = simulate(best.policy, times, service_times(profile(), best.memory_mb), np.random.default_rng(0))
    assert run.percentile_of_answered(95) < 0.06 * 1.03
    assert run.cost(service_times(profile(), best.memory_mb)).per_request == pytest.approx(best.cost.per_request, rel=0.05)
    assert best.latency.percentile(95) <= 0.06 * (1 + 1e-6)


def test_the_answer_holds_what_it_is_compared_with() -> None:
    answer = recommend(Question(poisson(200), profile(), Slo(0.06, 95)))
    assert answer.no_batching.batch_size == 1 and answer.no_batching_keeps_slo
    costs = [s.cost.per_request for s in (answer.best, *answer.runners_up)]
    assert costs == sorted(costs) and len(costs) == 6
    assert "frontier" not in vars(answer)  # which takes as long as all else
    frontier = [(p.latency, p.cost_per_request) for p in answer.frontier]
    assert all(a[0] < b[0] and a[1] > b[1] for a, b in itertools.pairwise(frontier)) and len(frontier) > 2
    assert answer.gap <= 2e-4 and not answer.at_longest_timeout


def test_at_the_break_even_rate_the_saving_pays_for_the_buffer() -> None:
    answer = recommend(Question(poisson(200), profile(), Slo(0.06, 95)))
    rate, best, none = answer.break_even_arrival_rate, answer.best, answer.no_batching
    assert rate is not None
    service = service_times(profile(), best.memory_mb)
    batched = predict_cost(predict_batch_size_pmf(poisson(rate), best.batch_size, best.timeout), service)
    saving = none.cost.by_request - batched.by_request
    assert saving * rate * SECONDS_PER_MONTH == pytest.approx(sum(default_prices().fixed_terms().values()), rel=2e-3)


def test_who_starts_cold_here_does_not_at_the_break_even_rate() -> None:
    starts = structs.replace(profile(), init={memory_mb: ServiceTime(0.8) for memory_mb in (512, 1769)})
    seldom, often = (recommend(Question(poisson(rate), starts, Slo(3, 95))) for rate in (0.1, 300))
    assert seldom.no_batching.cost.init > 1e-8 > often.no_batching.cost.init
    assert seldom.best.batch_size == often.best.batch_size == 8
    assert seldom.break_even_arrival_rate == pytest.approx(often.break_even_arrival_rate, rel=0.01)


def test_the_plan_is_ready_for_the_buffer() -> None:
    arrivals = poisson(200)
    answer = recommend(Question(arrivals, profile(), Slo(0.06, 95)))
    plan = read(Plan, write(answer.plan("mlp", arrivals.document())))
    assert plan.function == f"mlp-{answer.best.memory_mb}" and plan.memory_mb == answer.best.memory_mb
    assert plan.policy.policy() == policies.size_or_timeout(answer.best.batch_size, answer.best.timeout)
    assert plan.predicted is not None and plan.predicted.latency["p95"] <= 0.06 * (1 + 1e-6)


def test_headroom_keeps_a_tighter_slo() -> None:
    answer = recommend(Question(poisson(200), profile(), Slo(0.06, 95), goal=Goal(headroom=0.2)))
    assert answer.best.latency.percentile(95) <= 0.048 * (1 + 1e-6)
    assert answer.plan("mlp").slo == Slo(0.06, 95)


@functools.cache
def law_of(arrivals: ArrivalProcess, timeout: float) -> SizeOrTimeout:
    """The batching law up to batches of 8, whatever the memory size and the budget."""
    return SizeOrTimeout(arrivals, 8, timeout)


@pytest.mark.parametrize("factor", [1.002, 1.1, 1.5, 2.5])
@pytest.mark.parametrize("arrivals", [poisson(50), poisson(200), mmpp2(300, 20, 2, 0.5)])
@pytest.mark.proof
def test_no_setting_within_the_budget_is_quicker(arrivals: ArrivalProcess, factor: float) -> None:
    slo = Slo(0.1, 95)
    budget = recommend(Question(arrivals, profile(), slo)).best.cost.per_request * factor
    quickest = recommend(Question(arrivals, profile(), slo, goal=Goal(objective="latency", max_cost=budget))).best
    assert quickest.cost.per_request <= budget * (1 + 1e-9)
    least = math.inf
    for memory_mb in (512, 1769):
        service = service_times(profile(), memory_mb)
        compute, fee = invocation_costs(service)
        for timeout in np.linspace(0, 0.1, 401):
            law = law_of(arrivals, timeout)
            cost = (law.batch_size_pmf @ compute + fee) / law.mean_batch_size
            for n in np.flatnonzero(cost <= budget):
                times = np.linspace(0, min(least, 0.2), 3)[1:]
                within = law.fraction_within(service.response[None], service.quantile_levels, times)[0, n]
                if within[-1] >= 0.95:  # quicker than the least so far
                    least = min(least, predict_latency(arrivals, service, int(n) + 1, timeout).percentile(95))
    assert quickest.latency.percentile(95) <= least * (1 + 1e-4)


def test_a_budget_that_only_a_narrow_stretch_of_timeouts_keeps_is_kept() -> None:
    fixed = ServiceProfile(function="f", service_time=LinearServiceTime(0.006, 0.001), max_batch_size=16)
    asked = Limits((1769,))
    cheapest = recommend(Question(poisson(50), fixed, Slo(0.5, 95), limits=asked)).best.cost.per_request
    for factor in (1.0002, 1.001, 1.005):
        assert (
            recommend(
                Question(poisson(50), fixed, Slo(0.5, 95), limits=asked, goal=Goal(max_cost=cheapest * factor))
            ).best.cost.per_request
            <= cheapest * factor
        )


def test_promises_on_different_scales_are_both_searched_finely() -> None:
    slos = [Slo(20.0, 99), Slo(0.04, 90)]
    fixed = ServiceProfile(function="f", service_time=LinearServiceTime(0.006, 0.001), max_batch_size=16)
    far = recommend(Question(poisson(200), fixed, slos, limits=Limits((1769,)))).best
    near = recommend(Question(poisson(200), fixed, [slos[1], Slo(0.08, 99)], limits=Limits((1769,)))).best
    assert far.cost.per_request <= near.cost.per_request * (1 + 2e-4)


def test_an_slo_below_the_fastest_is_infeasible_and_says_the_best() -> None:
    with pytest.raises(Infeasible, match=r"no setting keeps p95 within 0.001 s: the best reachable is .* at 1769 MB") as caught:
        recommend(Question(poisson(10), profile(), Slo(0.001, 95)))
    best = caught.value.best
    assert best is not None and best["memory_mb"] == 1769 and best["batch_size"] == 1
    answer = recommend(Question(poisson(10), profile(), Slo(best["latency"] * 1.0001, 95)))  # what it says is reachable is
    assert answer.best.memory_mb == 1769


def test_a_budget_below_the_cheapest_is_infeasible() -> None:
    with pytest.raises(Infeasible, match="the cheapest costs") as caught:
        recommend(Question(poisson(200), profile(), Slo(0.1, 95), goal=Goal(max_cost=1e-12)))
    assert caught.value.best is not None and caught.value.best["cost_per_request"] > 1e-12


def test_the_payload_bounds_the_batch() -> None:
    answer = recommend(Question(poisson(2000), profile(), Slo(0.2, 95), billing=Billing(payload_bytes=2 * 2**20)))
    assert answer.best.batch_size <= 3
    with pytest.raises(InvalidInput, match="payload_bytes: 7340032"):
        recommend(Question(poisson(2000), profile(), Slo(0.2, 95), billing=Billing(payload_bytes=7 * 2**20)))


def test_a_linear_profile_needs_a_memory_size() -> None:
    assert recommend(Question(poisson(200), LINEAR, Slo(0.06, 95), limits=Limits((1024,)))).best.memory_mb == 1024
    with pytest.raises(InvalidInput, match="as a linear profile names none"):
        recommend(Question(poisson(200), LINEAR, Slo(0.06, 95)))


def gpu(price_per_hour: float, name: str = "gpu") -> WorkerOffer:
    service = service_times(LINEAR, 1024)
    return WorkerOffer(name, service, price_per_hour, function="http://gpu:8080")


def test_a_machine_that_costs_less_per_request_wins_and_is_in_the_plan() -> None:
    arrivals = poisson(2000)
    answer = recommend(Question(arrivals, profile(), Slo(0.06, 95), offers=[gpu(0.1), gpu(1000.0, "golden gpu")]))
    gpus = answer.winner
    assert isinstance(gpus, WorkerSetting) and gpus.name == "gpu" and [w.name for w in answer.workers] == ["gpu", "golden gpu"]
    assert gpus.cost.per_request == pytest.approx(gpus.workers * 0.1 / 3600 / 2000)
    assert gpus.cost.per_request < answer.best.cost.per_request
    plan = read(Plan, write(answer.plan("mlp", arrivals.document())))
    assert plan.function == "http://gpu:8080" and plan.memory_mb is None and plan.policy.servers == gpus.workers


def test_a_machine_that_costs_more_stands_beside_the_function() -> None:
    answer = recommend(Question(poisson(2), profile(), Slo(0.06, 95), offers=[gpu(1.0)]))
    assert answer.winner is answer.best and len(answer.workers) == 1
    assert answer.plan("mlp").function.startswith("mlp-")


def test_a_machine_answers_where_no_function_can() -> None:
    answer = recommend(Question(poisson(50), profile(), Slo(0.008, 95), offers=[gpu(0.5)]))
    assert not answer.feasible and answer.winner is answer.workers[0]
    assert answer.workers[0].latency["p95"].high <= 0.008


@pytest.mark.full
def test_the_quickest_within_a_budget_may_be_a_machine() -> None:
    budget = recommend(Question(poisson(200), profile(), Slo(0.06, 95))).best.cost.per_request * 1.05
    asked = Goal("latency", budget)
    dear, cheap = gpu(3600 * 200 * budget * 2, "dear"), gpu(3600 * 200 * budget / 2, "cheap")
    answer = recommend(Question(poisson(200), profile(), Slo(0.06, 95), offers=[dear, cheap], goal=asked))
    assert isinstance(answer.winner, WorkerSetting) and answer.winner.name == "cheap" and "dear" in answer.refused_workers
    assert answer.winner.latency["p95"].high < answer.best.latency.percentile(95)


def test_a_machine_that_cannot_keep_the_slo_says_why() -> None:
    offers = [WorkerOffer("slow", service_times(profile(), 512), 1.0), gpu(1000.0)]
    answer = recommend(Question(poisson(50), profile(), Slo(0.015, 95), offers=offers, goal=Goal(max_cost=1e-5)))
    assert "a request alone takes" in answer.refused_workers["slow"]
    assert "the cheapest that keep the SLOs cost" in answer.refused_workers["gpu"] and answer.workers == ()
    with pytest.raises(Infeasible, match="no setting keeps p95 within 0.001 s"):
        recommend(Question(poisson(50), profile(), Slo(0.001, 95), offers=offers[:1]))


def test_several_percentiles_are_all_kept() -> None:
    arrivals = mmpp2(300, 20, 2, 0.5)
    loose, tight = Slo(0.08, 95), Slo(0.0805, 99)
    one, both = (
        recommend(Question(arrivals, profile(), slos, limits=Limits(policies="size-or-timeout")))
        for slos in (loose, [loose, tight])
    )
    assert one.best.latency.percentile(99) > both.question.promised[1].latency
    assert both.best.latency.percentile(95) <= 0.08 + 1e-6 and both.best.latency.percentile(99) <= 0.0805 + 1e-6
    assert both.best.cost.per_request > one.best.cost.per_request
    assert both.plan("mlp").other_slos == [tight]
    with pytest.raises(Infeasible, match="no setting keeps p99 within 0.009 s"):
        recommend(Question(arrivals, profile(), [loose, Slo(0.009, 99)]))


def test_the_setting_is_predicted_at_other_rates() -> None:
    arrivals = poisson(200)
    answer = recommend(Question(arrivals, profile(), Slo(0.06, 95)))
    for row in answer.sensitivity:
        service = service_times(profile(), answer.best.memory_mb)
        there = predict_latency(arrivals.sped_up(row.factor), service, answer.best.batch_size, answer.best.timeout)
        assert row.arrival_rate == pytest.approx(200 * row.factor)
        assert row.latency["p95"] == pytest.approx(there.percentile(95)) and row.keeps_slos == (there.percentile(95) <= 0.06)
    assert [row.factor for row in answer.sensitivity] == [0.8, 1.2]


def test_an_slo_that_is_just_met_or_just_missed_is_answered() -> None:
    time = ServiceTime(0.15, [(0.0, 0.1), (1.0, 0.2)])
    one = ServiceProfile(function="f", points=[ProfilePoint(512, 1, time, 0.15)])
    for missed in (0.0, 1e-12):
        assert recommend(Question(poisson(10), one, Slo(0.195 - missed, 95))).best.latency.percentile(95) == pytest.approx(0.195)
    for missed in (5e-9, 1e-7):
        with pytest.raises(Infeasible, match="the best reachable is 0.195 s"):
            recommend(Question(poisson(10), one, Slo(0.195 - missed, 95)))


@pytest.mark.parametrize("rate", [1e-7, 150_000.0])
def test_rates_beyond_those_of_the_break_even_are_answered(rate: float) -> None:
    answer = recommend(Question(poisson(rate), profile(), Slo(0.06, 95), limits=Limits(max_batch_size=2)))
    assert answer.break_even_arrival_rate is None or answer.break_even_arrival_rate > 0


def test_given_timeouts_are_the_only_ones() -> None:
    answer = recommend(Question(poisson(200), profile(), Slo(0.06, 95), limits=Limits(timeouts=np.array([0.03, 0.01, 0.03]))))
    assert answer.best.timeout in (0.01, 0.03) and answer.gap is None
    with pytest.raises(InvalidInput, match=r"timeouts: \[-1.0, 0.01\] is not allowed"):
        recommend(Question(poisson(200), profile(), Slo(0.06, 95), limits=Limits(timeouts=np.array([0.01, -1.0]))))


def test_the_bound_on_the_timeout_is_named_where_it_binds() -> None:
    answer = recommend(Question(poisson(200), profile(), Slo(0.06, 95), limits=Limits(max_timeout=0.01)))
    assert answer.best.timeout <= 0.01 and answer.at_longest_timeout


def test_no_hold_is_considered_that_callers_of_a_buffer_do_not_wait_for() -> None:
    asked = {latency: Question(poisson(200), profile(), Slo(latency, 95)) for latency in (20.0, 40.0, 60.0)}
    assert [question.longest_timeout for question in asked.values()] == [2 * asked[20.0].promised[0].latency, 50.0, 50.0]
    assert [question.premium > 0 for question in asked.values()] == [True, True, False]  # a table that is cut off is worth none
    plan = recommend(Question(poisson(0.05), profile(), Slo(3600.0, 95))).plan("m", poisson(0.05).document())
    check_waits(plan, Settings().request_timeout)


def test_cold_starts_and_payloads_enter_the_bill() -> None:
    warm = ServiceProfile(function="f-{memory_mb}", points=profile().points, init={512: ServiceTime(2.0), 1769: ServiceTime(1.0)})
    answer = recommend(
        Question(
            poisson(200), warm, Slo(0.06, 95), billing=Billing(cold_start_probability=0.01, payload_bytes=10_000, answer_bytes=100)
        )
    )
    assert answer.best.cost.init > 0 and answer.best.cost.moving > 0
    assert answer.best.cost.per_request > recommend(Question(poisson(200), warm, Slo(0.06, 95))).best.cost.per_request
    snapped = recommend(
        Question(poisson(200), warm, Slo(0.06, 95), billing=Billing(cold_start_probability=0.01, snap_start=True))
    ).best.cost
    assert snapped.restore > 0 and snapped.fixed_terms["snapshot"] > 0


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda: Goal("joy"), "objective: 'joy'"),
        (lambda: Goal("latency"), "max_cost: none was given"),
        (lambda: Goal(max_cost=-1.0), "max_cost: -1.0"),
        (lambda: Goal(headroom=1.0), "headroom: 1.0"),
        (lambda: Limits(timeouts=(-0.1,)), "timeouts"),
        (lambda: Limits(max_batch_size=0), "max_batch_size: 0"),
        (lambda: Limits(max_timeout=-1.0), "max_timeout: -1.0"),
        (lambda: Limits(timeouts=(0.1,), max_timeout=1.0), "max_timeout: 1.0 is not allowed; allowed: only without timeouts"),
        (lambda: Billing(answer_bytes=-1), "answer_bytes: -1"),
        (lambda: Billing(architecture="vax"), "architecture: 'vax'"),
        (lambda: Question(10.0, profile(), ()), r"slos: \(\) is not allowed; allowed: at least one SLO"),
        (
            lambda: Question(10.0, profile(), Slo(0.1, 95), limits=Limits((333,))),
            "memory_mb: 333 is not allowed; allowed: one of the profile's: 512, 1769",
        ),
    ],
)
def test_a_question_that_makes_no_sense_names_its_field(ask: Callable[[], object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ask()


@pytest.mark.proof
def test_a_least_latency_that_is_just_beyond_the_budget_when_predicted_for_itself_gives_way_to_a_later_one() -> None:
    """Bursts of 60 000 requests/s: what a batch costs changes within microseconds of timeout, between those that are compared."""
    points = [ProfilePoint(1769, b, ServiceTime(0.012 + 0.003 * b), 0.012 + 0.003 * b, 0.002) for b in (1, 2, 4, 8, 16, 32)]
    bursts = ArrivalProcess(np.array([[-60000.0, 0], [0, -2]]), np.array([[56000, 4000], [1.93, 0.07]]))
    asked = Question(bursts, ServiceProfile(function="f", points=points), Slo(0.3, 99), goal=Goal("latency", max_cost=4e-7))
    for question in (asked, replace(asked, limits=Limits(policies="size-or-timeout"))):
        best = recommend(question).best
        assert best.cost.per_request <= 4e-7 * (1 + 1e-9) and best.latency.percentile(99) < 0.026
