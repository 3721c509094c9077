"""Commands and scripts for the keys of one slot of a Redis, but for the queue, which has its own way (``redis_store.py``)."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from importlib.resources import files
from typing import Any, NamedTuple

from redis.crc import key_slot
from redis.exceptions import NoScriptError, ResponseError

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.redis_servers import Servers


class Script(NamedTuple):
    """A script of this package, and the name that Redis gives it."""

    text: str
    sha: str

    @classmethod
    def named(cls, name: str) -> Script:
        text = files("sluice.buffer_service").joinpath("lua", name).read_text()
        return cls(text, hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest())


class Slot:
    """The slot of ``key``; every method raises ``StoreUnavailable`` where Redis does not answer, or refuses."""

    def __init__(self, url: str, key: str) -> None:
        self._servers, self._key = Servers(url), key

    async def call(self, *commands: tuple[object, ...], blocks: float = 0.0) -> list[Any]:
        """What Redis answers to each; one of them may block for so many seconds."""
        return await ask(self._servers, self._key, *commands, blocks=blocks)

    async def run(self, script: Script, keys: Sequence[str], *arguments: object) -> Any:
        """What a script answers; a server that has not seen it gets its text."""
        try:
            [answer] = await self.call(("EVALSHA", script.sha, len(keys), *keys, *arguments))
        except NoScriptError:
            [answer] = await self.call(("EVAL", script.text, len(keys), *keys, *arguments))
        return answer

    async def close(self) -> None:
        """Close the connections."""
        await self._servers.close()


async def ask(servers: Servers, key: str, *commands: tuple[object, ...], blocks: float = 0.0) -> list[Any]:
    """What the slot of ``key`` answers to each command; raises ``StoreUnavailable``, or ``NoScriptError`` of a script not seen."""
    try:
        return await servers.call(key_slot(key.encode()), *commands, blocks=blocks)
    except NoScriptError:
        raise
    except ResponseError as error:
        raise StoreUnavailable(f"Redis refused: {error}") from error


def pairs(found: Any) -> list[tuple[bytes, Any]]:
    """A hash, the fields of an entry, or a sorted set with its scores, in all forms in which Redis and redis-py have them."""
    if isinstance(found, dict):
        return list(found.items())
    if found and isinstance(found[0], list):
        return [(name, value) for name, value in found]
    return list(zip(found[::2], found[1::2], strict=True))
