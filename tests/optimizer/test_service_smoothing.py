"""Means that are out of order by their errors are put into order, and what is in order stays."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sluice.batching.documents import LinearServiceTime, ProfilePoint, ServiceProfile, ServiceTime
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals import poisson
from sluice.optimizer.service import EmpiricalLaw, ServiceTimes, service_times, smooth, smoothed_profile
from sluice.optimizer.smdp import SmdpProblem

SIZES = (1, 2, 4, 8, 16, 32)


def profile_of(means, overheads=None, n=1, spread=None):
    """Measured means (s) by batch size; with ``spread`` uniform times as wide as this part of the mean."""
    points = []
    for size, mean in means.items():
        quantiles = [] if spread is None else [(0.0, mean * (1 - spread)), (1.0, mean * (1 + spread))]
        points.append(ProfilePoint(1769, size, ServiceTime(mean, quantiles, n), mean, (overheads or {}).get(size, 0.0)))
    return ServiceProfile(function="f", points=points)


def served_by(service):
    """The problem that refuses means out of order."""
    return SmdpProblem(poisson(0.5), EmpiricalLaw(service), np.zeros(service.max_batch_size))


def test_the_profile_of_a_tutorial_is_taken_with_both_means_in_the_middle_and_the_note_says_so():
    profile = profile_of({1: 0.0066, 2: 0.0068, 8: 0.011}, {1: 0.001197, 2: 0.00083, 8: 0.001})  # 7.797 and 7.63 ms
    with pytest.raises(InvalidInput, match="a larger batch is not quicker"):
        served_by(service_times(profile, 1769))
    smoothed = smoothed_profile(profile, 1769)
    served_by(smoothed.service)
    assert smoothed.taken[0] == smoothed.taken[1] == pytest.approx(0.00771, abs=1e-5)
    assert (
        "7.712 ms for a batch of 1 (measured 7.797 ms ± 3 %), 7.712 ms for a batch of 2 (measured 7.63 ms ± 3 %)" in smoothed.note
    )


def test_larger_batches_that_serve_fewer_by_their_error_are_smoothed_too():
    smoothed = smoothed_profile(profile_of({1: 0.010, 2: 0.0204, 4: 0.0401}), 1769)
    served_by(smoothed.service)
    assert (np.diff(smoothed.taken / smoothed.sizes) <= 1e-15).all() and smoothed.note


@example([0.0, 0.0, 0.0, 0.0, 0.0, 9.687131767600388e-10], 0.0)  # out of order by less than a sentence would name
@example([1 / 64, -5 / 256, 1 / 64, 5 / 256, 5 / 256, 5 / 256], 0.0)  # one is moved by more than any of them is off
@given(st.lists(st.floats(-0.02, 0.02), min_size=len(SIZES), max_size=len(SIZES)), st.floats(0, 1))
def test_whatever_the_errors_a_law_in_order_is_measured_with_the_smoothed_means_are_in_order_and_no_further_off(noise, intercept):
    truth = np.array([intercept + (1 - intercept) * size for size in SIZES])
    measured = truth * (1 + np.array(noise))
    smoothed = smoothed_profile(profile_of(dict(zip(SIZES, map(float, measured), strict=True))), 1769)
    served_by(smoothed.service)
    assert np.abs(smoothed.taken / truth - 1).max() <= np.abs(smoothed.measured / truth - 1).max() + 1e-9
    np.testing.assert_allclose(smoothed.service.mean_response[np.array(SIZES) - 1], smoothed.taken)


def test_what_is_in_order_stays_as_it_is():
    profile = profile_of({1: 0.01, 4: 0.012, 8: 0.02}, {1: 0.001}, n=100, spread=0.3)
    smoothed = smoothed_profile(profile, 1769, 6)
    plain = service_times(profile, 1769, 6)
    assert smoothed.note == ""
    for name in ("seconds", "overhead", "billed_duration", "quantile_levels"):
        np.testing.assert_array_equal(getattr(smoothed.service, name), getattr(plain, name))
    linear = ServiceProfile(function="f", service_time=LinearServiceTime(0.01, 0.001), max_batch_size=4)
    assert smoothed_profile(linear, 1769).note == "" == smoothed_profile(linear, 1769, 3).note


def test_a_mean_that_is_out_of_order_by_more_than_twice_its_error_is_refused_with_what_to_do():
    with pytest.raises(
        InvalidInput, match=r"at batch size \d: .* within twice its error of 3 %.*Profile again .*--precision.*--max-batch-size"
    ):
        smoothed_profile(profile_of({1: 0.010, 2: 0.0101}, {1: 0.002, 2: 0.0}), 1769)


def test_the_error_is_that_of_the_runs_where_it_is_larger_than_what_a_profile_does_not_tell():
    profile = profile_of({1: 0.010, 2: 0.0101}, {1: 0.002, 2: 0.0}, n=12, spread=0.6)
    smoothed = smoothed_profile(profile, 1769)
    # uniform on 1 ± 0.6: a standard deviation of 0.6 / sqrt 3, Student's t with 11 degrees of freedom 2.201
    np.testing.assert_allclose(smoothed.error, 2.201 * 0.6 / np.sqrt(3 * 12), rtol=1e-3)
    assert "± 22 %" in smoothed.note


def test_a_law_keeps_its_shape():
    service = ServiceTimes(1, np.array([[0.9, 1.1], [0.89, 1.09]]), np.zeros(2), np.ones(2))
    smoothed = smooth(service).service
    np.testing.assert_allclose(smoothed.seconds[0] / smoothed.seconds[0].mean(), [0.9, 1.1])
    np.testing.assert_allclose(smoothed.mean_response[0], smoothed.mean_response[1])
