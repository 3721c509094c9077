"""`sluice status`: plans, promises and costs, from Redis and from a buffer."""

from __future__ import annotations

import asyncio
import io
import json
import re
import struct
import threading
import urllib.request
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import redis
from msgspec.structs import replace

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, Slo, WarmEnvironments
from sluice.batching.errors import StoreUnavailable
from sluice.batching.measured import MeasuredBatch
from sluice.buffer_service.batch_stream import BATCHES, FIELD, batch_stream_key, pack_batches
from sluice.buffer_service.page.buffers import Buffers
from sluice.buffer_service.page.door import KEEP
from sluice.buffer_service.presence import OtherPlan, Presence, Presences
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.buffer_service.redis_store import RedisStore
from sluice.buffer_service.stream_reader import RecordReader
from sluice.buffer_service.unanswered import UnansweredCounts
from sluice.cli import model_status
from sluice.lambda_fn.contract import Answer, decode_batch, encode_answers
from sluice.local.redis_server import RedisServer
from sluice.optimizer.billing import default_prices
from sluice.optimizer.billing.prices import HOURS_PER_MONTH
from sluice.optimizer.tuning.promise import PromiseWatch
from tests.buffer_service.conftest import NO_BATCHING, Function, Plans, plan, serving
from tests.buffer_service.test_page_buffers import Known, heard
from tests.buffer_service.test_page_decisions import Journal, entry
from tests.cli.conftest import Run

NAN = float("nan")


def batch(
    ago: float,
    latencies: tuple[float, ...],
    function: str = "mlp-885:live",
    billed: float = 0.1,
    failed: int = 0,
    service: float = 0.1,
) -> MeasuredBatch:
    """One that ended so long before the call that brought it (s)."""
    size = len(latencies) + failed
    return MeasuredBatch(-ago, "", 0, function, "d", size, 0.1, service, billed, False, failed, latencies)


class Deployment:
    """Buffers' Redis, a namespace of it."""

    def __init__(self, server: RedisServer, namespace: str) -> None:
        self.url, self.namespace = server.url, namespace
        self.where = ["--redis-url", server.url, "--namespace", namespace]
        self._recorded = 0

    def put(self, *plans: Plan) -> None:
        async def write() -> None:
            board = RedisPlans(self.url, self.namespace)
            for each in plans:
                await board.write(each, "ana", "half the hold")
            await board.close()

        asyncio.run(write())

    def tell(self, told: Mapping[str, Presence]) -> None:
        """These processes of the buffer are there."""

        async def tell() -> None:
            presences = Presences(self.url, self.namespace)
            for process, presence in told.items():
                await presences.tell(process, presence)
            await presences.close()

        asyncio.run(tell())

    def record(self, model: str, *batches: MeasuredBatch) -> None:
        with redis.Redis.from_url(self.url) as client:
            seconds, microseconds = client.time()
            self._recorded += len(batches)
            entry = {FIELD: struct.pack("<d", seconds + microseconds / 1e6), BATCHES: pack_batches(batches)}
            client.xadd(batch_stream_key(model, self.namespace), entry, id=f"{self._recorded}-0")


@pytest.fixture
def deployment(redis_server: RedisServer, request: pytest.FixtureRequest) -> Deployment:
    return Deployment(redis_server, request.node.name.replace("[", "-").replace("]", "")[:60])


def planned(model: str = "mlp", function: str = "mlp-885:live", **more: object) -> Plan:
    policy = PolicyDocument.of(constructors.size_or_timeout(2, 0.05))
    return Plan(model=model, function=function, policy=policy, slo=Slo(0.2), memory_mb=885, **more)  # type: ignore[arg-type]


