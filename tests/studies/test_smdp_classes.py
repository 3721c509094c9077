"""Two classes before one server: the page is made of its data, and the data of the code."""

from __future__ import annotations

import pytest

from sluice.optimizer.smdp.class_answer import IN_ORDER, URGENT_FIRST, answer_classes
from studies.smdp_classes.claims import by_load, by_ratio
from studies.smdp_classes.computation import LOAD, LOADS, RATIO, RATIOS, problem
from studies.smdp_classes.drawings import draw
from studies.smdp_classes.page import page
from studies.smdp_classes.results import Study, drawn, read
from tests.studies.published import assert_published


@pytest.fixture(scope="module")
def study() -> Study:
    return read()


@pytest.mark.full
def test_the_page_is_made_of_the_data(study: Study) -> None:
    assert_published("smdp-classes", page(study), draw(study), 120_000)


@pytest.mark.full
def test_what_is_kept_is_found_again(study: Study) -> None:
    answer = answer_classes(problem(LOAD, RATIO, 1.0))
    (kept,) = (row for row in study.rows if (row.load, row.ratio, row.energy) == (LOAD, RATIO, 1.0))
    assert kept.optimal == pytest.approx(answer.solution.gain, rel=1e-6)
    costs = [answer.cost(answer.compared[name]) for name in (IN_ORDER, URGENT_FIRST)]
    assert [kept.in_order, kept.urgent_first] == pytest.approx(costs, rel=1e-6)
    grid = drawn(study.cells)
    assert grid == answer.solution.actions[: len(grid), : len(grid[0])].tolist()


def test_the_best_table_never_costs_more_and_saves_nothing_where_weights_are_alike(study: Study) -> None:
    assert [row.load for row in by_load(study.rows, 1.0)] == list(LOADS) and len(by_ratio(study.rows, 0.0)) == len(RATIOS)
    assert all(row.saved > -2e-6 and row.saved_of_first > -2e-6 for row in study.rows)
    for energy in (0.0, 1.0):
        alike, *others = by_ratio(study.rows, energy)
        assert abs(alike.saved) < 2e-6
        saved = [row.saved for row in others]
        assert saved == sorted(saved) and saved[-1] > 0.01
