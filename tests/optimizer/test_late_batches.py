"""With which chance a few late batches break a window of few requests."""

from __future__ import annotations

from math import exp

import numpy as np
import pytest

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.policy import no_batching
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.tuning.late_batches import MOST, LateBatches
from sluice.optimizer.tuning.rehearsal import rehearse


def test_late_requests_are_counted_by_their_batches() -> None:
    late = np.array([True, False, True, True, True, False, True])
    batch_of = np.array([0, 0, 1, 1, -1, 2, -1])
    found = LateBatches.of(late, batch_of)
    assert (sorted(found.late_in.tolist()), found.requests) == ([1, 1, 1, 2], 7)
    assert LateBatches.of(np.zeros(7, dtype=bool), batch_of).late_in.tolist() == []


def test_one_late_batch_of_three_breaks_a_window_that_allows_one_whenever_it_is_there() -> None:
    windows = np.array([33.0])
    three = LateBatches(np.array([3]), 1000)
    assert three.chance_of_breaking(windows, 0.05) == pytest.approx(1 - exp(-0.033))
    twice = three.chance_of_breaking(np.array([60.0]), 0.05)  # of which three may be late
    assert twice == pytest.approx(1 - exp(-0.06) * (1 + 0.06))
    one = LateBatches(np.array([1, 1, 1]), 1000)  # as many late, one by one: it takes two of them
    assert one.chance_of_breaking(windows, 0.05) == pytest.approx(1 - exp(-0.099) * (1 + 0.099))
    assert one.chance_of_breaking(windows, 0.02) == one.chance_of_breaking(windows, -0.01) == pytest.approx(1 - exp(-0.099))
    assert LateBatches(np.array([], dtype=np.int64), 1000).chance_of_breaking(windows, 0.05) == 0.0
    assert three.chance_of_breaking(np.zeros(0), 0.05) == 0.0


@pytest.mark.parametrize("error_budget", [0.05, 0.01])
def test_it_is_how_often_windows_break_into_which_batches_fall_at_random(error_budget: float) -> None:
    rng, late_in = np.random.default_rng(1), np.array([1, 1, 1, 2, 4, 8, 40])
    windows = np.array([0.0, 10.0, 60.0, 250.0])
    broken = 0.0
    for n in windows:
        batches = rng.poisson(n * len(late_in) / 3000, 40_000)
        late = np.bincount(np.repeat(np.arange(len(batches)), batches), rng.choice(late_in, batches.sum()), len(batches))
        broken += float(np.mean(late > np.floor(error_budget * n))) / len(windows)
    assert LateBatches(late_in, 3000).chance_of_breaking(windows, error_budget) == pytest.approx(broken, rel=0.05)


def test_of_windows_that_allow_many_the_means_of_blocks_tell() -> None:
    windows, three = np.array([(MOST + 1) / 0.05, 33.0]), LateBatches(np.array([3]), 1000)
    assert three.chance_of_breaking(windows, 0.05) == pytest.approx((1 - exp(-0.033)) / 2)
    assert three.chance_of_breaking(windows[:1], 0.05) == 0.0


def test_a_rehearsal_of_few_arrivals_sees_what_is_rarer_than_one_run_of_them() -> None:
    spread = ServiceTime(0.02, [(0.0, 0.019), (0.99, 0.02), (1.0, 0.05)], 100)
    profile = ServiceProfile(function="f", points=[ProfilePoint(1769, 1, spread, 0.02)], max_batch_size=1)
    deployment = Function(profile, 1769).under(no_batching())
    times = np.cumsum(np.random.default_rng(3).exponential(0.1, 400))
    slo = Slo(0.04, 95)
    run = rehearse(deployment, times, [slo], 30.0, window=3.0, confidence=0.99)
    share = 0.01 * (0.05 - 0.04) / (0.05 - 0.02)  # of which a window of 30 may have one
    [found] = run.late_batches
    assert found.requests == 8 * 400 and len(found.late_in) / found.requests == pytest.approx(share, rel=0.5)
    chance = found.chance_of_breaking(run.windows, slo.error_budget)
    assert chance == pytest.approx(1 - exp(-30 * share) * (1 + 30 * share), rel=0.9)
    assert chance <= run.chance_of_breaking([slo]) <= run.chance_of_breaking([slo], 0.04)  # as others are late as well
    once = rehearse(deployment, times, [slo], 30.0)  # which asks for no window
    assert once.late_batches[0].requests == 400 and len(once.windows) == 0
