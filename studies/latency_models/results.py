"""What was compared, as data/latency-models.csv keeps it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..publishing import DATA
from ..rows import read_rows, write_rows

FILE = DATA / "latency-models.csv"


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


def read() -> list[Row]:
    """The rows that the last run left."""
    return read_rows(FILE, Row)


def write(rows: Iterable[Row]) -> None:
    """The rows, six digits."""
    write_rows(FILE, Row, rows, digits=6)
