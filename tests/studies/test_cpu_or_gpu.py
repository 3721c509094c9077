"""Functions, workers or both by rate: the page is made of its data, and some of the data of the models."""

from __future__ import annotations

from dataclasses import asdict
from itertools import product

import numpy as np
import pytest

from sluice.optimizer.billing.prices import default_prices
from studies.cpu_or_gpu.claims import Findings, one_worker_pays_from, ranges, winner
from studies.cpu_or_gpu.computation import Cell
from studies.cpu_or_gpu.drawings import draw
from studies.cpu_or_gpu.page import page
from studies.cpu_or_gpu.results import KINDS, MARK, Row, read
from studies.cpu_or_gpu.settings import ARRIVALS, CORES, CPU, NETWORKS, RATES, bursty, excerpt
from tests.studies.published import assert_published

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read()


@pytest.fixture(scope="module")
def found(rows: list[Row]) -> Findings:
    return Findings.of(rows)


def test_the_page_is_made_of_the_data(rows: list[Row]) -> None:
    assert_published("cpu-or-gpu", page(rows), draw(rows), 250_000)


def test_every_kind_is_in_every_cell(found: Findings) -> None:
    slos = [(name, arrivals, slo) for name, network in NETWORKS.items() for arrivals in ARRIVALS for slo in network.slos]
    cells = {cell[MARK].cell for cell in found.cells}
    assert cells == {(*line, rate) for line, rate in product(slos, RATES)}
    assert all(list(cell) == [*KINDS, MARK] for cell in found.cells)


@pytest.mark.proof
@pytest.mark.parametrize("key", [("GoogLeNet", "Poisson", 0.1, 10.0), ("VGG-19", "Poisson", 1.0, 1000.0)])
def test_the_models_say_what_the_data_do(key: tuple[str, str, float, float], found: Findings) -> None:
    kept = next(cell for cell in found.cells if cell[MARK].cell == key)
    for row in Cell(*key).rows():
        for name, value in asdict(row).items():
            assert asdict(kept[row.kind])[name] == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value)


def test_workers_cost_their_hours(found: Findings) -> None:
    for cell in found.cells:
        row = cell["workers"]
        price = default_prices().machine(row.machine or "") / (CORES if row.machine == CPU else 1)
        assert row.cost == pytest.approx(1e6 * row.workers * price / 3600 / row.rate, rel=1e-4)


def test_a_worker_wins_against_the_function_only_from_the_rate_on_at_which_its_hour_is_paid_for(found: Findings) -> None:
    for cell in found.cells:
        row = cell["workers"]
        pays_from = one_worker_pays_from(cell, row.machine or "", CORES if row.machine == CPU else 1)
        assert (row.cost < cell["function"].cost) == (row.rate > row.workers * pays_from)


def test_each_kind_keeps_the_slo_surely(found: Findings) -> None:
    assert all(cell[kind].late < 0.05 for cell in found.cells for kind in KINDS if np.isfinite(cell[kind].cost))


def test_both_have_fewer_workers_than_workers_alone(found: Findings) -> None:
    for cell in found.cells:
        both, workers = cell["both"], cell["workers"]
        if both.machine == workers.machine:
            assert 1 <= both.workers < workers.workers
        assert np.isnan(both.cost) or 0 < both.by_function < 1


def test_the_rates_at_which_a_kind_wins_are_all_of_them(found: Findings) -> None:
    for line in found.lines.values():
        said = ranges(line)
        for cell in line:
            best = winner(cell)
            spans = [part.split(" to ") for part in said[best.kind].split(", ")]
            assert any(float(span[0]) <= best.rate <= float(span[-1]) for span in spans)


def test_bursts_come_at_another_rate_and_last_as_long() -> None:
    process = excerpt()
    assert bursty(50.0).arrival_rate == pytest.approx(50.0)
    stays = -np.diag(process.D0) - process.D1.sum(axis=1)
    assert np.diag(bursty(50.0).D0, 1)[0] == pytest.approx(stays[0])
    assert bursty(process.arrival_rate).scv == pytest.approx(process.scv, rel=1e-6)
