"""What was found, as data/smdp-day.csv keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from ..publishing import DATA
from ..rows import Kept

LOADS = DATA / "control-loads.csv"
LATEST = "to the last moment"
GREEDY, MEAN, BUSIEST = "greedy", "table of the mean rate", "table of the busiest window"
BANDS, AGAIN, CONTROL, CLAIRVOYANT = "table per band", "solved again each period", "control", "clairvoyant, window by window"
POLICIES = (GREEDY, LATEST, MEAN, BUSIEST, BANDS, AGAIN, CONTROL, CLAIRVOYANT)


@dataclass(frozen=True)
class Counted:
    """Requests in five minutes of a load."""

    load: str
    at: str
    requests: int


@dataclass(frozen=True)
class Row:
    """What a policy did with the day.

    Parameters
    ----------
    windows, feasible, kept : int
        Windows with requests; those in which any of the tables that were tried kept the promise; those of them in which this did.
    joules, latency : float
        Per request: J, and s in the mean.
    late : float
        Share of the requests.
    tables : int
        That were in force.
    """

    policy: str
    requests: int
    windows: int
    feasible: int
    kept: int
    joules: float
    latency: float
    late: float
    tables: int


KEPT = Kept(DATA / "smdp-day.csv", Row, 8)
read, write = KEPT.read, KEPT.write
