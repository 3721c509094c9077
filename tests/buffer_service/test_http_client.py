"""The client of batches over sockets: which connection is asked, what is written, and what ends a connection."""

from __future__ import annotations

import asyncio
import base64
import ssl
import subprocess
from contextlib import asynccontextmanager

import pytest

from sluice.buffer_service.invokers import http_client
from sluice.buffer_service.invokers.http_client import (
    BrokenOff,
    ClientError,
    Disconnected,
    HttpClient,
    NotConnected,
    Reply,
    Unreadable,
    parse,
)
from sluice.buffer_service.prompt import GivenUp, Prompt
from sluice.http.room import Room
from tests.waiting import until

PATIENCE = 60.0
LIMIT = 10_000_000
OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Server:
    """Answers each request with the next of ``answers``, the last again and again; ``None``: it closes instead."""

    def __init__(self, *answers):
        self.answers = list(answers) or [OK]
        self.requests, self.connections = [], 0
        self.writers = []

    @asynccontextmanager
    async def running(self, host="127.0.0.1", tls=None):
        server = await asyncio.start_server(self._serve, host, 0, ssl=tls, limit=2**24)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{self.port}"
        finally:
            for writer in self.writers:
                writer.transport.abort()
            server.close()

    async def _serve(self, reader, writer):
        self.connections += 1
        self.writers.append(writer)
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.split(b"content-length: ")[1].split(b"\r\n")[0])
                self.requests.append((head, await reader.readexactly(length)))
                answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
                if answer is None:
                    break
                writer.write(answer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        writer.close()


@asynccontextmanager
async def asking(timeout=PATIENCE, **settings):
    client = HttpClient(timeout, **settings)

    async def post(url, *parts, limit=LIMIT, room=None, fields=(), fresh=False):
        return await client.post(url, fields, parts or (b"{}",), limit, room or Room.without_end(), fresh)

    post.client = client
    try:
        yield post
    finally:
        await client.close()


def at(server):
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_request_is_one_message_and_its_connection_serves_the_next():
    server = Server()
    async with server.running() as url, asking() as post:
        for _ in range(3):
            assert await post(url + "/a b?c=d e", b"[1", b",2]", fields=(("x-a", "b"),)) == Reply(
                200, {"content-length": "2"}, b"ok"
            )
        head = (
            f"POST /a%20b?c=d%20e HTTP/1.1\r\nhost: 127.0.0.1:{server.port}\r\naccept-encoding: identity\r\nuser-agent: sluice\r\n"
        )
        assert server.requests == [((head + "x-a: b\r\ncontent-length: 5\r\n\r\n").encode(), b"[1,2]")] * 3
        assert (server.connections, post.client.kept) == (1, 1)


async def test_large_bodies_are_written_beside_their_head_and_arrive():
    server = Server()
    parts = [b"a" * 100_000, b"", b"b" * 300_000]
    async with server.running() as url, asking() as post:
        assert (await post(url, *parts)).body == b"ok"
        assert server.requests[0][1] == b"".join(parts)


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 100 Continue\r\n\r\n" + OK,
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n",
        b"HTTP/1.1 204 No Content\r\n\r\n",
    ],
)
async def test_interim_answers_chunks_and_answers_without_a_body_leave_the_connection_to_the_next(answer):
    server = Server(answer, OK)
    async with server.running() as url, asking() as post:
        first = await post(url)
        assert (first.status, first.body) in ((200, b"ok"), (204, b""))
        assert (await post(url)).body == b"ok"
        assert server.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
        OK + OK,
    ],
)
async def test_a_connection_that_is_not_to_be_used_again_is_not(answer):
    server = Server(answer)
    async with server.running() as url, asking() as post:
        for connections in (1, 2):
            assert (await post(url)).body == b"ok"
            assert (server.connections, post.client.kept) == (connections, 0)


async def test_an_answer_may_end_with_its_connection():
    async def serve(reader, writer):
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nall ")
        await writer.drain()
        writer.write(b"of it")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with asking() as post:
        assert (await post(at(server))).body == b"all of it"
        assert post.client.kept == 0
    server.close()


