"""One connection for the calls of everybody: who gets which answer, who is too late, what is bounded, how it begins and ends."""

import asyncio
import socket
import threading
import time
from contextlib import asynccontextmanager, contextmanager, suppress

import hiredis
import pytest
import redis
import uvloop

from sluice.buffer_service import redis_connection, redis_mailbox, redis_servers, redis_store
from sluice.buffer_service.redis_connection import LARGE, Endpoint, Pipe, TooManyCalls, error_of
from sluice.buffer_service.redis_servers import Away, Servers
from sluice.local.redis_server import RedisServer


class Scripted:
    """A server that answers a command with what ``says`` has for its last word, or with that word; ``asked`` is what it heard.

    ``HELD`` words are answered with what is ``late`` when ``release`` is called, and hold up what comes behind them, as Redis does.
    """

    HELD = "held"

    def __init__(self):
        self.says = {b"replication": b"-ERR not here\r\n"}
        self.late = b"+late\r\n"
        self.asked = []
        self.connections = []
        self.reads = asyncio.Event()
        self.reads.set()
        self.released = asyncio.Event()
        self.heard = asyncio.Condition()

    async def answer(self, reader, writer):
        self.connections.append(writer)
        parser = hiredis.Reader(notEnoughData=Ellipsis)
        while data := await reader.read(65536):
            parser.feed(data)
            while (command := parser.gets()) is not Ellipsis:
                self.asked.append(command)
                async with self.heard:
                    self.heard.notify_all()
                says = self.says.get(command[-1], b"$%d\r\n%s\r\n" % (len(command[-1]), command[-1]))
                if says == self.HELD:
                    await self.released.wait()
                    says = self.late
                writer.write(says)
            await self.reads.wait()
        writer.close()

    async def hears(self, word):
        """Wait until it heard a command that ends so."""
        async with self.heard:
            await self.heard.wait_for(lambda: any(command[-1] == word for command in self.asked))

    @property
    def words(self):
        """The last words of what was asked behind the greeting."""
        return [command[-1] for command in self.asked if command[0] not in (b"INFO", b"CLUSTER")]

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0?protocol=2"

    def release(self):
        self.released.set()

    def cut(self):
        for writer in self.connections:
            writer.transport.abort()


@asynccontextmanager
async def scripted():
    server = Scripted()
    listener = await asyncio.start_server(server.answer, "127.0.0.1", 0)
    server.port = listener.sockets[0].getsockname()[1]
    yield server
    server.release()
    server.reads.set()
    listener.close()
    server.cut()


@pytest.fixture
async def server():
    async with scripted() as server:
        yield server


@asynccontextmanager
async def pipe_to(url, within=20.0):
    greeted = []
    pipe = Pipe(Endpoint(url), ("INFO", "replication"), greeted.append, within)
    pipe.told = greeted
    try:
        yield pipe
    finally:
        await pipe.close()


@asynccontextmanager
async def servers_at(server):
    servers = Servers(server.url)
    try:
        yield servers
    finally:
        await servers.close()


def now():
    return asyncio.get_running_loop().time()


def ask(pipe, *words, within=20.0):
    return pipe.ask([("ECHO", word) for word in words], now() + within)


async def test_calls_of_many_share_one_connection_and_each_gets_its_own_answers(server):
    async with pipe_to(server.url) as pipe:
        calls = [ask(pipe, *(f"{i}.{k}" for k in range(i % 3 + 1))) for i in range(300)]
        answers = await asyncio.gather(*calls)
    assert answers == [[b"%d.%d" % (i, k) for k in range(i % 3 + 1)] for i in range(300)]
    assert len(server.connections) == 1


@pytest.mark.parametrize("length", [LARGE - 1, LARGE, LARGE + 1])
async def test_large_words_arrive_as_they_were_asked_between_small_ones_and_other_calls(server, length):
    servers = Servers(server.url)
    large, other = b"a" * length, b"b" * (3 * length)
    calls = (("PUSH", "key", large, other, "one"), ("EXPIRE", "key", 300, "two")), (("PUSH", 1, other, "\u00e9", large),)
    answers = await asyncio.gather(*(servers.call(0, *commands) for commands in calls), servers.call(0, ("PING", "three")))
    assert answers == [[b"one", b"two"], [large], [b"three"]]
    assert [command for command in server.asked if command[0] in (b"PUSH", b"EXPIRE", b"PING")] == [
        [b"PUSH", b"key", large, other, b"one"],
        [b"EXPIRE", b"key", b"300", b"two"],
        [b"PUSH", b"1", other, "\u00e9".encode(), large],
        [b"PING", b"three"],
    ]
    await servers.close()


