"""The fewest workers paid by the hour that keep the SLOs (docs/model.md, section 7).

The search goes up in doubling steps until some candidate keeps the SLOs, then halves the gap. What is reported comes from a run of
its own that the search did not see, and must keep the SLOs there as well.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import floor

from sluice.batching.documents import Slo
from sluice.batching.errors import Infeasible
from sluice.batching.policy import Policy
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cost import Billing
from sluice.optimizer.recommend.candidate import several
from sluice.optimizer.recommend.demand import Demand
from sluice.optimizer.recommend.horizon import MOST_REQUESTS, UNSEEN
from sluice.optimizer.recommend.offers import WorkerOffer
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.recommend.simulated_doubt import with_doubt
from sluice.optimizer.recommend.worker_setting import WorkerSetting, simulate_demand, simulate_workers
from sluice.optimizer.recommend.worker_trials import WorkerTrials

DOUBTED = 2  # candidates of a number of workers
TWENTIETH = 20


def choose_workers(
    arrivals: ArrivalProcess,
    offer: WorkerOffer,
    slos: Slo | Sequence[Slo],
    *,
    billing: Billing | None = None,
    question: Question | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> WorkerSetting:
    """The cheapest workers that keep every SLO: the fewest, unless usage is paid as well and more workers use less.

    Of the candidates that keep the SLOs it is the cheapest, and of equals the one of least latency at the first SLO's percentile.

    Parameters
    ----------
    billing : Billing, optional
        As in ``simulate_workers``.
    question : Question, optional
        Whose arrivals these are: what their fit may be wrong by is kept free (``with_doubt``), and then the workers are the fewest
        but for a twentieth.
    confidence : float
        Of the two-sided intervals; the SLOs must hold at the upper end.
    seed : int
        The same seed gives the same answer.

    Raises
    ------
    Infeasible
        When a single request takes too long by itself, or the workers that can be had are too few; carries the best.
    InvalidInput
        No SLO; a confidence that is none.
    """
    trials = WorkerTrials(Demand(arrivals, several(slos)), offer, confidence, seed)
    best = cheapest_workers(trials, offer.max_workers, billing=billing, question=question)
    if best is None:
        raise _too_few(trials, question)
    return best


def cheapest_workers(
    trials: WorkerTrials, most: int, *, billing: Billing | None = None, question: Question | None = None
) -> WorkerSetting | None:
    """The cheapest of up to ``most`` workers that keep every SLO, ``None`` where none do; the rest is as in ``choose_workers``."""
    workers = _fewest(trials, most)
    best: WorkerSetting | None = None
    while workers is not None and workers <= most and (best is None or _least_cost(trials, workers) < best.cost.per_request):
        setting = _confirmed(trials, workers, billing, question)
        if best is not None and (setting is None or setting.cost.per_request >= best.cost.per_request):
            break
        best = setting
        workers += 1 if question is None or best is not None else 1 + workers // TWENTIETH
    return best


def _fewest(trials: WorkerTrials, most: int) -> int | None:
    """The fewest under which some candidate keeps the SLOs, of up to ``most``."""
    low = floor(trials.arrivals.arrival_rate / _most_served(trials))  # so few cannot keep up
    if low >= most:
        return None
    high, step = low + 1, 1
    while not trials.some_keeps(high):
        if high == most:
            return None
        low, high, step = high, min(high + step, most), 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if trials.some_keeps(middle) else (middle, high)
    return high


def _confirmed(trials: WorkerTrials, workers: int, billing: Billing | None, question: Question | None) -> WorkerSetting | None:
    """The cheapest candidate that keeps the SLOs, in the search, in a run of its own, and whatever the fit may be wrong by.

    The last is asked of the first ``DOUBTED`` that keep them otherwise.
    """
    doubted = 0
    for policy in _ranked(trials, workers):
        setting = _simulated(trials, policy, billing)
        if setting.keeps_slos and question is not None:
            setting, doubted = with_doubt(setting, question, partial(_under, trials, policy)), doubted + 1
        if setting.keeps_slos:
            return setting
        if doubted == DOUBTED:
            break
    return None


def _under(trials: WorkerTrials, policy: Policy, arrivals: ArrivalProcess) -> WorkerSetting:
    t = trials
    return simulate_workers(arrivals, t.offer, policy, t.slos, confidence=t.confidence, seed=t.seed)


def _ranked(trials: WorkerTrials, workers: int) -> list[Policy]:
    """The candidates that keep the SLOs, the cheapest first."""
    kept = [trial for trial in trials.tried(workers) if trial.keeps_slos]
    return [trial.policy for trial in sorted(kept, key=lambda trial: (trial.cost_per_request, trial.latency))]


def _simulated(trials: WorkerTrials, policy: Policy, billing: Billing | None = None) -> WorkerSetting:
    t = trials
    setting = simulate_demand(t.demand, t.offer, policy, t.slacks, billing=billing, confidence=t.confidence, seed=t.seed)
    t.simulated += setting.n_requests
    return setting


def _most_served(trials: WorkerTrials) -> float:
    """Requests/s that one worker serves at most, in batches that can be in time."""
    return float(trials.offer.throughput[trials.max_batch_size - 1])


def _least_cost(trials: WorkerTrials, workers: int) -> float:
    """USD per request that this many workers cost at least, whatever the batches."""
    offer, largest = trials.offer, trials.max_batch_size
    usage = min(usd / size for size, usd in enumerate(offer.usage[:largest].tolist(), 1))
    return offer.hours(workers, trials.arrivals.arrival_rate) + float(usage)


def _too_few(trials: WorkerTrials, question: Question | None = None) -> Infeasible:
    """Why all the workers that can be had do not do, with the best they reach."""
    offer, limit = trials.offer, trials.offer.max_workers
    if question is not None and trials.some_keeps(limit):
        sure = f"{100 * question.goal.confidence:g} % confidence"
        return Infeasible(f"with {sure} {limit} workers ({offer.name}) do not keep the SLOs, whatever the fit is wrong by")
    tried = trials.tried(limit)
    if not tried and trials.unseen(limit):
        return Infeasible(
            f"no run of {MOST_REQUESTS} requests shows what {limit} workers ({offer.name}) do: {UNSEEN}",
            {"name": offer.name, "workers": limit, "max_batch_size": trials.max_batch_size},
        )
    if not tried:
        return Infeasible(
            f"{limit} workers ({offer.name}) cannot keep up with {trials.arrivals.arrival_rate:g} requests/s: "
            f"{limit * _most_served(trials):.4g} is the most that they serve, with nothing left for chance",
            {"name": offer.name, "workers": limit, "max_batch_size": trials.max_batch_size},
        )
    best = _simulated(trials, min(tried, key=lambda trial: trial.excess).policy)
    reached = " and ".join(f"{slo.name} {best.percentile(slo.percentile).value:.4g} s" for slo in trials.slos)
    return Infeasible(
        f"{limit} workers ({offer.name}) do not keep the SLOs: the best reached is {reached}",
        {
            "name": offer.name,
            "workers": limit,
            "max_batch_size": best.max_batch_size,
            "latency": best.percentile(trials.slos[0].percentile).value,
            "cost_per_request": best.cost.per_request,
        },
    )
