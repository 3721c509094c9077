"""A plan that cannot work does not replace one that does: it is refused with a reason, and that is seen."""

from __future__ import annotations

import asyncio
import time

import msgspec
import pytest
from aiohttp import web

from sluice.batching import policy as constructors
from sluice.batching.documents import MAX_ROUTES, MAX_WORKERS, Plan, PolicyDocument, Route, read, write
from sluice.batching.errors import InvalidInput
from sluice.batching.policy import MAX_HOLD, MAX_ROWS, MAX_SERVERS
from sluice.buffer_service.invokers import FunctionUnavailable, InvokerBySyntax, LocalInvoker
from sluice.buffer_service.plans import MAX_PLAN_BYTES
from tests.buffer_service.conftest import NO_BATCHING, plan, serving

TABLE = '"policy": {"hold": [null, 0], "take": [0, 1]}'
A_MILLION = '{"hold": [null%s], "take": [0%s]}' % (", 0" * 1_000_000, ", 1" * 1_000_000)  # noqa: UP031


def document(function="f", policy='{"hold": [null, 0], "take": [0, 1]}'):
    return f'{{"model": "m", "function": "{function}", "policy": {policy}}}'.encode()


# --- what a document may say


@pytest.mark.parametrize(
    "function",
    [
        "ftp://127.0.0.1/worker",
        "unix:///run/worker",
        "http://",
        "http://:8500",
        "https://worker:eighty",
        "http://worker:99999",
        "http://a:1,ftp://b:1",
        "file://a",
        "two words",
        "line\\nbreak",
        "127.0.0.1:8500",
        "worker.internal:8500",
        "mlp-512,mlp-1769",
    ],
)
def test_a_function_that_no_invoker_can_reach_is_refused_with_what_is_allowed(function):
    with pytest.raises(InvalidInput, match=r"function: .* is not allowed; allowed: a Lambda function .*http:// or https://"):
        read(Plan, document(function))


@pytest.mark.parametrize(
    "function", ["f", "mlp-512:live", "http://10.0.0.1:8500,http://[::1]:8500/a", "https://worker/path?q=a%2Cb"]
)
def test_a_function_that_one_can_reach_is_taken(function):
    assert read(Plan, document(function)).function == function
    arn = "arn:aws:lambda:eu-central-1:123456789012:function:mlp:live"
    assert read(Plan, document(arn)).function == arn


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ('{"hold": [null, 1e308], "take": [0, 1]}', f"hold[1]: 1e+308 is not allowed; allowed: at most {MAX_HOLD:g} s"),
        ('{"hold": [null, 0], "take": [0, 1], "servers": 1099511627776}', f"servers: {2**40} is not allowed; allowed: at most"),
        (A_MILLION, f"hold: 1000001 is not allowed; allowed: at most {MAX_ROWS} rows"),
    ],
)  # fmt: skip
def test_a_table_beyond_its_limits_is_refused_with_the_limit(policy, message):
    with pytest.raises(InvalidInput) as refused:
        read(Plan, document(policy=policy))
    assert message in str(refused.value)


def test_a_table_at_its_limits_is_taken():
    table = constructors.greedy(MAX_ROWS - 1, servers=MAX_SERVERS)
    assert len(PolicyDocument.of(table).hold) == MAX_ROWS
    PolicyDocument([None, MAX_HOLD], [0, 1])


def test_a_plan_of_too_many_routes_is_refused():
    routes = [Route(f"r{i}", "f", PolicyDocument.of(NO_BATCHING), 1 / (MAX_ROUTES + 1)) for i in range(MAX_ROUTES + 1)]
    with pytest.raises(InvalidInput, match=f"routes: {MAX_ROUTES + 1} is not allowed; allowed: at most {MAX_ROUTES}"):
        Plan(model="m", routes=routes)


def test_a_plan_of_too_many_workers_is_refused_and_one_of_as_many_as_are_allowed_is_taken():
    workers = [f"http://10.0.{i // 256}.{i % 256}:8500" for i in range(MAX_WORKERS + 1)]
    read(Plan, document(",".join(workers[1:])))
    told = f"function: '{MAX_WORKERS + 1} addresses' is not allowed; allowed: at most {MAX_WORKERS} workers"
    with pytest.raises(InvalidInput, match=told):
        read(Plan, document(",".join(workers)))


