"""Follows the current plans: looks where they are written, at an interval, and reports what changed.

Plans in the buffer's own Redis are pushed: each process waits there for the next change (``redis_plans.py``), and looks at the
interval besides.

A plan that cannot work is refused with an error that names the field and the value; the one in force goes on. These cannot:

    what cannot be read         no plan, a value that is not allowed (documents.py, policy.py), more than ``MAX_PLAN_BYTES``;
                                a folder, a pipe or a device where a file should be, a link to nothing
    what callers do not wait    a finite hold beyond their ``request_timeout``, or beyond the table's own ``drop_after``; a slack
                                that is beyond the former with the longest hold, or so far below 0 that ``drop_after``
                                is over at once
    an unknown function         one that does not exist, or serves another model
    a silent function           one that is new in its route, or beside another, and of whose workers none answers, while one of the
                                plan in force does; in the first plan of a model it is taken, as it may come, and there is nothing
                                better

A refusal is reported once, and stands on the page of its model until another plan is in its place. What was refused for what it
asks for is tried again at every look, as the function may be made later; what cannot be read is not. A model whose plan is removed
is served on: to stop serving is not what a lost file should do.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import stat
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from sluice.batching.documents import Plan, Route, read
from sluice.batching.errors import InvalidInput, SluiceError, StoreUnavailable, require
from sluice.batching.policy import INF, Policy
from sluice.batching.urls import without_password
from sluice.buffer_service.invokers import UnknownFunction
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.settings import REQUEST_TIMEOUT, Settings
from sluice.buffer_service.unwaited import unwaited

MAX_PLAN_BYTES = 16 * 1024 * 1024
"""Of a document; a table of ``policy.MAX_ROWS`` rows has 2 MB at most."""

AWAY = 0.5
"""Seconds after which a Redis that was away is asked for its plans again."""
TOLD_504 = "after which callers get 504 (SLUICE_REQUEST_TIMEOUT)"

_log = logging.getLogger(__name__)


class SilentFunction(InvalidInput):
    """Nobody answers for a function that is new, while those of the plan in force answer."""


Found = bytes | InvalidInput
"""A document, or why what is there could not be read."""


class PlanSource(Protocol):
    """Where plans are written."""

    def documents(self) -> Mapping[str, Found]:
        """What was found, by the name of its place; may block. Raises ``InvalidInput`` where nothing can be looked for."""


class FilePlans:
    """One file, or every ``*.json`` of a folder that is not hidden."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)

    def documents(self) -> Mapping[str, Found]:
        try:
            if self._path.is_dir():
                paths = sorted(path for path in self._path.glob("*.json") if not path.name.startswith("."))
                return {str(path): _read_one_of_several(path) for path in paths}
            return {str(self._path): _read(self._path)}
        except OSError as error:
            place = str(error.filename or self._path)
            raise InvalidInput("SLUICE_PLANS", place, f"a readable file or folder ({error.strerror})") from None


def _read_one_of_several(path: Path) -> Found:
    """One that cannot be read must not keep the others from being followed."""
    try:
        return _read(path)
    except OSError as error:
        return InvalidInput("document", error.strerror, "a file that can be read")


def _read(path: Path) -> bytes:
    """A file, or so much of it that it is seen to be too large.

    Nothing else is read: who opens a pipe that nobody writes into, or reads a terminal, waits for ever.
    """
    with open(path, "rb", opener=_open_at_once) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        return file.read(MAX_PLAN_BYTES + 1)


def _open_at_once(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)


class SsmPlans:
    """Every parameter below a path of the Systems Manager Parameter Store."""

    def __init__(self, path: str, client: Any = None) -> None:
        self._path = path
        self._client = client

    def documents(self) -> dict[str, bytes]:
        if self._client is None:
            import boto3  # 13 MB, which all others go without

            self._client = boto3.client("ssm", region_name=os.environ.get("AWS_REGION"))
        pages = self._client.get_paginator("get_parameters_by_path").paginate(Path=self._path, Recursive=True)
        return {parameter["Name"]: parameter["Value"].encode() for page in pages for parameter in page["Parameters"]}


def plan_source(settings: Settings) -> PlanSource | RedisPlans:
    """The source that ``SLUICE_PLANS`` names."""
    if settings.plans.startswith("redis:"):
        return RedisPlans(settings.redis_url, settings.namespace)
    return source_at(settings.plans)


def source_at(where: str) -> PlanSource:
    """What looks at ``file:PATH`` or ``ssm:/path/``."""
    kind, _, path = where.partition(":")
    return SsmPlans(path) if kind == "ssm" else FilePlans(path)


