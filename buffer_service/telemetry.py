"""What the buffer says about itself: Prometheus metrics, and lines of CloudWatch's embedded metric format on stdout.

The alarm on the SLO (template.yaml) divides ``SloViolations`` by ``Requests``: exact for any percentile, whatever the load. A
request violates the SLO when no answer came within its latency: also when it was refused, or when a 5xx came instead; nothing would
be alarming about a service that fails fast otherwise. A 4xx is an answer, to a mistake of the caller's.

Metrics of a model count all its routes together; those named ``sluice_route_*`` count each route of a routed plan apart, and a
request for the route whose function answered it. Those named ``sluice_function_*`` count what each function of the plan in force
was asked for, in whatever route it stands. Those named ``sluice_class_*`` count the requests of each class of the plan in force;
a request that told a deadline of its own violates that.
"""

from __future__ import annotations

import asyncio
import json
import logging
import math
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, cast

from prometheus_client import Counter, Gauge, ProcessCollector

from sluice.batching.documents import MACHINE_SCHEMES, Plan, Route
from sluice.batching.errors import StoreUnavailable
from sluice.batching.log_lines import Stream
from sluice.batching.measured import FAILED_FROM
from sluice.batching.urls import without_password
from sluice.buffer_service.logs import Seldom, UnblockedStream
from sluice.buffer_service.settings import NAMESPACE
from sluice.buffer_service.tallies import Amounts, Count, Counters, Distribution, Gauges, Histograms, Registry
from sluice.buffer_service.told import NOTHING_TOLD, Told
from sluice.http.room import Connections, Room
from sluice.lambda_fn.contract import NOTHING_MEASURED, Measured

SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1, 2, 5, 10, 30, 60)
SIZES = (1, 2, 4, 8, 16, 32, 64, 128)
REQUEST_SIZES = tuple(2**i for i in range(25))  # tokens, pixels or bytes
MOST_WORKERS = 1024  # by which ejections are counted; plans come and go, and name others
SLICE = 0.001  # seconds that a scrape holds the loop at a time
SAMPLE = 100  # values that one line of the embedded metric format may carry

_log = logging.getLogger(__name__)


def reason_of(error: Exception) -> str:
    """The name by which an error is counted; that the store is away has one, however it was found out."""
    return (StoreUnavailable if isinstance(error, StoreUnavailable) else type(error)).__name__


