"""What a profile may be wrong by: its tail's sampling error and the way's spread, each against draws or by hand."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.batching.documents import LinearServiceTime, ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.quantiles import quantile_points
from sluice.optimizer.arrivals import poisson
from sluice.optimizer.recommend import Goal, Question
from sluice.optimizer.service.doubt import highest_quantile, seconds_in_doubt


def profiled(time: ServiceTime, way: ServiceTime | None = None) -> ServiceProfile:
    return ServiceProfile(function="f", points=[ProfilePoint(1769, 1, time, time.mean)], way=way)


def sampled(n: int, rng: np.random.Generator) -> ServiceTime:
    """n runs of a service time of 10 ms and an exponential tail of 2 ms."""
    runs = 0.010 + rng.exponential(0.002, n)
    return ServiceTime(float(runs.mean()), quantile_points(runs.tolist()), n)


@pytest.mark.parametrize(("n", "quantile"), [(30, 0.95), (200, 0.95), (200, 0.99)])
def test_the_true_quantile_is_within_what_is_kept_free_as_often_as_is_said(n: int, quantile: float) -> None:
    rng, true = np.random.default_rng(n), 0.010 - 0.002 * np.log(1 - quantile)
    within = []
    for _ in range(400):
        time = sampled(n, rng)
        levels, seconds = zip(*time.quantiles, strict=True)
        within.append(true <= np.interp(quantile, levels, seconds) + seconds_in_doubt(profiled(time), [1769], quantile, 0.95))
    assert 0.85 < np.mean(within) <= 1  # the scale of the tail is a sample itself


def test_service_times_are_known_up_to_the_highest_quantile_that_all_sizes_have() -> None:
    few, many = (ServiceTime(0.01, [(0.5, 0.01), (top, 0.012)], 20) for top in (0.95, 0.99))
    points = [ProfilePoint(1769, b, time, 0.01) for b, time in ((1, many), (2, few), (4, ServiceTime(0.02)))]
    assert highest_quantile(ServiceProfile(function="f", points=points)) == 0.95
    assert highest_quantile(ServiceProfile(function="f", points=points[2:])) == 1.0
    assert highest_quantile(ServiceProfile(function="f", service_time=LinearServiceTime(0.001, 0.01))) == 1.0


def test_more_runs_leave_less_in_doubt_and_more_confidence_more() -> None:
    few, many = (profiled(ServiceTime(0.01, [(0.9, 0.012), (0.95, 0.014)], n)) for n in (20, 2000))
    assert seconds_in_doubt(many, [1769], 0.95, 0.95) == pytest.approx(seconds_in_doubt(few, [1769], 0.95, 0.95) / 10)
    assert seconds_in_doubt(few, [1769], 0.95, 0.95, within=0.009) == 0  # no promise of 9 ms has batches of 10
    assert seconds_in_doubt(few, [1769], 0.95, 0.99) > seconds_in_doubt(few, [1769], 0.95, 0.95)


def test_beyond_its_last_quantile_a_tail_goes_on_as_an_exponential_one() -> None:
    time = ServiceTime(0.01, [(0.9, 0.010), (0.95, 0.010 + 0.002 * np.log(2))], 10**12)  # a tail of 2 ms
    assert seconds_in_doubt(profiled(time), [1769], 0.99, 0.95) == pytest.approx(0.002 * np.log(5), rel=1e-3)


@pytest.mark.parametrize(
    "time", [ServiceTime(0.01), ServiceTime(0.01, [(0.95, 0.012)], 30), ServiceTime(0.01, [(0.9, 0.01), (1.0, 0.02)], 9)]
)
def test_where_nothing_is_known_of_the_tail_nothing_is_kept_free(time: ServiceTime) -> None:
    assert seconds_in_doubt(profiled(time), [1769], 0.95, 0.95) == 0


def test_of_the_way_its_spread_is_kept_free_and_what_its_mean_may_be_wrong_by() -> None:
    way = ServiceTime(0.003, [(0.159, 0.002), (0.5, 0.003), (0.841, 0.004), (0.95, 0.006)], 100)
    asked = profiled(ServiceTime(0.01), way)
    assert seconds_in_doubt(asked, [1769], 0.95, 0.95) == pytest.approx(0.006 - 0.003 + 1.645 * 0.001 / 10, rel=1e-3)
    assert seconds_in_doubt(asked, [1769], 0.95, 0.5) == 0
    assert seconds_in_doubt(profiled(ServiceTime(0.01), ServiceTime(0.005)), [1769], 0.95, 0.95) == 0


def test_a_question_keeps_it_free_of_its_slos_and_of_a_short_one_half_at_most() -> None:
    time = ServiceTime(0.01, [(0.9, 0.012), (0.95, 0.014)], 20)
    free = seconds_in_doubt(profiled(time), [1769], 0.95, 0.95)
    question = Question(poisson(10), profiled(time), (Slo(0.2, 95), Slo(0.0101, 95.5)), goal=Goal(headroom=0.1))
    assert question.promised[0].latency == pytest.approx(0.18 - free) and question.promised[1].latency == pytest.approx(
        0.0101 * 0.9 / 2
    )
    assert question.named(Slo(0.2, 95)) == f"p95 within 0.2 s, of which {0.02 + free:.4g} s are kept free"
    law = ServiceProfile(function="f", service_time=LinearServiceTime(0.01, 0.001), max_batch_size=8)
    assert seconds_in_doubt(law, [1769], 0.95, 0.95) == 0
