"""Answers that are fetched later, and requests that are asked again with the same key."""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import json
from contextlib import AsyncExitStack

import pytest

from sluice.batching.errors import InvalidInput, StoreUnavailable
from sluice.batching.policy import no_batching, size_or_timeout, static
from sluice.buffer_service.kept_requests import (
    INHERITED_AFTER,
    REQUEST_ID,
    Asked,
    Keeper,
    Wish,
    _encode,
    _entry_id,
    check_key,
)
from sluice.buffer_service.members import encode_member
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.results import ADDRESS, Bounds, MemoryResults
from sluice.buffer_service.store import Events, Limits
from sluice.lambda_fn import ItemError
from sluice.lambda_fn.contract import Answer, Item
from sluice.testing import memory_buffer
from tests.buffer_service.conftest import NO_BATCHING, Function, memory, serving
from tests.buffer_service.virtual_time import in_virtual_time

LATER = {"prefer": "respond-async"}
PAIRS = size_or_timeout(2, 0.02)


class Doubler:
    calls = 0

    def predict(self, inputs: list[float]) -> list[float | ItemError]:
        Doubler.calls += len(inputs)
        return [ItemError(422, "below 0") if x < 0 else ItemError(500, "too much") if x > 99 else 2 * x for x in inputs]


def keyed(key: str = "order-17", **more: str) -> dict[str, str]:
    return {"idempotency-key": key, **more}


@pytest.fixture
def buffer():
    with memory_buffer(Doubler, PAIRS, takes=lambda requests: 0.1, results_life=100.0) as running:
        yield running


# --- fetched later


def test_who_prefers_to_fetch_his_answer_is_told_where_at_once(buffer):
    told = buffer.ask(21, headers=LATER)
    assert (told.status, told.at, told.headers["preference-applied"]) == (202, 0.0, "respond-async")
    place = told.headers["location"]
    assert told.json == {"id": place.rpartition("/")[2], "state": "waiting", "location": place}
    waiting = buffer.get(place)
    assert (waiting.status, waiting.headers["sluice-result"], waiting.headers["retry-after"]) == (202, "waiting", "1")
    buffer.sleep(1.0)
    done = buffer.get(place)
    assert (done.status, done.json, done.headers["sluice-result"], done.batch_size) == (200, 42, "done", 1)
    assert buffer.get(place) == buffer.get(place)  # as often as he likes


def test_it_leaves_in_a_batch_with_who_waits(buffer):
    told = buffer.send(1, headers=LATER)
    assert buffer.ask(2).batch_size == 2
    assert told.answer.status == 202
    assert buffer.get(told.answer.headers["location"]).batch_size == 2


def test_what_came_of_a_request_that_failed_is_told_as_he_would_have_had_it(buffer):
    for body, status, detail in ((-1, 422, "below 0"), (100, 500, "too much"), ("text", 400, "Expected `float`")):
        place = buffer.ask(body, headers=LATER).headers["location"]
        buffer.sleep(1.0)
        failed = buffer.get(place)
        assert (failed.status, failed.headers["sluice-result"]) == (status, "failed")
        assert detail in failed.json["detail"]


def test_what_is_refused_at_once_is_not_accepted():
    with memory_buffer(Doubler, static(9, None), max_queue_length=1, max_body_bytes=100) as buffer:
        assert buffer.ask(b"{", headers={"content-type": "application/json", **LATER}).status == 400
        assert buffer.ask(b" " * 101, headers=LATER).status == 413
        assert buffer.ask(1, "/models/x", headers=LATER).status == 404
        assert len(buffer._service.keeper.accepted) == 0
        assert buffer.get("/v2/models/doubler/results/x").status == 404


def test_a_result_is_gone_when_its_life_is_over_and_an_id_of_another_form_never_was(buffer):
    place = buffer.ask(21, headers=LATER).headers["location"]
    buffer.sleep(100.0)
    assert buffer.get(place).status == 200
    buffer.sleep(1.0)
    gone = buffer.get(place)
    assert (gone.status, "it is no more, or was given up" in gone.json["detail"]) == (410, True)
    never = buffer.get("/v2/models/doubler/results/" + "x" * 1000)
    assert (never.status, len(never.json["detail"]) < 200) == (404, True)
    assert "allowed: an id that was given with 202" in never.json["detail"]


