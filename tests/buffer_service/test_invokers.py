"""The ways to a function: a Lambda that checks its callers' signatures, the local Lambda runtime, HTTP workers, callables."""

import asyncio
import random
import re
import resource
import statistics
import subprocess
import sys
import threading
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from urllib.parse import parse_qsl, unquote

import botocore.loaders
import botocore.session
import msgspec
import pytest
from aiohttp import web
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import CredentialRetrievalError

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument
from sluice.batching.errors import FunctionFailed, InvalidInput
from sluice.buffer_service.dispatcher import describe
from sluice.buffer_service.invokers import (
    BatchTooLarge,
    FunctionBusy,
    FunctionCrashed,
    FunctionUnavailable,
    HttpInvoker,
    InvokerBySyntax,
    LocalInvoker,
    UnknownFunction,
    port,
    worker_health,
)
from sluice.buffer_service.invokers.aws_api import BACKOFF, RETRIES, full_jitter
from sluice.buffer_service.invokers.aws_lambda import LAMBDA_ANSWER_LIMIT, LambdaInvoker
from sluice.buffer_service.invokers.http_exchange import MAX_HEAD_BYTES
from sluice.buffer_service.invokers.http_refusals import retry_after
from sluice.buffer_service.invokers.port import NoRoomForAnswer, UnreadableAnswer
from sluice.buffer_service.invokers.worker_health import EJECT_AFTER
from sluice.buffer_service.invokers.worker_pace import FEWEST
from sluice.http.room import Room
from sluice.lambda_fn import batch_frames
from sluice.lambda_fn.contract import (
    JSON,
    PAYLOAD_LIMIT,
    Answer,
    Batch,
    Item,
    WireError,
    decode_answers,
    decode_batch,
    encode_answers,
    encode_batch,
    encode_metadata,
)
from sluice.lambda_fn.models.sleeper import Sleeper
from sluice.lambda_fn.worker.program import HttpWorker, listen
from sluice.local.functions import ACCOUNT, REGION, Function
from sluice.local.lambda_runtime import LambdaRuntime
from tests.buffer_service.aws_fakes import (
    KEY,
    SECRET,
    Refused,
    SignedApi,
    closing,
    cut_off,
    lost,
    nap,
    never,
    refusal,
    status,
)
from tests.buffer_service.conftest import Plans, plan, serving
from tests.lambda_fn.worker_sockets import served

pytestmark = pytest.mark.usefixtures("aws_environment", "botocore_reads_its_data_once")

PATIENCE = 60.0  # s: nothing here takes so long, however busy the machine
ARN = f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:"
BATCH = Batch("nap", [Item("r1", "application/json", b'{"x":1}'), Item("r2", "application/octet-stream", b"\x00\xff")])
MANY = Batch("nap", [Item(str(i), "application/json", b"%d" % i) for i in range(5)])


class FakeLambda(SignedApi):
    """The Invoke API: functions are callables."""

    service = "lambda"

    def __init__(self, functions):
        super().__init__()
        self.functions = functions

    def answer(self, raw_path, payload):
        path, _, query = raw_path.partition("?")
        name, qualifier = unquote(path.split("/")[3]), dict(parse_qsl(query)).get("Qualifier")
        name = name.removeprefix(ARN).removeprefix(f"{ACCOUNT}:function:")
        name, _, suffix = name.partition(":")
        if name not in self.functions or (qualifier or suffix or "$LATEST") not in ("live", "$LATEST"):
            raise Refused(404, "ResourceNotFoundException", f"Function not found: {ARN}{name}")
        try:
            msgspec.json.decode(payload)
        except msgspec.DecodeError as error:
            raise Refused(400, "InvalidRequestContentException", f"Could not parse request body into json: {error}") from None
        try:
            return web.Response(body=self.functions[name](payload))
        except Refused:
            raise
        except Exception as error:
            body = {"errorMessage": str(error), "errorType": type(error).__name__, "stackTrace": []}
            return web.Response(body=msgspec.json.encode(body), headers={"X-Amz-Function-Error": "Unhandled"})


def fail(_):
    raise ValueError("no such thing")


def busy(_):
    raise Refused(429, "TooManyRequestsException", "Rate Exceeded.")


@pytest.fixture
async def fake():
    async with FakeLambda({"nap": nap, "fail": fail, "busy": busy}) as api:
        yield api


@pytest.fixture
async def invoker(fake):
    """Of the fake Lambda; retries at once and notes what it should have waited for."""
    retries = []

    def at_once(retry):
        retries.append(retry)
        return 0.0

    async with closing(LambdaInvoker(PATIENCE, fake.url, at_once)) as invoker:
        invoker.retries = retries
        yield invoker


# -- one suite over the fake and the real runtime


@pytest.fixture(params=["fake", "runtime"])
async def either(request, fake, tmp_path):
    if request.param == "fake":
        url, runtime = fake.url, None
    else:
        (tmp_path / "failing.py").write_text("def fail(event, context):\n    raise ValueError('no such thing')\n")
        sleeper = {"SLUICE_MODEL_NAME": "nap", "SLUICE_SLEEPER_INTERCEPT": "0", "SLUICE_SLEEPER_SLOPE": "0"}
        functions = [
            Function(name="nap", environment=sleeper),
            Function(name="fail", handler="failing.fail", working_directory=str(tmp_path)),
            Function(name="busy", environment=sleeper, concurrency_limit=0),
        ]
        runtime = await LambdaRuntime(functions).start()
        url = runtime.url
    async with closing(LambdaInvoker(PATIENCE, url, lambda _: 0.0)) as invoker:
        yield invoker
    if runtime is not None:
        await runtime.stop()


