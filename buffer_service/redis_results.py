"""The entries of ``results.py`` in Redis: one script call for each thing that happens to one.

Keys carry the hash tag ``{model}``, as those of the model's queues do: they share their slot, and their server's outages.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError

from sluice.buffer_service.redis_connection import Command
from sluice.buffer_service.results import WAITING, Bounds, Entry, Full

RESULTS = files("sluice.buffer_service").joinpath("lua/results.lua").read_text()
RESULTS_SHA = hashlib.sha1(RESULTS.encode(), usedforsecurity=False).hexdigest()


def results_keys(model: str, namespace: str) -> dict[str, str]:
    """The keys in the order of the script, and what the value of each must be, in the words of ``lua/set_aside.lua``."""
    prefix = f"{namespace}:{{{model}}}:results"
    return {prefix: "hash", f"{prefix}:over": "zset", f"{prefix}:bytes": "integer"}


class RedisResults:
    """The entries of a model; ``ask`` runs commands where its slot is, and raises ``StoreUnavailable``."""

    def __init__(self, ask: Callable[[Command], Awaitable[list[Any]]], keys: list[str], bounds: Bounds) -> None:
        self._ask = ask
        self._keys = keys
        self._bounds = (bounds.kept, bounds.bytes, repr(bounds.life), repr(bounds.patience))

    async def begin(self, entry_id: str, token: bytes, record: bytes) -> Entry | None:
        said, there = await self._run("begin", entry_id, WAITING + token + record)
        if said == b"full":
            raise Full
        return there

    async def finish(self, entry_id: str, token: bytes, state: bytes, record: bytes) -> bool:
        said, _ = await self._run("finish", entry_id, state + token + record)
        if said == b"full":
            raise Full
        return said == b"done"

    async def read(self, entry_id: str) -> Entry | None:
        _, there = await self._run("read", entry_id)
        return there

    async def remove(self, entry_id: str, token: bytes = b"") -> bool:
        said, _ = await self._run("remove", entry_id, token)
        return said == b"there"

    async def _run(self, what: str, entry_id: str, value: bytes = b"") -> tuple[bytes, Entry | None]:
        called = (len(self._keys), *self._keys, what, entry_id, *self._bounds, value)
        try:
            [answer] = await self._ask(("EVALSHA", RESULTS_SHA, *called))
        except NoScriptError:  # a server that has not seen it; nothing was executed
            [answer] = await self._ask(("EVAL", RESULTS, *called))
        said, value, over, now = answer
        return said, Entry.of(value, float(over), float(now)) if value else None
