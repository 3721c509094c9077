"""Garbage in the store, and two versions of the buffer on it: set aside, counted, told once; nothing stops for it."""

from __future__ import annotations

import asyncio
import logging
import secrets
import uuid
from typing import NamedTuple

import msgspec
import pytest
import redis.asyncio as redis

from sluice.batching import policy as constructors
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import Events, Limits
from sluice.lambda_fn.contract import Answer, Item
from tests.buffer_service.conftest import Plans, plan, serving
from tests.buffer_service.simulation import STRANGERS, simulate

ONE_SERVER = constructors.greedy(1, servers=1)
PATIENCE = 30.0  # s, less than a request may wait
GARBAGE = (b"", b"garbage", b"\xff" * 40, b"0123456789abcdef", b"0123456789abcdef\x93\xa1a\x80", b"0123456789abcdef\xc1rest")
FROM_LATER = b"\x05whatever a later version writes"


@pytest.fixture
async def client(redis_server):
    client = redis.Redis.from_url(redis_server.url)
    yield client
    await client.aclose()


def counted(buffer, what):
    return buffer.service.telemetry.registry.get_sample_value("sluice_set_aside_total", {"what": what})


async def plant(client, model, *members, age=0.0):
    """Members put into a queue by hand, each with the time that belongs to it, so many seconds ago."""
    seconds, microseconds = await client.time()
    for member in members:
        await client.rpush(f"sluice:{{{model}}}:arrived", repr(seconds + microseconds / 1e6 - age))
        await client.rpush(f"sluice:{{{model}}}:members", member)


@pytest.mark.parametrize("age", [0.0, 1000.0], ids=["young", "beyond its time"])
async def test_garbage_in_a_queue_of_one_server_is_set_aside_and_the_next_request_is_served(
    redis_server, client, function, caplog, age
):
    model, store = uuid.uuid4().hex, RedisStore(redis_server.url, new_process_name())
    async with serving(function, ONE_SERVER, store, Plans(plan(ONE_SERVER, model))) as buffer:
        assert (await buffer.post(f"/models/{model}", b"1"))[0] == 200
        await plant(client, model, *GARBAGE, age=age)
        async with asyncio.timeout(PATIENCE):
            assert (await buffer.post(f"/models/{model}", b"2"))[::2] == (200, b"2")
        assert await client.hlen(f"sluice:{{{model}}}:in_flight") <= 1
        nameless = [member for member in GARBAGE if not member.startswith(b"0123456789abcdef")]  # the others are told 504
        assert counted(buffer, "member") == len(nameless if age else GARBAGE)
    lines = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert len(lines) == 1
    assert model in lines[0]


async def test_garbage_that_was_put_among_the_members_without_a_time_costs_nobody_his_answer(redis_server, client, function):
    model, store = uuid.uuid4().hex, RedisStore(redis_server.url, new_process_name())
    async with serving(function, ONE_SERVER, store, Plans(plan(ONE_SERVER, model))) as buffer:
        for push in (client.rpush, client.lpush):
            await push(f"sluice:{{{model}}}:members", b"garbage", b"more garbage")
            async with asyncio.timeout(PATIENCE):
                assert (await buffer.post(f"/models/{model}", b"1"))[::2] == (200, b"1")
        await client.rpush(f"sluice:{{{model}}}:arrived", "17.5", "no time")
        async with asyncio.timeout(PATIENCE):
            assert (await buffer.post(f"/models/{model}", b"2"))[::2] == (200, b"2")


async def test_a_batch_in_flight_that_cannot_be_read_is_set_aside_and_its_server_is_free_again(redis_server, client, function):
    model, store = uuid.uuid4().hex, RedisStore(redis_server.url, new_process_name())
    async with serving(function, ONE_SERVER, store, Plans(plan(ONE_SERVER, model)), lease=0.3) as buffer:
        assert (await buffer.post(f"/models/{model}", b"1"))[0] == 200
        await client.hset(f"sluice:{{{model}}}:in_flight", "nobody00:1:0", b"\xc1 no batch")
        async with asyncio.timeout(PATIENCE):
            assert (await buffer.post(f"/models/{model}", b"2"))[::2] == (200, b"2")


async def test_garbage_in_a_mailbox_does_not_stop_the_mail(redis_server, client, function, caplog):
    unsendable = msgspec.msgpack.encode([Answer("0123456789abcdef", 99, "text/plain", b"", {"a b": "c"})])
    garbage = [*GARBAGE, FROM_LATER, msgspec.msgpack.encode([{"id": "x"}]), unsendable]
    ours, theirs = new_process_name(), new_process_name()
    model, pairs = uuid.uuid4().hex, constructors.static(2)
    plans = Plans(plan(pairs, model))
    async with (
        serving(function, pairs, RedisStore(redis_server.url, ours), plans) as here,
        serving(function, pairs, RedisStore(redis_server.url, theirs), plans) as there,
    ):
        for name in (ours, theirs):
            await client.rpush(f"sluice:replies:{name}", *garbage)
        async with asyncio.timeout(PATIENCE):
            pair = (buffer.post(f"/models/{model}", b"1") for buffer in (here, there))
            assert [status for status, _, _ in await asyncio.gather(*pair)] == [200, 200]
        assert counted(here, "message") == counted(there, "message") == len(garbage)
    assert sum("set aside" in record.getMessage() for record in caplog.records) == 2


