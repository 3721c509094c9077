"""The store on a Redis Cluster of three masters, over real sockets: where queues lie, and what happens while slots move."""

import asyncio
import uuid
from contextlib import AsyncExitStack
from itertools import count

import pytest
from redis.crc import key_slot

from sluice.batching import policy as constructors
from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.arrival_stream import read_arrivals, stream_key
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.redis_mailbox import WAIT, mailbox_key
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import Events, Limits
from tests.buffer_service.conftest import Plans, plan, serving
from tests.buffer_service.moving_address import load
from tests.buffer_service.redis_cluster import cluster

POLICY = constructors.size_or_timeout(8, 0.01)
A, B = "aaaaaaaa", "bbbbbbbb"


@pytest.fixture(scope="module")
def three_masters():
    with cluster() as running:
        yield running


def test_the_slots_of_the_cluster_are_where_the_tests_think(three_masters):
    for slot in (0, 5461, 5462, 10922, 10923, 16383):
        entries = three_masters.masters[0].ask("CLUSTER", "SLOTS")
        [port] = [entry[2][1] for entry in entries if entry[0] <= slot <= entry[1]]
        assert port == three_masters.owner[slot].server.port


async def test_queues_of_models_and_mailboxes_are_spread_over_the_servers_and_one_address_is_enough(three_masters):
    ours, theirs = RedisStore(three_masters.url, A), RedisStore(three_masters.url, B)
    names = [uuid.uuid4().hex for _ in range(500)]
    by_owner = {three_masters.owner[key_slot(stream_key(name).encode())]: name for name in names}
    assert by_owner.keys() == set(three_masters.masters)
    for model in by_owner.values():
        queue = ours.queue(model, Limits())
        await queue.install(constructors.size_or_timeout(2, 1.0))
        await queue.check()
        await queue.advance(Events([A.encode() + b"00000000"], ages=[0.5]), now=10.0)
        [batch] = (await theirs.queue(model, Limits()).advance(Events([B.encode() + b"00000000"]), now=11.0)).batches
        assert len(batch.members) == 2
        assert read_arrivals(three_masters.url, model).tolist() == [9.5, 11.0]
        assert three_masters.owner[key_slot(stream_key(model).encode())].ask("EXISTS", stream_key(model)) == 1
    for i in range(12):
        await ours.send(f"process{i}", b"%d" % i)
        reader = RedisStore(three_masters.url, f"process{i}")
        assert await reader.receive() == [b"%d" % i]
        await reader.close()
    await ours.close()
    await theirs.close()


async def test_routes_that_are_spread_lie_on_different_servers_and_their_record_is_read_as_one(three_masters):
    together, apart = RedisStore(three_masters.url, A), RedisStore(three_masters.url, A, spread_routes=True)
    routes = [f"route{i}" for i in range(12)]

    def slots_of(store, model):
        slots = [{key_slot(key.encode()) for key in store.queue(model, Limits(), route).keys} for route in routes]
        assert all(len(slots_of_one) == 1 for slots_of_one in slots)
        return set.union(*slots)

    models = [uuid.uuid4().hex for _ in range(20)]  # twelve routes of one lie on two servers alone now and then
    owners = {model: {three_masters.owner[slot] for slot in slots_of(apart, model)} for model in models}
    model = next(model for model in models if owners[model] == set(three_masters.masters))
    assert len(slots_of(together, model)) == 1
    for i, route in enumerate(routes):
        queue = apart.queue(model, Limits(), route)
        await queue.install(constructors.no_batching())
        [batch] = (await queue.advance(Events([A.encode() + b"00000000"], ages=[0.5]), now=20.0 - i)).batches
        assert (await queue.advance(Events(completed=[batch.batch_id]), now=30.0)).queue_length == 0
    whole = together.queue(model, Limits())
    await whole.install(constructors.no_batching())
    await whole.advance(Events([A.encode() + b"00000000"]), now=40.0)
    assert read_arrivals(three_masters.url, model).tolist() == [*(8.5 + i for i in range(12)), 40.0]
    # What one of them has forgotten, all begin after.
    late = apart.queue(model, Limits(arrivals_kept=1), "route0")
    for _ in range(200):
        await late.advance(Events([A.encode() + b"00000000"]), now=50.0)
    assert read_arrivals(three_masters.url, model)[0] == 50.0
    await together.close()
    await apart.close()


