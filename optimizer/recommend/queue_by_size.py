"""A queue that applications share, for every load: the size of a batch chooses its function (docs/model.md, 3.7).

As for one application (``functions_by_size.py``), with every class's own age beyond which a batch is late: with ``left_c(n)`` that
of class ``c`` where a batch of ``n`` goes to its function,

    hold[n] = min_c l_c(n),     slack_c = min_n l_c(n) - hold[n],     l_c(n) = min(left_c(n), left_c(n + 1)).

Which function serves which size is chosen as if nobody could wait longer than the table says; what that comes to is then worked out
with the slacks, at every load, beside the table of one function that the grouping found.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import numpy as np

from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cold_starts import NONE_COLD
from sluice.optimizer.function.batching_law import SEARCH
from sluice.optimizer.function.class_holds import shared_holds_law
from sluice.optimizer.recommend.every_load import FunctionOfSizes, Mixture
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.recommend.functions_by_size import Assignment, FunctionsBySize
from sluice.optimizer.recommend.last_moment import seconds_left
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.served_queue import QueueAtLoad, ServedQueue
from sluice.optimizer.recommend.shared_queues import SharedQueue
from sluice.optimizer.recommend.waits import LONGEST_WAIT, rounded
from sluice.optimizer.service.composed import composed

WORTH = 0.005
"""Of the mean cost over the loads, that a plan for every load must save beside the table of one function."""


def for_every_load(question: Question, of: ServedQueue, arrivals: ArrivalProcess) -> ServedQueue:
    """The queue with the size of a batch choosing its function, where that is worth it; else the queue as it is.

    Taken are plans that keep the promises which the queue keeps, cost no more than the premium beyond it at the rates themselves,
    and ``WORTH`` less over the loads of the question.

    Parameters
    ----------
    question : Question
        Of which profile, bill, headroom, limits and loads are taken.
    of : ServedQueue
        With one function.
    arrivals : ArrivalProcess
        Of all its applications together.
    """
    loads = question.goal.loads
    if loads is None or of.warm or len(question.services) == 1:
        return of
    slos = tuple(each.slo for each in of.applications)
    sizes = FunctionsBySize(FunctionSettings(replace(question, arrivals=arrivals, slos=slos, without=())), loads)
    assignment = sizes.best()
    if len(assignment) == 1:
        return of
    spread, alone = _Shared(sizes, of.queue, assignment), _Shared(sizes, of.queue, (of.queue.service,) * of.policy.max_batch_size)
    found = spread.served(of, alone)
    beyond = found.cost.per_request / of.cost.per_request - 1
    saved = 1 - float(np.mean([at.usd / at.usd_of_one_function for at in found.loads]))
    if saved < WORTH:
        why = f"One function serves {of.named} at every size of a batch: another for some saves less than {100 * WORTH:g} %"
        return replace(of, one_function=f"{why} from {loads[0]:g} to {loads[1]:g} times these rates.")
    if beyond > question.premium:
        why = (
            f"One function serves {of.named}: letting the size of a batch choose it costs {100 * beyond:.2g} % more at these rates"
        )
        return replace(of, one_function=f"{why}; --premium says how much it may.")
    if found.missed > of.missed:
        why = f"One function serves {of.named}: letting the size of a batch choose it makes more late than is promised"
        return replace(of, one_function=f"{why}, by its cold starts.")
    return found


class _Shared:
    """An assignment of functions to batch sizes, for a queue of several applications."""

    def __init__(self, sizes: FunctionsBySize, queue: SharedQueue, assignment: Assignment) -> None:
        self._sizes, self._queue, self._assignment = sizes, queue, assignment
        n = len(assignment)
        self._left = np.full((len(queue.applications), n), np.inf)  # s, by class and size
        for j in set(assignment):
            own = np.flatnonzero(np.array(assignment) == j)
            for c, of in enumerate(queue.applications):
                left = seconds_left(sizes.question.services[j], [sizes.question.kept(of.slo)])
                self._left[c, own] = np.minimum(left[own], LONGEST_WAIT)
        self.at = cache(self._at)

    @property
    def holds(self) -> Array:
        """Seconds that 1, 2, ... wait for one more, (max_batch_size - 1,)."""
        return rounded(np.minimum(self._left[:, :-1], self._left[:, 1:]).min(axis=0))

    @property
    def slacks(self) -> tuple[float, ...]:
        """Seconds that a request of each application may wait longer."""
        if len(self._assignment) == 1:
            return (0.0,) * len(self._left)
        longer = np.minimum(self._left[:, :-1], self._left[:, 1:]) - self.holds
        return tuple(rounded(longer.min(axis=1)).tolist())

    def _at(self, factor: float) -> Mixture:
        """What batches come to when requests come ``factor`` times as fast."""
        arrivals = [of.arrivals.sped_up(factor) if factor != 1 else of.arrivals for of in self._queue.applications]
        pmf = shared_holds_law(arrivals, self.slacks, self.holds, SEARCH).batch_size_pmf[-1]
        return Mixture(self._sizes, self._assignment, pmf, self._sizes.cold_starts(pmf, self._assignment, factor))

    def served(self, of: ServedQueue, alone: _Shared) -> ServedQueue:
        """The queue with this assignment in place of its one function."""
        question, here = self._sizes.question, self.at(1.0)
        service = composed(question.services, self._assignment)
        functions = tuple(
            FunctionOfSizes(
                question.function_at(question.services[j].memory_mb),
                question.services[j],
                self._table(j),
                here.cold_by_function.get(j, NONE_COLD).batches,
            )
            for j in sorted(set(self._assignment), key=lambda j: -max(np.flatnonzero(np.array(self._assignment) == j)))
        )
        queue = replace(of.queue, policy=self._whole, slacks=self.slacks, batch_size_pmf=here.pmf, usd=here.cost.per_request)
        loads = tuple(
            QueueAtLoad(factor, self.at(factor).cost.per_request, alone.at(factor).cost.per_request)
            for factor in self._sizes.factors.tolist()
        )
        init = max(float(self._sizes.settings.starts.seconds[j]) for j in set(self._assignment))
        return replace(
            of,
            queue=queue,
            service=service,
            function=functions[0].called,
            cost=here.cost,
            cold=here.cold,
            init=init,
            bill=lambda factor: self.at(factor).cost,
            functions=functions,
            loads=loads,
        )

    @property
    def _whole(self) -> Policy:
        return self._sizes.whole_of(self.holds)

    def _table(self, j: int) -> Policy:
        return dict(self._sizes.tables_of(self._assignment, self.holds))[j]
