"""What Sluice makes of a set of applications: its shared queues (docs/model.md, 3.7) on HarmonyBatch's functions and prices."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sluice.batching.documents import Slo
from sluice.optimizer.arrivals import poisson
from sluice.optimizer.recommend.application import Application as Class
from sluice.optimizer.recommend.shared_queues import Shared, SharedQueue, SharedQueues

from .functions import functions
from .merging import Application
from .queues import Queue

PERCENTILE = 99.0  # any is the same, as every batch takes as long as it may at longest


class Sharing:
    """The queues that some applications, the strictest first, may share; every one has a function that is quick enough."""

    def __init__(self, applications: Sequence[Application], bill: str) -> None:
        self.applications, self.bill = tuple(applications), bill
        classes = [Class(f"{k}", poisson(of.rate), Slo(of.slo, PERCENTILE)) for k, of in enumerate(self.applications)]
        offers = functions(bill)
        self._queues = SharedQueues(classes, [of.service for of in offers], [of.invocation for of in offers])

    def cheapest(self) -> list[Queue]:
        """The cheapest grouping."""
        return self._made(self._queues.cheapest() or ())

    def neighbours(self) -> list[Queue]:
        """The cheapest grouping in which every group has neighbours by promise."""
        return self._made(self._queues.neighbours() or ())

    def separate(self) -> list[Queue]:
        """A queue for each."""
        return self._made(self._queues.separate())

    def at_the_strictest(self) -> list[Queue]:
        """One queue for all, in which everybody hurries like the strictest."""
        return self._made([self._queues.at_the_strictest()])

    def grouped(self, groups: Iterable[Sequence[Application]]) -> list[Queue]:
        """A queue for each of these groups."""
        places = {id(of): k for k, of in enumerate(self.applications)}
        return self._made(self._queues.together(tuple(places[id(of)] for of in group)) for group in groups)

    def _made(self, found: Iterable[Shared | None]) -> list[Queue]:
        return [self._queue(of) for of in found if isinstance(of, SharedQueue)]

    def _queue(self, found: SharedQueue) -> Queue:
        applications = tuple(self.applications[int(of.name)] for of in found.applications)
        function = functions(self.bill)[found.service].up_to(found.policy.max_batch_size)
        return Queue(applications, function, found.policy, found.slacks, found.usd)