def test_a_model_that_keeps_its_promise_and_one_that_does_not(exit_of: Run, deployment: Deployment) -> None:
    good, bad = planned(), planned("tone", "tone-512:live", other_slos=[Slo(1.0, 50)])
    deployment.put(good, bad)
    deployment.record("mlp", *(batch(10 - i / 10, (0.1, 0.15)) for i in range(50)))
    deployment.record("tone", *(batch(10, (0.1, 0.3), "tone-512:live", failed=i % 2) for i in range(50)))
    code, said, _ = exit_of("status", "--json", *deployment.where)
    told = {each["model"]: each for each in json.loads(said)["models"]}
    assert code == 0 and [told[name]["kept"] for name in ("mlp", "tone")] == [True, False]
    assert told["mlp"]["promises"] == [
        {"percentile": 95.0, "latency": 0.2, "late_percent": 0.0, "kept": True, "measured": pytest.approx(0.15), "exact": True}
    ]
    first, second = told["tone"]["promises"]
    assert first["late_percent"] == pytest.approx(100 * 75 / 125)  # each second request, and the 25 that failed
    assert (first["measured"], second["measured"]) == (None, pytest.approx(0.3))  # a fifth failed
    assert (second["kept"], second["late_percent"]) == (True, pytest.approx(100 * 25 / 125))
    assert told["mlp"]["arrival_rate"] == pytest.approx(10, rel=0.2) and told["mlp"]["mean_batch_size"] == 2
    put = told["mlp"]["put"]
    assert (put["by"], put["why"], put["digest"]) == ("ana", "half the hold", good.digest)


def test_what_functions_cost_so_far_is_reckoned_by_the_price_list(exit_of: Run, deployment: Deployment) -> None:
    deployment.put(planned())
    deployment.record("mlp", *(batch(1000, (0.1, 0.1), billed=0.25) for _ in range(10)), batch(1, (0.1,), billed=NAN, service=NAN))
    deployment.record("mlp", batch(0.5, (0.1,), "mlp-1769:live", billed=0.5), batch(0.4, (0.1,), "http://worker:1"))
    deployment.record("mlp", batch(0.3, (0.1,), billed=NAN, service=0.0421))  # billed by the millisecond
    _, said, _ = exit_of("status", "mlp", "--json", *deployment.where)
    (told,) = json.loads(said)["models"]
    prices = default_prices()
    usd = (10 * 0.25 * 885 + 0.5 * 1769 + 0.043 * 885) / 1024 * prices.gb_second("arm64") + 12 * prices.function.request
    spent = told["spent"]
    assert (spent["usd"], spent["requests"], spent["untold"]) == (pytest.approx(usd), 22, 2)
    assert spent["usd_per_million"] == pytest.approx(1e6 * usd / 22)
    assert spent["usd_per_month"] == pytest.approx(usd / 1000 * 730 * 3600, rel=0.01)
    assert told["requests"] == 4 and told["kept"] is None  # what is older than the window says nothing of the promise


def test_it_is_said_in_words(exit_of: Run, deployment: Deployment) -> None:
    deployment.put(planned(), planned("quiet", "quiet-885:live"))
    deployment.record("mlp", *(batch(10, (0.1, 0.3)) for _ in range(50)))
    code, said, _ = exit_of("status", *deployment.where)
    mlp, buffers, promise, came, cost, quiet, *others = said.splitlines()
    assert (
        code == 0
        and mlp.startswith(f"mlp: plan {planned().digest}, put into force 20")
        and mlp.endswith(" UTC by ana: half the hold")
    )
    assert buffers == "  no buffer tells of itself"
    assert promise == "  p95 within 200 ms: not kept, 300 ms, 50 % late of the 5 allowed"
    assert came.startswith("  100 requests in 10 s, ") and came.endswith("/s, in batches of 2")
    assert " USD since 20" in cost and " USD per million requests, " in cost and cost.endswith(" a month")
    assert quiet.startswith("quiet: plan ")
    assert others == [
        *(buffers, "  p95 within 200 ms: no requests", "  0 requests in 0 s", "  what it costs is not known: no batch is recorded"),
        "control: nobody plans by himself",
    ]


def test_who_had_no_answer_is_counted_by_error(exit_of: Run, deployment: Deployment) -> None:
    async def count() -> None:
        counts = UnansweredCounts(deployment.url, deployment.namespace)
        await counts.add("mlp", {"Overloaded": 3}, 0, 1.7e9)
        await counts.add("mlp", {"Overloaded": 2, "DispatchFailed": 1}, 0, 1.8e9)
        await counts.close()

    deployment.put(planned(), planned("quiet", "quiet-885:live"))
    asyncio.run(count())
    _, said, _ = exit_of("status", "--json", *deployment.where)
    told = {each["model"]: each["unanswered"] for each in json.loads(said)["models"]}
    assert told["mlp"] == {"since": 1.7e9, "by_error": {"DispatchFailed": 1, "Overloaded": 5}, "late": 0, "late_for": 0.0}
    assert told["quiet"] == {"since": None, "by_error": {}, "late": 0, "late_for": 0.0}
    _, said, _ = exit_of("status", "mlp", *deployment.where)
    counts = "late or not, in a batch or not: 5 Overloaded, 1 DispatchFailed"
    assert f"  without an answer since 2023-11-14 22:13:20 UTC, {counts}" in said.splitlines()


