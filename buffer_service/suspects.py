"""Payloads that failed or crashed a function alone: they are not put together with others again for a while.

What may live here: hashes of bodies and when each was noted. What may not: a clock, I/O, the bodies. A poison whose client sends it
again would cost its neighbours a bisection each time; alone it costs nobody anything.
"""

from __future__ import annotations

import math

from sluice.lambda_fn.contract import Item

MOST_SUSPECTS = 1024  # the last so many
SUSPECTED_FOR = 600.0  # seconds


class Suspects:
    """The payloads that are suspected, the last that was noted at the end."""

    def __init__(self) -> None:
        self._noted: dict[int, float] = {}  # by the body's hash; two bodies of one hash go alone both

    def __bool__(self) -> bool:
        return bool(self._noted)

    def note(self, now: float, item: Item) -> None:
        """``item`` failed alone."""
        key = hash(item.body)
        self._noted.pop(key, None)
        self._noted[key] = now
        if len(self._noted) > MOST_SUSPECTS:
            del self._noted[next(iter(self._noted))]

    def forget(self, item: Item) -> None:
        """``item`` was answered."""
        self._noted.pop(hash(item.body), None)

    def has(self, now: float, item: Item) -> bool:
        """Whether ``item`` is suspected."""
        return self.noted_at(item) <= now < self.noted_at(item) + SUSPECTED_FOR

    def noted_at(self, item: Item) -> float:
        """When ``item`` failed alone last (s); ``inf`` where that is not known."""
        return self._noted.get(hash(item.body), math.inf)
