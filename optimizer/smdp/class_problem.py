"""Two classes of requests before one server, one more urgent than the other, and what is wanted (docs/model.md, section 4.8).

The server is that of ``problem``: its service time depends on the size of a batch alone. A request of class ``c`` costs
``weight_c`` times what one of the one-class problem costs for every second from its arrival to its answer, so wanted is the least

    latency_weight * sum_c weight_c (lambda_c / lambda) * mean latency_c + power_weight * mean power.                (4.27)

With the weights 1 and 1 that is (4.2).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sluice.batching.errors import require
from sluice.optimizer.service.law import ServiceLaw
from sluice.optimizer.smdp.problem import SmdpProblem

N_CLASSES = 2
LARGEST_BATCH = 128
"""With two classes; the law of what arrives meanwhile is a square of counts for every batch size."""


@dataclass(frozen=True)
class WeightedClass:
    """Requests that come as a Poisson process and whose time is worth the same.

    Parameters
    ----------
    name : str
    arrival_rate : float
        Requests per second.
    weight : float
        What a second of one costs, beside the other class.

    Raises
    ------
    InvalidInput
        Names what is wrong.
    """

    name: str
    arrival_rate: float
    weight: float

    def __post_init__(self) -> None:
        require(0 < self.arrival_rate < np.inf, f"arrival rate of class {self.name}", self.arrival_rate, "a number > 0")
        require(0 < self.weight < np.inf, f"weight of class {self.name}", self.weight, "a number > 0")


@dataclass(frozen=True, eq=False)
class ClassProblem:
    """When to serve, how many and of which class.

    Parameters
    ----------
    together : SmdpProblem
        The server, and all requests as if they were of one class of weight 1.
    classes : tuple of two WeightedClass
        The first is the urgent one: its weight is not the smaller.
    """

    together: SmdpProblem
    classes: tuple[WeightedClass, WeightedClass]

    @classmethod
    def of(
        cls,
        classes: Sequence[WeightedClass],
        service: ServiceLaw,
        energy: ArrayLike,
        min_batch_size: int = 1,
        latency_weight: float = 1.0,
        power_weight: float = 0.0,
    ) -> ClassProblem:
        """The problem of two classes in either order and a server as ``SmdpProblem`` has it.

        Raises
        ------
        InvalidInput
            Not two classes, or two of one name; and as ``SmdpProblem`` has it.
        """
        two = "two: of more, put into one those whose weights are nearest; of one, leave classes out"
        require(len(classes) == N_CLASSES, "classes", len(classes), two)
        require(classes[0].name != classes[1].name, "classes", classes[0].name, "two names, each once")
        largest = f"at most {LARGEST_BATCH} with two classes"
        require(len(service.mean) <= LARGEST_BATCH, "largest batch", len(service.mean), largest)
        urgent, patient = sorted(classes, key=lambda each: -each.weight)
        rate = urgent.arrival_rate + patient.arrival_rate
        together = SmdpProblem(rate, service, np.asarray(energy), min_batch_size, latency_weight, power_weight)  # type: ignore[arg-type]
        return cls(together, (urgent, patient))

    @property
    def shares(self) -> tuple[float, float]:
        """Parts of the requests that are of each class."""
        urgent, patient = (each.arrival_rate / self.together.arrival_rate for each in self.classes)
        return urgent, patient

    @property
    def mean_weight(self) -> float:
        """Of a request, whichever its class."""
        return sum(share * each.weight for share, each in zip(self.shares, self.classes, strict=True))

    @property
    def without_classes(self) -> SmdpProblem:
        """What is left where a batch takes the oldest: all have the same mean latency, at the mean weight."""
        one = self.together
        return one.weighted(one.latency_weight * self.mean_weight, one.power_weight)

    def cost(self, mean_latency: Sequence[float], power: float) -> float:
        """(4.27) of the mean latency (s) of each class and the power (W)."""
        parts = zip(self.shares, self.classes, mean_latency, strict=True)
        return self.together.cost(sum(share * each.weight * seconds for share, each, seconds in parts), power)
