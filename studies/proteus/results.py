"""What came out, as data/proteus-runs.csv, -series.csv, -one-queue.csv and -facts.json keep it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ..publishing import DATA
from ..rows import read_rows, write_rows

DIGITS = 7


@dataclass(frozen=True)
class Run:
    """One system on one demand.

    Parameters
    ----------
    part, case, system : str
        Part of the page, the setting within it, who ran.
    requests : int
        All that arrived.
    violations : float
        1 - requests answered within the SLO / all that arrived.
    accuracy : float
        Mean accuracy of the requests answered within the SLO, percent.
    drop : float
        Best accuracy of the fleet less the least mean accuracy of a window, percentage points.
    throughput : float
        Requests/s answered within the SLO.
    unanswered : float
        Share of all requests that were never answered.
    utilisation : float
        Share of the devices' time in which they served; of devices that are in the placement.
    plans, asked, swaps : int
        Plans put into force, plans that the planner was asked for, and devices that loaded another variant.
    """

    part: str
    case: str
    system: str
    requests: int
    violations: float
    accuracy: float
    drop: float
    throughput: float
    unanswered: float
    utilisation: float
    plans: int
    asked: int
    swaps: int


@dataclass(frozen=True)
class Window:
    """Ten seconds of a run: the demand and what was in time of it (requests/s), its accuracy (percent), and the violations."""

    case: str
    system: str
    start: float
    demand: float
    throughput: float
    accuracy: float
    violations: float


@dataclass(frozen=True)
class Cell:
    """Violations of a policy on one queue, the mean over ``profiles``, at a load (part of the capacity) of such arrivals."""

    load: float
    arrivals: str
    policy: str
    violations: float
    profiles: int


class Instances(msgspec.Struct, frozen=True):
    """How the planner did on the instances with proven optima: how many, how many of them proven here, how far off (points), s."""

    number: int
    proven: int
    off: float
    mean_seconds: float
    longest_seconds: float


class Measured(msgspec.Struct, frozen=True):
    """What hangs on the machine.

    Parameters
    ----------
    instances : Instances, optional
        None where the folder has none.
    decisions : mapping
        Mean and longest seconds of a decision, by who decided.
    real_time : mapping
        Violations and accuracy (percent) of ours by fleet where a plan comes into force as soon as it has been found.
    seconds : float
        CPU time of the whole study.
    """

    instances: Instances | None
    decisions: Mapping[str, tuple[float, float]]
    real_time: Mapping[str, tuple[float, float]] = msgspec.field(name="real time")
    seconds: float


class Facts(msgspec.Struct, frozen=True):
    """What the page says beside the tables.

    Parameters
    ----------
    experiment : str
        The trace, as EXPERIMENT/SLO.
    families : mapping
        Requests of each family.
    requests, duration : int, float
        Of the trace; s.
    deadlines_ms : mapping
    burst : tuple
        From, to, end (s), times the demand before.
    fleets : mapping
        Devices of each type, by fleet.
    unprofiled : sequence of str
        Variants that no device was profiled with.
    best : mapping
        Accuracy (percent) of the most accurate variant of each family that a device serves, by fleet.
    stress : float
        Times the demand.
    """

    experiment: str
    families: Mapping[str, int]
    requests: int
    duration: float
    deadlines_ms: Mapping[str, float]
    burst: tuple[float, float, float, float]
    fleets: Mapping[str, Mapping[str, int]]
    unprofiled: Sequence[str]
    best: Mapping[str, Mapping[str, float]]
    stress: float
    measured: Measured


@dataclass(frozen=True)
class Study:
    """All of it."""

    runs: Sequence[Run]
    windows: Sequence[Window]
    cells: Sequence[Cell]
    facts: Facts

    def of(self, part: str, case: str | None = None) -> list[Run]:
        """The runs of a part of the page, of one case or of all."""
        return [run for run in self.runs if run.part == part and case in (None, run.case)]

    def run(self, part: str, case: str, system: str) -> Run | None:
        """One run, if it was made."""
        return next((run for run in self.of(part, case) if run.system == system), None)

    def cases(self, part: str) -> list[str]:
        """The cases of a part in order."""
        return list(dict.fromkeys(run.case for run in self.of(part)))

    def systems(self, part: str) -> list[str]:
        """The systems of a part in order."""
        return list(dict.fromkeys(run.system for run in self.of(part)))

    def series(self, case: str, system: str) -> list[Window]:
        """A run by windows."""
        return [window for window in self.windows if window.case == case and window.system == system]


FILES = ("proteus-runs.csv", "proteus-series.csv", "proteus-one-queue.csv", "proteus-facts.json")


def write(study: Study, folder: Path = DATA) -> None:
    """Keep the study in the folder."""
    runs, windows, cells, facts = (folder / name for name in FILES)
    write_rows(runs, Run, study.runs, DIGITS)
    write_rows(windows, Window, study.windows, DIGITS)
    write_rows(cells, Cell, study.cells, DIGITS)
    kept = json.dumps(msgspec.to_builtins(study.facts), indent=1, ensure_ascii=False)
    facts.write_text(kept + "\n", encoding="utf-8")


def read(folder: Path = DATA) -> Study:
    """The study that the folder keeps."""
    runs, windows, cells, facts = (folder / name for name in FILES)
    kept = msgspec.json.decode(facts.read_bytes(), type=Facts)
    return Study(read_rows(runs, Run), read_rows(windows, Window), read_rows(cells, Cell), kept)


def kept_in(folder: Path) -> bool:
    """Whether the folder keeps a study."""
    return all((folder / name).exists() for name in FILES)
