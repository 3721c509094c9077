"""HarmonyBatch beside Sluice: its planner is its published code's, runs keep the rule, and the page is made of its data."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.simulation import simulate_deployment
from studies.harmonybatch.claims import cells, claims, other_than_neighbours
from studies.harmonybatch.computation import partitioned_set, rows_of, ways
from studies.harmonybatch.drawings import draw
from studies.harmonybatch.functions import BILLS, WHOLE, functions, gpu_function
from studies.harmonybatch.merging import Application, Group, HarmonyBatch, folded
from studies.harmonybatch.page import page
from studies.harmonybatch.queues import Queue
from studies.harmonybatch.results import (
    ALONE,
    BATCH,
    MERGED,
    NEIGHBOURS,
    SLUICE,
    STRICT,
    WAYS,
    Found,
    PublishedGroup,
    read,
)
from studies.harmonybatch.running import deployment
from studies.harmonybatch.sets import MAIN, TABLE, sets
from tests.studies.published import assert_published


@pytest.fixture(scope="module")
def kept() -> Found:
    return read()


@pytest.mark.full
def test_the_page_is_made_of_the_data(kept: Found) -> None:
    assert_published("harmonybatch", page(kept), draw(kept), 100_000)


@pytest.mark.full
@pytest.mark.parametrize("bill", BILLS)
def test_a_set_comes_to_what_the_data_says(kept: Found, bill: str) -> None:
    rows = [row for row in kept.rows if row.cell == (TABLE, bill)]
    for row, found in zip(rows, rows_of(TABLE, bill), strict=True):
        assert (found.way, found.queues) == (row.way, row.queues)
        figures = (found.predicted, found.cost, found.half, found.late)
        assert figures == pytest.approx((row.predicted, row.cost, row.half, row.late), rel=1e-6, nan_ok=True)


def test_every_set_has_every_way(kept: Found) -> None:
    assert [row.cell for row in kept.rows if row.way == SLUICE] == [(name, bill) for bill in BILLS for name in sets()]
    assert all(set(cell) == {*WAYS, NEIGHBOURS} for cell in cells(kept.rows))


def test_nobody_is_late_and_shared_queues_cost_no_more_than_any_other_and_what_is_predicted(kept: Found) -> None:
    late, *cheaper, predicted = claims(kept)[:6]
    assert late.holds and predicted.holds and all(claim.holds for claim in cheaper), [claim.figures for claim in cheaper]
    for row in kept.rows:
        if row.way in (SLUICE, ALONE, STRICT, BATCH):
            assert abs(row.predicted - row.cost) <= max(3 * row.half, 1e-6 * row.cost), row


@pytest.mark.proof
def test_the_best_groups_need_not_be_neighbours(kept: Found) -> None:
    others = other_than_neighbours(kept.partitioned)
    for row in [*others, *kept.partitioned[:10]]:
        applications = tuple(Application(*map(float, of)) for of in zip(row.promises.split(), row.rates.split(), strict=True))
        found = partitioned_set(applications, row.bill)
        assert (found.promises, found.rates, found.bill) == (row.promises, row.rates, row.bill)
        assert found.groups == row.groups or row not in others  # elsewhere several groupings cost the same
        assert (found.neighbours, found.any_groups) == pytest.approx((row.neighbours, row.any_groups), rel=1e-6)
    assert 0 < len(others) < 0.02 * len(kept.partitioned) and others[0].beyond < 0.001


def published() -> dict[str, list[PublishedGroup]]:
    return {name: list(some) for name, some in groupby(read().published, key=lambda group: group.applications)}


def assert_found_again(name: str) -> None:
    found = HarmonyBatch(published=True).plan(sets()[name])
    kept = published()[name]
    assert [len(of.applications) for of in found] == [of.members for of in kept]
    for mine, theirs in zip(found, kept, strict=True):
        assert (mine.function.gpu, mine.batch_size) == (theirs.gpu_gb is not None, theirs.batch_size)
        assert mine.cost == pytest.approx(theirs.cost, rel=2e-3) and mine.timeouts[0] == pytest.approx(theirs.timeout, abs=2e-3)
        if mine.vcpu is None:
            assert mine.function.name == f"GPU {theirs.gpu_gb} GB"
        else:
            assert mine.vcpu == pytest.approx(theirs.vcpu, abs=0.051)  # a step


@pytest.mark.parametrize("name", [MAIN, TABLE, "random 1"])
def test_the_published_plans_are_found_again(name: str) -> None:
    assert_found_again(name)


@pytest.mark.proof
def test_all_published_plans_are_found_again() -> None:
    assert set(published()) == set(sets())
    for name in sets():
        assert_found_again(name)


def test_the_paper_merges_what_its_published_code_does_not() -> None:
    def members(groups: list[Group]) -> list[int]:
        return [len(of.applications) for of in groups]

    merged = HarmonyBatch().plan(sets()[TABLE])
    assert members(merged) == [1, 2] and merged[1].batch_size == 14  # 13 in its Table I; (9) admits one more
    assert members(HarmonyBatch(published=True).plan(sets()[TABLE])) == [1, 1, 1]


def test_timeouts_fold_into_the_mean_time_to_the_first_that_ends() -> None:
    first, second, rates = 0.1, 0.4, (3.0, 5.0)
    rng = np.random.default_rng(0)
    to_urgent = rng.exponential(1 / rates[0], 200_000)
    of_patient = np.minimum(to_urgent + first, second)
    whole = (rates[0] * first + rates[1] * of_patient.mean()) / sum(rates)
    assert folded((first, second), rates) == pytest.approx(whole, rel=0.003)


@pytest.mark.parametrize("bill", BILLS)
def test_larger_batches_take_longer_and_cost_more_on_every_function(bill: str) -> None:
    for function in functions(bill):
        service = function.service
        assert (np.diff(service.seconds[:, 0]) >= 0).all() and (np.diff(function.invocation) >= 0).all()
        assert len(function.invocation) == service.max_batch_size


def test_a_gpu_function_is_billed_by_whole_seconds_or_exactly() -> None:
    whole, exact = (gpu_function(2, bill) for bill in BILLS)
    assert whole.invocation[0] == pytest.approx(0.0002854)  # as in its main.py
    mean = 12 * (0.001679844365532822 + 0.002113091944793135)
    assert exact.invocation[0] - 9e-7 == pytest.approx((whole.invocation[0] - 9e-7) * mean)


def test_no_plan_of_the_paper_holds_a_request_beyond_its_promise() -> None:
    for bill in BILLS:
        for group in HarmonyBatch(bill).plan(sets()["random 2"]):
            longest = float(group.function.service.seconds[group.batch_size - 1, 0])
            assert all(t + longest <= of.slo + 1e-9 for t, of in zip(group.timeouts, group.applications, strict=True))


def test_the_published_code_may_hold_the_strictest_of_a_group_too_long() -> None:
    applications = (Application(0.3, 1.0), Application(2.0, 50.0))
    paper, code = (HarmonyBatch(WHOLE, published).provision(applications) for published in (False, True))
    assert min(code.timeouts) < 0 <= min(paper.timeouts)


def run_by_hand(queue: Queue, times: Array, of: Indices) -> tuple[Indices, Array]:
    """The batch of every request and its latency, event by event: every batch takes all who wait."""
    hold, slack, seconds = queue.policy.hold, np.array(queue.slacks)[of], queue.function.service.seconds[:, 0]
    batch_of, latency = np.empty(len(times), dtype=np.int64), np.empty(len(times))
    waiting: list[int] = []
    n_batches = 0
    for i, now in enumerate([*times, np.inf]):
        while waiting:
            first = min(times[j] + slack[j] for j in waiting)
            full = hold[len(waiting)] == 0
            leaves = times[waiting[-1]] if full else max(first + hold[len(waiting)], times[waiting[-1]])
            if leaves >= now:
                break
            batch_of[waiting], latency[waiting] = n_batches, leaves - times[waiting] + seconds[len(waiting) - 1]
            n_batches, waiting = n_batches + 1, []
        waiting.append(i)
    return batch_of, latency


@pytest.mark.parametrize("way", [SLUICE, MERGED])
def test_runs_are_those_of_a_loop_written_by_hand(way: str) -> None:
    queue = max(ways(sets()["random 6"], WHOLE)[way], key=lambda queue: len(queue.applications))
    rng = np.random.default_rng(3)
    times, of = np.cumsum(rng.exponential(1 / queue.rate, 2000)), rng.integers(0, len(queue.applications), 2000)
    batch_of, latency = run_by_hand(queue, times, of)
    ran = simulate_deployment(deployment(queue), times, rng, classes=of)
    assert len(queue.applications) > 1 and ran.mean_batch_size > 1
    assert (ran.batch_of == batch_of).all()
    assert ran.latency == pytest.approx(latency)
