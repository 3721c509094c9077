"""What every solver of the batching problem returns (docs/model.md, section 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from sluice.batching import policy as policies
from sluice.batching.errors import NotConverged
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.smdp.problem import SmdpProblem

Actions = NDArray[np.int64]
SecondsLeft = Callable[[], float]
"""How much longer a search may take, s; asked between its steps, of which one is always made."""


def endless() -> float:
    """There is no end."""
    return inf


@dataclass(frozen=True, eq=False)
class Performance:
    """What a policy comes to in the long run.

    Parameters
    ----------
    mean_latency : float
        Mean time from arrival to answer, s.
    power : float
        Energy per second, W.
    batch_rates : array, shape (max_batch_size,)
        Batches of each size per second.
    """

    mean_latency: float
    power: float
    batch_rates: Array

    @property
    def batch_rate(self) -> float:
        """Batches per second."""
        return float(self.batch_rates.sum())

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return float(self.batch_rates @ np.arange(1, len(self.batch_rates) + 1)) / self.batch_rate


@dataclass(frozen=True, eq=False)
class SmdpSolution:
    """A policy table, what it costs, and how it was found.

    Parameters
    ----------
    problem : SmdpProblem
    method : str
    actions : array of int, shape (n_phases, n_states)
        How many leave with ``s`` waiting in each phase of the arrivals, 0: wait. The last column speaks for every longer queue.
    gain : float
        The weighted cost (4.2).
    bias : array, shape (n_phases, n_states)
        Expected cost of starting there rather than with no request in the first phase.
    performance : Performance
    iterations : int
        Of the method.
    converged : bool
        Whether the method ended by its own stopping rule.
    residual : float
        Of policy iteration the part of the gain that all improvements not made are worth; of value iteration the span at which it
        stopped; of linear programming by how much the prices miss the optimality equation, over the cost of a service.
    overflow_cost : float
        Part of the gain that comes from states beyond the last, the paper's Delta; 0 where the tail is exact.
    bound : float or None
        Where policy iteration was stopped before its end, what no table costs less than: the gain less the most that an action
        saves per second, over the rows looked at.
    """

    problem: SmdpProblem
    method: str
    actions: Actions
    gain: float
    bias: Array
    performance: Performance
    iterations: int
    converged: bool
    residual: float
    overflow_cost: float = 0.0
    bound: float | None = None

    @property
    def mean_latency(self) -> float:
        """Mean time from arrival to answer, s."""
        return self.performance.mean_latency

    @property
    def power(self) -> float:
        """Energy per second, W."""
        return self.performance.power

    @property
    def energy_efficiency(self) -> float:
        """Requests per J."""
        return self.problem.energy_efficiency(self.power)

    def control_limit(self, phase: int = 0) -> int | None:
        """The control limit of the table, if it has one: below it the server waits, from it on it takes all it can."""
        table = self.actions[phase]
        limit = int(np.flatnonzero(table)[0])
        states = np.arange(len(table))
        greedy = np.where(states < limit, 0, np.minimum(states, self.problem.max_batch_size))
        return limit if (table == greedy).all() else None

    def policy(self, phase: int = 0, servers: int | None = 1) -> Policy:
        """The table as a policy; rows that repeat the one before the end are left out.

        Raises
        ------
        NotConverged
            A table that waits for ever in a long queue, as a cut queue may lead to.
        """
        table = self.actions[phase].tolist()
        if table[-1] == 0:
            raise NotConverged(
                f"{self.method}: with {len(table) - 1} waiting or more its table waits for ever", table, self.residual
            )
        while len(table) > 2 and table[-2] == table[-1]:
            table.pop()
        return policies.smdp(table, servers)


def long_enough(tables: Actions, problem: SmdpProblem) -> Actions:
    """A table, or one for each phase, of actions by number waiting, as long as twice the largest batch at least."""
    missing = 2 * problem.max_batch_size + 1 - tables.shape[-1]
    return np.append(tables, np.repeat(tables[..., -1:], missing, axis=-1), axis=-1) if missing > 0 else tables.copy()
