"""Where a function crosses zero."""

from __future__ import annotations

from math import cos, exp, inf

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq

from sluice.batching.errors import InvalidInput, NotConverged
from sluice.optimizer.roots import find_root, find_step


@given(st.floats(-50, 50), st.floats(0.1, 20), st.floats(1, 9))
def test_it_takes_the_steps_of_the_book_as_scipy_does(at: float, slope: float, power: float) -> None:
    def function(x: float) -> float:
        y = slope * (x - at)
        return y * abs(y) ** (power - 1) + 0.1 * (exp(min(y, 30.0)) - 1)

    low, high = at - 1.7, at + 29.3
    expected = brentq(function, low, high, xtol=1e-12, rtol=4e-15)
    assert find_root(function, low, high, absolute=1e-12, relative=4e-15) == expected


def test_an_end_may_be_the_zero() -> None:
    for low, high in ((0.0, 2.0), (-2.0, 0.0)):
        assert find_root(lambda x: x, low, high, absolute=1e-9, relative=0.0) == 0.0


def test_few_steps_are_taken_where_the_function_is_smooth() -> None:
    asked: list[float] = []

    def function(x: float) -> float:
        asked.append(x)
        return cos(x) - x

    assert find_root(function, 0.0, 1.0, absolute=1e-15, relative=4e-16) == pytest.approx(0.7390851332151607, abs=1e-15)
    assert len(asked) < 12


def test_a_bracket_without_a_change_of_sign_is_refused() -> None:
    with pytest.raises(InvalidInput, match="function at the ends: '1 and 5' is not allowed; allowed: one above 0 and one below"):
        find_root(lambda x: x * x + 1, 0.0, 2.0, absolute=1e-9, relative=0.0)


def test_what_does_not_get_nearer_is_given_up() -> None:
    with pytest.raises(NotConverged, match="no root within 200 steps"):
        find_root(lambda x: -1.0 if x < 1 else inf, 0.0, 2.0, absolute=0.0, relative=0.0)


@given(st.integers(1, 5000), st.floats(0, 1), st.floats(0.01, 30), st.booleans())
def test_among_whole_numbers_it_is_the_first_above_zero(high: int, part: float, slope: float, level: bool) -> None:
    at = part * (high - 1)

    def function(k: int) -> float:
        value = exp(min(slope * (k - at), 100.0)) - 1
        return (1.0 if value > 0 else -1.0) if level else value

    assert find_step(function, 0, high) == next(k for k in range(high + 1) if k > at and function(k) > 0)


def test_few_whole_numbers_are_tried_where_the_function_is_smooth() -> None:
    asked: list[int] = []

    def function(k: int) -> float:
        asked.append(k)
        return (k / 1024) ** 2 - 0.3

    assert find_step(function, 0, 1024) == 561
    assert len(asked) <= 8  # of bisection 12


def test_whole_numbers_without_a_change_of_sign_are_refused() -> None:
    with pytest.raises(InvalidInput, match="function at the ends: '1 and 5' is not allowed; allowed: one not above 0"):
        find_step(lambda k: k + 1.0, 0, 4)
