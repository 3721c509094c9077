"""The state of one route of a model on one process: facts in, instructions out.

What may live here: what this process knows of the route's queue, of its batches under way and of who waits, and every decision
about them but those about batching, which the queue's rule makes. What may not: a clock, I/O, a task, a random source. Every fact
comes with ``now``, seconds on the one clock of the process; facts only note what happened, and ``turn(now)`` says once for all of
them what is to be done. The same facts give the same instructions.

    came, gone, adopt             requests of callers here; callers who wait no more; members that another route gives up
    called                        what the queue answered to the call that was asked for, or how it failed
    fetched                       the bodies of a batch that other processes were asked for
    served                        what the function answered to a batch, or how it failed
    sent, moved                   how a message to another process, and a move to another route, ended
    follow, retire, leave         the plan has another table or function; has this route no more; the process ends

The life of a route is the table of ``route_life.py``. That nobody waits, and that goodbye was said, are facts that the state finds
itself: the first when the queue is empty, no caller here is at it, and nothing of it is under way here; the second when a call that
names no batch was answered, or failed, while leaving. Who leaves does not count on others to serve his callers, as they may follow
another plan already: he takes batches as before until none of his callers is at the queue, none after that, and says goodbye when
those under way have ended.

Asking the queue. One call is under way at a time; what happens meanwhile is collected for the next, so that the cost of a call is
shared by all requests that came meanwhile. A call is due at the first of: a fact that it would bring, the wake time that the queue
named, the next sweep. There are three sweeps in a lease where a batch is under way or somebody waits, else one when the turn of
the queue comes among all of the process (``idle_rounds.py``); one that comes more than a lease after the last is followed by
another, as only then the queue takes this process's judgement. After a failed call it is due at once where somebody waits for the
answer, else after ``RETRY``; and it sweeps, since batches may have been released to an answer that got lost.

Who may wait. A request is refused before it comes where it would wait for too long (``route_admission.py``). A caller who waits no
more leaves the queue with the next call, and is in no batch after that.

Several functions. A batch is for the function whose table released it; who is asked in its place, and from which tables nothing is
taken meanwhile, ``route_functions.py`` says.

Who is brought. His hold runs from when he came, so a call for each would be for nothing where nothing could leave the queue with
him. Where one table rules, as far as is known here:

    all servers have batches of this process      he is brought by the call that ends one, or ``FRESH`` after the last answer
    with him a batch is due, or he has a slack    at once
    another came within ``GATHERED`` before him   with those: when a batch is due, ``GATHERED`` after the first of them at most
    nobody did                                    at once

A batch that ended is reported at once where its server is waited for, and of an elastic function with the next call, within
``FRESH``. What others bring meanwhile is not known here: a batch that is full with it leaves that much later.

Ties. A table that comes while another is being installed is installed by the next call. Of members to adopt and new requests, the
former are called first, as many as one call carries. Completions and arrivals go in one call. Callers here are told without waiting
for the call that completes their batch: they would end with this process, and nobody else's answer hangs on it.

Guarantees. Answers for callers at other processes are sent before their batch is declared complete; whoever dies in between leaves
a lease that expires, and the batch is served again: a request is computed at least once, and its caller gets exactly one answer,
the first. Members move the same way: their batch is complete when the other queue has taken them.
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from msgspec import structs

from sluice.batching import Policy
from sluice.batching.documents import Route
from sluice.batching.errors import DispatchFailed, Draining, FunctionSuspended, QueueFull, StoreUnavailable
from sluice.batching.measured import MeasuredBatch
from sluice.batching.policy import greedy
from sluice.batching.urls import without_password
from sluice.buffer_service.admission import FRESH
from sluice.buffer_service.batch_record import BROUGHT_AT, BROUGHT_EVERY, few_latencies
from sluice.buffer_service.batch_state import BatchState, Cause, Failure, Part
from sluice.buffer_service.circuit import FIRST_OPEN
from sluice.buffer_service.function_state import FunctionState, Remedy
from sluice.buffer_service.idle_rounds import IdleRounds
from sluice.buffer_service.members import (
    Unreadable,
    decode_member,
    encode_member,
    encode_ticket,
    has_id,
    is_ticket,
    member_id,
    member_sizes,
    member_slack,
    ticket_length,
    unnamed,
)
from sluice.buffer_service.route_admission import RouteAdmission
from sluice.buffer_service.route_functions import RouteFunctions, Standing, Suspension
from sluice.buffer_service.route_instructions import (
    AT_ONCE,
    NEVER,
    Adopted,
    Adoption,
    Call,
    Fetch,
    Instructions,
    Invocation,
    Message,
    Move,
    Refusal,
)
from sluice.buffer_service.route_life import ENDING, LIVES, RETIRED, Fact, Life
from sluice.buffer_service.slack_line import SlackLine
from sluice.buffer_service.store import ID_LENGTH, PROCESS_LENGTH, Events, Limits, Outcome, QueueLost, Released, queue_name
from sluice.buffer_service.told import NOTHING_TOLD, Told
from sluice.lambda_fn.contract import NOTHING_MEASURED, Answer, Item, Measured, failed

ROUTE_HEADER = "sluice-route"
"""The header of an answer that names the route whose function was asked; a plan without routes has none."""
FUNCTION_HEADER = "sluice-function"
"""The header of an answer that says which function gave it, where there are several: ``0`` the route's own, ``1`` the first beside.

