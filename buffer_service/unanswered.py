"""Requests that had no answer, by error, of all processes: counted in Redis, as no record has who was refused at the door.

Key    ``NAMESPACE:{model}:unanswered``, a hash: the name of an error -> requests, and ``since`` -> when the first was counted (s
       since 1970, by the clock of who counted it). Errors are those of ``sluice_refusals_total``: one process adds ``MOST_ERRORS``
       of them at a time, and as many are told.

Every process adds what is new once in ``EVERY`` seconds, and at its end; what could not be added is with the next, and what was
added without an answer is counted twice.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.redis_servers import Servers
from sluice.buffer_service.redis_slot import ask, pairs
from sluice.buffer_service.settings import NAMESPACE

EVERY = 5.0  # s
FAREWELL = 1.0  # s that a process which ends spends on it
MOST_ERRORS = 64
SINCE = b"since"

_log = logging.getLogger(__name__)


class Unanswered(NamedTuple):
    """Requests without an answer, by error, since a time (s since 1970; ``None`` where there were none)."""

    since: float | None
    by_error: Mapping[str, int]


class UnansweredCounts:
    """The counts in a Redis; both methods raise ``StoreUnavailable`` where it does not answer, or refuses."""

    def __init__(self, url: str, namespace: str = NAMESPACE) -> None:
        self._servers, self._namespace = Servers(url), namespace

    async def add(self, model: str, more: Mapping[str, int], now: float) -> None:
        """So many more had none."""
        key = self._key(model)
        counts = [("HINCRBY", key, error, n) for error, n in list(more.items())[:MOST_ERRORS]]
        await ask(self._servers, key, ("HSETNX", key, SINCE, f"{now:.3f}"), *counts)

    async def of(self, model: str) -> Unanswered:
        """Of a model, since it was counted first."""
        [found] = await ask(self._servers, key := self._key(model), ("HGETALL", key))
        told = dict(pairs(found))
        since = told.pop(SINCE, None)
        counts = {name.decode(errors="replace"): int(n) for name, n in sorted(told.items()) if n.isdigit()}
        return Unanswered(_number(since), dict(list(counts.items())[:MOST_ERRORS]))

    async def close(self) -> None:
        """Close the connections."""
        await self._servers.close()

    def _key(self, model: str) -> str:
        return f"{self._namespace}:{{{model}}}:unanswered"


class UnansweredRecord:
    """Adds what one process counted; ``counted`` tells, by model, how many had no answer since it began, by error."""

    def __init__(
        self, counts: UnansweredCounts, counted: Callable[[], Mapping[str, Mapping[str, int]]], date: Callable[[], float]
    ) -> None:
        self._counts, self._counted, self._date = counts, counted, date
        self._added: dict[str, dict[str, int]] = {}
        self._trouble = ""

    async def follow(self) -> None:
        """Add what is new, again and again, until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            await self.look()

    async def look(self) -> None:
        """Add what is new now; what cannot be is told of in the log, once, and added later."""
        for model, errors in self._counted().items():
            added = self._added.setdefault(model, {})
            before = {error: added.get(error, 0) for error in errors}
            more = {error: n - before[error] if n >= before[error] else n for error, n in errors.items() if n != before[error]}
            if not more:
                continue
            try:
                await self._counts.add(model, more, self._date())
            except StoreUnavailable as error:
                if str(error) != self._trouble:
                    _log.warning("who had no answer is not counted in Redis: %s", error)
                self._trouble = str(error)
                return
            self._added[model] = dict(errors)
            self._trouble = ""

    async def close(self) -> None:
        """Add what is new, if that is quick, and close the connections."""
        try:
            async with asyncio.timeout(FAREWELL):
                await self.look()
        except TimeoutError:
            pass
        await self._counts.close()


def _number(text: bytes | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
