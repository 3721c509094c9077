"""The ways to a function: AWS Lambda, an HTTP worker, a Python callable. Bytes of the wire contract in, bytes out.

Which one serves is written in a plan's ``function``: an ``http://`` or ``https://`` address is a worker, several of them with a
comma between are identical workers, anything else is a Lambda function. What an invoker raises says what helps:

    FunctionUnavailable    no answer came, and no item is to blame: the whole batch fails, splitting it would not help
    UnknownFunction        the plan is wrong
    BatchTooLarge          a smaller batch may pass
    FunctionFailed         the function ran and failed: a smaller batch may pass, for one item may be the culprit

A function is invoked at least once. After a 5xx of Lambda or a lost connection it may have run, and it is tried again all the same,
as the AWS SDKs do; after a time out it is not, since the time of the request is over as well.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol
from urllib.parse import quote

import aiohttp
import botocore.session
import msgspec
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials, RefreshableCredentials
from botocore.exceptions import BotoCoreError
from yarl import URL

from sluice.batching.errors import FunctionFailed, InvalidInput
from sluice.lambda_fn.contract import PAYLOAD_LIMIT

LAMBDA_ANSWER_LIMIT = PAYLOAD_LIMIT + 1024  # Lambda's own limit is a little above 6 MB
WORKER_ANSWER_LIMIT = 256 * 1024 * 1024  # bytes; a worker that answers more would cost the buffer its memory
RETRIES = 5
BACKOFF = 0.05  # seconds; the n-th retry waits a random part of BACKOFF * 2**n
MESSAGE_LENGTH = 500  # characters of a function's error that go on into answers and logs


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


def full_jitter(retry: int) -> float:
    """Seconds before a retry, the first being 0: a random part of a span that doubles. Who was refused together returns apart."""
    return random.uniform(0, BACKOFF * 2**retry)


class LambdaInvoker:
    """AWS Lambda's Invoke API: requests signed by botocore, sent by an asynchronous client.

    Endpoint, region and credentials are found as botocore finds them (``AWS_ENDPOINT_URL_LAMBDA``, ``AWS_DEFAULT_REGION``,
    profiles, roles), and the region in ``AWS_REGION`` too, where Lambda, ECS and the other SDKs have it; credentials are asked for
    at every call, so that a role's are refreshed. ``backoff`` gives the seconds before a retry.
    """

    def __init__(self, timeout: float, endpoint_url: str | None = None, backoff: Callable[[int], float] = full_jitter) -> None:
        self._aws = botocore.session.get_session()
        client = self._aws.create_client("lambda", endpoint_url=endpoint_url, region_name=_region(self._aws))
        self._endpoint = client.meta.endpoint_url.rstrip("/")
        self._region = client.meta.region_name
        self._credentials = self._aws.get_credentials()
        self._timeout = timeout
        self._backoff = backoff
        self._http: aiohttp.ClientSession | None = None

    async def invoke(self, function: str, payload: bytes) -> bytes:
        if len(payload) > PAYLOAD_LIMIT:
            raise BatchTooLarge(f"a batch of {len(payload)} bytes; Lambda takes {PAYLOAD_LIMIT}")
        url = self._url(function)
        for attempt in range(RETRIES + 1):
            try:
                status, headers, body = await self._post(url, payload)
            except TimeoutError:
                raise FunctionUnavailable(f"invocation of {function!r} was lost: no answer within {self._timeout:g} s") from None
            except aiohttp.ClientError as error:
                if attempt == RETRIES:
                    raise FunctionUnavailable(f"invocation of {function!r} was lost: {error or type(error).__name__}") from error
                await asyncio.sleep(self._backoff(attempt))
                continue
            if status == 429 or status >= 500:
                if attempt == RETRIES:
                    raise FunctionUnavailable(f"Lambda refuses to invoke {function!r}: HTTP {status} {_message(body)}")
                await asyncio.sleep(self._backoff(attempt))
                continue
            if status == 404:
                raise UnknownFunction(f"function: {function!r} does not exist: {_message(body)}")
            if status == 403 and headers.get("x-amzn-ErrorType", "").startswith("AccessDenied"):
                # What a role that may invoke named functions alone is told of one that does not exist.
                raise UnknownFunction(f"function: {function!r} does not exist, or may not be invoked: {_message(body)}")
            if status == 413:
                raise BatchTooLarge(_message(body))
            if status == 400 and headers.get("x-amzn-ErrorType", "").startswith("InvalidRequestContent"):
                raise FunctionFailed(f"Lambda does not take the batch for {function!r}: {_message(body)}")
            if status != 200:
                raise FunctionUnavailable(f"Lambda refuses to invoke {function!r}: HTTP {status} {_message(body)}")
            if "X-Amz-Function-Error" in headers:
                raise FunctionFailed(f"function {function!r} failed: {_message(body)}")
            return body
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    def _url(self, function: str) -> URL:
        """``name:alias`` are two fields of the API; an ARN, whole or from the account on, is one with its qualifier.

        The URL is sent as it is signed: the client must not write it its own way.
        """
        name, alias = function.split(":") if function.count(":") == 1 else (function, "")
        qualifier = f"?Qualifier={quote(alias, safe='')}" if alias else ""
        return URL(f"{self._endpoint}/2015-03-31/functions/{quote(name, safe='')}/invocations{qualifier}", encoded=True)

    async def _key(self) -> ReadOnlyCredentials:
        """What to sign with; where the network is asked for it, not in the event loop."""
        try:
            if self._credentials is None:
                self._credentials = await asyncio.to_thread(self._aws.get_credentials)
            if self._credentials is None:
                raise FunctionUnavailable("no AWS credentials were found to sign the invocation with")
            if isinstance(self._credentials, RefreshableCredentials) and self._credentials.refresh_needed():
                return await asyncio.to_thread(self._credentials.get_frozen_credentials)
            return self._credentials.get_frozen_credentials()
        except BotoCoreError as error:
            raise FunctionUnavailable(f"no AWS credentials to sign the invocation with: {error}") from error

    async def _post(self, url: URL, payload: bytes) -> tuple[int, Mapping[str, str], bytes]:
        request = AWSRequest("POST", str(url), data=payload, headers={"Content-Type": "application/json"})
        SigV4Auth(await self._key(), "lambda", self._region).add_auth(request)
        if self._http is None:
            self._http = _client(self._timeout)
        async with self._http.post(url, data=payload, headers=dict(request.headers), allow_redirects=False) as response:
            return response.status, response.headers, await _read(response, LAMBDA_ANSWER_LIMIT)


class HttpInvoker:
    """Workers that take the batch document by POST (``lambda_fn/worker.py``, or anything that speaks the contract).

    Of several workers a batch goes to the one with the fewest batches in flight from this process, the earliest named of equals;
    where it cannot be connected to, to the next. With as many ``servers`` in the policy as there are workers, and one process of
    the buffer, each batch therefore finds an idle one.
    """

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._http: aiohttp.ClientSession | None = None
        self._in_flight: Counter[str] = Counter()

    async def invoke(self, function: str, payload: bytes) -> bytes:
        untried = worker_addresses(function)
        while True:
            address = min(untried, key=self._in_flight.__getitem__)
            untried.remove(address)
            self._in_flight[address] += 1
            try:
                return await self._ask(address, payload)
            except FunctionUnavailable as error:
                # One that is gone refuses at once and is always the idlest: it must not draw every batch to itself.
                if not untried or not isinstance(error.__cause__, aiohttp.ClientConnectorError):
                    raise
            finally:
                self._in_flight[address] -= 1

    async def _ask(self, function: str, payload: bytes) -> bytes:
        try:
            try:
                status, headers, body = await self._post(function, payload)
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError):
                # A connection that the worker closed while it was idle, most likely; if the batch killed it, not again and again.
                status, headers, body = await self._post(function, payload)
        except TimeoutError:
            raise FunctionUnavailable(f"worker {function} does not answer within {self._timeout:g} s") from None
        except aiohttp.ClientError as error:
            raise FunctionUnavailable(f"worker {function} does not answer: {error or type(error).__name__}") from error
        if 300 <= status < 400:
            raise UnknownFunction(f"function: {function!r} answers {status}, it is at {headers.get('Location', 'another place')}")
        if status == 404:
            raise UnknownFunction(f"function: {function!r} answers 404")
        if status == 413:
            raise BatchTooLarge(f"worker {function}: {_message(body)}")
        if status in (401, 403, 405, 408, 429, 502, 503, 504):
            raise FunctionUnavailable(f"worker {function}: HTTP {status} {_message(body)}")
        if status != 200:
            raise FunctionFailed(f"worker {function}: HTTP {status} {_message(body)}")
        return body

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def _post(self, url: str, payload: bytes) -> tuple[int, Mapping[str, str], bytes]:
        if self._http is None:
            self._http = _client(self._timeout)
        headers = {"Content-Type": "application/json"}
        async with self._http.post(url, data=payload, headers=headers, allow_redirects=False) as response:
            return response.status, response.headers, await _read(response, WORKER_ANSWER_LIMIT)


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


def worker_addresses(function: str) -> list[str]:
    """The workers that a plan's ``function`` names, one or several with commas between; raises ``UnknownFunction``."""
    addresses = function.split(",")
    for address in addresses:
        if not address.startswith(("http://", "https://")):
            allowed = "http:// or https:// addresses with commas between; a comma within one is %2C"
            raise UnknownFunction(f"function: {address!r} in {function!r} is not allowed; allowed: {allowed}")
        if addresses.count(address) > 1:
            raise UnknownFunction(f"function: {address!r} is named twice in {function!r}; allowed: each worker once")
    return addresses


