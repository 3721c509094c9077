"""A Redis Cluster of three masters on the loopback interface, whose slots move as an operator, or ElastiCache, has them move."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from typing import Any

import redis

from sluice.local.ports import chosen_port
from sluice.local.redis_server import RedisServer

SLOTS = 16384


class Node:
    """One server of a cluster, and a connection to it."""

    def __init__(self, stack: ExitStack) -> None:
        self.server, self.bus = _started()
        stack.callback(self.server.stop)
        self.client = stack.enter_context(redis.Redis.from_url(self.server.url))
        self.id = self.ask("CLUSTER MYID").decode()

    @property
    def address(self) -> tuple[str, int]:
        assert self.server.port is not None
        return "127.0.0.1", self.server.port

    def ask(self, *command: Any) -> Any:
        """The answer to a command, as it comes."""
        return self.client.execute_command(*command)

    def refusals(self, kind: str) -> int:
        """How often this server said MOVED, ASK, TRYAGAIN."""
        return int(self.client.info("errorstats").get(f"errorstat_{kind}", {"count": 0})["count"])


class Cluster:
    """The masters, each with a third of the slots in the beginning; ``url`` names the first alone."""

    def __init__(self, masters: list[Node], stack: ExitStack) -> None:
        self.masters = masters
        self.owner = {slot: masters[slot * len(masters) // SLOTS] for slot in range(SLOTS)}
        self._stack = stack

    @property
    def url(self) -> str:
        return self.masters[0].server.url

    def refusals(self, kind: str) -> int:
        """Of all masters."""
        return sum(master.refusals(kind) for master in self.masters)

    @asynccontextmanager
    async def moving(self, slot: int, to: Node, pause: float = 0.0) -> AsyncIterator[None]:
        """A slot is on its way to another server, then all its keys move; ``pause`` seconds between the steps."""
        away = self.owner[slot]
        to.ask("CLUSTER", "SETSLOT", slot, "IMPORTING", away.id)
        away.ask("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id)
        yield
        while keys := away.ask("CLUSTER", "GETKEYSINSLOT", slot, 2):
            away.ask("MIGRATE", *to.address, "", 0, 1000, "KEYS", *keys)
            await asyncio.sleep(pause)
        for node in (to, away, *self.masters):
            node.ask("CLUSTER", "SETSLOT", slot, "NODE", to.id)
        self.owner[slot] = to

    async def move(self, slot: int, to: Node, pause: float) -> None:
        """Move a slot with all its keys; the servers serve meanwhile."""
        async with self.moving(slot, to, pause):
            await asyncio.sleep(pause)

    def add_replica(self, of: Node) -> Node:
        """A replica that has everything and takes over when its master is gone."""
        replica = Node(self._stack)
        replica.ask("CLUSTER", "MEET", *of.address, of.bus)
        _until(lambda: of.id in str(replica.ask("CLUSTER NODES")))
        replica.ask("CLUSTER", "REPLICATE", of.id)
        _until(lambda: replica.client.info("replication")["master_link_status"] == "up")
        _until(lambda: all(replica.id in str(master.ask("CLUSTER NODES")) for master in self.masters))
        return replica


@contextmanager
def cluster() -> Iterator[Cluster]:
    """Start one; it takes two seconds until its servers take writes."""
    with ExitStack() as stack:
        masters = [Node(stack) for _ in range(3)]
        starts = [SLOTS * i // 3 + (SLOTS * i % 3 > 0) for i in range(4)]
        for i, master in enumerate(masters):
            master.ask("CLUSTER", "ADDSLOTSRANGE", starts[i], starts[i + 1] - 1)
            master.ask("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        for master in masters[1:]:
            masters[0].ask("CLUSTER", "MEET", *master.address, master.bus)
        _until(lambda: all(_whole(master) for master in masters))
        yield Cluster(masters, stack)


def _started() -> tuple[RedisServer, int]:
    """A server of a cluster and the port of its bus."""
    bus = chosen_port()
    words = ("--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-node-timeout", "500")
    words += ("--enable-debug-command", "yes", "--cluster-require-full-coverage", "no")
    words += ("--repl-diskless-sync-delay", "0", "--cluster-replica-validity-factor", "0", "--shutdown-timeout", "0")
    return RedisServer(port=0, options=words).start(), bus


def _whole(node: Node) -> bool:
    info = node.ask("CLUSTER INFO")
    return (info["cluster_state"], info["cluster_slots_ok"]) == ("ok", str(SLOTS))


def _until(true: Any) -> None:
    deadline = time.monotonic() + 15
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)
