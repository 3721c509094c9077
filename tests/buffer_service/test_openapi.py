import asyncio
import json

import jsonschema
import pytest
from openapi_spec_validator import validate

from sluice.batching.errors import DispatchFailed, InvalidInput, KeyRefused
from sluice.buffer_service.kept_requests import KEY, PREFER, Wish
from sluice.buffer_service.openapi import INFERENCE, REFUSALS, RESULT, describe_interface
from sluice.buffer_service.routes import PASSED_ON, STATUS_CODES, TOLD_BY, Routes
from sluice.lambda_fn.contract import INFERENCE_HEADER
from tests.buffer_service.conftest import NO_BATCHING, Plans, plan, serving

DOCUMENT = describe_interface("1", 60.0)


def responses(path, method):
    return DOCUMENT["paths"][path][method]["responses"]


def resolved(schema):
    return {**schema, "components": DOCUMENT["components"]}


def test_the_document_is_an_openapi_document():
    validate(DOCUMENT)
    operations = [of["operationId"] for path in DOCUMENT["paths"].values() for of in path.values() if isinstance(of, dict)]
    assert len(set(operations)) == len(operations)


async def test_it_has_each_path_of_the_routes_with_its_method_and_no_other(function):
    async with serving(function, NO_BATCHING) as buffer:
        routes = Routes(buffer.service, "1")
        assert {path: {of.upper() for of in DOCUMENT["paths"][path] if of != "parameters"} for path in DOCUMENT["paths"]} == {
            path: set(methods.split()) for path, (methods, _) in routes.paths.items()
        }
        assert json.loads((await buffer.get("/openapi.json"))[2])["paths"] == DOCUMENT["paths"]


def test_each_parameter_of_a_path_is_declared_where_the_path_has_it():
    for path, of in DOCUMENT["paths"].items():
        assert [f"{{{each['name']}}}" for each in of.get("parameters", [])] == [p for p in path.split("/") if p.startswith("{")]


def test_every_error_that_occurs_while_serving_has_its_status_and_no_other_has():
    served = {
        int(status) for error, status in STATUS_CODES.items() if issubclass(error, (InvalidInput, KeyRefused, DispatchFailed))
    }
    assert set(INFERENCE) | {410} == served | {500} == set(REFUSALS)
    assert set(RESULT) < set(REFUSALS)


def test_every_header_that_is_read_of_a_request_is_declared():
    declared = {each["name"].encode() for each in DOCUMENT["paths"]["/models/{model}"]["post"]["parameters"]}
    assert declared == PASSED_ON | set(TOLD_BY) | {PREFER, KEY}


@pytest.mark.parametrize(("told", "fits"), [(2, True), (0, True), (-1, False), ("N^", False)])
def test_where_the_json_ends_is_a_number(told, fits):
    declared = DOCUMENT["paths"]["/models/{model}"]["post"]["parameters"]
    (schema,) = (each["schema"] for each in declared if each["name"] == INFERENCE_HEADER)
    assert jsonschema.Draft202012Validator(schema).is_valid(told) == fits


def test_what_is_shown_as_a_preference_is_one_that_is_heeded():
    declared = DOCUMENT["paths"]["/models/{model}"]["post"]["parameters"]
    (shown,) = (each["schema"]["examples"] for each in declared if each["name"] == PREFER.decode())
    assert [Wish.of(((PREFER, example.encode()),)) for example in shown] == [Wish(True, None)]


@pytest.mark.parametrize("path", [path for path, of in DOCUMENT["paths"].items() if "get" in of and "{id}" not in path])
async def test_what_is_answered_is_as_the_document_has_it(function, path):
    async with serving(function, NO_BATCHING) as buffer:
        status, headers, body = await buffer.get(path.format(model="m", version="2"))
        assert status == 200
        check(path, "get", status, headers, body)
        async with buffer.http.head(buffer.url + path.format(model="m", version="2")) as response:
            assert (response.status, await response.read()) == (200, b"")
            assert int(response.headers["content-length"]) > 0
        if "{model}" in path:
            status, headers, body = await buffer.get(path.format(model="x", version="2"))
            assert status == 404
            check(path, "get", status, headers, body)


