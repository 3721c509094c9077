"""One model of the worker: its life, who waits for it, and what becomes of a batch.

    UNLOADED --load--> LOADING --> READY --unload--> UNLOADING --> UNLOADED
                          |
                          +-----> FAILED --load--> LOADING

What may live here: what a request meets between the door and the model. What may not: HTTP, or whose turn it is (turns.py).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any, NamedTuple

from sluice.batching.policy import Policy

from .. import contract
from ..contract import Answer, Item
from ..models.base import Model
from ..models.memory import WithinMemory
from .energy import Energy
from .executions import Executions, apart
from .http_server import Failure
from .measurements import Measurements
from .turns import Turns, Work

LOADING_AGAIN = 5.0
"""Seconds after which to ask again for a model that is being loaded."""
LONGEST_RETRY = 3600.0
ERRORS = 64
"""Kinds of errors of batches that are counted apart."""

Load = Callable[[], Model]

_log = logging.getLogger(__name__)


class Life(Enum):
    """What a model is doing."""

    UNLOADED = auto()
    LOADING = auto()
    READY = auto()
    UNLOADING = auto()
    FAILED = auto()


@dataclass(frozen=True, slots=True)
class Serving:
    """How a model is served.

    ``policy`` puts single requests together; ``executions`` batches are computed at once; ``queue`` requests may wait; a caller
    waits for ``timeout`` s at the most, from when its request is complete.
    """

    policy: Policy
    executions: int = 1
    queue: int = 1024
    timeout: float = 60.0


class Answered(NamedTuple):
    """The answers of one caller, in order; ``document`` is them encoded, where they were asked for as a batch."""

    answers: list[Answer]
    document: bytes
    seconds: float
    """Seconds that the batch took to compute."""


@dataclass(slots=True)
class Tallies:
    """What is counted of a model."""

    requests: Counter[int] = field(default_factory=Counter)  # by status
    refusals: Counter[str] = field(default_factory=Counter)  # by reason
    failures: Counter[str] = field(default_factory=Counter)  # batches, by reason


class _Outcome(NamedTuple):
    """What an execution came to: what each caller gets, and the time it took (s) if it counts."""

    results: list[Answered | Failure]
    size: int
    seconds: float
    overhead: float
    joules: float | None
    failure: str


class ServedModel:
    """One model.

    Parameters
    ----------
    name
        What callers call it.
    load
        Makes the model; may take long, and may raise.
    energy
        The counter of the GPUs, where there is one; it is read while nothing else is computed.
    """

    def __init__(
        self,
        name: str,
        load: Load,
        serving: Serving,
        energy: Energy | None = None,
        alone: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.life = Life.UNLOADED
        self.reason = "not loaded"
        self.measurements = Measurements()
        self.tallies = Tallies()
        self.wanted = True  # whether it is to be ready
        self._load = load
        self._serving = serving
        self._energy = energy
        self._alone = alone
        self._clock = clock
        self._turns = Turns(serving.policy, serving.executions, serving.queue)
        self._running: dict[tuple[Work, ...], float] = {}  # since when
        self._model: WithinMemory | None = None
        self._executions: Executions | None = None
        self._wake: asyncio.TimerHandle | None = None
        self._loading: asyncio.Future[None] | None = None
        self._idle = asyncio.Event()

    # -- life

    async def load(self) -> None:
        """Be ready, if that is possible; raises what loading raised."""
        while self.life is Life.UNLOADING:
            await asyncio.sleep(0.05)
        if self.life is Life.READY:
            return
        self.wanted = True
        if self._loading is None:
            self.life, self.reason = Life.LOADING, "being loaded"
            self._loading = asyncio.ensure_future(self._make())
        await asyncio.shield(self._loading)

    async def _make(self) -> None:
        try:
            model = await apart(self._load)
        except BaseException as error:
            self.life, self.reason = Life.FAILED, f"{type(error).__name__}: {error}"
            raise
        finally:
            self._loading = None
        self._model = WithinMemory(model)
        self._executions = Executions(f"model-{self.name}", self._serving.executions, asyncio.get_running_loop())
        self.life, self.reason = Life.READY, ""

    async def unload(self) -> None:
        """Give the model up once what waits for it and what it computes is done; what comes meanwhile is refused."""
        if self._loading is not None:
            await asyncio.wait([self._loading])
        self.wanted = False
        if self.life is not Life.READY:
            if self.life is not Life.UNLOADING:
                self.life, self.reason = Life.UNLOADED, "not loaded"
            return
        self.life, self.reason = Life.UNLOADING, "being unloaded"
        try:
            async with asyncio.timeout(self._serving.timeout):
                await self.drained()
        except TimeoutError:
            self.life, self.reason = Life.READY, ""
            raise TimeoutError(f"what it computes did not end within {self._serving.timeout:g} s") from None
        executions, model = self._executions, self._model
        self._executions = self._model = None
        if executions is not None:
            executions.stop()
        close = getattr(model.model, "close", None) if model is not None else None
        del model
        await apart(lambda: _release(close))
        self.life, self.reason = Life.UNLOADED, "not loaded"

    async def drained(self) -> None:
        """Returns when nothing waits and nothing is computed."""
        while not self._turns.idle:
            self._idle.clear()
            await self._idle.wait()

    @property
    def busy(self) -> bool:
        """Whether anything waits or is computed."""
        return not self._turns.idle

    @property
    def waiting(self) -> int:
        """Requests."""
        return self._turns.waiting

    @property
    def running(self) -> int:
        """Executions."""
        return self._turns.running

    @property
    def dead(self) -> str:
        """Why only another process would serve it again; empty: this one does."""
        late = self._clock() - self._serving.timeout
        overdue = sum(since < late for since in self._running.values())
        if overdue >= self._serving.executions:
            return "every execution runs for longer than anybody waits"
        return self._model.broken if self._model is not None else ""

    @property
    def largest_batch(self) -> int | None:
        """Requests of the largest batch that the memory takes, where that has been learned."""
        return self._model.largest if self._model is not None else None

    def metadata(self) -> dict[str, Any]:
        """The model metadata of the Open Inference Protocol; of a model that is not ready its name alone."""
        if self._model is None:
            return {"name": self.name, "versions": [], "platform": "", "inputs": [], "outputs": []}
        return self._model.metadata() | {"name": self.name}

    # -- requests

    def submit(self, items: list[Item], single: bool, answered: Callable[[Answered | Failure], None]) -> Work | None:
        """Have a batch, or one request, computed in its turn; ``answered`` is called once, perhaps at once.

        ``None`` where it was refused, else what ``withdraw`` takes.
        """
        if self.life is not Life.READY:
            again = LOADING_AGAIN if self.life is Life.LOADING else None
            self._refuse(answered, 503, "Service unavailable", f"model {self.name!r} is {self.reason}", again, "not_ready")
            return None
        work = Work(items, single, answered)
        if not self._turns.came(self._clock(), work):
            detail = f"{self._turns.waiting} requests wait for {self.name!r} already; allowed: {self._serving.queue}"
            self._refuse(answered, 429, "Too many requests", detail, self._wait(), "queue_full")
            return None
        self._turn()
        return work

    def withdraw(self, work: Work) -> None:
        """Its caller has gone."""
        work.waits = False
        if self._turns.withdraw(work):
            self.tallies.refusals["gone"] += 1
            self._note_idle()

    def look(self) -> None:
        """Give up those who have waited for too long; asked from time to time."""
        late = self._clock() - self._serving.timeout
        for work in self._turns.expire(late):
            self._give_up(work, f"it waited for {self._serving.timeout:g} s and was not begun")
        for batch in self._running:
            for work in batch:
                if work.waits and work.came_at < late:
                    self._give_up(work, f"model {self.name!r} does not answer within {self._serving.timeout:g} s")
        self._note_idle()

    def give_up_all(self, detail: str) -> None:
        """The process ends: who still waits is told."""
        for work in (*self._turns.expire(math.inf), *(work for batch in self._running for work in batch)):
            if work.waits:
                work.waits = False
                self._refuse(work.answered, 503, "Service unavailable", detail, 1.0, "shut_down")

    def _give_up(self, work: Work, detail: str) -> None:
        work.waits = False
        self._refuse(work.answered, 504, "Timeout", detail, None, "timeout")

    def _refuse(
        self, answered: Callable[[Failure], None], status: int, title: str, detail: str, retry_after: float | None, reason: str
    ) -> None:
        self.tallies.refusals[reason] += 1
        answered(Failure(status, title, detail, retry_after))

    def _wait(self) -> float:
        """Seconds until what waits now is served, by what was measured; at least 1."""
        work = self.measurements.seconds_per_request * self._turns.waiting / self._serving.executions
        return min(max(1.0, work), LONGEST_RETRY)

    def _turn(self) -> None:
        """Begin whatever may begin."""
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        while True:
            now = self._clock()
            step = self._turns.next(now)
            for work in step.dropped:
                work.waits = False
                self._refuse(work.answered, 503, "Service unavailable", "the policy gave the request up", 1.0, "dropped")
            if step.batch:
                self._begin(now, step.batch)
            elif not step.dropped:
                if step.wake_at is not None:
                    self._wake = asyncio.get_running_loop().call_later(max(0.0, step.wake_at - now), self._turn)
                return

    def _begin(self, now: float, batch: tuple[Work, ...]) -> None:
        assert self._model is not None and self._executions is not None
        self._running[batch] = now
        energy = self._energy if self._energy is not None and self._alone() else None
        self._executions.begin(partial(_compute, self._model, batch, energy), partial(self._ended, batch))

    def _ended(self, batch: tuple[Work, ...], outcome: _Outcome) -> None:
        # Energy counts where nothing else was computed at the end either.
        joules = outcome.joules if outcome.joules is not None and self._alone() else None
        del self._running[batch]
        self._turns.ended()
        if outcome.failure:
            self._note_failure(outcome)
        else:
            self.measurements.add(outcome.size, outcome.seconds, outcome.overhead, joules)
        for work, result in zip(batch, outcome.results, strict=True):
            if work.waits:
                work.waits = False
                if isinstance(result, Answered):
                    for answer in result.answers:
                        self.tallies.requests[answer.status] += 1
                work.answered(result)
        self._turn()
        self._note_idle()

    def _note_failure(self, outcome: _Outcome) -> None:
        failures = self.tallies.failures
        known = outcome.failure in failures or len(failures) < ERRORS
        failures[outcome.failure if known else "other"] += 1
        _log.warning("%s: a batch of %d failed: %s", self.name, outcome.size, outcome.failure)

    def _note_idle(self) -> None:
        if self._turns.idle:
            self._idle.set()


def _compute(model: WithinMemory, batch: tuple[Work, ...], energy: Energy | None) -> _Outcome:
    """Compute a batch, in a thread: it never raises."""
    items = batch[0].items if len(batch) == 1 else [item for work in batch for item in work.items]
    largest, joules, failure = model.largest, None, ""
    before = energy() if energy is not None else 0.0
    begun = time.perf_counter()
    try:
        answers = _checked(model.answer(items), items)
    except BaseException as error:
        if len(batch) > 1:
            return _compute_apart(model, batch)
        failure = type(error).__name__
        results: list[Answered | Failure] = [Failure(500, "Model failed", f"{failure}: {error}")]
        return _Outcome(results, len(items), 0.0, 0.0, None, failure)
    seconds = time.perf_counter() - begun
    if energy is not None:
        joules = energy() - before
    encoding = time.perf_counter()
    results = []
    first = 0
    for work in batch:
        own = answers[first : first + len(work.items)]
        first += len(work.items)
        try:
            results.append(_told(work, own, seconds))
        except Exception as error:  # an answer that is no answer: of a type that cannot be written, or with a header of two lines
            failure = type(error).__name__
            results.append(Failure(500, "Model failed", f"an answer cannot be sent: {error}"))
    if model.largest is not largest and not failure:
        return _Outcome(results, len(items), 0.0, 0.0, None, "OutOfMemory")  # time and energy of what failed are in it
    return _Outcome(results, len(items), seconds, time.perf_counter() - encoding, joules, failure)


def _compute_apart(model: WithinMemory, batch: tuple[Work, ...]) -> _Outcome:
    """The single requests of a batch that failed, each alone: the one that fails again is to blame."""
    outcomes = [_compute(model, (work,), None) for work in batch]
    failure = next((outcome.failure for outcome in outcomes if outcome.failure), "TogetherOnly")
    results = [result for outcome in outcomes for result in outcome.results]
    return _Outcome(results, len(results), 0.0, 0.0, None, failure)


def _checked(answers: object, items: Sequence[Item]) -> list[Answer]:
    """The answers if they are such; raises ``TypeError`` or ``ValueError`` that says what they are."""
    if not isinstance(answers, list) or not all(isinstance(answer, Answer) for answer in answers):
        raise TypeError(f"the model answered with {type(answers).__name__}; allowed: a list of answers")
    if len(answers) != len(items):
        raise ValueError(f"the model gave {len(answers)} answers to {len(items)} requests")
    return answers


def _told(work: Work, answers: list[Answer], seconds: float) -> Answered:
    for answer in answers:
        if not 200 <= answer.status <= 599:
            raise ValueError(f"status: {answer.status!r} is not allowed; allowed: 200 to 599")
    if not work.single:
        return Answered(answers, contract.encode_answers(answers), seconds)
    contract.check_sendable(answers[0])
    return Answered(answers, b"", seconds)


def _release(close: Callable[[], object] | None) -> None:
    """What unloading does in a thread of its own."""
    if close is not None:
        close()
    gc.collect()
