"""AWS Lambda's Invoke API, over an asynchronous client."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Callable, Mapping
from urllib.parse import quote

import aiohttp
import botocore.session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials, RefreshableCredentials
from botocore.exceptions import BotoCoreError
from yarl import URL

from sluice.batching.errors import FunctionFailed, InvalidInput
from sluice.buffer_service.invokers.http_client import error_message, open_client, read_answer, retry_after
from sluice.buffer_service.invokers.port import BatchTooLarge, FunctionBusy, FunctionUnavailable, UnknownFunction
from sluice.buffer_service.room import Room
from sluice.lambda_fn.contract import PAYLOAD_LIMIT

LAMBDA_ANSWER_LIMIT = PAYLOAD_LIMIT + 1024  # Lambda's own limit is a little above 6 MB
RETRIES = 5  # of a connection that was lost
LASTING = frozenset(
    f"{name}Exception"
    for name in (
        *("EC2AccessDenied", "InvalidRuntime", "InvalidSecurityGroupID", "InvalidSubnetID", "InvalidZipFile"),
        *("KMSAccessDenied", "KMSDisabled", "KMSInvalidState", "KMSNotFound"),
    )
)
"""Errors of the Invoke API with status 502 that do not pass by themselves (AWS Lambda API reference, Invoke)."""
BACKOFF = 0.05  # seconds; the n-th retry waits a random part of BACKOFF * 2**n


def full_jitter(retry: int) -> float:
    """Seconds before a retry, the first being 0: a random part of a span that doubles. Who was refused together returns apart."""
    return random.uniform(0, BACKOFF * 2**retry)


class LambdaInvoker:
    """AWS Lambda's Invoke API: requests signed by botocore, sent by an asynchronous client.

    Endpoint, region and credentials are found as botocore finds them (``AWS_ENDPOINT_URL_LAMBDA``, ``AWS_DEFAULT_REGION``,
    profiles, roles), and the region in ``AWS_REGION`` too, where Lambda, ECS and the other SDKs have it; credentials are asked for
    at every call, so that a role's are refreshed. ``backoff`` gives the seconds before a lost connection is opened again. Answers
    take ``room`` while they are read.
    """

    def __init__(
        self,
        timeout: float,
        endpoint_url: str | None = None,
        backoff: Callable[[int], float] = full_jitter,
        room: Room | None = None,
    ) -> None:
        self._aws = botocore.session.get_session()
        client = self._aws.create_client("lambda", endpoint_url=endpoint_url, region_name=_region(self._aws))
        self._endpoint = client.meta.endpoint_url.rstrip("/")
        self._region = client.meta.region_name
        self._credentials = self._aws.get_credentials()
        self._timeout = timeout
        self._room = room if room is not None else Room.without_end()
        self._backoff = backoff
        self._http: aiohttp.ClientSession | None = None

    async def invoke(self, function: str, payload: bytes, avoid: str = "") -> bytes:
        if len(payload) > PAYLOAD_LIMIT:
            raise BatchTooLarge(f"a batch of {len(payload)} bytes; Lambda takes {PAYLOAD_LIMIT}")
        status, headers, body = await self._answer(function, payload)
        kind = headers.get("x-amzn-ErrorType", "").partition(":")[0]
        if (status == 429 or status >= 500) and kind not in LASTING:
            wait = retry_after(headers.get("Retry-After"))
            raise FunctionBusy(f"Lambda refuses to invoke {function!r}: HTTP {status} {error_message(body)}", wait)
        if status == 404:
            raise UnknownFunction(f"function: {function!r} does not exist: {error_message(body)}")
        if status == 403 and kind.startswith("AccessDenied"):
            # What a role that may invoke named functions alone is told of one that does not exist.
            raise UnknownFunction(f"function: {function!r} does not exist, or may not be invoked: {error_message(body)}")
        if status == 413:
            raise BatchTooLarge(error_message(body))
        if status == 400 and kind.startswith("InvalidRequestContent"):
            raise FunctionFailed(f"Lambda does not take the batch for {function!r}: {error_message(body)}")
        if status != 200:
            raise FunctionUnavailable(f"Lambda refuses to invoke {function!r}: HTTP {status} {error_message(body)}")
        if "X-Amz-Function-Error" in headers:
            raise FunctionFailed(f"function {function!r} failed: {error_message(body)}")
        return body

    async def close(self) -> None:
        if self._http is not None:
            await self._http.close()

    async def _answer(self, function: str, payload: bytes) -> tuple[int, Mapping[str, str], bytes]:
        """What Lambda answers; a lost connection is opened again, but not after a time out: the requests' time is over as well."""
        url = self._url(function)
        for attempt in range(RETRIES + 1):
            try:
                return await self._post(url, payload)
            except TimeoutError:
                raise FunctionUnavailable(f"invocation of {function!r} was lost: no answer within {self._timeout:g} s") from None
            except aiohttp.ClientError as error:
                if attempt == RETRIES:
                    raise FunctionUnavailable(f"invocation of {function!r} was lost: {error or type(error).__name__}") from error
                await asyncio.sleep(self._backoff(attempt))
        raise AssertionError("unreachable: the last attempt returns or raises")

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
            self._http = open_client(self._timeout)
        async with self._http.post(url, data=payload, headers=dict(request.headers), allow_redirects=False) as response:
            return response.status, response.headers, await read_answer(response, LAMBDA_ANSWER_LIMIT, self._room)


def _region(session: botocore.session.Session) -> str:
    region: str | None = os.environ.get("AWS_REGION") or session.get_config_variable("region")
    if region is None:
        raise InvalidInput("AWS_REGION", None, "the region of the functions")
    return region
