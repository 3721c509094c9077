"""Amazon SageMaker's InvokeEndpoint API: real-time endpoints, whose containers answer a batch at ``/invocations``.

A plan names one as ``sagemaker://ENDPOINT``, or with the production variant that is to answer, ``sagemaker://ENDPOINT/VARIANT``.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from sluice.batching.documents import SAGEMAKER_SCHEME
from sluice.batching.errors import FunctionFailed
from sluice.buffer_service.invokers.aws_api import AwsInvoker
from sluice.buffer_service.invokers.http_refusals import error_message, refusal, retry_after
from sluice.buffer_service.invokers.port import BatchTooLarge, FunctionBusy, FunctionUnavailable, UnknownFunction

ENDPOINT_LIMIT = 25 * 1024 * 1024
"""Bytes that an invocation of a real-time endpoint carries, each way (Amazon SageMaker AI quotas); some accounts have less."""
PASSING = frozenset({429, 500, 503, 530})
"""ThrottlingException and ModelNotReadyException, InternalFailure, ServiceUnavailable, InternalDependencyException."""


class SageMakerInvoker(AwsInvoker):
    """Endpoints of Amazon SageMaker; ``endpoint_url``, ``backoff`` and ``room`` are those of ``AwsApi``."""

    service = "sagemaker-runtime"

    async def invoke(self, function: str, payload: bytes, avoid: str = "") -> bytes:
        if len(payload) > ENDPOINT_LIMIT:
            raise BatchTooLarge(f"a batch of {len(payload)} bytes; an endpoint takes {ENDPOINT_LIMIT}")
        endpoint, _, variant = function.removeprefix(SAGEMAKER_SCHEME).partition("/")
        fields = {"Accept": "application/json"}
        if variant:
            fields["X-Amzn-SageMaker-Target-Variant"] = variant
        path = f"/endpoints/{endpoint}/invocations"
        status, headers, body = await self._api.post(function, path, payload, ENDPOINT_LIMIT, fields)
        if status == 200:
            return body
        if status == 424:
            raise _refusal_of_the_container(function, body)
        message = f"SageMaker refuses to invoke {function!r}: HTTP {status} {error_message(body)}"
        kind = headers.get("x-amzn-errortype", "").partition(":")[0]
        if status in PASSING:
            raise FunctionBusy(message, retry_after(headers.get("retry-after")))
        if status == 413 or re.search(r"length less than or equal to \d+", message):
            raise BatchTooLarge(message)
        if status == 404 or (status == 400 and re.search(r"not found|[Cc]ould not find", message)):
            raise UnknownFunction(f"function: {function!r} does not exist: {error_message(body)}")
        if status == 403 and kind.startswith("AccessDenied"):
            raise UnknownFunction(f"function: {function!r} does not exist, or may not be invoked: {error_message(body)}")
        raise FunctionUnavailable(message)


def _refusal_of_the_container(function: str, body: bytes) -> FunctionFailed:
    """What the container of an endpoint answered instead of 200, which SageMaker tells as ``ModelError``.

    Status 0 is that of a container that did not answer in SageMaker's time, or not at all.
    """
    document: Any
    try:
        document = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        document = None
    fields = document if isinstance(document, dict) else {}
    status, original = fields.get("OriginalStatusCode"), fields.get("OriginalMessage")
    message = error_message(original.encode()) if isinstance(original, str) and original else error_message(body)
    worker = f"the container of {function!r}"
    if not isinstance(status, int) or status == 200:
        return FunctionFailed(f"{worker}: {message}")
    if status == 0:
        return FunctionUnavailable(f"{worker} does not answer: {message}")
    return refusal(worker, status, message)
