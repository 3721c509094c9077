"""The ring that watches keep their latest numbers in."""

from __future__ import annotations

import pickle
from collections import deque

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.optimizer.tuning.latest_rows import LatestRows

KEPT = 7


def numbered(first: int, n: int) -> np.ndarray:
    """Rows that say which they are."""
    return np.column_stack([np.arange(first, first + n), -np.arange(first, first + n)]).astype(float)


@given(steps=st.lists(st.one_of(st.integers(0, 2 * KEPT + 1), st.sampled_from(["pickled", "cleared"])), max_size=20))
def test_the_latest_rows_are_those_of_a_bounded_queue(steps: list[int | str]) -> None:
    rows, queue, seen = LatestRows(KEPT, 2), deque[tuple[float, ...]](maxlen=KEPT), 0
    for step in steps:
        if step == "pickled":
            rows = pickle.loads(pickle.dumps(rows))
        elif step == "cleared":
            rows.clear()
            queue.clear()
        else:
            new = numbered(seen, int(step))
            rows.extend(new)
            queue.extend(map(tuple, new.tolist()))
            seen += int(step)
        assert len(rows) == len(queue)
        assert rows.rows().tolist() == [list(row) for row in queue]
        for latest in range(KEPT + 2):
            assert rows.rows(latest).tolist() == [list(row) for row in list(queue)[max(len(queue) - latest, 0) :]]


@pytest.mark.parametrize("n", [0, 3, 1000])
def test_what_is_pickled_is_no_larger_than_what_is_held(n: int) -> None:
    rows = LatestRows(1000, 2)
    rows.extend(numbered(0, n))
    assert len(pickle.dumps(rows, pickle.HIGHEST_PROTOCOL)) < 300 + 16 * n
