"""Open-loop load over HTTP: requests leave when the trace says, whether or not earlier ones were answered.

A closed loop, which waits for an answer before it sends the next request, slows down with the server and so leaves out the very
moments when the server is slow ("coordinated omission"; Tene, How NOT to Measure Latency, 2015). Here

    the intended time of arrival i is   start + (times[i] - times[0]) / scale
    its latency is                      last byte of the answer - intended time
    its lateness is                     first byte written - intended time

so that a generator which falls behind shows it as lateness and cannot hide it in the latencies. No arrival is dropped: a request
that finds no idle connection opens a new one. A request ends by an answer (any HTTP status) or with status 0 and a message:
refused, broken, or not answered within the timeout.

The generator shares the machine with what it measures, hence no task, future or client object per request: one protocol object
per keep-alive connection carries one request at a time. The clock is CLOCK_MONOTONIC; the next arrival is awaited as precisely as
the buffer waits (``buffer_service/alarms.py``).
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import gc
import re
import resource
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import httptools
import msgspec
import numpy as np
import numpy.typing as npt
import uvloop

from sluice.batching.documents import SIZE_HEADER, Slo, percentile_name
from sluice.batching.errors import DispatchFailed, InvalidInput, require
from sluice.batching.urls import without_password
from sluice.buffer_service.alarms import open_alarms
from sluice.buffer_service.route_batches import ROUTE_HEADER

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
Ran = TypeVar("Ran")
Body = bytes | Callable[[int], bytes]

_ROUTE = ROUTE_HEADER.encode()
_HEADER = re.compile(r"[A-Za-z0-9-]{1,128}")
NO_ANSWER = 0  # the status of a request that got no HTTP answer
IDLE_LIMIT = 3.0  # s; an idle connection older than this is not used again, lest the server close it at that moment
CHECK_EVERY = 0.1  # s between looks at the timeouts and calls of on_progress
MESSAGE_LENGTH = 200  # bytes of a failing answer that are kept
LEVELS = (50, 75, 90, 95, 99, 99.9)
QUANTILE_LEVELS = (*(k / 200 for k in range(1, 199)), 0.992, 0.994, 0.996, 0.998, 0.999, 0.9995, 0.9999)  # closer in the tail


class RouteSummary(msgspec.Struct, frozen=True):
    """How long the requests took that one route of a plan answered; ``latency`` as of all requests."""

    requests: int
    latency: dict[str, float | None]


class ReplaySummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a replay measured; seconds, and ``None`` for a latency that no answer bounds.

    ``latency`` counts a failed request as never answered, and so do ``quantiles``, points ``(q, seconds)`` of its quantile
    function, which therefore end where the failures begin. ``failures`` counts requests by status other than 2xx, ``"0"`` being
    no answer at all; ``messages`` counts what was said about them. ``lateness`` is the generator's own: where it is not small
    against the latencies, the generator was the bottleneck and the latencies are too large. ``routes`` are those that the answers
    named, none of a plan without routes.
    """

    requests: int
    seconds: float
    request_rate: float
    latency: dict[str, float | None]
    mean_latency: float | None
    failures: dict[str, int]
    messages: dict[str, int]
    lateness: dict[str, float]
    generator_cpu_per_request: float
    scale: float
    quantiles: list[tuple[float, float]]
    routes: dict[str, RouteSummary] = {}


