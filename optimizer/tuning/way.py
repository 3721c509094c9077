"""How long requests are on their way through the buffer: beyond what the table holds them, and beyond the invocation.

A table that waits to the last moment leaves out what the buffer itself takes: the call to the queue, the timer that ends a hold,
the reading and writing of a batch. It is a few milliseconds, and whoever left a batch's wait to the last moment is late by them.
It cannot be seen alone, but from two sides. Who came last into a batch did not wait longer than ``its latency - seconds``; who
came first waited for ``hold[size]`` at the least, and ``its latency - seconds - hold[size]`` is his way and what more he was
held. The one is exact where an arrival let the batch leave, the other where its time was over; the lesser of the two is taken.

What is planned with is a quantile of it, that at which batches must be in time (``next_window.py``), of as many of the latest as it
takes to see it: where one of a hundred may be late, or more, of ``LATEST``, where one of a thousand, of ``KEPT``.

Until it is measured live, what was profiled is planned with, or what is assumed where nobody measured it: a first plan that leaves
nothing free is late by the way.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, inf, nan

import numpy as np
from msgspec.structs import replace

from sluice.batching.documents import Plan, ServiceProfile, ServiceTime, Slo
from sluice.batching.measured import MeasuredBatch
from sluice.batching.policy import Policy
from sluice.optimizer.tuning.latest_rows import LatestRows

KEPT, LATEST = 1024, 256  # batches, at the most and at the least
FEWEST = 32  # batches from which the way is told
OTHER = 1.25  # ratio from which it counts as another,
LEAST = 0.0005  # and by no less (s)


class WayWatch:
    """The way of the requests of one model.

    Parameters
    ----------
    slos : sequence of Slo
        ``seconds`` is a quantile for all of them, and half of the shortest latency at most.
    known : ServiceTime, optional
        What is planned with until it was measured.
    """

    def __init__(self, slos: Sequence[Slo], known: ServiceTime | None = None) -> None:
        self._known = known
        self._most = min(slo.latency for slo in slos) / 2
        self._ways = LatestRows(KEPT, 2)  # seconds, requests of the batch
        self._digest = ""
        self._tables: dict[tuple[str, int], Policy] = {}
        self.level = max(slo.quantile for slo in slos)
        """Which quantile that is."""
        self.seconds = self._profiled
        """What is planned with, s."""

    @property
    def _profiled(self) -> float:
        known = self._known
        if known is None:
            return 0.0
        levels, seconds = zip(*known.quantiles, strict=True) if len(known.quantiles) > 1 else ((0.0,), (known.mean,))
        return min(max(known.mean, float(np.interp(self.level, levels, seconds))), self._most)

    def follow(self, plan: Plan) -> None:
        """This plan is in force: batches that left by another's tables tell nothing."""
        self._digest = plan.digest
        self._tables = {
            (route.name if plan.routes else "", place): table
            for route in plan.all_routes
            for place, table in enumerate(route.rule().tables)
            if table.servers is None and table.columns == 1  # else who is held waits for a server, or for whom is not told
        }

    def see(self, batches: Sequence[MeasuredBatch]) -> None:
        """Take in batches. Those tell the way of which all requests were answered to callers of one process."""
        ways = []
        for batch in batches:
            table = self._tables.get((batch.route, batch.table)) if batch.digest == self._digest else None
            if table is None or not batch.served or len(batch.latencies) != batch.size or batch.size < 1:
                continue
            held = table.hold[min(batch.size, len(table.hold) - 1)]
            if held < inf:
                way = min(min(batch.latencies) - batch.seconds, max(batch.latencies) - batch.seconds - held)
                ways.append((max(0.0, way), batch.size))
        if ways:
            self._ways.extend(np.array(ways))

    @property
    def batch_size(self) -> float:
        """Requests of the latest batches, in the mean as requests see it; 1 where there was none."""
        sizes = self._ways.rows()[:, 1]
        return float(sizes @ sizes / sizes.sum()) if len(sizes) else 1.0

    def in_time(self, slos: Sequence[Slo]) -> None:
        """Batches must be in time at these percentiles."""
        self.level = max(slo.quantile for slo in slos)
        if len(self._ways) < FEWEST:
            self.seconds = self._profiled

    @property
    def measured(self) -> float:
        """The quantile of the latest batches, s; ``nan`` where they are too few."""
        if len(self._ways) < FEWEST:
            return nan
        ways = self._ways.rows(max(LATEST, ceil(1 / (1 - self.level))))[:, 0]
        place = max(ceil(len(ways) * self.level - 1), 0)
        return min(float(np.partition(ways, place)[place]), self._most)

    @property
    def longer(self) -> bool:
        """Whether it was found to be longer than what is planned with."""
        return self.measured > max(OTHER * self.seconds, self.seconds + LEAST)

    def settle(self) -> None:
        """Plan with what was measured, where that is another."""
        if self.longer or self.measured < min(self.seconds / OTHER, self.seconds - LEAST):
            self.seconds = self.measured

    def before(self, profile: ServiceProfile) -> ServiceProfile:
        """The function as requests find it that are so long on their way to it; as it is, where they are not."""
        return replace(profile, way=ServiceTime(self.seconds)) if self.seconds else profile
