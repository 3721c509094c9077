"""What was found, as data/policy-zoo.csv keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.batching.documents import quantile_of

from ..publishing import DATA
from ..rows import Kept

PERCENTILE = 95.0
ALLOWED = 1 - quantile_of(PERCENTILE)  # of the requests, late


@dataclass(frozen=True)
class Row:
    """What a policy came to in a cell: ``cost`` in USD per million requests, ``init`` of which are for cold starts; times in s.

    ``p95`` is inf where 5 % have no answer; all is nan where the policy cannot be had.
    """

    trace: str
    network: str
    slo: float
    policy: str
    cost: float
    init: float
    p95: float
    violations: float
    mean_batch: float
    workers: float
    by_function: float
    past_violations: float

    @property
    def cell(self) -> tuple[str, str, float]:
        """What rows to be compared have in common."""
        return self.trace, self.network, self.slo

    @property
    def where(self) -> str:
        """The cell in words."""
        return f"{self.trace}, {self.network}, {milliseconds(self.slo)}"

    @property
    def keeps(self) -> bool:
        """Whether the SLO is kept in the run."""
        return self.violations <= ALLOWED


KEPT = Kept(DATA / "policy-zoo.csv", Row, 5)
read, write = KEPT.read, KEPT.write


def milliseconds(seconds: float) -> str:
    """As people read them."""
    return f"{1e3 * seconds:.4g} ms"
