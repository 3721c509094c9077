"""The load generator is an open loop: arrivals keep their times whatever the server does, and nothing is lost or hidden."""

from __future__ import annotations

import asyncio
import gc
import http.server
import json
import socket
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluice.batching.documents import Slo
from sluice.batching.errors import InvalidInput
from sluice.local.replay import Replay, intended_times, replay, run

pytestmark = pytest.mark.full

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """A server that answers bytes of the test's choice; it keeps when each request came and what was in it."""

    def __init__(self, answer: Callable[[int, bytes], Awaitable[bytes | None]]) -> None:
        self.answer = answer
        self.times: list[float] = []
        self.bodies: list[bytes] = []
        self.heads: list[str] = []
        self.connections = 0
        self.writers: set[asyncio.StreamWriter] = set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.writers.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode()
                length = int(head.lower().partition("content-length: ")[2].partition("\r\n")[0])
                self.bodies.append(await reader.readexactly(length))
                self.times.append(time.monotonic())
                self.heads.append(head)
                answer = await self.answer(len(self.bodies) - 1, self.bodies[-1])
                if answer is None:  # close without a word
                    break
                writer.write(answer)
                if (b"content-length" not in answer and b"chunked" not in answer) or b"connection: close" in answer:
                    await writer.drain()
                    break
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.writers.discard(writer)
            writer.close()

    def die(self) -> None:
        self.listener.close()
        for writer in list(self.writers):
            writer.transport.abort()


@asynccontextmanager
async def serving(answer=None, delay=0.0):
    async def at_once(index, body):
        await asyncio.sleep(delay)
        return OK

    server = Server(answer or at_once)
    server.listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, backlog=1000)
    server.url = f"http://127.0.0.1:{server.listener.sockets[0].getsockname()[1]}/models/mlp"
    try:
        yield server
    finally:
        server.die()


async def test_a_slow_server_does_not_slow_the_arrivals():
    times, all_came = np.arange(200) * 0.0025, asyncio.Event()

    async def when_all_have_come(index, body):
        if index == len(times) - 1:
            all_came.set()
        await all_came.wait()  # which a closed loop would do for ever
        return OK

    async with serving(when_all_have_come) as server:
        result = await replay(times, server.url)
    assert np.all(result.latency >= times[-1] - times) and np.all(result.status == 200)
    assert server.connections == 200


async def test_latency_counts_from_the_intended_time_so_a_stall_shows_in_every_request_it_delays():
    times = np.arange(100) * 0.005
    stall_ends = None

    async def stalling(index, body):
        nonlocal stall_ends
        if stall_ends is None:
            stall_ends = time.monotonic() + 0.4
        await asyncio.sleep(max(0.0, stall_ends - time.monotonic()))
        return OK

    async with serving(stalling) as server:
        result = await replay(times, server.url)
    during = times < 0.35
    # The request that came t seconds into a stall of 0.4 s waits 0.4 - t: a closed loop would have seen one slow request.
    expected = 0.4 - times[during]
    assert np.all(result.latency[during] >= expected)
    assert result.latency_percentile(50) > 0.1


async def test_lateness_of_the_generator_is_part_of_the_latency():
    def slow_to_make(index):
        if index == 0:
            time.sleep(0.05)
        return b"x"

    async with serving() as server:
        result = await replay([0.0, 0.01, 0.02], server.url, body=slow_to_make)
    assert result.lateness[1] >= 0.03 and result.latency[1] > result.lateness[1]
    assert result.lateness_percentile(100) >= 0.05


async def test_of_replays_side_by_side_the_first_alone_collects_garbage_which_would_delay_those_under_way(monkeypatch):
    collected = []
    monkeypatch.setattr(gc, "collect", lambda: collected.append(gc.isenabled()))
    async with serving() as server:
        await asyncio.gather(*(replay([0.0, 0.02], server.url) for _ in range(3)))
    assert collected == [True] and gc.isenabled()


