"""Independent processes together, against what must add up."""

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.arrivals.superposition import superposed

BURSTY, CALM = mmpp2(80, 10, 1.0, 0.5), mmpp2(30, 20, 0.2, 0.1)


def test_poisson_processes_together_are_one() -> None:
    together = superposed([poisson(2), poisson(3)])
    assert together.model == "poisson" and together.n_phases == 1 and together.arrival_rate == pytest.approx(5)


def test_rates_and_variances_of_counts_add_up() -> None:
    together, windows = superposed([BURSTY, CALM, poisson(5)]), np.array([0.1, 1.0, 10.0])
    rates = np.array([of.arrival_rate for of in (BURSTY, CALM, poisson(5))])
    assert together.n_phases == 4 and together.arrival_rate == pytest.approx(rates.sum())
    variances = sum(rate * dispersion_of_counts(of, windows) for rate, of in zip(rates, (BURSTY, CALM, poisson(5)), strict=True))
    assert rates.sum() * dispersion_of_counts(together, windows) == pytest.approx(variances, rel=1e-6)


def test_the_phases_of_a_superposition_are_those_of_all_at_once() -> None:
    assert superposed([BURSTY, CALM]).stationary == pytest.approx(np.kron(BURSTY.stationary, CALM.stationary))


def test_one_process_stays_what_it_is() -> None:
    assert superposed([BURSTY]).model == "mmpp" and np.array_equal(superposed([BURSTY]).D1, BURSTY.D1)


def test_none_and_too_many_phases_are_refused() -> None:
    with pytest.raises(InvalidInput, match="processes: 0 .* at least one"):
        superposed([])
    with pytest.raises(InvalidInput, match="phases of the processes together: 512 .* at most 256"):
        superposed([BURSTY] * 9)
