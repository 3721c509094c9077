"""What was found, as data/recorded-cost.csv keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from ..publishing import DATA
from ..rows import Kept


@dataclass(frozen=True)
class Row:
    """What is said and what is billed for a trace under an SLO; costs in USD per request.

    ``fit_said`` is what the fitted process has of the plan that is recommended without the record, ``fit_billed`` what a run
    over the whole trace comes to; ``said`` and ``billed`` the same of the plan that is recommended with the record. Those named
    ``half`` are recommended from the first half of the trace, billed on the second, and on as many arrivals as the first has the
    record says ``again_low`` to ``again_high``. ``late`` are shares beyond the SLO in a run.
    """

    trace: str
    n: int
    rate: float
    second_rate: float
    latency: float
    fit_said: float
    fit_billed: float
    said: float
    billed: float
    late: float
    half_fit_said: float
    half_fit_billed: float
    half_said: float
    half_billed: float
    half_fit_late: float
    half_late: float
    again_low: float
    again_high: float


KEPT = Kept(DATA / "recorded-cost.csv", Row, 8)
read, write = KEPT.read, KEPT.write
