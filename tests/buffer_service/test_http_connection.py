"""A connection of HTTP without a socket or a clock: its table, its deadlines, and what it makes of bytes that are cut anywhere."""

from __future__ import annotations

import random
import weakref
from http import HTTPStatus
from itertools import pairwise

import httptools
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluice.http import connection as http_connection
from sluice.http.connection import (
    AHEAD,
    ANSWERED,
    BODY,
    BODY_ENDS,
    DUE,
    END,
    ENDED,
    HEAD,
    HEAD_BEGINS,
    HEAD_ENDS,
    HELD_FROM,
    IDLE,
    MAX_FIELDS,
    MAX_HEADER_BYTES,
    MAX_KNOWN,
    MAX_KNOWN_BYTES,
    PORTIONS,
    REST,
    TURN,
    Head,
    HttpConnection,
    Patience,
    Refused,
)

PATIENCE = Patience(header=10.0, body=20.0, keep_alive=30.0)
POST = b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n"
CHUNKED = b"POST /c HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"


def connection(known=None):
    return HttpConnection(PATIENCE, {} if known is None else known, now=0.0)


def answer(http, now=0.0, **given):
    return http.answer(now, 200, "text/plain", 0, **given)


def kinds(events):
    return [type(event) for event in events]


# --- the table


def test_every_stage_but_the_end_can_be_left_and_an_answer_is_given_exactly_where_one_is_due():
    tables = (HEAD_BEGINS, HEAD_ENDS, BODY_ENDS, ANSWERED)
    left = {stage for table in tables for stage in table}
    assert left == {IDLE, HEAD, BODY, REST, TURN}
    assert set(ANSWERED) == DUE
    assert {stage for table in tables for stage in table.values()} == left


def test_a_request_goes_from_stage_to_stage():
    http = connection()
    for sent, stage in ((b"POST /a HT", HEAD), (POST[10:] % 3 + b"ab", BODY), (b"c", TURN)):
        http.receive(0.0, sent)
        assert http.stage is stage
    answer(http)
    assert http.stage is IDLE
    http.receive(0.0, POST % 3 + b"a")
    answer(http)
    assert http.stage is REST
    http.receive(0.0, b"bc")
    assert http.stage is IDLE


@pytest.mark.parametrize("sent", [b"", b"GET / HT"])
def test_an_answer_that_is_not_due_is_a_defect(sent):
    http = connection()
    http.receive(0.0, sent)
    with pytest.raises(RuntimeError, match="an answer at stage (IDLE|HEAD), where none is due"):
        answer(http)


def test_an_answer_that_cannot_be_written_leaves_its_place_to_another():
    http = connection()
    http.receive(0.0, POST % 0)
    with pytest.raises(UnicodeEncodeError):
        http.answer(0.0, 200, "text/\u20ac", 0)
    assert http.stage is TURN and answer(http).startswith(b"HTTP/1.1 200 OK\r\n") and http.stage is IDLE


def test_an_answer_that_can_have_no_body_says_neither_of_what_type_nor_how_long_it_is():
    http = connection()
    http.receive(0.0, POST % 0)
    head = http.answer(0.0, 204, "text/plain", None, ((b"allow", b"GET"),), date=b"today")
    assert head == b"HTTP/1.1 204 No Content\r\ndate: today\r\nallow: GET\r\n\r\n"


def test_an_idle_connection_keeps_nothing_of_what_it_read():
    large = b"x" * 50_000
    http = connection()
    for head in (POST[:-2] % len(large) + b"x: " + large + b"\r\n\r\n", CHUNKED[:-2] + b"x: " + large + b"\r\n\r\nc350\r\n"):
        http.receive(0.0, head)
        http.receive(0.0, large)
        http.receive(0.0, b"\r\n0\r\n\r\n" * (http.stage is BODY))
        assert http.stage is TURN
        answer(http)
        kept = [getattr(http, name) for name in HttpConnection.__slots__]
        assert http.stage is IDLE and not [value for value in kept if isinstance(value, (bytes, list, Head)) and value]


def test_nothing_behind_a_request_without_an_answer_is_parsed():
    http = connection()
    first = http.receive(0.0, POST % 1 + b"1" + b"this is not HTTP")
    assert kinds(first) == [Head, bytes, type(END)] and not http.ready
    answer(http)
    (refused,) = http.go_on(0.0)
    assert refused.status is HTTPStatus.BAD_REQUEST and http.stage is ENDED


