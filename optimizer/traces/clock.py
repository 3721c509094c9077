"""The clock of a trace: which ticks its times were rounded to, and what of the arrivals is lost where several come in one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sluice.optimizer.traces.trace import Trace

LEAST_TICK = 1e-5  # s; where clocks are finer, what numbers are rounded to is none of theirs
MORE = 1.01  # times the mean gap: of gaps that are all the same the tick is the mean, but for what is rounded
MICROSECOND = 1e-6  # s, to which times since 1970 are known as floats


def coarse_tick(trace: Trace) -> float:
    """Seconds of the longest tick that all gaps are multiples of, where it is longer than the mean gap; else 0."""
    gaps = trace.interarrivals / MICROSECOND
    whole = np.rint(gaps)
    if bool((np.abs(gaps - whole) > 0.3).any()):
        return 0.0
    tick = float(np.gcd.reduce(whole.astype(np.int64))) * MICROSECOND
    return tick if tick >= LEAST_TICK and tick > MORE * gaps.mean() * MICROSECOND else 0.0


def clock_note(trace: Trace) -> str:
    """What is to be said of a trace whose clock is coarse; nothing where it is not."""
    tick = coarse_tick(trace)
    if not tick:
        return ""
    ticks, mean = f"{tick:.6g}", 1 / trace.arrival_rate
    return (
        f"all times lie whole multiples of {ticks} s apart, and requests come every {mean:.3g} s on average: the gaps inside "
        f"{ticks} s are not known; give finer times, or how many came in each (sluice fit --kind counts --bin {ticks})"
    )


def spread_over_ticks(trace: Trace, rng: np.random.Generator) -> Trace:
    """The arrivals alone, each at random within the tick of a coarse clock; the trace itself where its clock is none."""
    tick = coarse_tick(trace)
    if not tick:
        return trace
    times = np.sort(trace.times + rng.uniform(0, tick, len(trace)))
    return replace(trace, interarrivals=np.diff(times), sizes=None, classes=None)
