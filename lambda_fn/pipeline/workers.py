"""The workers of a pipeline as it sees them: a process with its socket, or a thread with its queue."""

from __future__ import annotations

import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from ..halving import said
from . import worker_process
from .calls import Raised, call_batch, call_one, encode_output, why_not
from .child import ChildProcess
from .errors import ItemTooLarge, StageError, StageTraceback
from .flow import Stage
from .frames import MAX_FILES, Kind, pack
from .marks import Marks, memory_for_marks
from .one_by_one import OneByOne
from .payloads import decode
from .pipeline_state import Outcome, Ticket


class Plain:
    """A payload between threads: the value itself, of so many bytes as it says."""

    __slots__ = ("size", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        try:
            size = getattr(value, "nbytes", None)
            if not isinstance(size, int):
                size = len(value) if isinstance(value, (str, bytes, bytearray)) else sys.getsizeof(value)
        except Exception:  # it does not say, as a sparse tensor
            size = 0
        self.size = size


def open_payload(payload: Any) -> Any:
    """The value of a payload, or of the list of them that a fork ends with; raises what unpickling does."""
    if type(payload) is list:
        return [open_payload(part) for part in payload]
    return payload.value if type(payload) is Plain else decode(payload)


class ProcessWorker(ChildProcess):
    """A process that runs a stage."""

    def __init__(self, setup: worker_process.Setup) -> None:
        memory = memory_for_marks()
        shared = [] if memory is None else [memory.fd]
        self.marks = None if memory is None else Marks(memory.fd)
        super().__init__(worker_process.__name__, setup._replace(marks=shared[0] if shared else None), shared)

    def give(self, tickets: list[Ticket]) -> bool:
        """Work, to be called together; whether all was sent."""
        payloads = [(ticket.number, ticket.item.files, ticket.payload) for ticket in tickets]
        while len(payloads) > MAX_FILES and sum(p.file is not None for _, _, p in payloads) > MAX_FILES:
            self.stream.send(*pack(Kind.PART, payloads[:MAX_FILES]))
            payloads = payloads[MAX_FILES:]
        return self.stream.send(*pack(Kind.WORK, payloads))

    def close(self) -> None:
        """Let go of it: the process is told to end."""
        super().close()
        if self.marks is not None:
            self.marks.close()


class ThreadWorker:
    """A thread that runs a stage, and posts ``ready``, ``failed``, what it made and what it ``skipped`` to the pipeline."""

    def __init__(
        self,
        stage: Stage,
        cpus: list[int] | None,
        encoded: bool,
        chooses: bool,
        max_payload: int,
        post: Callable[[ThreadWorker, str, Any, float], None],
    ) -> None:
        self._stage = stage
        self._cpus = cpus
        self._encoded = encoded
        self._chooses = chooses
        self._max_payload = max_payload
        self._post = post
        self.marks = Marks()
        self._queue: queue.SimpleQueue[list[Ticket] | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._run, name=f"stage {stage.name}", daemon=True)
        self.thread.start()

    def give(self, tickets: list[Ticket]) -> bool:
        """Work, to be called together."""
        self._queue.put(tickets)
        return True

    def close(self) -> None:
        """It ends after the call it is in."""
        self._queue.put(None)

    def wait(self, until: float) -> None:
        """Wait for its end until then (s, monotonic); a thread cannot be killed, and does not hold up the end of its process."""
        self.thread.join(max(0.0, until - time.monotonic()))

    def _run(self) -> None:
        try:
            if self._cpus is not None:
                os.sched_setaffinity(0, self._cpus)
            predict = self._stage.made_by(*self._stage.args, **self._stage.kwargs).predict
        except BaseException as error:
            self._post(self, "failed", why_not(error), 0.0)
            return
        self._post(self, "ready", None, 0.0)
        singles = self._stage.policy is None
        one_by_one: OneByOne[Ticket, Outcome] = OneByOne(
            self.marks, lambda ticket: self._one(predict, ticket), self._return, self._skip, f"{self.thread.name}: results"
        )
        place = 0
        while (tickets := self._queue.get()) is not None:
            if singles:
                one_by_one.run(tickets)
            else:
                self._together(predict, tickets, place)
            place += len(tickets)
            del tickets  # while it waits it holds nothing
        one_by_one.close()

    def _one(self, predict: Callable[[Any], Any], ticket: Ticket) -> Outcome:
        return self._outcome(ticket, call_one(predict, self._value(ticket.payload)))

    def _together(self, predict: Callable[[Any], Any], tickets: list[Ticket], place: int) -> None:
        if not self.marks.begin(place, len(tickets)):
            self._skip(range(place, place + len(tickets)))
            return
        started = time.perf_counter()
        outputs = call_batch(predict, [self._value(ticket.payload) for ticket in tickets])
        outcomes = [self._outcome(ticket, output) for ticket, output in zip(tickets, outputs, strict=True)]
        self._return(outcomes, time.perf_counter() - started)

    def _return(self, outcomes: list[Outcome], seconds: float) -> None:
        self._post(self, "returned", outcomes, seconds)

    def _skip(self, places: Sequence[int]) -> None:
        self._post(self, "skipped", places, 0.0)

    def _value(self, payload: Any) -> Any:
        if payload is None:  # its item has been answered meanwhile
            return Raised(StageError("nobody waits for this item any more"), "")
        try:
            return open_payload(payload)
        except BaseException as error:
            return Raised(error if isinstance(error, Exception) else StageError(said(error)), "")

    def _outcome(self, ticket: Ticket, output: Any) -> Outcome:
        if isinstance(output, Raised):
            if isinstance(output.error, StageError) and output.text:
                output.error.__cause__ = StageTraceback(output.text)
            return Outcome(ticket.number, True, output.error, 0)
        if self._chooses:
            return Outcome(ticket.number, False, output, 0)
        if self._encoded:
            failed, encoded = encode_output(output, ticket.item.files, self._max_payload)
            return Outcome(ticket.number, failed, encoded, encoded.size)
        plain = Plain(output)
        if plain.size > self._max_payload:
            what = f"output: {plain.size} bytes are not allowed; allowed: at most {self._max_payload} (max_payload)"
            return Outcome(ticket.number, True, ItemTooLarge(what), 0)
        return Outcome(ticket.number, False, plain, plain.size)
