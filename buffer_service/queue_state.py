"""The state of one queue, shared by all processes: the executable specification of ``lua/advance.lua``.

What may live here: the members that wait, the batches in flight and whose they are, who was heard of when, how often a member was
lost. What may not: a clock, I/O, a task. ``now`` (seconds, the store's clock) is an argument.

    events                          the queue
    ------                          ---------
    completed                       the batch is in flight no more, and gives its table's server back; its members' losses are
                                    forgotten; unknown ids are ignored
    serving (a sweep)               the process was heard of now; every batch of this process that it does not name is lost and,
                                    if this process was heard of within the lease, every batch of one that was not: its members
                                    return to the head, with the age they had, or are put aside when they were lost
                                    ``max_attempts`` times; it is said whether all who were heard of lately lend bodies, and whether
                                    there is no other
    gone                            of the members that wait, the first that is equal leaves, and its losses are forgotten, as of
                                    those that are dropped; others are ignored
    arrivals                        as many as fit are accepted, in order; they arrived when they came, as long ago as their ages
                                    say, and are recorded; their holds run ``early`` by so much
    then the rule                   ``batching.Batcher``: drops and batches, until it neither drops nor takes; from some tables so
                                    many batches ``at_most``, and with servers that are ``ejected`` as if they were busy
    measured                        the batches are recorded, whatever else the call brings
    direct                          those who left without having been here are recorded, and count as taken

in this order, all at one ``now``. Who is ``leaving`` gets no batch, and the rule waits for the next call of somebody else; with
nothing to serve he is forgotten. A process that was never heard of counts as lost. Who was not heard of himself for a lease judges
nobody: perhaps the store was away, and all others are about to be heard of; nor does who was heard of after now, as nobody knows
how long ago that was. Ties: a lease that ends now still holds; of members lost together the oldest is first, of those equally old
the one whose id is the least: batches in flight have no order in Redis.

The clock may be set back, or a replica whose clock is behind may take over. Nobody arrived after now and nobody was heard of after
now: as soon as the head of the queue is dated after now, all that wait are dated now; an owner of batches in flight whom a sweep
finds heard of after now was heard of now. A sweep that finds him or its own process so dates those with a slack too who are dated
after now, whoever is at the head of their line: that is not the order in which they came. So nothing lasts longer by as much as the
clock was set back: a hold, the age at which a member is dropped, and a lease begin anew. Where the clock is set forward, they end.
Who was not heard of for ``FORGOTTEN_AFTER`` leases counts as never heard of.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Sequence

from sluice.batching import Batcher, Policy
from sluice.buffer_service.arrival_record import ArrivalRecord
from sluice.buffer_service.batch_record import BatchRecord
from sluice.buffer_service.members import member_slack
from sluice.buffer_service.store import (
    ID_LENGTH,
    PROCESS_LENGTH,
    Events,
    Limits,
    Outcome,
    QueueLost,
    Released,
    batch_name,
    lends,
    table_of,
)

Dated = tuple[float, bytes]
"""A member with its arrival time (s), and its slack in that where it has one, which a lost batch keeps."""

_Happened = tuple[int, list[Released], list[bytes], list[bytes], float | None]
"""The first fields of an ``Outcome``."""

DEAD_KEPT = 1000  # members that were lost too often, the last so many
FORGOTTEN_AFTER = 10  # leases


class QueueState:
    """One queue of a model; all queues of the model share its ``record`` of arrivals and its record of ``batches``."""

    def __init__(self, record: ArrivalRecord, batches: BatchRecord) -> None:
        self.record = record
        self.batches = batches
        self.epoch = ""
        self.batcher: Batcher[bytes] | None = None
        self.in_flight: dict[str, tuple[Dated, ...]] = {}
        self.taken = 0  # members that left in batches
        self.seen: dict[str, float] = {}  # by process
        self.attempts: dict[bytes, int] = {}  # by member id
        self.dead: deque[bytes] = deque(maxlen=DEAD_KEPT)

    def install(self, policy: Policy, epoch: str) -> None:
        """This table rules from now on; a queue that had none begins its life as ``epoch``."""
        if self.batcher is None:
            self.epoch, self.batcher = epoch, Batcher(policy, member_slack)
        self.batcher.policy = policy

    def advance(self, process: str, call: int, events: Events, limits: Limits, now: float) -> Outcome:
        """Everything that happened on ``process`` since its last call; ``call`` is a number that it uses once.

        Raises ``QueueLost`` where no table is installed.
        """
        batcher = self.batcher
        if batcher is None:
            raise QueueLost("no policy is installed for this queue")
        for table, completed in Counter(map(table_of, self._complete(events.completed))).items():
            batcher.accept(now, completed=completed, table=table)
        dead: list[bytes] = []
        others: tuple[bool | None, bool | None] = None, None
        if events.serving is not None:
            dead = self._sweep(batcher, process, events.serving, limits, now)
            others = all(map(lends, self.seen)), len(self.seen) == 1
        if events.gone:
            self._withdraw(batcher, events.gone)
        accepted = max(0, min(len(events.arrivals), limits.max_queue_length - len(batcher)))
        arrivals, ages = events.arrivals[:accepted], array("f", events.ages[:accepted])
        if accepted and limits.arrivals_kept and not events.recorded:
            self.record.note(now, ages or (0.0,) * accepted, limits.arrivals_kept, events.sizes[:accepted])
        begun = [max(age, 0.0) + events.early for age in ages or (0.0,) * accepted]
        if events.direct:
            self.taken += len(events.direct)
            if limits.arrivals_kept:
                self.record.note(now, array("f", events.direct), limits.arrivals_kept)
        if events.measured and limits.batches_kept:
            self.batches.note(now, events.measured, limits.batches_kept)
        if events.leaving:
            batcher.accept(now, arrivals, ages=begun)
            if events.serving is not None and not events.serving:
                del self.seen[process]
            return self._outcome(batcher, now, (accepted, [], [], dead, None), events, others)
        step = batcher.advance(now, arrivals, at_most=events.at_most, ages=begun, ejected=events.ejected)
        for member in step.dropped:
            self.attempts.pop(member[:ID_LENGTH], None)
        names = [batch_name(process, call, i, table) for i, table in enumerate(step.tables)]
        released = [self._release(*left) for left in zip(names, step.arrived, step.batches, strict=True)]
        wake_in = None if step.wake_at is None else step.wake_at - now
        return self._outcome(batcher, now, (accepted, released, list(step.dropped), dead, wake_in), events, others)

    def _outcome(
        self, batcher: Batcher[bytes], now: float, happened: _Happened, events: Events, others: tuple[bool | None, bool | None]
    ) -> Outcome:
        """What ``happened``, and how the queue is left."""
        tables = zip(batcher.policy.tables, batcher.busy(events.ejected), strict=True)
        busy = sum(busy for table, busy in tables if table.servers is not None)
        return Outcome(*happened, len(batcher), batcher.behind(now), self.taken, busy, self.epoch, *others)

    def _complete(self, batch_ids: Sequence[str]) -> list[str]:
        """Those of these that were in flight, and are no more."""
        batches = {batch_id: self.in_flight.pop(batch_id) for batch_id in batch_ids if batch_id in self.in_flight}
        if self.attempts:
            for batch in batches.values():
                for _, member in batch:
                    self.attempts.pop(member[:ID_LENGTH], None)
        return list(batches)

    def _release(self, batch_id: str, arrived: Sequence[float], members: Sequence[bytes]) -> Released:
        self.in_flight[batch_id] = tuple(zip(arrived, members, strict=True))
        self.taken += len(members)
        return Released(batch_id, list(members))

    def _withdraw(self, batcher: Batcher[bytes], members: Sequence[bytes]) -> None:
        gone = Counter(members)

        def leaves(member: bytes) -> bool:
            left = gone[member] > 0
            gone[member] -= left
            if left:
                self.attempts.pop(member[:ID_LENGTH], None)
            return left

        batcher.withdraw(leaves)

    def _sweep(self, batcher: Batcher[bytes], process: str, serving: Sequence[str], limits: Limits, now: float) -> list[bytes]:
        """Renew the lease of ``process``; put what nobody serves back to the head; return what was lost too often."""
        judges = process in self.seen and self.seen[process] <= now <= self.seen[process] + limits.lease
        set_back = self._date_owners(now) or self.seen.get(process, now) > now
        self.seen[process] = now
        held = set(serving)
        batches = [
            batch_id
            for batch_id in self.in_flight
            if (judges or batch_id[:PROCESS_LENGTH] == process) and not self._leased(batch_id, process, held, limits.lease, now)
        ]
        taken_back = [dated for batch_id in batches for dated in self.in_flight.pop(batch_id)]
        lost: list[Dated] = []
        dead: list[bytes] = []
        for arrived, member in sorted(taken_back, key=lambda dated: (dated[0], dated[1][:ID_LENGTH])):
            if self._lost_too_often(member, limits.max_attempts):
                dead.append(member)
            else:
                lost.append((arrived, member))
        for table, n_lost in Counter(map(table_of, batches)).items():
            batcher.take_back(n_lost, (), table)
        batcher.take_back(0, lost)
        if set_back:
            batcher.set_back(now)
        self.dead.extend(dead)
        self.seen = {name: at for name, at in self.seen.items() if at >= now - FORGOTTEN_AFTER * limits.lease}
        return dead

    def _date_owners(self, now: float) -> bool:
        """Nobody whose batches are in flight was heard of after now; whether somebody had been."""
        owners = {batch_id[:PROCESS_LENGTH] for batch_id in self.in_flight}
        later = [owner for owner in owners if self.seen.get(owner, now) > now]
        self.seen.update(dict.fromkeys(later, now))
        return bool(later)

    def _leased(self, batch_id: str, process: str, held: set[str], lease: float, now: float) -> bool:
        owner = batch_id[:PROCESS_LENGTH]
        if owner == process:
            return batch_id in held
        return owner in self.seen and now <= self.seen[owner] + lease

    def _lost_too_often(self, member: bytes, max_attempts: int) -> bool:
        """Count one more loss; whether it was the last that is allowed."""
        request = member[:ID_LENGTH]
        self.attempts[request] = self.attempts.get(request, 0) + 1
        if self.attempts[request] < max_attempts:
            return False
        del self.attempts[request]
        return True