class _Followed(NamedTuple):
    """What is in force."""

    document: bytes
    model: str


class Refusal(NamedTuple):
    """A plan that is not followed, and why; of one that could not be read, model and digest may be ``""``."""

    place: str
    model: str
    digest: str
    kind: str
    reason: str


class _Refused(NamedTuple):
    """A refusal that was reported; ``final`` where the document will never be taken."""

    document: bytes
    refusal: Refusal
    final: bool


def _shown(route: Route) -> str:
    """A route as the log has it."""
    bound = f" up to {route.up_to:g}" if route.up_to is not None else ""
    share = f"{route.name}{bound} with {100 * route.share:.3g} %: " if route.name else ""
    tables = zip(route.rule().tables, route.functions, strict=True)
    return share + ", beside it ".join(f"{table.kind} on {without_password(function)}" for table, function in tables)


class PlanFollower:
    """Calls ``changed`` with every plan that is new or different; ``refused`` once for every one that cannot be followed."""

    def __init__(
        self,
        source: PlanSource | RedisPlans,
        interval: float,
        changed: Callable[[Plan], Awaitable[None]],
        refused: Callable[[Refusal], None] = lambda _: None,
    ) -> None:
        self._source = source
        self._interval = interval
        self._changed = changed
        self._refused = refused
        self._in_force: dict[str, _Followed] = {}
        self._refusals: dict[str, _Refused] = {}  # reported already, by place
        self._unreadable = ""
        self._none_told = False

    async def look(self) -> None:
        """One look; raises nothing but cancellation, since what is wrong with a plan must not stop the service."""
        try:
            found = await self._documents()
        except Exception as error:  # a network, a permission, a file system: whatever it is, the plans in force go on
            if str(error) != self._unreadable:
                _log.error("plans are not readable: %s", error)
            self._unreadable = str(error)
            return
        self._unreadable = ""
        if not (found or self._none_told):
            _log.info("there is no plan yet where SLUICE_PLANS says, and until one is there nothing is served")
        self._none_told = True
        for gone in self._in_force.keys() - found.keys():
            del self._in_force[gone]
        for gone in self._refusals.keys() - found.keys():
            del self._refusals[gone]
        taken: list[tuple[str, bytes, Plan]] = []
        places = {followed.model: place for place, followed in self._in_force.items()}
        for place, document in found.items():
            if place in self._in_force and self._in_force[place].document == document:
                self._refusals.pop(place, None)
                continue
            if isinstance(document, InvalidInput):
                self._refuse(place, b"", self._model_of(place, b""), "", document)
                continue
            refused = self._refusals.get(place)
            if refused is not None and refused.final and refused.document == document:
                continue
            try:
                plan = await asyncio.to_thread(plan_of, document)  # a large one takes its time
            except Exception as error:
                self._refuse(place, document, self._model_of(place, document), "", error, final=True)
                continue
            # Of two plans for one model, which is in force must not hang on which was written last.
            its = places.setdefault(plan.model, place)
            if its != place:
                one = InvalidInput("model", plan.model, f"one plan a model; {its} has it")
                self._refuse(place, document, plan.model, plan.digest, one)
                continue
            taken.append((place, document, plan))
        # Together: a function that is slow to answer for itself holds up its own plan alone.
        await asyncio.gather(*(self._follow(*entry) for entry in taken))

    async def _follow(self, place: str, document: bytes, plan: Plan) -> None:
        try:
            await self._changed(plan)
        except Exception as error:
            self._refuse(place, document, plan.model, plan.digest, error)
            return
        self._in_force[place] = _Followed(document, plan.model)
        self._refusals.pop(place, None)
        _log.info("%s: plan %s in force for %s: %s", place, plan.digest, plan.model, ", ".join(map(_shown, plan.all_routes)))
        for words in doubts(plan):
            _log.warning("%s", words)

    def refusals(self, model: str | None = None) -> list[Refusal]:
        """The plans that are not followed: for a model, or all."""
        return [refused.refusal for refused in self._refusals.values() if model is None or refused.refusal.model == model]

    async def follow(self) -> None:
        """Look for ever; at once when a plan is pushed."""
        while True:
            await self._wait()
            await self.look()

    async def close(self) -> None:
        """Close the connections of the source, where it has some."""
        if isinstance(self._source, RedisPlans):
            await self._source.close()

    async def _documents(self) -> Mapping[str, Found]:
        if isinstance(self._source, RedisPlans):
            return await self._source.read()
        return await unwaited(self._source.documents)

    async def _wait(self) -> None:
        if not isinstance(self._source, RedisPlans):
            await asyncio.sleep(self._interval)
            return
        if not self._unreadable:
            with contextlib.suppress(StoreUnavailable):  # the look says so
                await self._source.changed(self._interval)
                return
        await asyncio.sleep(min(self._interval, AWAY))

    def _model_of(self, place: str, document: bytes) -> str:
        """The model that a document without a plan in it is likely to be for."""
        try:
            return msgspec.json.decode(document, type=_Named).model
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return self._in_force[place].model if place in self._in_force else ""

    def _refuse(self, place: str, document: bytes, model: str, digest: str, error: Exception, final: bool = False) -> None:
        reason = str(error) if isinstance(error, SluiceError) else f"{type(error).__name__}: {error}"
        refusal = Refusal(place, model, digest, _kind(error), reason)
        if place in self._refusals and self._refusals[place] == (document, refusal, final):
            return
        self._refusals[place] = _Refused(document, refusal, final)
        self._refused(refusal)
        _log.error("%s: plan refused: %s", place, reason)


