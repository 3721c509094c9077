"""What is put before queues of size classes and run: for each a deployment of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from sluice.batching.errors import require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.simulation.deployment import Deployment


@dataclass(frozen=True, eq=False)
class SizedQueue:
    """The queue of the requests up to a size (inf: of all that are larger than the others take), and what serves it."""

    up_to: float
    deployment: Deployment


@dataclass(frozen=True, eq=False)
class SizedDeployment:
    """Queues of requests by their size.

    Parameters
    ----------
    queues : sequence of SizedQueue
        By size, ascending; the last one for all sizes. One alone is a queue without regard to size.

    Raises
    ------
    InvalidInput
        Queues out of order.
    """

    queues: Sequence[SizedQueue]

    def __post_init__(self) -> None:
        ends = self.ends
        rising = bool(ends) and ends[-1] == np.inf and all(smaller < larger for smaller, larger in pairwise(ends))
        require(rising, "queues", ends, "sizes, ascending, the last inf")

    @property
    def ends(self) -> list[float]:
        """The largest size of each queue."""
        return [queue.up_to for queue in self.queues]

    @property
    def n_tables(self) -> int:
        """The most tables that a queue has."""
        return max(queue.deployment.n_tables for queue in self.queues)

    @property
    def max_batch_size(self) -> int:
        """Size of the largest batch of any queue."""
        return max(queue.deployment.max_batch_size for queue in self.queues)

    @property
    def memory_sizes(self) -> list[int | None]:
        """MB of the function of each queue; ``None`` where there are workers alone."""
        elastic = [[side.service.memory_mb for side in queue.deployment.serving if side.elastic] for queue in self.queues]
        return [memory[0] if memory else None for memory in elastic]

    @property
    def note(self) -> str:
        """What who reads the run should know of how the policies were made."""
        return "; ".join(dict.fromkeys(queue.deployment.note for queue in self.queues if queue.deployment.note))

    @property
    def energy(self) -> Array | None:
        """J that a batch of 1, 2, ... takes, of whatever queue."""
        return self.queues[0].deployment.energy

    def with_energy(self, energy: Array) -> SizedDeployment:
        """The same with these joules by the size of a batch."""
        each = [SizedQueue(queue.up_to, replace(queue.deployment, energy=energy)) for queue in self.queues]
        return SizedDeployment(each)

    def class_of(self, sizes: Array) -> Indices:
        """The place of the queue of requests of these sizes."""
        return np.searchsorted(self.ends, sizes)
