"""Quantiles of measured durations: numpy's, at the levels that the sample allows, and rising."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.batching.quantiles import LEVELS, quantile_points


@pytest.mark.parametrize("n", [1, 2, 10, 20, 99, 100, 1000])
def test_quantiles_are_given_where_a_value_is_expected_beyond_them(n):
    given = [q for q, _ in quantile_points(np.linspace(0.01, 0.02, n).tolist())]
    assert given == [q for q in LEVELS if round(n * min(q, 1 - q), 9) >= 1]


@pytest.mark.parametrize("n", [2, 20, 101])
def test_quantiles_are_those_of_numpy(n):
    sample = np.random.default_rng(n).exponential(size=n).tolist()
    points = quantile_points(sample)
    expected = np.quantile(sample, [q for q, _ in points], method="median_unbiased")
    assert [seconds for _, seconds in points] == pytest.approx(expected)


def test_quantiles_are_those_of_the_law():
    durations = np.random.default_rng(5).exponential(0.01, 20_000).tolist()
    for q, seconds in quantile_points(durations):
        error = math.sqrt(q * (1 - q) / len(durations)) / ((1 - q) / 0.01)  # standard error of a quantile: sqrt(q(1-q)/n) / density
        assert abs(seconds - -0.01 * math.log(1 - q)) < 4 * error


@given(st.lists(st.sampled_from([0.1, 0.3, 0.1 + 0.2, 0.7]), min_size=2, max_size=200))
def test_quantiles_never_fall_however_they_are_rounded(durations):
    values = [seconds for _, seconds in quantile_points(durations)]
    assert values == sorted(values)
