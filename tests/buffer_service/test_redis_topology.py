"""Which servers of a Redis are known, and which is asked; then the same over sockets, with servers that know four words."""

from __future__ import annotations

import asyncio
import time
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from sluice.buffer_service import redis_servers, redis_topology
from sluice.buffer_service.redis_servers import Away, Servers
from sluice.buffer_service.redis_topology import ASKED_AT_ONCE, MOST_KNOWN, Topology, addresses
from tests.waiting import until

SEED, A, B, C, D = (f"redis://{name}:6379/0" for name in ("seed", "a", "b", "c", "d"))


def test_who_is_in_the_cluster_no_more_is_forgotten_and_its_slots_are_asked_for_at_the_seed():
    topology = Topology(SEED)
    assert topology.told({A, B, C}) == []
    topology.moved(7, B)
    topology.moved(8, C)
    assert topology.told({A, C, D}) == [B]
    assert set(topology.known) == {SEED, A, C, D}
    assert (topology.owner(7), topology.owner(8), topology.owner(9)) == (SEED, C, SEED)
    topology.silent(7, B)  # a call that was under way there
    assert topology.owner(7) == SEED


def test_nothing_said_forgets_nobody():
    topology = Topology(SEED)
    topology.told({A, B})
    assert topology.told(set()) == []
    assert set(topology.known) == {SEED, A, B}


def test_no_more_servers_are_known_than_a_cluster_may_have():
    topology = Topology(SEED)
    forgotten = [url for i in range(3 * MOST_KNOWN) for url in topology.moved(i % 16384, f"redis://host{i}:6379/0")]
    assert len(topology.known) == MOST_KNOWN + 1
    assert forgotten[0] == "redis://host0:6379/0"
    assert topology.owner(0) == SEED
    assert len(topology.told({f"redis://other{i}:6379/0" for i in range(3 * MOST_KNOWN)})) == MOST_KNOWN
    assert len(topology.known) == MOST_KNOWN + 1
    assert SEED in topology.known


@pytest.mark.parametrize("others", [0, 1, 5, 40])
def test_everybody_who_is_known_is_asked_in_the_end_and_few_at_once(others):
    topology = Topology(SEED)
    topology.told({f"redis://host{i}:6379/0" for i in range(others)})
    rounds = [topology.to_ask(attempt) for attempt in range(1 + others)]
    assert all(SEED in asked and len(asked) <= 1 + ASKED_AT_ONCE for asked in rounds)
    assert {url for asked in rounds for url in asked} == set(topology.known)
    slot, url = 1, topology.owner(1)
    asked = {url}
    for _ in range(others):
        topology.silent(slot, url)
        asked.add(url := topology.owner(slot))
    assert asked == set(topology.known)


def test_those_in_use_are_asked_first():
    topology = Topology(SEED)
    topology.told({f"redis://host{i}:6379/0" for i in range(40)})
    topology.moved(1, D)
    assert D in topology.to_ask(0)


def test_another_server_behind_the_same_address_counts_for_the_slots_it_serves_and_for_no_other():
    topology = Topology(SEED)
    for slot, url in ((1, A), (2, A), (3, B)):
        topology.moved(slot, url)
        topology.served(slot, url, 0)
    for slot, url in ((1, A), (3, B)):
        topology.served(slot, url, int(url == A))
    assert [topology.successions(slot) for slot in (1, 2, 3)] == [1, 0, 0]
    topology.served(2, A, 1)  # its first answer since
    topology.served(2, A, 1)
    assert [topology.successions(slot) for slot in (1, 2, 3)] == [1, 1, 0]


def test_who_serves_after_a_server_that_was_silent_counts_for_all_slots_of_that_and_a_slot_that_is_moved_does_not():
    topology = Topology(SEED)
    topology.told({A, B, C})
    for slot, url in ((1, A), (2, A), (3, B)):
        topology.served(slot, url, 0)
    topology.silent(1, A)
    for slot in (1, 2, 3):
        topology.moved(slot, C)
        topology.served(slot, C, 0)
    assert [topology.successions(slot) for slot in (1, 2, 3)] == [1, 1, 0]


def test_a_server_that_was_silent_and_goes_on_counts_for_nothing():
    topology = Topology(SEED)
    topology.told({A, B})
    topology.served(1, A, 0)
    topology.silent(1, A)
    topology.moved(1, A)
    topology.served(1, A, 0)
    topology.moved(1, B)
    topology.served(1, B, 0)
    assert topology.successions(1) == 0


