"""Has the share of late requests left the promise? Bets on it, batch after batch (docs/watching.md, docs/model.md, section 10).

Of a batch with ``n`` requests ``x`` are late or failed, of which the promise allows a part ``p``. Had each batch, whatever came
before it, no more than ``p n`` in the mean, then the capital of who bets on lateness, times ``1 + b (x - p n) / m`` with every
batch, would not grow in the mean, ``0 <= b < 1/p``, where ``m >= n`` is settled before it: the largest of the last ``BEFORE``
batches, as which a larger one counts. So it does not matter how those of one batch depend on each other: all of them may be late
together. The capitals of a grid of ``b``, each joined by 1 at every batch (Shiryaev and Roberts), are averaged: this exceeds
``L`` for the first time after at least ``L`` batches in the mean, whenever it is looked at.

Where late batches come in runs, as they do where queues build up, what comes before a batch tells of it, and the mean is not
that. So the logarithms of the gains are divided by how much more the sums of ``x / m`` over many batches vary than if each batch
were by itself, where that is beyond chance (``dispersion``). Of runs of one length that is the length, and the bound stays, by
Hoelder's inequality; in general it rests on what was measured. Batches since the largest bet began to win are measured when it has
lost that again, or after an alarm: a promise that breaks is a change, and no dispersion of what was before.

References: Shin, Ramdas, Rinaldo, E-detectors: a nonparametric framework for sequential change detection (2023), for the bound;
Waudby-Smith, Ramdas, J. R. Stat. Soc. B 86 (2024) 1, for the bets.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Sequence
from math import exp, inf, log, log1p

import numpy as np

from sluice.batching.documents import Slo
from sluice.batching.errors import require
from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.compiled import compiled
from sluice.optimizer.tuning.changes import Alarm
from sluice.optimizer.tuning.dispersion import FAMILIES, FEWEST, Dispersion, estimate

BETS = np.array([0.03, 0.1, 0.2, 0.4])  # of the largest allowed, 1/p
RUN_LENGTH = 50_000.0  # batches
LONGEST = 10  # doublings of a batch over which runs of late ones are looked for
FLOAT = 8  # bytes
KEPT = 512  # batches of which the percentile is told
BEFORE = 64  # batches whose largest a batch is measured by
UNIT = 1000.0  # to a batch, of the values whose dispersion is measured: however few are late, it is not the least there is
WINNING = 512  # batches at most that are not measured yet


class PromiseWatch:
    """The percentile that was promised is not kept.

    Parameters
    ----------
    slo : Slo
    run_length : float
        Batches before a false alarm, in the mean and at the least, where exactly what is allowed is late.
    """

    def __init__(self, slo: Slo, run_length: float = RUN_LENGTH) -> None:
        require(1 < run_length < inf, "run_length", run_length, "a number of batches > 1")
        self.slo, self.run_length = slo, run_length
        self._bets = BETS / slo.error_budget
        self.restart()

    def restart(self) -> None:
        """Forget what was seen: another plan is in force."""
        self._latest: deque[tuple[int, int, bytes]] = deque(maxlen=KEPT)  # late, failed, latencies as float64
        self._sizes: deque[int] = deque(maxlen=BEFORE)
        self._dispersion, self._winning = Dispersion.empty(), np.empty(0)
        self.clear()

    def clear(self) -> None:
        """The alarm is taken note of; the next one needs evidence of its own."""
        self.alarm: Alarm | None = None
        self._measure(0)
        self._capital = np.full(len(self._bets), -inf)  # its logarithm
        self._gain = np.zeros(len(self._bets))  # since the best moment to begin, logarithm,
        self._began = np.zeros((len(self._bets), 3))  # and that moment, s, with the late requests and all since then

    @property
    def late(self) -> float:
        """Share of the latest requests that were late or failed; ``nan`` where there were none."""
        requests = sum(failed + len(latencies) // FLOAT for _, failed, latencies in self._latest)
        return sum(late for late, _, _ in self._latest) / requests if requests else np.nan

    @property
    def percentile(self) -> float:
        """The percentile of the latest requests, s, failures taking for ever; ``nan`` where there were none."""
        told = np.frombuffer(b"".join(latencies for _, _, latencies in self._latest))
        latencies = np.concatenate([told, np.full(sum(failed for _, failed, _ in self._latest), inf)])
        return float(np.quantile(latencies, self.slo.quantile, method="inverted_cdf")) if len(latencies) else np.nan

    def see(self, batches: Sequence[MeasuredBatch]) -> None:
        """Take in batches in the order of their ends."""
        rows = []
        for batch in batches:
            n = len(batch.latencies) + batch.failed
            if n:  # who was not answered was not answered in time
                late = batch.failed + sum(seconds > self.slo.latency for seconds in batch.latencies)
                self._latest.append((late, batch.failed, array("d", batch.latencies).tobytes()))
                rows.append((batch.ended_at, late, n, max(self._sizes, default=n)))
                self._sizes.append(n)
        told = np.array(rows, dtype=np.float64).reshape(-1, 4)
        counts = np.ascontiguousarray(told[:, :3])
        size, share = np.minimum(counts[:, 2] / told[:, 3], 1.0), counts[:, 1] / counts[:, 2]
        excess, lost = (share - self.slo.error_budget) * size, np.full(1, -1)
        held = self._capital, self._gain, self._began, lost
        place = _bet(counts, excess, self._bets, self._runs(), log(self.run_length), *held)
        if self.alarm is None and place >= 0:
            self._speak(float(counts[place, 0]))
        self._winning = np.concatenate([self._winning, UNIT * share * size])
        self._measure(min(len(counts) - 1 - int(lost[0]), WINNING) if lost[0] >= 0 else WINNING)

    def _measure(self, left: int) -> None:
        """Measure the dispersion of the batches before the last so many."""
        n = max(len(self._winning) - left, 0)
        self._dispersion.see(self._winning[:n], FAMILIES["gaussian"], inf)
        self._winning = self._winning[n:]

    def _runs(self) -> float:
        """How much more sums over many batches vary than if each were by itself, where that is beyond chance; at least 1."""
        held = self._dispersion
        if held.stale[0]:
            estimate(held)
        phi, degrees = held.phi[:LONGEST], held.known[:LONGEST]
        known = degrees >= FEWEST
        if not known[0]:
            return 1.0
        chance = 2 * np.sqrt(2 / degrees[known] + 2 / degrees[0])
        return max(1.0, float((phi[known] / phi[0] * (1 - np.minimum(chance, 1))).max()))

    def _speak(self, at: float) -> None:
        since, late, requests = self._began[int(np.argmax(self._gain))].tolist()
        ended = f"that ended within {at - since:.3g} s" if at > since else "of one batch"
        words = (
            f"{100 * late / requests:.3g} % of the {requests:.0f} requests {ended} failed or took "
            f"longer than {self.slo.latency:g} s, of which {self.slo.name} allows {100 * self.slo.error_budget:.3g} %"
        )
        self.alarm = Alarm("promise", at, self.slo.error_budget, late / requests, words, since)


@compiled
def _bet(
    counts: Array,
    excess: Array,
    bets: Array,
    runs: float,
    enough: float,
    capital: Array,
    gain: Array,
    began: Array,
    lost: Indices,
) -> int:
    """The first of ``counts``, (n, 3), ends, late requests, requests, at which the capital is enough; -1 for none.

    The last at which the largest bet has nothing of what it won goes into ``lost``, (1,).
    """
    for i in range(len(counts)):
        highest = -inf
        for b in range(len(bets)):
            won = log1p(bets[b] * excess[i]) / runs
            if gain[b] <= 0:
                began[b, 0], began[b, 1], began[b, 2], gain[b] = counts[i, 0], 0.0, 0.0, 0.0
            gain[b] += won
            began[b, 1] += counts[i, 1]
            began[b, 2] += counts[i, 2]
            capital[b] = max(capital[b], 0.0) + log1p(exp(-abs(capital[b]))) + won
            highest = max(highest, capital[b])
        if gain[-1] <= 0:
            lost[0] = i
        total = 0.0
        for b in range(len(bets)):
            total += exp(capital[b] - highest)
        if highest + log(total / len(bets)) > enough:
            return i
    return -1
