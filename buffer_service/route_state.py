"""The state of one route of a model on one process: facts in, instructions out.

What may live here: what this process knows of the route's queue, of its batches under way and of who waits, and every decision
about them but those about batching, which the queue's rule makes. What may not: a clock, I/O, a task, a random source. Every fact
comes with ``now``, seconds on the one clock of the process; facts only note what happened, and ``turn(now)`` says once for all of
them what is to be done. The same facts give the same instructions.

    came, gone, adopt             requests of callers here; callers who wait no more; members that another route gives up
    called                        what the queue answered to the call that was asked for, or how it failed
    fetched                       the bodies of a batch that other processes were asked for
    served                        what the function answered to a batch, or how it failed
    pool                          how many workers a function has, when those that are ejected are tried, and what they have
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
taken meanwhile, ``route_functions.py`` says. When those who came are brought to the queue, and who leaves past it,
``route_arrivals.py`` says.

A batch that ended is reported at once where its server is waited for, and of an elastic function with the next call, within
``FRESH``; of one that left past the queue there is to be brought only what was measured (``batch_record.py``). What others bring
meanwhile is not known here: a batch that is full with it leaves that much later.

Ties. A table that comes while another is being installed is installed by the next call. Of members to adopt and new requests, the
former are called first, as many as one call carries. Completions and arrivals go in one call. Callers here are told without waiting
for the call that completes their batch: they would end with this process, and nobody else's answer hangs on it.
"""

from __future__ import annotations

import logging
import math
import re
from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from sluice.batching import Policy
from sluice.batching.documents import Route
from sluice.batching.errors import DispatchFailed, Draining, FunctionSuspended, QueueFull, StoreUnavailable
from sluice.batching.policy import greedy
from sluice.buffer_service.admission import FRESH
from sluice.buffer_service.batch_state import Failure
from sluice.buffer_service.circuit import FIRST_OPEN
from sluice.buffer_service.idle_rounds import IdleRounds
from sluice.buffer_service.members import has_id, member_id, member_sizes, unnamed
from sluice.buffer_service.route_admission import RouteAdmission
from sluice.buffer_service.route_arrivals import LARGEST_CALL, RouteArrivals
from sluice.buffer_service.route_batches import LEFT_HEADER, RETRY, SENDINGS, RouteBatches, failures, suspended
from sluice.buffer_service.route_facts import TOLD, Caller, RouteFacts, member_of
from sluice.buffer_service.route_functions import RouteFunctions, Standing
from sluice.buffer_service.route_instructions import (
    AT_ONCE,
    NEVER,
    Adopted,
    Adoption,
    Call,
    Instructions,
    Message,
    Move,
    Refusal,
    ToDo,
)
from sluice.buffer_service.route_life import Fact, Life
from sluice.buffer_service.slack_line import SlackLine
from sluice.buffer_service.store import Events, Limits, Outcome, QueueLost
from sluice.lambda_fn.contract import NOTHING_MEASURED, Answer, Item, Measured

