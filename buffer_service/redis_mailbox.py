"""The mail of a process in Redis: a list, in which a message lies until whoever reads it is known to have it.

To read is to look: ``BLMOVE`` from the head of the list to its head waits for a message and leaves it where it is, and ``MORE``
shows those behind it. The next call takes them out (``TAKE_OUT``), by which they have been handed out. So a connection that ends
between a message and its reader, or a primary that is lost then, loses none: the next call shows it again. A message is taken out
by its place, and only if the last of those that were read is still there: of a call whose answer was lost nobody knows whether it
took them out, and another server may have other ones. A replica that took over before it heard that they were taken out shows them
once more: to whom an answer was handed out, or a body lent, that is nothing new.

A server that is full refuses ``BLMOVE``, as it may need memory; then ``MORE`` alone looks, again and again. A message that is
larger than ``MOST_BYTES`` and did not come through in ``TRIES`` calls, while the server answered others, is dropped: all behind it
would wait for ever.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from redis.exceptions import OutOfMemoryError

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.redis_connection import Command
from sluice.buffer_service.settings import NAMESPACE

MESSAGE_LIFE = 300  # seconds a message waits for a process that may be gone
WAIT = 0.25  # seconds one look lasts: so late may mail be once, as its slot is on its way to another server
MOST_BYTES = 1024 * 1024  # that the messages of one look have at most, beside the first
BEGINNING = 64  # bytes of a message, in which the request is that it is about
POLL = 0.02  # seconds between two looks at a server that is full
TRIES = 3
MORE = """
local found, size = {}, 0
while #found < 100 - ARGV[1] do
  local message = redis.call('LINDEX', KEYS[1], #found + ARGV[1])
  size = size + #(message or '')
  if not message or size > tonumber(ARGV[2]) and #found + ARGV[1] > 0 then break end
  found[#found + 1] = message
end
return found
"""
"""The messages from a place on, as many as have so many bytes together, but the first of all in any case."""
LENGTH = "return #(redis.call('LINDEX', KEYS[1], 0) or '')"
"""The bytes of the first message; 0 where there is none."""
TAKE_OUT = """
local last = redis.call('LINDEX', KEYS[1], ARGV[1] - 1)
if last and #last == tonumber(ARGV[2]) and string.sub(last, 1, #ARGV[3]) == ARGV[3] then
  redis.call('LTRIM', KEYS[1], ARGV[1], -1)
end
"""
"""So many messages, where the last of them has this length and beginning."""

_log = logging.getLogger(__name__)


def mailbox_key(process: str, namespace: str = NAMESPACE) -> str:
    """Under which the messages to a process lie."""
    return f"{namespace}:replies:{process}"


class RedisMailbox:
    """The messages to one process; ``ask`` puts commands to the server that has them."""

    def __init__(self, ask: Callable[..., Awaitable[list[Any]]], key: str) -> None:
        self._ask = ask
        self._key = key
        self._read: Command | None = None  # what takes out those that were read
        self._failed = 0  # looks, since one was answered

    async def send(self, message: bytes) -> None:
        """Put a message behind the others."""
        await self._ask(("RPUSH", self._key, message), ("EXPIRE", self._key, MESSAGE_LIFE))

    async def receive(self) -> list[bytes]:
        """The messages that have come, each once; after ``WAIT`` without one nothing."""
        if self._failed:
            await self._see_to_the_first()
        take_out = self._take_out()
        look: Command = ("BLMOVE", self._key, self._key, "LEFT", "LEFT", WAIT)
        answers: list[Any] = []
        try:
            await self._ask(*take_out, look, self._more(1), blocks=WAIT, answers=answers)
        except StoreUnavailable as error:
            self._read = None if answers else self._read
            if isinstance(error.__cause__, OutOfMemoryError):
                return await self._look_again()
            if len(answers) <= len(take_out) or answers[len(take_out)] is None:
                self._failed += not answers
                raise
        first, more = (*answers[len(take_out) :], [])[:2]  # without more: what went wrong the next call learns
        return self._have([] if first is None else [first, *more])

    async def _look_again(self) -> list[bytes]:
        await asyncio.sleep(POLL)
        try:
            [found] = await self._ask(self._more(0))
        except StoreUnavailable:
            self._failed += 1
            raise
        return self._have(found)

    async def _see_to_the_first(self) -> None:
        """Whether it is the first message that does not come through, and not the server that is away."""
        *_, size = await self._ask(*self._take_out(), ("EVAL", LENGTH, 1, self._key))
        self._read = None
        if self._failed >= TRIES and size > MOST_BYTES:
            await self._ask(("LTRIM", self._key, 1, -1))
            _log.error("a message of %d bytes to this process did not come through, and is dropped", size)
            self._failed = 0

    def _take_out(self) -> Sequence[Command]:
        return () if self._read is None else (self._read,)

    def _more(self, place: int) -> Command:
        most = 0 if self._failed else MOST_BYTES  # what did not come through may do so alone
        return ("EVAL", MORE, 1, self._key, place, most)

    def _have(self, found: list[bytes]) -> list[bytes]:
        self._read = ("EVAL", TAKE_OUT, 1, self._key, len(found), len(found[-1]), found[-1][:BEGINNING]) if found else None
        self._failed = 0
        return found

    async def close(self) -> None:
        """Nobody reads any more."""
        await self._ask(("DEL", self._key))