async def test_a_body_in_pieces_of_a_byte_takes_no_more_memory_than_its_bytes():
    async with Server().running() as url, asking() as post:
        asked = asyncio.create_task(post(url))
        await until(lambda: post.client._connections)
        (connection,) = post.client._connections
        await asked
        share = Room.without_end().share()
        answered = connection.ask((b"",), LIMIT, Room.without_end(), share)
        connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: 10000\r\n\r\n")
        for i in range(10_000):
            assert len(connection._pieces._pieces) <= 2
            connection.data_received(b"%d" % (i % 10))
        assert share.size == 10_000
        assert (await answered).body == b"0123456789" * 1000


@pytest.mark.parametrize("end", ["give_up", "drop"])
async def test_what_ends_one_exchange_ends_no_other_on_its_connection(end):
    """As where an answer comes in the round of the loop in which the time of its exchange is over, and the next request is sent."""
    async with Server().running() as url, asking() as post:
        await post(url)
        (connection,) = post.client._connections
        room = Room.without_end()
        before = connection.ask((b"",), LIMIT, room, room.share())
        connection.data_received(OK)
        now = connection.ask((b"",), LIMIT, room, room.share())
        getattr(connection, end)(before)
        connection.data_received(OK)
        assert (await before).body == (await now).body == b"ok"


@pytest.mark.parametrize(
    ("answer", "kind", "said"),
    [
        (None, Disconnected, "Server disconnected"),
        (b"SSH-2.0\r\n\r\n", Unreadable, "not an answer of HTTP/1.1: "),
        (b"HTTP/1.1 101 Switching\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", Unreadable, "it goes on in another protocol"),
    ],
)
async def test_what_is_no_answer_is_said_and_its_connection_ends(answer, kind, said):
    server = Server(answer, OK)
    async with server.running() as url, asking() as post:
        with pytest.raises(ClientError) as caught:
            await post(url)
        assert type(caught.value) is kind and str(caught.value).startswith(said)
        assert post.client.kept == 0
        assert (await post(url)).body == b"ok"


async def test_an_answer_that_is_broken_off_gives_its_room_back():
    async def serve(reader, writer):
        await reader.readuntil(b"{}")
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
        await until(lambda: room.taken == 4)
        writer.transport.abort()

    room = Room(100)
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with asking() as post:
        with pytest.raises(BrokenOff, match="the connection ended within it"):
            await post(at(server), room=room)
        assert room.taken == 0
    server.close()