async def test_every_item_of_a_batch_is_answered_by_whatever_name_the_function_is_called(either):
    for name in (
        "nap",
        "nap:live",
        "nap:$LATEST",
        ARN + "nap",
        ARN + "nap:live",
        f"{ACCOUNT}:function:nap",
        f"{ACCOUNT}:function:nap:live",
    ):
        answers = decode_answers(await either.invoke(name, encode_batch(BATCH)), BATCH)
        assert [(a.id, a.status, a.content_type, a.body) for a in answers] == [
            (i.id, 200, i.content_type, i.body) for i in BATCH.items
        ], name


@pytest.mark.parametrize("name", ["none", "nap:old", ARN + "none", "none:live"])
async def test_a_function_or_alias_that_does_not_exist_is_unknown(either, name):
    message = await refusal(either, UnknownFunction, function=name)
    assert message.startswith(f"function: {name!r} does not exist: Function not found: {ARN}")


async def test_a_function_that_fails_says_why(either):
    assert await refusal(either, FunctionFailed, function="fail") == "function 'fail' failed: no such thing"


async def test_a_function_that_is_throttled_is_busy(either):
    message = await refusal(either, FunctionBusy, function="busy")
    assert message == "Lambda refuses to invoke 'busy': HTTP 429 Rate Exceeded."


async def test_a_payload_that_is_not_json_fails_so_that_the_culprit_can_be_found(either):
    message = await refusal(either, FunctionFailed, b'{"half": ')
    assert message.startswith("Lambda does not take the batch for 'nap': Could not parse request body into json: ")


async def test_a_lambda_that_is_throttled_for_a_while_costs_no_request(fake, monkeypatch):
    refusals = iter(range(20))  # of ten batches

    def throttled(payload):
        if next(refusals, None) is not None:
            raise Refused(429, "TooManyRequestsException", "Rate Exceeded.")
        return nap(payload)

    fake.functions["slow"] = throttled
    policy = constructors.size_or_timeout(4, 0.01)
    async with (
        closing(LambdaInvoker(PATIENCE, fake.url)) as invoker,
        serving(None, None, plans=Plans(plan(policy, "nap", "slow")), invoker=invoker) as buffer,
    ):
        statuses = [a[0] for a in await asyncio.gather(*(buffer.post("/models/nap", b"%d" % i) for i in range(40)))]
        text = (await buffer.get("/metrics"))[2].decode()
    assert statuses == [200] * 40
    refused = text.split('sluice_invocation_failures_total{error="FunctionBusy",model="nap"} ')[1].split()[0]
    assert 0 < float(refused) <= 20


# -- what only a scripted Lambda does


@pytest.mark.parametrize(
    ("function", "path"),
    [
        ("nap", "nap/invocations"),
        ("nap:live", "nap/invocations?Qualifier=live"),
        ("nap:$LATEST", "nap/invocations?Qualifier=%24LATEST"),
        (ARN + "nap:live", ARN.replace(":", "%3A") + "nap%3Alive/invocations"),
        (f"{ACCOUNT}:function:nap", f"{ACCOUNT}%3Afunction%3Anap/invocations"),
        ("a b/c?d", "a%20b%2Fc%3Fd/invocations"),
    ],
)
async def test_the_address_is_sent_as_it_is_signed(fake, invoker, function, path):
    fake.script.append(status(200, b"{}"))
    assert await invoker.invoke(function, b"{}") == b"{}"
    [(raw_path, headers)] = fake.requests
    assert raw_path == f"/2015-03-31/functions/{path}"
    assert headers["Content-Type"] == "application/json"


async def test_a_function_the_role_may_not_invoke_is_to_it_one_that_does_not_exist(fake, invoker):
    async def denied(request):
        raise Refused(403, "AccessDeniedException", "no identity-based policy allows the lambda:InvokeFunction action")

    fake.script.append(denied)
    message = await refusal(invoker, UnknownFunction)
    assert message.startswith("function: 'nap' does not exist, or may not be invoked: no identity-based policy")


