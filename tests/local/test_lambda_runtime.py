"""The local Lambda answers, limits, bills, grows and ends as Lambda does, with real processes behind it."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import fcntl
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import boto3
import botocore.exceptions
import pytest

from sluice.batching.errors import InvalidInput
from sluice.lambda_fn.contract import PAYLOAD_LIMIT, Batch, Item, decode_answers, encode_batch
from sluice.local.bootstrap import Throttle
from sluice.local.functions import MAX_RESPONSE, Function
from sluice.local.lambda_runtime import LambdaRuntime, main, missing_files
from tests.processes import ended
from tests.waiting import until

pytestmark = pytest.mark.full

INVOKE = "/2015-03-31/functions/{}/invocations"

PROBES = """
import os, sys, time

def echo(event, context):
    return event

def say(event, context):
    print(event["text"])
    return None

def about(event, context):
    return {"pid": os.getpid(), "cwd": os.getcwd(), "environment": dict(os.environ), "arn": context.invoked_function_arn,
            "remaining": context.get_remaining_time_in_millis(), "request_id": context.aws_request_id,
            "client": context.client_context.custom if context.client_context else None}

def wait(event, context):
    open(event["entered"] + "." + str(os.getpid()), "w").close()
    while not os.path.exists(event["gate"]):
        time.sleep(0.002)
    return os.getpid()

def fail(event, context):
    raise KeyError("no such thing")

def leave(event, context):
    os._exit(3)

def burn(event, context):
    start, wall = time.process_time(), time.perf_counter()
    while time.process_time() - start < event["cpu"]:
        pass
    time.sleep(event.get("sleep", 0))
    return time.perf_counter() - wall

def eat(event, context):
    return len(bytearray(os.urandom(1)) * (event["mb"] << 20))

def big(event, context):
    return "x" * event["size"]
"""


@dataclass(frozen=True)
class Reply:
    """What the Invoke API answered."""

    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Calls the Invoke API as an unsigned HTTP client does."""

    def __init__(self, runtime: LambdaRuntime, session: aiohttp.ClientSession) -> None:
        self.runtime, self.session = runtime, session

    async def request(self, method: str, path: str, data: bytes | None = None, **headers: str) -> Reply:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.request(method, self.runtime.url + path, data=data, headers=named) as response:
            return Reply(response.status, response.headers, await response.read())

    async def invoke(self, name: str, event: object = None, **headers: str) -> Reply:
        return await self.request("POST", INVOKE.format(name), json.dumps(event).encode(), **headers)


@pytest.fixture
def probe(tmp_path: Path) -> Callable[..., Function]:
    """Makes a function of one of the probes, by name."""
    (tmp_path / "probes.py").write_text(PROBES)

    def make(name: str, handler: str | None = None, **settings: Any) -> Function:
        return Function(name=name, handler=handler or f"probes.{name}", working_directory=str(tmp_path), **settings)

    return make


async def appear(directory: Path, pattern: str, count: int) -> list[Path]:
    """Waits until that many files exist."""
    async with asyncio.timeout(60):
        while len(found := list(directory.glob(pattern))) < count:
            await asyncio.sleep(0.002)
    return found


@contextlib.asynccontextmanager
async def running(*functions: Function, **settings: Any) -> AsyncIterator[Client]:
    async with LambdaRuntime(functions, **settings) as runtime, aiohttp.ClientSession() as session:
        yield Client(runtime, session)


Probe = Callable[..., Function]


# --- What a function sees and gives ---------------------------------------------------------------------------------------------


async def test_the_answer_is_what_the_handler_returned(probe: Probe) -> None:
    async with running(probe("echo")) as client:
        for event in [{"a": [1, "ü", None]}, [], "text", 3.5]:
            reply = await client.invoke("echo", event)
            assert (reply.status, reply.json) == (200, event)
            assert "X-Amz-Function-Error" not in reply.headers and reply.headers["X-Amz-Executed-Version"] == "$LATEST"
        empty = await client.request("POST", INVOKE.format("echo"), b"")
        assert empty.json == {}


