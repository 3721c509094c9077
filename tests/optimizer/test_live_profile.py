"""The profile that live batches keep up to date: near the truth where they were, the profile's shape where they were not."""

from __future__ import annotations

import pickle
from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.batching.documents import LinearServiceTime, ProfilePoint, ServiceProfile, ServiceTime, read, write
from sluice.batching.errors import InvalidInput
from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.service.times import service_times
from sluice.optimizer.tuning.live_profile import FEWEST, KEPT, MOST_SETTINGS, RESTARTED, LiveProfile
from tests.optimizer.live_batches import OVERHEAD, batches, mean_time, profile


def points_of(live: LiveProfile, memory_mb: int = 512) -> dict[int, ProfilePoint]:
    found = live.profile()
    assert found is not None
    assert read(ServiceProfile, write(found)) == found
    return {point.batch_size: point for point in found.points_at(memory_mb)}


def test_without_batches_the_profile_stays_as_it_is() -> None:
    assert LiveProfile(profile()).profile() == profile()


@pytest.mark.parametrize("not_all", [{"failed": 1}, {"rejected": True}])
def test_batches_of_which_not_all_was_served_tell_nothing(not_all: dict[str, int]) -> None:
    live = LiveProfile(profile())
    live.see([batch._replace(**not_all) for batch in batches(400, 0, 1.3)])
    assert live.profile() == profile()


def test_sizes_that_were_seen_are_measured_and_the_others_keep_the_shape() -> None:
    live = LiveProfile(profile())
    live.see(batches(400, 0, 1.3))
    points = points_of(live)
    assert sorted(points) == [1, 2, 3, 4, 8, 16]
    for size, point in points.items():
        assert point.service_time.mean == pytest.approx(1.3 * mean_time(size), rel=0.06)
        assert point.overhead == pytest.approx(OVERHEAD, rel=0.25)
        p95 = dict(point.service_time.quantiles)[0.95]
        assert p95 == pytest.approx(1.3 * mean_time(size) * 1.25, rel=0.12)
    assert points[3].service_time.n == next(point.n for point in live.points if point.batch_size == 3)


def test_memory_sizes_that_were_not_seen_go_with_those_that_were() -> None:
    live = LiveProfile(profile())
    live.see(batches(400, 0, 1.5))
    assert points_of(live, 1024)[8].service_time.mean == pytest.approx(1.5 * mean_time(8, 1024), rel=0.06)


def steeper(size: int) -> float:
    """By how much a profile is wrong that has too little for every request of a batch."""
    return (0.010 + 0.016 * size) / (0.010 + 0.004 * size)


def test_batch_sizes_beyond_those_seen_of_a_memory_size_go_with_those_of_another() -> None:
    live = LiveProfile(profile((512, 1024, 2048)))
    for size in (1, 2, 4, 8):
        live.see(batches(256, size, steeper(size), sizes=(size,)))
    live.see(batches(256, 9, 0.5 * steeper(4), sizes=(4,), memory_mb=1024))
    assert steeper(8) > 1.7 * steeper(1)
    for size in (1, 2, 8):
        expected = 0.5 * steeper(size) * mean_time(size, 1024)
        assert points_of(live, 1024)[size].service_time.mean == pytest.approx(expected, rel=0.06)
    unmeasured = [points_of(live, 2048)[size].service_time.mean / mean_time(size, 2048) for size in (1, 8)]
    assert unmeasured[1] / unmeasured[0] == pytest.approx(steeper(8) / steeper(1), rel=0.06)
    alone = [points_of(live)[size].service_time.mean / mean_time(size) for size in (8, 16)]
    assert alone[0] == pytest.approx(alone[1])  # beyond what any has seen the profile's curve goes on


def test_a_few_batches_move_the_profile_only_as_far_as_their_error_allows() -> None:
    live = LiveProfile(profile())
    live.see(batches(7, 0, 2.0))
    assert live.profile() == profile()
    errors = []
    for n in (20, 500):
        live = LiveProfile(profile())
        live.see(batches(n, 1))
        errors.append(max(abs(p.service_time.mean / mean_time(p.batch_size) - 1) for p in points_of(live).values()))
    assert errors[0] < 0.08
    assert errors[1] < 0.04


