"""An application: requests with arrivals and a promise of their own (docs/classes.md)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sluice.batching.documents import MAX_CLASSES, Slo
from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess


@dataclass(frozen=True, eq=False)
class Application:
    """Requests of one class: what a plan calls it, when they come, and what they are promised.

    Parameters
    ----------
    name : str
        Of the class, as a request tells it.
    arrivals : ArrivalProcess
        Independent of those of other applications.
    slo : Slo
    recorded : array, optional
        When its requests came (s), where that is known; ``arrivals`` are fitted to them.
    """

    name: str
    arrivals: ArrivalProcess
    slo: Slo
    recorded: Array | None = None


def by_promise(applications: Sequence[Application]) -> tuple[Application, ...]:
    """The strictest promise first, of equal ones in their order.

    Raises
    ------
    InvalidInput
        None, more than a plan may have, or a name twice.
    """
    require(0 < len(applications) <= MAX_CLASSES, "classes", len(applications), f"1 to {MAX_CLASSES} applications")
    names = [of.name for of in applications]
    for name in names:
        require(names.count(name) == 1, "classes", name, "each name once")
    return tuple(sorted(applications, key=lambda of: (of.slo.latency, -of.slo.percentile)))


def named(applications: Sequence[Application]) -> str:
    """Some applications in words: ``web``, ``web and report``, ``web, report and nightly``."""
    *others, last = [of.name for of in applications]
    return f"{', '.join(others)} and {last}" if others else last
