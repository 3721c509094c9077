"""The arrivals that a fit was made of, as its document carries them: the latest, as whole microseconds between them."""

from __future__ import annotations

import numpy as np

from sluice.batching.documents import ArrivalDocument
from sluice.optimizer.arrays import Array
from sluice.optimizer.traces.trace import Trace

MOST_RECORDED = 1 << 18  # arrivals; a document of less than two megabytes
MICROSECOND = 1e-6  # s


def latest(times: Array, most: int = MOST_RECORDED) -> Array:
    """The last ``most`` of ascending times (s), counted from the first of them."""
    kept = times[-most:]
    return np.asarray(kept - kept[0])


def recorded_us(trace: Trace) -> list[int]:
    """The latest arrivals of a trace, as a document has them: none of them is off by more than half a microsecond."""
    found: list[int] = np.diff(np.rint(latest(trace.times) / MICROSECOND).astype(np.int64)).tolist()
    return found


def recorded_times(document: ArrivalDocument) -> Array | None:
    """When the arrivals came that a document carries, in s from the first; ``None`` where it carries none."""
    if not document.recorded_us:
        return None
    return latest(np.concatenate([[0.0], np.cumsum(np.array(document.recorded_us, dtype=np.int64)) * MICROSECOND]))
