"""First descents: the average they define solves the walk's own equation, at every load and for every law."""

from __future__ import annotations

import numpy as np
import pytest

from sluice.batching.errors import NotConverged
from sluice.optimizer.smdp import ladder
from sluice.optimizer.smdp.ladder import first_descents
from tests.optimizer.smdp_problems import LAWS


@pytest.mark.parametrize("name", list(LAWS))
@pytest.mark.parametrize("load", [0.01, 0.3, 0.9, 0.999])
def test_what_follows_from_the_descents_solves_the_walk(name: str, load: float) -> None:
    rng = np.random.default_rng(0)
    for batch_size in (1, 2, 7, 64):
        law = LAWS[name](np.array([1e-3]))
        rate = load * batch_size / 1e-3
        mean, variance = rate * 1e-3, rate * 1e-3 + rate**2 * (law.second_moment[0] - 1e-6)
        counts = law.counts(rate, 256 + 64 * int(mean))[0]
        descents = first_descents(counts, batch_size, mean, variance)
        assert descents.min() >= 0 and descents.sum() == pytest.approx(1)
        values = np.zeros(batch_size + len(counts))
        values[:batch_size] = rng.random(batch_size)
        for s in range(batch_size, len(values)):
            values[s] = descents @ values[s - batch_size : s][::-1]
        assert counts @ values[: len(counts)] == pytest.approx(values[batch_size], abs=1e-13)  # one service from b on


def test_without_arrivals_the_queue_falls_by_the_batch() -> None:
    np.testing.assert_allclose(first_descents(np.array([1.0]), 4, 0.0, 0.0), [0, 0, 0, 1], atol=1e-15)


@pytest.mark.full
def test_a_walk_that_does_not_fall_is_not_solved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, "_MOST_POINTS", 2**12)  # what does not converge goes to the last circle
    with pytest.raises(NotConverged, match="first descents"):
        first_descents(np.array([0.0, 0.0, 0.0, 1.0]), 2, 3.0, 0.5)
