"""Alarms that ask for decisions in vain are heeded ever more seldom, and a rate at which nothing was decided at once."""

from __future__ import annotations

from sluice.optimizer.tuning.back_off import BackOff

PAUSE, PERIOD = 5.0, 300.0


def heeded(alarms: BackOff, rate: float | None) -> float:
    """Seconds after the decision before."""
    return next(seconds for seconds in range(int(PAUSE), 10_000) if alarms.heeds(rate, float(seconds)))


def test_an_alarm_in_vain_is_heeded_twice_as_late_as_the_one_before_and_within_a_period() -> None:
    alarms, waits = BackOff(PAUSE, PERIOD), []
    alarms.found_right(50.0, False)
    for _ in range(9):
        waits.append(heeded(alarms, 52.0))
        alarms.found_right(52.0, True)
    assert waits == [5, 10, 20, 40, 80, 160, 300, 300, 300]


def test_a_rate_beyond_those_at_which_the_plan_was_found_right_waits_for_nothing() -> None:
    alarms = BackOff(PAUSE, PERIOD)
    for rate in (40.0, 60.0) * 10:
        alarms.found_right(rate, True)
    assert [heeded(alarms, rate) for rate in (30.0, 36.5, 50.0, 65.0, 70.0, 150.0)] == [5, 300, 300, 300, 5, 5]


def test_an_alarm_without_a_rate_waits_as_one_that_tells_nothing_new() -> None:
    alarms = BackOff(PAUSE, PERIOD)
    assert heeded(alarms, None) == 5
    for _ in range(3):
        alarms.found_right(50.0, True)
    assert heeded(alarms, None) == 40


def test_a_period_without_alarms_or_another_plan_begins_anew() -> None:
    alarms = BackOff(PAUSE, PERIOD)
    for _ in range(5):
        alarms.found_right(50.0, True)
    alarms.found_right(50.0, False)
    assert heeded(alarms, 50.0) == 5
    for _ in range(5):
        alarms.found_right(50.0, True)
    alarms.restart()
    assert heeded(alarms, 50.0) == heeded(alarms, None) == 5
