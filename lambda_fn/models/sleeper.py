"""A model whose service time is known exactly: the ruler that predictions are held against.

A batch of ``b`` requests takes ``intercept + (slope + size_slope * largest) * b`` seconds, as it is padded to its largest request,
and each is answered by its own body. The size of a request is the number that its JSON body is, or has under ``size``; 0 of any
other. With 0, 0 and 0 it is the no-op.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec

from ..contract import UNREADABLE, Answer, Item

SPIN = 0.0002
"""Seconds before the end at which sleeping, which may overshoot by this much, gives way to looking at the clock."""


class _Sized(msgspec.Struct):
    size: float = 0.0


_read = msgspec.json.Decoder(float | _Sized).decode


def size_of(item: Item) -> float:
    """The size of a request, >= 0."""
    try:
        told = _read(item.body)
    except UNREADABLE:
        return 0.0
    return max(0.0, told.size if isinstance(told, _Sized) else told)


class Sleeper:
    """Answers every request with its own body after a known time.

    Parameters
    ----------
    intercept, slope : float
        Seconds, and seconds per request.
    size_slope : float
        Seconds per request and unit of the size of the largest.
    """

    def __init__(self, name: str, intercept: float = 0.0, slope: float = 0.0, size_slope: float = 0.0) -> None:
        if min(intercept, slope, size_slope) < 0:
            told = f"intercept {intercept}, slope {slope} and size_slope {size_slope}"
            raise ValueError(f"sleeper {name!r}: {told} must be seconds >= 0")
        self.name = name
        self.intercept = intercept
        self.slope = slope
        self.size_slope = size_slope

    def service_time(self, batch_size: int, largest: float = 0.0) -> float:
        """Seconds that so many requests take, the largest of this size."""
        return self.intercept + (self.slope + self.size_slope * largest) * batch_size

    def metadata(self) -> dict[str, Any]:
        return {"name": self.name, "versions": ["1"], "platform": "sluice_sleeper", "inputs": [], "outputs": []}

    def answer(self, items: Sequence[Item]) -> list[Answer]:
        start = time.perf_counter()
        largest = max(map(size_of, items), default=0.0) if self.size_slope else 0.0
        end = start + self.service_time(len(items), largest)
        remaining = end - time.perf_counter() - SPIN
        if remaining > 0:
            time.sleep(remaining)
        while time.perf_counter() < end:
            pass
        return [Answer(item.id, 200, item.content_type, item.body, item.headers) for item in items]
