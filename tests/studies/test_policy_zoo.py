"""The policy zoo is made of its data, and some of the data of the models."""

from __future__ import annotations

import pytest

from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.simulation.chunks import TraceArrivals
from sluice.optimizer.simulation.streaming import simulate_deployments
from sluice.optimizer.traces.trace import read_trace
from studies.policy_zoo.claims import Findings, verdict, winner
from studies.policy_zoo.computation import CHOSEN, LATENCIES, NETWORKS, SHIPPED, TRACES, Cell, Halves
from studies.policy_zoo.drawings import draw
from studies.policy_zoo.page import page
from studies.policy_zoo.results import Row, read
from studies.publishing import DOCS, EXCERPT
from studies.publishing import TRACES as EXAMPLES
from tests.studies.published import assert_published

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read()


@pytest.fixture(scope="module")
def found(rows: list[Row]) -> Findings:
    return Findings.of(rows)


def test_the_page_is_made_of_the_data(rows: list[Row]) -> None:
    assert_published("policy-zoo", page(rows), draw(rows), 80_000)


def test_every_policy_is_in_every_cell(found: Findings) -> None:
    assert len(found.cells) == len(TRACES) * len(NETWORKS) * len(LATENCIES)
    assert all(list(cell) == list(found.cells[0]) and len(cell) == 18 for cell in found.cells)


def test_the_rehearsed_choice_is_one_of_the_policies(found: Findings) -> None:
    for cell in found.cells:
        chosen = cell[CHOSEN]
        same = [row for name, row in cell.items() if name != CHOSEN and row.cost == chosen.cost]
        assert any(row.violations == chosen.violations for row in same)


def test_where_the_recommended_policy_is_not_the_cheapest_the_page_says_why(found: Findings) -> None:
    text = (DOCS / "policy-zoo.md").read_text(encoding="utf-8")
    for cell in found.cells:
        best, row = winner(cell), cell["recommended"]
        assert best.keeps
        if verdict(cell) == "cheapest":
            assert row.keeps and row.cost <= best.cost * 1.005
        else:
            assert f"*{verdict(cell).capitalize()}* (" in text


def test_a_policy_that_cannot_be_had_misses_the_slo(found: Findings) -> None:
    for policy in found.cells[0]:
        assert found.kept(policy) + found.missed(policy) == len(found.cells)
        assert len(found.beyond_winner(policy)) == found.kept(policy)
    assert sum(found.wins.values()) == len(found.cells)


def test_the_figures_are_what_the_policies_come_to(found: Findings) -> None:
    assert EXAMPLES / TRACES[SHIPPED].file == EXCERPT
    trace = read_trace(EXCERPT)
    middle = trace.duration / 2
    past, run = trace.times[trace.times < middle], trace.times[trace.times >= middle]
    cell = Cell(Halves(past, run, poisson(len(past) / middle), ()), "GoogLeNet", 0.2)
    fitless = ("no batching", "size or timeout", "last moment", "greedy", "static", "AIMD", "deadline", "early drop")
    made = {name: make(run) for name, make in cell.policies() if name in fitless}
    assert set(made) == set(fitless)
    rows = next(rows for rows in found.cells if rows["greedy"].cell == (SHIPPED, "GoogLeNet", 0.2))
    for name, statistics in simulate_deployments(made, TraceArrivals(run), [0.2]).items():
        assert 1e6 * statistics.cost.per_request == pytest.approx(rows[name].cost, rel=1e-4), name
        assert statistics.violation_ratio() == pytest.approx(rows[name].violations, abs=1e-4), name
