"""Services of phase type as chains that move at the events of one Poisson process (docs/model.md, section 4.6).

A service of mean ``l`` is the time to absorption of a chain that starts in phase f with probability alpha_f and has the generator
S / l, S being that of the shape, whose mean is 1. At the events of a Poisson process of rate r, at least as fast as any phase is
left,

    P = I + S / (l r),    e = -S 1 / (l r)

are the probabilities to be in another phase after an event, and to be done.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array


class PhaseType(NamedTuple):
    """The shape: alpha, (n_phases,), and S, (n_phases, n_phases)."""

    initial: Array
    generator: Array


class Services(NamedTuple):
    """Several services at the events of one process.

    Parameters
    ----------
    initial : array, shape (n_phases,)
    moves : array, shape (n_services, n_phases, n_phases)
        P.
    ends : array, shape (n_services, n_phases)
        e.
    """

    initial: Array
    moves: Array
    ends: Array


def uniformized(shape: PhaseType, means: Sequence[float] | Array, rate: float) -> Services:
    """Services of these ``means`` (s) at events of ``rate`` (1/s)."""
    n_phases = len(shape.initial)
    scaled = [shape.generator / (float(mean) * rate) for mean in means]
    moves = np.array([np.eye(n_phases) + part for part in scaled]).reshape(-1, n_phases, n_phases)
    ends = np.array([np.maximum(-part.sum(axis=1), 0.0) for part in scaled]).reshape(-1, n_phases)
    return Services(shape.initial, moves, ends)
