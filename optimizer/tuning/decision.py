"""What was decided about a plan, and why: a record that can be written down."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal, NamedTuple

from sluice.batching.documents import Plan
from sluice.optimizer.simulation.batch_means import Estimate
from sluice.optimizer.tuning.cost_curve import CostCurve
from sluice.optimizer.tuning.live_profile import Bias
from sluice.optimizer.tuning.outcome import Outcome

Kind = Literal["start", "periodic", "rate", "burstiness", "promise", "service", "way", "canary", "learning", "refused"]
URGENT: frozenset[Kind] = frozenset({"start", "promise", "service", "refused"})


class Trigger(NamedTuple):
    """What a decision is due for, when it was noticed (s), and in words."""

    kind: Kind
    at: float
    words: str

    @property
    def urgent(self) -> bool:
        """Whether it is acted on however lately the plan was changed."""
        return self.kind in URGENT


@dataclass(frozen=True)
class Considered:
    """One of the plans that were compared.

    Parameters
    ----------
    name : str
        What it is, in a few words.
    digest : str
        Of the plan.
    predicted_usd, predicted_percentile : float or None
        Per request, and of the first SLO, s, on paper; ``None`` where it was not worked out.
    usd, percentile : Estimate
        The same as rehearsed.
    late : Estimate
        Share of the requests beyond the first SLO, as rehearsed.
    next_late : float
        Of those of the next window, what is late at the most.
    keeps : bool
        Whether it surely keeps every promise.
    """

    name: str
    digest: str
    predicted_usd: float | None
    predicted_percentile: float | None
    usd: Estimate
    percentile: Estimate
    late: Estimate
    next_late: float
    keeps: bool

    def document(self) -> dict[str, Any]:
        """As JSON has it; USD per million requests."""
        return {
            "name": self.name,
            "digest": self.digest,
            "predicted": {"usd_per_million": _million(self.predicted_usd), "percentile": self.predicted_percentile},
            "rehearsed": {
                "usd_per_million": [_million(value) for value in self.usd],
                "percentile": [_number(value) for value in self.percentile],
                "late": [_number(value) for value in self.late],
                "late_in_next_window": self.next_late,
            },
            "keeps": self.keeps,
        }


@dataclass(frozen=True)
class Decision:
    """What came of looking at a model's plan.

    Parameters
    ----------
    at : float
        s.
    trigger : Trigger
    considered : tuple of Considered
        The cheapest first.
    plan : Plan or None
        What is to come into force; ``None``: what is, stays.
    chosen, in_force : str
        The names, among ``considered``, of what was chosen and of what serves; empty where there is none.
    saving_per_hour : float
        USD that the chosen plan is expected to cost less in an hour.
    change_usd : float
        What the change costs: environments that start cold, workers that load a model.
    new_environments : int
        How many start.
    why : str
        A sentence.
    alarm : str
        Empty, or what nothing can keep, and the best that can be reached.
    arrival_rate : float
        Requests/s, as rehearsed.
    bias : float
        Seconds added to every rehearsed latency.
    way : float
        Seconds that requests are on their way through the buffer, which are in every service time.
    cost : CostCurve
        What a request costs by rate, under what serves from now on; empty where nothing was rehearsed.
    expected : Considered or None
        What serves from now on, as it was rehearsed.
    given, unbatched : str
        The digests, among ``considered``, of the plan that somebody else put into force last, and of what does without batching;
        empty where there is none.
    promise : str
        What the percentiles are of: ``p95``.
    since_last : Outcome or None
        What came of the decision before.
    corrections : tuple of Bias
        What was measured less what was predicted, of the settings with the most batches.
    """

    at: float
    trigger: Trigger
    considered: tuple[Considered, ...]
    plan: Plan | None
    chosen: str
    in_force: str
    saving_per_hour: float
    change_usd: float
    new_environments: int
    why: str
    alarm: str
    arrival_rate: float
    bias: float
    way: float
    cost: CostCurve = CostCurve()
    expected: Considered | None = None
    given: str = ""
    unbatched: str = ""
    promise: str = ""
    since_last: Outcome | None = None
    corrections: tuple[Bias, ...] = ()

    def document(self) -> dict[str, Any]:
        """As the journal has it."""
        return {
            "at": datetime.fromtimestamp(self.at, UTC).isoformat(timespec="milliseconds"),
            "trigger": {"kind": self.trigger.kind, "words": self.trigger.words},
            "arrival_rate": _number(self.arrival_rate),
            "considered": [each.document() for each in self.considered],
            "in_force": self.in_force,
            "chosen": self.chosen,
            "changed": self.plan is not None,
            "digest": None if self.plan is None else self.plan.digest,
            "saving_usd_per_hour": self.saving_per_hour,
            "change_usd": self.change_usd,
            "new_environments": self.new_environments,
            "bias": self.bias,
            "way": self.way,
            "cost_by_rate": [
                [rate, *(_million(each) for each in usd)] for rate, usd in zip(self.cost.rates, self.cost.usd, strict=True)
            ],
            "expected": None if self.expected is None else self.expected.document(),
            "given": self.given,
            "unbatched": self.unbatched,
            "promise": self.promise,
            "since_last": None if self.since_last is None else self.since_last.document(),
            "measured_less_predicted": [_corrected(each) for each in self.corrections],
            "why": self.why,
            "alarm": self.alarm,
        }


def _corrected(bias: Bias) -> dict[str, Any]:
    """Seconds, and parts of the cost, each with its standard error."""
    latency = [_number(bias.latency), _number(bias.latency_error)]
    cost = [_number(bias.cost), _number(bias.cost_error)]
    return {"memory_mb": bias.memory_mb, "batch_size": bias.batch_size, "batches": bias.n, "latency": latency, "cost": cost}


def _million(usd: float | None) -> float | None:
    return None if usd is None else _number(1e6 * usd)


def _number(value: float) -> float | None:
    """``None`` for what JSON has no number."""
    return value if isfinite(value) else None
