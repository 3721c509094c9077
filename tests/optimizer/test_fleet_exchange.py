"""Placements made better by one device at a time."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.optimizer.control.exchange import improve
from sluice.optimizer.fleet.problem import FleetProblem

LEAST = 0.05
FAMILIES = np.array([0, 0, 0, 1, 1, 2])


def problem(seed: int = 0) -> FleetProblem:
    rng = np.random.default_rng(seed)
    accuracy = np.array([100.0, 90.0, 80.0, 100.0, 70.0, 95.0])
    speed = np.array([1.0, 2.0, 4.0, 1.0, 5.0, 2.0])
    throughput = np.array([[10.0], [25.0]]) * speed * rng.uniform(0.8, 1.2, 6)
    return FleetProblem(np.array([4, 3]), throughput, accuracy, FAMILIES, rng.uniform(10.0, 60.0, 3))


def fluid(of: FleetProblem, family: int, counts: np.ndarray) -> float:
    """Requests/s in time by their accuracy, the most accurate variants first; a worth that is cheap."""
    left, earned = float(of.demand[family]), 0.0
    for m in sorted(np.flatnonzero(of.family == family), key=lambda m: -of.accuracy[m]):
        taken = min(left, float(of.throughput[:, m] @ counts[:, m]))
        left, earned = left - taken, earned + taken * float(of.accuracy[m]) / 100
    return earned


def begun(of: FleetProblem, seed: int) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.array([np.bincount(rng.integers(0, 6, n), minlength=6) for n in of.devices])


def earned(of: FleetProblem, counts: np.ndarray) -> float:
    return sum(fluid(of, q, counts) for q in range(3))


@pytest.mark.parametrize("seed", range(8))
def test_no_exchange_of_one_device_is_worth_making_after_them(seed):
    of = problem(seed)
    counts = improve(of, begun(of, seed), lambda q, counts: fluid(of, q, counts), of.demand, LEAST, 10**6)
    assert counts.sum(axis=1).tolist() == of.devices.tolist() and (counts >= 0).all()
    found = earned(of, counts)
    assert found >= earned(of, begun(of, seed))
    for d, given in np.argwhere(counts):
        for taken in range(6):
            other = counts.copy()
            other[d, given] -= 1
            other[d, taken] += 1
            assert earned(of, other) < found + LEAST


def test_families_that_have_nothing_to_gain_are_not_looked_at():
    of, looked = problem().with_demand([60.0, 0.0, 0.0]), []

    def worth(family: int, counts: np.ndarray) -> float:
        looked.append(family)
        return fluid(of, family, counts)

    improve(of, np.array([[0, 0, 4, 0, 0, 0], [0, 0, 3, 0, 0, 0]]), worth, of.demand, LEAST, 10**6)
    assert set(looked[3:]) == {0} and len(looked) > 5
    looked.clear()
    improve(of, np.array([[4, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0]]), worth, of.demand, LEAST, 10**6)
    assert sorted(looked) == [0, 1, 2]


def test_what_is_looked_at_is_bounded():
    of, looked = problem(), []

    def worth(family: int, counts: np.ndarray) -> float:
        looked.append(family)
        return fluid(of, family, counts)

    improve(of, begun(of, 3), worth, of.demand, LEAST, most=1)
    once = len(looked)
    looked.clear()
    improve(of, begun(of, 3), worth, of.demand, LEAST, most=10**6)
    assert once < len(looked)
