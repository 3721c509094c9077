"""What a process of the buffer measured of a batch: the record that the buffer writes and whoever corrects a plan reads.

No clock and no I/O: the store dates it, and ``buffer_service/batch_stream.py`` has its bytes.
"""

from __future__ import annotations

from typing import NamedTuple

FAILED_FROM = 500
"""The status from which on an answer breaks a promise however early it comes; below, the fault is its caller's, if there is one."""


class MeasuredBatch(NamedTuple):
    """One batch, as the process that sent it saw it end.

    Of a batch that was split, or asked for again, there is one record: its times are the sums over its invocations, and it was
    cold if any of them was.

    Parameters
    ----------
    ended_at
        When it ended, in seconds since 1970 by the store's clock; on its way to the store, seconds from that call (0 or less).
    route
        The plan's route, ``""`` in a plan without routes.
    table
        The place of the table that released it, in ``Policy.tables``.
    function
        The function that was asked last, as the plan names it.
    digest
        Of the plan in force at the process when the batch ended.
    size
        Requests that left in it.
    seconds
        From each call of the function to its answer, as the buffer saw it.
    service
        The function's own time for it (s), as it told; ``nan`` where it did not.
    billed
        Seconds that are billed; ``nan`` where that is not known.
    cold
        Whether the function told that its environment was new.
    failed
        Requests of it that failed by no fault of their callers: with ``FAILED_FROM`` or above.
    latencies
        From arrival to answer (s), one for each other request of a caller of the process that reports; of hundreds, as many as the
        store keeps of a batch, at evenly spaced ranks.
    rejected
        Whether one of the others was answered with another status than 2xx, as a body is that cannot be read.
    """

    ended_at: float
    route: str
    table: int
    function: str
    digest: str
    size: int
    seconds: float
    service: float
    billed: float
    cold: bool
    failed: int
    latencies: tuple[float, ...]
    rejected: bool = False

    @property
    def served(self) -> bool:
        """Whether all its requests were: only then are its times those of a batch of its size."""
        return not (self.failed or self.rejected)

    @property
    def first_came(self) -> float:
        """When the first of those arrived whose latency is told, by the clock of ``ended_at``; where none is, when it was sent."""
        return self.ended_at - max(self.latencies, default=self.seconds)
