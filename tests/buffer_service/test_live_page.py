"""The live page at the door, and the document that it reads; a browser has it in ``test_live_page_browser.py``."""

import asyncio
import base64
import hashlib
import json
import re
from html.parser import HTMLParser

import pytest

from sluice.batching import policy as constructors
from sluice.batching.documents import Beside, Plan, PolicyDocument, Prediction, RequestClass, Route, Slo, WarmEnvironments
from sluice.buffer_service.invokers import HttpInvoker, LocalInvoker
from sluice.buffer_service.invokers.worker_health import EJECT_AFTER, End
from sluice.buffer_service.page.door import KEEP
from sluice.buffer_service.page.history import KEPT, SAMPLE_EVERY
from sluice.buffer_service.page.status import MOST_MODELS, MOST_WORKERS_TOLD
from sluice.lambda_fn.contract import Measured, decode_batch, encode_metadata
from tests.buffer_service.conftest import NO_BATCHING, Plans, plan, serving
from tests.buffer_service.virtual_time import in_virtual_time

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)>"
TABLE = PolicyDocument.of(constructors.size_or_timeout(4, 0.1))


async def told(buffer):
    status, headers, body = await buffer.get("/status")
    assert (status, headers["content-type"]) == (200, "application/json")
    return json.loads(body)