async def test_large_words_are_not_copied_before_they_are_written():
    large = bytes(LARGE)
    pieces = redis_connection._pieces([("PUSH", "key", large), ("EXPIRE", "key", 300)])
    assert [piece is large for piece in pieces] == [False, True, False]
    assert b"".join(pieces) == hiredis.pack_command(("PUSH", "key", large)) + hiredis.pack_command(("EXPIRE", "key", 300))
    assert redis_connection._pieces([("PUSH", "key", large[1:]), ("EXPIRE", "key", 300)]) == [
        hiredis.pack_command(("PUSH", "key", large[1:])) + hiredis.pack_command(("EXPIRE", "key", 300))
    ]


async def test_a_word_that_cannot_be_sent_beside_a_large_one_is_the_error_of_who_asked_and_nothing_of_it_is_sent(server):
    servers = Servers(server.url)
    with pytest.raises(TypeError):
        await servers.call(0, ("PUSH", bytes(LARGE), object()))
    assert await servers.call(0, ("PING", "after")) == [b"after"]
    assert all(command[0] != b"PUSH" for command in server.asked)
    await servers.close()


async def test_answers_that_come_in_pieces_of_one_byte_are_put_together():
    async def piecemeal(reader, writer):
        answers = b"*2\r\n$5\r\nfir\r\n\r\n:7\r\n>2\r\n+push\r\n+told\r\n_\r\n-MOVED 7 10.0.0.1:6379\r\n"
        for last, said in ((b"replication\r\n", b"-ERR not here\r\n"), (b"second\r\n", answers)):
            await reader.readuntil(last)
            for byte in said:
                writer.write(bytes([byte]))
                await asyncio.sleep(0)
        await reader.read()
        writer.close()

    listener = await asyncio.start_server(piecemeal, "127.0.0.1", 0)
    url = f"redis://127.0.0.1:{listener.sockets[0].getsockname()[1]}/0?protocol=2"
    async with listener, pipe_to(url) as pipe:
        [first], [nil, moved] = await asyncio.gather(ask(pipe, "first"), ask(pipe, "x", "second"))
    assert (first, nil) == ([b"fir\r\n", 7], None)
    assert (type(moved), moved.host, moved.port, moved.slot_id) == (redis.exceptions.MovedError, "10.0.0.1", 6379, 7)


@pytest.mark.parametrize(
    ("said", "kind", "detail"),
    [
        ("ERR unknown command 'X'", redis.exceptions.ResponseError, "unknown command 'X'"),
        ("NOPOLICY no policy", redis.exceptions.ResponseError, "NOPOLICY no policy"),
        ("READONLY You can't write", redis.exceptions.ReadOnlyError, "You can't write"),
        ("NOSCRIPT No matching script", redis.exceptions.NoScriptError, "No matching script"),
        ("LOADING Redis is loading", redis.exceptions.BusyLoadingError, "Redis is loading"),
        ("TRYAGAIN Multiple keys", redis.exceptions.TryAgainError, "Multiple keys"),
        ("UNBLOCKED force", redis.exceptions.ResponseError, "UNBLOCKED force"),
        ("", redis.exceptions.ResponseError, ""),
    ],
)
def test_errors_have_the_names_that_redis_py_gives_them(said, kind, detail):
    error = error_of(said)
    assert (type(error), str(error)) == (kind, detail)


async def test_who_is_too_late_is_told_and_those_behind_him_get_their_own_answers(server):
    server.says[b"slow"] = server.HELD
    async with pipe_to(server.url) as pipe:
        slow, behind = ask(pipe, "slow", within=0.02), ask(pipe, "behind")
        with pytest.raises(TimeoutError):
            await slow
        server.release()
        assert await behind == [b"behind"]
        assert await ask(pipe, "after") == [b"after"]


