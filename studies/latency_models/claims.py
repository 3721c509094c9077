"""What the comparison comes to: where the exact law agrees, and how far off the methods are in the mean."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .results import Row


def agrees(row: Row) -> bool:
    """Whether the exact prediction is within four standard errors of the simulation or 0.1 %."""
    return abs(row.z) <= 4 or abs(row.error("exact")) <= 0.1


def mean_error(rows: Sequence[Row], method: str) -> float:
    """Mean size of the relative error over settings and quantiles, %."""
    return float(np.mean([abs(row.error(method)) for row in rows]))


def by_setting(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows of each setting."""
    settings: dict[tuple[str, str, int, float], list[Row]] = {}
    for row in rows:
        settings.setdefault((row.process, row.law, row.batch_size, row.timeout), []).append(row)
    return list(settings.values())
