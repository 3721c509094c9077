"""The sequential bound on late requests: soon where the promise is broken, seldom where it is just kept."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from sluice.batching.documents import Slo
from sluice.batching.errors import InvalidInput
from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.tuning.promise import KEPT, PromiseWatch

SLO = Slo(0.2, 95)


def answered(ended_at: float, latencies: tuple[float, ...]) -> MeasuredBatch:
    return MeasuredBatch(ended_at, "", 0, "f", "", 5, 0.1, np.nan, np.nan, False, 0, latencies)


def batches(share: float, n: int, seed: int, together: bool = False, run: int = 1) -> Iterator[MeasuredBatch]:
    """Ten a second of five requests, a share of which is late: each by itself, or all of a batch, or of ``run`` batches."""
    rng = np.random.default_rng(seed)
    late = rng.random((n, 5)) < share
    if together:
        late[:] = np.repeat(rng.random(n // run + 1) < share, run)[:n, None]
    for i, row in enumerate(late.tolist()):
        yield answered(i / 10, tuple(0.3 if one else 0.1 for one in row))


def alarms(watch: PromiseWatch, seen: Iterator[MeasuredBatch]) -> Iterator[int]:
    """After how many batches it speaks."""
    for i, batch in enumerate(seen, 1):
        watch.see([batch])
        if watch.alarm is not None:
            yield i
            watch.clear()


def test_requests_that_failed_were_not_served_in_time() -> None:
    watch = PromiseWatch(SLO)
    watch.see([answered(i / 10, (0.1,) * 5) for i in range(200)])
    assert watch.alarm is None and watch.percentile == 0.1
    failing = [answered(20 + i / 10, (0.1,) * 3)._replace(failed=2) for i in range(100)]
    watch.see([*failing, answered(30, ())._replace(failed=5)])
    assert watch.alarm is not None and "failed or took longer than 0.2 s" in watch.alarm.words
    assert watch.late == 205 / 1505 and watch.percentile == np.inf


def test_requests_that_were_rejected_in_time_break_no_promise() -> None:
    watch = PromiseWatch(SLO)
    watch.see([answered(i / 10, (0.1,) * 5)._replace(rejected=True) for i in range(200)])
    assert watch.alarm is None and (watch.late, watch.percentile) == (0.0, 0.1)


@pytest.mark.full
def test_twenty_percent_late_is_noticed_within_ten_seconds_at_fifty_requests_a_second() -> None:
    for seed in range(5):
        watch = PromiseWatch(SLO)
        assert not list(alarms(watch, batches(0.03, 1000, seed)))
        assert next(alarms(watch, batches(0.2, 200, seed + 100))) <= 100


def test_that_all_of_a_batch_are_late_together_is_noticed_as_well() -> None:
    delays = []
    for seed in range(9):
        watch = PromiseWatch(SLO)
        list(alarms(watch, batches(0.03, 1000, seed, together=True)))
        delays.append(next(alarms(watch, batches(0.2, 1000, seed + 100, together=True))))
    assert np.median(delays) <= 100


@pytest.mark.parametrize("together", [False, True])
def test_a_promise_that_is_just_kept_is_broken_no_sooner_in_the_mean_than_was_asked(together: bool) -> None:
    first = [next(alarms(PromiseWatch(SLO, 200.0), batches(0.05, 5000, seed, together)), 5000) for seed in range(25)]
    assert np.mean(first) > 200


def test_late_batches_that_come_in_runs_are_no_more_than_the_share_that_they_are() -> None:
    watch, found, seen = PromiseWatch(SLO), 0, batches(0.05, 60_000, 0, together=True, run=10)
    while some := list(islice(seen, 100)):
        watch.see(some)
        found += watch.alarm is not None
        watch.clear()
    assert found <= 3


def test_who_is_late_in_runs_is_heard_later_than_who_is_late_by_himself_and_heard() -> None:
    def heard_after(run: int) -> float:
        watch = PromiseWatch(SLO)
        watch.see(list(batches(0.03, 3000, 0, together=True, run=run)))
        watch.clear()
        return next(alarms(watch, batches(0.5, 1000, 1, together=True, run=run)))

    assert heard_after(1) < heard_after(10) < 300


def test_the_alarm_tells_since_when_and_how_much() -> None:
    watch = PromiseWatch(SLO)
    watch.see(list(batches(0.02, 3000, 0)))
    assert watch.alarm is None
    shifted = (batch._replace(ended_at=300 + batch.ended_at) for batch in batches(0.4, 300, 1))
    next(alarms(watch, shifted))
    watch = PromiseWatch(SLO)
    watch.see([*batches(0.02, 3000, 0), *(b._replace(ended_at=300 + b.ended_at) for b in batches(0.4, 100, 1))])
    assert watch.alarm is not None
    assert watch.alarm.since == pytest.approx(300, abs=2)
    assert watch.alarm.after == pytest.approx(0.4, abs=0.15)
    assert "of which p95 allows 5 %" in watch.alarm.words


def test_the_percentile_is_that_of_the_latest_batches_and_forgotten_with_the_plan() -> None:
    watch = PromiseWatch(SLO)
    watch.see(list(batches(0.5, 2000, 0)))
    assert watch.percentile == 0.3
    assert watch.late == pytest.approx(0.5, abs=0.05)
    size = len(pickle.dumps(watch))
    watch.see(list(batches(0.5, 2 * KEPT, 1)))
    assert len(pickle.dumps(watch)) - size < 500
    watch.restart()
    assert np.isnan(watch.percentile)
    assert watch.alarm is None


def test_a_batch_without_callers_of_this_process_tells_nothing() -> None:
    watch = PromiseWatch(SLO)
    watch.see([answered(0.0, ())])
    assert np.isnan(watch.late)


def test_a_batch_is_measured_by_the_largest_of_late_and_not_by_one_of_long_ago() -> None:
    def heard_after(first: int) -> int:
        watch = PromiseWatch(SLO)
        watch.see([answered(0.0, (0.1,) * first)])
        watch.see([answered(k, (0.1,) * 4) for k in range(1, 200)])
        return next(k for k in range(200, 400) if watch.see([answered(k, (0.1, 0.1, 0.1, 0.3))]) or watch.alarm is not None)

    assert heard_after(4) == heard_after(1000) < 250


def test_what_is_no_setting_is_refused() -> None:
    with pytest.raises(InvalidInput, match="run_length"):
        PromiseWatch(SLO, run_length=1)
