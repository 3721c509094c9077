"""Plans that keep environments warm, where cold starts alone break what a plan promises (docs/control.md).

After a lull longer than a platform keeps what nobody uses, a burst starts environments, and who waits for one is late: of a p99
that may be all that is allowed. As many pings at once as batches were under way at the most keep so many (``WarmEnvironments``),
which costs about a hundredth of what is provisioned. So plans that do not surely keep the promise are run again with environments
that are kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import structs

from sluice.batching.documents import MAX_STARTED, Plan, WarmEnvironments
from sluice.optimizer.recommend.beforehand import at_once
from sluice.optimizer.recommend.kept_warm import how_kept, ping_interval
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.tuning.canary import single_route
from sluice.optimizer.tuning.trials import Trials, Tried

MOST = 3  # plans that are run with environments kept


def kept_warm(of: Trials, tried: Sequence[Tried]) -> list[Tried]:
    """The cheapest of those that do not surely keep every promise, and cost less than what does, with environments kept.

    Of one function that serves alone, whose cold starts were measured, where a ping comes before it is given up.
    """
    sure = min((one.price for one in tried if one.keeps), default=np.inf)
    unsure = sorted((one for one in tried if one.price < sure and not one.keeps), key=lambda one: one.price)
    found: list[Tried] = []
    for one in unsure:
        plan = None if len(found) == MOST else _with_kept(of, one.proposal.plan)
        if plan is None:
            continue
        assert plan.warm
        name = f"{one.proposal.name}, {how_kept(plan.warm)}"
        warmed = of.tried(replace(one.proposal, name=name, plan=plan))
        found += [] if warmed is None else [warmed]
    return found


def _with_kept(of: Trials, plan: Plan) -> Plan | None:
    """The plan with as many environments kept as batches are under way at once; ``None`` where none need be, or none can be."""
    route = single_route(plan)
    alone = not route.warm and not route.beside and route.policy.servers is None and "://" not in route.function
    deployment = of.deployment(plan) if alone else None
    platform = None if deployment is None else deployment.environments
    if deployment is None or platform is None or not platform.init_duration:
        return None
    every = ping_interval(platform.keep_alive, platform.init_duration)
    if every is None:
        return None
    warm = simulate_deployment(replace(deployment, environments=None), of.times, np.random.default_rng(0))
    number = min(at_once(warm, 0.0), MAX_STARTED)
    return structs.replace(plan, warm=WarmEnvironments(pinged_every=every, pinged=number), digest="")
