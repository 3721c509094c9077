"""Environments that are kept warm for the queues of several applications (docs/model.md, 3.6 and 3.7).

For a queue by itself it is as for one application: the cheapest number of environments, pinged or provisioned, with which every
promise is kept. Queues of one function may have the same: who finds another queue's batch under way may find none free, so that of
those batches that would start cold without, the share is added with which batches of the others are under way, 1 - exp(-a) with
``a`` of them in the mean. That is paid for once. All pings of a function are on one route of the plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from sluice.batching.documents import WarmEnvironments
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cold_starts import Shares
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.recommend.application import Application
from sluice.optimizer.recommend.function_starts import FunctionStarts
from sluice.optimizer.recommend.kept_warm import HARM, Provisioning, ping_interval, ways_to_keep
from sluice.optimizer.recommend.offers import provisioned_offers
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.served_queue import Served, ServedQueue

Together = Callable[[tuple[Application, ...]], ArrivalProcess]


class QueuesKeptWarm:
    """What is kept warm for queues before the functions of a question.

    Parameters
    ----------
    question : Question
    starts : FunctionStarts
        Of its functions.
    together : callable
        The arrivals of some applications as of one process.
    """

    def __init__(self, question: Question, starts: FunctionStarts, together: Together) -> None:
        self._question, self._starts, self._together = question, starts, together

    def alone(self, of: ServedQueue) -> ServedQueue:
        """The queue with the cheapest number of environments, pinged or provisioned, that keeps every promise.

        Where cold starts do no harm only if that saves more than the premium.
        """
        if not self._starts.matter or self._starts.told is not None:
            return of
        provisioning = self._provisioning(of)
        every = ping_interval(self._question.environments.keep_alive, of.init) if provisioning.most else None
        ways = ways_to_keep(every, provisioning.most, True, self._question.environments.concurrency)
        found = [of, *(self._under(of, way, provisioning, of.arrival_rate) for way in ways)]
        best = min(found, key=lambda queue: (queue.missed, queue.cost.per_request))
        harm = of.cold_starts >= HARM or of.missed
        return best if harm or best.cost.per_request * (1 + self._question.premium) < of.cost.per_request else of

    def pooled(self, queues: Sequence[Served]) -> tuple[Served, ...]:
        """The queues where those of one function have what is kept warm together, if that is cheaper and every promise kept."""
        found = list(queues)
        warm = {of.function for of in queues if isinstance(of, ServedQueue) and of.warm}
        for function in warm:
            mine = {k: of for k, of in enumerate(queues) if isinstance(of, ServedQueue) and of.warm and of.function == function}
            if len(mine) < 2:
                continue
            way = max((of.warm for of in mine.values() if of.warm), key=lambda warm: (warm.provisioned, warm.pinged))
            rate = sum(of.arrival_rate for of in mine.values())
            shared = {k: self._beside(of, way, [each for each in mine.values() if each is not of], rate) for k, of in mine.items()}
            apart, once = (sum(of.arrival_rate * of.cost.per_request for of in each.values()) / rate for each in (mine, shared))
            if once < apart and sum(of.missed for of in shared.values()) <= sum(of.missed for of in mine.values()):
                for k, of in shared.items():
                    found[k] = of
        return tuple(found)

    def _beside(self, of: ServedQueue, way: WarmEnvironments, others: Sequence[ServedQueue], rate: float) -> ServedQueue:
        """The queue with what is kept for it and others of its function, which have so many requests/s together."""
        provisioning = self._provisioning(of)
        under_way = sum(
            each.arrival_rate / each.mean_batch_size * float(each.queue.batch_size_pmf @ each.service.mean_response[: each.largest])
            for each in others
        )
        found = -float(np.expm1(-under_way))
        on_demand = provisioning.on_demand + found * (1 - provisioning.on_demand)
        cold = Shares(*(share + found * np.maximum(share[0] - share, 0.0) for share in provisioning.cold))
        worse = replace(provisioning, on_demand=on_demand, cold=cold)
        return replace(self._under(of, way, worse, rate), warm_queues=1 + len(others))

    def _provisioning(self, of: ServedQueue) -> Provisioning:
        question = self._question
        (offer,) = provisioned_offers(question.profile, [of.memory_mb], question.billing, question.max_batch_size)
        starts = self._starts.of(self._together(of.applications))
        return Provisioning.of(offer, starts, of.queue.batch_size_pmf, np.array(of.policy.hold[1:-1]), of.init)

    def _under(self, of: ServedQueue, way: WarmEnvironments, provisioning: Provisioning, rate: float) -> ServedQueue:
        """The queue with that kept warm, paid for by so many requests/s."""
        billing, (_, cold) = self._question.billing, provisioning.beyond(way)
        bill = replace(billing, cold_start_probability=cold.batches).cost(
            of.queue.batch_size_pmf, of.service, self._question.profile, buffered=True
        )
        cost = provisioning.cost(way, bill, billing, rate)

        def at(factor: float) -> BatchCost:
            """With what is kept warm the same a month at every rate, and the rest as on demand."""
            return replace(of.bill(factor), pings=cost.pings / factor, machines=cost.machines / factor)

        return replace(of, cost=cost, cold=cold, warm=way, bill=at)