class Replay(msgspec.Struct, frozen=True):
    """Every request of a replay, in the order of the trace; arrays of shape (requests,), seconds.

    ``intended`` is relative to the first arrival. ``status`` is HTTP's, or 0 where there was no answer. ``messages`` counts why
    requests failed. ``cpu_seconds`` is the processor time of the whole generating process. ``routes`` names the route of each
    answer, ``""`` where it named none; ``sizes`` are those that the requests were sent with, if they were.
    """

    intended: FloatArray
    latency: FloatArray
    lateness: FloatArray
    status: IntArray
    messages: dict[str, int]
    seconds: float
    cpu_seconds: float
    scale: float
    routes: list[str] = []
    sizes: list[float] | None = None

    @property
    def answered(self) -> npt.NDArray[np.bool_]:
        """Which requests were answered with 2xx."""
        return (self.status >= 200) & (self.status < 300)

    def latency_percentile(self, percentile: float) -> float:
        """The least latency that ``percentile`` percent of all requests kept; a failed request never does, so it may be inf."""
        return float(np.percentile(self._kept, percentile, method="inverted_cdf"))

    @property
    def _kept(self) -> FloatArray:
        """The latency of each request, inf where it failed."""
        return np.where(self.answered, self.latency, np.inf)

    def keeps(self, slo: Slo) -> bool:
        """Whether so many of all requests were answered in time as the SLO wants."""
        return self.latency_percentile(slo.percentile) <= slo.latency

    def lateness_percentile(self, percentile: float) -> float:
        """The percentile of what the generator itself was late by, in seconds."""
        return float(np.percentile(self.lateness, percentile))

    def failures(self) -> dict[str, int]:
        """How many requests ended with each status other than 2xx."""
        statuses, counts = np.unique(self.status[~self.answered], return_counts=True)
        return {str(status): int(count) for status, count in zip(statuses, counts, strict=True)}

    def summary(self) -> ReplaySummary:
        """The replay in a few numbers."""
        n = len(self.intended)
        quantiles = np.quantile(self._kept, QUANTILE_LEVELS, method="inverted_cdf").tolist()
        lateness = {percentile_name(level): self.lateness_percentile(level) for level in (50, 99)}
        lateness["max"] = float(self.lateness.max())
        span = float(self.intended[-1])
        return ReplaySummary(
            requests=n,
            seconds=self.seconds,
            request_rate=(n - 1) / span if span > 0 else float(n) / self.seconds,
            latency=_percentiles(self._kept),
            mean_latency=float(self.latency.mean()) if self.answered.all() else None,
            failures=self.failures(),
            messages=self.messages,
            lateness=lateness,
            generator_cpu_per_request=self.cpu_seconds / n,
            scale=self.scale,
            quantiles=[(q, seconds) for q, seconds in zip(QUANTILE_LEVELS, quantiles, strict=True) if np.isfinite(seconds)],
            routes=self._of_routes(),
        )

    def _of_routes(self) -> dict[str, RouteSummary]:
        named = np.array(self.routes)
        by_route = {route: self._kept[named == route] for route in sorted(set(self.routes) - {""})}
        return {route: RouteSummary(len(latency), _percentiles(latency)) for route, latency in by_route.items()}

    def document(self) -> dict[str, Any]:
        """The summary and every request, ready for JSON."""
        requests = {
            "intended": self.intended.tolist(),
            "latency": self.latency.tolist(),
            "lateness": self.lateness.tolist(),
            "status": self.status.tolist(),
        }
        if any(self.routes):
            requests["route"] = self.routes
        if self.sizes is not None:
            requests["size"] = self.sizes
        return {"version": 1, "summary": msgspec.to_builtins(self.summary()), "requests": requests}


def _percentiles(latency: FloatArray) -> dict[str, float | None]:
    """By name, and ``max``; ``None`` where no answer bounds it."""
    found = {percentile_name(level): float(np.percentile(latency, level, method="inverted_cdf")) for level in LEVELS}
    found["max"] = float(latency.max())
    return {name: value if np.isfinite(value) else None for name, value in found.items()}


class ReplayProgress(msgspec.Struct, frozen=True):
    """How far a replay is; of ``sent`` requests ``ended`` were answered or failed."""

    requests: int
    sent: int
    ended: int
    failed: int


def intended_times(
    times: Sequence[float] | FloatArray, scale: float = 1.0, limit: int | None = None, seconds: float | None = None
) -> FloatArray:
    """When the requests are to leave, in seconds after the first.

    Parameters
    ----------
    times:
        Arrival times of a trace in seconds, ascending.
    scale:
        How many times faster than the trace.
    limit:
        At most so many requests.
    seconds:
        Only those of the first so many seconds of the replay (after scaling).

    Raises ``InvalidInput`` where the times are not ascending numbers, or a parameter is not positive.
    """
    require(0 < scale < float("inf"), "speed", scale, "a number > 0")
    require(limit is None or limit >= 1, "limit", limit, "an integer >= 1")
    require(seconds is None or seconds > 0, "seconds", seconds, "a number > 0")
    trace = np.asarray(times, dtype=np.float64)
    require(trace.ndim == 1 and len(trace) > 0, "times", trace.shape, "one row of at least one arrival time")
    bad = np.flatnonzero(~np.isfinite(trace))
    require(len(bad) == 0, "times", f"{trace[bad[0]] if len(bad) else 0} at {bad[:1].tolist()}", "finite numbers of seconds")
    falls = np.flatnonzero(np.diff(trace) < 0)
    if len(falls):
        index = int(falls[0]) + 1
        raise InvalidInput(f"times[{index}]", float(trace[index]), f"at least the time before it ({float(trace[index - 1])})")
    intended: FloatArray = (trace - trace[0]) / scale
    if seconds is not None:
        intended = intended[intended < seconds]
    return intended[:limit]


