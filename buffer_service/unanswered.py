"""Requests that had no answer, by error, of all processes: counted in Redis, as no record has who was refused at the door.

Key    ``NAMESPACE:{model}:unanswered``, a hash: the name of an error -> requests, and ``since`` -> when the first was counted (s
       since 1970, by the clock of who counted it). Errors are those of ``sluice_refusals_total``: one process adds ``MOST_ERRORS``
       of them at a time, and as many are told.
Key    ``NAMESPACE:{model}:unanswered-late``, a stream of ``MOST_LATE`` entries, dated by Redis: ``n`` more of them broke the
       promise (the first of the plan, or that of their class), which who goes away before it has passed does not, and were in no
       batch that left: of those the record of batches tells. Of none there is no entry.

Every process adds what is new once in ``EVERY`` seconds, and at its end; what could not be added is with the next, and what was
added without an answer is counted twice.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping
from typing import NamedTuple

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.redis_servers import Servers
from sluice.buffer_service.redis_slot import ask, pairs
from sluice.buffer_service.settings import NAMESPACE

EVERY = 5.0  # s
FAREWELL = 1.0  # s that a process which ends spends on it
MOST_ERRORS = 64
MOST_LATE = 4096  # entries: of ten processes that all refuse the last half of an hour
SINCE, LATE = b"since", b"n"

_log = logging.getLogger(__name__)


class Unanswered(NamedTuple):
    """Requests without an answer, by error, since a time (s since 1970; ``None`` where there were none).

    ``late`` of those of the window that is asked for, the first of them ``late_for`` seconds ago, broke the promise.
    """

    since: float | None
    by_error: Mapping[str, int]
    late: int = 0
    late_for: float = 0.0


class Counted(NamedTuple):
    """How many requests had no answer since a process began, by error, and how many broke the promise and were in no batch."""

    by_error: Mapping[str, int]
    late: int


NONE_COUNTED = Counted({}, 0)


class UnansweredCounts:
    """The counts in a Redis; both methods raise ``StoreUnavailable`` where it does not answer, or refuses."""

    def __init__(self, url: str, namespace: str = NAMESPACE) -> None:
        self._servers, self._namespace = Servers(url), namespace

    async def add(self, model: str, more: Mapping[str, int], late: int, now: float) -> None:
        """So many more had none, of whom so many broke the promise."""
        key = self._key(model)
        counts = [("HINCRBY", key, error, n) for error, n in list(more.items())[:MOST_ERRORS]]
        broken = [("XADD", _late(key), "MAXLEN", "~", MOST_LATE, "*", LATE, late)] if late else []
        await ask(self._servers, key, ("HSETNX", key, SINCE, f"{now:.3f}"), *counts, *broken)

    async def of(self, model: str, window: float = 0.0) -> Unanswered:
        """Of a model, since it was counted first, and who broke the promise in the newest ``window`` seconds."""
        key = self._key(model)
        found, (seconds, microseconds) = await ask(self._servers, key, ("HGETALL", key), ("TIME",))
        told = dict(pairs(found))
        since = told.pop(SINCE, None)
        counts = {name.decode(errors="replace"): int(n) for name, n in sorted(told.items()) if n.isdigit()}
        now = int(seconds) + int(microseconds) / 1e6
        first = max(0, math.ceil(1000 * (now - window)))
        [entries] = await ask(self._servers, key, ("XREVRANGE", _late(key), "+", first, "COUNT", MOST_LATE))
        late = {entry_id: int(n) for entry_id, fields in entries if (n := dict(pairs(fields)).get(LATE, b"")).isdigit()}
        late_for = max((now - int(entry_id.partition(b"-")[0]) / 1000 for entry_id in late), default=0.0)
        return Unanswered(_number(since), dict(list(counts.items())[:MOST_ERRORS]), sum(late.values()), late_for)

    async def close(self) -> None:
        """Close the connections."""
        await self._servers.close()

    def _key(self, model: str) -> str:
        return f"{self._namespace}:{{{model}}}:unanswered"


class UnansweredRecord:
    """Adds what one process counted; ``counted`` tells, by model, who had no answer since it began."""

    def __init__(self, counts: UnansweredCounts, counted: Callable[[], Mapping[str, Counted]], date: Callable[[], float]) -> None:
        self._counts, self._counted, self._date = counts, counted, date
        self._added: dict[str, Counted] = {}
        self._trouble = ""

    async def follow(self) -> None:
        """Add what is new, again and again, until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            await self.look()

    async def look(self) -> None:
        """Add what is new now; what cannot be is told of in the log, once, and added later."""
        for model, counted in self._counted().items():
            added = self._added.get(model, NONE_COUNTED)
            more = {error: _new(added.by_error.get(error, 0), n) for error, n in counted.by_error.items()}
            more = {error: n for error, n in more.items() if n}
            if not more:
                continue
            try:
                await self._counts.add(model, more, _new(added.late, counted.late), self._date())
            except StoreUnavailable as error:
                if str(error) != self._trouble:
                    _log.warning("who had no answer is not counted in Redis: %s", error)
                self._trouble = str(error)
                return
            self._added[model] = Counted({**added.by_error, **counted.by_error}, counted.late)
            self._trouble = ""

    async def close(self) -> None:
        """Add what is new, if that is quick, and close the connections."""
        try:
            async with asyncio.timeout(FAREWELL):
                await self.look()
        except TimeoutError:
            pass
        await self._counts.close()


def _late(key: str) -> str:
    return f"{key}-late"


def _new(before: int, now: int) -> int:
    """What a counter has more; one that fell began anew."""
    return now - before if now >= before else now


def _number(text: bytes | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None
