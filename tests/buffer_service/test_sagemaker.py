"""The way to an endpoint of SageMaker: a stub of its contract that checks signatures."""

import json
from functools import partial

import pytest
from aiohttp import web

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument
from sluice.batching.errors import FunctionFailed, InvalidInput
from sluice.buffer_service.invokers import (
    BatchTooLarge,
    FunctionBusy,
    FunctionUnavailable,
    InvokerBySyntax,
    UnknownFunction,
)
from sluice.buffer_service.invokers.aws_api import RETRIES
from sluice.buffer_service.invokers.sagemaker import ENDPOINT_LIMIT, SageMakerInvoker
from sluice.lambda_fn.contract import Batch, Item, decode_answers, encode_batch
from tests.buffer_service import aws_fakes
from tests.buffer_service.aws_fakes import Refused, SignedApi, closing, lost, nap, status
from tests.buffer_service.conftest import Plans, serving

pytestmark = pytest.mark.usefixtures("aws_environment", "botocore_reads_its_data_once")

PATIENCE = 10.0
refusal = partial(aws_fakes.refusal, function="sagemaker://nap")
BATCH = Batch("nap", [Item("r1", "application/json", b'{"x":1}'), Item("r2", "application/octet-stream", b"\x00\xff")])


class FakeSageMaker(SignedApi):
    """InvokeEndpoint: containers are callables by the name of their endpoint, or ``name/variant``."""

    service = "sagemaker"

    def __init__(self, containers):
        super().__init__()
        self.containers = containers

    def answer(self, raw_path, payload):
        _, root, name, end = raw_path.split("/")
        assert (root, end) == ("endpoints", "invocations")
        _, headers = self.requests[-1]
        assert headers["Content-Type"] == headers["Accept"] == "application/json"
        variant = headers.get("X-Amzn-SageMaker-Target-Variant")
        if name not in {known.partition("/")[0] for known in self.containers}:
            raise Refused(400, "ValidationError", f"Endpoint {name} of account 000000000000 not found.")
        container = self.containers.get(f"{name}/{variant}" if variant else name)
        if container is None:
            raise Refused(400, "ValidationError", f"Could not find variant {variant} of endpoint {name}.")
        code, body = container(payload)
        if code == 200:
            return web.Response(body=body)
        document = {
            "ErrorCode": "CLIENT_ERROR_FROM_MODEL",
            "LogStreamArn": "arn:aws:logs:us-east-1:0:log-group:/aws/sagemaker/Endpoints/nap",
            "Message": f'Received client error ({code}) from primary with message "{body.decode()}".',
            "OriginalMessage": body.decode(),
            "OriginalStatusCode": code,
        }
        return web.Response(status=424, body=json.dumps(document), headers={"x-amzn-ErrorType": "ModelError"})


def container(payload):
    return 200, nap(payload)


@pytest.fixture
async def fake():
    async with FakeSageMaker({"nap": container, "nap/blue": container}) as api:
        yield api


@pytest.fixture
async def invoker(fake):
    async with closing(SageMakerInvoker(PATIENCE, fake.url, lambda _: 0.0)) as invoker:
        yield invoker


@pytest.mark.parametrize("function", ["sagemaker://nap", "sagemaker://nap/blue"])
async def test_an_endpoint_and_a_variant_of_it_answer_every_item(invoker, function):
    answers = decode_answers(await invoker.invoke(function, encode_batch(BATCH)), BATCH)
    assert [(a.id, a.status, a.body) for a in answers] == [(i.id, 200, i.body) for i in BATCH.items]


@pytest.mark.parametrize("name", ["away", "nap/green"])
async def test_an_endpoint_or_variant_that_does_not_exist_is_unknown(invoker, name):
    message = await refusal(invoker, UnknownFunction, function=f"sagemaker://{name}")
    assert message.startswith(f"function: 'sagemaker://{name}' does not exist: ")


async def test_an_endpoint_the_role_may_not_invoke_is_to_it_one_that_does_not_exist(fake, invoker):
    denied = status(403, b'{"Message": "no identity-based policy allows it"}', **{"x-amzn-ErrorType": "AccessDeniedException"})
    fake.script = [denied]
    assert "may not be invoked: no identity-based policy" in await refusal(invoker, UnknownFunction)


