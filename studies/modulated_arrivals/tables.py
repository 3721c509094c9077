"""The policies of a setting with their exact costs."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from sluice.batching import policy as policies
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.smdp import SmdpSolution, solve
from sluice.optimizer.smdp.modulated import evaluate_modulated, solve_modulated
from sluice.optimizer.smdp.modulated_queue import ModulatedQueue
from sluice.optimizer.smdp.policy_iteration import greedy
from sluice.optimizer.smdp.solution import Performance

from .settings import Setting, server


class Tables:
    """The policies of a setting with their exact costs."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.problem = server(setting.arrivals, setting.energy, setting.max_batch_size)
        self._queue = ModulatedQueue(self.problem)

    @cached_property
    def seen(self) -> SmdpSolution:
        """One table per phase."""
        return solve_modulated(self.problem, queue=self._queue)

    @cached_property
    def single(self) -> dict[str, Array]:
        """Tables that do not look at the phase: Poisson at the mean rate, the best control limit, greedy."""
        setting = self._setting
        poisson = solve(server(self.problem.arrival_rate, setting.energy, setting.max_batch_size)).actions[0]
        largest = setting.max_batch_size
        limits = [np.array(policies.control_limit(limit, largest).take) for limit in range(1, largest + 1)]
        return {"Poisson": poisson, "control limit": min(limits, key=self.cost), "greedy": greedy(self.problem)}

    def performance(self, table: Array) -> Performance:
        """What a table comes to, exactly."""
        return evaluate_modulated(self.problem, table, self._queue)

    def cost(self, table: Array) -> float:
        """The weighted cost of a table, exactly."""
        performance = self.performance(table)
        return self.problem.cost(performance.mean_latency, performance.power)

    @cached_property
    def by_phase(self) -> list[Policy]:
        """One policy per phase."""
        return [self.seen.policy(phase) for phase in range(self.problem.arrivals.n_phases)]
