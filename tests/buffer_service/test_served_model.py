"""A model with several routes: dealt by shares, each with its queue; routes that come and go cost nobody his answer."""

import asyncio
import functools
import json
import uuid
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, RequestSize, Route
from sluice.batching.errors import InvalidInput, StoreUnavailable
from sluice.buffer_service.app import BufferService
from sluice.buffer_service.arrival_stream import read_arrivals
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.circuit import LONGEST_OPEN, UNAVAILABLE_LIMIT
from sluice.buffer_service.invokers import FunctionUnavailable, LocalInvoker
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.settings import Settings
from sluice.lambda_fn.contract import encode_metadata
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import NO_BATCHING, Function, Plans, memory, plan, routed, serving
from tests.buffer_service.virtual_time import in_virtual_time
from tests.waiting import until

HELD = constructors.static(100)  # nobody leaves by himself


class Backend:
    """One backend in memory or one Redis: opens stores, and reads the record of arrivals."""

    def __init__(self, url=None):
        self.url, self._memory = url, MemoryBackend(lambda: asyncio.get_running_loop().time())

    def store(self):
        name = new_process_name()
        return MemoryStore(self._memory, name) if self.url is None else RedisStore(self.url, name)

    def arrivals(self, model):
        return self._memory.arrival_times(model) if self.url is None else read_arrivals(self.url, model)


def in_its_time(test):
    """A test of a backend: in virtual time where that is in memory."""

    @functools.wraps(test)
    def run_test(backend, **fixtures):
        if backend.url is None:
            return in_virtual_time(test)(backend, **fixtures)
        return asyncio.run(test(backend, **fixtures))

    return run_test


@pytest.fixture(params=["memory", "redis"])
def backend(request, redis_server):
    return Backend(redis_server.url if request.param == "redis" else None)


@pytest.fixture
def name():
    return uuid.uuid4().hex


@pytest.fixture
def functions():
    return {name: Function() for name in "abcf"}


@asynccontextmanager
async def serving_plan(document, functions, store=None, lease=0.2, **settings):
    """Serve a plan; its model and how to post to it come with the buffer."""
    store = store if store is not None else MemoryStore(memory(), new_process_name())
    async with serving(None, None, store, Plans(document), LocalInvoker(functions), lease=lease, **settings) as buffer:
        buffer.model = buffer.service.model(document.model)
        yield buffer


def ask(buffer, n, first=0):
    """So many requests at once, each with its number for a body."""
    path = f"/models/{buffer.model.plan.model}"
    return [asyncio.create_task(buffer.post(path, b"%d" % i)) for i in range(first, first + n)]


async def answered_by(requests, first=0):
    """How many answers each route gave (``None``: a plan without routes), if everyone got his own."""
    answers = await asyncio.gather(*requests)
    assert [(status, body) for status, _, body in answers] == [(200, b"%d" % i) for i in range(first, first + len(answers))]
    return Counter(headers.get("sluice-route") for _, headers, _ in answers)


def sample(buffer, metric, **labels):
    return buffer.service.telemetry.registry.get_sample_value(metric, {"model": buffer.model.plan.model, **labels})


async def until_waiting(buffer, n):
    await until(lambda: sample(buffer, "sluice_queue_length") == n)


async def until_gone(buffer, route):
    await until(lambda: sample(buffer, "sluice_route_share", route=route) is None)


async def gone(batch):
    raise FunctionUnavailable("connection refused")


async def asked_steadily(buffer, n, every=0.01):
    """The status of so many requests, one after the other, and the route of their answers."""

    async def one(i):
        await asyncio.sleep(i * every)
        status, headers, _ = await buffer.post("/models/m", b"%d" % i)
        return status, headers.get("sluice-route")

    return Counter(await asyncio.gather(*(one(i) for i in range(n))))


@in_virtual_time
async def test_a_route_whose_worker_is_gone_gives_its_share_to_the_others_and_takes_it_back(functions):
    """At 100 requests/s with batches of up to 4: the calls in vain that show that it is gone, and one trial in a while, fail."""
    document = routed(("a", 0.6), ("b", 0.4), policy=constructors.size_or_timeout(4, 0.02))
    async with serving_plan(document, functions) as buffer:
        assert await asked_steadily(buffer, 100) == {(200, "a"): 60, (200, "b"): 40}
        functions["b"].answer = gone
        while_away = await asked_steadily(buffer, 1500)
        assert while_away[200, "a"] >= 1500 - 4 * UNAVAILABLE_LIMIT
        assert while_away[200, "a"] + while_away[502, "b"] + while_away[503, "b"] == 1500
        functions["b"].answer = functions["b"].echo
        await asyncio.sleep(LONGEST_OPEN)
        await asked_steadily(buffer, 10)
        assert await asked_steadily(buffer, 100) == {(200, "a"): 60, (200, "b"): 40}


