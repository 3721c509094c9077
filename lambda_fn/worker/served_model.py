"""One model of the worker: its life, who waits for it, and what becomes of a batch.

    UNLOADED --load--> LOADING --> READY --unload--> UNLOADING --> UNLOADED
                        ^ |          |
                        | +--> FAILED|
                        |        |   |
                        +--------+---+  load; where the computer died, by itself

Where the computer (computer.py) dies, what it had is computed once more, each caller's alone, when the model is there again; who is
under way when it dies for the second time gets 500. Who waits goes on waiting; who comes is told to come again.

What may live here: what a request meets between the door and the model. What may not: HTTP, or whose turn it is (turns.py).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from functools import partial
from typing import Any

from sluice.batching.policy import Policy

from ..batch_frames import Sealed
from ..contract import Item
from .execution import Answered, Asked, Outcome
from .http_server import Failure
from .link import Link, Loaded, LoadFailed, Source
from .measurements import Measurements
from .turns import Turns, Work

LONGEST_RETRY = 3600.0
TRY_LOADING_AFTER = 5.0
"""Seconds after which a model that was lost, and could not be loaded again, is tried again."""
AHEAD = 0.05
"""Seconds that a batch may take to be sent ahead: to a longer one the way there is nothing, and who goes would be computed for."""
ERRORS = 64
"""Kinds of errors of batches that are counted apart."""

_log = logging.getLogger(__name__)


class Life(Enum):
    """What a model is doing."""

    UNLOADED = auto()
    LOADING = auto()
    READY = auto()
    UNLOADING = auto()
    FAILED = auto()


_READY = Life.READY  # looked up once: a member of a class of Enum takes ten times as long as a name


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


@dataclass(slots=True)
class Tallies:
    """What is counted of a model."""

    requests: Counter[int] = field(default_factory=Counter)  # by status
    refusals: Counter[str] = field(default_factory=Counter)  # by reason
    failures: Counter[str] = field(default_factory=Counter)  # batches, by reason


class ServedModel:
    """One model.

    Parameters
    ----------
    name
        What callers call it.
    source
        Where it is loaded from.
    alone
        Whether nothing else is computed: the energy of a batch is measured then, where it can be.
    """

    def __init__(
        self,
        name: str,
        source: Source,
        serving: Serving,
        alone: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.name = name
        self.life = Life.UNLOADED
        self.reason = "not loaded"
        self.measurements = Measurements()
        self.tallies = Tallies()
        self.wanted = True  # whether it is to be ready
        self._source = source
        self._serving = serving
        self._alone = alone
        self._clock = clock
        self._turns = Turns(serving.policy, serving.executions, serving.queue)
        self._running: dict[tuple[Work, ...], float] = {}  # since when
        self._model: Loaded | None = None
        self.largest_batch: int | None = None
        """Requests of the largest batch that the memory takes, where that has been learned."""
        self.load_seconds: float | None = None
        """What the last loading took, where there was one."""
        self._loading_since = 0.0
        self._wake: asyncio.TimerHandle | None = None
        self._loading: asyncio.Future[None] | None = None
        self._idle = asyncio.Event()
        self._due = False  # a turn is taken soon

    # -- life

    async def load(self) -> None:
        """Be ready, if that is possible; raises what loading raised."""
        while self.life is Life.UNLOADING:
            await asyncio.sleep(0.05)
        if self.life is Life.READY:
            return
        self.wanted = True
        if self._loading is None:
            self.life, self.reason, self._loading_since = Life.LOADING, "being loaded", self._clock()
            self._loading = asyncio.ensure_future(self._make())
            self._loading.add_done_callback(lambda made: made.cancelled() or made.exception())  # who waited may have gone
        await asyncio.shield(self._loading)
        if self.life is not Life.READY:
            raise LoadFailed(self.reason, self.reason, "")

    async def _make(self) -> None:
        try:
            self._model = await self._source.load(self._serving.executions)
        except BaseException as error:
            self.life, self.reason = Life.FAILED, error.said if isinstance(error, LoadFailed) else repr(error)
            raise
        finally:
            self._loading = None
        self._model.on_lost = self._lost
        self.largest_batch = None
        self.load_seconds = self._clock() - self._loading_since
        self.life, self.reason = Life.READY, ""

    def _lost(self, cause: str) -> None:
        """The computer has died, and the model with it."""
        _log.error("%s: the process that computes has ended: %s", self.name, cause)
        self._model = None
        running, self._running = self._running, {}
        self._turns.recall()  # who computes tells of the end of a batch before it begins the next: this one was not begun
        for batch in running:
            self.tallies.failures["ProcessDied"] += 1
            given_up = [work for work in batch if work.waits and work.again]
            self._turns.lost([work for work in batch if work.waits and not work.again])
            for work in given_up:
                work.waits = False
                work.answered(Failure(500, "Model failed", f"the process that computed it has ended twice: {cause}"))
        if self.life is Life.READY:
            self._load_again(f"loaded again, as the process that computes has ended: {cause}")
        else:
            self._refuse_all()

    def _load_again(self, reason: str) -> None:
        self.life, self.reason, self._loading_since = Life.LOADING, f"being {reason}", self._clock()
        self._loading = asyncio.ensure_future(self._make_again())

    async def _make_again(self) -> None:
        try:
            await self._make()
        except LoadFailed as error:
            _log.error("%s: %s", self.name, error)
            self._refuse_all()
            asyncio.get_running_loop().call_later(TRY_LOADING_AFTER, self._try_again)
        else:
            self._turn()

    def _try_again(self) -> None:
        if self.life is Life.FAILED and self.wanted:
            self._load_again(f"loaded again; the last time: {self.reason}")

    def _refuse_all(self) -> None:
        """Those whom it will not be computed for any more."""
        for work in self._turns.expire(math.inf):
            work.waits = False
            self._refuse(work.answered, 503, "Service unavailable", self._unready(), None, "not_ready")
        self._note_idle()

    def _unready(self) -> str:
        what = "could not be loaded:" if self.life is Life.FAILED else "is"
        return f"model {self.name!r} {what} {self.reason}"

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
        model, self._model = self._model, None
        try:
            if model is not None:
                await model.unload()
        finally:
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

    async def metadata(self) -> dict[str, Any]:
        """The model metadata of the Open Inference Protocol; of a model that is not ready its name alone."""
        if self._model is None:
            return {"name": self.name, "versions": [], "platform": "", "inputs": [], "outputs": []}
        return await self._model.describe() | {"name": self.name}

    @property
    def link(self) -> Link:
        """The way to the computer."""
        return self._source.link

    # -- requests

    def submit(self, items: list[Item] | Sealed, single: bool, answered: Callable[[Answered | Failure], None]) -> Work | None:
        """Have a batch, or one request, computed in its turn; ``answered`` is called once, perhaps at once.

        ``None`` where it was refused, else what ``withdraw`` takes.
        """
        if self.life is not _READY:
            again = self._until_loaded() if self.life is Life.LOADING else None
            self._refuse(answered, 503, "Service unavailable", self._unready(), again, "not_ready")
            return None
        work = Work(items, single, answered)
        came = self._turns.came(self._clock(), work)
        if not came and self._due:  # what takes the room may begin now
            self._turn()
            came = self._turns.came(self._clock(), work)
        if not came:
            detail = f"{self._turns.waiting} requests wait for {self.name!r} already; allowed: {self._serving.queue}"
            self._refuse(answered, 429, "Too many requests", detail, self._wait(), "queue_full")
            return None
        if self._turns.may_change:
            self._turn_soon()
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
        expired = self._turns.expire(late)
        expired += [work for work in self._turns.ahead if work.waits and work.came_at < late]
        for work in expired:
            self._give_up(work, f"it waited for {self._serving.timeout:g} s and was not begun")
        for batch in self._running:
            for work in batch:
                if work.waits and work.came_at < late:
                    self._give_up(work, f"model {self.name!r} does not answer within {self._serving.timeout:g} s")
        self._note_idle()

    def give_up_all(self, detail: str) -> None:
        """The process ends: who still waits is told."""
        for work in (*self._turns.expire(math.inf), *(work for batch in (self._turns.ahead, *self._running) for work in batch)):
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

    def _until_loaded(self) -> float:
        """Seconds until a model that is being loaded is ready, by the time that the last loading took; at least 1."""
        return min(max(1.0, self._loading_since + (self.load_seconds or 0.0) - self._clock()), LONGEST_RETRY)

    def _wait(self) -> float:
        """Seconds until what waits now is served, by what was measured; at least 1."""
        work = self.measurements.seconds_per_request * self._turns.waiting / self._serving.executions
        return min(max(1.0, work), LONGEST_RETRY)

    def _turn_soon(self) -> None:
        """Once a turn of the loop, so that all that has come goes together."""
        if not self._due:
            self._due = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        """Begin whatever may begin."""
        self._due = False
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if self._model is None:
            return  # who waits, waits until it is there again
        while True:
            now = self._clock()
            step = self._turns.next(now)
            if not step.batch:
                if step.wake_at is not None:
                    self._wake = asyncio.get_running_loop().call_later(max(0.0, step.wake_at - now), self._turn)
                break
            self._running[step.batch] = now
            self._send(step.batch)
        if self._takes_ahead() and (batch := self._turns.hand_ahead(now)):
            self._send(batch)

    def _takes_ahead(self) -> bool:
        """Whether full batches are known to be short."""
        mean = self.measurements.mean(self._serving.policy.take[-1])
        return mean is not None and mean <= AHEAD

    def _send(self, batch: tuple[Work, ...]) -> None:
        assert self._model is not None
        measured = self._model.measures_energy and self._alone()
        self._model.begin([Asked(work.single, work.items) for work in batch], measured, partial(self._ended, batch))

    def _ended(self, batch: tuple[Work, ...], outcome: Outcome) -> None:
        # Energy counts where nothing else was computed at the end either.
        joules = outcome.joules if outcome.joules is not None and self._alone() else None
        del self._running[batch]
        if begins := self._turns.ended():
            self._running[begins] = self._clock()
        self.largest_batch = outcome.largest
        if outcome.failure:
            self._note_failure(outcome)
        else:
            self.measurements.add(outcome.size, outcome.seconds, outcome.overhead, joules)
        self._turn_soon()
        for status, count in outcome.statuses.items():
            self.tallies.requests[status] += count
        for work, result in zip(batch, outcome.results, strict=True):
            if work.waits:
                work.waits = False
                work.answered(Failure(500, "Model failed", result) if isinstance(result, str) else result)
        self._note_idle()

    def _note_failure(self, outcome: Outcome) -> None:
        failures = self.tallies.failures
        known = outcome.failure in failures or len(failures) < ERRORS
        failures[outcome.failure if known else "other"] += 1
        _log.warning("%s: a batch of %d failed: %s", self.name, outcome.size, outcome.failure)

    def _note_idle(self) -> None:
        if self._turns.idle:
            self._idle.set()
