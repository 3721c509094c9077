"""Functions and workers that fail, as their callers notice it: in virtual time, and over sockets where the network fails."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from aiohttp import web

from sluice.batching import policy as constructors
from sluice.batching.documents import PolicyDocument, Route
from sluice.batching.errors import FunctionFailed
from sluice.buffer_service.batch_state import BatchState, Cause, Failure, Part
from sluice.buffer_service.circuit import RESERVE, STRIKES, UNAVAILABLE_LIMIT
from sluice.buffer_service.function_state import RESTART, FunctionState
from sluice.buffer_service.invokers import FunctionBusy, FunctionCrashed, FunctionUnavailable, HttpInvoker
from sluice.buffer_service.route_batches import BACKOFF, LONGEST_BACKOFF, YIELD, YIELDS
from sluice.buffer_service.route_facts import TOLD
from sluice.buffer_service.store import Outcome
from sluice.lambda_fn.contract import Answer, Item, decode_batch, encode_answers, encode_metadata
from tests.buffer_service.conftest import Function, Plans, plan, serving
from tests.buffer_service.test_route_state import PATIENCE, Bench, answers
from tests.buffer_service.virtual_time import in_virtual_time

FAILED = Failure(Cause.FAILED, "choked")
POISON = b'"poison"'
ELASTIC, ONE_SERVER = constructors.size_or_timeout(32, 0.01), constructors.greedy(32, servers=1)


def asked(instructions, ids):
    """What is asked for, by the places of the items."""
    return [[ids.index(item.id) for item in invocation.items] for invocation in instructions.invoke]


def play(bench, instructions, ids, outcome, step=0.1):
    """Functions answer one after the other as ``outcome`` says of the places; every ask, the answers by place, and the time."""
    now, asks, told, under_way = 0.1, [], {}, list(instructions.invoke)
    while under_way:
        invocation = under_way.pop(0)
        places = [ids.index(item.id) for item in invocation.items]
        asks.append(places)
        now += step
        result = outcome(places)
        bench.state.served(now, "b1", result or answers([i.id for i in invocation.items]), invocation.part)
        instructions = bench.state.turn(now)
        under_way += instructions.invoke
        told |= {ids.index(answer.id): answer.status for answer in instructions.tell}
    return asks, told, now


# --- one function that does nothing but fail


def test_a_batch_that_fails_everywhere_is_given_up_when_two_items_have_failed_alone():
    bench = Bench(constructors.greedy(32, servers=1)).begun()
    ids, first = bench.batch(0.1, 32)
    asks, told, _ = play(bench, first, ids, lambda places: FAILED)
    assert [len(places) for places in asks] == [32, 16, 8, 4, 2, 1, 1]
    assert told == dict.fromkeys(range(32), 502)


def test_two_poisonous_items_at_the_head_of_a_batch_cost_nobody_else_his_answer_if_one_before_was_answered():
    bench = Bench(constructors.greedy(32, servers=1)).begun()
    ids, first = bench.batch(0.1, 32)
    _, told, _ = play(bench, first, ids, lambda places: FAILED if {1, 2, 17} & set(places) else None)
    assert told == {place: 502 if place in (1, 2, 17) else 200 for place in range(32)}


@in_virtual_time
async def test_a_broken_worker_is_found_out_within_a_few_calls_and_refused_at_once_until_it_is_well(function):
    loop, calls = asyncio.get_running_loop(), []

    async def broken(batch):
        calls.append(loop.time())
        await asyncio.sleep(0.3)
        raise FunctionFailed("out of memory")

    async def ask(buffer):
        began = loop.time()
        status, headers, _ = await buffer.post("/models/m", b"%d" % next(numbers))
        return status, loop.time() - began, headers

    function.answer = broken
    numbers = iter(range(10_000))
    async with serving(function, ONE_SERVER) as buffer:
        first = await asyncio.gather(*(ask(buffer) for _ in range(33)))  # one leaves at once, and 32 as a batch
        assert {status for status, _, _ in first} == {502}
        assert max(waited for _, waited, _ in first) <= 8 * 0.3 + 0.01
        assert len(calls) == 8
        second = await asyncio.gather(*(ask(buffer) for _ in range(33)))
        assert {status for status, _, _ in second} == {503}
        assert max(waited for _, waited, _ in second) < 0.31
        assert len(calls) == 9  # and it was the last for now
        third = await asyncio.gather(*(ask(buffer) for _ in range(100)))
        assert {(status, headers["retry-after"]) for status, _, headers in third} == {(503, "1")}
        assert max(waited for _, waited, _ in third) < 0.01
        assert len(calls) == 9
        function.answer = function.echo
        await asyncio.sleep(1.01)
        assert {status for status, _, _ in await asyncio.gather(*(ask(buffer) for _ in range(100)))} == {200}
        text = (await buffer.get("/metrics"))[2].decode()
    assert 'sluice_function_suspensions_total{model="m"} 1.0' in text
    assert 'sluice_invocation_retries_total{model="m"} 6.0' in text


@in_virtual_time
async def test_a_function_that_is_not_asked_is_tried_with_one_item_and_the_rest_of_its_batch_waits_for_that(function):
    async def away(batch):
        raise FunctionUnavailable("gone")

    function.answer = away
    async with serving(function, constructors.size_or_timeout(4, 0.01)) as buffer:
        for _ in range(5):
            assert (await buffer.post("/models/m", b"1"))[0] == 502
        assert (await buffer.post("/models/m", b"1"))[0] == 503
        await asyncio.sleep(1.0)
        del function.batches[:]
        assert [a[0] for a in await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(4)))] == [502, 503, 503, 503]
        assert [len(batch.items) for batch in function.batches] == [1]
        await asyncio.sleep(2.0)
        function.answer = function.echo
        assert {a[0] for a in await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(4)))} == {200}


@in_virtual_time
async def test_a_function_that_mostly_fails_is_asked_no_more_often_than_answers_pay_for(function):
    rng = random.Random(5)

    async def mostly_fails(batch):
        if rng.random() < 0.8:
            raise FunctionFailed("choked")
        return await function.echo(batch)

    function.answer = mostly_fails
    async with serving(function, constructors.size_or_timeout(4, 0.01)) as buffer:
        statuses = Counter()
        for i in range(1000):
            statuses.update(a[0] for a in await asyncio.gather(*(buffer.post("/models/m", b"%d" % (4 * i + j)) for j in range(4))))
        text = (await buffer.get("/metrics"))[2].decode()
    retries = float(text.split('sluice_invocation_retries_total{model="m"} ')[1].split()[0])
    # A failed part costs one from the reserve and is asked for as two halves.
    assert retries / 2 <= 64 + statuses[200]
    assert statuses[200] > 0


@in_virtual_time
async def test_a_broken_function_is_found_out_also_where_all_payloads_are_equal(function):
    loop, calls = asyncio.get_running_loop(), []

    async def broken(batch):
        calls.append(loop.time())
        await asyncio.sleep(0.3)
        raise FunctionFailed("out of memory")

    function.answer = broken
    async with serving(function, constructors.static(32, servers=1)) as buffer:
        for seconds in (2.1, 0.6):  # 7 calls, and 2
            began = loop.time()
            assert {a[0] for a in await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(32)))} <= {502, 503}
            assert loop.time() - began == pytest.approx(seconds, abs=0.05)
        assert len(calls) == 9
        began = loop.time()
        assert {a[0] for a in await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(32)))} == {503}
        assert loop.time() - began < 0.01
        function.answer = function.echo
        await asyncio.sleep(1.01)
        del function.batches[:]
        for _ in range(2):
            assert {a[0] for a in await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(32)))} == {200}
        assert len(function.batches[-1].items) == 32  # nobody is suspected for what the function was to blame for


def alone(bench, now, outcome, batch_id):
    """A batch of one item of always the same body; whether it was asked for."""
    ids, instructions = bench.batch(now, 1, batch_id)
    for invocation in instructions.invoke:
        bench.state.served(now, batch_id, outcome or answers(ids), invocation.part)
    bench.state.turn(now)
    if bench.state.asking:
        bench.state.called(now, Outcome(epoch="1"))
        bench.state.turn(now)
    return bool(instructions.invoke)


def test_a_suspect_that_fails_counts_as_long_as_nobody_else_was_answered_and_its_trial_opens_the_circuit_for_longer():
    bench = Bench(constructors.greedy(1)).begun()
    asks = [alone(bench, 0.1 * i, FAILED, f"b{i}") for i in range(10)]
    assert asks == [True] * STRIKES + [False] * (10 - STRIKES)
    assert bench.state.suspensions == 1
    assert alone(bench, 2.0, FAILED, "trial")
    assert bench.state.suspensions == 2
    assert not alone(bench, 3.9, FAILED, "early") and alone(bench, 4.0, FAILED, "again")


def test_a_batch_of_nothing_but_suspects_is_given_up_as_others_are():
    bench = Bench(constructors.greedy(8)).begun()
    alone(bench, 0.1, FAILED, "b0")
    ids, first = bench.batch(0.2, 8)
    asks, told, _ = play(bench, first, ids, lambda places: FAILED)
    assert len(asks) == 2 and told == dict.fromkeys(range(8), 502)


def test_copies_of_a_poison_beside_requests_that_are_answered_do_not_open_the_circuit():
    function = FunctionState("f", 32)
    items = [Item(f"{i:016}", "application/json", POISON if i < 20 else b"%d" % i) for i in range(32)]
    poison, good = items[:20], items[20:]
    for now in (0.0, 1.0, 2.0):
        batch = BatchState([], [Part(good, function="f")], "1", now)
        function.answered(now, batch.parts.pop())
        batch.answered([])
        for item in poison:
            part = Part([item], suspected=now > 0.0, function="f")
            if now > 0.0:
                function.remedy(now, batch, part, FAILED)
            function.failed_alone(now, batch, part)
    assert function.circuit.openings == 0 and len(function.parts(3.0, items)) == 1 + len(poison)


def test_what_the_function_before_answers_or_fails_says_nothing_of_the_one_that_follows():
    for ends in ([], FAILED):
        bench = Bench(two := constructors.greedy(1, servers=2)).begun()
        _, old = bench.batch(0.1, 1, "old")
        bench.state.follow(0.2, Route("", "g", PolicyDocument.of(two), 1.0))
        for i in range(STRIKES):
            alone(bench, 0.3, FAILED, f"b{i}")
        assert bench.state.suspensions == 1
        bench.state.served(0.4, "old", ends, old.invoke[0].part)
        assert not alone(bench, 0.5, FAILED, "refused")


def test_the_trial_of_the_function_before_does_not_end_that_of_the_one_that_follows():
    function = FunctionState("g", 1)
    for _ in range(STRIKES):
        function.circuit.failed(0.0, unavailable=False)
    function.circuit.try_one()
    function.undecided(Part([], trial=True, function="f"))
    assert function.circuit.refuses(1.0) is not None
    function.undecided(Part([], trial=True, function="g"))
    assert function.circuit.refuses(1.0) is None


# --- a function that is busy


@in_virtual_time
async def test_a_lambda_that_is_throttled_for_three_seconds_costs_no_request_and_no_storm_of_calls(function):
    loop = asyncio.get_running_loop()
    calls = []

    async def throttled(batch):
        calls.append(loop.time())
        if loop.time() < 3.0:
            raise FunctionBusy("HTTP 429 Rate Exceeded.")
        return await function.echo(batch)

    function.answer = throttled
    async with serving(function, constructors.size_or_timeout(8, 0.01)) as buffer:

        async def ask(i):
            await asyncio.sleep(0.02 * i)
            return (await buffer.post("/models/m", b"%d" % i))[0]

        statuses = Counter(await asyncio.gather(*(ask(i) for i in range(200))))
        assert loop.time() < 3.0 + 2 * LONGEST_BACKOFF + 1.0
    assert statuses == {200: 200}
    batches = len(calls) - sum(at < 3.0 for at in calls)
    assert len(calls) < 10 * batches


def test_a_busy_function_is_asked_later_each_time_by_a_random_part_of_a_span_that_doubles_up_to_a_bound():
    bench = Bench().begun()
    bench.batch(0.1)
    now = 0.1
    for i in range(9):
        bench.state.served(now, "b1", Failure(Cause.BUSY, "throttled", chance=0.75))
        instructions = bench.state.turn(now)
        wait = 0.75 * min(LONGEST_BACKOFF, BACKOFF * 2**i)
        assert not instructions.invoke and instructions.wake_at <= now + wait + 1e-9
        assert not bench.state.turn(now + 0.99 * wait).invoke
        now += wait
        [invocation] = bench.state.turn(now).invoke
        assert invocation.again


def test_when_a_busy_function_has_answered_the_oldest_batch_that_waits_is_asked_for_but_not_before_the_function_wants():
    bench = Bench(constructors.greedy(2, servers=None), others=1).begun()
    for i, (retry_after, left) in enumerate([(9.0, False), (0.0, True), (0.0, False), (0.0, False)]):
        ids, _ = bench.batch(0.01 * i, 2, f"b{i}")
        bench.state.served(0.01 * i, f"b{i}", Failure(Cause.BUSY, "throttled", retry_after=retry_after))
        for request_id in ids * left:
            bench.waiting[request_id].queue = TOLD
    ids, _ = bench.batch(0.04, 2, "b4")
    bench.state.served(0.041, "b4", answers(ids))
    assert [invocation.batch_id for invocation in bench.state.turn(0.041).invoke] == ["b2"]
    assert "b1" not in bench.state._batches.under_way  # nobody waits for it, and it takes nobody's turn


def test_one_place_in_so_many_of_a_busy_function_is_left_to_other_processes_for_some_time():
    bench = Bench(constructors.greedy(1, servers=None), others=1).begun()
    batches = {f"b{i}": bench.batch(0.0, 1, f"b{i}")[0] for i in range(2 * YIELDS)}
    for batch_id in list(batches)[YIELDS:]:
        bench.state.served(0.0, batch_id, Failure(Cause.BUSY, "throttled"))
    asked = 0
    for batch_id in list(batches)[:YIELDS]:
        bench.state.served(0.001, batch_id, answers(batches[batch_id]))
        asked += len(bench.state.turn(0.001).invoke)
    assert asked == YIELDS - 1
    assert len(bench.state.turn(0.001 + YIELD).invoke) == 1


def test_who_cannot_be_served_before_the_function_wants_to_be_asked_again_is_told_so_now():
    bench = Bench().begun()
    ids, _ = bench.batch(20.0, 2)
    bench.state.served(20.0, "b1", Failure(Cause.BUSY, "throttled", retry_after=PATIENCE + 1))
    [first, second] = bench.state.turn(20.0).tell
    assert [first.id, second.id] == ids and first.status == 503
    assert first.headers == {"retry-after": "32"} and b"throttled" in first.body  # and up to BACKOFF


def test_a_batch_that_waits_for_a_busy_function_ends_when_nobody_waits_for_it_any_more():
    bench = Bench().begun()
    ids, _ = bench.batch(0.1)
    bench.state.served(0.1, "b1", Failure(Cause.BUSY, "throttled", retry_after=20.0))
    for request_id in ids:
        del bench.waiting[request_id]
    instructions = bench.state.turn(0.1)
    assert instructions.wake_at <= 0.1 + LONGEST_BACKOFF
    instructions = bench.state.turn(0.1 + LONGEST_BACKOFF)
    assert not instructions.invoke and instructions.call.events.completed == ["b1"]


def test_a_batch_that_waits_for_a_busy_function_is_moved_with_its_route():
    bench = Bench(route="a").begun()
    bench.batch(0.1)
    bench.state.served(0.1, "b1", Failure(Cause.BUSY, "throttled", retry_after=20.0))
    bench.state.retire(0.2)
    [move] = bench.state.turn(0.2).move
    assert len(move.members) == 2


# --- several workers


def test_a_batch_that_one_worker_fails_is_asked_for_at_another_once():
    for cause in (Cause.UNAVAILABLE, Cause.CRASHED, Cause.FAILED, Cause.BUSY):
        bench = Bench().begun()
        ids, first = bench.batch(0.1, 4)
        bench.state.served(0.2, "b1", Failure(cause, "no", worker="http://a"))
        [again] = bench.state.turn(0.2).invoke
        assert (again.items, again.avoid, again.again) == (first.invoke[0].items, "http://a", True)
        bench.state.served(0.3, "b1", Failure(cause, "no", worker="http://b"))
        instructions = bench.state.turn(0.3)
        if cause is Cause.UNAVAILABLE:
            assert [answer.status for answer in instructions.tell] == [502] * 4
        elif cause is Cause.BUSY:
            assert not instructions.invoke and not instructions.tell
        else:
            assert asked(instructions, ids) == [[0, 1]]


def test_a_batch_that_was_computed_and_failed_is_halved_where_no_other_worker_can_be_reached():
    bench = Bench().begun()
    ids, _ = bench.batch(0.1, 4)
    bench.state.served(0.2, "b1", Failure(Cause.FAILED, "choked", worker="http://a"))
    bench.state.turn(0.2)
    bench.state.served(0.3, "b1", Failure(Cause.UNAVAILABLE, "refused", worker="http://b"))
    assert asked(bench.state.turn(0.3), ids) == [[0, 1]]


def test_a_worker_that_is_busy_is_waited_for_where_another_cannot_be_reached():
    for first, second in ((Cause.UNAVAILABLE, Cause.BUSY), (Cause.BUSY, Cause.UNAVAILABLE)):
        bench = Bench().begun()
        bench.batch(0.1, 4)
        bench.state.served(0.2, "b1", Failure(first, "no", worker="http://a"))
        [again] = bench.state.turn(0.2).invoke
        assert again.avoid == "http://a"
        bench.state.served(0.3, "b1", Failure(second, "no", worker="http://b"))
        instructions = bench.state.turn(0.3)
        assert not instructions.invoke and not instructions.tell
        [later] = bench.state.turn(0.3 + BACKOFF).invoke
        assert later.avoid == "" and len(later.items) == 4
        bench.state.served(PATIENCE, "b1", Failure(first, "no", worker="http://a"))
        bench.state.turn(PATIENCE)
        bench.state.served(PATIENCE, "b1", Failure(second, "no", worker="http://b", retry_after=1.0))
        assert {answer.status for answer in bench.state.turn(PATIENCE).tell} == {503}  # it cannot be waited for any longer


def test_a_failure_that_another_worker_makes_good_says_nothing_of_the_function():
    bench = Bench(constructors.greedy(1, servers=2 * UNAVAILABLE_LIMIT)).begun()
    for i in range(2 * UNAVAILABLE_LIMIT):
        bench.batch(0.1, 1, f"b{i}")
        bench.state.served(0.1, f"b{i}", Failure(Cause.UNAVAILABLE, "HTTP 502", worker="http://a"))
        assert bench.state.turn(0.1).invoke
    assert bench.state.suspensions == 0
    for i in range(UNAVAILABLE_LIMIT):
        bench.state.served(0.2, f"b{i}", Failure(Cause.UNAVAILABLE, "HTTP 502", worker="http://b"))
    assert bench.state.suspensions == 1


def test_a_trial_goes_elsewhere_before_it_has_failed():
    bench = Bench(constructors.greedy(1)).begun()
    for i in range(STRIKES):
        alone(bench, 0.1, FAILED, f"b{i}")
    bench.batch(2.0, 1, "trial")
    bench.state.served(2.0, "trial", Failure(Cause.FAILED, "choked", worker="http://a"))
    [again] = bench.state.turn(2.0).invoke
    assert again.avoid == "http://a" and bench.state.suspensions == 1
    bench.state.served(2.1, "trial", Failure(Cause.FAILED, "choked", worker="http://b"))
    assert bench.state.suspensions == 2 and not alone(bench, 4.0, FAILED, "early")


def test_a_worker_that_is_busy_costs_nothing_of_what_finding_a_poison_needs():
    bench = Bench(constructors.static(32, servers=2 * RESERVE + 1)).begun()
    for i in range(2 * RESERVE):
        now = 0.01 * (i + 1)
        bench.batch(now, 2, f"b{i}")
        bench.state.served(now, f"b{i}", Failure(Cause.BUSY, "HTTP 429", worker="http://a"))
        assert [invocation.avoid for invocation in bench.state.turn(now).invoke] == ["http://a"]
    ids, first = bench.batch(1.0, 32, "b1")
    _, told, _ = play(bench, first, ids, lambda places: FAILED if 5 in places else None)
    assert told == {place: 502 if place == 5 else 200 for place in range(32)}


class VirtualWorkers(HttpInvoker):
    """Workers in virtual time: ``well`` says of a name and the time after how many seconds it answers; ``None``: 502 at once."""

    def __init__(self, well):
        self._time = asyncio.get_running_loop().time
        super().__init__(10.0, clock=self._time)
        self._well = well

    async def _ask(self, worker, question):
        batch = question.batch or decode_batch(question.json)
        if batch.describe:
            return encode_metadata({"name": batch.model})
        took = self._well(worker[-1], self._time())
        if took is None:
            raise FunctionUnavailable("HTTP 502")
        await asyncio.sleep(took)
        return encode_answers([Answer(i.id, 200, i.content_type, i.body) for i in batch.items])


async def statuses_of(well, workers, policy, n, every):
    """When each of ``n`` requests was told what, one ``every`` so many seconds."""
    loop = asyncio.get_running_loop()
    plans = Plans(plan(policy, function=",".join(f"http://{name}" for name in workers)))

    async def ask(i):
        await asyncio.sleep(i * every)
        status = (await buffer.post("/models/m", b"%d" % i))[0]
        return status, loop.time()

    async with serving(Function(), None, plans=plans, invoker=VirtualWorkers(well)) as buffer:
        return await asyncio.gather(*(ask(i) for i in range(n)))


@in_virtual_time
async def test_one_slow_worker_that_is_well_beside_two_that_fail_fast_is_not_suspended():
    told = await statuses_of(
        lambda worker, now: 2.0 if worker == "c" else None, "abc", constructors.greedy(1, servers=200), 200, 0.01
    )
    assert Counter(status for status, _ in told)[200] >= 195


@in_virtual_time
async def test_a_worker_that_is_well_again_is_found_while_another_is_not():
    told = await statuses_of(
        lambda worker, now: 0.01 if worker == "b" and now >= 1.0 else None, "ab", constructors.greedy(1, servers=8), 400, 0.1
    )
    assert min(at for status, at in told if status == 200) < 8.0


class Fleet:
    """Workers over sockets; ``answer`` says what each does with a batch, by its number."""

    def __init__(self, answer):
        self._answer = answer
        self.batches: Counter[int] = Counter()

    @asynccontextmanager
    async def running(self, n):
        """So many; their addresses."""
        async with AsyncExitStack() as stack:
            addresses = []
            for number in range(n):
                runner = web.ServerRunner(web.Server(self._serve(number)), shutdown_timeout=0.1)
                await runner.setup()
                stack.push_async_callback(runner.cleanup)
                await web.TCPSite(runner, "127.0.0.1", 0).start()
                addresses.append("http://{}:{}".format(*runner.addresses[0]))
            yield addresses

    def _serve(self, number):
        async def serve(request):
            batch = decode_batch(await request.read())
            if batch.describe:
                return web.Response(body=encode_metadata({"name": batch.model}))
            self.batches[number] += 1
            return await self._answer(number, request, batch)

        return serve


def echoed(batch):
    return web.Response(body=encode_answers([Answer(i.id, 200, i.content_type, i.body) for i in batch.items]))


@asynccontextmanager
async def fleet_serving(fleet, n, policy, **settings):
    """A buffer before so many workers."""
    async with fleet.running(n) as addresses:
        plans = Plans(plan(policy, function=",".join(addresses)))
        async with serving(Function(), None, plans=plans, invoker=HttpInvoker(10.0), **settings) as buffer:
            yield buffer


@pytest.mark.parametrize("trouble", [500, 502, "reset"])
async def test_one_worker_of_four_that_fails_fast_costs_no_request_and_draws_few(trouble):
    async def answer(number, request, batch):
        if number > 0:
            await asyncio.sleep(0.005)
            return echoed(batch)
        if trouble == "reset":
            request.transport.abort()
        return web.Response(status=trouble if isinstance(trouble, int) else 200)

    fleet = Fleet(answer)
    async with fleet_serving(fleet, 4, constructors.greedy(1, servers=4)) as buffer:
        statuses = Counter(a[0] for a in await asyncio.gather(*(buffer.post("/models/m", b"%d" % i) for i in range(400))))
    assert statuses == {200: 400}
    assert fleet.batches[0] <= 20  # of 400; a fourth of them would be 100, and one that is always idle had 65 of 100


# --- a poison that crashes the worker


async def test_all_neighbours_of_a_poison_that_resets_its_connection_are_served():
    async def answer(number, request, batch):
        if any(item.body == POISON for item in batch.items):
            request.transport.abort()
        return echoed(batch)

    fleet = Fleet(answer)
    async with fleet_serving(fleet, 1, constructors.static(32, servers=1)) as buffer:
        posts = [buffer.post("/models/m", POISON if i == 20 else b"%d" % i) for i in range(32)]
        statuses = [a[0] for a in await asyncio.gather(*posts)]
    assert statuses == [502 if i == 20 else 200 for i in range(32)]


async def test_all_neighbours_of_a_poison_that_kills_its_worker_are_served_when_that_is_back():
    served, port = [], []

    async def serve(reader, writer):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        batch = decode_batch(await reader.readexactly(length))
        if any(item.body == POISON for item in batch.items):
            listening[0].close()
            writer.transport.abort()
            asyncio.get_running_loop().call_later(0.2, lambda: starting.append(asyncio.ensure_future(start())))
            return
        body = encode_metadata({"name": "m"}) if batch.describe else echoed(batch).body
        served.extend(item.body for item in batch.items)
        writer.write(b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        writer.close()

    async def start():
        server = await asyncio.start_server(serve, "127.0.0.1", port[0] if port else 0)
        listening[:] = [server]
        port[:] = [server.sockets[0].getsockname()[1]]

    listening, starting = [], []
    await start()
    plans = Plans(plan(constructors.static(8, servers=1), function=f"http://127.0.0.1:{port[0]}"))
    async with serving(Function(), None, plans=plans, invoker=HttpInvoker(10.0)) as buffer:
        began = time.monotonic()
        statuses = [
            a[0] for a in await asyncio.gather(*(buffer.post("/models/m", POISON if i == 1 else b"%d" % i) for i in range(8)))
        ]
        assert time.monotonic() - began < RESTART
    assert statuses == [502 if i == 1 else 200 for i in range(8)]
    assert len(starting) >= 4  # it was killed by each part with the poison
    listening[0].close()


def test_a_worker_that_does_not_come_back_is_waited_for_no_longer_than_a_restart_takes():
    bench = Bench().begun()
    ids, _ = bench.batch(0.1, 4)
    bench.state.served(0.1, "b1", Failure(Cause.CRASHED, "reset"))
    now = 0.1
    for _ in range(200):
        for invocation in bench.state.turn(now).invoke:
            bench.state.served(now, "b1", Failure(Cause.UNAVAILABLE, "refused"), invocation.part)
        if "b1" not in bench.state._batches.under_way:
            break
        now += 0.05
    assert RESTART <= now < RESTART + 2 * LONGEST_BACKOFF + 0.2
    assert {answer.id: answer.status for answer in bench.state.turn(now).tell} == dict.fromkeys(ids, 502)


# --- in parallel, and learned


@pytest.mark.parametrize(("servers", "rounds"), [(None, 6), (1, 11)])
async def test_halves_are_asked_for_at_once_where_servers_are_not_bounded(servers, rounds):
    @in_virtual_time
    async def run():
        loop, function, at_once = asyncio.get_running_loop(), Function(), []
        under_way = 0

        async def fragile(batch):
            nonlocal under_way
            under_way += 1
            at_once.append(under_way)
            await asyncio.sleep(1.0)
            under_way -= 1
            if any(item.body == POISON for item in batch.items):
                raise FunctionFailed("choked")
            return await function.echo(batch)

        function.answer = fragile
        async with serving(function, constructors.static(32, servers=servers)) as buffer:
            posts = [buffer.post("/models/m", POISON if i == 0 else b"%d" % i) for i in range(32)]
            statuses = [a[0] for a in await asyncio.gather(*posts)]
            assert loop.time() == pytest.approx(rounds, abs=0.1)
        assert statuses == [502] + [200] * 31
        assert max(at_once) == (2 if servers is None else 1)

    await asyncio.to_thread(run)


@in_virtual_time
@pytest.mark.parametrize("error", [FunctionFailed, FunctionCrashed])
async def test_a_poison_that_comes_again_goes_alone_and_costs_its_neighbours_nothing(function, error):
    async def fragile(batch):
        if any(item.body == POISON for item in batch.items):
            raise error("choked")
        return await function.echo(batch)

    function.answer = fragile
    async with serving(function, constructors.static(8, servers=1)) as buffer:
        for _ in range(2):
            del function.batches[:]
            posts = [buffer.post("/models/m", POISON if i == 3 else b"%d" % i) for i in range(8)]
            assert [a[0] for a in await asyncio.gather(*posts)] == [502 if i == 3 else 200 for i in range(8)]
        assert [len(batch.items) for batch in function.batches] == [7, 1]
        function.answer = function.echo
        for sizes in ([7, 1], [8]):  # answered, it is as the others
            del function.batches[:]
            assert {
                a[0] for a in await asyncio.gather(*(buffer.post("/models/m", POISON if i == 3 else b"1") for i in range(8)))
            } == {200}
            assert [len(batch.items) for batch in function.batches] == sizes