def run(replaying: Coroutine[Any, Any, Ran]) -> Ran:
    """Run ``replay(...)``, or what comes before it, in a loop of its own (uvloop), with all the file descriptors there may be."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(replaying)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def replay(
    times: Sequence[float] | FloatArray,
    url: str,
    *,
    body: Body = b"{}",
    content_type: str = "application/json",
    headers: dict[str, str] | None = None,
    scale: float = 1.0,
    limit: int | None = None,
    seconds: float | None = None,
    timeout: float = 30.0,
    sizes: Sequence[float] | FloatArray | None = None,
    size_header: str = SIZE_HEADER,
    on_progress: Callable[[ReplayProgress], None] | None = None,
) -> Replay:
    """Post a request to ``url`` at every arrival of a trace and measure how long each takes.

    Parameters
    ----------
    times, scale, limit, seconds:
        As for ``intended_times``.
    url:
        ``http://`` or ``https://``, with the path.
    body:
        Of every request; or a function from the request's index to its body.
    content_type, headers:
        Of every request.
    timeout:
        Seconds from the intended time after which a request counts as not answered. Nothing waits longer.
    sizes, size_header:
        The size of each arrival of the trace, and the header that tells it.
    on_progress:
        Called about ten times a second, in the event loop: what it does delays the requests.

    Raises
    ------
    InvalidInput
        The trace, a parameter or the address is not allowed. What the server does is a result, never an error.
    """
    require(timeout > 0, "timeout", timeout, "a number of seconds > 0")
    intended = intended_times(times, scale, limit, seconds)
    target = await _resolve(url, content_type, headers or {})
    told = None
    if sizes is not None:
        require(len(sizes) == len(times), "sizes", len(sizes), f"one for each of {len(times)} arrivals")
        require(_HEADER.fullmatch(size_header) is not None, "size_header", size_header, "the name of a header")
        told = _Sizes(size_header.lower().encode(), np.asarray(sizes, dtype=np.float64)[: len(intended)].tolist())
    load = _Load(intended, target, body, timeout, on_progress, told)
    was_enabled = gc.isenabled()
    if was_enabled:
        # A collection in the middle would be a pause that the server did not cause: of this replay, or of one that is under way.
        gc.collect()
        gc.disable()
    try:
        return await load.run(scale)
    finally:
        if was_enabled:
            gc.enable()
        load.close()


async def await_listener(url: str, seconds: float) -> None:
    """Wait until somebody listens at ``url``, ``seconds`` at most: a buffer that was just started listens once it has its plans.

    Raises
    ------
    DispatchFailed
        Nobody does, where there was any time to wait.
    """
    require(0 <= seconds < float("inf"), "wait", seconds, "a number of seconds >= 0")
    target = await _resolve(url, "", {})
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    why = None
    while loop.time() < until:
        try:
            transport, _ = await loop.create_connection(asyncio.Protocol, target.host, target.port)
        except OSError as error:
            why = error.strerror or str(error)
            await asyncio.sleep(CHECK_EVERY)
        else:
            transport.close()
            return
    if why is not None:
        raise DispatchFailed(f"nobody listens at {without_password(url)}, in {seconds:g} s (--wait): {why}")


class _Target(msgspec.Struct, frozen=True):
    """Where to connect, and the head of a request up to the value of Content-Length."""

    host: str
    port: int
    tls_name: str | None
    head: bytes


async def _resolve(url: str, content_type: str, headers: dict[str, str]) -> _Target:
    """Look the address up once, so that no request waits for a name server."""
    allowed = "http://host[:port]/path or https://host[:port]/path"
    try:
        parts = urlsplit(url)
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise InvalidInput("url", url, allowed) from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise InvalidInput("url", url, allowed)
    try:
        found = await asyncio.get_running_loop().getaddrinfo(parts.hostname, port, type=1)
    except OSError as error:
        raise InvalidInput("url", url, f"the address of a host that exists ({error.strerror or error})") from None
    path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    fields = {"host": parts.netloc.rpartition("@")[2], "content-type": content_type} | {k.lower(): v for k, v in headers.items()}
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items()), "content-length: "]
    require(not any("\n" in line or "\r" in line for line in lines), "headers", fields, "header values of one line")
    tls_name = parts.hostname if parts.scheme == "https" else None
    return _Target(str(found[0][4][0]), port, tls_name, "\r\n".join(lines).encode("latin-1"))


class _Sizes(msgspec.Struct, frozen=True):
    """The size of each request, and the header that tells it."""

    header: bytes
    values: list[float]


class _Load:
    """The whole replay: the clock's side (arrivals, timeouts) and the network's side (``sent``, ``answered``, ``failed``)."""

    def __init__(
        self,
        intended: FloatArray,
        target: _Target,
        body: Body,
        timeout: float,
        on_progress: Callable[[ReplayProgress], None] | None,
        sizes: _Sizes | None,
    ) -> None:
        n = len(intended)
        self.intended = intended
        self.target = target
        self.timeout = timeout
        self.on_progress = on_progress
        # Lists, because single elements are written and read: an array's take ten times as long.
        self.due = intended.tolist()
        self.latency = [0.0] * n
        self.lateness = [0.0] * n
        self.status = [-1] * n
        self.routes = [""] * n
        self.sizes = sizes
        self.messages: collections.Counter[str] = collections.Counter()
        self.next = 0
        self.ended = 0
        self.n_failed = 0
        self.idle: list[_Connection] = []
        self.open: set[_Connection] = set()
        self.connecting: set[asyncio.Task[None]] = set()
        # Requests under way in the order of their deadlines, which is that of the trace; the ended ones are removed from the front.
        self.under_way: collections.deque[tuple[int, _Connection]] = collections.deque()
        self.loop = asyncio.get_running_loop()
        self.finished: asyncio.Future[None] = self.loop.create_future()
        self.alarms = open_alarms()
        self.check: asyncio.TimerHandle | None = None
        self.start = 0.0
        if sizes is not None:
            self.request_of: Callable[[int], bytes] = self.sized_request(sizes, body)
        elif isinstance(body, bytes):
            fixed = self.request(body)
            self.request_of = lambda index: fixed
        else:
            self.request_of = lambda index: self.request(body(index))

    async def run(self, scale: float) -> Replay:
        cpu = time.process_time()
        self.start = time.monotonic() + 0.01  # the first arrival is awaited like all others
        self.alarms.after(self.start - time.monotonic(), self.arrivals)
        self.look()
        await self.finished
        cpu_seconds, seconds = time.process_time() - cpu, time.monotonic() - self.start
        latency, lateness = np.array(self.latency), np.array(self.lateness)
        return Replay(
            *(self.intended, latency, lateness, np.array(self.status), dict(self.messages), seconds, cpu_seconds, scale),
            routes=self.routes,
            sizes=self.sizes.values if self.sizes is not None else None,
        )

    def close(self) -> None:
        self.alarms.close()
        if self.check is not None:
            self.check.cancel()
        for task in self.connecting:
            task.cancel()
        for connection in list(self.open):
            connection.abandon()

    def request(self, body: bytes) -> bytes:
        return b"%b%d\r\n\r\n%b" % (self.target.head, len(body), body)

    def sized_request(self, sizes: _Sizes, body: Body) -> Callable[[int], bytes]:
        """From a request's index to the request, with its size in the header."""
        body_of = (lambda index: body) if isinstance(body, bytes) else body

        def request(index: int) -> bytes:
            content = body_of(index)
            told = b"%b: %b" % (sizes.header, b"%.17g" % sizes.values[index])
            return b"%b%d\r\n%b\r\n\r\n%b" % (self.target.head, len(content), told, content)

        return request

    def arrivals(self) -> None:
        """Send everything that is due, then wait for the next arrival."""
        if self.finished.done():
            return
        try:
            while self.next < len(self.due):
                index = self.next
                if time.monotonic() < self.start + self.due[index]:
                    self.alarms.after(self.start + self.due[index] - time.monotonic(), self.arrivals)
                    return
                self.next += 1
                self.send(index, self.request_of(index))
        except Exception as error:  # the caller's body function
            self.finished.set_exception(error)

    def send(self, index: int, request: bytes) -> None:
        now = time.monotonic()
        self.lateness[index] = now - self.start - self.due[index]
        connection = None
        while self.idle:
            candidate = self.idle.pop()
            if candidate.idle_since >= now - IDLE_LIMIT:
                connection = candidate
                break
            candidate.abandon()
        if connection is None:
            connection = _Connection(self)
            task = self.loop.create_task(self.connect(connection))
            self.connecting.add(task)
            task.add_done_callback(self.connecting.discard)
        self.under_way.append((index, connection))
        connection.send(index, request)

    async def connect(self, connection: _Connection) -> None:
        target = self.target
        try:
            await self.loop.create_connection(
                lambda: connection,
                target.host,
                target.port,
                ssl=True if target.tls_name else None,
                server_hostname=target.tls_name,
            )
        except OSError as error:
            connection.fail(f"cannot connect: {error.strerror or error}")

    def answered(self, index: int, status: int, message: str, route: str = "") -> None:
        self.latency[index] = time.monotonic() - self.start - self.due[index]
        self.status[index] = status
        self.routes[index] = route
        if not 200 <= status < 300:
            self.n_failed += 1
            self.messages[message] += 1
        self.ended += 1
        if self.ended == len(self.due) and not self.finished.done():
            self.finished.set_result(None)

    def look(self) -> None:
        """End what is over its time; say how far the replay is."""
        oldest = time.monotonic() - self.start - self.timeout
        while self.under_way:
            index, connection = self.under_way[0]
            if connection.index == index:
                if self.due[index] > oldest:
                    break
                connection.fail(f"no answer within {self.timeout:g} s")
            self.under_way.popleft()
        if self.on_progress is not None:
            self.on_progress(ReplayProgress(len(self.due), self.next, self.ended, self.n_failed))
        if not self.finished.done():
            self.check = self.loop.call_later(CHECK_EVERY, self.look)