async def test_a_wrong_secret_is_refused_by_a_lambda_that_looks(fake, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    async with closing(LambdaInvoker(PATIENCE, fake.url)) as invoker:
        message = await refusal(invoker, FunctionUnavailable)
    assert message.startswith("Lambda refuses to invoke 'nap': HTTP 403 The request signature we calculated does not match")
    assert len(fake.requests) == 1


async def test_the_token_of_a_role_is_sent_and_signed(fake, monkeypatch):
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token")
    async with closing(LambdaInvoker(PATIENCE, fake.url)) as invoker:
        await invoker.invoke("nap", encode_batch(BATCH))
    [(_, headers)] = fake.requests
    assert headers["X-Amz-Security-Token"] == "token"
    assert "x-amz-security-token" in headers["Authorization"]


@pytest.mark.parametrize("trouble", [lost, cut_off])
async def test_a_connection_that_is_lost_is_opened_again_until_it_holds(fake, invoker, trouble):
    fake.script = [trouble] * RETRIES
    assert decode_answers(await invoker.invoke("nap", encode_batch(BATCH)), BATCH)
    assert invoker.retries == list(range(RETRIES))
    assert len(fake.requests) == RETRIES + 1


async def test_every_attempt_is_signed_anew(fake, invoker):
    fake.script = [lost]
    await invoker.invoke("nap", encode_batch(BATCH))
    assert ["Authorization" in headers for _, headers in fake.requests] == [True, True]


@pytest.mark.parametrize(
    ("trouble", "message"),
    [
        (status(429, b'{"Reason":"ConcurrentInvocationLimitExceeded","message":"Rate Exceeded."}'), "HTTP 429 Rate Exceeded."),
        (status(500, b'{"Message":"internal"}'), "HTTP 500 internal"),
        (status(503, b"<html>\n  <b>away</b>\n</html>"), "HTTP 503 <html> <b>away</b> </html>"),
        (status(502, b'"\xff'), 'HTTP 502 "\ufffd'),
        (status(502, b"[" * 100_000), "HTTP 502 " + "[" * 500),
        (status(500, b'{"message": null}'), 'HTTP 500 {"message": null}'),
        (status(500, b'{"message": "%s"}' % (b"x" * 10_000)), "HTTP 500 " + "x" * 499 + "…"),
        (status(500, b"[1]"), "HTTP 500 [1]"),
        (status(500), "HTTP 500 "),
    ],
)
async def test_what_passes_is_left_to_those_who_know_how_long_that_is_waited_for(fake, invoker, trouble, message):
    fake.script = [trouble]
    assert await refusal(invoker, FunctionBusy) == f"Lambda refuses to invoke 'nap': {message}"
    assert len(fake.requests) == 1


async def test_what_does_not_pass_by_itself_is_not_waited_for(fake, invoker):
    fake.script = [status(502, b'{"Message": "the key is disabled"}', **{"x-amzn-ErrorType": "KMSDisabledException:http://x/"})]
    message = await refusal(invoker, FunctionUnavailable)
    assert message == "Lambda refuses to invoke 'nap': HTTP 502 the key is disabled"


async def test_an_answer_that_cannot_be_read_is_not_asked_for_again(fake, invoker):
    """The function ran, and would be billed each time."""
    fake.script = [status(200, b"{}", **{"x-long": "x" * MAX_HEAD_BYTES})]
    message = await refusal(invoker, FunctionUnavailable)
    assert message == f"invocation of 'nap' was lost: headers of more than {MAX_HEAD_BYTES} bytes" and invoker.retries == []


@pytest.mark.parametrize(
    ("field", "seconds"),
    [
        (None, None),
        ("2", 2.0),
        ("0.25", 0.25),
        ("-3", 0.0),
        ("1e300", 3600.0),
        ("soon", None),
        ("inf", None),
        ("nan", None),
        ("Mon, 01 Jan 99999999999 00:00:00 GMT", None),
    ],
)
async def test_a_busy_function_may_say_when_to_come_again(fake, invoker, field, seconds):
    fake.script = [status(429, **({"Retry-After": field} if field is not None else {}))]
    with pytest.raises(FunctionBusy) as caught:
        await invoker.invoke("nap", b"{}")
    assert caught.value.retry_after == seconds


def test_a_date_to_come_again_is_a_time_from_now():
    at = datetime.now(UTC) + timedelta(seconds=30)
    assert 28 < retry_after(at.strftime("%a, %d %b %Y %H:%M:%S GMT")) <= 30


async def test_a_connection_that_is_lost_again_and_again_is_unavailable(fake, invoker):
    fake.script = [lost] * (RETRIES + 1)
    assert await refusal(invoker, FunctionUnavailable) == "invocation of 'nap' was lost: Server disconnected"


async def test_a_lambda_that_is_away_is_unavailable():
    async with closing(LambdaInvoker(PATIENCE, "http://127.0.0.1:1", lambda _: 0.0)) as invoker:
        assert (await refusal(invoker, FunctionUnavailable)).startswith("invocation of 'nap' was lost: Cannot connect to host")


async def test_an_invocation_that_takes_too_long_is_given_up_and_not_tried_again(fake):
    fake.script = [never]
    async with closing(LambdaInvoker(0.1, fake.url, lambda _: 0.0)) as invoker:
        assert await refusal(invoker, FunctionUnavailable) == "invocation of 'nap' was lost: no answer within 0.1 s"
    assert len(fake.requests) == 1


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"errorMessage": "division by zero", "errorType": "ZeroDivisionError"}', "division by zero"),
        (b'{"errorMessage": "", "errorType": "AssertionError"}', "AssertionError"),
        (b'{"errorMessage": "Task timed out after 3.00 seconds"}', "Task timed out after 3.00 seconds"),
        (b"null", "null"),
        (b"not\njson", "not json"),
    ],
)
async def test_an_error_of_the_function_is_not_tried_again_and_gives_its_message(fake, invoker, body, message):
    fake.script = [status(200, body, **{"X-Amz-Function-Error": "Unhandled"})]
    assert await refusal(invoker, FunctionFailed) == f"function 'nap' failed: {message}"
    assert len(fake.requests) == 1


async def test_other_refusals_are_unavailable_at_once(fake, invoker):
    fake.script = [status(403, b'{"Message": "not authorized to perform: lambda:InvokeFunction"}')]
    message = await refusal(invoker, FunctionUnavailable)
    assert message == "Lambda refuses to invoke 'nap': HTTP 403 not authorized to perform: lambda:InvokeFunction"


async def test_a_signed_request_is_not_redirected(fake, invoker):
    fake.script = [status(307, Location=fake.url)]
    assert await refusal(invoker, FunctionUnavailable) == "Lambda refuses to invoke 'nap': HTTP 307 "
    assert len(fake.requests) == 1


async def test_a_batch_beyond_lambdas_limit_is_too_large_without_asking(fake, invoker):
    size = PAYLOAD_LIMIT + 1
    assert await refusal(invoker, BatchTooLarge, b"x" * size) == f"a batch of {size} bytes; Lambda takes {PAYLOAD_LIMIT}"
    assert fake.requests == []


async def test_a_batch_that_lambda_finds_too_large_is_too_large(fake, invoker):
    fake.script = [status(413, b'{"Type": "User", "message": "Request must be smaller than 6291456 bytes"}')]
    assert await refusal(invoker, BatchTooLarge) == "Request must be smaller than 6291456 bytes"


async def test_an_answer_beyond_the_limit_is_too_large_and_one_within_it_arrives(fake, invoker):
    large = b'"' + b"x" * (LAMBDA_ANSWER_LIMIT - 2) + b'"'
    fake.script = [status(200, large + b" "), status(200, large)]
    assert await refusal(invoker, BatchTooLarge) == f"an answer of more than {LAMBDA_ANSWER_LIMIT} bytes"
    assert await invoker.invoke("nap", b"{}") == large


