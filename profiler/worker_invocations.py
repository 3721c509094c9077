"""One invocation at a time of a worker over HTTP, which says itself how long it computed.

The answer to a batch has in its header ``sluice-service-time`` the seconds that it took to compute, and in ``sluice-memory-mb``
what the worker may use. Of a worker of other make the service time is all of the wall time, and its memory what it is told to be.
A worker that is busy is asked again; one that fails is not.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from sluice.batching.documents import WORKER_SCHEMES
from sluice.batching.errors import NOT_GIVEN, DispatchFailed, FunctionFailed, InvalidInput
from sluice.lambda_fn.contract import JSON, MEMORY, PAYLOAD_LIMIT, SERVICE_TIME
from sluice.profiler.invocations import ATTEMPTS, FIRST_PAUSE, READ_TIMEOUT, Invocation
from sluice.profiler.reports import Report

WORKER_PAYLOAD_LIMIT = 256 * 1024 * 1024  # bytes that a worker takes


def is_worker(function: str) -> bool:
    """Whether a function is named by the address of a worker."""
    return function.startswith(WORKER_SCHEMES)


def payload_limit(function: str) -> int:
    """Bytes of a batch that the function takes."""
    return WORKER_PAYLOAD_LIMIT if is_worker(function) else PAYLOAD_LIMIT


class WorkerInvocations:
    """``Invoke`` of workers by their addresses.

    Parameters
    ----------
    memory_mb:
        What a worker is taken to have that does not say it.
    sleep:
        Waits before a busy worker is asked again.
    """

    def __init__(self, memory_mb: int | None = None, sleep: Callable[[float], object] = time.sleep) -> None:
        self._memory_mb = memory_mb
        self._sleep = sleep
        self._connections: dict[str, http.client.HTTPConnection] = {}

    def __call__(self, function: str, payload: bytes) -> Invocation:
        """Ask the worker and wait.

        Raises
        ------
        InvalidInput
            There is no worker at the address, or it says nothing of its memory and nobody else does.
        FunctionFailed
            It answers with an error.
        DispatchFailed
            It does not answer, or is busy still.
        """
        for attempt in range(ATTEMPTS):
            start = time.perf_counter()
            status, headers, body = self._post(function, payload)
            wall_time = time.perf_counter() - start
            if status == 200:
                return Invocation(body, self._report(function, headers, wall_time), wall_time)
            said = body[:500].decode("utf-8", "replace")
            if status == 404:
                raise InvalidInput("function", function, f"the address of a worker (it answers 404: {said})")
            if status not in (429, 503):
                raise FunctionFailed(f"{function} failed ({status}): {said}")
            if attempt < ATTEMPTS - 1:
                self._sleep(FIRST_PAUSE * 2**attempt)
        raise DispatchFailed(f"{function}: the worker refused {ATTEMPTS} times ({status}: {said})")

    def _report(self, function: str, headers: http.client.HTTPMessage, wall_time: float) -> Report:
        try:
            duration = min(float(headers.get(SERVICE_TIME, wall_time)), wall_time)
            memory_mb = int(headers.get(MEMORY, 0)) or self._memory_mb
        except ValueError as error:
            raise FunctionFailed(f"{function}: its header {SERVICE_TIME} or {MEMORY} is no number ({error})") from None
        if memory_mb is None:
            raise InvalidInput("memory", NOT_GIVEN, f"what the worker has in MB, as {function} does not say")
        return Report(duration, duration, memory_mb, memory_mb)

    def _post(self, function: str, payload: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
        try:
            connection = self._connections.get(function) or self._connect(function)
            try:
                return _exchange(connection, function, payload)
            except (ConnectionError, http.client.RemoteDisconnected, http.client.CannotSendRequest):
                connection.close()  # it was idle for too long; the next one shows whether that was it
                return _exchange(self._connect(function), function, payload)
        except (OSError, http.client.HTTPException) as error:
            self._connections.pop(function, None)
            raise DispatchFailed(f"the worker {function} does not answer: {error or type(error).__name__}") from None

    def _connect(self, function: str) -> http.client.HTTPConnection:
        where = urlsplit(function)
        kind = http.client.HTTPSConnection if where.scheme == "https" else http.client.HTTPConnection
        try:
            connection = kind(where.hostname or "", where.port, timeout=READ_TIMEOUT)
        except ValueError as error:
            raise InvalidInput("function", function, f"the address of a worker, http://HOST:PORT ({error})") from None
        self._connections[function] = connection
        return connection


def _exchange(connection: http.client.HTTPConnection, function: str, payload: bytes) -> tuple[int, http.client.HTTPMessage, bytes]:
    connection.request("POST", urlsplit(function).path or "/", payload, {"content-type": JSON})
    answer = connection.getresponse()
    return answer.status, answer.headers, answer.read()
