"""Follows the current plans: looks where they are written, at an interval, and reports what changed.

A plan that cannot be read, or that names a function which does not exist, is refused with an error that names the field and the
value; the plan that was in force goes on. What is refused is tried again at every look, for the function may be made later, but is
reported once. A model whose plan is removed is served on: to stop serving is not what a lost file should do.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import boto3

from sluice.batching.documents import Plan, Route, read
from sluice.batching.errors import InvalidInput, SluiceError

_log = logging.getLogger(__name__)


class PlanSource(Protocol):
    """Where plans are written."""

    def documents(self) -> dict[str, bytes]:
        """The documents found, by the name of their place; may block. Raises ``InvalidInput`` where the place is not readable."""


class FilePlans:
    """One file, or every ``*.json`` of a folder that is not hidden."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def documents(self) -> dict[str, bytes]:
        try:
            paths = [self._path]
            if self._path.is_dir():
                paths = sorted(path for path in self._path.glob("*.json") if not path.name.startswith("."))
            return {str(path): path.read_bytes() for path in paths}
        except OSError as error:
            place = str(error.filename or self._path)
            raise InvalidInput("SLUICE_PLANS", place, f"a readable file or folder ({error.strerror})") from None


class SsmPlans:
    """Every parameter below a path of the Systems Manager Parameter Store."""

    def __init__(self, path: str, client: Any = None) -> None:
        self._path = path
        self._client = client

    def documents(self) -> dict[str, bytes]:
        if self._client is None:
            self._client = boto3.client("ssm", region_name=os.environ.get("AWS_REGION"))
        pages = self._client.get_paginator("get_parameters_by_path").paginate(Path=self._path, Recursive=True)
        return {parameter["Name"]: parameter["Value"].encode() for page in pages for parameter in page["Parameters"]}


def plan_source(where: str) -> PlanSource:
    """The source that ``SLUICE_PLANS`` names."""
    kind, _, path = where.partition(":")
    return SsmPlans(path) if kind == "ssm" else FilePlans(path)


class _Followed(NamedTuple):
    """What is in force."""

    document: bytes
    model: str


def _shown(route: Route) -> str:
    """A route as the log has it."""
    share = f"{route.name} with {100 * route.share:.3g} %: " if route.name else ""
    return f"{share}{route.policy.kind} on {route.function}"


class PlanFollower:
    """Calls ``changed`` with every plan that is new or different; ``refused`` once for every one that cannot be followed."""

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
        self._in_force: dict[str, _Followed] = {}
        self._refusals: dict[str, tuple[bytes, str]] = {}  # reported already: document and reason
        self._unreadable = ""

    async def look(self) -> None:
        """One look; raises nothing but cancellation, since what is wrong with a plan must not stop the service."""
        try:
            found = await asyncio.to_thread(self._source.documents)
        except Exception as error:  # a network, a permission, a file system: whatever it is, the plans in force go on
            if str(error) != self._unreadable:
                _log.error("plans are not readable: %s", error)
            self._unreadable = str(error)
            return
        self._unreadable = ""
        for gone in self._in_force.keys() - found.keys():
            del self._in_force[gone]
        for gone in self._refusals.keys() - found.keys():
            del self._refusals[gone]
        taken: list[tuple[str, bytes, Plan]] = []
        for place, document in found.items():
            if place in self._in_force and self._in_force[place].document == document:
                self._refusals.pop(place, None)
                continue
            try:
                plan = read(Plan, document)
                self._check_unique(place, plan.model, taken)
            except Exception as error:
                self._refuse(place, document, error)
            else:
                taken.append((place, document, plan))
        # Together: a function that is slow to answer for itself holds up its own plan alone.
        await asyncio.gather(*(self._follow(*entry) for entry in taken))

    async def _follow(self, place: str, document: bytes, plan: Plan) -> None:
        try:
            await self._changed(plan)
        except Exception as error:
            self._refuse(place, document, error)
            return
        self._in_force[place] = _Followed(document, plan.model)
        self._refusals.pop(place, None)
        _log.info("%s: plan %s in force for %s: %s", place, plan.digest, plan.model, ", ".join(map(_shown, plan.all_routes)))

    async def follow(self) -> None:
        """Look for ever."""
        while True:
            await asyncio.sleep(self._interval)
            await self.look()

    def _check_unique(self, place: str, model: str, taken: list[tuple[str, bytes, Plan]]) -> None:
        """Of two plans for one model, which is in force must not hang on which was written last."""
        served = [(other, followed.model) for other, followed in self._in_force.items()]
        served += [(other, plan.model) for other, _, plan in taken]
        for other, its_model in served:
            if its_model == model and other != place:
                raise InvalidInput("model", model, f"one plan a model; {other} has it")

    def _refuse(self, place: str, document: bytes, error: Exception) -> None:
        reason = str(error) if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"
        if self._refusals.get(place) == (document, reason):
            return
        self._refusals[place] = (document, reason)
        self._refused()
        _log.error("%s: plan refused: %s", place, reason)