async def test_without_credentials_nothing_is_sent_and_they_are_found_when_they_come(fake, monkeypatch):
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    async with closing(LambdaInvoker(PATIENCE, fake.url)) as invoker:
        assert await refusal(invoker, FunctionUnavailable) == "no AWS credentials were found to sign the invocation with"
        assert fake.requests == []
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
        assert decode_answers(await invoker.invoke("nap", encode_batch(BATCH)), BATCH)


async def test_half_credentials_are_named(fake, monkeypatch):
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    async with closing(InvokerBySyntax(PATIENCE)) as invoker:
        message = await refusal(invoker, FunctionUnavailable)
    assert message == "'nap' cannot be invoked: Partial credentials found in env, missing: AWS_SECRET_ACCESS_KEY"


async def test_credentials_that_cannot_be_renewed_make_the_function_unavailable(fake, monkeypatch):
    def renew():
        raise CredentialRetrievalError(provider="role", error_msg="the metadata service is away")

    old = RefreshableCredentials(KEY, "old", "old", datetime.now(UTC) - timedelta(minutes=1), renew, "role")
    monkeypatch.setattr(botocore.session.Session, "get_credentials", lambda _: old)
    async with closing(LambdaInvoker(PATIENCE, fake.url)) as invoker:
        message = await refusal(invoker, FunctionUnavailable)
    assert message.startswith("no AWS credentials to sign the invocation with: Error when retrieving credentials from role")
    assert fake.requests == []


async def test_credentials_of_a_role_are_renewed_beside_the_loop(fake, monkeypatch):
    asked_in = []

    def renew():
        asked_in.append(threading.get_ident())
        expiry = (datetime.now(UTC) + timedelta(hours=1)).isoformat()
        return {"access_key": KEY, "secret_key": SECRET, "token": "new", "expiry_time": expiry}

    old = RefreshableCredentials(KEY, "old", "old", datetime.now(UTC) + timedelta(minutes=1), renew, "role")
    monkeypatch.setattr(botocore.session.Session, "get_credentials", lambda _: old)
    async with closing(LambdaInvoker(PATIENCE, fake.url)) as invoker:
        for _ in range(2):
            await invoker.invoke("nap", encode_batch(BATCH))
    assert [headers["X-Amz-Security-Token"] for _, headers in fake.requests] == ["new", "new"]
    assert len(asked_in) == 1 and asked_in != [threading.get_ident()]


def test_without_a_region_the_variable_is_named(monkeypatch):
    monkeypatch.delenv("AWS_REGION")
    with pytest.raises(InvalidInput, match=r"AWS_REGION: none was given; needed: the region of the functions"):
        LambdaInvoker(PATIENCE)


@pytest.mark.parametrize("name", ["AWS_REGION", "AWS_DEFAULT_REGION"])
async def test_region_and_endpoint_come_from_the_environment(fake, monkeypatch, name):
    monkeypatch.delenv("AWS_REGION")
    monkeypatch.setenv(name, REGION)
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", fake.url)
    async with closing(LambdaInvoker(PATIENCE)) as invoker:
        assert decode_answers(await invoker.invoke("nap", encode_batch(BATCH)), BATCH)


def test_retries_wait_a_random_part_of_a_span_that_doubles():
    random.seed(7)
    for retry in range(RETRIES):
        waits = [full_jitter(retry) / (BACKOFF * 2**retry) for _ in range(1000)]
        assert all(0 <= wait <= 1 for wait in waits)
        assert abs(statistics.fmean(waits) - 0.5) < 5 * 0.2887 / 1000**0.5  # the standard error of a uniform variable


# -- HTTP workers


@asynccontextmanager
async def sleeping_worker():
    """A worker that serves a no-op called nap, on a port of its own."""
    worker = HttpWorker([served(Sleeper("nap", 0, 0), constructors.greedy(1))])
    listener = listen("127.0.0.1", 0)
    await worker.start(listener)
    try:
        yield "http://{}:{}".format(*listener.getsockname())
    finally:
        await worker.stop(grace=5)


@asynccontextmanager
async def scripted(*answers):
    """A worker that answers as told, then is out of answers; its requests."""
    requests, left = [], list(answers)

    async def serve(request):
        await request.read()
        requests.append(request)
        return await left.pop(0)(request)

    runner = web.ServerRunner(web.Server(serve), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        yield "http://{}:{}/".format(*runner.addresses[0]), requests
    finally:
        await runner.cleanup()


@pytest.fixture
async def http():
    async with closing(HttpInvoker(PATIENCE)) as invoker:
        yield invoker


async def test_a_worker_answers_every_item_and_says_what_is_wrong(http):
    async with sleeping_worker() as url:
        answers = decode_answers(await http.invoke(url, encode_batch(BATCH)), BATCH)
        assert [(a.id, a.status, a.body) for a in answers] == [(i.id, 200, i.body) for i in BATCH.items]
        message = await refusal(http, UnknownFunction, function=url + "/nowhere")
        assert message.startswith(f"function: worker {url}/nowhere: HTTP 404 ")
        assert (await refusal(http, FunctionFailed, b"[1", url)).startswith(f"worker {url}: HTTP 400 not a batch: ")
        message = await refusal(http, FunctionUnavailable, function=url + "/health")
        assert message.startswith(f"worker {url}/health: HTTP 405 method: 'POST' is not allowed")


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *((code, FunctionFailed) for code in (400, 422, 500)),
        *((code, FunctionUnavailable) for code in (401, 403, 408, 502, 503, 504)),
        (429, FunctionBusy),
        (413, BatchTooLarge),
        (404, UnknownFunction),
    ],
)
async def test_the_status_of_a_worker_says_whether_a_smaller_batch_may_help(http, code, kind):
    async with scripted(status(code, b'{"detail": "for a reason"}')) as (url, requests):
        message = await refusal(http, kind, function=url)
    assert str(code) in message or kind is BatchTooLarge
    assert "for a reason" in message or kind is UnknownFunction
    assert len(requests) == 1


