"""Several functions of one route: whose a batch is, who is asked in its place, and when nobody is."""

from __future__ import annotations

import pytest
from msgspec import structs

from sluice.batching import policy as constructors
from sluice.batching.documents import Beside, Plan, PolicyDocument, Route
from sluice.batching.errors import FunctionSuspended, InvalidInput
from sluice.buffer_service.admission import FRESH
from sluice.buffer_service.app import BufferService
from sluice.buffer_service.batch_state import Cause, Failure
from sluice.buffer_service.circuit import FIRST_OPEN, UNAVAILABLE_LIMIT
from sluice.buffer_service.invokers import FunctionUnavailable, UnknownFunction
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.plans import SilentFunction, check_waits
from sluice.buffer_service.route_batches import FUNCTION_HEADER
from sluice.buffer_service.route_functions import Standing
from sluice.buffer_service.route_state import RouteState
from sluice.buffer_service.settings import Settings
from sluice.buffer_service.store import Outcome
from sluice.lambda_fn.contract import decode_batch, encode_answers, encode_metadata
from tests.buffer_service.conftest import Plans, serving
from tests.buffer_service.test_route_state import HERE, LIMITS, PATIENCE, Bench, answers
from tests.buffer_service.virtual_time import in_virtual_time

AWAY = Failure(Cause.UNAVAILABLE, "away")
WORKERS, OVERFLOW = constructors.greedy(4, servers=1), constructors.size_or_timeout(2, 0.1)


class Two(Bench):
    """A route on the workers ``f``, which take 4 at once, with the elastic function ``g`` beside them, which takes 2."""

    def __init__(self, policy=WORKERS, beside=OVERFLOW):
        super().__init__(policy)
        self.route = structs.replace(self.route, beside=[Beside("g", PolicyDocument.of(beside))])
        self.state = RouteState("m", self.route, LIMITS, HERE, self.waiting, PATIENCE)
        self.begun()

    def fails(self, function, now, times=UNAVAILABLE_LIMIT):
        """The function is away for so many batches, of one request each; the other answers them."""
        table = self.route.functions.index(function)
        for i in range(times):
            ids, first = self.batch(now, 1, f"x:{now}:{i}" + f":{table}" * (table > 0))
            assert asked(first) == [(function, 1)]
            self.state.served(now, first.invoke[0].batch_id, AWAY, 1)
            second = self.state.turn(now)
            assert [invocation.again for invocation in second.invoke] == [True]
            self.state.served(now, first.invoke[0].batch_id, answers(ids), 2)
            self.tell(now)

    def tell(self, now):
        """The answers that callers get now, and what their headers say of who gave them; the queue hears what is complete."""
        instructions = self.state.turn(now)
        for answer in instructions.tell:
            del self.waiting[answer.id]
        if instructions.call is not None:
            self.state.called(now, Outcome(epoch="1"))
        return [(answer.status, answer.headers.get(FUNCTION_HEADER)) for answer in instructions.tell]


def asked(instructions):
    return [(invocation.function, len(invocation.items)) for invocation in instructions.invoke]


@pytest.mark.parametrize(("batch_id", "function", "place"), [("p:1:0", "f", "0"), ("p:1:0:1", "g", "1"), ("p:1:0:7", "f", "0")])
def test_a_batch_goes_to_the_function_of_the_table_that_released_it_and_the_answer_says_which_it_was(batch_id, function, place):
    bench = Two()
    ids, first = bench.batch(1.0, 2, batch_id)
    assert asked(first) == [(function, 2)]
    bench.state.served(1.1, batch_id, answers(ids))
    assert bench.tell(1.1) == [(200, place)] * 2


def test_where_there_is_one_function_no_answer_says_which_it_was():
    bench = Bench().begun()
    ids, _ = bench.batch(1.0, 1)
    bench.state.served(1.1, "b1", answers(ids))
    [answer] = bench.state.turn(1.1).tell
    assert FUNCTION_HEADER not in answer.headers


