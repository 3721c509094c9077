"""What a recommendation costs on arrivals that were recorded, and whether they choose it."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from msgspec import structs

from sluice.batching.documents import ArrivalDocument, LinearServiceTime, ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals import poisson
from sluice.optimizer.billing import Billing
from sluice.optimizer.billing.prices import SECONDS_PER_MONTH
from sluice.optimizer.fits import arrival_document, fit_arrivals
from sluice.optimizer.recommend import Answer, Goal, Question, machine_offer, recommend
from sluice.optimizer.recommend.beforehand import environments_at_once
from sluice.optimizer.recommend.confidence import Confidence
from sluice.optimizer.recommend.function_choice import NEAR, choose_setting, ranked_on_record
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.recommend.recorded import MOST_RUN, function_of, recorded, seen_on_record
from sluice.optimizer.report import wording
from sluice.optimizer.service.mix import SizeMix
from sluice.optimizer.simulation import simulate_deployments
from sluice.optimizer.simulation.batch_means import LEAST_UNSURE
from sluice.optimizer.traces.record import MOST_RECORDED, latest, recorded_times, recorded_us
from sluice.optimizer.traces.trace import Trace

SLO = Slo(0.15, 95.0)


def profile() -> ServiceProfile:
    points = []
    for memory_mb, n in product((885, 1769), (1, 2, 4, 8)):
        seconds = (0.006 + 0.001 * n) * 1769 / memory_mb
        points.append(ProfilePoint(memory_mb, n, ServiceTime(seconds), seconds))
    return ServiceProfile(function="mlp-{memory_mb}", points=points, init={m: ServiceTime(0.4) for m in (885, 1769)})


@pytest.fixture(scope="module")
def trace() -> Trace:
    """Bursts that grow from the beginning to the end."""
    rng = np.random.default_rng(3)
    return Trace(np.concatenate([np.r_[rng.exponential(1.0), rng.exponential(0.01, 1 + k // 15)] for k in range(200)]))


@pytest.fixture(scope="module")
def question(trace: Trace) -> Question:
    fitted = fit_arrivals(trace, "mmpp2")
    return Question(fitted.arrivals, profile(), (SLO,), without=fitted.without, recorded=recorded(trace.times))


@pytest.fixture(scope="module")
def answer(question: Question) -> Answer:
    return recommend(question)


@pytest.fixture(scope="module")
def law(question: Question) -> Answer:
    """The same without what was recorded."""
    return recommend(replace(question, recorded=None))


def test_every_setting_of_the_answer_costs_what_a_run_over_the_record_comes_to(answer: Answer) -> None:
    question = answer.question
    assert question.recorded is not None
    for setting in (answer.best, answer.no_batching, *answer.runners_up):
        function = function_of(question)
        deployment = setting.deployment(function.starting(environments_at_once(question, setting, function)))
        run = simulate_deployments({"": deployment}, question.recorded)[""]
        assert setting.cost.per_request == pytest.approx(run.cost.per_request, rel=1e-12)
        assert setting.cost.fixed_terms == (setting.fitted.fixed_terms if setting.fitted else None)


def test_without_a_record_nothing_is_billed_on_one(question: Question, law: Answer) -> None:
    assert law.best.fitted is None and law.arrival_rate == question.arrivals.arrival_rate


def test_as_many_that_come_next_cost_between_ends_that_are_the_wider_the_more_the_record_varies(answer: Answer) -> None:
    again = answer.cost_again
    assert again is not None and answer.question.recorded is not None
    assert again.value == answer.winner.cost.by_request
    assert again.low < 0.9 * again.value and 1.1 * again.value < again.high  # its bursts grow tenfold
    regular = replace(answer.question, recorded=recorded(np.arange(5000) / 10))
    steady = seen_on_record(regular, answer.winner).cost
    assert steady is not None
    assert steady.low / steady.value == pytest.approx(1 - LEAST_UNSURE, abs=0.005)  # blocks begin within batches
    assert steady.high / steady.value == pytest.approx(1 + LEAST_UNSURE, abs=0.005)
    said = wording.billed_on(answer)[0]
    assert f"As many that come next would cost {1e6 * again.low:.4f} to {1e6 * again.high:.4f}" in said


def test_a_promise_that_is_broken_on_the_arrivals_recorded_is_said_before_all_else(answer: Answer) -> None:
    assert answer.on_record is not None and len(answer.on_record.late) == 1
    assert answer.broken == () and wording.late_in_run(answer) == ""
    rng = np.random.default_rng(3)
    at_once = np.repeat(np.cumsum(rng.exponential(900.0, 200)), 20)  # which start cold together
    asked = replace(answer, settings=FunctionSettings(replace(answer.question, recorded=recorded(at_once))))
    (broken,) = asked.broken
    slo, share = broken
    assert slo == answer.slo and share.low > slo.error_budget
    said = wording.late_in_run(asked)
    assert said.startswith(f"Not kept on the arrivals that were recorded, by simulation: {100 * share.value:.3g} % are later than ")


@pytest.mark.parametrize("n", [66, 98, 99])
def test_a_record_of_few_arrivals_is_run_too(answer: Answer, n: int) -> None:
    few = replace(answer.question, recorded=recorded(np.arange(n) / 10))
    seen = seen_on_record(few, answer.winner)
    assert seen is not None and seen.cost is not None and len(seen.late) == 1


@pytest.mark.full
def test_what_moves_is_the_same_next_time_and_workers_by_the_hour_cost_by_how_fast_requests_come(
    question: Question, answer: Answer
) -> None:
    moved = replace(question, billing=replace(question.billing, payload_bytes=1000, answer_bytes=1000))
    plain, moving = answer.cost_again, recommend(moved).cost_again
    assert plain is not None and moving is not None and moving.value > plain.value
    assert moving.high - moving.low == pytest.approx(plain.high - plain.low)
    worker = ServiceProfile(function="http://w:80", service_time=LinearServiceTime(0.004, 0.0005), max_batch_size=8)
    offer = machine_offer("w", worker, price_per_hour=1e-5, max_batch_size=8)
    of_workers = recommend(replace(question, offers=(offer,))).workers[0]
    rng, slower = np.random.default_rng(2), np.r_[np.full(1500, 0.1), np.full(1500, 0.2)]
    same, other = (replace(question, recorded=recorded(np.cumsum(gaps))) for gaps in (rng.permutation(slower), slower))
    steady, drifting = (seen_on_record(asked, of_workers).cost for asked in (same, other))
    assert steady is not None and drifting is not None
    assert drifting.high - drifting.low > 3 * (steady.high - steady.low)


@pytest.mark.full
def test_of_no_record_and_of_what_is_free_nothing_is_said_of_what_comes_next(question: Question, law: Answer) -> None:
    assert law.cost_again is None and "come next" not in wording.billed_on(law)[0]
    free = machine_offer(
        "w", ServiceProfile(function="http://w:80", service_time=LinearServiceTime(0.004, 0.0005), max_batch_size=8), 0.0, 8
    )
    assert seen_on_record(question, recommend(replace(question, offers=(free,))).workers[0]).cost is None


def test_who_takes_the_place_of_the_best_by_prediction_keeps_the_slo_as_surely(question: Question) -> None:
    settings = FunctionSettings(question)
    choice = choose_setting(settings, lambda done: None)
    best, *others = ranked_on_record(settings, choice).settings
    confidence = Confidence(settings, question.promised)
    assert confidence.keeps(best, confidence.share_in_doubt(best))
    assert best.fitted is not None and best.fitted.per_request <= (1 + NEAR) * choice.settings[0].cost.per_request
    for other in others:
        assert other.fitted is not None
        sure = confidence.keeps(other, confidence.share_in_doubt(other))
        near = other.fitted.per_request <= (1 + NEAR) * choice.settings[0].cost.per_request
        worth = 1 + (0.0 if best.rests_on_fit else question.premium)
        assert not (sure and near) or other.cost.per_request >= best.cost.per_request / worth


def test_an_answer_that_would_be_cheaper_on_record_but_is_not_sure_stays_behind(question: Question) -> None:
    settings = FunctionSettings(question)
    choice = choose_setting(settings, lambda done: None)
    unsure = next(of for of in choice.settings[1:] if of.table is None)
    bad = replace(unsure, cost=replace(unsure.cost, compute=0.0), latency=settings.size_or_timeout(0, 8, 0.149).latency)
    confidence = Confidence(settings, question.promised)
    assert not confidence.keeps(bad, confidence.share_in_doubt(bad))
    ranked = ranked_on_record(settings, replace(choice, settings=(choice.settings[0], bad)))
    assert ranked.settings[0].policy == choice.settings[0].policy


def test_the_break_even_rate_agrees_with_the_verdict_on_the_record(answer: Answer) -> None:
    rate = answer.break_even_arrival_rate
    assert rate is not None and wording.pays(answer) == (answer.arrival_rate >= rate)


def test_the_break_even_rate_is_where_the_recorded_costs_meet(question: Question, answer: Answer) -> None:
    """With a fixed cost that the saving here just pays, the rate is the one here."""
    saved = answer.no_batching.cost.by_request - answer.best.cost.by_request
    prices = question.billing.prices
    per_month = saved * answer.arrival_rate * SECONDS_PER_MONTH
    dear_prices = structs.replace(prices, buffer=structs.replace(prices.buffer, per_month=per_month))
    dear = recommend(replace(question, billing=Billing(dear_prices)))
    assert dear.break_even_arrival_rate == pytest.approx(answer.arrival_rate, rel=0.01)


def test_a_budget_that_the_process_is_within_and_the_record_is_not_is_said(law: Answer) -> None:
    quick, fitted = law.question, law.best.cost.per_request
    slow = recorded(np.arange(0.0, 2000.0, 2.0))  # who comes alone costs more
    answer = recommend(replace(quick, recorded=slow, goal=Goal(max_cost=1.2 * fitted)))
    assert "that is beyond the budget, which the process is within" in wording.billed_on(answer)[0]


def test_few_arrivals_are_no_record() -> None:
    assert recorded(np.arange(5.0)) is None and recorded(None) is None


def test_what_is_run_is_bounded_and_the_latest() -> None:
    seen = recorded(np.arange(MOST_RUN + 10.0))
    assert seen is not None and seen.n_requests == MOST_RUN and seen.times[0] == 0 and seen.span == MOST_RUN - 1


def test_a_document_carries_the_arrivals_to_half_a_microsecond(trace: Trace) -> None:
    document = arrival_document(fit_arrivals(trace, "poisson"))
    times = recorded_times(document)
    assert times is not None and np.abs(times - trace.times).max() <= 0.51e-6
    assert recorded_times(document.alone()) is None


def test_a_document_carries_the_latest_of_a_long_trace() -> None:
    long = Trace(np.full(MOST_RECORDED + 5, 0.001))
    assert recorded_us(long) == [1000] * (MOST_RECORDED - 1)
    assert len(latest(long.times)) == MOST_RECORDED


@pytest.mark.parametrize(
    ("gaps", "message"),
    [
        ([5, -1], "recorded_us: -1 is not allowed; allowed: whole microseconds >= 0"),
        ([0, 0], "recorded_us: 'all 0' is not allowed; allowed: arrivals at different times"),
    ],
)
def test_a_record_that_is_none_is_named(gaps: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        ArrivalDocument(model="poisson", arrival_rate=1.0, D0=[[-1.0]], D1=[[1.0]], recorded_us=gaps)


@pytest.mark.parametrize("mix", [None, SizeMix(np.ones(1), np.ones(1))])
def test_a_record_has_the_size_of_each_request_where_requests_have_sizes_and_else_none(mix: SizeMix | None) -> None:
    seen = recorded(np.arange(1000.0), np.ones(1000) if mix is None else None)
    with pytest.raises(InvalidInput, match="recorded: 1000 is not allowed; allowed: with the size of each, where requests have"):
        Question(poisson(5), profile(), (SLO,), mix=mix, recorded=seen)


def test_sizes_are_those_of_the_latest_that_are_run_or_drawn_from_the_mix_always_the_same() -> None:
    sizes = np.arange(MOST_RUN + 10.0)
    seen = recorded(sizes, sizes)
    assert seen is not None and seen.sizes is not None and (seen.sizes == sizes[10:]).all()
    one, other = (recorded(np.arange(1000.0), None, SizeMix.of(np.array([1.0, 2.0, 2.0]))) for _ in range(2))
    assert one is not None and other is not None and one.sizes is not None and other.sizes is not None
    assert (one.sizes == other.sizes).all() and one.sizes.mean() == pytest.approx(5 / 3, abs=0.06)
