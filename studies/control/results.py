"""What was found, as data/control.csv keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from ..publishing import DATA
from ..rows import Kept

LOADS = DATA / "control-loads.csv"
CONTROL, EVERY_LOAD, RECOMMENDED, BATCH = "control", "every load, static", "recommended, static", "BATCH, each half hour"
REHEARSED = "rehearsed, each half hour"
POLICIES = (RECOMMENDED, EVERY_LOAD, BATCH, REHEARSED, CONTROL)


@dataclass(frozen=True)
class Counted:
    """Requests in five minutes of a load."""

    load: str
    at: str
    requests: int


@dataclass(frozen=True)
class Row:
    """What a policy did with a load.

    Parameters
    ----------
    windows, feasible, kept : int
        Windows with requests; those in which any of the plans that were tried kept the promise; those of them in which this did.
    cost, clairvoyant : float
        USD per request, of this, and of the cheapest plan of each window that kept the promise there.
    late : float
        Share of the requests.
    plans : int
        That were in force.
    percentile_near, cost_near : float or None
        Share of the windows in which the percentile was within 5 %, and the cost within 3 %, of what was rehearsed.
    cost_at_rate_near, cost_inside : float or None
        Share of those in which the cost was within 3 % of what was rehearsed at the rate that the window turned out to have, and
        within the interval that was told there.
    system_near : float or None
        Share of those in which it was within 3 % of what a run of the plan over the window's own arrivals costs, with the service
        times that were known before.
    spread, system_spread : float or None
        Standard deviation of the cost over that at the rate of the window, and over that of such a run.
    """

    load: str
    policy: str
    requests: int
    windows: int
    feasible: int
    kept: int
    cost: float
    clairvoyant: float
    late: float
    plans: int
    percentile_near: float | None
    cost_near: float | None
    cost_at_rate_near: float | None
    cost_inside: float | None
    system_near: float | None
    spread: float | None
    system_spread: float | None

    @property
    def ratio(self) -> float:
        """Cost over the clairvoyant's."""
        return self.cost / self.clairvoyant


KEPT = Kept(DATA / "control.csv", Row, 8)
read, write = KEPT.read, KEPT.write