def test_what_a_function_leaves_without_an_answer_is_asked_of_the_other_in_parts_that_it_takes():
    bench = Two()
    ids, _ = bench.batch(1.0, 4, "p:1:0")
    bench.state.served(1.1, "p:1:0", AWAY)
    turn = bench.state.turn(1.1)
    assert asked(turn) == [("g", 2), ("g", 2)]
    assert [invocation.again for invocation in turn.invoke] == [True, True]
    for part, places in ((2, ids[:2]), (3, ids[2:])):
        bench.state.served(1.2, "p:1:0", answers(places), part)
    assert bench.tell(1.2) == [(200, "1")] * 4


def test_of_servers_in_the_place_of_an_elastic_function_one_part_is_asked_for_at_a_time():
    bench = Two(constructors.greedy(1, servers=1), constructors.size_or_timeout(3, 0.1))
    ids, _ = bench.batch(1.0, 3, "p:1:0:1")
    bench.state.served(1.1, "p:1:0:1", AWAY)
    for part, request in enumerate(ids, 2):
        assert asked(bench.state.turn(1.1)) == [("f", 1)]
        bench.state.served(1.1, "p:1:0:1", answers([request]), part)
    assert bench.tell(1.1) == [(200, "0")] * 3


def test_what_both_functions_leave_without_an_answer_fails():
    bench = Two()
    bench.batch(1.0, 2, "p:1:0")
    bench.state.served(1.1, "p:1:0", AWAY)
    bench.state.served(1.2, "p:1:0", AWAY)
    assert bench.tell(1.2) == [(502, None)] * 2


def test_a_worker_that_crashed_is_waited_for_where_the_function_beside_it_is_away_too():
    bench = Two()
    bench.batch(1.0, 1, "p:1:0")
    bench.state.served(1.1, "p:1:0", Failure(Cause.CRASHED, "it died"))
    bench.tell(1.1)
    ids, first = bench.batch(1.2, 1, "p:2:0")
    assert asked(first) == [("f", 1)]
    bench.state.served(1.2, "p:2:0", AWAY)
    assert asked(bench.state.turn(1.2)) == [("g", 1)]
    bench.state.served(1.3, "p:2:0", AWAY)
    turn = bench.state.turn(1.3)
    assert (asked(turn), turn.tell) == ([], [])
    assert asked(bench.state.turn(turn.wake_at)) == [("f", 1)]
    bench.state.served(turn.wake_at, "p:2:0", answers(ids))
    assert bench.tell(turn.wake_at) == [(200, "0")]


def test_while_one_function_is_not_asked_its_batches_go_to_the_other_and_nobody_is_refused():
    bench = Two()
    bench.fails("f", 1.0)
    assert bench.state.refuses(1.1) is None
    _, first = bench.batch(1.1, 4, "p:2:0")
    assert asked(first) == [("g", 2), ("g", 2)]
    assert [invocation.again for invocation in first.invoke] == [False, False]


def test_a_request_is_refused_where_no_function_is_asked_and_told_when_the_first_will_be():
    bench = Two()
    bench.fails("f", 1.0)
    for i in range(UNAVAILABLE_LIMIT):
        bench.batch(1.5, 1, f"p:3:{i}:1")
        bench.state.served(1.5, f"p:3:{i}:1", AWAY, 1)
        bench.tell(1.5)
    refusal = bench.state.refuses(1.5)
    assert isinstance(refusal, FunctionSuspended) and refusal.retry_after == pytest.approx(0.5) and "'f'" in str(refusal)
    assert bench.state.refuses(2.1) is None  # f is tried
    assert asked(bench.batch(2.1, 3, "p:4:0:1")[1]) == [("f", 1)]


def test_one_item_is_the_trial_of_a_function_and_the_others_are_asked_of_the_one_that_is_well():
    bench = Two()
    bench.fails("f", 1.0)
    ids, first = bench.batch(2.1, 4, "p:4:0")
    assert asked(first) == [("f", 1), ("g", 2), ("g", 1)]
    bench.state.served(2.2, "p:4:0", answers(ids[1:3]), 2)
    bench.state.served(2.2, "p:4:0", AWAY, 1)
    assert asked(bench.state.turn(2.2)) == [("g", 1)]
    bench.state.served(2.3, "p:4:0", answers(ids[3:]), 3)
    bench.state.served(2.4, "p:4:0", answers(ids[:1]), 4)
    assert bench.tell(2.4) == [(200, "1")] * 4


