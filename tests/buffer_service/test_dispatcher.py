import asyncio
import uuid
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from sluice.batching import policy as constructors
from sluice.batching.documents import PolicyDocument
from sluice.batching.errors import FunctionFailed, StoreUnavailable
from sluice.buffer_service.admission import FRESH
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.invokers import BatchTooLarge, FunctionUnavailable, LocalInvoker
from sluice.buffer_service.invokers.port import Pool
from sluice.buffer_service.members import decode_member, encode_member
from sluice.buffer_service.memory_store import MemoryStore
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.route_batches import LEAST_OVERDUE
from sluice.buffer_service.store import Events, Limits
from sluice.buffer_service.telemetry import ModelTelemetry
from sluice.lambda_fn.contract import Answer, Item, decode_batch
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import NO_BATCHING, Plans, memory, plan, serving
from tests.buffer_service.virtual_time import in_virtual_time

EIGHT = constructors.size_or_timeout(8, 10.0)


@given(st.binary(), st.text(max_size=20), st.dictionaries(st.text(max_size=5), st.text(max_size=5)))
def test_a_member_survives_the_queue(body, content_type, headers):
    item = Item("0123456789abcdef", content_type, body, headers)
    assert decode_member(encode_member(item)) == item


@in_virtual_time
async def test_one_poisonous_item_fails_alone(function):
    async def fragile(batch):
        if any(item.body == b'"poison"' for item in batch.items):
            raise FunctionFailed("the function choked")
        return await function.echo(batch)

    function.answer = fragile
    async with serving(function, EIGHT) as buffer:
        bodies = [b"0", b"1", b"2", b'"poison"', b"4", b"5", b"6", b"7"]
        answers = await asyncio.gather(*(buffer.post("/models/m", body) for body in bodies))
    assert [status for status, _, _ in answers] == [200, 200, 200, 502, 200, 200, 200, 200]
    assert [body for _, _, body in answers if body[:1].isdigit()] == [b"0", b"1", b"2", b"4", b"5", b"6", b"7"]
    assert b"the function choked" in answers[3][2]


class RefusesAtOnce:
    """Waits for nothing: whoever asks is refused before he has asked."""

    def __init__(self):
        self.asked = []

    async def ask(self, function, batch, avoid):
        self.asked.append(len(batch.items))
        raise BatchTooLarge("it is too large")

    async def close(self): ...


@in_virtual_time
async def test_a_large_batch_of_a_function_that_refuses_before_it_is_asked_is_halved_round_by_round(function):
    invoker = RefusesAtOnce()
    async with serving(function, constructors.greedy(512, 1), invoker=invoker) as buffer:
        answers = await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(600)))
    assert {status for status, _, _ in answers} == {413} and len(answers) == 600
    assert max(invoker.asked) == 512 and invoker.asked.count(1) == 600


@in_virtual_time
async def test_a_batch_that_is_too_large_is_halved_and_an_item_that_is_too_large_gets_413(function):
    async def narrow(batch):
        if sum(len(item.body) for item in batch.items) > 4:
            raise BatchTooLarge("at most 4 bytes")
        return await function.echo(batch)

    function.answer = narrow
    async with serving(function, EIGHT) as buffer:
        answers = await asyncio.gather(*(buffer.post("/models/m", b"12345" if i == 3 else b"%d" % i) for i in range(8)))
    assert [status for status, _, _ in answers] == [200, 200, 200, 413, 200, 200, 200, 200]
    assert b"at most 4 bytes" in answers[3][2]


@in_virtual_time
async def test_a_defect_is_told_to_the_callers_and_holds_no_server(function):
    async def defect(batch):
        raise KeyError("nobody expected this")

    function.answer = defect
    async with serving(function, constructors.greedy(4, servers=1)) as buffer:
        status, _, body = await buffer.post("/models/m", b"1")
        assert (status, b"nobody expected this" in body) == (500, True)
        function.answer = function.echo
        assert (await buffer.post("/models/m", b"2"))[2] == b"2"


@in_virtual_time
async def test_a_defect_while_instructions_are_carried_out_does_not_silence_the_route(function, monkeypatch, caplog):
    def defect(*_):
        raise KeyError("nobody expected this")

    async with serving(function, NO_BATCHING) as buffer:
        monkeypatch.setattr(ModelTelemetry, "waiting", defect)
        assert (await buffer.post("/models/m", b"1"))[2] == b"1"
        await asyncio.sleep(2 * FRESH)  # until the queue hears of him
        monkeypatch.undo()
        assert (await buffer.post("/models/m", b"2"))[2] == b"2"
    assert "m: not all was done that was to be done" in caplog.text