def test_a_connection_that_is_not_kept_ends_with_its_answer_and_reads_nothing_behind_it():
    http = connection()
    http.receive(0.0, b"GET /a HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" + POST % 0)
    assert http.held == 0 and http.receive(0.0, b"x" * 10**6) == [] and http.held == 0
    assert b"\r\nconnection: close\r\n" in answer(http) and http.stage is ENDED


def test_http_1_0_needs_no_host_is_answered_and_not_kept():
    http = connection()
    http.receive(0.0, b"GET /a HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
    answer(http)
    assert http.stage is ENDED


def test_who_waits_to_be_asked_for_the_body_is_asked_once_and_not_kept_where_it_was_not():
    expecting = POST[:-2] % 3 + b"expect: 100-Continue\r\n\r\n"
    http = connection()
    http.receive(0.0, expecting)
    assert (http.go_ahead(), http.go_ahead()) == (b"HTTP/1.1 100 Continue\r\n\r\n", b"")
    http.receive(0.0, b"abc")
    assert b"connection: close" not in answer(http)
    http.receive(0.0, expecting + b"abc")
    assert http.go_ahead() == b"" and b"connection: close" not in answer(http)  # the body is there already
    http.receive(0.0, expecting)
    assert b"connection: close" in answer(http) and http.stage is ENDED  # it may come, or the next request in its place


def test_who_speaks_http_1_0_is_never_asked_for_the_body():
    http = connection()
    http.receive(0.0, b"POST /a HTTP/1.0\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n")
    assert http.go_ahead() == b"" and http.stage is BODY


def test_a_server_that_leaves_ends_what_is_idle_at_once_and_the_others_with_their_answer():
    idle, half, due = connection(), connection(), connection()
    half.receive(0.0, b"GET / HT")
    due.receive(0.0, POST % 0)
    for http in (idle, half, due):
        http.leave()
    assert (idle.stage, half.stage, due.stage) == (ENDED, ENDED, TURN)
    assert b"connection: close" in answer(due) and due.stage is ENDED


def test_what_finds_no_room_is_refused_and_behind_an_answer_that_is_due_forgotten():
    http = connection()
    http.receive(0.0, b"GET / HT")
    assert http.refuse(HTTPStatus.SERVICE_UNAVAILABLE).answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
    http = connection()
    http.receive(0.0, POST % 0 + b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
    assert http.held and http.refuse(HTTPStatus.SERVICE_UNAVAILABLE) is None and not http.held
    assert b"connection: close" in answer(http) and http.stage is ENDED


# --- time


@pytest.mark.parametrize(
    ("sent", "seconds", "status"),
    [
        (b"", PATIENCE.header, 408),
        (b"GET / HT", PATIENCE.header, 408),
        (POST % 3 + b"ab", PATIENCE.body, 408),
        (POST % 3 + b"abc", None, None),
    ],
    ids=["silent", "half a head", "half a body", "complete"],
)
def test_what_does_not_come_in_time_is_refused(sent, seconds, status):
    http = connection()
    if sent:
        http.receive(0.0, sent)
    if seconds is None:
        assert http.overdue(1e9) is None
        return
    assert http.overdue(seconds) is None
    assert http.overdue(seconds + 0.1).answer.startswith(b"HTTP/1.1 %d " % status) and http.stage is ENDED


def test_drops_extend_no_time_and_the_next_request_has_its_own():
    http = connection()
    for second in range(11):
        http.receive(float(second), b"GET /"[second : second + 1] or b"x")
    assert http.overdue(10.1) is not None
    http = connection()
    http.receive(0.0, POST % 0)
    answer(http, 100.0)
    assert http.overdue(100.0 + PATIENCE.keep_alive) is None
    http.receive(125.0, b"GET / HT")
    assert http.overdue(125.0 + PATIENCE.header) is None
    assert http.overdue(125.1 + PATIENCE.header).status is HTTPStatus.REQUEST_TIMEOUT


@pytest.mark.parametrize("sent", [b"", b"\r\n"])
def test_an_idle_connection_is_closed_without_a_word_after_its_keep_alive(sent):
    http = connection()
    http.receive(0.0, POST % 0)
    answer(http, 5.0)
    if sent:
        http.receive(20.0, sent)
    assert http.overdue(5.0 + PATIENCE.keep_alive) is None
    assert http.overdue(5.1 + PATIENCE.keep_alive).answer == b"" and http.stage is ENDED


def test_who_leaves_an_answer_untaken_is_given_all_the_time_afterwards():
    http = connection()
    http.receive(0.0, POST % 3 + b"ab")
    http.block()
    assert http.receive(1.0, b"c") == [] and not http.ready and http.full and http.overdue(1e3) is None
    http.unblock(1e3)
    assert http.overdue(1e3 + PATIENCE.body) is None and kinds(http.go_on(1e3)) == [bytes, type(END)]


# --- bytes


def test_heads_that_are_known_are_few_and_short():
    known = {}
    http = connection(known)
    for i in range(2 * MAX_KNOWN):
        http.receive(0.0, b"GET /%d HTTP/1.1\r\nhost: x\r\n\r\n" % i)
        answer(http)
        assert len(known) <= MAX_KNOWN
    known.clear()
    for head in (
        b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"x" * MAX_KNOWN_BYTES + b"\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\n\r\n",
        b"GET / HTTP/1.1\r\nhost: x\r\nconnection: keep-alive\r\n\r\n",
    ):
        http.receive(0.0, head)
        answer(http)
    http.receive(0.0, CHUNKED + b"0\r\n\r\n")
    assert known == {}


@pytest.mark.parametrize(
    "name", ["Authorization", "x-api-key", "Cookie", "Proxy-Authorization", "X-Request-Id", "traceparent", "Idempotency-Key"]
)
def test_a_head_with_a_secret_or_with_what_is_of_one_request_is_not_kept(name):
    known = {}
    http = connection(known)
    http.receive(0.0, b"GET / HTTP/1.1\r\nhost: x\r\n%b: Bearer secret\r\n\r\n" % name.encode())
    assert known == {}
    http.answer(0.0, 200, "text/plain", 0)
    http.receive(0.0, b"GET / HTTP/1.1\r\nhost: x\r\naccept: a\r\n\r\n")
    assert len(known) == 1


def test_a_known_head_is_the_same_record_and_a_body_of_another_length_is_never_taken_for_its_own():
    known = {}
    http = connection(known)
    (first, _, _) = http.receive(0.0, POST % 3 + b"abc")
    answer(http)
    (again, body, _) = http.receive(0.0, POST % 3 + b"xyz")
    assert again is first and body == b"xyz"
    answer(http)
    assert kinds(http.receive(0.0, POST % 3 + b"x")) == [Head, bytes] and http.stage is BODY
    assert http.receive(0.0, b"yz" + POST % 3) == [b"yz", END]
    answer(http)
    assert kinds(http.go_on(0.0)) == [Head] and http.stage is BODY


def test_the_same_head_again_is_known_at_sight_where_a_request_may_begin_and_comes_whole():
    http, sent = connection(), POST % 3 + b"abc"
    assert http.again(0.0, sent) is None  # nothing is known
    http.receive(0.0, sent)
    answer(http)
    assert http.again(1.0, sent) is None  # it was parsed
    (head, *_) = http.receive(1.0, sent)
    answer(http)
    assert http.again(2.0, POST % 3 + b"xyz") is head
    assert http.stage is TURN
    assert http.again(2.0, sent) is None  # an answer is due
    answer(http, 2.0)
    for other in (POST % 4 + b"abcd", sent + b"x", sent[:-1], CHUNKED):
        assert http.again(3.0, other) is None
    http.block()
    assert http.again(3.0, sent) is None
    http.unblock(3.0)
    assert http.overdue(3.0 + PATIENCE.keep_alive) is None
    assert http.again(3.0, sent) is head
    answer(http, 3.0)
    http.receive(4.0, sent[:-1])  # half of one
    assert http.again(4.0, sent) is None
    assert http.receive(4.0, sent[-1:]) == [b"c", END]
    answer(http, 4.0)
    assert http.again(5.0, sent) is None  # the last did not come whole
    http.receive(5.0, sent)
    answer(http, 5.0)
    http.leave()
    assert http.again(6.0, sent) is None


def test_an_idle_connection_does_not_keep_the_head_of_its_last_request_when_that_is_known_no_more():
    known = {}
    http, sent = connection(known), POST % 3 + b"abc"
    for _ in range(2):
        http.receive(0.0, sent)
        answer(http)
    (head,) = map(weakref.ref, known.values())
    assert http.again(1.0, sent) is head()
    answer(http, 1.0)
    known.clear()
    assert head() is None
    assert http.again(2.0, sent) is None
    assert kinds(http.receive(2.0, sent)) == [Head, bytes, type(END)]


def test_of_many_small_chunks_so_many_are_parsed_at_a_time_and_the_others_afterwards():
    http = connection()
    events = http.receive(0.0, CHUNKED + b"1\r\na\r\n" * PORTIONS + b"0\r\n\r\n")
    rounds = [len(events)]
    while http.ready:
        events += (more := http.go_on(0.0))
        rounds.append(len(more))
    assert len(rounds) > 1 and max(rounds) <= PORTIONS and http.held == 0
    assert kinds(events) == [Head] + [bytes] * PORTIONS + [type(END)] and http.stage is TURN


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET / HTTP/1.1\r\nhost: x\r\nx: " + b"x" * MAX_HEADER_BYTES, 431),
        (b"\r\n" * MAX_HEADER_BYTES, 431),
        (POST[:-2] % 3 + b"".join(b"%d:\r\n" % i for i in range(MAX_FIELDS)) + b"\r\nabc", 431),
        (CHUNKED + b"1;" + b"x" * MAX_HEADER_BYTES, 431),
        (CHUNKED + b"0\r\n" + b"x: y\r\n" * (MAX_HEADER_BYTES // 5), 431),
        (b"GET / HTTP/1.1\nhost: x\n\n", 400),
        (CHUNKED + b"-1\r\n", 400),
        (CHUNKED + b"3\r\nabcd\r\n", 400),
        (POST[:-2] % 3 + b"content-length: 4\r\n\r\n", 400),
        (POST[:-2] % 3 + b"transfer-encoding: chunked\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: gzip\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: h2c\r\ntransfer-encoding: gzip\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET http://a HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /a\r\n\r\n", 400),
        (b"GET /a\r\nGET /b HTTP/1.1\r\nhost: x\r\n\r\n", 400),
        (b"GET /a HTTP/0.9\r\n\r\n", 400),
        (b"GET /a RTSP/1.0\r\n\r\n", 400),
        (b"\r\n\r\nSOURCE /HTTP/1.1 ICE/1.0\r\n\r\n", 400),
        (b"GET /a RTSP/1.1\r\nhost: HTTP/1.1\r\n\r\n", 400),
        (CHUNKED.replace(b"chunked", b"gzip, chunked") + b"0\r\n\r\n", 501),
        (CHUNKED.replace(b"transfer", b"transfer-encoding: gzip\r\ntransfer") + b"0\r\n\r\n", 501),
        (b"GET /a HTTP/2.0\r\nhost: x\r\n\r\n", 505),
        (b"GET /a HTTP/1.1\r\n\r\n", 400),
        (b"GET /a HTTP/1.1\r\nhost: x\r\nHost: x\r\n\r\n", 400),
        (b"GET /a HTTP/1.0\r\nhost: x\r\nhost: y\r\n\r\n", 400),
    ],
)
@pytest.mark.parametrize("size", [1 << 30, 1000, 7])
def test_what_is_no_request_is_refused_with_a_status(sent, status, size):
    http = connection()
    events = []
    for at in range(0, len(sent), size):
        events += http.receive(0.0, sent[at : at + size])
        while http.ready:
            events += http.go_on(0.0)
        assert http.held <= MAX_HEADER_BYTES
    assert type(events[-1]) is Refused and events[-1].status == status and http.stage is ENDED
    assert END not in events and http.receive(0.0, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n") == []


@pytest.mark.parametrize("size", [1 << 30, 7, 1])
def test_empty_lines_before_a_request_are_passed_over_and_each_request_of_a_connection_has_its_own_protocol(size):
    http = connection()

    def sent(what):
        return [event for at in range(0, len(what), size) for event in http.receive(0.0, what[at : at + size])]

    for path in (b"/a", b"/b"):
        begun, end = sent(b"\r\n\r\nGET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path)
        assert begun.path == path.decode() and end is END
        answer(http)
    (refused,) = sent(b"\r\nGET /b RTSP/1.1\r\nhost: x\r\n\r\n")
    assert refused.status == HTTPStatus.BAD_REQUEST


def test_blanks_around_a_value_are_no_part_of_it():
    head = b"GET / HTTP/1.1\r\nhost: x \r\nx-api-key: \t a key \t \r\nempty: \r\n\r\n"
    begun, end = connection().receive(0.0, head)
    assert begun.fields == ((b"host", b"x"), (b"x-api-key", b"a key"), (b"empty", b"")) and end is END


def test_a_head_may_have_as_many_fields_as_are_allowed():
    head = b"GET / HTTP/1.1\r\nhost: x\r\n" + b"".join(b"%d:\r\n" % i for i in range(1, MAX_FIELDS)) + b"\r\n"
    begun, end = connection().receive(0.0, head)
    assert len(begun.fields) == MAX_FIELDS and end is END


def test_a_large_head_is_held_until_its_request_is_answered_or_the_connection_ends():
    head = b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\nx: " + b"x" * HELD_FROM + b"\r\n\r\n"
    for ends in (lambda http: http.answer(0.0, 200, "text/plain", 0), lambda http: http.close()):
        http = connection()
        http.receive(0.0, head)
        assert http.held == len(head)
        http.receive(0.0, b"1")
        assert http.held == len(head) and http.stage is TURN
        ends(http)
        assert http.held == 0


def test_of_a_body_that_nobody_reads_no_more_than_so_much_is_taken(monkeypatch):
    monkeypatch.setattr(http_connection, "MAX_REST", 1000)
    for length, ended in ((1000, False), (3000, True)):
        http = connection()
        http.receive(0.0, POST % length)
        answer(http)
        events = [event for _ in range(10) for event in http.receive(0.0, b"x" * (length // 10))]
        assert (http.stage is ENDED) == ended and [each.answer for each in events] == [b""] * ended


# --- bytes cut anywhere


@st.composite
def requests(draw):
    """A request, and its body."""
    body = draw(st.sampled_from([b"", b"a", b"0\r\n\r\n", b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"]) | st.binary(max_size=40))
    path = draw(st.sampled_from([b"/", b"/models/m", b"/v2/models/m/infer", b"/a%20b?c=d"]))
    fields = draw(st.sampled_from([b"", b"content-type: application/json\r\n", b"connection: upgrade\r\nupgrade: h2c\r\n"]))
    if draw(st.booleans()):
        return b"POST %b HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n%b" % (path, fields, len(body), body), body
    cuts = sorted({0, len(body), *draw(st.lists(st.integers(0, len(body)), max_size=3))})
    chunks = b"".join(b"%x;n=v\r\n%b\r\n" % (end - start, body[start:end]) for start, end in pairwise(cuts))
    trailer = draw(st.sampled_from([b"", b"x: y\r\n"]))
    return b"POST %b HTTP/1.1\r\nhost: x\r\n%btransfer-encoding: chunked\r\n\r\n%b0\r\n%b\r\n" % (
        path,
        fields,
        chunks,
        trailer,
    ), body


def pieces_of(data, cuts):
    bounds = [0, *sorted({cut % (len(data) + 1) for cut in cuts}), len(data)]
    return [data[start:end] for start, end in pairwise(bounds) if end > start]


class Driver:
    """A server of one connection that answers when it likes: a request that is complete, or one whose body is still coming."""

    def __init__(self, known, early, rng):
        self.http = connection(known)
        self.early, self.rng = early, rng
        self.complete, self.broken_off, self.refused = [], 0, None
        self.body = None

    def receive(self, data):
        self.take(self.http.receive(0.0, data))
        assert self.http.held <= len(data) + AHEAD + MAX_HEADER_BYTES

    def take(self, events):
        assert not (self.http.alone and (self.http.held or self.http.ready))
        for event in events:
            if type(event) is Head:
                assert self.body is None and self.refused is None
                self.body = b""
            elif type(event) is bytes:
                self.body += event
            elif event is END:
                self.complete.append(self.body)
            else:
                assert self.refused is None and self.http.stage is ENDED
                self.refused, self.body = event, None
        if self.http.stage is TURN or (self.http.stage is BODY and self.rng.random() < self.early):
            self.broken_off += self.http.stage is BODY
            answer(self.http)
            self.body = None
            self.take(self.http.go_on(0.0))


@given(st.lists(requests(), min_size=1, max_size=5), st.lists(st.integers(0, 2000), max_size=12), st.booleans(), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_requests_that_are_cut_anywhere_are_the_requests_that_were_sent(sent, cuts, twice, seed):
    known = {}
    for _ in range(1 + twice):  # the second time heads are known
        driver = Driver(known, 0.0, random.Random(seed))
        for part in pieces_of(b"".join(data for data, _ in sent), cuts):
            driver.receive(part)
        for data, _ in sent * twice:
            driver.receive(data)
        assert driver.complete == [body for _, body in sent] * (1 + twice)
        assert driver.refused is None and driver.http.stage is IDLE and driver.http.held == 0


@given(st.lists(requests(), min_size=1, max_size=5), st.lists(st.integers(0, 2000), max_size=12), st.integers(0, 99))
@settings(max_examples=100, deadline=None)
def test_answers_before_the_end_of_a_body_cost_no_other_request_anything(sent, cuts, seed):
    driver = Driver({}, 0.5, random.Random(seed))
    for part in pieces_of(b"".join(data for data, _ in sent), cuts):
        driver.receive(part)
    assert len(driver.complete) + driver.broken_off == len(sent)
    assert driver.refused is None and driver.http.stage is IDLE
    bodies = iter([body for _, body in sent])
    assert all(body in bodies for body in driver.complete)  # in order


class Whole:
    """What the parser says of all bytes at once: the bodies of the messages before an error, up to one that is not kept."""

    def __init__(self, data):
        self.bodies, self.body, self.ends = [], b"", False
        self.parser = httptools.HttpRequestParser(self)
        try:
            self.parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            self.error = error
        else:
            self.error = None

    def on_message_begin(self):
        self.body, self.hosts, self.complete, self.coded, self.codings = b"", 0, False, False, 0

    def on_url(self, url):
        self.url = url

    def on_header(self, name, value):
        self.hosts += name.lower() == b"host" and not self.complete
        self.codings += name.lower() == b"transfer-encoding" and not self.complete
        self.coded = self.codings > 1 or (name.lower() == b"transfer-encoding" and b"," in value) or self.coded

    def on_headers_complete(self):
        self.complete = True
        httptools.parse_url(self.url).path.decode("ascii")  # else it is refused, as these are
        version = self.parser.get_http_version()
        assert version in ("1.0", "1.1") and self.hosts <= 1 and (self.hosts or version == "1.0") and not self.coded
        self.kept = version == "1.1" and self.parser.should_keep_alive()

    def on_body(self, body):
        self.body += body

    def on_message_complete(self):
        if not self.ends:
            self.bodies.append(self.body)
            self.ends = not self.kept


@given(
    st.lists(requests().map(lambda each: each[0]), min_size=1, max_size=3).map(b"".join),
    st.lists(st.tuples(st.integers(0, 500), st.integers(0, 2), st.binary(min_size=1, max_size=3)), max_size=3),
    st.lists(st.integers(0, 2000), max_size=8),
)
@settings(max_examples=150, deadline=None)
def test_of_bytes_that_were_tampered_with_no_more_is_served_than_the_parser_sees_in_all_of_them(data, changes, cuts):
    for at, how, what in changes:
        at %= len(data) + 1
        data = data[:at] + (b"" if how == 0 else what) + data[at + (len(what) if how < 2 else 0) :]
    serves_what_the_parser_sees(data, cuts)


def serves_what_the_parser_sees(data, cuts):
    driver = Driver({}, 0.0, random.Random(0))
    for part in pieces_of(data, cuts):
        driver.receive(part)
    whole = Whole(data)
    if not isinstance(whole.error, httptools.HttpParserUpgrade):
        assert driver.complete == whole.bodies
        assert whole.error is None or driver.http.stage is ENDED
    assert driver.http.stage is ENDED or driver.http.overdue(1e9) is not None
    assert driver.http.held <= len(data)


@given(st.binary(max_size=300), st.lists(st.integers(0, 300), max_size=5))
@settings(max_examples=50, deadline=None)
def test_of_garbage_no_more_is_served_than_the_parser_sees_in_it(data, cuts):
    serves_what_the_parser_sees(data, cuts)
