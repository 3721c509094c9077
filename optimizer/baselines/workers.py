"""Tables of the literature in front of workers whose number stays.

A worker is one of a ``WorkerOffer``; a batch whose size the constructor chooses itself is the largest of which two fit into the SLO
one after the other (``seconds_in_time``).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace

import numpy as np

from sluice.batching import policy as policies
from sluice.batching.documents import Slo
from sluice.batching.errors import Infeasible
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.baselines.in_time import seconds_in_time
from sluice.optimizer.recommend import WorkerOffer, choose_workers
from sluice.optimizer.service.law import EmpiricalLaw
from sluice.optimizer.service.smoothing import smooth
from sluice.optimizer.simulation.deployment import Adaptation, Deployment
from sluice.optimizer.simulation.schedule import Schedule
from sluice.optimizer.smdp import SmdpProblem
from sluice.optimizer.smdp.frontier import choose_weight
from sluice.optimizer.smdp.latency_percentiles import LatencyPercentiles
from sluice.optimizer.smdp.policy_iteration import solve_by_policy_iteration

_SAVING = 1e-6  # part of the usage per request, below which there is nothing to weigh


def greedy(offer: WorkerOffer, workers: int, slo: Slo | None = None, batch_size: int | None = None) -> Deployment:
    """A free worker takes all that wait, up to ``batch_size``; or up to what the SLO allows.

    Work-conserving batching, as of a server loop without a timer. Kept: the rule; left out: nothing.
    """
    if batch_size is None:
        batch_size = offer.service.max_batch_size if slo is None else len(seconds_in_time(offer.service, slo))
    return offer.under(policies.greedy(batch_size, workers))


def static(offer: WorkerOffer, workers: int, batch_size: int) -> Deployment:
    """Every batch has exactly ``batch_size`` requests, however long they wait: the static policy of the SMDP papers (Xu et al.).

    Kept: the rule, also in that the last requests of all may wait for ever. Left out: nothing.
    """
    return offer.under(policies.static(batch_size, workers))


def smdp(offer: WorkerOffer, workers: int, arrival_rate: float, slos: Sequence[Slo]) -> Deployment:
    """The table of least usage that keeps the SLOs under Poisson arrivals of ``arrival_rate`` (requests/s).

    Xu et al., SMDP-based dynamic batching: the weight is the largest whose percentiles keep the SLOs, as in the journal version,
    section VII-B; where none does, or a larger batch saves nothing, the table of least latency. What is weighed against latency is
    what usage costs or, where only hours are paid, the busy seconds, to which a worker's power is proportional. Kept: the optimal
    table of one worker. Left out: the papers know one worker; several read the table of one that gets its share, with the number
    waiting in the common queue (docs/model.md, 4.7).

    Raises
    ------
    InvalidInput
        More arrivals than the workers serve in their largest batches; mean service times out of order by twice their error.
    """
    smoothed = smooth(offer.service)
    service = smoothed.service
    energy = offer.usage if offer.usage.any() else service.mean_response
    problem = SmdpProblem(poisson(arrival_rate / workers), EmpiricalLaw(service), energy, 1, 1.0, 1.0)
    solution = solve_by_policy_iteration(problem.weighted(1.0, 0.0))
    per_request = energy / np.arange(1, len(energy) + 1)
    if per_request.min() < (1 - _SAVING) * per_request[0]:
        with suppress(Infeasible):
            solution = choose_weight(problem, slos, LatencyPercentiles(problem)).solution
    return replace(offer.under(solution.policy(servers=workers)), note=smoothed.note)


def deadline(offer: WorkerOffer, workers: int, slo: Slo) -> Deployment:
    """Wait for one more request as long as the batch with it would be in time for the oldest.

    Proteus (Ahmad et al., ASPLOS'24, section 5). Kept: the non-work-conserving rule on profiled times. Left out: routing, as there
    is one queue here, and the placement that gives a worker no more than it can bear.
    """
    seconds = seconds_in_time(offer.service, slo).tolist()
    return offer.under(policies.deadline(slo.latency, seconds, workers))


def early_drop(offer: WorkerOffer, workers: int, slo: Slo) -> Deployment:
    """Greedy, and who could not be answered in time any more is dropped.

    Nexus (Shen et al., SOSP'19). Kept: batches of which two fit into the SLO; the head of the queue is dropped when a full batch
    started now would fail it. Left out: the window that slides over the queue to choose whom to drop, and the packing of several
    models onto a device.

    Raises
    ------
    InvalidInput
        Two batches of one request do not fit into the SLO.
    """
    seconds = offer.service.quantile(slo.quantile).tolist()
    return offer.under(policies.early_drop(slo.latency, seconds, workers))


def aimd(offer: WorkerOffer, workers: int, slo: Slo, step: int = 1, backoff: float = 0.9) -> Deployment:
    """Greedy under a limit that grows by ``step`` after a batch in time and shrinks to ``backoff`` of itself after a late one.

    Clipper (Crankshaw et al., NSDI'17, section 4.3). Kept: the additive increase and the decrease by a tenth, from a limit of 1 up
    to the largest batch of the profile. Its objective is for a batch alone; here it is half the SLO, so that who just missed a
    batch is in time with the next. Left out: a limit for each replica (here the workers share one) and the delayed batching that
    is off by default.
    """
    largest = offer.service.max_batch_size
    tables = [policies.aimd(limit, workers) for limit in range(1, largest + 1)]
    schedule = Schedule(tables, np.empty(0), np.empty(0, dtype=np.int64))
    return offer.under(schedule, adaptation=Adaptation.aimd(slo.latency / 2, largest, step, backoff))


def fixed_workers(offer: WorkerOffer, arrivals: ArrivalProcess, slos: Sequence[Slo], workers: int | None = None) -> Deployment:
    """The fewest workers that keep the SLOs under a fitted process, with the table that does it: what `sluice recommend` offers.

    Where there are so many ``workers`` these have that table.

    Raises
    ------
    Infeasible
        No number of workers does.
    """
    table = choose_workers(arrivals, offer, slos).policy
    return offer.under(table if workers is None else replace(table, servers=workers))
