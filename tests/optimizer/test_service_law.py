"""Laws of the service time: moments, counts against quadrature, quantiles, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import gamma as gamma_law
from scipy.stats import poisson

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime
from sluice.batching.errors import InvalidInput
from sluice.optimizer.service.law import (
    EmpiricalLaw,
    Gamma,
    Hyperexponential,
    ServiceLaw,
    deterministic,
    erlang,
    exponential,
    gamma,
    hyperexponential,
)
from sluice.optimizer.service.times import service_times

MEAN = np.array([0.5, 1.0, 4.0])
MEASURED = service_times(
    ServiceProfile(
        function="f",
        points=[
            ProfilePoint(1024, b, ServiceTime(1e-3 * b, [(0.1, 0.8e-3 * b), (0.5, 1e-3 * b), (0.9, 1.6e-3 * b)]), 1e-3 * b, 0.2e-3)
            for b in (1, 2, 4)
        ],
    ),
    1024,
)
LAWS: dict[str, ServiceLaw] = {
    "deterministic": deterministic(MEAN),
    "exponential": exponential(MEAN),
    "erlang": erlang(MEAN, 4),
    "gamma": gamma(MEAN, 0.6),
    "hyperexponential": hyperexponential(MEAN),
    "measured": EmpiricalLaw(MEASURED),
}


@pytest.mark.parametrize("name", list(LAWS))
def test_the_moments_of_the_counts_are_those_of_the_service(name: str) -> None:
    law = LAWS[name]
    rate = 3.0 / law.mean[-1]
    counts, k = law.counts(rate, 800), np.arange(800)
    np.testing.assert_allclose(counts.sum(axis=1), 1, rtol=1e-12)
    np.testing.assert_allclose(counts @ k, rate * law.mean, rtol=1e-10)
    np.testing.assert_allclose(counts @ (k * (k - 1)), rate**2 * law.second_moment, rtol=1e-9)


def test_the_counts_of_a_gamma_law_are_the_integral_they_stand_for() -> None:
    law, rate = gamma([2.0], 0.6), 1.5
    for k in (0, 1, 5, 20):
        value = quad(
            lambda t, k=k: poisson.pmf(k, rate * t) * gamma_law.pdf(t, 0.6, scale=2.0 / 0.6), 0, np.inf, epsabs=1e-13, limit=400
        )[0]
        assert law.counts(rate, 21)[0, k] == pytest.approx(value, rel=1e-6)


def test_the_counts_of_measured_times_are_the_mean_over_their_quantiles() -> None:
    law = LAWS["measured"]
    levels = (np.arange(200_000) + 0.5) / 200_000
    for b in (1, 3):
        seconds = np.interp(levels, MEASURED.quantile_levels, MEASURED.response[b - 1])
        by_sampling = [poisson.pmf(k, 900.0 * seconds).mean() for k in range(6)]
        np.testing.assert_allclose(law.counts(900.0, 6)[b - 1], by_sampling, rtol=1e-7)


@pytest.mark.parametrize("name", ["exponential", "erlang", "gamma", "hyperexponential"])
def test_the_quantile_functions_for_simulation_have_the_laws_moments(name: str) -> None:
    law = LAWS[name]
    table = law.service_times()
    np.testing.assert_allclose(table.mean_response, law.mean, rtol=2e-4)
    np.testing.assert_allclose(EmpiricalLaw(table).second_moment, law.second_moment, rtol=1e-3)


def test_a_phase_type_shape_has_the_moments_of_its_chain() -> None:
    for shape in (Gamma(1.0), Gamma(3.0), Hyperexponential((0.2, 0.8), (3.0, 0.5))):
        assert shape.phases is not None
        initial, generator = shape.phases
        inverse = np.linalg.inv(-generator)
        assert initial @ inverse.sum(axis=1) == pytest.approx(1)
        assert 2 * initial @ inverse @ inverse.sum(axis=1) == pytest.approx(1 + shape.scv)
    assert Gamma(1.5).phases is None


def test_the_hyperexponential_of_the_paper_has_twice_the_variance_of_an_exponential() -> None:
    assert Hyperexponential((2 / 3, 1 / 3), (0.5, 2.0)).scv == pytest.approx(2)


def test_what_is_no_law_is_refused() -> None:
    for build, message in (
        (lambda: deterministic([1.0, 0.0]), "service.mean at batch size 2: 0.0 is not allowed; allowed: a number of seconds > 0"),
        (lambda: deterministic([1.0, np.inf]), "service.mean at batch size 2: inf is not allowed"),
        (lambda: deterministic([]), "service.mean: 0 is not allowed; allowed: the mean service time of at least a batch of 1"),
        (lambda: gamma([1.0], 0.0), "shape: 0.0 is not allowed; allowed: a number > 0"),
        (lambda: gamma([1.0], np.inf), "shape: inf is not allowed"),
        (lambda: erlang([1.0], 1.5), "stages: 1.5 is not allowed; allowed: an integer >= 1"),  # type: ignore[arg-type]
        (lambda: hyperexponential([1.0], (0.5, 0.6), (1.0, 1.0)), r"probabilities: \(0.5, 0.6\) is not allowed"),
        (lambda: hyperexponential([1.0], (0.5, 0.5), (1.0, 2.0)), r"means: \(1.0, 2.0\) is not allowed; allowed: .* with mean 1"),
        (lambda: hyperexponential([1.0], (1.0,), (1.0, 2.0)), r"means: \(1.0, 2.0\) is not allowed; allowed: as many"),
    ):
        with pytest.raises(InvalidInput, match=message):
            build()
