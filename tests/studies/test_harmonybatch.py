"""HarmonyBatch beside Sluice: its planner is its published code's, runs keep the rule, and the page is made of its data."""

from __future__ import annotations

from itertools import groupby

import numpy as np
import pytest

from sluice.batching.batcher import Batcher
from sluice.batching.policy import size_or_timeout
from studies.harmonybatch.functions import BILLS, WHOLE, functions, gpu_function
from studies.harmonybatch.merging import Application, Group, HarmonyBatch, folded
from studies.harmonybatch.results import PublishedGroup, read_published
from studies.harmonybatch.running import batches
from studies.harmonybatch.sets import MAIN, TABLE, sets


def published() -> dict[str, list[PublishedGroup]]:
    return {name: list(some) for name, some in groupby(read_published(), key=lambda group: group.applications)}


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


@pytest.mark.full
def test_all_published_plans_are_found_again() -> None:
    assert set(published()) == set(sets())
    for name in sets():
        assert_found_again(name)


def test_the_paper_merges_what_its_published_code_does_not() -> None:
    def members(groups: list[Group]) -> list[int]:
        return [len(of.applications) for of in groups]

    assert members(HarmonyBatch().plan(sets()[TABLE])) == [1, 2]  # its Table I, where the batch is of 13
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


def test_runs_release_what_the_specification_releases() -> None:
    rng = np.random.default_rng(3)
    times = np.cumsum(rng.exponential(0.1, 400))
    slack = rng.choice([0.0, 0.3, 1.0], 400)
    policy = size_or_timeout(5, 0.25)
    batcher = Batcher[int](policy, slack=lambda member: float(slack[member]))
    found: list[tuple[float, set[int]]] = []
    wake: float | None = None
    for i, now in enumerate([*times, np.inf]):
        while wake is not None and wake < now:
            step = batcher.tick(wake)
            found += [(wake, set(batch)) for batch in step.batches]
            wake = step.wake_at
        if now < np.inf:
            step = batcher.arrive(now, [i])
            found += [(now, set(batch)) for batch in step.batches]
            wake = step.wake_at
    batch_of, left = batches(times, slack, np.array(policy.hold))
    assert [members for _, members in found] == [set(np.flatnonzero(batch_of == k).tolist()) for k in range(len(left))]
    assert [when for when, _ in found] == pytest.approx(left)
