"""One model that is controlled: what its tuner is told of what came, which plan is in force, and what came of a decision.

No clock, no network: ``model_process.py`` reads what is given here. Times are those of the store's clock, on which what was read
never goes back (``stream_reader.py``).

    plan       the plan in force, whenever it is another; one that control does not follow is left alone until there is another
    given      the plan that somebody put there before control did, of which one that takes over has no other way to know
    see        what was recorded since the last look
    away       it could not be read since then; ``back``: it can again
    holes      of what came between two times something is not known; the tuner is told, so that what came before does not go on
               behind it, and no rate is taken from it
    due        what there is to decide, if anything, once all that was recorded is read
    decided    the tuner as it is after a decision, which is made elsewhere; nothing is told it meanwhile
    lost       a decision came to nothing: there is none for a while
    counted    how many requests came by the time of the day, whenever more of it is over: another that takes over remembers it
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

import numpy as np

from sluice.batching.documents import Plan
from sluice.batching.errors import InvalidInput
from sluice.batching.measured import MeasuredBatch
from sluice.buffer_service.stream_reader import NewArrivals, NewBatches
from sluice.optimizer.arrays import Array
from sluice.optimizer.tuning.decision import Decision, Trigger

AGAIN = 60.0  # s after a decision that was lost
TELL_EVERY = 60.0  # s between two times that holes are told
RATE_OF = 64  # of the latest arrivals
SURELY_CAME = 5.0  # requests that a time without any would have brought, from which it counts as a hole where Redis was away,
SILENT, SURELY_SILENT = 1.0, 20.0  # and s, and requests, from which it is asked whether the buffers were restarted in it


class Hole(NamedTuple):
    """What came from ``since`` to ``until`` (s) is not known, or not all of it; ``missed`` requests are known to be missing."""

    since: float
    until: float
    missed: int
    why: str

    @property
    def words(self) -> str:
        """A sentence."""
        return (
            f"the record of arrivals has a hole of {self.until - self.since:.3g} s: {self.why}; what came before it is not "
            "rehearsed, and nothing tells at which rate requests came in it"
        )


class ModelTuner(Protocol):
    """What control asks of ``optimizer.tuning.tuner.Tuner``."""

    def arrived(self, times: Array) -> None: ...

    def missed(self, since: float, until: float) -> None: ...

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
        self._latest: deque[float] = deque(maxlen=RATE_OF)
        self._why: list[str] = []  # of a hole that ends with the next arrival
        self._missed = 0
        self._away: tuple[float, float] | None = None  # from when to when it could not be read (s)
        self._holes: list[Hole] = []  # that were not told
        self._told_at = -np.inf
        self._buffers: Mapping[str, float] = {}  # when each was heard of last

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

    def away(self, now: float) -> None:
        """The record cannot be read, and was read last at that time (s)."""
        if self._away is None and np.isfinite(now):
            self._away = now, np.inf

    def back(self, now: float) -> None:
        """It was read again at that time (s)."""
        if self._away is not None:
            self._away = self._away[0], min(self._away[1], now)

    def buffers(self, heard: Mapping[str, float]) -> None:
        """Which buffers there are, and when each was heard of last (s)."""
        self._buffers = heard

    def see(
        self, arrivals: NewArrivals, batches: NewBatches, buffers: Callable[[], Mapping[str, float]] = dict[str, float]
    ) -> None:
        """What was recorded since the last look; who the buffers are is asked where they may have been away in a silence."""
        if arrivals.missed:
            self._why.append("entries were trimmed before they were read")
            self._missed += arrivals.missed
        if arrivals.began_anew:
            self._why.append("Redis had lost the record")
        times = np.asarray(arrivals.arrivals.times)
        if len(times):
            # Ages are measured apart: the first of a page may have come just before the last of the page before.
            times = np.maximum(times, self._last)
            for piece in self._between_holes(times, buffers):
                self.tuner.arrived(piece)
                self._latest.extend(piece[-RATE_OF:].tolist())
            self._last = float(times[-1])
        if batches.batches:
            self.tuner.batches(batches.batches)
        self._behind = arrivals.more or batches.more

    def _between_holes(self, times: Array, buffers: Callable[[], Mapping[str, float]]) -> Iterator[Array]:
        """The arrivals in pieces, between which the tuner is told of a hole."""
        if self._why:
            since = self._last if np.isfinite(self._last) else float(times[0])
            self._hole(since, float(times[0]), "; ".join(dict.fromkeys(self._why)))
        if np.isfinite(self._last):
            before = np.concatenate([[self._last], times])
            gaps = np.diff(before)
            if self._away is not None and (then := (before[:-1] < self._away[1]) & (before[1:] > self._away[0])).any():
                gaps = np.where(then, gaps, 0.0)
            longest = int(np.argmax(gaps))
            since, until = float(before[longest]), float(before[longest + 1])
            why = self._silence(since, until, times[:longest], buffers)
            if why:
                if longest:
                    yield times[:longest]
                self._hole(since, until, why)
                times = times[longest:]
        if self._away is not None and times[-1] >= self._away[1]:
            self._away = None
        yield times

    def _silence(self, since: float, until: float, before: Array, buffers: Callable[[], Mapping[str, float]]) -> str:
        """Why nothing was recorded between these times, as far as it is no rate of zero; ``before`` came since the last look."""
        if self._away is None and until - since < SILENT:
            return ""
        before = np.concatenate([np.array(self._latest), before])[-RATE_OF:]
        if len(before) < 2 or before[-1] <= before[0] or (self._holes and self._holes[-1].until == until):
            return ""
        missing = (until - since) * (len(before) - 1) / float(before[-1] - before[0])
        if self._away is not None and since < self._away[1] and until > self._away[0] and missing >= SURELY_CAME:
            return "Redis did not answer"
        if until - since < SILENT or missing < SURELY_SILENT:
            return ""
        known, self._buffers = self._buffers, buffers()
        since_then = {name for name, at in self._buffers.items() if at >= since}
        return "the buffers were restarted" if known and since_then and not since_then & known.keys() else ""

    def _hole(self, since: float, until: float, why: str) -> None:
        self.tuner.missed(since, until)
        self._holes.append(Hole(since, until, self._missed, why))
        self._latest.clear()
        self._why, self._missed = [], 0

    def holes(self, now: float) -> Hole | None:
        """What is to be told of holes now, those since the last time as one."""
        if not self._holes or now < self._told_at + TELL_EVERY:
            return None
        told, self._holes, self._told_at = self._holes, [], now
        why = "; ".join(dict.fromkeys(hole.why for hole in told))
        missed = sum(hole.missed for hole in told)
        why = why.replace("entries were", f"{missed} requests were") if missed else why
        return Hole(told[0].since, told[-1].until, missed, why)

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