def test_who_serves_after_a_server_that_was_forgotten_counts():
    topology = Topology(SEED)
    topology.told({A, B})
    topology.served(1, A, 0)
    topology.told({B})
    topology.served(1, B, 0)
    assert topology.successions(1) == 1


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        ([b"10.0.0.1", 6379, b"id", []], ("10.0.0.1", 6379)),
        ([b"node.cache.example", 6379, b"id", [b"ip", b"10.0.0.1"]], ("node.cache.example", 6379)),
        (["node.cache.example", 6379, "id", {}], ("node.cache.example", 6379)),
        ([None, 6379, b"id", [b"ip", b"10.0.0.1"]], ("", 6379)),
        ([b"", 6379], ("", 6379)),
        ([b"?", 6379, b"id", [b"ip", b"10.0.0.1"]], ("10.0.0.1", 6379)),
        ([b"?", 6379, b"id", {b"ip": b"10.0.0.1"}], ("10.0.0.1", 6379)),
        ([b"?", 6379, b"id"], ("", 6379)),
        ([b"10.0.0.1", 0, b"id"], None),
        ([b"10.0.0.1", b"6379"], None),
        ([], None),
        (b"no node", None),
    ],
)
def test_addresses_are_read_whatever_a_cluster_calls_its_nodes(node, expected):
    good = [b"10.0.0.9", 7000, b"id"]
    found = list(addresses([[0, 100, node, good], b"no entry", [101]]))
    assert found == [*([expected] if expected else []), ("10.0.0.9", 7000)]
    assert list(addresses(b"OK")) == []


# --- over sockets


def encoded(value):
    if isinstance(value, list):
        return b"*%d\r\n" % len(value) + b"".join(map(encoded, value))
    if isinstance(value, int):
        return b":%d\r\n" % value
    return b"$-1\r\n" if value is None else b"$%d\r\n%s\r\n" % (len(value), value)


class Node:
    """A server of four words: CLUSTER SLOTS tells of ``cluster``, and GET is answered with ``says``, or with its port."""

    def __init__(self):
        self.cluster = []
        self.says = None
        self.asked = 0
        self.connections = set()

    async def answer(self, reader, writer):
        self.connections.add(writer)
        try:
            while line := await reader.readline():
                if line == b"CLUSTER\r\n":
                    self.asked += 1
                    nodes = [[b"127.0.0.1", node.port, b"id"] for node in self.cluster]
                    writer.write(encoded([[0, 16383, *nodes]] if nodes else []))
                elif line == b"GET\r\n":
                    writer.write(self.says or encoded(b"%d" % self.port))
                elif line == b"ASKING\r\n":
                    writer.write(b"+OK\r\n")
                elif line in (b"CLIENT\r\n", b"INFO\r\n"):
                    writer.write(b"-ERR not here\r\n")
        finally:
            self.connections.discard(writer)
            writer.close()

    @property
    def url(self):
        return f"redis://127.0.0.1:{self.port}/0?protocol=2"

    def points_to(self, other, word="MOVED"):
        self.says = f"-{word} 1 127.0.0.1:{other.port}\r\n".encode()

    def end(self):
        self.server.close()
        for writer in list(self.connections):
            writer.transport.abort()


@asynccontextmanager
async def nodes(count):
    started = [Node() for _ in range(count)]
    for node in started:
        node.server = await asyncio.start_server(node.answer, "127.0.0.1", 0)
        node.port = node.server.sockets[0].getsockname()[1]
    try:
        yield started
    finally:
        for node in started:
            node.end()


@asynccontextmanager
async def servers_from(node):
    servers = Servers(node.url)
    try:
        yield servers
    finally:
        await servers.close()


async def asked(servers, slot=1):
    [answer] = await servers.call(slot, ("GET", "x"))
    return int(answer)


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(redis_servers, "LOOK_INTERVAL", 0.02)


async def test_a_shard_that_was_replaced_as_a_whole_is_found_and_the_old_one_is_forgotten_and_left(soon):
    async with AsyncExitStack() as stack:
        seed, old, new = await stack.enter_async_context(nodes(3))
        servers = await stack.enter_async_context(servers_from(seed))
        seed.cluster = [seed, old]
        seed.points_to(old)
        assert await asked(servers) == old.port
        await until(lambda: old.url in servers._topology.known)
        seed.cluster = [seed, new]
        seed.points_to(new)
        old.end()
        with pytest.raises(Away):
            await asked(servers)
        assert await asked(servers) == new.port
        await until(lambda: set(servers._topology.known) == {seed.url, new.url})
        assert set(servers._servers) == {seed.url, new.url}