def test_what_is_not_measured_may_be_as_far_off_as_the_only_size_that_was() -> None:
    live = LiveProfile(profile((512, 1024, 2048)))
    live.see(batches(FEWEST - 1, 0, 2.0))
    assert live.wrong_by() == 0  # too few tell nothing
    live.see(batches(400, 1, 2.0))
    assert live.wrong_by() == pytest.approx(np.log(2.0), abs=0.04)
    faster = LiveProfile(profile())
    faster.see(batches(400, 1, 0.5))
    assert faster.wrong_by() == pytest.approx(np.log(2.0), abs=0.04)


def test_of_several_sizes_what_they_differ_by_says_how_far_off_another_may_be() -> None:
    alike, apart = (LiveProfile(profile((512, 1024, 2048))) for _ in range(2))
    for live, other in ((alike, 2.0), (apart, 1.3)):
        live.see(batches(400, 0, 2.0))
        live.see(batches(400, 1, other, memory_mb=1024))
    assert alike.wrong_by() < 0.1  # all are off by as much, as it seems
    student = np.tan(np.pi * (NormalDist().cdf(1) - 0.5))  # of one degree of freedom
    assert apart.wrong_by() == pytest.approx(student * np.log(2 / 1.3) / np.sqrt(2) * np.sqrt(1.5), rel=0.15)


@pytest.mark.parametrize("factor", [0.9, 1.0, 1.15])
def test_a_profile_that_is_off_by_as_much_as_any_is_not_wrong(factor: float) -> None:
    live = LiveProfile(profile())
    for seed in range(5):
        live.see(batches(20, seed, factor))
        assert live.wrong_by() == 0


def test_a_law_for_all_memory_sizes_and_what_was_learned_are_wrong_of_none() -> None:
    law = LiveProfile(ServiceProfile(function="model-{memory_mb}", service_time=LinearServiceTime(0.013, 0.004), max_batch_size=16))
    learned = LiveProfile(function="model-{memory_mb}")
    for live in (law, learned):
        live.see(batches(400, 0, 3.0))
        assert live.wrong_by() == 0 and live.measured(512) == 400 and live.measured(1024) == 0


def test_it_follows_a_drift_once_the_old_batches_are_forgotten() -> None:
    live = LiveProfile(profile())
    live.see(batches(600, 0))
    live.see(batches(60, 1, 1.5, begin=60.0))
    slow = points_of(live)[2].service_time.mean
    live.restart(60.0)
    assert slow < 1.3 * mean_time(2)
    assert points_of(live)[2].service_time.mean == pytest.approx(1.5 * mean_time(2), rel=0.08)
    assert all(point.n <= 60 for point in live.points)


def test_times_that_are_others_since_a_moment_are_told_and_chance_is_not() -> None:
    for seed in range(20):
        live = LiveProfile(profile())
        live.see(batches(400, seed))
        live.see(batches(60, seed + 100, begin=40.0))
        assert not live.other_since(40.0)
    live.see(batches(60, 1, 1.2, begin=46.0))
    assert live.other_since(46.0)
    assert live.other_since(46.0, 0.1) and not live.other_since(46.0, 0.4)
    assert not live.other_since(0.0) and not live.other_since(60.0)  # nothing to compare


@pytest.mark.parametrize("normal", [0, 1, 2, 4, 8, 16])
@pytest.mark.parametrize("factor", [3.0, 10.0, 50.0])
def test_a_batch_that_was_held_up_is_no_other_time(factor: float, normal: int) -> None:
    """Before a worker all who wait behind it are late, though their own batches take what they took."""
    live = LiveProfile(profile())
    live.see([*batches(400, 0, sizes=(1,)), *batches(1, 1, factor, begin=40.0, sizes=(1,))])
    live.see(batches(normal, 2, begin=40.1, sizes=(1,)))
    assert not live.other_since(40.0)
    live.see(batches(12, 3, factor, begin=45.0, sizes=(1,)))
    assert live.other_since(45.0)


@pytest.mark.parametrize("since", [60.0, 60.35])  # the change may be found where only a few are left after it
def test_where_times_have_just_changed_the_latest_batches_count_and_none_of_before(since: float) -> None:
    live = LiveProfile(profile())
    live.see(batches(600, 0))
    live.see(batches(3, 2, begin=59.7))
    live.see(batches(5, 1, 2.0, begin=60.0))
    live.restart(since)
    assert points_of(live)[2].service_time.mean == pytest.approx(2 * mean_time(2), rel=0.15)
    assert sum(point.n for point in live.points) == RESTARTED