async def test_a_worker_that_moved_is_unknown_and_its_new_place_named(http):
    async with scripted(status(301, Location="https://elsewhere/")) as (url, _):
        assert await refusal(http, UnknownFunction, function=url) == f"function: '{url}' answers 301, it is at https://elsewhere/"


async def test_an_answer_that_finds_no_room_is_given_up_and_asked_for_later_and_nobody_else_is_asked():
    room = Room(300_000)
    half = asyncio.Event()

    async def slowly(request):
        response = web.StreamResponse()
        await response.prepare(request)
        await response.write(b"x" * 200_000)
        await half.wait()
        await response.write(b"x" * 50_000)
        return response

    async def large(request):
        return web.Response(body=b"x" * 200_000)

    async def too_large(request):
        return web.Response(body=b"x" * 300_001)

    answers = (slowly, large, large, too_large)
    async with scripted(*answers) as (url, requests), closing(HttpInvoker(PATIENCE, room=room)) as invoker:
        first = asyncio.create_task(invoker.invoke(url, b"{}"))
        async with asyncio.timeout(PATIENCE):
            while room.taken < 200_000:
                await asyncio.sleep(0.001)
        with pytest.raises(NoRoomForAnswer, match="hold 200000 of 300000 bytes") as caught:
            await invoker.invoke(f"{url},{url}again", b"{}")
        assert isinstance(caught.value, FunctionBusy) and not caught.value.worker and len(requests) == 2
        half.set()
        assert len(await first) == 250_000 and room.taken == 0
        assert len(await invoker.invoke(url, b"{}")) == 200_000
        with pytest.raises(BatchTooLarge, match="more than 300000 bytes"):
            await invoker.invoke(url, b"{}")
        assert room.taken == 0


async def test_a_worker_that_is_away_is_unavailable(http):
    message = await refusal(http, FunctionUnavailable, function="http://127.0.0.1:1")
    assert message.startswith("worker http://127.0.0.1:1 does not answer: Cannot connect to host 127.0.0.1:1")


@pytest.mark.parametrize("address", ["http://", "http://127.0.0.1:99999/"])
async def test_an_address_that_is_none_is_unavailable(http, address):
    assert (await refusal(http, FunctionUnavailable, function=address)).startswith(f"worker {address} does not answer: ")


async def test_a_worker_that_takes_too_long_is_given_up_and_not_asked_again():
    async with scripted(never) as (url, requests), closing(HttpInvoker(0.1)) as http:
        assert await refusal(http, FunctionUnavailable, function=url) == f"worker {url} does not answer within 0.1 s"
    assert len(requests) == 1


async def test_a_worker_that_says_when_to_come_again_is_busy_not_away(http):
    async with scripted(status(503, **{"Retry-After": "4"})) as (url, _):
        with pytest.raises(FunctionBusy) as caught:
            await http.invoke(url, b"{}")
    assert caught.value.retry_after == 4.0


async def test_a_connection_that_the_worker_closed_is_opened_again(http):
    async with scripted(status(200, b"{}"), lost, status(200, b"[]")) as (url, _):
        assert await http.invoke(url, b"{}") == b"{}"
        assert await http.invoke(url, b"{}") == b"[]"


async def test_of_several_connections_that_the_worker_closed_no_second_one_is_tried(http):
    connections, both = [], asyncio.Event()

    async def serve_one(reader, writer):
        connections.append(writer)
        await reader.readuntil(b"{}")
        if len(connections) < 2:
            await both.wait()
        both.set()
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}")
        await reader.read(1)  # the next request on this connection
        writer.transport.abort()

    server = await asyncio.start_server(serve_one, "127.0.0.1", 0)
    url = "http://{}:{}".format(*server.sockets[0].getsockname())
    assert await asyncio.gather(*(http.invoke(url, b"{}") for _ in range(2))) == [b"{}"] * 2
    assert await http.invoke(url, b"{}") == b"{}"
    assert len(connections) == 3
    server.close()


async def test_a_batch_that_kills_its_worker_is_not_sent_a_third_time_and_is_blamed(http):
    async with scripted(lost, lost, status(200)) as (url, requests):
        message = await refusal(http, FunctionCrashed, function=url)
    assert message == f"worker {url} breaks the connection: Server disconnected"
    assert len(requests) == 2


async def test_a_batch_after_which_nobody_takes_a_connection_has_killed_its_worker(http):
    async def die(reader, writer):
        await reader.readuntil(b"{}")
        dying.close()
        writer.transport.abort()

    dying = await asyncio.start_server(die, "127.0.0.1", 0)
    url = "http://{}:{}".format(*dying.sockets[0].getsockname())
    assert (await refusal(http, FunctionCrashed, function=url)).startswith(f"worker {url} breaks the connection: Cannot connect")
    assert (await refusal(http, FunctionUnavailable, function=url)).startswith(f"worker {url} does not answer: Cannot connect")


async def test_a_batch_that_killed_one_worker_is_not_given_to_the_next(http):
    """Though that one takes no connection any more, which of itself would be a reason to ask another."""

    async def die(reader, writer):
        await reader.readuntil(b"{}")
        dying.close()
        writer.transport.abort()

    dying = await asyncio.start_server(die, "127.0.0.1", 0)
    first = "http://{}:{}".format(*dying.sockets[0].getsockname())
    async with scripted() as (second, to_second):
        message = await refusal(http, FunctionCrashed, function=f"{first},{second}")
    assert message.startswith(f"worker {first} breaks the connection: Cannot connect") and to_second == []


async def test_an_answer_that_breaks_off_is_a_crash(http):
    async with scripted(cut_off) as (url, _):
        assert (await refusal(http, FunctionCrashed, function=url)).startswith(f"worker {url} breaks off its answer: ")


