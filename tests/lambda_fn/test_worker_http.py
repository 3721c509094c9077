"""Over sockets: what no client library sends, and what a client that is slow, greedy or gone may cost."""

from __future__ import annotations

import asyncio
import random

import pytest

from sluice.http import connection
from sluice.lambda_fn import batch_frames
from sluice.lambda_fn.contract import Batch, Item, encode_batch
from sluice.lambda_fn.models.sleeper import Sleeper
from sluice.lambda_fn.worker import http_server
from tests.lambda_fn.worker_sockets import Gated, Raw, detail, running, served

BODY = encode_batch(Batch("echo", [Item("a", "application/json", b'{"x": 1}')]))
HEAD = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"


@pytest.mark.parametrize(
    ("request_line", "body", "status", "said", "allow"),
    [
        ("GET /", b"", 405, "method: 'GET' is not allowed; allowed: POST", "POST"),
        ("PUT /invocations", b"{}", 405, "method: 'PUT' is not allowed; allowed: POST", "POST"),
        ("POST /ping", b"", 405, "method: 'POST' is not allowed; allowed: GET", "GET"),
        ("DELETE /v2/models/echo", b"", 405, "method: 'DELETE' is not allowed; allowed: GET", "GET"),
        ("GET /v2/repository/models/echo/load", b"", 405, "method: 'GET' is not allowed; allowed: POST", "POST"),
        ("POST /other", b"{}", 404, "path: '/other' is not served", ""),
        ("GET /v2/models/none", b"", 404, "model: 'none' is not allowed; allowed: 'echo'", ""),
        ("POST /v2/models/none/infer", b"{}", 404, "model: 'none' is not allowed; allowed: 'echo'", ""),
        ("POST /v2/models/echo/versions/2/infer", b"{}", 404, "path: '/v2/models/echo/versions/2/infer' is not served", ""),
        ("POST /", b"{", 400, "not a batch: Input data was truncated", ""),
        ("POST /", b"\xff\xfe", 400, "not a batch: JSON is malformed", ""),
        ("POST /", b"[" * 100000, 400, "not a batch: ", ""),
        ("POST /", b'{"version": 1}', 400, "not a batch: Object missing required field `model`", ""),
        ("POST /", b'{"version": 9, "model": "echo"}', 400, "version: 9 is not allowed; allowed: 1", ""),
        ("POST /v2/repository/index", b"[]", 400, "body: not an index request: Expected `object`, got `array`", ""),
    ],
)
async def test_what_is_wrong_is_told_in_a_problem_document_and_the_connection_goes_on(
    request_line: str, body: bytes, status: int, said: str, allow: str
) -> None:
    async with running(served(Sleeper("echo"))) as (worker, url):
        raw = await Raw.to(url)
        raw.send(f"{request_line} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body)
        got, headers, answer = await raw.answer()
        assert (got, headers["content-type"]) == (status, "application/problem+json")
        assert said in detail(answer)
        assert headers.get("allow", "") == allow
        raw.send(HEAD % len(BODY) + BODY)
        assert (await raw.answer())[0] == 200
        raw.close()
        assert worker.server.held == 0


async def test_a_body_that_is_declared_too_large_is_refused_when_it_was_sent_and_the_connection_goes_on() -> None:
    async with running(served(Sleeper("echo")), max_body=1000) as (_worker, url):
        raw = await Raw.to(url)
        raw.send(HEAD % 5000 + b"x" * 5000 + HEAD % len(BODY) + BODY)
        status, _, body = await raw.answer()
        assert (status, detail(body)) == (413, "body: 5000 bytes or more are not allowed; allowed: at most 1000")
        assert (await raw.answer())[0] == 200
        raw.close()


async def test_a_body_in_chunks_is_counted_as_it_comes() -> None:
    chunked = b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    async with running(served(Sleeper("echo")), max_body=1000) as (worker, url):
        raw = await Raw.to(url)
        for part in (BODY[:10], BODY[10:], b""):
            chunked += b"%x\r\n%b\r\n" % (len(part), part)
        raw.send(chunked)
        assert (await raw.answer())[0] == 200
        raw.send(b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + (b"200\r\n" + b"x" * 512 + b"\r\n") * 2)
        raw.send(b"0\r\n\r\n")
        assert (await raw.answer())[0] == 413
        assert worker.server.held == 0
        raw.close()


async def test_one_that_goes_on_sending_what_was_refused_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "MAX_DISCARDED", 5000)
    async with running(served(Sleeper("echo")), max_body=1000) as (_, url):
        raw = await Raw.to(url)
        raw.send(HEAD % 10**9 + b"x" * 6000)
        status, headers, _ = await raw.answer()
        assert (status, headers["connection"]) == (413, "close")
        assert await raw.ended()


