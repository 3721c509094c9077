"""A controller whose tuner changes the plan at every look, to be killed in the middle of a change, or of a decision.

``python -m tests.controller.flapping URL NAMESPACE NAME MODEL FUNCTION``
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from sluice.batching import policy as constructors
from sluice.batching.documents import Plan, PolicyDocument, Slo
from sluice.buffer_service.redis_plans import RedisPlans
from sluice.controller.deciding import DecidingProcess
from sluice.controller.journal import Journal
from sluice.controller.leadership import lead
from sluice.controller.model_process import ModelProcess
from sluice.optimizer.tuning.decision import Decision, Trigger
from tests.controller.deaf_tuner import DeafTuner

LEASE = 1.0


def plans_of(model: str, function: str) -> list[Plan]:
    """Between which it changes."""
    tables = [constructors.no_batching(), *(constructors.size_or_timeout(size, 0.01) for size in (2, 3))]
    return [Plan(model=model, function=function, policy=PolicyDocument.of(table), slo=Slo(0.2)) for table in tables]


class Flapping(DeafTuner):
    """Decides for the next plan, always."""

    def __init__(self, plans: list[Plan]) -> None:
        self._plans = plans
        self._now = 0

    def in_force(self, plan: Plan, since: float) -> None:
        self._now = [each.digest for each in self._plans].index(plan.digest)

    def due(self, now: float) -> Trigger:
        return Trigger("periodic", now, "always")

    def decide(self, now: float, trigger: Trigger) -> Decision:
        chosen = self._plans[(self._now + 1) % len(self._plans)]
        return Decision(now, trigger, (), chosen, "", "", 0.0, 0.0, 0, "another", "", 0.0, 0.0, 0.0)


async def control(url: str, namespace: str, name: str, model: str, function: str) -> None:
    """Until killed."""
    plans, journal = RedisPlans(url, namespace), Journal(None, None)
    tuner = Flapping(plans_of(model, function))

    def work() -> Any:
        return ModelProcess(lambda _: tuner, plans, name, DecidingProcess(), journal, url, namespace, look=0.01).run()

    await lead(plans, name, work, LEASE)


if __name__ == "__main__":
    from tests.controller import flapping  # what decides, in another process, finds the tuner there

    asyncio.run(flapping.control(*sys.argv[1:]))
