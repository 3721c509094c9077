"""Environments that a plan of control has before requests ask for them: those that it keeps, and those it starts (docs/control.md).

After a lull longer than a platform keeps what nobody uses, a burst starts environments, and who waits for one is late: of a p99
that may be all that is allowed. As many pings at once as batches were under way at the most keep so many (``WarmEnvironments``),
which costs about a hundredth of what is provisioned. So plans that do not surely keep the promise are run again with environments
that are kept. Another plan has as many kept where that costs next to nothing, and else started, before it comes into force, where a
function does not serve yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from msgspec import UNSET, structs

from sluice.batching.documents import MAX_STARTED, Plan, WarmEnvironments
from sluice.optimizer.recommend.beforehand import at_once
from sluice.optimizer.recommend.kept_warm import how_kept, ping_interval
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.tuning.canary import single_route
from sluice.optimizer.tuning.deployments import can_be_started, usd_of_pings
from sluice.optimizer.tuning.proposal import Proposal
from sluice.optimizer.tuning.trials import Trials, Tried

MOST = 3  # plans that are run with environments kept


def kept_warm(of: Trials, tried: Sequence[Tried]) -> list[Tried]:
    """The cheapest of those that do not surely keep every promise, and cost less than what does, with environments kept."""
    sure = min((one.price for one in tried if one.keeps), default=np.inf)
    unsure = sorted((one for one in tried if one.price < sure and not one.keeps), key=lambda one: one.price)
    found: list[Tried] = []
    for one in unsure:
        warm = None if len(found) == MOST else _may_keep(of, one.proposal.plan)
        if warm is not None:
            plan = structs.replace(one.proposal.plan, warm=warm, started=UNSET, digest="")
            known = any(plan.digest == other.proposal.plan.digest for other in tried)
            warmed = None if known else of.tried(replace(one.proposal, name=f"{one.proposal.name}, {how_kept(warm)}", plan=plan))
            found += [] if warmed is None else [warmed]
    return found


def prepared(of: Trials, best: Tried) -> Proposal:
    """What is to come, with environments for as many batches as were under way at once.

    They are kept where that costs no more than the premium, as nobody knows when the next burst comes; and else are started where
    a function does not serve yet.
    """
    plan = structs.replace(best.plan(), started=UNSET)
    route = single_route(plan)
    name, warm = best.proposal.name, _may_keep(of, plan)
    if warm is not None and usd_of_pings(route.functions, warm, of.setup) <= of.settings.premium * best.usd * of.rate:
        name, plan = f"{name}, {how_kept(warm)}", structs.replace(plan, warm=warm, digest="")
    elif not route.warm and can_be_started(route, of.setup) and not of.warm.issuperset(route.functions):
        plan = structs.replace(plan, started=_at_once(of, plan))
    return replace(best.proposal, name=name, plan=plan)


def _may_keep(of: Trials, plan: Plan) -> WarmEnvironments | None:
    """As many environments of its functions as batches are under way at once; ``None`` where none can be kept, or need be.

    Of functions whose cold starts were measured, where a ping comes before an environment is given up.
    """
    route = single_route(plan)
    if route.warm or not can_be_started(route, of.setup):
        return None
    init = of.init(plan)
    every = ping_interval(of.setup.environments.keep_alive, init) if init else None
    return None if every is None else WarmEnvironments(pinged_every=every, pinged=_at_once(of, plan))


def _at_once(of: Trials, plan: Plan) -> int:
    deployment = of.deployment(plan)
    there = replace(deployment, environments=None, beside=[replace(side, environments=None) for side in deployment.beside])
    limit = of.setup.environments.concurrency or MAX_STARTED
    return min(at_once(simulate_deployment(there, of.times, np.random.default_rng(0)), 0.0), limit, MAX_STARTED)
