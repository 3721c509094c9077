"""How a request with a slack stands at a queue, as one process sees it: who is before it, and how much of the service it is left.

What may live here: when the holds of such requests of callers here begin, and which slacks those had who left the queue last. What
may not: a clock, I/O, the queue itself. Times are seconds on the clock of the process.

The queue says how many stand behind a request without a slack. Of these, those with a longer slack than his own stand behind a
newcomer: as large a part as of those of this process who wait as long still. Who comes later with less slack goes before him:
of the service he is left the part that those had with no less slack than his, of the callers here who were answered last. Who
left the queue beyond his slack went before others as if he had none, and counts so: nothing was left to those like him. Where
nobody was answered yet, he is left all. When a request left in a batch of another process is not known here: it is taken to have
left as it was answered.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque

LATELY = 256  # callers who were answered last
NOBODY = 1e-3  # part of the service that who is left none is taken to be left


class SlackLine:
    """Of one queue; ``most`` (s) of the beginnings of holds are kept."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._begins: list[float] = []  # of the holds of those here with a slack above 0 who may wait, ascending
        self._lately: deque[float] = deque(maxlen=LATELY)  # slacks
        self._sorted: list[float] | None = []
        self.known = False  # whether anybody with a slack above 0 has come

    def came(self, now: float, slack: float) -> None:
        """A request of a caller here came, with a slack above 0."""
        self.known = True
        del self._begins[: bisect_left(self._begins, now)]
        if len(self._begins) < self._most:
            insort(self._begins, now + slack)

    def answered(self, left: float, came: float, slack: float) -> None:
        """A caller here has his answer, whose request ``left`` the queue then (s): nobody waits whose hold began before his."""
        self._lately.append(slack if left <= came + slack else min(slack, 0.0))
        self._sorted = None
        if slack > 0:
            del self._begins[: bisect_right(self._begins, came + slack)]

    def behind(self, now: float, slack: float, of: int) -> int:
        """How many stand behind one who comes now, of those who stand behind one without a slack."""
        here = len(self._begins) - bisect_left(self._begins, now)
        later = len(self._begins) - bisect_left(self._begins, now + slack)
        return of * later // here if here else 0

    def part(self, slack: float) -> float:
        """Of the service, what those with less slack leave."""
        if self._sorted is None:
            self._sorted = sorted(self._lately)
        if not self._sorted:
            return 1.0
        return max(NOBODY, 1 - bisect_left(self._sorted, slack) / len(self._sorted))