def test_what_is_known_of_a_function_that_stays_stays_and_one_that_goes_is_asked_no_more():
    bench = Two()
    bench.fails("f", 1.0)
    ids, _ = bench.batch(1.1, 1, "p:2:0")
    swapped = structs.replace(bench.route, beside=[Beside("h", PolicyDocument.of(OVERFLOW))])
    bench.state.follow(1.1, swapped)
    bench.state.served(1.2, "p:2:0", AWAY)  # of g, which went with its plan
    assert asked(bench.state.turn(1.2)) == [("h", 1)]
    bench.state.served(1.3, "p:2:0", answers(ids), 2)
    assert bench.tell(1.3) == [(200, "1")]


def test_before_an_elastic_function_beside_them_nobody_is_refused_because_the_workers_are_full():
    alone, two = Bench(WORKERS).begun(), Two()
    for bench in (alone, two):
        for i in range(40):  # ten a second, far less than come
            now = 1.0 + i / 10
            bench.come(now, 4)
            call = bench.state.turn(now).call
            if call is not None:
                bench.state.called(now, Outcome(4, [], wake_in=9.0, queue_length=4 * (i + 1), taken=i, busy=1, epoch="1"))
    assert alone.state.refuses(5.1) is not None
    assert two.state.refuses(5.1) is None


def taken_at_most(bench, now):
    bench.come(now)
    call = bench.call(now)
    bench.state.called(now, Outcome(1, epoch="1"))
    return list(call.events.at_most)


def test_from_the_table_of_an_elastic_function_that_is_not_asked_nothing_is_taken_and_one_batch_when_it_is_to_be_tried():
    bench = Two()
    assert taken_at_most(bench, 1.0) == []
    bench.fails("g", 1.0)
    assert taken_at_most(bench, 1.1) == [(1, 0)]
    assert taken_at_most(bench, 2.1) == [(1, 1)]
    ids, first = bench.batch(2.1, 1, "p:9:0:1")
    assert asked(first) == [("g", 1)]
    assert taken_at_most(bench, 2.1) == [(1, 0)]
    bench.state.served(2.2, "p:9:0:1", answers(ids))
    assert taken_at_most(bench, 2.2) == []


def test_from_the_table_of_an_elastic_function_that_refused_a_batch_nothing_is_taken_until_that_is_answered():
    bench = Two()
    ids, _ = bench.batch(1.0, 1, "p:1:0:1")
    bench.state.served(1.1, "p:1:0:1", Failure(Cause.BUSY, "throttled", retry_after=1.0))
    assert taken_at_most(bench, 1.1) == [(1, 0)]
    turn = bench.state.turn(4.0)  # a sweep is due too
    assert asked(turn) == [("g", 1)] and list(turn.call.events.at_most) == [(1, 0)]
    bench.state.called(4.0, Outcome(epoch="1"))
    bench.state.served(4.1, "p:1:0:1", answers(ids), turn.invoke[0].part)
    assert taken_at_most(bench, 4.1) == []


def test_where_no_other_function_is_asked_what_an_elastic_one_refused_is_waited_for_as_if_it_were_alone():
    bench = Two()
    bench.fails("f", 1.0)
    bench.batch(1.1, 1, "p:2:0:1")
    bench.state.served(1.2, "p:2:0:1", Failure(Cause.BUSY, "throttled", retry_after=1.0))
    assert taken_at_most(bench, 1.2) == []


def ejected_servers(bench, now):
    bench.come(now)
    call = bench.call(now)
    bench.state.called(now, Outcome(1, epoch="1"))
    return list(call.events.ejected)


