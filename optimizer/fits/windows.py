"""Fits on a sliding window, for a load that drifts: within a window the arrivals are taken as stationary (docs/model.md,
section 1.4).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.fits.arrival_fit import ArrivalFit
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.traces.trace import MIN_ARRIVALS, Trace


@dataclass(frozen=True)
class WindowFit:
    """The fit to the arrivals from ``start`` to ``end``, seconds from the first arrival of the trace."""

    start: float
    end: float
    fit: ArrivalFit


def fit_windows(trace: Trace, window: float, model: str = "auto", step: float | None = None) -> tuple[WindowFit, ...]:
    """Fits of ``model`` to the windows of ``window`` seconds that begin every ``step`` seconds (by default one after the other).

    The last window ends with the trace; one with too few arrivals for a fit (100) is left out, as its load is not known.

    Raises
    ------
    InvalidInput
        A window or step that is not > 0, a window longer than the trace, or no window with enough arrivals.
    """
    if not 0 < window <= trace.duration:
        raise InvalidInput("window", window, f"seconds > 0, at most the duration of the trace ({trace.duration:.6g})")
    step = window if step is None else step
    if not 0 < step < np.inf:
        raise InvalidInput("step", step, "seconds > 0")
    fits = []
    n_steps = int(np.ceil((trace.duration - window) / step * (1 - 1e-12)))
    for start in [*(step * np.arange(n_steps)).tolist(), trace.duration - window]:
        first, last = np.searchsorted(trace.times, [start, start + window], side="left").tolist()
        if start + window >= trace.duration:
            last = len(trace)
        if last - first >= MIN_ARRIVALS and trace.times[last - 1] > trace.times[first]:
            part = Trace(trace.interarrivals[first : last - 1], f"{trace.source}, {start:.6g} s to {start + window:.6g} s")
            fits.append(WindowFit(start, start + window, fit_arrivals(part, model)))
    if not fits:
        raise InvalidInput("window", window, f"seconds that hold at least {MIN_ARRIVALS} arrivals somewhere")
    return tuple(fits)
