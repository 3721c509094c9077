"""What was found, as data/modulated-arrivals.csv keeps it."""

from __future__ import annotations

from dataclasses import dataclass

from ..publishing import DATA
from ..rows import Kept


@dataclass(frozen=True)
class Row:
    """What a policy costs in a setting.

    ``group`` is example, grid, overload or trace. ``exact`` is the cost computed, ``nan`` where it cannot be; ``simulated`` that in
    simulation. ``excess`` is the simulated cost beyond the reference's on the same arrivals, the reference being the tables of a
    server that sees the phase (on the trace, where nobody does, the Poisson policy); errors are standard errors. ``latency`` and
    ``p99`` are in s, simulated; ``right`` is the share of the time in which the likeliest phase is the true one.
    """

    group: str
    process: str
    stay: float
    energy: str
    load: float
    policy: str
    exact: float
    simulated: float
    error: float
    excess: float
    excess_error: float
    latency: float
    p99: float
    right: float

    @property
    def z(self) -> float:
        """The simulated cost less the exact one, in standard errors."""
        return (self.simulated - self.exact) / self.error


KEPT = Kept(DATA / "modulated-arrivals.csv", Row, 7)
read, write = KEPT.read, KEPT.write
