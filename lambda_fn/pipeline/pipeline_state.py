"""The state of a pipeline: which item is where, who works on it, and what is to be done next. Facts in, instructions out.

What may live here: items and their payloads, which are opaque; queues, workers, times. What may not: a clock, I/O, a thread, a
process, the contents of a payload. Every fact that needs the time is given it, on one clock that does not run backwards.

Facts: ``start``, ``came``, ``gone``, ``ready``, ``failed_to_start``, ``returned``, ``stopped``, ``skipped``, ``died``, ``close``.
``turn(now)`` applies the rules and returns all that is to be done; a shell tells what happened and then takes a turn.

The way of an item. A ``Ticket`` is an item on one way through the stages; it is at one place at a time: before a stage, or
aboard one of its workers. Where a flow forks, each branch has a ticket of its own, and the one that ends last goes on with what all
brought. An item is answered once, with the output of the last stage, or with the first error of any of its tickets; whatever its
tickets still bring is dropped.

Who works on what. A stage with a table forms batches with ``sluice.batching.Batcher``; a worker that is not there counts as busy. A
stage without one gives single items to its workers. A worker that is quick would wait for its next work longer than it works; so it
is given some ahead, of ``AHEAD`` seconds at most: single items, several in a message, and a batch where it is settled, as more wait
than the table has rows for: then the rule will not decide otherwise when the worker is free. A worker that then returns nothing for
``SILENT`` is at something that takes long: where others of its stage do return, it is stopped before what it has not begun
(``marks.py``), and that goes to whoever is free first. What was aboard a worker that died is tried once more, each item alone;
then it fails.

The life of a worker: starting -> ready -> (died) -> down -> starting; a start that fails, or takes too long, leads to down too. It
is started again after a pause, which doubles while it does not last, up to ``MAX_PAUSE``. Who was frozen, as a function is between
two invocations, has frozen his workers too: one whose time ended meanwhile gets it anew. A stage is down when the last start of
each of its workers failed: what comes to it fails at once, with the cause, until one is ready.

Bounds. How many items are in it is for the shell to bound, which admits them. While they hold more than ``max_bytes``, only one
worker works at a time, and stages near the end are served first: so items leave, and what stages make of them has an end too.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any, NamedTuple

from sluice.batching.batcher import Batcher
from sluice.batching.policy import Policy

from .errors import DeadlinePassed, PipelineError, PipelineStopped, ProcessDied, StageDown, StageTimeout, StartupFailed, not_started

START_TIMEOUT = 120.0  # s until a worker must be ready
FIRST_PAUSE, MAX_PAUSE = 0.1, 5.0  # s before a worker is started again
STEADY = 10.0  # s after which a worker that dies is started again at once
AHEAD = 0.003  # s of work that a worker may be given before it has ended what it is at
MAX_AHEAD = 64  # items
SILENT = 0.01  # s after which a worker that returns nothing keeps nothing that it has not begun
LATE = 1.0  # s after a time that was due: who looks only then has not been running


class End:
    """The place of an item that has been through all."""


END = End()


@dataclass(frozen=True, slots=True)
class Meet:
    """The end of a branch."""


@dataclass(frozen=True, slots=True)
class Fork:
    """All ``branches`` get the item; what they make of it goes to the stage ``join``, together."""

    branches: tuple[Place, ...]
    join: int


Place = int | Fork | Meet | End
"""Where an item goes: a stage by its number, or one of the above."""


@dataclass(frozen=True, slots=True)
class StageRule:
    """What the state knows of a stage.

    ``branches``: its output is the number of one of them, to which its input goes on. ``timeout`` (s) bounds one call.
    """

    name: str
    workers: int
    policy: Policy | None
    then: Place
    branches: tuple[Place, ...] | None = None
    timeout: float | None = None


class Item:
    """Someone's request; ``caller`` is whatever the shell knows him by."""

    __slots__ = ("caller", "deadline", "done", "files", "held", "tickets")

    def __init__(self, caller: Any, deadline: float | None, files: bool) -> None:
        self.caller = caller
        self.deadline = deadline
        self.files = files  # its payloads may be in files
        self.done = False
        self.held = 0  # bytes
        self.tickets: list[Ticket] = []


