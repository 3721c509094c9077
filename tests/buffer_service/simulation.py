"""Several processes of the buffer on one queue store, in virtual time, while whatever may go wrong does: every run is its seed.

``python -m tests.buffer_service.simulation SEED`` repeats a run and prints what happened and what is wrong with it.

What runs is what serves: ``ServedModel`` with its dispatchers and their states, ``Callers``, the memory store's queues. Simulated
are the network to the store, the store's mail, the functions, the callers, and time. A seed draws the processes, the plans, the
requests and the faults; these end at ``FAULTS_END``, and from then on the store, the functions and every process that has not
crashed are well.

What must hold (``World.wrong`` has what does not):

1.  Every caller gets one answer, and his own: what the function said of his request. An error only where something happened that
    allows it for this request. Whoever asks after the faults have ended is answered by the model, and soon.
2.  The queue answers every call as ``queue_in_words.py`` has it: batches as the table says, oldest first, never more in flight than
    it has servers; who is taken back keeps his age; what was lost too often is put aside.
3.  Nobody's batch is taken back while he holds it: from another only when that one was not heard of for a lease, for a reason; from
    himself only where an answer of the store was lost.
4.  A request is computed where a batch with it is in flight, by one part of it at a time, and once; again only where it was taken
    back, the store lost the queue, or an answer of the store was lost.
5.  A route is drained only when no caller of the process waits at it.
6.  In the end nobody waits, nothing is in flight, no lease is held, and every process closes in time.
7.  Arrivals are recorded with the time when they came.
8.  No step of the buffer ends with an exception that nobody takes, whatever comes of that.
9.  Who was told by the queue when to ask again asks then. When all have followed the same plan, its tables rule.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import msgspec

from sluice.batching import Policy
from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, Route
from sluice.batching.errors import DeadlinePassed, FunctionFailed, SluiceError, StoreUnavailable
from sluice.buffer_service.callers import Callers
from sluice.buffer_service.dispatcher import deliver
from sluice.buffer_service.invokers import BatchTooLarge, FunctionUnavailable, UnknownFunction
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.served_model import ServedModel
from sluice.buffer_service.store import Events, Limits, Outcome, QueueLost, queue_name
from sluice.buffer_service.telemetry import Telemetry
from sluice.lambda_fn.contract import Answer, Item, decode_batch, encode_answers
from tests.buffer_service.queue_in_words import QueueInWords, TakenBack
from tests.buffer_service.virtual_time import PROCESS, VirtualLoop, run

MODEL = "m"
PATIENCE = 60.0  # s a caller waits: longer than all faults together, so that nobody's time is over who is served as promised
FAULTS_END = 3.0  # s
SOON = 1.5  # s within which who comes after the faults has his answer
IN_TIME = 0.01  # s from when a call is due until the store has it, at most, while nothing goes wrong
HUGE, CAPACITY = 100, 120  # bytes of an item that no function takes, and of a batch
FAULTS = (
    "answers of the store get lost",
    "calls to the store get lost",
    "the store is away",
    "the store is slow",
    "the store forgets",
    "processes pause",
    "processes crash",
    "processes leave",
    "batches fail",
    "items poison",
    "functions are away",
    "batches are too large",
    "answers are wrong",
    "the buffer has a defect",
    "functions are slow",
    "plans change",
    "callers leave",
    "queues are short",
    "tables drop",
)


class Planted(Exception):
    """What the buffer does not expect, where a run has it meet that."""


class CallMade(NamedTuple):
    """A call that the store executed; a ``policy`` was installed, or ``events`` were taken. Neither: the store lost its data.

    ``by`` numbers the queues as processes opened them. Without an ``outcome`` the store did not know the queue; ``open_order`` is
    where the order of the outcome is anybody's.
    """

    by: int
    route: str
    process: str
    now: float
    policy: Policy | None = None
    events: Events | None = None
    outcome: Outcome | None = None
    open_order: bool = False


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
    hits: list[float] = field(default_factory=list)  # when the store failed it, was slow to it, or it was stopped
    let_down: list[float] = field(default_factory=list)  # when the store failed it in a message or in a move


class World:
    """A run; ``wrong`` says what should not have happened."""

    def __init__(
        self, seed: int, loop: VirtualLoop, telemetries: dict[str, Telemetry], faults: tuple[str, ...] | None = None
    ) -> None:
        self.seed = seed
        self.loop = loop
        self.rng = rng = random.Random(seed)
        weather = rng.choice((0.0, 0.15, 0.3, 0.3, 0.6))  # from calm to storm: which part of all faults
        often = {
            "plans change": 2.0,
            "calls to the store get lost": 1.5,
            "processes leave": 1.5,
        }  # most of what is decided is about these
        drawn = tuple(fault for fault in FAULTS if rng.random() < weather * often.get(fault, 1.0))
        self.faults = frozenset(drawn if faults is None else faults)
        self.lease = rng.choice((0.9, 1.5))
        self.limits = Limits(rng.choice((2, 5)) if "queues are short" in self.faults else 10_000, self.lease, rng.choice((2, 3, 5)))
        self.server = copy_context()
        self.backend = MemoryBackend()
        self.mail: defaultdict[str, deque[bytes]] = defaultdict(deque)
        self.readers: dict[str, asyncio.Future[None]] = {}
        self.in_words: dict[str, QueueInWords] = {}  # by queue
        self.announced: set[tuple[str, str]] = set()  # queues and batches that the process they were released to knows of
        self.wakes: dict[tuple[str, str], tuple[float, float]] = {}  # by queue and process: when it was told, and for when
        self.released_at: dict[tuple[str, str], float] = {}  # by queue and batch
        self.batch_of: dict[str, tuple[str, str]] = {}  # queue and batch that a request was released in last, until it is moved
        self.members_of: dict[tuple[str, str], list[str]] = {}  # by queue and batch
        self.parts: defaultdict[tuple[str, str], int] = defaultdict(int)  # invocations under way, by queue and batch
        self.processes: dict[str, Process] = {}
        self.telemetries = telemetries
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
        self.gone: dict[str, float] = {}  # functions, and since when
        self.away = [self._span(1.5) for _ in range(rng.randint(1, 2))] if "the store is away" in self.faults else []
        self.unavailable = [self._span(0.6) for _ in range(2)] if "functions are away" in self.faults else []
        self.opened = 0
        self.calls: list[CallMade] = []
        self.wrong: list[str] = []
        self.told: list[str] = []
        self.verbose = False

    def note(self, line: str) -> None:
        if self.verbose:
            self.told.append(f"{self.loop.time():9.4f}  {line}")

    def blame(self, line: str) -> None:
        self.wrong.append(f"{self.loop.time():.4f} s: {line}")
        self.note(f"WRONG {line}")

    def chance(self, fault: str, probability: float) -> bool:
        """Whether a fault that this run has strikes now."""
        return fault in self.faults and self.loop.time() < FAULTS_END and self.rng.random() < probability

    def _span(self, longest: float) -> tuple[float, float]:
        begin = self.rng.uniform(0.0, FAULTS_END - 0.1)
        return begin, min(FAULTS_END, begin + self.rng.uniform(0.05, longest))

    def later(self, delay: float, work: Callable[..., None], *args: Any) -> None:
        """Something outside the processes happens."""
        self.loop.call_later(delay, work, *args, context=self.server)

    def stumbled(self, error: BaseException | None) -> None:
        """Something of the buffer ended with an exception that nobody takes, or logged one."""
        died = any(not process.alive for process in self.processes.values())  # with what it was about to take
        if not isinstance(error, Planted) and not (died and isinstance(error, SluiceError)):
            self.blame(f"an exception: {error!r}")

    # -- the store, by whom it is called

    async def to_store(
        self, process: Process, what: str, work: Callable[[], Any], faultless: bool = False, moves: bool = False
    ) -> Any:
        """One exchange with the store: there, executed, back; on the way it may get lost, perhaps with what it ``moves``."""
        answer: asyncio.Future[Any] = self.loop.create_future()
        self.later(self._delay(process), self._execute, process, what, work, answer, faultless)
        try:
            return await answer
        except StoreUnavailable:
            if moves:
                process.let_down.append(self.loop.time())
            raise

    def _delay(self, process: Process) -> float:
        if self.chance("the store is slow", 0.05):
            process.hits.append(self.loop.time())
            return self.rng.uniform(0.0, 1.2 * self.lease)
        return self.rng.uniform(0.0001, 0.002)

    def _execute(self, process: Process, what: str, work: Callable[[], Any], answer: asyncio.Future[Any], faultless: bool) -> None:
        result: Any
        lost = not faultless and self.chance("answers of the store get lost", 0.1)
        now = self.loop.time()
        if any(begin <= now < end for begin, end in self.away) or (
            not faultless and self.chance("calls to the store get lost", 0.1)
        ):
            self.note(f"{process.name} {what}: not executed")
            result = StoreUnavailable("the store is away")
        else:
            try:
                result = work()
            except SluiceError as error:
                result = error
            if lost:
                self.note(f"{process.name} {what}: its answer is lost")
                self._never_heard(result)
                result = StoreUnavailable("the answer was lost")
        self.later(self._delay(process), self._return, process, result, answer)

    def _never_heard(self, result: Any) -> None:
        """An outcome gets lost: nobody tells those whom it gave up, and what it brought may be brought again."""
        if isinstance(result, Outcome):
            call = self.calls[-1]
            assert call.events is not None
            self.again.update(map(_id, call.events.arrivals))
            self.never_told.update(map(_id, [*result.dropped, *result.dead]))

    def _return(self, process: Process, result: Any, answer: asyncio.Future[Any]) -> None:
        if isinstance(result, StoreUnavailable):
            process.hits.append(self.loop.time())
        if answer.done():
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def forget(self) -> None:
        """The store loses all its data."""
        self.note("the store forgets")
        self.calls.append(CallMade(0, "", "", self.loop.time()))
        self.wakes.clear()
        self.backend.queues.clear()
        self.again.update(self.by_id)
        self.at_home.update(request for request in self.by_id if self._computed_at_home(request))
        self.in_words.clear()
        self.mail.clear()

    def _computed_at_home(self, request: str) -> bool:
        """Whether the process that its caller waits at has it in a batch, and so need not submit it again."""
        queue, batch_id = self.batch_of.get(request, ("", ""))
        in_flight = queue in self.in_words and batch_id in self.in_words[queue].in_flight
        return in_flight and batch_id[:8] == request[:8] and (queue, batch_id) in self.announced

    # -- the store, as it is told to the checks

    def installed(self, by: int, route: str, process: Process, policy: Policy) -> None:
        self.note(f"{process.name} {route!r}: installs {policy.kind} {policy.parameters}")
        self.calls.append(CallMade(by, route, process.name, self.loop.time(), policy))
        name = queue_name(MODEL, route)
        if name in self.in_words:
            self.in_words[name].policy = policy
        else:
            self.in_words[name] = QueueInWords(policy)

    def advanced(self, by: int, route: str, process: Process, events: Events, outcome: Outcome) -> None:
        now = self.loop.time()
        name = queue_name(MODEL, route)
        words = self.in_words[name]
        for wrong in words.check(process.name, events, outcome, self.limits, now):
            self.blame(f"{name}, {process.name}: {wrong}")
        self.calls.append(CallMade(by, route, process.name, now, None, events, outcome, words.open_order))
        self.note(f"{process.name} {route!r}: {_shown(events)} -> {_shown_outcome(outcome)}")
        for taken in words.taken_back:
            self._check_taken_back(name, taken)
        self._check_wakes(name, process, outcome, now)
        if events.recorded:
            for request in map(_id, events.arrivals[: outcome.accepted]):
                self.adopted_by[request] = process.name
                self.batch_of.pop(request, None)
        else:
            self._check_ages(name, process, events, outcome, now)
        for batch in outcome.batches:
            self.released_at[name, batch.batch_id] = now
            self.announced.discard((name, batch.batch_id))  # a route that returns counts its calls anew
            self.members_of[name, batch.batch_id] = list(map(_id, batch.members))
            self.batch_of.update(dict.fromkeys(map(_id, batch.members), (name, batch.batch_id)))
        for member in events.arrivals[outcome.accepted :]:
            self.allowed[_id(member)].update((429, "QueueFull"))
        self.given_up_by.update((_id(member), process.name) for member in [*outcome.dropped, *outcome.dead])
        for member in outcome.dropped:
            self.allowed[_id(member)].add(504)
        for member in outcome.dead:
            self.allowed[_id(member)].add(502)

    def _check_taken_back(self, name: str, taken: TakenBack) -> None:
        owner = self.processes[taken.batch_id[:8]]
        since = self.released_at[name, taken.batch_id] if taken.by == owner.name else taken.heard
        excused = since is None or not owner.alive or owner.closed or any(hit >= since - 2 * self.lease for hit in owner.hits)
        if taken.by == owner.name:  # he never knew of it, or could not send or move what came of it
            hits = owner.let_down if (name, taken.batch_id) in self.announced else owner.hits
            excused = any(hit >= self.released_at[name, taken.batch_id] for hit in hits)
        elif since is None:  # nobody knows of him since the store forgot, until his next call, which is due at once
            released = self.released_at[name, taken.batch_id]
            away = not owner.alive or owner.closed or any(hit >= released - 2 * self.lease for hit in owner.hits)
            excused = any(call.by == 0 for call in self.calls) and (away or self.loop.time() <= released + IN_TIME)
        if not excused:
            self.blame(f"{name}: batch {taken.batch_id} is taken back by {taken.by} though its process holds it")
        self.note(f"{name}: {taken.batch_id} is taken back by {taken.by}")
        self.again.update(map(_id, taken.members))
        self.at_home.difference_update(map(_id, taken.members))

    def _check_wakes(self, name: str, process: Process, outcome: Outcome, now: float) -> None:
        """Nobody lets the time pass for which the queue last asked him to call again."""
        for (queue, sleeper), (told, due) in self.wakes.items():
            owner = self.processes[sleeper]
            excused = not owner.alive or owner.leaving or owner.closed or any(hit >= told - 2 * self.lease for hit in owner.hits)
            if queue == name and now > due + IN_TIME and not excused:
                self.blame(f"{name}: {sleeper} was to ask at {due:.4f}")
        self.wakes.pop((name, process.name), None)
        if outcome.wake_in is not None:
            self.wakes[name, process.name] = now, now + outcome.wake_in

    def _check_tables(self) -> None:
        """What rules is what the plan says, where everybody has followed it."""
        if any(not process.alive or process.leaving for process in self.processes.values()):
            return  # who is no more may have put an older table over it
        plans = [process.model.plan for process in self.processes.values()]
        for way in plans[0].ways if all(plan.digest == plans[0].digest for plan in plans) else ():
            name, wanted = queue_name(MODEL, way.name), way.policy.policy()
            rules = self.in_words[name].policy
            drop_after = PATIENCE if wanted.drop_after is None else wanted.drop_after
            if (rules.hold, rules.take, rules.servers, rules.drop_after) != (wanted.hold, wanted.take, wanted.servers, drop_after):
                self.blame(f"{name}: {rules} rules instead of {wanted}")

    def _check_ages(self, name: str, process: Process, events: Events, outcome: Outcome, now: float) -> None:
        for member, age in zip(events.arrivals[: outcome.accepted], events.ages, strict=False):
            came = self.by_id[_id(member)].came
            late = now - age - came
            if not (-1e-9 <= late <= 0.01 or (late > 0 and process.hits)):
                self.blame(f"{name}: {_id(member)} came at {came:.4f} and is recorded at {now - age:.4f}")

    # -- functions

    async def invoke(self, process: Process, function: str, payload: bytes) -> bytes:
        """A function at work for a process."""
        answer: asyncio.Future[bytes] = self.loop.create_future()
        items = decode_batch(payload).items
        self._check_invoked(process, function, items)
        batch = self.batch_of.get(items[0].id, ("", "")) if items else ("", "")
        for counts, key in [(self.parts, batch), *((self.running, item.id) for item in items)]:
            counts[key] += 1  # type: ignore[index]
        self.later(self._service_time(len(items)), self._serve, process, function, items, batch, answer)
        return await answer

    def _check_invoked(self, process: Process, function: str, items: list[Item]) -> None:
        batches = {self.batch_of.get(item.id) for item in items if item.id not in self.again}
        if not items or len(batches) > 1:
            self.blame(f"{process.name}: parts of batches {batches} are sent as one")
        for queue, batch_id in filter(None, batches):
            if batch_id[:8] != process.name or batch_id not in self.in_words[queue].in_flight:
                self.blame(f"{process.name}: {batch_id} of {queue} is computed, and is not in flight here")
            if self.parts[queue, batch_id]:
                self.blame(f"{process.name}: two parts of {batch_id} of {queue} are computed at once")
        for item in items:
            once = item.id not in self.again or (item.id in self.at_home and not process.let_down)
            if once and (self.running[item.id] or item.id in self.computed):
                self.blame(f"{process.name}: {item.id} is computed again")
        self.note(f"{process.name}: asks {function} for {[item.id[-3:] for item in items]}")

    def _service_time(self, size: int) -> float:
        if self.chance("functions are slow", 0.3):
            return self.rng.uniform(0.1, 2 * self.lease)
        return self.rng.uniform(0.002, 0.02) + 0.001 * size

    def _serve(
        self, process: Process, function: str, items: list[Item], batch: tuple[str, str], answer: asyncio.Future[bytes]
    ) -> None:
        self.parts[batch] -= 1
        for item in items:
            self.running[item.id] -= 1
        result = self._result(process, function, items)
        self.note(f"{process.name}: {function} answers {[item.id[-3:] for item in items]} {result!r:.60}")
        if answer.done():
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def _result(self, process: Process, function: str, items: list[Item]) -> bytes | Exception:
        now = self.loop.time()
        if function in self.gone and now >= self.gone[function]:
            if function in {way.function for way in process.model.plan.ways}:
                self._allow(items, 502)  # it was not told in time that the function goes
            kind = UnknownFunction if self.rng.random() < 0.5 else FunctionUnavailable
            return kind(f"{function} is gone")
        if any(begin <= now < end for begin, end in self.unavailable):
            self._allow(items, 502)
            return FunctionUnavailable("throttled")
        if self.chance("the buffer has a defect", 0.1):
            self._allow(items, 500)
            for item in items:  # the rest of their batch has no answer either
                for request in self.members_of.get(self.batch_of.get(item.id, ("", "")), ()):
                    self.allowed[request].add(500)
            return Planted("nobody expected this")
        kinds = {self.by_id[item.id].kind: item for item in items}
        if sum(len(item.body) for item in items) > CAPACITY or "huge" in kinds:
            if len(items) == 1:
                self._allow(items, 413)
            return BatchTooLarge(f"at most {CAPACITY} bytes")
        if "poison" in kinds or self.chance("batches fail", 0.3):
            if len(items) == 1:
                self._allow(items, 502)
            return FunctionFailed("the function choked")
        answers = [_computed(item) for item in items]
        if self.chance("answers are wrong", 0.3):
            if len(items) == 1:
                self._allow(items, 502)
            return self._wrong_answers(answers)
        self.computed.update(item.id for item in items)
        return encode_answers(answers)

    def _wrong_answers(self, answers: list[Answer]) -> bytes:
        """One too few, one too many, in another order, or no answers at all."""
        kind = self.rng.randrange(4)
        if kind == 0:
            return encode_answers(answers[1:])
        if kind == 1:
            return encode_answers([*answers, answers[0]])
        return encode_answers(answers[1:] + answers[:1]) if kind == 2 and len(answers) > 1 else b"{"

    def _allow(self, items: list[Item], status: int) -> None:
        for item in items:
            self.allowed[item.id].add(status)

    # -- processes

    def start(self, number: int, plan: Plan) -> Process:
        """A process begins to serve."""
        name = f"process{number}"
        context = copy_context()
        context.run(PROCESS.set, name)
        process = Process(name, context, WatchedCallers(self, name))
        self.processes[name] = process
        telemetry = self.telemetries.setdefault(name, Telemetry())
        store: Any = SimulatedStore(self, process)
        invoker: Any = SimulatedInvoker(self, process)

        def begin() -> None:
            process.model = WatchedModel(self, process, plan, store, invoker, telemetry)

        context.run(begin)
        self.spawn(process, self._receive(process, store))
        return process

    def spawn(self, process: Process, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Something that a process does."""
        return self.loop.create_task(work, context=process.context)

    async def _receive(self, process: Process, store: SimulatedStore) -> None:
        while True:
            try:
                for message in await store.receive():
                    deliver(message, process.callers)
            except StoreUnavailable:
                await asyncio.sleep(0.2)

    def stop(self, process: Process, seconds: float | None) -> None:
        """A process takes no step for so long; ``None``: never again."""
        if not process.alive or process.name in self.loop._stopped:
            return
        self.note(f"{process.name} stops for {seconds}")
        process.hits.append(self.loop.time())
        self.loop.stop_process(process.name)
        if seconds is None:
            process.alive = False
            return
        self.later(seconds, self._resume, process)

    def _resume(self, process: Process) -> None:
        if process.alive:
            self.note(f"{process.name} goes on")
            process.hits.append(self.loop.time())
            self.loop.resume_process(process.name)

    # -- callers

    def ask(self, process: Process, fresh: bool = False) -> None:
        """Somebody asks."""
        if not process.alive or process.leaving:
            return
        kind = "plain"
        if not fresh and "items poison" in self.faults and self.rng.random() < 0.15:
            kind = "poison"
        if not fresh and "batches are too large" in self.faults and self.rng.random() < 0.3:
            kind = "huge" if self.rng.random() < 0.3 else "large"
        request = Request(len(self.requests), process.name, kind, self.loop.time(), fresh)
        self.requests.append(request)
        task = self.spawn(process, self._call(process, request))
        if self.chance("callers leave", 0.3):
            self.later(self.rng.uniform(0.0, 0.1), self._leave, request, task)

    def _leave(self, request: Request, task: asyncio.Task[None]) -> None:
        if not task.done():
            task.cancel()
            request.ended, request.status = self.loop.time(), "left"

    async def _call(self, process: Process, request: Request) -> None:
        body = b'{"i": %d}' % request.number
        if request.kind in ("huge", "large"):
            body += b" " * (HUGE if request.kind == "huge" else CAPACITY // 3)
        try:
            answer = await process.model.submit("application/json", {}, body)
        except SluiceError as error:
            request.status = type(error).__name__
        else:
            request.status = answer.status
            self._check_answer(request, answer)
        request.ended = self.loop.time()
        self.note(f"{process.name}: {request.id[-3:]} ends with {request.status}")
        self._check_end(process, request)

    def _check_answer(self, request: Request, answer: Answer) -> None:
        if answer.status == 200 and msgspec.json.decode(answer.body) != {"of": request.number}:
            self.blame(f"{request.id} got somebody else's answer: {answer.body!r}")
        if answer.status == 200 and request.kind in ("poison", "huge"):
            self.blame(f"{request.id} is {request.kind} and was answered 200")

    def _check_end(self, process: Process, request: Request) -> None:
        status = request.status
        assert request.ended is not None
        if request.fresh and (status != 200 or request.ended > request.came + SOON):
            self.blame(f"{request.id} came after the faults and ended with {status} after {request.ended - request.came:.3f} s")
        if status == 200 or status in self.allowed[request.id]:
            return
        if status == StoreUnavailable.__name__ and any(hit >= request.came for hit in process.hits):
            return
        if status == DeadlinePassed.__name__ and not self.processes.get(self.adopted_by.get(request.id, ""), process).alive:
            return  # its process died while it moved it to where nobody else looks
        self.blame(f"{request.id} of {process.name} ended with {status}")

    # -- the whole

    async def happen(self) -> None:
        """Everything, until all have closed."""
        plans = self._plans()
        for number in range(self.rng.choice((1, 2, 2, 3, 3))):
            self.start(number, plans[0][1])
        for when, plan in plans[1:]:
            self._announce(when, plan)
        self._schedule_requests([when for when, _ in plans[1:]] + self._schedule_faults())
        await asyncio.sleep(FAULTS_END + self.lease + 0.3)
        self._check_tables()
        last = self._draw_plan(final=True)
        for process in self.processes.values():
            if process.alive and not process.leaving:
                self.spawn(process, process.model.follow(last))
        await asyncio.sleep(0.7)
        for process in self.processes.values():
            for _ in range(2):
                self.ask(process, fresh=True)
        await asyncio.sleep(2 * self.lease + 2.0)
        self._check_everybody_was_answered()
        await self._close()
        self._check_what_is_left()

    def _plans(self) -> list[tuple[float, Plan]]:
        changes = self.rng.randint(1, 4) if "plans change" in self.faults else 0
        times = sorted(self.rng.uniform(0.2, FAULTS_END) for _ in range(changes))
        return [(when, self._draw_plan()) for when in (0.0, *times)]

    def _draw_plan(self, final: bool = False) -> Plan:
        draw = (lambda: constructors.greedy(4, servers=None)) if final else self._draw_policy
        routes = self.rng.choice(((), (), ("a",), ("a", "b"), ("b", "c"), ("a", "b", "c")))
        if not routes:
            return Plan(model=MODEL, function=self._draw_function("", final), policy=PolicyDocument.of(draw()))
        weights = [self.rng.choice((1, 1, 2, 3)) for _ in routes]
        parts = zip(routes, weights, strict=True)
        return Plan(
            model=MODEL,
            routes=[Route(r, self._draw_function(r, final), PolicyDocument.of(draw()), w / sum(weights)) for r, w in parts],
        )

    def _draw_function(self, route: str, final: bool) -> str:
        return f"last-{route}" if final else f"f{route}{self.rng.randint(0, 1)}"

    def _draw_policy(self) -> Policy:
        rng = self.rng
        policy = rng.choice(
            (
                constructors.no_batching(),
                constructors.size_or_timeout(rng.randint(2, 6), rng.choice((0.01, 0.1, 0.5))),
                constructors.greedy(rng.randint(1, 4), servers=rng.choice((1, 1, 2, None))),
                constructors.static(rng.randint(2, 4), servers=rng.choice((1, 2, None))),
                constructors.control_limit(2, 4, servers=rng.randint(1, 2)),
            )
        )
        if "tables drop" in self.faults:
            policy = Policy(policy.hold, policy.take, policy.servers, rng.choice((0.05, 0.4)))
        return policy

    def _announce(self, when: float, plan: Plan) -> None:
        """Each process follows at a time of its own; functions that the plan has no more may go when all have been told."""
        used = {way.function for way in plan.ways}
        for process in self.processes.values():
            self.later(when + self.rng.uniform(0.0, 0.4), self._follow, process, plan)

        def change() -> None:
            for function in used:
                self.gone.pop(function, None)

        def leave() -> None:
            in_force = {way.function for p in self.processes.values() if p.alive for way in p.model.plan.ways}
            for function in {f"f{route}{i}" for route in ("", "a", "b", "c") for i in (0, 1)} - in_force - used:
                self.gone.setdefault(function, self.loop.time())

        self.later(when, change)
        if self.rng.random() < 0.6:
            self.later(when + self.rng.uniform(0.1, 0.5), leave)

    def _follow(self, process: Process, plan: Plan) -> None:
        if process.alive and not process.leaving:
            self.gone = {f: since for f, since in self.gone.items() if f not in {way.function for way in plan.ways}}
            self.note(f"{process.name} is told of {[(w.name, w.function, w.policy.kind) for w in plan.ways]}")
            process.following = self.spawn(process, self._follow_in_order(process, plan, process.following))

    async def _follow_in_order(self, process: Process, plan: Plan, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await previous
        if not process.leaving:
            await process.model.follow(plan)

    def _schedule_requests(self, moments: list[float]) -> None:
        """Bursts at any time, every other one just before something happens."""
        processes = list(self.processes.values())
        for _ in range(self.rng.randint(3, 8)):
            when, process = self.rng.uniform(0.0, FAULTS_END), self.rng.choice(processes)
            if moments and self.rng.random() < 0.5:
                when = max(0.0, self.rng.choice(moments) - self.rng.uniform(0.0, 0.1))
            at = [process] if self.rng.random() < 0.6 else processes  # everywhere at once: batches of callers of several processes
            for _ in range(self.rng.randint(1, 6)):
                self.later(when + self.rng.choice((0.0, self.rng.uniform(0.0, 0.05))), self.ask, self.rng.choice(at))

    def _schedule_faults(self) -> list[float]:
        """What strikes at a moment that can be told; these moments."""
        rng, processes = self.rng, list(self.processes.values())
        moments = [begin for begin, _ in self.away]

        def strike(when: float, work: Callable[..., None], *args: Any) -> None:
            moments.append(when)
            self.later(when, work, *args)

        if "the store forgets" in self.faults:
            for _ in range(rng.randint(1, 2)):
                strike(rng.uniform(0.1, FAULTS_END), self.forget)
        if "processes pause" in self.faults:
            for _ in range(rng.randint(1, 3)):
                begin = rng.uniform(0.0, FAULTS_END - 0.2)
                seconds = min(rng.choice((0.3, 1.5)) * self.lease * rng.uniform(0.5, 1.5), FAULTS_END - begin)
                strike(begin, self.stop, rng.choice(processes), seconds)
        if "processes crash" in self.faults:
            for process in processes[1 : rng.randint(2, 3)]:
                strike(rng.uniform(0.1, FAULTS_END), self.stop, process, None)
        if "processes leave" in self.faults:
            for process in processes[1:2]:
                strike(rng.uniform(0.1, FAULTS_END), self._leave_early, process)
        return moments

    def _leave_early(self, process: Process) -> None:
        """A process ends in good order, with callers that wait for what other processes will send them."""
        if process.alive:
            self.note(f"{process.name} leaves")
            process.leaving = True
            if process.following is not None:
                process.following.cancel()
            self.spawn(process, process.model.close())

    def _check_everybody_was_answered(self) -> None:
        others = [process for process in self.processes.values() if process.alive and not process.leaving]
        forgot = any(call.by == 0 for call in self.calls)
        for request in self.requests:
            process = self.processes[request.process]
            if process.leaving and (forgot or not others or process.let_down):
                continue  # nobody serves, or knows of, who waited at it; he is told that it shuts down
            if request.ended is None and process.alive:
                # Who died while he moved it to where nobody else looks, or before he told that it was given up, took it with him.
                by = {self.adopted_by.get(request.id, request.process), self.given_up_by.get(request.id, request.process)}
                if request.id not in self.never_told and all(self.processes[name].alive for name in by):
                    self.blame(f"{request.id} waits since {request.came:.4f} s")

    async def _close(self) -> None:
        alive = [process for process in self.processes.values() if process.alive and not process.leaving]
        closing = [self.spawn(process, process.model.close()) for process in alive]
        _, late = await asyncio.wait(closing, timeout=3.0)
        if late:
            self.blame(f"{len(late)} processes do not close")
        for process in alive:
            process.closed = True

    def _check_what_is_left(self) -> None:
        dead = {p.name for p in self.processes.values() if not p.alive or (p.leaving and p.let_down)}
        stuck = {request.id for request in self.requests if request.ended is None}  # they were found before
        for name, words in self.in_words.items():
            waiting = [_id(member) for _, member in words.waiting]
            alive = [
                ms for batch_id, ms in words.in_flight.items() if batch_id[:8] not in dead and not self._lost_goodbye(batch_id, ms)
            ]
            under_way = [_id(member) for members in alive for _, member in members]
            if left := [request for request in waiting + under_way if request[:8] not in dead and request not in stuck]:
                self.blame(f"{name}: {left} are left")
            if (kept := set(self.backend.queues[name].seen)) != set(words.heard):
                self.blame(f"{name}: knows of {kept} instead of {set(words.heard)}")
            holding = [p for p, heard in words.heard.items() if not any(hit >= heard for hit in self.processes[p].hits)]
            if holding := [p for p in holding if p not in dead]:  # a goodbye is said once, and may not arrive
                self.blame(f"{name}: {holding} hold their lease")
        for process in self.processes.values():
            if process.alive and set(process.callers.waiting) - stuck:
                self.blame(f"{process.name}: {list(process.callers.waiting)} are in its list of callers")

    def _lost_goodbye(self, batch_id: str, members: list[tuple[float, bytes]]) -> bool:
        """Whether everybody of a batch is answered, and its process may have said so with its goodbye, which is said once."""
        owner = self.processes[batch_id[:8]]
        return owner.leaving and bool(owner.hits) and all(self.by_id[_id(member)].ended is not None for _, member in members)


class WatchedCallers(Callers):
    """Callers that are known by their requests' ids."""

    def __init__(self, world: World, process: str) -> None:
        super().__init__(process, PATIENCE, world.loop.time)
        self._world = world

    def add(self, queue: str, item: Item, came: float) -> asyncio.Future[Answer]:
        request = self._world.requests[msgspec.json.decode(item.body)["i"]]
        request.id, request.came = item.id, came
        self._world.by_id[item.id] = request
        return super().add(queue, item, came)


class WatchedModel(ServedModel):
    """A model whose routes are looked at when they are drained."""

    def __init__(self, world: World, process: Process, plan: Plan, store: Any, invoker: Any, telemetry: Telemetry) -> None:
        self._world, self._process = world, process
        super().__init__(plan, store, world.limits, process.callers, invoker, telemetry.model(plan))

    def _close(self, name: str) -> None:
        world, queue = self._world, queue_name(MODEL, name)
        waits = {request for request, caller in self._process.callers.waiting.items() if not caller.answered.done()}
        if name in self._dispatchers and queue in world.in_words:
            words = world.in_words[queue]
            here = [_id(member) for _, member in words.waiting]
            mine = [(batch, _id(m)) for batch, ms in words.in_flight.items() if batch[:8] == self._process.name for _, m in ms]
            here += [request for batch, request in mine if world.batch_of.get(request) == (queue, batch)]
            if left := [request for request in here if request in waits and request not in world.again]:
                world.blame(f"{self._process.name}: {queue} is drained, and {left} wait there")
        super()._close(name)


class SimulatedStore:
    """The store as one process sees it."""

    def __init__(self, world: World, process: Process) -> None:
        self.process = process.name
        self._world, self._process = world, process
        self._memory = MemoryStore(world.backend, process.name)

    def queue(self, model: str, limits: Limits, route: str = "") -> SimulatedQueue:
        return SimulatedQueue(self._world, self._process, route, self._memory.queue(model, limits, route))

    async def send(self, process: str, message: bytes) -> None:
        def put() -> None:
            self._world.mail[process].append(message)
            reader = self._world.readers.pop(process, None)
            if reader is not None and not reader.done():
                reader.set_result(None)

        await self._world.to_store(self._process, f"sends to {process}", put, moves=True)

    async def receive(self) -> list[bytes]:
        world = self._world
        if not world.mail[self.process]:
            world.readers[self.process] = world.loop.create_future()
            await world.readers[self.process]

        def take() -> list[bytes]:
            messages = list(world.mail[self.process])
            world.mail[self.process].clear()
            return messages

        taken: list[bytes] = await world.to_store(self._process, "receives", take, faultless=True)
        return taken


class SimulatedQueue:
    """A queue as one process sees it; a call that was executed is checked."""

    def __init__(self, world: World, process: Process, route: str, queue: Any) -> None:
        self._world, self._process, self._route, self._queue = world, process, route, queue
        world.opened += 1
        self._number = world.opened

    async def install(self, policy: Policy) -> None:
        def work() -> None:
            _at_once(self._queue.install(policy))
            self._world.installed(self._number, self._route, self._process, policy)

        await self._world.to_store(self._process, "installs", work, moves=True)

    async def advance(self, events: Events, now: float | None = None) -> Outcome:
        def work() -> Outcome:
            now = self._world.loop.time()
            try:
                outcome: Outcome = _at_once(self._queue.advance(events, now))
            except QueueLost:
                self._world.calls.append(CallMade(self._number, self._route, self._process.name, now, None, events))
                raise
            self._world.advanced(self._number, self._route, self._process, events, outcome)
            return outcome

        answer: Outcome = await self._world.to_store(self._process, "calls", work, moves=events.recorded)
        name = queue_name(MODEL, self._route)
        self._world.announced.update((name, batch.batch_id) for batch in answer.batches)
        return answer


class SimulatedInvoker:
    """The functions as one process sees them."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process

    async def invoke(self, function: str, payload: bytes) -> bytes:
        return await self._world.invoke(self._process, function, payload)


def _at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def _computed(item: Item) -> Answer:
    return Answer(item.id, 200, "application/json", b'{"of": %d}' % msgspec.json.decode(item.body)["i"])


def _id(member: bytes) -> str:
    return member[:16].decode()


def _shown(events: Events) -> str:
    parts = [f"{len(events.arrivals)} came"] if events.arrivals else []
    parts += [f"completes {list(events.completed)}"] if events.completed else []
    parts += [f"serves {list(events.serving)}"] if events.serving is not None else []
    return ", ".join(parts + ["leaving"] * events.leaving + ["recorded"] * events.recorded) or "looks"


def _shown_outcome(outcome: Outcome) -> str:
    batches = [(batch.batch_id, [_id(member)[-3:] for member in batch.members]) for batch in outcome.batches]
    counts = f"{outcome.queue_length} wait, dropped {len(outcome.dropped)}, dead {len(outcome.dead)}"
    return f"{batches} {counts}, wake in {outcome.wake_in}"


class _Log(logging.Handler):
    """The exceptions that the buffer logs, to the world where it does; nothing else of its log is kept."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._world.stumbled(record.exc_info[1])


@contextmanager
def _watched(world: World) -> Iterator[None]:
    """Exceptions that would end in a log are told to the world; what the runs make go wrong is logged nowhere else."""
    logger, handler = logging.getLogger("sluice.buffer_service"), _Log(world)
    logger.addHandler(handler)
    logger.propagate = False
    world.loop.set_exception_handler(lambda _, context: world.stumbled(context.get("exception")))
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = True


_telemetries: dict[str, Telemetry] = {}


def simulate(seed: int, faults: tuple[str, ...] | None = None, verbose: bool = False) -> World:
    """One run."""
    worlds = []

    async def main(loop: VirtualLoop) -> None:
        world = World(seed, loop, _telemetries, faults)
        world.verbose = verbose
        worlds.append(world)
        with _watched(world):
            await world.happen()

    try:
        run(main)
    except Exception as error:
        worlds[0].blame(f"{type(error).__name__}: {error}")
        if verbose:
            raise
    return worlds[0]


def main() -> None:
    """Repeat the run of a seed, and say what is wrong with it."""
    world = simulate(int(sys.argv[1]), verbose=True)
    print(*world.told, sep="\n")
    print(f"seed {world.seed}: {len(world.requests)} requests, {len(world.calls)} calls; {sorted(world.faults)}")
    print(*(world.wrong or ["nothing is wrong"]), sep="\n")
    sys.exit(bool(world.wrong))


if __name__ == "__main__":
    main()
