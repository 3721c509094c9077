"""The Poisson process: one phase (docs/model.md, section 1)."""

from __future__ import annotations

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals.map import ArrivalProcess


def poisson(arrival_rate: float) -> ArrivalProcess:
    """The Poisson process of ``arrival_rate`` requests/s."""
    if not 0 < arrival_rate < np.inf:
        raise InvalidInput("arrival_rate", arrival_rate, "requests per second > 0")
    return ArrivalProcess(np.array([[-arrival_rate]]), np.array([[arrival_rate]]), "poisson")