async def test_an_earlier_deadline_behind_a_later_one_is_kept(server):
    server.says[b"slow"] = server.HELD
    async with pipe_to(server.url) as pipe:
        slow, hurried = ask(pipe, "slow"), ask(pipe, "hurried", within=0.02)
        with pytest.raises(TimeoutError):
            await hurried
        assert not slow.done()
        server.release()
        assert await slow == [b"late"]


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_a_process_that_stood_still_itself_reads_what_has_come_before_it_counts_a_server_as_gone(loop):
    answered = threading.Event()

    def answer_later(listener):
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(b"-ERR not here\r\n")
            connection.recv(4096)
            time.sleep(0.05)
            connection.sendall(b"+late\r\n")
            answered.set()
            connection.recv(4096)

    async def stand_still(port):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            asyncio.get_running_loop().add_reader(ours, lambda: ours.recv(1) and answered.wait())
            async with pipe_to(f"redis://127.0.0.1:{port}/0?protocol=2") as pipe:
                while not pipe.told:
                    await asyncio.sleep(0.001)
                call = ask(pipe, "x", within=0.01)
                theirs.send(b"!")
                answer = await call
            asyncio.get_running_loop().remove_reader(ours)
            return answer

    with socket.create_server(("127.0.0.1", 0)) as listener, asyncio.Runner(loop_factory=loop) as runner:
        threading.Thread(target=answer_later, args=(listener,), daemon=True).start()
        assert runner.run(stand_still(listener.getsockname()[1])) == [b"late"]


async def test_who_gives_up_takes_nobody_elses_answer(server):
    server.says[b"slow"] = server.HELD
    async with pipe_to(server.url) as pipe:
        calls = [ask(pipe, word) for word in ("slow", "gone", "stays")]
        await server.hears(b"slow")
        calls[0].cancel()
        calls[1].cancel()
        server.release()
        assert await calls[2] == [b"stays"]


async def test_calls_beyond_the_limit_are_refused_at_once_and_not_sent(server, monkeypatch):
    monkeypatch.setattr(redis_connection, "MOST_CALLS", 2)
    server.says[b"slow"] = server.HELD
    async with pipe_to(server.url) as pipe:
        calls = [ask(pipe, "slow"), ask(pipe, "second")]
        with pytest.raises(TooManyCalls, match="2 calls wait for its answers"):
            ask(pipe, "third")
        await server.hears(b"slow")
        with pytest.raises(TooManyCalls):
            ask(pipe, "third")
        server.release()
        assert await asyncio.gather(*calls) == [[b"late"], [b"second"]]
        assert await ask(pipe, "fourth") == [b"fourth"]
    assert server.words == [b"slow", b"second", b"fourth"]


async def test_a_call_that_is_refused_as_one_too_many_was_not_asked_and_costs_the_others_nothing(server, monkeypatch):
    monkeypatch.setattr(redis_connection, "MOST_CALLS", 1)
    server.says[b"slow"] = server.HELD
    async with servers_at(server) as servers:
        slow = asyncio.create_task(servers.call(1, ("ECHO", "slow")))
        await server.hears(b"slow")
        with pytest.raises(Away, match="Redis does not answer fast enough: 1 calls wait") as caught:
            await servers.call(2, ("ECHO", "second"))
        assert not caught.value.asked
        server.release()
        assert await slow == [b"late"]


async def test_while_the_server_takes_no_more_bytes_calls_wait_before_the_pipe_and_are_not_sent_when_it_is_too_late(
    server, monkeypatch
):
    monkeypatch.setattr(redis_connection, "MOST_BYTES", 1000)
    async with pipe_to(server.url) as pipe:
        assert await ask(pipe, "ready") == [b"ready"]
        server.reads.clear()
        large = ["x" * 4_000_000] * 3  # more than the kernel takes for a server that does not read
        calls = [ask(pipe, each) for each in large]
        assert pipe._transport.get_write_buffer_size() < 4_000_000 + 1000 + 100  # what is over the limit, and one call
        late, gone, last = ask(pipe, "late", within=0.02), ask(pipe, "gone"), ask(pipe, "last")
        with pytest.raises(TimeoutError):
            await late
        gone.cancel()
        server.reads.set()
        assert [len(answer) for [answer] in await asyncio.gather(*calls)] == [4_000_000] * 3
        assert await last == [b"last"]
    assert [word for word in server.words if len(word) < 10] == [b"ready", b"last"]