def test_who_had_no_answer_was_not_in_time(exit_of: Run, deployment: Deployment) -> None:
    async def count(model: str, late: int) -> None:
        counts = UnansweredCounts(deployment.url, deployment.namespace)
        await counts.add(model, {"Overloaded": late}, late, 1.7e9)
        await counts.close()

    deployment.put(planned(), planned("refuses"))
    for model, late in (("mlp", 300), ("refuses", 40)):
        asyncio.run(count(model, late))
    deployment.record("mlp", *(batch(10, (0.1, 0.1)) for _ in range(50)))
    _, said, _ = exit_of("status", *deployment.where)
    lines = said.splitlines()
    assert lines[2] == "  p95 within 200 ms: not kept, 75 % late of the 5 allowed"
    assert re.match(r"  400 requests in 1\d s, ", lines[3])  # and as long as it took to ask
    assert lines[3].endswith("/s, in batches of 2, 300 of them late without an answer, in no batch")
    assert "  p95 within 200 ms: not kept, 100 % late of the 5 allowed" in lines
    assert any(line.startswith("  40 requests in ") and "none of them in a batch" in line for line in lines)
    _, said, _ = exit_of("status", "mlp", "--window", "1ms", *deployment.where)
    assert "  p95 within 200 ms: no requests" in said.splitlines()


