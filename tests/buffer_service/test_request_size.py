"""How the size of a request is told, and what a buffer does with it: read, routed by, moved, recorded, counted, refused."""

from __future__ import annotations

import asyncio
import json
import math
from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, RequestSize, Route
from sluice.batching.errors import InvalidInput
from sluice.buffer_service.arrival_stream import read_requests
from sluice.buffer_service.members import Unreadable, decode_member, encode_member, member_size, member_sizes
from sluice.buffer_service.memory_store import MemoryStore
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.request_size import LARGEST, size_reader
from sluice.buffer_service.routing import SizeClasses
from sluice.buffer_service.store import Events, Limits
from sluice.buffer_service.told import Told
from sluice.lambda_fn.contract import INFERENCE_HEADER, Item
from tests.buffer_service.conftest import NO_BATCHING, Function, memory, serving
from tests.buffer_service.test_served_model import HELD, sample, serving_plan, until, until_waiting
from tests.buffer_service.virtual_time import in_virtual_time

A, B = "aaaaaaaa", "bbbbbbbb"
TENSORS = {"inputs": [{"name": "x", "shape": [1, 64], "datatype": "INT64", "data": [0]}]}


def classes(*bounds: float, table: constructors.Policy = NO_BATCHING, by: str = "header", name: str = "") -> Plan:
    """A plan with a route on function ``a`` for each bound, and one for what is larger."""
    ends = (*bounds, None)
    routes = [
        Route(f"to-{end:g}" if end is not None else "rest", "a", PolicyDocument.of(table), 1 / len(ends), up_to=end) for end in ends
    ]
    return Plan(model="m", routes=routes, size=RequestSize(by, name))


# --- reading


@pytest.mark.parametrize(
    ("told", "headers", "body", "size"),
    [
        (RequestSize("bytes"), [], b"12345", 5.0),
        (RequestSize("bytes"), [], b"", 0.0),
        (RequestSize("header"), [(b"sluice-size", b"64")], b"", 64.0),
        (RequestSize("header"), [(b"accept", b"9"), (b"sluice-size", b"6.5e1")], b"", 65.0),
        (RequestSize("header"), [(b"sluice-sizes", b"64")], b"", None),
        (RequestSize("header", "X-Tokens"), [(b"x-tokens", b" 7 ")], b"", 7.0),
        (RequestSize("json", "n"), [], b'{"n": 12}', 12.0),
        (RequestSize("json", "a.b"), [], b'{"c": {"b": 1}, "a": {"c": 2, "b": 3.5}}', 3.5),
        (RequestSize("json", "text"), [], '{"text": "größer"}'.encode(), 6.0),
        (RequestSize("json", "tokens"), [], b'{"tokens": [[1, 2], 3, "x"]}', 3.0),
        (RequestSize("header"), [(b"sluice-size", b"5"), (b"sluice-size", b"500")], b"", 5.0),
        (RequestSize("json", "2"), [], b"[5, 6, 7]", 7.0),
        (RequestSize("json", "2"), [], b"[5, 6]", None),
        (RequestSize("json", "2"), [], b'{"2": 8}', 8.0),
        (RequestSize("json", "1.n"), [], b'[5, {"n": 3}, "x", null, [[]]]', 3.0),
        (RequestSize("json", "0.1"), [], b"[5]", None),
        (RequestSize("json", "found"), [], b'{"find": 8}', None),
        (RequestSize("json", "inputs.0.shape.1"), [], json.dumps(TENSORS).encode(), 64.0),
        (RequestSize("json", "inputs.0.shape.2"), [], json.dumps(TENSORS).encode(), None),
        (RequestSize("json", "a.b"), [], b'{"a": null}', None),
        (RequestSize("json", "a.b"), [], b'{"a": 3}', None),
        (RequestSize("json", "a"), [], b'{"a": null}', None),
        (RequestSize("json", "a"), [], b"\x89PNG\xff", None),
        (RequestSize("json", "a"), [], b"", None),
    ],
)
def test_a_size_is_a_number_or_a_length_and_what_is_not_there_is_not_told(told, headers, body, size):
    assert size_reader(told)(headers, {}, body) == size


def test_of_a_body_with_binary_tensors_the_json_in_front_is_read():
    front = json.dumps(TENSORS).encode()
    read = size_reader(RequestSize("json", "inputs.0.shape.1"))
    assert read([], {INFERENCE_HEADER: str(len(front))}, front + b"\xff\x00binary") == 64.0
    assert read([], {INFERENCE_HEADER: "7"}, front) is None
    assert read([], {INFERENCE_HEADER: "9" * 5000}, front) is None