def test_who_gives_up_has_nothing_computed_for_him_and_the_result_is_gone(buffer):
    Doubler.calls = 0
    place = buffer.ask(21, headers=LATER).headers["location"]
    assert buffer.send(path=place, method="DELETE").answer.status == 204
    buffer.sleep(1.0)
    assert Doubler.calls == 0
    assert [buffer.get(place).status, buffer.send(path=place, method="DELETE").answer.status] == [410, 410]
    done = buffer.ask(21, headers=LATER).headers["location"]
    buffer.sleep(1.0)
    assert [buffer.send(path=done, method="DELETE").answer.status, buffer.get(done).status] == [204, 410]


def test_an_answer_has_the_id_of_its_request_and_no_encoding_that_somebody_else_may_not_accept():
    with memory_buffer(Doubler, no_batching(), gzip_from=1) as buffer:
        headers = {**LATER, "x-request-id": "order-17", "accept-encoding": "gzip"}
        told = buffer.ask(21, headers=headers)
        buffer.sleep(1.0)
        done = buffer.get(told.headers["location"])
        assert (told.headers["x-request-id"], done.headers["x-request-id"], done.json) == ("order-17", "order-17", 42)
        assert "content-encoding" not in done.headers
        packed = gzip.compress(b"2" + b" " * 70_000)  # which is undone beside the loop
        told = buffer.ask(packed, headers={**LATER, "content-type": "application/json", "content-encoding": "gzip"})
        buffer.sleep(1.0)
        assert (told.status, buffer.get(told.headers["location"]).json) == (202, 4)


@pytest.mark.parametrize("named", [{}, {"x-request-id": "first"}])
@in_virtual_time
async def test_all_that_is_told_of_a_kept_answer_has_the_id_of_the_request_that_was_served(named):
    function, other = Function(), {"x-request-id": "second"}
    async with serving(function, PAIRS) as buffer:
        accepted = await buffer.post("/models/m", b"21", **keyed(**LATER), **named)
        place = accepted[1]["location"]
        told = [accepted, await buffer.get(place), await buffer.get(place, **other)]
        told.append(await buffer.post("/models/m", b"21", **keyed(**LATER), **other))
        await asyncio.sleep(1.0)
        told += [await buffer.get(place), await buffer.get(place, **other)]
        told += [await buffer.post("/models/m", b"21", **keyed(**more), **other) for more in (LATER, {})]
        gone = await buffer.get("/v2/models/m/results/r" + "0" * 32, **other)
        refused = await buffer.post("/models/m", b"22", **keyed(), **other)
    (item,) = (item for batch in function.batches for item in batch.items)
    assert item.headers["x-request-id"] == named.get("x-request-id", item.headers["x-request-id"])
    assert [(status, headers["x-request-id"]) for status, headers, _ in told] == [
        (status, item.headers["x-request-id"]) for status in (202, 202, 202, 202, 200, 200, 202, 200)
    ]
    assert [(status, headers["x-request-id"]) for status, headers, _ in (gone, refused)] == [(410, "second"), (422, "second")]


def test_who_asks_again_where_an_answer_is_kept_is_told_whether_it_is_there(buffer):
    for body, state in ((21, "done"), (-1, "failed")):
        told = [buffer.ask(body, headers={**keyed(str(body)), **LATER}) for _ in range(2)]
        buffer.sleep(1.0)
        told.append(buffer.ask(body, headers={**keyed(str(body)), **LATER}))
        assert {(each.status, each.json["location"]) for each in told} == {(202, told[0].headers["location"])}
        states = ["waiting", "waiting", state]
        assert [each.json["state"] for each in told] == states == [each.headers["sluice-result"] for each in told]
        assert ["retry-after" in each.headers for each in told] == [True, True, False]


def test_what_failed_and_is_computed_again_has_another_id(buffer):
    first, second = (buffer.ask(100, headers=keyed()).headers["x-request-id"] for _ in range(2))
    assert first != second


def test_as_many_wait_as_are_kept_and_then_no_more_until_one_is_over():
    with memory_buffer(Doubler, PAIRS, takes=lambda requests: 1.0, results_kept=2) as buffer:
        assert [buffer.ask(1, headers=LATER).status for _ in range(2)] == [202, 202]
        full = buffer.ask(1, headers=LATER)
        assert (full.status, full.headers["retry-after"]) == (503, "1")
        assert "no room to keep another result of 'doubler': 2 of " in full.json["detail"]
        buffer.sleep(2.0)
        assert buffer.ask(1, headers=LATER).status == 202


