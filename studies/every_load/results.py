"""What was found, as data/every-load.csv keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from ..publishing import DATA
from ..rows import Kept

EVERY_LOAD = "every load"


@dataclass(frozen=True)
class Row:
    """What a plan costs at a rate.

    ``made_for`` is the arrival rate (requests/s) that a table was made for, or ``EVERY_LOAD``; ``functions`` says which serves
    which sizes. Costs are USD per request: predicted, in a run, and that of the cheapest table at ``rate``, predicted. ``late`` is
    the share of the requests of the run beyond the SLO, ``warm_late`` of those whose environment was warm.
    """

    latency: float
    made_for: str
    functions: str
    rate: float
    cost: float
    least: float
    simulated: float
    late: float
    warm_late: float

    @property
    def ratio(self) -> float:
        """Predicted cost over the least."""
        return self.cost / self.least


KEPT = Kept(DATA / "every-load.csv", Row, 8)
read, write = KEPT.read, KEPT.write
