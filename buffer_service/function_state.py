"""The state of one function of a route, as this process finds it: facts in, what helps out.

What may live here: whether the function is asked (``circuit.py``), which payloads it failed on (``suspects.py``), when a worker of
it crashed, which of its workers are ejected (``worker_health.py``), and which remedy a failure has. What may not: a clock, I/O, who
waits.

    remedy       for                                                                but not where
    ------       ---                                                                -------------
    ELSEWHERE    whatever but a batch that is too large, where there are others     it was tried, or calls are not paid for (from a
                                                                                    busy worker on they are free); in the midst of a
                                                                                    batch that is being halved
    LATER        a function that is busy, a worker that crashed and is not back
    HALVES       what fails or crashes, and what is too large                       one item is left, or calls are not paid for
    NONE         everything else

What is asked for elsewhere in vain is what it was before: a batch that was computed and failed is halved although no other worker
could be reached. Where one worker cannot be reached and another is busy, whichever was asked first, the function is busy. What
another worker makes good says nothing of the function. What fails alone again is the payload's fault where the function answered
something since, and else counts as the function's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import Enum, auto

from sluice.buffer_service.batch_state import BatchState, Cause, Failure, Part
from sluice.buffer_service.circuit import Circuit
from sluice.buffer_service.suspects import Suspects
from sluice.lambda_fn.contract import Item

RESTART = 5.0  # seconds that a worker which crashed is waited for


class Remedy(Enum):
    """What is done about a part that failed."""

    ELSEWHERE = auto()
    LATER = auto()
    HALVES = auto()
    NONE = auto()


class FunctionState:
    """Of ``function``, which takes batches of at most ``max_batch_size``, on so many ``servers``; ``None``: it is elastic."""

    def __init__(self, function: str, max_batch_size: int) -> None:
        self.function = function
        self.servers: int | None = 1
        self.under_way = 0  # calls
        self.refused = False  # for now: the last call that it did not take says so, and none that it answered since
        self.circuit = Circuit(max_batch_size)
        self._suspects = Suspects()
        self._crashed_at = self._answered_at = -math.inf
        self._workers = 1
        self._tried_at: Sequence[float] = ()  # when, of those that are ejected
        self._held = 0  # batches that these have

    @property
    def elastic(self) -> bool:
        """Whether it takes however many batches at once."""
        return self.servers is None

    def pool(self, now: float, workers: int, tried_in: Sequence[float], held: int) -> None:
        """It has so many workers; those of them that are ejected are tried in so many seconds, and have so many batches."""
        self._workers, self._tried_at, self._held = workers, [now + seconds for seconds in tried_in], held

    def ejected(self, now: float) -> int:
        """How many of its servers are the ejected workers': their part of them, unless those that are well are enough.

        Those of them that have a batch are busy already. Who is due for a trial is well; and all are, where none is.
        """
        if not self._tried_at or self.servers is None:
            return 0
        well = self._workers - sum(at > now for at in self._tried_at)
        if well <= 0:
            return 0
        return max(0, self.servers - max(well, math.ceil(self.servers * well / self._workers)) - self._held)

    def next_trial(self, now: float) -> float:
        """When the first of its ejected workers is due."""
        return min((at for at in self._tried_at if at > now), default=math.inf)

    def parts(self, now: float, items: list[Item]) -> list[Part]:
        """The items of a batch as they are asked for: together, but for those that failed alone before; these come last."""
        if not self._suspects:
            return [Part(items)] if items else []
        suspected = {item.id for item in items if self._suspects.has(now, item)}
        others = [item for item in items if item.id not in suspected]
        alone = [Part([item], suspected=True) for item in reversed(items) if item.id in suspected]
        return [*alone, *([Part(others)] if others else [])]

    def answered(self, now: float, part: Part) -> None:
        """A part was answered."""
        if part.function != self.function:
            return
        self._answered_at = now
        self.refused = False
        self.circuit.passed(len(part.items))
        if part.suspected:
            self._suspects.forget(part.items[0])

    def undecided(self, part: Part) -> None:
        """A part failed; where it was the trial, that says nothing yet."""
        if part.trial and part.function == self.function:
            self.circuit.undecided()

    def failed_alone(self, now: float, batch: BatchState, part: Part) -> None:
        """The function failed on one item alone, which is suspected unless the function is: at a trial, or all the batch failed."""
        if not part.suspected or batch.only_suspects_left:
            batch.failed_alone.append(part)
        if part.trial or part.function != self.function:
            return
        if not batch.hopeless:
            self._suspects.note(now, part.items[0])
            return
        for other in batch.failed_alone:
            if not other.suspected:
                self._suspects.forget(other.items[0])

    def remedy(self, now: float, batch: BatchState, part: Part, failure: Failure) -> tuple[Remedy, Failure]:
        """What is to be done about a part that failed, and the failure that it is done about."""
        if failure.cause is Cause.CRASHED:
            self._crashed_at = now
        if part.failed is None and self._helps_elsewhere(batch, part, failure) and self._elsewhere_is_paid_for(failure):
            return Remedy.ELSEWHERE, failure
        if part.failed is not None and failure.cause in _says_less_than(part.failed.cause):
            failure = part.failed
        self._note(now, batch, part, failure.cause)
        self.refused |= failure.cause is Cause.BUSY
        if failure.cause is Cause.BUSY or (failure.cause is Cause.UNAVAILABLE and self.restarts(now)):
            return Remedy.LATER, failure
        if failure.cause is Cause.UNAVAILABLE or len(part.items) == 1:
            return Remedy.NONE, failure
        return self._halves(failure)

    def _halves(self, failure: Failure) -> tuple[Remedy, Failure]:
        if failure.cause is Cause.TOO_LARGE:
            return Remedy.HALVES, failure
        if self.circuit.may_ask_again():
            self.circuit.ask_again()
            return Remedy.HALVES, failure
        detail = f"{failure.detail}; so much fails that it is not asked again in parts"
        return Remedy.NONE, failure._replace(detail=detail)

    def _note(self, now: float, batch: BatchState, part: Part, cause: Cause) -> None:
        """What a failure says of the function: nothing that a poison fails, nor that a worker which crashed is not back yet."""
        unavailable = cause is Cause.UNAVAILABLE
        if (unavailable and self.restarts(now)) or part.function != self.function or self._is_poison(batch, part):
            return
        if unavailable or cause in (Cause.CRASHED, Cause.FAILED):
            self.circuit.failed(now, unavailable, part.trial)

    def _is_poison(self, batch: BatchState, part: Part) -> bool:
        """Whether a part failed before, and others were answered since."""
        if not part.suspected or part.trial:
            return False
        return batch.passed or self._answered_at >= self._suspects.noted_at(part.items[0])

    def _elsewhere_is_paid_for(self, failure: Failure) -> bool:
        """A worker that is busy has not computed; as often as the part rests, another may be asked in its place for nothing."""
        if failure.cause is Cause.BUSY:
            return True
        if not self.circuit.may_ask_again():
            return False
        self.circuit.ask_again()
        return True

    def _helps_elsewhere(self, batch: BatchState, part: Part, failure: Failure) -> bool:
        if not failure.worker or failure.cause is Cause.TOO_LARGE:
            return False
        return failure.cause in (Cause.UNAVAILABLE, Cause.BUSY) or not batch.split or len(part.items) == 1

    def restarts(self, now: float) -> bool:
        """Whether a worker of it crashed so lately that it may be about to be back."""
        return now < self._crashed_at + RESTART


def _says_less_than(first: Cause) -> tuple[Cause, ...]:
    """What came of asking elsewhere that says less of a part than what came of asking ``first``."""
    return (Cause.UNAVAILABLE,) if first is Cause.UNAVAILABLE else (Cause.UNAVAILABLE, Cause.BUSY)
