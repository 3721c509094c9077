"""Service times over batch and size: interpolation, and the law of a batch that is padded to its largest member."""

import numpy as np
import pytest

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.service import SizeMix, service_by_size, service_times, service_times_under
from sluice.optimizer.service.mix import MAX_VALUES
from tests.optimizer.sized_profiles import MIXES, seconds, sized_profile


def test_times_are_linear_between_measured_sizes_and_those_of_the_smallest_below() -> None:
    by_size = service_by_size(sized_profile(), 1769, 16)
    at = by_size.seconds(np.array([3.0, 8.0, 80.0, 512.0]))[:, :, 0]
    assert at[0] == pytest.approx(at[1]) and at[1][3] == pytest.approx(seconds(4, 8))
    assert at[2][7] == pytest.approx((seconds(8, 32) + seconds(8, 128)) / 2)
    assert at[3][15] == pytest.approx(seconds(16, 512))
    assert by_size.overhead(np.array([80.0]))[0] == pytest.approx(0.00108)


def test_nothing_is_extrapolated_beyond_the_largest_measured_size() -> None:
    with pytest.raises(
        InvalidInput, match=r"size: 513.0 is not allowed; allowed: at most 512, the largest that the profile measured"
    ):
        service_times_under(sized_profile(), 1769, 16, SizeMix.of([4, 513]))
    with pytest.raises(InvalidInput, match=r"size: 600.0 is not allowed; allowed: at most 512"):
        service_by_size(sized_profile(), 1769, 16).under(SizeMix.of([600]))


def test_only_sizes_that_occur_bound_the_batch() -> None:
    profile = sized_profile()
    fewer = [point for point in profile.points if point.size != 512 or point.batch_size <= 4]
    profile = ServiceProfile(function="f", points=fewer)
    assert service_times_under(profile, 1769, 128, SizeMix.of([5, 100])).max_batch_size == 16
    assert service_times_under(profile, 1769, 128, SizeMix.of([5, 200])).max_batch_size == 4


def test_a_larger_size_is_not_quicker_but_by_noise() -> None:
    def profile(larger: float) -> ServiceProfile:
        sizes = [(8.0, 0.1), (16.0, larger)]
        return ServiceProfile(function="f", points=[ProfilePoint(512, 1, ServiceTime(s), s, size=size) for size, s in sizes])

    levelled = service_by_size(profile(0.095), 512, 1).seconds(np.array([16.0]))
    assert levelled[0, 0, 0] == 0.1
    with pytest.raises(InvalidInput, match=r"batch_size 1, size 16: 0.08 is not allowed; allowed: at most 10 %, or 0.001 s, below"):
        service_by_size(profile(0.08), 512, 1)


def test_a_profile_with_sizes_needs_a_mix_and_a_mix_a_profile_with_sizes() -> None:
    with pytest.raises(InvalidInput, match=r"sizes: none was given; needed: how large requests are .* \(8 to 512\)"):
        service_times(sized_profile(), 1769)
    plain = sized_profile().of_size(8)
    with pytest.raises(InvalidInput, match=r"profile: 'encoder-.*' is not allowed; allowed: one that tells sizes apart"):
        service_times_under(plain, 1769, 8, SizeMix.of([4]))


@pytest.mark.proof
@pytest.mark.parametrize("spread", [False, True], ids=["means", "quantiles"])
@pytest.mark.parametrize("name", MIXES)
def test_the_law_of_a_padded_batch_is_that_of_brute_force(name: str, spread: bool) -> None:
    mix, by_size = MIXES[name], service_by_size(sized_profile(spread), 1769, 16)
    times = by_size.under(mix)
    for n in (1, 2, 5, 16):
        rows = by_size.seconds(mix.values)[:, n - 1] + by_size.overhead(mix.values)[:, n - 1, None]
        drawn, _ = brute_force(mix, n, rows, by_size.quantile_levels)
        error = 4 * drawn.std() / np.sqrt(len(drawn))
        assert abs(times.mean_response[n - 1] - drawn.mean()) < max(error, 1e-3 * drawn.mean())
        # by parts, which needs no draw: the mean rises with every size that the largest member exceeds
        each = rows[:, 0] if rows.shape[1] == 1 else np.trapezoid(rows, by_size.quantile_levels, axis=1)
        exceeded = 1 - np.cumsum(mix.shares)[:-1] ** n
        assert times.mean_response[n - 1] == pytest.approx(each[0] + np.diff(each) @ exceeded, rel=1e-3)
        for q in (0.5, 0.95, 0.99):
            # a jump of the quantile function is met to a thousandth of the probability
            low, high = np.quantile(drawn, [q - 0.001, q + 0.001])
            assert 0.995 * low <= times.quantile(q)[n - 1] <= 1.005 * high


