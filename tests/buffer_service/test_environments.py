"""Environments that are started when a plan comes into force, and those that are kept."""

from __future__ import annotations

import asyncio
import logging
import uuid

import pytest
from msgspec import structs

from sluice.batching import policy as constructors
from sluice.batching.documents import Beside, Plan, PolicyDocument, Route, WarmEnvironments
from sluice.batching.environments import PREPARED_WITHIN, held_by_ping
from sluice.batching.errors import StoreUnavailable
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.environments import ASKED, READY_WITHIN, TURN
from sluice.buffer_service.invokers import FunctionUnavailable, LocalInvoker
from sluice.buffer_service.memory_store import MemoryStore
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.store import STARTS_WITHIN, THERE_FOR, Limits, Turn
from sluice.lambda_fn.contract import Batch, decode_batch, encode_answers
from tests.buffer_service.conftest import Plans, memory, plan, serving
from tests.buffer_service.virtual_time import in_virtual_time

POLICY, OTHER = constructors.size_or_timeout(4, 0.1), constructors.size_or_timeout(8, 0.1)


class Pinged(LocalInvoker):
    """Which pings came, and how many at once; the first so many fail."""

    def __init__(self, function, fail=0):
        super().__init__({"f": function})
        self.pings: list[Batch] = []
        self.fail = fail
        self.now = self.most = 0

    async def invoke(self, function, payload, avoid=""):
        batch = decode_batch(payload)
        if not batch.ping:
            return await super().invoke(function, payload, avoid)
        self.pings.append(batch)
        number = len(self.pings)
        self.now += 1
        self.most = max(self.most, self.now)
        await asyncio.sleep(batch.hold)
        self.now -= 1
        if number <= self.fail:
            raise FunctionUnavailable("away")
        return encode_answers([])


def started(number, policy=POLICY):
    return structs.replace(plan(policy), started=number)


async def settled():
    await asyncio.sleep(1.0)


@in_virtual_time
async def test_so_many_are_pinged_at_once_when_a_plan_comes_into_force_and_once(function):
    invoker, store = Pinged(function), MemoryStore(memory(), new_process_name())
    async with serving(function, POLICY, store, Plans(started(3)), invoker) as buffer:
        assert await buffer.service.unready() == await buffer.service.unready("m") == "environments of m are being started"
        await settled()
        assert await buffer.service.unready() is None
        assert invoker.pings == [Batch("m", [], ping=True, hold=held_by_ping(3))] * 3 and invoker.most == 3
        assert (await buffer.post("/models/m", b"1"))[0] == 200
        await buffer.service.model("m").follow(started(3))
        await settled()
        assert len(invoker.pings) == 3, "the plan is the same"
        await buffer.service.model("m").follow(structs.replace(started(3), made_at="2026-01-01T00:00:00+00:00"))
        await settled()
        assert len(invoker.pings) == 6, "it is made anew, perhaps for a function that is"
        await buffer.service.model("m").follow(started(5, OTHER))
        assert await buffer.service.unready() is None, "who serves already goes on being ready"
        await settled()
        assert len(invoker.pings) == 11
        await buffer.service.model("m").follow(plan(POLICY))
        await settled()
        assert len(invoker.pings) == 11


@in_virtual_time
async def test_of_several_processes_the_first_does_it(function):
    invoker, backend = Pinged(function), memory()
    stores = [MemoryStore(backend, new_process_name()) for _ in range(2)]
    first, second = (serving(function, POLICY, store, Plans(started(3)), invoker) for store in stores)
    async with first, second:
        await settled()
    assert len(invoker.pings) == 3


@in_virtual_time
async def test_what_cannot_be_started_is_said_and_harms_nobody(function, caplog):
    caplog.set_level(logging.WARNING, "sluice.buffer_service.environments")
    invoker = Pinged(function, fail=2)
    async with serving(function, POLICY, MemoryStore(memory(), new_process_name()), Plans(started(3)), invoker) as buffer:
        await settled()
        assert (await buffer.post("/models/m", b"1"))[0] == 200
    assert "m: 2 of 3 pings of f failed: away" in caplog.text


def kept(number, every=60.0, policy=POLICY):
    return structs.replace(plan(policy), warm=WarmEnvironments(pinged_every=every, pinged=number), digest="")


