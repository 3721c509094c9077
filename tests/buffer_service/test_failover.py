"""The store changes its primary, hangs, or goes away, over real sockets and under load: who fails, how fast, and for how long."""

import asyncio
import os
import signal
import statistics
from contextlib import contextmanager

import aiohttp
import pytest
import redis

from sluice.batching import policy as constructors
from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.breaker import TRIAL_INTERVAL, Breaker
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.redis_servers import COMMAND_TIMEOUT, Away
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import Limits
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import serving
from tests.buffer_service.moving_address import load, moving_address

POLICY = constructors.size_or_timeout(8, 0.01)
AT_ONCE = ("--repl-diskless-sync-delay", "0", "--shutdown-timeout", "0")  # replicas are given data, and left, without delay


def test_the_breaker_opens_at_a_failure_and_only_a_trial_that_works_closes_it():
    breaker = Breaker()
    assert breaker.away is None
    first, second = Away("first"), Away("second")
    assert breaker.failed(first)  # trials begin
    assert not breaker.failed(second)  # they are under way already
    assert breaker.away is second
    assert [breaker.next_trial_in() for _ in range(3)] == [0.0, TRIAL_INTERVAL, TRIAL_INTERVAL]
    breaker.worked()
    assert breaker.away is None
    assert breaker.failed(first)
    assert breaker.next_trial_in() == 0.0


@pytest.fixture
def primary():
    with RedisServer(port=0, options=AT_ONCE) as server:
        yield server


@contextmanager
def replica_of(primary):
    """A replica that has everything."""
    with RedisServer(port=0, options=AT_ONCE) as server, redis.Redis.from_url(server.url) as client:
        client.replicaof("127.0.0.1", str(primary.port))
        while client.info("replication")["master_link_status"] != "up":
            pass
        yield server, client


def demote(primary, replica):
    """What a failover does: the replica takes writes, and the old primary none."""
    replica.replicaof("NO", "ONE")
    with redis.Redis.from_url(primary.url) as client:
        client.replicaof("127.0.0.1", str(replica.connection_pool.connection_kwargs["port"]))


def store_at(address):
    return RedisStore(f"redis://127.0.0.1:{address.port}/0", new_process_name())


async def test_a_replica_that_takes_over_is_found_behind_the_same_address(function, primary):
    with replica_of(primary) as (replica, client):
        async with (
            moving_address(primary.port) as address,
            serving(function, POLICY, store_at(address)) as buffer,
            load(buffer) as asked,
        ):
            demote(primary, client)
            demoted = asked.now
            await asked.refused(demoted)  # until the name follows
            assert (await buffer.get("/v2/health/ready"))[0] == 503
            address.target = replica.port
            await asked.served_again(asked.now)
            assert (await buffer.get("/v2/health/ready"))[0] == 200
            served = asked.now
            await asyncio.sleep(0.2)
    # None of those that were refused waited for a time to be over, and nobody was refused after the new primary was found.
    assert set(asked.statuses) == {200, 503}
    refused = [(came, took) for came, status, took in asked.answers if status == 503]
    assert statistics.median(took for _, took in refused) < COMMAND_TIMEOUT
    assert demoted <= min(came + took for came, took in refused)
    assert max(came for came, _ in refused) <= served


async def test_connections_that_break_cost_no_more_than_the_calls_under_way(function, primary):
    async with moving_address(primary.port) as address, serving(function, POLICY, store_at(address)) as buffer:
        async with load(buffer) as asked:
            for _ in range(3):
                address.cut()
                await asked.served_again(asked.now)
        assert set(asked.statuses) <= {200, 503}


