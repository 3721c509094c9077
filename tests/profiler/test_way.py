"""The way through a buffer: what is left of a request less an invocation, and every way in which it cannot be measured."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from itertools import count

import pytest

from sluice.batching.errors import DispatchFailed, FunctionFailed, InvalidInput
from sluice.lambda_fn import contract
from sluice.profiler.invocations import Invocation
from sluice.profiler.reports import Report
from sluice.profiler.samples import Sample
from sluice.profiler.way import PROBES, WARM_UP, Alone, BufferOfModel, measure_way


class Buffer:
    """Answers as told, and 200 for ever."""

    def __init__(self) -> None:
        self.model: tuple[int, object] = (
            200,
            {"name": "m", "plan": {"digest": "d", "alone": {"function": "m-512:live", "hold": 0.25}}},
        )
        self.status, self.ready, self.posted = 200, 200, []
        self.key: str | None = None
        self.keep_alive: float | None = None
        self.closed = threading.Event()
        buffer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version, wbufsize = "HTTP/1.1", -1  # head and body in one segment, which is answered at once

            @property
            def timeout(self) -> float | None:
                """After which an idle connection is closed, s."""
                return buffer.keep_alive

            def do_GET(self) -> None:
                if self.headers["x-api-key"] != buffer.key:
                    self.answer(401, b"a key is needed")
                elif self.path.endswith("/ready"):
                    self.answer(buffer.ready, b"{}")
                else:
                    self.answer(buffer.model[0], json.dumps(buffer.model[1]).encode())

            def do_POST(self) -> None:
                buffer.posted.append(
                    (self.path, self.rfile.read(int(self.headers["content-length"])), self.headers["content-type"])
                )
                self.answer(buffer.status if self.headers["x-api-key"] == buffer.key else 401, b"said")

            def answer(self, status: int, body: bytes) -> None:
                self.send_response(status)
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None: ...

            def finish(self) -> None:
                super().finish()
                buffer.closed.set()

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}/models/m"


@pytest.fixture
def buffer() -> Iterator[Buffer]:
    buffer = Buffer()
    thread = threading.Thread(target=buffer.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield buffer
    buffer.server.shutdown()
    thread.join()
    buffer.server.server_close()


SAMPLE = Sample(b'{"x": 1}')


def ticking(seconds: list[float]) -> Iterator[float]:
    """A clock by which the requests take these times in turn, again and again."""
    now = 0.0
    for i in count():
        yield now
        now += seconds[i % len(seconds)]
        yield now


def invoked(cold: bool = False) -> object:
    asked: list[tuple[str, bytes]] = []

    def invoke(function: str, payload: bytes) -> Invocation:
        asked.append((function, payload))
        return Invocation(b"", Report(0.01, 0.01, 512, 90, 0.5 if cold and len(asked) % 2 else None), 0.012)

    invoke.asked = asked  # type: ignore[attr-defined]
    return invoke


def test_the_way_is_what_a_request_takes_beyond_its_hold_and_an_invocation(buffer: Buffer) -> None:
    clock = ticking([0.25 + 0.012 + way for way in (0.001, 0.003)])
    invoke = invoked()
    way = measure_way(BufferOfModel(buffer.url, clock=lambda: next(clock)), invoke, "m", SAMPLE)  # type: ignore[arg-type]
    assert way.mean == pytest.approx(0.002) and way.n == PROBES
    assert dict(way.quantiles)[0.05] == pytest.approx(0.001) and dict(way.quantiles)[0.95] == pytest.approx(0.003)
    assert buffer.posted == [("/models/m", b'{"x": 1}', "application/json")] * (PROBES + WARM_UP)
    assert {function for function, _ in invoke.asked} == {"m-512:live"}  # type: ignore[attr-defined]


def test_how_the_call_of_the_function_varies_is_in_the_ways_quantiles(buffer: Buffer) -> None:
    clock, walls = ticking([0.25 + 0.012 + 0.002]), iter([0.011, 0.013] * PROBES)

    def invoke(function: str, payload: bytes) -> Invocation:
        return Invocation(b"", Report(0.01, 0.01, 512, 90, None), next(walls))

    way = measure_way(BufferOfModel(buffer.url, clock=lambda: next(clock)), invoke, "m", SAMPLE, 20)
    assert way.mean == pytest.approx(0.002)
    assert list(dict(way.quantiles).values()) == pytest.approx([0.002] * len(way.quantiles)), "as long through the buffer each time"


def test_where_nobody_is_held_the_call_at_the_end_of_a_hold_is_added(buffer: Buffer) -> None:
    buffer.model = (200, {"plan": {"alone": {"function": "m-512:live", "hold": 0.0}}})
    clock = ticking([0.012 + 0.001, 0.0004])  # a request, and the question whether the model is ready
    way = measure_way(BufferOfModel(buffer.url, clock=lambda: next(clock)), invoked(), "m", SAMPLE, 20)  # type: ignore[arg-type]
    assert way.mean == pytest.approx(0.0014) and dict(way.quantiles)[0.95] == pytest.approx(0.0014)
    buffer.ready = 503
    with pytest.raises(FunctionFailed, match=r"/models/m is not ready \(503\): \{\}"):
        measure_way(BufferOfModel(buffer.url), invoked(), "m", SAMPLE, 20)  # type: ignore[arg-type]


def test_a_buffer_that_is_quicker_than_the_client_here_takes_nothing_and_cold_starts_do_not_count(buffer: Buffer) -> None:
    clock = ticking([0.255])
    way = measure_way(BufferOfModel(buffer.url, clock=lambda: next(clock)), invoked(cold=True), "m", SAMPLE, 20)  # type: ignore[arg-type]
    assert way.mean == 0 and set(dict(way.quantiles).values()) == {0.0} and way.n == 10


@pytest.mark.parametrize(
    "url", ["127.0.0.1:8080/models/m", "http://h/models/", "http://h", "ftp://h/models/m", "http://h/models/a/b"]
)
def test_an_address_that_is_none_of_a_models_requests_is_refused(url: str) -> None:
    with pytest.raises(
        InvalidInput, match=r"--buffer: .* allowed: where the model's requests are posted: http://HOST:PORT/models/NAME"
    ):
        BufferOfModel(url)


@pytest.mark.parametrize("model", [(404, {"title": "Unknown model"}), (200, {"name": "m", "plan": {"digest": "d"}}), (200, [])])
def test_a_model_that_does_not_say_where_a_request_goes_alone_is_refused(buffer: Buffer, model: tuple[int, object]) -> None:
    buffer.model = model
    with pytest.raises(InvalidInput, match=r"--buffer: .* a model of a buffer that says where a request goes that comes alone"):
        BufferOfModel(buffer.url).alone()
    buffer.model = (200, {"plan": {"alone": {"function": "f", "hold": 0}}})
    assert BufferOfModel(buffer.url).alone() == Alone("f", 0.0)


def test_of_a_problem_the_detail_is_said_once(buffer: Buffer) -> None:
    buffer.model = (404, json.loads(contract.problem(404, "Unknown model", "model: 'm' is not allowed; allowed: one of n")))
    with pytest.raises(InvalidInput, match=r"comes alone \(404: model: 'm' is not allowed; allowed: one of n\)$"):
        BufferOfModel(buffer.url).alone()


def test_a_request_that_fails_and_a_buffer_that_is_away_say_so(buffer: Buffer) -> None:
    buffer.status = 503
    with pytest.raises(FunctionFailed, match=r"/models/m answered with status 503: said"):
        BufferOfModel(buffer.url).ask(SAMPLE)
    with pytest.raises(DispatchFailed, match=r"http://127.0.0.1:1/models/m does not answer: ConnectionRefused"):
        BufferOfModel("http://127.0.0.1:1/models/m").alone()


def test_a_buffer_that_asks_for_a_key_is_shown_it_with_every_request(buffer: Buffer) -> None:
    buffer.key = "s3cret"
    with pytest.raises(InvalidInput, match=r"\(401: a key is needed\)"):
        BufferOfModel(buffer.url).alone()
    with pytest.raises(FunctionFailed, match="status 401"):
        BufferOfModel(buffer.url).ask(SAMPLE)
    known = BufferOfModel(buffer.url, {"x-api-key": "s3cret"})
    assert known.alone() == Alone("m-512:live", 0.25) and known.ask(SAMPLE) > 0 and known.queue_call() > 0


def test_a_buffer_that_was_asked_before_a_sweep_and_has_closed_the_idle_connection_is_measured_after_it(buffer: Buffer) -> None:
    buffer.keep_alive = 0.05
    asked = BufferOfModel(buffer.url)
    assert asked.alone().hold == 0.25
    assert buffer.closed.wait(10)
    buffer.keep_alive = None
    assert measure_way(asked, invoked(), "m", SAMPLE, 20).n == 20  # type: ignore[arg-type]
