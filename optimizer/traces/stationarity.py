"""Does the rate of a trace drift? A test on the slow end of its spectrum (docs/traces.md).

Counts in equal windows have a periodogram ``P_j``, ``j`` cycles per trace. If the process is stationary and its correlation short
against the trace, ``P_j / S_j`` is exponential with mean 1, independently for each ``j``, ``S`` being its spectral density
(Brillinger, Time Series, 1981, section 5.2). Bursts raise ``S``, but those that are short against the trace raise it evenly over
the slow end, whereas a drift, seen once or a few times, stands out at the slowest ``j``. So ``S`` is fitted where ``j > SLOW``
(Whittle's likelihood, ``- sum log S_j + P_j / S_j``) by the spectrum that any MMPP(2) has,

    S_j = floor + height / (1 + (j / corner)^2),          corner >= SLOW

and extended to ``j <= SLOW``. The mean of ``P_j / S_j`` over the first ``m`` of these is then F-distributed with ``2 m`` and
``2 SUPPORT`` degrees of freedom, the latter for what the extension rests on; a mean too large to be so is drift. A cycle of more
than ``SLOW`` periods is one ``P_j`` too large against the mean of its neighbours, by the same distribution.

Bursts so long that a trace shows only a few have a corner below ``SLOW`` and count as drift: nothing in the trace tells the two
apart. A drift that is significant but hardly changes the rate is no reason to warn, hence ``LEAST_DRIFT``.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.traces.clock import spread_over_ticks
from sluice.optimizer.traces.trace import Trace
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

N_WINDOWS = 1024
SLOW = 6  # cycles per trace: what is slower than this is looked at
FIRST = (1, 2, SLOW)  # sums over so many of the slowest: a step or one cycle is in the first, a wandering rate in all
FITTED = 64  # cycles per trace up to which the spectrum is fitted
N_CORNERS, STEPS = 24, 200  # of the fit
FASTEST_CYCLE = 128  # cycles per trace
SUPPORT = 20  # the extension rests on about so many ordinates, those next to the slow ones
NEIGHBOURS = 16  # to either side of a cycle
SIGNIFICANCE = 1e-3
LEAST_DRIFT = 0.1  # root mean square of the rate's drift, relative to the rate
FEWEST_ARRIVALS = 1000  # in a window that is proposed


@dataclass(frozen=True)
class Stationarity:
    """The verdict on a trace.

    ``p_value`` is the probability that a stationary process drifts so much; ``drift`` the root mean square of the drift relative to
    the rate; ``cycle`` the period in seconds where the drift is a cycle; ``window`` the seconds back from the end that look
    stationary: the longest of half the trace (or an eighth of the cycle), half of that and so on, where one does.
    """

    stationary: bool
    p_value: float
    drift: float
    cycle: float | None = None
    window: float | None = None

    @property
    def note(self) -> str:
        """One sentence on what was found and what to do."""
        if self.stationary:
            return "the rate looks stationary"
        how = "drifts" if self.cycle is None else f"follows a cycle of {self.cycle:.4g} s"
        remedy = (
            f"the last {self.window:.4g} s look stationary (--window {self.window:.4g})"
            if self.window is not None
            else f"no recent window with {FEWEST_ARRIVALS} arrivals looks stationary"
        )
        return f"the rate {how}, by ±{100 * self.drift:.0f} % (p = {self.p_value:.1g}): a fit describes the average; {remedy}"

    def record(self) -> dict[str, Any]:
        """What a document keeps of it."""
        return {**asdict(self), "note": self.note}


def judge_stationarity(trace: Trace) -> Stationarity:
    """Whether the arrival rate of a trace drifts, and which recent window does not; the tick of its clock is no cycle."""
    trace = spread_over_ticks(trace, np.random.default_rng(0))
    verdict = _judge(trace)
    if verdict.stationary:
        return verdict
    # within an eighth of a cycle the load is nearly one load
    seconds = trace.duration / 2 if verdict.cycle is None else verdict.cycle / 8
    while len(trace) - int(np.searchsorted(trace.times, trace.duration - seconds)) >= FEWEST_ARRIVALS:
        rounded = float(f"{seconds:.3g}")
        if _judge(trace.last(rounded)).stationary:
            return Stationarity(False, verdict.p_value, verdict.drift, verdict.cycle, rounded)
        seconds /= 2
    return verdict


def _judge(trace: Trace) -> Stationarity:
    counts = trace.counts(N_WINDOWS)
    power = np.abs(np.fft.rfft(counts / counts.mean() - 1)) ** 2 / N_WINDOWS
    expected = _stationary_spectrum(power)
    slow = power[1 : SLOW + 1]
    ratios = slow / expected
    level = min(1.0, len(FIRST) * min(float(special.fdtrc(2 * m, 2 * SUPPORT, ratios[:m].mean())) for m in FIRST))
    level_drift = float(np.sqrt(2 * np.maximum(slow - expected, 0).sum() / N_WINDOWS))
    cycle, cycle_p, cycle_drift = _strongest_cycle(power)
    if cycle_p < SIGNIFICANCE and cycle_drift >= LEAST_DRIFT and cycle_drift >= level_drift:
        return Stationarity(False, cycle_p, cycle_drift, trace.duration / cycle)
    return Stationarity(level >= SIGNIFICANCE or level_drift < LEAST_DRIFT, level, level_drift)


def _stationary_spectrum(power: Array) -> Array:
    """Spectral density at the ``SLOW`` slowest frequencies, extended from what is fitted beside them.

    For each of a grid of corners, floor and height go uphill in Whittle's likelihood by multiplicative steps, which keep them
    positive (Févotte and Idier, Neural Computation 23, 2011, where it is the divergence of Itakura and Saito).
    """
    observed = power[SLOW + 1 : FITTED + 1]
    corners = np.geomspace(SLOW, 4 * FITTED, N_CORNERS)[:, None]
    shape = 1 / (1 + (np.arange(SLOW + 1, FITTED + 1) / corners) ** 2)
    floor = np.full((N_CORNERS, 1), max(float(observed.mean()), 1e-12) / 2)
    height = floor / shape.mean(axis=1, keepdims=True)
    for _ in range(STEPS):
        for part, scale in ((np.ones_like(shape), floor), (shape, height)):
            density = floor + height * shape
            uphill = (part * observed / density**2).sum(axis=1, keepdims=True)
            scale *= np.sqrt(uphill / (part / density).sum(axis=1, keepdims=True))
            np.maximum(scale, 1e-30, out=scale)
    density = floor + height * shape
    best = int(np.argmin((np.log(density) + observed / density).sum(axis=1)))
    return np.asarray(floor[best] + height[best] / (1 + (np.arange(1, SLOW + 1) / corners[best]) ** 2))


def _strongest_cycle(power: Array) -> tuple[int, float, float]:
    """Cycles per trace beyond ``SLOW``, probability of so strong a one anywhere, root mean square relative to the rate."""
    strongest = (SLOW + 1, 1.0, 0.0)
    for j in range(SLOW + 1, FASTEST_CYCLE + 1):
        beside = np.concatenate([power[max(1, j - NEIGHBOURS) : j - 1], power[j + 2 : j + 1 + NEIGHBOURS]])
        typical = float(beside.mean())
        if power[j] <= typical:
            continue
        p_value = min(1.0, float(special.fdtrc(2, 2 * len(beside), power[j] / typical)) * (FASTEST_CYCLE - SLOW))
        if p_value < strongest[1]:
            strongest = (j, p_value, float(np.sqrt(2 * (power[j] - typical) / N_WINDOWS)))
    return strongest