async def test_bodies_that_are_held_are_bounded_together() -> None:
    model = Gated()
    async with running(served(model), max_held=len(BODY) + 10) as (worker, url):
        first, second = await Raw.to(url), await Raw.to(url)
        first.send(HEAD % len(BODY) + BODY)
        await asyncio.to_thread(model.entered.acquire)
        second.send(HEAD % len(BODY) + BODY)
        status, headers, body = await second.answer()
        assert (status, headers["retry-after"]) == (429, "1")
        assert "no room for another request" in detail(body)
        model.gate.set()
        assert (await first.answer())[0] == 200
        assert worker.server.held == 0
        second.send(HEAD % len(BODY) + BODY)
        assert (await second.answer())[0] == 200
        first.close()
        second.close()


@pytest.mark.parametrize("cut", [b"POST / HT", HEAD % 100, HEAD % 100 + b"{"])
async def test_a_request_that_is_cut_off_leaves_nothing(cut: bytes) -> None:
    async with running(served(Sleeper("echo"))) as (worker, url):
        raw = await Raw.to(url)
        raw.send(cut)
        await asyncio.sleep(0.05)
        raw.close()
        async with asyncio.timeout(60):
            while worker.server.connections:
                await asyncio.sleep(0.01)
        assert worker.server.held == 0


@pytest.mark.parametrize("slow", [b"", b"POST / HT", b"POST / HTTP/1.1\r\nhost: x\r\n", HEAD % 100, HEAD % 100 + b"{"])
async def test_a_request_that_does_not_come_to_its_end_is_given_up(slow: bytes) -> None:
    async with running(served(Sleeper("echo")), header_timeout=0.1, body_timeout=0.1) as (worker, url):
        raw = await Raw.to(url)
        raw.send(slow)
        status, headers, body = await raw.answer()
        assert (status, headers["connection"]) == (408, "close")
        assert detail(body) == "the rest of the request did not come in time"
        assert await raw.ended()
        assert worker.server.held == 0


async def test_a_connection_that_is_idle_for_too_long_is_closed_and_one_that_waits_for_its_answer_is_not() -> None:
    model = Gated()
    async with running(served(model), header_timeout=0.05, body_timeout=0.05, keep_alive=0.1) as (_, url):
        raw = await Raw.to(url)
        raw.send(HEAD % len(BODY) + BODY)
        await asyncio.to_thread(model.entered.acquire)
        await asyncio.sleep(0.3)
        model.gate.set()
        assert (await raw.answer())[0] == 200
        assert await raw.ended()


async def test_headers_without_end_are_refused() -> None:
    async with running(served(Sleeper("echo")), max_headers=2000) as (_, url):
        raw = await Raw.to(url)
        raw.send(b"POST / HTTP/1.1\r\nhost: x\r\n" + b"a: " + b"x" * 3000)
        assert (await raw.answer())[0] == 431
        assert await raw.ended()