@in_virtual_time
async def test_what_is_kept_is_pinged_at_once_with_the_plan_and_again_in_time_by_one_of_all_processes(function):
    invoker, backend, loop = Pinged(function), memory(), asyncio.get_running_loop()
    backend.clock = loop.time
    began = loop.time()
    stores = [MemoryStore(backend, new_process_name()) for _ in range(2)]
    first, second = (serving(function, POLICY, store, Plans(kept(3)), invoker) for store in stores)
    async with second as buffer:
        async with first:
            await asyncio.sleep(began + 59.0 - loop.time())
            assert len(invoker.pings) == invoker.most == 3
            await asyncio.sleep(2.0)
            assert len(invoker.pings) == 6 and invoker.most == 3
        await asyncio.sleep(60.0)
        assert len(invoker.pings) == 9, "the other goes on alone"
        await buffer.service.model("m").follow(kept(5, 300.0))
        await settled()
        assert len(invoker.pings) == 14 and await buffer.service.unready() is None
        await buffer.service.model("m").follow(plan(OTHER))
        await asyncio.sleep(1000.0)
        assert len(invoker.pings) == 14
        await buffer.service.model("m").follow(kept(5, 300.0))
        await settled()
        assert len(invoker.pings) == 19, "those of then are gone"
    await asyncio.sleep(1000.0)
    assert len(invoker.pings) == 19


@in_virtual_time
async def test_who_pings_in_vain_goes_on(function, caplog):
    caplog.set_level(logging.WARNING, "sluice.buffer_service.environments")
    invoker, store = Pinged(function, fail=2), Away(memory(), new_process_name())
    store.times = ASKED + 3
    async with serving(function, POLICY, store, Plans(kept(2)), invoker):
        await asyncio.sleep(ASKED + 5.0)
        assert len(invoker.pings) == 2 and "m: 2 of 2 pings of f failed: away" in caplog.text
        await asyncio.sleep(TURN + 1)
        assert len(invoker.pings) == 4, "soon, and not when they would all be given up"
        await asyncio.sleep(240.0)
        assert len(invoker.pings) == 12


class Defective(Pinged):
    """Raises what no function does."""

    async def invoke(self, function, payload, avoid=""):
        if decode_batch(payload).ping:
            raise RuntimeError("a defect")
        return await super().invoke(function, payload, avoid)


@in_virtual_time
async def test_a_defect_is_logged_and_requests_are_served(function, caplog):
    async with serving(function, POLICY, MemoryStore(memory(), new_process_name()), Plans(kept(2)), Defective(function)) as buffer:
        await settled()
        assert "m: environments are started and kept no more" in caplog.text and await buffer.service.unready() is None
        assert (await buffer.post("/models/m", b"1"))[0] == 200


class Cold(Pinged):
    """Two functions, which are asked for a batch or pinged; an environment of the second takes two seconds to start."""

    def __init__(self, function, seconds=2.0):
        super().__init__(function)
        self._functions = {"f": function, "g": function}
        self.seconds, self.asked = seconds, []

    async def invoke(self, function, payload, avoid=""):
        if decode_batch(payload).ping:
            await asyncio.sleep(self.seconds)
        elif not decode_batch(payload).describe:
            self.asked.append(function)
        return await super().invoke(function, payload, avoid)


def of_g(number):
    return structs.replace(started(number), function="g", digest="")


@in_virtual_time
async def test_a_plan_of_another_function_comes_into_force_at_all_processes_when_its_environments_are_there(function):
    invoker, backend, loop = Cold(function), memory(), asyncio.get_running_loop()
    stores = [MemoryStore(backend, new_process_name()) for _ in range(2)]
    first, second = (serving(function, POLICY, store, Plans(plan(POLICY)), invoker) for store in stores)
    async with first as one, second as other:
        began = loop.time()
        changes = [asyncio.create_task(each.service.model("m").follow(of_g(3))) for each in (one, other)]
        await asyncio.sleep(1.0)
        assert (await one.post("/models/m", b"1"))[0] == 200 and invoker.asked == ["f"]
        await asyncio.gather(*changes)
        assert 2.0 <= loop.time() - began < 2.2 and len(invoker.pings) == invoker.most == 3
        assert {each.service.model("m").plan.function for each in (one, other)} == {"g"}
        assert (await other.post("/models/m", b"1"))[0] == 200 and invoker.asked == ["f", "g"]
        await settled()
        assert len(invoker.pings) == 3, "they are there"
        began = loop.time()
        again = structs.replace(of_g(2), policy=PolicyDocument.of(OTHER), digest="")
        await one.service.model("m").follow(again)
        assert loop.time() == began, "its function serves already"


@in_virtual_time
async def test_what_is_kept_of_another_function_is_there_before_its_plan_and_pinged_in_turn(function):
    invoker = Cold(function)
    async with serving(function, POLICY, MemoryStore(memory(), new_process_name()), Plans(plan(POLICY)), invoker) as buffer:
        await buffer.service.model("m").follow(structs.replace(kept(2), function="g", digest=""))
        assert len(invoker.pings) == 2
        await settled()
        assert buffer.service.model("m").plan.function == "g"


