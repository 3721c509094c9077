"""A table that follows the rate: the page is made of its data, and the data of the code."""

from __future__ import annotations

import pytest

from sluice.optimizer.tuning.simulated import simulate_plans
from studies.smdp_day.claims import over_clairvoyant, row_of
from studies.smdp_day.computation import SLO, arrivals, fixed, setup
from studies.smdp_day.drawings import draw
from studies.smdp_day.page import page
from studies.smdp_day.results import CLAIRVOYANT, CONTROL, GREEDY, POLICIES, Row, read
from tests.studies.published import assert_published


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read()


@pytest.mark.full
def test_the_page_is_made_of_the_data(rows: list[Row]) -> None:
    assert_published("smdp-day", page(rows), draw(rows), 40_000)


@pytest.mark.proof
def test_what_is_kept_of_the_table_that_stays_is_found_again(rows: list[Row]) -> None:
    """Those that follow the rate take minutes: `--compute` finds them again."""
    times = arrivals()
    run = simulate_plans(setup(), times, [(float(times[0]), fixed()[GREEDY])])
    kept = row_of(rows, GREEDY)
    assert kept.requests == len(times)
    assert kept.joules == pytest.approx(float(run.joules.sum()) / len(times), rel=1e-6)
    assert kept.late == pytest.approx(float((run.latency > SLO.latency).mean()), abs=1e-6)


def test_control_keeps_the_promise_where_it_can_be_kept_with_less_energy_than_greedy(rows: list[Row]) -> None:
    assert [row.policy for row in rows] == list(POLICIES)
    control = row_of(rows, CONTROL)
    assert control.kept >= 0.99 * control.feasible
    assert control.joules < 0.9 * row_of(rows, GREEDY).joules
    assert over_clairvoyant(rows, CLAIRVOYANT) == 1.0