async def test_every_arrival_is_sent_once_with_its_own_body_even_all_at_one_time():
    async with serving(delay=0.01) as server:
        result = await replay(np.zeros(400), server.url, body=lambda index: json.dumps({"index": index}).encode())
    assert sorted(json.loads(body)["index"] for body in server.bodies) == list(range(400))
    assert len(result.status) == 400 and result.answered.all()


async def test_connections_are_kept_and_used_again():
    async with serving() as server:
        result = await replay(np.arange(20) * 0.02, server.url)
    assert result.answered.all()
    begun, ended = result.intended + result.lateness, result.intended + result.latency
    at_once = max(np.sum((begun <= at) & (at <= ended)) for at in begun)
    assert server.connections <= at_once  # where the machine is slow, some wait for their answers beside each other


async def test_a_connection_that_the_server_closed_while_idle_is_not_used_again():
    async def answer_then_close(index, body):
        asyncio.get_running_loop().call_later(0.01, lambda: [writer.close() for writer in server.writers])
        return OK

    async with serving(answer_then_close) as server:
        result = await replay(np.arange(5) * 0.1, server.url)
    assert result.answered.all(), result.messages
    assert server.connections == 5


async def test_when_the_server_dies_the_rest_counts_as_failed_and_nothing_hangs():
    async def dying(index, body):
        if index >= 50:
            server.die()
            return None
        return OK

    async with serving(dying) as server:
        result = await replay(np.arange(200) * 0.002, server.url, timeout=5.0)
    assert 0 < result.answered.sum() <= 50
    assert not any("no answer within" in message for message in result.messages)
    assert np.all(result.status[~result.answered] == 0)
    assert sum(result.messages.values()) == (~result.answered).sum() == result.failures()["0"]
    assert any(message.startswith("cannot connect: ") for message in result.messages)
    assert result.latency_percentile(95) == float("inf")
    assert result.summary().latency["p95"] is None


async def test_a_request_that_is_not_answered_in_time_ends_by_the_timeout():
    async def silent(index, body):
        if index % 2:
            await asyncio.Event().wait()
        return OK

    async with serving(silent) as server:
        result = await replay(np.arange(10) * 0.01, server.url, timeout=1.0)
    assert result.messages == {"no answer within 1 s": 5}
    assert np.all(result.latency[~result.answered] >= 1.0)


async def test_a_host_that_takes_no_connection_times_out_too():
    with socket.socket() as full:  # nobody accepts, and beyond the backlog no connection is completed
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        result = await replay(np.zeros(8), f"http://127.0.0.1:{full.getsockname()[1]}/", timeout=0.3)
    assert result.failures() == {"0": 8}


async def test_failures_are_counted_by_status_and_quote_the_server():
    async def refusing(index, body):
        text = b'{"title": "queue is full"}'
        return OK if index % 4 else b"HTTP/1.1 429 Too Many\r\ncontent-length: %d\r\n\r\n%b" % (len(text), text)

    async with serving(refusing) as server:
        result = await replay(np.arange(100) * 0.001, server.url)
    assert result.failures() == {"429": 25}
    assert result.messages == {'429: {"title": "queue is full"}': 25}


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n", 200),
        (b"HTTP/1.1 200 OK\r\n\r\nok until the end", 200),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok", 200),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", 200),
        (b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n", 202),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\nconnection: close\r\n\r\nok", 0),
        (b"SSH-2.0 content-length\r\n", 0),
        (None, 0),
    ],
)
async def test_answers_end_as_http_says(answer, status):
    async def answering(index, body):
        return answer

    async with serving(answering) as server:
        result = await replay(np.arange(3) * 0.02, server.url)
    assert result.status.tolist() == [status] * 3, result.messages
    assert not any("no answer within" in message for message in result.messages)