async def test_a_function_sees_lambdas_environment_and_context(probe: Probe, tmp_path: Path) -> None:
    custom = base64.b64encode(json.dumps({"custom": {"k": 1}}).encode()).decode()
    async with running(probe("f", "probes.about", memory_mb=3000, timeout=20.0, environment={"MINE": "yes"})) as client:
        reply = await client.invoke("f:live", X_Amz_Client_Context=custom, X_Amzn_Trace_Id="Root=1-5-abc")
    about = reply.json
    expected = {
        "MINE": "yes",
        "AWS_LAMBDA_FUNCTION_NAME": "f",
        "AWS_LAMBDA_FUNCTION_MEMORY_SIZE": "3000",
        "AWS_REGION": "us-east-1",
        "LAMBDA_TASK_ROOT": str(tmp_path),
        "_HANDLER": "probes.about",
        "_X_AMZN_TRACE_ID": "Root=1-5-abc",
        "OMP_NUM_THREADS": "2",
    }
    assert {name: about["environment"].get(name) for name in expected} == expected
    assert about["cwd"] == str(tmp_path) and about["arn"].endswith(":function:f:live") and about["client"] == {"k": 1}
    assert 19_000 < about["remaining"] <= 20_000
    assert about["request_id"] == reply.headers["x-amzn-RequestId"]


async def test_boto3_calls_it_unmodified(probe: Probe) -> None:
    async with running(probe("echo"), probe("fail"), probe("say")) as client:
        settings = {"region_name": "eu-west-1", "aws_access_key_id": "any", "aws_secret_access_key": "thing"}
        api = boto3.client("lambda", endpoint_url=client.runtime.url, **settings)

        def call() -> None:
            echoed = api.invoke(FunctionName="echo", Payload=b'{"a":1}', Qualifier="live")
            assert (echoed["StatusCode"], echoed["Payload"].read(), echoed["ExecutedVersion"]) == (200, b'{"a": 1}', "1")
            said = api.invoke(FunctionName="say", Payload=b'{"text":"hello log"}', LogType="Tail")
            assert b"hello log\n" in base64.b64decode(said["LogResult"])
            failed = api.invoke(FunctionName="fail", Payload=b"{}")
            assert failed["FunctionError"] == "Unhandled"
            assert json.loads(failed["Payload"].read())["errorType"] == "KeyError"
            with pytest.raises(
                api.exceptions.ResourceNotFoundException, match="Function not found: arn:aws:lambda:.*:function:none"
            ):
                api.invoke(FunctionName="none", Payload=b"{}")
            assert api.get_function_configuration(FunctionName="echo")["MemorySize"] == 1769
            assert api.get_function(FunctionName="echo")["Configuration"]["State"] == "Active"
            with pytest.raises(botocore.exceptions.ClientError, match="UnknownOperation"):
                api.delete_function(FunctionName="echo")

        await asyncio.to_thread(call)


async def test_our_own_handler_answers_a_batch() -> None:
    function = Function(name="f", environment={"SLUICE_MODEL_NAME": "m", "SLUICE_SLEEPER_SLOPE": "0"}, memory_mb=512)
    batch = Batch("m", [Item("a", "application/json", b'{"x":1}'), Item("b", "text/plain", b"two")])
    async with running(function) as client:
        reply = await client.request("POST", INVOKE.format("f"), encode_batch(batch))
        assert [(a.status, a.body) for a in decode_answers(reply.body, batch)] == [(200, b'{"x":1}'), (200, b"two")]
        assert '"BatchSize":[2.0]' in client.runtime.log("f")


# --- Names, kinds and refusals --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "echo",
        "echo:$LATEST",
        "echo:live",
        "123456789012:function:echo",
        "arn:aws:lambda:us-east-1:123456789012:function:echo",
        "arn:aws:lambda:us-east-1:123456789012:function:echo:live",
        "echo?Qualifier=live",
    ],
)
async def test_every_form_of_a_name_is_understood(name: str, shared: Client) -> None:
    plain, _, query = name.partition("?")
    path = INVOKE.format(quote(plain, safe="")) + (f"?{query}" if query else "")
    assert (await shared.request("POST", path, b"1")).json == 1


