"""What was compared, as data/latency-models.csv keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from ..publishing import DATA
from ..rows import Kept


@dataclass(frozen=True)
class Row:
    """A quantile of the latency (s) in a setting, three ways.

    ``standard_error`` (s) is that of ``simulated``; ``z`` is the simulated probability of a latency up to ``exact``, less the
    predicted one, in standard errors of the simulation.
    """

    group: str
    process: str
    law: str
    batch_size: int
    timeout: float
    mean_batch_size: float
    quantile: float
    simulated: float
    standard_error: float
    exact: float
    batch_paper: float
    z: float

    def error(self, method: str) -> float:
        """Relative error of a method, or what the simulation's standard error makes of it, in %."""
        if method == "simulation":
            return 100 * self.standard_error / self.simulated
        return 100 * float(getattr(self, method) / self.simulated - 1)


KEPT = Kept(DATA / "latency-models.csv", Row, 6)
read, write = KEPT.read, KEPT.write
