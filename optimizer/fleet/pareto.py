"""Variants that no optimal placement needs (docs/model.md, section 5).

On a device type, a variant that another of its family matches in accuracy and in throughput can be replaced by it, device by
device: the same requests are served, none less accurately. So it is left out there, and the optimum is the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sluice.optimizer.fleet.problem import FleetProblem


def worth_hosting(problem: FleetProblem) -> NDArray[np.bool_]:
    """Which (type, variant) pairs some optimal placement may need, (n_types, n_variants).

    Left out is who cannot serve, whose family nobody asks for, and who is no more accurate and no faster there than another of its
    family; of two alike the first stays.
    """
    kept = (problem.throughput > 0) & (problem.demand_of_variant > 0) & (problem.devices > 0)[:, None]
    for q in range(problem.n_families):
        members = np.flatnonzero(problem.family == q)
        for d in range(len(problem.devices)):
            fastest = 0.0
            # most accurate first, and of those as accurate the fastest
            order = np.lexsort((members, -problem.throughput[d, members], -problem.accuracy[members]))
            for m in members[order]:
                kept[d, m] &= problem.throughput[d, m] > fastest
                fastest = max(fastest, problem.throughput[d, m])
    return kept