@pytest.mark.parametrize(
    ("servers", "workers", "ejected", "held", "busy"),
    [
        (3, 3, 1, 0, 1),
        (3, 3, 2, 0, 2),
        (3, 3, 3, 0, 0),  # where none is well all count as well
        (3, 3, 3, 1, 0),  # one of them with a batch
        (3, 3, 1, 1, 0),  # which holds the server
        (2, 3, 1, 0, 0),  # those that are well are enough
        (2, 3, 2, 0, 1),
        (6, 3, 1, 0, 2),  # two batches at once on each
        (6, 3, 1, 1, 1),
        (6, 3, 1, 5, 0),
        (5, 2, 1, 0, 2),
        (1, 3, 2, 0, 0),
    ],
)
def test_the_servers_of_workers_that_are_ejected_count_as_busy_until_these_are_due(servers, workers, ejected, held, busy):
    bench = Two(constructors.greedy(4, servers=servers))
    assert ejected_servers(bench, 1.0) == []
    bench.state.pool(1.0, "f", workers, [0.5] * ejected, held)
    assert ejected_servers(bench, 1.1) == ([(0, busy)] if busy else [])
    bench.state.pool(1.2, "f", workers, [0.3] * ejected, held)
    assert ejected_servers(bench, 1.5) == []


def test_who_waits_at_the_queue_is_looked_at_when_the_first_ejected_worker_is_due():
    bench = Two()
    bench.state.pool(1.0, "f", 3, [0.15, 0.05])
    bench.come(1.1)
    bench.call(1.1)
    bench.state.called(1.1, Outcome(1, queue_length=1, epoch="1"))
    assert bench.state.turn(1.1).wake_at == pytest.approx(1.15)
    bench.call(1.15)
    bench.state.called(1.15, Outcome(epoch="1"))
    assert bench.state.turn(1.16).wake_at > 1.2  # nobody waits


def test_who_is_adopted_may_not_leave_for_a_server_that_is_ejected():
    bench = Two(constructors.greedy(4, servers=2))
    bench.state.pool(1.0, "f", 2, [9.0])
    bench.state.adopt(1.1, [b"p" * 16])
    assert list(bench.call(1.1).events.ejected) == [(0, 1)]


def test_while_all_servers_but_the_ejected_are_busy_who_comes_is_brought_with_the_end_of_a_batch():
    bench = Bench(constructors.greedy(4, servers=2)).begun()
    bench.state.pool(0.5, "f", 2, [9.0])
    ids, _ = bench.batch(1.0)
    bench.come(1.0)
    assert bench.state.turn(1.0).call is None and bench.state.asks_at == pytest.approx(1.0 + FRESH)
    bench.state.served(1.01, "b1", answers(ids))
    assert list(bench.call(1.01).events.ejected) == [(0, 1)]


def test_of_an_elastic_function_and_of_one_that_the_plan_has_not_no_server_is_ejected():
    bench = Two()
    bench.state.pool(1.0, "g", 3, [9.0])
    bench.state.pool(1.0, "of an earlier plan", 3, [9.0])
    bench.state.pool(1.0, "f", 3)
    assert ejected_servers(bench, 1.1) == []


def test_a_table_beside_has_ejected_servers_of_its_own_and_another_policy_counts_them_anew():
    bench = Two(beside=constructors.greedy(2, servers=4))
    bench.state.pool(1.0, "g", 4, [9.0, 9.0])
    bench.state.pool(1.0, "f", 2, [9.0])
    assert ejected_servers(bench, 1.1) == [(1, 2)]  # of f, which has one server, the other worker is enough
    bench.state.follow(
        1.2, structs.replace(bench.route, beside=[Beside("g", PolicyDocument.of(constructors.greedy(2, servers=2)))])
    )
    assert ejected_servers(bench, 1.3) == []


def test_batches_of_servers_are_no_part_of_what_an_elastic_function_beside_them_takes():
    bench = Two()
    bench.batch(1.0, 4, "p:1:0")
    ids, _ = bench.batch(1.0, 2, "p:1:1:1")
    admission = bench.state._admission
    assert (admission._calls, admission._at_work) == (1, 2)
    bench.state.served(1.1, "p:1:1:1", answers(ids))
    assert (admission._calls, admission._at_work, admission._computed) == (0, 0, 2)


# --- plans


def plan(*beside, policy=WORKERS, function="http://a:1"):
    return Plan(model="m", function=function, policy=PolicyDocument.of(policy), beside=list(beside))