async def test_however_much_garbage_there_is_the_log_has_a_line_of_it(redis_server, client, function, caplog):
    caplog.set_level(logging.WARNING)
    process = new_process_name()
    async with serving(function, ONE_SERVER, RedisStore(redis_server.url, process)) as buffer:
        await client.rpush(f"sluice:replies:{process}", *[b"\xff" * 10_000] * 500)
        async with asyncio.timeout(PATIENCE):
            while counted(buffer, "message") != 500:
                await asyncio.sleep(0.01)
    [line] = [record.getMessage() for record in caplog.records if "set aside" in record.getMessage()]
    assert len(line) < 400


async def test_a_request_of_a_later_version_is_answered_at_once_where_its_caller_waits(redis_server, client, function):
    model, later = uuid.uuid4().hex, RedisStore(redis_server.url, new_process_name())
    async with serving(
        function, ONE_SERVER, RedisStore(redis_server.url, new_process_name()), Plans(plan(ONE_SERVER, model))
    ) as buffer:
        while not await client.exists(f"sluice:{{{model}}}:policy"):
            await asyncio.sleep(0.001)
        member = f"{later.process}00000007".encode() + FROM_LATER
        await later.queue(model, Limits()).advance(Events([member], leaving=True))
        assert (await buffer.post(f"/models/{model}", b"1"))[0] == 200
        async with asyncio.timeout(PATIENCE):
            [message] = await later.receive()
        [answer] = msgspec.msgpack.decode(message, type=list[Answer])
        assert (answer.id, answer.status) == (f"{later.process}00000007", 502)
        assert b"version 5" in answer.body
    await later.close()


# --- two versions side by side


class _Body(NamedTuple):
    """What released versions write behind a member's id; frozen, as they are."""

    content_type: str
    headers: dict[str, str]
    body: bytes


class Released:
    """A process of the version that was released first, as far as it goes: its wire format, by hand."""

    def __init__(self, url, model):
        self.store = RedisStore(url, secrets.token_hex(4))  # as those versions name themselves
        self.queue = self.store.queue(model, Limits())

    async def ask(self, serial, body):
        """A request of a caller here, of which others make batches."""
        member = f"{self.store.process}{serial:08x}".encode() + msgspec.msgpack.encode(_Body("application/json", {}, body))
        assert (await self.queue.advance(Events([member], leaving=True))).accepted == 1

    async def answers(self, count):
        """The answers that other processes send."""
        found = []
        while len(found) < count:
            for message in await self.store.receive():
                found += msgspec.msgpack.decode(message, type=list[Answer])
        return {answer.id[8:]: (answer.status, answer.body) for answer in found}

    async def serve(self, serial, body):
        """A request of a caller here that fills a batch; it is answered as that version does, and its requests returned."""
        member = f"{self.store.process}{serial:08x}".encode() + msgspec.msgpack.encode(_Body("application/json", {}, body))
        [batch] = (await self.queue.advance(Events([member], serving=[]))).batches
        items = []
        for member in batch.members:
            body = msgspec.msgpack.decode(member[16:], type=_Body)
            items.append(Item(member[:16].decode(), body.content_type, body.body, body.headers))
            answer = Answer(items[-1].id, 200, "application/json", b'"of the released version"')
            await self.store.send(items[-1].id[:8], msgspec.msgpack.encode([answer]))
        await self.queue.advance(Events(completed=[batch.batch_id], serving=[], leaving=True))
        return items


async def test_the_released_version_and_this_one_serve_each_others_callers_on_one_redis(redis_server, client, function):
    model, table = uuid.uuid4().hex, constructors.static(4)
    released = Released(redis_server.url, model)
    async with serving(function, table, RedisStore(redis_server.url, new_process_name()), Plans(plan(table, model))) as buffer:
        async with asyncio.timeout(PATIENCE):
            while not await client.exists(f"sluice:{{{model}}}:policy"):
                await asyncio.sleep(0.001)
            for i in range(3):
                await released.ask(i, b"%d" % i)
            assert (await buffer.post(f"/models/{model}", b"3"))[::2] == (200, b"3")
            assert await released.answers(3) == {f"{i:08x}": (200, b"%d" % i) for i in range(3)}
            # And the other way: a batch of our callers that the released version gets.
            ours = [asyncio.create_task(buffer.post(f"/models/{model}", b"%d" % i)) for i in range(4, 7)]
            while await client.llen(f"sluice:{{{model}}}:members") < 3:
                await asyncio.sleep(0.001)
            assert sorted(item.body for item in await released.serve(7, b"7")) == [b"4", b"5", b"6", b"7"]
            assert [answer[::2] for answer in await asyncio.gather(*ours)] == [(200, b'"of the released version"')] * 3
    await released.store.close()


# --- in simulation


def test_garbage_and_later_versions_stop_nothing_and_who_can_be_named_is_answered():
    answered = 0
    for seed in range(40):
        world = simulate(seed, faults=(STRANGERS,))
        assert not world.wrong, f"seed {seed}: {world.wrong[0]}"
        mail = [answer for message in world.mail["ffffffff"] for answer in msgspec.msgpack.decode(message, type=list[Answer])]
        assert {answer.id for answer in mail if answer.status in (502, 504)} >= set(world.named)
        answered += len(mail)
    assert answered > 40
