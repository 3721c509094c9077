"""What a request takes on its way through the buffer and the network, beyond an invocation of the function.

A request that nobody follows is asked of the buffer and, in its turn, of the function itself; both many times, one at a time.
What the buffer holds such a request for it tells itself (``GET /v2/models/{model}``), and is left out. An invocation is known by
what the function itself takes, a distribution, and what it takes beyond that, in the mean. So each quantile of the way is that of
what was seen through the buffer, less the same of the function's own times and that mean: a function and its way, slow together,
take as long as was seen, and by how much the call of the function varies is in the way. Where that is negative, as the client of
the function here may be slower than the buffer's, it counts as none.

Where the plan in force holds nobody, as before the first is recommended, one call to the queue more is added, by which the buffer
asks at the end of a hold for who is to leave: as long as it takes, in the median, to ask whether the model is ready, for which
the buffer asks the queue too. Batches leave as their hold ends in the mean, and about so much later where that is not met.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable, Mapping
from urllib.parse import urlsplit

import msgspec
import numpy as np

from sluice.batching.documents import ServiceTime
from sluice.batching.errors import DispatchFailed, FunctionFailed, InvalidInput, require
from sluice.batching.quantiles import quantile_points
from sluice.lambda_fn import contract
from sluice.profiler.invocations import READ_TIMEOUT, Invoke
from sluice.profiler.samples import Sample, sample_batch

PROBES = 100  # of each; so many tell their 1st and 99th percentile
WARM_UP = 5  # of each, not counted
INVOCATIONS = 2 * (WARM_UP + PROBES)
"""Of the function, that measuring its way takes: by the buffer, and beside it."""


MOST_SAID = 500  # characters of an error that go on into a message


class Alone(msgspec.Struct, frozen=True):
    """Where the plan in force sends a request that nobody follows, and how long it waits before that, s."""

    function: str
    hold: float


class _Plan(msgspec.Struct):
    alone: Alone


class _Model(msgspec.Struct):
    plan: _Plan


class _Problem(msgspec.Struct):
    detail: str


def _said(body: bytes) -> str:
    """What an answer says that is not the one that was asked for: of a problem (RFC 9457) its detail."""
    try:
        return msgspec.json.decode(body, type=_Problem).detail[:MOST_SAID]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return body[:MOST_SAID].decode("utf-8", "replace")


class BufferOfModel:
    """A model at a buffer, asked one request at a time.

    Parameters
    ----------
    url : str
        Where its requests are posted: ``http://HOST:PORT/models/NAME``.
    headers : mapping of str to str
        Of every request to it, such as the key that it asks for.
    clock : callable
        Seconds, monotonic.

    Raises
    ------
    InvalidInput
        Another address.
    """

    def __init__(self, url: str, headers: Mapping[str, str] | None = None, clock: Callable[[], float] = time.perf_counter) -> None:
        parts = urlsplit(url)
        _, _, name = parts.path.rstrip("/").rpartition("/models/")
        right = parts.scheme in ("http", "https") and parts.hostname is not None and bool(name) and "/" not in name
        require(right, "--buffer", url, "where the model's requests are posted: http://HOST:PORT/models/NAME")
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self.url, self._path, self._model, self._headers, self._clock = url, parts.path, name, headers or {}, clock
        self._connection = kind(parts.netloc, timeout=READ_TIMEOUT)

    def alone(self) -> Alone:
        """What becomes of a request that nobody follows.

        Raises
        ------
        InvalidInput
            There is no such model, or its plan has nobody leave alone.
        DispatchFailed
            Nobody answers.
        """
        self._connection.close()  # a sweep may lie between two questions, for longer than any end keeps a connection
        status, body = self._ask("GET", f"/v2/models/{self._model}", b"", self._headers)
        try:
            if status == 200:
                return msgspec.json.decode(body, type=_Model).plan.alone
        except msgspec.DecodeError:
            pass
        allowed = f"a model of a buffer that says where a request goes that comes alone ({status}: {_said(body)})"
        raise InvalidInput("--buffer", self.url, allowed)

    def ask(self, sample: Sample) -> float:
        """Seconds until one request is answered.

        Raises
        ------
        FunctionFailed
            Otherwise than with 200.
        DispatchFailed
            Nobody answers.
        """
        began = self._clock()
        status, body = self._ask(
            "POST", self._path, sample.body, {"content-type": sample.content_type, **sample.headers, **self._headers}
        )
        seconds = self._clock() - began
        if status != 200:
            raise FunctionFailed(f"{self.url} answered with status {status}: {_said(body)}")
        return seconds

    def queue_call(self) -> float:
        """Seconds until it is answered whether the model is ready, for which the buffer asks the queue; raises as ``ask``."""
        began = self._clock()
        status, body = self._ask("GET", f"/v2/models/{self._model}/ready", b"", self._headers)
        seconds = self._clock() - began
        if status != 200:
            raise FunctionFailed(f"{self.url} is not ready ({status}): {_said(body)}")
        return seconds

    def _ask(self, method: str, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        try:
            self._connection.request(method, path, body or None, headers)
            answer = self._connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            self._connection.close()
            raise DispatchFailed(f"{self.url} does not answer: {error!r}") from None


def measure_way(buffer: BufferOfModel, invoke: Invoke, model: str, sample: Sample, probes: int = PROBES) -> ServiceTime:
    """The way through ``buffer`` beyond an invocation of the function that its plan names; nobody else may ask meanwhile.

    Raises
    ------
    InvalidInput, FunctionFailed, DispatchFailed
        As ``BufferOfModel`` and ``invoke``.
    """
    alone = buffer.alone()
    payload = contract.encode_batch(sample_batch(sample, model, 1))
    through, direct, own, calls = [], [], [], []
    for turn in range(WARM_UP + probes):
        latency = buffer.ask(sample) - alone.hold
        call = 0.0 if alone.hold else buffer.queue_call()
        run = invoke(alone.function, payload)
        if turn >= WARM_UP and run.report.init_duration is None:
            through.append(latency)
            direct.append(run.wall_time)
            own.append(run.report.duration)
            calls.append(call)
    held, beyond = float(np.median(calls)), float(np.mean(direct) - np.mean(own))
    ways = np.maximum.accumulate(np.maximum(np.sort(through) - np.sort(own) - beyond + held, 0.0)).tolist()
    return ServiceTime(max(0.0, float(np.mean(through) - np.mean(direct)) + held), quantile_points(ways), len(ways))
