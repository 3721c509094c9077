"""What a recommendation says: the best setting of a function, the best pool of workers, and what they are to be compared with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from sluice.batching import policy as policies
from sluice.batching.documents import ArrivalDocument, Plan, PolicyDocument, Prediction, ServiceProfile, Slo, percentile_name
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.function.latency import LatencyPrediction
from sluice.optimizer.recommend.search import ROUNDING, Promise
from sluice.optimizer.recommend.workers import WorkerSetting

PERCENTILES = (50.0, 90.0, 95.0, 99.0)


@dataclass(frozen=True, eq=False)
class Setting:
    """One point of the search with its prediction; ``batch_size`` 1 is no batching.

    ``table`` waits to the last moment (``last_moment``), its longest hold being ``timeout``; without it, it is size-or-timeout.
    """

    memory_mb: int
    batch_size: int
    timeout: float
    latency: LatencyPrediction
    cost: BatchCost
    table: policies.Policy | None = None

    @property
    def mean_batch_size(self) -> float:
        """Mean size of a batch."""
        return self.latency.mean_batch_size

    def keeps(self, promises: Sequence[Promise]) -> bool:
        """Whether it keeps every promise."""
        return all(self.latency.probability_within(p.latency) >= p.quantile - 2 * ROUNDING for p in promises)

    def policy(self) -> policies.Policy:
        """The table that carries it out."""
        if self.table is not None:
            return self.table
        if self.batch_size == 1:
            return policies.no_batching()
        return policies.size_or_timeout(self.batch_size, self.timeout)

    def prediction(self, percentiles: Sequence[float] = PERCENTILES) -> Prediction:
        """Latency percentiles and cost as a plan carries them."""
        latency = {percentile_name(percentile): self.latency.percentile(percentile) for percentile in percentiles}
        return Prediction(latency, self.cost.per_request, self.mean_batch_size)


@dataclass(frozen=True)
class FrontierPoint:
    """The cheapest setting found whose latency percentile is at most ``latency`` (s); USD per request.

    ``kind`` is its policy's; of ``deadline`` the ``timeout`` is the longest hold.
    """

    latency: float
    cost_per_request: float
    memory_mb: int
    batch_size: int
    timeout: float
    kind: str = "size_or_timeout"


@dataclass(frozen=True)
class Sensitivity:
    """The recommended setting when requests come ``factor`` times as fast; percentiles (s) of the SLOs, USD per request."""

    factor: float
    arrival_rate: float
    latency: dict[str, float]
    mean_batch_size: float
    cost_per_request: float
    keeps_slos: bool


@dataclass(frozen=True, eq=False)
class Recommendation:
    """The answer, beside what it is to be compared with.

    ``best`` is the best setting of the function; where none keeps SLOs and budget ``feasible`` is false and it is the quickest.
    ``workers`` are the pools that keep them, cheapest first, ``refused_workers`` says why others do not; ``winner`` is what costs
    least in all of ``best`` and ``workers``, or the quickest of them where that is the ``objective``. ``no_batching`` is that at
    its own cheapest memory size that keeps the SLOs, or the quickest one where none does, then ``no_batching_keeps_slo`` is
    false; ``runners_up`` are the best of other kinds, memory sizes and batch sizes; ``break_even_arrival_rate`` (requests/s)
    is where the buffer's fixed cost is earned, ``None`` where it never is; ``gap`` is the part of the cost by which a timeout
    between those visited might be cheaper, ``None`` where timeouts were given; ``at_longest_timeout`` says that the bound on the
    timeout binds.
    """

    best: Setting
    slos: tuple[Slo, ...]
    no_batching: Setting
    no_batching_keeps_slo: bool
    runners_up: tuple[Setting, ...]
    frontier: tuple[FrontierPoint, ...]
    sensitivity: tuple[Sensitivity, ...]
    break_even_arrival_rate: float | None
    gap: float | None
    at_longest_timeout: bool
    n_settings: int
    feasible: bool = True
    workers: tuple[WorkerSetting, ...] = ()
    refused_workers: Mapping[str, str] = field(default_factory=dict)
    objective: str = "cost"

    @property
    def winner(self) -> Setting | WorkerSetting:
        """The function's best setting or a pool of workers: what costs least with all that is beside it, or what is quickest."""
        candidates: list[Setting | WorkerSetting] = [*([self.best] if self.feasible else []), *self.workers]
        rate = self.workers[0].arrival_rate if self.workers else 1.0
        return min(candidates or [self.best], key=lambda candidate: self._goal(candidate, rate))

    def _goal(self, candidate: Setting | WorkerSetting, arrival_rate: float) -> float:
        """What ``objective`` minimises: USD per request in all, or the first SLO's percentile (s); for a pool its upper end."""
        if self.objective == "cost":
            return candidate.cost.in_all(arrival_rate)
        if isinstance(candidate, WorkerSetting):
            return candidate.latency[self.slo.name].high
        return candidate.latency.percentile(self.slo.percentile)

    @property
    def slo(self) -> Slo:
        """The first SLO asked for."""
        return self.slos[0]

    def plan(
        self, profile: ServiceProfile, model: str, arrivals: ArrivalDocument | None = None, made_at: datetime | None = None
    ) -> Plan:
        """The plan for the buffer: what ``winner`` says; ``{memory_mb}`` in the profile's function name is filled in."""
        percentiles = sorted({*PERCENTILES, *(slo.percentile for slo in self.slos)})
        winner = self.winner
        if isinstance(winner, WorkerSetting):
            function, policy, memory_mb = winner.function, winner.policy, None
            latency = {name: estimate.value for name, estimate in winner.latency.items()}
            predicted = Prediction(latency, winner.cost_per_request, winner.mean_batch_size)
        else:
            function = profile.function.replace("{memory_mb}", str(winner.memory_mb))
            policy, memory_mb, predicted = winner.policy(), winner.memory_mb, winner.prediction(percentiles)
        return Plan(
            model=model,
            function=function,
            policy=PolicyDocument.of(policy),
            slo=self.slo,
            other_slos=list(self.slos[1:]),
            memory_mb=memory_mb,
            predicted=predicted,
            arrivals=arrivals,
            made_at=(made_at or datetime.now(UTC)).isoformat(timespec="seconds"),
        )