def named_functions(function: str) -> list[str]:
    """Each function that a plan's ``function`` names: every worker, or the one Lambda function."""
    return worker_addresses(function) if function.startswith(("http://", "https://")) else [function]


class InvokerBySyntax:
    """Chooses by what ``function`` looks like; each way is opened when it is first needed."""

    def __init__(self, timeout: float) -> None:
        self._timeout = timeout
        self._lambda: LambdaInvoker | None = None
        self._opening = asyncio.Lock()
        self._http = HttpInvoker(timeout)

    async def invoke(self, function: str, payload: bytes) -> bytes:
        if function.startswith(("http://", "https://")):
            return await self._http.invoke(function, payload)
        if self._lambda is None:
            await self._open_lambda(function)
        assert self._lambda is not None
        return await self._lambda.invoke(function, payload)

    async def close(self) -> None:
        await self._http.close()
        if self._lambda is not None:
            await self._lambda.close()

    async def _open_lambda(self, function: str) -> None:
        """In a thread: making a client takes a tenth of a second, finding credentials perhaps more, and others are being served."""
        async with self._opening:
            if self._lambda is None:
                try:
                    self._lambda = await asyncio.to_thread(LambdaInvoker, self._timeout)
                except (InvalidInput, BotoCoreError, ValueError) as error:
                    raise FunctionUnavailable(f"{function!r} cannot be invoked: {error}") from error


