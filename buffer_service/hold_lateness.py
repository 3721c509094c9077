"""By how much batches leave later than their hold ends, which holds are then shorter by.

Between the end of a hold and the batch lies what the way to the queue takes: who comes is dated when he is brought, the time that
is left is counted from when the queue's answer is here, a timer rings, and the call that releases has its own way. It is one to
some milliseconds, and of a promise that is kept by waiting to the last moment that is much. Whoever comes is brought as if he had
come so much earlier, so that batches leave when their table says, whatever the machine and the way.

No hold is made shorter than half of it: where a batch leaves with the call that brings its first, nothing is learned any more.

What may live here: what was seen of that, and the estimate. What may not: a clock, and which batches left by their hold.
"""

from __future__ import annotations

LATEST = 0.005  # seconds that are made up for at most; who is later has another trouble
STALLED = 0.05  # seconds from which on it was no way, but a process that stood still
WEIGHT = 1 / 8  # of the last batch in the estimate, and of the first few as much as of each other


class HoldLateness:
    """Of one route on one process."""

    def __init__(self) -> None:
        self.seconds = 0.0
        """By how much who comes is dated earlier."""
        self._most = 0.0
        self._n = 0

    def follow(self, shortest_hold: float) -> None:
        """A table is in force whose shortest hold is this (s); 0 where nothing is learned of it, which forgets what is known."""
        self._most = min(LATEST, shortest_hold / 2)
        self.seconds = min(self.seconds, self._most)
        self._n = self._n if self._most else 0

    def seen(self, late: float) -> None:
        """A batch that waited for the end of its hold left so many seconds behind it, with what was made up for; < 0: before."""
        if -LATEST <= late <= STALLED:
            self._n += 1
            self.seconds = min(max(self.seconds + max(WEIGHT, 1 / self._n) * min(late, LATEST), 0.0), self._most)
