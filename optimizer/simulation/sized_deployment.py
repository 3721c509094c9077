"""What is put before queues of size classes and run: for each a deployment of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.several_queues import SeveralQueues


@dataclass(frozen=True, eq=False)
class SizedQueue:
    """The queue of the requests up to a size (inf: of all that are larger than the others take), and what serves it."""

    up_to: float
    deployment: Deployment


@dataclass(frozen=True, eq=False)
class SizedDeployment(SeveralQueues):
    """Queues of requests by their size.

    Parameters
    ----------
    queues : sequence of SizedQueue
        By size, ascending; the last one for all sizes. One alone is a queue without regard to size.

    Raises
    ------
    InvalidInput
        Queues out of order, or with classes, which are not told apart here.
    """

    queues: Sequence[SizedQueue]

    def __post_init__(self) -> None:
        ends = self.ends
        rising = bool(ends) and ends[-1] == np.inf and all(smaller < larger for smaller, larger in pairwise(ends))
        require(rising, "queues", ends, "sizes, ascending, the last inf")
        for deployment in self.deployments:
            require(not deployment.classes, "classes", len(deployment.classes), "none, as the queues are chosen by size")

    @property
    def ends(self) -> list[float]:
        """The largest size of each queue."""
        return [queue.up_to for queue in self.queues]

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        return tuple(queue.deployment for queue in self.queues)

    @property
    def names(self) -> list[str]:
        return [f"up to {up_to:g}" if up_to < np.inf else "larger" for up_to in self.ends]

    def with_energy(self, energy: Array) -> SizedDeployment:
        each = [SizedQueue(queue.up_to, replace(queue.deployment, energy=energy)) for queue in self.queues]
        return SizedDeployment(each)

    def queue_of(self, sizes: Array | None, classes: Indices | None = None) -> Indices:
        if sizes is None:
            raise InvalidInput("sizes", NOT_GIVEN, "those of the requests, as the queues are chosen by them")
        return np.searchsorted(self.ends, sizes)

    def within_queue(self, classes: Indices) -> Indices:
        return classes
