"""What the live page tells of all processes, from what they recorded in Redis; and how much is read, from a reader that counts."""

import asyncio
import json
import uuid

import pytest

from sluice.batching.documents import Plan, PolicyDocument, Slo
from sluice.batching.errors import StoreUnavailable
from sluice.batching.policy import size_or_timeout
from sluice.buffer_service.page.history import KEPT, SAMPLE_EVERY, quantile_bounds
from sluice.buffer_service.page.recorded import FORGET, LOOK_EVERY, MOST_BATCHES, Recorded
from sluice.buffer_service.page.unanswered import UnansweredEverywhere
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import Events, Limits
from sluice.buffer_service.stream_reader import NewBatches, RecordReader
from sluice.buffer_service.telemetry import SECONDS
from sluice.buffer_service.unanswered import Unanswered, UnansweredCounts
from tests.buffer_service.conftest import NO_BATCHING, Function, Plans, serving
from tests.buffer_service.test_batch_stream import measured

PLAN = Plan(model="m", function="f", policy=PolicyDocument.of(size_or_timeout(4, 0.01)), slo=Slo(30.0))


class Stream:
    """A model's records, as a reader tells them; ``asked`` counts."""

    def __init__(self):
        self.came, self.new, self.asked, self.more, self.trouble = 0, [], 0, False, False

    def look_for_routes(self):
        if self.trouble:
            raise StoreUnavailable("Redis does not answer")

    def batches(self):
        self.asked += 1
        new, self.new = self.new, []
        return NewBatches(new, 0, False, 0.0, self.more)

    def pass_over_arrivals(self):
        return self.came

    def pass_over_batches(self):
        self.new = []
        return 0

    def close(self):
        pass

    def serve(self, n, **fields):
        self.came += 2 * n
        self.new += [measured(**fields)] * n


@pytest.fixture
def streams():
    return {name: Stream() for name in "ab"}


@pytest.fixture
def time():
    return [0.0]


@pytest.fixture
def recorded(streams, time):
    return Recorded(lambda name, page: streams[name], lambda: time[0])


async def look(recorded, time, seconds=LOOK_EVERY, limits=None):
    time[0] += seconds
    await recorded.look(limits or {"a": 0.6})
    return recorded.of("a")


async def test_what_was_recorded_since_somebody_asks_is_counted_and_nothing_before(recorded, streams, time):
    streams["a"].serve(100)
    assert await look(recorded, time) is None
    streams["a"].serve(3)
    streams["a"].serve(1, failed=2, latencies=())
    told = await look(recorded, time)
    assert told[:7] == (LOOK_EVERY, 8, 4, 8, 2, 6, 3)
    assert told.arrival_rate == 8 / LOOK_EVERY
    assert quantile_bounds(told.latency.counts, SECONDS, 0.95) == (0.5, 0.75)


async def test_it_is_read_once_in_two_seconds_however_often_somebody_asks_and_never_while_nobody_does(recorded, streams, time):
    for _ in range(40):
        await look(recorded, time, LOOK_EVERY / 4)
    assert streams["a"].asked == 9
    time[0] += FORGET + 1
    assert streams["a"].asked == 9


async def test_after_a_time_in_which_nobody_asked_or_more_than_a_page_came_the_figures_begin_anew(recorded, streams, time):
    await look(recorded, time)
    streams["a"].serve(5)
    assert (await look(recorded, time)).came == 10
    streams["a"].serve(5)
    assert await look(recorded, time, FORGET + 1) is None
    assert (await look(recorded, time)).came == 0
    streams["a"].more = True
    streams["a"].serve(5)
    assert await look(recorded, time) is None
    streams["a"].more = False
    streams["a"].came = 0  # Redis lost its data
    assert await look(recorded, time) is None


async def test_no_more_than_five_minutes_are_kept(recorded, streams, time):
    for _ in range(2 * KEPT):
        streams["a"].serve(1)
        told = await look(recorded, time, SAMPLE_EVERY)
    assert len(recorded._models["a"].samples) == KEPT
    assert (told.seconds, told.batches) == (KEPT * SAMPLE_EVERY, KEPT)


async def test_a_look_ends_after_so_many_batches_and_the_next_begins_with_those_that_were_left(recorded, streams, time):
    limits = {"a": 1.0, "b": 1.0}
    await look(recorded, time, limits=limits)
    for _ in range(2):
        for stream in streams.values():
            stream.serve(MOST_BATCHES, latencies=())
        await look(recorded, time, limits=limits)
        assert [bool(stream.new) for stream in streams.values()].count(True) == 1
    assert [stream.asked for stream in streams.values()] == [1, 1]


async def test_where_redis_does_not_answer_that_is_said_and_nothing_is_told_until_it_does(recorded, streams, time):
    streams["a"].trouble = True
    assert await look(recorded, time) is None and recorded.trouble == "Redis does not answer"
    streams["a"].trouble = False
    await look(recorded, time)
    assert await look(recorded, time) is not None and recorded.trouble == ""


