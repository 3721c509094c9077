"""The dispatcher of one route of a model: coalesces what happens, asks the queue, arms the timer, sends batches, hands out answers.

It decides nothing about batching: the queue's rule does. While one call to the queue is under way, everything that happens is
collected for the next, so that the cost of a call is shared by all requests that came meanwhile.

Guarantees. Answers for callers at other processes are sent before their batch is declared complete; whoever dies in between leaves
a lease that expires, and the batch is served again: a request is computed at least once, and its caller gets exactly one answer,
the first. Callers at this process end with it, and are answered right after.
A batch that fails is split in halves until the item that fails stands alone.

A route that is in the plan no more is retired: what its function has been sent is finished; what waits is released at once and
moved to the queues of other routes, and so is a batch that its function, which may be gone, leaves without an answer.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from sluice.batching import Policy
from sluice.batching.documents import Route
from sluice.batching.errors import FunctionFailed, QueueFull, SluiceError, StoreUnavailable
from sluice.batching.policy import greedy
from sluice.buffer_service.callers import Callers
from sluice.buffer_service.invokers import BatchTooLarge, FunctionUnavailable, Invoker, UnknownFunction
from sluice.buffer_service.store import ID_LENGTH, PROCESS_LENGTH, Events, Limits, QueueLost, Released, Store, queue_name
from sluice.buffer_service.telemetry import ModelTelemetry, RouteTelemetry
from sluice.lambda_fn.contract import Answer, Batch, Item, WireError, decode_answers, decode_metadata, encode_batch, failed

ROUTE_HEADER = "sluice-route"
"""The header of an answer that names the route whose function was asked; a plan without routes has none."""
RETRY = 0.1  # seconds until a store that was away is asked again
SENDINGS = 10
PORTION = 2  # answers that callers get between two looks at the network
LARGEST_CALL = 512  # arrivals that one call carries at most: bounds the time a script holds the server

_log = logging.getLogger(__name__)


class _Body(NamedTuple):
    """A member behind its id, as it waits in the queue."""

    content_type: str
    headers: dict[str, str]
    body: bytes


_encode = msgspec.msgpack.Encoder().encode
_decode_body = msgspec.msgpack.Decoder(_Body).decode
_decode_answers = msgspec.msgpack.Decoder(list[Answer]).decode


def encode_member(item: Item) -> bytes:
    """A member of the queue: the request's id, then the rest."""
    return item.id.encode() + _encode(_Body(item.content_type, item.headers, item.body))


def decode_member(member: bytes) -> Item:
    """The inverse of ``encode_member``."""
    body = _decode_body(memoryview(member)[ID_LENGTH:])
    return Item(member[:ID_LENGTH].decode(), body.content_type, body.body, body.headers)


def deliver(message: bytes, callers: Callers) -> None:
    """Hand out a message from another process."""
    for answer in _decode_answers(message):
        callers.answer(answer)


async def describe(model: str, function: str, invoker: Invoker) -> dict[str, Any]:
    """Ask a function for the metadata of its model; raises ``FunctionFailed``."""
    try:
        return decode_metadata(await invoker.invoke(function, encode_batch(Batch(model, [], describe=True))))
    except WireError as error:
        raise FunctionFailed(f"function {function!r}: {error}") from None


