"""When arrivals are fitted anew: a fit takes most of a decision, and of arrivals as they were says what it said."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from sluice.optimizer.tuning.decision import Trigger

if TYPE_CHECKING:
    from sluice.optimizer.tuning.trials import Trials

FITTED = 1 << 13  # arrivals; a fit of two phases to more says no more
OTHER_RATE = 1.2  # ratio of rates from which a fit is made anew, and so are proposals


class LatestFit(NamedTuple):
    """A fit: to arrivals of which rate (requests/s), to how many of them, and when (s)."""

    rate: float
    requests: int
    at: float

    @classmethod
    def to(cls, of: Trials) -> LatestFit:
        """One that is made to these arrivals."""
        return cls(of.rate, min(len(of.times), FITTED), of.now)

    def is_old(self, of: Trials, trigger: Trigger) -> bool:
        """Whether one to these arrivals may say something else: they differ, or twice as many are known, or it is long ago."""
        other = not 1 / OTHER_RATE < of.rate / self.rate < OTHER_RATE or trigger.kind in ("rate", "burstiness")
        return other or min(len(of.times), FITTED) >= 2 * self.requests or of.now >= self.at + of.settings.horizon