async def test_slots_that_move_under_load_lose_nothing_and_refuse_nobody(three_masters, function):
    model = uuid.uuid4().hex
    plans = Plans(plan(POLICY, model))
    stores = [RedisStore(three_masters.url, new_process_name()) for _ in range(2)]
    slots = [key_slot(stream_key(model).encode()), *(key_slot(mailbox_key(store.process).encode()) for store in stores)]
    said_before = {kind: three_masters.refusals(kind) for kind in ("MOVED", "ASK", "TRYAGAIN")}
    async with AsyncExitStack() as stack:
        buffers = [await stack.enter_async_context(serving(function, POLICY, store, plans)) for store in stores]
        asked = [await stack.enter_async_context(load(buffer, path=f"/models/{model}")) for buffer in buffers]
        for i in range(6):
            slot = slots[i % 3]
            others = [master for master in three_masters.masters if master is not three_masters.owner[slot]]
            await three_masters.move(slot, others[i // 3], pause=0.02)
            await asyncio.sleep(0.1)
    for kind, before in said_before.items():
        assert three_masters.refusals(kind) > before, kind
    for one in asked:
        assert set(one.statuses) == {200}
        assert len(one.answers) > 50
    mixed = [batch for batch in function.batches if len({item.id[:8] for item in batch.items}) == 2]
    assert mixed  # so that answers went from one process to the other
    computed = [item.id for batch in function.batches for item in batch.items]
    assert len(computed) == len(set(computed)) == sum(len(one.answers) for one in asked)


async def test_mail_reaches_a_process_that_waits_for_it_while_its_slot_moves_each_message_once(three_masters):
    theirs, ours = RedisStore(three_masters.url, new_process_name()), RedisStore(three_masters.url, A)
    slot = key_slot(mailbox_key(theirs.process).encode())
    received = []

    async def read():
        while True:
            received.extend(await theirs.receive())

    async def arrives(message):
        await ours.send(theirs.process, message)
        sent.append(message)
        async with asyncio.timeout(60):
            while message not in received:
                await asyncio.sleep(0.001)

    sent, reading = [], asyncio.create_task(read())
    await arrives(b"before")
    for turn in range(2):  # to where it was never asked for, and back
        to = next(master for master in three_masters.masters if master is not three_masters.owner[slot])
        async with three_masters.moving(slot, to):
            for i in range(3):
                await arrives(b"while it moves %d %d" % (turn, i))
        await arrives(b"behind it %d" % turn)
    reading.cancel()
    assert received == sent
    assert theirs._servers.successions(slot) == 0
    await theirs.close()
    await ours.close()


def test_mail_that_is_late_because_two_mailboxes_move_is_there_within_the_lease_for_which_bodies_are_waited_for():
    assert Limits().lease > 2 * WAIT


async def test_another_server_behind_the_address_of_one_shard_disturbs_no_queue_of_another(three_masters):
    store, queues, shard = RedisStore(three_masters.url, A), {}, three_masters.masters[1]
    while len(queues) < 3:
        model = uuid.uuid4().hex
        owner = three_masters.owner[key_slot(stream_key(model).encode())]
        queue = queues.setdefault(owner, store.queue(model, Limits()))
        await queue.install(POLICY)
    before = {owner: (await queue.advance(Events())).epoch for owner, queue in queues.items()}
    shard.ask("DEBUG", "CHANGE-REPL-ID")
    shard.ask("CLIENT", "KILL", "TYPE", "normal")
    with pytest.raises(StoreUnavailable):
        await queues[shard].advance(Events())
    async with asyncio.timeout(60):
        while store._gates[key_slot(queues[shard].keys[0].encode())]._breaker.away:
            await asyncio.sleep(0.001)
    after = {owner: (await queue.advance(Events())).epoch for owner, queue in queues.items()}
    assert [owner for owner in before if after[owner] != before[owner]] == [shard]
    await store.close()


async def test_a_slot_that_nobody_has_stops_its_own_queue_alone(three_masters, function):
    def on(server, key, names):
        return next(name for name in names if three_masters.owner[key_slot(key(name).encode())] is server)

    without = uuid.uuid4().hex
    slot = key_slot(stream_key(without).encode())
    owner = three_masters.owner[slot]
    beside = on(owner, stream_key, (uuid.uuid4().hex for _ in count()))
    name = on(owner, "sluice:replies:{}".format, (new_process_name() for _ in count()))
    plans = Plans(*(plan(POLICY, model) for model in (without, beside)))
    store = RedisStore(three_masters.url, name)
    async with serving(function, POLICY, store, plans) as buffer, load(buffer, path=f"/models/{beside}") as asked:
        assert (await buffer.post(f"/models/{without}", b"1"))[0] == 200
        for master in three_masters.masters:
            master.ask("CLUSTER", "DELSLOTS", slot)
        try:
            for _ in range(20):
                status, _, body = await buffer.post(f"/models/{without}", b"1")
                assert (status, f"no server of the Redis cluster has slot {slot} ".encode() in body) == (503, True)
                await asyncio.sleep(0.02)
            status, _, body = await buffer.get(f"/v2/models/{without}/ready")
            assert (status, f"slot {slot} ".encode() in body) == (503, True)
            assert (await buffer.get(f"/v2/models/{beside}/ready"))[0] == 200
        finally:
            for master in three_masters.masters:
                master.ask("CLUSTER", "SETSLOT", slot, "NODE", owner.id)
        async with asyncio.timeout(60):
            while (await buffer.post(f"/models/{without}", b"1"))[0] != 200:
                await asyncio.sleep(0.01)
    assert set(asked.statuses) == {200}


@pytest.mark.full
async def test_a_master_that_dies_is_replaced_by_its_replica(function):
    with cluster() as running:
        slot = key_slot(stream_key("m").encode())
        owner = running.owner[slot]
        running.add_replica(owner)
        # The address that is told is the one that goes.
        async with (
            serving(function, POLICY, RedisStore(owner.server.url, new_process_name())) as buffer,
            load(buffer) as asked,
        ):
            owner.server.kill()
            await asked.refused(asked.now, 1)
            await asked.served_again(asked.now)
            await asyncio.sleep(0.3)
        assert set(asked.statuses) == {200, 503}
        assert asked.answers[-1][1] == 200


@pytest.mark.full
async def test_mail_goes_on_where_a_replica_takes_over_in_good_order_from_the_master_that_is_waited_at():
    with cluster() as running:
        theirs, ours = RedisStore(running.url, new_process_name()), RedisStore(running.url, A)
        master = running.owner[key_slot(mailbox_key(theirs.process).encode())]
        replica = running.add_replica(master)
        received, sent = [], []

        async def read():
            while True:
                received.extend(await theirs.receive())

        reading = asyncio.create_task(read())
        async with asyncio.timeout(60):
            for i in range(60):
                if i == 20:
                    replica.ask("CLUSTER", "FAILOVER")
                message = b"%d" % i
                await ours.send(theirs.process, message)
                sent.append(message)
                while message not in received:
                    assert not reading.done()
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.02)
            while replica.client.info("replication")["role"] != "master":
                await asyncio.sleep(0.01)
        reading.cancel()
        assert received == sent
        await theirs.close()
        await ours.close()
