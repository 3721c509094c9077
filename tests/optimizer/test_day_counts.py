"""Counts of two days: what is known of them, how they are kept, and what they tell of the hours to come."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.optimizer.tuning.day_counts import BUCKET, DAY, MOST_BUCKETS, DayCounts


def seen(counts: dict[int, int]) -> DayCounts:
    """After so many arrivals in each of these times, and one in the time before them."""
    found = DayCounts()
    found.see(np.array([(min(counts) - 1) * BUCKET]))
    for bucket, n in counts.items():
        found.see(bucket * BUCKET + np.linspace(0, BUCKET - 1, n))
    return found


RISE = {bucket: 10 if bucket < 10 else 30 for bucket in range(20)}


def test_yesterday_tells_that_three_times_as_many_are_to_come() -> None:
    found = seen(RISE)
    assert found.ratio_to_come(DAY + 9.5 * BUCKET, 2 * BUCKET) == 3
    assert found.ratio_to_come(DAY / 2, 2 * BUCKET) == 1  # nothing is known


def test_a_time_with_a_hole_is_not_taken_for_one_in_which_few_came() -> None:
    found = seen({bucket: 1 if bucket == 10 else n for bucket, n in RISE.items()})
    now = DAY + 9.5 * BUCKET
    assert found.ratio_to_come(now, 4 * BUCKET) == pytest.approx((3 * 30 + 1) / 40)
    found.hole(10 * BUCKET + 3, 11 * BUCKET - 3)
    assert found.ratio_to_come(now, 4 * BUCKET) == 3
    found.hole(10 * BUCKET, 12.5 * BUCKET)
    assert found.ratio_to_come(now, 4 * BUCKET) == 1  # more than half is not known


def test_the_time_in_which_reading_begins_is_known_in_part() -> None:
    found = DayCounts()
    for bucket, n in RISE.items():
        found.see(bucket * BUCKET + np.linspace(0, BUCKET - 1, n))
    assert found.ratio_to_come(DAY + 0.5 * BUCKET, BUCKET) == 1
    assert found.ratio_to_come(DAY + 9.5 * BUCKET, BUCKET) == 3


def test_who_takes_over_knows_what_was_counted_before_and_counts_none_of_it_again() -> None:
    first, second = seen(RISE), DayCounts()
    second.restore(first.packed())
    assert second.until == 18 and second.packed() == first.packed()
    second.see(np.array([17 * BUCKET, 18 * BUCKET, 19 * BUCKET]))  # what is left of the record
    assert second.packed() == first.packed()
    assert second.ratio_to_come(DAY + 9.5 * BUCKET, 2 * BUCKET) == 3


def test_of_the_time_in_which_nobody_read_nothing_is_known() -> None:
    found = DayCounts()
    found.restore(seen(RISE).packed())
    found.see(np.array([30.5, 31, 32]) * BUCKET)
    assert found.until == 31
    after = DayCounts()
    after.restore(found.packed())
    assert after.ratio_to_come(DAY + 18 * BUCKET, BUCKET) == 1
    assert after.ratio_to_come(DAY + 30 * BUCKET, BUCKET) == 1  # 30 in part


@pytest.mark.parametrize(
    "packed", [b"", b"garbage", b"\x02" + b"\x00" * 12, b"\x01" + b"\x00" * 9, b"\x01" * (13 + 4 * MOST_BUCKETS)]
)
def test_what_is_no_count_of_this_version_is_left_alone(packed: bytes) -> None:
    found = DayCounts()
    found.restore(packed)
    assert (len(found), found.until, found.packed()) == (0, -1, b"")


@given(st.lists(st.floats(0, 20 * BUCKET), min_size=1), st.integers(1, 9))
def test_arrivals_count_where_they_came_however_they_are_brought(times: list[float], together: int) -> None:
    found, ordered = DayCounts(), sorted(times)
    found.see(np.zeros(1))
    for first in range(0, len(ordered), together):
        found.see(np.array(ordered[first : first + together]))
    expected = Counter([0, *(int(time // BUCKET) for time in ordered)])
    assert found._counts == dict(sorted(expected.items()))


@given(st.lists(st.tuples(st.integers(1, 40), st.integers(1, 5)), min_size=2), st.integers(1, 1000))
def test_counts_survive_being_kept(steps: list[tuple[int, int]], first: int) -> None:
    found, bucket = DayCounts(), first
    for step, n in steps:
        found.see(np.full(n, (bucket := bucket + step) * BUCKET))
    again = DayCounts()
    again.restore(found.packed())
    assert again.packed() == found.packed() and len(found.packed()) <= 9 + 4 * MOST_BUCKETS
