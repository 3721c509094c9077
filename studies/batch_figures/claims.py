"""The shapes that the paper names of its figure 4, each asked of ours."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from sluice.optimizer.arrays import Array

from ..claims import Claim
from .results import Curve, Study


def steps(values: Array) -> tuple[int, int]:
    """How often the curve goes up and down from one setting to the next, by more than its numerical error."""
    changes = [(b - a) / a for a, b in pairwise(values)]
    return sum(c > 1e-4 for c in changes), sum(c < -1e-4 for c in changes)


def share_beyond(values: Array, at: Array, bound: float) -> float:
    """The part of the whole range of ``values`` that the settings from ``bound`` on span."""
    return float(np.ptp(values[at >= bound - 1e-9]) / np.ptp(values))


def claims(study: Study) -> list[Claim]:
    """All of them."""
    return [
        *batch_size_claims(study.a, study.a_now),
        *timeout_claims(study.b, study.b_bursty),
        *memory_claims(study.c, study.c_now),
    ]


def batch_size_claims(a: Curve, now: Curve) -> list[Claim]:
    """Of panel (a)."""
    return [
        Claim(
            "(a) cost falls as the batch size grows",
            bool(a.cost[-1] == a.cost.min()),
            f"${a.cost[0]:.2f} at 1, ${a.cost[-1]:.2f} per million at 20; up at {steps(a.cost)[0]} of 19 steps, "
            f"at {steps(now.cost)[0]} with 1 ms",
        ),
        Claim(
            "(a) throughput rises with it",
            steps(a.throughput) == (19, 0),
            f"{a.throughput[0]:.1f} to {a.throughput[-1]:.1f} requests/s of one environment",
        ),
        Claim(
            "(a) service time suffers, as early requests wait for the batch",
            steps(a.latency) == (19, 0),
            f"mean {a.latency[0]:.2f} to {a.latency[-1]:.2f} s, of which {a.waiting[-1]:.2f} s waiting",
        ),
    ]


def timeout_claims(b: Curve, bursty: Curve) -> list[Claim]:
    """Of panel (b)."""
    return [
        Claim(
            "(b) the same with the timeout",
            steps(b.latency)[1] == steps(b.throughput)[1] == steps(b.cost)[0] == 0,
            f"${b.cost[0]:.2f} to ${b.cost[-1]:.2f}, {b.throughput[0]:.1f} to {b.throughput[-1]:.1f} requests/s, "
            f"{b.latency[0]:.2f} to {b.latency[-1]:.2f} s",
        ),
        Claim(
            "(b) beyond 0.2 s its effect is small",
            max(share_beyond(y, b.at, 0.2) for y in (b.latency, b.throughput, b.cost)) < 0.05,
            f"{100 * share_beyond(b.latency, b.at, 0.2):.1f} % of the change of the service time, "
            f"{100 * share_beyond(b.cost, b.at, 0.2):.1f} % of that of the cost; with bursts "
            f"{100 * share_beyond(bursty.latency, b.at, 0.2):.0f} % and {100 * share_beyond(bursty.cost, b.at, 0.2):.1f} %",
        ),
    ]


def memory_claims(c: Curve, now: Curve) -> list[Claim]:
    """Of panel (c)."""
    (rises, falls), (rises_now, falls_now) = steps(c.cost), steps(now.cost)
    return [
        Claim(
            "(c) more memory makes service quicker",
            steps(c.latency) == (0, 23) and steps(c.throughput) == (23, 0),
            f"{c.latency[0]:.2f} to {c.latency[-1]:.2f} s, {c.throughput[0]:.1f} to {c.throughput[-1]:.1f} requests/s",
        ),
        Claim(
            "(c) cost is not monotonous in memory",
            min(rises, falls) > 0,
            f"${c.cost.min():.2f} to ${c.cost.max():.2f}, up at {rises} and down at {falls} of 23 steps; "
            f"with 1 ms up at {rises_now} and down at {falls_now}",
        ),
    ]
