"""Promises kept surely: what a size-or-timeout keeps free for what its fit may be wrong by."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from scipy.stats import t as student_t

from sluice.batching.documents import LinearServiceTime, ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.optimizer.arrivals import ArrivalProcess, mmpp2, poisson
from sluice.optimizer.recommend import Answer, Goal, Limits, Question, machine_offer, recommend
from sluice.optimizer.recommend.comparisons import frontier
from sluice.optimizer.recommend.confidence import Confidence, jackknife_doubt
from sluice.optimizer.recommend.function_choice import choose_setting
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.recommend.last_moment import seconds_left
from sluice.optimizer.recommend.overflow_choice import choose_overflow
from sluice.optimizer.recommend.worker_number import choose_workers
from sluice.optimizer.recommend.worker_setting import simulate_workers
from sluice.optimizer.report import wording

SLO = Slo(0.1, 95)
PROFILE = ServiceProfile(
    function="f",
    points=[
        ProfilePoint(1024, n, ServiceTime(mean, [(0.05, 0.95 * mean), (0.5, mean), (0.95, 1.1 * mean)], 10**18), mean, 0.002)
        for n in (1, 4, 8)
        for mean in [math.ceil(6 + n) / 1000]
    ],
)
FIT, WITHOUT = poisson(60), tuple(poisson(rate) for rate in (57, 58, 59, 60, 60, 61, 62, 63))


def asked(
    without: Sequence[ArrivalProcess] = WITHOUT, policies: str = "size-or-timeout", arrivals: ArrivalProcess = FIT, **goal: object
) -> Question:
    return Question(arrivals, PROFILE, SLO, goal=Goal(**goal), limits=Limits(policies=policies), without=tuple(without))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def plain() -> Answer:
    return recommend(asked(()))


@pytest.fixture(scope="module")
def sure() -> Answer:
    return recommend(asked())


def in_doubt(question: Question, answer: Answer) -> float:
    """(3.1), by hand."""
    best = answer.best
    settings = FunctionSettings(question)
    shares = [
        settings.size_or_timeout(0, best.batch_size, best.timeout, other).latency.probability_within(SLO.latency)
        for other in question.without
    ]
    k = len(shares)
    error = math.sqrt(2 * (k - 1) / k * sum((share - np.mean(shares)) ** 2 for share in shares))
    return float(student_t.ppf(question.goal.confidence, k - 1)) * error


def test_a_timeout_keeps_free_what_the_fit_may_be_wrong_by_and_costs_little_more(plain: Answer, sure: Answer) -> None:
    free = in_doubt(asked(), sure)
    assert sure.in_doubt == pytest.approx((free,)) and free > 0.001
    assert sure.best.latency.probability_within(SLO.latency) >= 0.95 + free - 1e-8
    assert plain.best.latency.probability_within(SLO.latency) < 0.95 + in_doubt(asked(), plain)
    assert plain.best.cost.per_request < sure.best.cost.per_request < 1.03 * plain.best.cost.per_request


def test_the_fits_without_each_block_are_asked_once_for_a_setting(sure: Answer) -> None:
    settings = FunctionSettings(asked())
    one, other = (
        settings.size_or_timeout(0, sure.best.batch_size, timeout) for timeout in (sure.best.timeout, sure.best.timeout / 2)
    )
    laws = settings.without_each_block(one)
    assert settings.without_each_block(replace(one)) is laws and len(laws) == len(WITHOUT)
    assert settings.without_each_block(other) is not laws


def test_at_even_odds_nothing_is_kept_free(plain: Answer) -> None:
    even = recommend(asked(confidence=0.5))
    assert (even.best.batch_size, even.best.timeout) == (plain.best.batch_size, pytest.approx(plain.best.timeout, rel=1e-9))
    assert even.in_doubt == (0.0,) and plain.in_doubt == (0.0,)


def test_more_confidence_costs_no_less(sure: Answer) -> None:
    surer = recommend(asked(confidence=0.99))
    assert surer.in_doubt[0] > sure.in_doubt[0] and surer.best.cost.per_request >= sure.best.cost.per_request


def test_of_arrivals_that_nothing_is_known_of_a_timeout_is_left_in_which_every_batch_is_in_time(plain: Answer) -> None:
    answer = recommend(asked([poisson(rate) for rate in (1, 3, 60, 1000)]))
    left = seconds_left(asked().services[0], [SLO])
    assert answer.best.timeout <= left[answer.best.batch_size - 1] < plain.best.timeout
    assert answer.in_doubt == (0.0,) and answer.best.cost.per_request < answer.no_batching.cost.per_request


def test_a_table_that_waits_to_the_last_moment_wins_where_the_timeout_has_to_keep_more_free() -> None:
    certain = recommend(asked((), "all", mmpp2(200, 20, 2, 0.5), premium=0.0)).best
    others = [mmpp2(200, low, 2, rate) for low, rate in ((4, 0.1), (60, 1.5), (4, 0.5), (60, 0.5))]
    uncertain = recommend(asked(others, "all", mmpp2(200, 20, 2, 0.5), premium=0.0))
    assert certain.table is None and uncertain.best.table is not None and uncertain.in_doubt == (0.0,)


def test_nothing_is_in_doubt_of_what_waits_for_nobody() -> None:
    settings = FunctionSettings(asked())
    confidence = Confidence(settings, [SLO])
    assert confidence.share_in_doubt(settings.unbatched()[0]).tolist() == [0.0]
    kept_free = confidence.whole.at(0.2, np.array([0]))
    assert kept_free.shape == (1, settings.search.max_batch_size, 1) and kept_free[0, 0, 0] == 0 and kept_free[0, 1:].all()


def test_a_budget_that_only_an_unsure_setting_keeps_is_infeasible_with_the_cheapest_that_is_sure(plain: Answer) -> None:
    budget = plain.best.cost.per_request * (1 + 1e-6)
    with pytest.raises(Infeasible, match="the cheapest costs") as refused:
        recommend(asked(max_cost=budget))
    assert refused.value.best["cost_per_request"] > budget


def test_the_sentence_says_how_surely(plain: Answer, sure: Answer) -> None:
    assert "; with 95 % confidence, as " in wording.kept(sure) and "confidence" not in wording.kept(plain)


@pytest.mark.parametrize("confidence", [0.4, 1.0, math.nan])
def test_a_confidence_that_is_none_is_refused(confidence: float) -> None:
    with pytest.raises(InvalidInput, match="confidence: .* a probability, 0.5 <= confidence < 1"):
        Goal(confidence=confidence)


def test_one_block_alone_is_no_uncertainty() -> None:
    with pytest.raises(InvalidInput, match="without: 1 is not allowed"):
        asked([poisson(50)])


# --- what is simulated, and the frontier


def offered(without: Sequence[ArrivalProcess], slo: Slo = SLO, policies: str = "all", **goal: object) -> Question:
    service = LinearServiceTime(0.03, 0.003)
    machine = machine_offer("core", ServiceProfile(function="http://core", service_time=service, max_batch_size=8), 0.02, 8)
    goals = Goal(**goal)  # type: ignore[arg-type]
    return Question(FIT, PROFILE, slo, offers=(machine,), goal=goals, limits=Limits(policies=policies), without=tuple(without))


@pytest.mark.proof
def test_workers_keep_free_what_the_fit_may_be_wrong_by() -> None:
    rates = range(40, 80, 10)
    both = offered(()), offered([poisson(rate) for rate in rates])
    plain, sure = (choose_workers(FIT, of.offers[0], of.promised, question=of) for of in both)
    assert plain.in_doubt == () and len(sure.in_doubt) == 1 and sure.in_doubt[0] > 0 and sure.keeps_slos
    assert sure.violations[0].high >= sure.in_doubt[0] and sure.workers >= plain.workers
    shares = [1 - simulate_workers(poisson(r), sure.offer, sure.policy, SLO).violations[0].value for r in rates]
    assert sure.in_doubt[0] == pytest.approx(float(jackknife_doubt(np.array(shares)[:, None], 0.95)[0]))


@pytest.mark.proof
def test_workers_that_no_number_makes_sure_of_are_refused() -> None:
    few = replace(offered([]).offers[0], max_workers=2)
    of = replace(offered([poisson(r) for r in (30, 300)]), offers=(few,))
    assert choose_workers(FIT, few, of.promised).keeps_slos
    with pytest.raises(Infeasible, match="whatever the fit is wrong by"):
        choose_workers(FIT, few, of.promised, question=of)


@pytest.mark.proof
def test_workers_with_the_function_beside_them_keep_free_what_the_fit_may_be_wrong_by() -> None:
    sure = choose_overflow(offered(WITHOUT, Slo(0.15, 95)))
    assert len(sure.in_doubt) == 1 and sure.keeps_slos and sure.keeps([Slo(0.15, 95)])
    assert sure.in_doubt[0] < 0.05  # the function takes over in time whatever arrives


def test_every_point_of_the_frontier_keeps_free_what_the_fit_may_be_wrong_by() -> None:
    plain, sure = (FunctionSettings(asked(without)) for without in ((), WITHOUT))
    points = {}
    for settings in (plain, sure):
        best = settings.size_or_timeout(0, 8, 0.05)
        points[settings] = frontier(settings, best, settings.unbatched()[0])
    for point in points[sure]:
        slo = Slo(point.latency, SLO.percentile)
        setting = sure.size_or_timeout(0, point.batch_size, point.timeout)
        confidence = Confidence(sure, [slo])
        assert confidence.keeps(setting, confidence.share_in_doubt(setting))
    doubtful = [
        not confidence.keeps(setting, confidence.share_in_doubt(setting))
        for point in points[plain]
        for confidence in [Confidence(sure, [Slo(point.latency, SLO.percentile)])]
        for setting in [sure.size_or_timeout(0, point.batch_size, point.timeout)]
    ]
    assert any(doubtful)


SELDOM, WITHOUT_SOME = poisson(0.0102), tuple(poisson(0.0102 * (1 + k / 250)) for k in (-3, -2, -1, 0, 0, 1, 2, 3))


def asked_of_seldom(without: Sequence[ArrivalProcess] = WITHOUT_SOME, rate: ArrivalProcess = SELDOM, **goal: object) -> Question:
    profile = structs.replace(PROFILE, init={1024: ServiceTime(0.5)})
    return Question(rate, profile, SLO, goal=Goal(**goal), without=tuple(without))  # type: ignore[arg-type]


def test_how_many_start_cold_is_in_doubt_as_well_and_the_function_is_kept_warm_where_a_promise_hangs_on_it() -> None:
    """4.7 % start cold by the fit, of 5 % that may be late; two per cent more or less of the requests are a third of a per cent."""
    by_the_fit, surely = (recommend(asked_of_seldom(without, loads=(0.1, 1000))) for without in ((), WITHOUT_SOME))
    assert by_the_fit.feasible and 0.045 < by_the_fit.best.cold_starts < 0.05
    assert not surely.feasible and surely.kept_warm is not None and surely.winner is surely.kept_warm


def test_what_is_in_doubt_of_cold_starts_is_what_is_of_calling_the_function_directly() -> None:
    settings = FunctionSettings(asked_of_seldom())
    confidence, direct = Confidence(settings, [SLO]), settings.unbatched()[0]
    shares = [[1 - settings.size_or_timeout(0, 1, 0.0, other).cold_starts] for other in WITHOUT_SOME]
    expected = jackknife_doubt(np.array(shares), 0.95)
    assert confidence.share_in_doubt(direct) == pytest.approx(expected) and expected[0] > 0.003
    assert confidence.none.at(0.0, np.array([0])) == pytest.approx(expected[0]) and not confidence.keeps(direct, expected)
    with pytest.raises(Infeasible, match=r"no setting surely keeps .*4\.7 % of the invocations start cold, give or take 0\.\d+ %"):
        choose_setting(settings, lambda done: None)


def test_few_cold_starts_are_in_no_doubt_nor_those_that_are_in_time() -> None:
    for question, slo in (
        (asked_of_seldom([poisson(0.02 + k / 1000) for k in range(4)], poisson(0.02)), SLO),  # 0.25 %
        (asked_of_seldom(), Slo(1.0, 95)),
    ):
        confidence = Confidence(FunctionSettings(question), [slo])
        assert confidence.of_cold_starts.tolist() == pytest.approx([0.0], abs=1e-9)
