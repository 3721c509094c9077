"""What was measured, as data/search-scaling.json keeps it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from ..publishing import DATA

FILE = DATA / "search-scaling.json"


@dataclass(frozen=True)
class Point:
    """CPU seconds and megabytes that ``task`` took when ``parameter`` was ``value`` and all else as in the base setting."""

    task: str
    parameter: str
    value: int
    seconds: float
    megabytes: float


@dataclass(frozen=True)
class Study:
    """The points, and the machine that they were measured on."""

    machine: str
    points: Sequence[Point]

    def curve(self, task: str, parameter: str) -> list[Point]:
        """The points of one task along one parameter."""
        return [point for point in self.points if (point.task, point.parameter) == (task, parameter)]


def read() -> Study:
    """What the last run left."""
    data = json.loads(FILE.read_text(encoding="utf-8"))
    return Study(data["machine"], [Point(**point) for point in data["points"]])


def write(study: Study) -> None:
    """Leave it in the file."""
    FILE.write_text(json.dumps(asdict(study), indent=1) + "\n", encoding="utf-8")