def test_an_answer_that_is_larger_than_all_that_is_kept_is_told_as_that():
    with memory_buffer(lambda inputs: ["x" * 3000] * len(inputs), no_batching(), results_bytes=1000) as buffer:
        place = buffer.ask(1, headers=LATER).headers["location"]
        buffer.sleep(1.0)
        failed = buffer.get(place)
        assert (failed.status, failed.headers["sluice-result"]) == (507, "failed")
        assert "the answer has 3002 bytes, for which there is no room" in failed.json["detail"]


def test_what_waited_at_a_process_that_is_no_more_is_told_as_failed():
    with memory_buffer(Doubler, PAIRS, request_timeout=10.0) as buffer:
        backend = buffer._service._store._backend
        results = MemoryResults(backend.results["doubler"], buffer._service.keeper.bounds, lambda: buffer.now)
        buffer._time.run(
            results.begin("r" + "0" * 32, b"t" * 16, _encode(Asked("", b"x", fields=((REQUEST_ID, b"dead"),))))
        )  # of a process that is no more
        assert buffer.get("/v2/models/doubler/results/r" + "0" * 32).status == 202
        buffer.sleep(16.0)
        lost = buffer.get("/v2/models/doubler/results/r" + "0" * 32)
        assert lost.headers["x-request-id"] == "dead"
        assert (lost.status, lost.headers["sluice-result"]) == (504, "failed")
        assert "the process that had the request told of no answer in time" in lost.json["detail"]
        buffer._time.run(results.begin("r" + "1" * 32, b"t" * 16, b"\xff"))  # of a version that is not known here
        assert buffer.get("/v2/models/doubler/results/r" + "1" * 32).status == 410


def test_a_key_of_a_process_that_is_no_more_is_free_when_its_request_counts_as_lost():
    with memory_buffer(Doubler, no_batching(), request_timeout=10.0) as buffer:
        backend = buffer._service._store._backend
        results = MemoryResults(backend.results["doubler"], buffer._service.keeper.bounds, lambda: buffer.now)
        buffer._time.run(results.begin(_entry_id("", b"order-17"), b"t" * 16, _encode(Asked("", b"another body"))))
        assert buffer.ask(21, headers=keyed()).status == 422
        buffer.sleep(16.0)
        assert buffer.ask(21, headers=keyed()).json == 42


def test_where_nothing_is_kept_the_preference_is_passed_over_and_a_key_is_refused():
    with memory_buffer(Doubler, no_batching(), results_kept=0) as buffer:
        answer = buffer.ask(21, headers=LATER)
        assert (answer.status, answer.json, "preference-applied" in answer.headers) == (200, 42, False)
        refused = buffer.ask(21, headers=keyed())
        assert (refused.status, "nothing is kept here (SLUICE_RESULTS_KEPT=0)" in refused.json["detail"]) == (400, True)


# --- asked again


def test_the_same_key_and_body_have_the_one_answer(buffer):
    Doubler.calls = 0
    first = buffer.ask(21, headers=keyed())
    again = [buffer.ask(21, headers=keyed()), buffer.ask(21, headers=keyed('"order-17"'))]
    assert Doubler.calls == 1
    for answer in again:
        assert (answer.status, answer.body, answer.waited) == (200, first.body, first.waited)
        assert answer.headers == {**first.headers, "idempotent-replayed": "true"}
    buffer.ask(21, headers=keyed("order-18"))
    assert Doubler.calls == 2
    buffer.sleep(101.0)
    assert "idempotent-replayed" not in buffer.ask(21, headers=keyed()).headers


@pytest.mark.parametrize(
    ("body", "headers", "path", "other"),
    [
        (22, {}, "", "body"),
        (21, {"content-type": "text/json"}, "", "content-type"),
        (21, {"sluice-class": "x"}, "", "sluice-class"),
        (21, {"sluice-deadline": "2"}, "", "sluice-deadline"),
        (21, {"content-encoding": "gzip"}, "", "content-encoding"),
        (21, {"inference-header-content-length": "2"}, "", "inference-header-content-length"),
        (21, {}, "/models/doubler/", "path"),
        (22, {"sluice-class": "x"}, "/models/doubler/", "body and another path and another sluice-class"),
    ],
)
def test_another_request_of_the_same_key_is_refused_and_told_what_differs(buffer, body, headers, path, other):
    buffer.ask(21, headers=keyed())
    refused = buffer.ask(body, path or None, headers=keyed(**headers))
    assert refused.status == 422
    allowed = f"allowed: a key for each request: this one came before with another {other}"
    assert refused.json["detail"] == f"idempotency-key: 'order-17' is not allowed; {allowed}"


