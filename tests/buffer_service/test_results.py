"""What is kept of requests: the specification in memory and the script in Redis, by the same stimuli."""

from __future__ import annotations

import random
import time

import pytest
import redis

from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.redis_results import results_keys
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.results import DONE, REFUSED, WAITING, Bounds, Entry, Full, ResultsState

A, B = b"a" * 16, b"b" * 16
WIDE = Bounds(1000, 1_000_000, 60.0, 60.0)


@pytest.fixture(params=["memory", "redis"])
async def open_results(request, redis_server):
    """Opens the entries of a model, as one of two processes."""
    backend, model = MemoryBackend(), f"m{random.getrandbits(64)}"
    stores = []

    def opened(bounds=WIDE, process="p0000000"):
        store = MemoryStore(backend, process) if request.param == "memory" else RedisStore(redis_server.url, process)
        stores.append(store)
        return store.results(model, bounds)

    yield opened
    for store in stores:
        await store.close()


async def test_an_entry_waits_is_done_is_read_by_all_and_is_removed(open_results):
    here, there = open_results(), open_results(process="p0000001")
    assert await here.read("x") is None
    assert await here.begin("x", A, b"who") is None
    assert await there.read("x") == Entry(WAITING, b"who")
    assert await there.begin("x", B, b"other") == Entry(WAITING, b"who")
    assert await here.finish("x", A, DONE, b"answer")
    assert await there.begin("x", B, b"other") == await there.read("x") == Entry(DONE, b"answer")
    assert await there.remove("x") and not await here.remove("x")
    assert await here.read("x") is None


async def test_an_answer_that_comes_late_changes_no_entry_of_somebody_else(open_results):
    results = open_results()
    assert not await results.finish("x", A, DONE, b"too early")
    await results.begin("x", A, b"first")
    assert not await results.remove("x", B)
    assert await results.remove("x", A)
    await results.begin("x", B, b"second")
    assert not await results.finish("x", A, DONE, b"late")
    assert await results.read("x") == Entry(WAITING, b"second")
    assert await results.finish("x", B, DONE, b"own")
    assert not await results.finish("x", B, DONE, b"twice")
    assert await results.read("x") == Entry(DONE, b"own")


async def test_one_that_was_refused_or_is_lost_is_begun_anew(open_results):
    results = open_results()
    await results.begin("x", A, b"1")
    await results.finish("x", A, REFUSED, b"no room")
    assert await results.read("x") == Entry(REFUSED, b"no room")
    assert await results.begin("x", B, b"2") is None
    impatient = open_results(WIDE._replace(patience=0.0))
    assert await impatient.begin("y", A, b"1") is None
    assert await results.read("y") == Entry(WAITING, b"1", lost=True)
    assert await results.begin("y", B, b"2") is None
    assert await results.read("y") == Entry(WAITING, b"2")


async def test_at_the_limit_what_was_over_first_goes_and_what_waits_is_kept(open_results):
    results = open_results(Bounds(3, 1000, 60.0, 60.0))
    for name in "abc":
        await results.begin(name, A, b"")
    with pytest.raises(Full):
        await results.begin("d", A, b"")
    for name in "cb":
        await results.finish(name, A, DONE, b"")
    assert await results.begin("d", A, b"") is None
    assert [await results.read(name) is not None for name in "abcd"] == [True, True, False, True]


async def test_bytes_have_a_limit_too_and_an_answer_beyond_it_is_not_kept(open_results):
    results = open_results(Bounds(100, 200, 60.0, 60.0))  # of which a state and a token take 17 an entry
    for name in "ab":
        await results.begin(name, A, b"")
    assert await results.finish("a", A, DONE, b"x" * 150)
    with pytest.raises(Full):
        await results.finish("b", A, DONE, b"x" * 184)
    assert await results.read("a") is None
    assert await results.read("b") == Entry(WAITING, b"")
    assert await results.finish("b", A, REFUSED, b"x" * 183)
    with pytest.raises(Full):
        await results.begin("c", A, b"x" * 184)


async def test_an_entry_is_forgotten_when_its_life_is_over(open_results):
    long, short = open_results(), open_results(WIDE._replace(life=0.0))
    await long.begin("x", A, b"")
    await long.finish("x", A, DONE, b"answer")
    assert await short.read("x") is None
    assert await long.read("x") == Entry(DONE, b"answer")
    await short.begin("y", A, b"")
    assert await long.read("x") is None


async def test_the_script_does_what_the_specification_says(redis_server):
    """Random calls with times of microseconds: bounds are met, and entries of equal age do not occur."""
    rng = random.Random(17)
    for run in range(6):
        bounds = Bounds(rng.choice((2, 5, 50)), rng.choice((60, 150, 10_000)), 60.0, 60.0)
        store = RedisStore(redis_server.url, "p0000000")
        results, state = store.results(f"s{run}-{time.time_ns()}", bounds), ResultsState()
        memory = MemoryBackend()
        memory.results["m"] = state
        specified = MemoryStore(memory, "p0000000").results("m", bounds)
        for _ in range(120):
            what, entry_id, token = rng.choice("bbffrx"), rng.choice("abcdefgh"), rng.choice((A, B))
            record = b"x" * rng.choice((0, 5, 30, 60))
            state_of, said = rng.choice((DONE, REFUSED)), []
            for of in (results, specified):
                try:
                    if what == "b":
                        said.append(await of.begin(entry_id, token, record))
                    elif what == "f":
                        said.append(await of.finish(entry_id, token, state_of, record))
                    elif what == "r":
                        said.append(await of.read(entry_id))
                    else:
                        said.append(await of.remove(entry_id, token))
                except Full:
                    said.append("full")
            assert said[0] == said[1], (what, entry_id)
        entries = [await specified.read(name) for name in "abcdefgh"]
        assert state.bytes == sum(17 + len(entry.record) for entry in entries if entry is not None)
        await store.close()


async def test_nothing_stays_in_redis_of_who_asks_no_more(redis_server):
    store = RedisStore(redis_server.url, "p0000000")
    results = store.results("idle", Bounds(10, 1000, 30.0, 10.0))
    await results.begin("x", A, b"")
    await results.finish("x", A, DONE, b"1")
    with redis.Redis.from_url(redis_server.url) as client:
        keys = list(results_keys("idle", "sluice"))
        assert all(0 < client.ttl(key) <= 40 for key in keys)
        assert int(client.get(keys[2])) == 18
        await results.remove("x")
        assert (client.exists(*keys[:2]), int(client.get(keys[2]))) == (0, 0)
    await store.close()


async def test_what_somebody_else_put_there_is_set_aside_and_said(redis_server):
    store = RedisStore(redis_server.url, "p0000000")
    results = store.results("foreign", WIDE)
    key = next(iter(results_keys("foreign", "sluice")))
    with redis.Redis.from_url(redis_server.url) as client:
        client.set(key, "not ours")
        with pytest.raises(
            StoreUnavailable, match="Redis holds a string under the key sluice:{foreign}:results, which is not what"
        ):
            await results.begin("x", A, b"")
        assert client.get(f"{key}:aside") == b"not ours"
    assert await results.begin("x", A, b"") is None
    await store.close()


def test_the_order_of_what_is_over_stays_as_long_as_what_is_kept():
    state = ResultsState()
    for i in range(5000):
        state.begin(float(i), WIDE, "x", WAITING + A)
        state.remove("x", A)
    assert (len(state), state.bytes) == (0, 0)
    assert len(state._order) <= 65
