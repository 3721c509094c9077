"""Drift of the arrival rate: seen where it is, and not where bursts alone make the rate vary."""

from collections.abc import Callable

import numpy as np
import pytest

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.traces.poisson_counts import poisson_p_value
from sluice.optimizer.traces.stationarity import judge_stationarity
from sluice.optimizer.traces.trace import Trace

STEADY = {
    "poisson": poisson(10),
    "slow bursts": mmpp2(100, 10, 0.1, 0.05),
    "fast bursts": mmpp2(50, 5, 1, 2),
    "rare bursts": mmpp2(400, 20, 2, 0.2),
}


def with_rate(process: ArrivalProcess, n: int, rate: Callable[[Array], Array], seed: int) -> Trace:
    """A sample of the process with its time stretched so that its rate is multiplied by ``rate`` of the time, from 0 to 1."""
    times = np.cumsum(process.sample(n, np.random.default_rng(seed)))
    grid = np.linspace(0, 1, 20_001)
    passed = np.concatenate([[0], np.cumsum((rate(grid)[1:] + rate(grid)[:-1]) / 2)])
    return Trace(np.diff(np.interp(times / times[-1], passed / passed[-1], grid) * times[-1]))


@pytest.mark.parametrize("name", STEADY)
def test_bursts_alone_are_hardly_ever_taken_for_drift(name: str) -> None:
    samples = STEADY[name].sample(25 * 30_000, np.random.default_rng(20)).reshape(25, -1)
    alarms = [gaps for gaps in samples if not judge_stationarity(Trace(gaps)).stationary]
    assert len(alarms) <= 1


@pytest.mark.parametrize("name", ["poisson", "fast bursts"])
@pytest.mark.parametrize(
    "rate",
    [
        pytest.param(lambda u: 1.0 + (u > 0.5), id="twice the rate in the second half"),
        pytest.param(lambda u: 1.0 + (u > 0.8), id="twice the rate in the last fifth"),
        pytest.param(lambda u: 1 + 1.5 * u, id="growth"),
        pytest.param(lambda u: 1 + 0.5 * np.sin(2 * np.pi * u), id="one day"),
        pytest.param(lambda u: 1 + 0.5 * np.sin(2 * np.pi * 3.3 * u), id="three days"),
        pytest.param(lambda u: 1 + 0.5 * np.sin(2 * np.pi * 14 * u), id="two weeks of days"),
        pytest.param(lambda u: 1 + 0.5 * np.sin(2 * np.pi * 90.4 * u), id="three months of days"),
    ],
)
def test_drift_is_seen(name: str, rate: Callable[[Array], Array]) -> None:
    verdicts = [judge_stationarity(with_rate(STEADY[name], 40_000, rate, seed)) for seed in range(3)]
    assert not any(verdict.stationary for verdict in verdicts)
    assert all(verdict.drift > 0.1 and verdict.p_value < 1e-3 for verdict in verdicts)


def test_a_doubled_rate_is_seen_even_under_slow_bursts_in_a_long_trace() -> None:
    trace = with_rate(STEADY["slow bursts"], 800_000, lambda u: 1.0 + (u > 0.5), 3)
    assert not judge_stationarity(trace).stationary


def test_a_drift_that_hardly_changes_the_rate_is_none() -> None:
    trace = with_rate(poisson(10), 400_000, lambda u: 1 + 0.1 * (u > 0.5), 4)
    verdict = judge_stationarity(trace)
    assert verdict.stationary and verdict.p_value < 1e-3 and verdict.note == "the rate looks stationary"


def test_after_a_step_the_window_proposed_lies_behind_it_and_looks_stationary() -> None:
    trace = with_rate(poisson(10), 40_000, lambda u: 1.0 + (u > 0.7), 5)
    verdict = judge_stationarity(trace)
    assert verdict.window is not None and 0.1 * trace.duration < verdict.window < 0.3 * trace.duration
    assert judge_stationarity(trace.last(verdict.window)).stationary
    assert verdict.note.startswith("the rate drifts, by ±") and f"(--window {verdict.window:.4g})" in verdict.note


def test_a_cycle_is_named_with_its_period_and_the_window_is_short_against_it() -> None:
    trace = with_rate(poisson(20), 100_000, lambda u: 1 + 0.6 * np.cos(2 * np.pi * 10 * u), 6)
    verdict = judge_stationarity(trace)
    assert verdict.cycle == pytest.approx(trace.duration / 10)
    assert verdict.drift == pytest.approx(0.6 / np.sqrt(2), rel=0.1)
    assert verdict.window is not None and verdict.window <= verdict.cycle / 8 * 1.01
    assert f"follows a cycle of {verdict.cycle:.4g} s" in verdict.note


def test_where_no_recent_window_will_do_it_is_said() -> None:
    verdict = judge_stationarity(with_rate(poisson(1), 1500, lambda u: 1.0 + 3 * (u > 0.9), 7))
    assert verdict.window is None and "no recent window with 1000 arrivals looks stationary" in verdict.note


def test_an_evenly_spaced_trace_is_stationary() -> None:
    assert judge_stationarity(Trace(np.full(5000, 0.1))).stationary


def test_counts_of_poisson_traces_are_as_unlikely_as_they_should_be() -> None:
    rng = np.random.default_rng(7)
    found = np.array([poisson_p_value(Trace(rng.exponential(1, n))) for n in (99, 300, 2000) for _ in range(100)])
    assert (found < 0.05).mean() < 0.08 and found.min() > 1e-4


@pytest.mark.parametrize("swing", [0.3, 0.5])
def test_counts_that_swing_with_a_slow_rate_are_not_poissons(swing: float) -> None:
    assert poisson_p_value(with_rate(STEADY["poisson"], 5000, lambda x: 1 + swing * np.sin(6 * x), 5)) < 1e-6


def test_counts_that_are_more_even_than_poissons_are_told_apart() -> None:
    assert poisson_p_value(Trace(np.random.default_rng(1).gamma(4, 1, 1000))) < 1e-6