async def test_requests_carry_what_was_asked():
    async with serving() as server:
        url = server.url.replace("127.0.0.1", "localhost") + "?a=1"
        await replay([0.0], url, body=b"\x00\x01", content_type="image/png", headers={"Authorization": "Bearer x"})
    assert server.bodies == [b"\x00\x01"]
    head = server.heads[0].lower()
    for line in ("post /models/mlp?a=1 http/1.1", "host: localhost:", "content-type: image/png", "authorization: bearer x"):
        assert line in head


async def test_each_request_tells_its_size_and_has_its_own_body_and_routes_are_told_apart():
    async def by_body(index, body):
        route = b"sluice-route: %b\r\n" % {b"1": b"short", b"9": b"long"}.get(body, b"")
        return (
            OK.replace(b"200 OK", b"500 Oh") if body == b"5" else OK.replace(b"content", route + b"content") if body != b"7" else OK
        )

    sizes = np.array([1.0, 9.0, 1.0, 9.0, 9.0, 7.0, 5.0, 1e6])
    bodies = [b"%g" % size for size in sizes]
    async with serving(by_body) as server:
        times = 0.02 * np.arange(len(sizes))
        result = await replay(times, server.url, body=bodies.__getitem__, sizes=sizes, size_header="X-Tokens", limit=7)
    heads = [head.lower().split("\r\n") for head in server.heads]
    told = {body: f"x-tokens: {float(body):g}" for body in server.bodies}
    assert all(told[body] in head for body, head in zip(server.bodies, heads, strict=True)) and len(heads) == 7
    assert result.routes == ["short", "long", "short", "long", "long", "", ""] and result.sizes == sizes[:7].tolist()
    summary = result.summary()
    assert {name: route.requests for name, route in summary.routes.items()} == {"short": 2, "long": 3}
    assert summary.routes["long"].latency["max"] == max(result.latency[[1, 3, 4]]) and summary.latency["max"] is None
    document = json.loads(msgspec.json.encode(result.document()))
    assert document["requests"]["route"] == result.routes and document["requests"]["size"] == result.sizes


@pytest.mark.parametrize(
    ("given", "message"),
    [({"sizes": [1.0]}, "sizes: 1 is not allowed; allowed: one for each of 2 arrivals"),
     ({"sizes": [1.0, 2.0], "size_header": "a b"}, "size_header: 'a b' is not allowed; allowed: the name of a header")],
)  # fmt: skip
async def test_sizes_that_are_not_those_of_the_arrivals_are_refused(given, message):
    with pytest.raises(InvalidInput, match=message):
        await replay([0.0, 1.0], "http://127.0.0.1:9/", **given)


async def test_scale_makes_the_trace_faster_and_progress_counts_to_the_end():
    seen = []
    async with serving() as server:
        result = await replay(np.arange(51) * 0.1, server.url, scale=10, seconds=0.4, limit=100, on_progress=seen.append)
    assert len(result.intended) == 40
    assert result.intended[-1] == pytest.approx(0.39)
    assert result.scale == 10
    assert seen[0].sent == 0 and 2 <= len(seen) <= 10


def test_run_uses_a_loop_of_its_own_and_says_how_late_it_was_and_what_it_cost():
    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self):
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            rng = np.random.default_rng(0)
            result = run(replay(np.cumsum(rng.exponential(0.01, 100)), f"http://127.0.0.1:{server.server_address[1]}/"))
        finally:
            server.shutdown()
            thread.join()
    assert result.answered.all(), result.messages
    assert np.all(result.lateness >= 0) and np.all(result.lateness <= result.latency)
    assert result.summary().generator_cpu_per_request > 0


async def test_an_error_of_the_body_function_reaches_the_caller():
    def broken(index):
        raise KeyError("no such row")

    async with serving() as server:
        with pytest.raises(KeyError, match="no such row"):
            await replay([0.0, 0.1], server.url, body=broken)


async def test_cancelling_stops_at_once():
    async with serving() as server:
        task = asyncio.create_task(replay(np.arange(100) * 100.0, server.url))
        async with asyncio.timeout(60):
            while not server.bodies:
                await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.sleep(0.05)
        assert len(server.bodies) == 1


