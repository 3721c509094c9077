"""What was found, as data/fleet-live.csv and data/fleet-live-facts.json keep it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..publishing import DATA
from ..rows import read_rows, write_rows

WINDOWS, FACTS = DATA / "fleet-live.csv", DATA / "fleet-live-facts.json"
LIVE, SIMULATED, SLOWER = "live", "simulated", "simulated, with what a batch takes beside its profile"
REPLAYED = "the plans of the live run, simulated"


@dataclass(frozen=True)
class Window:
    """Some seconds of a run: requests, those in time, the mean accuracy of these (percent), and the workers of each variant.

    ``hosts`` are those that got requests in the middle of the window, in words.
    """

    run: str
    begin: float
    arrivals: int
    in_time: int
    accuracy: float
    hosts: str

    @property
    def late(self) -> float:
        """Percent late, given up or failed."""
        return 100.0 * (1.0 - self.in_time / self.arrivals)


@dataclass(frozen=True)
class Facts:
    """What the page says beside: see ``live.Live``, and of the requests after the worker was killed how many failed.

    ``starts`` is what of the requests was late, percent, simulated from moments that differ by parts of a look. ``hosts_changed``
    is how often other variants were served, by run. ``failed`` are the requests without an answer of those, ``near``, that came
    from one SLO before the kill to a second after its share had moved, ``failed_all`` of all ``requests``. ``late_before`` and
    ``late_after`` are percent of the requests of the calm end before the kill, and of those, ``after``, from it to the end.
    """

    idle: float
    overhead: float
    longest: float
    lag: float
    controller: float
    decisions: int
    decision_time: float
    starts: list[float]
    hosts_changed: dict[str, int]
    killed: float
    moved: float
    workers: int
    failed: int
    failed_all: int
    requests: int
    near: int
    late_before: float
    late_after: float
    after: int


@dataclass(frozen=True)
class Study:
    """All of it."""

    windows: Sequence[Window]
    facts: Facts

    def of(self, run: str) -> list[Window]:
        """The windows of a run."""
        return [window for window in self.windows if window.run == run]


def read() -> Study:
    """What the last run left."""
    return Study(read_rows(WINDOWS, Window), Facts(**json.loads(FACTS.read_text(encoding="utf-8"))))


def write(study: Study) -> None:
    """Leave it in the files."""
    write_rows(WINDOWS, Window, study.windows, 8)
    FACTS.write_text(json.dumps(asdict(study.facts), indent=1) + "\n", encoding="utf-8")