class Pooled(LocalInvoker):
    """Functions in this process that tell how their workers are."""

    def worker_pool(self, function):
        return self.pools[function]


@in_virtual_time
async def test_which_workers_are_ejected_is_known_from_the_first_batch_under_a_plan_on(function):
    at_work, most = 0, 0

    async def nap(batch):
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(0.01)
        at_work -= 1
        return await function.echo(batch)

    function.answer = nap
    invoker = Pooled({"f": function, "g": function})
    invoker.pools = {"f": Pool(3, [9.0]), "g": Pool(4, [9.0, 9.0, 9.0])}
    of_f = plan(constructors.greedy(1, servers=3))
    plans = Plans(of_f)
    async with serving(None, None, None, plans, invoker, plan_interval=0.1) as buffer:
        await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(9)))
        assert most == 2
        plans.plans = [structs.replace(of_f, function="g", policy=PolicyDocument.of(constructors.greedy(1, servers=4)), digest="")]
        await asyncio.sleep(0.2)
        most = 0
        await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(9)))
        assert most == 1


@in_virtual_time
async def test_an_invoker_that_does_not_know_its_workers_holds_up_nobody(function, caplog):
    invoker = Pooled({"f": function})
    invoker.pools = {}
    async with serving(function, constructors.greedy(1, servers=2), invoker=invoker) as buffer:
        for i in range(5):
            assert (await buffer.post("/models/m", b"%d" % i))[2] == b"%d" % i
    assert "m: how the workers of f are is not known" in caplog.text


@in_virtual_time
async def test_a_function_that_is_away_fails_the_batch_at_once(function):
    async def away(batch):
        raise FunctionUnavailable("throttled, and went on")

    function.answer = away
    async with serving(function, EIGHT) as buffer:
        answers = await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(8)))
    assert {status for status, _, _ in answers} == {502}
    assert b"throttled, and went on" in answers[0][2]
    assert len(function.batches) == 1


@in_virtual_time
async def test_a_function_that_answers_somebody_elses_items_is_not_believed(function):
    async def wrong(batch):
        return [Answer("somebody-else", 200, "text/plain", b"x")]

    function.answer = wrong
    async with serving(function, NO_BATCHING) as buffer:
        status, _, body = await buffer.post("/models/m", b"1")
    assert status == 502
    assert b"do not match" in body


@pytest.fixture(params=["memory", "redis"])
async def two_stores(request, redis_server):
    backend = memory()
    names = new_process_name(), new_process_name()
    return [MemoryStore(backend, n) if request.param == "memory" else RedisStore(redis_server.url, n) for n in names]


async def test_two_processes_share_a_queue_and_every_caller_gets_its_own_answer(two_stores, function):
    model = uuid.uuid4().hex
    policy = constructors.size_or_timeout(64, 10.0)
    one, two = (serving(function, policy, store, Plans(plan(policy, model))) for store in two_stores)
    async with one as first, two as second:
        bodies = [b'{"i": %d}' % i for i in range(64)]
        posts = [(first, second)[i % 2].post(f"/models/{model}", body) for i, body in enumerate(bodies)]
        answers = await asyncio.gather(*posts)
    assert [body for _, _, body in answers] == bodies
    [batch] = function.batches
    assert {item.id[:8] for item in batch.items} == {store.process for store in two_stores}


async def test_what_waits_survives_a_redis_that_lost_everything(function):
    policy = constructors.static(4)
    with RedisServer() as redis:
        async with serving(function, policy, RedisStore(redis.url, new_process_name()), lease=0.3) as buffer:
            waiting = [asyncio.create_task(buffer.post("/models/m", b"%d" % i)) for i in range(3)]
            while buffer.service.telemetry.registry.get_sample_value("sluice_queue_length", {"model": "m"}) != 3:
                await asyncio.sleep(0.001)
            redis.kill()
            redis.start()
            while (last := await buffer.post("/models/m", b"3"))[0] == 503:
                await asyncio.sleep(0.01)
            assert last[2] == b"3"
            assert [body for _, _, body in await asyncio.gather(*waiting)] == [b"0", b"1", b"2"]


