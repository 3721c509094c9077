"""Follows the current plans: looks where they are written, at an interval, and reports what changed.

A plan that cannot be read, or that names a function which does not exist, is refused with an error that names the field and the
value; the plan that was in force goes on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import boto3

from batching.documents import Plan, read
from batching.errors import InvalidInput, SluiceError

_log = logging.getLogger(__name__)


class PlanSource(Protocol):
    """Where plans are written."""

    def documents(self) -> dict[str, bytes]:
        """The documents found, by the name of their place; may block. Raises ``InvalidInput`` where the place is not readable."""


class FilePlans:
    """One file, or every ``*.json`` of a folder."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def documents(self) -> dict[str, bytes]:
        try:
            paths = sorted(self._path.glob("*.json")) if self._path.is_dir() else [self._path]
            return {str(path): path.read_bytes() for path in paths}
        except OSError as error:
            raise InvalidInput("SLUICE_PLANS", str(self._path), f"a readable file or folder ({error.strerror})") from None


class SsmPlans:
    """Every parameter below a path of the Systems Manager Parameter Store."""

    def __init__(self, path: str, client: Any = None) -> None:
        self._path = path
        self._client = client

    def documents(self) -> dict[str, bytes]:
        if self._client is None:
            self._client = boto3.client("ssm")
        pages = self._client.get_paginator("get_parameters_by_path").paginate(Path=self._path, Recursive=True)
        return {parameter["Name"]: parameter["Value"].encode() for page in pages for parameter in page["Parameters"]}


def plan_source(where: str) -> PlanSource:
    """The source that ``SLUICE_PLANS`` names."""
    kind, _, path = where.partition(":")
    return SsmPlans(path) if kind == "ssm" else FilePlans(path)


class PlanFollower:
    """Calls ``changed`` with every plan that is new or different; ``refused`` with every one that cannot be followed."""

    def __init__(
        self,
        source: PlanSource,
        interval: float,
        changed: Callable[[Plan], Awaitable[None]],
        refused: Callable[[], None] = lambda: None,
    ) -> None:
        self._source = source
        self._interval = interval
        self._changed = changed
        self._refused = refused
        self._seen: dict[str, bytes] = {}

    async def look(self) -> None:
        """One look; raises nothing but cancellation, since what is wrong with a plan must not stop the service."""
        try:
            found = await asyncio.to_thread(self._source.documents)
        except Exception as error:  # a network, a permission, a file system: whatever it is, the plans in force go on
            _log.error("plans are not readable: %s", error)
            return
        for place, document in found.items():
            if self._seen.get(place) == document:
                continue
            self._seen[place] = document
            try:
                plan = read(Plan, document, place)
                await self._changed(plan)
            except SluiceError as error:
                self._refused()
                _log.error("plan refused: %s", error)
            else:
                _log.info("plan in force for %s: %s on %s", plan.model, plan.policy.kind, plan.function)
        for place in self._seen.keys() - found.keys():
            del self._seen[place]

    async def follow(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(self._interval)
            await self.look()
