"""The queues in this process: ``batching.Batcher`` behind the port, for one process of the buffer and for tests.

Several stores may share one ``MemoryBackend``, as several processes share a Redis; nothing survives the interpreter.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from sluice.batching import Batcher, Policy
from sluice.buffer_service.arrival_stream import Call, arrival_times
from sluice.buffer_service.store import ID_LENGTH, PROCESS_LENGTH, Events, Limits, Outcome, Queue, QueueLost, Released, queue_name

RECEIVE_WAIT = 5.0  # seconds one wait for messages lasts


@dataclass(slots=True)
class _Shared:
    """What all processes see of one queue."""

    batcher: Batcher[tuple[float, bytes]] | None = None  # members travel with their arrival time, which a lost batch keeps
    in_flight: dict[str, tuple[tuple[float, bytes], ...]] = field(default_factory=dict)
    seen: dict[str, float] = field(default_factory=dict)
    attempts: dict[bytes, int] = field(default_factory=dict)


class MemoryBackend:
    """What stores of one program share."""

    def __init__(self) -> None:
        self.queues: defaultdict[str, _Shared] = defaultdict(_Shared)  # by ``store.queue_name``
        self.calls: defaultdict[str, deque[Call]] = defaultdict(deque)  # by model
        self.mailboxes: defaultdict[str, asyncio.Queue[bytes]] = defaultdict(asyncio.Queue)

    def arrival_times(self, model: str) -> array[float]:
        """What ``arrival_stream.read_arrivals`` reads from Redis, by this process's monotonic clock."""
        return arrival_times(reversed(self.calls[model]))


class MemoryStore:
    """The store in memory."""

    def __init__(self, backend: MemoryBackend, process: str) -> None:
        self.process = process
        self._backend = backend

    def queue(self, model: str, limits: Limits, route: str = "") -> Queue:
        return MemoryQueue(self._backend.queues[queue_name(model, route)], self._backend.calls[model], self.process, limits)

    async def send(self, process: str, message: bytes) -> None:
        self._backend.mailboxes[process].put_nowait(message)

    async def receive(self) -> list[bytes]:
        try:
            async with asyncio.timeout(RECEIVE_WAIT):
                return [await self._backend.mailboxes[self.process].get()]
        except TimeoutError:
            return []

    async def ping(self) -> None:
        return None

    async def close(self) -> None:
        self._backend.mailboxes.pop(self.process, None)


class MemoryQueue:
    """The queue of one route in memory."""

    def __init__(self, shared: _Shared, calls: deque[Call], process: str, limits: Limits) -> None:
        self._shared = shared
        self._calls = calls
        self._process = process
        self._limits = limits
        self._serial = 0

    async def install(self, policy: Policy) -> None:
        if self._shared.batcher is None:
            self._shared.batcher = Batcher(policy)
        self._shared.batcher.policy = policy

    async def advance(self, events: Events, now: float | None = None) -> Outcome:
        shared, batcher = self._shared, self._shared.batcher
        if batcher is None:
            raise QueueLost("no policy is installed for this queue")
        now = time.monotonic() if now is None else now
        self._serial += 1
        completed = [shared.in_flight.pop(batch_id) for batch_id in events.completed if batch_id in shared.in_flight]
        for batch in completed:
            for _, member in batch:
                shared.attempts.pop(member[:ID_LENGTH], None)
        dead = self._sweep(batcher, events.serving, now) if events.serving is not None else []
        accepted = max(0, min(len(events.arrivals), self._limits.max_queue_length - len(batcher)))
        arrivals = [(now, member) for member in events.arrivals[:accepted]]
        if accepted and self._limits.arrivals_kept and not events.recorded:
            self._record(now, events.ages[:accepted] or (0.0,) * accepted)
        if events.leaving:
            batcher.accept(now, arrivals, len(completed))
            if events.serving is not None and not events.serving:
                shared.seen.pop(self._process, None)
            return Outcome(accepted, dead=dead, queue_length=len(batcher))
        step = batcher.advance(now, arrivals, len(completed))
        released = []
        for i, members in enumerate(step.batches):
            batch_id = f"{self._process}:{self._serial}:{i}"
            shared.in_flight[batch_id] = members
            released.append(Released(batch_id, [member for _, member in members]))
        return Outcome(
            accepted,
            released,
            [member for _, member in step.dropped],
            dead,
            None if step.wake_at is None else step.wake_at - now,
            len(batcher),
        )

    def _record(self, now: float, ages: Sequence[float]) -> None:
        """Note the arrivals of a call; forget the oldest calls without which as many as are to be kept remain."""
        calls = self._calls
        before = calls[-1].before + len(calls[-1].ages) if calls else 0
        calls.append(Call(now, ages, before))
        while calls[0].before + len(calls[0].ages) <= before + len(ages) - self._limits.arrivals_kept:
            calls.popleft()

    def _sweep(self, batcher: Batcher[tuple[float, bytes]], serving: Sequence[str], now: float) -> list[bytes]:
        """Renew the leases of ``serving``; put what nobody serves back to the head; return what was lost too often."""
        shared = self._shared
        served = set(serving)
        shared.seen[self._process] = now
        lost: list[tuple[float, bytes]] = []
        dead = []
        batches = 0
        for batch_id in list(shared.in_flight):
            owner = batch_id[:PROCESS_LENGTH]
            alive = owner in shared.seen and now <= shared.seen[owner] + self._limits.lease
            if alive and (owner != self._process or batch_id in served):
                continue
            members = shared.in_flight.pop(batch_id)
            batches += 1
            for arrived, member in members:
                attempts = shared.attempts.get(member[:ID_LENGTH], 0) + 1
                shared.attempts[member[:ID_LENGTH]] = attempts
                if attempts >= self._limits.max_attempts:
                    dead.append(member)
                    del shared.attempts[member[:ID_LENGTH]]
                else:
                    lost.append((arrived, member))
        lost.sort(key=lambda entry: entry[0])
        batcher.take_back(batches, [(arrived, (arrived, member)) for arrived, member in lost])
        return dead
