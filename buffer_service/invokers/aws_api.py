"""The APIs of AWS, over an asynchronous client: requests signed by botocore, sent as batches for workers are.

What may live here: how AWS is found, and how one is known there, and what the ways there have in common. What an answer means is
said by whoever asks (``aws_lambda.py``, ``sagemaker.py``).
"""

from __future__ import annotations

import asyncio
import os
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import ClassVar

import botocore.session
from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import ReadOnlyCredentials, RefreshableCredentials
from botocore.exceptions import BotoCoreError

from sluice.batching.errors import InvalidInput
from sluice.buffer_service.invokers.http_client import ClientError, HttpClient, Reply, Unreadable
from sluice.buffer_service.invokers.port import FunctionUnavailable
from sluice.http.room import Room

RETRIES = 5  # of a connection that was lost
BACKOFF = 0.05  # seconds; the n-th retry waits a random part of BACKOFF * 2**n


def full_jitter(retry: int) -> float:
    """Seconds before a retry, the first being 0: a random part of a span that doubles. Who was refused together returns apart."""
    return random.uniform(0, BACKOFF * 2**retry)


class AwsApi:
    """One API of AWS.

    Endpoint, region and credentials are found as botocore finds them (``AWS_ENDPOINT_URL_LAMBDA``, ``AWS_DEFAULT_REGION``,
    profiles, roles), and the region in ``AWS_REGION`` too, where Lambda, ECS and the other SDKs have it; credentials are asked for
    at every call, so that a role's are refreshed. ``backoff`` gives the seconds before a lost connection is opened again. Answers
    take ``room`` while they are read.
    """

    def __init__(
        self, service: str, timeout: float, endpoint_url: str | None, backoff: Callable[[int], float], room: Room | None
    ) -> None:
        self._aws = botocore.session.get_session()
        client = self._aws.create_client(service, endpoint_url=endpoint_url, region_name=_region(self._aws))
        self._signed_for = client.meta.service_model.signing_name
        self._endpoint = client.meta.endpoint_url.rstrip("/")
        self._region = client.meta.region_name
        self._credentials = self._aws.get_credentials()
        self._timeout = timeout
        self._backoff = backoff
        self._room = room if room is not None else Room.without_end()
        self._http = HttpClient(timeout)

    async def post(
        self, function: str, path: str, payload: bytes, answer_limit: int, headers: Mapping[str, str] | None = None
    ) -> Reply:
        """The answer; ``path`` is sent as it is signed, and must be quoted.

        A lost connection is opened again, but not after a time out: the requests' time is over as well. Raises
        ``FunctionUnavailable`` in the name of ``function``, and ``BatchTooLarge`` for an answer beyond ``answer_limit`` bytes.
        """
        url = self._endpoint + path
        for attempt in range(RETRIES + 1):
            try:
                return await self._post(url, payload, answer_limit, headers or {})
            except TimeoutError:
                raise FunctionUnavailable(f"invocation of {function!r} was lost: no answer within {self._timeout:g} s") from None
            except ClientError as error:
                if attempt == RETRIES or isinstance(error, Unreadable):
                    raise FunctionUnavailable(f"invocation of {function!r} was lost: {error}") from error
                await asyncio.sleep(self._backoff(attempt))
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def close(self) -> None:
        """Release connections."""
        await self._http.close()

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

    async def _post(self, url: str, payload: bytes, answer_limit: int, headers: Mapping[str, str]) -> Reply:
        request = AWSRequest("POST", url, data=payload, headers={"Content-Type": "application/json", **headers})
        SigV4Auth(await self._key(), self._signed_for, self._region).add_auth(request)
        return await self._http.post(url, request.headers.items(), (payload,), answer_limit, self._room)


class AwsInvoker(ABC):
    """A way to functions by the API ``service``; ``endpoint_url``, ``backoff`` and ``room`` are those of ``AwsApi``."""

    service: ClassVar[str]

    def __init__(
        self,
        timeout: float,
        endpoint_url: str | None = None,
        backoff: Callable[[int], float] = full_jitter,
        room: Room | None = None,
    ) -> None:
        self._api = AwsApi(self.service, timeout, endpoint_url, backoff, room)

    @abstractmethod
    async def invoke(self, function: str, payload: bytes, avoid: str = "") -> bytes:
        """As the port says."""

    async def close(self) -> None:
        """Release connections."""
        await self._api.close()


def _region(session: botocore.session.Session) -> str:
    region: str | None = os.environ.get("AWS_REGION") or session.get_config_variable("region")
    if region is None:
        raise InvalidInput("AWS_REGION", None, "the region of the functions")
    return region
