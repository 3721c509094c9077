"""What was found, as data/smdp-classes.csv and data/smdp-classes-table.csv keep it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..publishing import DATA
from ..rows import read_rows, write_rows

FILE, TABLE_FILE = DATA / "smdp-classes.csv", DATA / "smdp-classes-table.csv"


@dataclass(frozen=True)
class Row:
    """The tables of one setting.

    ``ratio`` is the weight of a second of an urgent request over that of a patient one, ``energy`` the weight of a watt. Costs
    (4.27) are those of the optimal table over both queues, of one queue in order of arrival, and of its table with the urgent
    first; latencies are means in s, of the optimal table and of one queue in order.
    """

    load: float
    ratio: float
    energy: float
    optimal: float
    in_order: float
    urgent_first: float
    urgent: float
    patient: float
    together: float
    states: int

    @property
    def saved(self) -> float:
        """The part of the cost in order of arrival that the optimal table saves."""
        return 1 - self.optimal / self.in_order

    @property
    def saved_of_first(self) -> float:
        """The same of the cost with the urgent first."""
        return 1 - self.optimal / self.urgent_first


@dataclass(frozen=True)
class Cell:
    """How many leave with so many waiting."""

    urgent: int
    patient: int
    taken: int


@dataclass(frozen=True, eq=False)
class Study:
    """All that was found."""

    rows: list[Row]
    cells: list[Cell]


def read() -> Study:
    """What the last run left."""
    return Study(read_rows(FILE, Row), read_rows(TABLE_FILE, Cell))


def write(study: Study) -> None:
    """Leave it in the files."""
    write_rows(FILE, Row, study.rows, 8)
    write_rows(TABLE_FILE, Cell, study.cells, 8)


def drawn(cells: Iterable[Cell]) -> list[list[int]]:
    """The table as a grid: by urgent requests waiting, then by patient ones."""
    found = {(cell.urgent, cell.patient): cell.taken for cell in cells}
    n, m = (1 + max(place[axis] for place in found) for axis in (0, 1))
    return [[found[q1, q2] for q2 in range(m)] for q1 in range(n)]