async def test_when_the_connection_breaks_all_that_are_in_it_learn_it_and_nothing_is_sent_twice(server):
    server.says[b"slow"] = server.HELD
    async with pipe_to(server.url) as pipe:
        calls = [ask(pipe, word) for word in ("slow", "second")]
        await server.hears(b"slow")
        server.cut()
        for call in calls:
            with pytest.raises(redis.ConnectionError):
                await call
        assert pipe.ended
        with pytest.raises(redis.ConnectionError):
            ask(pipe, "third")
    assert server.words.count(b"slow") == 1
    assert b"third" not in server.words


async def test_the_next_call_after_a_break_opens_another_connection(server):
    async with servers_at(server) as servers:
        assert await servers.call(1, ("ECHO", "first")) == [b"first"]
        pipe = servers._server(server.url).pipe
        server.cut()
        await pipe.closed
        assert await servers.call(1, ("ECHO", "second")) == [b"second"]


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"+one\r\n+too many\r\n"])
async def test_what_is_no_answer_to_what_was_asked_ends_the_connection(server, said):
    server.says[b"x"] = said
    async with pipe_to(server.url) as pipe:
        call = ask(pipe, "x")
        await asyncio.wait([call])
        assert call.exception() is None or "is not what was asked for" in str(call.exception())
        await pipe.closed
        assert pipe.ended


async def test_who_waits_learns_what_a_server_said_that_was_asked_nothing(server):
    async with pipe_to(server.url) as pipe:
        await ask(pipe, "first")
        server.connections[0].write(b"-ERR max number of clients reached\r\n")
        await pipe.closed
        with pytest.raises(redis.ConnectionError, match="not what was asked for .*max number of clients reached"):
            ask(pipe, "second")


class Silent(asyncio.Transport):
    """A connection that its loop closes without a word."""

    def set_write_buffer_limits(self, high=None, low=None):
        """Nothing is written."""

    def abort(self):
        """It is closed already."""


async def test_a_pipe_whose_beginning_fails_once_there_is_a_connection_is_closed_then():
    class Failing(Endpoint):
        async def connect(self, protocol, within):
            protocol.connection_made(Silent())
            raise OSError("no longer there")

    pipe = Pipe(Failing("redis://127.0.0.1:1/0"), ("INFO", "replication"), lambda told: None, 20.0)
    with pytest.raises(redis.ConnectionError, match="no longer there"):
        await ask(pipe, "first")
    async with asyncio.timeout(5):
        await pipe.close()


@contextmanager
def full_server():
    """The address of a server that refuses each connection as Redis does one too many."""

    def refuse():
        with suppress(OSError):
            while True:
                taken, _ = listener.accept()
                taken.sendall(b"-ERR max number of clients reached\r\n")
                taken.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=refuse, daemon=True).start()
        try:
            yield f"redis://127.0.0.1:{listener.getsockname()[1]}/0"
        finally:
            listener.shutdown(socket.SHUT_RDWR)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_a_pipe_that_is_refused_as_it_begins_says_why_and_closes(new_loop):
    async def begin_and_close(url):
        pipe = Pipe(Endpoint(url), ("INFO", "replication"), lambda told: None, 20.0)
        with pytest.raises(redis.ConnectionError, match="max number of clients reached|reset|closed"):
            await pipe.ask([("PING",)], asyncio.get_running_loop().time() + 20)
        async with asyncio.timeout(5):
            await pipe.close()

    with full_server() as url, asyncio.Runner(loop_factory=new_loop) as runner:
        for _ in range(100):
            runner.run(begin_and_close(url))


async def test_a_pipe_that_is_left_closes_when_its_last_call_has_ended_and_at_the_latest_after_a_while(server):
    server.says[b"slow"] = server.HELD
    async with pipe_to(server.url) as pipe, pipe_to(server.url) as silent, pipe_to(server.url) as idle:
        calls = [ask(pipe, "slow"), ask(silent, "slow")]
        await ask(idle, "once")
        for each, within in ((pipe, 20.0), (silent, 0.02), (idle, 20.0)):
            each.leave(within)
        assert idle.ended
        await idle.closed
        with pytest.raises(TimeoutError):
            await calls[1]
        assert not pipe.closed.done()
        server.release()
        assert await calls[0] == [b"late"]
        await pipe.closed


