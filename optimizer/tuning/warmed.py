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

from sluice.batching.documents import Plan, WarmEnvironments
from sluice.optimizer.recommend.beforehand import needed_at_once
from sluice.optimizer.recommend.kept_warm import how_kept, ping_interval
from sluice.optimizer.tuning.canary import single_route
from sluice.optimizer.tuning.deployments import can_be_started, usd_of_pings
from sluice.optimizer.tuning.proposal import Proposal
from sluice.optimizer.tuning.trials import Trials, Tried

MOST = 3  # plans that are run with environments kept


def kept_warm(of: Trials, tried: Sequence[Tried]) -> list[Tried]:
    """The cheapest of those that do not surely keep every promise, and cost less than what does, with environments kept."""
    sure = min((one.price for one in tried if one.keeps), default=np.inf)
    known = {one.proposal.plan.digest for one in tried}
    found: list[Tried] = []
    for one in sorted((one for one in tried if one.price < sure and not one.keeps), key=lambda one: one.price):
        kept = _with_kept(of, one.proposal)
        warmed = None if kept is None or kept.plan.digest in known else of.tried(kept)
        if warmed is not None:
            found.append(warmed)
        if len(found) == MOST:
            break
    return found


def prepared(of: Trials, best: Tried) -> Proposal:
    """What is to come, with environments for as many batches as were under way at once.

    They are kept where that costs no more than the premium, as nobody knows when the next burst comes; and else are started where
    a function does not serve yet.
    """
    proposal = replace(best.proposal, plan=structs.replace(best.plan(), started=UNSET))
    route, kept = single_route(proposal.plan), _with_kept(of, proposal)
    if kept is not None and usd_of_pings(single_route(kept.plan), of.setup) <= of.settings.premium * best.usd * of.rate:
        return kept
    if route.warm or not can_be_started(route, of.setup) or of.warm.issuperset(route.functions):
        return proposal
    number = _at_once(of, proposal.plan) if kept is None else single_route(kept.plan).there_first
    return replace(proposal, plan=structs.replace(proposal.plan, started=number))


def _with_kept(of: Trials, proposal: Proposal) -> Proposal | None:
    """With as many environments kept as batches are under way at once; ``None`` where none can be kept, or need be.

    Of functions whose cold starts were measured, where a ping comes before an environment is given up.
    """
    plan = proposal.plan
    route = single_route(plan)
    if route.warm or not can_be_started(route, of.setup):
        return None
    init = of.init(plan)
    every = ping_interval(of.setup.environments.keep_alive, init) if init else None
    if every is None:
        return None
    warm = WarmEnvironments(pinged_every=every, pinged=_at_once(of, plan))
    kept = structs.replace(plan, warm=warm, started=UNSET, digest="")
    return replace(proposal, name=f"{proposal.name}, {how_kept(warm)}", plan=kept)


def _at_once(of: Trials, plan: Plan) -> int:
    return needed_at_once(of.deployment(plan), of.times, of.setup.environments.concurrency)