async def test_the_connections_to_a_server_that_left_in_good_order_are_closed(soon, monkeypatch):
    monkeypatch.setattr(redis_servers, "COMMAND_TIMEOUT", 0.05)
    async with AsyncExitStack() as stack:
        seed, old, new = await stack.enter_async_context(nodes(3))
        servers = await stack.enter_async_context(servers_from(seed))
        seed.cluster = old.cluster = [seed, old]
        seed.points_to(old)
        assert await asked(servers) == old.port
        assert old.connections
        for node in (seed, old, new):
            node.cluster = [seed, new]
            node.points_to(new)
        new.says = None
        assert await asked(servers) == new.port
        await until(lambda: not old.connections)
        assert not any(pipe.ended for pipe in servers._pipes)


async def test_servers_that_were_replaced_while_nothing_was_asked_of_them_are_found_when_the_last_one_goes(soon, monkeypatch):
    monkeypatch.setattr(redis_servers, "LOOK_ANYWAY", 0.05)
    async with AsyncExitStack() as stack:
        seed, new = await stack.enter_async_context(nodes(2))
        servers = await stack.enter_async_context(servers_from(seed))
        seed.cluster = [seed]
        assert await asked(servers) == seed.port
        await until(lambda: servers._looking.done())
        seed.cluster = [seed, new]
        await asyncio.sleep(0.06)
        assert await asked(servers) == seed.port
        await until(lambda: new.url in servers._topology.known)
        seed.end()
        with pytest.raises(Away):
            await asked(servers)
        assert await asked(servers) == new.port


async def test_a_server_that_is_away_at_the_start_or_knows_of_nobody_yet_is_asked_again(soon):
    async with AsyncExitStack() as stack:
        seed, other = await stack.enter_async_context(nodes(2))
        port = seed.port
        seed.end()
        servers = await stack.enter_async_context(servers_from(seed))
        with pytest.raises(Away, match="Redis does not answer"):
            await asked(servers)
        seed.server = await asyncio.start_server(seed.answer, "127.0.0.1", port)
        await until(lambda: seed.asked >= 2)  # it says that nobody is there
        assert set(servers._topology.known) == {seed.url}
        seed.cluster = [seed, other]
        await until(lambda: other.url in servers._topology.known)
        assert await asked(servers) == seed.port


async def test_however_many_calls_fail_the_cluster_is_asked_about_once_in_a_while(monkeypatch):
    monkeypatch.setattr(redis_servers, "LOOK_INTERVAL", 0.1)
    async with AsyncExitStack() as stack:
        [seed] = await stack.enter_async_context(nodes(1))
        servers = await stack.enter_async_context(servers_from(seed))
        seed.cluster, seed.says = [seed], b"-READONLY a replica\r\n"
        began = time.monotonic()
        for _ in range(50):
            with pytest.raises(Away, match="a replica"):
                await asked(servers)
            await asyncio.sleep(0.005)
        assert 2 <= seed.asked <= 1 + (time.monotonic() - began) / 0.1


@pytest.mark.parametrize("word", ["MOVED", "ASK"])
async def test_a_server_that_sends_everybody_elsewhere_is_not_followed_without_end(monkeypatch, word):
    monkeypatch.setattr(redis_servers, "COMMAND_TIMEOUT", 0.3)
    monkeypatch.setattr(redis_topology, "MOST_KNOWN", 4)
    async with AsyncExitStack() as stack:
        ring = await stack.enter_async_context(nodes(8))
        servers = await stack.enter_async_context(servers_from(ring[0]))
        for i, node in enumerate(ring):
            node.points_to(ring[(i + 1) % 8], word=word)
        with pytest.raises(Away, match="its keys are on their way"):
            await asked(servers)
        assert len(servers._topology.known) <= 5
        assert len(servers._servers) <= 5
        assert len(servers._pipes) < 1.5 * redis_servers.COMMAND_TIMEOUT / redis_servers.TRY_AGAIN


async def test_a_slot_that_nobody_has_is_named_and_costs_the_others_of_its_server_no_connection():
    async with AsyncExitStack() as stack:
        [seed] = await stack.enter_async_context(nodes(1))
        servers = await stack.enter_async_context(servers_from(seed))
        seed.cluster = [seed]
        assert await asked(servers) == seed.port
        pipe = servers._server(seed.url).pipe
        seed.says = b"-CLUSTERDOWN Hash slot not served\r\n"
        with pytest.raises(Away, match="no server of the Redis cluster has slot 1 "):
            await asked(servers)
        assert servers._server(seed.url).pipe is pipe
        seed.says = b"-CLUSTERDOWN The cluster is down\r\n"
        with pytest.raises(Away, match="The cluster is down"):
            await asked(servers)
        assert servers._server(seed.url).pipe is not pipe
