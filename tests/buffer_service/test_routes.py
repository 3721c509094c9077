import asyncio
import gzip
import json

import pytest

from sluice.batching import errors
from sluice.batching import policy as constructors
from sluice.batching.errors import SluiceError
from sluice.buffer_service.routes import STATUS_CODES, status_code
from sluice.lambda_fn.contract import BINARY, INFERENCE_HEADER, JSON, Answer
from tests.buffer_service.conftest import NO_BATCHING, Plans, plan, serving
from tests.buffer_service.virtual_time import in_virtual_time


async def test_any_body_comes_back_untouched_with_its_type(function):
    async with serving(function, NO_BATCHING) as buffer:
        for content_type, body in [
            ("application/json", b'{"a":  [1, 2.50, "\xc3\xa9"]}'),
            ("application/vnd.x+json; charset=utf-8", b"[1]"),
            ("application/octet-stream", bytes(range(256))),
            ("text/plain", b""),
        ]:
            status, headers, answer = await buffer.post("/models/m", body, content_type)
            assert (status, headers["content-type"], answer) == (200, content_type, body)


async def test_requests_of_a_batch_get_each_its_own_answer(function):
    async with serving(function, constructors.size_or_timeout(8, 10.0)) as buffer:
        bodies = [b'{"i": %d}' % i for i in range(64)]
        answers = await asyncio.gather(*(buffer.post("/models/m", body) for body in bodies))
    assert [body for _, _, body in answers] == bodies
    assert [len(batch.items) for batch in function.batches] == [8] * 8


async def test_a_lone_request_leaves_when_its_timeout_ends(function):
    async with serving(function, constructors.size_or_timeout(8, 0.05)) as buffer:
        loop = asyncio.get_running_loop()
        started = loop.time()
        assert (await buffer.post("/models/m", b"1"))[0] == 200
        assert loop.time() - started >= 0.05


async def test_the_routes_of_the_open_inference_protocol(function):
    async with serving(function, NO_BATCHING) as buffer:
        assert (await buffer.get("/v2/health/live"))[0] == 200
        assert (await buffer.get("/v2/health/ready"))[0] == 200
        assert json.loads((await buffer.get("/v2"))[2])["extensions"] == ["binary_tensor_data"]
        assert json.loads((await buffer.get("/v2/models/m"))[2])["name"] == "m"
        assert json.loads((await buffer.get("/v2/models/m/versions/1/ready"))[2])["ready"] is True
        status, _, body = await buffer.post("/v2/models/m/infer", b'{"inputs": []}')
        assert (status, body) == (200, b'{"inputs": []}')
        await buffer.post("/v2/models/m/versions/2/infer", b"{}\0", "", **{"inference-header-content-length": "2"})
    item = function.batches[-1].items[0]
    assert (item.content_type, item.headers) == ("application/octet-stream", {"inference-header-content-length": "2"})


@pytest.mark.parametrize("path", ["/models/m", "/v2/models/m/infer"])
@pytest.mark.parametrize(
    ("content_type", "told", "shown"), [(BINARY, "4", "4"), (JSON, "4", "4"), (BINARY, "-1", "-1"), (BINARY, "9" * 5000, "9" * 20)]
)
async def test_json_that_ends_beyond_its_body_or_nowhere_costs_no_invocation(function, path, content_type, told, shown):
    async with serving(function, NO_BATCHING) as buffer:
        status, headers, body = await buffer.post(path, b"{} ", content_type, **{INFERENCE_HEADER: told})
        assert (status, headers["content-type"]) == (400, "application/problem+json")
        detail = f"{INFERENCE_HEADER}: {shown!r} is not allowed; allowed: 0 to 3, the length of the body"
        assert json.loads(body)["detail"] == detail
        assert function.batches == []
        for end in ("0", "2", "3"):
            assert (await buffer.post(path, b"{} ", content_type, **{INFERENCE_HEADER: end}))[0] == 200


async def test_where_the_json_ends_is_that_of_the_body_without_its_encoding(function):
    body = b"{" + b" " * 1000 + b"}"
    async with serving(function, NO_BATCHING) as buffer:
        for end, status in (("1002", 200), ("1003", 400)):
            sent = {INFERENCE_HEADER: end, "content-encoding": "gzip"}
            assert (await buffer.post("/models/m", gzip.compress(body), BINARY, **sent))[0] == status


