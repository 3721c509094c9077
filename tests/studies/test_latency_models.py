"""The studies in docs/: their pages are made of their data, the data of the models, and their references agree."""

import re
import runpy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.optimizer.arrivals.counting import counting_matrices_by_expm
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.service.times import ServiceTimes

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


@pytest.fixture(scope="module")
def models() -> dict[str, Any]:
    return runpy.run_path(str(DOCS.parent / "studies" / "latency_models.py"))


@pytest.fixture(scope="module")
def scaling() -> dict[str, Any]:
    return runpy.run_path(str(DOCS.parent / "studies" / "search_scaling.py"))


@pytest.fixture(scope="module")
def benchmark() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / "benchmarks" / "analysis.py"))


def assert_shows_its_figures(page: str) -> None:
    shown = re.findall(r"\]\((figures/[^)]+)\)", page)
    assert shown
    for figure in shown:
        assert 0 < (DOCS / figure).stat().st_size < 80_000


def test_the_page_of_the_latency_models_is_made_of_its_data(models: dict[str, Any]) -> None:
    page = models["page"](models["read"]())
    assert (DOCS / "latency-models.md").read_text(encoding="utf-8") == page
    assert_shows_its_figures(page)


def test_the_simulations_of_the_page_agree_with_the_exact_law(models: dict[str, Any]) -> None:
    rows = models["read"]()
    assert len({(row.process, row.batch_size, row.timeout, row.law) for row in rows if row.group == "grid"}) == 180
    assert [row for row in rows if not models["agrees"](row)] == []


@pytest.mark.parametrize("group", ["batch", "held-out"])
def test_the_predictions_of_the_page_are_those_of_the_models(models: dict[str, Any], group: str) -> None:
    drawn = [models["held_out"](np.random.default_rng([2, i])) for i in range(models["N_HELD_OUT"])]
    settings = drawn if group == "held-out" else list(models["as_in_batch"]())
    rows = [row for row in models["read"]() if row.group == group]
    per_setting = len(rows) // len(settings)
    assert len(rows) == per_setting * len(settings)
    for i, row in list(enumerate(rows))[::5]:
        setting = settings[i // per_setting]
        assert (row.process, row.law, row.batch_size) == (setting.process, setting.law, setting.batch_size)
        for method, value in (("exact", row.exact), ("batch-paper", row.batch_paper)):
            prediction = predict_latency(setting.arrivals, setting.service, setting.batch_size, setting.timeout, method)
            assert prediction.quantile(row.quantile) == pytest.approx(value, rel=1e-5)


def test_the_simulator_of_the_study_meets_the_exact_law(models: dict[str, Any]) -> None:
    service = models["random_service"](6)
    setting = models["Setting"]("grid", "mmpp2", mmpp2(50, 5, 1, 2), "random", service, 6, 0.2)
    rows = list(models["compare"](setting, (0.5, 0.95), 200_000, np.random.default_rng(4)))
    assert max(abs(row.z) for row in rows) < 4


def test_the_simulator_of_the_study_lets_a_batch_of_one_leave_at_once(models: dict[str, Any]) -> None:
    service = ServiceTimes(1769, np.array([[0.02]]), np.zeros(1), np.array([0.02]))
    setting = models["Setting"]("grid", "Poisson", poisson(10), "20 ms", service, 1, 0.3)
    assert models["simulate"](setting, 1000, np.random.default_rng(0)) == pytest.approx(np.full(1000, 0.02))


def test_the_table_shows_the_mean_and_the_worst_error(models: dict[str, Any]) -> None:
    like = models["Row"]("grid", "Poisson", "s", 4, 0.1, 2.0, 0.5, 1.0, 0.001, 1.01, 1.2, 0.0)
    rows = [replace(like, quantile=q, exact=exact) for q in models["QUANTILES"] for exact in (1.01, 0.97)]
    lines = models["table"](rows).splitlines()
    assert lines[2] == "| Poisson | exact |" + " 2.0, 3.0 |" * 4
    assert lines[3] == "|  | batch-paper |" + " 20, 20 |" * 4
    assert lines[4] == "|  | standard error of the simulation |" + " 0.10, 0.10 |" * 4


def test_the_page_of_the_search_is_made_of_its_data(scaling: dict[str, Any]) -> None:
    page = scaling["page"](*scaling["read"]())
    assert (DOCS / "search-scaling.md").read_text(encoding="utf-8") == page
    assert_shows_its_figures(page)


def test_the_search_was_measured_at_every_value(scaling: dict[str, Any]) -> None:
    _, points = scaling["read"]()
    for task, parameters in scaling["GOVERNING"].items():
        for parameter in parameters:
            values = [point.value for point in scaling["curve"](points, task, parameter)]
            assert values == list(scaling["SWEEPS"][parameter])


def test_the_power_of_a_power_law_is_found(scaling: dict[str, Any]) -> None:
    points = [scaling["Point"]("search", "phases", n, 3e-3 * n**1.5, 1.0) for n in (1, 2, 4, 8)]
    assert scaling["exponent"](points) == pytest.approx(1.5)


@pytest.mark.parametrize("phases", [1, 2, 5])
def test_the_processes_of_the_search_study_have_one_rate(scaling: dict[str, Any], phases: int) -> None:
    process = scaling["arrivals"](phases)
    assert process.n_phases == phases
    assert process.arrival_rate == pytest.approx(scaling["ARRIVAL_RATE"])


def test_the_study_of_the_whole_grid_skips_no_point(scaling: dict[str, Any]) -> None:
    size = scaling["Size"](4, 2, 3, 2)
    land, _ = scaling["whole_grid"](size)()
    assert land.margin.shape == (size.timeouts, size.memory_sizes, size.batch_size)
    assert np.isfinite(land.margin).all()


@pytest.mark.parametrize("latency", [0.012, 0.05, 0.3])
def test_the_reference_of_the_benchmark_meets_the_exact_law(benchmark: dict[str, Any], latency: float) -> None:
    arrivals, service = mmpp2(400, 20, 2, 0.2), benchmark["service"](1769, 5, random=False)
    expected = benchmark["fraction_within_by_expm"](arrivals, service.response[:, 0], 5, 0.06, latency)
    assert predict_latency(arrivals, service, 5, 0.06).probability_within(latency) == pytest.approx(expected, abs=1e-9)


def test_the_reference_of_the_benchmark_counts_as_batch_eq_11(benchmark: dict[str, Any]) -> None:
    arrivals = mmpp2(50, 5, 1, 2)
    matrices, integrals = benchmark["counts_by_expm"](arrivals, 4, 0.1)
    assert np.abs(matrices - counting_matrices_by_expm(arrivals, 4, 0.1)).max() < 1e-12
    nodes, weights = np.polynomial.legendre.leggauss(20)
    values = [counting_matrices_by_expm(arrivals, 4, t) for t in 0.05 * (nodes + 1)]
    assert np.abs(integrals - np.tensordot(0.05 * weights, values, axes=1)).max() < 1e-12
