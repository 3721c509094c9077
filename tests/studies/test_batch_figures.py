"""The qualitative results of BATCH's figure 4, as the study computes them, and the page that shows them."""

from __future__ import annotations

import pytest

from studies.batch_figures.claims import claims, steps
from studies.batch_figures.computation import NETWORKS, POISSON, compute, saving
from studies.batch_figures.drawings import draw
from studies.batch_figures.page import page
from studies.batch_figures.results import Study
from tests.studies.published import assert_published

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def study() -> Study:
    return compute()


@pytest.mark.proof
def test_every_shape_that_the_paper_names_is_found(study: Study) -> None:
    found = claims(study)
    assert len(found) == 7
    assert [claim.sentence for claim in found if not claim.holds] == []


def test_in_full_batches_a_request_waits_for_half_of_those_after_the_first(study: Study) -> None:
    assert study.a.waiting == pytest.approx((study.a.at - 1) / 2 / POISSON.arrival_rate, abs=1e-3)


def test_cost_by_the_millisecond_rises_with_memory_where_that_of_100_ms_has_teeth(study: Study) -> None:
    assert steps(study.c_now.cost)[1] == 0 < steps(study.c.cost)[1]
    assert (study.c.cost > study.c_now.cost).all()


def test_what_rounding_made_of_the_saving() -> None:
    small = NETWORKS[0]
    assert saving(small, 0.1)[7] == pytest.approx(8.0)
    assert 2.5 < saving(small, 0.001)[7] < 3.5


def test_the_page_is_what_the_study_computes(study: Study) -> None:
    assert_published("batch-figures", page(study), draw(study), 60_000)
