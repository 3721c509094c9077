"""Arrivals of an MMPP together with the phases they hide, for the tests of the tables per phase and of the filter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess


class Sampled(NamedTuple):
    """``times`` of arrivals (s), and the phases: ``first``, and from ``shift_times`` on those of ``shift_to``."""

    times: Array
    first: int
    shift_times: Array
    shift_to: NDArray[np.int64]

    def phase_at(self, at: Array) -> NDArray[np.int64]:
        """The phase at each of the times ``at``."""
        return np.append(self.first, self.shift_to)[np.searchsorted(self.shift_times, at, side="right")]


def sample_with_phases(arrivals: ArrivalProcess, seconds: float, rng: np.random.Generator) -> Sampled:
    """Arrivals of an MMPP, in equilibrium, over ``seconds``."""
    assert np.array_equal(arrivals.D1, np.diag(arrivals.D1.diagonal()))
    rates, generator = arrivals.D1.diagonal(), arrivals.D0 + arrivals.D1
    phase = first = int(rng.choice(arrivals.n_phases, p=arrivals.stationary))
    now, times, shift_times, shift_to = 0.0, [], [], []
    while now < seconds:
        spell = rng.exponential(-1 / generator[phase, phase])
        times.append(now + np.sort(rng.random(rng.poisson(rates[phase] * spell))) * spell)
        now += spell
        leaves = np.maximum(generator[phase], 0)
        phase = int(rng.choice(arrivals.n_phases, p=leaves / leaves.sum()))
        shift_times.append(now)
        shift_to.append(phase)
    together = np.concatenate(times)
    return Sampled(together[together < seconds], first, np.array(shift_times), np.array(shift_to))
