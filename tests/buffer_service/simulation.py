"""Several processes of the buffer on one queue store, in virtual time, while whatever may go wrong does: every run is its seed.

``python -m tests.buffer_service.simulation SEED`` repeats a run and prints what happened and what is wrong with it.

What runs is what serves: ``ServedModel`` with its dispatchers and their states, ``Callers``, the memory store's queues. Simulated
are the network to the store, the store's mail, the functions, the callers, and time. A seed draws the processes, the plans, the
requests and the faults; these end at ``FAULTS_END``, and from then on the store, the functions and every process that has not
crashed are well. ``account.py`` has what is checked.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections import defaultdict, deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import replace
from itertools import count
from typing import Any

import msgspec
from msgspec import structs

from sluice.batching import Policy
from sluice.batching import policy as constructors
from sluice.batching.documents import Beside, Plan, PolicyDocument, RequestClass, RequestSize, Route
from sluice.batching.errors import Draining, FunctionFailed, SluiceError, StoreUnavailable
from sluice.buffer_service import route_arrivals
from sluice.buffer_service.callers import Callers, Waiting
from sluice.buffer_service.invokers import BatchTooLarge, FunctionBusy, FunctionCrashed, FunctionUnavailable, UnknownFunction
from sluice.buffer_service.invokers.port import Pool
from sluice.buffer_service.lending import Lending
from sluice.buffer_service.mail import hand_out
from sluice.buffer_service.memory_store import MemoryBackend, MemoryStore
from sluice.buffer_service.route_instructions import Invocation
from sluice.buffer_service.served_model import ServedModel
from sluice.buffer_service.store import Events, Limits, Outcome, QueueLost, queue_name
from sluice.buffer_service.telemetry import Telemetry
from sluice.buffer_service.told import CLASS_HEADER, NOTHING_TOLD, Told
from sluice.lambda_fn.contract import Answer, Item, decode_batch, encode_answers
from tests.buffer_service.account import MODEL, SLOW, Account, CallMade, Planted, Process, Request
from tests.buffer_service.virtual_time import PROCESS, VirtualLoop, run

PATIENCE = 60.0  # s a caller waits: longer than all faults together, so that nobody's time is over who is served as promised
IMPATIENCE = 0.6  # s he waits where that is drawn
FAULTS_END = 3.0  # s
HUGE, CAPACITY = 100, 120  # bytes of an item that no function takes, and of a batch
PART_OF: ContextVar[tuple[str, str]] = ContextVar("part_of")  # the queue and the batch that an invocation is for
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
    "callers are impatient",
    "queues are short",
    "tables drop",
)
STRANGERS = "a later version, and garbage"  # drawn apart, so that the others strike as they did without it
STRANGER = "ffffffff"
OF_WORKERS = ("workers crash on poison", "functions throttle", "functions break")
SIZES = "plans tell sizes"
CLASSES = "plans have classes"
COLUMNS = "tables have columns"  # most of them, in a run whose plans have classes
CLASS_ROUTES = "classes choose routes"
SLACKS = {"eager": -0.02, "own": 0.0, "calm": 0.1, "patient": 0.7}
BESIDE = "functions stand beside others"  # and in some of these runs only one kind of them is ever away, throttled or broken
TICKETS = "bodies stay with the processes of their callers"
FAST = "requests come so fast that batches fill at a process"  # as far as it knows from the last two, and waits for
POOLS = "workers of functions are ejected"
FILLED = 0.05  # s that it waits so, of which a call to the store is a small part
CLOCK = "the store's clock is set"  # forward or back; or a replica takes over whose clock is another


class World(Account):
    """A run: what happens in it."""

    def __init__(
        self, seed: int, loop: VirtualLoop, telemetries: dict[str, Telemetry], faults: tuple[str, ...] | None = None
    ) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        weather = rng.choice((0.0, 0.15, 0.3, 0.3, 0.6))  # from calm to storm: which part of all faults
        # Most of what is decided is about these.
        often = {"plans change": 2.0, "calls to the store get lost": 1.5, "processes leave": 1.5}
        drawn = tuple(fault for fault in FAULTS if rng.random() < weather * often.get(fault, 1.0))
        if random.Random(-1 - seed).random() < 0.1:
            drawn += (STRANGERS,)
        apart = random.Random(f"workers of {seed}")  # so that whatever else a seed draws is as it was without these
        drawn += tuple(fault for fault in OF_WORKERS if apart.random() < weather)
        self.rng_of_clock = random.Random(f"time of {seed}")
        drawn += (CLOCK,) * (self.rng_of_clock.random() < weather)
        self.rng_of_sizes = random.Random(f"sizes in {seed}")
        drawn += (SIZES,) * (self.rng_of_sizes.random() < 0.2)
        self.rng_of_classes = random.Random(f"classes in {seed}")
        drawn += (CLASSES,) * (self.rng_of_classes.random() < 0.3)
        self.rng_of_columns = random.Random(f"columns in {seed}")
        drawn += (COLUMNS,) * (CLASSES in drawn and self.rng_of_columns.random() < 0.6)
        self.rng_of_class_routes = random.Random(f"class routes in {seed}")
        drawn += (CLASS_ROUTES,) * (CLASSES in drawn and self.rng_of_class_routes.random() < 0.7)
        self.rng_of_beside = random.Random(f"beside in {seed}")
        drawn += (BESIDE,) * (self.rng_of_beside.random() < 0.4)
        drawn += (TICKETS,) * (random.Random(f"bodies in {seed}").random() < 0.5)
        self.rng_of_fast = random.Random(f"fast in {seed}")
        drawn += (FAST,) * (self.rng_of_fast.random() < 0.3)
        self.rng_of_pools = random.Random(f"pools in {seed}")
        drawn += (POOLS,) * (self.rng_of_pools.random() < 0.3)
        self.faults = frozenset(drawn if faults is None else faults)
        self.struck = self.rng_of_beside.choice(("f", "g", "fg")) if BESIDE in self.faults else "f"  # how their names begin
        longest = rng.choice((2, 5)) if "queues are short" in self.faults else 10_000
        patience = IMPATIENCE if "callers are impatient" in self.faults else PATIENCE
        super().__init__(loop, Limits(longest, rng.choice((0.6, 0.9)), rng.choice((1, 2, 3))), patience)
        self.limits = replace(self.limits, carried=0 if TICKETS in self.faults else self.limits.carried)
        self.lease = self.limits.lease
        self.server = copy_context()
        self.backend = MemoryBackend()
        self.mail: defaultdict[str, deque[bytes]] = defaultdict(deque)
        self.readers: dict[str, asyncio.Future[None]] = {}
        self.telemetries = telemetries
        self.gone: dict[str, float] = {}  # functions, and since when
        self.away = [self._span(1.5) for _ in range(rng.randint(1, 2))] if "the store is away" in self.faults else []
        self.unavailable = [self._span(0.6) for _ in range(2)] if "functions are away" in self.faults else []
        self.throttled = [self._span(1.5) for _ in range(2)] if "functions throttle" in self.faults else []
        self.broken = [self._span(0.8)] if "functions break" in self.faults else []
        self.crashed: set[tuple[str, str]] = set()  # functions, and at whose batch
        self.tables_drop = "tables drop" in self.faults
        self.plans_change = "plans change" in self.faults
        self.restarting: dict[str, float] = {}  # functions whose worker crashed, and until when
        self.opened = 0
        self.rng_of_strangers = random.Random(-1 - seed)
        self.stranger = Process(STRANGER, self.server, Callers(STRANGER, patience, loop.time))
        self.named: list[str] = []  # requests of the stranger that the queue has taken, and that nobody here can read

    def chance(self, fault: str, probability: float) -> bool:
        """Whether a fault that this run has strikes now."""
        return fault in self.faults and self.loop.time() < FAULTS_END and self.rng.random() < probability

    def _span(self, longest: float) -> tuple[float, float]:
        begin = self.rng.uniform(0.0, FAULTS_END - 0.1)
        return begin, min(FAULTS_END, begin + self.rng.uniform(0.05, longest))

    def later(self, delay: float, work: Callable[..., None], *args: Any) -> None:
        """Something outside the processes happens."""
        self.loop.call_later(delay, work, *args, context=self.server)

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
            return self.rng.uniform(0.0, SLOW * self.lease)
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
                self.never_heard(result)
                result = StoreUnavailable("the answer was lost")
        self.later(self._delay(process), self._return, process, result, answer)

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
        self.forgotten()
        self.backend.queues.clear()
        self.mail.clear()

    def set_clock(self) -> None:
        """The store's clock is set; far back where another machine takes over, and with the first went who held a batch."""
        rng = self.rng_of_clock
        seconds = rng.choice((-10.0, -rng.uniform(0.0, 1.0), -rng.uniform(0.0, 1.0), rng.uniform(0.0, 1.0), 3600.0))
        self.note(f"the store's clock is set by {seconds} s")
        self.clock_set(seconds)
        owners = {batch_id[:8] for words in self.in_words.values() for batch_id in words.in_flight}
        holding = sorted(owners - {"process0", STRANGER})
        if holding and seconds < -self.lease:
            self.stop(self.processes[rng.choice(holding)], None)

    # -- functions

    async def invoke(self, process: Process, function: str, payload: bytes) -> bytes:
        """A function at work for a process."""
        answer: asyncio.Future[bytes] = self.loop.create_future()
        items = decode_batch(payload).items
        batch = PART_OF.get()
        self.check_invoked(process, function, items, batch)
        for counts, key in [(self.parts, (*batch, function)), *((self.running, item.id) for item in items)]:
            counts[key] += 1  # type: ignore[index]
        self.later(self._service_time(len(items)), self._serve, process, function, items, batch, answer)
        return await answer

    def _service_time(self, size: int) -> float:
        if self.chance("functions are slow", 0.3):
            return self.rng.uniform(0.1, 2 * self.lease)
        return self.rng.uniform(0.002, 0.02) + 0.001 * size

    def _serve(
        self, process: Process, function: str, items: list[Item], batch: tuple[str, str], answer: asyncio.Future[bytes]
    ) -> None:
        self.parts[(*batch, function)] -= 1
        for item in items:
            self.running[item.id] -= 1
        result = self._result(process, function, items, batch)
        self.answers_at[batch] = self.loop.time()
        if isinstance(result, FunctionUnavailable):
            del self.answers_at[batch]  # it may be asked for again, later
        self.judge(process, function, items, batch, result)
        self.note(f"{process.name}: {function} answers {[item.id[-3:] for item in items]} {result!r:.60}")
        if answer.done():
            return
        if isinstance(result, Exception):
            answer.set_exception(result)
        else:
            answer.set_result(result)

    def _result(self, process: Process, function: str, items: list[Item], batch: tuple[str, str]) -> bytes | Exception:
        now = self.loop.time()
        if function in self.gone and now >= self.gone[function]:
            if function in _functions(process.model.plan):
                self.allow(items, 502)  # it was not told in time that the function goes
            kind = UnknownFunction if self.rng.random() < 0.5 else FunctionUnavailable
            return kind(f"{function} is gone")
        struck = function[0] in self.struck
        if struck and _within(now, self.unavailable):
            if not self.another_is_well(process, function, batch):
                self.allow(items, 502)
            return FunctionUnavailable("away")
        if now < self.restarting.get(function, 0.0):
            if (process.name, function) not in self.crashed or "plans change" in self.faults:
                self.allow(items, 502)  # this process does not know, or knows no more, that it comes back
            return FunctionUnavailable("its worker starts again")
        if struck and _within(now, self.throttled) and self.rng.random() < 0.9:
            return FunctionBusy("throttled", self.rng.choice((None, None, 0.3, 1.0)))
        if self.chance("the buffer has a defect", 0.1):
            self.allow(items, 500)
            for request in self.members_of.get(batch, ()):  # the rest of their batch has no answer either
                self.allowed[request].add(500)
            return Planted("nobody expected this")
        kinds = {self.by_id[item.id].kind: item for item in items}
        if sum(len(item.body) for item in items) > CAPACITY or "huge" in kinds:
            if len(items) == 1:
                self.allow(items, 413)
            return BatchTooLarge(f"at most {CAPACITY} bytes")
        if "poison" in kinds or self.chance("batches fail", 0.3) or (struck and _within(now, self.broken)):
            if len(items) == 1:
                self.allow(items, 502)
            if "poison" not in kinds or "workers crash on poison" not in self.faults:
                return FunctionFailed("the function choked")
            self.crashed.add((process.name, function))
            self.restarting[function] = now + self.rng.uniform(0.0, 0.3) * (now < FAULTS_END)
            return FunctionCrashed("the worker broke the connection")
        answers = [_computed(item) for item in items]
        if self.chance("answers are wrong", 0.3):
            if len(items) == 1:
                self.allow(items, 502)
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
        lending = Lending(store.send, process.callers.lendable)
        while True:
            try:
                hand_out(await store.receive(), process.callers, lending.asked, lambda *_: None)
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
            if process.name in self.throttled_at:  # for a process that takes no step no time passes
                self.throttled_at[process.name] += self.loop.time() - process.hits[-1]
            process.hits.append(self.loop.time())
            self.loop.resume_process(process.name)

    # -- callers

    def ask(self, process: Process, fresh: bool = False) -> None:
        """Somebody asks."""
        if not process.alive:
            return
        kind = "plain"
        if not fresh and "items poison" in self.faults and self.rng.random() < 0.15:
            kind = "poison"
        if not fresh and "batches are too large" in self.faults and self.rng.random() < 0.3:
            kind = "huge" if self.rng.random() < 0.3 else "large"
        size = float(self.rng_of_sizes.randrange(40))
        says = self.rng_of_classes.choice(("", *SLACKS)) if CLASSES in self.faults else ""
        request = Request(len(self.requests), process.name, kind, self.loop.time(), fresh, size=size, says=says)
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
            said = {CLASS_HEADER: request.says.encode()} if request.says else {}
            told = process.model.told([(b"sluice-size", b"%d" % request.size)] if request.size else [], said, {}, body)
            answer = await process.model.ask("application/json", {}, body, told).answered
        except SluiceError as error:
            request.status = type(error).__name__
        else:
            request.status = answer.status
            self.check_answer(request, answer)
        request.ended = self.loop.time()
        self.note(f"{process.name}: {request.id[-3:]} ends with {request.status}")
        self.check_end(process, request)

    # -- the whole

    async def happen(self) -> None:
        """Everything, until all have closed."""
        plans = self._plans()
        for number in range(self.rng.choice((1, 2, 2, 3, 3))):
            self.start(number, plans[0][1])
        for when, plan in plans[1:]:
            self._announce(when, plan)
        changes = [when for when, _ in plans[1:]]
        self._schedule_requests(changes + self._schedule_faults(changes))
        self._schedule_fast_requests()
        await asyncio.sleep(FAULTS_END + self.lease + 0.3)
        self.check_tables()
        last = self._draw_plan(final=True)
        for process in self.processes.values():
            if process.alive and not process.leaving:
                self.spawn(process, process.model.follow(last))
        await asyncio.sleep(0.7)
        for process in self.processes.values():
            for _ in range(2 * (not process.leaving)):
                self.ask(process, fresh=True)
        await asyncio.sleep(2 * self.lease + 2.0)
        self.check_everybody_was_answered()
        await self._last_call()
        if waiting := self.waiting():
            await asyncio.sleep(max(request.came for request in waiting) + self.patience + 0.2 - self.loop.time())
            self.check_deadlines(waiting)
        await self._close()
        self.check_what_is_left({name: set(queue.seen) for name, queue in self.backend.queues.items()}, last)

    def _plans(self) -> list[tuple[float, Plan]]:
        changes = self.rng.randint(1, 4) if "plans change" in self.faults else 0
        times = sorted(self.rng.uniform(0.2, FAULTS_END) for _ in range(changes))
        return [(when, self._draw_plan()) for when in (0.0, *times)]

    def _draw_plan(self, final: bool = False) -> Plan:
        plan = self._draw_plan_without_classes(final)
        if CLASSES not in self.faults or self.rng_of_classes.random() < 0.2:
            return plan
        names = self.rng_of_classes.sample(list(SLACKS), len(SLACKS))
        routes = self._draw_routes_of(names, plan)
        classes = [RequestClass(name, slack=SLACKS[name], route=route) for name, route in zip(names, routes, strict=True)]
        return structs.replace(plan, digest="", classes=classes)

    def _draw_routes_of(self, names: list[str], plan: Plan) -> list[str]:
        """The route of each class, in a run that has such plans, where this has routes and no sizes; each is some class's."""
        rng, routes = self.rng_of_class_routes, [route.name for route in plan.routes]
        if CLASS_ROUTES not in self.faults or not routes or plan.size is not None or rng.random() < 0.3:
            return [""] * len(names)
        chosen = routes + rng.choices(routes, k=len(names) - len(routes))
        rng.shuffle(chosen)
        return chosen

    def _draw_plan_without_classes(self, final: bool) -> Plan:
        draw = (lambda: constructors.greedy(4, servers=None)) if final else self._draw_policy
        routes = self.rng.choice(((), (), ("a",), ("a", "b"), ("b", "c"), ("a", "b", "c")))
        told = RequestSize("header") if SIZES in self.faults and self.rng_of_sizes.random() < 0.7 else None
        if not routes:
            function, policy = self._draw_function("", final), PolicyDocument.of(draw())
            return Plan(model=MODEL, function=function, policy=policy, beside=self._draw_beside("", final), size=told)
        weights = [self.rng.choice((1, 1, 2, 3)) for _ in routes]
        parts = zip(routes, weights, strict=True)
        ways = [Route(r, self._draw_function(r, final), PolicyDocument.of(draw()), w / sum(weights)) for r, w in parts]
        ways = [structs.replace(way, beside=self._draw_beside(way.name, final)) for way in ways]
        if told is None:
            return Plan(model=MODEL, routes=ways)
        bounds = [*sorted(self.rng_of_sizes.sample(range(40), len(ways) - 1)), None]
        ways = [structs.replace(way, up_to=bound) for way, bound in zip(ways, bounds, strict=True)]
        return Plan(model=MODEL, routes=ways, size=told)

    def _draw_beside(self, route: str, final: bool) -> list[Beside]:
        """Functions beside that of a route, in a run that has such."""
        if BESIDE not in self.faults:
            return []
        rng = self.rng_of_beside
        names = [f"last-beside-{route}"] if final else rng.sample([f"g{route}0", f"g{route}1"], rng.choice((0, 1, 1, 1, 2)))
        return [Beside(name, PolicyDocument.of(self._draw_policy_beside(rng))) for name in names]

    def _draw_policy_beside(self, rng: random.Random) -> Policy:
        policy = rng.choice(
            (
                constructors.no_batching(),
                constructors.size_or_timeout(rng.randint(1, 6), rng.choice((0.0, 0.02, 0.3))),
                constructors.greedy(rng.randint(1, 4), servers=rng.randint(1, 2)),
                Policy((float("inf"), 0.05, float("inf"), 0.0), (0, 1, 0, 2), rng.choice((1, None))),
            )
        )
        return self._of_columns(policy)

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
        if FAST in self.faults and self.rng_of_fast.random() < 0.7:
            policy = self._draw_policy_that_fills(self.rng_of_fast)
        if "tables drop" in self.faults:
            policy = Policy(policy.hold, policy.take, policy.servers, rng.choice((0.05, 0.4)))
        return self._of_columns(policy)

    def _draw_policy_that_fills(self, rng: random.Random) -> Policy:
        """A table of full batches, before an elastic function."""
        size = rng.randint(2, 6)
        if rng.random() < 0.5:
            return constructors.size_or_timeout(size, rng.choice((0.1, 0.5)))
        hold = [float("inf"), *(rng.choice((float("inf"), 0.02, 0.1, 0.4)) for _ in range(1, size)), *[0.0] * rng.randint(1, 4)]
        return Policy(hold, [rng.randint(1, q) if wait < float("inf") else 0 for q, wait in enumerate(hold)])

    def _of_columns(self, policy: Policy) -> Policy:
        """The same with a grid of holds and sizes in the place of its rows, in a run that has such."""
        rng = self.rng_of_columns
        if COLUMNS not in self.faults or rng.random() < 0.2:
            return policy
        last, columns = rng.randint(1, 3), rng.randint(2, 4)
        hold, take = [float("inf")], [0]
        for u, p in [(u, p) for u in range(last + 1) for p in range(columns)][1:]:
            waits = u < last and p < columns - 1 and rng.random() < 0.3
            hold.append(float("inf") if waits else rng.choice((0.0, 0.02, 0.1, 0.4)))
            take.append(0 if waits else rng.randint(1, u + p))
        return replace(policy, hold=hold, take=take, columns=columns)

    def _announce(self, when: float, plan: Plan) -> None:
        """Each process follows at a time of its own; functions that the plan has no more may go when all have been told."""
        used = _functions(plan)
        for process in self.processes.values():
            self.later(when + self.rng.uniform(0.0, 0.4), self._follow, process, plan)

        def change() -> None:
            for function in used:
                self.gone.pop(function, None)

        def leave() -> None:
            alive = [process for process in self.processes.values() if process.alive]
            plans = [p.model.plan for p in alive] + [p.told for p in alive if p.told is not None]
            in_force = {function for plan in plans for function in _functions(plan)}
            known = {
                f"{kind}{route}{i}" for kind in "fg"[: 1 + (BESIDE in self.faults)] for route in ("", "a", "b", "c") for i in (0, 1)
            }
            for function in known - in_force - used:
                self.gone.setdefault(function, self.loop.time())

        self.later(when, change)
        if self.rng.random() < 0.6:
            self.later(when + self.rng.uniform(0.1, 0.5), leave)

    def _follow(self, process: Process, plan: Plan) -> None:
        if process.alive and not process.leaving:
            self.gone = {f: since for f, since in self.gone.items() if f not in _functions(plan)}
            self.note(f"{process.name} is told of {[(w.name, w.function, w.policy.kind) for w in plan.all_routes]}")
            process.told = plan
            process.following = self.spawn(process, self._follow_in_order(process, plan, process.following))
            if process is not self.processes["process0"] and self.chance("processes leave", 0.2):
                self.later(self.rng.choice((0.0, self.rng.uniform(0.0, 0.01))), self._leave_early, process)

    async def _follow_in_order(self, process: Process, plan: Plan, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await previous
        if not process.leaving:
            process.followed_at = self.loop.time()
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

    def _schedule_fast_requests(self) -> None:
        """Some spans in which they come one soon after the other, in a run that has such."""
        rng, processes = self.rng_of_fast, list(self.processes.values())
        for _ in range(rng.randint(2, 4) * (FAST in self.faults)):
            when, at = rng.uniform(0.0, FAULTS_END), rng.choice((processes, [rng.choice(processes)]))
            for _ in range(rng.randint(5, 20)):
                when += rng.expovariate(1.0) * rng.choice((0.0002, 0.002, 0.02))
                self.later(when, self.ask, rng.choice(at))

    def _schedule_faults(self, changes: list[float]) -> list[float]:
        """What strikes at a moment that can be told; these moments. Plans change at ``changes``, and up to 0.4 s later."""
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
        if CLOCK in self.faults:
            for _ in range(self.rng_of_clock.randint(1, 3)):
                self.later(self.rng_of_clock.uniform(0.1, FAULTS_END), self.set_clock)
        if STRANGERS in self.faults:
            for _ in range(3):
                self.later(self.rng_of_strangers.uniform(0.1, FAULTS_END), self._plant)
        if "processes leave" in self.faults:
            for process in processes[1:2]:
                while_some_follow = rng.choice(changes) + rng.uniform(0.0, 0.4) if changes and rng.random() < 0.7 else FAULTS_END
                strike(min(while_some_follow, rng.uniform(0.1, FAULTS_END)), self._leave_early, process)
        return moments

    def _plant(self) -> None:
        """Somebody writes what cannot be read into a queue and into a mailbox; some of it begins with an id."""
        serial = len(self.named)
        named = [f"{STRANGER}{serial + i:08x}".encode() for i in range(2)]
        members = [named[0] + b"\x03later", named[1] + b"\xff\xff", *(b"%d" % (serial + i) + b"\xff garbage" for i in range(3))]
        self.rng_of_strangers.shuffle(members)
        if not (routes := [call.route for call in self.calls if call.policy is not None]):
            return  # the store has no queue yet
        route = self.rng_of_strangers.choice(routes)
        queue = MemoryStore(self.backend, STRANGER).queue(MODEL, self.limits, route)
        events = Events(members, leaving=True)
        try:
            outcome = _at_once(queue.advance(events, self.store_time()))
        except QueueLost:
            return
        taken = {member[:16] for member in members[: outcome.accepted]}
        self.named += [request.decode() for request in named if request in taken]
        self.opened += 1
        self.advanced(self.opened, route, self.stranger, events, outcome, self.loop.time())
        for process in self.processes.values():
            self.mail[process.name] += [b"\x03later", b"\xff", b""]
            self._rings(process.name)

    def _rings(self, process: str) -> None:
        """Who waits for mail looks."""
        reader = self.readers.pop(process, None)
        if reader is not None and not reader.done():
            reader.set_result(None)

    def _leave_early(self, process: Process) -> None:
        """A process ends in good order, with callers that wait for what other processes will send them, or came just now."""
        if process.alive and not process.leaving:
            for _ in range(self.rng.randint(0, 2)):
                self.ask(process)
            self.note(f"{process.name} leaves")
            process.leaving = True
            if process.following is not None:
                process.following.cancel()
            process.closing = self.spawn(process, process.model.close())

    async def _last_call(self) -> None:
        """Who still waits at a process that leaves is told, as ``app.py`` does near the end of the drain."""
        for process in self.processes.values():
            if process.alive and process.leaving:
                process.context.run(process.callers.fail_all, Draining("the drain is over"))
        await asyncio.sleep(0.1)

    async def _close(self) -> None:
        alive = [process for process in self.processes.values() if process.alive]
        for process in alive:
            process.closing = process.closing or self.spawn(process, process.model.close())
        _, late = await asyncio.wait([process.closing for process in alive], timeout=3.0)
        if late:
            self.blame(f"{len(late)} processes do not close")
        for process in alive:
            process.closed = True


class WatchedCallers(Callers):
    """Callers that are known by their requests' ids."""

    def __init__(self, world: World, process: str) -> None:
        super().__init__(process, world.patience, world.loop.time)
        self._world = world
        self._serials = count()  # a run is its seed: from where no chance puts them

    def add(
        self, queue: str, item: Item, came: float, told: Told = NOTHING_TOLD, then: Sequence[Callable[[Waiting], None]] = ()
    ) -> Waiting:
        request = self._world.requests[msgspec.json.decode(item.body)["i"]]
        request.id, request.came, request.told = item.id, came, told
        self._world.by_id[item.id] = request
        self._world.check_route(queue, request)
        return super().add(queue, item, came, told, then)


class WatchedModel(ServedModel):
    """A model whose routes are looked at when they follow a plan, and when they are drained."""

    def __init__(self, world: World, process: Process, plan: Plan, store: Any, invoker: Any, telemetry: Telemetry) -> None:
        self._world, self._process = world, process
        super().__init__(plan, store, world.limits, process.callers, invoker, telemetry.model(plan))

    def _open(self, route: Route) -> None:
        super()._open(route)
        dispatcher: Any = self._dispatchers[route.name]
        invoke = dispatcher._invoke

        async def watched(invocation: Invocation) -> None:
            PART_OF.set((queue_name(MODEL, route.name), invocation.batch_id))
            await invoke(invocation)

        dispatcher._invoke = watched

    async def _move(self, members: list[bytes]) -> None:
        self._world.moving(self._process, members)
        await super()._move(members)

    async def follow(self, plan: Plan) -> None:
        await super().follow(plan)
        told = self._world.loop.time()
        self._world.followed.update(((self._process.name, route), told) for route in self._dispatchers)

    def _close(self, name: str) -> None:
        if name in self._dispatchers:
            self._world.check_drained(self._process, name)
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
            self._world._rings(process)

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
        self._installed: float | None = None  # when it was asked to take a table, and the call that follows was made up

    async def install(self, policy: Policy) -> None:
        asked_at = self._world.loop.time()

        def work() -> None:
            _at_once(self._queue.install(policy))
            self._world.installed(self._number, self._route, self._process, policy)

        await self._world.to_store(self._process, "installs", work, moves=True)
        self._installed = asked_at

    async def advance(self, events: Events, now: float | None = None) -> Outcome:
        asked_at = self._world.loop.time() if self._installed is None else self._installed

        def work() -> Outcome:
            now = self._world.store_time()
            try:
                outcome: Outcome = _at_once(self._queue.advance(events, now))
            except QueueLost:
                self._world.calls.append(CallMade(self._number, self._route, self._process.name, now, None, events))
                raise
            self._world.advanced(self._number, self._route, self._process, events, outcome, asked_at)
            return outcome

        if self._installed is None:
            self._world.check_takes_no_more(self._process, self._route, events)
        self._installed = None
        answer: Outcome = await self._world.to_store(self._process, "calls", work, moves=events.recorded)
        self._world.learned(self._process, queue_name(MODEL, self._route), answer)
        return answer


class SimulatedInvoker:
    """The functions as one process sees them."""

    def __init__(self, world: World, process: Process) -> None:
        self._world, self._process = world, process

    async def invoke(self, function: str, payload: bytes, avoid: str = "") -> bytes:
        return await self._world.invoke(self._process, function, payload)

    def worker_pool(self, function: str) -> Pool | None:
        """Of one to four workers any may be ejected, with a batch or without."""
        world, rng = self._world, self._world.rng_of_pools
        if POOLS not in world.faults or world.loop.time() >= FAULTS_END:
            return None
        workers = rng.randint(1, 4)
        return Pool(workers, [rng.uniform(0.0, 0.5) for _ in range(rng.randint(0, workers))], rng.choice((0, 0, 1)))


def _at_once(work: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine that waits for nothing."""
    try:
        work.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


def _functions(plan: Plan) -> set[str]:
    return {function for route in plan.all_routes for function in route.functions}


def _within(now: float, spans: list[tuple[float, float]]) -> bool:
    return any(begin <= now < end for begin, end in spans)


def _computed(item: Item) -> Answer:
    return Answer(item.id, 200, "application/json", b'{"of": %d}' % msgspec.json.decode(item.body)["i"])


class _Log(logging.Handler):
    """The exceptions that the buffer logs, to the account where it does; nothing else of its log is kept."""

    def __init__(self, world: World) -> None:
        super().__init__()
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self._world.stumbled(record.exc_info[1])


@contextmanager
def _fast(world: World) -> Iterator[None]:
    """Batches fill at a process while the few requests of a run come."""
    known = route_arrivals.AVERAGED, route_arrivals.FILLED
    if FAST in world.faults:
        route_arrivals.AVERAGED, route_arrivals.FILLED = 1.0, FILLED
    try:
        yield
    finally:
        route_arrivals.AVERAGED, route_arrivals.FILLED = known


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
    random.seed(seed)  # what the shell draws for who was refused together

    async def main(loop: VirtualLoop) -> None:
        world = World(seed, loop, _telemetries, faults)
        world.verbose = verbose
        worlds.append(world)
        with _watched(world), _fast(world):
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
