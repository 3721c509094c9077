"""Do batches take another time than before the last decision, by less than ``ServiceWatch`` tells of? (docs/control.md)

Means of many batches lag behind times that drift, and who waits to the last moment is late by what they lag. So it is asked now and
then, as the promise may be broken before an alarm is sure; a decision that nothing comes of lets the next wait twice as long.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.tuning.back_off import BackOff
from sluice.optimizer.tuning.live_profile import LiveProfile

LEAST = 0.003  # of their time, that batches take more or less
PAUSE = 20.0  # s after a decision until another is asked for
LOOKED_AFTER, LOOKED_EVERY = 32, 10.0  # batches, and s, between two looks


class SlowDrift:
    """Of the batches that a live profile has.

    Parameters
    ----------
    live : LiveProfile
    period : float
        Seconds after which decisions are made anyway.
    """

    def __init__(self, live: LiveProfile, period: float) -> None:
        self._live = live
        self._back_off = BackOff(PAUSE, period)
        self._unlooked, self._looked_at = 0, -inf  # batches since the last look, and when that was (s)
        self._found = self._known = False

    def see(self, batches: Sequence[MeasuredBatch], decided: float) -> None:
        """These have ended, in this order, and are in the profile; the last decision was made at ``decided`` (s)."""
        self._unlooked += len(batches)
        if batches and self._unlooked >= LOOKED_AFTER and batches[-1].ended_at >= self._looked_at + LOOKED_EVERY:
            self._unlooked, self._looked_at = 0, batches[-1].ended_at
            self._found = self.since(decided)

    def since(self, since: float) -> bool:
        """Whether they surely drifted since then (s)."""
        return self._live.other_since(since, LEAST)

    def heeded(self, waited: float) -> bool:
        """Whether a decision is asked for, so many seconds after the last."""
        return self._found and self._back_off.heeds(None, waited)

    def take_note(self) -> None:
        """A decision is made, which knows of it."""
        self._found, self._known = False, self._found

    def decided(self, rate: float, changed: bool) -> None:
        """Whether that decision ``changed`` the plan, at this rate (requests/s)."""
        if changed:
            self._back_off.restart()
        elif self._known:
            self._back_off.found_right(rate, True)
