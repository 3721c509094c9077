"""The references that benchmarks/analysis.py and benchmarks/class_law.py compare with agree with the models."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.analysis import counts_by_expm, fraction_within_by_expm, service
from benchmarks.class_law import reaching_by_quadrature
from sluice.optimizer.arrivals.counting import counting_matrices_by_expm
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.function.poisson_classes import PoissonClasses


@pytest.mark.parametrize("latency", [0.012, 0.05, 0.3])
def test_the_reference_meets_the_exact_law(latency: float) -> None:
    arrivals, times = mmpp2(400, 20, 2, 0.2), service(1769, 5, random=False)
    expected = fraction_within_by_expm(arrivals, times.response[:, 0], 5, 0.06, latency)
    assert predict_latency(arrivals, times, 5, 0.06).probability_within(latency) == pytest.approx(expected, abs=1e-9)


def test_the_reference_counts_as_batch_eq_11() -> None:
    arrivals = mmpp2(50, 5, 1, 2)
    matrices, integrals = counts_by_expm(arrivals, 4, 0.1)
    assert np.abs(matrices - counting_matrices_by_expm(arrivals, 4, 0.1)).max() < 1e-12
    nodes, weights = np.polynomial.legendre.leggauss(20)
    values = [counting_matrices_by_expm(arrivals, 4, t) for t in 0.05 * (nodes + 1)]
    assert np.abs(integrals - np.tensordot(0.05 * weights, values, axes=1)).max() < 1e-12


def test_the_reference_integrates_the_law_of_poisson_classes() -> None:
    rates, slacks, holds = np.array([2.0, 30.0, 9.0]), np.array([0.0, 0.3, 0.04]), np.array([0.1, 0.08, 0.05])
    pmf = PoissonClasses(rates, slacks, holds).batch_size_pmf[-1]
    assert reaching_by_quadrature(rates, slacks, holds) == pytest.approx(np.cumsum(pmf[::-1])[::-1], abs=1e-12)