class Dispatcher:
    """Serves one route of a model on one process of the buffer; ``elsewhere`` moves members to the other routes."""

    def __init__(
        self,
        model: str,
        route: Route,
        store: Store,
        limits: Limits,
        callers: Callers,
        invoker: Invoker,
        telemetry: ModelTelemetry | RouteTelemetry,
        elsewhere: Callable[[list[bytes]], Awaitable[None]],
    ) -> None:
        self._model = model
        self._route = route
        self._name = queue_name(model, route.name)
        self._limits = limits
        self._store = store
        self._queue = store.queue(model, limits, route.name)
        self._callers = callers
        self._invoker = invoker
        self._telemetry = telemetry
        self._elsewhere = elsewhere
        self._arrivals: list[tuple[float, bytes]] = []  # when each came, by ``time.perf_counter``, and the member
        self._completed: list[str] = []
        self._serving: dict[str, Released] = {}
        self._at_hand: dict[str, list[Answer]] = {}  # by batch: what callers here are about to get
        self._due = False  # the timer rang
        self._sweep = True  # the first call announces this process
        self._install = True
        self._epoch: str | None = None
        self._away = False
        self._leaving = False
        self._retired = False
        self._adopting = 0  # calls under way
        self._unfinished = False  # a batch was given up, and no sweep has taken it back yet
        self._drained = asyncio.Event()
        self._advancing = False
        self._wake: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._metadata: dict[str, Any] | None = None

    def start(self) -> None:
        """Install the policy, announce this process, and sweep from then on."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep_regularly())
        self._kick()

    def follow(self, route: Route) -> None:
        """Another table or function is in force, also for those who wait already; a retired route is back."""
        if (route.function, route.variant) != (self._route.function, self._route.variant):
            self._metadata = None
        self._install = self._install or self._retired or route.policy != self._route.policy
        self._route = route
        self._retired = False
        self._kick()

    def retire(self) -> None:
        """The plan in force has this route no more."""
        self._retired = self._install = True
        self._drained.clear()
        self._kick()

    async def drained(self) -> None:
        """Until nobody waits at a retired route any more, in the queue or here."""
        await self._drained.wait()

    async def adopt(self, members: list[bytes]) -> None:
        """Take over what waited at another route of the model; raises ``StoreUnavailable``, and some may then have been taken."""
        for member in members:
            if (caller := self._callers.waiting.get(_id(member))) is not None:
                caller.queue = self._name
        moved = Events(members, leaving=True, recorded=True)
        self._adopting += 1
        try:
            try:
                outcome = await self._queue.advance(moved)
            except QueueLost:
                await self._queue.install(self._policy())
                outcome = await self._queue.advance(moved)
            full = str(QueueFull(self._model, self._limits.max_queue_length))
            await self._hand_out([failed(_id(m), 429, "Too many requests", full) for m in members[outcome.accepted :]])
        finally:
            self._adopting -= 1
            self._due = True
            self._kick()

    async def submit(self, content_type: str, headers: dict[str, str], body: bytes) -> Answer:
        """One request, until it is answered.

        Raises
        ------
        QueueFull, StoreUnavailable, DeadlinePassed
        """
        arrived = time.perf_counter()  # the loop's clock ticks in milliseconds
        item = Item(self._callers.new_id(), content_type, body, headers)
        answered = self._callers.add(self._name, item)
        self._arrivals.append((arrived, encode_member(item)))
        self._kick()
        try:
            answer = await answered
        except SluiceError as error:
            self._telemetry.refused(error)
            raise
        finally:
            self._callers.forget(item.id)
        self._telemetry.answered(answer.status, time.perf_counter() - arrived, answer.headers.get(ROUTE_HEADER))
        return answer

    async def describe(self) -> dict[str, Any]:
        """The metadata of the model, asked once from the function of the route in force."""
        if self._metadata is None:
            self._metadata = await describe(self._asked_for, self._route.function, self._invoker)
        return self._metadata

    async def close(self) -> None:
        """Take no new batch, finish those under way, and only then give up this process's lease."""
        self._leaving = True
        self._arm(None)
        while self._tasks:
            await asyncio.wait(self._tasks)
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweep = True
        self._kick()
        while self._tasks:
            await asyncio.wait(self._tasks)
        self._arm(None)

    @property
    def _asked_for(self) -> str:
        """The model as the function knows it."""
        return self._route.variant or self._model

    # -- asking the queue

    def _kick(self) -> None:
        if not self._advancing:
            self._advancing = True
            self._spawn(self._advance())

    async def _advance(self) -> None:
        try:
            while self._arrivals or self._completed or self._due or self._sweep or self._install:
                try:
                    await self._advance_once()
                except StoreUnavailable as error:
                    if not self._away:
                        _log.warning("%s: %s", self._name, error)
                    self._away = True
                    if not self._arrivals:
                        self._arm(None if self._leaving else RETRY)
                        return
        finally:
            self._advancing = False

    async def _advance_once(self) -> None:
        """One call to the queue with everything that happened since the last."""
        arrivals, self._arrivals = self._arrivals[:LARGEST_CALL], self._arrivals[LARGEST_CALL:]
        members = [member for _, member in arrivals]
        completed, self._completed = self._completed, []
        serving = sorted(self._serving) if self._sweep else None
        unfinished, self._unfinished = self._unfinished, self._unfinished and serving is None  # a sweep takes it back
        self._due = self._sweep = False
        install, self._install = self._install, False  # again where another plan comes while this one is being installed
        try:
            if install:
                await self._queue.install(self._policy())
            now = time.perf_counter()
            ages = [now - arrived for arrived, _ in arrivals]
            outcome = await self._queue.advance(Events(members, completed, serving, self._leaving, ages))
        except QueueLost:
            self._arrivals = arrivals + self._arrivals
            self._recover()
            return
        except StoreUnavailable as error:
            # Whether the call was executed is not known: callers are told, completions are repeated, and a sweep takes back batches
            # that were released to an answer that got lost.
            self._completed = completed + self._completed
            self._unfinished = self._unfinished or unfinished
            self._install = self._install or install
            self._sweep = not self._leaving
            for member in members:
                self._callers.fail(_id(member), error)
            raise
        self._away = False
        if self._epoch not in (None, outcome.epoch):
            self._submit_again(besides={_id(member) for member in members})
        self._epoch = outcome.epoch
        for member in members[outcome.accepted :]:
            self._callers.fail(_id(member), QueueFull(self._model, self._limits.max_queue_length))
        for batch in outcome.batches:
            self._serving[batch.batch_id] = batch
            self._spawn(self._serve(batch))
        if outcome.dropped or outcome.dead:
            late = [failed(_id(m), 504, "Deadline passed", "it waited longer than the policy serves") for m in outcome.dropped]
            dead = [failed(_id(m), 502, "Function failed", "its batch was lost too often; it is put aside") for m in outcome.dead]
            self._spawn(self._hand_out(late + dead))
        self._arm(outcome.wake_in)
        self._telemetry.waiting(outcome.queue_length)
        if self._retired and outcome.queue_length == 0:
            self._look_whether_drained()

    def _look_whether_drained(self) -> None:
        busy = self._arrivals or self._serving or self._at_hand or self._adopting or self._unfinished
        if not busy and all(caller.queue != self._name for caller in self._callers.waiting.values()):
            self._drained.set()

    def _policy(self) -> Policy:
        """The route's table, which gives up nobody later than this process does: who got 504 must not be served before others.

        A retired route holds nobody, in batches that its function would take: another process may not know yet that it is retired.
        """
        policy = self._route.policy.policy()
        if self._retired:
            policy = greedy(policy.max_batch_size, servers=None)
        limit = self._callers.request_timeout
        return replace(policy, drop_after=limit if policy.drop_after is None else min(limit, policy.drop_after))

    def _recover(self) -> None:
        """The store does not know the queue: install its policy, and submit again what waits here."""
        self._install = self._sweep = True
        if self._epoch is not None:
            self._epoch = None
            self._submit_again(besides=set())

    def _submit_again(self, besides: set[str]) -> None:
        """The store lost the queue: what waits here, but for what is computed, answered or was submitted since, comes again."""
        _log.warning("%s: the store lost the queue; submitting what waits here again", self._name)
        besides = besides | {_id(member) for batch in self._serving.values() for member in batch.members}
        besides |= {answer.id for answers in self._at_hand.values() for answer in answers}
        besides |= {_id(member) for _, member in self._arrivals}
        waiting = [w for w in self._callers.waiting.values() if w.queue == self._name and w.item.id not in besides]
        # The record of arrivals was lost with the queue; a deadline tells, by the loop's clock, when its request came.
        to_deadline = self._callers.request_timeout + asyncio.get_running_loop().time() - time.perf_counter()
        self._arrivals = [(w.deadline - to_deadline, encode_member(w.item)) for w in waiting] + self._arrivals

    def _arm(self, wake_in: float | None) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if wake_in is not None:
            # Timers tick in milliseconds: round up, or the timer would ring before its time and ask in vain.
            delay = math.ceil(wake_in * 1000) / 1000
            self._wake = asyncio.get_running_loop().call_later(delay, self._ring)

    def _ring(self) -> None:
        self._wake = None
        self._due = True
        self._kick()

    async def _sweep_regularly(self) -> None:
        while True:
            await asyncio.sleep(self._limits.lease / 3)
            self._sweep = True
            self._kick()

    # -- serving a batch

    async def _serve(self, batch: Released) -> None:
        if self._retired:
            return await self._move(batch)
        waiting = self._callers.waiting
        items = []
        for member in batch.members:
            if (caller := waiting.get(_id(member))) is not None:
                items.append(caller.item)
            elif self._wanted(_id(member)):
                items.append(decode_member(member))
        here: list[Answer] = []
        try:
            try:
                answers = await self._answer(items)
            except StoreUnavailable:  # items could not be moved
                raise
            except Exception as error:  # a defect; who waits is told, and the log has it
                _log.exception("%s: a batch of %d failed", self._name, len(items))
                answers = [failed(item.id, 500, "Internal error", f"an error inside the buffer: {error}") for item in items]
            if self._route.name:
                named = {ROUTE_HEADER: self._route.name}
                answers = [structs.replace(answer, headers=answer.headers | named) for answer in answers]
            here, elsewhere = self._by_process(answers)
            for process, theirs in elsewhere.items():
                await self._send(process, _encode(theirs))
            self._completed.append(batch.batch_id)
        except BaseException:
            self._unfinished = True
            raise
        finally:  # where sending failed, the batch is not complete, and the next sweep takes it back
            self._at_hand[batch.batch_id] = here
            del self._serving[batch.batch_id]
            self._kick()
            await self._answer_here(here)
            del self._at_hand[batch.batch_id]

    async def _move(self, batch: Released) -> None:
        """A batch of a retired route to the others; where that fails, it is not complete, and the next sweep takes it back."""
        try:
            await self._elsewhere([member for member in batch.members if self._wanted(_id(member))])
            self._completed.append(batch.batch_id)
        except BaseException:
            self._unfinished = True
            raise
        finally:
            del self._serving[batch.batch_id]
            self._kick()

    async def _answer(self, items: list[Item]) -> list[Answer]:
        """An answer for every item, in order; none for those that a retired route moved."""
        if not items:
            return []
        self._telemetry.sent(len(items))
        function, batch = self._route.function, Batch(self._asked_for, items)
        started = time.perf_counter()
        try:
            answers = decode_answers(await self._invoker.invoke(function, encode_batch(batch)), batch)
        except (FunctionFailed, WireError) as error:
            self._telemetry.failed(type(error).__name__)
            unavailable = isinstance(error, (FunctionUnavailable, UnknownFunction))
            if unavailable and self._retired:
                await self._elsewhere([encode_member(item) for item in items if self._wanted(item.id)])
                return []
            if unavailable and function != self._route.function:  # another plan came meanwhile, and this one may have gone with it
                return await self._answer([item for item in items if self._wanted(item.id)])
            if unavailable or len(items) == 1:
                _log.warning("%s: %d items failed: %s", self._name, len(items), error)
                status, title = (413, "Content too large") if isinstance(error, BatchTooLarge) else (502, "Function failed")
                return [failed(item.id, status, title, str(error)) for item in items]
            # One after the other: whoever bounds the servers has paid for one.
            items = [item for item in items if self._wanted(item.id)]
            half = (len(items) + 1) // 2
            return await self._answer(items[:half]) + await self._answer(items[half:])
        self._telemetry.invoked(time.perf_counter() - started)
        return answers

    def _wanted(self, request_id: str) -> bool:
        """Whether somebody may still wait for an answer: of another process's callers only that process knows."""
        return request_id in self._callers.waiting or request_id[:PROCESS_LENGTH] != self._callers.process

    async def _hand_out(self, answers: list[Answer]) -> None:
        """Answers to their callers, here or at other processes: one message a process."""
        here, elsewhere = self._by_process(answers)
        for answer in here:
            self._callers.answer(answer)
        for process, theirs in elsewhere.items():
            await self._send(process, _encode(theirs))

    async def _answer_here(self, answers: list[Answer]) -> None:
        """Answers to their callers at this process, whose death would end these as well: the batch need not wait for them."""
        bounded = self._route.policy.servers is not None
        for index, answer in enumerate(answers):
            if bounded and index % PORTION == 0:
                # A server is free now: the queue must hear of it, and its next batch be sent, before all callers are answered.
                await asyncio.sleep(0)
            self._callers.answer(answer)

    def _by_process(self, answers: list[Answer]) -> tuple[list[Answer], dict[str, list[Answer]]]:
        """The answers whose callers wait here, and the others by the process where they do."""
        by_process: defaultdict[str, list[Answer]] = defaultdict(list)
        for answer in answers:
            by_process[answer.id[:PROCESS_LENGTH]].append(answer)
        return by_process.pop(self._callers.process, []), by_process

    async def _send(self, process: str, message: bytes) -> None:
        for _ in range(SENDINGS - 1):
            try:
                return await self._store.send(process, message)
            except StoreUnavailable:
                await asyncio.sleep(RETRY)
        await self._store.send(process, message)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("%s: %s", self._name, error, exc_info=None if isinstance(error, SluiceError) else error)


def _id(member: bytes) -> str:
    return member[:ID_LENGTH].decode()