# --- what this buffer can keep


class Documents:
    """A plan source of documents as they are."""

    def __init__(self, *documents):
        self.found = {f"place {i}": document for i, document in enumerate(documents)}

    def documents(self):
        return self.found


def counted(buffer, kind):
    return buffer.service.telemetry.registry.get_sample_value("sluice_plan_refused_total", {"reason": kind}) or 0


async def refused(buffer, kind, before=0):
    """Wait until a plan more was refused for a reason of this kind."""
    async with asyncio.timeout(60):
        while counted(buffer, kind) == before:
            await asyncio.sleep(0.002)


async def page(buffer):
    return msgspec.json.decode((await buffer.get("/v2/models/m"))[2])["plan"]


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        (document("ftp://a/b"), "function: 'ftp://a/b' is not allowed"),
        (document(policy='{"hold": [null, 1e308], "take": [0, 1]}'), "hold[1]: 1e+308 is not allowed"),
        (document(policy='{"hold": [null, 2.5], "take": [0, 1]}'), "policy: hold[1]: 2.5 is not allowed; allowed: at most 2 s"),
        (
            document(policy='{"hold": [null, 0.02], "take": [0, 1], "drop_after": 0.01}'),
            "policy: hold[1]: 0.02 is not allowed; allowed: at most 0.01 s, after which the table gives up who waits (drop_after)",
        ),
        (b" " * (MAX_PLAN_BYTES + 1), f"{MAX_PLAN_BYTES + 1} bytes' is not allowed; allowed: at most"),
        (b'{"model": "m", "function": "f", "policy": ', "a JSON document"),
    ],
    ids=["scheme", "hold", "timeout", "drop", "bytes", "json"],
)  # fmt: skip
async def test_a_wrong_plan_leaves_the_one_in_force_and_is_on_the_page_and_in_the_metrics(function, wrong, reason):
    right = plan(NO_BATCHING)
    source = Documents(write(right))
    async with serving(function, NO_BATCHING, plans=source, plan_interval=0.01, request_timeout=2.0) as buffer:
        assert "refused" not in await page(buffer)
        source.found = {"place 0": wrong}
        began = time.time()
        await refused(buffer, "invalid")
        assert (await buffer.post("/models/m", b"1"))[::2] == (200, b"1")
        shown = await page(buffer)
        assert shown["digest"] == right.digest
        assert shown["refused"]["place"] == "place 0"
        assert reason in shown["refused"]["reason"]
        at = buffer.service.telemetry.registry.get_sample_value("sluice_plan_refused_timestamp_seconds")
        assert began <= at <= time.time()
        await asyncio.sleep(0.1)
        assert counted(buffer, "invalid") == 1
        source.found = {"place 0": write(right)}
        async with asyncio.timeout(60):
            while "refused" in await page(buffer):
                await asyncio.sleep(0.002)


# --- functions that do not answer


class Workers:
    """Workers that may be down, by address; these answer everything under the name of model ``m``."""

    def __init__(self, function, *addresses):
        self.down = set()
        self.invoker = LocalInvoker({address: self._worker(address, function) for address in addresses})

    def _worker(self, address, function):
        async def answer(payload):
            if address in self.down:
                raise FunctionUnavailable(f"worker {address} does not answer: connection refused")
            return await function(payload)

        return answer


OLD, NEW, OTHER = "http://old:1", "http://new:1", "http://other:1"


@pytest.fixture
def workers(function):
    return Workers(function, OLD, NEW, OTHER, f"{NEW},{OTHER}")


