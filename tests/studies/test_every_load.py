"""One plan at rates that it was not made for: the page is made of its data, and the data of the code."""

from __future__ import annotations

import pytest

from studies.every_load.claims import of, worst
from studies.every_load.computation import LATENCIES, RATES, compute
from studies.every_load.drawings import draw
from studies.every_load.page import page
from studies.every_load.results import EVERY_LOAD, Row, read
from tests.studies.published import assert_published

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read()


def test_the_page_is_made_of_the_data(rows: list[Row]) -> None:
    assert_published("every-load", page(rows), draw(rows), 80_000)


@pytest.mark.proof
def test_what_is_kept_is_found_again(rows: list[Row]) -> None:
    for kept, found in zip(rows, compute(), strict=True):
        assert (kept.latency, kept.made_for, kept.functions, kept.rate) == (
            found.latency,
            found.made_for,
            found.functions,
            found.rate,
        )
        assert (found.cost, found.least, found.simulated) == pytest.approx((kept.cost, kept.least, kept.simulated), rel=1e-6)


def test_one_plan_costs_at_most_two_per_cent_more_than_the_cheapest_table_of_each_rate_and_nobody_is_late_but_for_cold_starts(
    rows: list[Row],
) -> None:
    for latency in LATENCIES:
        along = of(rows, latency, EVERY_LOAD)
        assert [row.rate for row in along] == list(RATES) and len({row.functions for row in along}) == 1
        assert all(row.ratio <= 1.02 and row.warm_late == 0 and row.late < 0.05 for row in along)
    assert worst(rows, f"{RATES[0]:g}") > 2  # what a table costs that was made for another rate
