"""The record of batches: what both stores keep, the stream in Redis, what a buffer measures; reading both streams on and on."""

import asyncio
import math
import struct

import msgspec
import pytest

from sluice.batching import policy as constructors
from sluice.batching.errors import InvalidInput, StoreUnavailable
from sluice.batching.measured import MeasuredBatch
from sluice.buffer_service.arrival_stream import stream_key
from sluice.buffer_service.batch_record import MOST_LATENCIES, few_latencies
from sluice.buffer_service.batch_stream import BATCHES, FIELD, batch_stream_key, pack_batches, unpack_batches
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import Events, Limits
from sluice.buffer_service.stream_reader import TOGETHER, News, RecordReader
from sluice.lambda_fn.contract import Answer, Measured, decode_batch, encode_answers
from tests.buffer_service.conftest import NO_BATCHING, Function, serving

A = "aaaaaaaa"


def measured(seconds=0.25, age=0.0, latencies=(0.5, 0.75), **fields):
    told = {"route": "", "table": 0, "function": "f", "digest": "d", "size": 2, "service": 0.125, "billed": math.nan, "cold": False}
    return MeasuredBatch(**{"ended_at": -age, "seconds": seconds, "failed": 0, "latencies": latencies, **told, **fields})


@pytest.fixture
async def queue(redis_server, model):
    store = RedisStore(redis_server.url, A)
    queue = store.queue(model, Limits(batches_kept=1000, arrivals_kept=1000))
    await queue.install(NO_BATCHING)
    yield queue
    await store.close()


@pytest.fixture
def reader(redis_server, model):
    reader = RecordReader(redis_server.url, model, page=100)
    yield reader
    reader.close()


async def test_both_stores_keep_the_newest_batches_dated_by_their_own_clock(queue, reader, model):
    backend = MemoryBackend()
    memory = MemoryStore(backend, A).queue(model, Limits(batches_kept=1000))
    await memory.install(NO_BATCHING)
    for call in range(3):
        events = Events(
            measured=[measured(age=0.5, cold=True, rejected=True, route="r"), measured(0.5, function="g", failed=1, latencies=())]
        )
        for each in (queue, memory):
            await each.advance(events, now=10.0 + call)
    kept = list(backend.batches[model].batches)
    assert [batch.ended_at for batch in kept] == [9.5, 10.0, 10.5, 11.0, 11.5, 12.0]
    assert repr([batch._replace(route="r") for batch in kept]) == repr(reader.batches().batches)


async def test_the_memory_store_and_redis_keep_no_more_batches_than_they_were_told(queue, client, model):
    backend = MemoryBackend()
    memory = MemoryStore(backend, A).queue(model, Limits(batches_kept=10))
    await memory.install(NO_BATCHING)
    for _ in range(60):
        await memory.advance(Events(measured=[measured()] * 50), now=1.0)
        await queue.advance(Events(measured=[measured()] * 50), now=1.0)
    assert (len(backend.batches[model].batches), backend.batches[model].noted) == (10, 3000)
    assert client.xlen(batch_stream_key(model)) <= 20 + 100  # Redis trims by blocks of at most 100 entries


async def test_with_none_to_keep_nothing_is_measured(redis_server, client, model):
    function = Function()
    store = RedisStore(redis_server.url, A)
    async with serving(function, NO_BATCHING, store, batches_kept=0) as buffer:
        assert (await buffer.post("/models/m", b"1"))[0] == 200
    assert not client.exists(batch_stream_key("m"))


