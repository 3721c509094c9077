"""What was found, as data/request-sizes.csv keeps it, and the profile that was measured."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from sluice.batching.documents import ServiceProfile
from sluice.batching.documents import read as read_document

from ..publishing import DATA
from ..rows import Kept

PROFILE = DATA / "request-sizes-profile.json"
PERCENTILE = 95.0
ALONE, ONE_QUEUE, BATCHED = "no batching", "one queue", "one queue that batches"
CLASSES, SEEING = "size classes", "a table that sees classes"
SHUFFLED = "size classes, sizes shuffled"
WAYS = (ALONE, ONE_QUEUE, BATCHED, CLASSES, SEEING)


@dataclass(frozen=True)
class Row:
    """A way to serve in a cell; USD per million requests, s.

    ``predicted_*`` are of the mix of the first half, nan where there is no prediction; the others of a run with the sizes of the
    second. ``late`` is the share of the requests beyond the SLO, ``late_in_class`` that of the worst class. ``ends`` are the
    largest sizes of the classes, ``all`` where size is not regarded.
    """

    mix: str
    arrivals: str
    rate: float
    slo: float
    way: str
    ends: str
    predicted_cost: float
    cost: float
    predicted_p95: float
    p95: float
    late: float
    late_in_class: float
    mean_batch: float

    @property
    def cell(self) -> tuple[str, str, float, float]:
        """What rows to be compared have in common."""
        return self.mix, self.arrivals, self.rate, self.slo

    @property
    def p95_error(self) -> float:
        """Of the prediction, relative."""
        return self.predicted_p95 / self.p95 - 1

    @property
    def cost_error(self) -> float:
        """Of the prediction, relative."""
        return self.predicted_cost / self.cost - 1


@cache
def profile() -> ServiceProfile:
    """What was measured of the encoder."""
    return read_document(ServiceProfile, PROFILE.read_bytes(), PROFILE.name)


KEPT = Kept(DATA / "request-sizes.csv", Row, 6)
read, write = KEPT.read, KEPT.write
