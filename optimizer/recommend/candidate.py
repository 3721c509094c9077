"""What a setting of the function and workers under a table have in common: both serve the requests, at a latency and a price."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol, Self

from msgspec import UNSET, UnsetType

from sluice.batching.documents import (
    ArrivalDocument,
    Beside,
    Plan,
    PolicyDocument,
    Prediction,
    Slo,
    WarmEnvironments,
    percentile_name,
)
from sluice.batching.errors import require
from sluice.batching.policy import Policy
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.function import Function

PERCENTILES = (50.0, 90.0, 95.0, 99.0)


class Candidate(Protocol):
    """One way to serve the requests, with what is known of it.

    ``function`` is where batches are sent, as a plan names it; ``memory_mb`` is that of the function, also of one ``beside``, and
    ``None`` where it is nobody's to choose.
    """

    @property
    def name(self) -> str:
        """What serves: ``function``, or the name of the offer."""
        ...

    @property
    def function(self) -> str: ...

    @property
    def memory_mb(self) -> int | None: ...

    @property
    def policy(self) -> Policy: ...

    @property
    def beside(self) -> Sequence[tuple[str, Policy]]:
        """Functions beside it, as a plan names them, with their tables: read in order whenever those before release nothing."""
        ...

    @property
    def cost(self) -> BatchCost: ...

    @property
    def fitted(self) -> BatchCost | None:
        """What it costs by the process, where ``cost`` is that on arrivals that were recorded; else ``None``."""
        ...

    @property
    def mean_batch_size(self) -> float: ...

    @property
    def confidence(self) -> float | None:
        """Of the intervals of what was simulated; ``None`` where the latency is predicted."""
        ...

    @property
    def for_any_arrivals(self) -> bool:
        """Whether what is promised holds for any arrivals that come one by one, and not only for those of the question."""
        ...

    @property
    def rests_on_fit(self) -> bool:
        """Whether more requests may be late where the arrivals are not those of the question, but for cold starts."""
        ...

    @property
    def runs_on(self) -> str:
        """In a few words."""
        ...

    @property
    def leaves(self) -> str:
        """With how many requests, or after how long a batch leaves, in a few words."""
        ...

    @property
    def instruction(self) -> str:
        """What to do, in one sentence."""
        ...

    def percentile(self, percentile: float) -> Estimate:
        """Percentile (0-100) of the latency, s; its interval is a point where it is predicted."""
        ...

    def keeps(self, slos: Sequence[Slo]) -> bool:
        """Whether every SLO is kept, surely where it was simulated."""
        ...

    def billed(self, cost: BatchCost) -> Self:
        """The same with its cost on arrivals that were recorded."""
        ...

    def deployment(self, function: Function) -> Deployment:
        """What is to be simulated; ``function`` says how a platform runs and bills the function, where that is what serves."""
        ...


def predicted_cost(candidate: Candidate) -> BatchCost:
    """What it costs by the process, also where arrivals were recorded."""
    return candidate.cost if candidate.fitted is None else candidate.fitted


def prediction_of(candidate: Candidate, percentiles: Sequence[float] = PERCENTILES) -> Prediction:
    """Latency percentiles and cost as a plan carries them."""
    latency = {percentile_name(percentile): candidate.percentile(percentile).value for percentile in percentiles}
    return Prediction(latency, candidate.cost.per_request, candidate.mean_batch_size)


def plan_of(
    candidate: Candidate,
    slos: Sequence[Slo],
    model: str,
    arrivals: ArrivalDocument | None = None,
    made_at: datetime | None = None,
    warm: WarmEnvironments | UnsetType = UNSET,
    started: int = 0,
) -> Plan:
    """The plan that has the buffer do it; ``warm`` are environments that are kept for it, and so many ``started`` beforehand."""
    return Plan(
        model=model,
        function=candidate.function,
        policy=PolicyDocument.of(candidate.policy),
        beside=[Beside(function, PolicyDocument.of(table)) for function, table in candidate.beside],
        warm=warm,
        started=started or UNSET,
        slo=slos[0],
        other_slos=list(slos[1:]),
        memory_mb=candidate.memory_mb,
        predicted=prediction_of(candidate, shown_percentiles(slos)),
        arrivals=arrivals and arrivals.alone(),
        made_at=(made_at or datetime.now(UTC)).isoformat(timespec="seconds"),
    )


def shown_percentiles(slos: Sequence[Slo]) -> list[float]:
    """Those of the SLOs beside the usual ones, ascending."""
    return sorted({*PERCENTILES, *(slo.percentile for slo in slos)})


def several(slos: Slo | Sequence[Slo]) -> tuple[Slo, ...]:
    """One SLO or some, at least one, as a tuple."""
    promised = (slos,) if isinstance(slos, Slo) else tuple(slos)
    require(bool(promised), "slos", slos, "at least one SLO")
    return promised
