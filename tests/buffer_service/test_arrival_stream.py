"""The record of arrivals: one suite over both stores, then the stream in Redis, its reader, and what a running buffer writes."""

import asyncio
import math
import time

import aiohttp
import numpy as np
import pytest
import redis
from redis.crc import key_slot

from sluice.batching import policy as constructors
from sluice.batching.errors import InvalidInput, StoreUnavailable
from sluice.buffer_service import app, arrival_stream
from sluice.buffer_service.admission import FRESH
from sluice.buffer_service.app import BufferService, Server
from sluice.buffer_service.arrival_record import Call, arrivals
from sluice.buffer_service.arrival_stream import read_arrivals, read_requests, split_url, stream_key
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.invokers import LocalInvoker
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.settings import Settings
from sluice.buffer_service.store import Events, Limits
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import NO_BATCHING, Plans, plan, serving

A, B = "aaaaaaaa", "bbbbbbbb"


def members(count, process=A):
    return [f"{process}{i:08x}".encode() + b"body" for i in range(count)]


class Store:
    """Queues of one model at several processes, and what the store recorded of them."""

    def __init__(self, kind, url, model):
        self.kind, self.url, self.model = kind, url, model
        self._backend = MemoryBackend()
        self._stores = []

    async def queue(self, process=A, **limits):
        store = MemoryStore(self._backend, process) if self.kind == "memory" else RedisStore(self.url, process)
        self._stores.append(store)
        queue = store.queue(self.model, Limits(**limits))
        await queue.install(NO_BATCHING)
        return queue

    def arrival_times(self):
        if self.kind == "memory":
            return self._backend.arrival_times(self.model).tolist()
        return read_arrivals(self.url, self.model).tolist()

    def requests(self):
        """Times and sizes; a size that was not told is ``None``."""
        found = self._backend.arrivals(self.model) if self.kind == "memory" else read_requests(self.url, self.model)
        sizes = [None if math.isnan(size) else size for size in found.sizes] or [None] * len(found.times)
        return list(zip(found.times, sizes, strict=True))

    async def close(self):
        for store in self._stores:
            await store.close()


@pytest.fixture(params=["memory", "redis"])
async def store(request, redis_server, model):
    store = Store(request.param, redis_server.url, model)
    yield store
    await store.close()


@pytest.fixture
async def redis_store(redis_server, model):
    store = Store("redis", redis_server.url, model)
    yield store
    await store.close()


async def test_an_arrival_came_at_the_time_of_its_call_less_its_age(store):
    queue = await store.queue()
    await queue.advance(Events(members(3), ages=[0.5, 0.25, 0.0]), now=10.0)
    await queue.advance(Events(members(1)), now=11.0)
    await queue.advance(Events(), now=12.0)
    assert store.arrival_times() == [9.5, 9.75, 10.0, 11.0]


async def test_what_was_refused_is_not_recorded(store):
    queue = await store.queue(max_queue_length=2)
    await queue.install(constructors.static(10))
    assert (await queue.advance(Events(members(3), ages=[0.5, 0.25, 0.0]), now=1.0)).accepted == 2
    assert (await queue.advance(Events(members(3)), now=2.0)).accepted == 0
    assert store.arrival_times() == [0.5, 0.75]


async def test_who_left_past_the_queue_is_recorded_as_who_came_to_it_and_counts_as_taken(store):
    queue = await store.queue()
    outcome = await queue.advance(Events(members(1), ages=[0.25], sizes=[7.0], direct=[0.5, 0.125]), now=1.0)
    assert (outcome.accepted, len(outcome.batches), outcome.taken, outcome.queue_length) == (1, 1, 3, 0)
    outcome = await queue.advance(Events(direct=[0.25]), now=2.0)
    assert (outcome.accepted, outcome.batches, outcome.taken) == (0, [], 4)
    assert store.requests() == [(0.5, None), (0.75, 7.0), (0.875, None), (1.75, None)]


async def test_who_left_past_a_queue_of_which_nothing_is_recorded_counts_as_taken_all_the_same(store, client, model):
    queue = await store.queue(arrivals_kept=0)
    assert (await queue.advance(Events(direct=[0.5]), now=1.0)).taken == 1
    assert not client.exists(stream_key(model)) and (store.kind == "redis" or store.arrival_times() == [])


async def test_the_arrivals_of_several_processes_are_merged_in_their_order(store):
    ours, theirs = await store.queue(A), await store.queue(B)
    await ours.advance(Events(members(2, A), ages=[1.0, 0.25]), now=2.0)
    await theirs.advance(Events(members(2, B), ages=[1.5, 0.5]), now=2.25)
    assert store.arrival_times() == [0.75, 1.0, 1.75, 1.75]


