"""AWS Lambda's Invoke API."""

from __future__ import annotations

from urllib.parse import quote

from sluice.batching.errors import FunctionFailed
from sluice.buffer_service.invokers.aws_api import AwsInvoker
from sluice.buffer_service.invokers.http_refusals import error_message, retry_after
from sluice.buffer_service.invokers.port import BatchTooLarge, FunctionBusy, FunctionUnavailable, UnknownFunction
from sluice.lambda_fn.contract import PAYLOAD_LIMIT

LAMBDA_ANSWER_LIMIT = PAYLOAD_LIMIT + 1024  # Lambda's own limit is a little above 6 MB
LASTING = frozenset(
    f"{name}Exception"
    for name in (
        *("EC2AccessDenied", "InvalidRuntime", "InvalidSecurityGroupID", "InvalidSubnetID", "InvalidZipFile"),
        *("KMSAccessDenied", "KMSDisabled", "KMSInvalidState", "KMSNotFound"),
    )
)
"""Errors of the Invoke API with status 502 that do not pass by themselves (AWS Lambda API reference, Invoke)."""


class LambdaInvoker(AwsInvoker):
    """Functions of AWS Lambda; ``endpoint_url``, ``backoff`` and ``room`` are those of ``AwsApi``."""

    service = "lambda"

    async def invoke(self, function: str, payload: bytes, avoid: str = "") -> bytes:
        if len(payload) > PAYLOAD_LIMIT:
            raise BatchTooLarge(f"a batch of {len(payload)} bytes; Lambda takes {PAYLOAD_LIMIT}")
        status, headers, body = await self._api.post(function, _path(function), payload, LAMBDA_ANSWER_LIMIT)
        kind = headers.get("x-amzn-errortype", "").partition(":")[0]
        if (status == 429 or status >= 500) and kind not in LASTING:
            wait = retry_after(headers.get("retry-after"))
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
        if "x-amz-function-error" in headers:
            raise FunctionFailed(f"function {function!r} failed: {error_message(body)}")
        return body


def _path(function: str) -> str:
    """``name:alias`` are two fields of the API; an ARN, whole or from the account on, is one with its qualifier."""
    name, alias = function.split(":") if function.count(":") == 1 else (function, "")
    qualifier = f"?Qualifier={quote(alias, safe='')}" if alias else ""
    return f"/2015-03-31/functions/{quote(name, safe='')}/invocations{qualifier}"