async def test_the_page_is_one_document_that_needs_nothing_from_elsewhere(function):
    async with serving(function, NO_BATCHING) as buffer:
        status, headers, body = await buffer.get("/")
    page = body.decode()
    assert (status, headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert set(re.findall(r'(?:src|href|action)="([^"]*)"', page)) == {"#models", "data:,", "status", "metrics"}
    assert "url(" not in page and "@import" not in page and re.findall(r"https?://[^\"]*", page) == ["http://www.w3.org/2000/svg"]
    assert "innerHTML =" not in page and "eval(" not in page and "insertAdjacentHTML" not in page


async def test_the_policy_of_the_page_lets_its_own_style_and_script_run_and_no_other(function):
    async with serving(function, NO_BATCHING) as buffer:
        _, headers, body = await buffer.get("/")
    policy = dict(part.split(" ", 1) for part in headers["content-security-policy"].split("; "))
    for directive, tag in (("script-src", "script"), ("style-src", "style")):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", body.decode(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert policy[directive] == f"'sha256-{digest}'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["form-action"] == policy["base-uri"] == "'none'"
    assert policy["connect-src"] == "'self'"
    assert " style=" not in body.decode() and " onclick=" not in body.decode()
    assert headers["x-content-type-options"] == "nosniff"


async def test_a_client_that_has_the_page_is_told_so(function):
    async with serving(function, NO_BATCHING) as buffer:
        _, headers, _ = await buffer.get("/")
        for sent, status in ((headers["etag"], 304), (f'"x", W/{headers["etag"]}', 304), ("*", 304), ('"x"', 200)):
            async with buffer.http.get(buffer.url + "/", headers={"if-none-match": sent}) as response:
                assert (response.status, bool(await response.read())) == (status, status == 200)
                assert response.headers["etag"] == headers["etag"]


async def test_another_method_is_refused_as_everywhere_at_this_door(function):
    async with serving(function, NO_BATCHING) as buffer:
        for path in ("/", "/status", "/metrics"):
            for method in ("POST", "DELETE"):
                async with buffer.http.request(method, buffer.url + path) as response:
                    assert (response.status, response.headers["allow"]) == (405, "GET, HEAD, OPTIONS")


async def test_a_buffer_whose_page_is_off_has_neither_the_page_nor_its_document(function):
    async with serving(function, NO_BATCHING, page="off") as buffer:
        for path in ("/", "/status"):
            status, _, body = await buffer.get(path)
            assert (status, json.loads(body)["detail"]) == (404, f"path: {path!r} is not served")
        assert (await buffer.get("/v2"))[0] == 200


@in_virtual_time
async def test_what_is_no_request_is_no_demand(function):
    async with serving(function, NO_BATCHING) as buffer:
        await asyncio.sleep(SAMPLE_EVERY)
        assert (await buffer.post("/models/m", b"1"))[0] == 200
        assert (await buffer.post("/models/m", b"{bad"))[0] == 400
        assert (await buffer.post("/models/m", b"1", **{"sluice-deadline": "soon"}))[0] == 400
        assert (await buffer.post("/models/m", b"1", **{"content-encoding": "br"}))[0] == 415
        await asyncio.sleep(1.0)
        [model] = (await told(buffer))["models"]
    assert (model["measured"]["came"], model["measured"]["ended"]) == (1, 1)


@in_virtual_time
async def test_the_document_tells_what_became_of_the_requests_of_each_model(function):
    async def in_80_ms(batch):
        await asyncio.sleep(0.08)
        return await function.echo(batch)

    function.answer = in_80_ms
    classes = [RequestClass("web", Slo(0.2)), RequestClass("report", Slo(0.5))]
    predicted = Prediction({"p95": 0.18}, 2e-6, 3.0, cost_without_batching=5e-6)
    plans = Plans(Plan(model="m", function="f", policy=TABLE, slo=Slo(0.1), classes=classes, predicted=predicted))
    async with serving(function, None, plans=plans) as buffer:
        await asyncio.sleep(SAMPLE_EVERY)
        await asyncio.gather(*(buffer.post("/models/m", b"1", **{"sluice-class": "report"}) for _ in range(8)))
        await asyncio.sleep(2.0 - 0.08)
        (model,) = (await told(buffer))["models"]
    assert model["name"] == "m"
    measured = model["measured"]
    assert measured["seconds"] == pytest.approx(SAMPLE_EVERY + 2.0)
    assert (measured["came"], measured["ended"], measured["late"], measured["refused"]) == (8, 8, 0, {})
    assert measured["arrival_rate"] == pytest.approx(8 / 7)
    assert measured["batch_sizes"] == [{"sizes": "3 to 4", "batches": 2}]
    assert measured["mean_batch_size"] == 4.0
    assert {each["name"]: (each["above"], each["at_most"]) for each in measured["latency"]}["p95"] == (0.075, 0.1)
    assert [each["arrival_rate"] for each in model["series"]] == [0.0, pytest.approx(4.0)]
    web, report = model["classes"]
    assert (web["ended"], report["ended"], report["promise"]) == (0, 8, {"percentile": 95.0, "latency": 0.5})
    assert model["cost"]["predicted"] == {
        "usd_per_million": pytest.approx(2.0),
        "usd_per_hour": pytest.approx(2e-6 * 3600 * measured["arrival_rate"]),
    }
    assert model["cost"]["predicted_without_batching"]["usd_per_million"] == pytest.approx(5.0)
    assert model["plan"]["tables"][0]["words"][0].startswith("A batch of 4 at most leaves as soon as 4 wait")
    assert model["plan"]["digest"] == plans.plans[0].digest


async def measured(function, invocations, planned=None, **settings):
    """What is told of the cost after invocations of so many requests, each with what it told of its own time."""
    plans = Plans(Plan(**{"model": "m", "function": "f", "policy": TABLE, "memory_mb": 2048} | (planned or {})))
    invoker = LocalInvoker(dict.fromkeys(("f", "g", "http://a:1"), function))
    async with serving(function, None, plans=plans, invoker=invoker, **settings) as buffer:
        telemetry = buffer.service.model("m").telemetry
        await asyncio.sleep(0)
        telemetry.came = 18
        for requests, told_of in invocations:
            telemetry.invoked(0.1, requests, told_of)
        await asyncio.sleep(1.0)
        return (await told(buffer))["models"][0]


@in_virtual_time
async def test_what_functions_tell_of_their_time_is_told_as_what_it_comes_to_by_the_prices_that_are_set(function):
    invocations = [(4, Measured(service=0.5)), (1, Measured(service=0.25, cold=True)), (4, Measured(billed=1.0)), (4, Measured())]
    model = await measured(function, invocations, gb_second_usd=1e-5, invocation_usd=2e-7)
    assert model["invoked"] == {"invocations": 4, "cold": 1, "mean_seconds": pytest.approx(1.75 / 3)}
    used = model["cost"]["used"]
    usd = 1.75 * 2 * 1e-5 + 3 * 2e-7
    assert (used["invocations"], used["requests"], used["alone"]) == (3, 9, 1)
    assert used["gb_seconds_per_hour"] == pytest.approx(1.75 * 2 / 9 * 18 * 3600)
    assert used["usd_per_hour"] == pytest.approx(usd / 9 * 18 * 3600)
    assert used["usd_per_million"] == pytest.approx(usd / 9 * 1e6)
    assert used["usd_per_million_alone"] == pytest.approx((0.25 * 2 * 1e-5 + 2e-7) * 1e6)
    assert used["usd_per_hour_alone"] == pytest.approx((0.25 * 2 * 1e-5 + 2e-7) * 18 * 3600)


@in_virtual_time
async def test_without_prices_there_is_no_cost_but_what_was_used_and_without_times_nothing(function):
    model = await measured(function, [(2, Measured(service=0.5))])
    assert (model["cost"]["used"]["usd_per_hour"], model["cost"]["used"]["gb_seconds_per_hour"]) == (
        None,
        pytest.approx(9 * 3600.0),
    )
    model = await measured(function, [(2, Measured(service=0.5))], gb_second_usd=1e-5)
    assert (model["cost"]["used"]["alone"], model["cost"]["used"]["usd_per_hour_alone"]) == (0, None)
    model = await measured(function, [(2, Measured())], gb_second_usd=1e-5)
    assert (model["cost"]["used"], model["invoked"]["mean_seconds"]) == (None, None)


@in_virtual_time
@pytest.mark.parametrize(
    ("plan", "told_of", "prices", "why"),
    [
        ({"function": "http://a:1"}, Measured(service=0.5), True, "what is behind HTTP serves it, and the"),
        ({"beside": [Beside("g", TABLE)]}, Measured(service=0.5), True, "several functions serve it, and the buffer reckons with"),
        ({"memory_mb": None}, Measured(service=0.5), True, "the plan names no memory size"),
        ({}, Measured(), True, "no invocation told its time lately"),
        ({"warm": WarmEnvironments(2)}, Measured(service=0.5), True, "what is kept warm is paid by the hour"),
        ({"warm": WarmEnvironments(pinged_every=240.0, pinged=2)}, Measured(service=0.5), True, ""),
        ({}, Measured(service=0.5), False, "the buffer has no prices (SLUICE_GB_SECOND_USD, SLUICE_INVOCATION_USD)"),
        ({}, Measured(service=0.5), True, ""),
    ],
)
async def test_why_a_cost_is_not_known_is_told(function, plan, told_of, prices, why):
    model = await measured(function, [(2, told_of)], plan, **({"gb_second_usd": 1e-5} if prices else {}))
    assert model["cost"]["unknown"].startswith(why) and bool(model["cost"]["unknown"]) == bool(why)
    assert ((model["cost"]["used"] or {}).get("usd_per_million") is None) == bool(why)


@in_virtual_time
async def test_requests_that_wait_now_are_told_and_those_that_were_refused(function):
    async with serving(function, constructors.static(4, None), request_timeout=1.0) as buffer:
        await asyncio.sleep(0.1)
        waiting = [asyncio.ensure_future(buffer.post("/models/m", b"1")) for _ in range(3)]
        await asyncio.sleep(0.5)
        (model,) = (await told(buffer))["models"]
        assert (model["waiting"], model["routes"][0]["waiting"], model["measured"]["ended"]) == (3, 3, 0)
        assert [(await each)[0] for each in waiting] == [504] * 3
        await asyncio.sleep(KEEP)
        (model,) = (await told(buffer))["models"]
    assert model["measured"]["refused"] == {"DeadlinePassed": 3}
    assert (model["measured"]["came"], model["measured"]["late"]) == (3, 3)


@in_virtual_time
async def test_a_hundred_open_pages_have_the_document_made_once_a_second(function):
    async with serving(function, NO_BATCHING) as buffer:
        made = []
        tell = buffer.service.page._watch.tell
        buffer.service.page._watch.tell = lambda: made.append(1) or tell()
        for _ in range(10):
            answers = await asyncio.gather(*(told(buffer) for _ in range(100)))
            assert len({json.dumps(answer) for answer in answers}) == 1
            await asyncio.sleep(KEEP / 2)
        assert len(made) == 5


@in_virtual_time
async def test_nothing_is_made_while_nobody_asks_and_what_is_kept_is_bounded(function):
    async with serving(function, NO_BATCHING) as buffer:
        watch = buffer.service.page._watch
        watch.tell = None
        await asyncio.sleep(3 * KEPT * SAMPLE_EVERY)
        assert [len(history._samples) for history in watch._histories.values()] == [KEPT]


async def test_routes_are_told_with_their_variants_and_what_they_took(function):
    async def nameless(payload):  # serves whichever model it is asked for
        batch = decode_batch(payload)
        return encode_metadata({"name": batch.model}) if batch.describe else await function(payload)

    routes = [Route("small", "f", TABLE, 0.75, "s", 70.5), Route("large", "f", TABLE, 0.25, beside=[Beside("g", TABLE)])]
    plans = Plans(Plan(model="m", routes=routes))
    async with serving(function, None, plans=plans, invoker=LocalInvoker({"f": nameless, "g": nameless})) as buffer:
        await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(16)))
        (model,) = (await told(buffer))["models"]
    small, large = model["routes"]
    assert (small["variant"], small["accuracy"], small["share"], small["measured_share"]) == ("s", 70.5, 0.75, 0.75)
    assert [each["function"] for each in large["functions"]] == ["f", "g"]
    assert large["functions"][0]["asked_in"] is None
    assert [table["route"] for table in model["plan"]["tables"]] == ["small", "large", "large"]