async def test_the_sizes_of_arrivals_are_recorded_with_their_times(store):
    queue = await store.queue()
    await queue.advance(Events(members(2), ages=[0.5, 0.0]), now=10.0)
    await queue.advance(Events(members(3), ages=[1.25, 0.25, 0.0], sizes=[7.0, math.nan, 0.5]), now=11.0)
    await queue.advance(Events(members(1)), now=12.0)
    await queue.advance(Events(members(1), sizes=[1000.0]), now=13.0)
    await queue.advance(Events(members(1), recorded=True, sizes=[1000.0]), now=14.0)
    wanted = [(9.5, None), (9.75, 7.0), (10.0, None), (10.75, None), (11.0, 0.5), (12.0, None), (13.0, 1000.0)]
    assert store.requests() == wanted


async def test_of_what_was_refused_no_size_is_recorded(store):
    queue = await store.queue(max_queue_length=2)
    await queue.install(constructors.static(10))
    assert (await queue.advance(Events(members(3), ages=[0.5, 0.25, 0.0], sizes=[1.0, 2.0, 3.0]), now=1.0)).accepted == 2
    assert store.requests() == [(0.5, 1.0), (0.75, 2.0)]


def test_sizes_stay_with_their_times_whatever_record_they_are_in_and_whatever_is_missing_of_it():
    silent = [Call(5.0, [0.5, 0.0], 1), Call(4.0, [0.0], 0)]
    told = [Call(3.0, [0.25], 9, [2.0]), Call(6.0, [1.5, 0.0], 7, [8.0, 9.0]), Call(5.0, [2.0, 0.0], 5)]  # set back by 3 s
    found = arrivals(silent, told)
    assert found.times.tolist() == [2.0, 2.75, 3.0, 4.0, 4.5, 5.0]
    assert [None if math.isnan(size) else size for size in found.sizes] == [None, 2.0, 9.0, None, None, None]
    assert arrivals(silent).sizes.tolist() == [] and arrivals().times.tolist() == []


async def test_where_no_size_is_told_an_entry_holds_nothing_more_than_it_did(redis_store, client, model):
    queue = await redis_store.queue()
    await queue.advance(Events(members(2), ages=[0.5, 0.0]), now=1.0)
    await queue.advance(Events(members(2), ages=[0.5, 0.0], sizes=[1.0, 2.0]), now=2.0)
    [(_, silent), (_, told)] = client.xrange(stream_key(model))
    assert list(silent) == [b"call"] and len(silent[b"call"]) == len(told[b"call"]) == 16 and len(told[b"sizes"]) == 8
    client.xadd(stream_key(model), {"call": np.array([3.0]).tobytes() + bytes(4), "sizes": b"torn again"}, id="5-0")
    assert redis_store.requests() == [(0.5, None), (1.0, None), (1.5, 1.0), (2.0, 2.0), (3.0, None)]


async def test_a_clock_that_is_set_back_leaves_the_times_between_arrivals_as_they_were(store):
    queue = await store.queue()
    for now in (100.0, 101.0, 103.0, 93.0, 94.5, 94.0, 95.0):
        await queue.advance(Events(members(2), ages=[0.25, 0.0]), now=now)
    calls = [89.5, 90.5, 92.5, 92.5, 94.0, 94.0, 95.0]
    assert store.arrival_times() == sorted(time for now in calls for time in (now - 0.25, now))


async def test_what_came_after_a_clock_was_set_back_is_read_where_older_calls_were_trimmed(store):
    queue = await store.queue(arrivals_kept=100)
    for now in (*range(1000, 1500), *range(100, 160)):
        await queue.advance(Events(members(1)), now=float(now))
    times = store.arrival_times()
    assert len(times) >= 100
    assert times[-100:] == [100.0 - i for i in range(39, -1, -1)] + [float(now) for now in range(100, 160)]