async def test_a_redis_that_is_gone_refuses_at_once_says_why_and_when_to_come_again(function, primary):
    async with serving(function, POLICY, RedisStore(primary.url, new_process_name())) as buffer:
        assert (await buffer.post("/models/m", b"1"))[0] == 200
        port_and_path = primary.url
        primary.kill()
        async with load(buffer) as asked:
            status, headers, body = await buffer.post("/models/m", b"1")
            assert (status, headers["retry-after"]) == (503, "1")
            assert b"Redis does not answer: " in body
            for path in ("/v2/health/ready", "/v2/models/m/ready"):
                status, _, body = await buffer.get(path)
                assert (status, b'"ready":false' in body, b"Redis does not answer" in body) == (503, True, True)
            await asked.refused(0.0)
            gone = asked.now
            primary.start()
            assert primary.url == port_and_path
            await asked.served_again(asked.now)
            assert (await buffer.get("/v2/models/m/ready"))[0] == 200
        away = [(status, took) for came, status, took in asked.answers if came + took < gone]
    assert {status for status, _ in away} == {503}
    assert statistics.median(took for _, took in away) < COMMAND_TIMEOUT  # nobody waits for a time to be over


@pytest.mark.full
@pytest.mark.parametrize(
    "how", ["the server stands still", pytest.param("the network swallows everything", marks=pytest.mark.full)]
)
async def test_a_redis_that_hangs_is_found_while_it_hangs_and_used_again_when_it_answers(function, primary, how):
    async with (
        moving_address(primary.port) as address,
        serving(function, POLICY, store_at(address)) as buffer,
        load(buffer) as asked,
    ):
        hangs(how, primary, address, True)
        await asked.refused(asked.now)
        found = asked.now
        await asked.refused(found)
        still = asked.now
        hangs(how, primary, address, False)
        await asked.served_again(asked.now)
    # What waited in the store still waits there; all others are told, and once it is found nobody waits until it is given up.
    then = [(status, took) for came, status, took in asked.answers if found <= came and came + took < still]
    assert {status for status, _ in then} == {503}
    assert statistics.median(took for _, took in then) < COMMAND_TIMEOUT


def hangs(how, primary, address, yes):
    if how == "the server stands still":
        os.kill(primary.pid, signal.SIGSTOP if yes else signal.SIGCONT)
    else:
        address.silent = yes


REFUSES_AS_A_SERVER = ("READONLY", "LOADING", "MASTERDOWN", "CLUSTERDOWN", "UNBLOCKED", "NOREPLICAS")
REFUSES_WHAT_IS_ASKED = ("OOM", "NOPERM", "WRONGTYPE", "MISCONF", "ERR")