class Ticket:
    """An item on one way through the stages; ``payload`` is what it brings to the next."""

    __slots__ = ("branch", "group", "item", "number", "payload", "place", "size", "stage", "tried")

    def __init__(self, number: int, item: Item, payload: Any, size: int, group: Group | None, branch: int) -> None:
        self.number = number
        self.item = item
        self.payload = payload
        self.size = size
        self.group = group
        self.branch = branch
        self.stage: _Stage | None = None  # before which it waits
        self.place = 0  # among all that was given to the worker which has it
        self.tried = False  # a worker of this stage died under it


class Group:
    """The tickets of a fork, and what those that ended brought."""

    __slots__ = ("branch", "join", "missing", "outer", "payloads", "size")

    def __init__(self, outer: Group | None, branch: int, join: int, branches: int) -> None:
        self.outer = outer
        self.branch = branch
        self.join = join
        self.payloads: list[Any] = [None] * branches
        self.missing = branches
        self.size = 0


class Life(Enum):
    """Of a worker."""

    STARTING = auto()
    READY = auto()
    DOWN = auto()  # it is to be started at ``due``


class Outcome(NamedTuple):
    """What a worker made of a ticket; where ``failed``, ``payload`` is its error."""

    number: int
    failed: bool
    payload: Any
    size: int


class Answer(NamedTuple):
    """``payload`` is the output, an error as a worker gave it, or an exception of ``errors``; ``stage``: which of them failed."""

    caller: Any
    failed: bool
    payload: Any
    stage: str | None


class Turn(NamedTuple):
    """What is to be done: answer callers, give workers work, start some, kill some; stop some, so that they begin nothing more of
    what lies before a place, and say as ``stopped`` what they have begun then; and come back at ``wake_at`` (s)."""

    answers: list[Answer]
    work: list[tuple[int, list[Ticket]]]
    start: list[int]
    kill: list[int]
    stop: list[tuple[int, int]]
    wake_at: float | None


class _Stage:
    __slots__ = (
        *(
            "again",
            "arrived",
            "batcher",
            "cause",
            "ended",
            "free",
            "number",
            "rule",
            "seconds",
            "stale",
            "touched",
            "waiting",
            "wakes_at",
            "workers",
        ),
    )

    def __init__(self, number: int, rule: StageRule) -> None:
        self.number = number
        self.rule = rule
        self.workers: list[_Worker] = []
        self.free: list[_Worker] = []  # ready, with nothing aboard
        self.again: deque[list[Ticket]] = deque()  # to be given as they are: those tried once more, and batches that were not begun
        self.cause: str | None = None  # it is down
        self.stale = False  # of those who wait, some are answered
        self.touched = True  # something happened to it since it was served
        self.wakes_at: float | None = None  # s
        self.arrived: list[Ticket] = []
        # With a table:
        self.batcher: Batcher[Ticket] | None = None if rule.policy is None else Batcher(rule.policy)
        self.ended = 0  # batches
        # Without:
        self.waiting: deque[Ticket] = deque()
        self.seconds: float | None = None  # of an item, or a batch, a moving average

    def tickets(self) -> list[Ticket]:
        """Those that wait before it, but for those in its batcher."""
        return [*(ticket for tickets in self.again for ticket in tickets), *self.arrived, *self.waiting]