class Telemetry:
    """The metrics of one process.

    Parameters
    ----------
    stream : Stream or None
        Of lines for CloudWatch; none are written without one.
    clock : callable
        Seconds since the epoch.
    deployment : str
        Which those lines name: an account may have several.
    """

    def __init__(self, stream: Stream | None = None, clock: Callable[[], float] = time.time, deployment: str = NAMESPACE) -> None:
        self.deployment = deployment
        self.registry = Registry()
        self._scraping: asyncio.Task[bytes] | None = None
        self._stream = stream
        self._clock = clock
        registry = self.registry
        labels: tuple[str, ...] = ("model",)
        self._requests = Counters("sluice_requests", "Requests answered, by HTTP status.", (*labels, "status"), registry)
        self._refusals = Counters("sluice_refusals", "Requests not answered, by error.", (*labels, "error"), registry)
        self._latency = Histograms("sluice_latency_seconds", "From arrival to answer.", labels, SECONDS, registry)
        self._violations = Counters("sluice_slo_violations", "Requests without an answer within the SLO.", labels, registry)
        self._waits = Histograms("sluice_queue_wait_seconds", "From arrival to leaving in a batch.", labels, SECONDS, registry)
        self._sizes = Histograms("sluice_batch_size", "Requests in a batch.", labels, SIZES, registry)
        self._invocation = Histograms("sluice_invocation_seconds", "An invocation.", labels, SECONDS, registry)
        self._failures = Counters("sluice_invocation_failures", "Failed invocations.", (*labels, "error"), registry)
        text = "Invocations because one failed: elsewhere, later, or in parts."
        self._retries = Counters("sluice_invocation_retries", text, labels, registry)
        text = "Times a function was not asked for a while, as it did nothing but fail."
        self._suspensions = Counters("sluice_function_suspensions", text, labels, registry)
        by_function = (*labels, "function")
        text = "Invocations of a function."
        self._function_batches = Counters("sluice_function_batches", text, by_function, registry)
        self._function_requests = Counters("sluice_function_requests", "Requests in them.", by_function, registry)
        text = "Failed invocations of a function."
        self._function_failures = Counters("sluice_function_failures", text, (*by_function, "error"), registry)
        self._queue = Gauges("sluice_queue_length", "Requests waiting, when last seen.", labels, registry)
        self._plan = Gauges("sluice_plan_info", "The plan in force.", (*labels, "digest", "function", "policy"), registry)
        name, text = "sluice_request_size", "Of requests, as the plan has it told, in the model's own unit."
        self._request_sizes = Histograms(name, text, labels, REQUEST_SIZES, registry)
        labels = ("model", "class")
        name, text = "sluice_class_latency_seconds", "Of requests of a class, from arrival to answer."
        self._class_latency = Histograms(name, text, labels, SECONDS, registry)
        text = "Requests of a class, answered or not."
        self._class_requests = Counters("sluice_class_requests", text, labels, registry)
        text = "Requests of a class without an answer within its SLO, or within their own deadline."
        self._class_violations = Counters("sluice_class_slo_violations", text, labels, registry)
        labels = ("model", "route")
        self._share = Gauges("sluice_route_share", "Part of the requests that takes the route.", labels, registry)
        self._accuracy = Gauges("sluice_route_accuracy", "Accuracy of the route's variant, percent.", labels, registry)
        self._route_requests = Counters("sluice_route_requests", "By HTTP status.", (*labels, "status"), registry)
        name, text = "sluice_route_latency_seconds", "From arrival to answer."
        self._route_latency = Histograms(name, text, labels, SECONDS, registry)
        self._route_sizes = Histograms("sluice_route_batch_size", "Requests in a batch.", labels, SIZES, registry)
        name, text = "sluice_route_invocation_seconds", "An invocation."
        self._route_invocation = Histograms(name, text, labels, SECONDS, registry)
        name, text = "sluice_route_invocation_failures", "Failed invocations."
        self._route_failures = Counters(name, text, (*labels, "error"), registry)
        self._route_queue = Gauges("sluice_route_queue_length", "Waiting, when last seen.", labels, registry)
        self._set_aside = Counter("sluice_set_aside", "What in the store could not be read.", ("what",), registry=registry)
        self._unreadable = Seldom(_log.error)
        text = "Requests that wait, answers, and those not taken."
        self._held = Gauge("sluice_held_bytes", text, ("what",), registry=registry)
        self._connections = Gauge("sluice_connections", "Of clients, open.", registry=registry)
        text = "Connections that were one too many."
        self._connections_refused = Gauge("sluice_connections_refused", text, registry=registry)
        self._dropped = Gauge("sluice_lines_dropped", "Lines that nobody read in time.", ("stream",), registry=registry)
        self._plan_refused = Counter("sluice_plan_refused", "Plans that were refused.", ("reason",), registry=registry)
        text = "Requests refused for their API key."
        self._keys_refused = Counter("sluice_api_key_refusals", text, ("reason",), registry=registry)
        name, text = "sluice_plan_refused_timestamp_seconds", "When a plan was refused last."
        self._plan_refused_at = Gauge(name, text, registry=registry)
        text = "Times one of several workers was not asked for a while, as it failed where others did not."
        self._ejections = Counters("sluice_worker_ejections", text, ("worker",), registry)
        self._ejected: dict[str, None] = {}  # workers, the last that was at the end

        text = "Requests and connections turned away, by reason."
        self._turned_away = Counter("sluice_turned_away", text, ("reason",), registry=registry)
        text = "What the plan in force promises."
        self._slo = Gauges("sluice_slo_seconds", text, ("model", "percentile"), registry)
        text = "Part of the requests that the plan in force lets be without an answer within the SLO."
        self._allowed = Gauges("sluice_slo_allowed_share", text, ("model",), registry)
        text = "Of invocations, as functions told their times, at the prices that were given."
        self._cost = Amounts("sluice_cost_usd", text, ("model",), registry)
        self._build = Gauge("sluice_build_info", "Which version runs.", ("version", "python"), registry=registry)
        self._prices = 0.0, 0.0
        ProcessCollector(registry=registry)

    def built(self, version: str) -> None:
        """This version runs."""
        self._build.labels(version, ".".join(map(str, sys.version_info[:3]))).set(1)

    def price(self, gb_second: float, invocation: float) -> None:
        """What these cost (USD); 0 where that is not told."""
        self._prices = gb_second, invocation

    def turned_away(self, reason: str) -> None:
        """A request got an error of the buffer, or a connection was ended, for a ``reason`` of this kind."""
        self._turned_away.labels(reason).inc()

    async def scrape(self) -> bytes:
        """All metrics as Prometheus reads them; others are served meanwhile, and who asks meanwhile gets the same."""
        if self._scraping is None or self._scraping.done():
            self._scraping = asyncio.get_running_loop().create_task(self._scrape())
        return await asyncio.shield(self._scraping)

    async def _scrape(self) -> bytes:
        text = bytearray()  # that grows, as joining megabytes in the end would hold the loop for milliseconds
        until = time.perf_counter() + SLICE
        for piece in self.registry.pieces():
            text += piece.encode()
            if time.perf_counter() > until:
                await asyncio.sleep(0)
                until = time.perf_counter() + SLICE
        return cast("bytes", text)  # as good, to who only sends it

    def model(self, plan: Plan) -> ModelTelemetry:
        """The metrics of one model."""
        return ModelTelemetry(self, plan)

    def measure(self, connections: Connections, **rooms: Room) -> None:
        """Have a scrape say how many of these there are, and how full those."""
        self._connections.set_function(lambda: connections.open)
        self._connections_refused.set_function(lambda: connections.refused)
        for what, room in rooms.items():
            self._held.labels(what).set_function(partial(getattr, room, "taken"))

    def watch(self, name: str, stream: UnblockedStream) -> None:
        """Have a scrape say how many lines of a stream found no room."""
        self._dropped.labels(name).set_function(lambda: stream.dropped)

    def set_aside(self, what: str, detail: str) -> None:
        """A ``member`` of a queue, or a ``message`` to this process, could not be read."""
        self._set_aside.labels(what).inc()
        self._unreadable.say(what, f"{what} set aside: {detail}")

    def plan_refused(self, reason: str) -> None:
        """A plan could not be followed, for a ``reason`` of this kind."""
        self._plan_refused.labels(reason).inc()
        self._plan_refused_at.set(self._clock())

    def key_refused(self, reason: str) -> None:
        """A request was refused for its API key, for a ``reason`` of this kind."""
        self._keys_refused.labels(reason).inc()

    def ejected(self, worker: str) -> None:
        """One of several workers is not asked for a while; of too many, the one of which that was said longest ago is not shown."""
        self._ejected.pop(worker, None)
        self._ejected[worker] = None
        if len(self._ejected) > MOST_WORKERS:
            gone = next(iter(self._ejected))
            del self._ejected[gone]
            self._ejections.remove(gone)
        self._ejections.labels(worker).value += 1


