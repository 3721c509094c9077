"""Values that somebody else put under keys of the buffer: set aside, named, and nobody waits for ever."""

from __future__ import annotations

import asyncio
import math
import struct
import uuid
from dataclasses import replace

import msgspec
import pytest
import redis as sync_redis
import redis.asyncio as redis
from redis.crc import key_slot

from sluice.batching import Policy
from sluice.batching import policy as constructors
from sluice.batching.errors import StoreUnavailable
from sluice.batching.policy import MAX_ROWS
from sluice.buffer_service.arrival_stream import read_arrivals
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.redis_mailbox import mailbox_key
from sluice.buffer_service.redis_store import ASIDE_LIFE, RedisStore, _set_aside_mailbox, pack_policy
from sluice.buffer_service.settings import NAMESPACE
from sluice.buffer_service.store import Events, Limits, QueueLost
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import Plans, plan, serving
from tests.buffer_service.test_redis_access import make_user

POLICY = constructors.size_or_timeout(8, 0.2)
GRID = Policy([math.inf, 0.2, 0.2, 0.2], [0, 1, 1, 2], columns=2)
PATIENCE = 30.0  # s, less than a request may wait
LOST = "a member that was lost"


@pytest.fixture
async def client(redis_server):
    client = redis.Redis.from_url(redis_server.url)
    yield client
    await client.aclose()


async def plant(client, key, kind, value=b"somebody else's", lost=None):
    """Another application writes there; and a batch is lost at the same moment, of those under that key."""
    writes = {"string": ("SET", key), "list": ("RPUSH", key), "hash": ("HSET", key, LOST[:16]), "set": ("SADD", key)}
    async with client.pipeline(transaction=True) as both:
        both.delete(key).execute_command(*writes[kind], value)
        if lost is not None:
            both.hset(lost, "nobody00:9:9", msgspec.msgpack.encode([["0"], [LOST]]))
        await both.execute()


def _table(*rows, columns=1):
    """A table of the shape that the buffer packs, with these holds and sizes."""
    header = struct.pack("<i12x", -columns) if columns > 1 else b""
    return header + struct.pack("<iid", len(rows), -1, -1.0) + b"".join(struct.pack("<di", *row) for row in rows)


NEVER = (math.inf, 0)
NO_TABLES = [
    (NEVER, (0.0, 0)),  # releases nobody, again and again
    (NEVER, (0.0, -1)),
    (NEVER, (0.0, 2)),
    (NEVER, (math.nan, 1)),
    (NEVER, (-1.0, 1)),
]
FOREIGN = [
    *((name, "set", b"x") for name in ("policy", "arrived", "members", "in_flight", "processes", "attempts", "epoch", "taken")),
    *((name, "string", b"x") for name in ("policy", "arrived", "members", "in_flight", "processes", "attempts", "taken")),
    ("policy", "string", b"x" * 20_000),
    ("policy", "string", struct.pack("<iid", 3, -1, -1.0)),
    ("policy", "string", struct.pack("<iid", 0, -1, -1.0) + b"x" * 12),
    ("policy", "string", struct.pack("<iid", -1, -1, -1.0) + b"x" * 12),
    ("policy", "string", pack_policy(replace(POLICY, beside=[POLICY]))[:-1]),
    ("policy", "string", pack_policy(replace(POLICY, beside=[POLICY])) + b"x"),
    ("policy", "string", 9 * pack_policy(POLICY)),
    ("policy", "string", pack_policy(GRID)[:-1]),
    ("policy", "string", pack_policy(GRID) + b"x"),
    ("policy", "string", pack_policy(GRID)[:20]),
    ("policy", "string", struct.pack("<i12x", -3) + pack_policy(GRID)[16:]),
    ("policy", "string", struct.pack("<i12x", -4) + pack_policy(GRID)[16:]),
    *(("policy", "string", _table(*rows)) for rows in NO_TABLES),
    ("taken", "string", b"%d" % (2**63 - 1)),
    ("attempts", "hash", b"x"),
]


async def test_what_is_not_of_the_buffer_is_set_aside_and_who_waits_is_answered(redis_server, client, function, caplog):
    store, cases = RedisStore(redis_server.url, new_process_name()), {uuid.uuid4().hex: case for case in FOREIGN}
    plans = Plans(*(plan(POLICY, model) for model in cases))
    async with serving(function, POLICY, store, plans, lease=0.1) as buffer, asyncio.timeout(PATIENCE):
        said = await asyncio.gather(*(_is_set_aside(buffer, client, model, *case) for model, case in cases.items()))
    logged = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert sorted(logged) == sorted(said)