async def test_a_store_that_is_away_refuses_with_503_and_is_used_again_when_it_is_back(function):
    with RedisServer() as redis:
        async with serving(function, NO_BATCHING, RedisStore(redis.url, new_process_name()), lease=0.3) as buffer:
            assert (await buffer.post("/models/m", b"1"))[0] == 200
            redis.kill()
            async with asyncio.timeout(5.0):  # who comes before that is noticed may leave past the queue
                while (answered := await buffer.post("/models/m", b"2"))[0] == 200:
                    await asyncio.sleep(0.01)
            assert (answered[0], b"Redis does not answer" in answered[2]) == (503, True)
            assert (await buffer.get("/v2/health/ready"))[0] == 503
            redis.start()
            while (await buffer.post("/models/m", b"3"))[0] == 503:
                await asyncio.sleep(0.01)
            assert (await buffer.get("/v2/health/ready"))[0] == 200


class _DeafStore(MemoryStore):
    """Loses the answer of one call that was executed."""

    deaf = False

    def queue(self, model, limits, route=""):
        queue = super().queue(model, limits, route)
        advance = queue.advance

        async def advance_deafly(events, now=None):
            outcome = await advance(events, now)
            if self.deaf and outcome.batches:
                self.deaf = False
                raise StoreUnavailable("the answer was lost")
            return outcome

        queue.advance = advance_deafly
        return queue


@in_virtual_time
async def test_a_batch_whose_announcement_was_lost_does_not_hold_its_server(function):
    store = _DeafStore(memory(), new_process_name())
    async with serving(function, constructors.greedy(4, servers=1), store, lease=0.1) as buffer:
        store.deaf = True
        assert (await buffer.post("/models/m", b"1"))[0] == 503
        assert (await buffer.post("/models/m", b"2"))[2] == b"2"


class _ForgetfulStore(MemoryStore):
    """Says with the first completion that it has lost the queue."""

    def queue(self, model, limits, route=""):
        queue = super().queue(model, limits, route)
        advance, epoch = queue.advance, "first"

        async def advance_forgetfully(events, now=None):
            nonlocal epoch
            epoch = "second" if events.completed else epoch
            return replace(await advance(events, now), epoch=epoch)

        queue.advance = advance_forgetfully
        return queue


@in_virtual_time
async def test_who_is_about_to_be_answered_is_not_submitted_again_when_the_store_lost_the_queue(function):
    store = _ForgetfulStore(memory(), new_process_name())
    async with serving(function, constructors.static(32), store) as buffer:
        answers = await asyncio.gather(*(buffer.post("/models/m", b"%d" % i) for i in range(32)))
    assert [body for _, _, body in answers] == [b"%d" % i for i in range(32)]
    assert [len(batch.items) for batch in function.batches] == [32]


@in_virtual_time
async def test_a_batch_whose_function_went_with_its_plan_is_answered_by_the_one_that_came(function, monkeypatch):
    monkeypatch.setattr("sluice.buffer_service.app.CHECK_TIMEOUT", 0.05)
    asked, followed = asyncio.Event(), asyncio.Event()

    async def gone(payload):
        if not decode_batch(payload).describe:
            asked.set()
        await followed.wait()
        raise FunctionUnavailable("the worker does not answer")

    invoker = LocalInvoker({"gone": gone, "f": function})
    async with serving(function, None, plans=Plans(plan(NO_BATCHING, function="gone")), invoker=invoker) as buffer:
        waiting = [asyncio.create_task(buffer.post("/models/m", b"%d" % i)) for i in range(3)]
        await asked.wait()
        await buffer.service.model("m").follow(plan(NO_BATCHING))
        followed.set()
        assert [(await answer)[2] for answer in waiting] == [b"0", b"1", b"2"]


@in_virtual_time
async def test_a_worker_that_hangs_and_leaves_the_plan_holds_its_server_no_longer_than_batches_take(function):
    hangs = asyncio.Event()

    async def hanging(payload):
        if hangs.is_set():
            await asyncio.Event().wait()
        return await function(payload)

    invoker, greedy = LocalInvoker({"http://a": hanging, "http://b": function}), constructors.greedy(4, servers=1)
    async with serving(function, None, plans=Plans(plan(greedy, function="http://a")), invoker=invoker) as buffer:
        assert (await buffer.post("/models/m", b"0"))[2] == b"0"
        hangs.set()
        waiting = [asyncio.create_task(buffer.post("/models/m", b"%d" % i)) for i in range(3)]
        await asyncio.sleep(0.5)
        began = asyncio.get_running_loop().time()
        await buffer.service.model("m").follow(plan(greedy, function="http://b"))
        assert [(await answer)[2] for answer in waiting] == [b"0", b"1", b"2"]
        assert asyncio.get_running_loop().time() - began == pytest.approx(LEAST_OVERDUE - 0.5, abs=0.05)
        assert (
            'sluice_invocation_failures_total{error="FunctionUnavailable",model="m"} 1.0'
            in (await buffer.get("/metrics"))[2].decode()
        )


