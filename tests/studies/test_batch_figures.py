"""The qualitative results of BATCH's figure 4, as the study in docs/ computes them, and the page that shows them."""

import runpy
from pathlib import Path
from typing import Any

import pytest

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(DOCS.parent / "studies" / "batch_figures.py"))


@pytest.fixture(scope="module")
def study(script: dict[str, Any]) -> Any:
    return script["study"]()


def test_every_shape_that_the_paper_names_is_found(study: Any) -> None:
    claims = study.claims()
    assert len(claims) == 7
    assert [claim.sentence for claim in claims if not claim.holds] == []


def test_in_full_batches_a_request_waits_for_half_of_those_after_the_first(script: dict[str, Any], study: Any) -> None:
    assert study.a.waiting == pytest.approx((study.a.at - 1) / 2 / script["POISSON"].arrival_rate, abs=1e-3)


def test_cost_by_the_millisecond_rises_with_memory_where_that_of_100_ms_has_teeth(script: dict[str, Any], study: Any) -> None:
    assert script["steps"](study.c_now.cost)[1] == 0 < script["steps"](study.c.cost)[1]
    assert (study.c.cost > study.c_now.cost).all()


def test_what_rounding_made_of_the_saving(script: dict[str, Any]) -> None:
    small = script["NETWORKS"][0]
    assert script["saving"](small, 0.1)[7] == pytest.approx(8.0)
    assert 2.5 < script["saving"](small, 0.001)[7] < 3.5


def test_the_page_is_what_the_script_writes(script: dict[str, Any], study: Any) -> None:
    page = script["page"](study)
    assert (DOCS / "batch-figures.md").read_text(encoding="utf-8") == page
    for figure in script["draw"](study):
        assert f"(figures/{figure})" in page
        assert 0 < (DOCS / "figures" / figure).stat().st_size < 60_000