@in_virtual_time
async def test_routes_by_size_keep_their_requests_though_a_worker_is_gone(functions):
    """Another route has another promise."""
    routes = [Route("a", "a", PolicyDocument.of(NO_BATCHING), 0.5, up_to=5), Route("b", "b", PolicyDocument.of(NO_BATCHING), 0.5)]
    document = Plan(model="m", routes=routes, size=RequestSize("bytes"))
    functions["a"].answer = gone
    async with serving_plan(document, functions) as buffer:
        answers = await asked_steadily(buffer, 100)
    assert not answers[200, "b"] and not answers[200, "a"]


@in_virtual_time
async def test_where_the_workers_of_all_routes_are_gone_every_request_hears_of_it(functions):
    for function in functions.values():
        function.answer = gone
    async with serving_plan(routed(("a", 0.6), ("b", 0.4)), functions) as buffer:
        answers = await asked_steadily(buffer, 200)
    assert {status for status, _ in answers} == {502, 503} and answers[503, None] > 150


@in_its_time
async def test_requests_are_split_by_the_shares_and_each_answer_names_its_route(backend, functions, name):
    document = routed(("a", 0.75), ("b", 0.25), policy=constructors.size_or_timeout(4, 0.01), model=name)
    async with serving_plan(document, functions, backend.store()) as buffer:
        assert await answered_by(ask(buffer, 80)) == {"a": 60, "b": 20}
        assert sample(buffer, "sluice_requests_total", status="200") == 80
        assert sample(buffer, "sluice_route_requests_total", status="200", route="b") == 20
    assert {n: sum(len(batch.items) for batch in functions[n].batches) for n in "ab"} == {"a": 60, "b": 20}


@in_its_time
async def test_every_process_deals_its_own_requests_by_the_shares(backend, functions, name):
    document = routed(("a", 0.75), ("b", 0.25), model=name)
    one, two = (serving_plan(document, functions, backend.store()) for _ in range(2))
    async with one as first, two as second:
        answers = [answered_by(ask(buffer, n)) for buffer, n in ((first, 41), (second, 18))]
        assert await asyncio.gather(*answers) == [{"a": 31, "b": 10}, {"a": 14, "b": 4}]


@in_its_time
async def test_every_route_forms_batches_of_its_own_by_its_own_table(backend, functions, name):
    tables = {"a": constructors.static(6), "b": constructors.static(2)}
    named = [Route(n, n, PolicyDocument.of(table), share) for (n, table), share in zip(tables.items(), (0.75, 0.25), strict=True)]
    document = Plan(model=name, routes=named)
    async with serving_plan(document, functions, backend.store()) as buffer:
        await answered_by(ask(buffer, 24))
    assert {n: {len(batch.items) for batch in functions[n].batches} for n in "ab"} == {"a": {6}, "b": {2}}


@in_its_time
async def test_shares_that_change_while_running_count_from_then_on(backend, functions, name):
    async with serving_plan(routed(("a", 0.75), ("b", 0.25), model=name), functions, backend.store()) as buffer:
        await answered_by(ask(buffer, 10))
        await buffer.model.follow(routed(("a", 0.1), ("b", 0.2), ("c", 0.7), model=name))
        assert await answered_by(ask(buffer, 50)) == {"a": 5, "b": 10, "c": 35}
        assert sample(buffer, "sluice_route_share", route="c") == 0.7


@in_its_time
async def test_who_waits_at_a_route_that_is_removed_is_answered_by_those_that_remain(backend, functions, name):
    document = routed(("a", 0.5), ("b", 0.25), ("c", 0.25), policy=HELD, model=name)
    async with serving_plan(document, functions, backend.store()) as buffer:
        waiting = ask(buffer, 40)
        await until_waiting(buffer, 40)
        await buffer.model.follow(routed(("b", 0.5), ("c", 0.5), policy=NO_BATCHING, model=name))
        assert await answered_by(waiting) == {"b": 20, "c": 20}
        assert functions["a"].batches == []
        await until_gone(buffer, "a")
        assert sample(buffer, "sluice_queue_length") == 0
        assert await answered_by(ask(buffer, 4)) == {"b": 2, "c": 2}
    assert len(backend.arrivals(name)) == 44  # what moved is recorded once