def test_batches_of_another_plan_than_the_one_in_force_are_told(
    exit_of: Run, deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    deployment.put(planned())
    ended = [(1.0, planned().digest), (0.5, "elsewhere"), (0.4, "elsewhere"), (0.3, "")]
    deployment.record("mlp", *(batch(ago, (0.1,))._replace(digest=digest) for ago, digest in ended))
    _, said, _ = exit_of("status", "--json", *deployment.where)
    assert json.loads(said)["models"][0]["other_plans"] == []  # the plan was written later
    monkeypatch.setattr(model_status, "FOLLOWED_WITHIN", -60.0)
    _, said, _ = exit_of("status", *deployment.where)
    assert "  2 of 3 batches left by another plan, elsewhere, which some buffer follows" in said.splitlines()


def test_buffers_that_follow_and_those_that_do_not_are_told_first(exit_of: Run, deployment: Deployment) -> None:
    deployment.put(planned(), planned("quiet", "quiet-885:live"))
    refuses = {"mlp": OtherPlan("elsewhere", planned().digest, "function: 'mlp-885:live' does not exist")}
    there = Presence(host="here", release="1", plans="redis:", read="9999999999999-0", models=2)
    told = {
        **{
            "paaaaaaa": there,
            "pbbbbbbb": replace(there, others=refuses),
            "pccccccc": replace(there, plans="file:plans", others={}),
        },
        **{"pddddddd": replace(there, read="0-1")},
    }
    deployment.tell(told)
    _, said, _ = exit_of("status", *deployment.where)
    why = f"pbbbbbbb on here follows plan elsewhere: {refuses['mlp'].reason}"
    late = "1 followed what was in force before, and has not told of this one"
    assert said.splitlines()[1] == f"  2 of 4 buffers follow; {why}; {late}"
    assert f"  3 of 4 buffers follow; {late}" in said.splitlines()
    _, said, _ = exit_of("status", "mlp", "--json", *deployment.where)
    document = json.loads(said)
    assert document["models"][0]["followers"] == {
        **{"digest": planned().digest, "buffers": 4, "follow": 2, "before": 1, "unknown": 0, "astray_left_out": 0},
        "astray": [{"process": "pbbbbbbb", "host": "here", "follows": "elsewhere", "reason": refuses["mlp"].reason}],
    }
    assert [each["process"] for each in document["buffers"]] == list(told) and document["buffers"][1]["others"]["mlp"]["refused"]


def test_buffers_are_told_of_where_no_model_has_a_plan(exit_of: Run, deployment: Deployment) -> None:
    there = Presence(host="here", release="1", plans="file:plans", models=2)
    deployment.tell({"paaaaaaa": there, "pbbbbbbb": there, "pccccccc": replace(there, plans="ssm:/x/")})
    _, said, _ = exit_of("status", *deployment.where)
    assert said.splitlines()[:3] == [
        *("no model has a plan here", "2 buffers are there with plans from file:plans", "1 buffer is there with plans from ssm:/x/")
    ]


@pytest.mark.parametrize(("servers", "known"), [(None, True), (2, False)])
def test_a_function_behind_http_costs_and_a_worker_does_not(
    servers: int | None, known: bool, exit_of: Run, deployment: Deployment
) -> None:
    policy = PolicyDocument.of(constructors.greedy(2, servers) if servers else constructors.size_or_timeout(2, 0.05))
    deployment.put(Plan(model="mlp", function="http://host:1", policy=policy, slo=Slo(0.2), memory_mb=885))
    deployment.record("mlp", *(batch(10, (0.1, 0.1), "http://host:1", billed=NAN, service=0.25) for _ in range(10)))
    prices = default_prices()
    usd = 10 * (0.25 * 885 / 1024 * prices.gb_second("arm64") + prices.function.request)
    told = {}
    for arguments in ((), ("--worker-usd", "0.5")):
        _, said, _ = exit_of("status", "--json", *deployment.where, *arguments)
        told[arguments] = json.loads(said)["models"][0]["spent"]
    spent = told[()]
    assert spent["usd"] == (pytest.approx(usd) if known else None)
    assert spent["untold"] == (0 if known else 10)
    spent = told["--worker-usd", "0.5"]
    assert spent["usd" if known else "usd_per_month"] == pytest.approx(usd if known else HOURS_PER_MONTH)


def test_workers_behind_http_cost_their_hours_where_a_price_is_told(exit_of: Run, deployment: Deployment) -> None:
    both, table = "http://a:1,http://b:1", PolicyDocument.of(constructors.greedy(4, 2))
    deployment.put(replace(planned(function=both), policy=table, memory_mb=None, digest=""))
    deployment.record("mlp", *(batch(1800 - i, (0.1, 0.1), both) for i in range(1800)))
    told = {}
    for arguments in ((), ("--worker-usd", "0.5")):
        _, said, _ = exit_of("status", "--json", *deployment.where, *arguments)
        told[arguments] = json.loads(said)["models"][0]["spent"]
    assert (told[()]["usd"], told[()]["untold"]) == (None, 1800)
    spent = told["--worker-usd", "0.5"]
    assert (spent["usd"], spent["requests"]) == (pytest.approx(2 * 0.5 / 2, rel=0.01), 3600)  # two, for half an hour
    assert spent["usd_per_million"] == pytest.approx(1e6 * spent["usd"] / 3600)
    assert spent["usd_per_month"] == pytest.approx(HOURS_PER_MONTH)


def test_provisioned_environments_cost_their_hours_and_less_by_the_second(exit_of: Run, deployment: Deployment) -> None:
    """Of batches of 0.1 s one that finds another under way is on demand, as is a cold one; what was told first came 1000 s ago."""
    first, beside, later = (batch(ago, (0.1,)) for ago in (1000.0, 999.95, 500.0))
    deployment.put(planned(warm=WarmEnvironments(1)))
    deployment.record("mlp", later, beside, first, batch(10, (0.1,))._replace(cold=True))
    prices = default_prices()
    provisioned, on_demand = prices.provisioned(885, "arm64"), 885 / 1024 * prices.gb_second("arm64")
    spent = json.loads(exit_of("status", "--json", *deployment.where)[1])["models"][0]["spent"]
    hours = 1000 / 3600 * provisioned.reserved_per_hour
    usd = hours + 2 * 0.1 * (provisioned.per_second + on_demand) + 4 * prices.function.request
    assert (spent["usd"], spent["requests"]) == (pytest.approx(usd, rel=1e-3), 4) and hours > 0.9 * usd
    assert spent["usd"] == pytest.approx(usd, abs=0.01 * 0.1 * on_demand + 1 / 3600 * provisioned.reserved_per_hour)


def test_what_another_function_served_before_was_on_no_environment_that_the_plan_in_force_keeps(
    exit_of: Run, deployment: Deployment
) -> None:
    deployment.put(planned(warm=WarmEnvironments(1)))
    deployment.record("mlp", *(batch(1000.0 - 10 * i, (0.1,), "mlp-1769") for i in range(100)))
    prices = default_prices()
    spent = json.loads(exit_of("status", "--json", *deployment.where)[1])["models"][0]["spent"]
    hours = 1000 / 3600 * prices.provisioned(885, "arm64").reserved_per_hour
    usd = hours + 100 * (0.1 * 1769 / 1024 * prices.gb_second("arm64") + prices.function.request)
    assert spent["usd"] == pytest.approx(usd, abs=1 / 3600 * prices.provisioned(885, "arm64").reserved_per_hour)


def test_environments_that_are_workers_and_pings_cost_what_they_do(exit_of: Run, deployment: Deployment) -> None:
    prices, usd = default_prices(), {}
    table = PolicyDocument.of(constructors.greedy(2, 3))
    deployment.put(replace(planned(), policy=table, digest=""), planned("pinged", warm=WarmEnvironments(pinged_every=240)))
    for model in ("mlp", "pinged"):
        deployment.record(model, *(batch(3600 - i, (0.1,)) for i in range(3600)))
    for told in json.loads(exit_of("status", "--json", *deployment.where)[1])["models"]:
        usd[told["model"]] = told["spent"]["usd"]
    provisioned, on_demand = prices.provisioned(885, "arm64"), 885 / 1024 * prices.gb_second("arm64")
    fees = 3600 * prices.function.request
    assert usd["mlp"] == pytest.approx(3 * provisioned.reserved_per_hour + 360 * provisioned.per_second + fees, rel=1e-3)
    assert usd["pinged"] == pytest.approx(360 * on_demand + fees + 15 * prices.pings(1, 885, "arm64"), rel=1e-4)


@pytest.mark.parametrize(
    ("function", "memory_mb", "recorded", "why"),
    [
        ("mlp", None, True, "neither the plan nor its name tells the memory size of mlp"),
        ("http://a:1", None, True, "workers serve it, of which --worker-usd tells what an hour costs"),
        ("mlp", 885, True, "no invocation told its time"),
        ("mlp", 885, False, "no batch is recorded"),
    ],
    ids=["unnamed", "workers", "untold", "none"],
)
def test_why_a_cost_is_not_known_is_said(
    function: str, memory_mb: int | None, recorded: bool, why: str, exit_of: Run, deployment: Deployment
) -> None:
    deployment.put(replace(planned(function=function), memory_mb=memory_mb, digest=""))
    if recorded:
        deployment.record("mlp", batch(10, (0.1,), function, billed=NAN, service=NAN))
    assert f"  what it costs is not known: {why}\n" in exit_of("status", *deployment.where)[1]


def test_workers_that_the_plan_does_not_ask_have_no_hours(exit_of: Run, deployment: Deployment) -> None:
    deployment.put(planned())
    deployment.record("mlp", batch(10, (0.1,)), batch(10, (0.1,), "http://gone:1"))
    _, said, _ = exit_of("status", "--json", "--worker-usd", "0.5", *deployment.where)
    spent = json.loads(said)["models"][0]["spent"]
    assert (spent["requests"], spent["untold"]) == (1, 1)


def test_what_was_decided_and_missed_last_is_told(exit_of: Run, deployment: Deployment) -> None:
    deployment.put(planned(), planned("quiet", "quiet-885:live"))
    trigger = {"kind": "rate", "words": "more came"}
    entries = [
        {"at": "2026-11-25T09:00:00.000+00:00", "words": "a hole of 9 s", "hole": {"missed": 9}},
        {"at": "2026-11-25T10:00:00.000+00:00", "words": "a hole of 3 s", "hole": {"missed": 3}},
        {"at": "2026-11-25T10:01:00.000+00:00", "words": "more came: none keeps", "trigger": trigger, "alarm": "none keeps"},
        {"at": "2026-11-25T10:02:00.000+00:00", "words": "plan x is left alone"},
        {"at": "2026-11-25T10:03:00.000+00:00", "words": "of another", "trigger": trigger, "model": "other"},
    ]
    with redis.Redis.from_url(deployment.url) as client:
        key = f"{deployment.namespace}:{{plans}}:decisions"
        for told in entries:
            client.xadd(key, {"decision": json.dumps({"model": "mlp"} | told)})
        client.xadd(key, {"decision": b"garbage"})
    _, said, _ = exit_of("status", "mlp", *deployment.where)
    assert said.splitlines()[5:-1] == [
        "  decided last, 2026-11-25 10:01:00 UTC, with an alarm: more came: none keeps",
        "  2026-11-25 10:00:00 UTC: a hole of 3 s",
    ]
    _, said, _ = exit_of("status", "--json", *deployment.where)
    mlp, quiet = (each["noticed"] for each in json.loads(said)["models"])
    assert (mlp["decided_at"] - mlp["hole_at"], mlp["alarm"]) == (60, "none keeps")
    assert quiet == {"decided": "", "decided_at": None, "alarm": "", "hole": "", "hole_at": None}


def test_of_few_requests_nothing_is_claimed(exit_of: Run, deployment: Deployment) -> None:
    deployment.put(planned())
    deployment.record("mlp", *(batch(1, (0.1,)) for _ in range(19)))
    _, said, _ = exit_of("status", "--json", *deployment.where)
    assert json.loads(said)["models"][0]["kept"] is None
    deployment.record("mlp", batch(1, (0.1,)))  # of twenty one may be late
    _, said, _ = exit_of("status", "--json", *deployment.where)
    assert json.loads(said)["models"][0]["kept"] is True


def test_what_cannot_be_asked_is_named(exit_of: Run, deployment: Deployment) -> None:
    code, said, _ = exit_of("status", *deployment.where)
    assert (code, "no model has a plan here" in said) == (0, True)
    for arguments, code, named in (
        (["nobody", *deployment.where], 2, "model: 'nobody' is not allowed; allowed: one that has a plan in force"),
        (["--window", "0"], 2, "--window"),
        (["--worker-usd", "-1"], 2, "--worker-usd: -1.0 is not allowed; allowed: USD an hour, >= 0"),
        (["--worker-usd", "1", "--url", "http://127.0.0.1:1"], 2, "--worker-usd"),
        (["--architecture", "arm", *deployment.where], 2, "architecture: 'arm' is not allowed"),
        (["--redis-url", "memory://"], 2, "say --url"),
        (["--redis-url", "redis://:secret@127.0.0.1:1/0"], 1, "; at redis://***@127.0.0.1:1/0 (--redis-url)"),
        (["--url", "ftp://x"], 2, "--url: 'ftp://x'"),
        (["--url", "http://127.0.0.1:1"], 1, "http://127.0.0.1:1/status does not answer"),
    ):
        got, _, said = exit_of("status", *arguments)
        assert (got, named in said) == (code, True), said


class Answering(BaseHTTPRequestHandler):
    """404 below /gone, and otherwise what is no status."""

    def do_GET(self) -> None:
        self.send_response(404 if self.path.startswith("/gone") else 200)
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def somewhere() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answering)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def read_page(url: str) -> dict[str, Any]:
    with urlopen(f"{url}/status") as answer:
        told: dict[str, Any] = json.load(answer)
        return told