async def test_a_plan_whose_workers_are_all_dead_does_not_replace_one_whose_workers_answer_until_they_do(function, workers):
    workers.down = {NEW, OTHER}
    source = Documents(write(plan(NO_BATCHING, function=OLD)))
    async with serving(function, NO_BATCHING, plans=source, invoker=workers.invoker, plan_interval=0.01) as buffer:
        await buffer.get("/v2/models/m")
        new = plan(NO_BATCHING, function=f"{NEW},{OTHER}")
        source.found = {"place 0": write(new)}
        await refused(buffer, "silent function")
        assert (await buffer.post("/models/m", b"1"))[0] == 200
        shown = await page(buffer)
        assert shown["digest"] == plan(NO_BATCHING, function=OLD).digest
        assert shown["refused"]["digest"] == new.digest
        assert f"function: '{NEW},{OTHER}' is not allowed; allowed: one that answers" in shown["refused"]["reason"]
        workers.down = {NEW}
        async with asyncio.timeout(60):
            while buffer.service.model("m").plan.digest != new.digest:
                await asyncio.sleep(0.002)
        assert "refused" not in await page(buffer)


async def test_where_the_workers_in_force_are_dead_too_the_new_plan_is_taken(function, workers):
    source = Documents(write(plan(NO_BATCHING, function=OLD)))
    async with serving(function, NO_BATCHING, plans=source, invoker=workers.invoker, plan_interval=0.01) as buffer:
        workers.down = {OLD, NEW}
        new = plan(NO_BATCHING, function=NEW)
        source.found = {"place 0": write(new)}
        async with asyncio.timeout(60):
            while buffer.service.model("m").plan.digest != new.digest:
                await asyncio.sleep(0.002)
        assert counted(buffer, "silent function") == 0


async def test_a_first_plan_whose_workers_are_down_is_taken_as_they_may_come(function, workers):
    workers.down = {NEW}
    source = Documents(write(plan(NO_BATCHING, function=NEW)))
    async with serving(function, NO_BATCHING, plans=source, invoker=workers.invoker) as buffer:
        assert (await buffer.post("/models/m", b"1"))[0] == 502
        workers.down = set()
        assert (await buffer.post("/models/m", b"1"))[0] == 200


async def test_a_new_route_that_nobody_serves_is_named(function, workers):
    workers.down = {OTHER}
    source = Documents(write(plan(NO_BATCHING, function=OLD)))
    async with serving(function, NO_BATCHING, plans=source, invoker=workers.invoker, plan_interval=0.01) as buffer:
        routes = [Route(name, url, PolicyDocument.of(NO_BATCHING), 0.5) for name, url in (("a", NEW), ("b", OTHER))]
        source.found = {"place 0": write(Plan(model="m", routes=routes))}
        await refused(buffer, "silent function")
        assert f"function of route b: '{OTHER}' is not allowed" in (await page(buffer))["refused"]["reason"]


async def test_a_plan_that_keeps_its_functions_is_followed_though_they_are_down_for_now(function, workers):
    source = Documents(write(plan(NO_BATCHING, function=OLD)))
    async with serving(function, NO_BATCHING, plans=source, invoker=workers.invoker, plan_interval=0.01) as buffer:
        workers.down = {OLD}
        new = plan(constructors.greedy(4), function=OLD)
        source.found = {"place 0": write(new)}
        async with asyncio.timeout(60):
            while buffer.service.model("m").plan.digest != new.digest:
                await asyncio.sleep(0.002)


async def test_workers_that_refuse_connections_are_silent(function):
    async def answer(request):
        return web.Response(body=await function(await request.read()))

    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    alive = f"http://127.0.0.1:{site._server.sockets[0].getsockname()[1]}/"
    source = Documents(write(plan(NO_BATCHING, function=alive)))
    try:
        async with serving(function, NO_BATCHING, plans=source, invoker=InvokerBySyntax(5.0), plan_interval=0.01) as buffer:
            source.found = {"place 0": write(plan(NO_BATCHING, function="http://127.0.0.1:1"))}
            await refused(buffer, "silent function")
            assert (await buffer.post("/models/m", b"1"))[::2] == (200, b"1")
            source.found = {"place 0": write(plan(constructors.greedy(2), function=f"http://127.0.0.1:1,{alive}"))}
            async with asyncio.timeout(60):
                while buffer.service.model("m").plan.policy.kind != "greedy":
                    await asyncio.sleep(0.002)
    finally:
        await runner.cleanup()
