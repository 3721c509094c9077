"""AWS as tests need it: an API in one process that checks its callers' signatures, credentials, answers that go wrong."""

import asyncio
import hashlib
import hmac
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl, quote

import msgspec
import pytest
from aiohttp import web

from sluice.batching.errors import FunctionFailed
from sluice.lambda_fn.contract import decode_batch, encode_answers
from sluice.lambda_fn.models.base import answer
from sluice.lambda_fn.models.sleeper import Sleeper
from sluice.local.functions import REGION

KEY, SECRET = "AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"


class Refused(Exception):
    """What the fake Lambda answers instead of invoking."""

    def __init__(self, status, kind, message):
        self.status, self.kind, self.message = status, kind, message


class SignedApi:
    """An API of AWS in one process, which refuses a request that is not signed for ``service`` as AWS asks for.

    ``script`` answers the next requests before ``answer`` of a subclass does; ``requests`` are the paths and headers of all.
    """

    service = ""

    def __init__(self):
        self.requests, self.script = [], []
        self.url = ""

    async def __aenter__(self):
        self._runner = web.ServerRunner(web.Server(self._serve), shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = "http://{}:{}".format(*self._runner.addresses[0])
        return self

    async def __aexit__(self, *_):
        await self._runner.cleanup()

    async def _serve(self, request):
        payload = await request.content.read()
        self.requests.append((request.raw_path, request.headers))
        try:
            check_signature(request, payload, self.service)
            if self.script:
                return await self.script.pop(0)(request)
            return self.answer(request.raw_path, payload)
        except Refused as refusal:
            body = {"Type": "User", "message": refusal.message}
            headers = {"x-amzn-ErrorType": refusal.kind}
            return web.Response(body=msgspec.json.encode(body), status=refusal.status, headers=headers)


def check_signature(request, payload, service):
    """Signature Version 4 over what really arrived, as the IAM User Guide says ("Create a signed AWS API request")."""
    algorithm, _, fields = request.headers["Authorization"].partition(" ")
    given = dict(field.split("=", 1) for field in fields.split(", "))
    key, day, region, named, end = given["Credential"].split("/")
    assert (algorithm, key, region, named, end) == ("AWS4-HMAC-SHA256", KEY, REGION, service, "aws4_request")
    assert {"host", "x-amz-date"} <= set(given["SignedHeaders"].split(";"))
    path, _, query = request.raw_path.partition("?")
    canonical = [
        request.method,
        quote(path, safe="/-_.~"),
        "&".join(sorted(f"{quote(k, safe='-_.~')}={quote(v, safe='-_.~')}" for k, v in parse_qsl(query))),
        *(f"{name}:{request.headers[name].strip()}" for name in given["SignedHeaders"].split(";")),
        "",
        given["SignedHeaders"],
        hashlib.sha256(payload).hexdigest(),
    ]
    moment = request.headers["X-Amz-Date"]
    assert moment.startswith(day)
    scope = f"{day}/{region}/{service}/{end}"
    text = "\n".join([algorithm, moment, scope, hashlib.sha256("\n".join(canonical).encode()).hexdigest()])
    signing = b"AWS4" + SECRET.encode()
    for part in (day, region, service, end, text):
        signing = hmac.digest(signing, part.encode(), "sha256")
    if signing.hex() != given["Signature"]:
        raise Refused(403, "InvalidSignatureException", "The request signature we calculated does not match the one you provided.")


def status(code, body=b"", **headers):
    """A scripted answer."""

    async def answer(_):
        return web.Response(status=code, body=body, headers=headers)

    return answer


async def lost(request):
    request.transport.abort()
    return web.Response()


async def cut_off(request):
    response = web.StreamResponse(headers={"Content-Length": "100"})
    await response.prepare(request)
    await response.write(b"half an ans")
    request.transport.abort()
    return response


async def never(_):
    await asyncio.Event().wait()


def nap(payload):
    """What a function of the model ``nap`` answers: every request, with what it asks."""
    return encode_answers(answer(Sleeper("nap", 0, 0), decode_batch(payload)))


async def refusal(invoker, kind, payload=b"{}", function="nap"):
    """The message of the error that an invocation raises; exactly of that kind."""
    with pytest.raises(FunctionFailed) as caught:
        await invoker.invoke(function, payload)
    assert type(caught.value) is kind, caught.value
    return str(caught.value)


@asynccontextmanager
async def closing(invoker):
    try:
        yield invoker
    finally:
        await invoker.close()
