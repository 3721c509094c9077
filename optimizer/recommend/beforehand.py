"""How many environments of a function are to be there before the first request (docs/model.md, 3.6).

In the long run next to no batch starts cold; of those that come first all do, until there are as many environments as batches are
under way at once. Who starts so many before that pays for the same cold starts, and nobody waits for them.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from sluice.batching.documents import MAX_STARTED
from sluice.optimizer.arrays import Array
from sluice.optimizer.recommend.candidate import Candidate
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.simulation.function import Function

SEEN = 1 << 16  # arrivals
ALONE = "function"  # what candidates are called that are one
SELDOM = 1e-3  # of the batches, that may find all of them busy


def environments_at_once(question: Question, candidate: Candidate, function: Function) -> int:
    """As many as serve all but ``SELDOM`` of the batches of a ``function``, on the latest arrivals recorded, or drawn from the fit.

    Of several functions of each. ``MAX_STARTED`` at most; 0 where workers serve, or some are kept warm, where nothing is batched,
    which needs no buffer, where no cold start was measured, or the share of these was told, and where requests have sizes.
    """
    init = question.profile.init.get(candidate.memory_mb) if candidate.memory_mb is not None else None
    tables = [(candidate.function, candidate.policy), *candidate.beside]
    workers = any("://" in name or table.servers is not None for name, table in tables)
    if init is None or not init.mean or candidate.name != ALONE or workers:
        return 0
    told = question.billing.cold_start_probability is not None
    if told or question.mix is not None or candidate.policy.max_batch_size == 1:
        return 0
    if (recorded := question.recorded) is None or recorded.sizes is not None:
        times = np.cumsum(question.arrivals.sample(SEEN, np.random.default_rng(0)))
    else:
        times = recorded.times[-SEEN:]
    return needed_at_once(candidate.deployment(function), times, question.environments.concurrency, SELDOM)


def needed_at_once(deployment: Deployment, times: Array, concurrency: int | None, seldom: float = 0.0) -> int:
    """How many environments of each function no more than this part of its batches find busy, of the one that needs the most.

    Over arrivals (s) with all there at once; no more than a buffer starts, or run at once.
    """
    there = replace(deployment, environments=None, beside=[replace(side, environments=None) for side in deployment.beside])
    run, most = simulate_deployment(there, times, np.random.default_rng(0)), 0
    for place in np.unique(run.tables):
        left = run.dispatch_times[run.tables == place]
        ends = np.sort(left + run.response_times[run.tables == place])
        under_way = np.arange(1, len(left) + 1) - np.searchsorted(ends, left, side="right")  # itself among them
        most = max(most, int(np.quantile(under_way, 1 - seldom, method="inverted_cdf")))
    return min(most, MAX_STARTED, concurrency or MAX_STARTED)
