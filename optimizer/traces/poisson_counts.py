"""Do the counts of a trace vary as those of a Poisson process? The dispersion test, at windows of every length.

Given how many arrivals there are, Poisson counts in ``K`` equal windows are multinomial, so that ``(K - 1)`` times their index of
dispersion is about chi-squared with ``K - 1`` degrees of freedom (Fisher). Windows go from the mean gap to a tenth of the trace,
one to a factor of ten; the least of the p-values, times their number, is the answer. A swing of the rate that is slow against a
gap shows in the long windows alone, where it may be plain.
"""

from __future__ import annotations

from sluice.optimizer.traces.trace import Trace
from sluice.optimizer.when_asked import module_when_asked

special = module_when_asked("sluice.optimizer.special_functions")

WINDOWS_PER_DECADE = 1


def poisson_p_value(trace: Trace) -> float:
    """The probability that counts of a Poisson process disperse so much more, or less, than Poisson at some window, at most 1."""
    windows = trace.dispersion_windows(WINDOWS_PER_DECADE).tolist()
    least = 1.0
    for window in windows:
        freedom = int(trace.duration / window) - 1
        squares = trace.dispersion(window) * freedom
        least = min(least, 2 * float(min(special.chdtr(freedom, squares), special.chdtrc(freedom, squares))))
    return min(1.0, len(windows) * least)