async def test_an_answer_beyond_the_limit_is_not_taken_into_memory(http, monkeypatch):
    monkeypatch.setattr("sluice.buffer_service.invokers.http_workers.WORKER_ANSWER_LIMIT", 1000)
    async with scripted(status(200, b"x" * 1000), status(200, b"x" * 1001)) as (url, _):
        assert len(await http.invoke(url, b"{}")) == 1000
        assert await refusal(http, BatchTooLarge, function=url) == "an answer of more than 1000 bytes"


async def test_answers_are_not_compressed_where_the_worker_would(http):
    async def compressing(_):
        response = web.Response(body=b"x" * 10_000)
        response.enable_compression()
        return response

    async with scripted(compressing) as (url, _):
        assert await http.invoke(url, b"{}") == b"x" * 10_000


async def test_of_several_workers_the_one_with_the_fewest_batches_in_flight_is_asked_and_of_equals_the_one_asked_longest_ago(http):
    gate = asyncio.Event()

    async def held(_):
        await gate.wait()
        return web.Response(body=b"held")

    async with scripted(held, status(200, b"a")) as (a, to_a), scripted(*[status(200, b"b")] * 2) as (b, to_b):
        first = asyncio.create_task(http.invoke(f"{a},{b}", b"{}"))
        while not to_a:
            await asyncio.sleep(0)
        assert [await http.invoke(f"{a},{b}", b"{}") for _ in range(2)] == [b"b", b"b"]
        gate.set()
        assert await first == b"held"
        assert await http.invoke(f"{a},{b}", b"{}") == b"a"
        assert (len(to_a), len(to_b)) == (2, 2)


async def test_a_worker_that_was_alone_and_has_a_batch_is_not_asked_when_another_comes_beside_it(http):
    """As when a plan gives a route a second worker: one of two batches would wait for the other."""
    gate = asyncio.Event()

    async def held(_):
        await gate.wait()
        return web.Response(body=b"held")

    async with scripted(held, status(200, b"a")) as (a, to_a), scripted(status(200, b"b")) as (b, _):
        first = asyncio.create_task(http.invoke(a, b"{}"))
        while not to_a:
            await asyncio.sleep(0)
        assert await http.invoke(f"{a},{b}", b"{}") == b"b"
        gate.set()
        assert await first == b"held"
        assert await http.invoke(f"{a},{b}", b"{}") == b"a"


async def test_a_worker_that_is_slow_beside_the_others_is_told_and_asked_last(http, caplog):
    def answers(seconds):
        async def answer(_):
            await asyncio.sleep(seconds)
            return web.Response(body=encode_answers([Answer("1", 200, JSON, b"1")]))

        return [answer] * 140

    batch = Batch("m", [Item(id="1", content_type=JSON, body=b"1")])
    async with scripted(*answers(0.04)) as (a, to_a), scripted(*answers(0.005)) as (b, _), scripted(*answers(0.005)) as (c, _):
        for _ in range(140):
            await http.ask(f"{a},{b},{c}", batch)
        assert http.health(f"{a},{b},{c}")[a].pace > 1.5
    assert len(to_a) <= FEWEST + 3
    assert [record for record in caplog.records if f"worker {a} is slow" in record.getMessage()]


async def test_while_a_worker_is_ejected_the_others_have_one_batch_each_as_with_it(monkeypatch):
    by_syntax = InvokerBySyntax(PATIENCE)
    monkeypatch.setattr(worker_health, "FIRST_EJECTION", 60.0)
    at_work, most = [0, 0], [0, 0]

    @asynccontextmanager
    async def worker(number):
        async def answer(request):
            batch = decode_batch(await request.read())
            at_work[number] += 1
            most[number] = max(most[number], at_work[number])
            await asyncio.sleep(0.005)
            at_work[number] -= 1
            return web.Response(body=encode_answers([Answer(item.id, 200, JSON, item.body) for item in batch.items]))

        async with scripted(*[answer] * 100) as (url, _):
            yield url

    async with worker(0) as a, worker(1) as b:
        async with scripted() as (dead, _):
            pass  # last, so that neither of the others has its port
        function = f"{dead},{a},{b}"
        plans = Plans(Plan(model="m", function=function, policy=PolicyDocument.of(constructors.greedy(2, servers=3))))
        assert by_syntax.worker_pool(function) == (3, [], 0)
        assert by_syntax.worker_pool(a) is None and by_syntax.worker_pool("mlp:live") is None
        async with serving(None, None, None, plans, by_syntax) as buffer:
            for _ in range(20):
                await asyncio.gather(*(buffer.post("/models/m", b"1") for _ in range(6)))
            most[:] = 0, 0
            answers = await asyncio.gather(*(buffer.post("/models/m", b"%d" % i) for i in range(60)))
        [tried_in] = by_syntax.worker_pool(function).tried_in
    assert [(status, body) for status, _, body in answers] == [(200, b"%d" % i) for i in range(60)]
    assert most == [1, 1] and tried_in > 30


async def test_of_equally_idle_workers_the_one_that_failed_last_is_asked_last(http):
    async with scripted(status(500), status(200, b"a")) as (a, _), scripted(status(200, b"b")) as (b, _):
        await refusal(http, FunctionFailed, function=f"{a},{b}")
        assert await http.invoke(f"{a},{b}", b"{}") == b"b"


async def test_the_worker_that_failed_a_batch_is_named_and_avoided_and_ejected_when_another_answers_what_it_fails():
    ejected, gate = [], asyncio.Event()

    async def held(_):
        await gate.wait()
        return web.Response(body=b"held")

    async with (
        scripted(*[status(500)] * EJECT_AFTER) as (a, to_a),
        scripted(held, *[status(200, b"b")] * 9) as (b, to_b),
        closing(HttpInvoker(PATIENCE, ejected.append)) as http,
    ):
        both = f"{a},{b}"
        busy = asyncio.create_task(http.invoke(b + "," + a, b"{}"))
        while not to_b:
            await asyncio.sleep(0)
        for _ in range(EJECT_AFTER):
            with pytest.raises(FunctionFailed) as caught:
                await http.invoke(both, b"{}")
            assert caught.value.worker == a
            assert await http.invoke(both, b"{}", avoid=a) == b"b"
        assert ejected == [a]
        assert [await http.invoke(both, b"{}") for _ in range(3)] == [b"b"] * 3
        gate.set()
        await busy
    assert (len(to_a), len(to_b)) == (EJECT_AFTER, 1 + EJECT_AFTER + 3)


