"""A tuner for the process that decides, by what is to happen there."""

from __future__ import annotations

import os
import signal
import warnings
from dataclasses import dataclass, field
from typing import Any

from sluice.batching.documents import Plan
from sluice.optimizer.compiled import compiled
from sluice.optimizer.tuning.decision import Decision, Trigger
from tests.controller.deaf_tuner import DeafTuner


@dataclass
class DecidingTuner(DeafTuner):
    """Wants another plan once it is told of an arrival; each decision ``decides``, ``dies``, ``hangs``, ``warns`` or ``fails``."""

    chosen: Plan | None = None
    fates: tuple[str, ...] = ("decides",)
    decided: int = 0
    plans: list[str] = field(default_factory=list)
    pid: int = 0
    niceness: int = 0
    may_compile: bool = False
    blocked: frozenset[int] = frozenset()

    def in_force(self, plan: Plan, since: float) -> None:
        self.plans.append(plan.digest)

    def due(self, now: float) -> Trigger | None:
        in_force = self.chosen is None or (self.plans and self.plans[-1] == self.chosen.digest)
        return None if in_force else Trigger("rate", now, "the rate is another")

    def decide(self, now: float, trigger: Trigger) -> Decision:
        fate = self.fates[min(self.decided, len(self.fates) - 1)]
        self.decided, self.pid, self.niceness = self.decided + 1, os.getpid(), os.getpriority(os.PRIO_PROCESS, 0)
        self.blocked = frozenset(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        loop: Any = compiled(len)
        self.may_compile = not loop.without_numba
        print("what a decision prints is no answer")
        if fate == "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        if fate == "warns":
            warnings.warn("two\nlines", stacklevel=1)
        if fate == "hangs":
            signal.pause()
        if fate == "fails":
            raise ZeroDivisionError("a defect")
        return Decision(now, trigger, (), self.chosen, "", "", 0.0, 0.0, 0, "it is cheaper", "", 1.0, 0.0, 0.0)
