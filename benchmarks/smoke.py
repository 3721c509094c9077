"""How much a benchmark does: what its figures need, or the least that still runs all of it (`python -m benchmarks --smoke NAME`).

Of a smoke run nothing is to be read but that it ends. It is told by the environment, as many benchmarks start processes.
"""

from __future__ import annotations

import os
from typing import TypeVar

T = TypeVar("T")

VARIABLE = "SLUICE_SMOKE"


def usually(value: T, *, smoke: T) -> T:
    """``value``, or in a smoke run ``smoke``."""
    return smoke if os.environ.get(VARIABLE) else value