def test_without_a_profile_what_was_learned_before_a_change_is_the_curve_of_the_sizes_that_have_not_come_since() -> None:
    live = LiveProfile(None, "model-{memory_mb}")
    live.see(batches(600, 0))
    live.see(batches(6, 1, 1.5, sizes=(1, 2), begin=60.0))
    live.restart(60.0)
    points = points_of(live)
    assert list(points) == [1, 2, 3, 4]
    for size, point in points.items():
        assert point.service_time.mean == pytest.approx(1.5 * mean_time(size), rel=0.15)


def test_without_a_profile_it_begins_with_what_batches_show() -> None:
    live = LiveProfile(None, "model-{memory_mb}")
    assert live.profile() is None
    live.see(batches(7, 0, sizes=(1,)))
    assert live.profile() is None
    live.see(batches(50, 1, sizes=(1,)))
    assert list(points_of(live)) == [1]
    live.see(batches(200, 2, sizes=(2, 4)))
    for size, point in points_of(live).items():
        assert point.service_time.mean == pytest.approx(mean_time(size), rel=0.08)
    found = live.profile()
    assert found is not None
    assert found.model == "model"
    assert service_times(found, 512).max_batch_size == 4


def test_a_single_request_that_was_never_alone_takes_no_longer_than_the_smallest_batch() -> None:
    live = LiveProfile(None, "model-{memory_mb}")
    live.see(batches(100, 0, sizes=(3, 4)))
    assert points_of(live)[1].service_time.mean == points_of(live)[3].service_time.mean


def test_a_time_that_does_not_vary_is_billed_for_as_much_when_another_size_was_measured() -> None:
    points = [ProfilePoint(mb, b, ServiceTime(s), s) for mb in (512, 1024) for b, s in ((1, 0.0063), (4, 0.0081), (8, 0.0101))]
    known = ServiceProfile(function="model-{memory_mb}", points=points)
    live = LiveProfile(known)
    live.see([MeasuredBatch(k, "", 0, "model-512", "", 1, 0.0063, 0.0063, 0.007, False, 0, ()) for k in range(40)])
    found = live.profile()
    assert found is not None
    for memory_mb in (512, 1024):
        for each in (known, found):
            assert service_times(each, memory_mb).mean_billed(0.001)[[0, 3, 7]] == pytest.approx([0.007, 0.009, 0.011])
    billed = [service_times(each, 1024).mean_billed(0.001) for each in (known, found)]  # of which none was measured
    assert billed[0] == pytest.approx(billed[1], rel=1e-12)


def test_means_out_of_order_are_put_in_order() -> None:
    live = LiveProfile(None, "model-{memory_mb}")
    live.see(batches(100, 0, 1.5, sizes=(2,)))
    live.see(batches(100, 1, sizes=(1, 3)))
    means = [point.service_time.mean for point in points_of(live).values()]
    assert means == sorted(means)


def test_cold_batches_are_counted_and_tell_the_init() -> None:
    live = LiveProfile(profile())
    live.see(batches(400, 0, cold=0.1))
    found = live.profile()
    assert found is not None
    assert live.cold_share()[512] == pytest.approx(0.1, abs=0.04)
    assert found.init[512].mean == pytest.approx(0.5, rel=0.03)
    assert points_of(live)[1].service_time.mean == pytest.approx(mean_time(1), rel=0.06)


def test_overhead_and_bias_are_told_with_their_errors() -> None:
    live = LiveProfile(profile())
    live.see(batches(800, 0, 1.2, overhead=0.008))
    mean, error = live.overhead()[512]
    assert abs(mean - 0.008) < 4 * error
    for bias in live.bias():
        expected = 0.2 * mean_time(bias.batch_size) + 0.005
        assert abs(bias.latency - expected) < 4 * bias.latency_error
        assert abs(bias.cost - 0.2 * mean_time(bias.batch_size) / (mean_time(bias.batch_size) + 0.0005)) < 4 * bias.cost_error
    refreshed = live.profile()
    assert all(abs(bias.cost) < 0.02 for bias in live.bias(refreshed))


def linear(most: int = 12) -> ServiceProfile:
    return ServiceProfile(function="model", service_time=LinearServiceTime(0.01, 0.004), max_batch_size=most)


def test_a_linear_profile_keeps_its_law_and_is_scaled_where_times_do_not_spread() -> None:
    live = LiveProfile(linear())
    steady = [(size, 1.4 * (0.01 + 0.004 * size)) for size in (1, 2, 3, 4, 8)]
    live.see([batches(1, 0)[0]._replace(function="model", size=n, service=t, seconds=t) for n, t in 20 * steady])
    found = live.profile()
    assert found is not None
    assert found.service_time is not None
    assert found.service_time.slope == pytest.approx(1.4 * 0.004, rel=0.05)


