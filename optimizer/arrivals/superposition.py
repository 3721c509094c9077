"""Independent arrival processes together (docs/model.md, 1): the phases of the superposition are those of all at once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from math import prod

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess

MOST_PHASES = 256


def superposed(processes: Sequence[ArrivalProcess]) -> ArrivalProcess:
    """The superposition of independent processes: ``D0`` and ``D1`` are the Kronecker sums of theirs.

    Raises
    ------
    InvalidInput
        None; more than ``MOST_PHASES`` phases together.
    """
    require(len(processes) > 0, "processes", len(processes), "at least one")
    n_phases = prod(process.n_phases for process in processes)
    require(n_phases <= MOST_PHASES, "phases of the processes together", n_phases, f"at most {MOST_PHASES}")
    D0, D1 = (reduce(_kronecker_sum, of) for of in ([each.D0 for each in processes], [each.D1 for each in processes]))
    model = processes[0].model if len(processes) == 1 else "poisson" if n_phases == 1 else "map"
    return ArrivalProcess(D0, D1, model)


def _kronecker_sum(a: Array, b: Array) -> Array:
    return np.asarray(np.kron(a, np.eye(len(b))) + np.kron(np.eye(len(a)), b))