@pytest.mark.parametrize(
    ("told", "headers", "body", "said"),
    [
        (RequestSize("header"), [(b"sluice-size", b"long")], b"", r"\(sluice-size\): 'long'"),
        (RequestSize("header"), [(b"sluice-size", b"")], b"", r"\(sluice-size\): ''"),
        (RequestSize("header"), [(b"sluice-size", b"-1")], b"", r"\(sluice-size\): -1"),
        (RequestSize("header"), [(b"sluice-size", b"x" * 9000)], b"", r"\(sluice-size\): 'x{80}'"),
        (RequestSize("header"), [(b"sluice-size", b"NaN")], b"", r"\(sluice-size\): 'NaN'"),
        (RequestSize("header"), [(b"sluice-size", b"\xb2")], b"", r"\(sluice-size\): '²'"),
        (RequestSize("header"), [(b"sluice-size", b"1e19")], b"", r"\(sluice-size\): 1e\+19"),
        (RequestSize("json", "a"), [], b'{"a": -0.5}', r"\(a\): -0.5"),
        (RequestSize("json", "a"), [], b'{"a": true}', r"\(a\): True"),
        (RequestSize("json", "a"), [], b'{"a": 1%s}' % (b"0" * 400), r"\(a\): 'Number out of range"),
        (RequestSize("json", "a.b"), [], b'{"a": {"b": {}}}', r"\(a.b\): 'an object' is .* or a list"),
    ],
)
def test_what_is_told_and_is_no_size_is_refused_with_its_name_and_value(told, headers, body, said):
    with pytest.raises(InvalidInput, match=f"size of the request {said}") as refused:
        size_reader(told)(headers, {}, body)
    assert "is not allowed; allowed: a number from 0 to 1e+18" in str(refused.value)


eighths = st.integers(0, 100).map(lambda n: n / 8)


@given(st.lists(eighths, max_size=6, unique=True).map(sorted), st.one_of(st.none(), eighths))
def test_a_size_takes_the_first_route_that_is_for_as_large_and_else_the_last(bounds, size):
    routes = classes(*bounds).routes
    wanted = next((r for r in routes if size is not None and r.up_to is not None and size <= r.up_to), routes[-1])
    assert SizeClasses(routes).next(Told(size)) == wanted.name


# --- members


sizes = st.one_of(st.none(), st.floats(0, LARGEST))


@given(sizes, st.binary(max_size=20), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2))
def test_a_member_carries_its_size_and_gives_it_back(size, body, headers):
    item = Item("processs00000001", "text/plain", body, headers)
    member = encode_member(item, Told(size))
    assert (decode_member(member), member_size(member)) == (item, size)


def test_a_member_without_a_size_is_what_the_version_before_wrote_and_read():
    item = Item("processs00000001", "text/plain", b"body", {"a": "b"})
    before = item.id.encode() + msgspec.msgpack.encode(["text/plain", {"a": "b"}, b"body"])
    assert encode_member(item) == before
    assert (decode_member(before), member_size(before)) == (item, None)


def test_a_member_with_a_size_that_is_torn_is_unreadable_and_has_none():
    member = encode_member(Item("processs00000001", "text/plain", b""), Told(3.0))
    for torn in (member[:20], member[:17] + b"\x00" + member[18:]):
        assert member_size(torn) is None
        with pytest.raises(Unreadable, match="the request processs00000001"):
            decode_member(torn)
    assert list(map(repr, member_sizes([member, member[:20]]))) == ["3.0", "nan"] and len(member_sizes([member[:20]])) == 0


# --- routing


async def post(buffer, *sizes: float | None):
    """Requests of these sizes at once, each with its number for a body: the route of each answer."""
    asked = [
        asyncio.create_task(buffer.post("/models/m", b"%d" % i, **({} if size is None else {"sluice-size": f"{size:g}"})))
        for i, size in enumerate(sizes)
    ]
    answers = await asyncio.gather(*asked)
    assert [(status, body) for status, _, body in answers] == [(200, b"%d" % i) for i in range(len(sizes))]
    return [headers.get("sluice-route") for _, headers, _ in answers]


@in_virtual_time
async def test_requests_are_batched_by_their_class_and_each_answer_names_its_route():
    function = Function()
    table = constructors.size_or_timeout(4, 0.01)
    mixed = [3, 64, 8, None, 9, 1, 100, 7.5]
    async with serving_plan(classes(8, 64, table=table), {"a": function}) as buffer:
        routes = await post(buffer, *mixed)
        assert routes == ["to-8", "to-64", "to-8", "rest", "to-64", "to-8", "rest", "to-8"]
        assert sample(buffer, "sluice_request_size_count") == 7 and sample(buffer, "sluice_request_size_sum") == 192.5
        assert sample(buffer, "sluice_request_size_bucket", le="8.0") == 4
        assert sample(buffer, "sluice_route_requests_total", status="200", route="to-8") == 4
    batches = [sorted(int(item.body) for item in batch.items) for batch in function.batches]
    assert sorted(batches) == [[0, 2, 5, 7], [1, 4], [3, 6]]


@in_virtual_time
async def test_the_histogram_of_sizes_is_as_long_whatever_sizes_come():
    async with serving_plan(classes(8), {"a": Function()}) as buffer:
        await post(buffer, 0, 1, 2**24, LARGEST)
        lines = (await buffer.get("/metrics"))[2].splitlines()
    counts = [line.rpartition(b" ")[2] for line in lines if line.startswith(b"sluice_request_size_bucket")]
    assert counts == [b"2.0"] * 24 + [b"3.0", b"4.0"]