A number, for the addresses of workers are nobody's business who asks, and may be a thousand."""
LEFT_HEADER = "sluice-left"
"""The header, between processes alone, of an answer whose caller waits at another: with how many its request left the queue, and
how many seconds ago."""
RETRY = 0.1  # seconds until a store that was away is asked again
SENDINGS = 10  # times a message is tried whose batch is given up then
GONE_BYTES = 8 * 1024 * 1024  # that members may have which are yet to be taken out of the queue
MOST_GONE = 128  # members that one call takes out of the queue at most, each by a look at all that wait
LARGEST_CALL = 512  # arrivals, new or moved, that one call carries at most: bounds the time a script holds the server
PATIENT = 0.9  # of a queue's places, that requests with a slack above 0 may take
SWEEPS = 3  # in a lease
GATHERED = 0.001  # seconds in which those who come one soon after the other are brought by one call
BACKOFF, LONGEST_BACKOFF = 0.05, 2.0  # seconds; the n-th wait for a busy function is a random part of BACKOFF * 2**n
MOST_MEASURED = 1000  # batches that wait for a call that brings what was measured of them
PROBES = 50  # batches a second that ask a busy function again before it answered another, about, however many wait for it
YIELDS, YIELD = 8, 0.01  # answers of a busy function, to one of which a batch follows so many seconds later
AT_ONCE_ELASTIC = 2  # parts of a batch that are asked for at once, where servers are not bounded
SHUT = Draining("this process is shutting down, and takes no more requests")
TOLD = ""
"""The queue of a caller whose answer is at hand; no queue has this name."""


@dataclass(slots=True)
class Caller:
    """Who waits at this process for an answer to ``item``, of which he ``told`` this; ``queue`` is where, ``came`` is when (s).

    ``taken`` (s) is when his request left the queue last in a batch of this process, or ``inf``; ``batch_size`` is that of it.
    ``has_ticket``: the queue has a ticket in the place of his request.
    """

    queue: str
    item: Item
    came: float
    told: Told = NOTHING_TOLD
    taken: float = math.inf
    batch_size: int = 0
    has_ticket: bool = False


@dataclass(slots=True)
class _Asked:
    """The call under way: what it brought, to be brought again where that is needed."""

    install: Policy | None
    arrivals: list[tuple[float, bytes]]
    patient: int  # arrivals with a slack above 0
    gone: list[bytes]
    completed: list[str]
    adoptions: list[Adoption]
    swept: list[str] | None  # batches given up that this call's sweep takes back; None: it is no sweep
    goodbye: bool
    refused: int


