"""Cold starts of the functions of a question: how many of their batches, how long one takes, what it costs (docs/model.md, 3.2)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cold_starts import ColdStarts, Invocations, Share, Shares
from sluice.optimizer.billing.cost import predict_cost
from sluice.optimizer.recommend.question import Question


class FunctionStarts:
    """Of the functions at the memory sizes of a question; where the bill is told a share, that is everybody's.

    Attributes
    ----------
    seconds : array, shape (n_services,)
        Of INIT; 0 where it was not measured.
    usd : array, shape (n_services,)
        Of a cold start.
    """

    def __init__(self, question: Question) -> None:
        self.question, self.told = question, question.billing.cold_start_probability
        environments = [question.environments_at(service.memory_mb) for service in question.services]
        self.seconds = np.array([0.0 if of is None else of.init_duration for of in environments])
        surely = replace(question.billing, cold_start_probability=1.0)
        costs = [
            predict_cost(np.ones(1), service, surely, init_duration=seconds)
            for service, seconds in zip(question.services, self.seconds.tolist(), strict=True)
        ]
        self.usd = np.array([cost.init + cost.restore for cost in costs])
        self.of: Callable[[ArrivalProcess], ColdStarts] = cache(
            lambda arrivals: ColdStarts(arrivals, question.environments.keep_alive, question.cold_understated)
        )

    @property
    def matter(self) -> bool:
        """Whether they cost anything, or make anybody late, as far as is known."""
        return self.told != 0 and bool((self.usd + self.seconds).any())

    def share(self, j: int, batch_size_pmf: Array, holds: Array, arrivals: ArrivalProcess | None = None) -> Share:
        """Which of the ``j``-th function start cold; arguments as ``ColdStarts.of_batches`` has them."""
        if self.told is not None:
            return Share(self.told, self.told)
        starts, busy = self.of(arrivals or self.question.arrivals), self.question.services[j].mean_response
        return starts.of_table(batch_size_pmf, holds, busy[: len(batch_size_pmf)], float(self.seconds[j]))

    def by_largest(self, batch_size_pmf: Array, holds: Array, functions: Sequence[int] | None = None) -> Shares:
        """The same of some functions, by default all, by largest batch, of a square of batch sizes: (n_functions, max_batch_size).

        It is 1 beyond the largest batch of a function.
        """
        among = range(len(self.seconds)) if functions is None else functions
        found = np.full((2, len(among), len(batch_size_pmf)), 1.0 if self.told is None else self.told)
        if self.told is None:
            starts, its_own = self.of(self.question.arrivals), np.zeros(found.shape[1:], bool)
            asked = []
            for row, j in enumerate(among):
                busy = self.question.services[j].mean_response[: len(batch_size_pmf)]
                n, seconds = len(busy), float(self.seconds[j])
                its_own[row, :n] = True
                asked.append(starts.invocations(batch_size_pmf[:n, :n], holds[: n - 1], busy, seconds))
            found[:, its_own] = starts.of_invocations(Invocations.all_of(asked))
        return Shares(*found)