async def test_one_worker_alone_is_asked_whatever_it_did(http):
    async with scripted(*[status(502)] * 5, status(200, b"a")) as (a, _):
        for _ in range(5):
            with pytest.raises(FunctionUnavailable) as caught:
                await http.invoke(a, b"{}")
            assert caught.value.worker == ""
        assert await http.invoke(a, b"{}") == b"a"


async def test_a_worker_that_is_gone_is_passed_over_and_with_all_gone_the_last_is_named(http):
    gone = "http://127.0.0.1:1"
    async with scripted(*[status(200, b"{}")] * 3) as (url, requests):
        for _ in range(3):
            assert await http.invoke(f"{gone},{url}", b"{}") == b"{}"
    assert len(requests) == 3
    message = await refusal(http, FunctionUnavailable, function=f"{gone},{gone}/")
    assert re.match(f"worker {gone}/? does not answer: Cannot connect to host 127.0.0.1:1", message)


async def test_a_batch_that_one_worker_may_have_computed_is_not_given_to_another_but_by_who_knows_whether_it_is_waited_for(http):
    async with scripted(lost, lost) as (a, _), scripted() as (b, to_b):
        message = await refusal(http, FunctionCrashed, function=f"{a},{b}")
    assert message == f"worker {a} breaks the connection: Server disconnected"
    assert to_b == []


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("http://a,,http://b", "function: '' in 'http://a,,http://b' is not allowed; "),
        ("http://a, http://b", "function: ' http://b' in 'http://a, http://b' is not allowed; "),
        ("http://a,nap", "function: 'nap' in 'http://a,nap' is not allowed; "),
        ("http://a/?x=1,2", "function: '2' in 'http://a/?x=1,2' is not allowed; "),
        ("http://a,http://a", "function: 'http://a' is named twice in 'http://a,http://a'; allowed: each worker once"),
    ],
)
async def test_a_list_that_does_not_name_workers_is_unknown(http, function, message):
    if message.endswith("; "):
        message += "allowed: http:// or https:// addresses with commas between; a comma within one is %2C"
    assert await refusal(http, UnknownFunction, function=function) == message


# -- the others


async def test_a_callable_is_a_function():
    async def echo(payload):
        return payload

    invoker = LocalInvoker({"echo": echo})
    assert await invoker.invoke("echo", b"payload") == b"payload"
    assert await refusal(invoker, UnknownFunction, function="none") == "function: 'none' does not exist"
    await invoker.close()


def test_a_buffer_is_without_the_libraries_of_aws_and_of_tokens_until_it_needs_them():
    script = "import sys, sluice.buffer_service.app; print(*sys.modules.keys() & {'boto3', 'botocore', 'joserfc'})"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() == []


async def test_the_syntax_of_the_function_chooses_the_way(fake, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", fake.url)
    async with sleeping_worker() as url, closing(InvokerBySyntax(PATIENCE)) as invoker:
        assert decode_answers(await invoker.invoke(url, encode_batch(MANY)), MANY)
        assert fake.requests == []
        opened = []
        monkeypatch.setattr(
            "sluice.buffer_service.invokers.aws_lambda.LambdaInvoker",
            lambda timeout, room: opened.append(LambdaInvoker(timeout, room=room)) or opened[-1],
        )
        payloads = await asyncio.gather(*(invoker.invoke("nap:live", encode_batch(MANY)) for _ in range(3)))
        assert all(decode_answers(payload, MANY) for payload in payloads)
        assert (len(fake.requests), len(opened)) == (3, 1)


async def test_a_worker_needs_no_aws_and_a_lambda_function_without_it_is_unavailable(monkeypatch):
    monkeypatch.delenv("AWS_REGION")
    async with scripted(status(200, b"{}")) as (url, _), closing(InvokerBySyntax(PATIENCE)) as invoker:
        assert await invoker.invoke(url, b"{}") == b"{}"
        message = await refusal(invoker, FunctionUnavailable)
        assert message.startswith("'nap' cannot be invoked: AWS_REGION: none was given")


async def test_closing_what_was_never_used_is_allowed():
    for invoker in (LambdaInvoker(PATIENCE), HttpInvoker(PATIENCE), InvokerBySyntax(PATIENCE)):
        await invoker.close()


async def test_a_password_in_the_address_of_a_worker_is_told_nobody(http):
    async with scripted(status(500, b"x"), status(302), status(404), lost, lost) as (url, _):
        secret = url.replace("//", "//user:secret@")
        for kind in (FunctionFailed, UnknownFunction, UnknownFunction):
            message = await refusal(http, kind, function=secret)
            assert "secret" not in message and "//***@" in message
        assert "secret" not in await refusal(http, FunctionCrashed, function=secret)
    assert "secret" not in await refusal(http, FunctionUnavailable, function=secret)


async def test_a_process_without_descriptors_takes_no_worker_for_gone(http):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))  # those that are open stay so
    try:
        message = await refusal(http, FunctionBusy, function="http://127.0.0.1:1")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert message == "worker http://127.0.0.1:1 cannot be connected to: Too many open files"


# -- the format of a batch