class _Named(msgspec.Struct):
    model: str


def plan_of(document: Found) -> Plan:
    """The plan that was found; raises ``InvalidInput`` where it is none."""
    if isinstance(document, InvalidInput):
        raise document
    size = len(document)
    require(size <= MAX_PLAN_BYTES, "document", f"{size} bytes", f"at most {MAX_PLAN_BYTES} bytes")
    return read(Plan, document)


def _kind(error: Exception) -> str:
    """Why a plan is refused, in few words."""
    kinds = {SilentFunction: "silent function", UnknownFunction: "unknown function", InvalidInput: "invalid"}
    return next((name for kind, name in kinds.items() if isinstance(error, kind)), "error")


def check_waits(plan: Plan, request_timeout: float) -> None:
    """Whether callers wait as long as a plan would have them; raises ``InvalidInput``."""
    _check_slacks(plan, request_timeout)
    for route in plan.all_routes:
        field = f"policy of route {route.name}: hold" if route.name else "policy: hold"
        longest, why = request_timeout, TOLD_504
        drop_after = route.policy.drop_after
        if drop_after is not None and drop_after < longest:
            longest, why = drop_after, "after which the table gives up who waits (drop_after)"
        for place, table in enumerate(route.rule().tables):
            name = f"beside[{place - 1}].{field}" if place else field
            for q, hold in enumerate(table.hold):
                require(hold == INF or hold <= longest, f"{name}[{q}]", hold, f"at most {longest:g} s, {why}, or null")


def _longest_hold(tables: Iterable[Policy]) -> float:
    """The longest finite hold, 0 s where there is none."""
    return max((hold for table in tables for hold in table.hold if hold < INF), default=0.0)


def doubts(plan: Plan) -> Iterator[str]:
    """What of a plan may not be meant, a sentence each: a promise beyond what callers wait for, a hold that alone takes longer."""
    for slo in filter(None, (plan.slo, *plan.other_slos)):
        if slo.latency > REQUEST_TIMEOUT:
            yield (
                f"{plan.model}: a promise of {slo.latency:g} s is longer than callers wait by default, {REQUEST_TIMEOUT:g} s: "
                f"{slo.latency / 1e3:g} if it is of milliseconds"
            )
    for route in plan.all_routes:
        promised, held = plan.promised(route.name), _longest_hold(route.rule().tables)
        if promised is not None and held > promised:
            whose = f"{plan.model}, route {route.name}" if route.name else plan.model
            yield f"{whose}: who waits for others may be held for {held:g} s, of {promised:g} s that are promised"


def _check_slacks(plan: Plan, request_timeout: float) -> None:
    for i, each in enumerate(plan.classes):
        field, slack = f"classes[{i}].slack", each.slack or 0.0
        tables = [table for route in plan.all_routes if each.route in ("", route.name) for table in route.rule().tables]
        held = _longest_hold(tables)
        longest = request_timeout - held
        allowed = f"at most {longest:g} s: with the longest hold of {held:g} s that is {request_timeout:g} s, {TOLD_504}"
        require(slack + held <= request_timeout, field, each.slack, allowed)
        for given_up in (table.drop_after for table in tables if table.drop_after is not None):
            allowed = f"more than -{given_up:g} s: drop_after is {given_up:g} s, and all of the class would be dropped as they come"
            require(slack > -given_up, field, each.slack, allowed)
