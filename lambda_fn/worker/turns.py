"""Whose turn it is at one model: facts in, what is computed next out. No clock, no I/O, no thread.

    came        a batch that stands as it is, or a single request, which may go with others
    ended       an execution is done
    lost        an execution will never be done; what it had is to be computed once more
    withdraw    a caller does not wait any more
    expire      those who have waited for too long
    next        what is computed next, if anything is
    hand_ahead  what is computed next for certain, while all executions are busy
    recall      what was handed out ahead waits as before

Single requests are put together by a table (sluice/batching/policy.py: one rule, read by ``decide``); its ``servers`` are the
executions, and the batches that stand as they are take executions too. Ties: of a batch and a single request that may both begin,
the one that came first does, and the single request where they came at the same moment.

One batch may be handed out ahead, so that an execution that ends begins it at once. It must be the batch that ``next`` would
release then, whatever comes until then: of single requests that the last row of the table takes, which speaks for every longer
queue, whose hold has ended, and before which no batch and nothing that is computed once more came. So the same batches begin in
the same order with it and without, but that who gives up while his is ahead is computed for. It counts as waiting until ``ended``
says that it begins.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from sluice.batching.errors import require
from sluice.batching.policy import Policy, decide

from ..batch_frames import Sealed
from ..contract import Item


@dataclass(slots=True, eq=False)
class Work:
    """What one caller asks for: the items of a batch, or ``single``, one that may be computed with those of others.

    ``answered`` gets what came of it, once; ``came_at`` is in seconds on the owner's clock.
    """

    items: list[Item] | Sealed
    single: bool
    answered: Callable[[Any], None]
    came_at: float = 0.0
    waits: bool = True  # for an answer
    again: bool = False  # it was begun before, in vain


class Step(NamedTuple):
    """What is computed now, together (nothing where it is empty), or when to ask again (``None``: at an event)."""

    batch: tuple[Work, ...] = ()
    wake_at: float | None = None


_NOTHING = Step()


class Turns:
    """The queue of a model and the count of its executions.

    Parameters
    ----------
    policy : Policy
        How single requests are put together; its ``servers`` are not read, and it drops nobody: ``expire`` gives up who waits.
    executions : int
        Batches that are computed at once, at the most.
    limit : int
        Requests that may wait, those of batches included.

    Raises ``InvalidInput`` for a policy with ``drop_after``, with tables beside it, or with columns.
    """

    def __init__(self, policy: Policy, executions: int, limit: int) -> None:
        require(not policy.beside, "policy.beside", len(policy.beside), "no tables: the executions serve one")
        require(policy.columns == 1, "policy.columns", policy.columns, "1: no request of a worker has a slack")
        require(policy.drop_after is None, "drop_after", policy.drop_after, "null: a caller waits for the worker's timeout")
        self._policy = replace(policy, servers=executions)
        self._last_row = len(policy.hold) - 1
        self._executions = executions
        self._limit = limit
        self._batches: deque[Work] = deque()
        self._singles: deque[Work] = deque()
        self._again: deque[Work] = deque()
        self.ahead: tuple[Work, ...] = ()
        """What was handed out and is not begun."""
        self.running = 0
        self.waiting = 0
        """Requests that wait, those of batches included."""

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing runs."""
        return not (self.running or self.waiting)

    @property
    def may_change(self) -> bool:
        """Whether anything may be handed out: an execution is free, or a full batch waits and none is ahead."""
        return self.running < self._executions or (len(self._singles) >= self._last_row and not self.ahead)

    def came(self, now: float, work: Work) -> bool:
        """Whether there is room for it. Where nothing waits there is, whatever the size of a batch: it would never fit else."""
        if self.waiting and self.waiting + len(work.items) > self._limit:
            return False
        work.came_at = now
        self.waiting += len(work.items)
        (self._singles if work.single else self._batches).append(work)
        return True

    def ended(self) -> tuple[Work, ...]:
        """One of the executions is done; what it begins now, where that was handed out ahead."""
        self.running -= 1
        batch, self.ahead = self.ahead, ()
        return self._begin(batch).batch if batch else ()

    def lost(self, again: Iterable[Work]) -> None:
        """One of the executions has gone; these are computed again, each alone and before all others."""
        self.running -= 1
        for work in again:
            work.again = True
            self.waiting += len(work.items)
            self._again.append(work)

    def recall(self) -> None:
        """What was handed out ahead will not be begun: who of it still waits is the first to wait again."""
        batch, self.ahead = self.ahead, ()
        for work in reversed(batch):
            if work.waits:
                self._singles.appendleft(work)
            else:
                self.waiting -= len(work.items)

    def withdraw(self, work: Work) -> bool:
        """Whether it still waited for its turn; it does not now."""
        queue = self._again if work.again else self._singles if work.single else self._batches
        try:
            queue.remove(work)
        except ValueError:
            return False
        self.waiting -= len(work.items)
        return True

    def expire(self, came_before: float) -> list[Work]:
        """Those who wait since before then, and now do not."""
        expired = []
        for queue in (self._again, self._batches, self._singles):
            while queue and queue[0].came_at < came_before:
                expired.append(queue.popleft())
        self.waiting -= sum(len(work.items) for work in expired)
        return expired

    def next(self, now: float) -> Step:
        """What begins now; to be asked again until nothing does."""
        if self.running >= self._executions or not self.waiting:
            return _NOTHING
        if self._again:
            return self._begin((self._again.popleft(),))
        singles, batches = self._singles, self._batches
        oldest = singles[0].came_at if singles else math.inf
        if batches and batches[0].came_at < oldest:
            return self._begin((batches.popleft(),))
        decision = decide(self._policy, len(singles), oldest, now, self.running)
        if decision.take:
            return self._begin(tuple(singles.popleft() for _ in range(decision.take)))
        if batches:
            return self._begin((batches.popleft(),))
        return Step(wake_at=decision.wake_at)

    def hand_ahead(self, now: float) -> tuple[Work, ...]:
        """What an execution that ends begins for certain, while none is free; handed out once, and empty where there is none."""
        singles, batches = self._singles, self._batches
        if self.running < self._executions or self.ahead or self._again or len(singles) < self._last_row:
            return ()
        oldest = singles[0].came_at
        if batches and batches[0].came_at < oldest:
            return ()
        decision = decide(self._policy, len(singles), oldest, now, self._executions - 1)
        self.ahead = tuple(singles.popleft() for _ in range(decision.take))
        return self.ahead

    def _begin(self, batch: tuple[Work, ...]) -> Step:
        self.running += 1
        self.waiting -= sum([len(work.items) for work in batch])
        return Step(batch)
