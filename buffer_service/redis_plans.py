"""Plans in the buffer's own Redis, pushed to every process: where they are, who may write them, what was in force before.

All keys are in one slot, that of ``{plans}``:

    NAMESPACE:{plans}:documents   hash: the plan of each model, as it is to be followed
    NAMESPACE:{plans}:history     stream: each plan that was written, by whom and why; the newest ``HISTORY`` of all models
                                  together. Whoever follows plans waits for its next entry, so that a change is in force at once,
                                  and reads there what was written since, where the history goes back so far
    NAMESPACE:{plans}:lease       who plans by itself: one controller at a time. What it writes is taken while the lease is its own
                                  and not after, whatever it believes: the script that writes looks
    NAMESPACE:{plans}:declared    hash: of each model the digest of the plan that was declared elsewhere and put here last
    NAMESPACE:{plans}:given       hash: of each model the plan that was written last by somebody else than who leads
    NAMESPACE:{plans}:counts:MODEL
                                  how many requests of a model came by the time of the day, as who leads counted them; for
                                  ``COUNTS_KEPT`` seconds, so that another who leads knows what came yesterday
    NAMESPACE:{plans}:decisions   stream: what the controllers decided and why, the newest ``DECISIONS`` of all models

A person may write at any time, and whoever plans sees it. A Redis that has lost its data has no plans: the buffers go on with
those that they follow, and the first that reads puts back what it read before, so that processes that start have them too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import msgspec

from sluice.batching.documents import Plan, read, write
from sluice.batching.errors import InvalidInput, StoreUnavailable, require
from sluice.buffer_service.redis_slot import Script, Slot, pairs
from sluice.buffer_service.settings import NAMESPACE

MAX_DOCUMENT_BYTES = 1024 * 1024
HISTORY = 100
DECISIONS = 1000
MAX_PLANS = 10_000
COUNTS_KEPT = 2 * 86_400
MAX_WORDS = 1000
"""Characters of a reason."""

_log = logging.getLogger(__name__)


WRITE, LEASE, PUT_BACK = Script.named("write_plan.lua"), Script.named("lease.lua"), Script.named("put_back_plans.lua")


class NotLeading(StoreUnavailable):
    """Another controller plans: what this one wrote was not taken."""


class Written(NamedTuple):
    """An entry of the history: when it was written (s since 1970), the plan, by whom and why."""

    at: float
    plan: Plan
    by: str
    why: str


class Reason(NamedTuple):
    """By whom and why a plan was written, and when (s since 1970)."""

    at: float
    model: str
    digest: str
    by: str
    why: str


class _Named(msgspec.Struct):
    model: str
    digest: str


class RedisPlans:
    """The plans in a Redis.

    Every method raises ``StoreUnavailable`` where Redis does not answer, or refuses.
    """

    def __init__(self, url: str, namespace: str = NAMESPACE) -> None:
        self._documents, self._history, self._lease = (
            f"{namespace}:{{plans}}:{name}" for name in ("documents", "history", "lease")
        )
        self._decisions = f"{namespace}:{{plans}}:decisions"
        self._declared, self._given = f"{namespace}:{{plans}}:declared", f"{namespace}:{{plans}}:given"
        self._counts = f"{namespace}:{{plans}}:counts:"
        self._slot = Slot(url, self._documents)
        self._newest: bytes | None = None  # entry of the history, when the documents were read
        self._found: dict[str, bytes] = {}  # by model
        self._plans: dict[bytes, Plan | None] = {}  # of the documents that were read last; None of what is none
        self._digests: tuple[dict[str, bytes], dict[str, str]] = self._found, {}  # by model, and of which documents

    # -- who follows

    async def read(self) -> dict[str, bytes]:
        """Every plan, by the name of its place; asked again, it moves those that were written in between."""
        if not await self._told_since():
            newest = await self._newest_entry()
            if not newest and self._found:
                await self._put_back()
                newest = await self._newest_entry()
            await self._read_all(newest)
        return {f"redis:{model}": document for model, document in self._found.items()}

    async def look(self) -> None:
        """Read every plan, as ``read`` does, for who does not follow them: what Redis lost is not put back."""
        if not await self._told_since():
            await self._read_all(await self._newest_entry())

    @property
    def revision(self) -> str:
        """The newest entry of the history when the plans were read last; ``""`` where there was none."""
        return (self._newest or b"").decode()

    def digests(self) -> Mapping[str, str]:
        """By model, the digest of each plan that was read last; what is no plan is left out."""
        documents, known = self._digests
        if documents is not self._found:
            named = [_named(document) for document in self._found.values()]
            known = {each.model: each.digest for each in named if each is not None}
            self._digests = self._found, known
        return known

    async def _told_since(self) -> bool:
        """Whether the history tells what was written since the last read, which is known then; else all is to be read."""
        if not self._newest:
            return False
        [entries] = await self._slot.call(("XRANGE", self._history, self._newest, "+", "COUNT", HISTORY + 1))
        if not entries or entries[0][0] != self._newest or len(entries) > HISTORY:
            return False  # trimmed or lost since then, or more was put back than is told at once
        documents = [dict(pairs(flat)).get(b"document", b"") for _, flat in entries[1:]]
        named = [_named(document) for document in documents]
        if None in named:
            return False
        if documents:
            self._found = self._found | {each.model: document for each, document in zip(named, documents, strict=True) if each}
        self._newest = bytes(entries[-1][0])
        return True

    async def _read_all(self, newest: bytes) -> None:
        [found] = await self._slot.call(("HGETALL", self._documents))
        self._found = {model.decode(errors="replace"): document for model, document in pairs(found)}
        self._newest = newest

    async def _newest_entry(self) -> bytes:
        [newest] = await self._slot.call(("XREVRANGE", self._history, "+", "-", "COUNT", 1))
        return bytes(newest[0][0]) if newest else b""

    async def _put_back(self) -> None:
        known = [part for model, document in self._found.items() for part in (model, document)]
        put = await self._slot.run(PUT_BACK, (self._documents, self._history), "who read it before", "Redis had lost it", *known)
        if put:
            _log.warning("Redis had lost the plans: %d are put back", put)

    async def changed(self, within: float) -> None:
        """Return when a plan was written since the last ``read``, or after so many seconds."""
        after = self._newest or b"0"
        milliseconds = max(1, round(1000 * within))
        await self._slot.call(("XREAD", "COUNT", 1, "BLOCK", milliseconds, "STREAMS", self._history, after), blocks=within)

    # -- who writes

    async def write(self, plan: Plan, by: str, why: str = "", leader: str = "") -> None:
        """This plan is to be followed from now on.

        Parameters
        ----------
        by, why
            What the history says.
        leader
            The name under which the lease is held; ``""`` of a person, who needs none.

        Raises
        ------
        NotLeading
            Another has the lease, or nobody.
        InvalidInput
            A document beyond ``MAX_DOCUMENT_BYTES``; a model beyond the first ``MAX_PLANS``.
        """
        document = write(plan)
        require(
            len(document) <= MAX_DOCUMENT_BYTES, "plan", f"{len(document)} bytes", f"at most {MAX_DOCUMENT_BYTES} bytes in Redis"
        )
        keys = (self._lease, self._documents, self._history, self._given)
        told = await self._slot.run(WRITE, keys, leader, plan.model, document, by[:MAX_WORDS], why[:MAX_WORDS], HISTORY, MAX_PLANS)
        if told == b"lease":
            raise NotLeading("another controller holds the lease, and plans")
        require(told != b"room", "model", plan.model, f"one of at most {MAX_PLANS} models")

    async def given(self, model: str) -> Plan | None:
        """The plan of a model that was written last by somebody else than who leads; ``None`` where there is none."""
        [document] = await self._slot.call(("HGET", self._given, model))
        return _readable(document or b"")

    async def note_declared(self, plan: Plan) -> None:
        """This plan was declared elsewhere, and is put here."""
        await self._slot.call(("HSET", self._declared, plan.model, plan.digest))

    async def declared(self) -> dict[str, str]:
        """By model, the digest of the plan that was declared elsewhere and put here last."""
        [found] = await self._slot.call(("HGETALL", self._declared))
        return {model.decode(errors="replace"): digest.decode(errors="replace") for model, digest in pairs(found)}

    async def keep_counts(self, counts: Mapping[str, bytes]) -> None:
        """Keep what was counted of each of these models."""
        if counts:
            await self._slot.call(*(("SET", self._counts + model, packed, "EX", COUNTS_KEPT) for model, packed in counts.items()))

    async def counts(self, model: str) -> bytes:
        """What was counted of a model; ``b""`` where nothing is kept."""
        [packed] = await self._slot.call(("GET", self._counts + model))
        return packed or b""

    async def lead(self, name: str, seconds: float) -> bool:
        """Whether the lease is this name's for so many seconds from now on: it was, or nobody had it."""
        return bool(await self._slot.run(LEASE, (self._lease,), name, round(1000 * seconds)))

    async def resign(self, name: str) -> None:
        """Give the lease back, where it is this name's."""
        await self._slot.run(LEASE, (self._lease,), name, 0)

    async def leader(self) -> str:
        """Who has the lease; ``""``: nobody."""
        [name] = await self._slot.call(("GET", self._lease))
        return (name or b"").decode(errors="replace")

    # -- who looks back

    async def plans(self) -> list[Plan]:
        """Those that can be read, by model."""
        documents = (await self.read()).values()
        self._plans = {each: self._plans[each] if each in self._plans else _readable(each) for each in documents}
        return [plan for plan in self._plans.values() if plan is not None]

    async def history(self, model: str = "") -> list[Written]:
        """What was written, newest first, of one model or all; what cannot be read is left out."""
        [entries] = await self._slot.call(("XREVRANGE", self._history, "+", "-"))
        found = []
        for number, flat in cast("Sequence[tuple[bytes, Any]]", entries):
            fields = dict(pairs(flat))
            plan = _readable(fields.get(b"document", b""))
            if plan is not None and model in ("", plan.model):
                by, why = (fields.get(name, b"").decode(errors="replace") for name in (b"by", b"why"))
                found.append(Written(int(number.partition(b"-")[0]) / 1000, plan, by, why))
        return found

    async def reasons(self, most: int) -> list[Reason]:
        """Of the newest so many entries of the history, newest first; cheaper than that, as no plan is checked."""
        [entries] = await self._slot.call(("XREVRANGE", self._history, "+", "-", "COUNT", most))
        found = []
        for number, flat in cast("Sequence[tuple[bytes, Any]]", entries):
            fields = dict(pairs(flat))
            plan = _named(fields.get(b"document", b""))
            if plan is None:
                continue
            by, why = (fields.get(name, b"").decode(errors="replace") for name in (b"by", b"why"))
            found.append(Reason(int(number.partition(b"-")[0]) / 1000, plan.model, plan.digest, by, why))
        return found

    async def note_decision(self, entry: bytes) -> None:
        """Keep a decision, a JSON object."""
        await self._slot.call(("XADD", self._decisions, "MAXLEN", "~", DECISIONS, "*", "decision", entry))

    async def decisions(self, most: int) -> list[bytes]:
        """The newest so many decisions, newest first."""
        [entries] = await self._slot.call(("XREVRANGE", self._decisions, "+", "-", "COUNT", most))
        return [dict(pairs(flat)).get(b"decision", b"") for _, flat in entries]

    async def close(self) -> None:
        """Close the connections."""
        await self._slot.close()


def _readable(document: bytes) -> Plan | None:
    try:
        return read(Plan, document)
    except InvalidInput:
        return None


def _named(document: bytes) -> _Named | None:
    try:
        return msgspec.json.decode(document, type=_Named)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