def test_a_request_of_a_key_whose_first_cannot_be_read_is_told_that_it_is_another(buffer):
    backend = buffer._service._store._backend
    buffer.ask(1)
    results = MemoryResults(backend.results["doubler"], buffer._service.keeper.bounds, lambda: buffer.now)
    buffer._time.run(results.begin(_entry_id("", b"order-17"), b"t" * 16, b"\xff"))  # of a version that is not known here
    assert buffer.ask(21, headers=keyed()).json["detail"].endswith("this one came before with another request")


def test_one_that_comes_before_the_first_is_answered_is_told_to_come_again(buffer):
    first, second = buffer.send(21, headers=keyed()), buffer.send(21, headers=keyed())
    assert (second.answer.status, second.answer.headers["retry-after"]) == (409, "1")
    assert "that one is still computed" in second.answer.json["detail"]
    assert first.answer.json == 42


def test_a_client_that_goes_finds_his_answer_when_he_comes_again(buffer):
    Doubler.calls = 0
    gone = buffer.send(21, headers=keyed())
    buffer.sleep(0.01)
    gone.give_up()
    buffer.sleep(1.0)
    assert (buffer.ask(21, headers=keyed()).headers["idempotent-replayed"], Doubler.calls) == ("true", 1)


def test_what_failed_is_computed_again_and_what_the_request_is_to_blame_for_is_not(buffer):
    Doubler.calls = 0
    assert [buffer.ask(100, headers=keyed("a")).status for _ in range(2)] == [500, 500]
    assert Doubler.calls >= 2
    assert [buffer.ask(-1, headers=keyed("b")).status for _ in range(2)] == [422, 422]
    assert buffer.ask(-1, headers=keyed("b")).headers["idempotent-replayed"] == "true"


def test_a_key_of_who_fetches_later_leads_to_one_result(buffer):
    places = [buffer.ask(21, headers=keyed(**LATER)).headers["location"] for _ in range(2)]
    buffer.sleep(1.0)
    places.append(buffer.ask(21, headers=keyed(**LATER)).headers["location"])
    assert len(set(places)) == 1
    assert buffer.get(places[0]).json == 42
    assert buffer.ask(21, headers=keyed()).headers["idempotent-replayed"] == "true"


def test_what_is_no_key_is_refused(buffer):
    for key in ("", '""', "a b", "x" * 256):
        refused = buffer.ask(21, headers=keyed(key))
        assert refused.status == 400
        assert "allowed: 1 to 255 visible characters of ASCII, in quotation marks or without" in refused.json["detail"]
    check_key(b'"' + b"x" * 255 + b'"')


def test_a_head_says_what_it_wishes_among_other_preferences():
    assert Wish.of(((b"prefer", b'return=minimal, Respond-Async; x="y", wait=5'),)) == Wish(True, None)
    assert Wish.of(((b"prefer", b"wait=5"), (b"host", b"x"))) is None
    assert Wish.of(((b"idempotency-key", b"a"), (b"prefer", b"respond-async"))) == Wish(True, b"a")
    assert Wish.of(((b"prefer", b'respond-async = "" ; x=y'),)) == Wish(True, None)
    assert Wish.of(((b"prefer", b"respond-async=never"),)) is None
    with pytest.raises(InvalidInput, match="idempotency-key: 'b' is not allowed; allowed: given once"):
        Wish.of(((b"idempotency-key", b"a"), (b"idempotency-key", b"b")))


# --- who may