@pytest.mark.parametrize("word", REFUSES_AS_A_SERVER + REFUSES_WHAT_IS_ASKED)
async def test_a_server_that_cannot_write_is_left_and_one_that_will_not_is_kept(word):
    says, connections, asked = [word], [], set()

    async def answer(reader, writer):
        connections.append(writer)
        while line := await reader.readline():
            if line == b"EVAL\r\n":
                asked.add(writer)
                writer.write(f"-{says[0]} and why\r\n".encode() if says[0] else b"+OK\r\n")
            elif line in (b"CLIENT\r\n", b"CLUSTER\r\n", b"INFO\r\n"):
                writer.write(b"-ERR not here\r\n")

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        store = RedisStore(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0?protocol=2", new_process_name())
        queue = store.queue("m", Limits())
        with pytest.raises(StoreUnavailable, match="and why") as caught:
            await queue.check()
        assert isinstance(caught.value, Away) == (word in REFUSES_AS_A_SERVER)
        says[0] = ""
        if word in REFUSES_AS_A_SERVER:
            with pytest.raises(Away, match="and why"):  # at once, for the trial has not been made yet
                await queue.check()
            await asyncio.sleep(0.05 + TRIAL_INTERVAL)
        await queue.check()
        assert (len(asked) > 1) == (word in REFUSES_AS_A_SERVER)
        await store._gates[next(iter(store._gates))].close()
        await store._servers.close()
        for writer in connections:
            writer.close()


async def test_as_many_calls_are_under_way_at_once_as_there_are_queues(primary, monkeypatch):
    monkeypatch.setattr("sluice.buffer_service.redis_servers.COMMAND_TIMEOUT", 60.0)
    store = RedisStore(primary.url, new_process_name())
    queues = [store.queue(f"m{i}", Limits()) for i in range(120)]
    await asyncio.gather(*(queue.check() for queue in queues))
    await store.close()


async def test_a_server_that_is_full_or_refuses_for_another_reason_is_not_taken_for_one_that_is_away(function):
    with RedisServer(options=("--maxmemory-policy", "noeviction")) as server, redis.Redis.from_url(server.url) as client:
        async with serving(function, POLICY, RedisStore(server.url, new_process_name())) as buffer:
            assert (await buffer.post("/models/m", b"1"))[0] == 200
            while client.hlen("sluice:{m}:in_flight"):  # a call that ends a batch first has written, and may go on
                await asyncio.sleep(0.001)
            client.config_set("maxmemory", "1")
            status, _, body = await buffer.post("/models/m", b"1")
            assert (status, b"Redis refused: " in body) == (503, True)
            assert (await buffer.get("/v2/health/ready"))[0] == 503
            client.config_set("maxmemory", "0")
            assert (await buffer.post("/models/m", b"1"))[0] == 200
            assert (await buffer.get("/v2/health/ready"))[0] == 200


async def test_readiness_goes_at_sigterm_while_the_listener_still_takes_requests_for_a_bounded_time(function, primary):
    store = RedisStore(primary.url, new_process_name())
    async with serving(function, POLICY, store, leave_delay=0.4, drain_timeout=5.0) as buffer:
        assert (await buffer.get("/v2/health/ready"))[0] == 200
        begun = asyncio.get_running_loop().time()
        stopping = asyncio.create_task(buffer.stop())
        while (await buffer.get("/v2/health/ready"))[0] == 200:
            assert not stopping.done()
        for path in ("/v2/health/ready", "/v2/models/m/ready"):
            status, headers, body = await buffer.get(path)
            assert (status, b"being shut down" in body) == (503, True)
            assert headers["connection"] == "close"  # nobody sends the next request into a connection that is about to end
        assert (await buffer.get("/v2/health/live"))[0] == 200
        assert (await buffer.post("/models/m", b"1"))[0] == 200  # who has not noticed yet is served
        await stopping
        assert asyncio.get_running_loop().time() - begun >= 0.4
        with pytest.raises(aiohttp.ClientConnectionError):
            await buffer.get("/v2/health/ready")


@pytest.mark.full
async def test_what_a_replica_that_took_over_never_saw_is_submitted_again(function, primary):
    with replica_of(primary) as (replica, client):
        async with (
            moving_address(primary.port) as address,
            serving(function, constructors.static(4), store_at(address), lease=0.3, request_timeout=1.0) as buffer,
        ):
            waiting = [asyncio.create_task(buffer.post("/models/m", b"0"))]
            await _until_waiting(buffer, 1)
            while client.llen("sluice:{m}:members") < 1:
                await asyncio.sleep(0.001)
            client.replicaof("NO", "ONE")
            waiting += [asyncio.create_task(buffer.post("/models/m", b"%d" % i)) for i in (1, 2)]
            await _until_waiting(buffer, 3)
            assert client.llen("sluice:{m}:members") == 1  # the others are told that they wait, and wait nowhere
            demote(primary, client)
            address.target = replica.port
            # The table waits for four, and the first is there twice now: more come until all have left.
            async with load(buffer, gap=0.02):
                answers = await asyncio.gather(*waiting)
            assert [(status, body) for status, _, body in answers] == [(200, b"%d" % i) for i in range(3)]


@pytest.mark.full
async def test_a_store_that_was_away_and_lost_nothing_is_given_nothing_twice(function, primary):
    policy = constructors.static(4)
    async with moving_address(primary.port) as address, serving(function, policy, store_at(address), lease=0.3) as buffer:
        waiting = [asyncio.create_task(buffer.post("/models/m", b"%d" % i)) for i in range(3)]
        await _until_waiting(buffer, 3)
        address.silent = True
        address.cut()
        await asyncio.sleep(0.3)
        address.silent = False
        while (last := await buffer.post("/models/m", b"3"))[0] == 503:
            await asyncio.sleep(0.01)
        assert last[2] == b"3"
        assert [body for _, _, body in await asyncio.gather(*waiting)] == [b"0", b"1", b"2"]
    assert [len(batch.items) for batch in function.batches] == [4]


async def _until_waiting(buffer, n):
    while buffer.service.telemetry.registry.get_sample_value("sluice_queue_length", {"model": "m"}) != n:
        await asyncio.sleep(0.001)
