"""The batches of a route under way at one process, from their release to their answers.

What may live here: which parts of them are asked for and when, what comes of that, what was measured. What may not: a clock, I/O,
the queue, who else waits there.

    take, fetched               a batch was released to this process; other processes sent the bodies that it was without
    served                      what a function answered to a part of it, or how it failed
    sent, moved                 how a message to another process, and a move to another route, ended
    wake                        the time has come of some whose functions were busy
    look_again                  whoever waits for a busy function need not any more
    hasten                      workers have left the plan, and may be no more

What is to be done goes into the route's ``todo``. A batch that ended is ``completed``, or ``given_up`` for a sweep to take it back;
where the queue that would do that is lost, its members are ``stranded``, and come again.

Guarantees. Answers for callers at other processes are sent before their batch is declared complete; whoever dies in between leaves
a lease that expires, and the batch is served again: a request is computed at least once, and its caller gets exactly one answer,
the first. Members move the same way: their batch is complete when the other queue has taken them.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence

from msgspec import structs

from sluice.batching.documents import WORKER_SCHEMES
from sluice.batching.errors import StoreUnavailable
from sluice.batching.measured import FAILED_FROM, MeasuredBatch
from sluice.batching.urls import without_password
from sluice.buffer_service.batch_record import BROUGHT_AT, BROUGHT_EVERY, BROUGHT_WITHIN, few_latencies
from sluice.buffer_service.batch_state import BatchState, Cause, Failure, Part
from sluice.buffer_service.function_state import FunctionState, Remedy
from sluice.buffer_service.members import Unreadable, decode_member, has_id, is_ticket, member_id, ticket_length
from sluice.buffer_service.route_admission import RouteAdmission
from sluice.buffer_service.route_facts import TOLD, Caller, RouteFacts
from sluice.buffer_service.route_functions import RouteFunctions, Suspension
from sluice.buffer_service.route_instructions import AT_ONCE, NEVER, Fetch, Hasten, Invocation, Message, Move, ToDo
from sluice.buffer_service.store import ID_LENGTH, PROCESS_LENGTH, Released
from sluice.lambda_fn.contract import NOTHING_MEASURED, Answer, Item, Measured, failed

ROUTE_HEADER = "sluice-route"
"""The header of an answer that names the route whose function was asked; a plan without routes has none."""
FUNCTION_HEADER = "sluice-function"
"""The header of an answer that says which function gave it, where there are several: ``0`` the route's own, ``1`` the first beside.

A number, for the addresses of workers are nobody's business who asks, and may be a thousand."""
LEFT_HEADER = "sluice-left"
"""The header, between processes alone, of an answer whose caller waits at another: with how many its request left the queue, and
how many seconds ago."""
OWN_HEADERS = frozenset((ROUTE_HEADER, FUNCTION_HEADER, LEFT_HEADER))
"""Headers of answers that are the buffer's word, and by which it reckons: what a function says in them is passed over."""
DIRECT = "direct"
"""What stands in the id of a batch that no queue knows of, where others have the number of a call."""
RETRY = 0.1  # seconds until a store that was away is asked again
SENDINGS = 10  # times a message is tried whose batch is given up then
BACKOFF, LONGEST_BACKOFF = 0.05, 2.0  # seconds; the n-th wait for a busy function is a random part of BACKOFF * 2**n
MOST_MEASURED = 1000  # batches that wait for a call that brings what was measured of them
PROBES = 50  # batches a second that ask a busy function again before it answered another, about, however many wait for it
OVERDUE, LEAST_OVERDUE = 4.0, 1.0  # times the longest that a part took of late, s: so long who has left the plan is waited for
FORGOTTEN = 0.01  # of the longest, with each part that is answered
YIELDS, YIELD = 8, 0.01  # answers of a busy function, to one of which a batch follows so many seconds later
AT_ONCE_ELASTIC = 2  # parts of a batch that are asked for at once, where servers are not bounded