@in_virtual_time
async def test_a_plan_that_tells_no_sizes_reads_none_and_shows_none():
    async with serving_plan(classes(8), {"a": Function()}) as told, serving(Function(), NO_BATCHING) as silent:
        assert (await told.post("/models/m", b"1", **{"sluice-size": "many"}))[0] == 400
        assert (await silent.post("/models/m", b"1", **{"sluice-size": "many"}))[0] == 200
        assert b"sluice_request_size_count" not in (await silent.get("/metrics"))[2]


@in_virtual_time
async def test_what_is_no_size_is_refused_with_400_and_the_others_are_served():
    async with serving_plan(classes(8, by="json", name="n"), {"a": Function()}) as buffer:
        status, headers, body = await buffer.post("/models/m", b'{"n": {}}')
        assert (status, headers["content-type"]) == (400, "application/problem+json")
        allowed = "a number from 0 to 1e+18, a string or a list"
        assert json.loads(body)["detail"] == f"size of the request (n): 'an object' is not allowed; allowed: {allowed}"
        answers = [await buffer.post("/models/m", body) for body in (b'{"n": 8}', b'{"n": "123456789"}', b"[]")]
        assert [(status, headers["sluice-route"]) for status, headers, _ in answers] == [
            (200, "to-8"), (200, "rest"), (200, "rest"),
        ]  # fmt: skip


@in_virtual_time
async def test_who_waits_when_other_classes_come_moves_to_the_class_of_his_size():
    function = Function()
    held = classes(8, 64, table=HELD)
    async with serving_plan(held, {"a": function}) as buffer:
        asked = [5.0, 30.0, 64.0, 200.0, None]
        waiting = asyncio.create_task(post(buffer, *asked))
        await until_waiting(buffer, 5)
        other = classes(16, 100)
        last = msgspec.structs.replace(other.routes[-1], name="more")
        await buffer.model.follow(msgspec.structs.replace(other, routes=[*other.routes[:-1], last], digest=""))
        assert await waiting == ["to-16", "to-100", "to-100", "more", "more"]


@in_virtual_time
async def test_who_moves_to_a_plan_of_shares_is_dealt_and_keeps_his_size_for_the_next_plan():
    async with serving_plan(classes(8, table=HELD), {"a": Function(), "b": Function()}) as buffer:
        waiting = asyncio.create_task(post(buffer, 1, 2, 50, 60))
        await until_waiting(buffer, 4)
        halves = [Route(name, name, PolicyDocument.of(HELD), 0.5) for name in "ab"]
        await buffer.model.follow(Plan(model="m", routes=halves))
        await until(lambda: sample(buffer, "sluice_route_queue_length", route="a") == 2)
        await until(lambda: sample(buffer, "sluice_route_queue_length", route="b") == 2)
        await buffer.model.follow(classes(1, 50))
        assert await waiting == ["to-1", "to-50", "to-50", "rest"]


# --- what was told, in the record


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_what_a_running_buffer_is_told_is_in_its_record_also_after_a_move(kind, redis_server, model):
    backend = memory()
    name = model if kind == "redis" else "m"
    opened = RedisStore(redis_server.url, A) if kind == "redis" else MemoryStore(backend, A)
    held = msgspec.structs.replace(classes(8, table=HELD), model=name, digest="")
    async with serving_plan(held, {"a": Function(), "b": Function()}, opened) as buffer:
        path = f"/models/{name}"
        asked = [asyncio.create_task(buffer.post(path, b"1", **{"sluice-size": f"{size}"})) for size in (3, 30, 5)]
        await until_waiting(buffer, 3)
        await buffer.model.follow(Plan(model=name, routes=[Route("b", "b", PolicyDocument.of(NO_BATCHING), 1.0)]))
        assert Counter([status for status, _, _ in await asyncio.gather(*asked)]) == {200: 3}
        await buffer.post(path, b"1", **{"sluice-size": "7"})
    found = backend.arrivals(name) if kind == "memory" else read_requests(redis_server.url, name)
    assert sorted(found.sizes[:3]) == [3.0, 5.0, 30.0] and len(found.times) == 4 and math.isnan(found.sizes[3])


async def test_a_queue_given_up_keeps_the_sizes_of_its_members(redis_server, model):
    """What a process leaves behind is sent by another, which knows its class from the member alone."""
    first, second = RedisStore(redis_server.url, A), RedisStore(redis_server.url, B)
    queues = [store.queue(model, Limits(lease=0.1)) for store in (first, second)]
    await queues[0].install(NO_BATCHING)
    member = encode_member(Item("aaaaaaaa00000000", "text/plain", b"x"), Told(42.0))
    await queues[0].advance(Events(serving=[]), now=1.0)
    await queues[1].advance(Events(serving=[]), now=1.05)
    await queues[0].advance(Events([member], sizes=[42.0]), now=1.06)
    await queues[1].advance(Events(serving=[]), now=1.12)
    [batch] = (await queues[1].advance(Events(serving=[]), now=1.2)).batches
    assert member_size(batch.members[0]) == 42.0
    await first.close()
    await second.close()
