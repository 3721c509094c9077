"""Answers as bytes: what they are however they come, what is none, and what a server may make its client hold."""

from __future__ import annotations

import http.client
import io
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.buffer_service.invokers.http_exchange import (
    CHUNKS,
    DONE,
    HEAD,
    IDLE,
    LENGTH,
    MAX_HEAD_BYTES,
    REST,
    HttpExchange,
    NotHttp,
)

OK = b"HTTP/1.1 200 OK\r\n"


def read(*reads: bytes, ended: bool = False) -> tuple[HttpExchange, bytes]:
    """A connection that was asked and these reads came of; the body of its answer."""
    exchange = HttpExchange()
    exchange.ask()
    body = b"".join([exchange.receive(data) for data in reads])
    if ended:
        assert exchange.end()
    return exchange, body


@st.composite
def answers(draw):
    """An answer, whether it ends with its connection, and its body."""
    body = draw(st.binary(max_size=300))
    status = draw(st.sampled_from([200, 200, 201, 404, 503, 204, 304]))
    fields = draw(st.lists(st.sampled_from([b"Date: x\r\n", b"retry-after: 3\r\n", b"X-A:  b c \r\n"]), max_size=3))
    interim = draw(st.sampled_from([b"", b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 103 Early\r\nlink: a\r\n\r\n" * 2]))
    start = interim + b"HTTP/1.1 %d What it is\r\n" % status + b"".join(fields)
    if status in (204, 304):
        return start + b"\r\n", False, b""
    manner = draw(st.sampled_from(["length", "chunks", "rest"]))
    if manner == "length":
        return start + b"Content-Length: %d\r\n\r\n" % len(body) + body, False, body
    if manner == "rest":
        return start + b"\r\n" + body, True, body
    sizes = draw(st.lists(st.integers(1, 80), min_size=1, max_size=5))
    chunks, at = b"", 0
    while at < len(body):
        size = sizes[at % len(sizes)]
        part = body[at : at + size]
        chunks += b"%x%b\r\n%b\r\n" % (len(part), draw(st.sampled_from([b"", b";a=b"])), part)
        at += size
    trailer = draw(st.sampled_from([b"", b"x-sum: 1\r\n"]))
    return start + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\n" + trailer + b"\r\n", False, body


@given(st.lists(answers(), min_size=1, max_size=3), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_however_the_bytes_are_cut_the_answers_are_those_that_were_sent(sent, rng):
    exchange = HttpExchange()
    for data, ends, body in sent:
        exchange.ask()
        got = b""
        at = 0
        while at < len(data):
            size = rng.choice((1, 2, 7, 100, len(data)))
            got += exchange.receive(data[at : at + size])
            at += size
            assert exchange.stage is not DONE or at >= len(data)
        assert got == body
        if ends:
            assert exchange.stage is REST and exchange.end()
        assert exchange.stage is DONE and exchange.kept is not ends
        final = data[data.rindex(b"HTTP/1.1 ") :] if b"HTTP/1.1 " not in body else data
        assert int(final[9:12]) == exchange.status or b"HTTP/1.1 1" in final
        if ends:
            break


@given(answers())
@settings(max_examples=60, deadline=None)
def test_an_answer_is_what_the_standard_library_reads_in_it(sent):
    data, ends, _ = sent

    class Connection:
        def makefile(self, _):
            return io.BytesIO(data)

    theirs = http.client.HTTPResponse(Connection())
    while True:
        theirs.begin()
        if theirs.status >= 200 or theirs.status == 100:
            break
        theirs._close_conn = lambda: None
        return  # it takes early hints for the answer
    exchange, body = read(data, ended=ends)
    assert (exchange.status, body) == (theirs.status, theirs.read())
    assert exchange.fields.get("retry-after") == ("3" if "retry-after" in theirs.headers else None)


@pytest.mark.parametrize("seed", range(4))
def test_of_bytes_that_were_tampered_with_nothing_comes_but_an_answer_or_that_it_is_none(seed):
    rng = random.Random(seed)
    whole = (
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"content-length: 11\r\nconnection: keep-alive\r\n\r\nhello world",
        OK + b"transfer-encoding: chunked\r\n\r\n5\r\nhello\r\n6;x\r\n world\r\n0\r\na: b\r\n\r\n",
        b"HTTP/1.0 200 OK\r\n\r\nhello world",
    )
    endings = {"answered": 0, "none": 0, "open": 0}
    for _ in range(800):
        data = rng.choice(whole)
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(data))
            data = data[:at] + rng.choice((b"", b"\r", b"\n", b"9", b":", rng.randbytes(2))) + data[at + rng.randint(0, 2) :]
        exchange = HttpExchange()
        exchange.ask()
        got, at = 0, 0
        try:
            while at < len(data) and exchange.stage is not DONE:
                size = rng.choice((1, 5, len(data)))
                got += len(exchange.receive(data[at : at + size]))
                at += size
            endings["answered" if exchange.stage is DONE or exchange.end() else "open"] += 1
        except NotHttp:
            endings["none"] += 1
        assert got <= len(data) and len(exchange._head) <= len(data)
    assert min(endings.values()) > 20, endings


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"SSH-2.0-x\r\n\r\n", "not an answer of HTTP/1.1: Expected HTTP/"),
        (OK + b"content-length: 1\r\ncontent-length: 2\r\n\r\n", "Duplicate Content-Length"),
        (OK + b"content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", "Transfer-Encoding can't be present with Content-Length"),
        (OK + b"content-length: -1\r\n\r\n", "Invalid character in Content-Length"),
        (OK + b"transfer-encoding: chunked\r\n\r\nzz\r\n", "Invalid character in chunk size"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "it goes on in another protocol"),
        (OK + b"a: " + b"x" * MAX_HEAD_BYTES + b"\r\n\r\n", f"headers of more than {MAX_HEAD_BYTES} bytes"),
        (OK + b"a: " + b"x" * MAX_HEAD_BYTES, f"headers of more than {MAX_HEAD_BYTES} bytes"),
    ],
)
def test_what_is_no_answer_is_said(data, said):
    with pytest.raises(NotHttp) as caught:
        read(data)
    assert said in str(caught.value)


