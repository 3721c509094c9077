"""A queue that applications share before workers: what it costs, and what each of them met in a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.recommend.application import Application, named
from sluice.optimizer.recommend.demand import LEVELS
from sluice.optimizer.recommend.overflow_setting import OverflowSetting
from sluice.optimizer.recommend.worker_setting import WorkerSetting
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function


@dataclass(frozen=True, eq=False)
class WorkerQueue:
    """A queue that some applications share, with the workers that serve it.

    Parameters
    ----------
    applications : tuple of Application
        The strictest promise first.
    setting : WorkerSetting or OverflowSetting
        As simulated for them, with or without a function beside the workers; it keeps the promise of each.
    recorded_rate : float or None
        Requests/s of those that were recorded, where ``cost`` is that of a run over these.
    """

    applications: tuple[Application, ...]
    setting: WorkerSetting | OverflowSetting
    recorded_rate: float | None = None

    warm = None
    missed = 0
    method = "simulated"

    @property
    def usd(self) -> float:
        """Per request."""
        return self.setting.cost.per_request

    @property
    def slacks(self) -> tuple[float, ...]:
        """Seconds that a request of each application may wait longer than the tables say."""
        return self.setting.slacks

    @property
    def cold_starts(self) -> float:
        """Share of the batches of a function beside the workers whose environment had to start."""
        return self.setting.cold_starts if isinstance(self.setting, OverflowSetting) else 0.0

    @property
    def init(self) -> float:
        """Seconds that this takes."""
        environments = self.setting.overflow.environments if isinstance(self.setting, OverflowSetting) else None
        return 0.0 if environments is None else environments.init_duration

    @property
    def cost(self) -> BatchCost:
        """Of a request."""
        return self.setting.cost

    @property
    def arrival_rate(self) -> float:
        """Requests/s of all of them."""
        return self.setting.arrival_rate if self.recorded_rate is None else self.recorded_rate

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return self.setting.mean_batch_size

    @property
    def policy(self) -> Policy:
        """Its servers are the workers."""
        return self.setting.policy

    @property
    def function(self) -> str:
        """Where the workers are reached, as a plan names it."""
        return self.setting.function

    @property
    def tables(self) -> list[tuple[str, Policy]]:
        """What serves with its table, as a plan has it: the workers, and the function beside them."""
        return [(self.function, self.policy), *self.setting.beside]

    @property
    def memory_mb(self) -> int | None:
        """Of the function beside the workers; of these it is nobody's to choose."""
        return self.setting.memory_mb

    @property
    def memory_sizes(self) -> list[int]:
        """Of functions, MB."""
        return [] if self.memory_mb is None else [self.memory_mb]

    @property
    def runs_on(self) -> str:
        """How many of what."""
        return self.setting.runs_on

    @property
    def leaves(self) -> str:
        """With how many requests, or after how long, a batch leaves."""
        return self.setting.leaves

    @property
    def named(self) -> str:
        """The applications, in words."""
        return named(self.applications)

    def of(self, applications: Mapping[str, Application]) -> WorkerQueue:
        """The same queue of the applications that have these names."""
        return replace(self, applications=tuple(applications[of.name] for of in self.applications))

    def bill(self, factor: float) -> BatchCost:
        """What a request costs when requests come so many times as fast: the same, as their number goes with the rate."""
        return self.cost

    def deployment(self, function: Function) -> Deployment:
        """What serves behind its tables."""
        return self.setting.deployment(function)

    def billed(self, cost: BatchCost, rate: float) -> WorkerQueue:
        """The same with its cost on arrivals that were recorded, of which so many came per second."""
        return replace(self, setting=self.setting.billed(cost), recorded_rate=rate)

    def reached(self, k: int) -> Estimate:
        """The percentile of an application's promise, s."""
        return self.setting.by_class[k].reached

    def exact(self, k: int) -> bool:
        """Not so: it was simulated."""
        return False

    def keeps(self, k: int) -> bool:
        """Whether the promise of an application is kept: such were looked for."""
        return True

    def curve(self, k: int) -> tuple[Array, Array]:
        """Latencies (s), and the share of an application's requests that are answered within each."""
        return self.setting.by_class[k].latency, LEVELS / 100
