"""No body, key, token or header of a request is in what the buffer writes, at any level, whatever becomes of the request.

Nor is the password of a worker, there or in what the buffer answers.
"""

from __future__ import annotations

import io
import json
import logging

import pytest

from sluice.batching import policy as constructors
from sluice.batching.errors import FunctionFailed
from sluice.buffer_service.invokers import FunctionUnavailable, LocalInvoker
from sluice.lambda_fn.contract import Answer, Batch
from tests.buffer_service.conftest import Function, Plans, plan, serving

SECRET = "hunter2"
BODY = json.dumps({"card": SECRET}).encode()
HEADERS = {"authorization": f"Bearer {SECRET}", "x-api-key": SECRET, "cookie": f"session={SECRET}", "x-mine": SECRET}


async def raising(batch: Batch) -> list[Answer]:
    """As Lambda tells of a function that ended; its words are in the log."""
    raise FunctionFailed("Runtime exited with error: signal: killed")


async def half_an_answer(batch: Batch) -> list[Answer]:
    return [Answer("of nobody", 200, "text/plain", item.body) for item in batch.items]


async def failing(batch: Batch) -> list[Answer]:
    return [Answer(item.id, 500, item.content_type, item.body) for item in batch.items]


@pytest.mark.parametrize("answer", [None, raising, half_an_answer, failing])
async def test_nothing_of_a_request_is_logged(answer: object, caplog: pytest.LogCaptureFixture) -> None:
    function, out = Function(), io.StringIO()
    if answer is not None:
        function.answer = answer  # type: ignore[assignment]
    with caplog.at_level(logging.DEBUG):
        async with serving(function, constructors.greedy(2), max_body_bytes=100) as buffer:
            buffer.service.telemetry._stream = out
            asked = {
                "/models/m": BODY,
                "/v2/models/m/infer": BODY,  # none of the protocol
                "/models/nobody": BODY,
                f"/models/m?q={SECRET}": BODY * 100,  # more than is taken
            }
            statuses = [(await buffer.post(path, body, **HEADERS))[0] for path, body in asked.items()]
            await buffer.stop()
    assert statuses[0] == (200 if answer is None else 502 if answer is not failing else 500), statuses
    assert statuses[2:] == [404, 413]
    written = caplog.text + out.getvalue() + "".join(str(record.__dict__) for record in caplog.records)
    assert SECRET not in written


async def unavailable(batch: Batch) -> list[Answer]:
    raise FunctionUnavailable("nobody answers")


async def test_the_password_of_a_worker_is_in_no_answer_no_metric_and_no_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    address = f"http://buffer:{SECRET}@worker:8500"
    function, told = Function(), []
    with caplog.at_level(logging.DEBUG):
        plans = Plans(plan(constructors.no_batching(), function=address))
        async with serving(function, constructors.no_batching(), plans=plans, invoker=LocalInvoker({address: function})) as buffer:
            told += [await buffer.post("/models/m", b"1"), await buffer.get("/v2/models/m")]
            function.answer = unavailable  # type: ignore[assignment]
            for _ in range(10):
                told.append(await buffer.post("/models/m", b"1"))
            told += [await buffer.get(path) for path in ("/metrics", "/status")]
    said = b"".join(body for _, _, body in told).decode()
    assert told[-3][0] == 503 and "function 'http://***@worker:8500' failed again and again" in said
    assert said.count('function="http://***@worker:8500"') >= 3 and '"function":"http://***@worker:8500"' in said
    assert "no_batching on http://***@worker:8500" in caplog.text
    assert SECRET not in said + caplog.text