async def test_a_server_that_is_not_there_or_silent_is_told_to_all_who_wait(server):
    async with pipe_to("redis://127.0.0.1:1/0") as pipe:
        for call in [ask(pipe, "x"), ask(pipe, "y")]:
            with pytest.raises(redis.ConnectionError, match="refused|failed"):
                await call
    server.says[b"replication"] = server.HELD
    async with pipe_to(server.url, within=0.02) as pipe:
        with pytest.raises(TimeoutError):
            await ask(pipe, "x")


async def test_a_word_that_no_command_may_have_is_the_error_of_who_said_it(server):
    async with pipe_to(server.url) as pipe:
        with pytest.raises(TypeError):
            await pipe.ask([("ECHO", None)], now() + 20)
        assert await ask(pipe, "next") == [b"next"]


@pytest.mark.parametrize(
    ("options", "greeting"),
    [
        ("127.0.0.1:{port}/0?protocol=2", []),
        ("127.0.0.1:{port}/3?protocol=2", [[b"SELECT", b"3"]]),
        (":secret@127.0.0.1:{port}/0?protocol=2", [[b"AUTH", b"secret"]]),
        ("me:secret@127.0.0.1:{port}/0?protocol=2", [[b"AUTH", b"me", b"secret"]]),
        (
            "me:secret@127.0.0.1:{port}/1?client_name=door",
            [[b"HELLO", b"3", b"AUTH", b"me", b"secret"], [b"CLIENT", b"SETNAME", b"door"], [b"SELECT", b"1"]],
        ),
        (":secret@127.0.0.1:{port}/0", [[b"HELLO", b"3", b"AUTH", b"default", b"secret"]]),
        ("127.0.0.1:{port}/0?protocol=3", [[b"HELLO", b"3"]]),
    ],
)
async def test_a_connection_begins_as_its_url_has_it(server, options, greeting):
    async with pipe_to(f"redis://{options.format(port=server.port)}") as pipe:
        assert await ask(pipe, "x") == [b"x"]
    assert server.asked == [*greeting, [b"INFO", b"replication"], [b"ECHO", b"x"]]


@pytest.fixture(scope="module")
def locked_server():
    """It has the password ``secret``."""
    with RedisServer(port=0) as server, redis.Redis.from_url(server.url) as admin:
        admin.config_set("requirepass", "secret")
        yield server
        admin.config_set("requirepass", "")


@pytest.mark.parametrize("protocol", [2, 3])
async def test_who_is_not_let_in_is_told_why(locked_server, protocol):
    address = f"127.0.0.1:{locked_server.port}/0?protocol={protocol}"
    async with pipe_to(f"redis://:wrong@{address}") as pipe:
        with pytest.raises(redis.ConnectionError, match="invalid username-password pair"):
            await ask(pipe, "x")
    async with pipe_to(f"redis://{address}") as pipe:
        if protocol == 3:
            with pytest.raises(redis.ConnectionError, match="it asks for a password"):
                await ask(pipe, "x")
        else:
            [answer] = await ask(pipe, "x")
            assert isinstance(answer, redis.AuthenticationError)
    async with pipe_to(f"redis://:secret@{address}") as pipe:
        assert await ask(pipe, "x") == [b"x"]
        [told] = pipe.told
        assert b"master_replid" in told


async def test_a_socket_of_this_machine_and_a_database_are_found():
    with RedisServer(port=0) as server:
        async with pipe_to(f"unix://{server.socket_path}?db=3") as pipe:
            await pipe.ask([("SET", "x", 1)], now() + 20)
        with redis.Redis.from_url(f"redis://127.0.0.1:{server.port}/3") as there:
            assert there.get("x") == b"1"


async def test_a_call_that_waits_for_long_holds_up_nobody_and_its_connection_is_used_again(server):
    server.says[b"slow"] = server.HELD
    async with servers_at(server) as servers:
        blocked = asyncio.create_task(servers.call(1, ("BLPOP", "slow"), blocks=20.0))
        await server.hears(b"slow")
        assert await servers.call(1, ("ECHO", "x")) == [b"x"]
        server.release()
        assert await blocked == [b"late"]
        assert await servers.call(1, ("BLPOP", "y"), blocks=20.0) == [b"y"]
        assert len(server.connections) == 2