@in_virtual_time
@pytest.mark.parametrize("trouble", ["slow", "away", "defective"])
async def test_a_plan_waits_for_its_environments_no_longer_than_is_said(function, trouble, caplog):
    loop, invoker, store = asyncio.get_running_loop(), Cold(function, 60.0), Away(memory(), new_process_name())
    async with serving(function, POLICY, store, Plans(plan(POLICY)), invoker) as buffer:
        began, store.times = loop.time(), 1000 if trouble == "away" else 0
        if trouble == "defective":
            invoker.seconds = None  # which cannot be slept for
        await buffer.service.model("m").follow(of_g(3))
        waited = PREPARED_WITHIN if trouble == "slow" else 0.0
        assert loop.time() - began == pytest.approx(waited, abs=0.01)
        assert ("environments were not started" in caplog.text) == (trouble == "defective")
        assert (await buffer.post("/models/m", b"1"))[0] == 200 and invoker.asked == ["g"]


class Counted(Cold):
    """How many environments have started: pings that find none idle."""

    def __init__(self, function, seconds):
        super().__init__(function, 0.0)
        self.init, self.there, self.inits = seconds, 0, 0

    def started(self, _):
        self.there += 1

    async def invoke(self, function, payload, avoid=""):
        if function == "g" and decode_batch(payload).ping:
            if not self.there:
                self.inits += 1
                starts = asyncio.ensure_future(asyncio.sleep(self.init))
                starts.add_done_callback(self.started)  # whether or not who asked for it still waits
                await asyncio.shield(starts)
            self.there -= 1
            try:
                return await super().invoke(function, payload, avoid)
            finally:
                self.there += 1
        return await super().invoke(function, payload, avoid)


@in_virtual_time
@pytest.mark.parametrize("seconds", [2.0, 8.0])
async def test_what_takes_longer_than_a_plan_waits_is_not_started_twice(function, seconds):
    invoker = Counted(function, seconds)
    backend = memory()
    backend.clock = asyncio.get_running_loop().time
    async with serving(function, POLICY, MemoryStore(backend, new_process_name()), Plans(plan(POLICY)), invoker) as buffer:
        await buffer.service.model("m").follow(structs.replace(kept(10, 240.0), function="g", digest=""))
        await asyncio.sleep(60.0)
        assert invoker.inits == 10


@in_virtual_time
async def test_what_was_tried_with_a_share_has_its_environments_before_all_requests_go_there(function):
    invoker = Cold(function)
    most, few = (
        Route("serving", "f", PolicyDocument.of(POLICY), 0.95),
        Route("canary", "g", PolicyDocument.of(POLICY), 0.05, started=4),
    )
    async with serving(function, POLICY, MemoryStore(memory(), new_process_name()), Plans(plan(POLICY)), invoker) as buffer:
        await buffer.service.model("m").follow(Plan(model="m", routes=[most, few]))
        assert len(invoker.pings) == 4 and await buffer.service.unready() is None
        began = asyncio.get_running_loop().time()
        await buffer.service.model("m").follow(of_g(6))
        assert len(invoker.pings) == 10 and asyncio.get_running_loop().time() - began >= 2.0


@in_virtual_time
async def test_of_functions_beside_one_another_so_many_of_each_are_started(function):
    invoker = Cold(function, 0.0)
    both = structs.replace(started(2), beside=[Beside("g", PolicyDocument.of(POLICY))], digest="")
    async with serving(function, POLICY, MemoryStore(memory(), new_process_name()), Plans(both), invoker):
        await settled()
        assert len(invoker.pings) == 4 and invoker.most == 4


class Away(MemoryStore):
    """Says so many times that it is away when it is asked whose turn it is."""

    times = 0

    def queue(self, model, limits, route=""):
        queue = super().queue(model, limits, route)
        for name in ("turn", "pings_in"):
            setattr(queue, name, self.later(getattr(queue, name)))
        return queue

    def later(self, ask):
        async def told(*arguments):
            self.times -= 1
            if self.times >= 0:
                raise StoreUnavailable("away")
            return await ask(*arguments)

        return told


@in_virtual_time
@pytest.mark.parametrize(("times", "pings"), [(3, 2), (1000, 0)])
async def test_who_is_the_first_is_asked_until_the_store_says_it_for_a_minute(function, times, pings):
    invoker, store = Pinged(function), Away(memory(), new_process_name())
    store.times = times
    async with serving(function, POLICY, store, Plans(started(2)), invoker):
        await asyncio.sleep(100.0)
        assert len(invoker.pings) == pings and store.times == (times - ASKED if times > ASKED else -1)


class Hanging(Pinged):
    """No ping is answered."""

    async def invoke(self, function, payload, avoid=""):
        if not (batch := decode_batch(payload)).ping:
            return await super().invoke(function, payload, avoid)
        self.pings.append(batch)
        await asyncio.get_running_loop().create_future()