class Counted(NamedTuple):
    """A ``Distribution`` as it stands."""

    counts: tuple[int, ...]
    sum: float

    @classmethod
    def of(cls, distribution: Distribution) -> Counted:
        """Of this one, now."""
        return cls(tuple(distribution.counts), distribution.sum)


class Invoked(NamedTuple):
    """What functions told of invocations that came back, under plans of one memory size and the same functions (``setting``).

    Those in a new environment were ``cold``; ``timed`` told their ``seconds``: what is billed where they know it, else their own
    time. ``requests`` are those in these, of which ``alone`` had an invocation each, of ``seconds_alone``.
    """

    setting: tuple[int | None, tuple[str, ...]] = (None, ())
    invocations: int = 0
    cold: int = 0
    timed: int = 0
    seconds: float = 0.0
    requests: int = 0
    alone: int = 0
    seconds_alone: float = 0.0

    def more(self, requests: int, told: Measured) -> Invoked:
        """With another one, of so many requests."""
        seconds = told.billed if told.billed is not None else told.service
        if seconds is None:
            return self._replace(invocations=self.invocations + 1, cold=self.cold + told.cold)
        alone = requests == 1
        return Invoked(
            self.setting,
            self.invocations + 1,
            self.cold + told.cold,
            self.timed + 1,
            self.seconds + seconds,
            self.requests + requests,
            self.alone + alone,
            self.seconds_alone + seconds * alone,
        )

    def since(self, before: Invoked) -> Invoked:
        """Without those of ``before``, which were counted earlier; with another setting counting began anew."""
        if before.setting != self.setting:
            return self
        return Invoked(
            self.setting,
            self.invocations - before.invocations,
            self.cold - before.cold,
            self.timed - before.timed,
            self.seconds - before.seconds,
            self.requests - before.requests,
            self.alone - before.alone,
            self.seconds_alone - before.seconds_alone,
        )