class Version:
    """A worker over sockets that may be replaced by an earlier or a later one; ``formats`` of what it was sent."""

    def __init__(self, takes_frames):
        self.takes_frames, self.formats = takes_frames, []

    async def __call__(self, request):
        data = await request.read()
        self.formats.append("frames" if batch_frames.is_framed(data) else "json")
        told = {"accept": batch_frames.TAKES} if self.takes_frames else {}
        assert request.content_type == (JSON if self.formats[-1] == "json" else batch_frames.MEDIA_TYPE.partition(";")[0])
        try:
            batch = (batch_frames.decode_batch if self.takes_frames else decode_batch)(data)
        except WireError:
            return web.Response(status=400, headers=told)
        if batch.describe:
            return web.Response(body=encode_metadata({"name": "nap"}), headers=told)
        answers = [Answer(item.id, 200, item.content_type, item.body) for item in batch.items]
        if self.formats[-1] == "frames":
            return web.Response(body=b"".join(batch_frames.encode_answers(answers)), headers=told)
        return web.Response(body=encode_answers(answers), headers=told)


async def asked(invoker, function):
    """The bodies of the answers to a batch."""
    answers, _, _ = await invoker.ask(function, BATCH)
    return [answer.body for answer in answers]


BODIES = [item.body for item in BATCH.items]


async def test_a_worker_that_names_frames_is_asked_in_them_and_one_that_does_not_is_asked_in_json(http):
    old, new = Version(False), Version(True)
    async with scripted(*[old] * 3) as (first, _), scripted(*[new] * 4) as (second, _):
        for url in (first, first, first, second, second):
            assert await asked(http, url) == BODIES
        assert await http.invoke(second, encode_batch(BATCH)) == encode_answers(
            [Answer(item.id, 200, item.content_type, item.body) for item in BATCH.items]
        )
        assert await asked(http, second) == BODIES
    assert (old.formats, new.formats) == (["json"] * 3, ["json", "frames", "json", "frames"])


async def test_what_a_worker_takes_is_known_from_what_it_says_of_its_model(http):
    new = Version(True)
    async with scripted(new, new) as (url, _):
        assert (await describe("nap", url, http))["name"] == "nap"
        assert await asked(http, url) == BODIES
    assert new.formats == ["json", "frames"]


async def test_a_worker_may_be_replaced_by_an_earlier_and_a_later_one_while_batches_come(http):
    worker = Version(True)
    async with scripted(*[worker] * 8) as (url, _):
        for takes_frames in (True, True, False, False, True, True):
            worker.takes_frames = takes_frames
            assert await asked(http, url) == BODIES
    assert worker.formats == ["json", "frames", "frames", "json", "json", "json", "frames"]


async def test_of_several_workers_each_is_asked_in_its_format(http):
    old, new = Version(False), Version(True)
    async with scripted(*[old] * 2) as (first, _), scripted(*[new] * 3) as (second, _):
        assert await asked(http, second) == BODIES
        for avoided in (first, second, first):
            answers, _, _ = await http.ask(f"{first},{second}", BATCH, avoided)
            assert [answer.body for answer in answers] == BODIES
    assert (old.formats, new.formats) == (["json"], ["json", "frames", "frames"])


async def test_a_batch_in_frames_that_is_refused_for_what_it_is_is_not_sent_again(http):
    new = Version(True)

    async def refuses(request):
        await new(request)
        return web.Response(status=400, body=b'{"detail": "no"}', headers={"accept": batch_frames.TAKES})

    async with scripted(new, refuses) as (url, requests):
        await asked(http, url)
        with pytest.raises(FunctionFailed, match="HTTP 400 no"):
            await http.ask(url, BATCH)
        assert len(requests) == 2
    assert new.formats == ["json", "frames"]


@pytest.mark.parametrize("said", [b"<html>", b'{"version": 1, "responses": []}', encode_answers([Answer("x", 200, JSON, b"1")])])
async def test_a_worker_whose_answer_is_none_has_failed_is_avoided_and_ejected(said):
    ejected = []
    bad_answers, good_answers = [status(200, said)] * 9, [Version(False)] * 9
    async with (
        scripted(*bad_answers) as (bad, _),
        scripted(*good_answers) as (good, _),
        closing(HttpInvoker(PATIENCE, ejected.append)) as http,
    ):
        both = f"{bad},{good}"
        for _ in range(3):
            with pytest.raises(UnreadableAnswer) as caught:
                await http.ask(both, BATCH, good)  # as a batch that the other one failed
            assert caught.value.worker == bad and str(caught.value).startswith(f"worker {bad}: ") and ejected == []
        for times in range(3):
            answers, _, _ = await http.ask(both, BATCH, bad)
            assert [answer.body for answer in answers] == BODIES and len(ejected) == (times == 2)
        assert ejected == [bad] and http.health(both)[bad].tried_in > 0
        with pytest.raises(UnreadableAnswer):
            await http.ask(bad, BATCH)  # which is alone here


async def test_what_is_known_of_workers_is_bounded(http, monkeypatch):
    monkeypatch.setattr("sluice.buffer_service.invokers.http_workers.MOST_KNOWN", 2)
    async with scripted(*[Version(True)] * 3) as (url, _):
        for path in "abc":
            await asked(http, url + path)
        assert http._framed == {url + "c"}


async def test_the_worker_of_this_package_answers_in_the_format_that_it_is_asked_in(fake, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_LAMBDA", fake.url)
    framed, decode = [], port.decode_measured_answers

    def decoded(payload, batch):
        framed.append(batch_frames.is_framed(payload))
        return decode(payload, batch)

    monkeypatch.setattr(port, "decode_measured_answers", decoded)
    async with sleeping_worker() as url, closing(InvokerBySyntax(PATIENCE)) as invoker:
        for _ in range(2):
            answers, measured, size = await invoker.ask(url, BATCH)
            assert [answer.body for answer in answers] == BODIES and measured.service >= 0 and size > 0
        assert framed == [False, True]
        other = Batch("other", BATCH.items)
        answers, _, _ = await invoker.ask(url, other)
        assert [answer.status for answer in answers] == [404, 404]
        empty = await invoker.ask(url, Batch("nap", []))
        assert framed[-1] and empty.answers == []
        assert await asked(invoker, "nap") == BODIES  # Lambda is asked in JSON