def test_an_address_that_is_no_buffers_page_is_told_so(exit_of: Run, somewhere: str) -> None:
    code, _, said = exit_of("status", "--url", f"{somewhere}/gone")
    assert (code, "SLUICE_PAGE=off" in said and "404" in said) == (2, True)
    code, _, said = exit_of("status", "--url", somewhere)
    assert (code, "a buffer of this version" in said) == (2, True)


async def test_a_buffer_tells_the_same_without_a_redis(exit_of: Run) -> None:
    policy = constructors.greedy(4)
    async with serving(Function(), policy, plans=Plans(plan(policy))) as buffer:
        for _ in range(25):
            assert (await buffer.post("/models/m", b"1"))[0] == 200
        code, said, _ = await asyncio.to_thread(exit_of, "status", "m", "--json", "--url", buffer.url)
        (told,) = json.loads(said)["models"]
        assert (code, told["kept"], told["requests"]) == (0, True, 25)
        [promise] = told["promises"]
        assert promise.pop("measured") <= 0.5  # the end of a bucket
        assert promise == {"percentile": 95.0, "latency": 0.5, "late_percent": 0.0, "kept": True, "exact": False}
        assert told["digest"] == plan(policy).digest and told["spent"]["usd"] is None
        assert (told["unanswered"]["by_error"], told["other_plans"]) == ({}, [])
        _, said, _ = await asyncio.to_thread(exit_of, "status", "m", "--url", buffer.url)
        assert "  what it costs is not known: the plan names no memory size\n" in said