class RouteTotals(NamedTuple):
    """Of a route: requests that it answered, and the sizes of its batches."""

    answered: int
    sizes: Counted


class ClassTotals(NamedTuple):
    """Of a class of requests: how many ended, how many of them without an answer in time, and the latencies of the answers (s)."""

    ended: int
    late: int
    latency: Counted


class Totals(NamedTuple):
    """What the requests of a model have come to at this process since it began.

    ``came`` are requests, ``refused`` those without an answer by error, ``late`` those without one in time; ``latency`` is that of
    the answers (s, buckets end at ``SECONDS``), ``sizes`` are those of the batches that left (requests, buckets end at ``SIZES``),
    ``invoked`` is what functions told of them.
    ``waiting`` is how many wait, at all processes, as this one heard last, by route.
    """

    came: int
    late: int
    refused: Mapping[str, int]
    latency: Counted
    sizes: Counted
    invoked: Invoked
    waiting: Mapping[str, int]
    routes: Mapping[str, RouteTotals]
    classes: Mapping[str, ClassTotals]

    @property
    def ended(self) -> int:
        """Requests that were answered or not."""
        return sum(self.latency.counts) + sum(self.refused.values())


class ModelTelemetry:
    """The metrics of one model; children are looked up once, since a lookup costs as much as the increment.

    Who takes a request counts it in ``came``, once it is known to be one.
    """

    def __init__(self, telemetry: Telemetry, plan: Plan) -> None:
        self._telemetry = telemetry
        self.name = plan.model
        self.came = 0
        self._invoked = Invoked()
        self._refused: dict[str, Count] = {}  # by error
        self._latency = telemetry._latency.labels(self.name)
        self._violations = telemetry._violations.labels(self.name)
        self._waits = telemetry._waits.labels(self.name)
        self._sizes = telemetry._sizes.labels(self.name)
        self._invocation = telemetry._invocation.labels(self.name)
        self._queue = telemetry._queue.labels(self.name)
        self._waiting: dict[str, int] = {}  # by route
        self._routes: dict[str, RouteTelemetry] = {}
        self._by_status: dict[int, Count] = {}
        self._latencies, self._batch_sizes = Sample(), Sample()
        self._count = self._late = 0
        self.unanswered_late = 0  # requests that broke the promise without an answer, in no batch, since this process began
        self._slo = float("inf")
        self._plan_labels: set[tuple[str, str, str, str]] = set()
        self._functions: dict[str, tuple[Count, Count]] = {}  # of the plan in force: batches, requests
        self._classes: dict[str, ClassTelemetry] = {}  # of the plan in force
        self.follow(plan)

    def follow(self, plan: Plan) -> None:
        """Another plan is in force."""
        tables = [table for route in plan.all_routes for table in zip(route.functions, route.rule().tables, strict=True)]
        labels = {(self.name, plan.digest, without_password(function), table.kind) for function, table in tables}
        for gone in self._plan_labels - labels:
            self._telemetry._plan.remove(*gone)
        for here in labels:
            self._telemetry._plan.labels(*here).value = 1
        self._plan_labels = labels
        self._count_functions({function for function, _ in tables})
        setting = plan.memory_mb, tuple(function for function, _ in tables)
        if setting != self._invoked.setting:
            self._invoked = Invoked(setting)
        self._slo = plan.slo.latency if plan.slo is not None else float("inf")
        for promised in (self._telemetry._slo, self._telemetry._allowed):
            promised.remove_by_labels({"model": self.name})
        if plan.slo is not None:
            self._telemetry._slo.labels(self.name, f"{plan.slo.percentile:g}").value = plan.slo.latency
            self._telemetry._allowed.labels(self.name).value = (100 - plan.slo.percentile) / 100
        self._follow_classes({each.name for each in plan.classes})
        in_force = {route.name: route for route in plan.routes}
        for name in in_force.keys() | self._routes.keys():
            self.route(name).follow(in_force.get(name))

    def _count_functions(self, functions: set[str]) -> None:
        telemetry = self._telemetry
        for gone in self._functions.keys() - functions:
            del self._functions[gone]
            for metric in (telemetry._function_batches, telemetry._function_requests, telemetry._function_failures):
                metric.remove_by_labels({"model": self.name, "function": without_password(gone)})
        for new in functions - self._functions.keys():
            labels = self.name, without_password(new)
            self._functions[new] = telemetry._function_batches.labels(*labels), telemetry._function_requests.labels(*labels)

    def _follow_classes(self, names: set[str]) -> None:
        for gone in self._classes.keys() - names:
            self._classes.pop(gone).remove()
        for new in names - self._classes.keys():
            self._classes[new] = ClassTelemetry(self._telemetry, self.name, new)

    def route(self, name: str) -> RouteTelemetry:
        """The metrics of one route."""
        if name not in self._routes:
            self._routes[name] = RouteTelemetry(self._telemetry, self, name)
        return self._routes[name]

    def forget(self, route: str) -> None:
        """Nobody waits at a route any more that is in no plan in force; ``""`` is what a plan without routes had."""
        self.waiting(0, route)
        del self._waiting[route]
        if route in self._routes:
            self._routes.pop(route).remove()

    def answered(
        self, status: int, latency: float, route: str | None = None, told: Told = NOTHING_TOLD, waited: float | None = None
    ) -> None:
        """A request was answered ``latency`` seconds after it came, by ``route`` if by any.

        It had ``waited`` so long before it left in a batch, where that is known.
        """
        counter = self._by_status.get(status)
        if counter is None:
            counter = self._by_status[status] = self._telemetry._requests.labels(self.name, str(status))
        counter.value += 1
        self._latency.observe(latency)
        if waited is not None:
            self._waits.observe(waited)
        self._counted(told, latency if status < FAILED_FROM else math.inf)
        if told.name in self._classes:
            self._classes[told.name].latency.observe(latency)
        self._latencies.add(latency)
        if route is not None and route in self._routes:
            self._routes[route].counted(status, latency)

    def answered_together(self, latencies: Sequence[float], waited: Sequence[float]) -> None:
        """Requests that told nothing were answered with 200, by no route that has a name, after so long each (s).

        What ``answered`` counts of each alone; ``waited`` has those of whom that is known.
        """
        counter = self._by_status.get(200)
        if counter is None:
            counter = self._by_status[200] = self._telemetry._requests.labels(self.name, "200")
        counter.value += len(latencies)
        self._latency.observe_all(latencies)
        self._waits.observe_all(waited)
        self._count += len(latencies)
        if max(latencies) > self._slo:
            late = sum([latency > self._slo for latency in latencies])
            self._late += late
            self._violations.value += late
        self._latencies.add_all(latencies)

    def sized(self, size: float) -> None:
        """A request came whose size was told."""
        self._telemetry._request_sizes.labels(self.name).observe(size)

    def sent(self, batch_size: int, function: str) -> None:
        """A batch leaves for a function; of one that the plan has no more it is not counted that it was asked."""
        self._sizes.observe(batch_size)
        if function in self._functions:
            batches, requests = self._functions[function]
            batches.value += 1
            requests.value += batch_size
        self._batch_sizes.add(batch_size)

    def invoked(self, seconds: float, requests: int = 1, told: Measured = NOTHING_MEASURED, function: str = "") -> None:
        """An invocation of so many requests came back, and the ``function`` ``told`` this of itself."""
        self._invocation.observe(seconds)
        self._invoked = self._invoked.more(requests, told)
        gb_second, invocation = self._telemetry._prices
        if (gb_second or invocation) and not function.startswith(MACHINE_SCHEMES):
            seconds = told.billed if told.billed is not None else told.service or 0.0
            self._telemetry._cost.labels(self.name).value += (
                invocation + gb_second * seconds * (self._invoked.setting[0] or 0) / 1024
            )

    def failed(self, error: str, function: str) -> None:
        """An invocation of a function failed."""
        self._telemetry._failures.labels(self.name, error).value += 1
        if function in self._functions:
            self._telemetry._function_failures.labels(self.name, without_password(function), error).value += 1

    def asked_again(self) -> None:
        """An invocation is made because one failed."""
        self._telemetry._retries.labels(self.name).value += 1

    def suspended(self) -> None:
        """A function is not asked for a while."""
        self._telemetry._suspensions.labels(self.name).value += 1

    def refused(self, error: Exception, told: Told = NOTHING_TOLD, in_batch: bool = False) -> None:
        """A request got an error of the buffer instead of an answer, which was ``in_batch`` that left or not."""
        self._not_answered(reason_of(error), float("inf"), told, in_batch)

    def left(self, waited: float, told: Told = NOTHING_TOLD, in_batch: bool = False) -> None:
        """A caller went away ``waited`` seconds after he came."""
        self._not_answered("ClientLeft", waited, told, in_batch)

    @property
    def unanswered(self) -> dict[str, int]:
        """Requests without an answer since this process began, by error."""
        return {error: count.value for error, count in self._refused.items()}

    def totals(self) -> Totals:
        """What all requests have come to until now."""
        return Totals(
            self.came,
            self._violations.value,
            self.unanswered,
            Counted.of(self._latency),
            Counted.of(self._sizes),
            self._invoked,
            dict(self._waiting),
            {name: route.totals() for name, route in self._routes.items()},
            {name: each.totals() for name, each in self._classes.items()},
        )

    def waiting(self, queue_length: int, route: str = "") -> None:
        """So many wait at a route."""
        self._waiting[route] = queue_length
        self._queue.value = sum(self._waiting.values())

    def set_aside(self, detail: str) -> None:
        """A member of a queue could not be read."""
        self._telemetry.set_aside("member", detail)

    def emit(self) -> None:
        """Write what happened since the last call as one line of the embedded metric format, where lines are written."""
        stream = self._telemetry._stream
        if stream is None or not self._count:
            return
        values: dict[str, tuple[str, int | list[float]]] = {
            "Requests": ("Count", self._count),
            "SloViolations": ("Count", self._late),
            "Latency": ("Seconds", self._latencies.values),
            "BatchSize": ("Count", self._batch_sizes.values),
        }
        values = {name: (unit, value) for name, (unit, value) in values.items() if value != []}  # no list may be empty
        metrics = [{"Name": name, "Unit": unit} for name, (unit, _) in values.items()]
        line = {
            "_aws": {
                "Timestamp": int(self._telemetry._clock() * 1000),
                "CloudWatchMetrics": [{"Namespace": "Sluice", "Dimensions": [["Deployment", "Model"]], "Metrics": metrics}],
            },
            "Deployment": self._telemetry.deployment,
            "Model": self.name,
            **{name: value for name, (_, value) in values.items()},
        }
        self._count = self._late = 0
        self._latencies, self._batch_sizes = Sample(), Sample()
        stream.write(json.dumps(line) + "\n")
        stream.flush()

    def _not_answered(self, error: str, latency: float, told: Told, in_batch: bool) -> None:
        if error not in self._refused:
            self._refused[error] = self._telemetry._refusals.labels(self.name, error)
        self._refused[error].value += 1
        late = self._counted(told, latency)
        self.unanswered_late += late and not in_batch

    def _counted(self, told: Told, latency: float) -> bool:
        """A request has ended, after so long (``inf``: without the answer); whether that broke the promise."""
        promise = self._slo if told.latency is None else told.latency
        late = latency > promise  # never where nothing is promised
        self._count += 1
        if late:
            self._late += 1
            self._violations.value += 1
        if told.name in self._classes:
            self._classes[told.name].counted(late)
        return late


