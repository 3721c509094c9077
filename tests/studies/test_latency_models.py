"""Latency models against simulation: the page is made of its data, some of the data of the models, and the simulator is right."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.function.class_holds import shared_holds_law
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.service.times import ServiceTimes
from studies.latency_models.claims import agrees, by_setting
from studies.latency_models.class_comparison import N_BLOCKS, compare_classes, read_classes, settings
from studies.latency_models.class_settings import ClassSetting
from studies.latency_models.class_simulator import simulate_classes
from studies.latency_models.computation import N_HELD_OUT, QUANTILES, compare
from studies.latency_models.drawings import draw_errors
from studies.latency_models.page import error_table, page
from studies.latency_models.results import Row, read
from studies.latency_models.settings import Setting, as_in_batch, grid, held_out, random_service
from studies.latency_models.simulator import simulate
from tests.studies.published import assert_published

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read()


def test_the_page_is_made_of_the_data(rows: list[Row]) -> None:
    drawn = ("latency-models.svg", "latency-models-cdf.svg")  # to draw the second takes a simulation of four million requests
    assert_published("latency-models", page(rows, read_classes()), drawn, 80_000)


def test_the_figure_of_the_errors_has_a_point_for_each_setting(rows: list[Row]) -> None:
    left, _ = draw_errors(rows).axes
    points = [line for line in left.lines if line.get_marker() == "o"]
    assert sum(len(line.get_xdata()) for line in points) == 180


def test_the_simulations_of_the_page_agree_with_the_exact_law(rows: list[Row]) -> None:
    assert len({(row.process, row.batch_size, row.timeout, row.law) for row in rows if row.group == "grid"}) == 180
    assert [row for row in rows if not agrees(row)] == []


@pytest.mark.proof
def test_every_setting_is_in_the_data(rows: list[Row]) -> None:
    assert len(by_setting(rows)) == len([*grid(), *as_in_batch()]) + N_HELD_OUT


@pytest.mark.proof
@pytest.mark.parametrize("group", ["batch", "held-out"])
def test_the_predictions_of_the_page_are_those_of_the_models(rows: list[Row], group: str) -> None:
    drawn = [held_out(np.random.default_rng([2, i])) for i in range(N_HELD_OUT)]
    settings = drawn if group == "held-out" else list(as_in_batch())
    some = [row for row in rows if row.group == group]
    per_setting = len(some) // len(settings)
    assert len(some) == per_setting * len(settings)
    for i, row in list(enumerate(some))[::5]:
        setting = settings[i // per_setting]
        assert (row.process, row.law, row.batch_size) == (setting.process, setting.law, setting.batch_size)
        for method, value in (("exact", row.exact), ("batch-paper", row.batch_paper)):
            prediction = predict_latency(setting.arrivals, setting.service, setting.batch_size, setting.timeout, method)
            assert prediction.quantile(row.quantile) == pytest.approx(value, rel=1e-5)


@pytest.mark.proof
def test_the_simulator_meets_the_exact_law() -> None:
    setting = Setting("grid", "mmpp2", mmpp2(50, 5, 1, 2), "random", random_service(6), 6, 0.2)
    rows = list(compare(setting, (0.5, 0.95), 200_000, np.random.default_rng(4)))
    assert max(abs(row.z) for row in rows) < 4


def test_the_simulator_lets_a_batch_of_one_leave_at_once() -> None:
    service = ServiceTimes(1769, np.array([[0.02]]), np.zeros(1), np.array([0.02]))
    setting = Setting("grid", "Poisson", poisson(10), "20 ms", service, 1, 0.3)
    assert simulate(setting, 1000, np.random.default_rng(0)) == pytest.approx(np.full(1000, 0.02))


def test_the_table_shows_the_mean_and_the_worst_error() -> None:
    like = Row("grid", "Poisson", "s", 4, 0.1, 2.0, 0.5, 1.0, 0.001, 1.01, 1.2, 0.0)
    rows = [replace(like, quantile=q, exact=exact) for q in QUANTILES for exact in (1.01, 0.97)]
    lines = error_table(rows).splitlines()
    assert lines[2] == "| Poisson | exact |" + " 2.0, 3.0 |" * 4
    assert lines[3] == "|  | batch-paper |" + " 20, 20 |" * 4
    assert lines[4] == "|  | standard error of the simulation |" + " 0.10, 0.10 |" * 4


def test_the_simulations_of_classes_agree_with_the_exact_law() -> None:
    rows = read_classes()
    assert len({(row.setting, row.mean_batch_size) for row in rows}) == len(settings())
    assert [row for row in rows if not row.agrees] == []


def test_the_predictions_of_classes_are_those_of_the_model() -> None:
    rows = read_classes()
    for setting in settings()[::3]:
        law = shared_holds_law(setting.classes, setting.slacks.tolist(), setting.holds)
        some = [row for row in rows if (row.setting, row.batch_size) == (setting.name, len(setting.holds) + 1)]
        for row in [row for row in some if row.mean_batch_size == pytest.approx(law.mean_batch_size[-1], rel=1e-5)][::4]:
            latency = law.latency(row.of_class, setting.service)
            assert latency.quantile(row.quantile) == pytest.approx(row.exact, rel=1e-5)


@pytest.mark.proof
def test_the_simulator_of_classes_meets_the_exact_law() -> None:
    setting = settings()[4]
    rows = list(compare_classes(setting, 1000 * N_BLOCKS, np.random.default_rng(5)))
    assert max(abs(row.z) for row in rows) < 4 and abs(rows[0].batch_z) < 4


def test_the_simulator_of_classes_has_a_request_wait_its_slack_longer() -> None:
    service = ServiceTimes(1769, np.zeros((2, 2)), np.zeros(2), np.zeros(2))
    setting = ClassSetting("", (poisson(1e-6), poisson(1e-3)), np.array([0.0, 2.0]), np.array([0.5]), service)
    found = simulate_classes(setting, 1000, np.random.default_rng(0))
    alone = found.size == 1
    assert found.latency[alone] == pytest.approx(np.where(found.of[alone] == 1, 2.5, 0.5)) and alone.mean() > 0.98
