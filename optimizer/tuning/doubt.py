"""Memory sizes that nobody measured, where the profile was found to be wrong (docs/live-control.md).

A size that the profile has dearer than it is would never serve, and so never be measured. Of the sizes that were measured let z be
the logarithms of what they take over what the profile says. Of another their mean is expected (docs/model.md, 10.7), give or take

    d = |z| of one that was measured, whose error may be its own or that of all; of several the standard error of one more

(``LiveProfile.wrong_by``, 0 unless one is surely off by more than the sizes of any profile are). With ``CHANCE``, one in six, it
takes exp(-d) times what is expected, or less. So a trial saves, in the mean, at least that chance of what its table that waits to
the last moment would save at such times, where this surely keeps every promise; in as long as the plan in force has served, that
must be more than the trial costs. It gets so few requests that they use up half of what every promise allows, were all of them
late, and each of them alone, as nothing is quicker. ``FEWEST`` batches decide about it, and those that come in a ``pause`` until
somebody does: these are what it costs, at exp(d) times what is expected, and the environments that start for them, which are one
or their share of those that start for all. None of the same size begins within the ``horizon``, nor while it is known what it
takes, which a change of the service times ends.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import exp
from typing import NamedTuple

from sluice.batching.documents import Plan
from sluice.optimizer.tuning.canary import trying
from sluice.optimizer.tuning.candidates import to_last_moment, unbatched
from sluice.optimizer.tuning.choice import ROOM, SURE_OF_COST
from sluice.optimizer.tuning.live_profile import FEWEST, ONE_ERROR
from sluice.optimizer.tuning.stretched import stretched
from sluice.optimizer.tuning.trials import Tried

CHANCE = 1 - ONE_ERROR  # that a size is off by a standard error, or more, to the better


class Doubted(NamedTuple):
    """A memory size (MB) that is worth a trial, the plan that tries it, and what it saves with ``CHANCE`` (USD per request)."""

    memory_mb: int
    plan: Plan
    saving: float


def doubted(serving: Tried, base: Plan, wrong_by: float, memory_sizes: Iterable[int], requests: float) -> Doubted | None:
    """Of these memory sizes that is worth a trial for the next ``requests`` which may save most; ``None`` where none is.

    ``base`` is the plan in force, which ``serving`` rehearsed, and ``wrong_by`` is d above.
    """
    if wrong_by <= 0 or serving.most_used > ROOM or not serving.keeps:
        return None
    of, found = serving.of, None
    settings, share = of.settings, min(of.settings.canary, *(ROOM * slo.error_budget for slo in of.setup.slos))
    n = FEWEST + share * of.rate * settings.pause
    hoped, feared = (of.supposing(stretched(of.profile, exp(off))) for off in (-wrong_by, wrong_by))
    alone = {proposal.plan.memory_mb: proposal for proposal in unbatched(of.setup)}
    for memory_mb in memory_sizes:
        waiting = to_last_moment(of.setup, hoped.profile, memory_mb)
        best, trial = None if waiting is None else hoped.tried(waiting), feared.tried(alone[memory_mb])
        if best is None or trial is None or not best.keeps:
            continue
        saving = best.runs[0].saving(serving.runs[0], SURE_OF_COST)
        costs = n * trial.usd + trial.usd_of_change * min(1.0, max(share, 1 / max(trial.new_environments, 1.0)))
        if CHANCE * saving.low * requests > costs and (found is None or saving.value > found.saving):
            found = Doubted(memory_mb, trying(base, alone[memory_mb].plan, share), saving.value)
    return found