async def test_who_waits_no_more_leaves_neither_bytes_nor_a_connection():
    server = Server(b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nhalf")
    room = Room(100)
    async with server.running() as url, asking() as post:
        asked = asyncio.create_task(post(url, room=room))
        await until(lambda: room.taken == 4)
        (connection,) = post.client._connections
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        connection.data_received(b"more")  # as may come in the same round of the loop
        assert room.taken == 0
        await until(lambda: not post.client._connections)


async def test_a_server_that_takes_too_long_is_given_up_and_its_connection_ends():
    async with Server(b"HTTP/1.1 ").running() as url, asking(0.05) as post:
        with pytest.raises(TimeoutError):
            await post(url)
        await until(lambda: not post.client._connections)


async def test_what_a_server_says_unasked_ends_the_connection_that_was_kept():
    server = Server()
    async with server.running() as url, asking() as post:
        await post(url)
        server.writers[0].write(OK)
        await until(lambda: not post.client.kept)
        assert (await post(url)).body == b"ok"
        assert server.connections == 2


async def test_a_connection_that_its_server_closed_is_not_asked():
    server = Server()
    async with server.running() as url, asking() as post:
        await post(url)
        server.writers[0].close()
        await until(lambda: not post.client.kept)
        assert (await post(url)).body == b"ok"


async def test_connections_are_kept_up_to_a_number_and_an_age_and_the_one_that_was_used_last_is_asked(monkeypatch):
    monkeypatch.setattr(http_client, "MOST_KEPT", 3)
    server = Server()
    async with server.running() as url, asking() as post:
        await asyncio.gather(*(post(url) for _ in range(5)))
        assert (server.connections, post.client.kept) == (5, 3)
        (kept,) = post.client._kept.values()
        last = kept[-1]
        await post(url)
        assert kept[-1] is last and server.connections == 5
        for connection in list(kept)[:2]:
            connection.since -= http_client.KEPT_FOR
        post.client._end_old()
        assert list(kept) == [last]
        last.since -= http_client.KEPT_FOR
        post.client._end_old()
        assert (post.client.kept, post.client._look) == (0, None)
        await until(lambda: not post.client._connections)


async def test_who_has_answered_before_he_has_taken_the_request_is_not_asked_again():
    async def serve(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too large\r\ncontent-length: 0\r\n\r\n")
        await asyncio.sleep(PATIENCE)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with asking() as post:
        reply = await post(at(server), b"x" * 16_000_000)
        assert (reply.status, post.client.kept) == (413, 0)
        await until(lambda: not post.client._connections)
    server.close()


async def test_a_server_of_ipv6_is_named_as_such():
    server = Server()
    try:
        async with server.running("::1") as url, asking() as post:
            assert (await post(url)).body == b"ok"
            assert f"\r\nhost: [::1]:{server.port}\r\n".encode() in server.requests[0][0]
    except OSError:
        pytest.skip("no IPv6 here")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    path = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "1"]
    command += ["-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost"]
    subprocess.run([*command, "-keyout", str(path / "key"), "-out", str(path / "crt")], check=True, capture_output=True)
    return path / "crt", path / "key"


async def test_tls_is_spoken_with_who_is_trusted_alone(certificate, monkeypatch):
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(*certificate)
    server = Server()
    async with server.running(tls=serving), asking() as post:
        url = f"https://user:pass%20word@localhost:{server.port}/"
        with pytest.raises(NotConnected, match="Cannot connect to host localhost:.*certificate"):
            await post(url)
        trusting = ssl.create_default_context(cafile=str(certificate[0]))
        monkeypatch.setattr(http_client.ssl, "create_default_context", lambda: trusting)
        http_client._trusting.cache_clear()
        try:
            for _ in range(2):
                assert (await post(url)).body == b"ok"
        finally:
            http_client._trusting.cache_clear()
        assert b"\r\nauthorization: Basic %b\r\n" % base64.b64encode(b"user:pass word") in server.requests[0][0]
        assert len(server.requests) == 2 and post.client.kept == 1


async def test_who_takes_no_connection_in_time_is_said(monkeypatch):
    async def never(*_, **__):
        await asyncio.sleep(PATIENCE)

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
    async with asking(patience=0.02) as post:
        with pytest.raises(NotConnected, match=r"Cannot connect to host 127\.0\.0\.1:80: no connection within 0\.02 s"):
            await post("http://127.0.0.1")


async def test_a_name_that_nobody_knows_is_said():
    async with asking() as post:
        with pytest.raises(NotConnected, match="Cannot connect to host nowhere.invalid:80: "):
            await post("http://nowhere.invalid")


@pytest.mark.parametrize(
    ("url", "start"),
    [
        ("http://a", "POST / HTTP/1.1\r\nhost: a\r\n"),
        ("http://A.b:80/x?y=1#z", "POST /x?y=1 HTTP/1.1\r\nhost: a.b\r\n"),
        ("https://a:8443/x%2Cy", "POST /x%2Cy HTTP/1.1\r\nhost: a:8443\r\n"),
        ("http://a:443/", "POST / HTTP/1.1\r\nhost: a:443\r\n"),
        ("http://bücher.example/ü", "POST /%C3%BC HTTP/1.1\r\nhost: xn--bcher-kva.example\r\n"),
        ("http://a/\r\nx: y", "POST /x:%20y HTTP/1.1\r\nhost: a\r\n"),
    ],
)
def test_an_address_is_written_as_http_asks(url, start):
    assert parse(url).start == (start + "accept-encoding: identity\r\nuser-agent: sluice\r\n").encode()


@pytest.mark.parametrize("url", ["http://", "http://a:99999", "http://a b/", "http:///x", "http://[::1", "http://" + "ü" * 70])
def test_what_is_no_address_is_said(url):
    with pytest.raises(ClientError, match="no address of a server: "):
        parse(url)


async def test_a_connection_that_came_about_when_nobody_wanted_it_any_more_is_ended():
    async with Server().running() as url:
        client, connect = HttpClient(PATIENCE), HttpClient._connect
        asked: list[Prompt] = []

        async def and_given_up(origin):
            connection = await connect(client, origin)
            asyncio.get_running_loop().call_soon(asked[0].cancel)  # before who waits hears of the connection
            return connection

        client._connect = and_given_up
        ended = asyncio.get_running_loop().create_future()

        async def ask():
            await client.post(url, (), (b"1",), 1000, Room.without_end())

        asked.append(Prompt(ask(), ended.set_result))
        asked[0].go_on()
        assert isinstance(await ended, GivenUp)
        await until(lambda: not client._connections and client.kept == 0)