async def test_the_connection_of_a_wait_that_is_given_up_is_closed_so_that_no_message_goes_to_nobody(server):
    server.says[b"slow"] = server.HELD
    async with servers_at(server) as servers:
        blocked = asyncio.create_task(servers.call(1, ("BLPOP", "slow"), blocks=20.0))
        await server.hears(b"slow")
        [pipe] = servers._server(server.url)._blocked
        blocked.cancel()
        await asyncio.wait([blocked])
        await pipe.closed
        assert servers._server(server.url)._blocked == set()


async def test_a_wait_ends_when_its_server_is_found_silent(server, monkeypatch):
    server.says[b"slow"] = server.says[b"silent"] = server.HELD
    async with servers_at(server) as servers:
        blocked = asyncio.create_task(servers.call(1, ("BLPOP", "slow"), blocks=20.0))
        await server.hears(b"slow")
        with pytest.raises(Away, match="no answer in time"):
            await servers.call(1, ("ECHO", "silent"), within=0.02)
        with pytest.raises(Away, match="no answer in time"):
            await blocked


async def test_so_many_calls_may_wait_for_long_and_no_more(server, monkeypatch):
    monkeypatch.setattr(redis_servers, "MOST_BLOCKED", 2)
    server.says[b"slow"] = server.HELD
    async with servers_at(server) as servers:
        blocked = [asyncio.create_task(servers.call(1, ("BLPOP", "slow"), blocks=20.0)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Away, match="2 calls wait for what comes"):
            await servers.call(1, ("BLPOP", "y"), blocks=20.0)
        server.release()
        assert await asyncio.gather(*blocked) == [[b"late"]] * 2


@pytest.fixture
async def another():
    async with scripted() as server:
        yield server


async def test_a_wait_whose_slot_moves_goes_on_at_the_other_server_with_the_whole_of_its_time(server, another, monkeypatch):
    monkeypatch.setattr(redis_servers, "COMMAND_TIMEOUT", 0.3)
    server.says[b"slow"], another.says[b"slow"] = server.HELD, server.HELD
    server.late = b"-MOVED 1 127.0.0.1:%d\r\n" % another.port
    async with servers_at(server) as servers:
        pipe = servers._server(server.url).pipe
        blocked = asyncio.create_task(servers.call(1, ("BLPOP", "slow"), blocks=0.3))
        await server.hears(b"slow")
        until = now() + 0.8  # later than it may wait at one of them
        await asyncio.sleep(0.4)
        server.release()
        await another.hears(b"slow")
        await asyncio.sleep(until - now())
        another.release()
        assert await blocked == [b"late"]
        assert servers.owner(1) == another.url
        assert not pipe.ended  # nobody was taken for silent


async def test_a_wait_at_a_server_that_is_a_replica_now_asks_it_again_who_has_the_slot(server, another):
    server.says[b"slow"] = server.HELD
    server.late = b"-UNBLOCKED force unblock from blocking operation, instance state changed (master -> replica?)\r\n"
    async with servers_at(server) as servers:
        pipe = servers._server(server.url).pipe
        blocked = asyncio.create_task(servers.call(1, ("BLPOP", "slow"), blocks=20.0))
        await server.hears(b"slow")
        server.says[b"slow"] = b"-MOVED 1 127.0.0.1:%d\r\n" % another.port
        server.release()
        assert await blocked == [b"slow"]
        assert (another.words, server.words) == ([b"slow"], [b"slow", b"slow"])
        assert not pipe.ended


async def test_mail_that_was_seen_is_handed_out_though_what_is_asked_behind_it_goes_wrong(server):
    server.says[b"%r" % redis_mailbox.WAIT] = b"$4\r\nmail\r\n"
    server.says[b"%d" % redis_mailbox.MOST_BYTES] = b"-CLUSTERDOWN The cluster is down\r\n"
    store = redis_store.RedisStore(server.url, "phere000")
    assert await store.receive() == [b"mail"]
    server.says[b"%r" % redis_mailbox.WAIT] = b"$-1\r\n"
    with pytest.raises(Away, match="The cluster is down"):
        await store.receive()
    await store.close()
