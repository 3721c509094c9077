"""Who waits at this process for an answer: request ids, what is done at their end, their deadlines, by one clock of the process.

An id is the process's name and a serial number, 16 characters; an answer for another process's id belongs into that process's list.
"""

from __future__ import annotations

import asyncio
import logging
import math
import secrets
import string
from collections.abc import Callable, Sequence
from itertools import count

from sluice.batching.errors import DeadlinePassed
from sluice.buffer_service.alarms import Alarms, LoopAlarms
from sluice.buffer_service.bodies import Bodies
from sluice.buffer_service.idle_rounds import IdleRounds
from sluice.buffer_service.route_facts import TOLD, Caller
from sluice.buffer_service.store import PROCESS_LENGTH
from sluice.buffer_service.told import NOTHING_TOLD, Told
from sluice.lambda_fn.contract import Answer, Item

_log = logging.getLogger(__name__)

DEADLINE_RESOLUTION = 0.1  # seconds between two looks at the deadlines


def new_process_name() -> str:
    """A name for a process that no other has: of 10^12; its first letter says that the process lends bodies (``store.lends``)."""
    return "p" + "".join(secrets.choice(string.ascii_letters + string.digits) for _ in range(PROCESS_LENGTH - 1))


class Waiting(Caller):
    """One caller, and what he waits for: an ``answer``, or the ``error`` in its place; who leaves gets neither.

    What is to be done ``then`` is done when it is over, in the same round of the loop: two rounds of futures and what they schedule
    cost a request 2 us more.
    """

    __slots__ = ("_future", "_then", "answer", "error", "over")

    def __init__(self, queue: str, item: Item, came: float, told: Told, then: list[AtEnd]) -> None:
        self.queue, self.item, self.came, self.told = queue, item, came, told  # what Caller's own does, in a call less a request
        self.taken, self.batch_size, self.brought, self.has_ticket = math.inf, 0, False, False
        self.answer: Answer | None = None
        self.error: Exception | None = None
        self.over = False
        self._then = then
        self._future: asyncio.Future[Answer] | None = None

    def then(self, told: AtEnd) -> None:
        """Do this when it is over, behind what was to be done before; in the next round of the loop where it is over already."""
        if self.over:
            asyncio.get_running_loop().call_soon(told, self)
        else:
            self._then.append(told)

    def end(self, answer: Answer | None = None, error: Exception | None = None) -> None:
        """It is over; what came first counts. Without an answer or an error he has gone."""
        if self.over:
            return
        self.answer, self.error, self.over = answer, error, True
        for told in self._then:
            try:
                told(self)
            except Exception:  # a defect; others are to be told all the same
                _log.exception("request %s: not all was done that was to be done at its end", self.item.id)
        self._then.clear()  # else it and who waits for it would hold each other

    @property
    def answered(self) -> asyncio.Future[Answer]:
        """The answer as a future, which who waits no more cancels; each time the same."""
        if self._future is None:
            self._future = asyncio.get_running_loop().create_future()
            self._future.add_done_callback(self._cancelled)
            self.then(self._settle)
        return self._future

    def _cancelled(self, future: asyncio.Future[Answer]) -> None:
        if future.cancelled():
            self.end()

    def _settle(self, _: Waiting) -> None:
        future = self._future
        if future is None or future.done():
            return
        if self.answer is not None:
            future.set_result(self.answer)
        elif self.error is not None:
            future.set_exception(self.error)
        else:
            future.cancel()


AtEnd = Callable[[Waiting], None]
"""What is done at the end of one who waits."""


class Callers:
    """The callers of one process; the first answer to a request is the one that counts.

    ``clock`` (s, monotonic) is the only one that is read for requests; the loop's own, by which timers ring, ticks in milliseconds.
    ``alarms`` ring for batches, which leave at the last moment.
    """

    def __init__(self, process: str, request_timeout: float, clock: Callable[[], float], alarms: Alarms | None = None) -> None:
        self.process = process
        self.waiting: dict[str, Waiting] = {}  # in the order of arrival, hence of deadlines
        self.bodies = Bodies(process)
        self.request_timeout = request_timeout
        self.clock = clock
        self.alarms: Alarms = LoopAlarms() if alarms is None else alarms
        self.rounds = IdleRounds()  # of the queues of this process that nobody is at
        self._serials = count(secrets.randbits(32))
        self._timer: asyncio.TimerHandle | None = None

    def new_id(self) -> str:
        """An id for a request of this process."""
        return "%s%08x" % (self.process, next(self._serials) & 0xFFFFFFFF)  # noqa: UP031 - which takes two thirds of an f-string

    def add(self, queue: str, item: Item, came: float, told: Told = NOTHING_TOLD, then: Sequence[AtEnd] = ()) -> Waiting:
        """Wait for the answer to ``item``, or for ``DeadlinePassed`` when its time is over; ``then`` as ``Waiting.then`` has it."""
        waiting = self.waiting[item.id] = Waiting(queue, item, came, told, [*then])
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(DEADLINE_RESOLUTION, self._check_deadlines)
        return waiting

    def lendable(self, request_id: str) -> Item | None:
        """The request as its caller here sent it; ``None`` where nobody waits for the answer."""
        waiting = self.waiting.get(request_id)
        return waiting.item if waiting is not None and waiting.queue != TOLD else None

    def answer(self, answer: Answer) -> None:
        """Hand an answer to its caller, if it still waits."""
        waiting = self.waiting.pop(answer.id, None)
        if waiting is not None:
            waiting.end(answer)

    def fail(self, request_id: str, error: Exception) -> None:
        """Hand an error to a caller, if it still waits."""
        waiting = self.waiting.pop(request_id, None)
        if waiting is not None:
            waiting.end(error=error)

    def fail_all(self, error: Exception) -> None:
        """Hand an error to everyone who waits."""
        for request_id in list(self.waiting):
            self.fail(request_id, error)

    def forget(self, request_id: str) -> None:
        """The caller is gone."""
        self.waiting.pop(request_id, None)

    def _check_deadlines(self) -> None:
        came_by = self.clock() - self.request_timeout
        late = []
        for request_id, waiting in self.waiting.items():
            if waiting.came > came_by:
                break
            late.append(request_id)
        for request_id in late:
            self.fail(request_id, DeadlinePassed(f"no answer within {self.request_timeout:g} s"))
        self._timer = asyncio.get_running_loop().call_later(DEADLINE_RESOLUTION, self._check_deadlines) if self.waiting else None
