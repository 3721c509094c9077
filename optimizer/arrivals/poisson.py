"""The Poisson process: one phase, fitted by its rate (docs/model.md, section 1)."""

from __future__ import annotations

import numpy as np

from batching.errors import InvalidInput
from optimizer.arrivals.map import Array, ArrivalProcess


def poisson(arrival_rate: float) -> ArrivalProcess:
    """The Poisson process of ``arrival_rate`` requests/s."""
    if not 0 < arrival_rate < np.inf:
        raise InvalidInput("arrival_rate", arrival_rate, "requests per second > 0")
    return ArrivalProcess(np.array([[-arrival_rate]]), np.array([[arrival_rate]]), "poisson")


def fit_poisson(interarrivals: Array) -> ArrivalProcess:
    """The Poisson process of greatest likelihood: its rate is one over the mean gap (s)."""
    return poisson(1 / float(np.mean(interarrivals)))
