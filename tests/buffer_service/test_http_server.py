"""The HTTP server on a real socket, with a client that writes bytes as it likes; on both event loops."""

import asyncio
import functools
import gc
import inspect
from contextlib import asynccontextmanager, suppress

import pytest
import uvloop

from sluice.http.connection import MAX_HEADER_BYTES, Patience
from sluice.http.room import Connections, Room
from sluice.http.server import LAST, HttpServer

HEADER_TIMEOUT = 0.1
LONGER = 0.2
PATIENCE = 60.0  # s: nothing here takes so long, however busy the machine
PADDED = 60_000  # bytes; less than a transport buffers before it says so
HEAD = b"POST /%s HTTP/1.1\r\nhost: test\r\ncontent-length: %d\r\n"


def on_both_loops(test):
    """uvloop is what serves; asyncio reads and closes in its own way, and a test that hangs on that would prove less."""

    @pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    @functools.wraps(test)
    def on_loop(new_loop, **arguments):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(test(**arguments))

    new_loop = inspect.Parameter("new_loop", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    on_loop.__signature__ = inspect.Signature([new_loop, *inspect.signature(test).parameters.values()])
    del on_loop.__wrapped__  # it is no coroutine function any more
    return on_loop


class Application:
    """Answers with the path and the size of the body; ``/gated`` when the gate opens, ``/unread`` without reading the body.

    ``/padded`` has a long answer; ``/defect`` fails when it is broken off. ``connections`` are those that are open.
    """

    def __init__(self):
        self.gate, self.entered = asyncio.Event(), asyncio.Event()
        self.served = []
        self.connections = set()
        self.slow_readers = {}
        self.tasks = set()

    def begin(self, head, client):
        asked = Asked(self, head.path, client)
        if head.path == "/unread":
            asked.answer()
            return None
        client.go_ahead()
        return asked


class Asked:
    """A request to the application."""

    def __init__(self, app, path, client):
        self.app, self.path, self.client, self.size = app, path, client, 0

    def piece(self, body):
        self.size += len(body)
        if self.path == "/at-once":
            self.answer()

    def end(self, last=b""):
        self.size += len(last)
        if self.path != "/gated":
            self.answer()
            return
        self.app.entered.set()
        task = asyncio.create_task(self.app.gate.wait())
        self.app.tasks.add(task)
        task.add_done_callback(lambda _: self.answer())

    def gone(self):
        if self.path == "/defect":
            raise RuntimeError("a defect")
        self.path = None

    def answer(self):
        if self.path is None:
            return
        self.app.served.append(self.path)
        text = b"%s %d\n" % (self.path.encode(), self.size)
        if self.path == "/padded":
            text = text.rjust(PADDED)
        self.client.reply(200, "text/plain", text)


class Connection:
    def __init__(self, reader, writer):
        self._reader, self._writer = reader, writer

    async def another(self):
        """One more to the same server."""
        return Connection(*await asyncio.open_connection(*self._writer.get_extra_info("peername")))

    async def send(self, data):
        self._writer.write(data)
        await self._writer.drain()

    async def answer(self):
        """The status line and the body of the next answer."""
        async with asyncio.timeout(PATIENCE):
            status_line, *fields = (await self.head()).decode().lower().split("\r\n")
            length = next(int(field.partition(":")[2]) for field in fields if field.startswith("content-length"))
            return status_line, await self._reader.readexactly(length)

    async def head(self):
        """The head of the next answer."""
        async with asyncio.timeout(PATIENCE):
            return await self._reader.readuntil(b"\r\n\r\n")

    async def rest(self):
        """Everything until the server closes."""
        async with asyncio.timeout(PATIENCE):
            return await self._reader.read()

    def pause(self):
        """Take nothing from now on."""
        self._writer.transport.pause_reading()

    def send_no_more(self):
        """Half-close."""
        self._writer.write_eof()

    def close(self):
        self._writer.close()


@asynccontextmanager
async def connected(header_timeout=PATIENCE, keep_alive=PATIENCE, body_timeout=PATIENCE, unparsed=2**30, untaken=2**30, most=10):
    app = Application()
    patience = Patience(header=header_timeout, body=body_timeout, keep_alive=keep_alive)
    server = HttpServer(app.begin, patience, Room(unparsed), Room(untaken), Connections(most))
    app.connections, app.slow_readers, app.leave = server.connections, server.slow_readers, server.leave
    app.keep_none = server.keep_none
    await server.start("127.0.0.1", 0)
    connection = Connection(*await asyncio.open_connection("127.0.0.1", server.port))
    try:
        yield connection, app
    finally:
        connection.close()
        app.gate.set()
        await asyncio.gather(*app.tasks)
        server.close()


def request(path, body=b""):
    return HEAD % (path, len(body)) + b"\r\n" + body


@on_both_loops
async def test_headers_that_do_not_end_in_time_get_408_and_the_connection_is_closed():
    async with connected(HEADER_TIMEOUT) as (client, app):
        await client.send(HEAD % (b"half", 0))
        assert (await client.rest()).startswith(b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\n")
        assert app.served == []


@on_both_loops
async def test_a_request_that_a_piece_of_its_body_answered_is_not_told_its_end():
    async with connected() as (client, app):
        for _ in range(3):
            await client.send(HEAD % (b"at-once", 3) + b"\r\na")
            assert await client.answer() == ("http/1.1 200 ok", b"/at-once 1\n")
            await client.send(b"bc")
        assert app.served == 3 * ["/at-once"]


@on_both_loops
async def test_a_request_that_comes_whole_is_told_its_body_with_its_end():
    async with connected() as (client, app):
        for _ in range(3):  # from the second on its head is known
            await client.send(request(b"at-once", b"abc"))
            assert await client.answer() == ("http/1.1 200 ok", b"/at-once 3\n")
        assert app.served == 3 * ["/at-once"]


@on_both_loops
async def test_a_silent_connection_is_closed():
    async with connected(HEADER_TIMEOUT) as (client, _):
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")


@on_both_loops
async def test_sending_on_drop_by_drop_does_not_extend_the_time():
    async with connected(HEADER_TIMEOUT) as (client, _):
        end = asyncio.create_task(client.rest())
        drops = 0
        await client.send(b"GET /drop HTTP/1.1\r\nhost: x\r\nx: ")
        while not end.done():
            assert drops < 50
            await client.send(b"x")
            drops += 1
            await asyncio.wait([end], timeout=HEADER_TIMEOUT / 5)
        # A drop that crosses the answer has the connection reset, which may take the answer with it.
        assert isinstance(end.exception(), ConnectionResetError) or end.result().startswith(b"HTTP/1.1 408 ")


@on_both_loops
async def test_slow_headers_that_end_in_time_are_served():
    async with connected() as (client, _):
        for byte in request(b"slow", b"body"):
            await client.send(bytes([byte]))
        assert await client.answer() == ("http/1.1 200 ok", b"/slow 4\n")


@on_both_loops
async def test_an_answer_may_take_longer_than_the_headers_also_on_a_kept_connection():
    async with connected(HEADER_TIMEOUT) as (client, app):
        for _ in range(2):
            await client.send(request(b"gated"))
            await app.entered.wait()
            await asyncio.sleep(LONGER)
            app.gate.set()
            assert await client.answer() == ("http/1.1 200 ok", b"/gated 0\n")
            app.gate.clear()
            app.entered.clear()


@on_both_loops
async def test_a_body_may_take_longer_than_the_headers():
    async with connected(HEADER_TIMEOUT) as (client, _):
        await client.send(HEAD % (b"body", 4) + b"\r\nbo")
        await asyncio.sleep(LONGER)
        await client.send(b"dy")
        assert await client.answer() == ("http/1.1 200 ok", b"/body 4\n")


@on_both_loops
async def test_the_headers_of_the_next_request_have_a_limit_of_their_own():
    async with connected(HEADER_TIMEOUT) as (client, app):
        await client.send(request(b"first"))
        assert await client.answer() == ("http/1.1 200 ok", b"/first 0\n")
        await client.send(b"GET /second HT")
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
        assert app.served == ["/first"]


@pytest.mark.parametrize("size", [MAX_HEADER_BYTES + 1, 200_000])
@on_both_loops
async def test_headers_larger_than_the_limit_get_431(size):
    async with connected() as (client, app):
        await client.send(HEAD % (b"large", 0) + b"x: " + b"x" * size + b"\r\n\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\nconnection: close\r\n")
        assert app.served == []


@on_both_loops
async def test_many_small_headers_larger_than_the_limit_get_431():
    async with connected() as (client, _):
        await client.send(HEAD % (b"many", 0) + b"x: 1\r\n" * (MAX_HEADER_BYTES // 5) + b"\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 431 ")


@on_both_loops
async def test_headers_without_an_end_get_431_before_they_fill_the_memory():
    async with connected() as (client, _):
        end = asyncio.create_task(client.rest())
        sent = 0
        await client.send(b"GET / HTTP/1.1\r\nhost: x\r\nx: ")
        while not end.done():
            assert sent < 10 * MAX_HEADER_BYTES
            await client.send(b"x" * 8192)
            sent += 8192
            await asyncio.wait([end], timeout=0.02)
        assert end.result().startswith(b"HTTP/1.1 431 ")


@on_both_loops
async def test_headers_just_below_the_limit_are_served():
    async with connected() as (client, _):
        await client.send(HEAD % (b"fits", 0) + b"x: " + b"x" * (MAX_HEADER_BYTES - 100) + b"\r\n\r\n")
        assert await client.answer() == ("http/1.1 200 ok", b"/fits 0\n")


@on_both_loops
async def test_what_is_not_http_gets_400():
    async with connected() as (client, app):
        await client.send(b"\x16\x03\x01 hello\r\n\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert app.served == []


@on_both_loops
async def test_what_was_answered_is_not_left_to_the_garbage_collector():
    async with connected() as (client, _):
        gc.collect()  # what tests before left
        gc.disable()
        try:
            for _ in range(20):
                await client.send(request(b"one", b"abc"))
                await client.answer()
            assert len([thing for thing in gc.get_objects() if type(thing) is Asked and thing.path == "/one"]) <= 3
        finally:
            gc.enable()


@on_both_loops
async def test_an_answer_without_a_body_is_sent_and_the_next_request_served():
    async with connected() as (client, app):
        await client.send(b"HEAD /first HTTP/1.1\r\nhost: test\r\n\r\n")
        assert (await client.head()).startswith(b"HTTP/1.1 200 OK\r\n")
        await client.send(request(b"second"))
        assert await client.answer() == ("http/1.1 200 ok", b"/second 0\n")
        assert app.served == ["/first", "/second"]


@on_both_loops
async def test_a_client_that_waits_to_be_asked_for_its_body_is_asked():
    async with connected() as (client, _):
        await client.send(b"POST /asked HTTP/1.1\r\nhost: test\r\ncontent-length: 3\r\nexpect: 100-continue\r\n\r\n")
        assert await client.head() == b"HTTP/1.1 100 Continue\r\n\r\n"
        await client.send(b"abc")
        assert await client.answer() == ("http/1.1 200 ok", b"/asked 3\n")


@on_both_loops
@pytest.mark.parametrize("target", [b"CONNECT example:80", b"POST http://[/x"])
async def test_a_target_that_cannot_be_read_gets_400_and_breaks_nothing(target, caplog):
    async with connected() as (client, app):
        await client.send(target + b" HTTP/1.1\r\nhost: test\r\ncontent-length: 3\r\n\r\nabc")
        assert (await client.rest()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert app.served == []
    assert "Traceback" not in caplog.text


@on_both_loops
@pytest.mark.parametrize("pause", [0, 0.02])
async def test_a_body_that_breaks_the_framing_gets_400_at_once(pause):
    async with connected() as (client, app):
        await client.send(b"POST /a HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n")
        await asyncio.sleep(pause)
        await client.send(b"no number\r\n")
        assert (await client.rest()).startswith(b"HTTP/1.1 400 Bad Request\r\n")
        assert app.served == []


@on_both_loops
@pytest.mark.parametrize("together", [True, False])
async def test_a_pipelined_body_that_breaks_the_framing_costs_those_before_it_nothing(together):
    broken = b"POST /third HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\nno number\r\n"
    async with connected() as (client, app):
        await client.send(request(b"gated", b"abc") + request(b"second") + broken * together)
        await app.entered.wait()
        if not together:
            await client.send(broken)
        await asyncio.sleep(0.02)
        app.gate.set()
        answers = await client.rest()
        assert answers.count(b"HTTP/1.1 200 OK") == 2 and app.served == ["/gated", "/second"]
        _, _, after = answers.partition(b"/second 0\n")
        assert after.partition(b"\r\n")[0] in (b"", b"HTTP/1.1 400 Bad Request")


@on_both_loops
async def test_a_pipelined_body_that_finds_no_room_is_never_served_with_a_part_of_it_missing():
    body = b"x" * 300_000
    async with connected(unparsed=50_000) as (client, app):
        await client.send(request(b"gated") + request(b"second", body)[:1000])
        await app.entered.wait()
        await client.send(body[:60_000])
        await asyncio.sleep(0.05)
        app.gate.set()
        with suppress(ConnectionResetError):
            assert await client.answer() == ("http/1.1 200 ok", b"/gated 0\n")
            await client.send(body)
            assert await client.rest() == b""
        assert app.served == ["/gated"]


@on_both_loops
async def test_trailers_without_end_of_a_pipelined_request_are_not_refused_in_the_place_of_the_one_before():
    endless = b"POST /second HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\n\r\n0\r\ny: " + b"y" * 2 * MAX_HEADER_BYTES
    async with connected() as (client, app):
        await client.send(request(b"gated") + endless)
        await app.entered.wait()
        await asyncio.sleep(0.02)
        app.gate.set()
        with suppress(ConnectionResetError):
            assert await client.answer() == ("http/1.1 200 ok", b"/gated 0\n")
        assert app.served == ["/gated"]


@on_both_loops
async def test_who_is_refused_and_leaves_the_answers_before_is_cut_off():
    async with connected(body_timeout=HEADER_TIMEOUT) as (client, app):
        protocol = await untaken(client, app)
        assert protocol.transport.get_write_buffer_size() <= PADDED
        await client.send(b"this is not HTTP\r\n\r\n")
        await all_gone(app)


@on_both_loops
async def test_one_connection_too_many_is_told_so_and_there_is_room_again_when_another_goes():
    async with connected(most=1) as (client, _):
        await client.send(request(b"first"))
        assert await client.answer() == ("http/1.1 200 ok", b"/first 0\n")
        other = await client.another()
        assert (await other.rest()).startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        client.close()
        await asyncio.sleep(0.02)
        other = await client.another()
        await other.send(request(b"second"))
        assert await other.answer() == ("http/1.1 200 ok", b"/second 0\n")
        other.close()


@on_both_loops
async def test_pipelined_requests_are_answered_in_order():
    async with connected() as (client, app):
        await client.send(request(b"gated", b"abc") + request(b"second", b"d") + request(b"third"))
        await app.entered.wait()
        app.gate.set()
        for answer in (b"/gated 3\n", b"/second 1\n", b"/third 0\n"):
            assert await client.answer() == ("http/1.1 200 ok", answer)


@on_both_loops
async def test_what_waits_behind_half_parsed_headers_is_not_counted_as_theirs():
    chunked = (
        b"POST /%d HTTP/1.1\r\nhost: test\r\ntransfer-encoding: chunked\r\nx: " + b"x" * 3000 + b"\r\n\r\n3\r\nabc\r\n0\r\n\r\n"
    )
    n = 2 * MAX_HEADER_BYTES // len(chunked)
    requests = b"".join(chunked % i for i in range(n))
    async with connected() as (client, app):
        await client.send(request(b"gated") + requests[:10_000])
        await app.entered.wait()
        await client.send(requests[10_000:])
        await asyncio.sleep(0.02)
        app.gate.set()
        for answer in (b"/gated 0\n", *(b"/%d 3\n" % i for i in range(n))):
            assert await client.answer() == ("http/1.1 200 ok", answer)


@on_both_loops
async def test_a_large_body_in_front_of_half_sent_headers_is_not_counted_as_theirs():
    async with connected() as (client, _):
        both = request(b"first", b"x" * 300_000) + request(b"second")
        await client.send(both[:-10])
        assert await client.answer() == ("http/1.1 200 ok", b"/first 300000\n")
        await client.send(both[-10:])
        assert await client.answer() == ("http/1.1 200 ok", b"/second 0\n")


@pytest.mark.parametrize(
    ("what_follows", "status"),
    [
        (b"GET /half HTT", b"408"),
        (b"this is not HTTP\r\n\r\n", b"400"),
        (b"GET /large HTTP/1.1\r\nhost: x\r\nx: " + b"x" * 2 * MAX_HEADER_BYTES + b"\r\n\r\n", b"431"),
    ],
    ids=["half-sent", "malformed", "too-large"],
)
@on_both_loops
async def test_what_is_wrong_with_a_pipelined_request_does_not_cost_the_one_before_its_answer(what_follows, status):
    async with connected(HEADER_TIMEOUT) as (client, app):
        await client.send(request(b"gated"))
        await app.entered.wait()
        await client.send(what_follows)
        await asyncio.sleep(LONGER)
        app.gate.set()
        assert await client.answer() == ("http/1.1 200 ok", b"/gated 0\n")
        refusal = await client.rest()  # and it is told in its turn, once
        assert refusal.startswith(b"HTTP/1.1 " + status) and refusal.count(b"HTTP/1.1 ") == 1
        assert app.served == ["/gated"]


@pytest.mark.parametrize("rest", [b"a part of the body", b"\r\n\r\n"])
@on_both_loops
async def test_a_client_that_stops_in_a_body_that_was_answered_already_is_closed(rest):
    async with connected(keep_alive=HEADER_TIMEOUT) as (client, _):
        await client.send(HEAD % (b"unread", 1000) + b"\r\n")
        assert await client.answer() == ("http/1.1 200 ok", b"/unread 0\n")
        await client.send(rest)
        assert await client.rest() == b""


@on_both_loops
async def test_a_client_that_sends_empty_lines_after_its_answer_is_closed():
    async with connected(keep_alive=HEADER_TIMEOUT) as (client, _):
        await client.send(request(b"first"))
        assert await client.answer() == ("http/1.1 200 ok", b"/first 0\n")
        await client.send(b"\r\n")
        assert await client.rest() == b""


@on_both_loops
async def test_a_body_that_does_not_end_in_time_gets_408_and_the_connection_is_closed():
    async with connected(body_timeout=HEADER_TIMEOUT) as (client, app):
        await client.send(HEAD % (b"first", 1000) + b"\r\n" + b"a part of the body")
        assert (await client.rest()).startswith(b"HTTP/1.1 408 ")
        assert app.served == []


@on_both_loops
async def test_a_body_that_comes_while_an_earlier_answer_is_due_is_given_its_time_afterwards():
    async with connected(body_timeout=HEADER_TIMEOUT) as (client, app):
        await client.send(request(b"gated") + HEAD % (b"second", 4) + b"\r\n" + b"ab")
        await app.entered.wait()
        await asyncio.sleep(LONGER)
        app.gate.set()
        await client.send(b"cd")
        assert await client.answer() == ("http/1.1 200 ok", b"/gated 0\n")
        assert await client.answer() == ("http/1.1 200 ok", b"/second 4\n")


@on_both_loops
async def test_a_body_in_very_small_chunks_holds_up_nobody_and_is_served():
    chunks = b"POST /chunks HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n" + b"1\r\na\r\n" * 20_000
    async with connected() as (client, _):
        other = await client.another()
        await client.send(chunks)
        await other.send(request(b"other"))
        assert await other.answer() == ("http/1.1 200 ok", b"/other 0\n")
        await client.send(b"0\r\n\r\n")
        assert await client.answer() == ("http/1.1 200 ok", b"/chunks 20000\n")
        other.close()


OFFER = b"connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n"
CHUNKS = b"transfer-encoding: chunked\r\n\r\n3\r\nabc\r\n4\r\ndefg\r\n0\r\n\r\n"


@pytest.mark.parametrize("size", [0, 7, 3_000, 300_000])
@pytest.mark.parametrize("pause", [False, True])
@on_both_loops
async def test_an_offer_to_upgrade_is_declined_and_its_request_served_with_its_body(size, pause):
    async with connected() as (client, _):
        head, body = HEAD % (b"offer", size) + OFFER + b"\r\n", b"x" * size
        await client.send(head)
        if pause:
            await asyncio.sleep(0.02)
        await client.send(
            body + request(b"next", b"ab") + b"POST /chunks HTTP/1.1\r\nhost: x\r\n" + OFFER + CHUNKS + request(b"last")
        )
        expected = [b"/offer %d\n" % size, b"/next 2\n", b"/chunks 7\n", b"/last 0\n"]
        assert [await client.answer() for _ in expected] == [("http/1.1 200 ok", answer) for answer in expected]


@on_both_loops
async def test_a_server_that_leaves_closes_who_is_idle_and_answers_who_waits_as_the_last():
    async with connected() as (client, app):
        idle, half = await client.another(), await client.another()
        await idle.send(request(b"first"))
        await idle.answer()
        await half.send(b"GET /half HT")
        await client.send(request(b"gated") + request(b"behind"))
        await app.entered.wait()
        assert not await app.leave(0.05)
        assert await idle.rest() == await half.rest() == b""
        app.gate.set()
        answer = await client.rest()
        assert answer.count(b"HTTP/1.1 ") == 1 and b"\r\nconnection: close\r\n" in answer and answer.endswith(b"/gated 0\n")
        assert await app.leave(PATIENCE)
        assert app.served == ["/first", "/gated"]


@on_both_loops
async def test_whose_request_is_on_its_way_when_the_server_leaves_is_answered_and_who_says_nothing_holds_it_up_for_a_moment():
    async with connected() as (silent, app):
        kept, new = await silent.another(), await silent.another()
        await kept.send(request(b"before"))
        await kept.answer()
        while len(app.connections) < 3:
            await asyncio.sleep(0)
        began = asyncio.get_running_loop().time()
        leaving = asyncio.create_task(app.leave(PATIENCE))
        await asyncio.sleep(0)
        for each, path in ((kept, b"kept"), (new, b"new")):
            await each.send(request(path) + request(b"behind"))
            answer = await each.rest()
            assert answer.count(b"HTTP/1.1 ") == 1 and b"\r\nconnection: close\r\n" in answer and answer.endswith(b"/%b 0\n" % path)
        assert await silent.rest() == b"" and await leaving
        took = asyncio.get_running_loop().time() - began
        assert app.served == ["/before", "/kept", "/new"] and took > LAST - 1e-6  # as differences of such times are rounded


@on_both_loops
async def test_who_is_answered_where_no_connection_is_kept_any_more_is_told_and_who_comes_is_served():
    async with connected() as (client, app):
        idle = await client.another()
        await idle.send(request(b"before"))
        await idle.answer()
        app.keep_none()
        new = await client.another()
        for each, path in ((idle, b"idle"), (client, b"pipelined"), (new, b"new")):
            await each.send(request(path) + request(b"behind"))
            answer = await each.rest()
            assert answer.count(b"HTTP/1.1 ") == 1 and b"\r\nconnection: close\r\n" in answer and answer.endswith(b"/%b 0\n" % path)
        assert app.served == ["/before", "/idle", "/pipelined", "/new"]


async def untaken(client, app):
    """Send requests for long answers and take none, until one waits in the server: as few as the transport does not tell of."""
    client.pause()
    sent = 0
    async with asyncio.timeout(PATIENCE):
        while True:
            await client.send(request(b"padded"))
            sent += 1
            while len(app.served) < sent:
                await asyncio.sleep(0)
            (protocol,) = app.connections
            if protocol.transport.get_write_buffer_size():
                return protocol


async def all_gone(app):
    async with asyncio.timeout(PATIENCE):
        while app.connections:
            await asyncio.sleep(0.01)


@on_both_loops
async def test_who_sends_nothing_more_and_leaves_the_answers_before_is_cut_off():
    async with connected(body_timeout=HEADER_TIMEOUT) as (client, app):
        await untaken(client, app)
        client.send_no_more()
        await all_gone(app)


@on_both_loops
async def test_who_takes_some_of_the_last_answer_and_leaves_the_rest_is_cut_off():
    async with connected(body_timeout=HEADER_TIMEOUT) as (client, app):
        protocol = await untaken(client, app)
        await client.send(b"this is not HTTP\r\n\r\n")
        while not app.slow_readers:
            await asyncio.sleep(0)
        protocol.resume_writing()  # as the transport says when few bytes are left
        assert protocol in app.slow_readers
        await all_gone(app)


@on_both_loops
async def test_a_defect_at_one_connection_that_is_given_up_costs_the_others_nothing(caplog):
    async with connected(body_timeout=HEADER_TIMEOUT) as (client, app):
        await client.send(HEAD % (b"defect", 4) + b"\r\n")
        for _ in range(2):  # one after the other: in the next look too
            other = await client.another()
            await other.send(HEAD % (b"half", 4) + b"\r\n")
            assert (await other.rest()).startswith(b"HTTP/1.1 408 ")
        await all_gone(app)
    assert "a defect" in caplog.text
