"""What is known of the optimal table in special cases, and the tables of the papers' cases that leave it (journal, section VI)."""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import ArrayLike
from scipy.optimize import brentq

from sluice.optimizer.arrays import Array
from sluice.optimizer.service.law import ServiceLaw, deterministic, erlang, exponential, gamma, hyperexponential
from sluice.optimizer.smdp import SmdpProblem, affine, evaluate, solve

LAWS: dict[str, Callable[[ArrayLike], ServiceLaw]] = {
    "deterministic": deterministic,
    "erlang": lambda mean: erlang(mean, 3),
    "exponential": exponential,
    "hyperexponential": hyperexponential,
    "gamma": lambda mean: gamma(mean, 0.4),
}
LOADS = (0.1, 0.3, 0.5, 0.7, 0.9)
WEIGHTS = (0.0, 0.5, 1.0, 100.0)
LINEAR = affine(0.019603, 0.019899, 8)  # zeta, J
SIZED = affine(1.0524e-3, 0.3051e-3, 8)  # l, s


def problem(
    service: ServiceLaw, load: float, power_weight: float = 0.0, energy: Array = LINEAR, min_batch_size: int = 1
) -> SmdpProblem:
    """With the papers' weight of 1 per ms."""
    return SmdpProblem(load * len(energy) / service.mean[-1], service, energy, min_batch_size, 1e3, power_weight)


def same(seconds: float, largest: int = 8) -> Array:
    """Mean service times that no batch size changes."""
    return np.full(largest, seconds)


def control_limit_table(limit: int, largest: int) -> Array:
    states = np.arange(2 * largest + 1)
    return np.where(states < limit, 0, np.minimum(states, largest))


def proposition_4(arrived: float, largest: int, penalty: float) -> tuple[int, bool]:
    """The optimal control limit of exponential service by (32), and whether it leaves no doubt.

    ``arrived`` are expected during a service, ``penalty`` is w2 zeta_0 lambda^2 / w1.
    """
    psi = arrived / (1 + arrived)

    def equation(x: float) -> float:
        # (1 - psi) x^(B + 1) - x + psi, divided by x - 1
        return float((1 - psi) * sum(x**k for k in range(1, largest + 1)) - psi)

    root = float(brentq(equation, 0, 1, xtol=1e-15))
    r = root / (1 - root)
    q = np.arange(1, largest + 1)
    d = q * ((q + 1) / 2 + arrived - r) - r**2 * root**q + r * (r - arrived) - penalty
    clear = bool((np.abs(d) > 1e-9 * (1 + r**2 + penalty)).all())
    return (int(q[d >= 0][0]) if (d >= 0).any() else largest), clear


def exponential_problems() -> Iterator[tuple[SmdpProblem, float]]:
    """Random ones under Assumptions 1-4, with the energy zeta_0 of a batch."""
    rng = np.random.default_rng(4)
    for _ in range(40):
        largest, load, seconds = int(rng.integers(1, 40)), rng.uniform(0.02, 0.95), rng.uniform(0.2, 9) * 1e-3
        weight = float(rng.choice([0.0, rng.uniform(0, 1), rng.uniform(0, 20)]))
        fixed, each = rng.uniform(0, 0.1), rng.uniform(0.001, 0.1)
        yield problem(exponential(same(seconds, largest)), load, weight, affine(fixed, each, largest)), fixed


def test_the_table_is_the_control_limit_of_proposition_4() -> None:
    checked = 0
    for p, fixed in exponential_problems():
        penalty = p.power_weight * fixed * p.arrival_rate**2 / p.latency_weight
        limit, clear = proposition_4(p.arrival_rate * p.service.mean[0], p.max_batch_size, penalty)
        if clear:
            assert solve(p).control_limit() == limit
            checked += 1
    assert checked > 35


@pytest.mark.parametrize("law", LAWS)
def test_without_assumption_4_it_is_a_control_limit_as_well(law: str) -> None:
    rng = np.random.default_rng(list(LAWS).index(law))
    for _ in range(12):
        largest = int(rng.integers(2, 20))
        energy = affine(rng.uniform(0, 0.05), rng.uniform(0.001, 0.05), largest)
        service = LAWS[law](same(rng.uniform(1e-3, 1e-2), largest))
        solution = solve(problem(service, rng.uniform(0.05, 0.95), rng.uniform(0, 5), energy))
        limit = solution.control_limit()
        assert limit is not None and 1 <= limit <= largest


