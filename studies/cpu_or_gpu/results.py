"""What was found, as data/cpu-or-gpu.csv keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from ..publishing import DATA
from ..rows import Kept

KINDS = ("function", "workers", "both")
MARK = "MArk"


@dataclass(frozen=True)
class Row:
    """The cheapest of a kind in a cell.

    ``cost`` is USD per million requests of all that is paid by the request or the hour; without what stands before all kinds alike.
    ``machine`` is empty for the function alone, ``memory_mb`` 0 for workers alone; ``workers`` is the mean number. ``by_function``
    and ``late`` are shares of the requests. All is nan where there is none of the kind.
    """

    network: str
    arrivals: str
    slo: float
    rate: float
    kind: str
    machine: str | None
    workers: float
    memory_mb: int
    mean_batch: float
    by_function: float
    late: float
    cost: float

    @property
    def cell(self) -> tuple[str, str, float, float]:
        """What rows to be compared have in common."""
        return self.network, self.arrivals, self.slo, self.rate


KEPT = Kept(DATA / "cpu-or-gpu.csv", Row, 6)
read, write = KEPT.read, KEPT.write
