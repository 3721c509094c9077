"""What came of a decision: what was measured under the plan that serves since then, beside what was expected (docs/control.md).

Latencies are counted in steps of 1 %, so that what is kept does not grow with the requests.
"""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, inf, isfinite, nan
from typing import Any

import numpy as np

from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.billing.cost import measured_cost
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.tuning.cost_curve import CostCurve
from sluice.optimizer.tuning.setup import TuningSetup

STEP = 0.01  # of the logarithm of a latency
QUICKEST = 1e-6  # s
TOGETHER = 1024  # latencies that are counted at once


@dataclass(frozen=True)
class Expected:
    """What was expected of the plan that serves from a decision on.

    Parameters
    ----------
    late, percentile : float
        Of the first SLO, s, as rehearsed at the rate of then.
    cost : CostCurve
        Per request, USD, by rate.
    """

    late: float
    percentile: float
    cost: CostCurve


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Parameters
    ----------
    seconds : float
        From the decision, or from when its plan came into force, to the end of the last batch.
    requests : int
        That were in batches.
    mean_batch_size : float
    late : float
        Share of them that failed, or took longer than the first SLO allows.
    percentile : float
        Of the first SLO, s, within 1 %; ``inf`` where so many failed.
    usd : float
        Per request; ``nan`` of workers, and where functions tell no time.
    expected : Expected or None
        ``None`` where nothing was rehearsed, or somebody else changed the plan.
    """

    seconds: float
    requests: int
    mean_batch_size: float
    late: float
    percentile: float
    usd: float
    expected: Expected | None

    @property
    def arrival_rate(self) -> float:
        """Requests/s."""
        return self.requests / self.seconds if self.seconds > 0 else nan

    @property
    def expected_usd(self) -> Estimate:
        """Per request, at the rate that it was, and between which values one window was expected; ``nan`` beyond the curve."""
        curve, rate = CostCurve() if self.expected is None else self.expected.cost, self.arrival_rate
        known = bool(curve.rates) and curve.rates[0] <= rate <= curve.rates[-1]
        return curve.at(rate) if known else Estimate(nan, nan, nan)

    def document(self) -> dict[str, Any]:
        """As JSON has it; USD per million requests."""
        expected = self.expected
        return {
            "seconds": round(self.seconds, 3),
            "requests": self.requests,
            "arrival_rate": _number(self.arrival_rate),
            "mean_batch_size": self.mean_batch_size,
            "late": self.late,
            "percentile": _number(self.percentile),
            "usd_per_million": _number(1e6 * self.usd),
            "expected": None
            if expected is None
            else {
                "late": expected.late,
                "percentile": _number(expected.percentile),
                "usd_per_million": [_number(1e6 * usd) for usd in self.expected_usd],
            },
        }


class OutcomeWatch:
    """Counts what batches show from one decision to the next."""

    def __init__(self, setup: TuningSetup) -> None:
        self._setup = setup
        self.restart(inf, None)

    def restart(self, since: float, expected: Expected | None, pings: float = 0.0) -> None:
        """Begin anew at ``since`` (s); ``inf``: with the first request that is seen. ``pings`` are paid then, USD per second."""
        self._pings = pings
        self._since, self._until, self._expected = since, -inf, expected
        self._batches = self._requests = 0
        self._answered = self._late = 0.0
        self._billed, self._usd = 0, 0.0
        self._latencies: defaultdict[int, float] = defaultdict(float)  # requests, by logarithm of the latency in steps
        self._not_counted = array("d"), array("d")  # latencies, and how many answers each of them stands for

    def see(self, batches: Sequence[MeasuredBatch]) -> None:
        """Take in batches; what latencies tell stands for all answers of a batch, of which other processes have some callers."""
        memory_of = {name: self._setup.memory_of(name) for name in {batch.function for batch in batches}}
        for batch in batches:
            if batch.ended_at < self._since != inf:
                continue
            self._since = batch.first_came if self._since == inf else self._since
            self._until = max(self._until, batch.ended_at)
            self._batches += 1
            self._requests += batch.size
            if batch.latencies:
                stands_for = (batch.size - batch.failed) / len(batch.latencies)
                latencies, answers = self._not_counted
                latencies.extend(batch.latencies)
                answers.extend([stands_for] * len(batch.latencies))
            self._answered += batch.failed
            self._late += batch.failed
            memory_mb = memory_of[batch.function]
            usd = nan if memory_mb is None else measured_cost(batch, memory_mb, self._setup.billing)
            if isfinite(usd):
                self._billed += batch.size
                self._usd += usd
        if len(self._not_counted[0]) >= TOGETHER:
            self._count()

    def _count(self) -> None:
        latencies, stands_for = (np.array(each) for each in self._not_counted)
        self._not_counted = array("d"), array("d")
        self._answered += float(stands_for.sum())
        self._late += float(stands_for[latencies > self._setup.slos[0].latency].sum())
        steps = np.ceil(np.log(np.maximum(latencies, QUICKEST)) / STEP).astype(np.int64)
        for step, n in zip(steps.tolist(), stands_for.tolist(), strict=True):
            self._latencies[step] += n

    def told(self) -> Outcome | None:
        """What came until now; ``None`` where no request was answered."""
        self._count()
        if not self._answered:
            return None
        seconds = float(max(self._until - self._since, 0.0))
        usd = float((self._usd + self._pings * seconds) / self._billed) if self._billed == self._requests else nan
        size = float(self._requests / self._batches)
        late = float(self._late / self._answered)
        return Outcome(seconds, int(self._requests), size, late, self._percentile(), usd, self._expected)

    def _percentile(self) -> float:
        left = self._setup.slos[0].quantile * self._answered
        for step, n in sorted(self._latencies.items()):
            left -= n
            if left <= 1e-9 * self._answered:
                return exp(step * STEP)
        return inf


def _number(value: float) -> float | None:
    """``None`` for what JSON has no number."""
    return value if isfinite(value) else None