@in_virtual_time
async def test_nobody_waits_for_pings_that_are_not_answered(function):
    loop, invoker = asyncio.get_running_loop(), Hanging(function)
    a, b = (Route(name, "f", PolicyDocument.of(POLICY), 0.5) for name in "ab")
    starts = structs.replace(a, started=2)
    both, alone = Plan(model="m", routes=[starts, b]), Plan(model="m", routes=[structs.replace(b, share=1.0)])
    async with serving(function, POLICY, MemoryStore(memory(), new_process_name()), Plans(both), invoker) as buffer:
        await settled()
        assert len(invoker.pings) == 2 and await buffer.service.unready() is not None
        await asyncio.sleep(READY_WITHIN)
        assert await buffer.service.unready() is None
        began = loop.time()
        for plan_ in (alone, both):
            await buffer.service.model("m").follow(plan_)
        await settled()
        began_to_leave = loop.time()
        assert began_to_leave < began + 3
    assert loop.time() < began_to_leave + 3


async def test_who_is_first_is_known_of_each_plan_and_for_a_while_and_when_it_is_there(redis_server, client):
    model = uuid.uuid4().hex
    for store in (RedisStore(redis_server.url, new_process_name()), MemoryStore(memory(), new_process_name())):
        queue = store.queue(model, Limits(), "a")
        assert [await queue.turn("one") for _ in range(2)] == [Turn.FIRST, Turn.STARTING]
        assert await store.queue(model, Limits(), "b").turn("one") is Turn.FIRST, "of another route nobody knows yet"
        await queue.there("one")
        assert await queue.turn("two") is Turn.FIRST
        assert [await queue.turn(edition) for edition in ("one", "two", "one")] == [Turn.THERE, Turn.STARTING, Turn.THERE]
        turns = await asyncio.gather(*(queue.turn("three") for _ in range(4)))
        assert sorted(turn is Turn.FIRST for turn in turns) == [False, False, False, True]
        await store.close()
    told = {edition: client.ttl(f"sluice:{{{model}}}:a:started:{edition}") for edition in ("one", "three")}
    assert THERE_FOR - 5 <= told["one"] <= THERE_FOR and STARTS_WITHIN - 5 <= told["three"] <= STARTS_WITHIN


@in_virtual_time
async def test_in_memory_nothing_is_known_for_longer():
    backend, loop = memory(), asyncio.get_running_loop()
    backend.clock = loop.time
    queue = MemoryStore(backend, new_process_name()).queue("m", Limits())
    assert await queue.turn("one") is Turn.FIRST and await queue.pings_in("one", 5.0) == 0
    await asyncio.sleep(STARTS_WITHIN + 1)
    assert await queue.turn("one") is Turn.FIRST and await queue.pings_in("one", 5.0) == 0
    await queue.there("one")
    await asyncio.sleep(THERE_FOR + 1)
    assert await queue.turn("two") is Turn.FIRST and len(backend.known) == 1


async def test_whose_turn_it_is_to_ping_is_known_of_each_plan_until_its_time_has_come(redis_server, client):
    model = uuid.uuid4().hex
    for store in (RedisStore(redis_server.url, new_process_name()), MemoryStore(memory(), new_process_name())):
        queue = store.queue(model, Limits(), "a")
        assert await queue.pings_in("one", 0.2) == 0
        left = await store.queue(model, Limits(), "a").pings_in("one", 0.2)
        assert 0 < left <= 0.2
        await queue.pinged("kept", 60.0)
        assert 55 < await queue.pings_in("kept", 0.2) <= 60
        assert await queue.pings_in("two", 60.0) == await store.queue(model, Limits(), "b").pings_in("one", 0.2) == 0
        await asyncio.sleep(0.25)
        turns = await asyncio.gather(*(queue.pings_in("three", 60.0) for _ in range(4)))
        assert sorted(turns)[0] == 0 and min(sorted(turns)[1:]) > 50
        await store.close()
    key = f"sluice:{{{model}}}:a:pinged:two"
    assert 0 < client.pttl(key) <= 60_000
    client.set(key, "x")
    store = RedisStore(redis_server.url, new_process_name())
    with pytest.raises(StoreUnavailable, match="Redis holds 'x' under .*pinged:two, where a time is"):
        await store.queue(model, Limits(), "a").pings_in("two", 60.0)
    await store.close()


async def test_a_value_of_somebody_else_in_its_place_is_set_aside(redis_server, client):
    model = uuid.uuid4().hex
    client.lpush(f"sluice:{{{model}}}:started:one", "x")
    store = RedisStore(redis_server.url, new_process_name())
    queue = store.queue(model, Limits())
    with pytest.raises(StoreUnavailable, match="Redis holds a list under the key .*started:one, .*set aside"):
        await queue.turn("one")
    assert await queue.turn("one") is Turn.FIRST
    await store.close()
