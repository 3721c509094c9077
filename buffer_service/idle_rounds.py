"""When the queues of a process that nobody is at are swept: one after the other, so many a second at most, however many there are.

A queue where somebody waits, or of which a batch is under way here, is swept by its lease and is none of these. Of the others a
sweep finds what a dead process left whose callers all died with it, and that a Redis lost its data, which the next request finds
too: it may come late. No clock, no I/O.
"""

from __future__ import annotations

import math

IDLE = 1.0  # seconds between two sweeps of such a queue, where there are few
IDLE_SWEEPS = 20.0  # a second and process; each is two calls, as a judgement needs two within a lease
TOGETHER = 0.25  # seconds of which the sweeps go together, so that the process wakes and writes once for them


class IdleRounds:
    """The places of one process: whoever takes one takes no other before that has passed."""

    def __init__(self) -> None:
        self._last = -math.inf

    def place(self, after: float) -> float:
        """The first time (s) that is free, ``IDLE`` after this one or later."""
        self._last = max(after + IDLE, self._last + 1 / IDLE_SWEEPS)
        return math.ceil(self._last / TOGETHER) * TOGETHER
