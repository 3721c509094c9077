"""What stands in the place of libraries that take long to import finds what they find."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import special
from scipy.fft import next_fast_len
from scipy.linalg import expm, lapack
from scipy.optimize import isotonic_regression, minimize_scalar

from sluice.batching.errors import InvalidInput
from sluice.optimizer import lapack as ours
from sluice.optimizer import special_functions
from sluice.optimizer.arrivals.dispersion import _moved
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.fast_length import fast_length
from sluice.optimizer.isotonic import in_order
from sluice.optimizer.minima import find_minimum


@given(st.integers(1, 1 << 24))
def test_a_fast_length_is_that_of_scipy(n: int) -> None:
    assert fast_length(n) == next_fast_len(n, real=True)


@given(st.lists(st.tuples(st.floats(-10, 10), st.floats(0.1, 10)), min_size=1, max_size=30))
def test_values_in_order_are_the_isotonic_regression(values: list[tuple[float, float]]) -> None:
    x, weights = np.array(values).T
    np.testing.assert_allclose(in_order(x, weights), isotonic_regression(x, weights=weights).x, rtol=1e-12, atol=1e-12)


def test_a_minimum_is_found_to_what_is_asked_also_at_an_end() -> None:
    for centre in (-2.0, -1.0, 0.3, 2.0, 5.0):
        found = find_minimum(lambda x, centre=centre: (x - centre) ** 4 + abs(x - centre), -1.0, 2.0, absolute=1e-8)
        assert found == pytest.approx(min(max(centre, -1.0), 2.0), abs=1e-6)
    by_scipy = minimize_scalar(lambda x: np.sin(3 * x) + x**2, bounds=(-1, 2), method="bounded").x
    assert find_minimum(lambda x: float(np.sin(3 * x) + x**2), -1.0, 2.0, absolute=1e-5) == pytest.approx(by_scipy, abs=1e-9)
    for low, high, absolute in ((2.0, 1.0, 1e-5), (0.0, np.inf, 1e-5), (0.0, 1.0, 0.0)):
        with pytest.raises(InvalidInput, match="low, high|absolute"):
            find_minimum(abs, low, high, absolute=absolute)


def test_two_phases_move_as_the_exponential_of_their_generator_says() -> None:
    process = mmpp2(80.0, 20.0, 1.3, 0.2)
    generator, ergodic = process.D0 + process.D1, np.outer(np.ones(2), process.stationary)
    values, lengths = np.array([0.3, -2.0]), np.array([1e-3, 0.1, 1.0, 30.0])
    expected = [expm(generator * t) @ values for t in lengths]
    np.testing.assert_allclose(_moved(generator, ergodic, lengths, values), expected, rtol=1e-9)


def test_special_functions_are_those_of_scipy_and_leave_it_whole() -> None:
    for name, theirs in special_functions.NAMES.items():
        assert getattr(special_functions, name) is getattr(special, theirs, None) or name == "hurwitz_zeta"
    assert special_functions.hurwitz_zeta(2, 1.5) == special.polygamma(1, 1.5)
    with pytest.raises(AttributeError, match="no attribute 'gamma'"):
        _ = special_functions.gamma


def test_of_a_scipy_that_has_them_elsewhere_its_package_is_imported() -> None:
    found = special_functions._of(ModuleType("elsewhere"))
    assert found.keys() == special_functions.NAMES.keys() and None not in found.values()
    assert found["stdtrit"] is special.stdtrit and found["hurwitz_zeta"](2, 1.5) == special.zeta(2, 1.5)


def test_routines_of_lapack_are_those_of_scipy_wherever_it_has_them() -> None:
    for name in ours.NAMES:
        assert getattr(ours, name) is getattr(lapack, name)
    with pytest.raises(AttributeError, match="no attribute 'dgesv'"):
        _ = ours.dgesv
    for elsewhere in ("scipy.linalg._elsewhere", "scipy.linalg._misc"):  # one that is not there, one that has none of them
        assert ours._found(elsewhere) == {name: getattr(lapack, name) for name in ours.NAMES}


def test_their_packages_are_not_imported_for_them_and_whoever_wants_one_has_it_whole() -> None:
    script = """
import sys
from sluice.optimizer import special_functions
quantile = special_functions.stdtrit(7, 0.95)
print("scipy.special" in sys.modules)
import scipy.special
print(scipy.special.stdtrit is special_functions.stdtrit, scipy.special.zeta(2, 1.5) > 0)
from sluice.optimizer import lapack
factor = lapack.dgbtrf
print("scipy.linalg" in sys.modules)
import scipy.linalg
print(scipy.linalg.lapack.dgbtrf is factor, scipy.linalg.det([[2.0]]) == 2)
"""
    told = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["False", "True", "True"] * 2