async def test_a_callers_mistake_breaks_no_promise_here_nor_where_control_or_the_metrics_count(
    exit_of: Run, deployment: Deployment
) -> None:
    slow = 0.6  # s, where 0.5 is promised
    statuses = {b"1": 200, b'"wrong"': 400, b'"late"': 400, b'"broken"': 500}
    bodies = [b"1"] * 20 + [b'"wrong"'] * 77 + [b'"late"', b'"broken"', b'"broken"']

    async def answer(payload: bytes) -> bytes:
        items = decode_batch(payload).items
        if any(item.body == b'"late"' for item in items):
            await asyncio.sleep(slow)
        return encode_answers([Answer(item.id, statuses[item.body], item.content_type, item.body) for item in items])

    await asyncio.to_thread(deployment.put, plan(NO_BATCHING))
    store = RedisStore(deployment.url, "tttttttt", deployment.namespace)
    async with serving(answer, NO_BATCHING, store) as buffer:  # type: ignore[arg-type]
        await asyncio.gather(*(buffer.post("/models/m", body) for body in bodies))
        _, _, metrics = await buffer.get("/metrics")
    code, said, _ = await asyncio.to_thread(exit_of, "status", "--json", *deployment.where)
    assert b'sluice_slo_violations_total{model="m"} 3.0' in metrics
    [promise] = json.loads(said)["models"][0]["promises"]
    assert (code, promise["late_percent"], promise["kept"]) == (0, 3.0, True)
    reader, watch = RecordReader(deployment.url, "m", deployment.namespace), PromiseWatch(Slo(0.5))
    watch.see(reader.batches().batches)
    reader.close()
    assert watch.late == 0.03