@in_its_time
async def test_a_plan_gains_and_loses_its_routes_with_who_waits(backend, functions, name):
    async with serving_plan(plan(HELD, name), functions, backend.store()) as buffer:
        waiting = ask(buffer, 8)
        await until_waiting(buffer, 8)
        await buffer.model.follow(routed(("a", 0.5), ("b", 0.5), policy=HELD, model=name))
        await until(lambda: sample(buffer, "sluice_route_queue_length", route="b") == 4)
        await until_waiting(buffer, 8)
        await buffer.model.follow(plan(NO_BATCHING, name))
        assert await answered_by(waiting) == {None: 8}
        await until_gone(buffer, "a")
        await until_gone(buffer, "b")
        assert await answered_by(ask(buffer, 3)) == {None: 3}
    assert len(backend.arrivals(name)) == 11


@in_virtual_time
async def test_a_batch_under_way_at_a_route_that_is_removed_ends_there(functions):
    release = asyncio.Event()

    async def slow(batch):
        await release.wait()
        return await functions["a"].echo(batch)

    functions["a"].answer = slow
    async with serving_plan(routed(("a", 1.0)), functions) as buffer:
        under_way = ask(buffer, 1)
        await until(lambda: functions["a"].batches)
        await buffer.model.follow(routed(("b", 1.0)))
        assert await answered_by(ask(buffer, 1)) == {"b": 1}
        assert sample(buffer, "sluice_route_share", route="a") == 0
        release.set()
        assert await answered_by(under_way) == {"a": 1}
        await until_gone(buffer, "a")


@in_virtual_time
async def test_a_batch_under_way_at_a_function_that_is_gone_with_its_route_is_answered_by_another(functions):
    removed = asyncio.Event()

    async def gone(batch):
        await removed.wait()
        raise FunctionUnavailable("worker a does not answer")

    functions["a"].answer = gone
    document = routed(("a", 1.0), policy=constructors.greedy(4))
    async with serving_plan(document, functions) as buffer:
        waiting = ask(buffer, 10)
        await until(lambda: functions["a"].batches)
        await buffer.model.follow(routed(("b", 1.0), policy=constructors.greedy(4)))
        removed.set()
        assert await answered_by(waiting) == {"b": 10}
        assert len(functions["a"].batches) == 1
        await until_gone(buffer, "a")


@in_virtual_time
async def test_a_route_that_returns_while_it_is_being_left_goes_on(functions):
    release = asyncio.Event()

    async def slow(batch):
        await release.wait()
        return await functions["a"].echo(batch)

    functions["a"].answer = slow
    both = routed(("a", 0.5), ("b", 0.5), policy=constructors.static(2, servers=None))
    async with serving_plan(both, functions) as buffer:
        under_way = ask(buffer, 4)
        await until(lambda: functions["a"].batches)
        for _ in range(3):
            await buffer.model.follow(routed(("b", 1.0), policy=constructors.static(2, servers=None)))
            await asyncio.sleep(0.01)
            await buffer.model.follow(both)
        release.set()
        assert await answered_by(under_way) == {"a": 2, "b": 2}
        await asyncio.sleep(0.3)  # longer than a lease: nobody closes it now
        waiting = ask(buffer, 2)
        await until_waiting(buffer, 2)  # by their own tables again, for one more each
        assert await answered_by(ask(buffer, 2, 2), 2) == await answered_by(waiting) == {"a": 1, "b": 1}


@in_virtual_time
async def test_a_route_that_returns_while_it_closes_is_opened_again_when_it_has_closed(functions):
    async with serving_plan(routed(("a", 0.5), ("b", 0.5)), functions) as buffer:
        for i in range(20):  # the looks at whether it is drained, and its closing, lie anywhere between
            await buffer.model.follow(routed(("b", 1.0)))
            for _ in range(i):
                await asyncio.sleep(0)
            await buffer.model.follow(routed(("a", 0.5), ("b", 0.5)))
            assert await answered_by(ask(buffer, 4)) == {"a": 2, "b": 2}
            assert sample(buffer, "sluice_route_share", route="a") == 0.5