async def test_an_answers_own_status_type_and_headers_reach_its_caller(function):
    async def teapot(batch):
        return [Answer(item.id, 418, "text/plain", b"no", {"inference-header-content-length": "7"}) for item in batch.items]

    function.answer = teapot
    async with serving(function, NO_BATCHING) as buffer:
        status, headers, body = await buffer.post("/models/m", b"1")
    assert (status, headers["content-type"], headers["inference-header-content-length"], body) == (418, "text/plain", "7", b"no")


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "detail"),
    [
        ("POST", "/models/x", b"1", 404, "model: 'x' is not allowed; allowed: one of m"),
        ("GET", "/v2/models/x", None, 404, "model: 'x'"),
        ("GET", "/v2/models/x/ready", None, 404, "model: 'x'"),
        ("GET", "/nowhere", None, 404, "path: '/nowhere' is not served"),
        ("GET", "/models/m", None, 405, "method: 'GET' is not allowed; allowed: POST"),
        ("POST", "/v2/health/live", b"", 405, "allowed: GET"),
        ("POST", "/models/m", b'{"a": tru}', 400, "not one JSON document"),
        ("POST", "/models/m", b"1}, {", 400, "not one JSON document"),
        ("POST", "/models/m", b"", 400, "not one JSON document"),
        ("POST", "/models/m", b'"\xff"', 400, "not one JSON document"),
        ("POST", "/models/m", b'"' + b"x" * 2000 + b'"', 413, "body: '2002 bytes' is not allowed; allowed: at most 1000 bytes"),
    ],
)
async def test_a_refusal_is_problem_details_that_name_the_field_and_the_value(function, method, path, body, status, detail):
    async with (
        serving(function, NO_BATCHING, max_body_bytes=1000) as buffer,
        buffer.http.request(method, buffer.url + path, data=body, headers={"content-type": "application/json"}) as response,
    ):
        problem = await response.json(content_type="application/problem+json")
    assert (response.status, problem["status"]) == (status, status)
    assert detail in problem["detail"]
    assert problem["error"] == problem["detail"]
    assert function.batches == []


async def test_a_body_without_a_declared_length_is_bounded_too(function):
    async def chunks():
        for _ in range(10):
            yield b"x" * 500

    async with serving(function, NO_BATCHING, max_body_bytes=1000) as buffer:
        async with buffer.http.post(buffer.url + "/models/m", data=chunks()) as response:
            assert response.status == 413
            assert "at most 1000 bytes" in (await response.json(content_type=None))["detail"]
        assert (await buffer.post("/models/m", b"1"))[0] == 200


async def test_a_client_that_sends_far_too_much_still_sees_its_answer(function):
    async with serving(function, NO_BATCHING, max_body_bytes=1000) as buffer:
        status, _, body = await buffer.post("/models/m", b"x" * 8_000_000)
    assert (status, b"8000000 bytes" in body) == (413, True)


async def test_a_half_sent_body_is_cut_off(function):
    async with serving(function, NO_BATCHING, body_timeout=0.05) as buffer:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(buffer.url.rpartition(":")[2]))
        writer.write(b"POST /models/m HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nhalf")
        answer = await asyncio.wait_for(reader.read(), 5)  # until the server closes
        writer.close()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert function.batches == []


async def test_a_request_that_is_broken_off_before_its_task_has_begun_leaves_nothing_behind(function, recwarn):
    async with serving(function, NO_BATCHING) as buffer:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(buffer.url.rpartition(":")[2]))
        writer.write(b"GET /v2/health/ready HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nno number\r\n")
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ") and not recwarn.list


@pytest.mark.parametrize("name", [b"sluice-class", b"sluice-deadline", b"idempotency-key"])
async def test_a_header_of_which_one_counts_is_refused_where_it_is_given_twice(function, name):
    async with serving(function, NO_BATCHING) as buffer:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(buffer.url.rpartition(":")[2]))
        twice = b"%b: 1\r\n%b: 2\r\nx-request-id: mine\r\n" % (name, name)
        writer.write(b"POST /models/m HTTP/1.1\r\nhost: x\r\n%bconnection: close\r\ncontent-length: 1\r\n\r\n1" % twice)
        answer = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 400 ") and b"%b: '2' is not allowed; allowed: given once" % name in answer
    assert b"\r\nx-request-id: mine\r\n" in answer
    assert function.batches == []


async def test_a_full_queue_refuses_with_429_and_says_when_to_come_back(function):
    async with serving(function, constructors.static(4), max_queue_length=3) as buffer:
        waiting = [asyncio.create_task(buffer.post("/models/m", b"%d" % i)) for i in range(3)]
        while buffer.service.telemetry.registry.get_sample_value("sluice_queue_length", {"model": "m"}) != 3:
            await asyncio.sleep(0.001)
        status, headers, body = await buffer.post("/models/m", b"3")
        assert (status, headers["retry-after"]) == (429, "1")
        assert b"3 requests wait already" in body
        await buffer.service.model("m").follow(plan(constructors.greedy(4)))
        assert [answer[2] for answer in await asyncio.gather(*waiting)] == [b"0", b"1", b"2"]