@pytest.mark.parametrize(
    "noise", [b"\x16\x03\x01\x02\x00\x01\x00", b"HELLO\r\n\r\n", b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n"]
)
async def test_what_is_not_http_is_answered_so(noise: bytes) -> None:
    async with running(served(Sleeper("echo"))) as (_, url):
        raw = await Raw.to(url)
        raw.send(noise)
        status, _, body = await raw.answer()
        assert (status, detail(body)) == (400, "not a request of HTTP/1.1, which has one host")
        assert await raw.ended()


@pytest.mark.parametrize(
    ("sent", "status", "told"),
    [
        (b"GET / HTTP/2.0\r\nhost: x\r\n\r\n", 505, "HTTP/1.1 is understood, and HTTP/1.0"),
        (
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip, chunked\r\n\r\n",
            501,
            "transfer-encoding: chunked is understood alone",
        ),
    ],
)
async def test_what_of_http_is_not_understood_is_told(sent: bytes, status: int, told: str) -> None:
    async with running(served(Sleeper("echo"))) as (_, url):
        raw = await Raw.to(url)
        raw.send(sent)
        answered, _, body = await raw.answer()
        assert (answered, detail(body)) == (status, told)
        assert await raw.ended()


async def test_more_connections_than_are_allowed_are_turned_away() -> None:
    async with running(served(Sleeper("echo")), max_connections=2) as (_worker, url):
        kept = [await Raw.to(url) for _ in range(2)]
        for raw in kept:
            raw.send(HEAD % len(BODY) + BODY)
            assert (await raw.answer())[0] == 200
        third = await Raw.to(url)
        assert (await third.answer())[0] == 503
        assert await third.ended()
        for raw in kept:
            raw.send(HEAD % len(BODY) + BODY)
            assert (await raw.answer())[0] == 200
            raw.close()


async def test_pipelined_requests_are_answered_in_order_one_after_the_other() -> None:
    async with running(served(Sleeper("echo"))) as (worker, url):
        raw = await Raw.to(url)
        bodies = [b"%d" % i for i in range(20)]
        raw.send(b"".join(b"POST /models/echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(b), b) for b in bodies))
        assert [(await raw.answer())[2] for _ in bodies] == bodies
        raw.close()
    model = Gated()
    async with running(served(model)) as (worker, url):
        raw = await Raw.to(url)
        raw.send((HEAD % len(BODY) + BODY) * 200)
        await asyncio.to_thread(model.entered.acquire)
        model.gate.set()
        assert [(await raw.answer())[0] for _ in range(200)] == [200] * 200
        assert (sum(model.sizes), model.most, worker.server.held) == (200, 1, 0)
        raw.close()


async def test_what_stands_before_a_request_that_is_none_is_answered() -> None:
    model = Gated()
    async with running(served(model)) as (_, url):
        raw = await Raw.to(url)
        raw.send((HEAD % len(BODY) + BODY) * 3 + b"NOISE\r\n\r\n")
        await asyncio.to_thread(model.entered.acquire)
        model.gate.set()
        assert [(await raw.answer())[0] for _ in range(4)] == [200, 200, 200, 400]
        assert await raw.ended()


async def test_trailers_are_not_kept() -> None:
    async with running(served(Sleeper("echo"))) as (worker, url):
        raw = await Raw.to(url)
        raw.send(b"POST /models/echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n1\r\n7\r\n0\r\n")
        for i in range(100):
            raw.send(b"trailer-%d: x\r\n" % i)
        await asyncio.sleep(0.05)
        (read,) = worker.server.sockets.connections
        assert read._http._head is not None and [name for name, _ in read._http._head.fields] == [b"host", b"transfer-encoding"]
        assert read._http._fields == []
        raw.send(b"\r\n")
        assert (await raw.answer())[2] == b"7"
        raw.close()


async def test_a_client_that_leaves_its_answers_untaken_is_cut_off() -> None:
    async with running(served(Sleeper("echo")), body_timeout=1.0) as (worker, url):
        raw = await Raw.to(url)
        raw.writer.transport.pause_reading()  # type: ignore[attr-defined]
        big = b"x" * (32 * 1024 * 1024)
        raw.send(b"POST /models/echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(big) + big)
        async with asyncio.timeout(60):
            while not worker.server.untaken.taken:
                await asyncio.sleep(0.01)
            while worker.server.connections:
                await asyncio.sleep(0.01)
        assert (worker.server.held, worker.server.untaken.taken) == (0, 0)


async def test_a_client_that_waits_to_be_told_to_send_its_body_is_told() -> None:
    async with running(served(Sleeper("echo")), max_body=1000) as (_, url):
        raw = await Raw.to(url)
        raw.send((HEAD % len(BODY)).replace(b"host: x", b"host: x\r\nexpect: 100-continue"))
        assert await raw.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        raw.send(BODY)
        assert (await raw.answer())[0] == 200
        raw.send((HEAD % 5000).replace(b"host: x", b"host: x\r\nexpect: 100-continue"))
        status, headers, _ = await raw.answer()
        assert (status, headers["connection"]) == (413, "close")
        raw.close()


async def test_encoded_bodies_are_refused_and_other_protocols_not_taken_up() -> None:
    async with running(served(Sleeper("echo"))) as (_, url):
        raw = await Raw.to(url)
        raw.send((HEAD % len(BODY)).replace(b"host: x", b"host: x\r\ncontent-encoding: gzip") + BODY)
        status, _, body = await raw.answer()
        assert (status, detail(body)) == (415, "content-encoding: 'gzip' is not allowed; allowed: 'identity'")
        raw.send((HEAD % len(BODY)).replace(b"host: x", b"host: x\r\nconnection: upgrade\r\nupgrade: h2c") + BODY)
        assert (await raw.answer())[0] == 200  # an offer need not be taken (RFC 9110, 7.8)
        raw.close()


async def test_http_1_0_and_head_are_answered_as_they_ask() -> None:
    async with running(served(Sleeper("echo"))) as (_, url):
        raw = await Raw.to(url)
        raw.send(b"HEAD /ping HTTP/1.1\r\nhost: x\r\n\r\nGET /ping HTTP/1.0\r\n\r\n")
        head = await raw.reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\n")
        status, headers, body = await raw.answer()
        assert (status, headers["connection"], body) == (200, "close", b'{"ready":true}')
        assert await raw.ended()


@pytest.mark.parametrize("seed", range(5))
async def test_answers_are_the_same_however_the_bytes_come(seed: int) -> None:
    rng = random.Random(seed)
    stream, expected = b"", []
    for _i in range(12):
        body = bytes(rng.choices(b"0123456789", k=rng.randrange(1, 40)))
        kind = rng.randrange(4)
        if kind == 0:
            half = len(body) // 2
            chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in (body[:half], body[half:]) if part)
            stream += b"POST /models/echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + chunks + b"0\r\n\r\n"
        elif kind == 1:
            stream += b"GET /ping HTTP/1.1\r\nhost: x\r\n\r\n"
            body = b'{"ready":true}'
        elif kind == 2:
            stream += b"POST /models/echo HTTP/1.1\r\nhost: x\r\ncontent-length: 2000\r\n\r\n" + b"x" * 2000
        else:
            stream += b"POST /models/echo HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        expected.append((413, b"") if kind == 2 else (200, body))
    async with running(served(Sleeper("echo")), max_body=1000) as (worker, url):
        raw = await Raw.to(url)
        while stream:
            size = rng.choice([1, 2, 7, 100, 3000])
            raw.send(stream[:size])
            stream = stream[size:]
            await asyncio.sleep(0)
        answers = [await raw.answer() for _ in expected]
        assert [(status, body if status == 200 else b"") for status, _, body in answers] == expected
        raw.close()
        assert worker.server.held == 0


async def test_half_a_request_that_came_while_another_was_answered_has_its_time_from_then_on() -> None:
    model = Gated()
    async with running(served(model), header_timeout=0.15) as (_, url):
        raw = await Raw.to(url)
        raw.send(HEAD % len(BODY) + BODY + b"POST / HT")
        await asyncio.to_thread(model.entered.acquire)
        await asyncio.sleep(0.3)
        model.gate.set()
        assert (await raw.answer())[0] == 200
        raw.send(b"TP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(BODY) + BODY)
        assert (await raw.answer())[0] == 200
        raw.close()


async def test_a_head_that_came_before_is_known_again_and_its_requests_are_answered_each_for_itself() -> None:
    async with running(served(Sleeper("echo"))) as (worker, url):
        raw = await Raw.to(url)
        head = b"POST /models/echo HTTP/1.1\r\nhost: x\r\ncontent-type: text/plain\r\ncontent-length: 3\r\n\r\n"
        for body in (b"one", b"two", b"six"):
            raw.send(head + body)
            status, headers, answer = await raw.answer()
            assert (status, headers["content-type"], answer) == (200, "text/plain", body)
        assert worker.server.sockets.known[head].length == 3
        raw.send(head + b"in ")  # and what is not whole, or not alone, is read as ever
        assert (await raw.answer())[2] == b"in "
        raw.send(head + b"t")
        await asyncio.sleep(0.05)
        raw.send(b"wo" + head + b"six" + head)
        raw.send(b"ten")
        assert [(await raw.answer())[2] for _ in range(3)] == [b"two", b"six", b"ten"]
        raw.close()
        assert worker.server.held == 0


@pytest.mark.parametrize(
    "more",
    [b"connection: close\r\n", b"expect: 100-continue\r\n", b"x: %s\r\n" % (b"x" * 5000)],
)
async def test_a_head_that_is_out_of_the_ordinary_is_not_remembered(more: bytes) -> None:
    async with running(served(Sleeper("echo"))) as (worker, url):
        raw = await Raw.to(url)
        raw.send(b"POST /models/echo HTTP/1.1\r\nhost: x\r\n" + more + b"content-length: 1\r\n\r\n1")
        assert (await raw.reader.readline()).startswith(b"HTTP/1.1")
        assert worker.server.sockets.known == {}
        raw.close()


async def test_no_more_heads_are_remembered_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "MAX_KNOWN", 8)
    async with running(served(Sleeper("echo"))) as (worker, url):
        raw = await Raw.to(url)
        for number in range(20):
            raw.send(b"GET /health HTTP/1.1\r\nhost: x\r\nx-request: %d\r\n\r\n" % number)
            assert (await raw.answer())[0] == 200
            assert len(worker.server.sockets.known) <= 8
        raw.close()


async def test_from_sigterm_on_a_head_that_is_known_is_screened_again() -> None:
    model = Gated()
    async with running(served(model)) as (worker, url):
        raw, other = await Raw.to(url), await Raw.to(url)
        head = b"POST /models/echo HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n"
        model.gate.set()
        raw.send(head + b"1")
        assert (await raw.answer())[0] == 200
        model.gate.clear()
        other.send(head + b"2")
        await asyncio.to_thread(model.entered.acquire)
        stopping = asyncio.create_task(worker.stop(grace=10))
        while not worker.repository.draining:
            await asyncio.sleep(0)
        raw.send(head + b"3")
        assert (await raw.answer())[0] == 503
        model.gate.set()
        assert (await other.answer())[0] == 200
        raw.close()
        other.close()
        await stopping


async def test_a_connection_that_begins_with_a_known_head_may_be_idle_afterwards_as_any() -> None:
    async with running(served(Sleeper("echo")), header_timeout=0.1) as (worker, url):
        head = b"POST /models/echo HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\n"
        for _ in range(2):
            raw = await Raw.to(url)
            raw.send(head + b"1")
            assert (await raw.answer())[0] == 200
            assert head in worker.server.sockets.known
            await asyncio.sleep(0.3)
            raw.send(head + b"2")
            assert (await raw.answer())[2] == b"2"
            raw.close()


async def test_batches_in_frames_are_answered_in_frames_and_what_is_wrong_with_one_is_told_in_a_problem_document() -> None:
    batch = Batch("echo", [Item("a", "application/json", b'{"x": 1}'), Item("b", "image/png", b"\x00\xff" * 100_000)])
    document = b"".join(batch_frames.encode_batch(batch))
    async with running(served(Sleeper("echo"))) as (worker, url):
        raw = await Raw.to(url)
        for path in (b"/", b"/invocations"):
            raw.send((HEAD % len(document)).replace(b"POST /", b"POST " + path) + document)
            status, headers, body = await raw.answer()
            assert (status, headers["content-type"], headers["accept"]) == (200, batch_frames.MEDIA_TYPE, batch_frames.TAKES)
            answers, measured = batch_frames.decode_measured_answers(body, batch)
            assert [answer.body for answer in answers] == [item.body for item in batch.items] and measured.service is not None
        raw.send(HEAD % 50 + document[:50])
        status, headers, body = await raw.answer()
        assert (status, headers["accept"]) == (400, batch_frames.TAKES)
        assert "bodies: " in detail(body) or "not a batch: " in detail(body)
        raw.send(HEAD % len(BODY) + BODY)
        status, headers, _ = await raw.answer()
        assert (status, headers["content-type"], headers["accept"]) == (200, "application/json", batch_frames.TAKES)
        raw.close()
        assert worker.server.held == 0
