"""One model that is controlled: what its tuner is told of what came, which plan is in force, and what came of a decision.

No clock, no network: ``model_process.py`` reads what is given here. Times are those of the store's clock, on which what was read
never goes back (``stream_reader.py``).

    plan       the plan in force, whenever it is another; one that control does not follow is left alone until there is another
    given      the plan that somebody put there before control did, of which one that takes over has no other way to know
    see        what was recorded since the last look; a hole in it is told, so that what came before does not go on behind it
    due        what there is to decide, if anything, once all that was recorded is read
    decided    the tuner as it is after a decision, which is made elsewhere; nothing is told it meanwhile
    lost       a decision came to nothing: there is none for a while
    counted    how many requests came by the time of the day, whenever more of it is over: another that takes over remembers it
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from sluice.batching.documents import Plan
from sluice.batching.errors import InvalidInput
from sluice.batching.measured import MeasuredBatch
from sluice.buffer_service.stream_reader import NewArrivals, NewBatches
from sluice.optimizer.arrays import Array
from sluice.optimizer.tuning.decision import Decision, Trigger

AGAIN = 60.0  # s after a decision that was lost


class ModelTuner(Protocol):
    """What control asks of ``optimizer.tuning.tuner.Tuner``."""

    def arrived(self, times: Array) -> None: ...

    def missed(self, at: float) -> None: ...

    def batches(self, batches: Sequence[MeasuredBatch]) -> None: ...

    def in_force(self, plan: Plan, since: float) -> None: ...

    def given(self, plan: Plan) -> None: ...

    @property
    def counted_until(self) -> int: ...

    def counted(self) -> bytes: ...

    def remember(self, counts: bytes) -> None: ...

    def due(self, now: float) -> Trigger | None: ...

    def decide(self, now: float, trigger: Trigger) -> Decision: ...


class ModelControl:
    """One model; ``tuner`` decides."""

    def __init__(self, tuner: ModelTuner) -> None:
        self.tuner = tuner
        self._digest: str | None = None
        self._follows = False
        self._last = -np.inf  # arrival that the tuner was told of (s)
        self._behind = True
        self._decided = -np.inf  # s
        self._again = -np.inf  # s; nothing is decided before
        self._counted_until = tuner.counted_until

    def plan(self, plan: Plan, since: float) -> str:
        """This plan is in force since then (s); why control leaves it alone, or ``""``."""
        if plan.digest == self._digest:
            return ""
        self._digest = plan.digest
        try:
            self.tuner.in_force(plan, since)
        except InvalidInput as error:
            self._follows = False
            return f"plan {plan.digest} is left alone: {error}"
        self._follows = True
        return ""

    def given(self, plan: Plan) -> None:
        """Somebody put this plan there before control did; one that control does not follow is left alone."""
        with contextlib.suppress(InvalidInput):
            self.tuner.given(plan)

    def remember(self, counts: bytes) -> None:
        """Somebody else counted requests before anything is seen here."""
        self.tuner.remember(counts)
        self._counted_until = self.tuner.counted_until

    def counted(self) -> bytes:
        """How many requests came, where that of more time is known than was told last; else ``b""``."""
        if self.tuner.counted_until == self._counted_until:
            return b""
        self._counted_until = self.tuner.counted_until
        return self.tuner.counted()

    def see(self, arrivals: NewArrivals, batches: NewBatches) -> None:
        """What was recorded since the last look."""
        times = np.asarray(arrivals.arrivals.times)
        if len(times):
            if arrivals.missed or arrivals.began_anew:
                self.tuner.missed(max(float(times[0]), self._last))
            # Ages are measured apart: the first of a page may have come just before the last of the page before.
            times = np.maximum(times, self._last)
            self._last = float(times[-1])
            self.tuner.arrived(times)
        if batches.batches:
            self.tuner.batches(batches.batches)
        self._behind = arrivals.more or batches.more

    def due(self, now: float, early: float = 0.0) -> Trigger | None:
        """What is to be decided now, or as nothing happened ``early`` seconds from now, if all that is recorded is read."""
        if self._behind or not self._follows or now < self._again:
            return None
        trigger = self.tuner.due(now)
        if trigger is not None or not early or now < self._decided + early:  # periods that are shorter are not halved
            return trigger
        trigger = self.tuner.due(now + early)
        return trigger if trigger is not None and trigger.kind == "periodic" else None

    def decided(self, tuner: ModelTuner, at: float) -> None:
        """This is the tuner after a decision at that time (s)."""
        self.tuner, self._decided = tuner, at

    def lost(self, now: float) -> None:
        """What was to be decided was not."""
        self._again = now + AGAIN
