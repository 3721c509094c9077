"""A running pipeline: what workers and callers say is told to the state, and what it says is done.

One thread sleeps until a worker has said something or a time has come, tells the state all that was there, and takes one turn.
Who submits takes a turn himself, as switching to the thread would take longer than the turn; where another is at it, that one takes
what has come meanwhile too. Callers encode what they submit, and who takes the turn decodes what left the last stage; between them
payloads are passed on as they are.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import logging
import math
import os
import pickle
import resource
import select
import selectors
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import Future, InvalidStateError
from types import TracebackType
from typing import Any

from sluice.batching.errors import InvalidInput, require

from . import worker_process
from .admission import Admission
from .calls import decode_error
from .errors import ItemTooLarge, PipelineError, PipelineStopped, StageError, StartupFailed
from .flow import Flow, is_duration, lay_out
from .frames import Frame, Kind
from .marks import SETTLED
from .payloads import Encoded, encode
from .pipeline_state import Answer, Item, Outcome, PipelineState, Turn
from .worker_process import Setup, main_module
from .workers import Plain, ProcessWorker, ThreadWorker, open_payload

MiB = 1024 * 1024
END_WITHIN = 2.0  # s for a worker to end by itself when the pipeline stops
LONGEST_SLEEP = 3600.0  # s; the kernel takes no number as large as a deadline may be

_log = logging.getLogger(__name__)


class Ticketed(Future[Any]):
    """The future of an item; cancelling it makes room for another."""

    item: Item | None = None  # while it is in the state
    _left: Callable[[Ticketed], None]

    def cancel(self) -> bool:
        """Nobody waits for it any more; a worker that has it goes on, and its result is dropped."""
        if self.cancelled() or not super().cancel():
            return self.cancelled()
        self._left(self)
        return True


class Awaited:
    """The future of an item in an event loop, which is told of all that one turn answered at once."""

    __slots__ = ("future", "item", "loop")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.future: asyncio.Future[Any] = loop.create_future()
        self.item: Item | None = None

    def cancelled(self) -> bool:
        """Whether nobody waits for it any more."""
        return self.future.cancelled()


Caller = Ticketed | Awaited
Answered = tuple[Awaited, Any, Exception | None]


class Pipeline:
    """Serves items through the stages of ``flow``; a context manager, and itself a model with ``predict``.

    Parameters
    ----------
    flow : Stage, Sequential, Ensemble or Switch
    max_items : int
        Items under way at most; ``submit`` waits, or refuses, beyond it.
    max_bytes : int
        Bytes of their payloads, beyond which none enters and only one worker works at a time.
    max_payload : int
        Bytes of one input or output.
    deadline : float or None
        Seconds an item may take, where ``submit`` is told nothing else; ``None``: for ever.
    cpus : collection of int or None
        The CPUs that the thread of the pipeline may run on.
    name : str
        What it is called where it is served.

    Raises
    ------
    InvalidInput
    """

    def __init__(
        self,
        flow: Flow,
        *,
        max_items: int = 1024,
        max_bytes: int = 256 * MiB,
        max_payload: int = 64 * MiB,
        deadline: float | None = None,
        cpus: Collection[int] | None = None,
        name: str = "pipeline",
    ) -> None:
        for field, value, least in (
            ("max_items", max_items, 1),
            ("max_payload", max_payload, 4096),
            ("max_bytes", max_bytes, max_payload),
        ):
            require(isinstance(value, int) and value >= least, field, value, f"an integer >= {least}")
        require(deadline is None or is_duration(deadline), "deadline", deadline, "a number of seconds > 0, or None")
        if cpus is not None:
            allowed = os.sched_getaffinity(0)
            require(
                isinstance(cpus, Collection) and len(cpus) > 0 and set(cpus) <= allowed,
                "cpus",
                cpus,
                "some of " + ", ".join(map(str, sorted(allowed))),
            )
        self.name = name
        self._max_payload = max_payload
        self._deadline = deadline
        self._cpus = cpus
        self._layout = lay_out(flow, max_items)
        self._admission = Admission(max_items, max_bytes)
        self._max_files = min(max_items, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4 // (1 + len(self._layout.stages)))
        self._files = 0  # items that may have files
        self._thread: threading.Thread | None = None
        self._life = threading.Lock()  # held by who starts or stops it
        self._broken = ""

    # Its life

    def start(self) -> Pipeline:
        """Start every worker, and return when all are ready.

        Raises ``StartupFailed`` with the name of the stage and the cause; then nothing is left. Does nothing where it is running.
        """
        with self._life:
            if self._thread is not None:
                return self
            if worker_process.starting:
                why = "a worker is importing the module that starts it; start it below `if __name__ == '__main__':`"
                raise PipelineStopped(f"the pipeline is not started: {why}")
            self._made = [self._made_of(number) for number in range(len(self._layout.stages))]
            self._state = PipelineState(self._layout.rules, self._layout.entry, self._admission.max_bytes)
            self._workers: dict[int, ProcessWorker | ThreadWorker] = {}
            self._failure: PipelineError | None = None
            self._closing = False
            self._ended = False
            self._broken = ""
            self._came: deque[tuple[Caller, Any, int, float | None, bool]] = deque()
            self._gone: deque[Caller] = deque()
            self._posted: deque[tuple[int, ThreadWorker, str, Any, float]] = deque()
            self._stopped: deque[tuple[float, int, ProcessWorker | ThreadWorker]] = deque()  # by when what they have begun is seen
            self._turns = threading.Lock()  # held by who takes one
            self._sleeps_until = -math.inf
            self._settled = threading.Event()
            self._all_cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
            with contextlib.ExitStack() as opened:
                self._selector = opened.enter_context(selectors.DefaultSelector())
                self._wake_reader, self._wake_writer = os.pipe()
                opened.callback(os.close, self._wake_reader)
                opened.callback(os.close, self._wake_writer)
                os.set_blocking(self._wake_reader, False)
                os.set_blocking(self._wake_writer, False)
                self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
                # What select can be asked about; elsewhere it has no number.
                epoll = getattr(self._selector, "fileno", lambda: 1024)()
                self._epoll = epoll if epoll < 1024 else None
                thread = threading.Thread(target=self._run, name="pipeline", daemon=True)
                thread.start()
                opened.pop_all()  # the thread and `_close` see to them
            self._thread = thread
            try:
                self._settled.wait()
            except BaseException:  # the wait was interrupted
                self._close()
                raise
            if self._failure is not None:
                self._close()
                raise self._failure
            self._admission.set_open(True)
            atexit.register(self.stop, 0.0)
        return self

    def stop(self, timeout: float = 30.0) -> None:
        """Let no item enter, wait for ``timeout`` seconds until those in it are answered, and end every worker.

        Who is not answered by then gets ``PipelineStopped``.
        """
        with self._life:
            if self._thread is None:
                return
            atexit.unregister(self.stop)
            self._admission.set_open(False)
            self._admission.wait_empty(timeout)
            self._close()

    @property
    def broken(self) -> str:
        """Why it has ended by itself, which only another start mends; empty: it has not."""
        return self._broken

    def __enter__(self) -> Pipeline:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop(30.0 if kind is None else 0.0)

    def _close(self) -> None:
        assert self._thread is not None
        self._closing = True
        self._wake()
        self._thread.join()
        self._thread = None
        os.close(self._wake_reader)
        os.close(self._wake_writer)
        self._workers.clear()

    # Items

    def submit(self, item: Any, deadline: float | None = None, *, block: bool = True) -> Future[Any]:
        """Put an item in; the future of its output, or of its error.

        Parameters
        ----------
        deadline : float or None
            Seconds from now after which it fails with ``DeadlinePassed``, wherever it is; by default the pipeline's.
        block : bool
            Whether to wait while the pipeline is full (until the deadline), or to raise ``PipelineFull``. A callback of a future
            must not wait: it runs in a turn, and holds up all.

        Raises
        ------
        PipelineFull, PipelineStopped, ItemTooLarge, DeadlinePassed
            And what ``pickle`` does of an item that a process cannot get.
        """
        future = Ticketed()
        future._left = self._leave
        self._enter(future, item, deadline, block)
        return future

    async def ask(self, item: Any, deadline: float | None = None) -> Any:
        """The output of an item, or its error raised; as ``submit`` with ``block=False``, for who runs an event loop.

        Cheaper there than its future: what one turn answers is told to the loop at once.
        """
        caller = Awaited(asyncio.get_running_loop())
        self._enter(caller, item, deadline, block=False)
        try:
            return await caller.future
        except asyncio.CancelledError:
            self._leave(caller)
            raise

    def _enter(self, caller: Caller, item: Any, deadline: float | None, block: bool) -> None:
        if deadline is None:
            deadline = self._deadline
        elif not is_duration(deadline):
            raise InvalidInput("deadline", deadline, "a number of seconds > 0 from now, or None")
        until = None if deadline is None else time.monotonic() + deadline
        files = self._files < self._max_files
        payload = encode(item, files) if self._layout.entry_encoded else Plain(item)
        if payload.size > self._max_payload:
            raise ItemTooLarge(f"item: {payload.size} bytes are not allowed; allowed: at most {self._max_payload} (max_payload)")
        self._admission.enter(payload.size, until, block)
        self._came.append((caller, payload, payload.size, until, files))
        self._advance()

    def predict(self, inputs: Sequence[Any]) -> list[Any]:
        """One output for each input, in order; where it failed, the exception."""
        answers: list[Any] = []
        for item in inputs:
            try:
                answers.append(self.submit(item))
            except Exception as error:
                answers.append(error)
        for i, answer in enumerate(answers):
            if isinstance(answer, Ticketed):
                failure = answer.exception()
                answers[i] = answer.result() if failure is None else failure
        return answers

    def _leave(self, caller: Caller) -> None:
        self._gone.append(caller)
        self._advance()

    def _post(self, number: int, thread: ThreadWorker, kind: str, content: Any, seconds: float) -> None:
        self._posted.append((number, thread, kind, content, seconds))
        self._advance()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_writer, b".")

    # Turns

    def _run(self) -> None:
        try:
            if self._cpus is not None:
                os.sched_setaffinity(0, self._cpus)
            self._state.start(time.monotonic())
            events: list[tuple[selectors.SelectorKey, int]] = []
            while not self._closing:
                with self._turns:
                    self._take_turn(events)
                self._advance()
                if not self._closing:  # the turn may have read, with what it was woken by, that it is to end
                    events = self._sleep()
        except BaseException:
            self._break()
        finally:
            with self._turns:
                self._end()
            self._settled.set()

    def _sleep(self) -> list[tuple[selectors.SelectorKey, int]]:
        # First as if for ever: who takes a turn writes the time and then looks how long is slept.
        self._sleeps_until = math.inf
        wake_at = self._wake_at
        timeout = None
        if wake_at is not None:
            self._sleeps_until = wake_at
            timeout = min(max(0.0, wake_at - time.monotonic()), LONGEST_SLEEP)
            if timeout and self._epoll is not None:
                # The selector rounds up to milliseconds, which is what a batch waits.
                select.select([self._epoll], [], [], timeout)
                timeout = 0.0
        events = self._selector.select(timeout)
        self._sleeps_until = -math.inf
        return events

    def _advance(self) -> None:
        """Take a turn if anything has come, unless another is at it: he looks again when he has ended."""
        while (self._came or self._posted or self._gone) and self._turns.acquire(blocking=False):
            try:
                if self._closing:
                    self._refuse()
                    return
                self._take_turn([])
                if self._wake_at is not None and self._wake_at < self._sleeps_until:
                    self._wake()
            except BaseException:  # a signal may raise anywhere, also between two steps that belong together
                self._break()
                raise
            finally:
                self._turns.release()

    def _break(self) -> None:
        """A defect: nobody must wait for ever because of it."""
        self._failure = StartupFailed(f"the pipeline has a defect: {traceback.format_exc()}")
        if self._admission.open:
            _log.critical("the pipeline has a defect, and has ended", exc_info=True)
        error = sys.exception()
        self._broken = f"the pipeline has ended by a defect: {type(error).__name__}: {error}"
        self._admission.set_open(False, self._broken)
        self._closing = True
        self._wake()

    def _take_turn(self, events: list[tuple[selectors.SelectorKey, int]]) -> None:
        state = self._state
        now = time.monotonic()
        items, held, entered, entered_bytes = state.items, state.bytes, 0, 0
        if events:
            self._hear(events, now)
        while self._posted:
            number, thread, kind, content, seconds = self._posted.popleft()
            if self._workers.get(number) is thread:
                self._tell_posted(number, kind, content, seconds, now)
        while self._stopped and self._stopped[0][0] <= now:
            _, number, stopped = self._stopped.popleft()
            if self._workers.get(number) is stopped and stopped.marks is not None:
                state.stopped(number, stopped.marks.begun)
        while self._came:
            caller, payload, size, until, files = self._came.popleft()
            entered += 1
            entered_bytes += size
            if not caller.cancelled():
                caller.item = state.came(caller, payload, size, until, files)
                self._files += files
        while self._gone:
            caller = self._gone.popleft()
            if caller.item is not None:
                self._files -= caller.item.files
                state.gone(caller.item)
                caller.item = None
        turn = state.turn(now)
        change, change_bytes = state.items - items - entered, state.bytes - held - entered_bytes
        if change or change_bytes:
            self._admission.change(change, change_bytes)  # first, as who is answered may put in another
        self._do(turn)

    def _hear(self, events: list[tuple[selectors.SelectorKey, int]], now: float) -> None:
        dead: list[tuple[int, ProcessWorker]] = []
        for key, mask in events:
            if key.data is None:
                os.read(self._wake_reader, 65536)
                continue
            number: int = key.data[0]
            worker: ProcessWorker = key.data[1]
            if self._workers.get(number) is not worker:
                continue  # it was let go a moment ago
            if key.data[2] == "death":
                dead.append((number, worker))
                continue
            if mask & selectors.EVENT_WRITE and worker.stream.flush():
                self._selector.modify(worker.stream.connection, selectors.EVENT_READ, key.data)
            if mask & selectors.EVENT_READ:
                frames, is_open = worker.read()
                self._tell(number, worker, frames, now)
                if not is_open:
                    dead.append((number, worker))
        for number, worker in dead:
            if self._workers.get(number) is worker:
                worker.kill()  # where only its socket has ended, it has nothing to say any more
                self._tell(number, worker, worker.read_rest(), now)
            if self._workers.get(number) is worker:
                cause = worker.cause_of_death()
                self._let_go(number, worker)
                if self._settled.is_set():
                    _log.warning("a process of stage %r has ended, and is started again: %s", self._stage_of(number), cause)
                self._state.died(number, cause, now)

    def _tell(self, number: int, worker: ProcessWorker, frames: list[Frame], now: float) -> None:
        for frame in frames:
            if frame.kind == Kind.RETURNED:
                outcomes = [Outcome(n, failed, payload, payload.size) for n, failed, payload in frame.payloads]
                self._state.returned(number, outcomes, frame.seconds, now)
            elif frame.kind == Kind.SKIPPED:
                self._state.skipped(number, [place for place, _, _ in frame.payloads])
            elif frame.kind == Kind.READY:
                self._state.ready(number, now, worker.marks is not None)
            elif frame.kind == Kind.FAILED:
                cause = frame.payloads[0][2].head.decode(errors="replace")
                self._let_go(number, worker)
                if self._settled.is_set():  # else it is raised
                    _log.error("a process of stage %r cannot be started: %s", self._stage_of(number), cause)
                self._state.failed_to_start(number, cause, now)

    def _stage_of(self, number: int) -> str:
        return self._state.workers[number].stage.rule.name

    def _tell_posted(self, number: int, kind: str, content: Any, seconds: float, now: float) -> None:
        if kind == "returned":
            self._state.returned(number, content, seconds, now)
        elif kind == "skipped":
            self._state.skipped(number, content)
        elif kind == "ready":
            self._state.ready(number, now)
        else:
            del self._workers[number]
            self._state.failed_to_start(number, content, now)

    def _do(self, turn: Turn) -> None:
        try:
            for number in turn.kill:
                worker = self._workers.get(number)
                if isinstance(worker, ProcessWorker):
                    worker.kill()
            for number in turn.start:
                self._start_worker(number)
            for number, place in turn.stop:
                worker = self._workers[number]
                assert worker.marks is not None  # as the state was told
                worker.marks.stop(place)
                self._stopped.append((time.monotonic() + SETTLED, number, worker))
            for number, tickets in turn.work:
                worker = self._workers[number]
                if not worker.give(tickets):
                    assert isinstance(worker, ProcessWorker)
                    data = (number, worker, "socket")
                    self._selector.modify(worker.stream.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, data)
        finally:
            self._answer(turn.answers)  # of whom the state knows nothing any more
        self._wake_at = turn.wake_at
        if self._stopped:
            self._wake_at = min(self._stopped[0][0], math.inf if turn.wake_at is None else turn.wake_at)
        if not self._settled.is_set():
            self._failure = self._state.start_failure()
            if self._failure is not None or not self._state.starting():
                self._settled.set()

    def _answer(self, answers: list[Answer]) -> None:
        by_loop: dict[asyncio.AbstractEventLoop, list[Answered]] = {}
        for answer in answers:
            caller: Caller = answer.caller
            if caller.item is not None:
                self._files -= caller.item.files
                caller.item = None  # each knows the other, and the output may be large
            output, error = _read(answer)
            if isinstance(caller, Awaited):
                by_loop.setdefault(caller.loop, []).append((caller, output, error))
                continue
            with contextlib.suppress(InvalidStateError):  # it was cancelled meanwhile
                if error is not None:
                    caller.set_exception(error)
                else:
                    caller.set_result(output)
        for loop, answered in by_loop.items():
            with contextlib.suppress(RuntimeError):  # it is closed, and nobody waits in it
                loop.call_soon_threadsafe(_tell_loop, answered)

    # Workers

    def _made_of(self, number: int) -> bytes:
        stage = self._layout.stages[number]
        if not stage.processes:
            return b""
        try:
            return pickle.dumps((stage.made_by, stage.args, stage.kwargs), 5)
        except Exception as error:
            allowed = "a class that can be imported, with arguments that can be pickled, as its workers are processes"
            raise InvalidInput(f"stage {self._layout.rules[number].name!r}", stage.made_by, f"{allowed} ({error})") from error

    def _start_worker(self, number: int) -> None:
        old = self._workers.get(number)
        if isinstance(old, ProcessWorker):
            self._let_go(number, old)
        place = self._state.workers[number].stage.number
        stage, rule = self._layout.stages[place], self._layout.rules[place]
        first = self._state.workers.index(self._state.workers[number].stage.workers[0])
        cpus = stage.cpus[number - first] if stage.cpus is not None else None
        worker: ProcessWorker | ThreadWorker
        if stage.processes:
            # Else it would have those of the thread that starts it.
            allowed = cpus or self._all_cpus
            try:
                worker = ProcessWorker(Setup(self._made[place], main_module(), rule.policy is None, allowed, self._max_payload))
            except OSError as error:  # no memory, no descriptors, too many processes
                self._state.failed_to_start(number, f"its process cannot be made: {error}", time.monotonic())
                self._wake()  # the turn that asked for it knew of no such failure
                return
            # To be written to, as what it is told first may not go out at once.
            events = selectors.EVENT_READ | selectors.EVENT_WRITE
            self._selector.register(worker.stream.connection, events, (number, worker, "socket"))
            if worker.pidfd is not None:
                self._selector.register(worker.pidfd, selectors.EVENT_READ, (number, worker, "death"))
        else:
            cpus = cpus or self._all_cpus

            def post(thread: ThreadWorker, kind: str, content: Any, seconds: float) -> None:
                self._post(number, thread, kind, content, seconds)

            worker = ThreadWorker(stage, cpus, self._layout.encoded[place], rule.branches is not None, self._max_payload, post)
        self._workers[number] = worker

    def _let_go(self, number: int, worker: ProcessWorker) -> None:
        if worker.pidfd is not None:
            self._selector.unregister(worker.pidfd)
        self._selector.unregister(worker.stream.connection)
        worker.kill()
        worker.close()
        worker.wait(time.monotonic())
        del self._workers[number]

    def _refuse(self) -> None:
        """Once it has ended, who had been let in before is answered."""
        if self._ended:
            while self._came:
                caller, *_ = self._came.popleft()
                self._answer(
                    [Answer(caller, True, PipelineStopped("the pipeline was stopped before this item was answered"), None)]
                )
            self._files = 0
            self._admission.empty()

    def _end(self) -> None:
        """Answer everybody, end every worker, close everything."""
        self._state.close()
        self._answer(self._state.turn(0.0).answers)
        self._ended = True
        self._refuse()
        for worker in self._workers.values():
            worker.close()
        until = time.monotonic() + END_WITHIN
        for worker in self._workers.values():
            worker.wait(until)
        self._selector.close()


def _tell_loop(answered: list[Answered]) -> None:
    for caller, output, error in answered:
        if caller.future.done():
            continue  # cancelled meanwhile
        if error is not None:
            caller.future.set_exception(error)
        else:
            caller.future.set_result(output)


def _read(answer: Answer) -> tuple[Any, Exception | None]:
    """The output for its caller, or the error."""
    if not answer.failed:
        try:
            return open_payload(answer.payload), None
        except Exception as cause:
            unreadable = StageError(f"output: it cannot be read where its caller is: {type(cause).__name__}: {cause}")
            unreadable.__cause__ = cause
            return None, unreadable
    error: Exception = decode_error(answer.payload) if isinstance(answer.payload, Encoded) else answer.payload
    note = f"in stage {answer.stage!r}"
    with contextlib.suppress(Exception):  # an exception may let nothing be set, as a frozen dataclass
        if answer.stage is not None and note not in getattr(error, "__notes__", ()):
            error.add_note(note)
    return None, error
