"""The dispatcher of one route of a model: does what the route's state says (``route_state.py``), and tells it what came of that.

It decides nothing: it calls the queue, invokes, sends, moves, arms one timer, and hands out answers. A call waits for the end of a
round of the loop, so that it takes all that came in it; everything else is done at once, and so is what follows from an answer of
the queue, or of a function (``prompt.py``).
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from sluice.batching.documents import Route
from sluice.batching.errors import DeadlinePassed, Draining, FunctionFailed, NoRoom, SluiceError, StoreUnavailable
from sluice.batching.urls import without_password
from sluice.buffer_service.alarms import Alarm
from sluice.buffer_service.batch_state import Cause, Failure
from sluice.buffer_service.callers import AtEnd, Callers, Waiting
from sluice.buffer_service.environments import RouteEnvironments
from sluice.buffer_service.invokers import (
    BatchTooLarge,
    FunctionBusy,
    FunctionCrashed,
    FunctionUnavailable,
    Invoker,
    UnknownFunction,
)
from sluice.buffer_service.invokers.port import asking, pooling
from sluice.buffer_service.members import encode_answers as encode_message
from sluice.buffer_service.prompt import GivenUp, Prompt
from sluice.buffer_service.route_batches import BACKOFF, LEFT_HEADER, ROUTE_HEADER
from sluice.buffer_service.route_facts import Caller
from sluice.buffer_service.route_functions import Standing
from sluice.buffer_service.route_instructions import (
    NEVER,
    Adopted,
    Adoption,
    Call,
    Fetch,
    Hasten,
    Instructions,
    Invocation,
    Message,
    Move,
)
from sluice.buffer_service.route_state import RouteState
from sluice.buffer_service.store import Limits, Outcome, QueueLost, Store
from sluice.buffer_service.telemetry import ModelTelemetry, RouteTelemetry
from sluice.buffer_service.told import NOTHING_TOLD, Told
from sluice.http.room import Room, Share
from sluice.lambda_fn.contract import (
    NOTHING_MEASURED,
    Answer,
    Batch,
    Item,
    Measured,
    WireError,
    decode_metadata,
    encode_batch,
)

DESCRIPTIONS = 6  # times that a busy function is asked about its model
PORTION = 2  # answers that callers get between two looks at the network

# What helps against an error; the first that it is an instance of counts.
CAUSES: dict[type[Exception], Cause] = {
    FunctionBusy: Cause.BUSY,
    FunctionUnavailable: Cause.UNAVAILABLE,
    UnknownFunction: Cause.UNAVAILABLE,
    BatchTooLarge: Cause.TOO_LARGE,
    FunctionCrashed: Cause.CRASHED,
    FunctionFailed: Cause.FAILED,
}

_log = logging.getLogger(__name__)


async def describe(model: str, function: str, invoker: Invoker) -> dict[str, Any]:
    """Ask a function for the metadata of its model, again where it is busy; raises ``FunctionFailed``."""
    for attempt in range(DESCRIPTIONS):
        try:
            return decode_metadata(await invoker.invoke(function, encode_batch(Batch(model, [], describe=True))))
        except FunctionBusy:
            if attempt + 1 == DESCRIPTIONS:
                raise
            await asyncio.sleep(random.uniform(0, BACKOFF * 2**attempt))
        except WireError as error:
            raise FunctionFailed(f"function {without_password(function)!r}: {error}") from None
    raise AssertionError("unreachable: the last attempt returns or raises")


class Dispatcher:
    """Serves one route of a model on one process of the buffer.

    ``elsewhere`` moves members to the other routes; ``drained`` is called when nobody waits at the retired route any more, perhaps
    again and again until the dispatcher is closed; ``left`` tells all routes that a caller waits no more: his request may have
    moved. What the function answered takes ``room`` until its batch has ended. ``slo`` (s) is what the plan promises;
    ``digest`` is the plan's, and ``edition`` names it as it was made: of another edition environments are started anew.
    """

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
        drained: Callable[[], None],
        left: Callable[[Caller], None],
        room: Room,
        slo: float | None = None,
        digest: str = "",
        edition: str = "",
    ) -> None:
        mine = callers.process, callers.waiting, callers.request_timeout
        self._state = RouteState(model, route, limits, *mine, slo, digest, callers.rounds)
        self._store = store
        self._queue = store.queue(model, limits, route.name)
        self._callers = callers
        self._clock = callers.clock
        self._invoker = invoker
        self._ask_function = asking(invoker)
        self._pool_of = pooling(invoker)
        self._telemetry = telemetry
        self._elsewhere = elsewhere
        self._drained = drained
        self._left = left
        self._room = room
        self._lease = limits.lease
        self._edition = edition
        self._environments = RouteEnvironments(self._state.name, self._queue, invoker, callers.clock)
        self._held: dict[str, Share] = {}  # by batch under way, what the function has answered
        self._invoked: dict[tuple[str, int], Prompt] = {}  # by batch and part under way
        self._given_up: dict[tuple[str, int], asyncio.TimerHandle] = {}  # the same, of those that are so at a time
        self._closed = asyncio.Event()
        self._at_end: list[AtEnd] = [self._waits_no_more]  # of a caller, whom it is told of
        self._adoptions: dict[Adoption, asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._in_turn = False
        self._next_calls: asyncio.Handle | None = None
        self._timer: Alarm | None = None
        self._rings_at = NEVER
        self._alike: list[tuple[float, float]] | None = None  # of those who are told together, as most are: latency and wait (s)
        self._metadata: dict[str, Any] | None = None

    def start(self) -> None:
        """Install the policy, announce this process, and serve from then on."""
        for function in self._state.route.functions:
            self._look_at_workers(function)
        self._environments.follow(self._state.route, self._state.asked_for, self._edition)
        self._kick()

    def follow(self, route: Route, slo: float | None = None, digest: str = "", edition: str = "") -> None:
        """Another table or function is in force, also for those who wait already; a retired route is back."""
        if (route.functions, route.variant) != (self._state.route.functions, self._state.route.variant):
            self._metadata = None
        self._state.follow(self._clock(), route, slo, digest)
        for function in route.functions:
            self._look_at_workers(function)
        self._environments.follow(route, self._state.asked_for, edition)
        self._kick()

    def retire(self) -> None:
        """The plan in force has this route no more."""
        self._environments.stop()
        self._state.retire(self._clock())
        self._kick()

    async def adopt(self, members: list[bytes]) -> None:
        """Take over what waited at another route of the model; raises ``StoreUnavailable``, and some may then have been taken."""
        adoption = self._state.adopt(self._clock(), members)
        taken = self._adoptions[adoption] = asyncio.get_running_loop().create_future()
        self._kick()
        await taken

    def takes_share(self) -> bool:
        """Whether the route gets its share of the requests, or another is to have this one."""
        return self._state.takes_share(self._clock())

    def ask(self, content_type: str, headers: dict[str, str], body: bytes, told: Told = NOTHING_TOLD) -> Waiting:
        """One request, with what it told of itself, until it is over; who waits no more ends it.

        Raises
        ------
        Overloaded, QueueFull
            At once; what it fails with later is StoreUnavailable, DeadlinePassed, Draining, or one of these.
        """
        came, state, callers = self._clock(), self._state, self._callers
        if (refusal := state.refuses(came, told.slack)) is not None:
            self._telemetry.refused(refusal, told)
            state.turned_away()
            if state.due(came):
                self._call_soon()
            raise refusal
        item = Item(callers.new_id(), content_type, body, headers)
        waiting = callers.add(state.name, item, came, told, self._at_end)
        asks_at = state.came(came, waiting)
        if asks_at <= came and state.may_leave:  # nobody who comes in the rest of this round would leave with him
            self._turn(may_call=False)
            asks_at = state.asks_at
        if self._next_calls is None:
            if asks_at <= came:
                self._call_soon()
            elif asks_at < self._rings_at:
                self._arm(asks_at, came)
        return waiting

    def _waits_no_more(self, caller: Waiting) -> None:
        """A caller has his answer, or an error, or has gone."""
        now, answer, error = self._clock(), caller.answer, caller.error
        if answer is not None:
            self._state.answered(now, caller)
            route = None
            if answer.headers:
                route = answer.headers.get(ROUTE_HEADER)
                if LEFT_HEADER in answer.headers:
                    self._state.left(now, caller, answer)
            waited = caller.taken - caller.came if caller.batch_size else None
            plain = answer.status == 200 and route is None and caller.told is NOTHING_TOLD
            if plain and waited is not None and self._alike is not None:
                self._alike.append((now - caller.came, waited))
            else:
                self._telemetry.answered(answer.status, now - caller.came, route, caller.told, waited)
        elif error is None:
            self._telemetry.left(now - caller.came, caller.told, caller.batch_size > 0)
            self._left(caller)
            self._callers.forget(caller.item.id)  # who was told is forgotten already
        elif isinstance(error, SluiceError):
            self._telemetry.refused(error, caller.told, caller.batch_size > 0)
            if isinstance(error, (DeadlinePassed, Draining)):
                self._left(caller)

    def gone(self, caller: Caller) -> None:
        """A caller waits no more; where his request is in this queue it leaves it."""
        if self._state.gone(self._clock(), caller):
            self._call_soon()

    async def describe(self) -> dict[str, Any]:
        """The metadata of the model, asked once from the first function of the route in force that answers.

        Raises ``FunctionFailed`` where none does.
        """
        if self._metadata is None:
            self._metadata = await self._first_description()
        return self._metadata

    async def _first_description(self) -> dict[str, Any]:
        *functions, last = self._state.route.functions
        for function in functions:
            try:
                return await describe(self._state.asked_for, function, self._invoker)
            except FunctionFailed as error:
                _log.warning("%s: function %r does not say what it serves: %s", self._state.name, function, error)
        return await describe(self._state.asked_for, last, self._invoker)

    def standings(self) -> list[Standing]:
        """How each function of the route stands at this process."""
        return self._state.standings(self._clock())

    async def check(self) -> None:
        """Raise ``StoreUnavailable`` unless a call to the queue would be executed."""
        await self._queue.check()

    async def close(self) -> None:
        """Serve until no caller here waits, finish the batches under way, and only then give up this process's lease."""
        self._environments.stop()
        self._state.leave(self._clock())
        self._at_end = [self._has_ended, self._waits_no_more]
        for waiting in self._callers.waiting.values():
            waiting.then(self._has_ended)
        self._kick()
        await self._closed.wait()
        while self._tasks:
            await asyncio.wait(self._tasks)
        for late in (self._timer, self._next_calls):
            if late is not None:
                late.cancel()

    def _has_ended(self, caller: Waiting) -> None:
        """A caller has his answer, or has gone, while this process is leaving."""
        self._call_soon()

    # -- turns

    def _kick(self) -> None:
        """Do at once what is to be done, but for a call: that waits for the end of this round of the loop, as more may come."""
        if self._in_turn:  # of what a turn began this has ended already
            asyncio.get_running_loop().call_soon(self._kick)
            return
        self._call_soon()  # first, so that the call is on its way before those who are told now go on
        self._turn(may_call=self._state.asking)  # while a call is under way there is no other

    def _call_soon(self) -> None:
        if self._next_calls is None and not self._state.asking:
            self._next_calls = asyncio.get_running_loop().call_soon(self._begin_calls)

    def _begin_calls(self) -> None:
        self._next_calls = None
        Prompt(self._call_as_told(), self._ended).go_on()

    async def _call_as_told(self) -> None:
        """Turns, each of which but the last calls the queue."""
        while (call := self._turn().call) is not None:
            answer = await self._ask(call)
            self._state.called(self._clock(), answer)

    def _turn(self, may_call: bool = True) -> Instructions:
        """Do what the state says, but for the call, which is left to do."""
        # One breath: nothing may happen between what the state says and that it is done, or begun.
        now = self._clock()
        instructions = self._state.turn(now, may_call)
        self._in_turn = True
        try:
            for invocation in instructions.invoke:
                self._begin(invocation)
            self._do(instructions, now)
        except Exception:  # a defect; the call is under way as far as the state knows, and must be made all the same
            _log.exception("%s: not all was done that was to be done", self._state.name)
        finally:
            self._in_turn = False
        return instructions

    def _do(self, instructions: Instructions, now: float) -> None:
        """All but the call and the batches."""
        for fetch in instructions.fetch:
            self._spawn(self._fetch(fetch))
        for hasten in instructions.hasten:
            self._hasten(hasten, now)
        for message in instructions.send:  # each apart: where the mailbox of one process is away, the others have their answers
            self._spawn(self._send(message))
        for move in instructions.move:
            self._spawn(self._move(move))
        for batch_id in instructions.ended:
            self._held.pop(batch_id).resize(0)
        for adopted in instructions.adopted:
            self._settle(adopted)
        for request_id, error in instructions.refuse:
            self._callers.fail(request_id, error)
        if instructions.tell:
            self._tell(instructions.tell)
        for level, line in instructions.log:
            _log.log(level, "%s", line)
        for reason in instructions.unreadable:
            self._telemetry.set_aside(f"{self._state.name}: {reason}")
        if instructions.queue_length is not None:
            self._telemetry.waiting(instructions.queue_length)
        if instructions.wake_at < self._rings_at:
            self._arm(instructions.wake_at, now)
        if instructions.drained:
            self._drained()
        if instructions.closed:
            self._closed.set()

    async def _ask(self, call: Call) -> Outcome | QueueLost | StoreUnavailable:
        try:
            if call.install is not None:
                await self._queue.install(call.install)
            return await self._queue.advance(call.events)
        except (QueueLost, StoreUnavailable) as error:
            return error
        except Exception as error:  # a defect; who waits is told, and the log has it
            _log.exception("%s: a call to the queue failed", self._state.name)
            return StoreUnavailable(f"an error inside the buffer: {error}")

    def _begin(self, invocation: Invocation) -> None:
        prompt = self._invoked[invocation.batch_id, invocation.part] = Prompt(self._invoke(invocation), self._ended)
        prompt.go_on()

    async def _invoke(self, invocation: Invocation) -> None:
        """Ask a function, and tell the state what came of it."""
        number = invocation.batch_id, invocation.part
        try:
            answers, told = await self._answers(invocation)
        finally:
            del self._invoked[number]
            if (at := self._given_up.pop(number, None)) is not None:
                at.cancel()
        suspensions = self._state.suspensions
        self._state.served(self._clock(), invocation.batch_id, answers, invocation.part, told)
        self._look_at_workers(invocation.function)
        if self._state.suspensions > suspensions:
            self._telemetry.suspended()
        self._kick()

    @property
    def starting(self) -> bool:
        """Whether environments start of a route that is new here, so that requests are better sent elsewhere; not for long."""
        return self._environments.starting

    def _look_at_workers(self, function: str) -> None:
        """Tell the state which workers of a function are ejected."""
        try:
            if (pool := self._pool_of(function)) is not None:
                self._state.pool(self._clock(), function, *pool)
        except Exception:  # a defect, or a plan that names no workers; what is not known of them holds up nobody
            _log.exception("%s: how the workers of %s are is not known", self._state.name, without_password(function))

    async def _answers(self, invocation: Invocation) -> tuple[list[Answer] | Failure, Measured]:
        batch = Batch(invocation.model, invocation.items)
        held = self._held.setdefault(invocation.batch_id, self._room.share())
        self._telemetry.sent(len(batch.items), invocation.function)
        if invocation.again:
            self._telemetry.asked_again()
        started = self._clock()
        try:
            answers, told, size = await self._ask_function(invocation.function, batch, invocation.avoid)
            held.resize(held.size + size)  # in one breath with its end as what is being read
        except FunctionFailed as error:
            return self._no_answer(invocation, error), NOTHING_MEASURED
        except GivenUp:
            left = FunctionUnavailable(f"{without_password(invocation.function)} has left the plan, and does not answer")
            return self._no_answer(invocation, left), NOTHING_MEASURED
        except Exception as error:  # a defect; who waits is told, and the log has it
            _log.exception("%s: a batch of %d failed", self._state.name, len(batch.items))
            return Failure(Cause.DEFECT, f"an error inside the buffer: {error}"), NOTHING_MEASURED
        self._telemetry.invoked(self._clock() - started, len(batch.items), told, invocation.function)
        return answers, told

    def _no_answer(self, invocation: Invocation, error: FunctionFailed) -> Failure:
        self._telemetry.failed(type(error).__name__, invocation.function)
        return _failure(error)

    def _hasten(self, hasten: Hasten, now: float) -> None:
        number = hasten.batch_id, hasten.part
        if (at := self._given_up.pop(number, None)) is not None:
            at.cancel()
        if hasten.until < NEVER and number in self._invoked:
            self._given_up[number] = asyncio.get_running_loop().call_later(hasten.until - now, self._invoked[number].cancel)

    async def _fetch(self, fetch: Fetch) -> None:
        """Ask other processes for bodies, where there is room for them, and tell the state what came of that."""
        held, found = self._held.setdefault(fetch.batch_id, self._room.share()), {}
        why_not = f"the process that has the body did not send it within {self._lease:g} s"
        if held.fits(fetch.bytes):
            held.resize(fetch.bytes)
            found = await self._callers.bodies.fetch(self._store.send, fetch.requests, self._lease)
        else:
            why_not = f"{NoRoom(self._room.limit)}"
        self._state.fetched(self._clock(), fetch.batch_id, found, why_not)
        self._kick()

    async def _send(self, message: Message) -> None:
        try:
            await self._store.send(message.process, encode_message(message.answers))
        except StoreUnavailable as error:
            self._state.sent(self._clock(), message, error)
        else:
            self._state.sent(self._clock(), message)
        self._kick()

    async def _move(self, move: Move) -> None:
        try:
            await self._elsewhere(move.members)
        except StoreUnavailable as error:
            self._state.moved(self._clock(), move, error)
        else:
            self._state.moved(self._clock(), move)
        self._kick()

    def _settle(self, adopted: Adopted) -> None:
        taken = self._adoptions.pop(adopted.adoption)
        if taken.done():
            return
        if adopted.error is None:
            taken.set_result(None)
        else:
            taken.set_exception(adopted.error)

    def _tell(self, answers: Sequence[Answer]) -> None:
        if self._state.bounded:
            self._spawn(self._tell_in_portions(answers))
        else:
            self._tell_together(answers)

    def _tell_together(self, answers: Sequence[Answer]) -> None:
        """One breath: what is counted of each is counted of all."""
        alike = self._alike = []
        try:
            for answer in answers:
                self._callers.answer(answer)
        finally:
            self._alike = None
        if alike:
            self._telemetry.answered_together(*zip(*alike, strict=True))

    async def _tell_in_portions(self, answers: Sequence[Answer]) -> None:
        """A server is free now: the queue must hear of it, and its next batch be sent, before all callers are answered.

        This begins behind the call to the queue that was due before.
        """
        for first in range(0, len(answers), PORTION):
            if first:
                await asyncio.sleep(0)
            self._tell_together(answers[first : first + PORTION])

    def _arm(self, wake_at: float, now: float) -> None:
        """Have a turn taken at ``wake_at``; a timer that rings before does no harm, is left, and is armed again then."""
        if self._timer is not None:
            self._timer.cancel()
        self._rings_at = wake_at
        self._timer = self._callers.alarms.after(wake_at - now, self._ring)

    def _ring(self) -> None:
        self._timer, self._rings_at = None, NEVER
        self._kick()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._ended(None if task.cancelled() else task.exception())

    def _ended(self, error: BaseException | None) -> None:
        if error is not None and not isinstance(error, asyncio.CancelledError):  # as the loop ends
            _log.error("%s: %s", self._state.name, error, exc_info=None if isinstance(error, SluiceError) else error)


def _failure(error: FunctionFailed) -> Failure:
    """What the state is told of an error."""
    cause = next(cause for kind, cause in CAUSES.items() if isinstance(error, kind))
    retry_after = error.retry_after if isinstance(error, FunctionBusy) else None
    return Failure(cause, str(error), error.worker, retry_after or 0.0, random.random())