async def test_a_reader_passes_over_what_was_recorded_and_counts_it(redis_server):
    model = uuid.uuid4().hex
    store, reader = RedisStore(redis_server.url, "aaaaaaaa"), RecordReader(redis_server.url, model)
    queue = store.queue(model, Limits(batches_kept=1000, arrivals_kept=1000))
    await queue.install(NO_BATCHING)
    assert (reader.pass_over_arrivals(), reader.pass_over_batches()) == (0, 0)
    for call in range(3):
        await queue.advance(Events([b"aaaaaaaa%08x" % call], measured=[measured()] * 2), now=float(call))
    assert (reader.pass_over_arrivals(), reader.pass_over_batches()) == (3, 6)
    await queue.advance(Events([b"aaaaaaaa%08x" % 9], measured=[measured(size=7)]), now=9.0)
    assert list(reader.arrivals().arrivals.times) == [9.0]
    assert [batch.size for batch in reader.batches().batches] == [7]
    reader.close()
    await store.close()


async def test_the_page_of_one_process_tells_what_another_served(redis_server):
    namespace, function = uuid.uuid4().hex, Function()
    plans = Plans(PLAN)
    settings = {"redis_url": redis_server.url, "namespace": namespace}
    stores = [RedisStore(redis_server.url, name * 8, namespace) for name in "ab"]
    async with serving(function, None, stores[0], plans, **settings) as one, serving(function, None, stores[1], plans) as other:
        page = one.service.page
        page._watch._recorded = Recorded(lambda name, page: RecordReader(redis_server.url, name, namespace, page=page), lambda: now)
        now = 0.0
        assert json.loads(await page.status())["models"][0]["all_processes"] is None
        for _ in range(4):
            assert (await other.post("/models/m", b"1"))[0] == 200
        while (told := json.loads(await page.status())["models"][0])["all_processes"] is None or told["all_processes"][
            "batches"
        ] < 4:
            await asyncio.sleep(0.01)  # until the other has brought what it measured
            now += LOOK_EVERY
            page._fresh_until = 0.0
    shared = told["all_processes"]
    assert shared["unanswered"] is None  # where that is counted is not told here
    assert (told["measured"]["came"], shared["came"], shared["late"], shared["failed"]) == (0, 4, 0, 0)
    assert told["cost"]["predicted"]["usd_per_hour"] is None
    assert shared["latency"][0]["name"] == "p50"


async def test_who_had_no_answer_at_another_process_is_told_with_what_all_recorded(redis_server):
    namespace, function, clock = uuid.uuid4().hex, Function(), [0.0]
    counts = UnansweredCounts(redis_server.url, namespace)
    async with serving(function, None, RedisStore(redis_server.url, "a" * 8, namespace), Plans(PLAN)) as one:
        watch, page = one.service.page._watch, one.service.page
        watch._recorded = Recorded(lambda name, page: RecordReader(redis_server.url, name, namespace, page=page), lambda: clock[0])
        watch._unanswered = UnansweredEverywhere(counts, lambda: clock[0])
        await counts.add("m", {"QueueFull": 3, "InvalidInput": 2}, 3, 100.0)
        told = []
        for _ in range(3):
            clock[0] += LOOK_EVERY
            page._fresh_until = 0.0
            told.append(json.loads(await page.status())["models"][0]["all_processes"])
    await counts.close()
    assert told[0] is None
    assert told[-1]["unanswered"] == {"since": 100.0, "by_error": {"InvalidInput": 2, "QueueFull": 3}, "late": 3}


class Counts:
    """Unanswered requests, as Redis has them; ``asked`` has the models."""

    def __init__(self):
        self.asked, self.away = [], False

    async def of(self, model, window=0.0):
        if self.away:
            raise StoreUnavailable("Redis does not answer")
        self.asked.append((model, window))
        return Unanswered(1.0, {"QueueFull": 2}, 1)


async def test_who_had_no_answer_is_read_seldom_and_not_known_where_redis_is_away(time):
    counts = Counts()
    unanswered = UnansweredEverywhere(counts, lambda: time[0])
    for _ in range(5):
        await unanswered.look({"a": 7.0})
        time[0] += 1
    assert counts.asked == [("a", 7.0)] and unanswered.tell("b") is None
    counts.away = True
    await unanswered.look({"a": 7.0, "b": 7.0})
    assert unanswered.tell("a") is None


async def test_who_had_no_answer_is_not_known_of_models_for_which_the_time_does_not_suffice(time, monkeypatch):
    monkeypatch.setattr("sluice.buffer_service.page.unanswered.WAIT", 0.05)

    class Slow(Counts):
        async def of(self, model, window=0.0):
            await asyncio.sleep(0 if model == "a" else 60)
            return await super().of(model, window)

    unanswered = UnansweredEverywhere(Slow(), lambda: time[0])
    await unanswered.look({"a": 7.0, "b": 7.0})
    assert unanswered.tell("a") == {"since": 1.0, "by_error": {"QueueFull": 2}, "late": 1} and unanswered.tell("b") is None
