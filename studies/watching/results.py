"""What was found, as data/watching.csv keeps it."""

from __future__ import annotations

from benchmarks.change_tests import Cell

from ..publishing import DATA
from ..rows import Kept

KEPT = Kept(DATA / "watching.csv", Cell, 8)
read, write = KEPT.read, KEPT.write
