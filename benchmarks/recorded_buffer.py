"""The buffer in a process of its own, its queue watched: what waited when, what left when, what was complete when.

``python -m benchmarks.recorded_buffer REDIS_URL PORT PLANS RECORD`` serves until SIGTERM, then writes ``RECORD`` (``.npz``). It is
the buffer of ``sluice serve``, but that its store passes every call on to the one in Redis and notes it, and that the batches that
leave past the queue, and the ends of all, are noted. The body of a request must be its number, 0 to n - 1.
"""

from __future__ import annotations

import logging
import sys
import time
from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np
import uvloop

from sluice.batching import Policy
from sluice.buffer_service import route_state
from sluice.buffer_service.app import BufferService, open_store, run
from sluice.buffer_service.batch_state import BatchState
from sluice.buffer_service.members import decode_member
from sluice.buffer_service.route_batches import RouteBatches
from sluice.buffer_service.route_facts import Caller
from sluice.buffer_service.settings import Settings
from sluice.buffer_service.store import Events, Limits, Outcome, Queue, Store, Turn


class Record:
    """What came and left, in flat lists: they cost the collector of the process under test nothing.

    Requests are members, as calls bring them, or the bodies of those that were in none.
    """

    def __init__(self) -> None:
        self.arrived: list[bytes] = []
        self.arrived_at = array("d")
        self.released: list[bytes] = []
        self.batch_ids: list[str] = []
        self.batch_sizes = array("q")
        self.released_at = array("d")
        self.completed: list[str] = []
        self.completed_at = array("d")

    def add(self, at: float, events: Events, outcome: Outcome) -> None:
        """A call; ``at`` is the middle between sending it and having its answer, s."""
        self.arrived += events.arrivals
        self.arrived_at.extend([at] * len(events.arrivals))
        for batch in outcome.batches:
            self.left(at, batch.batch_id, batch.members)

    def left(self, at: float, batch_id: str, requests: Sequence[bytes]) -> None:
        """A batch."""
        self.batch_ids.append(batch_id)
        self.batch_sizes.append(len(requests))
        self.released_at.append(at)
        self.released += requests

    def left_directly(self, batch_id: str, now: float, callers: Sequence[Caller]) -> None:
        """A batch of callers here, ``now`` by the clock that says when they came."""
        at, bodies = time.perf_counter(), [bytes(caller.item.body) for caller in callers]
        self.arrived += bodies
        self.arrived_at.extend([at - (now - caller.came) for caller in callers])
        self.left(at, batch_id, bodies)

    def ended(self, batch_id: str) -> None:
        """A batch has its answers."""
        self.completed.append(batch_id)
        self.completed_at.append(time.perf_counter())

    def arrays(self) -> dict[str, np.ndarray[Any, Any]]:
        """By request ``arrived_at`` and ``batch_of``, by batch ``released_at`` and ``completed_at``; seconds, nan: never."""
        n, n_batches = len(self.arrived), len(self.batch_ids)
        arrived_at, batch_of = np.full(n, np.nan), np.full(n, -1)
        arrived_at[_numbers(self.arrived)] = self.arrived_at
        batch_of[_numbers(self.released)] = np.repeat(np.arange(n_batches), self.batch_sizes)
        completed_at = np.full(n_batches, np.nan)
        number_of = {batch_id: number for number, batch_id in enumerate(self.batch_ids)}
        completed_at[[number_of[batch_id] for batch_id in self.completed]] = self.completed_at
        released_at = np.array(self.released_at)
        return {"arrived_at": arrived_at, "batch_of": batch_of, "released_at": released_at, "completed_at": completed_at}


def recorded_batches(record: Record) -> type[RouteBatches]:
    """Batches under way that are watched."""

    class RecordedBatches(RouteBatches):
        def take_directly(self, now: float, callers: Sequence[Caller], takes_place: bool = False) -> None:
            super().take_directly(now, callers, takes_place)
            record.left_directly(next(reversed(self.under_way)), now, callers)

        def _end(self, now: float, batch_id: str, batch: BatchState) -> None:
            super()._end(now, batch_id, batch)
            record.ended(batch_id)

    return RecordedBatches


class RecordedQueue:
    """A queue that is watched."""

    def __init__(self, queue: Queue, record: Record) -> None:
        self._queue, self._record = queue, record

    async def install(self, policy: Policy) -> None:
        await self._queue.install(policy)

    async def advance(self, events: Events, now: float | None = None) -> Outcome:
        sent = time.perf_counter()
        outcome = await self._queue.advance(events, now)
        self._record.add((sent + time.perf_counter()) / 2, events, outcome)
        return outcome

    async def check(self) -> None:
        await self._queue.check()

    async def turn(self, edition: str) -> Turn:
        return await self._queue.turn(edition)

    async def there(self, edition: str) -> None:
        await self._queue.there(edition)

    async def pings_in(self, edition: str, within: float) -> float:
        return await self._queue.pings_in(edition, within)

    async def pinged(self, edition: str, every: float) -> None:
        await self._queue.pinged(edition, every)


class RecordedStore:
    """A store whose queues are watched."""

    def __init__(self, store: Store, record: Record) -> None:
        self._store, self._record = store, record

    def queue(self, model: str, limits: Limits, route: str = "") -> Queue:
        return RecordedQueue(self._store.queue(model, limits, route), self._record)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def _numbers(members: list[bytes]) -> list[int]:
    return [int(member if member.isdigit() else decode_member(member).body) for member in members]


if __name__ == "__main__":
    logging.basicConfig(level="WARNING")
    redis_url, port, plans, file = sys.argv[1:]
    settings = Settings(
        redis_url=redis_url,
        port=int(port),
        plans=f"file:{plans}",
        plan_interval=0.05,
        max_queue_length=1_000_000,
        leave_delay=0.0,
        log_level="warning",
    )
    record = Record()
    store: Any = RecordedStore(open_store(settings), record)
    route_state.RouteBatches = recorded_batches(record)  # type: ignore[attr-defined]
    uvloop.run(run(BufferService(settings, store)))
    arrays: Any = record.arrays()
    np.savez(file, **arrays)
