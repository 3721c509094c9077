import asyncio
import logging

import pytest

from sluice.batching import policy as constructors
from sluice.buffer_service.memory_store import MemoryStore
from sluice.lambda_fn.contract import Answer
from tests.buffer_service.conftest import NO_BATCHING, memory, serving
from tests.buffer_service.virtual_time import in_virtual_time

TRACEPARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


async def test_the_id_of_a_request_is_that_of_its_answer_and_its_function_sees_it(function):
    async with serving(function, NO_BATCHING) as buffer:
        status, headers, _ = await buffer.post("/models/m", b"1", **{"x-request-id": "a-1"})
        assert (status, headers.getall("x-request-id")) == (200, ["a-1"])
        assert (await buffer.post("/models/x", b"1", **{"x-request-id": "a-2"}))[1]["x-request-id"] == "a-2"
        async with buffer.http.get(buffer.url + "/v2", headers={"x-request-id": "a-3"}) as response:
            assert response.headers["x-request-id"] == "a-3"
    assert function.batches[0].items[0].headers == {"x-request-id": "a-1"}


async def test_a_request_without_an_id_gets_the_one_that_its_function_sees(function):
    async with serving(function, NO_BATCHING) as buffer:
        _, headers, _ = await buffer.post("/models/m", b"1")
        assert headers["x-request-id"] == function.batches[0].items[0].id
        first, second = [(await buffer.post("/models/m", b"{"))[1]["x-request-id"] for _ in range(2)]
        assert first != second


@pytest.mark.parametrize("given", ["", "a b", "x" * 129, "ä", 'a"b'])
async def test_what_is_no_id_counts_as_none(function, given):
    async with serving(function, NO_BATCHING) as buffer:
        _, headers, _ = await buffer.post("/models/m", b"1", **{"x-request-id": given})
        assert headers["x-request-id"] == function.batches[0].items[0].id
    assert "x-request-id" not in function.batches[0].items[0].headers


async def test_the_trace_of_a_request_is_passed_on_and_not_returned(function):
    trace = {"traceparent": TRACEPARENT, "tracestate": "a=1,b=2"}
    async with serving(function, NO_BATCHING) as buffer:
        _, headers, _ = await buffer.post("/models/m", b"1", **trace)
        assert not {"traceparent", "tracestate"} & {name.lower() for name in headers}
        await buffer.post("/models/m", b"1", tracestate="x" * 513)
    assert [batch.items[0].headers for batch in function.batches] == [trace, {}]


async def test_a_request_with_a_trace_is_still_taken_for_json_where_it_names_no_type(function):
    async with serving(function, NO_BATCHING) as buffer:
        await buffer.post("/v2/models/m/infer", b"{}", "", traceparent=TRACEPARENT)
    assert function.batches[0].items[0].content_type == "application/json"


async def test_a_defect_is_in_the_log_with_the_id_that_its_client_has(function, monkeypatch, caplog):
    async with serving(function, NO_BATCHING) as buffer:
        monkeypatch.setattr(buffer.service.model("m"), "ask", lambda *_: 1 / 0)
        with caplog.at_level(logging.ERROR):
            status, headers, _ = await buffer.post("/models/m", b"1")
            assert status == 500
            assert f"request {headers['x-request-id']} failed: POST /models/m" in caplog.text
            await buffer.post("/models/m", b"1", **{"x-request-id": "mine"})
            assert "request mine failed" in caplog.text


@in_virtual_time
async def test_an_answer_tells_how_long_its_request_waited_and_with_how_many_it_left(function):
    async with serving(function, constructors.size_or_timeout(4, 5.0)) as buffer:
        first = asyncio.create_task(buffer.post("/models/m", b"1"))
        await asyncio.sleep(1.0)
        others = asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(3)))
        answers = [await first, *await others]
        assert {headers["sluice-batch-size"] for _, headers, _ in answers} == {"4"}
        assert [round(float(headers["sluice-waited"]), 2) for _, headers, _ in answers] == [1.0, 0.0, 0.0, 0.0]


async def test_so_does_one_whose_batch_another_process_had(function):
    backend, policy = memory(), constructors.size_or_timeout(2, 60.0)
    stores = MemoryStore(backend, "aaaaaaaa"), MemoryStore(backend, "bbbbbbbb")
    async with serving(function, policy, stores[0]) as here, serving(function, policy, stores[1]) as there:
        first = asyncio.create_task(here.post("/models/m", b"1"))
        while not await here_waits(here):
            await asyncio.sleep(0.01)
        await there.post("/models/m", b"2")
        _, headers, body = await first
    assert (headers["sluice-batch-size"], body) == ("2", b"1")
    assert 0 <= float(headers["sluice-waited"]) < 60
    assert "sluice-left" not in headers


async def here_waits(buffer):
    _, _, metrics = await buffer.get("/metrics")
    return b'sluice_queue_length{model="m"} 1.0' in metrics


@pytest.mark.parametrize("left", ["3 0.1", "7 999999999.0", "9" * 5000 + " 0.1"])
async def test_what_a_function_says_of_itself_under_these_names_is_passed_over(function, left, caplog):
    async def boast(batch):
        said = {"sluice-waited": "9", "Sluice-Batch-Size": "9", "sluice-left": left, "X-Request-Id": "z", "x-own": "1"}
        more = {"Date": "today", "Sluice-Route": "another", "sluice-function": "7"}
        return [Answer(item.id, 200, item.content_type, item.body, said | more) for item in batch.items]

    function.answer = boast
    async with serving(function, constructors.size_or_timeout(1, 0.0)) as buffer:
        _, headers, _ = await buffer.post("/models/m", b"1", **{"x-request-id": "a"})
        _, _, metrics = await buffer.get("/metrics")
    assert headers.getall("x-request-id") == ["a"]
    assert headers.getall("x-own") == ["1"]
    assert headers.getall("sluice-batch-size") == ["1"] and float(*headers.getall("sluice-waited")) < 5
    assert len(headers.getall("date")) == 1
    assert not {"sluice-left", "sluice-route", "sluice-function"} & {name.lower() for name in headers}
    assert b'sluice_requests_total{model="m",status="200"} 1.0' in metrics and "not all was done" not in caplog.text


async def test_the_wait_is_a_histogram(function):
    async with serving(function, NO_BATCHING) as buffer:
        await buffer.post("/models/m", b"1")
        assert b'sluice_queue_wait_seconds_count{model="m"} 1.0' in (await buffer.get("/metrics"))[2]
