"""Which law of batching is taken where classes with slacks share a table whose holds fall (docs/model.md, 2.9 and 2.10)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.counting import TooManyJumps
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.function.batching_law import PREDICTION, Effort
from sluice.optimizer.function.phased_classes import PhasedClasses
from sluice.optimizer.function.poisson_classes import PoissonClasses
from sluice.optimizer.function.sampled_classes import ClassSample, SampledClasses

SharedHoldsLaw = PoissonClasses | PhasedClasses | SampledClasses


def shared_holds_law(
    classes: Sequence[ArrivalProcess], slacks: Sequence[float], holds: Array, effort: Effort = PREDICTION
) -> SharedHoldsLaw:
    """The law of batch sizes, and of each class's latency, under an elastic table.

    It is exact, but where the holds rise with the number waiting, or the phases of all processes together are too many, or jump too
    often: then it is that of drawn arrivals, and the method of the latencies is ``simulated``.

    Parameters
    ----------
    classes : sequence of ArrivalProcess
        Independent of each other.
    slacks : sequence of float
        Seconds >= 0 that a request of the class may wait longer than the table says; a hold of 0 is over for everybody.
    holds : array, shape (max_batch_size - 1,)
        ``holds[n - 1]`` is the hold (s) with ``n`` waiting.
    effort : Effort
        What is too many, and how much is drawn then; for Poisson classes nothing is.

    Raises
    ------
    InvalidInput
        No class, other than one slack for each, a slack below 0, holds that are negative or infinite.
    """
    require(len(classes) > 0, "classes", len(classes), "at least one class")
    require(len(slacks) == len(classes), "slacks", len(slacks), f"one for each of the {len(classes)} classes")
    may_wait, held = (np.asarray(seconds, dtype=np.float64) for seconds in (slacks, holds))
    require(bool((np.isfinite(may_wait) & (may_wait >= 0)).all()), "slacks", may_wait.tolist(), "seconds >= 0")
    require(bool(np.isfinite(held).all() and (held >= 0).all()), "holds", held.tolist(), "seconds >= 0")
    if (np.diff(held) > 0).any():
        return SampledClasses(ClassSample(classes, len(held) + 1, effort.draw), may_wait, held)
    if all(arrivals.n_phases == 1 for arrivals in classes):
        return PoissonClasses(np.array([arrivals.arrival_rate for arrivals in classes]), may_wait, held)
    try:
        return PhasedClasses(classes, may_wait, held, effort.room)
    except TooManyJumps:
        return SampledClasses(ClassSample(classes, len(held) + 1, effort.draw), may_wait, held)
