"""What is put before several queues and run: for each a deployment of its own.

Which queue a request joins is seen from the request alone and looks at no queue, so that each can be simulated alone, exactly.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from sluice.batching.documents import RequestClass
from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.simulation.deployment import Deployment, require_classes


class SeveralQueues(ABC):
    """Queues, each with what serves it."""

    @property
    @abstractmethod
    def deployments(self) -> tuple[Deployment, ...]:
        """What serves each queue."""

    @abstractmethod
    def queue_of(self, sizes: Array | None, classes: Indices | None) -> Indices:
        """The place of the queue of each request, (n_requests,); raises ``InvalidInput`` without what it is seen from."""

    @abstractmethod
    def within_queue(self, classes: Indices) -> Indices:
        """The places of these classes among those of their queue."""

    @abstractmethod
    def with_energy(self, energy: Array) -> SeveralQueues:
        """The same with these joules by the size of a batch."""

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """What each queue is called."""

    @property
    def n_tables(self) -> int:
        """The most tables that a queue has."""
        return max(deployment.n_tables for deployment in self.deployments)

    @property
    def max_batch_size(self) -> int:
        """Size of the largest batch of any queue."""
        return max(deployment.max_batch_size for deployment in self.deployments)

    @property
    def memory_sizes(self) -> list[int | None]:
        """MB of the function of each queue; ``None`` where there are workers alone."""
        elastic = [[side.service.memory_mb for side in deployment.serving if side.elastic] for deployment in self.deployments]
        return [memory[0] if memory else None for memory in elastic]

    @property
    def note(self) -> str:
        """What who reads the run should know of how the policies were made."""
        return "; ".join(dict.fromkeys(deployment.note for deployment in self.deployments if deployment.note))

    @property
    def energy(self) -> Array | None:
        """J that a batch of 1, 2, ... takes, of whatever queue."""
        return self.deployments[0].energy


@dataclass(frozen=True, eq=False)
class RoutedDeployment(SeveralQueues):
    """Queues of requests by their class, which names its ``route``.

    Parameters
    ----------
    classes : sequence of RequestClass
        Each with its slack in the queue of its route.
    routes : mapping of str to Deployment
        By the name of the route; the classes of each are those that name it.

    Raises
    ------
    InvalidInput
        A class without its route, a route without a class.
    """

    classes: Sequence[RequestClass]
    routes: Mapping[str, Deployment]

    def __post_init__(self) -> None:
        for each in self.classes:
            require(each.route in self.routes, f"route of {each.name}", each.route, f"one of: {', '.join(self.routes)}")
        by_route = {name: [each for each in self.classes if each.route == name] for name in self.routes}
        for name, classes in by_route.items():
            require(bool(classes), f"classes of {name}", len(classes), "at least one that takes the route")
        routes = {name: replace(deployment, classes=by_route[name]) for name, deployment in self.routes.items()}
        object.__setattr__(self, "classes", tuple(self.classes))
        object.__setattr__(self, "routes", routes)

    @property
    def deployments(self) -> tuple[Deployment, ...]:
        return tuple(self.routes.values())

    @property
    def names(self) -> list[str]:
        return list(self.routes)

    def queue_of(self, sizes: Array | None, classes: Indices | None) -> Indices:
        if classes is None:
            raise InvalidInput("classes", NOT_GIVEN, "those of the requests, as the queues are chosen by them")
        require_classes(classes, len(self.classes))
        names = self.names
        return np.array([names.index(each.route) for each in self.classes])[classes]

    def within_queue(self, classes: Indices) -> Indices:
        routes = [each.route for each in self.classes]
        return np.array([routes[:k].count(route) for k, route in enumerate(routes)])[classes]

    def with_energy(self, energy: Array) -> RoutedDeployment:
        each = {name: replace(deployment, energy=energy) for name, deployment in self.routes.items()}
        return RoutedDeployment(self.classes, each)