async def _is_set_aside(buffer, client, model, name, kind, value):
    """Requests before, while and after it is; what was said of it."""
    key, answers = f"sluice:{{{model}}}:{name}", []

    def ask():
        answers.append(asyncio.create_task(buffer.post(f"/models/{model}", b"%d" % len(answers))))

    ask()
    while not await client.llen(f"sluice:{{{model}}}:members"):
        await asyncio.sleep(0.001)
    # Attempts are looked at when a batch was lost.
    await plant(client, key, kind, value, f"sluice:{{{model}}}:in_flight" if name == "attempts" else None)
    while not await client.exists(key + ":aside"):
        ask()
        await asyncio.sleep(0.01)
    while (await buffer.get(f"/v2/models/{model}/ready"))[0] != 200:
        await asyncio.sleep(0.01)
    ask()
    ended = await asyncio.gather(*answers)
    assert [ended[i][::2] for i in (0, -1)] == [(200, b"%d" % i) for i in (0, len(answers) - 1)], (name, kind, value)
    said = f"Redis holds a {kind} under the key {key}, which is not what the buffer puts there"
    said += f"; it is set aside as {key}:aside for 24 hours"
    assert all(said in body.decode() for status, _, body in ended if status != 200), (name, kind, value)
    assert await client.type(key + ":aside") == kind.encode()
    assert 0 < await client.ttl(key + ":aside") <= ASIDE_LIFE
    return said


@pytest.mark.parametrize("kind", ["set", "string"])
async def test_what_somebody_else_put_where_those_in_a_hurry_are_counted_goes_out_of_the_way(redis_server, client, kind):
    store = RedisStore(redis_server.url, "aaaaaaaa")
    queue = store.queue(uuid.uuid4().hex, Limits())
    await queue.install(GRID)
    await plant(client, queue.keys[12], kind)
    if kind == "set":
        with pytest.raises(StoreUnavailable, match=f"Redis holds a set under the key {queue.keys[12]}"):
            await queue.advance(Events([b"aaaaaaaa00000000"]), now=1.0)
        await queue.install(GRID)
    outcome = await queue.advance(Events([b"aaaaaaaa00000000"]), now=1.0)
    assert (outcome.wake_in, await client.get(queue.keys[12])) == (pytest.approx(0.2), b"0")
    await store.close()


@pytest.mark.parametrize("value", [b"0.5", b"nan", b"-1", b"1e3"])
async def test_a_number_that_is_no_count_of_those_in_a_hurry_is_counted_anew(redis_server, client, value):
    store = RedisStore(redis_server.url, "aaaaaaaa")
    queue = store.queue(uuid.uuid4().hex, Limits())
    await queue.install(replace(GRID, hold=[math.inf, 0.2, 0.3, 0.4]))
    await plant(client, queue.keys[12], "string", value)
    outcome = await queue.advance(Events([b"aaaaaaaa00000000"]), now=1.0)
    assert (outcome.wake_in, await client.get(queue.keys[12])) == (pytest.approx(0.3), b"0")
    await store.close()


@pytest.mark.parametrize(
    ("value", "comes"),
    [
        (_table(NEVER, NEVER, NEVER, (0.0, 0)), 3),
        (_table(NEVER, NEVER, NEVER, (0.0, 4)), 3),
        (pack_policy(constructors.static(9)) + _table(NEVER, NEVER, (0.0, 0)), 2),
        (_table(*4 * [NEVER], (0.0, 4), (0.0, 3), columns=2), 3),
    ],
    ids=["takes nobody", "takes more", "of a table beside", "of a grid"],
)
async def test_a_row_that_releases_nobody_or_more_than_wait_is_found_as_soon_as_it_is_read(redis_server, client, value, comes):
    store = RedisStore(redis_server.url, "aaaaaaaa")
    queue = store.queue(uuid.uuid4().hex, Limits())
    await queue.install(POLICY)
    await client.set(queue.keys[0], value)
    members = [b"aaaaaaaa%08x" % i for i in range(comes)]
    outcome = await queue.advance(Events(members[:1]), now=1.0)
    assert (outcome.batches, outcome.queue_length) == ([], 1)
    with pytest.raises(StoreUnavailable, match=f"Redis holds a string under the key {queue.keys[0]}.* it is set aside"):
        await queue.advance(Events(members[1:]), now=1.0)
    with pytest.raises(QueueLost):
        await queue.advance(Events(), now=1.0)
    await queue.install(POLICY)
    assert (await queue.advance(Events(members[:1]), now=1.0)).wake_in == pytest.approx(0.2)
    await store.close()


@pytest.mark.parametrize(("rows", "is_ours"), [(MAX_ROWS, True), (MAX_ROWS + 1, False)])
async def test_a_table_of_more_rows_than_a_plan_may_have_is_not_of_the_buffer(redis_server, client, rows, is_ours):
    store = RedisStore(redis_server.url, "aaaaaaaa")
    queue = store.queue(uuid.uuid4().hex, Limits())
    await queue.install(POLICY)
    await client.set(queue.keys[0], _table(NEVER, *(rows - 1) * [(9.0, 1)]))
    await plant(client, queue.keys[2], "set")  # what the script stumbles over; then all keys are looked at
    with pytest.raises(StoreUnavailable) as refused:
        await queue.advance(Events())
    assert (f"under the key {queue.keys[0]}" in str(refused.value)) is not is_ours
    await store.close()