async def test_a_function_that_is_not_asked_is_told_and_a_worker_that_is_ejected_or_slow_without_its_password(function):
    workers = [f"http://user:secret@127.0.0.{i}:9/" for i in range(1, 2 * MOST_WORKERS_TOLD)]
    invoker = HttpInvoker(timeout=1.0)
    plans = Plans(Plan(model="m", function=",".join(workers), policy=TABLE))
    async with serving(function, None, plans=plans, invoker=invoker) as buffer:
        for _ in range(EJECT_AFTER):
            invoker._workers.choose(invoker._clock(), [workers[-1]])
            invoker._workers.ended(invoker._clock(), workers[-1], End.GONE)
        invoker._paces_of(",".join(workers), workers).slow[workers[-2]] = 2.5
        _, _, body = await buffer.get("/status")
    (function_told,) = json.loads(body)["models"][0]["routes"][0]["functions"]
    first, *others = function_told["workers"]
    assert first["address"] == workers[-1].replace("user:secret", "***")
    assert 0 < first["tried_in"] <= 1.0 and first["doubts"] == EJECT_AFTER
    assert all(other["tried_in"] is None for other in others)
    assert [other["pace"] for other in others] == [2.5, *[1.0] * (len(others) - 1)]
    assert len(function_told["workers"]) == MOST_WORKERS_TOLD
    assert function_told["workers_left_out"] == len(workers) - MOST_WORKERS_TOLD
    assert b"secret" not in body


