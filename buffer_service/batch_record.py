"""What was measured of the batches of a model, as calls to its queues noted it. What may live here: the ring, no store.

A process brings the batches that ended since it last brought some with one of its calls, at most once in ``BROUGHT_EVERY``, and at
once where ``BROUGHT_AT`` of them wait: what is recorded costs the queue the same however small the batches are. Where no call comes
for other reasons they have one of their own, ``BROUGHT_WITHIN`` after the first of them ended. Each says how long before its call
it ended, so that the store's clock dates all. ``batch_stream.py`` has the same in Redis.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from sluice.batching.measured import MeasuredBatch

BROUGHT_EVERY, BROUGHT_WITHIN = 0.05, 0.1  # seconds
BROUGHT_AT = 64  # batches
MOST_LATENCIES = 256


class BatchRecord:
    """The newest batches of a model, oldest first; ``noted`` counts all that ever were."""

    def __init__(self) -> None:
        self.batches: deque[MeasuredBatch] = deque()
        self.noted = 0

    def note(self, now: float, batches: Sequence[MeasuredBatch], kept: int) -> None:
        """Note what a call at ``now`` (s) brought, whose ``ended_at`` counts from it; keep the newest ``kept``."""
        self.batches.extend(batch._replace(ended_at=now + batch.ended_at) for batch in batches)
        self.noted += len(batches)
        while len(self.batches) > kept:
            self.batches.popleft()


def few_latencies(latencies: Sequence[float]) -> tuple[float, ...]:
    """These (s), or ``MOST_LATENCIES`` of them at evenly spaced ranks where there are more: what a batch records is bounded."""
    n = len(latencies)
    if n <= MOST_LATENCIES:
        return tuple(latencies)
    ordered = sorted(latencies)
    return tuple(ordered[(2 * i + 1) * n // (2 * MOST_LATENCIES)] for i in range(MOST_LATENCIES))
