"""The sequential tests on arrivals: what they notice, what they take for the same, and that what they keep is bounded."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.tuning.changes import Alarm, BurstinessTest, RateTest

RATE = 50.0
BURSTY = mmpp2(80.0, 20.0, 1.0, 1.0)
WINDOWS = [0.5, 2.0, 8.0]  # s


def arrivals_of(process: ArrivalProcess, seconds: float, seed: int, begin: float = 0.0) -> Array:
    gaps = process.sample(int(1.5 * process.arrival_rate * seconds) + 200, np.random.default_rng(seed))
    times = begin + np.cumsum(gaps)
    assert times[-1] > begin + seconds
    return times[times < begin + seconds]


def alarms_of(test: RateTest | BurstinessTest, times: Array, until: float, step: float = 10.0) -> list[Alarm]:
    """Those of arrivals that are seen a step after another."""
    found = []
    ends = np.arange(times[0] + step, until, step)
    for part, end in zip(np.split(times, np.searchsorted(times, ends)), [*ends.tolist(), until], strict=True):
        test.see(part, end)
        if test.alarm is not None:
            found.append(test.alarm)
            test.clear()
    return found


def learnt(process: ArrivalProcess, seconds: float = 600.0) -> RateTest:
    test = RateTest(process)
    assert not alarms_of(test, arrivals_of(process, seconds, 1), seconds)
    return test


@pytest.mark.parametrize(("factor", "within"), [(3.0, 2.0), (1 / 3, 4.0)])
def test_a_rate_three_times_as_high_or_low_is_noticed_within_seconds(factor: float, within: float) -> None:
    for seed in range(3):
        test = learnt(poisson(RATE))
        found = alarms_of(test, arrivals_of(poisson(RATE * factor), 20, seed + 100, 600), 620, 0.1)
        assert found[0].kind == "rate"
        assert found[0].at - 600 < within
        assert 599.7 < found[0].since < found[0].at
        assert test.rate == pytest.approx(RATE * factor, rel=0.2)
        assert f"{found[0].before:.4g} to {found[0].after:.4g} requests/s" in found[0].words


def test_the_rate_that_an_alarm_tells_is_the_new_one_and_not_what_was_before_with_it() -> None:
    told = []
    for seed in range(9):
        (alarm,) = alarms_of(learnt(poisson(RATE)), arrivals_of(poisson(3 * RATE), 3, seed + 100, 600), 603, 0.1)
        told.append(alarm.after)
    assert np.mean(told) == pytest.approx(3 * RATE, rel=0.1)  # a window of a second told three quarters of it


def test_the_rate_that_may_be_is_as_far_away_as_so_few_requests_leave_open() -> None:
    exceeded = []
    for seed in range(40):
        test = learnt(poisson(RATE))
        alarms_of(test, arrivals_of(poisson(3 * RATE), 6, seed + 100, 600), 606, 0.1)
        exceeded.append(test.rate * test.at_most(0.95) < 3 * RATE)
    assert np.mean(exceeded) < 0.15
    steady = learnt(poisson(RATE))
    assert 1 < steady.at_most(0.95) < 1.03
    assert RateTest().at_most(0.95) == 1


@pytest.mark.parametrize("process", [poisson(RATE), poisson(2.0), BURSTY, mmpp2(500.0, 10.0, 10.0, 1.0)])
def test_a_steady_rate_is_no_alarm_however_bursty(process: ArrivalProcess) -> None:
    assert not alarms_of(learnt(process), arrivals_of(process, 4 * 3600, 2, 600), 4 * 3600 + 600)


def test_a_burstiness_that_nobody_told_is_learnt() -> None:
    test = RateTest()
    alarms_of(test, arrivals_of(BURSTY, 1800, 1), 1800)
    assert not alarms_of(test, arrivals_of(BURSTY, 2 * 3600, 2, 1800), 2 * 3600 + 1800)


def test_the_measured_dispersion_is_that_of_the_process() -> None:
    test = RateTest()
    alarms_of(test, arrivals_of(BURSTY, 4 * 3600, 3), 4 * 3600)
    expected = dispersion_of_counts(BURSTY, WINDOWS).tolist()
    assert [test.dispersion(window) for window in WINDOWS] == pytest.approx(expected, rel=0.15)


def test_the_dispersion_of_a_fit_is_taken_until_it_is_measured() -> None:
    test = RateTest(BURSTY)
    test.see(arrivals_of(BURSTY, 2, 4))
    expected = dispersion_of_counts(BURSTY, WINDOWS).tolist()
    assert [test.dispersion(window) for window in WINDOWS] == pytest.approx(expected, rel=0.2)


def test_what_a_fit_says_is_overruled_by_what_is_measured() -> None:
    test = RateTest()
    times = arrivals_of(poisson(RATE), 3600, 4)
    test.see(times[:100])
    test.expect(BURSTY)
    assert test.dispersion(0.5) > 2
    test.see(times[100:])
    assert test.dispersion(0.5) == pytest.approx(1.0, rel=0.15)


def test_bursts_of_which_a_fit_tells_are_no_change_in_the_first_hour() -> None:
    process = mmpp2(100.0, 25.0, 1 / 60, 1 / 120)
    times = arrivals_of(process, 3600, 5)
    assert len(alarms_of(RateTest(), times, 3600)) > 4
    assert not alarms_of(RateTest(process), times, 3600)


def stalling(hours: float, every: float = 180.0) -> Array:
    """Arrivals that are held back for a second again and again, and come all at once then."""
    times = arrivals_of(poisson(2 * RATE), 3600 * hours, 14)
    return np.sort(np.where((times % every < 1.0) & (times > every), times - times % every + 1.0, times))


def test_a_stall_that_is_made_good_is_an_alarm_a_few_times_and_a_true_change_remains_one() -> None:
    test = RateTest()
    alarms = alarms_of(test, stalling(3), 10_800, 1.0)
    assert 0 < len(alarms) == test.false <= 12
    assert alarms[-1].at < 7200
    found = alarms_of(test, arrivals_of(poisson(6 * RATE), 20, 15, 10_800), 10_820, 0.1)
    assert found[0].at - 10_800 < 3.0


def test_an_alarm_of_a_rate_that_stays_is_not_false() -> None:
    test = learnt(poisson(RATE))
    assert alarms_of(test, arrivals_of(poisson(3 * RATE), 300, 3, 600), 900)
    assert test.false == 0


def test_a_rate_that_changes_by_less_than_matters_is_the_same() -> None:
    test = learnt(poisson(RATE))
    assert not alarms_of(test, arrivals_of(poisson(RATE * 1.05), 3600, 5, 600), 4200)


def test_a_quarter_more_is_noticed_in_minutes() -> None:
    found = alarms_of(learnt(poisson(RATE)), arrivals_of(poisson(RATE * 1.25), 600, 5, 600), 1200)
    assert found[0].at < 600 + 180


def test_silence_is_noticed_without_an_arrival() -> None:
    test = learnt(poisson(RATE))
    test.see(np.empty(0), 610.0)
    assert test.alarm is not None
    assert test.alarm.after <= 10.0
    assert test.alarm.since == pytest.approx(600.0, abs=1.0)
    test.clear()
    test.see(np.empty(0), 5000)
    assert test.alarm is None
    assert alarms_of(test, arrivals_of(poisson(RATE), 30, 6, 5000), 5030)
    assert test.rate == pytest.approx(RATE, rel=0.2)


def test_how_arrivals_are_cut_into_calls_does_not_matter() -> None:
    times = np.concatenate([arrivals_of(poisson(RATE), 600, 7), arrivals_of(poisson(80.0), 100, 8, 600)])
    beginning = np.searchsorted(times, 1.0)
    found = []
    for step in (0.3, 7.0, 1000.0):
        test = RateTest()
        test.see(times[:beginning], 1.0)
        found.append(alarms_of(test, times[beginning:], 700.0, step))
    assert found[0] == found[1] == found[2] != []


def test_a_hole_in_the_record_is_no_change() -> None:
    test = learnt(poisson(RATE))
    test.resume(1000.0)
    assert not alarms_of(test, arrivals_of(poisson(RATE), 600, 9, 1000), 1600)
    assert test.rate == pytest.approx(RATE, rel=0.05)


def test_a_clock_that_is_set_back_is_no_change() -> None:
    test = learnt(poisson(RATE))
    assert not alarms_of(test, arrivals_of(poisson(RATE), 600, 9, -5000), -4400)
    assert test.rate == pytest.approx(RATE, rel=0.05)


def test_a_day_of_arrivals_takes_no_more_memory_than_an_hour() -> None:
    sizes = []
    for test in (RateTest(), BurstinessTest()):
        for hour in (1, 5):
            alarms_of(test, arrivals_of(BURSTY, 3600, hour, 3600.0 * hour), 3600.0 * (hour + 1))
            sizes.append(len(pickle.dumps(test)))
        for second in range(5000):
            test.see(np.empty(0), 3600.0 * 6 + second)
    assert sizes[1] - sizes[0] < 500
    assert sizes[3] - sizes[2] < 500
    few = RateTest()
    for second in range(1000):
        few.see(np.empty(0), float(second))
    assert len(pickle.dumps(few)) - len(pickle.dumps(RateTest())) < 100


def test_a_source_that_becomes_bursty_is_noticed_and_one_that_becomes_smooth() -> None:
    for before, after in ((poisson(RATE), BURSTY), (BURSTY, poisson(RATE))):
        test = BurstinessTest()
        assert not alarms_of(test, arrivals_of(before, 3600, 10), 3600)
        found = alarms_of(test, arrivals_of(after, 1800, 11, 3600), 5400)
        assert found[0].kind == "burstiness"
        index = dispersion_of_counts(before, [1.0, 2.0])
        assert found[0].before == pytest.approx(2 * index[0] - index[1], rel=0.1)
        assert (found[0].after > found[0].before) == (before.n_phases == 1)


def test_silence_between_rare_bursts_says_nothing_of_burstiness() -> None:
    rng = np.random.default_rng(16)
    bursts = np.cumsum(rng.exponential(4.0, 5000))
    times = np.sort((bursts[:, None] + rng.random((5000, 8)) * 0.3)[rng.random((5000, 8)) < 0.5])
    assert not alarms_of(BurstinessTest(0.1), times, times[-1])


def test_a_rate_that_changes_leaves_the_burstiness_of_poisson_arrivals_alone() -> None:
    test = BurstinessTest()
    assert not alarms_of(test, arrivals_of(poisson(RATE), 3600, 12), 3600)
    assert not alarms_of(test, arrivals_of(poisson(3 * RATE), 3600, 13, 3600), 7200)


def test_what_is_no_time_or_no_setting_is_refused() -> None:
    with pytest.raises(InvalidInput, match="times"):
        RateTest().see(np.array([1.0, np.nan]))
    with pytest.raises(InvalidInput, match="false_alarms: 0 is not allowed"):
        RateTest(false_alarms=0)
    with pytest.raises(InvalidInput, match="least: 0.5 is not allowed; allowed: a number >= 1"):
        RateTest(least=0.5)
    with pytest.raises(InvalidInput, match="window"):
        BurstinessTest(window=0)
