"""How soon an alarm may ask for a decision again, where the decisions that alarms asked for changed nothing (docs/watching.md).

A decision on an alarm that leaves the plan has found it right at the rate of then. Alarms at rates between those at which it was
found right tell nothing new: the first is heeded a pause after the decision before, each further one twice as long after as the one
before it. Where there is none for a whole period, they are heeded anew. A rate beyond those is new, and is heeded after a pause,
however many alarms there were before. So noise asks for a decision a period in the end, and a change of the rate waits for none.
"""

from __future__ import annotations

from math import inf

BEYOND = 1.1  # ratio to the rates at which the plan was found right, from which a rate is another


class BackOff:
    """What alarms came to while one plan serves.

    Parameters
    ----------
    pause, period : float
        Seconds between two decisions at the least, and those after which one is made anyway.
    """

    def __init__(self, pause: float, period: float) -> None:
        self._pause, self._period = pause, period
        self.restart()

    def restart(self) -> None:
        """Another plan serves, or batches take another time: at no rate is it known to be right."""
        self._low, self._high = inf, 0.0
        self._in_vain = 0

    def found_right(self, rate: float, alarmed: bool) -> None:
        """A decision has left the plan at this rate (requests/s), which an alarm asked for, or nothing but the time."""
        self._low, self._high = min(self._low, rate), max(self._high, rate)
        self._in_vain = self._in_vain + 1 if alarmed else 0

    def heeds(self, rate: float | None, since: float) -> bool:
        """Whether an alarm is acted on that tells this rate, or none, so many seconds after the decision before."""
        new = rate is not None and not self._low / BEYOND <= rate <= self._high * BEYOND
        return new or since >= min(self._pause * 2.0 ** min(self._in_vain, 64), self._period)