class _Worker:
    __slots__ = (
        *("aboard", "ahead", "apart", "can_stop", "due", "life", "lost", "number", "overdue"),
        *("places", "since", "stage", "steady_at", "stop_at", "why_not"),
    )

    def __init__(self, number: int, stage: _Stage) -> None:
        self.number = number
        self.stage = stage
        self.life = Life.DOWN
        self.due: float | None = None  # s: to be started; while starting or at work, to be killed
        self.steady_at = 0.0  # s
        self.lost = 0  # times in a row that it did not last
        self.aboard: dict[int, Ticket] = {}
        self.ahead = 0  # of these, the first so many are of a batch behind which another was given
        self.apart = False  # what is aboard is tried once more, and gets no company
        self.since = 0.0  # s: it returned something, or was given something while it had nothing
        self.places = 0  # of all that it was given
        self.stop_at = 0  # the place before which it begins nothing more
        self.can_stop = True
        self.overdue = False  # killed for the time it took
        self.why_not: str | None = None  # its last start failed


class PipelineState:
    """The items of a pipeline and the workers of its stages, which ``rules`` are about; an item enters at ``entry``."""

    def __init__(self, rules: Sequence[StageRule], entry: Place, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0  # of the payloads of all items
        self.items = 0
        self.closed = False
        self._entry = entry
        self._stages = [_Stage(number, rule) for number, rule in enumerate(rules)]
        self.workers: list[_Worker] = []
        for stage in self._stages:
            for _ in range(stage.rule.workers):
                stage.workers.append(_Worker(len(self.workers), stage))
                self.workers.append(stage.workers[-1])
            if stage.batcher is not None:
                stage.batcher.in_flight = stage.rule.workers  # none is there yet
        self._numbers = 0
        self._at_work = 0  # workers with something aboard
        self._timed: dict[int, _Worker] = {}  # those with a due time
        self._deadlines: list[tuple[float, int, Item]] = []
        self._past = 0  # entries of _deadlines whose items are answered
        self._answers: list[Answer] = []
        self._kill: list[int] = []
        self._stop: list[tuple[int, int]] = []

    # Facts

    def start(self, now: float) -> None:
        """Every worker is to be started."""
        for worker in self.workers:
            worker.due = now
            self._timed[worker.number] = worker

    def came(self, caller: Any, payload: Any, size: int, deadline: float | None = None, files: bool = False) -> Item:
        """An item, which must be answered before ``deadline`` (s)."""
        item = Item(caller, deadline, files)
        self.items += 1
        self._hold(item, size)
        if self.closed:
            self._answer(item, True, _stopped(), None)
            return item
        self._numbers += 1
        if deadline is not None:
            heapq.heappush(self._deadlines, (deadline, self._numbers, item))
        ticket = Ticket(self._numbers, item, payload, size, None, 0)
        item.tickets.append(ticket)
        self._go(ticket, self._entry)
        return item

    def gone(self, item: Item) -> None:
        """Nobody waits for it any more."""
        if not item.done:
            self._end(item)

    def ready(self, worker: int, now: float, can_stop: bool = True) -> None:
        """A worker has started; whether it can be stopped before what it has not begun."""
        w = self.workers[worker]
        if w.life is not Life.STARTING:
            return
        w.life, w.why_not, w.steady_at = Life.READY, None, now + STEADY
        w.places, w.stop_at, w.can_stop = 0, 0, can_stop
        self._due(w, None)
        w.stage.cause = None
        self._free(w)

    def failed_to_start(self, worker: int, cause: str, now: float) -> None:
        """A worker will not become ready; its process is gone or is to go."""
        w = self.workers[worker]
        if w.life is not Life.STARTING:
            return
        w.why_not = cause
        self._pause(w, now)
        stage = w.stage
        if all(other.why_not is not None for other in stage.workers):
            stage.cause = cause
            for ticket in stage.tickets():
                self._fail_down(ticket)
            stage.stale = stage.touched = True
            if stage.batcher is not None:
                stage.batcher.withdraw(self._fail_down)

    def returned(self, worker: int, outcomes: Iterable[Outcome], seconds: float, now: float) -> None:
        """What a worker made of some, or all, that it has aboard, in ``seconds`` of work."""
        w = self.workers[worker]
        stage = w.stage
        rule = stage.rule
        aboard = w.aboard
        count = 0
        for number, failed, payload, size in outcomes:
            ticket = aboard.pop(number, None)
            if ticket is None:
                continue
            count += 1
            item = ticket.item
            if item.done:
                continue
            if failed:
                self._answer(item, True, payload, rule.name)
            elif rule.branches is not None:
                self._go(ticket, rule.branches[payload])
            else:
                self.bytes += size - ticket.size
                item.held += size - ticket.size
                ticket.payload, ticket.size = payload, size
                self._go(ticket, rule.then)
        if count:
            each = seconds / count if stage.batcher is None else seconds
            stage.seconds = each if stage.seconds is None else stage.seconds + 0.2 * (each - stage.seconds)
            w.ahead = max(0, w.ahead - count)
            w.since = now
        stage.touched = True
        if count and not aboard:
            self._landed(w)

    def stopped(self, worker: int, begun: int) -> None:
        """A worker that was stopped has begun what it was given before the place ``begun``, and nothing behind it.

        What it is to begin first stays: one that does not even do that is no worker for others, before it says so itself.
        """
        w = self.workers[worker]
        first = next(iter(w.aboard.values()), None)
        if first is not None:
            since = max(begun, first.place + max(1, w.ahead))
            self._take_back(w, [ticket for ticket in w.aboard.values() if since <= ticket.place < w.stop_at])

    def skipped(self, worker: int, places: Iterable[int]) -> None:
        """A worker says itself which places it has not begun, as it was stopped before them."""
        w = self.workers[worker]
        not_begun = set(places)
        self._take_back(w, [ticket for ticket in w.aboard.values() if ticket.place in not_begun])

    def died(self, worker: int, cause: str, now: float) -> None:
        """The process of a worker has ended; what it returned before has been told."""
        w = self.workers[worker]
        if w.life is Life.STARTING:
            self.failed_to_start(worker, cause, now)
        if w.life is not Life.READY or self.closed:
            return
        stage = w.stage
        stage.touched = True
        if w.aboard:
            self._at_work -= 1
        elif not w.overdue:  # it was free, and its server no longer is
            stage.free.remove(w)
            if stage.batcher is not None and stage.ended:
                stage.ended -= 1
            elif stage.batcher is not None:
                stage.batcher.in_flight += 1
        for ticket in w.aboard.values():
            if ticket.item.done:
                continue
            if ticket.tried:
                error = ProcessDied(f"two processes of stage {stage.rule.name!r} died under this item: {cause}")
                self._answer(ticket.item, True, error, stage.rule.name)
            else:
                ticket.tried = True
                ticket.stage = stage
                stage.again.append([ticket])
        w.aboard.clear()
        w.ahead = 0
        w.apart = w.overdue = False
        if now >= w.steady_at:
            w.lost = 0
        self._pause(w, now)

    def close(self) -> None:
        """Whoever is not answered never will be, and no worker is started again."""
        self.closed = True
        for ticket in [ticket for stage in self._stages for ticket in stage.tickets()]:
            self._answer_once(ticket.item, _stopped())
        for stage in self._stages:
            if stage.batcher is not None:
                stage.batcher.withdraw(lambda ticket: self._answer_once(ticket.item, _stopped()))
            stage.again.clear()
            stage.arrived.clear()
            stage.waiting.clear()
        for worker in self.workers:
            for ticket in worker.aboard.values():
                self._answer_once(ticket.item, _stopped())
            worker.aboard.clear()
        self._timed.clear()
        self._deadlines.clear()

    def starting(self) -> bool:
        """Whether a worker has not been ready, or failed, yet."""
        return any(worker.life is not Life.READY and worker.why_not is None for worker in self.workers)

    def start_failure(self) -> PipelineError | None:
        """What says that, and why, a worker could not be started."""
        for worker in self.workers:
            if worker.why_not is not None:
                return not_started(StartupFailed, f"stage {worker.stage.rule.name!r} could not", worker.why_not)
        return None

    # Instructions

    def turn(self, now: float) -> Turn:
        """All that is to be done now."""
        if self.closed:
            answers, self._answers = self._answers, []
            return Turn(answers, [], [], [], [], None)
        self._expire(now)
        start: list[int] = []
        if self._timed:
            self._watch(now, start)
        work: list[tuple[int, list[Ticket]]] = []
        wake_at = self._deadlines[0][0] if self._deadlines else None
        for stage in reversed(self._stages):
            if stage.touched or (stage.wakes_at is not None and stage.wakes_at <= now):
                serve = self._serve_singles if stage.batcher is None else self._serve_batches
                stage.wakes_at = serve(stage, now, work)
                if len(stage.workers) > 1:
                    self._stop_silent(stage, now)
                stage.touched = self._held_back()  # by bytes, which may be fewer when another stage has made something of them
            if stage.wakes_at is not None and (wake_at is None or stage.wakes_at < wake_at):
                wake_at = stage.wakes_at
        if self._timed:
            due = min(w.due for w in self._timed.values() if w.due is not None)
            wake_at = due if wake_at is None else min(wake_at, due)
        answers, self._answers = self._answers, []
        kill, self._kill = self._kill, []
        stop, self._stop = self._stop, []
        return Turn(answers, work, start, kill, stop, wake_at)

    # The way of an item

    def _go(self, ticket: Ticket, place: Place) -> None:
        item = ticket.item
        if place is END:
            self._answer(item, False, ticket.payload, None)
        elif type(place) is int:
            stage = self._stages[place]
            ticket.tried = False
            ticket.stage = stage
            if stage.cause is not None:
                self._fail_down(ticket)
            else:
                stage.arrived.append(ticket)
                stage.touched = True
        elif isinstance(place, Fork):
            item.tickets.remove(ticket)
            group = Group(ticket.group, ticket.branch, place.join, len(place.branches))
            self._hold(item, (len(place.branches) - 1) * ticket.size)
            branches = []
            for i in range(len(place.branches)):
                self._numbers += 1
                branches.append(Ticket(self._numbers, item, ticket.payload, ticket.size, group, i))
            item.tickets += branches
            for branch, to in zip(branches, place.branches, strict=True):
                if not item.done:
                    self._go(branch, to)
        else:
            group = ticket.group  # type: ignore[assignment]
            assert group is not None
            item.tickets.remove(ticket)
            group.payloads[ticket.branch] = ticket.payload
            group.size += ticket.size
            group.missing -= 1
            if not group.missing:
                self._numbers += 1
                joined = Ticket(self._numbers, item, group.payloads, group.size, group.outer, group.branch)
                item.tickets.append(joined)
                self._go(joined, group.join)

    def _hold(self, item: Item, size: int) -> None:
        item.held += size
        self.bytes += size

    def _answer(self, item: Item, failed: bool, payload: Any, stage: str | None) -> None:
        self._answers.append(Answer(item.caller, failed, payload, stage))
        self._end(item)

    def _answer_once(self, item: Item, error: Exception) -> bool:
        if not item.done:
            self._answer(item, True, error, None)
        return True

    def _end(self, item: Item) -> None:
        item.done = True
        self.items -= 1
        self.bytes -= item.held
        for ticket in item.tickets:
            ticket.payload = None
            if ticket.stage is not None:
                ticket.stage.stale = ticket.stage.touched = True
        item.tickets.clear()
        if item.deadline is not None:
            self._past += 1
            if self._past > 64 and 2 * self._past > len(self._deadlines):
                self._deadlines = [entry for entry in self._deadlines if not entry[2].done]
                heapq.heapify(self._deadlines)
                self._past = 0

    def _fail_down(self, ticket: Ticket) -> bool:
        stage = ticket.stage
        assert stage is not None
        if not ticket.item.done:
            assert stage.cause is not None
            error = not_started(StageDown, f"no worker of stage {stage.rule.name!r} can", stage.cause)
            self._answer(ticket.item, True, error, stage.rule.name)
        return True

    def _expire(self, now: float) -> None:
        deadlines = self._deadlines
        while deadlines and (deadlines[0][0] <= now or deadlines[0][2].done):
            item = heapq.heappop(deadlines)[2]
            if item.done:
                self._past -= 1
            else:
                where = next((t.stage.rule.name for t in item.tickets if t.stage is not None), None)
                at = f" before stage {where!r}" if where is not None else ""
                item.deadline = None  # it has no entry any more
                self._answer(item, True, DeadlinePassed(f"deadline: the item was not answered within its time{at}"), where)

    # Who works on what

    def _serve_batches(self, stage: _Stage, now: float, work: list[tuple[int, list[Ticket]]]) -> float | None:
        batcher = stage.batcher
        assert batcher is not None
        if stage.stale:
            self._clear(stage)
            batcher.withdraw(lambda ticket: ticket.item.done)
        arrived, stage.arrived = stage.arrived, []
        batcher.accept(now, arrived, stage.ended)
        stage.ended = 0
        while stage.again and stage.free and not self._held_back():
            batcher.in_flight += 1
            self._give(stage.free.pop(), stage.again.popleft(), now, work)
        if self._held_back():
            return None
        step = batcher.advance(now)
        for ticket in step.dropped:
            why = f"deadline: the table of stage {stage.rule.name!r} gives up who waited {stage.rule.policy.drop_after} s"  # type: ignore[union-attr]
            self._answer(ticket.item, True, DeadlinePassed(why), stage.rule.name)
        for batch in step.batches:
            self._give(stage.free.pop(), list(batch), now, work)
        settled = len(batcher) >= len(batcher.policy.hold) - 1
        if settled and not stage.again and stage.rule.timeout is None and (stage.seconds or 1.0) <= AHEAD:
            for w in stage.workers:
                if (
                    w.aboard
                    and not w.ahead
                    and not w.apart
                    and now - w.since <= SILENT
                    and len(batcher) >= len(batcher.policy.hold) - 1
                ):
                    # As if it had ended already: its server takes what it will take then.
                    ahead = batcher.advance(now, completed=1)
                    batcher.in_flight += not ahead.batches
                    for batch in ahead.batches:
                        w.ahead = len(w.aboard)
                        self._board(w, list(batch), work)
        return step.wake_at

    def _serve_singles(self, stage: _Stage, now: float, work: list[tuple[int, list[Ticket]]]) -> float | None:
        waiting = stage.waiting
        if stage.stale:
            self._clear(stage)
            stage.waiting = waiting = deque(ticket for ticket in waiting if not ticket.item.done)
        if stage.arrived:
            waiting.extend(stage.arrived)
            stage.arrived = []
        free = stage.free
        while stage.again and free and not self._held_back():
            self._give(free.pop(), stage.again.popleft(), now, work)
        if not waiting:
            return None
        seconds = stage.seconds
        ahead = 1 if seconds is None or stage.rule.timeout is not None else MAX_AHEAD if seconds <= 0 else int(AHEAD / seconds)
        ahead = max(1, min(MAX_AHEAD, ahead))
        while waiting and free and not self._held_back():
            share = min(ahead, -(-len(waiting) // len(free)))
            self._give(free.pop(), [waiting.popleft() for _ in range(share)], now, work)
        if ahead > 1 and waiting and not stage.again and not self._held_back():
            for w in stage.workers:
                if waiting and w.aboard and not w.apart and len(w.aboard) <= ahead // 4 and now - w.since <= SILENT:
                    more = min(len(waiting), ahead - len(w.aboard))
                    self._board(w, [waiting.popleft() for _ in range(more)], work)
        return None

    def _held_back(self) -> bool:
        return self.bytes > self.max_bytes and self._at_work > 0

    def _clear(self, stage: _Stage) -> None:
        stage.stale = False
        again = ([ticket for ticket in tickets if not ticket.item.done] for tickets in stage.again)
        stage.again = deque(tickets for tickets in again if tickets)
        stage.arrived = [ticket for ticket in stage.arrived if not ticket.item.done]

    def _give(self, w: _Worker, tickets: list[Ticket], now: float, work: list[tuple[int, list[Ticket]]]) -> None:
        self._at_work += 1
        w.since = now
        w.apart = tickets[0].tried
        if w.stage.rule.timeout is not None:
            self._due(w, now + w.stage.rule.timeout)
        self._board(w, tickets, work)

    def _board(self, w: _Worker, tickets: list[Ticket], work: list[tuple[int, list[Ticket]]]) -> None:
        for ticket in tickets:
            ticket.stage = None
            ticket.place = w.places
            w.places += 1
            w.aboard[ticket.number] = ticket
        work.append((w.number, tickets))

    def _stop_silent(self, stage: _Stage, now: float) -> None:
        """Whoever has been silent with work behind what he is at is to begin no more of it, where others of the stage are not."""
        until = None
        for w in stage.workers:
            behind = len(w.aboard) > 1 if stage.batcher is None else w.ahead
            if not behind or w.stop_at == w.places or not w.can_stop:
                continue
            if now < w.since + SILENT:
                until = w.since + SILENT if until is None else min(until, w.since + SILENT)
            elif any(other.life is Life.READY and (not other.aboard or now < other.since + SILENT) for other in stage.workers):
                w.stop_at = w.places
                self._stop.append((w.number, w.stop_at))
        if until is not None and stage.free and (stage.wakes_at is None or until < stage.wakes_at):
            stage.wakes_at = until

    def _take_back(self, w: _Worker, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            del w.aboard[ticket.number]
        waiting = [ticket for ticket in tickets if not ticket.item.done]
        if waiting:
            stage = w.stage
            for ticket in waiting:
                ticket.stage = stage
            if stage.batcher is None:
                stage.waiting.extendleft(reversed(waiting))
            else:
                stage.again.append(waiting)  # they are of one batch
            stage.touched = True
        if tickets:
            w.ahead = 0
            if not w.aboard:
                self._landed(w)

    # Workers

    def _landed(self, w: _Worker) -> None:
        """It has nothing aboard any more."""
        self._at_work -= 1
        w.apart = False
        if w.due is not None and not w.overdue:
            self._due(w, None)
        if not w.overdue:
            self._free(w)

    def _free(self, w: _Worker) -> None:
        w.stage.free.append(w)
        w.stage.touched = True
        if w.stage.batcher is not None:
            w.stage.ended += 1

    def _due(self, w: _Worker, at: float | None) -> None:
        w.due = at
        if at is None:
            self._timed.pop(w.number, None)
        else:
            self._timed[w.number] = w

    def _pause(self, w: _Worker, now: float) -> None:
        w.life = Life.DOWN
        pause = 0.0 if not w.lost and w.why_not is None else min(MAX_PAUSE, FIRST_PAUSE * 2 ** min(w.lost, 16))
        w.lost += 1
        self._due(w, now + pause)

    def _watch(self, now: float, start: list[int]) -> None:
        for w in [w for w in self._timed.values() if w.due is not None and w.due <= now]:
            if w.life is Life.DOWN:
                w.life = Life.STARTING
                self._due(w, now + START_TIMEOUT)
                start.append(w.number)
            elif w.due is not None and now > w.due + LATE:
                self._due(w, now + (START_TIMEOUT if w.life is Life.STARTING else w.stage.rule.timeout or 0.0))
            elif w.life is Life.STARTING:
                self._kill.append(w.number)
                self.failed_to_start(w.number, f"it was not ready after {START_TIMEOUT:g} s", now)
            else:
                self._kill.append(w.number)
                self._due(w, None)
                w.overdue = True
                name, timeout = w.stage.rule.name, w.stage.rule.timeout
                for ticket in w.aboard.values():
                    if not ticket.item.done:
                        error = StageTimeout(f"timeout: stage {name!r} worked on this item for longer than {timeout} s")
                        self._answer(ticket.item, True, error, name)


def _stopped() -> PipelineStopped:
    return PipelineStopped("the pipeline was stopped before this item was answered")
