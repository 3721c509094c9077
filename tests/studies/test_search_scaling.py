"""What a search costs: the page is made of its data, and what is measured is what the page says."""

from __future__ import annotations

import numpy as np
import pytest

from studies.search_scaling.claims import at_base, exponent
from studies.search_scaling.computation import ARRIVAL_RATE, GOVERNING, SWEEPS, Size, arrivals, whole_grid
from studies.search_scaling.drawings import draw
from studies.search_scaling.page import page
from studies.search_scaling.results import Point, Study, read
from tests.studies.published import assert_published

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def study() -> Study:
    return read()


def test_the_page_is_made_of_the_data(study: Study) -> None:
    assert_published("search-scaling", page(study), draw(study), 80_000)


def test_the_search_was_measured_at_every_value(study: Study) -> None:
    for task, parameters in GOVERNING.items():
        for parameter in parameters:
            assert [point.value for point in study.curve(task, parameter)] == list(SWEEPS[parameter])


def test_the_power_of_a_power_law_is_found() -> None:
    points = [Point("search", "phases", n, 3e-3 * n**1.5, 1.0) for n in (1, 2, 4, 8)]
    assert exponent(points) == pytest.approx(1.5)


def test_of_several_times_at_the_base_setting_the_quickest_counts() -> None:
    base = [Point("search", "phases", 2, 3.0, 1.0), Point("search", "batch_size", 64, 2.0, 1.0)]
    assert at_base([*base, Point("search", "phases", 1, 1.0, 1.0)], "search").seconds == 2.0


@pytest.mark.parametrize("phases", [1, 2, 5])
def test_the_processes_have_one_rate(phases: int) -> None:
    process = arrivals(phases)
    assert process.n_phases == phases
    assert process.arrival_rate == pytest.approx(ARRIVAL_RATE)


def test_the_whole_grid_skips_no_point() -> None:
    size = Size(4, 2, 3, 2)
    land, _ = whole_grid(size)()
    assert land.margin.shape == (size.timeouts, size.memory_sizes, size.batch_size)
    assert np.isfinite(land.margin).all()