def test_an_overhead_that_falls_with_the_size_cuts_nothing_off() -> None:
    """Service times are levelled by size, overheads are not: the largest size then need not be the last to answer."""
    at = [(8.0, 0.002), (16.0, 0.001), (32.0, 0.0015)]
    points = [ProfilePoint(512, 1, ServiceTime(0.01), 0.01, overhead, size=size) for size, overhead in at]
    mix = SizeMix(np.array([8.0, 16.0, 32.0]), np.array([0.3, 0.3, 0.4]))
    times = service_times_under(ServiceProfile(function="f", points=points), 512, 1, mix)
    assert times.mean_response[0] == pytest.approx(0.0115, rel=1e-3)
    assert [times.quantile(q)[0] for q in (0.15, 0.5, 0.9)] == pytest.approx([0.011, 0.0115, 0.012], rel=1e-3)


def brute_force(mix: SizeMix, n: int, rows: Array, levels: Array) -> tuple[Array, Array]:
    """Seconds of batches of ``n`` members drawn one by one, and the place of the largest member."""
    rng = np.random.default_rng(n)
    places = rng.choice(len(mix.values), size=(200_000, n), p=mix.shares).max(axis=1)
    luck = (rng.permutation(len(places)) + rng.random(len(places))) / len(places)
    if rows.shape[1] == 1:
        return rows[places, 0], places
    above = np.clip(np.searchsorted(levels, luck, side="right"), 1, len(levels) - 1)
    part = (luck - levels[above - 1]) / (levels[above] - levels[above - 1])
    return rows[places, above - 1] * (1 - part) + rows[places, above] * part, places


@pytest.mark.parametrize("granularity", [0.001, 0.1])
@pytest.mark.parametrize("spread", [False, True], ids=["means", "quantiles"])
def test_every_size_is_rounded_on_its_own(spread: bool, granularity: float) -> None:
    """Of 100 ms, where rounding the mean alone would be far off."""
    mix, by_size = MIXES["long-tailed"], service_by_size(sized_profile(spread), 1769, 16)
    billed = by_size.under(mix).mean_billed(granularity)
    for n in (1, 4, 16):
        rows = by_size.seconds(mix.values)[:, n - 1]
        drawn, places = brute_force(mix, n, rows, by_size.quantile_levels)
        beyond = 0.0
        if spread:  # what was measured is rounded already
            mean = np.trapezoid(rows, by_size.quantile_levels, axis=1)
            paid = by_size.mean_billed(mix.values, np.full(len(mix.values), n), 0.001)
            if granularity == 0.001:
                drawn = paid[places]
            beyond = (paid - mean)[places] if granularity > 0.001 else 0.0
        expected = (np.ceil((drawn + beyond) / granularity - 1e-9) * granularity) if not spread or granularity > 0.001 else drawn
        error = 4 * expected.std() / np.sqrt(len(expected))
        assert abs(billed[n - 1] - expected.mean()) < error + 1e-9


def test_fewer_of_a_batch_keep_the_law() -> None:
    times = service_by_size(sized_profile(), 1769, 16).under(MIXES["long-tailed"])
    fewer = times.up_to(3)
    assert fewer.max_batch_size == 3 and (fewer.seconds == times.seconds[:3]).all()
    assert fewer.mean_billed(0.1) == pytest.approx(times.mean_billed(0.1)[:3])
    with pytest.raises(InvalidInput, match="batch_size: 17"):
        times.up_to(17)


def test_the_largest_of_n_has_the_law_of_the_maximum() -> None:
    mix = MIXES["two sizes"]
    assert mix.of_the_largest(3)[:, 0] == pytest.approx([0.9, 0.81, 0.729])
    assert mix.quantile(0.9) == 20 and mix.quantile(0.91) == 400 and mix.mean == pytest.approx(58)
    assert mix.share(20, 400) == pytest.approx(0.1) and mix.between(0, 20).largest == 20


def test_a_mix_of_more_sizes_than_are_kept_apart_keeps_its_mean_and_its_top() -> None:
    seen = np.random.default_rng(3).lognormal(4, 1, 20_000)
    mix = SizeMix.of(seen)
    assert len(mix.values) == MAX_VALUES and mix.mean == pytest.approx(seen.mean())
    assert mix.largest == seen.max() and mix.quantile(0.99) == np.sort(seen)[19_799]
    assert mix.quantile(0.5) == pytest.approx(np.quantile(seen, 0.5), rel=0.005)


@pytest.mark.parametrize(("sizes", "message"), [([], "at least one size"), ([1, -2], "size 2: -2.0"), ([np.nan], "size 1: nan")])
def test_sizes_that_are_none_are_refused_by_their_place(sizes: list[float], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        SizeMix.of(sizes, "sizes.csv")