def test_a_result_is_that_of_who_asked_for_it_alone(tmp_path):
    keys = [{"name": name, "sha256": hashlib.sha256(name.encode()).hexdigest()} for name in ("web", "job")]
    (tmp_path / "keys.json").write_text(json.dumps({"keys": keys}))
    web, job = ({"x-api-key": name} for name in ("web", "job"))
    with memory_buffer(Doubler, PAIRS, api_keys=f"file:{tmp_path}/keys.json") as buffer:
        place = buffer.ask(21, headers={**LATER, **web}).headers["location"]
        buffer.sleep(1.0)
        assert [buffer.get(place, headers=of).status for of in (web, job, {})] == [200, 410, 401]
        assert buffer.send(path=place, method="DELETE", headers=job).answer.status == 410
        first, other = (buffer.ask(21, headers={**keyed(), **of}) for of in (web, job))
        assert "idempotent-replayed" not in {**first.headers, **other.headers}
        assert buffer.ask(22, headers={**keyed(), **job}).status == 422
        kept = [entry.value for entry in buffer._service._store._backend.results["doubler"]._kept.values()]
        assert len(kept) == 3 and all(b"web" not in value and b"job" not in value for value in kept)


# --- several processes, and what the store does


@pytest.mark.parametrize("kind", ["memory", "redis"])
async def test_two_processes_know_each_others_results_and_keys(kind, redis_server, function):
    backend, space = MemoryBackend(), f"kept{id(function)}"
    async with AsyncExitStack() as stack:
        both = []
        for name in ("p0000000", "p0000001"):
            store = MemoryStore(backend, name) if kind == "memory" else RedisStore(redis_server.url, name, space)
            both.append(await stack.enter_async_context(serving(function, NO_BATCHING, store)))
        here, there = both
        _, headers, _ = await here.post("/models/m", b"21", **LATER)
        while (answer := await there.get(headers["location"]))[0] == 202:
            await asyncio.sleep(0.001)
        assert (answer[0], answer[2]) == (200, b"21")
        computed = len(function.batches)
        told = [await each.post("/models/m", b"21", **keyed()) for each in (here, there, there)]
        assert [(status, "idempotent-replayed" in headers, body) for status, headers, body in told] == [
            (200, replayed, b"21") for replayed in (False, True, True)
        ]
        assert len(function.batches) == computed + 1
        assert (await there.post("/models/m", b"22", **keyed()))[0] == 422
        released = asyncio.Event()

        async def answer_later(batch):
            await released.wait()
            return await function.echo(batch)

        function.answer = answer_later
        first = asyncio.create_task(here.post("/models/m", b"1", **keyed("second")))
        while len(function.batches) == computed + 1:
            await asyncio.sleep(0.001)
        assert (await there.post("/models/m", b"1", **keyed("second")))[0] == 409
        _, headers, _ = await here.post("/models/m", b"1", **LATER)
        async with there.http.delete(there.url + headers["location"]) as response:
            assert response.status == 204  # the other process notices when the answer is there
        released.set()
        assert (await first)[2] == b"1"
        assert (await here.get(headers["location"]))[0] == 410


@in_virtual_time
async def test_a_process_that_is_stopped_keeps_what_it_still_answers():
    function, store = Function(), MemoryStore(memory(), "p0000000")
    async with serving(function, PAIRS, store) as buffer:
        _, headers, _ = await buffer.post("/models/m", b"21", **LATER)
    entry = await store.results("m", buffer.service.keeper.bounds).read(headers["location"].rpartition("/")[2])
    assert entry is not None and entry.state == b"d"


async def _dies(store: MemoryStore, *requests: tuple[str, str]) -> None:
    """What a process leaves that died with requests of these addresses in the queue, which are to be answered with this status."""
    members = []
    for number, (address, status) in enumerate(requests):
        item = Item(f"{store.process}{number:08x}", "application/json", b"21", {ADDRESS: address, "status": status})
        members.append(encode_member(item))
    await store.queue("m", Limits()).advance(Events(members))


async def _served(function: Function, requests: int) -> None:
    """By the process that is left, when the leases of the dead one are over."""
    async with asyncio.timeout(10.0):
        while sum(len(batch.items) for batch in function.batches) < requests:
            await asyncio.sleep(0.1)


