"""What a queue must answer to a call, written from ``lua/advance.lua``'s opening without a line of the code that serves.

It keeps its own account of who waits and what is in flight, and says where an answer differs from it.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

import msgspec

from sluice.batching import Policy
from sluice.buffer_service.store import ID_LENGTH, PROCESS_LENGTH, Events, Limits, Outcome
from tests.batching.strategies import row_in_words


def slack(member: bytes) -> float:
    """Of a member of version 3 or 4, the number behind it; of all others 0."""
    return float(struct.unpack(">d", member[18:26])[0]) if member[16:18] in (b"\x03\xcb", b"\x04\xcb") else 0.0


def class_name(member: bytes) -> str:
    """The fourth entry of the array behind the numbers of a member, of a ticket the second, where it has one."""
    rest = msgspec.msgpack.decode(member[{2: 26, 3: 35, 4: 35}.get(member[16], 16) :])
    place = 1 if member[16] == 4 else 3
    return str(rest[place]) if len(rest) > place else ""


@dataclass(slots=True)
class TakenBack:
    """A batch that a sweep of ``by`` took from its owner."""

    batch_id: str
    members: list[bytes]
    by: str


@dataclass(slots=True)
class QueueInWords:
    """One life of one queue."""

    policy: Policy
    without_slack: list[tuple[float, bytes]] = field(default_factory=list)  # (when it first came, member), as they wait
    with_slack: dict[bytes, float] = field(default_factory=dict)  # by member: when it came and its slack
    in_flight: dict[str, list[tuple[float, bytes]]] = field(default_factory=dict)
    heard: dict[str, float] = field(default_factory=dict)
    losses: dict[bytes, int] = field(default_factory=dict)
    taken_back: list[TakenBack] = field(default_factory=list)  # by the last call
    taken: int = 0
    left: dict[int, int] = field(
        default_factory=dict
    )  # batches that tables may still release in this call, where these are counted
    ejected: dict[int, int] = field(default_factory=dict)  # servers, by the place of their table, as who makes this call has it

    def check(self, process: str, events: Events, outcome: Outcome, limits: Limits, now: float) -> list[str]:
        """Take a call into account; what is wrong with its outcome."""
        wrong: list[str] = []

        def expect(what: str, got: object, wanted: object) -> None:
            if got != wanted:
                wrong.append(f"{what}: {got!r} instead of {wanted!r}")

        for batch_id in events.completed:
            for _, member in self.in_flight.pop(batch_id, []):
                self.losses.pop(member[:ID_LENGTH], None)
        self.taken_back, self.left, self.ejected = [], dict(events.at_most), dict(events.ejected)
        dead = self._sweep(process, events, limits, now) if events.serving is not None else []
        expect("put aside", outcome.dead, dead)
        all_lend = not any(name[0] in "0123456789abcdef" for name in self.heard)
        expect("all lend", outcome.all_lend, None if events.serving is None else all_lend)
        expect("alone", outcome.alone, None if events.serving is None else len(self.heard) == 1)
        for gone in events.gone:
            entry = next((entry for entry in self.waiting if entry[1] == gone), None)
            if entry is not None:
                self._take_out([entry])
                self.losses.pop(gone[:ID_LENGTH], None)
        room = max(0, limits.max_queue_length - len(self.waiting))
        expect("accepted", outcome.accepted, min(room, len(events.arrivals)))
        for i, member in enumerate(events.arrivals[:room]):
            (age,) = struct.unpack("f", struct.pack("f", events.ages[i] if events.ages else 0.0))
            came = now - (age + events.early)
            if slack(member):
                self.with_slack.setdefault(member, came + slack(member))
            else:
                self.without_slack.append((came, member))
        if events.leaving:
            if events.serving is not None and not events.serving:
                del self.heard[process]
            expect("released to one who leaves", outcome.batches, [])
        else:
            self._check_rule(process, outcome, now, expect)
        expect("queue length", outcome.queue_length, len(self.waiting))
        expect("behind one who comes now", outcome.behind, sum(begins >= now for begins in self.with_slack.values()))
        self.taken += len(events.direct) + sum(len(batch.members) for batch in outcome.batches)
        expect("taken", outcome.taken, self.taken)
        bounded = [place for place, table in enumerate(self.policy.tables) if table.servers is not None]
        expect("busy", outcome.busy, sum(map(self.busy, bounded)))
        return wrong

    def _sweep(self, process: str, events: Events, limits: Limits, now: float) -> list[bytes]:
        judges = 0 <= now - self.heard.get(process, float("inf")) <= limits.lease
        asked = {process, *(batch_id[:PROCESS_LENGTH] for batch_id in self.in_flight)}
        set_back = any(self.heard.get(name, now) > now for name in asked)
        self.heard[process] = now
        for owner in {batch_id[:PROCESS_LENGTH] for batch_id in self.in_flight}:
            if self.heard.get(owner, now) > now:  # by a clock that was set back since
                self.heard[owner] = now
        lost: list[tuple[float, bytes]] = []
        back: list[tuple[float, bytes]] = []
        dead = []
        for batch_id, members in list(self.in_flight.items()):
            owner = batch_id[:PROCESS_LENGTH]
            heard = self.heard.get(owner)
            kept = not judges or (heard is not None and now <= heard + limits.lease)
            kept = batch_id in events.serving if owner == process else kept
            if kept:
                continue
            self.taken_back.append(TakenBack(batch_id, [member for _, member in members], process))
            lost += self.in_flight.pop(batch_id)
        for came, member in sorted(lost, key=lambda entry: (entry[0], entry[1][:ID_LENGTH])):
            self.losses[member[:ID_LENGTH]] = self.losses.get(member[:ID_LENGTH], 0) + 1
            if self.losses[member[:ID_LENGTH]] == limits.max_attempts:
                del self.losses[member[:ID_LENGTH]]
                dead.append(member)
            else:
                back.append((came, member))
        self.without_slack[:0] = [(came, member) for came, member in back if not slack(member)]
        for came, member in back:
            if slack(member):
                self.with_slack.setdefault(member, came)
        if set_back:  # nobody comes from the future, whoever stands before him
            self.with_slack = {member: min(begins, now + slack(member)) for member, begins in self.with_slack.items()}
        for silent in [name for name, at in self.heard.items() if at < now - 10 * limits.lease]:
            del self.heard[silent]
        return dead

    def _check_rule(self, process, outcome, now, expect) -> None:  # type: ignore[no-untyped-def]
        """Batches and drops, one by one as the table says; and nothing is due any more."""
        policy, released, dropped = self.policy, list(outcome.batches), list(outcome.dropped)
        while self.waiting:
            if self.without_slack and self.without_slack[0][0] > now:  # nobody comes from the future
                self.without_slack = [(now, member) for _, member in self.without_slack]
            if self.with_slack and self.with_slack[self._urgent()] > now + slack(self._urgent()):
                self.with_slack = {member: now + slack(member) for member in self.with_slack}
            oldest = self.waiting[0][0]
            if policy.drop_after is not None and now > oldest + policy.drop_after:
                [(_, late)] = self._take_out(self.waiting[:1])
                expect("dropped", dropped.pop(0) if dropped else None, late)
                self.losses.pop(late[:ID_LENGTH], None)
                continue
            due = [place for place, ends in self.holds().items() if now >= oldest + ends or ends == 0]
            if not due:
                break
            place, table = due[0], policy.tables[due[0]]
            take = table.take[self.row(table)]
            batch = released.pop(0) if released else None
            members = self._take_out(self.waiting[:take])
            expect("batch", batch and batch.members, [member for _, member in members])
            if batch is None:
                break
            expect("owner", batch.batch_id[:PROCESS_LENGTH], process)
            expect("in flight already", batch.batch_id in self.in_flight, False)
            expect("table", batch.batch_id.split(":")[3:], [str(place)] if place else [])
            self.in_flight[batch.batch_id] = members
            if place in self.left:
                self.left[place] -= 1
            if table.servers is not None and self.busy(place) > table.servers:
                expect("servers", self.busy(place), table.servers)
            if len(batch.members) > table.max_batch_size:
                expect("batch size", len(batch.members), table.max_batch_size)
        expect("released beyond the table", [batch.members for batch in released], [])
        expect("dropped beyond the table", dropped, [])
        expect("wakes in", outcome.wake_in, self._wake_in(now))

    @property
    def waiting(self) -> list[tuple[float, bytes]]:
        """Who waits, with the moment from which his hold runs, in the order in which they leave."""
        plain, others, order = list(self.without_slack), sorted((begins, member) for member, begins in self.with_slack.items()), []
        while plain or others:
            line = others if not plain or (others and others[0][0] < plain[0][0]) else plain
            order.append(line.pop(0))
        return order

    def _urgent(self) -> bytes:
        """Of those with a slack the one whose hold begins first."""
        return min((begins, member) for member, begins in self.with_slack.items())[1]

    def _take_out(self, entries: list[tuple[float, bytes]]) -> list[tuple[float, bytes]]:
        """These wait no more."""
        for entry in entries:
            if entry[1] in self.with_slack:
                del self.with_slack[entry[1]]
            else:
                self.without_slack.remove(entry)
        return entries

    def _wake_in(self, now: float) -> float | None:
        if not self.waiting or (hold := min(self.holds().values(), default=float("inf"))) == float("inf"):
            return None
        return self.waiting[0][0] + hold - now

    def row(self, table: Policy) -> int:
        """The row of a table that speaks for who waits."""
        patient = sum(slack(member) > 0 for member in self.with_slack)
        return row_in_words(table, len(self.without_slack) + len(self.with_slack) - patient, patient)

    def held_for_ever(self) -> bool:
        """Whether no table has an end to the wait of the oldest at this length of the queue."""
        return all(table.hold[self.row(table)] == float("inf") for table in self.policy.tables)

    def busy(self, place: int) -> int:
        """Batches in flight of a table, and its servers that are ejected, but for one.

        Batches of tables that the policy has not are the first's.
        """
        places = [int(([*batch_id.split(":"), "0"])[3]) for batch_id in self.in_flight]
        ejected = min(self.ejected.get(place, 0), (self.policy.tables[place].servers or 1) - 1)
        return ejected + sum(of == place or (not place and of >= len(self.policy.tables)) for of in places)

    def holds(self) -> dict[int, float]:
        """How long (s) the oldest waits at this length of the queue, by the place of each table that has a free server."""
        holds = {i: table.hold[self.row(table)] for i, table in enumerate(self.policy.tables)}
        on = {i: hold for i, hold in holds.items() if self.left.get(i, 1) > 0}
        if min(on.values(), default=float("inf")) < float("inf"):
            holds = on  # else who waits would wait for tables that have released what they may
        servers = [table.servers for table in self.policy.tables]
        return {i: hold for i, hold in holds.items() if (most := servers[i]) is None or self.busy(i) < most}