async def test_a_wrong_secret_is_refused_and_makes_the_endpoint_unavailable(fake, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "another")
    async with closing(SageMakerInvoker(PATIENCE, fake.url)) as invoker:
        assert "signature" in await refusal(invoker, FunctionUnavailable)


@pytest.mark.parametrize("code", [429, 500, 503, 530])
async def test_what_passes_by_itself_is_busy_and_says_when_to_come_again(fake, invoker, code):
    fake.script = [status(code, b'{"Message": "Rate exceeded"}', **{"Retry-After": "3"})]
    with pytest.raises(FunctionBusy, match=f"SageMaker refuses to invoke 'sagemaker://nap': HTTP {code} Rate exceeded") as caught:
        await invoker.invoke("sagemaker://nap", b"{}")
    assert caught.value.retry_after == 3.0


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        *((code, FunctionFailed) for code in (400, 422, 500)),
        *((code, FunctionUnavailable) for code in (0, 502, 503, 504)),
        (429, FunctionBusy),
        (413, BatchTooLarge),
        (404, UnknownFunction),
    ],
)
async def test_the_status_of_the_container_says_whether_a_smaller_batch_may_help(fake, invoker, code, kind):
    fake.containers["nap"] = lambda _: (code, b"said so")
    message = await refusal(invoker, kind)
    assert "the container of 'sagemaker://nap'" in message and "said so" in message


@pytest.mark.parametrize("body", [b"not JSON", b"[]", b'{"OriginalStatusCode": "500", "OriginalMessage": 3}', b"{}"])
async def test_an_error_of_the_container_in_another_shape_is_its_failure(fake, invoker, body):
    fake.script = [status(424, body)]
    assert (await refusal(invoker, FunctionFailed)).startswith("the container of 'sagemaker://nap': ")


async def test_a_batch_beyond_the_limit_is_too_large_without_asking(fake, invoker):
    await refusal(invoker, BatchTooLarge, b"x" * (ENDPOINT_LIMIT + 1))
    assert fake.requests == []


@pytest.mark.parametrize(
    "refused",
    [
        status(413, b""),
        status(400, b'{"Message": "Value at \'body\' failed to satisfy constraint: length less than or equal to 6291456"}'),
    ],
    ids=["413", "400"],
)
async def test_a_batch_that_sagemaker_finds_too_large_is_too_large(fake, invoker, refused):
    fake.script = [refused]
    await refusal(invoker, BatchTooLarge)


async def test_other_refusals_are_unavailable_at_once(fake, invoker):
    fake.script = [status(400, b'{"Message": "Endpoint nap is not in service"}')]
    assert "is not in service" in await refusal(invoker, FunctionUnavailable)
    assert len(fake.requests) == 1


async def test_a_connection_that_is_lost_is_opened_again_and_in_the_end_given_up(fake, invoker):
    fake.script = [lost] * RETRIES
    assert decode_answers(await invoker.invoke("sagemaker://nap", encode_batch(BATCH)), BATCH)
    fake.script = [lost] * (RETRIES + 1)
    assert "was lost" in await refusal(invoker, FunctionUnavailable)


@pytest.mark.parametrize("name", ["", "-nap", "a" * 64, "nap_1", "nap/", "nap/blue/green", "nap,sagemaker://nip"])
def test_a_name_that_is_no_endpoints_is_refused_in_a_plan(name):
    with pytest.raises(InvalidInput, match="function: .*sagemaker://ENDPOINT"):
        Plan(model="nap", function=f"sagemaker://{name}", policy=PolicyDocument.of(constructors.greedy(4)))


async def test_a_plan_is_served_by_an_endpoint(fake, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER_RUNTIME", fake.url)
    table = PolicyDocument.of(constructors.greedy(4))
    async with closing(InvokerBySyntax(PATIENCE)) as invoker:
        plans = Plans(Plan(model="nap", function="sagemaker://nap", policy=table))
        async with serving(None, None, plans=plans, invoker=invoker) as buffer:
            code, _, body = await buffer.post("/models/nap", b"7")
            assert (code, body) == (200, b"7")
