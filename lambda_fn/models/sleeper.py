"""A model whose service time is known exactly: the ruler that predictions are held against.

A batch of ``b`` requests takes ``intercept + slope * b`` seconds and each is answered by its own body. With 0 and 0 it is
the no-op.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from ..contract import Answer, Item

SPIN = 0.0002
"""Seconds before the end at which sleeping, which may overshoot by this much, gives way to looking at the clock."""


class Sleeper:
    """Answers every request with its own body after a known time.

    Parameters
    ----------
    intercept, slope : float
        Seconds; a batch of ``b`` takes ``intercept + slope * b``.
    """

    def __init__(self, name: str, intercept: float = 0.0, slope: float = 0.0) -> None:
        if intercept < 0 or slope < 0:
            raise ValueError(f"sleeper {name!r}: intercept {intercept} and slope {slope} must be seconds >= 0")
        self.name = name
        self.intercept = intercept
        self.slope = slope

    def service_time(self, batch_size: int) -> float:
        """Seconds that a batch of this size takes."""
        return self.intercept + self.slope * batch_size

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "versions": ["1"], "platform": "sluice_sleeper", "inputs": [], "outputs": []}

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        end = time.perf_counter() + self.service_time(len(items))
        remaining = end - time.perf_counter() - SPIN
        if remaining > 0:
            time.sleep(remaining)
        while time.perf_counter() < end:
            pass
        return [Answer(item.id, 200, item.content_type, item.body, item.headers) for item in items]
