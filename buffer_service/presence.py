"""Which processes of the buffer there are, and which plans in force here they do not follow: each tells Redis of itself.

All keys are in the slot of ``{plans}``:

    NAMESPACE:{plans}:buffers     hash: of each process, by its name, what it told last: a ``Presence`` in JSON
    NAMESPACE:{plans}:heard       sorted set: the processes by when each was heard of last, by the clock of Redis (s since 1970)

A process tells of itself once in ``EVERY`` seconds, with one command however many models it serves: what it follows it compares
with the plans in Redis, which it reads again only where the answer names another entry of their history; and it names no model
that it serves by the plan in force. A process that ends takes itself out. One that was not heard of for ``GONE_AFTER`` counts as
gone, and the next that tells of itself forgets it. What could not be told is told with the next; a Redis that lost its data knows
all processes again by then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.plans import Refusal
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.redis_slot import Script, Slot, pairs
from sluice.buffer_service.settings import NAMESPACE

EVERY = 5.0  # s
GONE_AFTER = 20.0  # s: four times that it did not tell of itself
FAREWELL = 1.0  # s that a process which ends spends on it
MOST_PROCESSES = 1000
MOST_MODELS = 32
"""That a process names; how many more there are it says."""
MOST_LETTERS = 300
"""Of a reason, a place or a name."""

TELL = Script.named("tell_presence.lua")

_log = logging.getLogger(__name__)


class OtherPlan(msgspec.Struct, frozen=True):
    """What a process does with a model in place of the plan in force: by which plan it serves it (``""``: it does not).

    ``refused`` is the digest of the plan that it refuses, ``""`` where it refuses none or cannot read it; ``reason`` is why.
    """

    follows: str = ""
    refused: str = ""
    reason: str = ""


class Presence(msgspec.Struct, frozen=True, kw_only=True):
    """What a process tells of itself.

    ``plans`` is where its own plans are, ``models`` how many it serves. With those in this Redis it has compared them at entry
    ``read`` of their history; ``others`` are the models of which it follows another plan, or refuses one, and of ``left_out`` more
    it does not say which.
    """

    host: str
    release: str
    plans: str
    read: str = ""
    models: int = 0
    others: dict[str, OtherPlan] = {}
    left_out: int = 0

    @property
    def read_at(self) -> float:
        """When the entry was written (s since 1970); 0 where there was none."""
        milliseconds = self.read.partition("-")[0]
        return int(milliseconds) / 1000 if milliseconds.isdecimal() else 0.0


class Heard(NamedTuple):
    """A process that is there, and how long ago it was heard of (s)."""

    process: str
    silent: float
    presence: Presence


def presence_of(
    told: Presence, in_force: Mapping[str, str], followed: Mapping[str, str], refusals: Sequence[Refusal], read: str
) -> Presence:
    """What a process tells that serves these models, of those ``in_force`` at entry ``read`` (digests by model), and refuses these.

    Of ``told`` are its host, its release and where its plans are. Models of which a plan is refused come first.
    """
    others: dict[str, OtherPlan] = {}
    for refusal in refusals:
        name = refusal.model[:MOST_LETTERS]
        others[name] = OtherPlan(followed.get(refusal.model, ""), refusal.digest, refusal.reason[:MOST_LETTERS])
    for model in sorted(in_force):
        if followed.get(model, "") != in_force[model]:
            others.setdefault(model, OtherPlan(followed.get(model, "")))
    named = dict(list(others.items())[:MOST_MODELS])
    more: dict[str, Any] = {"models": len(followed), "others": named, "left_out": len(others) - len(named)}
    return msgspec.structs.replace(told, read=read, **more)


class Presences:
    """The processes in a Redis; every method raises ``StoreUnavailable`` where it does not answer, or refuses."""

    def __init__(self, url: str, namespace: str = NAMESPACE) -> None:
        self._told, self._heard, self._history = (f"{namespace}:{{plans}}:{name}" for name in ("buffers", "heard", "history"))
        self._slot = Slot(url, self._told)

    async def tell(self, process: str, presence: Presence) -> str:
        """A process is there; the newest entry of the history of plans, ``""`` where there is none."""
        keys = self._told, self._heard, self._history
        newest = await self._slot.run(TELL, keys, process, msgspec.json.encode(presence), GONE_AFTER, MOST_PROCESSES)
        if newest is None:
            raise StoreUnavailable(f"{MOST_PROCESSES} other processes are told of there")
        return bytes(newest).decode()

    async def leave(self, process: str) -> None:
        """A process has gone."""
        await self._slot.call(("HDEL", self._told, process), ("ZREM", self._heard, process))

    async def heard(self) -> list[Heard]:
        """Who is there, by name; what cannot be read is left out."""
        found, heard, (seconds, microseconds) = await self._slot.call(
            ("HGETALL", self._told), ("ZRANGE", self._heard, 0, -1, "WITHSCORES"), ("TIME",)
        )
        now, told = int(seconds) + int(microseconds) / 1e6, dict(pairs(found))
        known = []
        for process, at in sorted(pairs(heard)):
            silent = max(0.0, now - float(at))
            if silent > GONE_AFTER:
                continue
            with contextlib.suppress(msgspec.DecodeError, UnicodeDecodeError):
                presence = msgspec.json.decode(told.get(process, b""), type=Presence)
                known.append(Heard(process.decode(), silent, presence))
        return known[:MOST_PROCESSES]

    async def close(self) -> None:
        """Close the connections."""
        await self._slot.close()


class PresenceRecord:
    """Tells of one process; ``served`` are the digests of the plans by which it serves, by model, and ``told`` what stays.

    ``plans`` are those in Redis. Where the process follows them it reads them for that; else it ``looks`` here whether there are
    others, and closes them.
    """

    def __init__(
        self,
        presences: Presences,
        told: Presence,
        plans: RedisPlans,
        looks: bool,
        served: Callable[[], Mapping[str, str]],
        refusals: Callable[[], Sequence[Refusal]],
    ) -> None:
        self._presences, self._told, self._plans, self._looks = presences, told, plans, looks
        self._served, self._refusals = served, refusals
        self._process = ""
        self._newest: str | None = None
        self._trouble = False

    def in_force(self) -> Mapping[str, str]:
        """By model, the digests of the plans in Redis, as they were read last."""
        return self._plans.digests()

    async def follow(self, process: str) -> None:
        """Tell of it under this name, again and again, until cancelled."""
        self._process = process
        while True:
            await self.look()
            await asyncio.sleep(EVERY)

    async def look(self) -> None:
        """Tell of it now; that it cannot be told is said in the log, once until it can."""
        try:
            if self._looks and (self._newest is None or self._newest != self._plans.revision):
                await self._plans.look()
            presence = presence_of(self._told, self._plans.digests(), self._served(), self._refusals(), self._plans.revision)
            self._newest = await self._presences.tell(self._process, presence)
        except StoreUnavailable as error:
            if not self._trouble:
                _log.warning("this process is not told of in Redis: %s", error)
            self._trouble = True
            return
        self._trouble = False

    async def close(self) -> None:
        """Take it out, if that is quick, and close the connections."""
        with contextlib.suppress(TimeoutError, StoreUnavailable):
            async with asyncio.timeout(FAREWELL):
                await self._presences.leave(self._process)
        await self._presences.close()
        if self._looks:
            await self._plans.close()
