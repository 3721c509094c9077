"""A plan that is tuned while requests come: the page is made of its data, and the data of the code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sluice.optimizer.tuning.simulated import simulate_plans
from studies.control.claims import controlled, loads, of
from studies.control.computation import CASES, laid_out, static_plans
from studies.control.drawings import draw
from studies.control.page import missed, page
from studies.control.results import CONTROL, POLICIES, Row, read
from tests.studies.published import assert_published


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read()


@pytest.mark.full
def test_the_page_is_made_of_the_data(rows: list[Row]) -> None:
    assert_published("control", page(rows), draw(rows), 80_000)


@pytest.mark.full
def test_what_is_kept_of_plans_that_stay_is_found_again(rows: list[Row]) -> None:
    """Those of control take as long as the whole suite may: `--compute` finds them again."""
    case = CASES[0]
    setup, seen, times = laid_out(case)
    for name, plan in static_plans(setup, seen).items():
        (kept,) = (row for row in of(rows, case.name) if row.policy == name)
        found = simulate_plans(setup, times, [(float(times[0]), plan)])
        assert kept.requests == len(times)
        assert kept.cost == pytest.approx(found.cost_per_request, rel=0.01)
        assert kept.late == pytest.approx(float((found.latency > case.latency).mean()), abs=0.001)


def test_every_load_has_every_policy(rows: list[Row]) -> None:
    assert loads(rows) == [case.name for case in CASES]
    assert all([row.policy for row in of(rows, load)] == list(POLICIES) for load in loads(rows))


def test_the_page_says_what_was_missed(rows: list[Row]) -> None:
    assert len(controlled(rows)) == len(CASES)
    worse = [replace(row, kept=0, cost=10 * row.cost, cost_at_rate_near=0.5) if row.policy == CONTROL else row for row in rows]
    said = missed(worse)
    assert "not kept in 99 %" in said and "beyond 1.10 times" in said and "beyond 1.02 times" in said and "Fewer than 95 %" in said
