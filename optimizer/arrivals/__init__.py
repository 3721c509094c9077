"""What arrives: Markovian processes, and how many of their arrivals fall into a time."""

from __future__ import annotations

from sluice.optimizer.arrivals.counting import CountingProcess
from sluice.optimizer.arrivals.dispersion import dispersion_of_counts
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp, mmpp2
from sluice.optimizer.arrivals.poisson import poisson

__all__ = [
    "ArrivalProcess",
    "CountingProcess",
    "dispersion_of_counts",
    "mmpp",
    "mmpp2",
    "poisson",
]
