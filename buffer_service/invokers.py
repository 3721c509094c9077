"""The ways to a function: AWS Lambda, an HTTP worker, a Python callable. Bytes of the wire contract in, bytes out.

Which one serves is written in a plan's ``function``: an ``http://`` or ``https://`` address is a worker, anything else is a Lambda
function. What an invoker raises says what helps:

    FunctionUnavailable    no answer came, and no item is to blame: the whole batch fails, splitting it would not help
    UnknownFunction        the plan is wrong
    BatchTooLarge          a smaller batch may pass
    FunctionFailed         the function ran and failed: a smaller batch may pass, for one item may be the culprit
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol
from urllib.parse import quote

import aiohttp
import botocore.session
import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest

from batching.errors import FunctionFailed, InvalidInput

LAMBDA_PAYLOAD_LIMIT = 6 * 1024 * 1024  # bytes of a synchronous invocation, each way
RETRIES = 5
BACKOFF = 0.05  # seconds; the n-th retry waits a random part of BACKOFF * 2**n


class FunctionUnavailable(FunctionFailed):
    """The platform refused and went on refusing, or the answer was lost on the way."""


class BatchTooLarge(FunctionFailed):
    """The payload, or the answer, is larger than the platform carries."""


class UnknownFunction(FunctionFailed):
    """There is no function of that name."""


class Invoker(Protocol):
    """A way to a function."""

    async def invoke(self, function: str, payload: bytes) -> bytes:
        """The function's answer to ``payload``."""

    async def close(self) -> None:
        """Release connections."""


class LambdaInvoker:
    """AWS Lambda's Invoke API: requests signed by botocore, sent by an asynchronous client.

    Endpoint, region and credentials are found as botocore finds them (``AWS_ENDPOINT_URL_LAMBDA``, ``AWS_REGION``, profiles,
    roles); credentials are asked for at every call, so that a role's are refreshed.
    """

    def __init__(self, timeout: float, endpoint_url: str | None = None) -> None:
        session = botocore.session.get_session()
        client = session.create_client("lambda", endpoint_url=endpoint_url, region_name=_region(session))
        self._endpoint = client.meta.endpoint_url.rstrip("/")
        self._region = client.meta.region_name
        self._credentials = session.get_credentials()
        self._timeout = timeout
        self._http: aiohttp.ClientSession | None = None

    async def invoke(self, function: str, payload: bytes) -> bytes:
        if len(payload) > LAMBDA_PAYLOAD_LIMIT:
            raise BatchTooLarge(f"a batch of {len(payload)} bytes; Lambda takes {LAMBDA_PAYLOAD_LIMIT}")
        name, _, alias = function.rpartition(":") if ":" in function and not function.startswith("arn:") else (function, "", "")
        url = f"{self._endpoint}/2015-03-31/functions/{quote(name, safe='')}/invocations" + (f"?Qualifier={alias}" if alias else "")
        for attempt in range(RETRIES + 1):
            try:
                status, headers, body = await self._post(url, payload)
            except (aiohttp.ClientConnectionError, TimeoutError) as error:
                raise FunctionUnavailable(f"invocation of {function!r} was lost: {error or type(error).__name__}") from error
            if status == 429 or status >= 500:
                if attempt == RETRIES:
                    raise FunctionUnavailable(f"Lambda refuses to invoke {function!r}: HTTP {status} {_message(body)}")
                await asyncio.sleep(random.uniform(0, BACKOFF * 2**attempt))
                continue
            if status == 404:
                raise UnknownFunction(f"function: {function!r} does not exist: {_message(body)}")
            if status == 413:
                raise BatchTooLarge(_message(body))
            if status >= 400:
                raise FunctionUnavailable(f"Lambda refuses to invoke {function!r}: HTTP {status} {_message(body)}")
            if "X-Amz-Function-Error" in headers:
                raise FunctionFailed(f"function {function!r} failed: {_message(body)}")
            return body
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def _post(self, url: str, payload: bytes) -> tuple[int, Mapping[str, str], bytes]:
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout)
            self._http = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        request = AWSRequest("POST", url, data=payload, headers={"Content-Type": "application/json"})
        if self._credentials is None:
            raise FunctionUnavailable("no AWS credentials were found to sign the invocation with")
        SigV4Auth(self._credentials.get_frozen_credentials(), "lambda", self._region).add_auth(request)
        async with self._http.post(url, data=payload, headers=dict(request.headers)) as response:
            return response.status, response.headers, await response.read()


class HttpInvoker:
    """A worker that takes the batch document by POST (``lambda_fn/worker.py``, or anything that speaks the contract)."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._http: aiohttp.ClientSession | None = None

    async def invoke(self, function: str, payload: bytes) -> bytes:
        if self._http is None:
            timeout = aiohttp.ClientTimeout(total=self._timeout)
            self._http = aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0), auto_decompress=False)
        try:
            async with self._http.post(function, data=payload, headers={"Content-Type": "application/json"}) as response:
                body = await response.read()
        except (aiohttp.ClientError, TimeoutError) as error:
            raise FunctionUnavailable(f"worker {function} does not answer: {error or type(error).__name__}") from error
        if response.status == 404:
            raise UnknownFunction(f"function: {function!r} answers 404")
        if response.status == 413:
            raise BatchTooLarge(f"worker {function}: {_message(body)}")
        if response.status in (429, 502, 503, 504):
            raise FunctionUnavailable(f"worker {function}: HTTP {response.status} {_message(body)}")
        if response.status != 200:
            raise FunctionFailed(f"worker {function}: HTTP {response.status} {_message(body)}")
        return body

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()


class LocalInvoker:
    """Python callables by function name: the public fake, and the function in-process where that is wanted."""

    def __init__(self, functions: Mapping[str, Callable[[bytes], Awaitable[bytes]]]) -> None:
        self._functions = functions

    async def invoke(self, function: str, payload: bytes) -> bytes:
        if function not in self._functions:
            raise UnknownFunction(f"function: {function!r} does not exist")
        return await self._functions[function](payload)

    async def close(self) -> None:
        return None


class InvokerBySyntax:
    """Chooses by what ``function`` looks like; each way is opened when it is first needed."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lambda: LambdaInvoker | None = None
        self._http = HttpInvoker(timeout)

    async def invoke(self, function: str, payload: bytes) -> bytes:
        if function.startswith(("http://", "https://")):
            return await self._http.invoke(function, payload)
        if self._lambda is None:
            self._lambda = LambdaInvoker(self._timeout)
        return await self._lambda.invoke(function, payload)

    async def close(self) -> None:
        await self._http.close()
        if self._lambda is not None:
            await self._lambda.close()


def _region(session: botocore.session.Session) -> str:
    region: str | None = session.get_config_variable("region")
    if region is None:
        raise InvalidInput("AWS_REGION", None, "the region of the functions")
    return region


def _message(body: bytes) -> str:
    """What an error body says, in one line."""
    try:
        document = msgspec.json.decode(body)
        if isinstance(document, dict):
            for key in ("errorMessage", "message", "Message", "detail"):
                if key in document:
                    return str(document[key])
    except msgspec.DecodeError:
        pass
    return body[:200].decode("utf-8", "replace")