class RouteBatches:
    """Of the route of ``facts``, whose ``functions`` serve them; what waits for these, its ``admission`` counts."""

    def __init__(self, facts: RouteFacts, functions: RouteFunctions, admission: RouteAdmission, todo: ToDo) -> None:
        self._facts = facts
        self._functions = functions
        self._admission = admission
        self._todo = todo
        self.under_way: dict[str, BatchState] = {}
        self.completed: list[str] = []
        self.vacant: list[str] = []
        """Of those completed, which the queue has not heard of, those in whose place it takes another: of its life."""
        self.given_up: list[str] = []  # that no sweep has taken back yet
        self.stranded: list[str] = []  # requests
        self.ended = False  # whether one is completed that nobody has heeded yet
        self.look_at = NEVER  # when the first of those that rest is
        self._resting: dict[str, float] = {}  # whose function is busy, and when each is looked at again
        self._places = 0  # batches that were answered
        self._directly = 0  # batches that no queue knew of
        self._messages: list[Message] = []  # that are not under way
        self._sending = 0  # those that are
        self._measured: list[MeasuredBatch] = []  # ended, and not brought to the store yet; ended_at by this process's clock
        self._brought_at = AT_ONCE  # when the last were
        self._longest: float | None = None  # s, that a part took of those that were answered, once one was

    # -- what is there

    @property
    def busy(self) -> bool:
        """Whether something is under way that has an end."""
        return bool(self.under_way or self._messages or self._sending)

    @property
    def in_flight(self) -> list[str]:
        """Those under way, as the queue knows them; also those of which it knows nothing, as who has one keeps his lease."""
        return [batch.place or batch_id for batch_id, batch in self.under_way.items()]

    @property
    def requests(self) -> set[str]:
        """Those in batches under way."""
        return {member_id(member) for batch in self.under_way.values() for member in batch.members}

    @property
    def next_look(self) -> float:
        """When a batch that rests, or a message, is due."""
        return min(self.look_at, *(message.due for message in self._messages)) if self._messages else self.look_at

    # -- facts

    def take(self, now: float, batch: Released) -> None:
        """A batch that the queue released to this process; another may have moved its members here, and told nobody."""
        name, size = self._facts.name, len(batch.members)
        callers = list(map(self._facts.waiting.get, [member[:ID_LENGTH].decode("latin-1") for member in batch.members]))
        for caller in callers:
            if caller is not None and caller.queue != TOLD:
                caller.queue, caller.taken, caller.batch_size = name, now, size
        state = BatchState(batch.members, [], self._facts.epoch, now, 0 if self._facts.retired else batch.table)
        state.place = batch.batch_id
        if self._facts.retired:
            state.moving = self._facts.all_wanted(batch.members)
        else:
            items = [caller.item for caller in callers if caller is not None]
            if len(items) == size:  # all callers are here, as where there is one process: no member is read
                state.parts = self._functions.of_table(batch.table).parts(now, items)
            elif (fetch := self._to_fetch(batch)).requests:
                state.fetched = True
                self.under_way[batch.batch_id] = state
                self._todo.fetch.append(fetch)
                return
            else:
                self._divide(now, state, {})
        self.under_way[batch.batch_id] = state
        self._go_on(now, batch.batch_id, state)

    def take_directly(self, now: float, callers: Sequence[Caller], takes_place: bool = False) -> None:
        """Callers here left as a batch that no queue knows of, or that is in flight there as a ``vacant`` one."""
        self._directly += 1
        place = self.vacant.pop() if takes_place else ""
        if place:
            self.completed.remove(place)
        batch_id = f"{self._facts.process}:{DIRECT}:{self._directly}"
        for caller in callers:
            caller.taken, caller.batch_size = now, len(callers)
        state = BatchState([caller.item.id.encode() for caller in callers], [], self._facts.epoch if place else None, now)
        state.direct, state.place = True, place
        state.parts = self._functions.of_table(0).parts(now, [caller.item for caller in callers])
        self.under_way[batch_id] = state
        self._go_on(now, batch_id, state)

    def _to_fetch(self, batch: Released) -> Fetch:
        """What other processes must be asked for."""
        fetch = Fetch(batch.batch_id, {}, 0)
        for member in batch.members:
            if is_ticket(member) and (process := member_id(member)[:PROCESS_LENGTH]) != self._facts.process:
                try:
                    fetch = fetch._replace(bytes=fetch.bytes + ticket_length(member))
                except Unreadable:
                    continue  # it will be told what it is
                fetch.requests.setdefault(process, []).append(member_id(member))
        return fetch

    def fetched(self, now: float, batch_id: str, found: Mapping[str, Item | None], why_not: str = "") -> None:
        """What other processes had of a batch; ``None`` of who has gone. ``why_not`` there is nothing of the others."""
        batch = self.under_way[batch_id]
        if self._facts.retired:
            batch.moving = self._facts.all_wanted(batch.members)
        else:
            self._divide(now, batch, found, why_not)
        self._go_on(now, batch_id, batch)

    def _divide(self, now: float, batch: BatchState, found: Mapping[str, Item | None], why_not: str = "") -> None:
        """The parts of a batch that are to be asked for, and the answers to those of it that cannot be."""
        items, batch.answers = self._items(batch.members, found, why_not)
        batch.parts = self._functions.of_table(batch.table).parts(now, items)

    def _items(self, members: list[bytes], found: Mapping[str, Item | None], why_not: str) -> tuple[list[Item], list[Answer]]:
        """The requests among ``members`` that somebody waits for, and the answers to those that cannot be read but named."""
        items, unreadable = [], []
        for member in members:
            request_id = member_id(member)
            if (caller := self._facts.waiting.get(request_id)) is not None:
                items.append(caller.item)
            elif (item := found.get(request_id)) is not None:
                items.append(item)
            elif self._facts.wanted(request_id) and request_id not in found:
                try:
                    if is_ticket(member) and ticket_length(member) >= 0:
                        unreadable += failures([member], 503, "Service unavailable", why_not)
                        continue
                    items.append(decode_member(member))
                except Unreadable as error:
                    self._todo.unreadable.append(str(error))
                    unreadable += failures([member], 502, "Not readable", str(error))
        return items, unreadable

    def served(
        self,
        now: float,
        batch_id: str,
        answers: list[Answer] | Failure,
        part: int | None = None,
        told: Measured = NOTHING_MEASURED,
    ) -> None:
        """The function answered a part of a batch, in its order, and ``told`` this of itself; or it failed.

        Without ``part``, the only one under way.
        """
        batch = self.under_way[batch_id]
        ended = batch.ended(part)
        batch.measured.ended(ended.function, now - ended.asked_at, told)
        if ended.elastic:
            self._admission.ended(len(ended.items))
        function = self._functions.of(ended, batch.table)
        function.under_way -= function.under_way > 0 and ended.function == function.function
        in_force = ended.function == function.function
        failure = answers if isinstance(answers, Failure) else None
        if isinstance(answers, Failure):
            self._part_failed(now, batch, ended, answers, function)
        else:
            self._longest = max(now - ended.asked_at, (1 - FORGOTTEN) * (self._longest or 0.0))
            function.answered(now, ended)
            answers = without_own_headers(answers)
            signed = in_force and self._functions.several
            batch.answered(with_header(answers, FUNCTION_HEADER, str(self._functions.place(function))) if signed else answers)
        bounded = not self._functions.of_table(batch.table).elastic
        if bounded and not batch.parts and not batch.asked:
            self._admission.served(now - batch.taken_at, self._wasted(batch))
        self._go_on(now, batch_id, batch)
        if in_force and failure is None:
            self._ask_for_the_oldest(now, function)
        if in_force and function.elastic:
            self._admission.heard_of_elastic(now, ended, failure)

    # -- what is asked for

    def _go_on(self, now: float, batch_id: str, batch: BatchState) -> None:
        """Ask for the next parts of a batch, or hand out what came of all of them."""
        if self._facts.retired and any(part.refused for part in batch.parts):
            for left in batch.parts:
                self._move_on(batch, left)
            batch.parts.clear()
        while (part := batch.next_part(now, self._facts.wanted, self._at_once(now, batch))) is not None:
            self._ask(now, batch_id, batch, part)
        if batch.asked:
            if self._facts.retired:  # which follows no plan any more: nobody else tells of its further parts
                self.hasten()
            return
        if batch.parts:
            self._rest_until(batch_id, min(batch.parts[-1].due, now + LONGEST_BACKOFF))  # who waits may be gone before it is due
            if batch.parts[-1].busy and not self._admission.is_left(now - batch.taken_at):
                batch.put_off = sum(len(part.items) for part in batch.parts)
                self._admission.put_off(batch.put_off)
            return
        answers = batch.answers
        batch.answers, elsewhere = self._facts.at_hand(self._named(batch.answers))
        if self._facts.limits.batches_kept:
            waiting = self._facts.waiting
            latencies = [now - waiting[answer.id].came for answer in batch.answers if answer.status < FAILED_FROM]
            batch.measured.answered([answer.status for answer in answers], latencies)
        as_told = f"{len(batch.members)} {now - batch.taken_at:.6f}"
        self._messages += [
            Message(process, with_header(theirs, LEFT_HEADER, as_told), batch_id) for process, theirs in elsewhere.items()
        ]
        if batch.moving:
            self._todo.move.append(Move(batch_id, batch.moving))
        batch.outstanding = len(elsewhere) + bool(batch.moving)
        if not batch.outstanding:
            self._end(now, batch_id, batch)

    def _at_once(self, now: float, batch: BatchState) -> int:
        """How many parts of a batch may be under way with the next: of its function's, and all of others'."""
        if not batch.parts:
            return 0
        function = self._functions.asked(now, batch.parts[-1], batch.table)
        others = 0
        if batch.asked:
            others = sum(part.function in self._functions and part.function != function.function for part in batch.asked.values())
        return others + (AT_ONCE_ELASTIC if function.elastic and not function.circuit.open else 1)

    def _ask(self, now: float, batch_id: str, batch: BatchState, part: Part) -> None:
        """Ask for a part: its function, or another while that is not asked; one item is the trial of one that only failed."""
        function = self._functions.asked(now, part, batch.table)
        if function.circuit.open and (wait := function.circuit.refuses(now)) is not None:
            suspension = self._functions.suspension(now) or Suspension(function.function, wait)
            self._refuse_for_now(batch, part.items, suspension.wait, suspended(suspension))
            return
        if function is not self._functions.of(part, batch.table):
            part = self._functions.given(part, function)
        if function is not self._functions.of_table(batch.table):
            part = batch.set_apart(part, function.circuit.max_batch_size)
        circuit = function.circuit
        if circuit.open:
            part = batch.set_apart(part, 1)
            circuit.try_one()
        part.trial = circuit.open
        again = part.failed is not None or part.refused > 0 or batch.split or bool(part.tried)
        avoid = part.failed.worker if part.failed is not None else ""
        number = batch.ask(now, part, function.function, function.elastic)
        function.under_way += 1
        if function.elastic:
            self._admission.asked(len(part.items))
        self._todo.invoke.append(Invocation(batch_id, function.function, self._facts.asked_for, part.items, number, again, avoid))

    def _part_failed(self, now: float, batch: BatchState, part: Part, failure: Failure, function: FunctionState) -> None:
        cause = failure.cause
        unanswered = cause in (Cause.UNAVAILABLE, Cause.BUSY, Cause.CRASHED)
        function.undecided(part)
        if unanswered and self._facts.retired:
            self._move_on(batch, part)
        elif unanswered and part.function != function.function:
            batch.parts.append(Part(part.items))  # the function may have gone with its plan: the new one is asked
        elif cause is Cause.DEFECT:
            batch.refuse(part.items, 500, "Internal error", failure.detail)
            batch.refuse_rest(500, "Internal error", failure.detail)
        else:
            self._help(now, batch, part, failure, function)

    def _help(self, now: float, batch: BatchState, part: Part, failure: Failure, function: FunctionState) -> None:
        remedy, failure = function.remedy(now, batch, part, failure)
        part.failed = failure if remedy is Remedy.ELSEWHERE else None
        if remedy is Remedy.ELSEWHERE:
            batch.parts.append(part)
        elif failure.cause is Cause.UNAVAILABLE and (other := self._functions.in_place_of(now, function, part)) is not None:
            part.tried += (function.function,)
            batch.parts.append(self._functions.given(part, other))
        elif remedy is Remedy.LATER:
            self._rest(now, batch, part, failure)
        elif failure.cause is Cause.UNAVAILABLE and (first := self._functions.about_to_be_back(now, part)) is not None:
            self._rest(now, batch, self._functions.given(part, first), failure)
        elif remedy is Remedy.HALVES:
            batch.halve(part)
        else:
            self._fail(now, batch, part, failure, function)

    def _fail(self, now: float, batch: BatchState, part: Part, failure: Failure, function: FunctionState) -> None:
        """The items of a part fail; where it cannot be they who are to blame, so does the rest of the batch."""
        cause, detail, *_ = failure
        self._todo.log.append((logging.WARNING, f"{self._facts.name}: {len(part.items)} items failed: {detail}"))
        batch.refuse(part.items, *((413, "Content too large") if cause is Cause.TOO_LARGE else (502, "Function failed")), detail)
        if len(part.items) > 1 or cause not in (Cause.CRASHED, Cause.FAILED):
            return
        function.failed_alone(now, batch, part)
        if batch.hopeless:
            batch.refuse_rest(502, "Function failed", f"{detail}; it fails whatever it is asked, and was not asked for this item")

    def _rest(self, now: float, batch: BatchState, part: Part, failure: Failure) -> None:
        """The function is busy: ask for the part later, with full jitter; whose time is over before is told now."""
        longest = self._admission.backoff(BACKOFF)
        span = min(LONGEST_BACKOFF, BACKOFF * 2 ** min(part.refused, 10), longest)
        age = now - batch.taken_at
        if self._admission.is_left(age):
            span = max(span, age)  # what callers at other processes have left is not known here, and would be computed for nobody
        part.earliest = now + failure.retry_after
        part.due = part.earliest + failure.chance * span
        late = [item for item in part.items if self._deadline(batch, item) <= part.due]
        self._refuse_for_now(batch, late, part.due - now, failure.detail)
        part.items = [item for item in part.items if item not in late] if late else part.items
        part.refused += 1
        part.busy = failure.cause is Cause.BUSY
        part.tried = ()  # until then another may be back
        if part.items:
            in_turn = min(2 * len(self._resting) / PROBES, longest)  # of which a half is waited in the mean
            over = min(self._deadline(batch, item) for item in part.items)
            part.due = max(part.due, min(now + failure.chance * in_turn, over - LONGEST_BACKOFF))
            batch.parts.append(part)

    def _deadline(self, batch: BatchState, item: Item) -> float:
        """When it is too late for an item to be asked for; when another process's callers came is not known here."""
        caller = self._facts.waiting.get(item.id)
        return (caller.came if caller is not None else batch.taken_at) + self._facts.longest_wait()

    def _refuse_for_now(self, batch: BatchState, items: list[Item], wait: float, detail: str) -> None:
        """These items are not asked for, and may come again after ``wait`` seconds."""
        if self._facts.retired:
            self._move_on(batch, Part(items))
        elif items:
            batch.refuse(items, 503, "Service unavailable", detail, {"retry-after": str(max(1, math.ceil(wait)))})

    def _move_on(self, batch: BatchState, part: Part) -> None:
        """Other routes get the items of a part."""
        wanted = [item.id for item in part.items if self._facts.wanted(item.id)]
        if batch.direct:  # whose callers are here
            batch.moving += [self._facts.encoded(self._facts.waiting[request_id]) for request_id in wanted]
            return
        members = {member_id(member): member for member in batch.members}  # with what was told
        batch.moving += [members[request_id] for request_id in wanted]

    # -- batches whose functions are busy

    def wake(self, now: float) -> None:
        """Go on with the batches that are to be looked at."""
        looked_at = [batch_id for batch_id, due in self._resting.items() if due <= now]
        for batch_id in looked_at:
            del self._resting[batch_id]
        self.look_at = min(self._resting.values(), default=NEVER)
        for batch_id in looked_at:
            batch = self.under_way[batch_id]
            self._put_off_no_more(batch)
            self._go_on(now, batch_id, batch)
        self._admission.looked_at(now)

    def _ask_for_the_oldest(self, now: float, function: FunctionState) -> None:
        """A function has answered, and takes one more: the batch that left the queue first is asked for before its time.

        What nobody waits for any more ends now, and takes nobody's turn; what callers are about to leave is the last. Other
        processes see nothing of the answer: now and then they have some time to come first.
        """
        self._places += 1
        first: tuple[bool, float, str] | None = None
        for batch_id in self._resting:
            batch = self.under_way[batch_id]
            part = batch.parts[-1]
            if part.earliest > now or self._functions.of(part, batch.table) is not function:
                continue
            if not any(self._facts.wanted(item.id) for item in part.items):
                self._rest_until(batch_id, now)
                continue
            is_left = self._admission.is_left(now - batch.taken_at)
            if is_left:
                self._put_off_no_more(batch)
            if first is None or (is_left, batch.taken_at) < first[:2]:
                first = is_left, batch.taken_at, batch_id
        if first is not None:
            part = self.under_way[first[2]].parts[-1]
            part.due = min(part.due, now + (YIELD if self._places % YIELDS == 0 else 0.0))
            self._rest_until(first[2], min(part.due, self._resting[first[2]]))

    def _rest_until(self, batch_id: str, when: float) -> None:
        self._resting[batch_id] = when
        self.look_at = min(self.look_at, when)

    def _put_off_no_more(self, batch: BatchState) -> None:
        self._admission.put_off_no_more(batch.put_off)
        batch.put_off = 0

    def look_again(self, now: float) -> None:
        """Whoever waits for a busy function need not any more."""
        for batch_id, batch in self.under_way.items():
            for part in batch.parts:
                part.due = now  # also beside one that is asked for, which is waited for first
            if batch_id in self._resting:
                self._rest_until(batch_id, now)

    # -- those whose workers have left the plan

    def hasten(self) -> None:
        """Parts at workers that the plan has no more are given up when they are overdue, for others to be asked.

        Who has left may hang, or be no more, and his batch is at one of the servers of the others all the while. How long a part
        takes is known once one was answered; before, the time of an invocation bounds it.
        """
        if self._longest is None:
            return
        within = max(LEAST_OVERDUE, OVERDUE * self._longest)
        for batch_id, batch in self.under_way.items():
            for number, part in batch.asked.items():
                if part.elastic or not part.function.startswith(WORKER_SCHEMES):
                    continue
                left = self._facts.retired or not self._functions.have_workers_of(part.function)
                until = part.asked_at + within if left else NEVER
                if until != part.until:
                    part.until = until
                    self._todo.hasten.append(Hasten(batch_id, number, until))

    # -- their ends

    def sent(self, now: float, message: Message, error: StoreUnavailable | None = None) -> None:
        """A message is in the other process's list, or the store was away; it is tried ``_sendings`` times."""
        self._sending -= 1
        if error is not None and message.tried + 1 < self._sendings(message):
            self._messages.append(message._replace(due=now + RETRY, tried=message.tried + 1))
            return
        if error is not None:
            self._todo.log.append((logging.ERROR, f"{self._facts.name}: {error}"))
        if message.batch_id:
            self._settle(now, message.batch_id, error)

    def _sendings(self, message: Message) -> float:
        """How often a message is tried: where no batch brings its answers again, as long as callers wait; but not by who ends."""
        return SENDINGS if message.batch_id or self._facts.ending else max(SENDINGS, self._facts.patience / RETRY)

    def moved(self, now: float, move: Move, error: StoreUnavailable | None = None) -> None:
        """Other routes have taken these members, or could not."""
        if error is not None:
            self._todo.log.append((logging.ERROR, f"{self._facts.name}: {error}"))
        self._settle(now, move.batch_id, error)

    def _settle(self, now: float, batch_id: str, error: StoreUnavailable | None) -> None:
        """One message or move of a batch ended."""
        batch = self.under_way[batch_id]
        batch.outstanding -= 1
        batch.given_up += error is not None
        if not batch.outstanding:
            self._end(now, batch_id, batch)

    def _end(self, now: float, batch_id: str, batch: BatchState) -> None:
        """A batch is complete, or given up; either way its callers here have their answers."""
        del self.under_way[batch_id]
        if batch.times_asked or batch.fetched:
            self._todo.ended.append(batch_id)
        if not batch.given_up:
            if batch.times_asked and self._facts.limits.batches_kept:
                self._measure(now, batch)
            self._leave_place(batch)
        elif batch.epoch == self._facts.epoch and not batch.direct:
            self.given_up.append(batch_id)
        else:  # the queue that would take it back is lost, or never had it
            self.stranded += map(member_id, batch.members)
            if batch.direct and batch.place:
                self._leave_place(batch)
        self._todo.tell += batch.answers

    def _leave_place(self, batch: BatchState) -> None:
        if batch.place:
            self.completed.append(batch.place)
            if batch.epoch == self._facts.epoch:
                self.vacant.append(batch.place)
        self.ended = True

    def told_completed(self) -> list[str]:
        """Those that a call tells of, in whose places nobody is any more."""
        completed, self.completed, self.vacant = self.completed, [], []
        return completed

    def _measure(self, now: float, batch: BatchState) -> None:
        """Keep what was measured of a batch for a call that brings it; where none comes for long, the newest."""
        found, size = batch.measured, len(batch.members)
        service, billed = (math.nan if told is None else told for told in (found.service, found.billed))
        latencies = few_latencies(found.latencies)
        names = self._facts.route.name, batch.table, found.function, self._facts.digest
        times = found.seconds, service, billed, found.cold
        self._measured.append(MeasuredBatch(now, *names, size, *times, found.failed, latencies, found.rejected))
        if len(self._measured) > MOST_MEASURED:
            del self._measured[0]

    def _wasted(self, batch: BatchState) -> float:
        """The part of a batch's callers here who wait no more."""
        here = [request for request in map(member_id, batch.members) if request[:PROCESS_LENGTH] == self._facts.process]
        return sum(not self._facts.wanted(request) for request in here) / max(1, len(here))

    def at_most(self, now: float) -> Sequence[tuple[int, int]]:
        """How many batches this process takes from tables whose functions take no more now."""
        if not self._functions.several or self._facts.retired:
            return ()
        resting = (self.under_way[batch_id] for batch_id in self._resting)
        waited_for = {self._functions.of(part, batch.table).function for batch in resting for part in batch.parts[-1:]}
        return self._functions.at_most(now, waited_for)

    @property
    def brings_at(self) -> float:
        """When a call is due that brings what was measured, whatever else there is to ask for."""
        return self._measured[0].ended_at + BROUGHT_WITHIN if self._measured else NEVER

    def brought(self, now: float, goodbye: bool) -> list[MeasuredBatch]:
        """What was measured that the call at ``now`` brings; ``ended_at`` counts from it."""
        due = goodbye or now >= self._brought_at + BROUGHT_EVERY or len(self._measured) >= BROUGHT_AT
        if not (due and self._measured):
            return []
        brought, self._measured, self._brought_at = self._measured, [], now
        return [batch._replace(ended_at=batch.ended_at - now) for batch in brought]

    # -- answers

    def _named(self, answers: list[Answer]) -> list[Answer]:
        """The answers with the name of their route, if it has one."""
        if not self._facts.route.name:
            return answers
        return with_header(answers, ROUTE_HEADER, self._facts.route.name)

    def hand_out(self, answers: list[Answer]) -> None:
        """Answers that complete no batch."""
        here, elsewhere = self._facts.at_hand(answers)
        self._todo.tell += here
        self._messages += [Message(process, theirs, "") for process, theirs in elsewhere.items()]

    def due_messages(self, now: float) -> Sequence[Message]:
        """Those that are due are under way from here on."""
        if not self._messages:
            return ()
        due = [message for message in self._messages if message.due <= now]
        self._messages = [message for message in self._messages if message.due > now]
        self._sending += len(due)
        return due


def suspended(suspension: Suspension) -> str:
    """What is said of a function that is not asked."""
    shown = without_password(suspension.function)
    return f"function {shown!r} failed again and again, and is asked again in {suspension.wait:.1f} s"


def with_header(answers: list[Answer], name: str, value: str) -> list[Answer]:
    """The answers with one more header."""
    return [structs.replace(answer, headers=answer.headers | {name: value}) for answer in answers]


def without_own_headers(answers: list[Answer]) -> list[Answer]:
    """The answers without headers that functions do not set."""
    if not any([answer.headers for answer in answers]):
        return answers  # as most are
    return [
        structs.replace(answer, headers={name: told for name, told in answer.headers.items() if name.lower() not in OWN_HEADERS})
        for answer in answers
    ]


def failures(members: list[bytes], status: int, title: str, detail: str) -> list[Answer]:
    """The same answer for all of these that can be named."""
    return [failed(member_id(member), status, title, detail) for member in members if has_id(member)]