@pytest.mark.parametrize("path", [path for path, of in DOCUMENT["paths"].items() if "post" in of])
async def test_what_comes_of_an_inference_is_as_the_document_has_it(function, path):
    async with serving(function, NO_BATCHING, max_body_bytes=100) as buffer:
        place = path.format(model="m", version="2")
        for body, headers, expected in (
            (b"{}", {}, 200),
            (b"{", {}, 400),
            (b" " * 101, {}, 413),
            (b"{}", {"content-encoding": "br"}, 415),
        ):
            status, of, answer = await buffer.post(place, body, **headers)
            assert status == expected
            check(path, "post", status, of, answer)
            assert of["x-request-id"]
        status, of, answer = await buffer.post(path.format(model="x", version="2"), b"{}")
        check(path, "post", status, of, answer)


def check(path, method, status, headers, body):
    """An answer is one that the document has."""
    response = responses(path, method)[str(status)]
    content_type = headers["content-type"].partition(";")[0]
    content = response["content"].get(content_type, response["content"].get("*/*"))
    assert content is not None, content_type
    if "schema" in content and "json" in content_type:
        jsonschema.validate(json.loads(body), resolved(content["schema"]))
    for name in (name for name in response.get("headers", {}) if name in headers):
        declared, value = response["headers"][name]["schema"], headers[name]
        jsonschema.validate(float(value) if declared["type"] in ("number", "integer") else value, declared)


async def test_what_comes_of_a_result_is_as_the_document_has_it(function):
    path = "/v2/models/{model}/results/{id}"
    async with serving(function, NO_BATCHING) as buffer:
        status, headers, body = await buffer.post("/models/m", b"{}", prefer="respond-async")
        assert status == 202
        check("/models/{model}", "post", status, headers, body)
        place = headers["location"]
        while (answer := await buffer.get(place))[0] == 202:
            check(path, "get", *answer)
        assert answer[0] == 200
        check(path, "get", *answer)
        async with buffer.http.delete(buffer.url + place) as response:
            assert (response.status, await response.read()) == (204, b"")
            assert not {"content-type", "content-length"}.intersection(map(str.lower, response.headers))
        for where, expected in ((place, 410), ("/v2/models/m/results/x", 404), ("/v2/models/x/results/x", 404)):
            status, headers, body = await buffer.get(where)
            assert status == expected
            check(path, "get", status, headers, body)


async def test_what_comes_of_a_key_is_as_the_document_has_it(function):
    released = asyncio.Event()

    async def answer(batch):
        await released.wait()
        return await function.echo(batch)

    function.answer = answer
    async with serving(function, NO_BATCHING) as buffer:
        first = asyncio.create_task(buffer.post("/models/m", b"{}", **{"idempotency-key": "k"}))
        while not function.batches:
            await asyncio.sleep(0)
        told = [await buffer.post("/models/m", body, **{"idempotency-key": "k"}) for body in (b"{}", b"[]")]
        released.set()
        told += [await first, await buffer.post("/models/m", b"{}", **{"idempotency-key": "k"})]
        assert [status for status, _, _ in told] == [409, 422, 200, 200]
        for each in told:
            check("/models/{model}", "post", *each)
        assert told[3][1]["idempotent-replayed"] == "true"


async def test_options_and_what_is_not_allowed_tell_which_methods_are(function):
    async with serving(function, NO_BATCHING) as buffer:
        for path, (method, _) in Routes(buffer.service, "1").paths.items():
            place = buffer.url + path.format(model="m", version="2", id="x")
            methods = {"GET": "GET, HEAD, OPTIONS", "POST": "POST, OPTIONS", "GET DELETE": "GET, HEAD, DELETE, OPTIONS"}
            allowed = methods[method]
            async with buffer.http.options(place) as response:
                assert (response.status, response.headers["allow"], await response.read()) == (204, allowed, b"")
            async with buffer.http.put(place) as response:
                assert (response.status, response.headers["allow"]) == (405, allowed)
                assert f"method: 'PUT' is not allowed; allowed: {allowed}" in (await response.json(content_type=None))["detail"]
        async with buffer.http.options(buffer.url + "/nowhere") as response:
            assert response.status == 404


async def test_the_models_are_listed(function):
    async with serving(function, NO_BATCHING, plans=Plans(plan(NO_BATCHING, "b"), plan(NO_BATCHING, "a"))) as buffer:
        assert json.loads((await buffer.get("/v2/models"))[2]) == {"models": ["a", "b"]}
