"""Follows the documents of API keys as plans are followed: at an interval, bounded, and what is wrong leaves what is in force.

A document that cannot be read is refused in the log, once, with the field; the keys of the last of its place that could stay in
force. While two have one name or one key, all stay as they were. A document that is removed from its folder, or path, takes its
keys with it; where nothing can be looked at at all, all stay. Until there is any key nobody is let in.
"""

from __future__ import annotations

import asyncio
import logging

from sluice.batching.errors import InvalidInput
from sluice.buffer_service.api_keys import ApiKey, Keyring, joined, read_keys
from sluice.buffer_service.plans import FilePlans, Found, PlanSource, SsmPlans
from sluice.buffer_service.unwaited import unwaited

_log = logging.getLogger(__name__)


class KeyFollower:
    """Has ``keyring`` hold what the documents of ``where`` say, ``file:PATH`` or ``ssm:/path/``; ``interval`` (s) between looks."""

    def __init__(self, where: str, interval: float, keyring: Keyring, source: PlanSource | None = None) -> None:
        kind, _, path = where.partition(":")
        self._source: PlanSource = source or (SsmPlans(path) if kind == "ssm" else FilePlans(path))
        self._interval = interval
        self._keyring = keyring
        self._good: dict[str, list[ApiKey]] = {}  # the keys of the last document of each place that could be read
        self._seen: dict[str, bytes | str] = {}  # documents that were read or refused, or why they are none, by place
        self._said = ""

    async def follow(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(self._interval)
            await self.look()

    async def look(self) -> None:
        """One look; raises nothing but cancellation, since what is wrong with a document must not stop the service."""
        try:
            found = await unwaited(self._source.documents)
        except Exception as error:  # a network, a permission, a file system: whatever it is, the keys in force go on
            if isinstance(error, InvalidInput):
                error = InvalidInput("SLUICE_API_KEYS", error.value, error.allowed)
            self._say(f"API keys are not readable: {error}")
            return
        self._said = ""
        seen = {place: document if isinstance(document, bytes) else str(document) for place, document in found.items()}
        if seen == self._seen:
            return
        self._good = {place: keys for place, keys in self._good.items() if place in found}
        for place in (place for place in found if seen[place] != self._seen.get(place)):
            try:
                self._good[place] = await asyncio.to_thread(_read, found[place])
            except Exception as error:
                _log.error("%s: API keys refused: %s", place, error)
        self._seen = seen
        try:
            self._keyring.follow(joined(self._good))
        except InvalidInput as error:
            _log.error("API keys refused: %s", error)
            return
        _log.info("%d API keys in force", len(self._keyring))

    def _say(self, line: str) -> None:
        if line != self._said:
            _log.error("%s", line)
        self._said = line


def _read(document: Found) -> list[ApiKey]:
    if isinstance(document, InvalidInput):
        raise document
    return read_keys(document)