@pytest.mark.parametrize("size", [1, 7])
async def test_the_newest_are_kept_and_none_between_them_is_missing(store, size):
    queue = await store.queue(arrivals_kept=1000)
    sent = []
    for i in range(4000 // size):
        await queue.advance(Events(members(size)), now=float(i))
        sent += [float(i)] * size
    times = store.arrival_times()
    assert times == sent[-len(times) :]
    assert 1000 <= len(times) <= 1000 + 100 * size  # Redis trims by blocks of at most 100 entries


async def test_where_calls_were_trimmed_arrivals_older_than_the_oldest_call_are_left_out(store):
    queue = await store.queue(arrivals_kept=100)
    for i in range(1000):
        await queue.advance(Events(members(2), ages=[1.5, 0.0]), now=float(i))
    times = store.arrival_times()
    first = times[0]
    assert first > 0
    whole = sorted([i - 1.5 for i in range(1000)] + [float(i) for i in range(1000)])
    assert times == [time for time in whole if time >= first]


async def test_with_none_to_keep_none_is_recorded(store, client, model):
    queue = await store.queue(arrivals_kept=0)
    assert (await queue.advance(Events(members(2)), now=1.0)).accepted == 2
    if store.kind == "memory":
        assert store.arrival_times() == []
    else:
        assert not client.exists(stream_key(model))


async def test_a_call_writes_one_entry_however_many_arrivals_it_carries(redis_store, client, model):
    queue = await redis_store.queue()
    await queue.advance(Events(members(500), ages=[0.001] * 500))
    await queue.advance(Events(members(1)))
    assert [entry_id for entry_id, _ in client.xrange(stream_key(model))] == [b"500-0", b"501-0"]
    assert len(redis_store.arrival_times()) == 501


async def test_the_servers_clock_dates_the_arrivals(redis_store, client):
    queue = await redis_store.queue()
    seconds, micros = client.time()
    await queue.advance(Events(members(1), ages=[3600.0]))
    [arrived] = redis_store.arrival_times()
    later, micros_later = client.time()
    assert seconds + micros / 1e6 <= arrived + 3600 + 1e-6 <= later + micros_later / 1e6 + 2e-6


async def test_every_key_of_a_queue_is_in_one_slot_of_a_cluster(redis_store, model):
    queue = await redis_store.queue()
    assert stream_key(model) in queue.keys
    assert len({key_slot(key.encode()) for key in queue.keys}) == 1


@pytest.mark.full
async def test_a_node_of_a_cluster_runs_the_script_and_is_read(model):
    with RedisServer(options=("--cluster-enabled", "yes")) as server:
        with redis.Redis.from_url(server.url) as node:
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", 0, 16383)
            while b"cluster_state:ok" not in node.execute_command("CLUSTER", "INFO"):
                await asyncio.sleep(0.01)
        store = Store("redis", server.url, model)
        queue = await store.queue()
        await queue.advance(Events(members(2), ages=[0.5, 0.0]), now=1.0)
        assert store.arrival_times() == [0.5, 1.0]
        await store.close()


@pytest.mark.parametrize("damage", [("XTRIM", "MAXLEN", 0), ("SET", "something else")])
async def test_a_damaged_stream_is_begun_again_and_never_stops_the_queue(redis_store, client, model, damage):
    queue = await redis_store.queue()
    await queue.advance(Events(members(5)), now=1.0)
    client.execute_command(damage[0], stream_key(model), *damage[1:])
    outcome = await queue.advance(Events(members(1)), now=2.0)
    assert [batch.members for batch in outcome.batches] == [members(1)]
    await queue.advance(Events(members(2)), now=3.0)
    assert redis_store.arrival_times() == [3.0, 3.0]


async def test_the_reader_goes_through_all_pages(redis_store, monkeypatch):
    monkeypatch.setattr(arrival_stream, "PAGE", 4)
    queue = await redis_store.queue()
    for i in range(1, 13):
        await queue.advance(Events(members(1)), now=float(i))
        assert redis_store.arrival_times() == [float(j) for j in range(1, i + 1)]


def test_a_model_without_arrivals_is_named(redis_server):
    with pytest.raises(InvalidInput) as caught:
        read_arrivals(redis_server.url, "resnet")
    assert str(caught.value).startswith("model: 'resnet' is not allowed")
    assert "no arrivals seen yet for model 'resnet'" in str(caught.value)


def test_a_redis_that_is_away_or_refuses_says_so(redis_server, client, model):
    with pytest.raises(StoreUnavailable, match="Redis does not answer: .*nowhere"):
        read_arrivals("unix:///nowhere/redis.sock", model)
    client.set(stream_key(model), "something else")
    with pytest.raises(StoreUnavailable, match="Redis refused: WRONGTYPE"):
        read_arrivals(redis_server.url, model)


@pytest.mark.parametrize("url", ["http://:secret@cache:1", "redis://:secret@cache:port", "redis://:secret@cache:1/0?colour=red"])
def test_what_is_no_url_of_a_redis_is_refused_without_its_password(url):
    with pytest.raises(InvalidInput) as caught:
        read_arrivals(url, "m")
    assert str(caught.value).startswith("url: ")
    assert "redis://, rediss:// or unix://" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "url", "name", "namespace"),
    [
        ("redis://cache:6379/0?model=mlp", "redis://cache:6379/0", "mlp", "sluice"),
        ("redis://cache:6379/0?model=mlp&namespace=blue", "redis://cache:6379/0", "mlp", "blue"),
        ("rediss://u:p@cache/1?ssl_cert_reqs=none&model=my%20net", "rediss://u:p@cache/1?ssl_cert_reqs=none", "my net", "sluice"),
        ("unix:///run/redis.sock?model=mlp", "unix:///run/redis.sock", "mlp", "sluice"),
    ],
)
def test_a_url_may_carry_the_model_and_the_namespace(text, url, name, namespace):
    assert split_url(text) == (url, name, namespace)