def test_a_percentile_is_the_least_latency_that_so_many_requests_kept():
    def of(latency, status):
        n = len(latency)
        return Replay(np.arange(n) * 1.0, np.array(latency), np.zeros(n), np.array(status), {}, 1.0, 0.0, 1.0)

    ten = of([0.1 * i for i in range(1, 11)], [200] * 10)
    assert [ten.latency_percentile(p) for p in (10, 11, 50, 90, 95, 100)] == pytest.approx([0.1, 0.2, 0.5, 0.9, 1.0, 1.0])
    one_failed = of([0.001, *[0.1] * 9], [503, *[200] * 9])
    assert one_failed.latency_percentile(90) == pytest.approx(0.1)
    assert one_failed.latency_percentile(91) == float("inf")
    assert one_failed.keeps(Slo(0.1 + 1e-9, 90)) and not one_failed.keeps(Slo(10, 91)) and not one_failed.keeps(Slo(0.05, 90))


def test_the_quantiles_of_a_summary_are_its_percentiles_and_end_where_failures_begin():
    n = 1000
    latency, status = np.arange(1, n + 1) / n, np.where(np.arange(n) < 900, 200, 503)
    quantiles = dict(Replay(np.arange(n) * 1.0, latency, np.zeros(n), status, {}, 1.0, 0.0, 1.0).summary().quantiles)
    assert quantiles[0.5] == pytest.approx(0.5) and max(quantiles) == 0.9
    assert all(seconds == pytest.approx(q) for q, seconds in quantiles.items())


async def test_the_document_holds_the_summary_and_every_request():
    async with serving() as server:
        result = await replay(np.arange(10) * 0.01, server.url)
    document = json.loads(json.dumps(result.document()))
    assert document["summary"]["requests"] == 10
    assert document["summary"]["request_rate"] == pytest.approx(100)
    assert document["requests"]["status"] == [200] * 10
    assert document["summary"]["latency"]["max"] == max(document["requests"]["latency"])


@given(
    gaps=st.lists(st.floats(0, 1e3), max_size=30),
    start=st.floats(0, 1e6),
    scale=st.floats(1e-2, 1e2),
)
def test_intended_times_start_at_zero_ascend_and_are_divided_by_the_scale(gaps, start, scale):
    times = start + np.concatenate([[0.0], np.cumsum(gaps)])
    intended = intended_times(times, scale)
    assert len(intended) == len(times) and intended[0] == 0
    assert np.all(np.diff(intended) >= 0)
    assert intended * scale == pytest.approx(times - start, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"times": []}, "times: .* at least one arrival time"),
        ({"times": [0.0, 2.0, 1.0]}, r"times\[2\]: 1.0 is not allowed; allowed: at least the time before it \(2.0\)"),
        ({"times": [0.0, float("nan")]}, r"times: 'nan at \[1\]' is not allowed; allowed: finite numbers of seconds"),
        ({"times": [0.0], "scale": 0}, "speed: 0 is not allowed"),
        ({"times": [0.0], "limit": 0}, "limit: 0 is not allowed"),
        ({"times": [0.0], "seconds": 0.0}, "seconds: 0.0 is not allowed"),
    ],
)
def test_a_trace_that_cannot_be_replayed_is_refused_by_name(arguments, message):
    with pytest.raises(InvalidInput, match=message):
        intended_times(**arguments)


@pytest.mark.parametrize("url", ["127.0.0.1:80/x", "ftp://host/x", "http://", "http://host:port/", "http://name.invalid/"])
async def test_an_address_that_is_none_is_refused(url):
    with pytest.raises(InvalidInput, match="url: '.*' is not allowed"):
        await replay([0.0], url)


async def test_headers_cannot_smuggle_lines():
    with pytest.raises(InvalidInput, match="header values of one line"):
        await replay([0.0], "http://127.0.0.1:1/", headers={"x": "1\r\nhost: other"})