class ClassTelemetry:
    """The metrics of one class of requests."""

    def __init__(self, telemetry: Telemetry, model: str, name: str) -> None:
        self._labels = {"model": model, "class": name}
        self._metrics = telemetry._class_latency, telemetry._class_requests, telemetry._class_violations
        self.latency = telemetry._class_latency.labels(model, name)
        self._requests = telemetry._class_requests.labels(model, name)
        self._violations = telemetry._class_violations.labels(model, name)

    def counted(self, late: bool) -> None:
        """A request of it has ended."""
        self._requests.value += 1
        if late:
            self._violations.value += 1

    def totals(self) -> ClassTotals:
        """What its requests have come to until now."""
        return ClassTotals(self._requests.value, self._violations.value, Counted.of(self.latency))

    def remove(self) -> None:
        """The class is gone from the scrapes."""
        for metric in self._metrics:
            metric.remove_by_labels(self._labels)


class RouteTelemetry:
    """The metrics of one route; what its dispatcher reports is counted for the model as well."""

    def __init__(self, telemetry: Telemetry, model: ModelTelemetry, name: str) -> None:
        self._telemetry = telemetry
        self._model = model
        self._labels = (model.name, name)
        self._latency = telemetry._route_latency.labels(*self._labels)
        self._sizes = telemetry._route_sizes.labels(*self._labels)
        self._invocation = telemetry._route_invocation.labels(*self._labels)
        self._queue = telemetry._route_queue.labels(*self._labels)
        self._by_status: dict[int, Count] = {}

    def follow(self, route: Route | None) -> None:
        """The route as the plan in force has it; ``None`` where it has it no more."""
        self._telemetry._share.labels(*self._labels).value = route.share if route is not None else 0.0
        if route is not None and route.accuracy is not None:
            self._telemetry._accuracy.labels(*self._labels).value = route.accuracy
        elif route is not None:
            self._telemetry._accuracy.remove(*self._labels)

    def totals(self) -> RouteTotals:
        """What its requests have come to until now."""
        return RouteTotals(sum(self._latency.counts), Counted.of(self._sizes))

    def counted(self, status: int, latency: float) -> None:
        """The model counted an answer of this route."""
        counter = self._by_status.get(status)
        if counter is None:
            counter = self._by_status[status] = self._telemetry._route_requests.labels(*self._labels, str(status))
        counter.value += 1
        self._latency.observe(latency)

    def answered(
        self, status: int, latency: float, route: str | None = None, told: Told = NOTHING_TOLD, waited: float | None = None
    ) -> None:
        """As of the model, which knows all routes: a request may have been moved to another."""
        self._model.answered(status, latency, route, told, waited)

    def answered_together(self, latencies: Sequence[float], waited: Sequence[float]) -> None:
        """As of the model."""
        self._model.answered_together(latencies, waited)

    def refused(self, error: Exception, told: Told = NOTHING_TOLD, in_batch: bool = False) -> None:
        """As of the model."""
        self._model.refused(error, told, in_batch)

    def left(self, waited: float, told: Told = NOTHING_TOLD, in_batch: bool = False) -> None:
        """As of the model."""
        self._model.left(waited, told, in_batch)

    def sent(self, batch_size: int, function: str) -> None:
        """A batch leaves for a function."""
        self._model.sent(batch_size, function)
        self._sizes.observe(batch_size)

    def set_aside(self, detail: str) -> None:
        """A member of the queue could not be read."""
        self._model.set_aside(detail)

    def invoked(self, seconds: float, requests: int = 1, told: Measured = NOTHING_MEASURED, function: str = "") -> None:
        """As of the model."""
        self._model.invoked(seconds, requests, told, function)
        self._invocation.observe(seconds)

    def failed(self, error: str, function: str) -> None:
        """An invocation of a function failed."""
        self._model.failed(error, function)
        self._telemetry._route_failures.labels(*self._labels, error).value += 1

    def asked_again(self) -> None:
        """As of the model."""
        self._model.asked_again()

    def suspended(self) -> None:
        """As of the model."""
        self._model.suspended()

    def waiting(self, queue_length: int) -> None:
        """So many wait."""
        self._model.waiting(queue_length, self._labels[1])
        self._queue.value = queue_length

    def remove(self) -> None:
        """The route is gone from the scrapes."""
        telemetry = self._telemetry
        named = dict(zip(("model", "route"), self._labels, strict=True))
        for metric in (
            telemetry._route_requests,
            telemetry._route_latency,
            telemetry._route_sizes,
            telemetry._route_invocation,
            telemetry._route_failures,
            telemetry._route_queue,
            telemetry._share,
            telemetry._accuracy,
        ):
            metric.remove_by_labels(named)