class _Connection(asyncio.Protocol):
    """A keep-alive connection that carries one request at a time; ``index`` is that request, or -1."""

    def __init__(self, load: _Load) -> None:
        self.load = load
        self.transport: asyncio.Transport | None = None
        self.index = -1
        self.idle_since = 0.0
        self.waiting = b""  # the request, until the connection stands
        self.abandoned = False
        self.parser: Any = httptools.HttpResponseParser(self)
        self.excerpt = b""
        self.headed = self.framed = False
        self.route = b""
        self.reusable = True
        load.open.add(self)

    def send(self, index: int, request: bytes) -> None:
        self.index = index
        self.excerpt = b""
        self.headed = self.framed = False  # the parser still has the status of the answer before
        self.route = b""
        if self.transport is None:
            self.waiting = request
        else:
            self.transport.write(request)

    def fail(self, message: str) -> None:
        """End the request without an answer."""
        index, self.index = self.index, -1
        if index >= 0:
            self.load.answered(index, NO_ANSWER, message)
        self.abandon()

    def abandon(self) -> None:
        self.abandoned = True
        self.load.open.discard(self)
        if self.transport is not None:
            self.transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        if self.abandoned:
            self.transport.abort()
        elif self.waiting:
            self.transport.write(self.waiting)
            self.waiting = b""

    def data_received(self, data: bytes) -> None:
        if self.index < 0:
            return
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            self.fail(f"the answer is not HTTP: {error}")

    def connection_lost(self, exc: Exception | None) -> None:
        if self.index >= 0 and exc is None and self.headed and not self.framed and self.parser.get_status_code() >= 200:
            self.reusable = False
            self.end()  # an answer without a length ends with the connection
        reason = f": {exc.__class__.__name__}" if exc else ""
        self.fail(f"the connection was closed before the answer{reason}")
        if self in self.load.idle:
            self.load.idle.remove(self)

    # What httptools calls while it parses.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self.framed = True
        elif name == _ROUTE:
            self.route = value

    def on_headers_complete(self) -> None:
        self.headed = True

    def on_body(self, body: bytes) -> None:
        if len(self.excerpt) < MESSAGE_LENGTH:
            self.excerpt += body[:MESSAGE_LENGTH]

    def on_message_complete(self) -> None:
        if self.parser.get_status_code() >= 200:  # 1xx only announces the answer
            self.reusable = self.parser.should_keep_alive()
            self.end()

    def end(self) -> None:
        index, self.index = self.index, -1
        status = self.parser.get_status_code()
        message = ""
        if not 200 <= status < 300:
            message = f"{status}: {_said(self.excerpt[:MESSAGE_LENGTH])}"
        self.load.answered(index, status, message, self.route.decode("latin-1"))
        if self.reusable and not self.abandoned:
            self.idle_since = time.monotonic()
            self.load.idle.append(self)
        else:
            self.abandon()


def _said(body: bytes) -> str:
    """What a failing answer says: of a problem document (RFC 9457), as the buffer sends it, the detail alone, be it cut short."""
    detail = re.search(rb'^{.*"detail": ?"((?:[^"\\]|\\.)*)', body)
    if detail is None:
        return body.decode("utf-8", "replace")
    return re.sub(r"\\(.)", r"\1", detail[1].decode("utf-8", "replace"))