@in_its_time
async def test_who_waits_at_another_process_is_moved_and_answered_too(backend, functions, name):
    before = routed(("a", 0.5), ("b", 0.5), policy=HELD, model=name)
    after = routed(("b", 1.0), policy=NO_BATCHING, model=name)
    one = serving_plan(before, functions, backend.store())
    two = serving_plan(before, functions, backend.store(), lease=9.0)  # looks every three seconds: it does nothing meanwhile
    async with one as first, two as second:
        waiting = ask(first, 6), ask(second, 6)
        await until_waiting(first, 12)
        await first.model.follow(after)
        assert [await answered_by(requests) for requests in waiting] == [{"b": 6}, {"b": 6}]
        # The second has not seen the plan yet, and its requests at the removed route are answered all the same.
        assert (await answered_by(ask(second, 4))).total() == 4
        await second.model.follow(after)
        await until_gone(first, "a")
        await until_gone(second, "a")
        assert await answered_by(ask(second, 4)) == {"b": 4}


@in_virtual_time
async def test_what_finds_no_room_where_it_is_moved_is_refused_and_not_forgotten(functions):
    document = routed(("a", 0.5), ("b", 0.5), policy=HELD)
    async with serving_plan(document, functions, max_queue_length=3) as buffer:
        waiting = ask(buffer, 6)
        await until_waiting(buffer, 6)
        await buffer.model.follow(routed(("b", 1.0), policy=HELD))
        refused, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED, timeout=5)
        await until(lambda: sum(request.done() for request in waiting) == 3)
        await buffer.model.follow(routed(("b", 1.0)))
        answers = await asyncio.gather(*waiting)
    assert sorted(status for status, _, _ in answers) == [200] * 3 + [429] * 3
    assert b"3 requests wait already" in next(iter(refused)).result()[2]


async def test_every_route_submits_again_what_its_queue_lost(functions):
    with RedisServer() as redis:
        document = routed(("a", 0.5), ("b", 0.5), policy=HELD)
        async with serving_plan(document, functions, RedisStore(redis.url, new_process_name())) as buffer:
            waiting = ask(buffer, 6)
            await until_waiting(buffer, 6)
            redis.kill()
            redis.start()
            await asyncio.sleep(0.1)  # a sweep notices
            await until_waiting(buffer, 6)
            await buffer.model.follow(routed(("a", 0.5), ("b", 0.5)))
            assert await answered_by(waiting) == {"a": 3, "b": 3}


@in_virtual_time
async def test_a_stop_while_a_route_is_being_left_leaves_no_lease(functions):
    release = asyncio.Event()

    async def slow(batch):
        await release.wait()
        return await functions["a"].echo(batch)

    functions["a"].answer = slow
    backend = memory()
    document = routed(("a", 1.0), policy=constructors.greedy(1))
    async with serving_plan(document, functions, MemoryStore(backend, new_process_name())) as buffer:
        under_way = ask(buffer, 1)
        await until(lambda: functions["a"].batches)
        await buffer.model.follow(routed(("b", 1.0), policy=constructors.greedy(1)))
        stopping = asyncio.create_task(buffer.stop())
        release.set()
        await stopping
        assert await answered_by(under_way) == {"a": 1}
    assert {queue: (shared.seen, shared.in_flight) for queue, shared in backend.queues.items()} == {
        "m:a": ({}, {}),
        "m:b": ({}, {}),
    }


@in_virtual_time
async def test_the_metadata_of_a_model_comes_from_a_route_that_answers_and_bears_the_models_name(functions):
    async def away(payload):
        raise FunctionUnavailable("away")

    async def describe(payload):
        return encode_metadata({"name": "resnet50", "platform": "onnx"})

    policy = PolicyDocument.of(NO_BATCHING)
    document = Plan(model="m", routes=[Route("x", "away", policy, 0.5), Route("y", "there", policy, 0.5, "resnet50")])
    in_force = {"digest": document.digest, "made_at": None, "alone": {"function": "away", "hold": 0.0}}
    async with serving_plan(document, {"away": away, "there": describe}) as buffer:
        status, _, body = await buffer.get("/v2/models/m")
        assert (status, json.loads(body)) == (200, {"name": "m", "platform": "onnx", "plan": in_force})
        await buffer.model.follow(routed(("away", 1.0)))
        assert (await buffer.get("/v2/models/m"))[0] == 502


@in_virtual_time
async def test_a_function_is_asked_for_the_variant_of_its_route(functions):
    policy = PolicyDocument.of(NO_BATCHING)
    document = Plan(model="m", routes=[Route("x", "a", policy, 0.5, "small"), Route("y", "b", policy, 0.5)])
    async with serving_plan(document, functions) as buffer:
        await answered_by(ask(buffer, 2))
    assert (functions["a"].batches[0].model, functions["b"].batches[0].model) == ("small", "m")


