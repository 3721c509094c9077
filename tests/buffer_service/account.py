"""What a run of the simulation is held to: everything that its parts saw, and what should not have been.

What must hold (``Account.wrong`` has what does not):

1.  Every caller gets one answer, and his own: what the function said of his request. An error only where something happened that
    allows it for this request. Whoever asks after the faults have ended is answered by the model, and soon.
2.  The queue answers every call as ``queue_in_words.py`` has it: batches as the table says, oldest first, never more in flight than
    it has servers; who is taken back keeps his age; what was lost too often is put aside.
3.  Nobody's batch is taken back while he holds it: from another only when that one was not heard of for a lease, for a reason; from
    himself only where an answer of the store was lost. A reason is also that the store's clock was set forward since.
4.  A request is computed where a batch with it is in flight, or has left past the queue, by one part of it at a time, and once;
    again only where it was taken back, the store lost the queue, or an answer of the store was lost.
5.  A route is drained only when no caller of the process waits at it.
6.  In the end nobody waits, nothing is in flight, no lease is held, and every process closes in time. Who leaves takes batches
    while a caller of his is in the queue, and none after that.
7.  Arrivals are recorded with the time when they came and the size that was told, which moves with them; by size, a request takes
    the first route that is for requests as large, and where classes choose, that of its class, also when it moves; nobody waits
    beyond his deadline, nor is refused for it before.
8.  Nothing waits for a sweep that could be done at once: who was told when a batch is due comes then, a batch whose answers are
    there is soon reported complete, the queue soon hears of who came, and once of who left past it, and a plan's tables are soon
    installed; but where the store failed, or the process was stopped.
9.  No step of the buffer ends with an exception that nobody takes, whatever comes of that.
10. When all have followed the same plan, its tables rule.
11. No batch carries somebody who left a while ago; nobody is refused where the queue has no batch for every server, but who has a
    slack above 0 where hardly a place is left, nor before an
    elastic function unless it refused a batch of the process while that had little time; who has much is never refused for that.
12. A batch goes to the function of the table that released it, unless that left something without an answer, or failed, before; and
    then in parts that the other takes. While one function of a route fails nobody, nobody is refused for another that does nothing
    but fail, nor gets an error of one that is away.
"""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextvars import Context
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import msgspec

from sluice.batching import Policy
from sluice.batching.documents import Plan, Route
from sluice.batching.errors import DeadlinePassed, Draining, FunctionSuspended, Overloaded, QueueFull, SluiceError, StoreUnavailable
from sluice.buffer_service.callers import Callers
from sluice.buffer_service.invokers import BatchTooLarge, FunctionBusy, FunctionUnavailable
from sluice.buffer_service.members import member_id, member_size
from sluice.buffer_service.route_batches import DIRECT
from sluice.buffer_service.store import Events, Limits, Outcome, queue_name, table_of
from sluice.buffer_service.told import NOTHING_TOLD, Told
from sluice.lambda_fn.contract import Answer, Batch, Item, WireError, decode_answers
from tests.buffer_service.queue_in_words import QueueInWords, TakenBack, class_name, slack
from tests.buffer_service.virtual_time import VirtualLoop

MODEL = "m"
SOON = 1.5  # s within which who comes after the faults has his answer
IN_TIME = 0.01  # s from when a call is due until the store has it, at most, while nothing goes wrong
SLOW = 1.2  # leases that a message to the store, or from it, takes at most
PROMPT = 0.15  # s within which a process does what is due, several exchanges with the store included


class Planted(Exception):
    """What the buffer does not expect, where a run has it meet that."""


class CallMade(NamedTuple):
    """A call that the store executed; a ``policy`` was installed, or ``events`` were taken. Neither: the store lost its data.

    ``by`` numbers the queues as processes opened them; ``now`` is by the store's clock. Without an ``outcome`` the store did
    not know the queue.
    """

    by: int
    route: str
    process: str
    now: float
    policy: Policy | None = None
    events: Events | None = None
    outcome: Outcome | None = None


@dataclass(eq=False)
class Request:
    """A caller, and what became of him."""

    number: int
    process: str
    kind: str
    came: float
    fresh: bool = False  # came after the faults
    id: str = ""
    ended: float | None = None
    status: int | str | None = None
    size: float = 0.0
    says: str = ""  # of which class it is
    told: Told = NOTHING_TOLD  # what the plan had read


@dataclass(eq=False)
class Process:
    """A process of the buffer."""

    name: str
    context: Context
    callers: Callers
    model: Any = None
    alive: bool = True
    closed: bool = False
    leaving: bool = False
    following: asyncio.Task[None] | None = None
    closing: asyncio.Task[None] | None = None
    followed_at: float = -1.0
    told: Plan | None = None  # the last plan that it was told of, and may be about to follow
    hits: list[float] = field(default_factory=list)  # when the store failed it, was slow to it, or it was stopped
    let_down: list[float] = field(default_factory=list)  # when the store failed it in a message or in a move


