"""The dispatcher of one model: coalesces what happens, asks the queue, arms the timer, sends batches, hands out answers.

It decides nothing about batching: the queue's rule does. While one call to the queue is under way, everything that happens is
collected for the next, so that the cost of a call is shared by all requests that came meanwhile.

Guarantees. Answers for callers at other processes are sent before their batch is declared complete; whoever dies in between leaves
a lease that expires, and the batch is served again: a request is computed at least once, and its caller gets exactly one answer,
the first. Callers at this process end with it, and are answered right after.
A batch that fails is split in halves until the item that fails stands alone.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import defaultdict
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from batching import Policy
from batching.documents import Plan
from batching.errors import FunctionFailed, QueueFull, SluiceError, StoreUnavailable
from buffer_service.callers import Callers
from buffer_service.invokers import BatchTooLarge, FunctionUnavailable, Invoker, UnknownFunction
from buffer_service.store import ID_LENGTH, PROCESS_LENGTH, Events, Limits, QueueLost, Released, Store
from buffer_service.telemetry import ModelTelemetry
from lambda_fn.contract import Answer, Batch, Item, WireError, decode_answers, decode_metadata, encode_batch, failed

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


async def describe(plan: Plan, invoker: Invoker) -> dict[str, Any]:
    """Ask a plan's function for the metadata of its model; raises ``FunctionFailed``."""
    try:
        return decode_metadata(await invoker.invoke(plan.function, encode_batch(Batch(plan.model, [], describe=True))))
    except WireError as error:
        raise FunctionFailed(f"function {plan.function!r}: {error}") from None


class Dispatcher:
    """Serves one model on one process of the buffer."""

    def __init__(
        self, plan: Plan, store: Store, limits: Limits, callers: Callers, invoker: Invoker, telemetry: ModelTelemetry
    ) -> None:
        self.plan = plan
        self._limits = limits
        self._store = store
        self._queue = store.queue(plan.model, limits)
        self._callers = callers
        self._invoker = invoker
        self._telemetry = telemetry
        self._arrivals: list[tuple[float, bytes]] = []  # when each came, by ``time.perf_counter``, and the member
        self._completed: list[str] = []
        self._serving: dict[str, Released] = {}
        self._due = False  # the timer rang
        self._sweep = True  # the first call announces this process
        self._install = True
        self._epoch: str | None = None
        self._away = False
        self._leaving = False
        self._advancing = False
        self._wake: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._sweeper: asyncio.Task[None] | None = None
        self._metadata: dict[str, Any] | None = None

    def start(self) -> None:
        """Install the policy, announce this process, and sweep from then on."""
        self._sweeper = asyncio.get_running_loop().create_task(self._sweep_regularly())
        self._kick()

    def follow(self, plan: Plan) -> None:
        """Another plan is in force, also for those who wait already."""
        if plan.function != self.plan.function:
            self._metadata = None
        self._install = self._install or plan.policy != self.plan.policy
        self.plan = plan
        self._telemetry.follow(plan)
        self._kick()

    async def submit(self, content_type: str, headers: dict[str, str], body: bytes) -> Answer:
        """One request, until it is answered.

        Raises
        ------
        QueueFull, StoreUnavailable, DeadlinePassed
        """
        arrived = time.perf_counter()  # the loop's clock ticks in milliseconds
        item = Item(self._callers.new_id(), content_type, body, headers)
        answered = self._callers.add(self.plan.model, item)
        self._arrivals.append((arrived, encode_member(item)))
        self._kick()
        try:
            answer = await answered
        except SluiceError as error:
            self._telemetry.refused(error)
            raise
        finally:
            self._callers.forget(item.id)
        self._telemetry.answered(answer.status, time.perf_counter() - arrived)
        return answer

    async def describe(self) -> dict[str, Any]:
        """The metadata of the model, asked once from the function of the plan in force."""
        if self._metadata is None:
            self._metadata = await describe(self.plan, self._invoker)
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
                        _log.warning("%s: %s", self.plan.model, error)
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
        self._due = self._sweep = False
        try:
            if self._install:
                await self._queue.install(self._policy())
                self._install = False
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
            self._sweep = not self._leaving
            for member in members:
                self._callers.fail(_id(member), error)
            raise
        self._away = False
        if self._epoch not in (None, outcome.epoch):
            self._submit_again(besides={_id(member) for member in members})
        self._epoch = outcome.epoch
        for member in members[outcome.accepted :]:
            self._callers.fail(_id(member), QueueFull(self.plan.model, self._limits.max_queue_length))
        for batch in outcome.batches:
            self._serving[batch.batch_id] = batch
            self._spawn(self._serve(batch))
        if outcome.dropped or outcome.dead:
            late = [failed(_id(m), 504, "Deadline passed", "it waited longer than the policy serves") for m in outcome.dropped]
            dead = [failed(_id(m), 502, "Function failed", "its batch was lost too often; it is put aside") for m in outcome.dead]
            self._spawn(self._hand_out(late + dead))
        self._arm(outcome.wake_in)
        self._telemetry.waiting(outcome.queue_length)

    def _policy(self) -> Policy:
        """The plan's table, which gives up nobody later than this process does: who got 504 must not be served before others."""
        policy = self.plan.policy.policy()
        limit = self._callers.request_timeout
        return replace(policy, drop_after=limit if policy.drop_after is None else min(limit, policy.drop_after))

    def _recover(self) -> None:
        """The store does not know the queue: install its policy, and submit again what waits here."""
        self._install = self._sweep = True
        if self._epoch is not None:
            self._epoch = None
            self._submit_again(besides=set())

    def _submit_again(self, besides: set[str]) -> None:
        """The store lost the queue: what waits here, and neither is computed here nor was submitted since, is submitted again."""
        _log.warning("%s: the store lost the queue; submitting what waits here again", self.plan.model)
        besides = besides | {_id(member) for batch in self._serving.values() for member in batch.members}
        besides |= {_id(member) for _, member in self._arrivals}
        waiting = [w for w in self._callers.waiting.values() if w.model == self.plan.model and w.item.id not in besides]
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
            except Exception as error:  # a defect; who waits is told, and the log has it
                _log.exception("%s: a batch of %d failed", self.plan.model, len(items))
                answers = [failed(item.id, 500, "Internal error", f"an error inside the buffer: {error}") for item in items]
            here, elsewhere = self._by_process(answers)
            for process, theirs in elsewhere.items():
                await self._send(process, _encode(theirs))
            self._completed.append(batch.batch_id)
        finally:  # where sending failed, the batch is not complete, and the next sweep takes it back
            del self._serving[batch.batch_id]
            self._kick()
            await self._answer_here(here)

    async def _answer(self, items: list[Item]) -> list[Answer]:
        """An answer for every item, in order."""
        if not items:
            return []
        self._telemetry.sent(len(items))
        batch = Batch(self.plan.model, items)
        started = time.perf_counter()
        try:
            answers = decode_answers(await self._invoker.invoke(self.plan.function, encode_batch(batch)), batch)
        except (FunctionFailed, WireError) as error:
            self._telemetry.failed(type(error).__name__)
            if len(items) == 1 or isinstance(error, (FunctionUnavailable, UnknownFunction)):
                _log.warning("%s: %d items failed: %s", self.plan.model, len(items), error)
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
        bounded = self.plan.policy.servers is not None
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
            _log.error("%s: %s", self.plan.model, error, exc_info=None if isinstance(error, SluiceError) else error)


def _id(member: bytes) -> str:
    return member[:ID_LENGTH].decode()