def _client(timeout: float) -> aiohttp.ClientSession:
    """As many connections as batches are under way; answers are not compressed, not even when something on the way would."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=timeout),
        connector=aiohttp.TCPConnector(limit=0),
        headers={"Accept-Encoding": "identity"},
        auto_decompress=False,
    )


async def _read(response: aiohttp.ClientResponse, limit: int) -> bytes:
    """The body; raises ``BatchTooLarge`` before it takes more memory than ``limit`` bytes."""
    chunks: list[bytes] = []
    size = 0
    async for chunk in response.content.iter_any():
        size += len(chunk)
        if size > limit:
            raise BatchTooLarge(f"an answer of more than {limit} bytes")
        chunks.append(chunk)
    return chunks[0] if len(chunks) == 1 else b"".join(chunks)


def _region(session: botocore.session.Session) -> str:
    region: str | None = os.environ.get("AWS_REGION") or session.get_config_variable("region")
    if region is None:
        raise InvalidInput("AWS_REGION", None, "the region of the functions")
    return region


def _message(body: bytes) -> str:
    """What an error body says, in one line."""
    text = body[:MESSAGE_LENGTH].decode("utf-8", "replace")
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError):  # not JSON, or not UTF-8
        document = None
    if isinstance(document, dict):
        known = ("errorMessage", "message", "Message", "detail", "errorType")
        text = next((str(document[key]) for key in known if document.get(key)), text)
    line = " ".join(text[: 2 * MESSAGE_LENGTH].split())
    return line if len(line) <= MESSAGE_LENGTH else line[: MESSAGE_LENGTH - 1] + "…"