def test_of_more_latencies_than_are_kept_the_quantiles_stay():
    many = [float(i) for i in range(10_000)]
    few = few_latencies(many[::-1])
    assert len(few) == MOST_LATENCIES
    assert abs(few[MOST_LATENCIES // 2] - 5000) < 50 and few[0] < 25 and few[-1] > 9975
    assert few_latencies([3.0, 1.0]) == (3.0, 1.0)


async def test_reading_goes_on_where_it_stopped_in_pages_and_names_nothing_twice(queue, reader):
    for call in range(250):
        await queue.advance(Events([A.encode() + b"%08x" % call], measured=[measured(size=call)]), now=float(call))
    sizes, times, pages = [], [], 0
    while (new := reader.batches()).batches:
        sizes += [batch.size for batch in new.batches]
        pages += 1
    while (came := reader.arrivals()).arrivals.times:
        times += came.arrivals.times
    assert (sizes, times) == ([*range(250)], [float(call) for call in range(250)]) and pages >= 3
    await queue.advance(Events(measured=[measured(size=999)]), now=300.0)
    assert [batch.size for batch in reader.batches().batches] == [999]
    assert reader.batches() == ([], 0, False, 0.0, False)


async def test_what_was_trimmed_before_it_was_read_is_counted(queue, reader):
    await queue.advance(Events(measured=[measured()]), now=1.0)
    assert reader.batches().missed == 0
    for call in range(60):
        await queue.advance(Events(measured=[measured()] * 100), now=2.0 + call)
    new = reader.batches()
    assert new.missed > 0
    assert new.missed + len(new.batches) == 6000


@pytest.mark.parametrize("longer", [False, True])
async def test_a_stream_that_began_anew_is_read_from_its_beginning(queue, reader, client, model, longer):
    for call in range(5):
        await queue.advance(Events(measured=[measured()]), now=float(call))
    assert len(reader.batches().batches) == 5
    client.delete(batch_stream_key(model))
    for call in range(8 if longer else 2):
        await queue.advance(Events(measured=[measured(size=7)]), now=10.0 + call)
    new = reader.batches()
    assert new.began_anew
    assert new.more
    assert [batch.size for batch in reader.batches().batches] == [7] * (8 if longer else 2)


async def test_where_the_clock_is_set_back_times_go_on(queue, reader):
    for now in (100.0, 101.0, 91.0, 92.0):
        await queue.advance(Events([A.encode() + b"%08x" % int(now)], measured=[measured()]), now=now)
    new, came = reader.batches(), reader.arrivals()
    assert [batch.ended_at for batch in new.batches] == [100.0, 101.0, 101.0, 102.0] == list(came.arrivals.times)
    assert new.set_back == came.set_back == 10.0
    await queue.advance(Events(measured=[measured()]), now=93.0)
    assert [batch.ended_at for batch in reader.batches().batches] == [103.0]


async def test_what_somebody_else_put_into_the_stream_is_passed_over(queue, reader, client, model):
    await queue.advance(Events(measured=[measured()]), now=1.0)
    client.xadd(batch_stream_key(model), {"call": b"12345678", "batches": b"no batches"}, id="5-0")
    await queue.advance(Events(measured=[measured(size=3)]), now=2.0)
    assert [batch.size for batch in reader.batches().batches] == [2, 3]


async def test_an_emptied_stream_of_batches_does_not_stop_the_queue(queue, reader, client, model):
    await queue.advance(Events(measured=[measured()]), now=1.0)
    client.xtrim(batch_stream_key(model), maxlen=0)
    for _ in range(3):
        await queue.advance(Events([A.encode() + b"00000001"], measured=[measured(size=3)]), now=2.0)
    assert client.xlen(batch_stream_key(model)) > 0


def test_a_reader_says_that_redis_is_away_or_that_the_url_is_none(model):
    with pytest.raises(StoreUnavailable, match="does not answer"):
        RecordReader("redis://127.0.0.1:1", model).batches()
    with pytest.raises(InvalidInput, match="url"):
        RecordReader("nothing://", model).arrivals()


async def test_a_buffer_tells_what_its_function_took_and_how_long_callers_waited(redis_server, client):
    for key in (batch_stream_key("m"), stream_key("m")):
        client.delete(key)
    function = Function()

    async def invoke(payload):
        if (batch := decode_batch(payload)).describe:
            return await function(payload)
        await asyncio.sleep(0.01)
        status = {b'"bad"': 500, b'"wrong"': 400}
        answers = [Answer(item.id, status.get(item.body, 200), item.content_type, item.body) for item in batch.items]
        return encode_answers(answers, Measured(service=0.008, billed=0.009, cold=True))

    store = RedisStore(redis_server.url, A)
    async with serving(invoke, constructors.size_or_timeout(3, 5.0), store) as buffer:
        answers = await asyncio.gather(*(buffer.post("/models/m", body) for body in (b'"good"', b'"bad"', b'"wrong"')))
        assert sorted(status for status, *_ in answers) == [200, 400, 500]
        _, _, description = await buffer.get("/v2/models/m")
    reader = RecordReader(redis_server.url, "m")
    [batch] = reader.batches().batches
    reader.close()
    assert (batch.size, batch.failed, batch.rejected) == (3, 1, True)  # whose mistake it was, and of whom it is a latency
    assert (batch.function, batch.cold, batch.table, batch.route) == ("f", True, 0, "")
    assert batch.service == pytest.approx(0.008) and batch.billed == pytest.approx(0.009)
    assert 0.008 < batch.seconds <= min(batch.latencies) and len(batch.latencies) == 2
    assert batch.digest
    assert batch.digest.encode() in description


OLD_ROW = struct.Struct("<HHBBIIHffff")
"""As versions have it that know of no rejection; the fourth is 1 where the batch was cold."""


@pytest.mark.parametrize("cold", [False, True])
def test_what_earlier_versions_wrote_is_read_and_who_was_rejected_has_failed_there(cold):
    rows = OLD_ROW.pack(0, 1, 0, cold, 3, 2, 1, 0.0, 0.25, 0.125, 0.5) + struct.pack("<f", 0.75)
    entry = {FIELD: struct.pack("<d", 10.0), BATCHES: msgspec.msgpack.encode(("", ["f", "d"], rows))}
    wanted = measured(size=3, failed=2, latencies=(0.75,), cold=cold, billed=0.5)._replace(ended_at=10.0)
    assert unpack_batches(b"1-0", entry).batches == (wanted,)


@pytest.mark.parametrize(("cold", "rejected", "seen_as"), [(False, False, 0), (True, False, 1), (False, True, 2), (True, True, 3)])
def test_earlier_versions_take_a_batch_with_a_rejected_request_for_a_cold_one(cold, rejected, seen_as):
    packed = pack_batches([measured(cold=cold, rejected=rejected)])
    _, _, rows = msgspec.msgpack.decode(packed)
    assert OLD_ROW.unpack_from(rows)[3:7] == (seen_as, 2, 0, 2) and len(rows) == OLD_ROW.size + 2 * 4
    [read] = unpack_batches(b"1-0", {FIELD: struct.pack("<d", 10.0), BATCHES: packed}).batches
    assert (read.cold, read.rejected) == (cold, rejected)


def test_packing_keeps_what_a_float_holds():
    assert len(pack_batches([measured()])) < 60


async def test_of_many_models_those_with_records_that_were_not_read_are_told_in_one_question(queue, client, redis_server, model):
    news, readers = News(redis_server.url), {name: RecordReader(redis_server.url, name) for name in (model, "quiet", "still")}
    asked = client.info("commandstats").get("cmdstat_xread", {}).get("calls", 0)
    assert news.of(readers) == set()
    await queue.advance(Events([b"a" * 16]))
    assert news.of(readers) == {model}
    assert len(readers[model].look()[0].arrivals.times) == 1
    await queue.advance(Events(measured=[measured()]))
    assert news.of(readers) == {model}
    assert len(readers[model].look()[1].batches) == 1
    seen = readers["quiet"].now
    assert news.of(readers) == set()
    assert readers["quiet"].now > seen
    assert client.info("commandstats")["cmdstat_xread"]["calls"] == asked + 4
    news.close()


async def test_what_many_models_have_is_read_with_one_question_and_is_what_each_reader_would_find(
    queue, client, redis_server, model
):
    news, readers = News(redis_server.url), {name: RecordReader(redis_server.url, name) for name in (model, "quiet")}
    asked = client.info("commandstats").get("cmdstat_xread", {}).get("calls", 0)
    for n in (1, 2, 0):
        for _ in range(n):
            await queue.advance(Events([b"a" * 16], measured=[measured()]))
        found = news.read(readers)
        assert [len(found[model][0].arrivals.times), len(found[model][1].batches)] == [n, n]
        assert not found["quiet"][0].arrivals.times
        assert not any(each.missed or each.more or each.began_anew for both in found.values() for each in both)
    apart = RecordReader(redis_server.url, model)
    arrivals, batches = apart.look()
    assert (apart.positions, len(arrivals.arrivals.times), len(batches.batches)) == (readers[model].positions, 3, 3)
    assert client.info("commandstats")["cmdstat_xread"]["calls"] == asked + 3
    client.delete(stream_key(model))  # as where Redis lost its data
    assert news.read(readers)[model][0].began_anew
    await queue.advance(Events([b"a" * 16]))
    assert len(news.read(readers)[model][0].arrivals.times) == 1
    news.close()


def test_more_models_than_fit_one_question_are_read_with_several(client, redis_server, model):
    news, readers = News(redis_server.url), {f"{k}": RecordReader(redis_server.url, f"{k}") for k in range(TOGETHER + 1)}
    asked = client.info("commandstats").get("cmdstat_xread", {}).get("calls", 0)
    assert news.read(readers).keys() == readers.keys()
    assert client.info("commandstats")["cmdstat_xread"]["calls"] == asked + 2
    news.close()


def test_where_not_all_streams_can_be_asked_for_at_once_every_model_may_have_records(client, redis_server, model):
    client.set(stream_key(model), "no stream, as a cluster has none here")
    news, readers = News(redis_server.url), {name: RecordReader(redis_server.url, name) for name in (model, "quiet")}
    assert news.of(readers) == {model, "quiet"}
    assert news.read(readers) == {}
    news.close()
    for ask in (News("redis://127.0.0.1:1").of, News("redis://127.0.0.1:1").read):
        with pytest.raises(StoreUnavailable):
            ask(readers)
