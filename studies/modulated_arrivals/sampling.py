"""Arrivals with the phases that they hide, and how often a filter guesses these."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.compiled import compiled
from sluice.optimizer.smdp.phase_filter import FilteredPhases


class Sampled(NamedTuple):
    """Arrival times (s), and the phases: ``first``, from ``shift_times`` on those of ``shift_to``."""

    times: Array
    first: int
    shift_times: Array
    shift_to: Indices


def sample(arrivals: ArrivalProcess, n: int, rng: np.random.Generator) -> Sampled:
    """``n`` arrivals of an MMPP(2) in equilibrium."""
    first = int(rng.choice(2, p=arrivals.stationary))
    rates = np.ascontiguousarray(arrivals.D1.diagonal())
    leave = np.array([arrivals.D0[0, 1], arrivals.D0[1, 0]])
    times, shift_times = _sample(rates, leave, first, n, rng)
    return Sampled(times, first, shift_times, (first + 1 + np.arange(len(shift_times))) % 2)


@compiled
def _sample(rates: Array, leave: Array, phase: int, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Times of ``n`` arrivals, and of the shifts between two phases up to the last of them."""
    times, shifts = np.empty(n), np.empty(1024)
    n_shifts, now, i = 0, 0.0, 0
    while i < n:
        now += rng.standard_exponential() / (rates[phase] + leave[phase])
        if rng.random() * (rates[phase] + leave[phase]) < rates[phase]:
            times[i] = now
            i += 1
        else:
            if n_shifts == len(shifts):
                longer = np.empty(2 * n_shifts)
                longer[:n_shifts] = shifts
                shifts = longer
            shifts[n_shifts] = now
            n_shifts += 1
            phase = 1 - phase
    return times, shifts[:n_shifts].copy()


def share_right(sampled: Sampled, filtered: FilteredPhases) -> float:
    """Share of the time in which the likeliest phase is the true one."""
    edges = np.unique(np.concatenate([[0.0], sampled.shift_times, filtered.change_times, sampled.times[-1:]]))
    edges = edges[edges <= sampled.times[-1]]
    middle = (edges[1:] + edges[:-1]) / 2
    truth = np.append(sampled.first, sampled.shift_to)[np.searchsorted(sampled.shift_times, middle)]
    return float(np.diff(edges) @ (filtered.likeliest(middle) == truth) / edges[-1])
