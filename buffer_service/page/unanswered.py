"""Who had no answer at any process, as the live page tells it: read from Redis seldom, and only while somebody asks."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.unanswered import EVERY, Unanswered

LOOK_EVERY = EVERY  # s; no process adds what is new more often
WAIT = 1.0  # s that a document waits for it at most


class Counts(Protocol):
    """What is asked of ``UnansweredCounts``."""

    async def of(self, model: str, window: float = 0.0) -> Unanswered: ...


class UnansweredEverywhere:
    """The counts in a Redis; ``counts`` of ``None``: there is nowhere to look. ``clock`` is monotonic (s)."""

    def __init__(self, counts: Counts | None, clock: Callable[[], float]) -> None:
        self._counts, self._clock = counts, clock
        self._look_at = -math.inf
        self._asked: set[str] = set()
        self._told: dict[str, Unanswered] = {}

    async def look(self, windows: Mapping[str, float]) -> None:
        """Read of these models, each over so many seconds, unless that was done lately."""
        if self._counts is None or not windows or (self._clock() < self._look_at and windows.keys() <= self._asked):
            return
        told: dict[str, Unanswered] = {}
        with contextlib.suppress(StoreUnavailable, TimeoutError):
            async with asyncio.timeout(WAIT):
                for model, window in windows.items():
                    told[model] = await self._counts.of(model, window)
        self._asked, self._told, self._look_at = set(windows), told, self._clock() + LOOK_EVERY

    def tell(self, model: str) -> dict[str, Any] | None:
        """Requests without an answer, by error, since when, and how many of the window broke the promise; ``None``: not known."""
        told = self._told.get(model)
        return None if told is None else {"since": told.since, "by_error": dict(told.by_error), "late": told.late}
