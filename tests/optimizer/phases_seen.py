"""Samples of an MMPP(2) with the estimate that sees its hidden phases, for the tests of the fits and their benchmark."""

from __future__ import annotations

import numpy as np

from sluice.optimizer.arrays import Array


def seen_with_phases(rates: tuple[float, float, float, float], n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """``n`` gaps of an MMPP(2), and its rates as they are estimated where the phases are seen: events over time, per phase."""
    arrival, leave = rates[:2], rates[2:]
    phase = int(rng.random() < arrival[1] * leave[0] / (arrival[0] * leave[1] + arrival[1] * leave[0]))
    times, now, count = [], 0.0, 0
    events, spent = np.zeros((2, 2)), np.zeros(2)
    while count < n:
        spell = rng.exponential(1 / leave[phase])
        within = np.sort(rng.random(rng.poisson(arrival[phase] * spell))) * spell
        if count + len(within) >= n:
            within = within[: n - count]
            spell = within[-1]
        else:
            events[1, phase] += 1
        times.append(now + within)
        events[0, phase] += len(within)
        spent[phase] += spell
        now, count, phase = now + spell, count + len(within), 1 - phase
    return np.diff(np.concatenate([[0.0], *times])), (events / spent).ravel()