@in_virtual_time
async def test_who_has_the_batch_keeps_the_answer_of_a_process_that_died():
    backend, function = memory(), Function()
    dead, store = MemoryStore(backend, "p0000000"), MemoryStore(backend, "p0000001")

    async def answer(batch):
        return [
            Answer(item.id, int(item.headers["status"]), item.content_type, item.body, {**item.headers, "x-own": "1"})
            for item in batch.items
        ]

    function.answer = answer
    async with serving(function, no_batching(), store) as buffer:
        bounds = buffer.service.keeper.bounds
        results = dead.results("m", bounds)
        ids = ["k" + f"{number:032x}" for number in range(3)]
        for entry_id in ids:
            await results.begin(entry_id, b"t" * 16, _encode(Asked("", b"x")))
        token = (b"t" * 16).hex()
        await _dies(dead, *((f"m/{entry_id}/{token}", status) for entry_id, status in zip(ids, ("200", "500", "200"), strict=True)))
        await results.finish(ids[2], b"t" * 16, b"d", _encode(Asked("", b"x", 201)))  # as by a process that is only slow
        await _served(function, 3)
        assert [ADDRESS in item.headers for batch in function.batches for item in batch.items] == [False] * 3
        await asyncio.sleep(INHERITED_AFTER + 0.1)
        found = [await buffer.get(f"/v2/models/m/results/{entry_id}") for entry_id in ids]
        told = [(status, headers["sluice-result"]) for status, headers, _ in found]
        assert told == [(200, "done"), (500, "failed"), (201, "done")]
        assert (found[0][2], found[0][1]["x-own"], found[0][1]["x-request-id"]) == (b"21", "1", "p000000000000000")


@in_virtual_time
async def test_what_is_inherited_is_kept_at_once_where_the_process_ends():
    backend, function = memory(), Function()
    dead, store = MemoryStore(backend, "p0000000"), MemoryStore(backend, "p0000001")
    async with serving(function, no_batching(), store) as buffer:
        results = dead.results("m", buffer.service.keeper.bounds)
        await results.begin("k" + "0" * 32, b"t" * 16, _encode(Asked("", b"x")))
        await _dies(dead, (f"m/k{'0' * 32}/{(b't' * 16).hex()}", "200"))
        await _served(function, 1)
    entry = await results.read("k" + "0" * 32)
    assert entry is not None and entry.state == b"d"


@in_virtual_time
async def test_of_what_is_inherited_no_more_is_held_than_is_kept():
    store = MemoryStore(memory(), "p0000001")
    keeper = Keeper(Bounds(10, 1000, 60.0, 60.0), lambda: store)
    results, token = keeper.of("m"), b"t" * 16
    for entry_id in ("a", "b", "c"):
        await results.begin(entry_id, token, _encode(Asked("", b"x")))
    for entry_id in ("a", "b"):
        keeper.inherit(f"m/{entry_id}/{token.hex()}", "id", Answer("id", 200, "text/plain", b"x" * 501))
    await asyncio.sleep(INHERITED_AFTER + 0.1)
    assert [(await results.read(entry_id)).state for entry_id in ("a", "b")] == [b"d", b"w"]
    keeper.inherit(f"m/c/{token.hex()}", "id", Answer("id", 200, "text/plain", b"x" * 400))  # for there is room again
    await keeper.close()
    assert (await results.read("c")).state == b"d"


class AwayStore(MemoryStore):
    """A store whose results are away so many times."""

    def __init__(self, backend: MemoryBackend, times: int) -> None:
        super().__init__(backend, "p0000000")
        self.away = times

    def results(self, model, bounds):
        outer, results = self, super().results(model, bounds)

        class Away:
            def __getattr__(self, name):
                if outer.away > 0:
                    outer.away -= 1
                    raise StoreUnavailable("Redis does not answer")
                return getattr(results, name)

        return Away()


@in_virtual_time
async def test_while_the_store_is_away_nothing_is_accepted_and_an_answer_is_kept_when_it_is_back():
    store = AwayStore(memory(), 1)
    async with serving(Function(), PAIRS, store) as buffer:
        for headers in (LATER, keyed()):
            store.away = 1
            status, _, body = await buffer.post("/models/m", b"21", **headers)
            assert (status, b"Redis does not answer" in body) == (503, True)
        _, headers, _ = await buffer.post("/models/m", b"21", **LATER)
        store.away = 3
        await asyncio.sleep(3.0)
        assert (await buffer.get(headers["location"]))[0] == 200
        asked = asyncio.create_task(buffer.post("/models/m", b"21", **keyed()))
        await asyncio.sleep(0.01)
        store.away = 1
        assert (await asked)[0] == 200  # who waits has his answer, kept or not
