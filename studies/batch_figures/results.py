"""What is computed for figure 4."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.optimizer.arrays import Array


@dataclass(frozen=True)
class Curve:
    """What figure 4 shows along one parameter: mean latency, of it the wait (s), requests/s of one environment, USD per million."""

    at: Array
    latency: Array
    waiting: Array
    throughput: Array
    cost: Array


@dataclass(frozen=True)
class Study:
    """The panels; ``now`` with a bill by the millisecond, ``worst`` the largest relative error of the regression."""

    worst: float
    a: Curve
    a_now: Curve
    b: Curve
    b_bursty: Curve
    c: Curve
    c_now: Curve