@in_virtual_time
async def test_a_batch_that_is_about_to_be_sent_to_a_worker_that_leaves_the_plan_and_hangs_is_given_up_too(function):
    """It was released with another, and its task has not begun when the plan comes."""
    others = constructors.greedy(1, servers=2)
    (there,) = plan(others, function="http://b").all_routes
    leaves, left = asyncio.Event(), asyncio.Event()

    async def hanging(payload):
        if leaves.is_set():
            if not left.is_set():
                left.set()
                buffer.service.model("m")._dispatchers[there.name].follow(there)
            await asyncio.Event().wait()
        return await function(payload)

    invoker = LocalInvoker({"http://a": hanging, "http://b": function})
    async with serving(function, None, plans=Plans(plan(others, function="http://a")), invoker=invoker) as buffer:
        assert (await buffer.post("/models/m", b"0"))[2] == b"0"
        leaves.set()
        began = asyncio.get_running_loop().time()
        waiting = [asyncio.create_task(buffer.post("/models/m", b"%d" % i)) for i in range(2)]
        assert [(await answer)[2] for answer in waiting] == [b"0", b"1"]
        assert asyncio.get_running_loop().time() - began == pytest.approx(LEAST_OVERDUE, abs=0.05)


@in_virtual_time
async def test_a_batch_whose_worker_is_back_in_the_plan_in_time_is_waited_for_however_long_it_takes(function):
    slow, asked = asyncio.Event(), []

    async def slowly(payload):
        if slow.is_set():
            asked.append(payload)
            await asyncio.sleep(5 * LEAST_OVERDUE)
        return await function(payload)

    invoker, greedy = LocalInvoker({"http://a": slowly, "http://b": function}), constructors.greedy(4, servers=1)
    async with serving(function, None, plans=Plans(plan(greedy, function="http://a")), invoker=invoker) as buffer:
        assert (await buffer.post("/models/m", b"0"))[2] == b"0"
        slow.set()
        began, waiting = asyncio.get_running_loop().time(), asyncio.create_task(buffer.post("/models/m", b"1"))
        for named in ("http://b", "http://a"):
            await asyncio.sleep(LEAST_OVERDUE / 4)
            await buffer.service.model("m").follow(plan(greedy, function=named))
        assert (await waiting)[2] == b"1" and len(asked) == 1
        assert asyncio.get_running_loop().time() - began == pytest.approx(5 * LEAST_OVERDUE, abs=0.05)


@pytest.mark.parametrize("named", ["http://c", "http://a"])
@in_virtual_time
async def test_a_plan_that_comes_while_a_worker_ends_that_was_given_up_is_followed(function, named, caplog):
    hangs = asyncio.Event()

    async def ending_slowly(payload):
        try:
            if hangs.is_set():
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)
            raise
        return await function(payload)

    invoker, greedy = (
        LocalInvoker({"http://a": ending_slowly, "http://b": function, "http://c": function}),
        constructors.greedy(4, 1),
    )
    async with serving(function, None, plans=Plans(plan(greedy, function="http://a")), invoker=invoker) as buffer:
        assert (await buffer.post("/models/m", b"0"))[2] == b"0"
        hangs.set()
        waiting = asyncio.create_task(buffer.post("/models/m", b"1"))
        await asyncio.sleep(0.5)
        model = buffer.service.model("m")
        await model.follow(plan(greedy, function="http://b"))
        await asyncio.sleep(LEAST_OVERDUE - 0.5 + 0.1)
        hangs.clear()
        await model.follow(plan(greedy, function=named))  # where that has him again another has been asked already
        assert (await waiting)[0] == 200 and "not all was done" not in caplog.text


@in_virtual_time
async def test_a_plan_that_comes_while_another_is_being_installed_is_installed_too(function):
    gate, installing = asyncio.Event(), asyncio.Event()

    class SlowStore(MemoryStore):
        def queue(self, model, limits, route=""):
            queue = super().queue(model, limits, route)
            install = queue.install

            async def slowly(policy):
                installing.set()
                await gate.wait()
                await install(policy)

            queue.install = slowly
            return queue

    store = SlowStore(memory(), new_process_name())
    async with serving(function, constructors.static(100), store) as buffer:
        await installing.wait()
        await buffer.service.model("m").follow(plan(NO_BATCHING))
        gate.set()
        assert (await buffer.post("/models/m", b"1"))[2] == b"1"


