"""Environments that are started when a plan comes into force."""

from __future__ import annotations

import asyncio
import logging
import uuid

import pytest
from msgspec import structs

from sluice.batching import policy as constructors
from sluice.batching.documents import START_HOLD
from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.invokers import FunctionUnavailable, LocalInvoker
from sluice.buffer_service.memory_store import MemoryStore
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import FOLLOWED, Limits
from sluice.lambda_fn.contract import Batch, decode_batch, encode_answers
from tests.buffer_service.conftest import Plans, memory, plan, serving
from tests.buffer_service.virtual_time import in_virtual_time

POLICY = constructors.size_or_timeout(4, 0.1)


class Pinged(LocalInvoker):
    """Which pings came, and how many at once; the first so many fail."""

    def __init__(self, function, fail=0):
        super().__init__({"f": function})
        self.pings: list[Batch] = []
        self.fail = fail
        self.now = self.most = 0

    async def invoke(self, function, payload, avoid=""):
        batch = decode_batch(payload)
        if not batch.ping:
            return await super().invoke(function, payload, avoid)
        self.pings.append(batch)
        number = len(self.pings)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(batch.hold)
        self.now -= 1
        if number <= self.fail:
            raise FunctionUnavailable("away")
        return encode_answers([])


def started(number, **said):
    return structs.replace(plan(POLICY), started=number, digest="", **said)


async def settled():
    await asyncio.sleep(1.0)


@in_virtual_time
async def test_so_many_are_pinged_at_once_when_a_plan_comes_into_force_and_once(function):
    invoker, store = Pinged(function), MemoryStore(memory(), new_process_name())
    async with serving(function, POLICY, store, Plans(started(3)), invoker) as buffer:
        await settled()
        assert invoker.pings == [Batch("m", [], ping=True, hold=START_HOLD)] * 3 and invoker.most == 3
        assert (await buffer.post("/models/m", b"1"))[0] == 200
        await buffer.service.model("m").follow(started(3))
        await settled()
        assert len(invoker.pings) == 3, "the plan is the same"
        await buffer.service.model("m").follow(started(5))
        await settled()
        assert len(invoker.pings) == 8
        await buffer.service.model("m").follow(plan(POLICY))
        await settled()
        assert len(invoker.pings) == 8


@in_virtual_time
async def test_of_several_processes_the_first_does_it(function):
    invoker, backend = Pinged(function), memory()
    stores = [MemoryStore(backend, new_process_name()) for _ in range(2)]
    first, second = (serving(function, POLICY, store, Plans(started(3)), invoker) for store in stores)
    async with first, second:
        await settled()
    assert len(invoker.pings) == 3


@in_virtual_time
async def test_what_cannot_be_started_is_said_and_harms_nobody(function, caplog):
    caplog.set_level(logging.WARNING, "sluice.buffer_service.starting")
    invoker = Pinged(function, fail=2)
    async with serving(function, POLICY, MemoryStore(memory(), new_process_name()), Plans(started(3)), invoker) as buffer:
        await settled()
        assert (await buffer.post("/models/m", b"1"))[0] == 200
    assert "m: 2 of 3 environments of f were not started: away" in caplog.text


@in_virtual_time
async def test_where_nobody_can_say_who_is_the_first_all_are(function):
    class Away(MemoryStore):
        def queue(self, model, limits, route=""):
            queue = super().queue(model, limits, route)

            async def is_first(plan):
                raise StoreUnavailable("away")

            queue.is_first = is_first
            return queue

    invoker = Pinged(function)
    async with serving(function, POLICY, Away(memory(), new_process_name()), Plans(started(2)), invoker):
        await settled()
    assert len(invoker.pings) == 2


async def test_who_is_first_is_known_of_each_plan_and_for_a_while(redis_server, client):
    model = uuid.uuid4().hex
    for store in (RedisStore(redis_server.url, new_process_name()), MemoryStore(memory(), new_process_name())):
        queue = store.queue(model, Limits(), "a")
        assert await queue.is_first("one") and not await queue.is_first("one")
        assert await store.queue(model, Limits(), "b").is_first("one"), "of another route nobody knows yet"
        assert await queue.is_first("two") and not await queue.is_first("two")
        await store.close()
    key = f"sluice:{{{model}}}:a:followed"
    assert client.get(key) == b"two" and 0 < client.ttl(key) <= FOLLOWED


async def test_a_value_of_somebody_else_in_its_place_is_set_aside(redis_server, client):
    model = uuid.uuid4().hex
    client.lpush(f"sluice:{{{model}}}:followed", "x")
    store = RedisStore(redis_server.url, new_process_name())
    queue = store.queue(model, Limits())
    with pytest.raises(StoreUnavailable, match="Redis holds a list under the key .*followed, .*set aside"):
        await queue.is_first("one")
    assert await queue.is_first("one")
    await store.close()
