"""Page's sums: as few false alarms as asked for, nearly as soon as may be, and never after a few values."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Array
from sluice.optimizer.tuning.level_scan import Found
from sluice.optimizer.tuning.step_sum import BY_ITSELF, StepSum

HORIZON = 9


def told(step: float, run_length: float) -> StepSum:
    """One to which the dispersion of standard normal values was told."""
    test = StepSum(step, run_length, HORIZON)
    test.dispersion.begin(1.0, 1024.0)
    return test


def see(test: StepSum, values: Array, counting: float = 1.0) -> Found | None:
    """Each counts for so many."""
    return test.see(values, np.full(len(values), counting))


def test_false_alarms_come_no_oftener_than_is_asked_for() -> None:
    values, test, alarms = np.random.default_rng(0).normal(size=200_000), told(0.5, 1000.0), 0
    while (found := see(test, values)) is not None:
        values, alarms = values[found.consumed :], alarms + 1
        test.restart(0.0)
    assert 0 < alarms <= 200


def test_a_step_is_told_nearly_as_soon_as_so_few_false_alarms_allow() -> None:
    step, run_length = 1.0, 1e6
    rng, delays = np.random.default_rng(1), []
    for _ in range(50):
        test = told(step, run_length)
        assert see(test, rng.normal(size=200)) is None
        found = see(test, step + rng.normal(size=200))
        assert found is not None
        delays.append(found.consumed)
    least = np.log(run_length) / (step**2 / 2)  # Lorden's bound
    assert np.mean(delays) < 1.2 * least


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_what_is_told_is_the_new_level_and_since_when(sign: float) -> None:
    test = told(1.0, 1e6)
    rng = np.random.default_rng(2)
    assert see(test, 0.1 * rng.normal(size=100)) is None
    found = see(test, sign * 1.0 + 0.1 * rng.normal(size=100))
    assert found is not None
    assert found.before == 0.0
    assert found.after == pytest.approx(sign, abs=0.2)
    assert found.consumed - 2 <= found.length <= found.consumed + 2
    assert test.level == found.after


def test_seven_values_however_large_are_no_step() -> None:
    test = told(1.0, 1e6)
    assert see(test, np.full(7, 1e6)) is None


def test_of_values_beside_one_that_is_by_itself_it_takes_seven() -> None:
    for n, told_of in ((6, False), (7, True)):
        counting = np.ones(n)
        counting[0] = BY_ITSELF
        assert (told(1.0, 1e6).see(np.full(n, 1e6), counting) is not None) == told_of


def test_of_values_by_themselves_it_takes_four_and_not_three() -> None:
    assert see(told(1.0, 1e6), np.full(3, 1e6), BY_ITSELF) is None
    found = see(told(1.0, 1e6), np.full(4, 1e6), BY_ITSELF)
    assert found is not None and found.consumed == found.length == 4


def test_how_values_are_cut_into_calls_does_not_matter() -> None:
    rng = np.random.default_rng(3)
    values = np.concatenate([rng.normal(size=500), 1.0 + rng.normal(size=100)])
    found: list[tuple[int, Found]] = []
    for piece in (1, 13, 600):
        test = told(1.0, 1e4)
        for begin in range(0, 600, piece):
            one = see(test, values[begin : begin + piece])
            if one is not None:
                found.append((begin + one.consumed, one._replace(consumed=0)))
                break
    assert len(found) == 3
    assert found[0] == found[1] == found[2]


def test_a_step_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="step: 0.0 is not allowed; allowed: a number > 0"):
        StepSum(0.0, 1e6, HORIZON)
