"""An invocation through the Lambda Invoke API is timed, and each way it can go wrong says so."""

from __future__ import annotations

import asyncio
import base64
import threading
import time

import pytest
from aiohttp import web

from sluice.batching.errors import DispatchFailed, FunctionFailed, InvalidInput
from sluice.profiler.invocations import ATTEMPTS, LambdaInvocations


class FakeLambdaApi:
    """The Invoke API of a service that answers as it is told; runs in a thread, as boto3 blocks.

    Functions: ``echo`` answers its payload after ``delay`` seconds; ``raises`` fails; ``busy`` is throttled ``throttled`` times,
    then echoes; ``broken`` is an error of the service; ``quiet`` sends no log tail, and has 885 MB; of
    ``hidden`` nobody may know that; ``small`` takes no payload; no other is known.
    """

    def __init__(self) -> None:
        self.delay = 0.0
        self.duration = 0.0
        self.throttled = 0
        self.requests: list[str] = []
        self._loop = asyncio.new_event_loop()
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> FakeLambdaApi:
        self._thread.start()
        self._started.wait()
        return self

    def __exit__(self, *error: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        app = web.Application()
        app.router.add_post("/2015-03-31/functions/{name}/invocations", self._invoke)
        app.router.add_get("/2015-03-31/functions/{name}/configuration", self._configuration)
        runner = web.AppRunner(app)
        self._loop.run_until_complete(runner.setup())
        site = web.TCPSite(runner, "127.0.0.1", 0)
        self._loop.run_until_complete(site.start())
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        self._started.set()
        self._loop.run_forever()
        self._loop.run_until_complete(runner.cleanup())
        self._loop.close()

    async def _invoke(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.requests.append(name)
        body = await request.read()
        assert request.headers["X-Amz-Log-Type"] == "Tail"
        if name == "broken":
            return self._error(500, "ServiceException", "internal")
        if name == "small":
            return self._error(413, "RequestTooLargeException", "6291456 bytes")
        if name == "busy" and self.throttled > 0:
            self.throttled -= 1
            return self._error(429, "TooManyRequestsException", "Rate Exceeded.")
        if name not in ("echo", "raises", "busy", "quiet", "hidden"):
            return self._error(404, "ResourceNotFoundException", f"Function not found: {name}")
        await asyncio.sleep(self.delay)
        duration = f"Duration: {self.duration * 1e3:.2f} ms\tBilled Duration: 9 ms"
        line = f"REPORT RequestId: 1\t{duration}\tMemory Size: 512 MB\tMax Memory Used: 64 MB"
        headers = {} if name in ("quiet", "hidden") else {"X-Amz-Log-Result": base64.b64encode(line.encode()).decode()}
        if name == "raises":
            headers["X-Amz-Function-Error"] = "Unhandled"
            body = b'{"errorMessage": "no such weights", "errorType": "KeyError"}'
        return web.Response(body=body, headers=headers)

    async def _configuration(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        self.requests.append(f"configuration of {name}")
        if name != "quiet":
            return self._error(403, "AccessDeniedException", "not authorized")
        return web.json_response({"FunctionName": name, "MemorySize": 885})

    @staticmethod
    def _error(status: int, code: str, message: str) -> web.Response:
        return web.json_response({"message": message, "Type": "User"}, status=status, headers={"x-amzn-errortype": code})


@pytest.fixture(scope="module")
def api():
    with FakeLambdaApi() as api:
        yield api


@pytest.fixture
def invoke(api, monkeypatch):
    for name, value in {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(name, value)
    api.delay, api.duration, api.throttled = 0.0, 0.005, 0
    api.requests.clear()
    return LambdaInvocations(api.url, sleep=lambda seconds: None)


def test_the_answer_comes_with_its_report_and_the_clients_wall_time(api, invoke):
    api.delay, api.duration = 0.05, 0.04
    begun = time.perf_counter()
    run = invoke("echo", b'{"a": 1}')
    took = time.perf_counter() - begun
    assert run.payload == b'{"a": 1}'
    assert run.report.duration == pytest.approx(0.04) and run.report.memory_mb == 512
    assert 0.05 <= run.wall_time <= took


def test_the_endpoint_may_come_from_the_environment(api, invoke, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", api.url)
    assert LambdaInvocations()("echo", b"1").payload == b"1"


def test_an_unknown_function_is_invalid_input_and_named(invoke):
    with pytest.raises(InvalidInput, match=r"function: 'nobody' is not allowed; .*Function not found: nobody"):
        invoke("nobody", b"{}")


def test_a_function_that_raises_is_quoted_and_not_repeated(api, invoke):
    with pytest.raises(FunctionFailed, match=r"raises failed \(Unhandled\): .*no such weights"):
        invoke("raises", b"{}")
    assert api.requests == ["raises"]


def test_throttling_is_waited_out_and_not_measured(api, invoke):
    api.throttled, waits = 3, []

    def wait(seconds):
        waits.append(0.01)
        time.sleep(waits[-1])

    invoke._sleep = wait
    begun = time.perf_counter()
    assert invoke("busy", b"{}").wall_time <= time.perf_counter() - begun - sum(waits)
    assert len(waits) == 3
    assert len(api.requests) == 4


def test_throttling_that_lasts_is_given_up(api, invoke):
    api.throttled = 100
    with pytest.raises(DispatchFailed, match=r"busy: the service refused 5 times \(TooManyRequestsException: Rate Exceeded"):
        invoke("busy", b"{}")
    assert len(api.requests) == ATTEMPTS


def test_a_failure_of_the_service_is_repeated_then_named(api, invoke):
    with pytest.raises(DispatchFailed, match="ServiceException: internal"):
        invoke("broken", b"{}")
    assert len(api.requests) == ATTEMPTS


def test_a_payload_that_the_service_refuses_is_invalid_input(invoke):
    with pytest.raises(InvalidInput, match="payload: '2 bytes' is not allowed"):
        invoke("small", b"{}")


def test_where_the_log_has_no_report_what_the_function_told_of_itself_stands_in_for_it(api, invoke):
    api.delay = 0.02
    new = invoke("quiet", b'{"measured": {"service": 0.0071, "cold": true}}')
    assert (new.report.duration, new.report.billed_duration, new.report.memory_mb) == (0.0071, 0.008, 885) and invoke.unreported
    assert new.report.init_duration == pytest.approx(new.wall_time - 0.0071)
    assert invoke("quiet", b'{"measured": {"service": 0.0071}}').report.init_duration is None
    untold = invoke("quiet", b"{}")
    assert untold.report.duration == untold.wall_time >= 0.02
    assert api.requests.count("configuration of quiet") == 1


def test_a_function_that_reports_is_not_asked_for_its_memory_and_one_that_may_not_be_is_named(api, invoke):
    assert invoke("echo", b"{}").report.memory_mb == 512 and not invoke.unreported
    assert not any(asked.startswith("configuration") for asked in api.requests)
    with pytest.raises(InvalidInput, match="function: 'hidden' .*AccessDeniedException: not authorized"):
        invoke("hidden", b"{}")


def test_nobody_at_the_endpoint_is_a_failed_dispatch(invoke):
    with pytest.raises(DispatchFailed, match="the Lambda service does not answer: "):
        LambdaInvocations("http://127.0.0.1:1")("echo", b"{}")


def test_a_missing_region_asks_for_it(invoke, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(InvalidInput, match=r"^AWS_REGION: none was given; needed: the region of the functions"):
        LambdaInvocations()


def test_the_region_may_be_named_as_containers_are_told_it(invoke, monkeypatch, tmp_path):
    monkeypatch.delenv("AWS_DEFAULT_REGION")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    LambdaInvocations()