GONE_BYTES = 8 * 1024 * 1024  # that members may have which are yet to be taken out of the queue
MOST_GONE = 128  # members that one call takes out of the queue at most, each by a look at all that wait
PATIENT = 0.9  # of a queue's places, that requests with a slack above 0 may take
SWEEPS = 3  # in a lease
SHUT = Draining("this process is shutting down, and takes no more requests")


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
    direct: list[float]

    @property
    def brings_nobody(self) -> bool:
        """Whether nobody waits at the queue by this call, and its table stays."""
        return self.install is None and not (self.arrivals or self.adoptions or self.swept)


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
        self._facts = facts = RouteFacts(model, route, limits, process, waiting, patience, digest)
        self.name = facts.name
        """That of its queue."""
        self._limits, self._waiting = limits, waiting
        self._slo = slo
        self._to_install: Policy | None = self._table()
        self._functions = RouteFunctions(route.functions, facts.rule)
        self._admission = RouteAdmission(model, self._functions, facts.rule, patience, slo)
        self._todo = ToDo()
        self._batches = RouteBatches(facts, self._functions, self._admission, self._todo)
        self._arrivals = RouteArrivals(facts, self._batches)
        self._next_trial = -math.inf  # not before then the next request for functions that are not asked
        self._slack_line = SlackLine(limits.max_queue_length)
        self._refused = 0  # requests since the last call
        self._gone: list[bytes] = []  # members whose callers wait no more
        self._gone_bytes = 0
        self._adoptions: list[Adoption] = []
        self._asked: _Asked | None = None
        self._failures = 0  # calls that failed, since the last that did not
        self._ask_at = AT_ONCE
        self._sweep_at = AT_ONCE  # from when on a call is a sweep; the first announces this process
        self._swept_at = AT_ONCE
        self._rounds = rounds if rounds is not None else IdleRounds()
        self._turn_comes_at = AT_ONCE  # of an idle queue
        self._sweeps_on = False  # whether the next sweep is due as soon as it may be, as the last came late
        self._queue_length: int | None = None
        self._behind = 0  # as the queue said last

    @property
    def life(self) -> Life:
        """How far it has come."""
        return self._facts.life

    @property
    def asked_for(self) -> str:
        """The model as the function knows it."""
        return self._facts.asked_for

    # -- facts

    @property
    def asking(self) -> bool:
        """Whether a call to the queue is under way; what comes meanwhile waits for its answer, and needs no turn."""
        return self._asked is not None

    @property
    def route(self) -> Route:
        """The route as the plan in force has it, or had it when it was retired."""
        return self._facts.route

    @property
    def bounded(self) -> bool:
        """Whether a function takes so many batches at once and no more, so that the queue waits for each that ends."""
        return any(table.servers is not None for table in self._facts.rule.tables)

    def standings(self, now: float) -> list[Standing]:
        """How each function of the route stands."""
        return self._functions.standings(now)

    def came(self, now: float, caller: Caller) -> float:
        """A caller is here, and was not refused; returns ``asks_at``."""
        if (slack := caller.told.slack) > 0:
            self._slack_line.came(now, slack)
        arrivals = self._arrivals
        if self._asked is not None:
            arrivals.came(now, caller, asking=True)
            return AT_ONCE if self.may_leave else NEVER
        arrivals.came(now, caller, asking=False)
        return arrivals.bring_at if arrivals.bring_at < self._ask_at else self._ask_at

    @property
    def may_leave(self) -> bool:
        """Whether those who came leave whoever else comes in this round, nor wait for a call: it brings nobody to the queue."""
        return self._arrivals.ready and (self._asked is None or self._asked.brings_nobody)

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
        if self._facts.closed:
            return SHUT
        if (suspension := self._functions.suspension(now)) is not None:
            return FunctionSuspended(suspended(suspension), suspension.wait)
        if slack <= 0 and self._admission.refuses_nobody:
            return None
        arrivals = self._arrivals
        coming = len(arrivals.callers) - (arrivals.patient if slack <= 0 else 0)
        if (asked := self._asked) is not None:
            coming += len(asked.arrivals) - (asked.patient if slack <= 0 else 0)
        if slack > 0 and arrivals.waited + coming >= (places := math.ceil(PATIENT * self._limits.max_queue_length)):
            if now - arrivals.answered_at > FRESH:
                self._ask_at = AT_ONCE
            return QueueFull(self._facts.model, places)
        behind, part = self._behind, 1.0
        if slack > 0:
            behind, part = self._slack_line.behind(now, slack, self._behind), self._slack_line.part(slack)
        refusal = self._admission.refuses(now, arrivals.waited - behind, coming, self._batches.at_most, slack, part)
        if refusal is not None and self._admission.stale(now):
            self._ask_at = AT_ONCE
        return refusal

    def turned_away(self) -> None:
        """A request that ``refuses`` had a word for did not come; who plans is to hear of it with the next call."""
        self._refused += not self._facts.closed

    def gone(self, now: float, caller: Caller) -> bool:
        """A caller waits no more; whether his request is in this queue, which it leaves with the next call, if there is one."""
        if caller.queue != self.name or self._facts.closed:
            return False
        caller.queue = TOLD
        self._admission.left(now, now - caller.came, caller.told.slack)
        if self._arrivals.gone(caller):
            return False
        if not caller.brought:
            return False  # he left past it
        self._leave_the_queue([member_of(caller)])
        self._ask_at = AT_ONCE
        return True

    def answered(self, now: float, caller: Caller) -> None:
        """A caller here has his answer, whichever process had him in a batch."""
        if self._slack_line.known:
            self._slack_line.answered(min(now, caller.taken), caller.came, caller.told.slack)

    @staticmethod
    def left(now: float, caller: Caller, answer: Answer) -> None:
        """Note of a caller when his request left the queue in the batch of another process, where that is told."""
        if told := re.fullmatch(r"([0-9]{1,9}) ([0-9]{1,9}\.[0-9]{1,9})", answer.headers.get(LEFT_HEADER, "")):
            caller.taken, caller.batch_size = max(caller.came, now - float(told[2])), int(told[1])

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
            self._facts.live(Fact.SAID_GOODBYE)
            self._ask_at = self._sweep_at = NEVER
            self._turn_away([caller.item.id for caller in self._arrivals.clear()], SHUT)

    @property
    def suspensions(self) -> int:
        """Times that a function of the route was not asked any more, as it did nothing but fail."""
        return self._functions.openings

    def follow(self, now: float, route: Route, slo: float | None = None, digest: str = "") -> None:
        """Another table or function is in force, also for those who wait already; a retired route is back."""
        rule = route.rule()
        changed = not self._facts.serving or rule != self._facts.rule
        self._facts.live(Fact.FOLLOW)
        same = (rule, route.functions, slo) == (self._facts.rule, self._facts.route.functions, self._slo)
        self._slo = slo
        self._facts.follow(route, digest)
        self._arrivals.follow(rule)
        if self._functions.follow(route.functions, rule):  # it is asked at once: what is known of the last is not true of it
            self._batches.look_again(now)
        self._batches.hasten()
        if not same:
            self._admission.follow(rule, slo)
        if changed:
            self._to_install = self._table()
            self._ask_at = AT_ONCE

    def retire(self, now: float) -> None:
        """The plan in force has this route no more."""
        self._facts.live(Fact.RETIRE)
        self._to_install = self._table()
        self._ask_at = AT_ONCE
        self._batches.look_again(now)
        self._batches.hasten()

    def due(self, now: float) -> bool:
        """Whether a call is due."""
        return now >= self.asks_at

    @property
    def asks_at(self) -> float:
        """When a call is due at the latest, whatever else happens; ``NEVER`` while one is under way."""
        return min(self._ask_at, self._arrivals.bring_at) if self._asked is None else NEVER

    @property
    def ending(self) -> bool:
        """Whether this process is leaving; then a turn is due also when a caller has his answer, or has gone."""
        return self._facts.ending

    def leave(self, now: float) -> None:
        """This process ends: when no caller here waits, and the batches under way are finished, its lease is given up."""
        self._facts.live(Fact.LEAVE)
        self._ask_at = min(self._ask_at, self._sweep_at)

    # -- facts of batches

    def fetched(self, now: float, batch_id: str, found: Mapping[str, Item | None], why_not: str = "") -> None:
        """What other processes had of a batch; ``None`` of who has gone. ``why_not`` there is nothing of the others."""
        self._batches.fetched(now, batch_id, found, why_not)
        self._heed_batches(now)

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
        self._batches.served(now, batch_id, answers, part, told)
        self._heed_batches(now)

    def pool(self, now: float, function: str, workers: int, tried_in: Sequence[float] = (), held: int = 0) -> None:
        """A function has so many workers; those that are ejected are tried in so many seconds, and have so many batches."""
        self._functions.pool(now, function, workers, tried_in, held)

    def sent(self, now: float, message: Message, error: StoreUnavailable | None = None) -> None:
        """A message is in the other process's list, or the store was away."""
        self._batches.sent(now, message, error)
        self._heed_batches(now)

    def moved(self, now: float, move: Move, error: StoreUnavailable | None = None) -> None:
        """Other routes have taken these members, or could not."""
        self._batches.moved(now, move, error)
        self._heed_batches(now)

    def _heed_batches(self, now: float) -> None:
        """What has ended is to be reported; who was in a batch whose queue is lost comes again."""
        if self._batches.stranded:
            stranded, self._batches.stranded = self._batches.stranded, []
            self._arrive_again(stranded)
        if self._batches.ended:
            self._batches.ended = False
            to_report = self._batches.completed or not self._facts.serving  # a call finds that nobody waits at a retired route
            self._ask_at = min(self._ask_at, self._reports_at(now) if to_report else self._batches.brings_at)

    def _reports_at(self, now: float) -> float:
        """When a batch that ended now is to be reported: at once, unless it takes no server, for which others may wait."""
        return now + FRESH if self._arrivals.elastic and self._facts.serving else AT_ONCE

    # -- instructions

    def turn(self, now: float, may_call: bool = True) -> Instructions:
        """What follows from the facts since the last turn, and from the time.

        Without ``may_call`` the next turn, which must come soon, does what only a call can do, and says when to wake.
        """
        batches, todo = self._batches, self._todo
        if now >= batches.look_at:
            batches.wake(now)
            self._heed_batches(now)
        call = None
        if self.may_leave:
            self._leave_directly(now)
        if may_call and self._asked is None:  # before the rest: it changes when to wake
            if now >= self._arrivals.bring_at:
                self._leave_directly(now)
            if now >= self.asks_at or self._facts.ending:
                call = self._next_call(now)
        instructions = Instructions(
            call,
            todo.invoke,
            batches.due_messages(now),
            todo.move,
            todo.adopted,
            todo.refuse,
            todo.tell,
            todo.log,
            todo.unreadable,
            min(self.asks_at, batches.next_look) if may_call else NEVER,  # after the messages: those that are due are gone
            self._facts.life is Life.DRAINED,
            self._facts.closed,
            self._queue_length,
            todo.ended,
            todo.fetch,
            todo.hasten,
        )
        todo.clear()
        self._queue_length = None
        return instructions

    def _leave_directly(self, now: float) -> None:
        """Those who came leave past the queue where it is there, as far as is known, and would release them."""
        may_leave = self._queue_is_there and self._facts.serving and self._to_install is None and not self._adoptions
        if may_leave and self._arrivals.leave_directly(now):
            self._ask_at = min(self._ask_at, now + FRESH)
            self._heed_batches(now)

    @property
    def _queue_is_there(self) -> bool:
        """As far as is known; else there is nothing to wait for before those who came are brought."""
        return self._facts.epoch is not None and not self._failures

    def _next_call(self, now: float) -> Call | None:
        """The call that is due, with everything that happened since the last; it is under way from here on."""
        goodbye = self._facts.ending and not self._busy() and not self._to_clear() and not self._callers_here()
        if now < self.asks_at and not goodbye:
            return None  # nothing is to be brought, and it is too early to say goodbye
        swept = None
        if goodbye or now >= self._sweep_at:
            swept, self._batches.given_up = self._batches.given_up, []
            # Once: where a process is so slow that each comes late, all would go on for ever, and be the slower for it.
            self._sweeps_on = not self._sweeps_on and now > self._swept_at + self._limits.lease
            self._swept_at, self._sweep_at = now, now + self._limits.lease / SWEEPS
        # Members that move are recorded already, and requests are not: they go in calls of their own.
        adoptions = self._next_adoptions()
        due = self._arrivals.due(now) if self._queue_is_there else len(self._arrivals.callers)
        arrivals, patient = self._arrivals.next(due) if not adoptions else ([], 0)
        direct = self._arrivals.next_left() if not adoptions else []
        gone, self._gone = self._gone[:MOST_GONE], self._gone[MOST_GONE:]
        self._gone_bytes -= sum(map(len, gone))
        completed = self._batches.told_completed()
        asked = self._to_install, arrivals, patient, gone, completed, adoptions, swept, goodbye, self._refused, direct
        self._asked = _Asked(*asked)
        self._refused = 0
        call = Call(self._to_install, self._events(now, self._asked))
        self._to_install = None
        self._ask_at = AT_ONCE if due > len(arrivals) or self._adoptions or self._gone or self._arrivals.left else NEVER
        self._arrivals.bring_at = NEVER
        return call

    def _next_adoptions(self) -> list[Adoption]:
        """As many as one call carries, and one at least; a long queue may be given up in batches of one."""
        brought = list(accumulate(len(adoption.members) for adoption in self._adoptions))
        n = max(1, bisect_right(brought, LARGEST_CALL))
        adoptions, self._adoptions = self._adoptions[:n], self._adoptions[n:]
        return adoptions

    def _events(self, now: float, asked: _Asked) -> Events:
        serving = sorted(self._batches.in_flight) if asked.swept is not None else None
        clearing = self._facts.life is Life.CLEARING and (asked.arrivals or asked.adoptions or asked.install or asked.swept)
        leaving = self._facts.ending and not clearing and not self._callers_here()
        at_most, ejected = self._batches.at_most(now), self._functions.ejected(now)
        self._arrivals.ejected = ejected[0][1] if ejected else 0
        if asked.adoptions:
            moved = [member for adoption in asked.adoptions for member in adoption.members]
            moving = Events(moved, asked.completed, serving, leaving, recorded=True, gone=asked.gone, at_most=at_most)
            return replace(moving, measured=self._batches.brought(now, asked.goodbye), refused=asked.refused, ejected=ejected)
        members, ages = [member for _, member in asked.arrivals], [now - came for came, _ in asked.arrivals]
        sizes = member_sizes(members) if self._arrivals.sizes_told else ()
        measured, direct = self._batches.brought(now, asked.goodbye), [now - came for came in asked.direct]
        told = sizes, at_most, measured, asked.refused, direct, ejected, self._arrivals.early
        return Events(members, asked.completed, serving, leaving, ages, False, asked.gone, *told)

    # -- what the queue answered

    def _answered(self, now: float, asked: _Asked, outcome: Outcome) -> None:
        self._failures = 0
        self._queue_length = outcome.queue_length
        self._behind = outcome.behind
        if outcome.all_lend is not None:
            self._facts.all_lend = outcome.all_lend
        if outcome.alone is not None:
            self._facts.alone_until = self._swept_at + self._limits.lease if outcome.alone else -math.inf
        if self._facts.epoch not in (None, outcome.epoch):
            self._submit_again(besides={member_id(member) for _, member in asked.arrivals})
            self._sweep_at = AT_ONCE  # in this life of the queue nobody has heard of this process yet
            self._admission.lost()
            self._batches.vacant.clear()
        self._facts.epoch = outcome.epoch
        self._admission.heard(now, outcome)
        if asked.adoptions:
            self._settle_adoptions(asked.adoptions, outcome.accepted)
        elif outcome.accepted < len(asked.arrivals):
            full = QueueFull(self._facts.model, self._limits.max_queue_length)
            self._turn_away([member_id(member) for _, member in asked.arrivals[outcome.accepted :]], full)
            self._refused += len(asked.arrivals) - outcome.accepted
        if len(outcome.batches) == 1 and not (asked.arrivals or asked.adoptions or asked.install or outcome.queue_length):
            self._arrivals.released(now, outcome.batches[0].members)
        for batch in outcome.batches:
            self._batches.take(now, batch)
        self._heed_batches(now)
        if outcome.dropped or outcome.dead:
            late, lost = "it waited longer than the policy serves", "its batch was lost too often; it is put aside"
            self._todo.unreadable += [unnamed(member) for member in outcome.dropped + outcome.dead if not has_id(member)]
            self._batches.hand_out(failures(outcome.dropped, 504, "Deadline passed", late))
            self._batches.hand_out(failures(outcome.dead, 502, "Function failed", lost))
        wake_at = NEVER if outcome.wake_in is None else now + outcome.wake_in
        self._arrivals.heard(now, outcome.queue_length, wake_at)
        self._arrivals.look_again()
        soon = self._sweeps_on or self._sweep_at <= now or self._is_needed()
        tried_at = self._functions.next_trial(now) if outcome.queue_length else NEVER  # a server more
        self._ask_at = min(self._ask_at, wake_at, tried_at, self._batches.brings_at, self._sweep_at if soon else self._next_turn())
        if self._facts.life is Life.RETIRING and outcome.queue_length == 0 and self._nobody_waits():
            self._facts.live(Fact.NOBODY_WAITS)

    def _turn_away(self, requests: list[str], error: DispatchFailed) -> None:
        """An error for those who came; from here on nobody waits for them, also not who leaves."""
        for request_id in requests:
            self._todo.refuse.append(Refusal(request_id, error))
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
                caller.queue = self._facts.name
        full = str(QueueFull(self._facts.model, self._limits.max_queue_length))
        self._batches.hand_out(failures(members[accepted:], 429, "Too many requests", full))
        self._todo.adopted += [Adopted(adoption, None) for adoption in adoptions]

    def _failed(self, now: float, asked: _Asked, error: StoreUnavailable) -> None:
        """Whether the call was executed is not known: callers are told, completions are repeated.

        A sweep takes back batches that were released to an answer that got lost.
        """
        if not self._failures:
            self._todo.log.append((logging.WARNING, f"{self._facts.name}: {error}"))
        self._failures += 1
        self._refused += asked.refused
        self._batches.completed = asked.completed + self._batches.completed
        if self._facts.life is not Life.CLEARING or self._failures < SENDINGS:  # else he would not end while the store is away
            self._batches.given_up += asked.swept or ()
        if self._facts.life is not Life.CLEARING:
            self._to_install = self._to_install or asked.install
        if error.asked:
            self._leave_the_queue([member for _, member in asked.arrivals])  # who may wait there all the same
        self._leave_the_queue(asked.gone)
        self._turn_away([member_id(member) for _, member in asked.arrivals], error)
        self._todo.adopted += [Adopted(adoption, error) for adoption in asked.adoptions]
        ending = self._facts.ending and not self._callers_here()
        # Who ends does not ask again and again: what he holds is served when his lease is over.
        self._sweep_at = now + self._limits.lease / SWEEPS if ending else AT_ONCE
        somebody_waits = self._arrivals.callers or self._adoptions
        self._ask_at = AT_ONCE if somebody_waits else self._sweep_at if ending else now + RETRY

    def _lost(self, asked: _Asked) -> None:
        """The store does not know the queue: install its table, and submit again what waits here."""
        self._refused += asked.refused
        self._arrivals.left = asked.direct + self._arrivals.left
        self._adoptions = asked.adoptions + self._adoptions
        came = [member_id(member) for _, member in asked.arrivals]
        self._arrivals.again([self._waiting[request_id] for request_id in came if self._facts.waits_here(request_id)])
        self._batches.given_up.clear()
        self._batches.vacant.clear()
        self._gone.clear()
        self._gone_bytes = 0
        self._to_install = self._table()
        self._ask_at = self._sweep_at = AT_ONCE
        if self._facts.epoch is not None:
            self._facts.epoch = None
            self._submit_again(besides=set())

    def _submit_again(self, besides: set[str]) -> None:
        """The store lost the queue: what waits here, but for what is computed, told or was submitted since, comes again."""
        self._todo.log.append((logging.WARNING, f"{self._facts.name}: the store lost the queue; submitting what waits here again"))
        besides = besides | self._batches.requests | {caller.item.id for caller in self._arrivals.callers}
        besides |= {member_id(member) for adoption in self._adoptions for member in adoption.members}
        self._arrive_again([request_id for request_id in self._waiting if request_id not in besides])

    def _arrive_again(self, request_ids: Iterable[str]) -> None:
        """Who of these waits here at this queue comes again, and brings the time when he came: the record of that was lost too."""
        callers = [self._waiting[request_id] for request_id in request_ids if self._facts.waits_here(request_id)]
        self._arrivals.again(callers)
        self._ask_at = AT_ONCE

    # -- the life of the route

    def _table(self) -> Policy:
        """The route's table, which gives up nobody later than this process does: who got 504 must not be served before others.

        A retired route holds nobody, in batches that its function would take: another process may not know yet that it is retired.
        """
        policy = self._facts.rule
        if self._facts.retired:
            policy = greedy(policy.max_batch_size, servers=None)
        return replace(policy, drop_after=self._facts.longest_wait())

    def _next_turn(self) -> float:
        """When the queue is swept where nobody needs it; a turn that has not come yet is kept."""
        if self._turn_comes_at < self._sweep_at:
            self._turn_comes_at = self._rounds.place(self._sweep_at)
        return self._turn_comes_at

    def _is_needed(self) -> bool:
        """Whether others may take this process's batches back, or it those of others."""
        name, batches = self._facts.name, self._batches
        if batches.under_way or batches.given_up or self._arrivals.waited > 0:
            return True
        return any(caller.queue == name for caller in self._waiting.values())

    def _to_clear(self) -> bool:
        """Whether somebody may wait at a retired queue that no process may look after any more, and none but this will give up."""
        if self._facts.life is not Life.CLEARING:
            return False
        return bool(self._arrivals.callers or self._batches.given_up) or self._to_install is not None

    def _nobody_waits(self) -> bool:
        """Whether a queue that is empty is all there is of this route."""
        arrivals, batches = self._arrivals, self._batches
        if self._busy() or arrivals.callers or arrivals.left or batches.completed or batches.given_up:
            return False
        return not self._callers_here()

    def _busy(self) -> bool:
        """Whether something of this route is under way here that has an end, besides a call."""
        return self._batches.busy or bool(self._adoptions)

    def _callers_here(self) -> bool:
        """Whether a caller of this process waits for an answer to what is in this queue, or at work on another process."""
        name, at_work = self._facts.name, self._batches.requests
        return any(caller.queue == name and request_id not in at_work for request_id, caller in self._waiting.items())
