"""The queues in this process: ``queue_state.QueueState`` behind the port, for one process of the buffer and for tests.

Several stores may share one ``MemoryBackend``, as several processes share a Redis; nothing survives the interpreter.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from array import array
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from sluice.batching import Policy
from sluice.buffer_service.arrival_record import ArrivalRecord, Arrivals
from sluice.buffer_service.batch_record import BatchRecord
from sluice.buffer_service.queue_state import QueueState
from sluice.buffer_service.results import Bounds, MemoryResults, Results, ResultsState
from sluice.buffer_service.store import STARTS_WITHIN, THERE_FOR, Events, Limits, Outcome, Queue, Turn, queue_name

RECEIVE_WAIT = 5.0  # seconds one wait for messages lasts


class MemoryBackend:
    """What stores of one program share; ``clock`` (s, monotonic) dates what happens in their queues."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.queues: dict[str, QueueState] = {}  # by ``store.queue_name``
        self.records: defaultdict[str, ArrivalRecord] = defaultdict(ArrivalRecord)  # by model
        self.batches: defaultdict[str, BatchRecord] = defaultdict(BatchRecord)  # by model
        self.results: defaultdict[str, ResultsState] = defaultdict(ResultsState)  # by model
        self.known: dict[tuple[str, str, str], tuple[Any, float]] = {}  # of a queue and an edition of a plan, and until when
        self.mailboxes: defaultdict[str, asyncio.Queue[bytes]] = defaultdict(asyncio.Queue)

    def queue(self, model: str, route: str) -> QueueState:
        """The queue of a route, from the first time that somebody asks for it."""
        name = queue_name(model, route)
        if name not in self.queues:
            self.queues[name] = QueueState(self.records[model], self.batches[model])
        return self.queues[name]

    def arrival_times(self, model: str) -> array[float]:
        """The times of ``arrivals``."""
        return self.arrivals(model).times

    def arrivals(self, model: str) -> Arrivals:
        """What ``arrival_stream.read_requests`` reads from Redis, by this process's monotonic clock."""
        return self.records[model].arrivals()


class MemoryStore:
    """The store in memory."""

    def __init__(self, backend: MemoryBackend, process: str) -> None:
        self.process = process
        self._backend = backend

    def queue(self, model: str, limits: Limits, route: str = "") -> Queue:
        return MemoryQueue(self._backend, model, route, self.process, limits)

    def results(self, model: str, bounds: Bounds) -> Results:
        return MemoryResults(self._backend.results[model], bounds, self._backend.clock)

    async def send(self, process: str, message: bytes) -> None:
        self._backend.mailboxes[process].put_nowait(message)

    async def receive(self) -> list[bytes]:
        try:
            async with asyncio.timeout(RECEIVE_WAIT):
                return [await self._backend.mailboxes[self.process].get()]
        except TimeoutError:
            return []

    async def close(self) -> None:
        self._backend.mailboxes.pop(self.process, None)


class MemoryQueue:
    """The queue of one route in memory."""

    def __init__(self, backend: MemoryBackend, model: str, route: str, process: str, limits: Limits) -> None:
        self._backend = backend
        self._model, self._route = model, route
        self._process = process
        self._limits = limits
        self._calls = 0

    async def install(self, policy: Policy) -> None:
        self._backend.queue(self._model, self._route).install(policy, secrets.token_hex(8))

    async def advance(self, events: Events, now: float | None = None) -> Outcome:
        self._calls += 1
        queue = self._backend.queue(self._model, self._route)  # at every call: a backend may lose its queues
        return queue.advance(self._process, self._calls, events, self._limits, self._backend.clock() if now is None else now)

    async def check(self) -> None:
        return None

    async def turn(self, edition: str) -> Turn:
        turn = self._known(edition, "started")
        if turn is None:
            self._know(edition, "started", Turn.STARTING, STARTS_WITHIN)
        return turn or Turn.FIRST

    async def there(self, edition: str) -> None:
        self._know(edition, "started", Turn.THERE, THERE_FOR)

    async def pings_in(self, edition: str, within: float) -> float:
        until = self._known(edition, "pinged")
        if until is None:
            await self.pinged(edition, within)
        return 0.0 if until is None else until - self._backend.clock()

    async def pinged(self, edition: str, every: float) -> None:
        self._know(edition, "pinged", self._backend.clock() + every, every)

    def _known(self, edition: str, what: str) -> Any:
        """What is known so of an edition of a plan; ``None`` where nothing is, or no longer."""
        value, until = self._backend.known.get((queue_name(self._model, self._route), edition, what), (None, 0.0))
        return value if self._backend.clock() < until else None

    def _know(self, edition: str, what: str, value: Any, seconds: float) -> None:
        known, now = self._backend.known, self._backend.clock()
        for key in [key for key, (_, until) in known.items() if until <= now]:
            del known[key]
        known[queue_name(self._model, self._route), edition, what] = value, now + seconds
