"""Index of dispersion for counts: the closed form against what is known, against quadrature and against samples."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.linalg import expm

from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.traces.trace import Trace

SMOOTH = ArrivalProcess(np.array([[-2.0, 2.0, 0], [0, -2.0, 0], [0, 0, -9.0]]), np.array([[0, 0, 0], [1.5, 0, 0.5], [1.0, 0, 8.0]]))
WINDOWS = np.array([1e-3, 0.1, 1.0, 10.0, 1000.0])


def test_poisson_has_dispersion_one_in_every_window() -> None:
    assert dispersion_of_counts(poisson(7), WINDOWS) == pytest.approx(np.ones(5), abs=1e-12)


def test_an_mmpp2_has_the_dispersion_of_its_modulated_rate() -> None:
    l1, l2, w1, w2 = 50.0, 5.0, 1.0, 2.0
    rate, relax = (l1 * w2 + l2 * w1) / (w1 + w2), w1 + w2
    variance = w1 * w2 * (l1 - l2) ** 2 / relax**2
    expected = 1 + 2 * variance / (rate * relax) * (1 + np.expm1(-relax * WINDOWS) / (relax * WINDOWS))
    assert dispersion_of_counts(mmpp2(l1, l2, w1, w2), WINDOWS) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("window", [0.05, 1.0, 20.0])
def test_the_closed_form_is_the_integral_of_the_correlation_of_arrivals(window: float) -> None:
    flow, ones = SMOOTH.stationary @ SMOOTH.D1, np.ones(3)

    def correlation(lag: float) -> float:
        return float(flow @ expm((SMOOTH.D0 + SMOOTH.D1) * lag) @ SMOOTH.D1 @ ones) - SMOOTH.arrival_rate**2

    integral, _ = quad(lambda lag: (window - lag) * correlation(lag), 0, window, epsabs=1e-10)
    expected = 1 + 2 * integral / (SMOOTH.arrival_rate * window)
    assert dispersion_of_counts(SMOOTH, [window])[0] == pytest.approx(expected, rel=1e-7)


def test_samples_have_the_dispersion_of_their_process() -> None:
    process = mmpp2(50, 5, 1, 2)
    seen = [
        [Trace(gaps).dispersion(w) for w in (0.1, 1.0, 5.0)]
        for gaps in process.sample(400_000, np.random.default_rng(4)).reshape(40, -1)
    ]
    error = np.std(seen, axis=0, ddof=1) / np.sqrt(len(seen))
    assert np.all(np.abs(np.mean(seen, axis=0) - dispersion_of_counts(process, [0.1, 1.0, 5.0])) < 4 * error)