async def test_a_batch_in_flight_whose_members_are_none_is_put_aside_and_those_lost_with_it_are_sent_again(redis_server, client):
    store = RedisStore(redis_server.url, "aaaaaaaa")
    queue, member = store.queue(uuid.uuid4().hex, Limits()), b"aaaaaaaa00000000"
    await queue.install(constructors.no_batching())
    await queue.advance(Events([member]), now=1.0)
    await client.hset(queue.keys[3], "aaaaaaaa:9:9", msgspec.msgpack.encode([["1"], [{"no": "member"}]]))
    outcome = await queue.advance(Events(serving=[]), now=2.0)
    assert [batch.members for batch in outcome.batches] == [[member]]
    assert len(outcome.dead) == 1
    await store.close()


async def test_the_record_of_arrivals_begins_anew_where_somebody_else_wrote_and_stops_nobody(redis_server, client, function):
    model, store = uuid.uuid4().hex, RedisStore(redis_server.url, new_process_name())
    async with serving(function, POLICY, store, Plans(plan(POLICY, model))) as buffer:
        await plant(client, f"sluice:{{{model}}}:arrival_stream", "list")
        for _ in range(2):
            assert (await buffer.post(f"/models/{model}", b"1"))[0] == 200
    assert len(read_arrivals(redis_server.url, model)) == 1


async def test_however_often_somebody_writes_there_one_value_of_each_key_is_kept(redis_server, client):
    model, store = uuid.uuid4().hex, RedisStore(redis_server.url, new_process_name())
    queue = store.queue(model, Limits())
    for i in range(5):
        await queue.install(POLICY)
        await plant(client, queue.keys[2], "set", b"%d" % i)
        with pytest.raises(StoreUnavailable, match="it is set aside as"):
            await queue.advance(Events())
    assert await client.keys(f"*{model}*aside") == [queue.keys[2].encode() + b":aside"]
    assert await client.smembers(queue.keys[2] + ":aside") == {b"4"}
    await store.close()


async def test_mail_comes_where_somebody_else_wrote_under_the_name_of_the_mailbox(redis_server, client, function):
    model, pairs = uuid.uuid4().hex, constructors.static(2)
    stores = [RedisStore(redis_server.url, new_process_name()) for _ in range(2)]
    plans = Plans(plan(pairs, model))
    async with serving(function, pairs, stores[0], plans) as here, serving(function, pairs, stores[1], plans) as there:
        for store in stores:
            await client.set(mailbox_key(store.process), "not a list")
        async with asyncio.timeout(PATIENCE):
            pair = (buffer.post(f"/models/{model}", b"1") for buffer in (here, there))
            assert [status for status, _, _ in await asyncio.gather(*pair)] == [200, 200]
    asides = [await client.get(f"sluice:aside:{{sluice:replies:{store.process}}}") for store in stores]
    assert b"not a list" in asides


@pytest.mark.parametrize("spread", [True, False])
def test_keys_are_set_aside_in_their_own_slot(spread):
    store = RedisStore("redis://127.0.0.1:1/0", "aaaaaaaa", spread_routes=spread)
    queue = store.queue("m", Limits(), "a")
    for command in (queue._set_aside, _set_aside_mailbox(mailbox_key("bbbbbbbb"), NAMESPACE)):
        keys = command[3 : 3 + command[2]]
        assert len({key_slot(key.encode()) for key in keys}) == 1


async def test_where_nothing_may_be_set_aside_the_reason_names_the_key_and_readiness_goes_until_it_is_away(function):
    with RedisServer(port=0) as server:
        admin = redis.Redis.from_url(server.url)
        with sync_redis.Redis.from_url(server.url) as once:
            make_user(once, "-rename")
        store = RedisStore(f"redis://sluice:secret@127.0.0.1:{server.port}/0", new_process_name())
        async with serving(function, POLICY, store, lease=0.1) as buffer, asyncio.timeout(PATIENCE):
            assert (await buffer.post("/models/m", b"1"))[0] == 200
            await plant(admin, "sluice:{m}:members", "string")
            status, _, body = await buffer.post("/models/m", b"1")
            assert status == 503
            for part in (b"Redis holds a string under the key sluice:{m}:members", b"it could not be renamed to", b":aside"):
                assert part in body
            for path in ("/v2/health/ready", "/v2/models/m/ready"):
                status, _, body = await buffer.get(path)
                assert (status, b"the key sluice:{m}:members" in body) == (503, True)
            await admin.delete("sluice:{m}:members")
            while (await buffer.get("/v2/health/ready"))[0] != 200:
                await asyncio.sleep(0.01)
            assert (await buffer.post("/models/m", b"1"))[0] == 200
        await admin.aclose()
