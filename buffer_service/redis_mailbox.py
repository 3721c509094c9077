"""The mail of a process in Redis: a list, in which a message lies until whoever reads it is known to have it.

To read is to look: ``BLMOVE`` from the head of the list to its head waits for a message and leaves it where it is, and ``MORE``
shows those behind it. The next call takes them out (``TAKE_OUT``), by which they have been handed out. So a connection that ends
between a message and its reader, or a primary that is lost then, loses none: the next call shows it again. A message is taken out
by its place, and only if the last of those that were read is still there: of a call whose answer was lost nobody knows whether it
took them out, and another server may have other ones.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.redis_connection import Command
from sluice.buffer_service.settings import NAMESPACE

MESSAGE_LIFE = 300  # seconds a message waits for a process that may be gone
WAIT = 0.25  # seconds one look lasts: so late may mail be once, as its slot is on its way to another server
MOST_BYTES = 1024 * 1024  # that the messages of one look have at most, beside the first
BEGINNING = 64  # bytes of a message, in which the request is that it is about
MORE = """
local found, size = {}, 0
while #found < 99 do
  local message = redis.call('LINDEX', KEYS[1], #found + 1)
  size = size + #(message or '')
  if not message or size > tonumber(ARGV[1]) then break end
  found[#found + 1] = message
end
return found
"""
"""The messages behind the first, as many as have so many bytes together."""
TAKE_OUT = """
local last = redis.call('LINDEX', KEYS[1], ARGV[1] - 1)
if last and #last == tonumber(ARGV[2]) and string.sub(last, 1, #ARGV[3]) == ARGV[3] then
  redis.call('LTRIM', KEYS[1], ARGV[1], -1)
end
"""
"""So many messages, where the last of them has this length and beginning."""


def mailbox_key(process: str, namespace: str = NAMESPACE) -> str:
    """Under which the messages to a process lie."""
    return f"{namespace}:replies:{process}"


class RedisMailbox:
    """The messages to one process; ``ask`` puts commands to the server that has them."""

    def __init__(self, ask: Callable[..., Awaitable[list[Any]]], key: str) -> None:
        self._ask = ask
        self._key = key
        self._read: Command | None = None  # what takes out those that were read

    async def send(self, message: bytes) -> None:
        """Put a message behind the others."""
        await self._ask(("RPUSH", self._key, message), ("EXPIRE", self._key, MESSAGE_LIFE))

    async def receive(self) -> list[bytes]:
        """The messages that have come, each once; after ``WAIT`` without one nothing."""
        take_out = () if self._read is None else (self._read,)
        look: Command = ("BLMOVE", self._key, self._key, "LEFT", "LEFT", WAIT)
        answers: list[Any] = []
        try:
            await self._ask(*take_out, look, ("EVAL", MORE, 1, self._key, MOST_BYTES), blocks=WAIT, answers=answers)
        except StoreUnavailable:
            if len(answers) <= len(take_out) or answers[len(take_out)] is None:
                self._read = None if answers else self._read
                raise
        first, more = (*answers[len(take_out) :], [])[:2]  # without more: what went wrong the next call learns
        found: list[bytes] = [] if first is None else [first, *more]
        self._read = ("EVAL", TAKE_OUT, 1, self._key, len(found), len(found[-1]), found[-1][:BEGINNING]) if found else None
        return found

    async def close(self) -> None:
        """Nobody reads any more."""
        await self._ask(("DEL", self._key))