@pytest.mark.parametrize("text", ["redis://:secret@cache/0", "redis://:secret@cache/0?model=", "redis://cache/0?model=a&model=b"])
def test_a_url_that_does_not_name_one_model_is_refused(text):
    with pytest.raises(InvalidInput) as caught:
        split_url(text)
    assert "allowed: one that names one model, as redis://HOST:6379/0?model=NAME does" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("kept", "recorded"), [(0, 0), (1, 1), (100, 3)])
async def test_the_setting_says_how_many_a_running_buffer_keeps(function, kept, recorded):
    backend = MemoryBackend()
    async with serving(function, NO_BATCHING, MemoryStore(backend, A), arrivals_kept=kept) as buffer:
        for _ in range(3):
            assert (await buffer.post("/models/m", b"1"))[0] == 200
            await asyncio.sleep(2 * FRESH)  # until the queue has heard of it
    assert len(backend.records["m"].calls) == recorded


async def test_queues_that_are_in_one_process_alone_keep_no_record_which_nobody_could_read(function, monkeypatch):
    backend = MemoryBackend()
    monkeypatch.setattr(app, "open_store", lambda settings: MemoryStore(backend, A))
    settings = Settings(port=0, log_level="error", redis_url="memory://", leave_delay=0.0)
    running = Server(BufferService(settings, None, LocalInvoker({"f": function}), Plans(plan(NO_BATCHING))))
    serving = asyncio.create_task(running.serve())
    await running.listening.wait()
    async with aiohttp.ClientSession() as client:
        for _ in range(2):
            async with client.post(f"http://127.0.0.1:{running.http.port}/models/m", data=b"1") as answer:
                assert answer.status == 200
    running.stop()
    await serving  # by when the queue has heard of them, and of their batches
    assert backend.queue("m", "").taken == 2
    assert (len(backend.records["m"].calls), backend.batches["m"].noted) == (0, 0)


async def test_what_comes_while_a_call_is_under_way_keeps_its_own_time(function):
    class Clock:
        now = 100.0

        def __call__(self):
            return self.now

    clock, gate, under_way = Clock(), asyncio.Event(), asyncio.Event()

    class SlowStore(MemoryStore):
        def queue(self, model, limits, route=""):
            queue = super().queue(model, limits, route)
            advance = queue.advance

            async def slowly(events, now=None):
                at = clock.now
                if events.arrivals:
                    under_way.set()
                    await gate.wait()
                return await advance(events, at)

            queue.advance = slowly
            return queue

    backend = MemoryBackend()
    async with serving(function, constructors.greedy(1, servers=4), SlowStore(backend, A), clock=clock) as buffer:
        model = buffer.service.model("m")
        answers = [asyncio.ensure_future(model.ask("text/plain", {}, b"0").answered)]
        await under_way.wait()
        for clock.now in (101.0, 101.5, 103.0):
            answers.append(asyncio.ensure_future(model.ask("text/plain", {}, b"1").answered))
            await asyncio.sleep(0)
        clock.now = 104.0
        gate.set()
        await asyncio.gather(*answers)
    assert backend.arrival_times("m").tolist() == [100.0, 101.0, 101.5, 103.0]


async def test_what_is_submitted_again_after_a_loss_keeps_the_time_it_came(function):
    policy = constructors.static(4)
    with RedisServer() as server:
        async with serving(function, policy, RedisStore(server.url, new_process_name()), lease=0.3) as buffer:
            before = time.time()
            waiting = [asyncio.create_task(buffer.post("/models/m", b"%d" % i)) for i in range(3)]
            while buffer.service.telemetry.registry.get_sample_value("sluice_queue_length", {"model": "m"}) != 3:
                await asyncio.sleep(0.001)
            taken = time.time()
            server.kill()
            server.start()
            while (await buffer.post("/models/m", b"3"))[0] == 503:
                await asyncio.sleep(0.01)
            await asyncio.gather(*waiting)
        times = read_arrivals(server.url, "m")
    resolution = 0.01  # half a round trip, with a margin
    assert len(times) == 4
    assert before - resolution < times[0] <= times[2] < taken + resolution
    assert times[3] > taken


def test_numpy_takes_the_times_without_a_copy(redis_server, client, model):
    client.xadd(stream_key(model), {"call": np.array([7.0]).tobytes() + arrival_stream.pack_floats([0.5, 0.0])}, id="2-0")
    times = read_arrivals(redis_server.url, model)
    view = np.asarray(times)
    assert view.tolist() == [6.5, 7.0]
    times[0] = 6.0
    assert view[0] == 6.0
