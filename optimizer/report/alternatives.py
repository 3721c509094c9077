"""The recommended setting and what it is compared with, in one form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.recommend import Answer, Candidate


@dataclass(frozen=True, eq=False)
class Alternative:
    """One way to serve the requests.

    ``runs_on`` and ``leaves`` say in a few words on what, and with how many requests or after how long a batch leaves; ``latency``
    has the percentiles (s) of the SLOs by name (``"p95"``).
    """

    name: str
    runs_on: str
    leaves: str
    latency: Mapping[str, float]
    mean_batch_size: float
    cost: BatchCost


def alternatives(answer: Answer, workers: int | None = None, runners_up: int | None = None) -> list[Alternative]:
    """The recommended one first; then function, no batching, both, workers and runners-up, as far as they are others.

    ``workers`` and ``runners_up`` bound how many of each.
    """
    winner, best = answer.winner, answer.best
    found: list[tuple[str, Candidate]] = [("recommended", winner)]
    by_function = best if winner is answer.by_function else answer.by_function
    found += [("function", by_function)] if winner is not best else []
    warm = answer.kept_warm
    found += [("kept warm", warm)] if warm is not None and warm is not winner and answer.warm_competes else []
    found += [("no batching", answer.no_batching)] if best.batch_size > 1 else []
    both = answer.overflow
    found += [("both", both)] if both is not None and both is not winner else []
    others = [setting for setting in answer.workers if setting is not winner]
    found += [(f"workers {i}", setting) for i, setting in enumerate(others[:workers], 1)]
    found += [(f"runner-up {i}", setting) for i, setting in enumerate(answer.runners_up[:runners_up], 1)]
    return [_alternative(name, candidate, answer) for name, candidate in found]


def _alternative(name: str, candidate: Candidate, answer: Answer) -> Alternative:
    latency = {slo.name: candidate.percentile(slo.percentile).value for slo in answer.slos}
    return Alternative(name, candidate.runs_on, candidate.leaves, latency, candidate.mean_batch_size, candidate.cost)
