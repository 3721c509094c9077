"""A running pipeline: one thread that reads what workers say, tells the state, and does what it says.

Callers encode what they submit, and the thread decodes what leaves the last stage; between them payloads are passed on as they are.
Everything that was there at one wake-up is told to the state before it is asked once.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import pickle
import resource
import selectors
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from types import TracebackType
from typing import Any

from sluice.batching.errors import InvalidInput, require

from . import worker_process
from .admission import Admission
from .calls import decode_error
from .errors import ItemTooLarge, PipelineStopped, StageError, StartupFailed
from .flow import Flow, lay_out
from .frames import Frame, Kind
from .payloads import Encoded, encode
from .pipeline_state import Answer, Item, Outcome, PipelineState, Turn
from .worker_process import Setup, main_module
from .workers import Plain, ProcessWorker, ThreadWorker, open_payload

MiB = 1024 * 1024
END_WITHIN = 2.0  # s for a worker to end by itself when the pipeline stops


class Ticketed(Future[Any]):
    """The future of an item; cancelling it makes room for another."""

    _item: Item | None = None
    _left: Callable[[Ticketed], None]

    def cancel(self) -> bool:
        """Nobody waits for it any more; a worker that has it goes on, and its result is dropped."""
        if self.cancelled() or not super().cancel():
            return self.cancelled()
        self._left(self)
        return True


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
    cpus : sequence of int or None
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
        cpus: Sequence[int] | None = None,
        name: str = "pipeline",
    ) -> None:
        for field, value, least in (
            ("max_items", max_items, 1),
            ("max_payload", max_payload, 4096),
            ("max_bytes", max_bytes, max_payload),
        ):
            require(isinstance(value, int) and value >= least, field, value, f"an integer >= {least}")
        require(deadline is None or deadline > 0, "deadline", deadline, "a number of seconds > 0, or None")
        if cpus is not None:
            allowed = os.sched_getaffinity(0)
            require(len(cpus) > 0 and set(cpus) <= allowed, "cpus", cpus, "some of " + ", ".join(map(str, sorted(allowed))))
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
            self._failure: StartupFailed | None = None
            self._closing = False
            self._came: deque[tuple[Ticketed, Any, int, float | None, bool]] = deque()
            self._gone: deque[Ticketed] = deque()
            self._posted: deque[tuple[int, ThreadWorker, str, Any, float]] = deque()
            self._sleeping = False
            self._all_cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
            self._wake_reader, self._wake_writer = os.pipe()
            os.set_blocking(self._wake_reader, False)
            os.set_blocking(self._wake_writer, False)
            self._selector = selectors.DefaultSelector()
            self._selector.register(self._wake_reader, selectors.EVENT_READ, None)
            settled = threading.Event()
            self._thread = threading.Thread(target=self._run, args=(settled,), name="pipeline", daemon=True)
            self._thread.start()
            try:
                settled.wait()
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
            Whether to wait while the pipeline is full (until the deadline), or to raise ``PipelineFull``.

        Raises
        ------
        PipelineFull, PipelineStopped, ItemTooLarge, DeadlinePassed
            And what ``pickle`` does of an item that a process cannot get.
        """
        if deadline is None:
            deadline = self._deadline
        elif not deadline > 0:
            raise InvalidInput("deadline", deadline, "a number of seconds > 0 from now, or None")
        until = None if deadline is None else time.monotonic() + deadline
        files = self._files < self._max_files
        payload = encode(item, files) if self._layout.entry_encoded else Plain(item)
        if payload.size > self._max_payload:
            raise ItemTooLarge(f"item: {payload.size} bytes are not allowed; allowed: at most {self._max_payload} (max_payload)")
        self._admission.enter(payload.size, until, block)
        future = Ticketed()
        future._left = self._leave
        self._came.append((future, payload, payload.size, until, files))
        if self._sleeping:
            self._wake()
        return future

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

    def _leave(self, future: Ticketed) -> None:
        self._gone.append(future)
        if self._sleeping:
            self._wake()

    def _wake(self) -> None:
        self._sleeping = False
        with contextlib.suppress(BlockingIOError):
            os.write(self._wake_writer, b".")

    # The thread

    def _run(self, settled: threading.Event) -> None:
        try:
            if self._cpus is not None:
                os.sched_setaffinity(0, self._cpus)
            self._state.start(time.monotonic())
            self._do(self._state.turn(time.monotonic()), settled)
            while not self._closing:
                self._wait(settled)
        except BaseException:  # a defect; nobody must wait for ever because of it
            self._failure = StartupFailed(f"the pipeline has a defect: {traceback.format_exc()}")
            self._admission.set_open(False)
        finally:
            self._end()
            settled.set()

    def _wait(self, settled: threading.Event) -> None:
        self._sleeping = True
        if self._came or self._posted or self._gone or self._closing:
            timeout: float | None = 0.0
        else:
            timeout = None if self._wake_at is None else max(0.0, self._wake_at - time.monotonic())
        events = self._selector.select(timeout)
        self._sleeping = False
        state = self._state
        now = time.monotonic()
        items, held, entered, entered_bytes = state.items, state.bytes, 0, 0
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
                    worker.kill()  # it has nothing to say any more
                    dead.append((number, worker))
        for number, worker in dead:
            if self._workers.get(number) is worker:
                worker.kill()
                self._tell(number, worker, worker.read_rest(), now)
            if self._workers.get(number) is worker:
                cause = worker.cause_of_death()
                self._let_go(number, worker)
                state.died(number, cause, now)
        while self._posted:
            number, thread, kind, content, seconds = self._posted.popleft()
            if self._workers.get(number) is thread:
                self._tell_posted(number, kind, content, seconds, now)
        while self._came:
            future, payload, size, until, files = self._came.popleft()
            entered += 1
            entered_bytes += size
            if not future.cancelled():
                future._item = state.came(future, payload, size, until, files)
                self._files += files
        while self._gone:
            future = self._gone.popleft()
            if future._item is not None and not future._item.done:
                state.gone(future._item)
                self._files -= future._item.files
        turn = state.turn(now)
        self._do(turn, settled)
        change, change_bytes = state.items - items - entered, state.bytes - held - entered_bytes
        if change or change_bytes:
            self._admission.change(change, change_bytes)

    def _tell(self, number: int, worker: ProcessWorker, frames: list[Frame], now: float) -> None:
        for frame in frames:
            if frame.kind == Kind.RETURNED:
                outcomes = [Outcome(n, failed, payload, payload.size) for n, failed, payload in frame.payloads]
                self._state.returned(number, outcomes, frame.seconds, now)
            elif frame.kind == Kind.READY:
                self._state.ready(number, now)
            elif frame.kind == Kind.FAILED:
                cause = frame.payloads[0][2].head.decode(errors="replace")
                self._let_go(number, worker)
                self._state.failed_to_start(number, cause, now)

    def _tell_posted(self, number: int, kind: str, content: Any, seconds: float, now: float) -> None:
        if kind == "returned":
            self._state.returned(number, content, seconds, now)
        elif kind == "ready":
            self._state.ready(number, now)
        else:
            del self._workers[number]
            self._state.failed_to_start(number, content, now)

    def _do(self, turn: Turn, settled: threading.Event) -> None:
        for number in turn.kill:
            worker = self._workers.get(number)
            if isinstance(worker, ProcessWorker):
                worker.kill()
        for number in turn.start:
            self._start_worker(number)
        for number, tickets in turn.work:
            worker = self._workers[number]
            if not worker.give(tickets):
                assert isinstance(worker, ProcessWorker)
                data = (number, worker, "socket")
                self._selector.modify(worker.stream.connection, selectors.EVENT_READ | selectors.EVENT_WRITE, data)
        for answer in turn.answers:
            self._answer(answer)
        self._wake_at = turn.wake_at
        if not settled.is_set():
            why = self._state.start_failure()
            if why is not None:
                self._failure = StartupFailed(why)
            if why is not None or not self._state.starting():
                settled.set()

    def _answer(self, answer: Answer) -> None:
        future: Ticketed = answer.caller
        if future._item is not None:
            self._files -= future._item.files
        output: Any = None
        error: Exception | None = None
        if not answer.failed:
            try:
                output = open_payload(answer.payload)
            except Exception as cause:
                error = StageError(f"output: it cannot be read where its caller is: {type(cause).__name__}: {cause}")
                error.__cause__ = cause
        else:
            raised: Exception = decode_error(answer.payload) if isinstance(answer.payload, Encoded) else answer.payload
            note = f"in stage {answer.stage!r}"
            if answer.stage is not None and note not in getattr(raised, "__notes__", ()):
                raised.add_note(note)
            error = raised
        with contextlib.suppress(InvalidStateError):  # it was cancelled meanwhile
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(output)

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
            # A pinned thread would hand its CPUs down.
            allowed = cpus or (self._all_cpus if self._cpus is not None else None)
            try:
                worker = ProcessWorker(Setup(self._made[place], main_module(), rule.policy is None, allowed, self._max_payload))
            except OSError as error:  # no memory, no descriptors, too many processes
                self._state.failed_to_start(number, f"its process cannot be made: {error}", time.monotonic())
                self._wake()  # the turn that asked for it knew of no such failure
                return
            self._selector.register(worker.stream.connection, selectors.EVENT_READ, (number, worker, "socket"))
            if worker.pidfd is not None:
                self._selector.register(worker.pidfd, selectors.EVENT_READ, (number, worker, "death"))
        else:
            cpus = cpus or (self._all_cpus if self._cpus is not None else None)

            def post(thread: ThreadWorker, kind: str, content: Any, seconds: float) -> None:
                self._posted.append((number, thread, kind, content, seconds))
                if self._sleeping:
                    self._wake()

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

    def _end(self) -> None:
        """Answer everybody, end every worker, close everything."""
        state = self._state
        items, held, entered, entered_bytes = state.items, state.bytes, 0, 0
        state.close()
        while self._came:
            future, payload, size, until, files = self._came.popleft()
            entered, entered_bytes = entered + 1, entered_bytes + size
            if not future.cancelled():
                state.came(future, payload, size, until, files)
        for answer in state.turn(0.0).answers:
            self._answer(answer)
        self._admission.change(state.items - items - entered, state.bytes - held - entered_bytes)
        self._files = 0
        for worker in self._workers.values():
            worker.close()
        until = time.monotonic() + END_WITHIN
        for worker in self._workers.values():
            worker.wait(until)
        self._selector.close()
        self._sleeping = False
