"""How long requests of several applications may wait, as it stands in a plan."""

from __future__ import annotations

import numpy as np

from sluice.optimizer.arrays import Array

LONGEST_WAIT = 50.0  # s; callers wait for 60 s unless told otherwise, and a plan that holds them for longer is refused
_STEP = 1e-6  # s; holds and slacks are so many, rounded down
_SAME = 1e-9  # of a step


def rounded(seconds: Array) -> Array:
    """Holds and slacks as they stand in a table, s."""
    return np.asarray(np.round(np.floor(np.maximum(seconds, 0.0) / _STEP + _SAME) * _STEP, 6))
