"""Requests of different size: the page is made of its data, some of the data of the models, and the table that sees classes."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest

from sluice.optimizer.service import SizeMix
from sluice.optimizer.simulation import simulate_sizes
from studies.request_sizes.claims import cells, predictions
from studies.request_sizes.class_table import simulate_class_table
from studies.request_sizes.computation import (
    LATENCIES,
    MIXES,
    OWN,
    POISSON,
    RATES,
    answer_of,
    halves,
    lengths,
    requests,
    rows_of,
)
from studies.request_sizes.drawings import draw
from studies.request_sizes.measurement import measured
from studies.request_sizes.page import page
from studies.request_sizes.results import WAYS, Row, read
from tests.studies.published import assert_published

MIX, RATE, SLO = "a sixteenth", 200.0, 1.0


@pytest.fixture(scope="module")
def rows() -> list[Row]:
    return read()


@pytest.mark.full
def test_the_page_is_made_of_the_data(rows: list[Row]) -> None:
    assert_published("request-sizes", page(rows), draw(rows), 120_000)


@pytest.mark.proof
def test_a_cell_comes_to_what_the_data_says(rows: list[Row]) -> None:
    kept = {row.way: row for row in rows if row.cell == (MIX, POISSON, RATE, SLO)}
    for row in rows_of(MIX, POISSON, RATE, SLO):
        assert row.cost == pytest.approx(kept[row.way].cost, rel=1e-4) and row.p95 == pytest.approx(kept[row.way].p95, rel=1e-4)


def test_every_cell_has_every_way(rows: list[Row]) -> None:
    assert len(cells(rows, POISSON)) == len(MIXES) * len(RATES) * len(LATENCIES)
    assert len(cells(rows, OWN)) == len(MIXES) * len(LATENCIES)
    assert all(set(WAYS) <= set(cell) for cell in cells(rows))


def test_latency_and_cost_are_predicted_on_the_half_that_was_held_out(rows: list[Row]) -> None:
    drawn = predictions(rows)[:2]
    assert all(claim.holds for claim in drawn), [claim.figures for claim in drawn]


def test_halves_are_all_requests_in_their_order() -> None:
    for name in MIXES:
        for arrivals, length in ((POISSON, 8819), (OWN, 3240)):
            past, ahead = halves(lengths(name, arrivals))
            assert len(past) + len(ahead) == length and max(past.max(), ahead.max()) <= 512
            assert (requests(name, arrivals, RATE)[1][: len(ahead)] == ahead).all()


@pytest.mark.proof
def test_a_table_that_sees_classes_and_fills_nothing_is_that_of_size_classes() -> None:
    answer = answer_of(MIX, RATE, SLO)
    times, sizes = (of[:20_000] for of in requests(MIX, POISSON, RATE))
    apart = simulate_sizes(answer.deployment(SizeMix.of(sizes)), times, sizes, np.random.default_rng(0))
    together = simulate_class_table(answer, times, sizes, np.random.default_rng(0), fills=False)
    assert len(answer.classes) > 1
    assert together.n_batches == apart.statistics.n_batches
    assert together.cost_per_request == pytest.approx(apart.cost_per_request)
    assert together.latency.mean() == pytest.approx(apart.latency.mean(), rel=0.01)


@pytest.mark.proof
def test_filling_takes_smaller_requests_along_and_makes_nobody_of_the_class_late() -> None:
    answer = answer_of(MIX, 20.0, 0.3)
    times, sizes = (of[:20_000] for of in requests(MIX, POISSON, 20.0))
    seeing = simulate_class_table(answer, times, sizes, np.random.default_rng(0))
    apart = simulate_class_table(answer, times, sizes, np.random.default_rng(0), fills=False)
    assert seeing.n_batches < apart.n_batches and (seeing.latency > 0).all()
    assert (seeing.latency > 0.3).mean() <= 0.05


class Spinning:
    """A model whose time is known: half a millisecond of the processor for a token, padded."""

    name = "spinning"

    def predict(self, inputs: list[Any]) -> list[int]:
        until = time.process_time() + 5e-4 * len(inputs) * max(len(one.tokens) for one in inputs)
        while time.process_time() < until:
            pass
        return [0] * len(inputs)


def test_a_model_is_measured_at_every_batch_and_size() -> None:
    profile = measured(Spinning(), 0.0, np.random.default_rng(0), (1, 4), (2, 8))
    assert profile.function == "spinning-{memory_mb}" and profile.sizes == [2, 8]
    for point in profile.points:
        assert point.size is not None and point.service_time.n == 2
        assert point.service_time.mean >= 5e-4 * point.batch_size * point.size
        assert point.billed_duration >= point.service_time.mean
