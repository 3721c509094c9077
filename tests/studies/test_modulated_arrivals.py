"""Arrivals with phases: the page is made of its data, and some of the data of the models."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.service.law import deterministic
from sluice.optimizer.smdp import SmdpProblem, affine
from sluice.optimizer.smdp.modulated import evaluate_modulated, solve_modulated
from sluice.optimizer.smdp.policy_iteration import greedy
from studies.modulated_arrivals.computation import compare
from studies.modulated_arrivals.drawings import draw
from studies.modulated_arrivals.page import page
from studies.modulated_arrivals.results import Row, read
from studies.modulated_arrivals.sampling import sample
from studies.modulated_arrivals.settings import settings
from tests.studies.published import assert_published

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read()


def test_the_page_is_made_of_the_data(rows: list[Row]) -> None:
    assert_published("modulated-arrivals", page(rows), draw(rows), 150_000)


def test_the_example_is_what_the_models_say(rows: list[Row]) -> None:
    exact = {row.policy: row.exact for row in rows if row.group == "example" and row.process == "0.8 μ, 0.2 μ"}
    mean = affine(1.0524e-3, 0.3051e-3, 8)
    full = 8 / mean[-1]
    problem = SmdpProblem(mmpp2(0.8 * full, 0.2 * full, 20, 20), deterministic(mean), affine(19.603e-3, 19.899e-3, 8), 1, 1e3, 1.0)
    assert solve_modulated(problem).gain == pytest.approx(exact["seen"], rel=1e-6)
    by_greedy = evaluate_modulated(problem, greedy(problem))
    assert problem.cost(by_greedy.mean_latency, by_greedy.power) == pytest.approx(exact["greedy"], rel=1e-6)


def test_no_policy_is_cheaper_than_the_bound(rows: list[Row]) -> None:
    known = [row for row in rows if row.policy != "filtered"]
    assert all(row.excess > -1e-6 * abs(row.excess + 1) for row in known if row.policy != "seen" and row.group != "trace")


def test_every_setting_that_is_simulated_is_in_the_data(rows: list[Row]) -> None:
    kept = {(row.group, row.process, row.stay, row.energy, f"{row.load:.7g}") for row in rows if row.group != "trace"}
    assert kept >= {(*setting.key[:4], f"{setting.load:.7g}") for setting in settings()}


def test_a_short_comparison_meets_the_exact_costs() -> None:
    found = list(compare(next(settings()), 8, 20_000, np.random.default_rng(3)))
    assert [row.policy for row in found] == ["seen", "filtered", "Poisson", "control limit", "greedy"]
    assert all(abs(row.z) < 4.5 for row in found if row.policy != "filtered")


def test_sampled_arrivals_come_at_the_rate_of_their_phase() -> None:
    arrivals = mmpp2(100, 10, 2, 1)
    sampled = sample(arrivals, 200_000, np.random.default_rng(5))
    assert (np.diff(sampled.times) > 0).all() and (np.diff(sampled.shift_times) > 0).all()
    phase = np.append(sampled.first, sampled.shift_to)
    lasted = np.diff(np.concatenate([[0.0], sampled.shift_times, sampled.times[-1:]]))
    came = np.bincount(phase[np.searchsorted(sampled.shift_times, sampled.times)], minlength=2)
    for i, rate in enumerate((100, 10)):
        expected = rate * lasted[phase == i].sum()
        assert abs(came[i] - expected) < 4 * np.sqrt(expected)
