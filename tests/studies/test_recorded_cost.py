"""What a recommendation says and what is billed: the page is made of its data, and the data of the code."""

from __future__ import annotations

import pytest

from studies.recorded_cost.claims import NEAR, fit, half_record, near, off, record
from studies.recorded_cost.computation import CASES, LATENCIES, of_trace
from studies.recorded_cost.drawings import draw
from studies.recorded_cost.page import page
from studies.recorded_cost.results import Row, read
from tests.studies.published import assert_published

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read()


def test_the_page_is_made_of_the_data(rows: list[Row]) -> None:
    assert_published("recorded-cost", page(rows), draw(rows), 80_000)


def test_every_trace_has_a_row_for_every_slo(rows: list[Row]) -> None:
    assert [(row.trace, row.latency) for row in rows] == [(case.name, latency) for case in CASES for latency in LATENCIES]


@pytest.mark.proof
def test_what_is_kept_is_found_again(rows: list[Row]) -> None:
    (shipped,) = (case for case in CASES if case.shipped)
    kept, found = rows[0], next(of_trace(shipped.name, shipped.read(None)))
    assert (kept.trace, kept.n, kept.latency) == (found.trace, found.n, found.latency)
    for name in ("fit_said", "fit_billed", "said", "billed", "half_fit_said", "half_fit_billed", "half_said", "half_billed"):
        assert getattr(found, name) == pytest.approx(getattr(kept, name), rel=1e-6), name


def test_what_is_said_on_the_record_is_billed_and_what_the_fit_says_is_not(rows: list[Row]) -> None:
    assert near(rows, record) == len(rows) > near(rows, fit)
    assert all(row.late <= 0.05 for row in rows)


def test_the_second_half_is_not_foretold_by_the_first(rows: list[Row]) -> None:
    assert any(abs(off(half_record(row))) > NEAR for row in rows)
