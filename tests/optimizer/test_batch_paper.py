"""BATCH's own approximation, eqs (7)-(10), on a case worked by hand."""

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.function.batch_paper import BatchPaper
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.service.times import ServiceTimes


def test_eq_9_on_a_case_worked_by_hand() -> None:
    # λ = ln 2 per second and T = 1 s: P(N=1) = 1/2, P(N=2) = ln 2 / 2, the rest is P(N=3); S = 1, 3, 5 s
    rate = np.log(2)
    paper = BatchPaper(poisson(rate), np.array([1.0, 3.0, 5.0]), 1.0)
    pmf = np.array([0.5, rate / 2, 0.5 - rate / 2])
    share = pmf * [1, 2, 3] / (pmf @ [1, 2, 3])  # eq. (8)
    tau = 1.0  # eq. (10) gives 2 / ln 2 = 2.9 s, beyond the timeout
    times = np.array([1.9, 2.0, 2.9, 3.5, 4.5, 5.0 + tau / 2, 6.0])
    expected = [0, share[0], share[0], share[0] + share[1] / 2, share[0] + share[1], share[0] + share[1] + share[2] / 2, 1]
    assert paper.batch_size_pmf == pytest.approx(pmf)
    assert paper.latency_cdf(times) == pytest.approx(expected)


def test_the_time_to_fill_is_eq_10_where_it_is_within_the_timeout() -> None:
    assert BatchPaper(poisson(100.0), np.full(5, 0.01), 0.2).time_to_fill == pytest.approx(0.04)


def test_without_batching_both_methods_agree() -> None:
    service = ServiceTimes(1024, np.array([[0.02]]), np.zeros(1), np.array([0.02]))
    for method in ("exact", "batch-paper"):
        assert predict_latency(mmpp2(50, 5, 1, 2), service, 1, 0.1, method).percentile(95) == pytest.approx(0.02)


def test_the_paper_and_the_exact_law_share_their_batch_sizes() -> None:
    service = ServiceTimes(1024, np.full((6, 1), 0.02), np.zeros(6), np.full(6, 0.02))
    paper, exact = (predict_latency(mmpp2(50, 5, 1, 2), service, 6, 0.1, m) for m in ("batch-paper", "exact"))
    assert paper.batch_size_pmf == pytest.approx(exact.batch_size_pmf)
    assert abs(paper.quantile(0.5) - exact.quantile(0.5)) < 0.1


def test_an_unknown_method_is_refused() -> None:
    service = ServiceTimes(1024, np.array([[0.02]]), np.zeros(1), np.array([0.02]))
    with pytest.raises(InvalidInput, match="method: 'guess' is not allowed; allowed: one of exact, batch-paper"):
        predict_latency(poisson(1), service, 1, 0.1, "guess")
