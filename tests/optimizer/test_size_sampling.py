"""How uncertain few sizes leave a percentile, against answers for other samples of the same mix."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from sluice.batching.documents import Slo
from sluice.optimizer.arrivals import poisson
from sluice.optimizer.recommend import Limits, Question, SizedAnswer, recommend_classes
from sluice.optimizer.recommend.size_sampling import size_uncertainty
from sluice.optimizer.service import SizeMix
from tests.optimizer.sized_profiles import MIXES, sized_profile

MIX = MIXES["long-tailed"]


def answered(mix: SizeMix, table: bool = False) -> SizedAnswer:
    """One setting in every class, so that only the sizes differ."""
    limits = Limits(max_batch_size=4) if table else Limits(max_batch_size=4, timeouts=(0.02,))
    return recommend_classes(Question(poisson(40.0), sized_profile(), (Slo(0.3),), limits=limits, mix=mix), boundaries=[64])


def test_the_interval_is_as_wide_as_other_samples_of_the_mix_differ() -> None:
    """One queue that batches whatever comes: p95 is that of the large ones."""
    n, rng = 300, np.random.default_rng(3)
    samples = [SizeMix.of(MIX.draw(n, rng)) for _ in range(20)]
    answers = [recommend_classes(answered(sample).question, 1) for sample in samples]
    spread = 1.96 * np.std([answer.latency.percentile(95) for answer in answers], ddof=1)
    told = [size_uncertainty(answer, np.random.default_rng(0)) for answer in answers[:4]]
    assert np.mean([seconds for seconds in told if seconds is not None]) == pytest.approx(spread, rel=0.4)


@pytest.mark.full
@pytest.mark.parametrize("table", [False, pytest.param(True, marks=pytest.mark.proof)], ids=["timeout", "last moment"])
def test_four_times_as_many_sizes_leave_half_of_it(table: bool) -> None:
    answer = answered(MIX, table)
    assert any(of.best.table is not None for of in answer.classes) is table

    def with_requests(n: int) -> float:
        known = replace(answer, question=replace(answer.question, mix=SizeMix(MIX.values, MIX.shares, n)))
        found = size_uncertainty(known, np.random.default_rng(1))
        assert found is not None
        return found

    assert with_requests(1600) == pytest.approx(with_requests(400) / 2, rel=0.5)


def test_of_a_mix_that_is_no_sample_nothing_is_told() -> None:
    assert MIX.n_requests == 4000 and MIX.between(0, 64).n_requests is None
    answer = answered(SizeMix(MIX.values, MIX.shares))
    assert size_uncertainty(answer, np.random.default_rng(0)) is None
