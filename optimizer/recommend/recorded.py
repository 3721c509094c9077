"""What is billed on arrivals that were recorded (docs/recommendation.md).

A cost that is predicted is that of the fitted process in the long run. Where the arrivals themselves are known, what a deployment
costs on them is found by running it over them, once, as ``sluice simulate`` does: with the service times of the profile, and with
cold starts as the platform has them, those of the first batches among them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, TypeVar

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cost import BatchCost
from sluice.optimizer.recommend.beforehand import environments_at_once
from sluice.optimizer.recommend.candidate import Candidate
from sluice.optimizer.recommend.question import Question
from sluice.optimizer.service.mix import SizeMix
from sluice.optimizer.simulation.batch_means import BLOCKS, FEWEST_REQUESTS, Estimate, mean_of_another, share_of_blocks, slowest
from sluice.optimizer.simulation.bill import Bill
from sluice.optimizer.simulation.chunks import TraceArrivals
from sluice.optimizer.simulation.deployment import Deployment
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate_deployment
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.simulation.statistics import RunStatistics
from sluice.optimizer.simulation.streaming import simulate_deployments
from sluice.optimizer.traces.record import latest

MOST_RUN = 1 << 20  # arrivals: a tenth of a second a candidate
DRAWN = 1 << 18  # arrivals of the fit at least, where none are recorded
STARTS = 3.0  # times INIT, after which a run has the environments that it needs
MIXES = 30.0  # times that a fit forgets its phase, of which a run tells what is usual

Setting = TypeVar("Setting", bound=Candidate)


def recorded(times: Array | None, sizes: Array | None = None, mix: SizeMix | None = None) -> TraceArrivals | None:
    """The latest ``MOST_RUN`` of some arrival times (s), as a question has them; ``None`` where they are too few for a run.

    With the ``sizes`` of their requests, or else some that are drawn from the ``mix``, where there is one: always the same.
    """
    if times is None or len(times) < FEWEST_REQUESTS:
        return None
    if sizes is None and mix is not None:
        sizes = mix.drawn_for(len(times))
    return TraceArrivals(latest(times, MOST_RUN), None if sizes is None else sizes[-MOST_RUN:])


def on_record(question: Question, candidate: Setting) -> Setting:
    """The candidate with its cost on the arrivals recorded; itself where there are none."""
    if question.recorded is None:
        return candidate
    mean_batch_size = None if question.billing.cold_start_probability is None else candidate.mean_batch_size
    started = environments_at_once(question, candidate, function_of(question))
    deployment = _deployed(question, candidate, started)
    return candidate.billed(cost_on(question.recorded, deployment, candidate.cost, mean_batch_size))


class SeenOnRecord(NamedTuple):
    """What a candidate does on the arrivals recorded, but for the first of them, in which environments start.

    Parameters
    ----------
    cost : Estimate or None
        USD per request there, and between which ends it is on as many that come next (``mean_of_another``); ``None`` where they
        tell the sizes of requests, which a run by itself does not, and where it costs nothing.
    late : tuple of Estimate
        Share of the requests beyond each SLO there; of workers by the way through buffer and network less.
    cold : float
        Share of the requests in batches that start cold; 0 where it is not long enough for all environments to start first.
    """

    cost: Estimate | None
    late: tuple[Estimate, ...]
    cold: float


def seen_on_record(question: Question, candidate: Candidate) -> SeenOnRecord | None:
    """One run over the arrivals recorded; ``None`` where none are, or these tell the sizes of requests."""
    arrivals = question.recorded
    if arrivals is None or arrivals.sizes is not None:
        return None
    deployment, times = _deployed(question, candidate), arrivals.times
    run, first, length = _run(deployment, times)
    mean, low, high = mean_of_another(Bill.of(deployment).by_block(run, first, length), np.full(BLOCKS, float(length)))
    serves, moves = candidate.cost.per_request, candidate.cost.moving
    cost = Estimate(serves + moves, serves * low / mean + moves, serves * high / mean + moves) if mean else None
    settled = bool(question.profile.init) and times[first] - times[0] > _settled_after(question)
    return SeenOnRecord(cost, _late(question, run, first, length), _cold(run, first) if settled else 0.0)


class SeenOnFit(NamedTuple):
    """Share of the requests beyond each SLO, and of those in batches that start cold, in a run over drawn arrivals."""

    late: tuple[Estimate, ...]
    cold: float


def seen_on_fit(question: Question, candidate: Candidate) -> SeenOnFit | None:
    """One run over arrivals that are drawn from the fit, but for the first of them, in which environments start.

    It tells what the estimate of cold starts does not know; ``None`` where there are none, where arrivals are recorded, where
    requests have sizes, and where ``MOST_RUN`` arrivals take less time than it takes until that is told.
    """
    starts = question.profile.init and question.billing.cold_start_probability is None
    if not starts or question.recorded is not None or question.mix is not None:
        return None
    process, settled = question.arrivals, _settled_after(question)
    wanted = max(2 * settled, MIXES / _slowest(process)) * process.arrival_rate
    if wanted > MOST_RUN:
        return None
    times = np.cumsum(process.sample(max(DRAWN, int(wanted)), np.random.default_rng(0)))
    run, first, length = _run(_deployed(question, candidate), times, settled)
    return SeenOnFit(_late(question, run, first, length), _cold(run, first))


def _settled_after(question: Question) -> float:
    """Seconds after which a run has the environments that it needs."""
    return STARTS * max(init.mean for init in question.profile.init.values()) + max(slo.latency for slo in question.slos)


def _slowest(process: ArrivalProcess) -> float:
    """How fast the phases of a process forget, 1/s."""
    decays = np.sort(-np.linalg.eigvals(process.D0 + process.D1).real)
    return float(decays[1]) if len(decays) > 1 else np.inf


def _run(deployment: Deployment, times: Array, settled: float = 0.0) -> tuple[SimulationResult, int, int]:
    """A run over these arrivals, the first request that counts, and how many each of the blocks from there on has.

    It is in the first of ``BLOCKS`` + 1 equal parts, or after so many seconds.
    """
    length = len(times) // (BLOCKS + 1)
    if settled:
        length = min(length, int((times > times[0] + settled).sum()) // BLOCKS)
    return simulate_deployment(deployment, times, np.random.default_rng(0)), len(times) - BLOCKS * length, length


def _cold(run: SimulationResult, first: int) -> float:
    later = run.first_of_batch >= first
    cold, sizes = run.cold[later], run.batch_sizes[later]
    return float(sizes[cold].sum() / sizes.sum())


def _late(question: Question, run: SimulationResult, first: int, length: int) -> tuple[Estimate, ...]:
    latency = run.latency[first:]
    which = [slowest(latency), *(~(latency <= slo.latency) for slo in question.slos)]
    among, *late = (np.count_nonzero(each.reshape(BLOCKS, length), axis=1) for each in which)
    return tuple(share_of_blocks(each, length, among=among) for each in late)


def _deployed(question: Question, candidate: Candidate, started: int = 0) -> Deployment:
    """A candidate as it would run, with so many environments there, and no cold starts where their share was told."""
    told, function = question.billing.cold_start_probability is not None, function_of(question).starting(started)
    return candidate.deployment(replace(function, environments=None) if told else function)


def cost_on(
    arrivals: TraceArrivals, deployment: Deployment, predicted: BatchCost, mean_batch_size: float | None = None
) -> BatchCost:
    """What serves costs as in a run over ``arrivals``; what moves, and what is fixed, as ``predicted``.

    ``mean_batch_size`` is the predicted one where the share of cold starts was told: they cost by the batch what they do there.
    """
    return cost_of_run(simulate_deployments({"": deployment}, arrivals)[""], predicted, mean_batch_size)


def cost_of_run(run: RunStatistics, predicted: BatchCost, mean_batch_size: float | None = None) -> BatchCost:
    """The same of a run that there is."""
    seen = run.cost
    init, restore = seen.init, seen.restore
    if mean_batch_size is not None:
        init, restore = (usd * mean_batch_size / run.mean_batch_size for usd in (predicted.init, predicted.restore))
    return replace(
        predicted,
        compute=seen.compute,
        requests=seen.requests,
        init=init,
        restore=restore,
        machines=seen.machines,
        pings=seen.pings,
        logs=seen.logs,
    )


def function_of(question: Question) -> Function:
    """The function of a question, as its platform runs and bills it, at whatever memory size, for the sizes that were recorded."""
    sizes = None if question.recorded is None else question.recorded.sizes
    mix = question.mix if sizes is None else SizeMix.of(sizes)
    memory_mb, most = question.memory_sizes[0], question.max_batch_size
    return Function(question.profile, memory_mb, question.billing, question.environments, most, mix)