def test_what_was_not_asked_for_is_none_and_breaks_the_connection():
    exchange, _ = read(OK + b"content-length: 0\r\n\r\n")
    assert exchange.kept
    with pytest.raises(NotHttp, match="it says what it was not asked"):
        exchange.receive(OK)
    assert not exchange.kept
    with pytest.raises(NotHttp):
        HttpExchange().receive(OK)


def test_headers_may_be_as_long_as_is_allowed_and_come_in_pieces():
    head = OK + b"content-length: 0\r\na: "
    head += b"x" * (MAX_HEAD_BYTES - len(head) - 4) + b"\r\n\r\n"
    exchange, _ = read(*(head[at : at + 1000] for at in range(0, len(head), 1000)))
    assert exchange.stage is DONE


def test_chunks_that_bring_no_byte_of_a_body_are_bounded():
    start = OK + b"transfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n"
    line = b"trailer: " + b"x" * 1000 + b"\r\n"
    with pytest.raises(NotHttp, match=f"{MAX_HEAD_BYTES} bytes and more between two pieces"):
        read(start, *[line] * 100)
    exchange, body = read(start, *[line] * 60, b"\r\n")
    assert (exchange.stage, body) == (DONE, b"x")


@pytest.mark.parametrize(
    "data",
    [
        OK + b"content-length: 2\r\n\r\n{}{}",
        OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + OK,
        OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\nnoise",
        OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + OK + b"content-length: 3\r\n\r\nXYZ",
        OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n" + OK + b"content-length: 300\r\n\r\nX",
        OK + b"connection: close\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    ],
)
def test_a_connection_that_says_more_or_says_that_it_ends_is_not_kept(data):
    exchange, body = read(data)
    assert (exchange.stage, exchange.kept, body) == (DONE, False, b"{}")


@pytest.mark.parametrize(
    ("data", "stage"),
    [
        (b"", HEAD),
        (OK, HEAD),
        (OK + b"content-length: 2\r\n\r\n{", LENGTH),
        (OK + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n", CHUNKS),
    ],
)
def test_an_answer_that_its_connection_cuts_off_is_not_complete(data, stage):
    exchange, _ = read(data)
    assert exchange.stage is stage
    assert not exchange.end() and not exchange.kept


def test_a_second_request_must_wait_for_the_answer_to_the_first():
    exchange = HttpExchange()
    assert exchange.stage is IDLE
    exchange.ask()
    with pytest.raises(KeyError):
        exchange.ask()