@in_virtual_time
async def test_however_long_the_way_to_the_queue_is_batches_leave_as_their_hold_ends(function):
    class FarStore(MemoryStore):
        def queue(self, model, limits, route=""):
            queue = super().queue(model, limits, route)
            advance = queue.advance

            async def from_afar(events, now=None):
                await asyncio.sleep(0.001)
                outcome = await advance(events, now)
                await asyncio.sleep(0.001)
                return outcome

            queue.advance = from_afar
            return queue

    loop, latencies = asyncio.get_running_loop(), []
    async with serving(function, constructors.size_or_timeout(8, 0.05), FarStore(memory(), new_process_name())) as buffer:
        for _ in range(80):
            began = loop.time()
            assert (await buffer.post("/models/m", b"1"))[0] == 200
            latencies.append(loop.time() - began)
            await asyncio.sleep(0.05)
    assert latencies[0] >= 0.053 and latencies[-1] == pytest.approx(0.05, abs=0.0011)  # the loop's timers tick in milliseconds


@in_virtual_time
async def test_draining_answers_who_waits_here_and_elsewhere_and_frees_the_server(function):
    release = asyncio.Event()

    async def slow(batch):
        await release.wait()
        return await function.echo(batch)

    function.answer = slow
    backend, pairs = memory(), constructors.static(2)
    elsewhere = MemoryStore(backend, "ssssssss")
    async with serving(function, pairs, MemoryStore(backend, new_process_name())) as buffer:
        stranger = Item("ssssssss00000001", "application/json", b"2")
        await elsewhere.queue("m", Limits()).advance(Events([encode_member(stranger)]))
        own = asyncio.create_task(buffer.post("/models/m", b"1"))
        while not function.batches:
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(buffer.stop())
        release.set()
        await stopping
        assert (await own)[2] == b"1"
    [message] = await elsewhere.receive()
    assert b"ssssssss00000001" in message
    assert backend.queues["m"].batcher.in_flight == 0


@in_virtual_time
async def test_a_drain_keeps_its_lease_until_its_batches_are_finished(function):
    release = asyncio.Event()

    async def slow(batch):
        await release.wait()
        return await function.echo(batch)

    function.answer = slow
    backend = memory()
    elsewhere = MemoryStore(backend, "ssssssss").queue("m", Limits(lease=0.2))
    async with serving(function, constructors.greedy(4, servers=1), MemoryStore(backend, new_process_name()), lease=0.2) as buffer:
        own = asyncio.create_task(buffer.post("/models/m", b"1"))
        while not function.batches:
            await asyncio.sleep(0.001)
        stranger = encode_member(Item("ssssssss00000001", "application/json", b"2"))
        await elsewhere.advance(Events([stranger], serving=[]))
        stopping = asyncio.create_task(buffer.stop())
        for _ in range(6):  # three leases long
            await asyncio.sleep(0.1)
            assert (await elsewhere.advance(Events(serving=[]))).batches == []
        release.set()
        await stopping
        assert (await own)[2] == b"1"
    assert (await elsewhere.advance(Events(serving=[]))).batches == []
    assert [item.id for batch in function.batches for item in batch.items].count("ssssssss00000001") == 1


@in_virtual_time
async def test_answers_to_one_process_wait_for_none_to_another_whose_mailbox_is_away(function):
    backend, arrived = memory(), {}

    class Store(MemoryStore):
        async def send(self, process, message):
            if process == "pone0000":
                await asyncio.sleep(1.0)
                raise StoreUnavailable("no answer in time")
            arrived[process] = asyncio.get_running_loop().time()

    async with serving(function, constructors.static(2), Store(backend, "phere000")):
        for process in ("pone0000", "ptwo0000"):
            member = encode_member(Item(f"{process}00000001", "application/json", b"1"))
            began = asyncio.get_running_loop().time()
            await MemoryStore(backend, process).queue("m", Limits()).advance(Events([member], leaving=True))
        while not arrived:
            await asyncio.sleep(0.01)
    assert [len(batch.items) for batch in function.batches] == [2]
    assert arrived["ptwo0000"] - began < 1.0


