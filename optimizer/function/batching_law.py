"""Which law of batching is taken: the exact one, or that of drawn arrivals where the exact one would take too long.

The work of the exact one goes with the numbers in its uniformized chain: a series has 6 sqrt(jumps) nodes, and at each some 16
sqrt(jumps) terms of the chain are mixed, so that a table takes about a hundred multiplications a number.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.counting import CountingProcess, TooManyJumps
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.function.falling_holds import FallingHolds
from sluice.optimizer.function.sampled_batches import ArrivalSample, Draw, SampledHolds
from sluice.optimizer.function.waiting_time import SizeOrTimeout, counting_from_arrivals


class Effort(NamedTuple):
    """What a law may take: so much ``room``, numbers in the chain of the exact one, else what is drawn."""

    room: float
    draw: Draw


PREDICTION = Effort(1e7, Draw(64, 16384))
"""For one table."""
SETTING = Effort(4e5, Draw(64, 4096))
"""For one of a dozen tables."""
SEARCH = Effort(4e5, Draw(24, 1536))
"""For some hundred tables, whose laws share what was drawn."""

MOST_BATCH = 1024
"""The largest batch that is predicted: laws are kept for every size up to it, and their memory goes with its square."""

Basis = CountingProcess | ArrivalSample
"""What is known of the arrivals: their counts, exactly, or some that were drawn."""


def basis_of(arrivals: ArrivalProcess, max_batch_size: int, longest: float, effort: Effort = PREDICTION) -> Basis:
    """What the laws of all tables with batches up to a largest, and holds up to ``longest`` (s), are made of."""
    require(max_batch_size >= 1, "batch_size", max_batch_size, "an integer >= 1")
    require(0 <= longest < np.inf, "timeout", longest, "a number of seconds >= 0")
    try:
        return counting_from_arrivals(arrivals, max_batch_size, longest, effort.room)
    except TooManyJumps:
        return ArrivalSample(arrivals, max_batch_size, effort.draw)


def size_or_timeout_law(basis: Basis, max_batch_size: int, timeout: float) -> SizeOrTimeout | SampledHolds:
    """The law of size-or-timeout for every batch size up to a largest."""
    if isinstance(basis, CountingProcess):
        return SizeOrTimeout(basis.arrivals, max_batch_size, timeout, basis)
    return SampledHolds(basis, np.full(max_batch_size - 1, timeout))


def falling_holds_law(basis: Basis, holds: Array) -> FallingHolds | SampledHolds:
    """The law of tables whose holds (s) do not rise with the number waiting."""
    if isinstance(basis, CountingProcess):
        return FallingHolds(basis.arrivals, holds, basis)
    return SampledHolds(basis, holds)
