"""What came of a fleet's placement: what was measured while it was in force, beside what it was planned for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from sluice.batching.measured import MeasuredBatch
from sluice.optimizer.arrays import Array
from sluice.optimizer.control.headroom import Choice
from sluice.optimizer.fleet.specification import Fleet


class FleetOutcomeWatch:
    """Counts what comes, and what becomes of it, from one placement to the next.

    Parameters
    ----------
    fleet : Fleet
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._accuracy = {variant.name: variant.accuracy for variant in fleet.variants}
        self._place = {name: q for q, name in enumerate(fleet.family_names)}
        self._since: float | None = None
        self._begin()

    def _begin(self) -> None:
        n = len(self._fleet.families)
        self._came, self._answered, self._late, self._accurate, self._told = (np.zeros(n) for _ in range(5))

    def restart(self, now: float, choice: Choice) -> None:
        """This placement is in force from then on (s)."""
        self._since, self._choice = now, choice
        self._begin()

    def came(self, counts: Array) -> None:
        """Requests of each family, (n_families,), or in parts, (n_parts, n_families)."""
        self._came += np.atleast_2d(counts).sum(axis=0)

    def batches(self, family: str, batches: Sequence[MeasuredBatch]) -> None:
        """Batches of a family that ended; latencies stand for all answers of theirs, of which others have some callers."""
        q = self._place[family]
        limit = self._fleet.families[q].slo.latency
        for batch in batches:
            answered = batch.size - batch.failed
            accuracy = self._accuracy.get(batch.route.rpartition(".")[0])
            if accuracy is not None:
                self._accurate[q] += answered * accuracy
                self._told[q] += answered
            if batch.latencies:
                self._answered[q] += answered
                self._late[q] += answered * sum(seconds > limit for seconds in batch.latencies) / len(batch.latencies)
            self._answered[q] += batch.failed
            self._late[q] += batch.failed

    @property
    def since(self) -> float | None:
        """When the placement in force came (s); ``None`` before the first."""
        return self._since

    def told(self, now: float, in_no_batch: Mapping[str, int]) -> dict[str, Any] | None:
        """What came of it until then (s), as JSON has it; ``None`` before the first placement, and where nobody came.

        ``in_no_batch`` are requests of each family that broke the promise in no batch: no record tells of them.
        """
        if self._since is None or now <= self._since or not (self._came.any() or self._answered.any()):
            return None
        plan, room, seconds = self._choice.plan, self._choice.headroom, now - self._since
        families = {}
        for q, family in enumerate(self._fleet.families):
            lost = in_no_batch.get(family.name, 0)
            ended = float(self._answered[q]) + lost
            families[family.name] = {
                "requests": int(self._came[q]),
                "arrival_rate": float(self._came[q] / seconds),
                "late": (float(self._late[q]) + lost) / ended if ended else None,
                "accuracy": float(self._accurate[q] / self._told[q]) if self._told[q] else None,
                "expected": {
                    "arrival_rate": float(plan.problem.demand[q] / room[q]),
                    "room_for": float(plan.problem.demand[q]),
                    "late": family.slo.error_budget,
                    "accuracy": _accuracy(self._choice, q),
                },
            }
        return {"seconds": round(seconds, 3), "families": families}


def _accuracy(choice: Choice, family: int) -> float | None:
    """Of the answers of a family, in percent, where as many come as are planned for."""
    problem = choice.plan.problem
    flows = np.where(problem.family == family, choice.plan.flows.sum(axis=0), 0.0)
    return float(flows @ problem.accuracy / flows.sum()) if flows.sum() > 0 else None
