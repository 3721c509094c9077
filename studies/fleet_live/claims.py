"""What the page says of windows."""

from __future__ import annotations

from collections.abc import Sequence

from .results import Window


def total(windows: Sequence[Window], what: str) -> int:
    """A count, summed over the windows."""
    return sum(getattr(window, what) for window in windows)


def late(windows: Sequence[Window]) -> float:
    """Percent of all requests."""
    return 100.0 * (1.0 - total(windows, "in_time") / total(windows, "arrivals"))


def accuracy(windows: Sequence[Window]) -> float:
    """In the mean over the requests in time, percent."""
    return sum(window.in_time * window.accuracy for window in windows) / total(windows, "in_time")


def apart(some: Sequence[Window], others: Sequence[Window], what: str) -> float:
    """The mean of how far two runs are apart, percentage points."""
    apart = [abs(getattr(one, what) - getattr(other, what)) for one, other in zip(some, others, strict=True)]
    return float(sum(apart)) / len(apart)
