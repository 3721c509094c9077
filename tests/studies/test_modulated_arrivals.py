"""The page on arrivals with phases is made of its data, and some of the data of the models."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.service.law import deterministic
from sluice.optimizer.smdp import SmdpProblem, affine
from sluice.optimizer.smdp.modulated import evaluate_modulated, solve_modulated
from sluice.optimizer.smdp.policy_iteration import greedy

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(DOCS.parent / "studies" / "modulated_arrivals.py"))


def test_the_page_is_made_of_the_data(study: dict[str, Any]) -> None:
    assert study["page"](study["read"]()) == (DOCS / "modulated-arrivals.md").read_text(encoding="utf-8")


def test_the_example_is_what_the_models_say(study: dict[str, Any]) -> None:
    rows = [row for row in study["read"]() if row.group == "example" and row.process == "0.8 μ, 0.2 μ"]
    exact = {row.policy: row.exact for row in rows}
    mean = affine(1.0524e-3, 0.3051e-3, 8)
    full = 8 / mean[-1]
    problem = SmdpProblem(mmpp2(0.8 * full, 0.2 * full, 20, 20), deterministic(mean), affine(19.603e-3, 19.899e-3, 8), 1, 1e3, 1.0)
    assert solve_modulated(problem).gain == pytest.approx(exact["seen"], rel=1e-6)
    by_greedy = evaluate_modulated(problem, greedy(problem))
    assert problem.cost(by_greedy.mean_latency, by_greedy.power) == pytest.approx(exact["greedy"], rel=1e-6)


def test_no_policy_is_cheaper_than_the_bound(study: dict[str, Any]) -> None:
    known = [row for row in study["read"]() if row.policy != "filtered"]
    assert all(row.excess > -1e-6 * abs(row.excess + 1) for row in known if row.policy != "seen" and row.group != "trace")