@in_virtual_time
async def test_a_request_that_is_not_answered_in_time_gets_504(function):
    async with serving(function, constructors.static(4), request_timeout=0.05) as buffer:
        status, _, body = await buffer.post("/models/m", b"1")
    assert status == 504
    assert b"no answer within 0.05 s" in body


async def test_the_metrics_count_requests_by_status_and_batches_by_size(function):
    async with serving(function, constructors.size_or_timeout(4, 10.0)) as buffer:
        await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(8)))
        status, headers, body = await buffer.get("/metrics")
    assert status == 200
    assert headers["content-type"].startswith("text/plain")
    assert b'sluice_requests_total{model="m",status="200"} 8.0' in body
    assert b'sluice_batch_size_bucket{le="4.0",model="m"} 2.0' in body
    assert b'sluice_batch_size_sum{model="m"} 8.0' in body


async def test_a_buffer_without_a_plan_lives_but_is_not_ready(function):
    async with serving(function, NO_BATCHING, plans=Plans()) as buffer:
        assert (await buffer.get("/v2/health/live"))[0] == 200
        assert (await buffer.get("/v2/health/ready"))[0] == 503
        status, _, body = await buffer.post("/models/m", b"1")
        assert (status, b"(no model is served)" in body) == (404, True)


async def test_a_plan_that_changes_is_followed_while_running_and_a_wrong_one_is_not(function):
    plans = Plans(plan(constructors.static(2)))
    async with serving(function, NO_BATCHING, plans=plans, plan_interval=0.01) as buffer:
        waiting = asyncio.create_task(buffer.post("/models/m", b"1"))
        plans.plans = [plan(NO_BATCHING, function="no-such-function")]
        while not buffer.service.telemetry.registry.get_sample_value("sluice_plan_refused_total", {"reason": "unknown function"}):
            await asyncio.sleep(0.001)
        assert buffer.service.model("m").plan.policy.kind == "static"
        plans.plans = [plan(NO_BATCHING)]
        assert (await waiting)[2] == b"1"


def test_every_error_has_a_status_code_of_its_own_or_of_its_ancestor():
    def tree(kind):
        return {kind}.union(*(tree(child) for child in kind.__subclasses__()))

    named = {kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, SluiceError)} - {SluiceError}
    assert named == set(STATUS_CODES)
    for kind in tree(SluiceError) - {SluiceError}:
        if kind.__module__.startswith(("batching", "buffer_service")):
            assert any(ancestor in STATUS_CODES for ancestor in kind.__mro__), kind
    assert status_code(errors.QueueFull("m", 3)) == 429
    assert status_code(errors.UnknownModel("m", [])) == 404


@pytest.mark.parametrize(
    "answer",
    [
        Answer("", 999, "text/plain", b"x"),
        Answer("", 42, "text/plain", b"x"),
        Answer("", 200, "text/plain\r\nx: y", b"x"),
        Answer("", 200, "text/plain", b"x", {"x": "a\r\nb: c"}),
        Answer("", 200, "text/plain", b"x", {"x": "\u20ac"}),
        Answer("", 200, "text/plain", b"x", {"Content-Length": "7"}),
    ],
)
async def test_an_answer_that_fits_into_no_response_fails_its_item_alone(function, answer):
    async def odd(batch):
        plain = await function.echo(batch)
        wrong = Answer(plain[0].id, answer.status, answer.content_type, answer.body, answer.headers)
        return [wrong if a.body == b"0" else a for a in plain]

    function.answer = odd
    async with serving(function, constructors.size_or_timeout(4, 10.0)) as buffer:
        answers = await asyncio.gather(*(buffer.post("/models/m", b"%d" % i) for i in range(4)))
    assert [status for status, _, _ in answers] == [502, 200, 200, 200]
    assert b"is not allowed" in answers[0][2]


async def test_an_answer_without_content_does_not_spoil_the_connection(function):
    async def nothing(batch):
        return [Answer(item.id, 204, "text/plain", b"surplus") for item in batch.items]

    function.answer = nothing
    async with serving(function, NO_BATCHING) as buffer:
        for _ in range(3):
            assert (await buffer.post("/models/m", b"1"))[::2] == (204, b"")


async def test_an_encoded_body_is_refused_by_the_name_of_its_encoding(function):
    async with serving(function, NO_BATCHING) as buffer:
        status, _, body = await buffer.post("/models/m", b"1", **{"content-encoding": "br"})
        plain, _, _ = await buffer.post("/models/m", b"1", **{"content-encoding": "Identity"})  # in any case (RFC 9110, 8.4.1)
    assert (status, b"content-encoding: 'br' is not allowed; allowed: identity or gzip" in body) == (415, True)
    assert plain == 200