def test_callers_do_not_wait_longer_for_a_table_beside_than_for_another():
    slow = Beside("g", PolicyDocument.of(constructors.size_or_timeout(2, 31.0)))
    with pytest.raises(InvalidInput, match=r"beside\[0\].policy: hold\[1\]: 31.0 is not allowed; allowed: at most 30 s"):
        check_waits(plan(slow), 30.0)
    check_waits(plan(Beside("g", PolicyDocument.of(constructors.static(8, servers=None)))), 30.0)
    dropping = plan(Beside("g", PolicyDocument.of(OVERFLOW)), policy=constructors.Policy([float("inf"), 0], [0, 1], 1, 0.05))
    with pytest.raises(InvalidInput, match=r"beside\[0\].policy: hold\[1\]: 0.1 .* gives up who waits"):
        check_waits(dropping, 30.0)


class Functions:
    """Functions by name: the model that each serves, or the error that comes of asking it; what each was asked for is counted."""

    def __init__(self, **served):
        self.served = served
        self.items = dict.fromkeys(served, 0)

    async def invoke(self, function, payload, avoid=""):
        if function not in self.served:
            raise UnknownFunction(f"function {function!r} does not exist")
        answer, batch = self.served[function], decode_batch(payload)
        if isinstance(answer, Exception):
            raise answer
        if batch.describe:
            return encode_metadata({"name": answer})
        self.items[function] += len(batch.items)
        return encode_answers(answers([item.id for item in batch.items]))

    async def close(self):
        pass


@pytest.mark.parametrize(
    ("served", "error", "message"),
    [
        ({"f": "m"}, UnknownFunction, "'g' does not exist"),
        ({"f": "m", "g": "other"}, InvalidInput, "model: 'm' is not allowed; allowed: the model that g serves, 'other'"),
    ],
)
async def test_every_function_of_a_plan_must_exist_and_serve_the_model(served, error, message):
    service = BufferService(Settings(port=0), MemoryStore(MemoryBackend(), "tttttttt"), Functions(**served), Plans())
    with pytest.raises(error, match=message):
        await service._check_functions(plan(Beside("g", PolicyDocument.of(OVERFLOW)), function="f"))


async def test_a_function_that_is_silent_is_refused_beside_one_of_the_plan_in_force_that_answers():
    functions = Functions(f="m", g=FunctionUnavailable("silent"))
    service = BufferService(Settings(port=0), MemoryStore(MemoryBackend(), "tttttttt"), functions, Plans())
    two = plan(Beside("g", PolicyDocument.of(OVERFLOW)), function="f")
    with pytest.raises(SilentFunction, match=r"beside\[0\].function: 'g'"):
        await service._check_functions(two, plan(function="f").all_routes)
    await service._check_functions(two, two.all_routes)
    route = Route("a", "f", PolicyDocument.of(WORKERS), 1.0)
    routed = Plan(model="m", routes=[structs.replace(route, beside=two.beside)])
    with pytest.raises(SilentFunction, match=r"beside\[0\].function of route a: 'g'"):
        await service._check_functions(routed, [route])


@in_virtual_time
async def test_the_model_is_described_by_the_first_function_that_answers_and_the_other_serves_it():
    functions = Functions(f=FunctionUnavailable("its machine is gone"), g="m")
    document = plan(Beside("g", PolicyDocument.of(OVERFLOW)), function="f")
    async with serving(None, None, plans=Plans(document), invoker=functions) as buffer:
        status, _, body = await buffer.get("/v2/models/m")
        assert status == 200 and b'"name":"m"' in body
        for _ in range(3):
            status, headers, _ = await buffer.post("/models/m", b"1")
            assert (status, headers[FUNCTION_HEADER]) == (200, "1")
        _, _, text = await buffer.get("/metrics")
        assert b'sluice_function_requests_total{function="g",model="m"} 3.0' in text
        assert b'sluice_function_failures_total{error="FunctionUnavailable",function="f",model="m"} 3.0' in text


def test_how_each_function_stands_is_told_with_what_is_under_way_and_until_when_it_is_not_asked():
    bench = Two()
    assert bench.state.standings(0.0) == [Standing("f", 0, None), Standing("g", 0, None)]
    bench.fails("f", 1.0)
    assert bench.state.standings(1.0) == [Standing("f", 0, FIRST_OPEN), Standing("g", 0, None)]
    bench.batch(1.25, 2, "x:1:9:1")
    assert bench.state.standings(1.25) == [Standing("f", 0, FIRST_OPEN - 0.25), Standing("g", 1, None)]
