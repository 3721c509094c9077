"""A plan that is tuned while requests come: the page is made of its data, and the data of the code."""

from __future__ import annotations

from dataclasses import replace

import pytest

from studies.control.claims import controlled, loads, of
from studies.control.computation import CASES, of_load
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
def test_what_is_kept_of_the_load_balancer_is_found_again(rows: list[Row]) -> None:
    case, load, drifts = CASES[0]
    for kept, found in zip(of(rows, case), of_load(case, load, drifts), strict=True):
        assert (kept.policy, kept.requests, kept.windows, kept.feasible) == (
            found.policy,
            found.requests,
            found.windows,
            found.feasible,
        )
        assert kept.kept == pytest.approx(found.kept, abs=2) and kept.cost == pytest.approx(found.cost, rel=0.02)


def test_every_load_has_every_policy(rows: list[Row]) -> None:
    assert loads(rows) == [case for case, _, _ in CASES]
    assert all([row.policy for row in of(rows, load)] == list(POLICIES) for load in loads(rows))


def test_the_page_says_what_was_missed(rows: list[Row]) -> None:
    assert len(controlled(rows)) == len(CASES)
    worse = [replace(row, kept=0, cost=10 * row.cost) if row.policy == CONTROL else row for row in rows]
    said = missed(worse)
    assert "not kept in 99 %" in said and "beyond 1.10 times" in said and "beyond 1.02 times" in said
