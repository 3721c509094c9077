"""The tick of a trace's clock: found where several requests come in one, and no cycle of the rate."""

import numpy as np
import pytest

from sluice.optimizer.arrays import Array
from sluice.optimizer.traces.clock import clock_note, coarse_tick, spread_over_ticks
from sluice.optimizer.traces.stationarity import judge_stationarity
from sluice.optimizer.traces.trace import Trace

TIMES = np.cumsum(np.random.default_rng(0).exponential(0.05, 4000))


def rounded(times: Array, tick: float) -> Trace:
    return Trace(np.diff(np.floor(times / tick) * tick))


@pytest.mark.parametrize(("tick", "factor"), [(1.0, 1), (60.0, 20), (0.1, 0.2), (128.0, 100), (0.001, 0.001)])
def test_a_tick_longer_than_the_mean_gap_is_found(tick: float, factor: float) -> None:
    trace = rounded(factor * TIMES, tick)
    assert coarse_tick(trace) == pytest.approx(tick)
    assert f"multiples of {tick:g} s apart" in clock_note(trace) and f"--kind counts --bin {tick:g}" in clock_note(trace)


def test_the_tick_is_that_of_all_gaps_not_the_least_gap() -> None:
    assert coarse_tick(Trace(np.tile([0, 0, 0, 0, 0, 120, 180], 50))) == pytest.approx(60)


def test_floats_since_1970_hide_no_tick() -> None:
    assert coarse_tick(Trace(np.diff(1.7e9 + np.floor(TIMES * 10) / 10))) == pytest.approx(0.1)


@pytest.mark.parametrize(
    "gaps",
    [
        np.diff(TIMES),
        np.full(200, 1.0),
        np.full(150, 0.3),
        np.diff(1.7e9 + np.arange(150) * 0.2),
        np.diff(np.floor(TIMES / 0.02) * 0.02),
        np.diff(TIMES) * 1e-6,
        np.diff(TIMES.round(6)),
    ],
    ids=["exact", "regular", "regular by tenths", "regular since 1970", "a tick within the gaps", "microseconds", "a fine clock"],
)
def test_a_clock_that_tells_requests_apart_is_not_coarse(gaps: Array) -> None:
    trace = Trace(gaps)
    assert coarse_tick(trace) == 0 and not clock_note(trace) and spread_over_ticks(trace, np.random.default_rng(0)) is trace


def test_the_tick_of_a_clock_is_no_cycle_and_a_drift_is_one_still() -> None:
    times = np.cumsum(np.random.default_rng(1).exponential(0.05, 2000))
    assert judge_stationarity(rounded(times, 1.0)).stationary
    twice = np.concatenate([times, times[-1] + np.cumsum(np.random.default_rng(2).exponential(0.02, 4000))])
    assert not judge_stationarity(rounded(twice, 1.0)).stationary
