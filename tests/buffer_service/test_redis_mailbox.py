"""Mail whose reader loses its connection: a message that Redis has given out, and nobody has got, is there when he asks again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest
import redis as sync_redis
import redis.asyncio as redis

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service import redis_mailbox
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.redis_mailbox import MOST_BYTES, TRIES, RedisMailbox, mailbox_key
from sluice.buffer_service.redis_store import RedisStore
from sluice.local.redis_server import RedisServer

FAULTS = ("never asked", "no answer", "cut off")


@pytest.fixture
async def client(redis_server):
    async with redis.Redis.from_url(redis_server.url) as client:
        yield client


class Faulty:
    """The way to a mailbox at a server, on which a call may be lost before it is executed, or any part of its answers behind."""

    def __init__(self, client, rng):
        self._client = client
        self._rng = rng
        self.seen = Counter()

    async def __call__(self, *commands, blocks=0.0, answers=None):
        fault = self._rng.choice([*FAULTS, *["none"] * 3]) if answers is not None else "none"
        self.seen[fault] += 1
        if fault == "never asked":
            raise StoreUnavailable("lost on its way there")
        found = [await self._client.execute_command(*command) for command in commands]
        answers = [] if answers is None else answers
        answers += found[: self._rng.randrange(len(found))] if fault == "cut off" else found if fault == "none" else []
        if fault != "none":
            raise StoreUnavailable("lost on its way back") from None
        return answers


@pytest.mark.parametrize("seed", range(3))
async def test_each_message_is_read_once_and_in_order_wherever_calls_are_lost(client, monkeypatch, seed):
    monkeypatch.setattr(redis_mailbox, "WAIT", 0.01)
    rng = random.Random(seed)
    ask = Faulty(client, rng)
    mailbox = RedisMailbox(ask, mailbox_key(new_process_name()))
    sent, received = [], []
    while len(sent) < 200 or len(received) < len(sent):
        for _ in range(rng.choice([0, 1, 2, 7]) if len(sent) < 200 else 0):
            sent.append(b"%d" % len(sent) + b"." * rng.choice([0, 100]))
            await mailbox.send(sent[-1])
        try:
            received += await mailbox.receive()
        except StoreUnavailable:
            continue
    assert received == sent
    assert min(ask.seen[fault] for fault in FAULTS) > 3


async def test_what_came_to_another_server_is_read_though_as_many_were_to_be_taken_out(client):
    mailbox = RedisMailbox(_answered(client), key := mailbox_key(new_process_name()))
    await mailbox.send(b"one")
    await mailbox.send(b"two")
    assert await mailbox.receive() == [b"one", b"two"]
    await client.delete(key)  # as a server that took over, and has not seen them
    for message in (b"three", b"four", b"five"):
        await mailbox.send(message)
    assert await mailbox.receive() == [b"three", b"four", b"five"]
    assert await mailbox.receive() == []
    assert not await client.exists(key)


async def test_mail_is_read_where_redis_is_full(monkeypatch):
    monkeypatch.setattr(redis_mailbox, "POLL", 0.001)
    with RedisServer(port=0) as server, sync_redis.Redis.from_url(server.url) as admin:
        ours, theirs = RedisStore(server.url, new_process_name()), RedisStore(server.url, new_process_name())
        for message in (b"one", b"two"):
            await ours.send(theirs.process, message)
        admin.config_set("maxmemory-policy", "noeviction")
        admin.config_set("maxmemory", 1)
        with pytest.raises(StoreUnavailable, match="maxmemory"):
            await ours.send(theirs.process, b"three")
        assert await theirs.receive() == [b"one", b"two"]
        assert await theirs.receive() == []
        assert not admin.exists(mailbox_key(theirs.process))
        admin.config_set("maxmemory", 0)
        await ours.send(theirs.process, b"three")
        assert await theirs.receive() == [b"three"]
        await ours.close()
        await theirs.close()


@pytest.mark.parametrize("size", [MOST_BYTES, MOST_BYTES + 1])
async def test_a_large_message_that_never_comes_through_does_not_keep_those_behind_it(client, monkeypatch, caplog, size):
    monkeypatch.setattr(redis_mailbox, "WAIT", 0.01)
    answered, slow = _answered(client), True

    async def ask(*commands, **options):
        if slow and any(command[0] == "BLMOVE" for command in commands):
            raise StoreUnavailable("no answer in time")
        return await answered(*commands, **options)

    mailbox = RedisMailbox(ask, mailbox_key(new_process_name()))
    await mailbox.send(b"x" * size)
    await mailbox.send(b"behind it")
    for _ in range(TRIES):
        with pytest.raises(StoreUnavailable):
            await mailbox.receive()
    slow = False
    received = await mailbox.receive()
    dropped = size > MOST_BYTES
    assert received[0] == (b"behind it" if dropped else b"x" * size)
    assert ("did not come through, and is dropped" in caplog.text) is dropped
    assert await mailbox.receive() == ([] if dropped else [b"behind it"])


async def test_no_message_is_lost_whose_reader_is_cut_off_again_and_again(redis_server, client):
    ours, theirs = RedisStore(redis_server.url, new_process_name()), RedisStore(redis_server.url, new_process_name())
    sent, received, cut_off = [b"%d" % i for i in range(400)], [], 0

    async def read():
        nonlocal cut_off
        while len(received) < len(sent):
            try:
                received.extend(await theirs.receive())
            except StoreUnavailable:
                cut_off += 1

    reading = asyncio.create_task(read())
    for message in sent:
        async with client.pipeline(transaction=False) as together:  # so that the message is given out, and not yet sent
            together.rpush(mailbox_key(theirs.process), message)
            if int(message) % 3 == 0:
                together.client_kill_filter(_type="normal", skipme=True)
            await together.execute()
    async with asyncio.timeout(60):
        await reading
    assert received == sent
    assert cut_off > 10
    await ours.close()
    await theirs.close()


def _answered(client):
    async def ask(*commands, blocks=0.0, answers=None):
        found = [await client.execute_command(*command) for command in commands]
        return found if answers is None else answers.extend(found)

    return ask
