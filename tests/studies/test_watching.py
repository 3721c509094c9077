"""What is watched while requests come: the page is made of its data, and the data of the code."""

from __future__ import annotations

from itertools import islice

import pytest

from benchmarks.change_tests import SCVS, Cell, cells, least_delay
from studies.watching.claims import alarms, median, rows_of
from studies.watching.computation import HOURS, RUNS
from studies.watching.drawings import draw
from studies.watching.page import page
from studies.watching.results import read
from tests.studies.published import assert_published


@pytest.fixture(scope="module")
def found() -> list[Cell]:
    return read()


@pytest.mark.full
def test_the_page_is_made_of_the_data(found: list[Cell]) -> None:
    assert_published("watching", page(found), draw(found), 40_000)


@pytest.mark.proof
def test_what_is_kept_of_promises_is_found_again(found: list[Cell]) -> None:
    kept = [cell for cell in found if cell.table == "promise"][:4]  # of requests that are late each by itself
    assert list(islice(cells(["promise"], HOURS, RUNS, []), 4)) == kept
    assert len({cell.row for cell in kept}) == 1


def test_after_the_first_hour_steady_arrivals_are_alarms_where_requests_stall_alone(found: list[Cell]) -> None:
    rows = rows_of(found, "rate, steady")
    assert {name for name, row in rows.items() if row[f"{HOURS} hours after"] != "0"} <= {"trace livemaps_1030, stretches"}
    assert alarms(found, "burstiness, steady", f"{HOURS} hours after") == 0


def test_service_times_half_as_long_again_are_noticed_in_twice_the_least_delay_or_ten_batches(found: list[Cell]) -> None:
    for table in ("service", "service, one in fifty ten times as long"):
        rows = rows_of(found, table)
        assert [float(row) for row in rows] == list(SCVS)
        for scv, row in rows.items():
            assert row["alarms"].startswith("0 in ")
            assert median(row["× 1.5"]) <= max(10.0, 2 * least_delay(1.5, float(scv)))