@pytest.mark.parametrize("law", LAWS)
def test_no_control_limit_is_better_than_the_one_found(law: str) -> None:
    p = problem(LAWS[law](same(2.4252e-3)), 0.4, 0.6)
    costs = []
    for limit in range(1, 9):
        performance = evaluate(p, control_limit_table(limit, 8))
        costs.append(p.cost(performance.mean_latency, performance.power))
    solution = solve(p)
    assert solution.control_limit() == 1 + int(np.argmin(costs))
    assert solution.gain == pytest.approx(min(costs), rel=1e-11)


@pytest.mark.parametrize(("power_weight", "fixed"), [(0.0, 0.019603), (3.0, 0.0)])
def test_without_a_fixed_energy_only_the_load_and_the_largest_batch_matter(power_weight: float, fixed: float) -> None:
    for largest, load in ((5, 0.3), (8, 0.6), (20, 0.45)):
        limits = {
            solve(problem(exponential(same(seconds, largest)), load, power_weight, affine(fixed, each, largest))).control_limit()
            for seconds, each in ((2.4e-3, 0.02), (1.7e-3, 0.02), (0.3, 0.5))
        }
        assert len(limits) == 1


@pytest.mark.parametrize("law", ["deterministic", "exponential"])
@pytest.mark.parametrize("load", LOADS)
def test_the_limit_grows_with_the_weight_of_the_power_up_to_the_largest_batch(law: str, load: float) -> None:
    service = LAWS[law](same(2.4252e-3))
    limits = [solve(problem(service, load, weight)).control_limit() for weight in (0, 0.2, 0.5, 1, 2, 5, 20, 100)]
    assert None not in limits
    assert all(a <= b for a, b in pairwise(limits))
    assert limits[-1] == 8


def test_case_3_equals_case_2_without_a_weight_of_the_power_and_waits_no_less_with_one() -> None:
    limits = {
        seconds: [
            [solve(problem(exponential(same(seconds)), load, weight)).control_limit() for load in LOADS] for weight in WEIGHTS
        ]
        for seconds in (2.4252e-3, 1.7465e-3)
    }
    second, third = np.array(limits[2.4252e-3]), np.array(limits[1.7465e-3])
    assert second[0].tolist() == third[0].tolist()
    assert (third >= second).all()
    assert (third > second).any()
    assert (second[-1] == 8).all()


def test_a_least_batch_size_leaves_room_for_smaller_batches_in_longer_queues() -> None:
    service = deterministic(same(2.4252e-3))
    found = {(load, weight): solve(problem(service, load, weight, min_batch_size=5)) for load in LOADS for weight in WEIGHTS}
    partial = {setting for setting, solution in found.items() if any(0 < a < 8 for a in solution.actions[0][8:])}
    assert partial == {(0.1, 0.0), (0.1, 0.5), (0.1, 1.0)}
    for (load, weight), solution in found.items():
        if (load, weight) not in partial:
            free = solve(problem(service, load, weight)).control_limit()
            assert free is not None
            assert solution.control_limit() == max(free, 5)


def test_an_energy_that_is_not_linear_makes_several_thresholds() -> None:
    energy = (105 * np.log(np.arange(1, 9)) + 60) / 1000
    table = solve(problem(deterministic(same(2.4252e-3)), 0.1, 1.0, energy)).actions[0][:9]
    assert table.tolist() == [0, 1, 0, 0, 0, 5, 6, 7, 8]


def test_a_service_time_that_grows_with_the_batch_makes_smaller_batches_than_could_be() -> None:
    p = problem(deterministic(SIZED), 0.1, 0.0)
    solution = solve(p)
    assert any(0 < a < min(s, 8) for s, a in enumerate(solution.actions[0]))
    costs = []
    for limit in range(1, 9):
        performance = evaluate(p, control_limit_table(limit, 8))
        costs.append(p.cost(performance.mean_latency, performance.power))
    assert solution.gain < min(costs) * (1 - 1e-9)


def test_case_7_has_more_tables_without_a_control_limit_than_the_cases_it_combines() -> None:
    energy = (105 * np.log(np.arange(1, 9)) + 60) / 1000
    same_time = deterministic(same(2.4252e-3))
    cases = {
        "4": (same_time, LINEAR, 5),
        "5": (same_time, energy, 1),
        "6": (deterministic(SIZED), LINEAR, 1),
        "7": (hyperexponential(SIZED), energy, 5),
    }
    counts = {
        name: sum(
            solve(problem(service, load, weight, joules, smallest)).control_limit() is None for load in LOADS for weight in WEIGHTS
        )
        for name, (service, joules, smallest) in cases.items()
    }
    assert counts["7"] > max(counts[name] for name in "456")
    assert min(counts.values()) > 0