@pytest.mark.parametrize(
    ("requests", "failed", "answered", "late", "percent", "kept"),
    [
        (1000, 0, 100, 4, 4.0, (True, True)),  # a tenth of the answers told their latency
        (1000, 10, 99, 0, 1.0, (True, None)),  # of the other promise the buckets tell of those alone that were answered
        (819, 67, 752, 34, 12.33, (False, False)),
        (300, 300, 0, 0, 100.0, (False, False)),  # an outage
    ],
)
async def test_who_failed_at_any_process_was_not_served_in_time(
    exit_of: Run, requests: int, failed: int, answered: int, late: int, percent: float, kept: tuple[bool | None, bool | None]
) -> None:
    of = plan(NO_BATCHING)
    two = replace(of, other_slos=[Slo(1.0, 99.0)], digest="")
    async with serving(Function(), NO_BATCHING, plans=Plans(two)) as buffer:
        page = await asyncio.to_thread(read_page, buffer.url)
    [told] = page["models"]
    latency = [{"name": "p99", "above": 0.2, "at_most": 0.5}] if answered else []
    told["all_processes"] = {
        "seconds": 300.0,
        "came": requests,
        "arrival_rate": 3.0,
        "mean_batch_size": 1.0,
        "requests": requests,
        "failed": failed,
        "answered": answered,
        "late": late,
        "latency": latency,
        "unanswered": None,
    }
    first, second = model_status.told_status(told, 0.0).promises
    assert first.late_percent == pytest.approx(percent, abs=0.01)
    assert (first.kept, second.kept) == kept
    del told["all_processes"]["unanswered"]  # as an earlier buffer tells it
    assert model_status.told_status(told, 0.0).promises == [first, second]


@pytest.mark.parametrize(
    ("everywhere", "percent", "counted", "words"),
    [
        (None, 10, 100, {"StoreUnavailable": 10}),  # of the other processes it is not known
        (
            {"since": 5.0, "by_error": {"Overloaded": 20, "InvalidInput": 7}, "late": 20},
            100 * 20 / 110,
            110,
            {"Overloaded": 20, "InvalidInput": 7},
        ),
    ],
)
async def test_who_was_refused_was_not_served_in_time_at_this_buffer_and_where_it_is_known_at_any(
    exit_of: Run, everywhere: dict[str, Any] | None, percent: float, counted: int, words: dict[str, int]
) -> None:
    async with serving(Function(), NO_BATCHING, plans=Plans(plan(NO_BATCHING))) as buffer:
        for _ in range(10):
            buffer.service.model("m").telemetry.refused(StoreUnavailable("away"))
        page = await asyncio.to_thread(read_page, buffer.url)
    [told] = page["models"]
    recorded = {"requests": 90, "failed": 0, "answered": 90, "late": 0, "latency": [], "seconds": 300.0, "came": 90}
    told["all_processes"] = recorded | {"arrival_rate": 0.3, "mean_batch_size": 1.0, "unanswered": everywhere}
    status = model_status.told_status(told, 0.0)
    [promise] = status.promises
    assert (promise.late_percent, promise.kept) == (pytest.approx(percent), False)
    assert (status.requests, status.unanswered.by_error) == (counted, words)


