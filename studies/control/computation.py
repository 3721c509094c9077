"""A day of each load under every policy, window by window."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain, pairwise, product
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from sluice.batching import policy as policies
from sluice.batching.documents import Plan, PolicyDocument, ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.baselines.functions import past_windows, reoptimised
from sluice.optimizer.recommend import Question, recommend
from sluice.optimizer.recommend.candidate import plan_of
from sluice.optimizer.recommend.last_moment import last_moment
from sluice.optimizer.service.times import service_times
from sluice.optimizer.simulation.deployment import LAMBDA
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.traces.trace import read_trace
from sluice.optimizer.tuning.candidates import every_load, fitted, propose, unbatched
from sluice.optimizer.tuning.deployments import Bill, deployment_of, single_route
from sluice.optimizer.tuning.setup import TuningSetup
from sluice.optimizer.tuning.simulated import ControlledRun, ServiceChange, simulate_control, simulate_plans, stretched

from ..publishing import EXCERPT
from ..rows import read_rows
from .results import BATCH, CONTROL, EVERY_LOAD, LOADS, RECOMMENDED, Counted, Row

SLO = Slo(0.1, 95)
WINDOW = 300.0  # s
SEEN = 12  # windows that the static plans are made from
CORE = 1769  # MB of memory that have one core
MEMORY_SIZES = (885, CORE)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
LARGEST = BATCH_SIZES[-1]
INTERCEPT, SLOPE = 0.0056, 0.00074  # s of a batch on one core
INIT = 0.5  # s
STEP = 15.0  # s between two looks
FACTOR = 1.5  # of the service times, from the middle on
PERCENTILE_NEAR, COST_NEAR = 0.05, 0.03
LED_IN = 200  # requests before a window, when it is run alone
TRIED_SIZES, TRIED_TIMEOUTS = (2, 4, 8), (0.03, 0.06, 0.085)


class Case(NamedTuple):
    """A load at a rate, requests/s in the mean, and whether the function takes longer from the middle on."""

    name: str
    load: str
    rate: float
    drifts: bool = False


CASES = (
    Case("load balancer", "load balancer", 1.0),
    Case("tweets", "tweets", 1.0),
    Case("tweets, service times × 1.5 from the middle on", "tweets", 1.0, True),
    Case("load balancer, 10 requests/s", "load balancer", 10.0),
    Case("tweets, 10 requests/s", "tweets", 10.0),
)


def profile() -> ServiceProfile:
    """The perceptron of the policy zoo, in proportion to the share of a core."""
    points = []
    for memory_mb, n in product(MEMORY_SIZES, BATCH_SIZES):
        seconds = (INTERCEPT + SLOPE * n) * CORE / memory_mb
        points.append(ProfilePoint(memory_mb, n, ServiceTime(seconds), seconds))
    init = {memory_mb: ServiceTime(INIT) for memory_mb in MEMORY_SIZES}
    return ServiceProfile(function="perceptron-{memory_mb}", points=points, init=init)


def compute() -> list[Row]:
    """Everything."""
    return [row for case in CASES for row in of_load(case)]


def arrivals_of(load: str, rate: float) -> Array:
    """The counts laid out at a rate (requests/s) in the mean, s.

    Of the load balancer with the gaps of the Azure excerpt, of the tweets as Poisson arrivals.
    """
    counts = np.array([counted.requests for counted in read_rows(LOADS, Counted) if counted.load == load], dtype=np.float64)
    rng = np.random.default_rng(1)
    drawn = rng.poisson(counts * rate * WINDOW / counts.mean())
    if load == "tweets":
        return np.concatenate([WINDOW * k + np.sort(rng.uniform(0, WINDOW, n)) for k, n in enumerate(drawn)])
    gaps = read_trace(str(EXCERPT)).interarrivals
    found, at = [], 0
    for k, n in enumerate(drawn):
        some = np.cumsum(gaps[(at + np.arange(n + 1)) % len(gaps)])
        at += n + 1
        found.append(WINDOW * k + some[:n] * (WINDOW / some[-1]))
    return np.concatenate(found)


def laid_out(load: str, rate: float) -> tuple[TuningSetup, Array, Array]:
    """What is tuned, the arrivals that were seen beforehand, and those of the run (s)."""
    times = arrivals_of(load, rate)
    cut = int(np.searchsorted(times, SEEN * WINDOW))
    return TuningSetup("perceptron", (SLO,), profile(), max_batch_size=LARGEST), times[:cut], times[cut:]


def of_load(case: Case) -> Iterator[Row]:
    """A row for each policy."""
    setup, seen, times = laid_out(case.load, case.rate)
    all_times = np.concatenate([seen, times])
    middle = float((times[0] + times[-1]) / 2)
    changes = [ServiceChange(middle, FACTOR)] if case.drifts else []
    static = {name: [(times[0], plan)] for name, plan in static_plans(setup, seen).items()}
    runs = {
        **{name: simulate_plans(setup, times, plans, changes=changes) for name, plans in static.items()},
        BATCH: simulate_plans(setup, times, batch_plans(setup, all_times, float(times[0])), changes=changes),
        CONTROL: simulate_control(setup, times, changes=changes, step=STEP, first=static[EVERY_LOAD][0][1]),
    }
    others = (simulate_plans(setup, times, [(times[0], plan)], changes=changes) for plan in tried(setup, all_times, case))
    window = runs[CONTROL].windows(WINDOW)
    n, usd, late = by_window(chain(runs.values(), others), window)
    keeps = late <= SLO.error_budget * n
    feasible = keeps.any(axis=0)
    least = np.where(keeps, usd, np.inf).min(axis=0)
    best = float(np.where(feasible, least, usd.min(axis=0)).sum()) / len(times)
    for k, (name, run) in enumerate(runs.items()):
        near = nearness(setup, run, window) if name == CONTROL else (None,) * 7
        kept = int((keeps[k] & feasible).sum())
        shares = len(times), len(n), int(feasible.sum()), kept, float(run.cost_per_request), best, float(late[k].sum()) / len(times)
        yield Row(case.name, name, *shares, max(1, len(run.plans)), *near)


def static_plans(setup: TuningSetup, seen: Array) -> dict[str, Plan]:
    """What is recommended for the first windows once and for all, and the plan for every load."""
    best = recommend(Question(fitted(seen), profile(), (SLO,), environments=LAMBDA)).winner
    rate = (len(seen) - 1) / float(seen[-1] - seen[0])
    plan = every_load(setup, profile(), rate)
    assert plan is not None
    return {RECOMMENDED: plan_of(best, [SLO], setup.model), EVERY_LOAD: plan.plan}


def batch_plans(setup: TuningSetup, times: Array, start: float) -> list[tuple[float, Plan]]:
    """BATCH: size-or-timeout for the last hour, each half hour, at the memory size of one core."""
    function = Function(profile(), setup.memory_sizes[-1], setup.billing, setup.environments, LARGEST)
    schedule = reoptimised(function, [SLO], past_windows(times, SEEN * WINDOW, start=start)).schedule
    tables = [PolicyDocument.of(schedule.tables[i]) for i in (schedule.first, *schedule.swap_to)]
    plan = unbatched(setup)[0].plan
    return [
        (at, replace(plan, policy=table, digest=""))
        for at, table in zip([start, *schedule.swap_times.tolist()], tables, strict=True)
    ]


def tried(setup: TuningSetup, times: Array, case: Case) -> list[Plan]:
    """What the clairvoyant has besides: settings and tables of every memory size, and proposals for each four hours."""
    found = []
    for factor in (1.0, FACTOR) if case.drifts else (1.0,):
        truth = stretched(profile(), factor)
        proposals = [*unbatched(setup), *([] if factor == 1 else [every_load(setup, truth, case.rate)])]
        edges = np.searchsorted(times, np.arange(0, times[-1], 48 * WINDOW))
        for first, last in pairwise(edges.tolist()):
            proposals += propose(setup, truth, fitted(times[first:last]))
        found += [proposal.plan for proposal in proposals if proposal is not None]
        for memory_mb in setup.memory_sizes:
            alone = replace(found[0], function=setup.function_at(memory_mb), memory_mb=memory_mb, digest="")
            table = last_moment(service_times(truth, memory_mb), [SLO])
            tables = [] if table is None else [table]
            tables += [policies.size_or_timeout(size, timeout) for size in TRIED_SIZES for timeout in TRIED_TIMEOUTS]
            found += [replace(alone, policy=PolicyDocument.of(of), digest="") for of in tables]
    return list({plan.digest: plan for plan in found}.values())


def by_window(runs: Iterable[ControlledRun], window: Indices) -> tuple[Array, Array, Array]:
    """Requests by window, (n_windows,), and by run and window USD and requests that were late."""
    _, places = np.unique(window, return_inverse=True)
    found = [
        (np.bincount(places, weights=run.usd), np.bincount(places, weights=~(run.latency <= SLO.latency))) for run in runs
    ]  # a run at a time, as each holds all its requests
    usd, late = (np.array(values) for values in zip(*found, strict=True))
    return np.bincount(places).astype(np.float64), usd, late


def nearness(setup: TuningSetup, run: ControlledRun, window: Indices) -> tuple[float, ...]:
    """What a ``Row`` has of the windows: how near they were to what was told before, and how far from it."""
    start = float(run.arrival_times[0])
    near, away = [], []
    for k in np.unique(window):
        at = start + WINDOW * int(k)
        plan = [plan for since, plan in run.plans if since <= at][-1]
        before = [pair for pair in zip(run.decisions, run.profiles, strict=True) if pair[0].at <= at and pair[0].cost.rates]
        told = [each for decision, _ in before for each in decision.considered if each.digest == plan.digest]
        if told:
            first, last = np.searchsorted(window, [k, k + 1]).tolist()
            decision, profile = before[-1]
            assert profile is not None
            percentile = float(np.quantile(run.latency[first:last], SLO.quantile, method="inverted_cdf"))
            cost = float(run.usd[first:last].mean())
            at_rate = decision.cost.at((last - first) / WINDOW)
            system = cost_of_run(setup, profile, plan, run.arrival_times[max(0, first - LED_IN) : last], last - first)
            away.append((cost / at_rate.value - 1, cost / system - 1))
            near.append(
                (
                    abs(percentile / told[-1].percentile.value - 1) <= PERCENTILE_NEAR,
                    abs(cost / told[-1].usd.value - 1) <= COST_NEAR,
                    abs(away[-1][0]) <= COST_NEAR,
                    at_rate.low <= cost <= at_rate.high,
                    abs(away[-1][1]) <= COST_NEAR,
                )
            )
    return (*np.array(near).mean(axis=0).tolist(), *np.array(away).std(axis=0).tolist())


def cost_of_run(setup: TuningSetup, profile: ServiceProfile, plan: Plan, times: Array, n_last: int) -> float:
    """USD of each of the last so many requests under a plan, those before them leading in."""
    deployment = deployment_of(single_route(plan), setup, profile)
    run = simulate_deployment(deployment, times, np.random.default_rng(1))
    usd = Bill.of(deployment).usd(run.batch_sizes, run.tables.astype(np.int64), run.cold.astype(np.int64))
    return float((usd / run.batch_sizes)[run.batch_of][-n_last:].mean())
