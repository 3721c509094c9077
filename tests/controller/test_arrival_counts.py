"""How many requests came since the last look, from a Redis that buffers write."""

from __future__ import annotations

import uuid
from collections.abc import AsyncIterator

import pytest
import redis

from sluice.batching import policy as constructors
from sluice.buffer_service.arrival_stream import refused_key
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import Events, Limits, Queue
from sluice.controller.arrival_counts import ArrivalCounts
from sluice.local.redis_server import RedisServer

PROCESS = "aaaaaaaa"


def members(count: int) -> list[bytes]:
    return [f"{PROCESS}{i:08x}".encode() + b"body" for i in range(count)]


class Buffer:
    """Queues of one process, and who counts what comes to them."""

    def __init__(self, url: str) -> None:
        self.models = [uuid.uuid4().hex, uuid.uuid4().hex]
        self.store = RedisStore(url, PROCESS)
        self.counts = ArrivalCounts(url, self.models)

    async def queue(self, model: str, route: str = "") -> Queue:
        queue = self.store.queue(model, Limits(), route)
        await queue.install(constructors.greedy(4, servers=1))
        return queue


@pytest.fixture
async def buffer(redis_server: RedisServer) -> AsyncIterator[Buffer]:
    made = Buffer(redis_server.url)
    yield made
    await made.counts.close()
    await made.store.close()


async def test_requests_that_were_refused_count_as_those_that_came(buffer: Buffer) -> None:
    one = await buffer.queue(buffer.models[0])
    await one.advance(Events(arrivals=members(2), refused=7))
    assert await buffer.counts.since_last_look() == [0, 0], "of what came before the first look nothing is told"
    await one.advance(Events(arrivals=members(3), refused=4))
    await one.advance(Events(refused=1))
    other = await buffer.queue(buffer.models[1])
    await other.advance(Events(refused=2))
    assert await buffer.counts.since_last_look() == [8, 2]
    assert await buffer.counts.since_last_look() == [0, 0]


async def test_all_routes_of_a_model_count_in_one(buffer: Buffer) -> None:
    await buffer.counts.since_last_look()
    for route in ("a", "b"):
        queue = await buffer.queue(buffer.models[0], route)
        await queue.advance(Events(refused=2))
    assert await buffer.counts.since_last_look() == [4, 0]


async def test_what_somebody_else_put_there_stops_neither_queue_nor_count(buffer: Buffer, redis_server: RedisServer) -> None:
    await buffer.counts.since_last_look()
    with redis.Redis.from_url(redis_server.url) as client:
        client.set(refused_key(buffer.models[0]), "of somebody else")
    queue = await buffer.queue(buffer.models[0])
    assert (await queue.advance(Events(arrivals=members(1), refused=3))).accepted == 1
    assert await buffer.counts.since_last_look() == [1, 0]