@pytest.mark.parametrize(
    ("variant", "message"),
    [
        ("", "model: 'm' is not allowed; allowed: the model that http://b:1 serves, 'large'"),
        ("small", "variant of route y: 'small' is not allowed; allowed: the model that http://b:1 serves, 'large'"),
    ],
)
async def test_a_route_whose_worker_serves_something_else_is_refused_by_name(variant, message):
    def serves(model):
        async def describe(payload):
            return encode_metadata({"name": model})

        return describe

    policy = PolicyDocument.of(NO_BATCHING)
    invoker = LocalInvoker({"http://a:1": serves(variant or "m"), "http://b:1": serves("large")})
    service = BufferService(Settings(port=0), MemoryStore(MemoryBackend(), "tttttttt"), invoker, Plans())
    document = Plan(model="m", routes=[Route("y", "http://a:1,http://b:1", policy, 1.0, variant)])
    with pytest.raises(InvalidInput, match=message):
        await service._check_functions(document)


@in_virtual_time
async def test_a_plan_without_routes_has_neither_the_header_nor_the_metrics_of_routes(functions):
    document = plan(NO_BATCHING)
    async with serving_plan(document, functions) as buffer:
        assert await answered_by(ask(buffer, 2)) == {None: 2}
        _, _, metrics = await buffer.get("/metrics")
    assert b'route="' not in metrics
    assert f'sluice_plan_info{{digest="{document.digest}",function="f",model="m",policy="no_batching"}} 1.0'.encode() in metrics


# --- what happens while another plan is being followed


class HookedQueue:
    def __init__(self, queue, hook):
        self._queue, self._hook = queue, hook

    async def install(self, policy):
        await self._queue.install(policy)

    async def advance(self, events, now=None):
        await self._hook(events)
        return await self._queue.advance(events, now)


class HookedStore(MemoryStore):
    """A memory store whose calls wait for, or fail by, what a test says of the route."""

    def __init__(self):
        super().__init__(memory(), new_process_name())
        self.hooks = {}

    def queue(self, model, limits, route=""):
        async def hook(events):
            if route in self.hooks:
                await self.hooks[route](events)

        return HookedQueue(super().queue(model, limits, route), hook)


@in_virtual_time
async def test_who_could_not_be_moved_at_once_is_moved_later_though_other_batches_end_meanwhile(functions):
    store, ends = HookedStore(), asyncio.Event()

    async def fails(events):
        if events.arrivals:
            raise StoreUnavailable("away")

    async def slow(batch):
        await ends.wait()
        return await functions["a"].echo(batch)

    functions["a"].answer = slow
    document = routed(("a", 1.0), policy=constructors.size_or_timeout(4, 60.0))
    async with serving_plan(document, functions, store, lease=0.3) as buffer:
        requests = ask(buffer, 7)  # four leave, three wait
        await until_waiting(buffer, 3)
        store.hooks["b"] = fails
        await buffer.service._follow(routed(("b", 1.0)))
        await asyncio.sleep(0.05)
        del store.hooks["b"]
        ends.set()
        assert await answered_by(requests) == {"a": 4, "b": 3}


@in_virtual_time
async def test_who_is_dealt_to_a_route_that_goes_is_dealt_again(functions):
    store, goes_on = HookedStore(), asyncio.Event()

    async def waits(events):
        if events.arrivals:
            await goes_on.wait()

    async with serving_plan(routed(("a", 1.0), policy=HELD), functions, store, lease=30.0) as buffer:
        requests = ask(buffer, 4)
        await until_waiting(buffer, 4)
        store.hooks["b"] = waits
        await buffer.service._follow(routed(("b", 0.5), ("c", 0.5)))
        await asyncio.sleep(0.05)
        await buffer.service._follow(routed(("b", 1.0)))
        goes_on.set()
        async with asyncio.timeout(2):
            assert await answered_by(requests) == {"b": 4}


@in_virtual_time
async def test_routes_that_return_while_several_close_are_served_again(functions):
    store = HookedStore()

    async def slow(events):
        await asyncio.sleep(0.02 if events.serving is not None else 0.0)

    store.hooks = dict.fromkeys("abc", slow)
    three, other = routed(("a", 0.4), ("b", 0.3), ("c", 0.3)), routed(("f", 1.0))
    async with serving_plan(three, functions, store) as buffer:
        for wait in range(12):
            await buffer.service._follow(other)
            await asyncio.sleep(wait * 0.005)
            await buffer.service._follow(three)
        assert await answered_by(ask(buffer, 10)) == {"a": 4, "b": 3, "c": 3}