@pytest.mark.parametrize(
    ("path", "headers", "data", "status", "kind", "message"),
    [
        (INVOKE.format("none"), {}, b"1", 404, "ResourceNotFoundException", "Function not found: arn:aws:lambda:us-east-1"),
        (INVOKE.format("echo:old"), {}, b"1", 404, "ResourceNotFoundException", "function:echo:old"),
        (INVOKE.format("no%20name"), {}, b"1", 400, "ValidationException", "functionName: 'no name' is not a function name"),
        (INVOKE.format("echo:live") + "?Qualifier=x", {}, b"1", 400, "InvalidParameterValueException", "does not match"),
        (INVOKE.format("echo"), {"X-Amz-Invocation-Type": "Now"}, b"1", 400, "InvalidParameterValueException", "Value 'Now' at"),
        (INVOKE.format("echo"), {"X-Amz-Client-Context": "?"}, b"1", 400, "InvalidRequestContentException", "Base64-encoded"),
        (INVOKE.format("echo"), {}, b"{nonsense", 400, "InvalidRequestContentException", "Could not parse request body into json"),
        (INVOKE.format("echo"), {}, b'"' + b"x" * PAYLOAD_LIMIT + b'"', 413, "RequestTooLargeException", "smaller than 6291456"),
        ("/nothing", {}, b"1", 404, "UnknownOperationException", "POST /nothing is not served by the local runtime"),
    ],
)
async def test_a_refusal_has_lambdas_shape(
    path: str, headers: dict[str, str], data: bytes, status: int, kind: str, message: str, shared: Client
) -> None:
    reply = await shared.request("POST", path, data, **headers)
    assert (reply.status, reply.headers["x-amzn-errortype"], reply.json["Type"]) == (status, kind, "User")
    assert message in reply.json["message"]


@pytest.fixture
async def shared(probe: Probe) -> AsyncIterator[Client]:
    async with running(probe("echo")) as client:
        yield client


async def test_a_request_of_six_megabytes_passes_and_a_larger_one_without_a_length_does_not(shared: Client) -> None:
    whole = b'"' + b"x" * (PAYLOAD_LIMIT - 2) + b'"'
    reply = await shared.request("POST", INVOKE.format("echo"), whole)
    assert reply.status == 200 and len(reply.body) == PAYLOAD_LIMIT

    async def chunks() -> AsyncIterator[bytes]:
        yield whole
        yield b"  "

    async with shared.session.post(shared.runtime.url + INVOKE.format("echo"), data=chunks()) as response:
        assert response.status == 413


async def test_an_event_is_accepted_and_run_later_and_a_dry_run_is_not_run(probe: Probe, tmp_path: Path) -> None:
    event = {"entered": str(tmp_path / "in"), "gate": str(tmp_path / "gate")}
    async with running(probe("wait")) as client:
        assert (await client.invoke("wait", event, X_Amz_Invocation_Type="DryRun")).status == 204
        reply = await client.invoke("wait", event, X_Amz_Invocation_Type="Event")
        assert (reply.status, reply.body) == (202, b"")
        await appear(tmp_path, "in.*", 1)
        large = b'"' + b"x" * (1 << 20) + b'"'
        assert (await client.request("POST", INVOKE.format("wait"), large, **{"X-Amz-Invocation-Type": "Event"})).status == 413


# --- What goes wrong in a function ----------------------------------------------------------------------------------------------


async def test_what_a_handler_raises_is_the_payload_and_the_process_lives_on(probe: Probe) -> None:
    async with running(probe("fail")) as client:
        for _ in range(2):
            reply = await client.invoke("fail", X_Amz_Log_Type="Tail")
            assert (reply.status, reply.headers["X-Amz-Function-Error"]) == (200, "Unhandled")
            assert reply.json["errorType"] == "KeyError" and reply.json["errorMessage"] == "'no such thing'"
            assert "probes.py" in reply.json["stackTrace"][-1]
            assert b"[ERROR] KeyError: 'no such thing'" in base64.b64decode(reply.headers["X-Amz-Log-Result"])
        usage = client.runtime.usage("fail")
        assert (usage.invocations, usage.errors, usage.cold_starts) == (2, 2, 1)


async def test_a_process_that_leaves_is_an_exit_error_and_the_next_is_a_cold_start(probe: Probe) -> None:
    async with running(probe("leave")) as client:
        reply = await client.invoke("leave")
        request_id = reply.headers["x-amzn-RequestId"]
        assert reply.json == {
            "errorType": "Runtime.ExitError",
            "errorMessage": f"RequestId: {request_id} Error: Runtime exited with error: exit status 3",
        }
        await client.invoke("leave")
        assert client.runtime.usage("leave").cold_starts == 2