async def test_a_buffer_tells_what_was_decided_last_and_a_bound_of_the_percentile(exit_of: Run) -> None:
    journal = Journal(entry(60.0, words="more came: as it is"), entry(0.0, trigger=None, words="a hole of 3 s", hole={"missed": 3}))
    async with serving(Function(), NO_BATCHING, plans=Plans(plan(NO_BATCHING)), journal=journal) as buffer:
        for _ in range(20):
            await buffer.post("/models/m", b"1")
        code, said, _ = await asyncio.to_thread(exit_of, "status", "m", "--url", buffer.url)
    assert code == 0 and "  p95 within 500 ms: kept, at most " in said
    assert "  decided last, 1970-01-01 00:01:00 UTC: more came: as it is\n  1970-01-01 00:00:00 UTC: a hole of 3 s\n" in said


async def test_a_buffer_tells_which_plan_it_does_not_follow_and_who_had_no_answer(exit_of: Run) -> None:
    plans, gone = Plans(plan(NO_BATCHING)), replace(plan(NO_BATCHING), function="gone", digest="")
    async with serving(Function(), NO_BATCHING, plans=plans) as buffer:
        await buffer.post("/models/m", b"1")
        buffer.service.model("m").telemetry.refused(StoreUnavailable("away"))
        plans.plans = [gone]
        await buffer.service.look()
        code, said, _ = await asyncio.to_thread(exit_of, "status", "m", "--url", buffer.url)
        assert code == 0
        assert "\n  without an answer since 20" in said and " UTC, late or not, in a batch or not: 1 StoreUnavailable\n" in said
        assert f"  another plan, {gone.digest}, is not followed by this buffer: " in said


@pytest.mark.full
async def test_a_buffer_tells_who_follows_the_plan_in_redis(exit_of: Run) -> None:
    served, other = plan(NO_BATCHING), OtherPlan("c", plan(NO_BATCHING).digest, "wrong")
    async with serving(Function(), NO_BATCHING, plans=Plans(served)) as buffer:
        told = {}
        for digest in (served.digest, "c"):
            processes = [heard(f"p{i}", m=other) for i in range(20)]
            buffer.service.page._watch._buffers = Buffers(Known(*processes), {"m": digest}.copy, lambda: 0.0)
            _, said, _ = await asyncio.to_thread(exit_of, "status", "m", "--url", buffer.url)
            told[digest] = said.splitlines()[1]
            await asyncio.sleep(KEEP)
    assert told == {
        served.digest: "  0 of 20 buffers follow; p0 on h and 15 more follow plan c: wrong; 4 more do not",
        "c": "  of plan c in Redis: 20 buffers follow",
    }


def test_the_page_says_what_it_shows() -> None:
    assert "## What is in force" in (Path(__file__).parents[2] / "docs" / "live-control.md").read_text()


@pytest.mark.parametrize(
    ("leader", "said"),
    [
        ("", "control: who leads is not known: Redis does not answer"),
        ("a:1", "control: who leads is not known: Redis does not answer; a:1 led when that was known last"),
    ],
)
def test_who_leads_is_not_claimed_where_a_buffer_does_not_know(
    leader: str, said: str, exit_of: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {"at": "2026-11-27T12:00:00+00:00", "control": {"leader": leader, "trouble": "Redis does not answer"}, "models": []}
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: io.BytesIO(json.dumps(told).encode()))
    assert exit_of("status", "--url", "http://buffer:1")[1].splitlines()[-1] == said
    assert json.loads(exit_of("status", "--url", "http://buffer:1", "--json")[1])["trouble"] == "Redis does not answer"
