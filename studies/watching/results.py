"""What was found, as data/watching.csv keeps it."""

from __future__ import annotations

from collections.abc import Iterable

from benchmarks.change_tests import Cell

from ..publishing import DATA
from ..rows import read_rows, write_rows

FILE = DATA / "watching.csv"


def read() -> list[Cell]:
    """What the last run left."""
    return read_rows(FILE, Cell)


def write(cells: Iterable[Cell]) -> None:
    """Leave it in the file."""
    write_rows(FILE, Cell, cells, 8)