class Account:
    """Of one run; ``wrong`` says what should not have happened, ``told`` what did."""

    def __init__(self, loop: VirtualLoop, limits: Limits, patience: float) -> None:
        self.loop = loop
        self.limits = limits
        self.patience = patience  # s a caller waits
        self.set_by: list[tuple[float, float]] = []  # when the store's clock was set, and by how much (s)
        self.in_words: dict[str, QueueInWords] = {}  # by queue
        self.heard_at: dict[tuple[str, str], float] = {}  # by queue and process: when it was last heard of
        self.announced: set[tuple[str, str]] = set()  # queues and batches that the process they were released to knows of
        self.released_at: dict[tuple[str, str], float] = {}  # by queue and batch
        self.batch_of: dict[str, tuple[str, str]] = {}  # queue and batch that a request was released in last, until it is moved
        self.members_of: dict[tuple[str, str], list[str]] = {}  # by queue and batch
        self.parts: defaultdict[tuple[str, str, str], int] = defaultdict(int)  # invocations under way, by queue, batch and function
        self.heard_waiting: dict[tuple[str, str], tuple[float, float, int]] = {}
        """By process and queue: when the process heard of it, the last but one time and the last, and how many waited then."""
        self.processes: dict[str, Process] = {}
        self.requests: list[Request] = []
        self.by_id: dict[str, Request] = {}
        self.running: defaultdict[str, int] = defaultdict(int)  # invocations under way, by request
        self.computed: set[str] = set()
        self.again: set[str] = set()  # requests that may be computed twice
        self.at_home: set[str] = set()  # but these may not, unless messages or moves fail: the process of their callers has them
        self.allowed: defaultdict[str, set[int | str]] = defaultdict(set)  # errors, by request
        self.never_told: set[str] = set()  # requests that were given up in an answer that got lost
        self.given_up_by: dict[str, str] = {}  # which process is to tell them
        self.adopted_by: dict[str, str] = {}
        self.moves_to: dict[tuple[str, str], str | None] = {}  # by process and request: where its class has it
        self.calls: list[CallMade] = []
        self.wrong: list[str] = []
        self.told: list[str] = []
        self.verbose = False
        self.answers_at: dict[tuple[str, str], float] = {}  # when the last part of a batch came back, by queue and batch
        self.followed: dict[tuple[str, str], float] = {}  # by process and route: when it was told of its last plan
        self.passed: set[tuple[str, str]] = set()  # batches of which something was answered
        self.failed_alone: defaultdict[tuple[str, str], int] = defaultdict(int)  # items, by batch
        self.in_vain: defaultdict[tuple[str, str], int] = defaultdict(int)  # calls in a row, by process and function
        self.failures: defaultdict[str, int] = defaultdict(int)  # calls in all, by process
        self.suspended_at: dict[tuple[str, str], float] = {}  # when a process had last reason not to ask a function for a while
        self.last_in_vain: dict[tuple[str, str], float] = {}  # when a call of a process to a function was, last
        self.taken_back_at = -math.inf  # when a batch was, last
        self.unanswered: set[tuple[str, str]] = set()  # requests, and the functions that left them without an answer
        self.last_refused: dict[tuple[str, str], float] = {}  # when a function refused a batch of a process, for now
        self.plans_change = False
        self.tables_drop = False
        self.throttled_at: dict[str, float] = {}  # when a function refused a batch of a process last, for now
        self.left_past: set[tuple[tuple[str, str], str]] = set()  # by queue and batch, requests
        self.due: dict[str, tuple[float, str, float]] = {}  # by queue: when a batch is, who was told so, and when
        self.past: defaultdict[tuple[str, str], dict[str, Request]] = defaultdict(dict)  # by process and queue: who left past it

    def store_time(self) -> float:
        """What the store's clock says."""
        return self.loop.time() + sum(seconds for _, seconds in self.set_by)

    def clock_set(self, seconds: float) -> None:
        """The store's clock was set forward, or back."""
        self.set_by.append((self.loop.time(), seconds))

    def note(self, line: str) -> None:
        """Something happened."""
        if self.verbose:
            self.told.append(f"{self.loop.time():9.4f}  {line}")

    def blame(self, line: str) -> None:
        """Something happened that should not."""
        self.wrong.append(f"{self.loop.time():.4f} s: {line}")
        self.note(f"WRONG {line}")

    def stumbled(self, error: BaseException | None) -> None:
        """Something of the buffer ended with an exception that nobody takes, or logged one."""
        died = any(not process.alive for process in self.processes.values())  # with what it was about to take
        if not isinstance(error, Planted) and not (died and isinstance(error, SluiceError)):
            self.blame(f"an exception: {error!r}")

    def forgotten(self) -> None:
        """The store is about to lose all its data."""
        self.note("the store forgets")
        self.calls.append(CallMade(0, "", "", self.store_time()))
        once = set(self.by_id) - self.again  # nobody else may compute who was never submitted again
        self.at_home.update(request for request in once if self._computed_at_home(request))
        self.again.update(self.by_id)
        self.in_words.clear()
        self.heard_at.clear()
        self.due.clear()

    def _computed_at_home(self, request: str) -> bool:
        """Whether the process that its caller waits at has it in a batch, and so need not submit it again."""
        queue, batch_id = self.batch_of.get(request, ("", ""))
        in_flight = queue in self.in_words and batch_id in self.in_words[queue].in_flight
        return in_flight and batch_id[:8] == request[:8] and (queue, batch_id) in self.announced

    def never_heard(self, result: Any) -> None:
        """An outcome gets lost: nobody tells those whom it gave up, and what it brought may be brought again."""
        if isinstance(result, Outcome):
            call = self.calls[-1]
            assert call.events is not None
            self.again.update(map(member_id, call.events.arrivals))
            self.never_told.update(map(member_id, [*result.dropped, *result.dead]))

    def installed(self, by: int, route: str, process: Process, policy: Policy) -> None:
        """The store has taken a table."""
        self.note(f"{process.name} {route!r}: installs {policy.kind} {policy.parameters}")
        self.calls.append(CallMade(by, route, process.name, self.store_time(), policy))
        name = queue_name(MODEL, route)
        followed = self.followed.pop((process.name, route), math.inf)
        anew = any(call.by == 0 for call in self.calls)  # a queue that was lost
        if self.loop.time() > followed + PROMPT and not anew and self._well(process, followed - SLOW * self.limits.lease):
            self.blame(f"{name}: {process.name} has another table since {followed:.4f}, and installs it now")
        if name in self.in_words:
            self.in_words[name].policy = policy
            self.due.pop(name, None)  # another table, another time
        else:
            self.in_words[name] = QueueInWords(policy)

    def advanced(self, by: int, route: str, process: Process, events: Events, outcome: Outcome, asked_at: float) -> None:
        """The store has taken a call that was made at ``asked_at``, and answers so."""
        now = self.loop.time()
        name = queue_name(MODEL, route)
        words = self.in_words[name]
        self._check_prompt(name, process, events, now)
        for wrong in words.check(process.name, events, outcome, self.limits, self.store_time()):
            self.blame(f"{name}, {process.name}: {wrong}")
        self.calls.append(CallMade(by, route, process.name, self.store_time(), None, events, outcome))
        self.note(f"{process.name} {route!r}: {_shown(events)} -> {_shown_outcome(outcome)}")
        if events.leaving:
            self._check_leaves_nobody(name, process)
        self.due.pop(name, None)
        if outcome.wake_in is not None:
            self.due[name] = now + outcome.wake_in, process.name, now
        for taken in words.taken_back:
            self._check_taken_back(name, taken)
        if events.serving is not None:
            self.heard_at[name, process.name] = now
        self._check_sizes(process, route, events)
        if events.recorded:
            for request in map(member_id, events.arrivals[: outcome.accepted]):
                self.adopted_by[request] = process.name
                self.batch_of.pop(request, None)
        else:
            self._check_ages(name, process, events, outcome, now)
        self._check_past(name, process, [asked_at - age for age in events.direct], now)
        for batch in outcome.batches:
            self._check_nobody_has_gone(name, batch.members, now)
            self.released_at[name, batch.batch_id] = now
            self.announced.discard((name, batch.batch_id))  # a route that returns counts its calls anew
            self.answers_at.pop((name, batch.batch_id), None)
            self.passed.discard((name, batch.batch_id))
            self.failed_alone.pop((name, batch.batch_id), None)
            self.members_of[name, batch.batch_id] = list(map(member_id, batch.members))
            self.batch_of.update(dict.fromkeys(map(member_id, batch.members), (name, batch.batch_id)))
        for member in events.arrivals[outcome.accepted :]:
            self.allowed[member_id(member)].update((429, "QueueFull"))
        self.given_up_by.update((member_id(member), process.name) for member in [*outcome.dropped, *outcome.dead])
        for member in outcome.dropped:
            self.allowed[member_id(member)].add(504)
        for member in outcome.dead:
            self.allowed[member_id(member)].add(502)

    def learned(self, process: Process, name: str, outcome: Outcome) -> None:
        """A process has the answer to its call."""
        _, before, _ = self.heard_waiting.get((process.name, name), (0.0, 0.0, 0))
        self.heard_waiting[process.name, name] = before, self.loop.time(), outcome.queue_length
        for batch in outcome.batches:
            self.announced.add((name, batch.batch_id))

    def _check_past(self, name: str, process: Process, came: Sequence[float], now: float) -> None:
        """Whether a queue hears once, and soon, of everybody who left past it, and when he came."""
        past = self.past[process.name, name]
        # Not all were computed: a function that had done nothing but fail was not asked.
        refused = [each for each in self.by_id.values() if each.process == process.name and each.status == 503]
        for came_at in came:
            known = [request for request, who in past.items() if abs(who.came - came_at) < 1e-9]
            if known:
                del past[known[0]]
            elif not any(abs(who.came - came_at) < 1e-9 for who in refused):
                self.blame(f"{name}: {process.name} tells of one who came at {came_at:.4f} and left past it")
        for request in past.values():
            if now > request.came + PROMPT and self._well(process, request.came - SLOW * self.limits.lease):
                self.blame(f"{name}: {request.id} left past it, came at {request.came:.4f}, and {process.name} does not tell it so")

    def _check_leaves_nobody(self, name: str, process: Process) -> None:
        """Who takes no batch any more has no caller in the queue: others may follow another plan."""
        for _, member in self.in_words[name].waiting:
            caller = process.callers.waiting.get(member_id(member))
            here = caller is not None and caller.queue == name and not caller.answered.done()
            if here and member_id(member) not in self.again:
                self.blame(f"{name}: {process.name} takes no batch, and its caller {member_id(member)} waits there")

    def check_takes_no_more(self, process: Process, route: str, events: Events) -> None:
        """A process is about to call: who ends and has no caller takes no batches of others, unless it is to move them."""
        dispatcher = process.model._dispatchers.get(route)
        in_force = route in {way.name for way in process.model.plan.all_routes}
        if in_force and dispatcher is not None and dispatcher._state.ending and not events.leaving and not process.callers.waiting:
            self.blame(f"{queue_name(MODEL, route)}: {process.name} ends, none of its callers waits, and it takes batches")

    def _check_prompt(self, name: str, process: Process, events: Events, now: float) -> None:
        """Whether a call comes when it is due, and brings at once what it could."""
        if name in self.due:
            due, told, since = self.due[name]
            if now > due + PROMPT and self._well(self.processes[told], since):
                self.blame(f"{name}: {told} was told that a batch is due at {due:.4f}, and nobody came")
        for batch_id in events.completed:
            answered = self.answers_at.get((name, batch_id), now)
            if any(request in self.adopted_by for request in self.members_of.get((name, batch_id), ())):
                continue  # some of it moved on, without having been asked for again
            if now > answered + PROMPT and self._well(process, answered - SLOW * self.limits.lease):
                self.blame(f"{name}: {batch_id} had its answers at {answered:.4f} and is reported complete")

    def _well(self, process: Process, since: float) -> bool:
        """Whether a process that serves could do what is due; it may have been stopped before ``since``, and be so still."""
        stopped = process.name in self.loop._stopped
        return process.alive and not process.leaving and not stopped and not any(hit >= since for hit in process.hits)

    def _check_nobody_has_gone(self, name: str, members: Sequence[bytes], now: float) -> None:
        """Whether a batch carries somebody who left his queue some time ago, and whose process could say so."""
        for request in filter(None, map(self.by_id.get, map(member_id, members))):
            process, ended = self.processes[request.process], request.ended
            moved = request.id in self.adopted_by or request.id in self.again
            long_ago = request.status == "left" and ended is not None and now > ended + PROMPT and not moved
            if long_ago and ended is not None and self._well(process, ended - 2 * self.limits.lease):
                self.blame(f"{name}: a batch carries {request.id}, who left at {ended:.4f}")

    def _check_taken_back(self, name: str, taken: TakenBack) -> None:
        owner = self.processes[taken.batch_id[:8]]
        released_at, heard = self.released_at[name, taken.batch_id], self.heard_at.get((name, owner.name))
        if taken.by == owner.name:  # he never knew of it, or could not send or move what came of it
            hits = owner.let_down if (name, taken.batch_id) in self.announced else owner.hits
            excused = any(hit >= released_at for hit in hits)
        elif heard is None:  # nobody has heard of him since the store forgot, until his next call, which is due at once
            away = not owner.alive or owner.closed or any(hit >= released_at - 2 * self.limits.lease for hit in owner.hits)
            excused = any(call.by == 0 for call in self.calls) and (away or self.loop.time() <= released_at + IN_TIME)
        else:
            excused = not owner.alive or any(hit >= heard - 2 * self.limits.lease for hit in owner.hits)
            # A step forward that is longer than a lease ends the judge's too, whose first sweep then judges nobody.
            swept = self.heard_at.get((name, taken.by), -math.inf)
            excused |= any(at >= heard and step > 0 and (step <= self.limits.lease or swept >= at) for at, step in self.set_by)
        if not excused:
            self.blame(f"{name}: batch {taken.batch_id} is taken back by {taken.by} though its process holds it")
        self.note(f"{name}: {taken.batch_id} is taken back by {taken.by}")
        self.taken_back_at = self.loop.time()
        self.again.update(map(member_id, taken.members))
        self.at_home.difference_update(map(member_id, taken.members))

    def check_tables(self) -> None:
        """What rules is what the plan says, where everybody has followed it."""
        if any(not process.alive or process.leaving for process in self.processes.values()):
            return  # who is no more may have put an older table over it
        plans = [process.model.plan for process in self.processes.values()]
        for way in plans[0].all_routes if all(plan.digest == plans[0].digest for plan in plans) else ():
            name, wanted = queue_name(MODEL, way.name), way.rule()
            if name not in self.in_words:
                continue  # the store forgot it, and nobody has been there since
            rules = self.in_words[name].policy
            drop_after = self.patience if wanted.drop_after is None else min(self.patience, wanted.drop_after)
            if rules != replace(wanted, drop_after=drop_after):
                self.blame(f"{name}: {rules} rules instead of {wanted}")

    def check_route(self, queue: str, request: Request) -> None:
        """A request comes to this queue of its process."""
        plan = self.processes[request.process].model.plan
        wanted = (request.size or None) if plan.size is not None else None
        if plan.size is not None:
            ways = plan.all_routes
            enough = [way.name for way in ways if way.up_to is None or (wanted is not None and wanted <= way.up_to)]
            if queue != queue_name(MODEL, enough[0]):
                self.blame(f"{queue}: a request of size {wanted} comes here, where {enough[0]!r} is for it")
        route = self._route_of_class(plan, request.says or (plan.classes[0].name if plan.classes else ""))
        if route is not None and queue != queue_name(MODEL, route):
            self.blame(f"{queue}: a request of class {request.says!r} comes here, where {route!r} is for it")
        if request.told.size != wanted:
            self.blame(f"{queue}: {request.id} has the size {wanted}, and {request.told.size} is read")
        slacks = [each.slack for each in plan.classes if each.name == (request.says or plan.classes[0].name)]
        if [request.told.slack] != (slacks or [0.0]):
            self.blame(f"{queue}: {request.id} has the slack {slacks}, and {request.told.slack} is read")

    def _route_of_class(self, plan: Plan, name: str) -> str | None:
        """The route that a plan has for a class, and for one that it has not; ``None`` where classes choose none."""
        routes = {each.name: each.route for each in plan.classes if each.route}
        return routes.get(name, plan.classes[0].route) if routes else None

    def moving(self, process: Process, members: Sequence[bytes]) -> None:
        """A process is about to move these to the routes of the plan that it follows."""
        for request in filter(None, map(self.by_id.get, map(member_id, members))):
            self.moves_to[process.name, request.id] = self._route_of_class(process.model.plan, request.told.name)

    def _check_sizes(self, process: Process, route: str, events: Events) -> None:
        """A size, a slack and a class go with their request wherever that goes, which is where they say; the size is recorded."""
        name = queue_name(MODEL, route)
        known = {member: self.by_id[member_id(member)].told for member in events.arrivals if member_id(member) in self.by_id}
        for member, told in known.items():
            comes_with = member_size(member), slack(member), class_name(member)
            if comes_with != (told.size, told.slack, told.name):
                self.blame(f"{name}: {member_id(member)} told {told}, and comes with {comes_with}")
            if events.recorded and (wanted := self.moves_to[process.name, member_id(member)]) not in (None, route):
                self.blame(f"{name}: {member_id(member)} of class {told.name!r} is moved here instead of to {wanted!r}")
        sizes = [known.get(member, NOTHING_TOLD).size for member in events.arrivals]
        recorded = [None if math.isnan(size) else size for size in events.sizes] or [None] * len(sizes)
        if not events.recorded and recorded != sizes:
            self.blame(f"{name}: sizes {sizes} are recorded as {recorded}")

    def _check_ages(self, name: str, process: Process, events: Events, outcome: Outcome, now: float) -> None:
        for member, age in zip(events.arrivals[: outcome.accepted], events.ages, strict=False):
            came = self.by_id[member_id(member)].came
            late = now - age - came
            if not (-1e-9 <= late <= 0.01 or (late > 0 and process.hits)):
                self.blame(f"{name}: {member_id(member)} came at {came:.4f} and is recorded at {now - age:.4f}")
            new = member_id(member) not in self.again
            if new and now > came + PROMPT and self._well(process, came - SLOW * self.limits.lease):
                self.blame(f"{name}: {member_id(member)} came at {came:.4f}, and the queue hears of him now")

    def judge(self, process: Process, function: str, items: list[Item], batch: tuple[str, str], result: bytes | Exception) -> None:
        """What a call came to, and what may follow from that for others than its items.

        Two items that fail alone while nothing of their batch was answered end it; four calls in a row in vain, at the least, are
        needed before a function is not asked for a while, and as many in all as the reserve before nothing is asked again.
        """
        if _answers(items, result):
            self.passed.add(batch)
            self.in_vain[process.name, function] = 0
            return
        if isinstance(result, FunctionUnavailable) and (self.patience < 10.0 or self.tables_drop):
            self.allow(items, 503)  # his time may be over before the function is asked again, where it is
        if isinstance(result, FunctionUnavailable):
            for item in items:
                self.unanswered.add((item.id, function))
        if isinstance(result, FunctionBusy):
            self.throttled_at[process.name] = self.loop.time()
            self.last_refused[process.name, function] = self.loop.time()
        if isinstance(result, (FunctionBusy, BatchTooLarge)):
            return
        self.in_vain[process.name, function] += 1
        self.last_in_vain[process.name, function] = self.loop.time()
        self.failures[process.name] += 1
        if self.in_vain[process.name, function] >= 4:
            self.suspended_at[process.name, function] = self.loop.time()
        if self.failures[process.name] >= 64:
            self.allow(items, 502)
        if len(items) == 1 and batch not in self.passed:
            self.failed_alone[batch] += 1
            if self.failed_alone[batch] >= 2:
                for request in self.members_of.get(batch, ()):
                    self.allowed[request].add(502)

    def _suspended(self, request: Request) -> bool:
        """Whether a function may not have been asked for a request as it did nothing but fail, nor any other that had not been."""
        assert request.ended is not None
        suspended = {asked for asked, at in self.suspended_at.items() if request.ended <= at + 8.0}
        routes = [(name, route) for name, process in self.processes.items() for route in process.model.plan.all_routes]
        if self.plans_change:
            return bool(suspended)
        ways = [{(name, function) for function in route.functions} for name, route in routes]
        left = [{asked for asked in way if (request.id, asked[1]) in self.unanswered} for way in ways]
        return any(way & suspended and way <= suspended | had for way, had in zip(ways, left, strict=True))

    def another_is_well(self, process: Process, function: str, batch: tuple[str, str]) -> bool:
        """Whether a batch may be served by another function of its route, which has answered whatever this process asked of it."""
        dispatcher = process.model._dispatchers.get(batch[0].removeprefix(MODEL).removeprefix(":"))
        if self.plans_change or dispatcher is None:
            return False
        others = set(dispatcher._state.route.functions) - {function}
        return any((process.name, other) not in self.last_in_vain for other in others)

    def check_invoked(self, process: Process, function: str, items: list[Item], part_of: tuple[str, str]) -> None:
        """A process sends items of a batch to a function."""
        batches = {self.batch_of.get(item.id) for item in items if item.id not in self.again}
        if not items or len(batches) > 1:
            self.blame(f"{process.name}: parts of batches {batches} are sent as one")
        for queue, batch_id in filter(None, batches):
            if batch_id[:8] != process.name or batch_id not in self.in_words[queue].in_flight:
                self.blame(f"{process.name}: {batch_id} of {queue} is computed, and is not in flight here")
        if f":{DIRECT}:" in part_of[1]:
            first = [item.id for item in items if (part_of, item.id) not in self.left_past]
            self.left_past.update((part_of, request) for request in first)
            self.past[process.name, part_of[0]].update({request: self.by_id[request] for request in first})
            state = self._dispatcher(process, part_of[0])._state
            batch = state._batches.under_way[part_of[1]]
            self.members_of[part_of] = list(map(member_id, batch.members))
            self.answers_at.pop((part_of[0], batch.place), None)  # which is reported complete when this one has ended
            if first and state.bounded and not batch.place:
                self.blame(f"{process.name}: {part_of[1]} leaves past {part_of[0]}, whose servers are bounded, and takes no place")
            if any(self.loop.time() > self.by_id[request].came + state._facts.longest_wait() for request in first):
                self.blame(f"{process.name}: {part_of[1]} leaves past a queue that drops who came as long ago")
        self._check_whose(process, function, items, part_of)
        most = 2 if self._elastic(process, part_of[0]) else 1
        if self.parts[(*part_of, function)] >= most:
            self.blame(f"{process.name}: more than {most} parts of {part_of[1]} of {part_of[0]} are computed at once by {function}")
        for item in items:
            once = item.id not in self.again or (item.id in self.at_home and not process.let_down)
            if once and (self.running[item.id] or item.id in self.computed):
                self.blame(f"{process.name}: {item.id} is computed again")
        self.note(f"{process.name}: asks {function} for {[item.id[-3:] for item in items]}")

    def _check_whose(self, process: Process, function: str, items: list[Item], part_of: tuple[str, str]) -> None:
        dispatcher = self._dispatcher(process, part_of[0])
        if self.plans_change or dispatcher is None:
            return
        route, place = dispatcher._state.route, table_of(part_of[1])
        own, rule = route.functions[place if place < len(route.functions) else 0], route.rule()
        if function == own:
            return
        if (process.name, own) not in self.last_in_vain:
            self.blame(f"{process.name}: {part_of[1]} is asked of {function}, and {own} never failed")
        most = rule.tables[route.functions.index(function)].max_batch_size
        if len(items) > most:
            self.blame(f"{process.name}: {len(items)} items are asked of {function}, which takes {most}")

    def _elastic(self, process: Process, queue: str) -> bool:
        """Whether the table by which a process serves a queue, or moves who is in it, bounds no servers."""
        if process.followed_at == self.loop.time():
            return True  # it was told to ask before another table came, in the same moment
        dispatcher = self._dispatcher(process, queue)
        return dispatcher is None or dispatcher._state.route.rule().elastic

    @staticmethod
    def _dispatcher(process: Process, queue: str) -> Any:
        """Of the route that a process serves by a queue, while it has it."""
        return process.model._dispatchers.get(queue.removeprefix(MODEL).removeprefix(":"))

    def _at_his_deadline(self, process: Process, request: Request) -> bool:
        """Whether his time was over then; looks come ten times a second, where the process is not stopped."""
        assert request.ended is not None
        waited = request.ended - request.came
        return waited >= self.patience and (waited < self.patience + 0.2 or bool(process.hits))

    def waiting(self) -> list[Request]:
        """Who waits at a process that lives."""
        return [request for request in self.requests if request.ended is None and self.processes[request.process].alive]

    def check_deadlines(self, waiting: list[Request]) -> None:
        """The time of these is over."""
        for request in waiting:
            if request.status != DeadlinePassed.__name__:
                self.blame(f"{request.id} waits for ever")

    def check_drained(self, process: Process, route: str) -> None:
        """A process finds that nobody waits at a retired route any more."""
        name = queue_name(MODEL, route)
        if name not in self.in_words:
            return
        words = self.in_words[name]
        here = {member_id(member) for _, member in words.waiting}
        for batch_id, members in words.in_flight.items():
            requests = {member_id(member) for _, member in members}
            if batch_id[:8] == process.name:
                here |= {request for request in requests if self.batch_of.get(request) == (name, batch_id)}
        here = {request for request in here if self.adopted_by.get(request, process.name) == process.name}  # else that one looks
        waits = {request for request, caller in process.callers.waiting.items() if not caller.answered.done()}
        if left := (here & waits) - self.again:
            self.blame(f"{process.name}: {name} is drained, and {sorted(left)} wait there")

    def allow(self, items: list[Item], status: int) -> None:
        """What happened to these may end so."""
        for item in items:
            self.allowed[item.id].add(status)

    def check_answer(self, request: Request, answer: Answer) -> None:
        """A caller has his answer."""
        if answer.status == 200 and msgspec.json.decode(answer.body) != {"of": request.number}:
            self.blame(f"{request.id} got somebody else's answer: {answer.body!r}")
        if answer.status == 200 and request.kind in ("poison", "huge"):
            self.blame(f"{request.id} is {request.kind} and was answered 200")

    def check_end(self, process: Process, request: Request) -> None:
        """A caller has an answer or an error."""
        status = request.status
        assert request.ended is not None
        routes = process.model.plan.all_routes
        patient = any(each.slack > 0 for each in process.model.plan.classes if request.says in ("", each.name))
        left = patient and status == QueueFull.__name__ and any(self._is_nearly_full(route, process) for route in routes)
        filled = left or (status == QueueFull.__name__ and self.taken_back_at >= request.came)  # a queue, by what came back to it
        if request.fresh and not filled and (status != 200 or request.ended > request.came + SOON):
            self.blame(f"{request.id} came after the faults and ended with {status} after {request.ended - request.came:.3f} s")
        if status == 200 or status in self.allowed[request.id] or left:
            return
        if status in (503, FunctionSuspended.__name__) and self._suspended(request):
            return
        if status == 503 and self._may_lack_a_body(request):
            return
        if status == StoreUnavailable.__name__ and any(hit >= request.came for hit in process.hits):
            return
        if status == Draining.__name__ and process.leaving:
            return
        if status == Overloaded.__name__ and any(
            self._fills_its_servers(route, process) or self._is_throttled(route, process) for route in process.model.plan.all_routes
        ):
            return
        if status == DeadlinePassed.__name__ and self._at_his_deadline(process, request):
            return
        self.blame(f"{request.id} of {process.name} ended with {status}")

    def _may_lack_a_body(self, request: Request) -> bool:
        """Whether who had a request in a batch may have asked for its body in vain: one stood still, or mail was lost or slow."""
        if self.limits.carried:
            return False
        since = request.came - 2 * self.limits.lease
        hit = any(at >= since for process in self.processes.values() for at in process.hits)
        return hit or any(call.by == 0 for call in self.calls)

    def _fills_its_servers(self, route: Route, process: Process) -> bool:
        """Whether a queue has a batch for every server of the table that the process follows, with who came since it was heard of.

        The process goes by what it heard last, perhaps before it was stopped, or before others came or followed another plan; of
        who came since it made up that call, and has gone since, it knows no better than that he may be in the queue.
        """
        rule = route.rule()
        full = sum((table.servers or 0) * table.max_batch_size for table in rule.tables)
        elastic = [function for function, table in zip(route.functions, rule.tables, strict=True) if table.servers is None]
        taken = any((process.name, function) not in {*self.last_in_vain, *self.last_refused} for function in elastic)
        return full > 0 and (self.plans_change or not taken) and self._most_waiting(route, process) >= full

    def _is_nearly_full(self, route: Route, process: Process) -> bool:
        """Whether no more of a queue's places are free than who has a slack above 0 leaves to the others."""
        return self._most_waiting(route, process) >= math.ceil(0.9 * self.limits.max_queue_length)

    def _most_waiting(self, route: Route, process: Process) -> int:
        """How many the process may take to wait at the queue of a route."""
        name = queue_name(MODEL, route.name)
        before, _, heard = self.heard_waiting.get((process.name, name), (0.0, 0.0, 0))
        now = len(self.in_words[name].waiting) if name in self.in_words else 0
        came = {request.id for request in self.requests if request.process == process.name and request.came >= before}
        came |= {request for request, caller in process.callers.waiting.items() if caller.queue == name}
        return max(now, heard) + len(came)

    def _is_throttled(self, route: Route, process: Process) -> bool:
        """Whether an elastic function refused a batch that may still wait, and callers have, or the table gives, little time."""
        if not route.rule().elastic or not (self.patience < 10.0 or self.tables_drop):
            return False
        return self.throttled_at.get(process.name, -math.inf) >= self.loop.time() - min(self.patience, 2.0)

    def check_everybody_was_answered(self) -> None:
        """The run is about to end."""
        for request in self.requests:
            process = self.processes[request.process]
            if request.ended is None and process.alive:
                # Who died while he moved it to where nobody else looks, or before he told that it was given up, took it with him.
                by = {self.adopted_by.get(request.id, request.process), self.given_up_by.get(request.id, request.process)}
                died_with_it = request.id in self.never_told or not all(self.processes[name].alive for name in by)
                if not died_with_it and not (process.leaving and self._held_for_ever(request)):
                    self.blame(f"{request.id} waits since {request.came:.4f} s")

    def _held_for_ever(self, request: Request) -> bool:
        """Whether a table without a time limit waits for more to come than there will: who leaves tells the last plan to none."""
        for words in self.in_words.values():
            if any(member_id(member) == request.id for _, member in words.waiting):
                return words.held_for_ever()
        return False

    def check_what_is_left(self, known: Mapping[str, set[str]], last: Plan) -> None:
        """Every process has closed; ``known`` are those whose leases the store has, by queue.

        Members whom nobody waits for may be left where no process of the last plan looks: who left, or whose process crashed.
        """
        served = {queue_name(MODEL, route.name) for route in last.all_routes}
        dead = {p.name for p in self.processes.values() if not p.alive or (p.leaving and p.let_down)}
        stuck = {request.id for request in self.requests if request.ended is None or request.process in dead}
        ended = {request.id for request in self.requests if request.ended is not None}
        for name, words in self.in_words.items():
            waiting = [member_id(member) for _, member in words.waiting]
            alive = {batch_id: members for batch_id, members in words.in_flight.items() if batch_id[:8] not in dead}
            held = [members for batch_id, members in alive.items() if not self._lost_goodbye(batch_id, members)]
            under_way = [member_id(member) for members in held for _, member in members]
            strangers = {request for request in waiting if request not in self.by_id}
            excused = stuck if name in served else stuck | ended | strangers
            if left := [request for request in waiting + under_way if request not in excused]:
                self.blame(f"{name}: {left} are left")
            if known[name] != set(words.heard):
                self.blame(f"{name}: knows of {known[name]} instead of {set(words.heard)}")
            holding = [p for p in words.heard if not any(hit >= self.heard_at[name, p] for hit in self.processes[p].hits)]
            if holding := [p for p in holding if p not in dead]:  # a goodbye is said once, and may not arrive
                self.blame(f"{name}: {holding} hold their lease")
        for process in self.processes.values():
            if process.alive and set(process.callers.waiting) - stuck:
                self.blame(f"{process.name}: {list(process.callers.waiting)} are in its list of callers")

    def _lost_goodbye(self, batch_id: str, members: list[tuple[float, bytes]]) -> bool:
        """Whether everybody of a batch is answered, and its process may have said so with its goodbye, which is said once."""
        owner = self.processes[batch_id[:8]]
        answered = all(self.by_id[member_id(member)].ended is not None for _, member in members)
        return owner.leaving and bool(owner.hits) and answered


def _answers(items: list[Item], result: bytes | Exception) -> bool:
    """Whether a function answered these items."""
    try:
        return not isinstance(result, Exception) and bool(decode_answers(result, Batch(MODEL, items)))
    except WireError:
        return False


def _shown(events: Events) -> str:
    parts = [f"{len(events.arrivals)} came"] if events.arrivals else []
    parts += [f"completes {list(events.completed)}"] if events.completed else []
    parts += [f"serves {list(events.serving)}"] if events.serving is not None else []
    return ", ".join(parts + ["leaving"] * events.leaving + ["recorded"] * events.recorded) or "looks"


def _shown_outcome(outcome: Outcome) -> str:
    batches = [(batch.batch_id, [member_id(member)[-3:] for member in batch.members]) for batch in outcome.batches]
    counts = f"{outcome.queue_length} wait, dropped {len(outcome.dropped)}, dead {len(outcome.dead)}"
    return f"{batches} {counts}, wake in {outcome.wake_in}"