class RouteState:
    """One route of ``model`` on ``process``.

    ``waiting`` are the callers here, at whatever queue, by request id; who is answered, refused or gone leaves it.
    ``patience`` (s) is how long a caller waits for his answer, ``slo`` (s) what the plan promises him;
    ``digest`` is the plan's. All routes of a process share its ``rounds``.
    """

    def __init__(
        self,
        model: str,
        route: Route,
        limits: Limits,
        process: str,
        waiting: Mapping[str, Caller],
        patience: float,
        slo: float | None = None,
        digest: str = "",
        rounds: IdleRounds | None = None,
    ) -> None:
        self.name = queue_name(model, route.name)
        self.life = Life.SERVING
        self._model = model
        self._route = route
        self._limits = limits
        self._process = process
        self._waiting = waiting
        self._patience = patience
        self._rule = route.rule()
        self._alone = _alone(self._rule)
        self._to_install: Policy | None = self._table()
        self._slo = slo
        self._digest = digest
        self._measured: list[MeasuredBatch] = []  # ended, and not brought to the store yet; ended_at by this process's clock
        self._brought_at = AT_ONCE  # when the last were
        self._functions = RouteFunctions(route.functions, self._rule)
        self._admission = RouteAdmission(model, self._functions, self._rule, patience, slo)
        self._next_trial = -math.inf  # not before then the next request for functions that are not asked
        self._arrivals: list[tuple[float, bytes]] = []  # when each came, and the member
        self._came_at = -math.inf  # when the last did
        self._all_lend = False  # every process that was heard of lately reads tickets; a ticket is written where it does
        self._patient = 0  # of these, those with a slack above 0
        self._sizes_told = self._slacks_told = False  # whether one ever told its size, or had a slack
        self._slack_line = SlackLine(limits.max_queue_length)
        self._refused = 0  # requests since the last call
        self._gone: list[bytes] = []  # members whose callers wait no more
        self._gone_bytes = 0
        self._adoptions: list[Adoption] = []
        self._completed: list[str] = []
        self._batches: dict[str, BatchState] = {}  # under way
        self._resting: dict[str, float] = {}  # batches whose function is busy, and when each is looked at again
        self._ended: list[str] = []
        self._look_at = NEVER  # the earliest of these times
        self._places = 0  # batches that were answered
        self._given_up: list[str] = []  # batches that no sweep has taken back yet
        self._messages: list[Message] = []  # of these, those that are not under way
        self._sending = 0
        self._asked: _Asked | None = None
        self._epoch: str | None = None
        self._failures = 0  # calls that failed, since the last that did not
        self._ask_at = AT_ONCE
        self._sweep_at = AT_ONCE  # from when on a call is a sweep; the first announces this process
        self._swept_at = AT_ONCE
        self._rounds = rounds if rounds is not None else IdleRounds()
        self._turn_comes_at = AT_ONCE  # of an idle queue
        self._sweeps_on = False  # whether the next sweep is due as soon as it may be, as the last came late
        self._queue_length: int | None = None
        self._waited = self._behind = 0  # what the queue said last
        self._hold_began = -math.inf  # of who is to leave it next, as far as is known
        self._answered_at = AT_ONCE  # when that was
        self._clear()

    # -- facts

    @property
    def asking(self) -> bool:
        """Whether a call to the queue is under way; what comes meanwhile waits for its answer, and needs no turn."""
        return self._asked is not None

    @property
    def route(self) -> Route:
        """The route as the plan in force has it, or had it when it was retired."""
        return self._route

    @property
    def bounded(self) -> bool:
        """Whether a function takes so many batches at once and no more, so that the queue waits for each that ends."""
        return any(table.servers is not None for table in self._rule.tables)

    def standings(self, now: float) -> list[Standing]:
        """How each function of the route stands."""
        return self._functions.standings(now)

    @property
    def asked_for(self) -> str:
        """The model as the function knows it."""
        return self._route.variant or self._model

    def came(self, now: float, item: Item, told: Told = NOTHING_TOLD) -> None:
        """A request of a caller here, who was not refused, with what he told of it."""
        large = len(item.body) > self._limits.carried  # else it has no ticket, whatever others read
        if large and (caller := self._waiting.get(item.id)) is not None:
            self._arrivals.append((now, self._encoded(caller)))
        else:
            self._arrivals.append((now, encode_member(item, told)))
        if told is not NOTHING_TOLD:
            if told.slack:
                self._slacks_told = True
            if told.slack > 0:
                self._patient += 1
                self._slack_line.came(now, told.slack)
            if told.size is not None:
                self._sizes_told = True
        if self._asked is None and self._ask_at != AT_ONCE:
            self._ask_at = min(self._ask_at, self._brings_at(now - self._came_at > GATHERED))
        self._came_at = now

    def _brings_at(self, comes_alone: bool = False) -> float:
        """When those who came are to be brought, of whom the last ``comes_alone`` or soon after another."""
        table, arrivals = self._alone, self._arrivals
        if table is None or self.life is not Life.SERVING:
            return AT_ONCE
        if table.servers is not None and len(self._batches) >= table.servers:
            return self._answered_at + FRESH
        if comes_alone or self._slacks_told:
            return AT_ONCE
        hold, first_came = table.hold[table.row(self._waited + len(arrivals))], arrivals[0][0]
        latest = first_came + GATHERED
        return latest if hold == math.inf else min(latest, (self._hold_began if self._waited else first_came) + hold)

    def _encoded(self, caller: Caller) -> bytes:
        """The member that a request comes as: a large body stays here, where all can ask for it."""
        caller.has_ticket = self._all_lend and len(caller.item.body) > self._limits.carried
        return _member(caller)

    def takes_share(self, now: float) -> bool:
        """Whether a request that is dealt to the route goes there: a function is asked, or this is the trial of one that is not."""
        if not self._functions.all_open:
            return True
        if now < self._next_trial or self._functions.suspension(now) is not None:
            return False
        self._next_trial = now + FIRST_OPEN
        return True

    def refuses(self, now: float, slack: float = 0.0) -> DispatchFailed | None:
        """Why a request that came now must not wait here, or ``None`` where it may; a turn may then be due, to ask the queue.

        With a ``slack`` (s) above 0 it stands behind all but those with a longer one, and leaves places of the queue to others;
        else behind those who have none, or are as urgent.
        """
        if self.life is Life.CLOSED:
            return SHUT
        if (suspension := self._functions.suspension(now)) is not None:
            return FunctionSuspended(_suspended(suspension), suspension.wait)
        if slack <= 0 and self._admission.refuses_nobody:
            return None
        coming = len(self._arrivals) - (self._patient if slack <= 0 else 0)
        if (asked := self._asked) is not None:
            coming += len(asked.arrivals) - (asked.patient if slack <= 0 else 0)
        if slack > 0 and self._waited + coming >= (places := math.ceil(PATIENT * self._limits.max_queue_length)):
            if now - self._answered_at > FRESH:
                self._ask_at = AT_ONCE
            return QueueFull(self._model, places)
        behind, part = self._behind, 1.0
        if slack > 0:
            behind, part = self._slack_line.behind(now, slack, self._behind), self._slack_line.part(slack)
        refusal = self._admission.refuses(now, self._waited - behind, coming, self._at_most, slack, part)
        if refusal is not None and self._admission.stale(now):
            self._ask_at = AT_ONCE
        return refusal

    def turned_away(self) -> None:
        """A request that ``refuses`` had a word for did not come; who plans is to hear of it with the next call."""
        self._refused += self.life is not Life.CLOSED

    def gone(self, now: float, caller: Caller) -> bool:
        """A caller waits no more; whether his request is in this queue, which it leaves with the next call, if there is one."""
        if caller.queue != self.name or self.life is Life.CLOSED:
            return False
        caller.queue = TOLD
        self._admission.left(now, now - caller.came, caller.told.slack)
        member = _member(caller)
        arrivals = [arrival for arrival in self._arrivals if arrival[1] != member]
        if len(arrivals) < len(self._arrivals):
            self._arrivals = arrivals
            self._patient -= caller.told.slack > 0
            return False
        self._leave_the_queue([member])
        self._ask_at = AT_ONCE
        return True

    def answered(self, now: float, caller: Caller) -> None:
        """A caller here has his answer, whichever process had him in a batch."""
        if self._slack_line.known:
            self._slack_line.answered(min(now, caller.taken), caller.came, caller.told.slack)

    @staticmethod
    def left(now: float, caller: Caller, answer: Answer) -> None:
        """Note of a caller when his request left the queue in the batch of another process, where that is told."""
        size, _, seconds = answer.headers.get(LEFT_HEADER, "").partition(" ")
        if size.isdecimal() and re.fullmatch(r"[0-9]{1,9}\.[0-9]{1,9}", seconds):
            caller.taken, caller.batch_size = max(caller.came, now - float(seconds)), int(size)

    def _leave_the_queue(self, members: list[bytes]) -> None:
        """The next calls take these out of it, as many as may be kept in mind: what stays is dropped when its time is over."""
        for member in members:
            if self._gone and self._gone_bytes + len(member) > GONE_BYTES:
                return
            self._gone.append(member)
            self._gone_bytes += len(member)

    def adopt(self, now: float, members: list[bytes]) -> Adoption:
        """Take over what waited at another route; ``Instructions.adopted`` says how that ended."""
        adoption = Adoption(members)
        self._adoptions.append(adoption)
        self._ask_at = AT_ONCE
        return adoption

    def called(self, now: float, answer: Outcome | QueueLost | StoreUnavailable) -> None:
        """The call under way ended so."""
        asked, self._asked = self._asked, None
        assert asked is not None, "no call is under way"
        if isinstance(answer, Outcome):
            self._answered(now, asked, answer)
        elif isinstance(answer, QueueLost):
            self._lost(asked)
        else:
            self._failed(now, asked, answer)
        if asked.goodbye and not isinstance(answer, QueueLost):
            self._live(Fact.SAID_GOODBYE)
            self._ask_at = self._sweep_at = NEVER
            self._turn_away(self._arrivals, SHUT)
            self._arrivals, self._patient = [], 0

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
        batch = self._batches[batch_id]
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
            function.answered(now, ended)
            signed = in_force and self._functions.several
            batch.answered(_with_header(answers, FUNCTION_HEADER, str(self._functions.place(function))) if signed else answers)
        bounded = not self._functions.of_table(batch.table).elastic
        if bounded and not batch.parts and not batch.asked:
            self._admission.served(now - batch.taken_at, self._wasted(batch))
        self._go_on(now, batch_id, batch)
        if in_force and failure is None:
            self._ask_for_the_oldest(now, function)
        if in_force and function.elastic:
            self._admission.heard_of_elastic(now, ended, failure)

    @property
    def suspensions(self) -> int:
        """Times that a function of the route was not asked any more, as it did nothing but fail."""
        return self._functions.openings

    def sent(self, now: float, message: Message, error: StoreUnavailable | None = None) -> None:
        """A message is in the other process's list, or the store was away; it is tried ``_sendings`` times."""
        self._sending -= 1
        if error is not None and message.tried + 1 < self._sendings(message):
            self._messages.append(message._replace(due=now + RETRY, tried=message.tried + 1))
            return
        if error is not None:
            self._log.append((logging.ERROR, f"{self.name}: {error}"))
        if message.batch_id:
            self._settle(now, message.batch_id, error)

    def _sendings(self, message: Message) -> float:
        """How often a message is tried: where no batch brings its answers again, as long as callers wait; but not by who ends."""
        return SENDINGS if message.batch_id or self.life in ENDING else max(SENDINGS, self._patience / RETRY)

    def moved(self, now: float, move: Move, error: StoreUnavailable | None = None) -> None:
        """Other routes have taken these members, or could not."""
        if error is not None:
            self._log.append((logging.ERROR, f"{self.name}: {error}"))
        self._settle(now, move.batch_id, error)

    def follow(self, now: float, route: Route, slo: float | None = None, digest: str = "") -> None:
        """Another table or function is in force, also for those who wait already; a retired route is back."""
        rule = route.rule()
        changed = self.life is not Life.SERVING or rule != self._rule
        self._live(Fact.FOLLOW)
        same = (rule, route.functions, slo) == (self._rule, self._route.functions, self._slo)
        self._route, self._slo, self._rule, self._digest = route, slo, rule, digest
        self._alone = _alone(rule)
        if self._functions.follow(route.functions, rule):  # it is asked at once: what is known of the last is not true of it
            self._look_again(now)
        if not same:
            self._admission.follow(rule, slo)
        if changed:
            self._to_install = self._table()
            self._ask_at = AT_ONCE

    def retire(self, now: float) -> None:
        """The plan in force has this route no more."""
        self._live(Fact.RETIRE)
        self._to_install = self._table()
        self._ask_at = AT_ONCE
        self._look_again(now)

    def due(self, now: float) -> bool:
        """Whether a call is due."""
        return now >= self._ask_at and self._asked is None

    @property
    def asks_at(self) -> float:
        """When a call is due at the latest, whatever else happens; ``NEVER`` while one is under way."""
        return self._ask_at if self._asked is None else NEVER

    @property
    def ending(self) -> bool:
        """Whether this process is leaving; then a turn is due also when a caller has his answer, or has gone."""
        return self.life in ENDING

    def leave(self, now: float) -> None:
        """This process ends: when no caller here waits, and the batches under way are finished, its lease is given up."""
        self._live(Fact.LEAVE)
        self._ask_at = min(self._ask_at, self._sweep_at)

    # -- instructions

    def turn(self, now: float, may_call: bool = True) -> Instructions:
        """What follows from the facts since the last turn, and from the time.

        Without ``may_call`` the next turn, which must come soon, does what only a call can do, and says when to wake.
        """
        if now >= self._look_at:
            self._wake(now)
        call = None
        if may_call and self._asked is None and (now >= self._ask_at or self.life in ENDING):
            call = self._next_call(now)  # before the rest: it changes when to wake
        instructions = Instructions(
            call,
            self._invoke,
            self._due_messages(now) if self._messages else (),
            self._move,
            self._adopted,
            self._refuse,
            self._tell,
            self._log,
            self._unreadable,
            self._wake_at() if may_call else NEVER,  # after the messages: those that are due are gone
            self.life is Life.DRAINED,
            self.life is Life.CLOSED,
            self._queue_length,
            self._ended,
            self._fetch,
        )
        if self._ended:
            self._ended = []
        if (
            self._invoke
            or self._tell
            or self._refuse
            or self._adopted
            or self._move
            or self._log
            or self._unreadable
            or self._fetch
        ):
            self._clear()  # else they are empty still
        self._queue_length = None
        return instructions

    def _clear(self) -> None:
        """Begin the next instructions."""
        self._invoke: list[Invocation] = []
        self._fetch: list[Fetch] = []
        self._move: list[Move] = []
        self._adopted: list[Adopted] = []
        self._refuse: list[Refusal] = []
        self._tell: list[Answer] = []
        self._log: list[tuple[int, str]] = []
        self._unreadable: list[str] = []

    def _next_call(self, now: float) -> Call | None:
        """The call that is due, with everything that happened since the last; it is under way from here on."""
        goodbye = self.life in ENDING and not self._busy() and not self._to_clear() and not self._callers_here()
        if now < self._ask_at and not goodbye:
            return None  # nothing is to be brought, and it is too early to say goodbye
        swept = None
        if goodbye or now >= self._sweep_at:
            swept, self._given_up = self._given_up, []
            # Once: where a process is so slow that each comes late, all would go on for ever, and be the slower for it.
            self._sweeps_on = not self._sweeps_on and now > self._swept_at + self._limits.lease
            self._swept_at, self._sweep_at = now, now + self._limits.lease / SWEEPS
        # Members that move are recorded already, and requests are not: they go in calls of their own.
        adoptions = self._next_adoptions()
        arrivals, patient = self._next_arrivals() if not adoptions else ([], 0)
        gone, self._gone = self._gone[:MOST_GONE], self._gone[MOST_GONE:]
        self._gone_bytes -= sum(map(len, gone))
        self._asked = _Asked(self._to_install, arrivals, patient, gone, self._completed, adoptions, swept, goodbye, self._refused)
        self._refused = 0
        call = Call(self._to_install, self._events(now, self._asked))
        self._to_install, self._completed = None, []
        self._ask_at = AT_ONCE if self._arrivals or self._adoptions or self._gone else NEVER
        return call

    def _next_adoptions(self) -> list[Adoption]:
        """As many as one call carries, and one at least; a long queue may be given up in batches of one."""
        brought = list(accumulate(len(adoption.members) for adoption in self._adoptions))
        n = max(1, bisect_right(brought, LARGEST_CALL))
        adoptions, self._adoptions = self._adoptions[:n], self._adoptions[n:]
        return adoptions

    def _next_arrivals(self) -> tuple[list[tuple[float, bytes]], int]:
        """As many as one call carries, and how many of these have a slack above 0."""
        arrivals, self._arrivals = self._arrivals[:LARGEST_CALL], self._arrivals[LARGEST_CALL:]
        patient = _patient(arrivals) if self._patient else 0
        self._patient -= patient
        return arrivals, patient

    def _events(self, now: float, asked: _Asked) -> Events:
        serving = sorted(self._batches) if asked.swept is not None else None
        clearing = self.life is Life.CLEARING and (asked.arrivals or asked.adoptions or asked.install)
        leaving = self.life in ENDING and not clearing and not self._callers_here()
        at_most = self._at_most(now)
        if asked.adoptions:
            moved = [member for adoption in asked.adoptions for member in adoption.members]
            moving = Events(moved, asked.completed, serving, leaving, recorded=True, gone=asked.gone, at_most=at_most)
            return replace(moving, measured=self._brought(now, asked.goodbye), refused=asked.refused)
        members, ages = [member for _, member in asked.arrivals], [now - came for came, _ in asked.arrivals]
        sizes = member_sizes(members) if self._sizes_told else ()
        measured = self._brought(now, asked.goodbye) if self._measured else ()
        return Events(members, asked.completed, serving, leaving, ages, False, asked.gone, sizes, at_most, measured, asked.refused)

    def _at_most(self, now: float) -> Sequence[tuple[int, int]]:
        """How many batches this process takes from tables whose functions take no more now."""
        if not self._functions.several or self.life in RETIRED:
            return ()
        resting = (self._batches[batch_id] for batch_id in self._resting)
        waited_for = {self._functions.of(part, batch.table).function for batch in resting for part in batch.parts[-1:]}
        return self._functions.at_most(now, waited_for)

    def _due_messages(self, now: float) -> list[Message]:
        due = [message for message in self._messages if message.due <= now]
        self._messages = [message for message in self._messages if message.due > now]
        self._sending += len(due)
        return due

    def _wake_at(self) -> float:
        asks_at = NEVER if self._asked is not None else self._ask_at
        asks_at = min(asks_at, self._look_at)
        return min(asks_at, *(message.due for message in self._messages)) if self._messages else asks_at

    # -- what the queue answered

    def _answered(self, now: float, asked: _Asked, outcome: Outcome) -> None:
        self._failures = 0
        self._answered_at = now
        self._queue_length = self._waited = outcome.queue_length
        self._behind = outcome.behind
        if outcome.all_lend is not None:
            self._all_lend = outcome.all_lend
        if self._epoch not in (None, outcome.epoch):
            self._submit_again(besides={member_id(member) for _, member in asked.arrivals})
            self._sweep_at = AT_ONCE  # in this life of the queue nobody has heard of this process yet
            self._admission.lost()
        self._epoch = outcome.epoch
        self._admission.heard(now, outcome)
        if asked.adoptions:
            self._settle_adoptions(asked.adoptions, outcome.accepted)
        elif outcome.accepted < len(asked.arrivals):
            full = QueueFull(self._model, self._limits.max_queue_length)
            self._turn_away(asked.arrivals[outcome.accepted :], full)
            self._refused += len(asked.arrivals) - outcome.accepted
        for batch in outcome.batches:
            self._take(now, batch)
        if outcome.dropped or outcome.dead:
            late, lost = "it waited longer than the policy serves", "its batch was lost too often; it is put aside"
            self._unreadable += [unnamed(member) for member in outcome.dropped + outcome.dead if not has_id(member)]
            self._hand_out(_failures(outcome.dropped, 504, "Deadline passed", late))
            self._hand_out(_failures(outcome.dead, 502, "Function failed", lost))
        wake_at = NEVER if outcome.wake_in is None else now + outcome.wake_in
        self._hold_began = -math.inf
        if outcome.wake_in is not None and self._alone is not None:
            self._hold_began = wake_at - self._alone.hold[self._alone.row(self._waited)]
        brings_at = self._brings_at() if self._arrivals else NEVER
        soon = self._sweeps_on or self._sweep_at <= now or self._is_needed()
        self._ask_at = min(self._ask_at, wake_at, brings_at, self._sweep_at if soon else self._next_turn())
        if self.life is Life.RETIRING and outcome.queue_length == 0 and self._nobody_waits():
            self._live(Fact.NOBODY_WAITS)

    def _turn_away(self, arrivals: list[tuple[float, bytes]], error: DispatchFailed) -> None:
        """An error for those who came; from here on nobody waits for them, also not who leaves."""
        for request_id in (member_id(member) for _, member in arrivals):
            self._refuse.append(Refusal(request_id, error))
            if (caller := self._waiting.get(request_id)) is not None:
                caller.queue = TOLD

    def _settle_adoptions(self, adoptions: list[Adoption], accepted: int) -> None:
        """The queue has taken the first ``accepted`` members; the others hear that there was no room for them.

        Only now do their callers wait here: had the call failed, the other route would still answer for them.
        """
        members = [member for adoption in adoptions for member in adoption.members]
        for member in members[:accepted]:
            caller = self._waiting.get(member_id(member))
            if caller is not None and caller.queue != TOLD:
                caller.queue = self.name
        full = str(QueueFull(self._model, self._limits.max_queue_length))
        self._hand_out(_failures(members[accepted:], 429, "Too many requests", full))
        self._adopted += [Adopted(adoption, None) for adoption in adoptions]

    def _failed(self, now: float, asked: _Asked, error: StoreUnavailable) -> None:
        """Whether the call was executed is not known: callers are told, completions are repeated.

        A sweep takes back batches that were released to an answer that got lost.
        """
        if not self._failures:
            self._log.append((logging.WARNING, f"{self.name}: {error}"))
        self._failures += 1
        self._refused += asked.refused
        self._completed = asked.completed + self._completed
        self._given_up += asked.swept or ()
        if self.life is not Life.CLEARING:
            self._to_install = self._to_install or asked.install
        if error.asked:
            self._leave_the_queue([member for _, member in asked.arrivals])  # who may wait there all the same
        self._leave_the_queue(asked.gone)
        self._turn_away(asked.arrivals, error)
        self._adopted += [Adopted(adoption, error) for adoption in asked.adoptions]
        ending = self.life in ENDING and not self._callers_here()
        # Who ends does not ask again and again: what he holds is served when his lease is over.
        self._sweep_at = now + self._limits.lease / SWEEPS if ending else AT_ONCE
        somebody_waits = self._arrivals or self._adoptions
        self._ask_at = AT_ONCE if somebody_waits else self._sweep_at if ending else now + RETRY

    def _lost(self, asked: _Asked) -> None:
        """The store does not know the queue: install its table, and submit again what waits here."""
        self._refused += asked.refused
        self._adoptions = asked.adoptions + self._adoptions
        here = [arrival for arrival in asked.arrivals if self._waits_here(member_id(arrival[1]))]  # others left meanwhile
        self._arrive_before(here)
        self._given_up.clear()
        self._gone.clear()
        self._gone_bytes = 0
        self._to_install = self._table()
        self._ask_at = self._sweep_at = AT_ONCE
        if self._epoch is not None:
            self._epoch = None
            self._submit_again(besides=set())

    def _submit_again(self, besides: set[str]) -> None:
        """The store lost the queue: what waits here, but for what is computed, told or was submitted since, comes again."""
        self._log.append((logging.WARNING, f"{self.name}: the store lost the queue; submitting what waits here again"))
        besides = besides | {member_id(member) for batch in self._batches.values() for member in batch.members}
        besides |= {member_id(member) for _, member in self._arrivals}
        besides |= {member_id(member) for adoption in self._adoptions for member in adoption.members}
        self._arrive_again([request_id for request_id in self._waiting if request_id not in besides])

    def _arrive_again(self, request_ids: Iterable[str]) -> None:
        """Who of these waits here at this queue comes again, and brings the time when he came: the record of that was lost too."""
        callers = [self._waiting[request_id] for request_id in request_ids if self._waits_here(request_id)]
        self._arrive_before([(caller.came, self._encoded(caller)) for caller in callers])
        self._ask_at = AT_ONCE

    def _arrive_before(self, again: list[tuple[float, bytes]]) -> None:
        self._arrivals = again + self._arrivals
        self._patient += _patient(again)

    # -- batches under way

    def _take(self, now: float, batch: Released) -> None:
        """A batch that the queue released to this process; another may have moved its members here, and told nobody."""
        name, size = self.name, len(batch.members)
        callers = list(map(self._waiting.get, [member[:ID_LENGTH].decode("latin-1") for member in batch.members]))
        for caller in callers:
            if caller is not None and caller.queue != TOLD:
                caller.queue, caller.taken, caller.batch_size = name, now, size
        if self.life in RETIRED:
            state = BatchState(batch.members, [], self._epoch, now)
            state.moving = self._all_wanted(batch.members)
        else:
            state = BatchState(batch.members, [], self._epoch, now, batch.table)
            items = [caller.item for caller in callers if caller is not None]
            if len(items) == size:  # all callers are here, as where there is one process: no member is read
                state.parts = self._functions.of_table(batch.table).parts(now, items)
            elif (fetch := self._to_fetch(batch)).requests:
                state.fetched = True
                self._batches[batch.batch_id] = state
                self._fetch.append(fetch)
                return
            else:
                self._divide(now, state, {})
        self._batches[batch.batch_id] = state
        self._go_on(now, batch.batch_id, state)

    def _to_fetch(self, batch: Released) -> Fetch:
        """What other processes must be asked for."""
        fetch = Fetch(batch.batch_id, {}, 0)
        for member in batch.members:
            if is_ticket(member) and (process := member_id(member)[:PROCESS_LENGTH]) != self._process:
                try:
                    fetch = fetch._replace(bytes=fetch.bytes + ticket_length(member))
                except Unreadable:
                    continue  # it will be told what it is
                fetch.requests.setdefault(process, []).append(member_id(member))
        return fetch

    def fetched(self, now: float, batch_id: str, found: Mapping[str, Item | None], why_not: str = "") -> None:
        """What other processes had of a batch; ``None`` of who has gone. ``why_not`` there is nothing of the others."""
        batch = self._batches[batch_id]
        if self.life in RETIRED:
            batch.moving = self._all_wanted(batch.members)
        else:
            self._divide(now, batch, found, why_not)
        self._go_on(now, batch_id, batch)

    def _all_wanted(self, members: list[bytes]) -> list[bytes]:
        return [member for member in members if self._wanted(member_id(member))]

    def _divide(self, now: float, batch: BatchState, found: Mapping[str, Item | None], why_not: str = "") -> None:
        """The parts of a batch that are to be asked for, and the answers to those of it that cannot be."""
        items, batch.answers = self._items(batch.members, found, why_not)
        batch.parts = self._functions.of_table(batch.table).parts(now, items)

    def _items(self, members: list[bytes], found: Mapping[str, Item | None], why_not: str) -> tuple[list[Item], list[Answer]]:
        """The requests among ``members`` that somebody waits for, and the answers to those that cannot be read but named."""
        items, unreadable = [], []
        for member in members:
            request_id = member_id(member)
            if (caller := self._waiting.get(request_id)) is not None:
                items.append(caller.item)
            elif (item := found.get(request_id)) is not None:
                items.append(item)
            elif self._wanted(request_id) and request_id not in found:
                try:
                    if is_ticket(member) and ticket_length(member) >= 0:
                        unreadable += _failures([member], 503, "Service unavailable", why_not)
                        continue
                    items.append(decode_member(member))
                except Unreadable as error:
                    self._unreadable.append(str(error))
                    unreadable += _failures([member], 502, "Not readable", str(error))
        return items, unreadable

    def _wanted(self, request_id: str) -> bool:
        """Whether somebody may still wait for an answer: of another process's callers only that process knows."""
        caller = self._waiting.get(request_id)
        return caller.queue != TOLD if caller is not None else request_id[:PROCESS_LENGTH] != self._process

    def _go_on(self, now: float, batch_id: str, batch: BatchState) -> None:
        """Ask for the next parts of a batch, or hand out what came of all of them."""
        if self.life in RETIRED and any(part.refused for part in batch.parts):
            for left in batch.parts:
                self._move_on(batch, left)
            batch.parts.clear()
        while (part := batch.next_part(now, self._wanted, self._at_once(now, batch))) is not None:
            self._ask(now, batch_id, batch, part)
        if batch.asked:
            return
        if batch.parts:
            self._rest_until(batch_id, min(batch.parts[-1].due, now + LONGEST_BACKOFF))  # who waits may be gone before it is due
            if batch.parts[-1].busy and not self._admission.is_left(now - batch.taken_at):
                batch.put_off = sum(len(part.items) for part in batch.parts)
                self._admission.put_off(batch.put_off)
            return
        batch.failed = sum([not 200 <= answer.status < 300 for answer in batch.answers])
        batch.answers, elsewhere = self._at_hand(self._named(batch.answers))
        if self._limits.batches_kept:
            waiting = self._waiting
            batch.measured.latencies = [now - waiting[answer.id].came for answer in batch.answers if 200 <= answer.status < 300]
        as_told = f"{len(batch.members)} {now - batch.taken_at:.6f}"
        self._messages += [
            Message(process, _with_header(theirs, LEFT_HEADER, as_told), batch_id) for process, theirs in elsewhere.items()
        ]
        if batch.moving:
            self._move.append(Move(batch_id, batch.moving))
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
            self._refuse_for_now(batch, part.items, suspension.wait, _suspended(suspension))
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
        self._invoke.append(Invocation(batch_id, function.function, self.asked_for, part.items, number, again, avoid))

    def _part_failed(self, now: float, batch: BatchState, part: Part, failure: Failure, function: FunctionState) -> None:
        cause = failure.cause
        unanswered = cause in (Cause.UNAVAILABLE, Cause.BUSY, Cause.CRASHED)
        function.undecided(part)
        if unanswered and self.life in RETIRED:
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
        self._log.append((logging.WARNING, f"{self.name}: {len(part.items)} items failed: {detail}"))
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
        caller = self._waiting.get(item.id)
        return (caller.came if caller is not None else batch.taken_at) + self._longest_wait()

    def _refuse_for_now(self, batch: BatchState, items: list[Item], wait: float, detail: str) -> None:
        """These items are not asked for, and may come again after ``wait`` seconds."""
        if self.life in RETIRED:
            self._move_on(batch, Part(items))
        elif items:
            batch.refuse(items, 503, "Service unavailable", detail, {"retry-after": str(max(1, math.ceil(wait)))})

    def _move_on(self, batch: BatchState, part: Part) -> None:
        """Other routes get the items of a part."""
        members = {member_id(member): member for member in batch.members}  # with what was told
        batch.moving += [members[item.id] for item in part.items if self._wanted(item.id)]

    def _wake(self, now: float) -> None:
        """Go on with the batches that are to be looked at."""
        looked_at = [batch_id for batch_id, due in self._resting.items() if due <= now]
        for batch_id in looked_at:
            del self._resting[batch_id]
        self._look_at = min(self._resting.values(), default=NEVER)
        for batch_id in looked_at:
            batch = self._batches[batch_id]
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
            batch = self._batches[batch_id]
            part = batch.parts[-1]
            if part.earliest > now or self._functions.of(part, batch.table) is not function:
                continue
            if not any(self._wanted(item.id) for item in part.items):
                self._rest_until(batch_id, now)
                continue
            is_left = self._admission.is_left(now - batch.taken_at)
            if is_left:
                self._put_off_no_more(batch)
            if first is None or (is_left, batch.taken_at) < first[:2]:
                first = is_left, batch.taken_at, batch_id
        if first is not None:
            part = self._batches[first[2]].parts[-1]
            part.due = min(part.due, now + (YIELD if self._places % YIELDS == 0 else 0.0))
            self._rest_until(first[2], min(part.due, self._resting[first[2]]))

    def _rest_until(self, batch_id: str, when: float) -> None:
        self._resting[batch_id] = when
        self._look_at = min(self._look_at, when)

    def _put_off_no_more(self, batch: BatchState) -> None:
        self._admission.put_off_no_more(batch.put_off)
        batch.put_off = 0

    def _look_again(self, now: float) -> None:
        """Whoever waits for a busy function need not any more."""
        for batch_id, batch in self._batches.items():
            for part in batch.parts:
                part.due = now  # also beside one that is asked for, which is waited for first
            if batch_id in self._resting:
                self._rest_until(batch_id, now)

    def _settle(self, now: float, batch_id: str, error: StoreUnavailable | None) -> None:
        """One message or move of a batch ended."""
        batch = self._batches[batch_id]
        batch.outstanding -= 1
        batch.given_up += error is not None
        if not batch.outstanding:
            self._end(now, batch_id, batch)

    def _end(self, now: float, batch_id: str, batch: BatchState) -> None:
        """A batch is complete, or given up; either way its callers here have their answers."""
        del self._batches[batch_id]
        if batch.times_asked or batch.fetched:
            self._ended.append(batch_id)
        if not batch.given_up:
            if batch.times_asked and self._limits.batches_kept:
                self._measure(now, batch)
            self._completed.append(batch_id)
            self._ask_at = min(self._ask_at, self._reports_at(now))
        elif batch.epoch == self._epoch:
            self._given_up.append(batch_id)
        else:  # the queue that would take it back is lost
            self._arrive_again(map(member_id, batch.members))
        self._tell += batch.answers

    def _reports_at(self, now: float) -> float:
        """When a batch that ended now is to be reported: at once, unless it takes no server, for which others may wait."""
        elastic = self._alone is not None and self._alone.servers is None
        return now + FRESH if elastic and self.life is Life.SERVING else AT_ONCE

    def _measure(self, now: float, batch: BatchState) -> None:
        """Keep what was measured of a batch for a call that brings it; where none comes for long, the newest."""
        found, size = batch.measured, len(batch.members)
        service, billed = (math.nan if told is None else told for told in (found.service, found.billed))
        latencies = few_latencies(found.latencies)
        names = self._route.name, batch.table, found.function, self._digest
        self._measured.append(MeasuredBatch(now, *names, size, found.seconds, service, billed, found.cold, batch.failed, latencies))
        if len(self._measured) > MOST_MEASURED:
            del self._measured[0]

    def _brought(self, now: float, goodbye: bool) -> list[MeasuredBatch]:
        """What was measured that the call at ``now`` brings; ``ended_at`` counts from it."""
        due = goodbye or now >= self._brought_at + BROUGHT_EVERY or len(self._measured) >= BROUGHT_AT
        if not (due and self._measured):
            return []
        brought, self._measured, self._brought_at = self._measured, [], now
        return [batch._replace(ended_at=batch.ended_at - now) for batch in brought]

    # -- answers

    def _named(self, answers: list[Answer]) -> list[Answer]:
        """The answers with the name of their route, if it has one."""
        if not self._route.name:
            return answers
        return _with_header(answers, ROUTE_HEADER, self._route.name)

    def _hand_out(self, answers: list[Answer]) -> None:
        """Answers that complete no batch."""
        here, elsewhere = self._at_hand(answers)
        self._tell += here
        self._messages += [Message(process, theirs, "") for process, theirs in elsewhere.items()]

    def _at_hand(self, answers: list[Answer]) -> tuple[list[Answer], dict[str, list[Answer]]]:
        """The answers whose callers wait here, and the others by the process where they do.

        Nobody who has his answer at hand is computed for again, nor gets another.
        """
        here: list[Answer] = []
        elsewhere: defaultdict[str, list[Answer]] = defaultdict(list)
        for answer in answers:
            caller = self._waiting.get(answer.id)
            if caller is None:
                elsewhere[answer.id[:PROCESS_LENGTH]].append(answer)
            elif caller.queue != TOLD:
                caller.queue = TOLD
                here.append(answer)
        elsewhere.pop(self._process, None)  # they have gone
        return here, elsewhere

    # -- the life of the route

    def _live(self, fact: Fact) -> None:
        self.life = LIVES[self.life][fact]

    def _table(self) -> Policy:
        """The route's table, which gives up nobody later than this process does: who got 504 must not be served before others.

        A retired route holds nobody, in batches that its function would take: another process may not know yet that it is retired.
        """
        policy = self._rule
        if self.life in RETIRED:
            policy = greedy(policy.max_batch_size, servers=None)
        return replace(policy, drop_after=self._longest_wait())

    def _longest_wait(self) -> float:
        """Seconds after which nobody is served any more, by the route's table or for the patience of callers."""
        drop_after = self._route.policy.drop_after
        return self._patience if drop_after is None else min(self._patience, drop_after)

    def _waits_here(self, request_id: str) -> bool:
        caller = self._waiting.get(request_id)
        return caller is not None and caller.queue == self.name

    def _wasted(self, batch: BatchState) -> float:
        """The part of a batch's callers here who wait no more."""
        here = [request for request in map(member_id, batch.members) if request[:PROCESS_LENGTH] == self._process]
        return sum(not self._wanted(request) for request in here) / max(1, len(here))

    def _next_turn(self) -> float:
        """When the queue is swept where nobody needs it; a turn that has not come yet is kept."""
        if self._turn_comes_at < self._sweep_at:
            self._turn_comes_at = self._rounds.place(self._sweep_at)
        return self._turn_comes_at

    def _is_needed(self) -> bool:
        """Whether others may take this process's batches back, or it those of others."""
        return bool(self._batches) or self._waited > 0 or any(caller.queue == self.name for caller in self._waiting.values())

    def _busy(self) -> bool:
        """Whether something of this route is under way here that has an end, besides a call."""
        return bool(self._batches or self._adoptions or self._messages or self._sending)

    def _to_clear(self) -> bool:
        """Whether somebody may wait at a retired queue that no process may look after any more, and none but this will give up."""
        return self.life is Life.CLEARING and (bool(self._arrivals) or self._to_install is not None)

    def _nobody_waits(self) -> bool:
        """Whether a queue that is empty is all there is of this route."""
        if self._busy() or self._arrivals or self._completed or self._given_up:
            return False
        return not self._callers_here()

    def _callers_here(self) -> bool:
        """Whether a caller of this process waits for an answer to what is in this queue, or at work on another process."""
        at_work = {member_id(member) for batch in self._batches.values() for member in batch.members}
        return any(caller.queue == self.name and request_id not in at_work for request_id, caller in self._waiting.items())


def _member(caller: Caller) -> bytes:
    """What the queue has of a caller's request."""
    return (encode_ticket if caller.has_ticket else encode_member)(caller.item, caller.told)


def _alone(rule: Policy) -> Policy | None:
    """The table of a rule that has one, of one column; ``None`` of another."""
    return rule if not rule.beside and rule.columns == 1 else None


def _patient(arrivals: list[tuple[float, bytes]]) -> int:
    """How many of these have a slack above 0."""
    return sum(member_slack(member) > 0 for _, member in arrivals)


def _suspended(suspension: Suspension) -> str:
    shown = without_password(suspension.function)
    return f"function {shown!r} failed again and again, and is asked again in {suspension.wait:.1f} s"


def _with_header(answers: list[Answer], name: str, value: str) -> list[Answer]:
    """The answers with one more header."""
    return [structs.replace(answer, headers=answer.headers | {name: value}) for answer in answers]


def _failures(members: list[bytes], status: int, title: str, detail: str) -> list[Answer]:
    """The same answer for all of these that can be named."""
    return [failed(member_id(member), status, title, detail) for member in members if has_id(member)]
