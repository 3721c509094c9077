"""Has the share of late requests left the promise? Bets on it, batch after batch (docs/watching.md, docs/model.md, section 10).

Of a batch with ``n`` requests ``x`` are late, of which the promise allows a part ``p``. Had each batch, whatever came before it, no
more than ``p n`` in the mean, then the capital of who bets a part ``b`` on lateness, times ``1 + b (x - p n) / n_max`` with every
batch, would not grow in the mean, ``0 <= b < 1/p``. So it does not matter how those of one batch depend on each other: all of them
may be late together. The capitals of a grid of ``b``, each restarted with 1 at every batch (Shiryaev and Roberts), are averaged:
this exceeds ``L`` for the first time after at least ``L`` batches in the mean, whenever it is looked at.

Late batches come in runs where queues build up. So the gains are divided by the dispersion of the late requests over neighbouring
batches, where that is above 1, measured as in ``level_scan``; then the bound is one of measurement, not of proof.

References: Shin, Ramdas, Rinaldo, E-detectors, Statistical Science (2024), for the bound; Waudby-Smith, Ramdas, J. R. Stat. Soc. B 86
(2024) 1, for the bets.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from math import inf

import numpy as np

from sluice.batching.documents import Slo
from sluice.batching.errors import require
from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.tuning.changes import Alarm

BETS = np.array([0.02, 0.05, 0.1, 0.2, 0.35, 0.5])  # of the largest allowed, 1/p
RUN_LENGTH = 200_000.0  # batches
KEPT = 512  # batches of which the percentile is told
LOWEST = -30.0  # of a capital's logarithm


class PromiseWatch:
    """The percentile that was promised is not kept.

    Parameters
    ----------
    slo : Slo
    max_batch : int
        Requests in the largest batch; larger ones count as that many.
    run_length : float
        Batches before a false alarm, in the mean and at the least, where exactly what is allowed is late.
    """

    def __init__(self, slo: Slo, max_batch: int = 1, run_length: float = RUN_LENGTH) -> None:
        require(max_batch >= 1, "max_batch", max_batch, "an integer >= 1")
        require(1 < run_length < inf, "run_length", run_length, "a number of batches > 1")
        self.slo, self.run_length = slo, run_length
        self._max_batch = max_batch
        self._bets = BETS / slo.error_budget
        self.alarm: Alarm | None = None
        self.restart()

    def clear(self) -> None:
        """The alarm is taken note of; the next one needs evidence of its own."""
        self.alarm = None
        self._restart_bets()

    def restart(self) -> None:
        """Forget what was seen: another plan is in force."""
        self.alarm = None
        self._restart_bets()
        self._latest: deque[tuple[float, int, tuple[float, ...], int]] = deque(maxlen=KEPT)

    def _restart_bets(self) -> None:
        self._capital = np.full(len(self._bets), -inf)  # logarithm of that of Shiryaev and Roberts
        self._since = np.nan

    @property
    def late(self) -> float:
        """Share of the latest requests that were late; ``nan`` where there were none."""
        requests = sum(n for _, n, _, _ in self._latest)
        return sum(late for _, _, _, late in self._latest) / requests if requests else np.nan

    @property
    def percentile(self) -> float:
        """The percentile of the latest requests, s; who got no answer counts as never; ``nan`` where there were none."""
        latencies = [seconds for _, n, told, _ in self._latest for seconds in (*told, *(inf,) * (n - len(told)))]
        return float(np.quantile(latencies, self.slo.quantile, method="inverted_cdf")) if latencies else np.nan

    def see(self, batches: Sequence[MeasuredBatch]) -> None:
        """Take in batches in the order of their ends."""
        for batch in batches:
            n = len(batch.latencies) + batch.failed
            if not n:
                continue
            late = batch.failed + sum(seconds > self.slo.latency for seconds in batch.latencies)
            self._latest.append((batch.ended_at, n, batch.latencies, late))
            self._bet(batch.ended_at, late, n)

    def _bet(self, at: float, late: int, n: int) -> None:
        size = min(n, self._max_batch)
        gain = (late - self.slo.error_budget * n) * size / n / self._max_batch
        self._capital = np.logaddexp(self._capital, 0.0) + np.log1p(self._bets * gain)
        total = float(np.logaddexp.reduce(self._capital)) - np.log(len(self._bets))
        if self.alarm is None and total > np.log(self.run_length):
            shown = f"{100 * self.late:.3g} % of the latest requests were later than {self.slo.latency:g} s"
            words = f"{shown}, of which {self.slo.name} allows {100 * self.slo.error_budget:.3g} %"
            self.alarm = Alarm("promise", at, self.slo.error_budget, self.late, words, at)
