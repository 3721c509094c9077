"""Spans of OpenTelemetry, where ``SLUICE_TRACES`` is ``on``: what a request's time went to, and which requests left together.

    POST /models/{model}    server      from head to answer; its parent is the ``traceparent`` of the request, where it has one
    queue                   internal    in it: from the arrival to leaving in a batch, of who left in one
    batch                   internal    a trace of its own: a call of a function, with a link to the request span of each item
    invoke                  client      in it: from the batch being sent to the answers, or the error

An item carries the ``traceparent`` of its request's span, wherever its batch is sent from, so that the function's own spans are
below it. What may live here: spans, made around the server's and the invoker's ports; nothing else of the buffer knows of them, and
nothing of this is imported where they are off. They are exported from a thread, out of a queue that has an end: what finds no room
there is dropped.

The SDK reads its own variables: OTEL_EXPORTER_OTLP_ENDPOINT, OTEL_SERVICE_NAME, OTEL_TRACES_SAMPLER, OTEL_BSP_MAX_QUEUE_SIZE, ...
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from http import HTTPStatus

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Link, Span, SpanKind, Status, StatusCode, Tracer, get_current_span, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from sluice.batching.urls import without_password
from sluice.buffer_service.invokers import Invoker
from sluice.buffer_service.invokers.port import Around, BatchAnswer
from sluice.buffer_service.kept_requests import REPLAYED
from sluice.http.connection import Fields
from sluice.http.server import Client, Request
from sluice.lambda_fn.contract import Batch, Item

SERVICE = "sluice-buffer"
QUEUED = 4096  # spans that wait to be exported, unless OTEL_BSP_MAX_QUEUE_SIZE says another
NANOSECONDS = 1_000_000_000
_TOLD = {
    b"sluice-route": "sluice.route",
    b"sluice-function": "sluice.function",
    b"x-request-id": "sluice.request.id",
}
_PROPAGATOR = TraceContextTextMapPropagator()


class Traces:
    """Makes the spans of a process by the tracers of a provider."""

    def __init__(self, provider: TracerProvider, clock: Callable[[], int] = time.time_ns) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("sluice")
        self._clock = clock

    @classmethod
    def exported(cls) -> Traces:
        """To where the variables of the SDK say."""
        resource = Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", SERVICE)})
        provider = TracerProvider(resource=resource)
        most = int(os.environ.get("OTEL_BSP_MAX_QUEUE_SIZE", QUEUED))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), max_queue_size=most))
        return cls(provider)

    def request(self, client: Client, carried: Mapping[str, str], path: str, model: str) -> TracedRequest:
        """The span of a request for an inference, which begins now; ``carried`` are the headers that its item would carry."""
        parent = _PROPAGATOR.extract(carried) if "traceparent" in carried else Context()
        attributes = {"http.request.method": "POST", "http.route": path, "sluice.model": model}
        if named := carried.get("x-request-id", ""):
            attributes["sluice.request.id"] = named
        now = self._clock()
        span = self._tracer.start_span(f"POST {path}", parent, SpanKind.SERVER, attributes, start_time=now)
        return TracedRequest(client, span, bool(named), self._tracer, self._clock, now)

    def invoker(self, invoker: Invoker) -> TracedInvoker:
        """The same, with the spans of each batch."""
        return TracedInvoker(invoker, self._tracer, self._clock)

    def close(self) -> None:
        """What was not exported yet is; blocks."""
        self._provider.shutdown()


class TracedRequest:
    """The client of a request, and the request to its client, around both of which its span is."""

    __slots__ = ("_began", "_client", "_clock", "_is_named", "_request", "_span", "_tracer")

    def __init__(self, client: Client, span: Span, is_named: bool, tracer: Tracer, clock: Callable[[], int], began: int) -> None:
        self._client = client
        self._span = span
        self._is_named = is_named
        self._tracer = tracer
        self._clock = clock
        self._began = began
        self._request: Request | None = None

    def carried(self, carried: Mapping[str, str]) -> dict[str, str]:
        """The headers that its item carries: what is done for it is below this span."""
        told = dict(carried)
        _PROPAGATOR.inject(told, set_span_in_context(self._span))
        return told

    def around(self, request: Request) -> Request:
        """What its server tells of it."""
        self._request = request
        return self

    def piece(self, body: bytes) -> None:
        assert self._request is not None
        self._request.piece(body)

    def end(self, last: bytes = b"") -> None:
        assert self._request is not None
        self._request.end(last)

    def gone(self) -> None:
        assert self._request is not None
        self._request.gone()
        self._span.set_attribute("sluice.client.gone", True)
        self._span.end(self._clock())

    def go_ahead(self) -> None:
        self._client.go_ahead()

    def reply(self, status: int, content_type: str, body: bytes, fields: Fields = (), close: bool = False) -> None:
        self._client.reply(status, content_type, body, fields, close)
        span = self._span
        if span.is_recording():
            span.set_attribute("http.response.status_code", int(status))
            if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
                span.set_status(StatusCode.ERROR)
            replayed = (REPLAYED, b"true") in fields
            if replayed:
                span.set_attribute("sluice.replayed", True)
            for name, value in fields:
                if name == b"sluice-waited" and not replayed:  # else it is another request that waited
                    self._queued(float(value))
                elif name == b"sluice-batch-size":
                    span.set_attribute("sluice.batch.size", int(value))
                elif name in _TOLD and not (self._is_named and name == b"x-request-id"):
                    span.set_attribute(_TOLD[name], value.decode("latin-1"))
        span.end(self._clock())

    def _queued(self, seconds: float) -> None:
        span = self._tracer.start_span("queue", set_span_in_context(self._span), start_time=self._began)
        span.end(self._began + round(seconds * NANOSECONDS))


class TracedInvoker(Around):
    """A way to functions, with a span of each batch and of its invocation; what is asked beside batches has none."""

    def __init__(self, invoker: Invoker, tracer: Tracer, clock: Callable[[], int]) -> None:
        super().__init__(invoker)
        self._tracer = tracer
        self._clock = clock

    async def ask(self, function: str, batch: Batch, avoid: str = "") -> BatchAnswer:
        attributes: dict[str, str | int] = {"sluice.model": batch.model, "sluice.batch.size": len(batch.items)}
        links = [link for item in batch.items if (link := _link(item)) is not None]
        now, called = self._clock(), {"sluice.function.name": without_password(function)}
        whole = self._tracer.start_span("batch", Context(), SpanKind.INTERNAL, attributes, links, now)
        span = self._tracer.start_span("invoke", set_span_in_context(whole), SpanKind.CLIENT, called, start_time=now)
        try:
            return await self._ask(function, batch, avoid)
        except Exception as error:
            for each in (span, whole):
                each.set_status(Status(StatusCode.ERROR, type(error).__name__))
            raise
        finally:
            for each in (span, whole):
                each.end(self._clock())


def _link(item: Item) -> Link | None:
    """To the span of the request that an item is; of another process's too."""
    if "traceparent" not in item.headers:
        return None
    told = get_current_span(_PROPAGATOR.extract(item.headers)).get_span_context()
    return Link(told) if told.is_valid else None
