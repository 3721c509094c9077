"""The queues in Redis: one script call for everything that happened, whatever the number of requests.

Keys of a queue carry the hash tag ``{model}``, so that they share a slot of a Redis Cluster, as all queues of a model do, for they
share the record of arrivals; the list of messages to a process is a key of its own. Connections are opened without a socket
timeout: redis-py would wrap every send in ``asyncio.wait_for``, which on Python 3.11 may swallow a cancellation; the dispatcher's
own time limits hold instead.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import struct
from collections.abc import Awaitable
from importlib.resources import files
from typing import Any, cast

import redis.asyncio as redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError

from sluice.batching import Policy
from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.arrival_stream import pack_ages, stream_key
from sluice.buffer_service.store import Events, Limits, Outcome, Queue, QueueLost, Released

ADVANCE = files("sluice.buffer_service").joinpath("lua/advance.lua").read_text()
ADVANCE_SHA = hashlib.sha1(ADVANCE.encode(), usedforsecurity=False).hexdigest()
REPLY_LIFE = 300  # seconds a message waits for a process that may be gone
RECEIVE_WAIT = 5.0  # seconds one blocking read lasts
COMMAND_TIMEOUT = 5.0  # seconds after which the store counts as away


def pack_policy(policy: Policy) -> bytes:
    """The table as ``lua/advance.lua`` reads it: a header, then one row of fixed size for each length of the queue."""
    servers = -1 if policy.servers is None else policy.servers
    drop_after = -1.0 if policy.drop_after is None else policy.drop_after
    header = struct.pack("<iid", len(policy.hold), servers, drop_after)
    return header + b"".join(struct.pack("<di", hold, take) for hold, take in zip(policy.hold, policy.take, strict=True))


class RedisStore:
    """The store on a Redis (or Valkey) server, 7.0 or later."""

    def __init__(self, url: str, process: str) -> None:
        self.process = process
        self._client = _open(url)
        # Blocking reads hold their connection; a client of their own keeps them out of everyone's way.
        self._mailbox = _open(url)

    def queue(self, model: str, limits: Limits, route: str = "") -> Queue:
        return RedisQueue(self._client, self.process, model, limits, route)

    async def send(self, process: str, message: bytes) -> None:
        key = _mailbox_key(process)
        pipeline = self._client.pipeline(transaction=False)
        pipeline.rpush(key, message)
        pipeline.expire(key, REPLY_LIFE)
        await _answer(pipeline.execute())

    async def receive(self) -> list[bytes]:
        try:
            # A peer that fell silent without a word would hold a blocking read for ever.
            async with asyncio.timeout(RECEIVE_WAIT + COMMAND_TIMEOUT):
                found = await self._mailbox.blmpop(RECEIVE_WAIT, 1, _mailbox_key(self.process), direction="LEFT", count=100)
        except (RedisError, OSError, TimeoutError) as error:
            raise StoreUnavailable(f"Redis does not answer: {error or type(error).__name__}") from error
        return cast("list[bytes]", found[1]) if found else []

    async def ping(self) -> None:
        await _answer(self._client.ping())

    async def close(self) -> None:
        try:
            await _answer(self._client.delete(_mailbox_key(self.process)))
        finally:
            await self._client.aclose()
            await self._mailbox.aclose()


class RedisQueue:
    """The queue of one route in Redis."""

    def __init__(self, client: redis.Redis, process: str, model: str, limits: Limits, route: str = "") -> None:
        self._client = client
        self._process = process
        self._serial = 0
        names = ("policy", "arrived", "members", "in_flight", "processes", "attempts", "dead", "epoch")
        prefix = f"sluice:{{{model}}}:{route}:" if route else f"sluice:{{{model}}}:"
        self.keys = [*(prefix + name for name in names), stream_key(model), prefix + "taken"]
        self._head = (limits.max_queue_length, repr(limits.lease), limits.max_attempts)
        self._arrivals_kept = limits.arrivals_kept

    async def install(self, policy: Policy) -> None:
        pipeline = self._client.pipeline(transaction=False)
        pipeline.set(self.keys[7], secrets.token_hex(8), nx=True)
        pipeline.set(self.keys[0], pack_policy(policy))
        await _answer(pipeline.execute())

    async def advance(self, events: Events, now: float | None = None) -> Outcome:
        self._serial += 1
        serving = events.serving
        arguments: list[Any] = [self._process, self._serial, "" if now is None else repr(now), *self._head]
        arguments += (int(events.leaving), len(events.completed), -1 if serving is None else len(serving))
        arguments += (0 if events.recorded else self._arrivals_kept, pack_ages(events.ages or (0.0,) * len(events.arrivals)))
        arguments.append(len(events.gone))
        arguments += events.completed
        arguments += serving or ()
        arguments += events.gone
        arguments += events.arrivals
        epoch, accepted, waiting, wake_in, batches, dropped, dead, taken = await _answer(self._evalsha(arguments))
        return Outcome(
            accepted,
            [Released(batch[0].decode(), batch[1:]) for batch in batches],
            dropped,
            dead,
            float(wake_in) if wake_in else None,
            waiting,
            taken,
            epoch.decode(),
        )

    async def _evalsha(self, arguments: list[Any]) -> Any:
        try:
            return await self._client.evalsha(ADVANCE_SHA, len(self.keys), *self.keys, *arguments)
        except NoScriptError:  # a restarted server; nothing was executed
            return await self._client.eval(ADVANCE, len(self.keys), *self.keys, *arguments)


def _open(url: str) -> redis.Redis:
    # No retries: a call whose answer was lost may have been executed, and must not take its arrivals twice.
    retry = Retry(NoBackoff(), 0)
    return redis.Redis.from_url(url, socket_timeout=None, socket_connect_timeout=COMMAND_TIMEOUT, retry=retry)


async def _answer(command: Awaitable[Any]) -> Any:
    """Await a command within the time a store may take, in the vocabulary of the port."""
    try:
        async with asyncio.timeout(COMMAND_TIMEOUT):
            return await command
    except ResponseError as error:
        if str(error).startswith("NOPOLICY"):
            raise QueueLost(str(error)) from None
        raise StoreUnavailable(f"Redis refused: {error}") from error
    except (RedisError, OSError, TimeoutError) as error:
        raise StoreUnavailable(f"Redis does not answer: {error or type(error).__name__}") from error


def _mailbox_key(process: str) -> str:
    return f"sluice:replies:{process}"
