"""The sequential tests on arrivals: what they notice, and what they take for the same."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.tuning.changes import Alarm, BurstinessTest, RateTest

RATE = 50.0
BURSTY = mmpp2(80.0, 20.0, 1.0, 1.0)


def arrivals_of(process: ArrivalProcess, seconds: float, seed: int, begin: float = 0.0) -> Array:
    gaps = process.sample(int(1.5 * process.arrival_rate * seconds) + 100, np.random.default_rng(seed))
    times = begin + np.cumsum(gaps)
    assert times[-1] > begin + seconds
    return times[times < begin + seconds]


def alarms_of(test: RateTest | BurstinessTest, times: Array, until: float, step: float = 1.0) -> list[Alarm]:
    """Those of arrivals that are seen a step after another."""
    found = []
    ends = np.arange(times[0] + step, until, step)
    for part, end in zip(np.split(times, np.searchsorted(times, ends)), [*ends.tolist(), until], strict=True):
        test.see(part, end)
        if test.alarm is not None:
            found.append(test.alarm)
            test.clear()
    return found


@pytest.mark.parametrize("factor", [3.0, 1 / 3])
def test_a_rate_three_times_as_high_or_low_is_noticed_within_four_seconds(factor: float) -> None:
    for seed in range(5):
        test = RateTest()
        assert not alarms_of(test, arrivals_of(poisson(RATE), 300, seed), 300)
        found = alarms_of(test, arrivals_of(poisson(RATE * factor), 30, seed + 100, 300), 330, 0.1)
        assert found[0].kind == "rate"
        assert found[0].at - 300 < (2 if factor > 1 else 4)
        assert 298 < found[0].since < found[0].at
        assert test.rate == pytest.approx(RATE * factor, rel=0.2)