@in_virtual_time
async def test_who_was_answered_504_is_not_served_before_those_who_wait(function):
    async def tenth(batch):
        await asyncio.sleep(0.05)
        return await function.echo(batch)

    function.answer = tenth
    async with serving(function, constructors.greedy(1, servers=1), request_timeout=0.3) as buffer:
        first = [asyncio.create_task(buffer.post("/models/m", b"1")) for _ in range(40)]  # 2 s of work
        statuses = [(await answer)[0] for answer in first]
        assert statuses.count(504) > 20
        assert (await buffer.post("/models/m", b"2"))[0] == 200
    assert sum(len(batch.items) for batch in function.batches) < 15


async def test_every_process_submits_again_what_a_redis_lost(function):
    policy = constructors.static(6)
    with RedisServer() as redis:
        # Sweeps come every ten seconds: not before the test is over, however slow the machine.
        one, two = (serving(function, policy, RedisStore(redis.url, new_process_name()), lease=30.0) for _ in range(2))
        async with one as first, two as second:
            waiting = [asyncio.create_task((first, second)[i % 2].post("/models/m", b"%d" % i)) for i in range(4)]
            queue_length = second.service.telemetry.registry.get_sample_value
            await asyncio.gather(*(_until_told(buffer, 2) for buffer in (first, second)))
            redis.kill()
            redis.start()
            # The second is the first to notice; the others learn of it from what the queue says of itself.
            while queue_length("sluice_queue_length", {"model": "m"}) != 3:
                last = asyncio.create_task(second.post("/models/m", b"4"))
                done, _ = await asyncio.wait([last], timeout=0.3)
                if done:
                    assert last.result()[0] == 503
            final = await first.post("/models/m", b"5")
            assert final[2] == b"5"
            assert [(await answer)[2] for answer in waiting] == [b"0", b"1", b"2", b"3"]
            assert (await last)[2] == b"4"


async def _until_told(buffer, n):
    """Until the buffer has been told that so many of its own requests wait."""
    dispatcher = buffer.service.model("m")._dispatchers[""]
    while len(dispatcher._callers.waiting) < n or dispatcher._next_calls is not None or dispatcher._state.asking:
        await asyncio.sleep(0.001)


async def _until_waiting(buffer, at_least):
    while (buffer.service.telemetry.registry.get_sample_value("sluice_queue_length", {"model": "m"}) or 0) < at_least:
        await asyncio.sleep(0.001)


async def test_a_mailbox_that_fell_silent_is_opened_again(monkeypatch):
    monkeypatch.setattr("sluice.buffer_service.redis_mailbox.WAIT", 0.05)
    monkeypatch.setattr("sluice.buffer_service.redis_servers.COMMAND_TIMEOUT", 0.05)

    async def silent(reader, writer):
        while data := await reader.read(1000):
            if b"HELLO" in data or b"CLIENT" in data:
                writer.write(b"+OK\r\n" * data.count(b"*"))

    server = await asyncio.start_server(silent, "127.0.0.1", 0)
    async with server:
        store = RedisStore(f"redis://127.0.0.1:{server.sockets[0].getsockname()[1]}/0?protocol=2", new_process_name())
        with pytest.raises(StoreUnavailable, match="Redis does not answer"):
            await asyncio.wait_for(store.receive(), 5)


@in_virtual_time
async def test_a_drain_ends_in_time_and_tells_who_still_waits(function):
    async with serving(function, constructors.static(4), drain_timeout=1.0) as buffer:
        waiting = asyncio.create_task(buffer.post("/models/m", b"1"))
        await _until_waiting(buffer, 1)
        started = asyncio.get_running_loop().time()
        await buffer.stop()
        status, _, body = await waiting
        assert (status, b"being shut down" in body) == (503, True)
        assert asyncio.get_running_loop().time() - started <= 1.0 + 1e-9  # it was twice the time once


@in_virtual_time
async def test_a_function_slow_to_say_what_it_serves_holds_up_neither_the_start_nor_other_plans(function, monkeypatch):
    monkeypatch.setattr("sluice.buffer_service.app.CHECK_TIMEOUT", 0.1)
    hang = asyncio.Event()

    class Slow(LocalInvoker):
        async def invoke(self, name, payload, avoid=""):
            if name == "slow":
                await hang.wait()
            return await super().invoke(name, payload, avoid)

    plans = Plans(*(plan(NO_BATCHING, f"m{i}", "slow") for i in range(3)), plan(NO_BATCHING))
    async with serving(function, NO_BATCHING, plans=plans, invoker=Slow({"f": function, "slow": function})) as buffer:
        assert (await buffer.post("/models/m", b"1"))[2] == b"1"
        hang.set()
        assert (await buffer.post("/models/m2", b"2"))[2] == b"2"
