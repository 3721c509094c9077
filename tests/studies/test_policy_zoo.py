"""The policy zoo is made of its data, and some of the data of the models."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.simulation.chunks import TraceArrivals
from sluice.optimizer.simulation.streaming import simulate_deployments
from sluice.optimizer.traces.trace import read_trace

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def study() -> dict[str, Any]:
    return runpy.run_path(str(DOCS.parent / "studies" / "policy_zoo.py"))


@pytest.fixture(scope="module")
def found(study: dict[str, Any]) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = study["cells"](study["read"]())
    return cells


def test_the_page_is_made_of_the_data(study: dict[str, Any]) -> None:
    page = study["page"](study["read"]())
    assert page == (DOCS / "policy-zoo.md").read_text(encoding="utf-8")
    (figure,) = re.findall(r"\]\((figures/[^)]+)\)", page)
    assert 0 < (DOCS / figure).stat().st_size < 80_000


def test_every_policy_is_in_every_cell(study: dict[str, Any], found: list[dict[str, Any]]) -> None:
    assert len(found) == len(study["TRACES"]) * len(study["NETWORKS"]) * len(study["LATENCIES"])
    assert all(list(cell) == list(found[0]) and len(cell) == 17 for cell in found)


def test_the_rehearsed_choice_is_one_of_the_policies(study: dict[str, Any], found: list[dict[str, Any]]) -> None:
    for cell in found:
        chosen = cell[study["CHOSEN"]]
        same = [row for name, row in cell.items() if name != study["CHOSEN"] and row.cost == chosen.cost]
        assert any(row.violations == chosen.violations for row in same)


def test_where_the_recommended_policy_is_not_the_cheapest_the_page_says_why(
    study: dict[str, Any], found: list[dict[str, Any]]
) -> None:
    for cell in found:
        best, row = study["winner"](cell), cell["recommended"]
        assert best.keeps
        if study["verdict"](cell) == "cheapest":
            assert row.keeps and row.cost <= best.cost * 1.005
        else:
            assert f"*{study['verdict'](cell).capitalize()}* (" in (DOCS / "policy-zoo.md").read_text(encoding="utf-8")


def test_the_figures_are_what_the_policies_come_to(study: dict[str, Any], found: list[dict[str, Any]]) -> None:
    trace = read_trace(study["EXAMPLES"] / study["TRACES"][study["SHIPPED"]].file)
    middle = trace.duration / 2
    past, run = trace.times[trace.times < middle], trace.times[trace.times >= middle]
    cell = study["Cell"](study["Halves"](past, run, poisson(len(past) / middle), ()), "GoogLeNet", 0.2)
    fitless = ("no batching", "size or timeout", "last moment", "greedy", "static", "AIMD", "deadline", "early drop")
    made = {name: make(run) for name, make in cell.policies() if name in fitless}
    assert set(made) == set(fitless)
    rows = next(rows for rows in found if rows["greedy"].cell == (study["SHIPPED"], "GoogLeNet", 0.2))
    for name, statistics in simulate_deployments(made, TraceArrivals(run), [0.2]).items():
        assert 1e6 * statistics.cost.per_request == pytest.approx(rows[name].cost, rel=1e-4), name
        assert statistics.violation_ratio() == pytest.approx(rows[name].violations, abs=1e-4), name
