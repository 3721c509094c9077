"""What faults of Redis cost the callers of a buffer: every scenario once, longer than the tests have it, and a table of figures.

``python -m tests.buffer_service.redis_faults [SCENARIO...]`` prints the rows of docs/reliability.md. Load is 200 requests a second,
one process, batches of at most 8, a function that answers at once; all of it on this machine.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import numpy as np
from redis.crc import key_slot

from sluice.batching import policy as constructors
from sluice.buffer_service.arrival_stream import stream_key
from sluice.buffer_service.callers import new_process_name
from sluice.buffer_service.redis_store import RedisStore
from sluice.local.redis_server import RedisServer
from tests.buffer_service.conftest import Function, serving
from tests.buffer_service.moving_address import Load, MovingAddress, load, moving_address
from tests.buffer_service.redis_cluster import cluster
from tests.buffer_service.test_failover import AT_ONCE, demote, replica_of

POLICY = constructors.size_or_timeout(8, 0.01)
AFTER = 2.0  # s of load after the fault


async def a_replica_takes_over() -> None:
    """The primary becomes a replica of its replica; the name behind which they are follows two seconds later."""
    with RedisServer(port=0, options=AT_ONCE) as primary, replica_of(primary) as (replica, client):
        async with moving_address(primary.port or 0) as address, _behind(address) as buffer, load(buffer) as asked:
            demote(primary, client)
            await asyncio.sleep(2.0)
            address.target = replica.port or 0
            await _report("a replica takes over, the name follows after 2 s", asked)


async def redis_is_gone() -> None:
    """The server is killed and comes back empty after 20 s."""
    with RedisServer(port=0) as server:
        async with _buffer(server.url) as buffer, load(buffer) as asked:
            server.kill()
            await asyncio.sleep(20.0)
            server.start()
            await _report("Redis is gone for 20 s", asked)


async def redis_stands_still() -> None:
    """The server is stopped by SIGSTOP, and goes on after 12 s."""
    with RedisServer(port=0) as server:
        async with _buffer(server.url) as buffer, load(buffer) as asked:
            os.kill(server.pid, signal.SIGSTOP)
            await asyncio.sleep(12.0)
            os.kill(server.pid, signal.SIGCONT)
            await _report("Redis stands still for 12 s (SIGSTOP)", asked)


async def the_network_swallows_everything() -> None:
    """Connections stay open, and no byte comes through for 12 s."""
    with RedisServer(port=0) as server:
        async with moving_address(server.port or 0) as address, _behind(address) as buffer, load(buffer) as asked:
            address.silent = True
            await asyncio.sleep(12.0)
            address.silent = False
            await _report("the network swallows everything for 12 s", asked)


async def connections_break() -> None:
    """Every connection to the server is reset."""
    with RedisServer(port=0) as server:
        async with moving_address(server.port or 0) as address, _behind(address) as buffer, load(buffer) as asked:
            address.cut()
            await _report("all connections are reset", asked)


async def a_slot_moves() -> None:
    """The slot of the queue goes from server to server of a cluster of three, twenty times, 20 ms between the steps of a move."""
    with cluster() as running:
        slot = key_slot(stream_key("m").encode())
        async with _buffer(running.url) as buffer, load(buffer) as asked:
            for i in range(20):
                masters = [master for master in running.masters if master is not running.owner[slot]]
                await running.move(slot, masters[i % 2], pause=0.02)
                await asyncio.sleep(0.1)
            await _report("the slot of the queue moves 20 times", asked)


async def a_master_of_a_cluster_dies() -> None:
    """A cluster finds out within its node timeout (0.5 s here) and promotes the replica."""
    with cluster() as running:
        owner = running.owner[key_slot(stream_key("m").encode())]
        running.add_replica(owner)
        async with _buffer(owner.server.url) as buffer, load(buffer) as asked:
            owner.server.kill()
            await asyncio.sleep(0.5)
            await _report("the master of the queue dies (cluster, node timeout 0.5 s)", asked)


SCENARIOS: tuple[Callable[[], Awaitable[None]], ...] = (
    a_replica_takes_over,
    redis_is_gone,
    redis_stands_still,
    the_network_swallows_everything,
    connections_break,
    a_slot_moves,
    a_master_of_a_cluster_dies,
)


def _buffer(url: str) -> Any:
    return serving(Function(), POLICY, RedisStore(url, new_process_name()))


def _behind(address: MovingAddress) -> Any:
    return _buffer(f"redis://127.0.0.1:{address.port}/0")


async def _report(what: str, asked: Load) -> None:
    """One row, some time after the fault has ended, which it does now."""
    end = asked.now
    await asyncio.sleep(AFTER)
    refused = sorted(took for _, status, took in asked.answers if status == 503)
    last = max((came for came, status, _ in asked.answers if status != 200), default=end)
    others = {status: n for status, n in asked.statuses.items() if status not in (200, 503)}
    percentiles = [f"{1000 * value:.1f} ms" for value in np.percentile(refused, [50, 99, 100])] if refused else ["-"] * 3
    cells = [what, len(asked.answers), len(refused), *percentiles, f"{max(0.0, last - end):.2f} s", others or "none"]
    print("| " + " | ".join(map(str, cells)) + " |", flush=True)


def main() -> None:
    """All scenarios, or those that are named."""
    logging.disable()
    print("| fault | requests | refused (503) | after, median | 99 % | longest | last refusal after its end | other failures |")
    print("|---|---|---|---|---|---|---|---|")
    for scenario in SCENARIOS:
        if not sys.argv[1:] or scenario.__name__ in sys.argv[1:]:
            asyncio.run(scenario())


if __name__ == "__main__":
    main()