async def test_of_too_many_models_the_busiest_are_told(function):
    plans = Plans(*(plan(NO_BATCHING, model=f"m{i:03}") for i in range(MOST_MODELS + 5)))
    async with serving(function, None, plans=plans) as buffer:
        await buffer.post("/models/m054", b"1")
        document = await told(buffer)
    assert len(document["models"]) == MOST_MODELS
    assert document["models_left_out"] == 5
    assert document["models"][-1]["name"] == "m054"
    assert len(json.dumps(document)) < 2000 * MOST_MODELS


async def test_a_plan_that_is_refused_is_told_with_its_reason_as_it_is(function, tmp_path):
    class Wrong(Plans):
        def documents(self):
            return super().documents() | {HOSTILE: b'{"model": "n", "x": "%s"}' % HOSTILE.encode()}

    async with serving(function, None, plans=Wrong(plan(NO_BATCHING))) as buffer:
        document = await told(buffer)
        _, _, page = await buffer.get("/")
    assert [refused["place"] for refused in document["refused_plans"]] == [HOSTILE]
    assert HOSTILE in document["refused_plans"][0]["reason"]
    assert HOSTILE.encode() not in page


class Outline(HTMLParser):
    """The elements of a page, and which of them are open at its end."""

    VOID = ("meta", "link", "br", "img", "input")

    def __init__(self, page):
        super().__init__()
        self.open, self.seen = [], []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


async def test_the_page_has_its_landmarks_a_heading_and_its_language(function):
    async with serving(function, NO_BATCHING) as buffer:
        outline = Outline((await buffer.get("/"))[2].decode())
    assert outline.open == []
    tags = [tag for tag, _ in outline.seen]
    assert all(tags.count(tag) == 1 for tag in ("html", "header", "nav", "main", "footer", "h1", "title", "noscript"))
    assert ("html", {"lang": "en"}) in outline.seen
    assert any(attributes.get("role") == "status" for _, attributes in outline.seen)
    button = next(attributes for tag, attributes in outline.seen if tag == "button")
    assert button["aria-pressed"] == "false"