def test_a_linear_profile_gets_the_spread_that_was_measured_about_its_law() -> None:
    rng = np.random.default_rng(0)
    live = LiveProfile(linear())
    one = batches(1, 0)[0]
    for size in rng.integers(1, 9, 400).tolist():
        seconds = 1.4 * (0.01 + 0.004 * size) * float(rng.choice([0.95, 1.45], p=[0.9, 0.1]))
        live.see([one._replace(function="model", size=size, service=np.nan, seconds=seconds)])
    found = live.profile()
    assert found is not None and found.service_time is None and read(ServiceProfile, write(found)) == found
    assert [point.batch_size for point in found.points] == [1, 2, 4, 8, 12]
    times = service_times(found, 1)
    np.testing.assert_allclose(times.mean_response, 1.4 * (0.01 + 0.004 * np.arange(1, 13)), rtol=0.08)
    np.testing.assert_allclose(times.quantile(0.95) / times.quantile(0.5), 1.45 / 0.95, rtol=0.06)


def test_a_linear_profile_of_several_memory_sizes_keeps_its_law_as_it_names_none() -> None:
    live = LiveProfile(ServiceProfile(function="model-{memory_mb}", service_time=LinearServiceTime(0.01, 0.004)))
    live.see([batch._replace(function="model-512", seconds=batch.service) for batch in batches(300, 0)])
    found = live.profile()
    assert found is not None and found.service_time is not None


def test_a_function_that_tells_no_time_of_its_own_is_measured_by_the_invocation() -> None:
    live = LiveProfile(None, "http://10.0.0.1:8500", 2048)
    nan = float("nan")
    live.see([b._replace(function="http://10.0.0.1:8500", service=nan, billed=nan) for b in batches(200, 0)])
    point = points_of(live, 2048)[2]
    assert point.service_time.mean == pytest.approx(mean_time(2) + OVERHEAD, rel=0.08)
    assert point.overhead == 0


def test_what_is_kept_is_bounded() -> None:
    live = LiveProfile(profile())
    for i in range(2 * MOST_SETTINGS):
        live.see([MeasuredBatch(float(i), "", 0, f"model-{128 + i}", "", 1, 0.1, 0.09, 0.09, False, 0, ())])
    live.see(batches(3 * KEPT, 0, sizes=(1,), cold=0.01))
    assert len(live.points) <= MOST_SETTINGS
    assert all(point.n <= KEPT for point in live.points)
    assert len(pickle.dumps(live)) < 12e6
    assert len(live.cold_share()) <= MOST_SETTINGS


@settings(max_examples=30, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.floats(1e-4, 50.0), st.floats(0.0, 2.0), st.booleans()), max_size=60),
    st.booleans(),
)
def test_whatever_was_measured_the_profile_is_one(measured: list[tuple[int, float, float, bool]], known: bool) -> None:
    live = LiveProfile(profile() if known else None, "model-{memory_mb}")
    for i, (size, seconds, part, cold) in enumerate(measured):
        service = min(part * seconds, 60.0) or float("nan")
        live.see([MeasuredBatch(float(i), "", 0, "model-512", "", size, seconds, service, service, cold, 0, ())])
    found = live.profile()
    if found is not None:
        assert read(ServiceProfile, write(found)) == found
        service_times(found, 512)
    assert all(np.isfinite(bias.latency) for bias in live.bias())


def test_neither_a_profile_nor_a_function_is_refused() -> None:
    with pytest.raises(InvalidInput, match="function"):
        LiveProfile()


def test_what_is_billed_of_a_few_batches_that_were_quick_by_chance_is_drawn_to_what_the_others_tell_as_their_times_are() -> None:
    live = LiveProfile(profile())
    many, few = batches(400, 1, sizes=(1, 2)), batches(8, 2, 0.7, sizes=(4,))
    live.see([*many, *few])
    point, measured = points_of(live)[4], [batch for batch in few if not batch.cold]
    service, billed = (float(np.mean([getattr(batch, name) for batch in measured])) for name in ("service", "billed"))
    assert point.service_time.mean > 1.05 * service
    assert point.billed_duration / billed == pytest.approx(point.service_time.mean / service)
