"""Points that an ascent of the likelihood starts from: EM finds the nearest summit, so that several are tried (docs/model.md, 1.3).

States are told apart by how long their gaps are (means spread over the range of log(gap)), or by spells of busy and quiet times.
"""

from __future__ import annotations

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.fits.gaps import shortest_stage
from sluice.optimizer.fits.squarem import GammaStates

FIRST_LOOK = 10_000  # gaps from which starts are compared


def spread_means(gaps: Array, n_states: int, tail: float = 0.005) -> Array:
    """A mean gap per state: those of groups that divide log(gap) evenly, but for its least 2 % and its largest ``tail``."""
    low, high = np.quantile(gaps, [0.02, 1 - tail])
    low = max(low, shortest_stage(gaps))
    edges = np.geomspace(low, max(high, low * 1.5), n_states + 1)[1:-1]
    group = np.searchsorted(edges, gaps)
    fallback = np.quantile(gaps, (np.arange(n_states) + 0.5) / n_states)
    return np.array([gaps[group == i].mean() if (group == i).any() else fallback[i] for i in range(n_states)])


def sticky(n_states: int, stay: float) -> Array:
    """Transitions that stay with that probability and else go anywhere else."""
    if n_states == 1:
        return np.ones((1, 1))
    return np.full((n_states, n_states), (1 - stay) / (n_states - 1)) + (stay - (1 - stay) / (n_states - 1)) * np.eye(n_states)


def spells(gaps: Array, n_states: int) -> GammaStates:
    """States as spells of busy and quiet times: gaps grouped by the mean of the 32 around them, in equal shares."""
    window = max(2, min(32, len(gaps) // 4))
    total = np.concatenate([[0.0], np.cumsum(gaps)])
    local = (total[window:] - total[:-window]) / window
    seen = gaps[window // 2 : window // 2 + len(local)]
    state = np.searchsorted(np.quantile(local, np.arange(1, n_states) / n_states), local, side="right")
    means = np.array([seen[state == i].mean() if (state == i).any() else gaps.mean() for i in range(n_states)])
    counts = np.full((n_states, n_states), 0.5)
    np.add.at(counts, (state[:-1], state[1:]), 1.0)
    return GammaStates(np.ones(n_states), means, counts / counts.sum(axis=1, keepdims=True))
