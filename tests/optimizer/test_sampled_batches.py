"""The law of batching from drawn arrivals: beside the exact one where both run, alone where that would take too long."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.batching import policy as policies
from sluice.batching.documents import ServiceProfile, Slo, read
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.function.batch_paper import BatchPaper
from sluice.optimizer.function.falling_holds import FallingHolds
from sluice.optimizer.function.latency import SIMULATED, LatencyPrediction, predict_falling_holds, predict_latency
from sluice.optimizer.function.sampled_batches import ArrivalSample, Draw, SampledHolds
from sluice.optimizer.function.waiting_time import SizeOrTimeout
from sluice.optimizer.recommend import Limits, Question, recommend
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.simulation.event_loop import simulate

MANY, FEW = Draw(64, 12288), Draw(24, 1536)
BURSTY = mmpp2(400, 20, 2, 0.2)
THREE_PHASES = ArrivalProcess(
    np.array([[-3.0, 1, 0.5], [0.2, -20, 5], [1, 0, -100]]), np.array([[1, 0.5, 0], [10, 4, 0.8], [9, 50, 40]])
)


def trains(fast: float = 26_000.0, slow: float = 58.0) -> ArrivalProcess:
    """As `fit` returns for packets: gaps are Erlang of order 4 at a ``fast`` rate, or exponential at a ``slow`` one (1/s)."""
    D0 = np.diag([-fast] * 4 + [-slow]) + np.diag([fast] * 3 + [0.0], 1)
    D1 = np.zeros((5, 5))
    D1[3, [0, 4]], D1[4, [0, 4]] = (0.9 * fast, 0.1 * fast), (0.3 * slow, 0.7 * slow)
    return ArrivalProcess(D0, D1)


def service(batch_size: int, levels: Array | None = None) -> ServiceTimes:
    mean = np.asarray(0.004 + 0.0005 * np.arange(1, batch_size + 1), dtype=np.float64)
    spread: Array = np.ones(1) if levels is None else levels
    return ServiceTimes(1024, mean[:, None] * spread, np.full(batch_size, 0.001), mean)


@pytest.mark.parametrize(
    ("arrivals", "timeout"), [(BURSTY, 0.05), (THREE_PHASES, 0.2), (trains(), 0.02)], ids=["bursty", "map3", "trains"]
)
@pytest.mark.parametrize("levels", [None, np.array([0.8, 0.9, 1.0, 1.3])], ids=["fixed", "random"])
def test_drawn_arrivals_meet_the_exact_law_within_their_interval(
    arrivals: ArrivalProcess, timeout: float, levels: Array | None
) -> None:
    batch_size = 12
    exact = SizeOrTimeout(arrivals, batch_size, timeout)
    drawn = SampledHolds(ArrivalSample(arrivals, batch_size, MANY), np.full(batch_size - 1, timeout))
    assert drawn.mean_batch_size == pytest.approx(exact.mean_batch_size, rel=0.02)
    assert np.abs(drawn.batch_size_pmf - exact.batch_size_pmf).max() < 0.02
    times, of = np.linspace(0.005, timeout + 0.02, 9), service(batch_size, levels)
    surely, there = (law.fraction_within(of.response[None], of.quantile_levels, times)[0] for law in (drawn, exact))
    assert (surely <= there + 2e-3).mean() > 0.95 and np.abs(there - surely).max() < 0.03
    latencies = drawn.latencies(of.response, of.quantile_levels)
    assert (np.abs(latencies.share(times) - there[-1]) <= 1.5 * latencies.half(times) + 1e-3).all()


def test_holds_that_fall_are_drawn_as_they_are_exact() -> None:
    holds = np.array([0.05, 0.04, 0.02, 0.02, 0.001])
    exact = FallingHolds(BURSTY, holds)
    drawn = SampledHolds(ArrivalSample(BURSTY, 6, MANY), holds)
    assert np.abs(drawn.batch_size_pmf - exact.batch_size_pmf).max() < 0.02
    times, of = np.linspace(0.005, 0.07, 9), service(6, np.array([0.8, 1.2]))
    latencies = drawn.latencies(of.response, of.quantile_levels)
    away = np.abs(latencies.share(times) - exact.fraction_within(of.response, of.quantile_levels, times))
    assert (away <= 1.5 * latencies.half(times) + 1e-3).all() and latencies.seconds.min() >= 0.0036
    every = drawn.fraction_within(of.response[None], of.quantile_levels, times)[0, -1]
    assert every == pytest.approx(latencies.share(times) - latencies.half(times), abs=2e-3)


def test_beyond_the_time_in_which_every_batch_fills_a_hold_changes_nothing() -> None:
    endless, long = (predict_latency(poisson(1e5), service(64), 64, timeout) for timeout in (3600.0, 0.02))
    assert endless.method == long.method == "exact" and endless.batch_size_pmf[-1] == pytest.approx(1, abs=1e-9)
    times = np.linspace(0.036, 0.04, 50)
    assert endless.cdf(times) == pytest.approx(long.cdf(times), abs=1e-9)
    table = policies.deadline(3600.0, (0.004 + 0.0005 * np.arange(1, 65)).tolist(), servers=None)
    assert predict_falling_holds(poisson(1e5), service(64), table).cdf(times) == pytest.approx(long.cdf(times), abs=1e-9)


def test_arrivals_of_any_rate_and_hold_are_answered_and_met_by_the_event_loop() -> None:
    arrivals, batch_size, timeout = trains(), 64, 20.0
    found = predict_latency(arrivals, service(batch_size), batch_size, timeout)
    assert found.method == SIMULATED and found.confidence == 0.95
    times = np.cumsum(arrivals.sample(100_000, np.random.default_rng(5)))
    run = simulate(policies.size_or_timeout(batch_size, timeout), times, service(batch_size), np.random.default_rng(6))
    for percentile in (50, 95):
        low, high = found.quantile_interval(percentile / 100)
        seen = run.percentile(percentile)
        assert low <= seen.high and seen.low <= high and high - low < 0.2 * high
        assert low <= found.percentile(percentile) <= high
    assert found.mean_batch_size == pytest.approx(run.mean_batch_size, rel=0.01)
    assert found.surely_within(0.3) < found.probability_within(0.3)
    table = policies.deadline(timeout, service(batch_size).mean_response.tolist(), servers=None)
    assert predict_falling_holds(arrivals, service(batch_size), table).method == SIMULATED
    assert BatchPaper(arrivals, service(batch_size).mean_response, timeout).batch_size_pmf[-1] == pytest.approx(1)


@pytest.mark.full
@pytest.mark.parametrize("slo", [pytest.param(0.3, marks=pytest.mark.proof), 2.0])
def test_a_recommendation_is_made_for_whatever_a_fit_returns_and_its_slo_is_surely_kept(slo: float) -> None:
    profile = read(
        ServiceProfile, b'{"function": "f", "service_time": {"intercept": 0.004, "slope": 0.0005}, "max_batch_size": 32}'
    )
    limits = Limits(memory_sizes=(1769,), policies="size-or-timeout")
    answer = recommend(Question(trains(), profile, (Slo(slo, 95),), limits=limits))
    best = answer.best
    assert best.latency.method == SIMULATED and best.keeps(answer.slos) and best.batch_size > 1
    assert best.percentile(95).high <= slo * (1 + 1e-6) and best.confidence == 0.95
    times = np.cumsum(trains().sample(50_000, np.random.default_rng(7)))
    run = simulate(best.policy, times, service(32).up_to(best.batch_size), np.random.default_rng(8))
    assert (run.latency <= slo - 0.001).mean() > 0.93  # the profile has no overhead, these service times a millisecond


def test_phases_that_are_hardly_ever_left_have_their_share_of_what_is_drawn() -> None:
    slow = mmpp2(100.0, 1.0, 1e-7, 1e-7)
    sample = ArrivalSample(slow, 8, Draw(200, 200))
    of_fast = float((sample.times[:, -1] < 50).mean())
    assert of_fast == pytest.approx(slow.embedded[0], abs=1 / 200)
    law = SampledHolds(ArrivalSample(slow, 8, Draw(64, 4096)), np.full(7, 0.1))
    assert law.mean_batch_size[-1] == pytest.approx(SizeOrTimeout(slow, 8, 0.1).mean_batch_size[-1], rel=0.05)


def test_the_same_is_drawn_every_time_and_what_is_drawn_is_bounded() -> None:
    first, again = (ArrivalSample(BURSTY, 4, FEW).times for _ in range(2))
    assert (first == again).all()
    assert ArrivalSample(BURSTY, 128, FEW).times.shape == (24, 1536)
    with pytest.raises(InvalidInput, match="holds: 7 is not allowed; allowed: at most 3"):
        SampledHolds(ArrivalSample(BURSTY, 4, FEW), np.zeros(7))
    with pytest.raises(InvalidInput, match="seconds >= 0 that do not rise"):
        SampledHolds(ArrivalSample(BURSTY, 4, FEW), np.array([0.1, 0.2]))


def test_an_exact_law_has_no_interval() -> None:
    found: LatencyPrediction = predict_latency(BURSTY, service(4), 4, 0.05)
    assert found.confidence is None and found.surely_within(0.03) == found.probability_within(0.03)
    with pytest.raises(InvalidInput, match="method: 'exact' is not allowed; allowed: simulated"):
        found.quantile_interval(0.95)