class Sample:
    """A uniform sample of ``SAMPLE`` of the values of a period, or all of fewer.

    How many values are passed over before the next that takes another's place is drawn at once, so that most cost an addition.
    Reference: K.-H. Li, Reservoir-sampling algorithms of time complexity O(n (1 + log(N / n))), ACM TOMS 20 (1994), algorithm L.
    """

    __slots__ = ("_next", "_seen", "_weight", "values")

    def __init__(self) -> None:
        self.values: list[float] = []
        self._seen = 0
        self._next = SAMPLE  # which is the last that is taken for certain
        self._weight = 1.0

    def add_all(self, values: Sequence[float]) -> None:
        """More values; where none of them is taken, they are counted at once."""
        if self._seen >= SAMPLE and self._seen + len(values) < self._next:
            self._seen += len(values)
            return
        for value in values:
            self.add(value)

    def add(self, value: float) -> None:
        """One more value."""
        self._seen += 1
        if self._seen < self._next:
            if self._seen < SAMPLE:
                self.values.append(value)
            return
        if self._seen == SAMPLE:
            self.values.append(value)
        else:
            self.values[random.randrange(SAMPLE)] = value
        self._weight *= math.exp(math.log(1 - random.random()) / SAMPLE)
        self._next = self._seen + 1 + math.floor(math.log(1 - random.random()) / math.log1p(-self._weight))
