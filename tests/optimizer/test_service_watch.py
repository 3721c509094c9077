"""The sequential test on service times: soon where they drift, deaf to what is no drift."""

from __future__ import annotations

import pickle

import msgspec
import numpy as np
import pytest

from sluice.batching.documents import LinearServiceTime, ServiceProfile
from sluice.batching.errors import InvalidInput
from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.tuning.drift import ServiceWatch
from tests.optimizer.live_batches import OVERHEAD, batches, profile


@pytest.mark.parametrize("factor", [1.5, 1 / 1.5])
def test_times_half_as_long_again_are_noticed_within_thirty_batches(factor: float) -> None:
    for seed in range(5):
        watch = ServiceWatch(profile())
        watch.see(batches(500, seed))
        assert watch.alarm is None
        watch.see(batches(30, seed + 100, factor, begin=50.0))
        assert watch.alarm is not None
        assert watch.alarm.kind in ("service", "invocation")
        assert watch.alarm.since >= 49
        assert watch.alarm.after == pytest.approx(factor, rel=0.25)
        assert "times as long as the profile says" in watch.alarm.words
        assert watch.alarm.words.startswith("at 512 MB the ")


@pytest.mark.parametrize(("beside", "at"), [(1, 4), (4, 6)])
def test_three_times_as_long_is_noticed_by_the_fourth_of_batches_that_do_not_overlap(beside: int, at: int) -> None:
    """Of four that run side by side three count half."""
    watch = ServiceWatch(profile())
    watch.see(batches(500, 1))
    slow = batches(at, 2, 3.0, begin=50.0)
    ended = [50.0 + k // beside + 1e-4 * (k % beside) for k in range(at)]
    noticed = []
    for batch, end in zip(slow, ended, strict=True):
        watch.see([batch._replace(ended_at=end)])
        noticed.append(watch.alarm is not None)
    assert noticed.index(True) == at - 1 and watch.alarm is not None
    assert watch.alarm.since >= 50.0
    assert "took at least 2" in watch.alarm.words


@pytest.mark.parametrize("seed", range(10))
def test_five_batches_that_one_stall_holds_up_are_no_change(seed: int) -> None:
    watch = ServiceWatch(profile())
    watch.see(batches(500, seed))
    held = batches(5, seed + 100, 100.0, begin=51.0)
    watch.see([batch._replace(ended_at=51.0 + 1e-3 * k) for k, batch in enumerate(held)])
    watch.see(batches(500, seed + 200, begin=60.0))
    assert watch.alarm is None


def test_batches_of_before_that_took_somewhat_longer_than_the_profile_says_are_not_dated_into_the_change() -> None:
    """As where a way that the profile does not know adds to short batches: the last eight hold some of these, up to all four."""
    for seed in range(20):
        watch = ServiceWatch(profile())
        watch.see(batches(500, seed))
        watch.see(batches(4, seed + 100, 1.2, begin=51.0))
        for batch in batches(5, seed + 200, 3.3, begin=60.0):
            watch.see([batch] if watch.alarm is None else [])
        assert watch.alarm is not None and watch.alarm.since > 51.1  # of before two at the most, where three were enough to tell


def test_while_the_clock_is_not_where_it_was_before_it_was_set_back_a_change_is_noticed_all_the_same() -> None:
    watch = ServiceWatch(profile())
    watch.see(batches(500, 1, begin=3600.0))
    watch.see(batches(8, 2, 3.0))
    assert watch.alarm is not None


def test_since_when_times_are_others_does_not_depend_on_how_often_it_is_looked_at() -> None:
    told = batches(500, 0) + batches(150, 1, 1.25, begin=50.0)
    at_once, one_by_one = ServiceWatch(profile()), ServiceWatch(profile())
    at_once.see(told)
    for batch in told:
        one_by_one.see([batch])
    assert at_once.alarm is not None and at_once.alarm == one_by_one.alarm
    assert at_once.alarm.at - at_once.alarm.since > 1.0


@pytest.mark.parametrize(("factor", "said"), [(5.0, "took at least 2"), (0.2, "took at most 0.")])
def test_times_beyond_what_a_batch_counts_are_said_to_be_so_far_at_least(factor: float, said: str) -> None:
    watch = ServiceWatch(profile())
    watch.see(batches(500, 1))
    watch.see(batches(60, 2, factor, begin=50.0))
    assert watch.alarm is not None and said in watch.alarm.words


def test_times_that_spread_by_a_third_are_noticed_half_as_long_again_within_forty_batches() -> None:
    rng = np.random.default_rng(5)
    for seed in range(5):
        watch = ServiceWatch(profile())
        spread = [batch._replace(seconds=s * batch.seconds, service=s * batch.service) for s, batch in drawn(rng, 540, seed)]
        watch.see(spread[:500])
        assert watch.alarm is None
        watch.see([batch._replace(seconds=1.5 * batch.seconds, service=1.5 * batch.service) for batch in spread[500:]])
        assert watch.alarm is not None


def drawn(rng: np.random.Generator, n: int, seed: int) -> list[tuple[float, MeasuredBatch]]:
    """Batches, and by what their times are multiplied, with a squared coefficient of variation of a tenth."""
    factors = rng.gamma(10.0, 0.1, n) * np.exp(0.0508)  # whose logarithm has mean 0
    return list(zip(factors.tolist(), batches(n, seed), strict=True))


def test_times_as_the_profile_has_them_are_no_alarm() -> None:
    watch = ServiceWatch(profile())
    watch.see(batches(20_000, 0))
    assert watch.alarm is None


def test_one_batch_in_twenty_that_hangs_is_no_drift() -> None:
    watch = ServiceWatch(profile())
    rng = np.random.default_rng(0)
    slow = rng.random(5000) < 0.05
    hangs = [
        batch._replace(service=10 * batch.service, seconds=10 * batch.seconds) if one else batch
        for batch, one in zip(batches(5000, 1), slow.tolist(), strict=True)
    ]
    watch.see(hangs)
    assert watch.alarm is None


def test_cold_batches_failures_and_what_the_profile_does_not_know_are_left_out() -> None:
    watch = ServiceWatch(profile())
    slow = batches(200, 0, 3.0)
    watch.see([batch._replace(cold=True) for batch in slow])
    watch.see([batch._replace(failed=1) for batch in slow])
    watch.see([batch._replace(rejected=True) for batch in slow])
    watch.see([batch._replace(function="other") for batch in slow])
    watch.see([batch._replace(function="model-2048") for batch in slow])
    watch.see([batch._replace(size=64) for batch in slow])
    assert watch.alarm is None


def test_a_slow_network_is_an_alarm_of_the_invocation_alone() -> None:
    watch = ServiceWatch(profile())
    watch.see(batches(200, 0, overhead=OVERHEAD + 0.02))
    assert watch.alarm is not None
    assert watch.alarm.kind == "invocation"


def test_a_function_that_tells_no_time_of_its_own_is_watched_by_the_invocation() -> None:
    watch = ServiceWatch(profile())
    watch.see([batch._replace(service=float("nan")) for batch in batches(40, 0, 1.6)])
    assert watch.alarm is not None
    assert watch.alarm.kind == "invocation"


def test_what_an_alarm_told_is_the_level_from_then_on() -> None:
    watch = ServiceWatch(profile())
    watch.see(batches(200, 0, 1.5))
    assert watch.alarm is not None
    first = watch.alarm
    watch.clear()
    watch.see(batches(3000, 1, 1.5))
    assert watch.alarm is None or abs(watch.alarm.after / 1.5 - 1) < abs(first.after / 1.5 - 1)
    watch.refreshed(profile())
    watch.see(batches(100, 2, 1.0))
    assert watch.alarm is None


def test_a_linear_profile_is_watched_too() -> None:
    linear = ServiceProfile(function="model", service_time=LinearServiceTime(0.01, 0.004))
    watch = ServiceWatch(linear)
    watch.see([batch._replace(function="model", seconds=batch.service) for batch in batches(300, 0)])
    assert watch.alarm is None
    watch.see([batch._replace(function="model", seconds=batch.service) for batch in batches(60, 1, 1.6)])
    assert watch.alarm is not None
    assert " MB" not in watch.alarm.words  # as the law names no memory size


def test_what_is_kept_does_not_grow() -> None:
    watch = ServiceWatch(profile())
    watch.see(batches(1000, 0))
    size = len(pickle.dumps(watch))
    watch.see(batches(3000, 1))
    for memory_mb in range(128, 900):
        watch.see([batches(1, 0)[0]._replace(function=f"model-{memory_mb}")])
    assert len(pickle.dumps(watch)) - size < 500


def test_a_profile_with_sizes_of_requests_is_refused() -> None:
    points = [msgspec.structs.replace(point, size=1.0) for point in profile().points]
    with pytest.raises(InvalidInput, match="profile.sizes"):
        ServiceWatch(ServiceProfile(function="model-{memory_mb}", points=points))
