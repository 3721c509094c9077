"""Spans of the buffer, by the SDK's exporter in memory."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, ParentBased
from opentelemetry.trace import SpanKind, StatusCode

from sluice.batching.errors import FunctionFailed, InvalidInput
from sluice.batching.policy import no_batching, size_or_timeout, static
from sluice.buffer_service import app
from sluice.buffer_service.settings import Settings
from sluice.buffer_service.traces import QUEUED, Traces
from sluice.lambda_fn import Reply
from sluice.testing import memory_buffer

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
GIVEN = {"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "vendor=1"}


class Spans:
    """A provider whose spans are at hand."""

    def __init__(self, **options) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**options)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.buffer = None

    def traces(self) -> Traces:
        return Traces(self.provider, lambda: round(1e9 * self.buffer.now))

    def named(self, name):
        return [span for span in self.exporter.get_finished_spans() if span.name == name]

    @property
    def requests(self):
        return self.named("POST /models/{model}")


@pytest.fixture
def traced(monkeypatch):
    """``traced(model, plan)``: a buffer whose spans are kept in memory, and these."""
    running = []

    def start(model, plan, spans=None, **settings):
        spans = spans or Spans()
        monkeypatch.setattr(app, "_traces", spans.traces)
        block = memory_buffer(model, plan, traces="on", takes=lambda requests: 0.1, **settings)
        spans.buffer = block.__enter__()
        running.append(block)
        return spans.buffer, spans

    yield start
    for block in running:
        block.__exit__(None, None, None)


def echo(inputs: list) -> list:
    return inputs


def seconds(span):
    return round(span.start_time / 1e9, 2), round(span.end_time / 1e9, 2)


def test_a_request_has_a_span_below_the_one_of_its_client_and_its_wait_is_below_that(traced):
    buffer, spans = traced(echo, size_or_timeout(2, 0.02))
    buffer.sleep(1.0)
    assert buffer.ask(21, headers={**GIVEN, "x-request-id": "order-17"}).status == 200
    [request], [queue] = spans.requests, spans.named("queue")
    assert request.kind is SpanKind.SERVER
    assert (f"{request.context.trace_id:032x}", f"{request.parent.span_id:016x}") == (TRACE, PARENT)
    assert request.context.trace_state.get("vendor") == "1"
    assert (queue.parent.span_id, queue.context.trace_id) == (request.context.span_id, request.context.trace_id)
    assert (seconds(request), seconds(queue)) == ((1.0, 1.12), (1.0, 1.02))
    assert dict(request.attributes) == {
        "http.request.method": "POST",
        "http.route": "/models/{model}",
        "http.response.status_code": 200,
        "sluice.model": "echo",
        "sluice.batch.size": 1,
        "sluice.request.id": "order-17",
    }


def test_a_batch_is_a_trace_of_its_own_with_a_link_to_each_of_its_requests(traced):
    buffer, spans = traced(echo, size_or_timeout(3, 0.02))
    buffer.ask_all([1, 2, 3])
    [batch], [invoke] = spans.named("batch"), spans.named("invoke")
    assert batch.parent is None
    assert {link.context.span_id for link in batch.links} == {request.context.span_id for request in spans.requests}
    assert (batch.attributes["sluice.batch.size"], invoke.attributes["sluice.function.name"]) == (3, "of-this-test")
    assert (invoke.kind, invoke.parent.span_id, seconds(invoke)) == (SpanKind.CLIENT, batch.context.span_id, (0.0, 0.1))


def test_the_function_is_told_the_span_of_the_request_in_the_place_of_that_of_the_client(traced):
    seen = []

    class Seeing:
        def predict(self, inputs: list) -> list:
            return [Reply(b"1", "application/json") for _ in inputs]

    buffer, spans = traced(Seeing, no_batching())
    function = buffer._functions["of-this-test"]

    class Watched(dict):
        def __contains__(self, name):
            return True

        def __getitem__(self, name):
            async def invoke(payload):
                seen.append(payload)
                return await function(payload)

            return invoke

    buffer._service._invoker._functions = Watched()
    buffer.ask(21, headers=GIVEN)
    buffer.ask(21)
    first, second = spans.requests
    told = [f"00-{of.context.trace_id:032x}-{of.context.span_id:016x}-".encode() for of in (first, second)]
    assert [traceparent in payload for traceparent, payload in zip(told, seen, strict=True)] == [True, True]
    assert PARENT.encode() not in seen[0] and b'"tracestate":"vendor=1"' in seen[0].replace(b" ", b"")
    assert second.parent is None


def test_errors_are_said_by_the_spans_where_they_happened(traced):
    def failing(inputs: list) -> list:
        raise RuntimeError("no")

    buffer, spans = traced(failing, no_batching(), max_body_bytes=100)
    assert [buffer.ask(1).status, buffer.ask(b" " * 101).status, buffer.ask(1, "/models/x").status] == [500, 413, 404]
    assert [(each.attributes["http.response.status_code"], each.status.status_code) for each in spans.requests] == [
        (500, StatusCode.ERROR),
        (413, StatusCode.UNSET),
        (404, StatusCode.UNSET),
    ]

    async def lost(payload):
        raise FunctionFailed("the worker is away")

    buffer._service._invoker._functions = {"of-this-test": lost}
    assert buffer.ask(1).status == 502
    [batch] = [span for span in spans.named("batch") if span.status.status_code is StatusCode.ERROR]
    assert batch.status.description == "FunctionFailed"


def test_a_client_that_goes_ends_its_span(traced):
    buffer, spans = traced(echo, static(9, None))
    sent = buffer.send(1)
    buffer.sleep(1.0)
    sent.give_up()
    [request] = spans.requests
    assert (request.attributes["sluice.client.gone"], seconds(request)) == (True, (0.0, 1.0))


def test_one_that_is_fetched_later_ends_with_202_and_its_batch_links_to_it(traced):
    buffer, spans = traced(echo, no_batching())
    place = buffer.ask(21, headers={"prefer": "respond-async"}).headers["location"]
    buffer.sleep(1.0)
    assert buffer.get(place).json == 21
    [request], [batch] = spans.requests, spans.named("batch")
    assert request.attributes["http.response.status_code"] == 202
    assert [link.context.span_id for link in batch.links] == [request.context.span_id]


def test_a_replayed_answer_has_no_wait_of_its_own(traced):
    buffer, spans = traced(echo, size_or_timeout(2, 0.02))
    for _ in range(2):
        assert buffer.ask(21, headers={"idempotency-key": "k"}).waited == 0.02
    assert ["sluice.replayed" in request.attributes for request in spans.requests] == [False, True]
    assert len(spans.named("queue")) == len(spans.named("batch")) == 1


def test_what_is_not_sampled_is_not_exported_and_its_function_told_so(traced):
    buffer, spans = traced(echo, no_batching(), Spans(sampler=ParentBased(ALWAYS_OFF)))
    assert buffer.ask(21).status == 200
    assert buffer.ask(21, headers=GIVEN).status == 200
    assert [span.name for span in spans.exporter.get_finished_spans()] == ["queue", "POST /models/{model}"]


def test_spans_are_exported_out_of_a_queue_that_has_an_end(monkeypatch):
    def made():
        return Traces.exported()._provider

    def longest(provider):
        [processor] = provider._active_span_processor._span_processors
        return processor._batch_processor._max_queue_size

    monkeypatch.delenv("OTEL_BSP_MAX_QUEUE_SIZE", raising=False)
    for provider, most in ((made(), QUEUED), (monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "600") or made(), 600)):
        assert longest(provider) == most
        provider.shutdown()


def test_where_they_are_off_nothing_of_them_is_there():
    with memory_buffer(echo, no_batching()) as buffer:
        assert buffer._service.traces is None and buffer._service._asked._invoker is buffer._service._invoker
        assert buffer._routes.paths["/models/{model}"] == ("POST", buffer._routes._infer)


def test_without_the_extra_the_setting_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sluice.buffer_service.traces", None)
    with pytest.raises(InvalidInput, match=r"^SLUICE_TRACES: 'on' is not allowed; .*pip install 'sluice-batching\[otel\]'"):
        app.BufferService(Settings(redis_url="memory://", traces="on"))
    with pytest.raises(InvalidInput, match="^SLUICE_TRACES: 'yes' is not allowed; allowed: off or on"):
        Settings(traces="yes")
