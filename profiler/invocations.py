"""One invocation at a time through the Lambda Invoke API, timed on the client's side; AWS and the local runtime alike.

The endpoint, the region and the credentials are boto3's: ``AWS_ENDPOINT_URL_LAMBDA`` or ``AWS_ENDPOINT_URL`` names the local
runtime. boto3 does not retry here, because the pauses would be measured; a throttled or failed *service* call is repeated by
``invoke`` itself, and only the call that succeeded is timed. A failure of the *function* is never repeated.

A function whose system log level is above INFO, as that of template.yaml is, has no REPORT in its log. What stands in for it is
what the function told of itself in its answer: its own time, rounded up to a millisecond for the bill; where it was new, what the
client waited beyond that counts as INIT; its memory is asked once. Where it told nothing the client's time stands for its own.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from typing import Any, Protocol

import boto3
import msgspec
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError, NoRegionError

from sluice.batching.errors import NOT_GIVEN, DispatchFailed, FunctionFailed, InvalidInput
from sluice.lambda_fn.contract import Measured
from sluice.profiler.reports import Report, has_report, parse_report

READ_TIMEOUT = 900.0  # s, the longest a function may run
ATTEMPTS = 5  # of one service call; the pauses between them are 0.2, 0.4, 0.8 and 1.6 s
FIRST_PAUSE = 0.2


class Invocation(msgspec.Struct, frozen=True):
    """An answered invocation: the payload, what Lambda reports of it, and the client's wall time in seconds."""

    payload: bytes
    report: Report
    wall_time: float


class Invoke(Protocol):
    """Invokes a function (name, ``name:alias`` or ARN) with a payload and waits for the answer."""

    def __call__(self, function: str, payload: bytes) -> Invocation: ...


class LambdaInvocations:
    """``Invoke`` through boto3.

    Parameters
    ----------
    endpoint_url, region:
        ``None`` leaves them to boto3, which reads the environment and the AWS configuration.
    sleep:
        Waits between repeated service calls.

    Raises
    ------
    InvalidInput
        No region or no credentials are configured, or the endpoint is not an address.
    """

    def __init__(
        self, endpoint_url: str | None = None, region: str | None = None, sleep: Callable[[float], object] = time.sleep
    ) -> None:
        config = Config(retries={"total_max_attempts": 1}, read_timeout=READ_TIMEOUT, connect_timeout=10, tcp_keepalive=True)
        self._sleep = sleep
        self._memory_mb: dict[str, int] = {}
        self.unreported = False
        """Whether a function had no REPORT in its log, and what it told of itself stood in for it."""
        try:
            # boto3 reads AWS_DEFAULT_REGION and profiles; AWS_REGION is what containers and functions are given.
            region = region or os.environ.get("AWS_REGION")
            self._client: Any = boto3.client("lambda", endpoint_url=endpoint_url, region_name=region, config=config)
        except NoRegionError:
            allowed = "the region of the functions; any, where AWS_ENDPOINT_URL_LAMBDA names a local runtime"
            raise InvalidInput("AWS_REGION", NOT_GIVEN, allowed) from None
        except (BotoCoreError, ValueError) as error:
            raise InvalidInput("AWS configuration", str(error), "a region and, away from AWS, AWS_ENDPOINT_URL_LAMBDA") from None

    def __call__(self, function: str, payload: bytes) -> Invocation:
        """Invoke and wait.

        Raises
        ------
        InvalidInput
            There is no such function, or the request is refused (too large, not allowed, no credentials).
        FunctionFailed
            The function raised, ended or timed out; the message is the function's own.
        DispatchFailed
            The service does not answer or kept refusing for lack of capacity.
        """
        for attempt in range(ATTEMPTS):
            try:
                return self._invoke(function, payload)
            except ClientError as error:
                problem = _translate(error, function, payload)
                if isinstance(problem, InvalidInput) or attempt == ATTEMPTS - 1:
                    raise problem from None
            except BotoCoreError as error:
                if type(error).__name__ in (
                    "NoCredentialsError",
                    "PartialCredentialsError",
                    "NoRegionError",
                    "ParamValidationError",
                ):
                    raise InvalidInput("AWS configuration", str(error), "a region, credentials and a function name") from None
                raise DispatchFailed(f"the Lambda service does not answer: {error}") from None
            self._sleep(FIRST_PAUSE * 2**attempt)
        raise AssertionError("unreachable: the last attempt returns or raises")

    def _invoke(self, function: str, payload: bytes) -> Invocation:
        start = time.perf_counter()
        answer = self._client.invoke(FunctionName=function, Payload=payload, LogType="Tail")
        body: bytes = answer["Payload"].read()
        wall_time = time.perf_counter() - start
        if "FunctionError" in answer:
            raise FunctionFailed(f"{function} failed ({answer['FunctionError']}): {body[:500].decode('utf-8', 'replace')}")
        log = answer.get("LogResult", "")
        return Invocation(body, parse_report(log) if has_report(log) else self._told(function, body, wall_time), wall_time)

    def _told(self, function: str, body: bytes, wall_time: float) -> Report:
        """The report of a function whose log has none."""
        if function not in self._memory_mb:
            self._memory_mb[function] = int(self._client.get_function_configuration(FunctionName=function)["MemorySize"])
        self.unreported = True
        try:
            measured = msgspec.json.decode(body, type=_Answer).measured
        except msgspec.DecodeError:
            measured = Measured()
        seconds = min(wall_time, wall_time if measured.service is None else max(0.0, measured.service))
        billed = math.ceil(seconds * 1e3 - 1e-9) / 1e3
        return Report(seconds, billed, self._memory_mb[function], 0, wall_time - seconds if measured.cold else None)


class _Answer(msgspec.Struct):
    measured: Measured = Measured()


def _translate(error: ClientError, function: str, payload: bytes) -> InvalidInput | DispatchFailed:
    code = error.response["Error"]["Code"]
    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
    said = error.response["Error"].get("Message", "")
    if code == "ResourceNotFoundException" or status == 404:
        return InvalidInput("function", function, f"a function of this account and region ({said})")
    if code == "RequestTooLargeException" or status == 413:
        return InvalidInput("payload", f"{len(payload)} bytes", f"what the service takes ({said})")
    if status == 429 or status >= 500:
        return DispatchFailed(f"{function}: the service refused {ATTEMPTS} times ({code}: {said})")
    return InvalidInput("function", function, f"a function that may be invoked ({code}: {said})")
