"""Service times of a profile: the rules between, below and beyond what was measured."""

import math

import numpy as np
import pytest

from sluice.batching.documents import LinearServiceTime, ProfilePoint, ServiceProfile, ServiceTime
from sluice.batching.errors import InvalidInput
from sluice.optimizer.service.times import ServiceTimes, service_times


def profile(*points: ProfilePoint) -> ServiceProfile:
    return ServiceProfile(function="f", points=list(points))


def measured(batch_size: int, mean: float, quantiles: list[tuple[float, float]] | None = None) -> ProfilePoint:
    return ProfilePoint(512, batch_size, ServiceTime(mean, quantiles or [], 50), math.ceil(mean * 1000) / 1000, 0.002)


QUANTILES = [(0.1, 0.01), (0.5, 0.02), (0.9, 0.05)]


def test_quantiles_are_interpolated_between_measured_batch_sizes_only() -> None:
    service = service_times(profile(measured(1, 0.02, QUANTILES), measured(4, 0.05, [(q, s + 0.03) for q, s in QUANTILES])), 512)
    assert service.max_batch_size == 4
    for q in (0.05, 0.3, 0.5, 0.77, 0.99):
        one, two, _, four = service.quantile(q)
        assert two == pytest.approx(one + (four - one) / 3)
    with pytest.raises(InvalidInput, match="batch_size: 5 is not allowed; allowed: 1 to 4, as the profile measured"):
        service_times(profile(measured(1, 0.02), measured(4, 0.05)), 512, 5)


def test_a_quantile_function_is_linear_between_its_points_and_constant_beyond() -> None:
    service = service_times(profile(measured(1, 0.02, QUANTILES)), 512)
    assert service.quantile(0.3)[0] == pytest.approx(0.015 + 0.002)
    assert service.quantile(0.01)[0] == pytest.approx(0.01 + 0.002) and service.quantile(0.999)[0] == pytest.approx(0.05 + 0.002)
    draws = np.array([service.seconds_at(1, level) for level in np.random.default_rng(0).random(4000)]) + 0.002
    assert abs(draws.mean() - service.mean_response[0]) < 4 * draws.std() / math.sqrt(4000)


def test_points_measured_at_different_levels_meet() -> None:
    service = service_times(profile(measured(1, 0.02, QUANTILES), measured(2, 0.03, [(0.5, 0.03), (0.75, 0.06)])), 512)
    assert service.quantile(0.75) == pytest.approx([0.05 - 0.03 * 0.15 / 0.4 + 0.002, 0.06 + 0.002])


def test_a_point_without_quantiles_is_its_mean() -> None:
    service = service_times(profile(measured(1, 0.02, QUANTILES), measured(2, 0.06)), 512)
    assert service.quantile(0.1)[1] == service.quantile(0.9)[1] == pytest.approx(0.062)
    assert service_times(profile(measured(1, 0.02), measured(2, 0.06)), 512).deterministic


@pytest.mark.parametrize("granularity", [0.1, 0.03, 0.007])
def test_a_coarse_granularity_bills_the_mean_of_what_is_rounded_up(granularity: float) -> None:
    levels = np.array([0.0, 0.2, 0.2001, 0.9, 1.0])
    seconds = np.array([[0.05, 0.15, 0.25, 0.2501, 0.9], [0.1, 0.1, 0.1, 0.3, 0.31]])
    beyond = 0.004
    mean = np.trapezoid(seconds, levels, axis=1)
    service = ServiceTimes(512, seconds, np.zeros(2), mean + beyond, levels)
    middles = (np.arange(400_000) + 0.5) / 400_000
    for row, billed in zip(seconds, service.mean_billed(granularity), strict=True):
        paid = np.ceil((np.interp(middles, levels, row) + beyond) / granularity - 1e-9) * granularity
        assert billed == pytest.approx(paid.mean(), rel=1e-5)


def test_what_was_billed_by_the_millisecond_stands_as_measured() -> None:
    service = service_times(profile(measured(1, 0.0123, QUANTILES)), 512)
    assert service.mean_billed(0.001) == pytest.approx([0.013])


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([(2, 0.1)], "batch_size 1 measured as well"),
        ([(1, 0.2), (2, 0.1)], "service_time.mean at memory_mb 512, batch_size 2: 0.1 is not allowed"),
    ],
)
def test_a_profile_with_holes_or_that_falls_is_refused(points: list[tuple[int, float]], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        service_times(profile(*(measured(b, s) for b, s in points)), 512)


@pytest.mark.parametrize(("first", "second"), [(0.100, 0.095), (0.0015, 0.0011)])  # a part, a millisecond
def test_a_fall_within_noise_is_levelled(first: float, second: float) -> None:
    points = [measured(b, s) for b, s in ((1, first), (2, second), (4, 0.2))]
    assert service_times(profile(*points), 512).seconds[:2, 0] == pytest.approx([first, first])


def test_a_linear_profile_without_an_end_is_refused() -> None:
    with pytest.raises(InvalidInput, match="max_batch_size: none was given"):
        service_times(ServiceProfile(function="f", service_time=LinearServiceTime(0.1, 0.1)), 512)


def test_a_granularity_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="granularity: 0 is not allowed; allowed: a number of seconds > 0"):
        service_times(profile(measured(1, 0.02)), 512).mean_billed(0)