async def test_an_error_of_the_start_is_told_and_billed(probe: Probe, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise ValueError('cannot start')")
    async with running(probe("f", "broken.handler"), probe("g", "missing.handler"), probe("h", "probes.nothing")) as client:
        replies = [await client.invoke(name) for name in "fgh"]
        assert [(reply.headers["X-Amz-Function-Error"], reply.json["errorType"]) for reply in replies] == [
            ("Unhandled", "ValueError"),
            ("Unhandled", "Runtime.ImportModuleError"),
            ("Unhandled", "Runtime.HandlerNotFound"),
        ]
        assert [reply.json["errorMessage"] for reply in replies] == [
            "cannot start",
            "Unable to import module 'missing': No module named 'missing'",
            "Handler 'nothing' missing on module 'probes'",
        ]
        assert client.runtime.usage("f").billed_duration > 0.01


async def test_a_timeout_kills_the_process_and_bills_the_time(probe: Probe, tmp_path: Path) -> None:
    event = {"entered": str(tmp_path / "in"), "gate": str(tmp_path / "never")}
    async with running(probe("wait", timeout=0.3)) as client:
        reply = await client.invoke("wait", event, X_Amz_Log_Type="Tail")
        (entered,) = tmp_path.glob("in.*")
        assert reply.json["errorType"] == "Sandbox.Timedout"
        assert reply.json["errorMessage"].endswith("Error: Task timed out after 0.30 seconds")
        log = base64.b64decode(reply.headers["X-Amz-Log-Result"]).decode()
        assert "Task timed out after 0.30 seconds" in log and "Duration: 300.00 ms" in log and "Status: timeout" in log
        assert ended(int(entered.suffix[1:]))
        usage = client.runtime.usage("wait")
        assert usage.timeouts == 1 and usage.duration == pytest.approx(0.3)


async def test_a_start_that_never_ends_times_out(probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluice.local.environments.INIT_TIMEOUT", 0.3)
    (tmp_path / "stuck.py").write_text("import time; time.sleep(60)")
    async with running(probe("f", "stuck.handler")) as client:
        assert (await client.invoke("f")).json["errorMessage"].endswith("Init timed out after 0.30 seconds")


@pytest.mark.parametrize("cores", [1, 2])
async def test_as_many_start_at_once_as_there_are_cores(
    probe: Probe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))
    (tmp_path / "slow.py").write_text(
        "import fcntl, os\n"
        "open(f'began.{os.getpid()}', 'w').close()\n"
        "gate = open('gate')\n"
        "fcntl.flock(gate, fcntl.LOCK_SH)\n"  # when the test lets go of it
        "def handler(event, context): return event\n"
    )
    async with running(probe("f", "slow.handler"), probe("g", "slow.handler")) as client:
        with (tmp_path / "gate").open("w") as gate:
            fcntl.flock(gate, fcntl.LOCK_EX)
            waiting = [asyncio.create_task(client.invoke("fg"[k % 2], k)) for k in range(5)]
            await until(lambda: sum(each["busy"] for each in client.runtime.status()["functions"].values()) == 5)
            assert sum(each["environments"] for each in client.runtime.status()["functions"].values()) == cores
            assert len(await appear(tmp_path, "began.*", cores)) == cores
            waiting[-1].cancel()  # who gives up while it waits takes nobody's turn
        assert [(await task).json for task in waiting[:-1]] == [0, 1, 2, 3]
        (tmp_path / "stuck.py").write_text("import os; os._exit(3)")
    async with running(probe("f", "stuck.handler"), probe("echo")) as client:
        for _ in range(cores + 1):
            assert (await client.invoke("f")).json["errorType"] == "Runtime.ExitError"
        assert (await client.invoke("echo", 1)).json == 1  # what ended while it started is in nobody's way


async def test_an_answer_over_the_limit_is_an_error(probe: Probe) -> None:
    async with running(probe("big")) as client:
        fits = await client.invoke("big", {"size": MAX_RESPONSE - 2})
        assert len(fits.body) == MAX_RESPONSE
        reply = await client.invoke("big", {"size": MAX_RESPONSE - 1})
        assert reply.headers["X-Amz-Function-Error"] == "Unhandled"
        assert reply.json["errorType"] == "Function.ResponseSizeTooLarge"
        assert "exceeded maximum allowed payload size (6291556 bytes)" in reply.json["errorMessage"]


async def test_more_memory_than_bought_ends_the_process(probe: Probe) -> None:
    async with running(probe("eat", memory_mb=128), probe("more", "probes.eat", memory_mb=512)) as client:
        reply = await client.invoke("eat", {"mb": 140})
        assert reply.json["errorType"] == "Runtime.OutOfMemory" and reply.json["errorMessage"].endswith("signal: killed")
        assert (await client.invoke("more", {"mb": 140})).json == 140 << 20
        assert client.runtime.usage("more").max_memory_mb > 140
        await client.invoke("eat", {"mb": 1})
        assert client.runtime.usage("eat").cold_starts == 2


# --- Environments and bills -----------------------------------------------------------------------------------------------------


async def test_each_concurrent_invocation_has_its_own_process_and_the_limit_is_429(probe: Probe, tmp_path: Path) -> None:
    event = {"entered": str(tmp_path / "in"), "gate": str(tmp_path / "gate")}
    async with running(probe("wait", concurrency_limit=3)) as client:
        waiting = [asyncio.create_task(client.invoke("wait", event)) for _ in range(3)]
        await appear(tmp_path, "in.*", 3)
        refused = await client.invoke("wait", event)
        assert (refused.status, refused.headers["x-amzn-errortype"]) == (429, "TooManyRequestsException")
        assert refused.json["Reason"] == "ReservedFunctionConcurrentInvocationLimitExceeded"
        (tmp_path / "gate").touch()
        pids = {reply.json for reply in await asyncio.gather(*waiting)}
        assert len(pids) == 3
        usage = client.runtime.usage("wait")
        assert (usage.max_concurrency, usage.throttles, usage.cold_starts) == (3, 1, 3)
        # The three are warm now: whoever answered last is taken first, again and again.
        again = {(await client.invoke("wait", event)).json for _ in range(4)}
        assert len(again) == 1 and again < pids
        assert usage.cold_starts == 3


async def test_an_idle_process_ends_after_its_keep_alive(probe: Probe) -> None:
    async with running(probe("about"), keep_alive=0.05) as client:
        pid = (await client.invoke("about")).json["pid"]
        assert await asyncio.to_thread(ended, pid)
        assert (await client.invoke("about")).json["pid"] != pid


async def test_only_the_cold_start_reports_and_bills_its_start(probe: Probe) -> None:
    async with running(probe("echo")) as client:
        logs = [
            base64.b64decode((await client.invoke("echo", X_Amz_Log_Type="Tail")).headers["X-Amz-Log-Result"]).decode()
            for _ in "ab"
        ]
        cold, warm = (log.splitlines()[-1] for log in logs)
        number = r"(\d+\.\d\d)"
        billing = rf"Duration: {number} ms\tBilled Duration: (\d+) ms"
        pattern = rf"REPORT RequestId: \S+\t{billing}\tMemory Size: 1769 MB\tMax Memory Used: \d+ MB\t"
        told = re.fullmatch(pattern + rf"Init Duration: {number} ms\t", cold)
        assert told is not None, cold
        duration, billed, init = map(float, told.groups())
        assert init > 10 and 0 <= billed - duration - init < 1.02
        told = re.fullmatch(pattern, warm)
        assert told is not None, warm
        assert 0 <= float(told.group(2)) - float(told.group(1)) < 1.02
        usage = client.runtime.usage("echo")
        assert usage.billed_duration == pytest.approx((billed + float(told.group(2))) / 1000)
        assert usage.gb_seconds == pytest.approx(usage.billed_duration * 1769 / 1024)


async def test_retired_environments_make_the_next_invocation_cold(probe: Probe) -> None:
    async with running(probe("echo")) as client:
        await client.invoke("echo")
        assert (await client.request("DELETE", "/environments/echo")).json == {"retired": 1}
        await client.invoke("echo")
        assert client.runtime.usage("echo").cold_starts == 2


async def test_usage_and_logs_are_read_and_reset_over_http(probe: Probe) -> None:
    async with running(probe("echo"), probe("say")) as client:
        await client.invoke("echo")
        await client.invoke("say", {"text": "hello there"})
        assert (await client.request("GET", "/usage/echo")).json == client.runtime.usage("echo").as_dict()
        assert "hello there" in (await client.request("GET", "/logs/say")).body.decode()
        assert (await client.request("DELETE", "/usage/echo")).status == 204
        assert client.runtime.usage("echo").invocations == 0 and client.runtime.usage("say").invocations == 1
        assert (await client.request("DELETE", "/usage")).status == 204
        assert client.runtime.usage("say").invocations == 0
        unknown = await client.request("GET", "/usage/none")
        assert unknown.status == 404 and "function: 'none' is not allowed; allowed: one of echo, say" in unknown.json["message"]


async def test_two_functions_of_one_name_are_refused(probe: Probe) -> None:
    with pytest.raises(InvalidInput, match="functions: .* is not allowed; allowed: every name once"):
        LambdaRuntime([probe("echo"), probe("echo")])


# --- CPU by memory --------------------------------------------------------------------------------------------------------------


async def duration_of(client: Client, name: str, event: object) -> float:
    before = client.runtime.usage(name).duration
    await client.invoke(name, event)
    return client.runtime.usage(name).duration - before


async def test_work_takes_its_cpu_time_over_the_share_of_its_memory(probe: Probe) -> None:
    """Never less; what a busy machine adds is its own, and what the throttle does is asked of its clocks below."""
    sizes = {"half": 885, "quarter": 442}
    async with running(*(probe(name, "probes.burn", memory_mb=memory) for name, memory in sizes.items())) as client:
        for name, memory in sizes.items():
            assert 0.05 * 1769 / memory <= await duration_of(client, name, {"cpu": 0.05})


class Clocks:
    """The clocks that a throttle reads, and how long it slept."""

    def __init__(self) -> None:
        self.wall = self.cpu = self.slept = 0.0

    def perf_counter(self) -> float:
        return self.wall

    def process_time(self) -> float:
        return self.cpu

    def sleep(self, seconds: float) -> None:
        self.slept += seconds


@pytest.mark.parametrize(
    ("share", "wall", "cpu", "sleeps"),
    [
        (0.5, 0.1, 0.1, 0.1),
        (0.25, 0.2, 0.1, 0.2),
        (0.072, 0.2, 0.0, 0.0),  # waiting is not slowed
        (0.25, 0.5, 0.1, 0.0),  # a machine that was slower by itself
        (1.0, 0.1, 0.1, 0.0),
        (2.0, 0.1, 0.15, 0.0),
    ],
)
def test_the_throttle_sleeps_what_is_missing_of_the_cpu_time_over_the_share_and_no_more(
    share: float, wall: float, cpu: float, sleeps: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = Clocks()
    monkeypatch.setattr("sluice.local.bootstrap.time", clocks)
    throttle = Throttle(share)
    for _ in range(2):  # what was before the window does not count
        clocks.wall, clocks.cpu, clocks.slept = clocks.wall + 7.0, clocks.cpu + 3.0, 0.0
        throttle.begin()
        begun = throttle.now()
        clocks.wall, clocks.cpu = clocks.wall + wall, clocks.cpu + cpu
        assert throttle.now() - begun == pytest.approx(wall + sleeps)  # what a function measures of itself
        throttle.end()
        assert clocks.slept == pytest.approx(sleeps)


async def test_a_share_that_the_machine_does_not_have_is_told(probe: Probe, caplog: pytest.LogCaptureFixture) -> None:
    cores = len(os.sched_getaffinity(0))
    memory = min(10240, 1769 * (cores + 1))
    async with running(probe("echo", memory_mb=memory), probe("say", memory_mb=885)) as client:
        status = (await client.request("GET", "/")).json
        assert status == client.runtime.status() and status["cores"] == cores
        assert status["functions"]["say"]["cpu_share"] == {"asked": 885 / 1769, "granted": 885 / 1769}
        if memory / 1769 > cores:
            assert status["functions"]["echo"]["cpu_share"] == {"asked": memory / 1769, "granted": cores}
            assert f"this machine has {cores}: it will be slower here than on Lambda" in caplog.text


# --- Ends -----------------------------------------------------------------------------------------------------------------------


async def test_stopping_ends_every_process_idle_or_busy(probe: Probe, tmp_path: Path) -> None:
    event = {"entered": str(tmp_path / "in"), "gate": str(tmp_path / "never")}
    async with running(probe("about"), probe("wait")) as client:
        idle = (await client.invoke("about")).json["pid"]
        busy = asyncio.create_task(client.invoke("wait", event))
        (entered,) = await appear(tmp_path, "in.*", 1)
        await client.runtime.stop()
        reply = await asyncio.gather(busy, return_exceptions=True)
    assert ended(idle) and ended(int(entered.suffix[1:]))
    assert isinstance(reply[0], Reply | aiohttp.ClientError)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
async def test_the_program_leaves_no_process_however_it_ends(number: signal.Signals, probe: Probe, tmp_path: Path) -> None:
    # Busy: an idle one would notice by itself that the Runtime API is gone.
    event = {"entered": str(tmp_path / "in"), "gate": str(tmp_path / "never")}
    function = {"name": "wait", "handler": "probes.wait", "working_directory": str(tmp_path)}
    probe("wait")
    (tmp_path / "config.json").write_text(json.dumps({"functions": [function], "port": 0}))
    program = subprocess.Popen(
        [sys.executable, "-m", "sluice.local.lambda_runtime", str(tmp_path / "config.json")], stdout=subprocess.PIPE, text=True
    )
    assert program.stdout is not None
    try:
        url = (await asyncio.to_thread(program.stdout.readline)).strip()
        async with aiohttp.ClientSession() as session:
            calling = asyncio.create_task(session.post(url + INVOKE.format("wait"), json=event))
            (entered,) = await appear(tmp_path, "in.*", 1)
            program.send_signal(number)
            assert await asyncio.to_thread(program.wait, 10) == (-9 if number == signal.SIGKILL else 0)
            assert ended(int(entered.suffix[1:]))
            await asyncio.gather(calling, return_exceptions=True)
    finally:
        program.kill()
        program.communicate()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "Input data was truncated"),
        ('{"functions": [{"name": "f", "memory": 1}]}', "unknown field `memory` - at `$.functions[0]`"),
        ('{"functions": [{"name": "f", "memory_mb": 1}]}', "function memory_mb: 1 is not allowed; allowed: 128 to 10240"),
        (None, "No such file or directory"),
    ],
)
def test_a_configuration_that_is_wrong_is_told_and_exits_2(
    text: str | None, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(sys, "argv", ["sluice.local.lambda_runtime", str(path)])
    monkeypatch.setattr("sluice.local.lambda_runtime.log_to_stderr", lambda level: None)  # which would stay in this process
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith(f"sluice.local.lambda_runtime: {path}: ") and message in said


def start_with(config: dict[str, object], folder: Path) -> subprocess.CompletedProcess[str]:
    """What the program says to a configuration under which it does not serve."""
    (folder / "config.json").write_text(json.dumps(config))
    program = [sys.executable, "-m", "sluice.local.lambda_runtime", "config.json"]
    return subprocess.run(program, capture_output=True, text=True, cwd=folder, timeout=30)


def test_a_port_that_somebody_has_is_told_in_one_line(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = start_with({"functions": [], "port": port}, tmp_path)
    assert done.returncode == 2
    said = f"config.json: port: {port} is not allowed; allowed: a free port of 127.0.0.1, 0 for any (Address already in use)"
    assert done.stderr == f"sluice.local.lambda_runtime: {said}\n"


def test_networks_that_are_not_there_are_told_at_the_start(tmp_path: Path) -> None:
    functions = [{"name": f"f-{n}", "environment": {"SLUICE_MODEL": "nets/f.onnx"}} for n in (1, 2)]
    done = start_with({"functions": functions}, tmp_path)
    assert done.returncode == 2
    assert f"SLUICE_MODEL of f-1, f-2 does not exist: {tmp_path}/nets/f.onnx; their invocations will fail" in done.stderr
    assert f"SLUICE_MODEL: '{tmp_path}/nets/f.onnx' is not allowed; allowed: a file that exists, by its path" in done.stderr
    some = [Function(name="g", environment={"SLUICE_MODEL": __file__}), Function(name="h"), Function(**functions[0])]
    assert list(missing_files(some).values()) == [["f-1"]]
