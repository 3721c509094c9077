"""A day of each load, and three of two, under every policy, window by window."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
from msgspec.structs import replace

from sluice.batching import policy as policies
from sluice.batching.documents import Plan, PolicyDocument, ServiceProfile, Slo
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.baselines.functions import past_windows, reoptimised
from sluice.optimizer.recommend import Question, recommend
from sluice.optimizer.recommend.candidate import plan_of
from sluice.optimizer.recommend.last_moment import last_moment
from sluice.optimizer.service.times import service_times
from sluice.optimizer.simulation.bill import Bill
from sluice.optimizer.simulation.deployment import LAMBDA
from sluice.optimizer.simulation.event_loop import simulate_deployment
from sluice.optimizer.simulation.function import Function
from sluice.optimizer.traces.trace import read_trace
from sluice.optimizer.tuning.canary import single_route
from sluice.optimizer.tuning.candidates import every_load, fitted, propose, unbatched
from sluice.optimizer.tuning.deployments import deployment_of
from sluice.optimizer.tuning.setup import TuningSetup
from sluice.optimizer.tuning.simulated import ControlledRun, ServiceChange, simulate_control, simulate_plans
from sluice.optimizer.tuning.stretched import stretched

from ..perceptron import BATCH_SIZES, profile
from ..publishing import EXCERPT
from ..rows import read_rows
from .results import BATCH, CONTROL, EVERY_LOAD, LOADS, RECOMMENDED, REHEARSED, Counted, Row

PERCENTILE = 95.0
WINDOW = 300.0  # s
WINDOWS_A_DAY = 288
SEEN, QUARTERS = 12, 4  # windows that the static plans are made from, and of how many parts of a load they are one at most
AGAIN = 6  # windows after which is rehearsed again
N_RUNS = 4  # of those that are run: two plans that stay, BATCH and control
LARGEST = BATCH_SIZES[-1]
STEP = 15.0  # s between two looks
FACTOR = 1.5  # of the service times, from the middle on
PERCENTILE_NEAR, COST_NEAR = 0.05, 0.03
LED_IN = 200  # requests before a window, when it is run alone
TRIED_SIZES, TRIED_TIMEOUTS = (2, 4, 8), (0.03, 0.06, 0.085)


class Case(NamedTuple):
    """What is run: counts of a day at a rate (requests/s in the mean), or a trace of a file, so many times as fast.

    ``latency`` is what is promised, s; with ``drifts`` the function takes longer from the middle on. Of more ``days`` the file has
    the counts, of which the first ``before`` are left out.
    """

    name: str
    load: str
    rate: float = 1.0
    latency: float = 0.1
    drifts: bool = False
    file: str = ""
    speed: float = 1.0
    days: int = 1
    before: int = 0


CASES = (
    Case("load balancer", "load balancer"),
    Case("tweets", "tweets"),
    Case("tweets, service times × 1.5 from the middle on", "tweets", drifts=True),
    Case("load balancer, 10 requests/s", "load balancer", 10.0),
    Case("tweets, 10 requests/s", "tweets", 10.0),
    Case("load balancer, 500 ms", "load balancer", latency=0.5),
    Case("tweets, 0.1 requests/s", "tweets", 0.1),
    Case("LLM, 1 h", "LLM", file="azure_llm_code.csv.gz"),
    Case("Ethernet × 1/10", "Ethernet", file="bc_aug89_first200k.csv.gz", speed=0.1),
    Case("maps", "maps", file="livemaps_1030.csv.gz"),
    Case("load balancer, 3 days", "load balancer", file="nab_elb_request_count_5min.csv.gz", days=3, before=288),
    Case("tweets, 3 days", "tweets", file="nab_tweets_amzn_5min.csv.gz", days=3, before=3351),
)


def remade(rows: Sequence[Row], case: Case, folder: Path | None) -> list[Row]:
    """The rows, with those of one case made anew."""
    found = {each.name: [row for row in rows if row.load == each.name] for each in CASES}
    return [row for rows in (found | {case.name: list(of_load(case, folder))}).values() for row in rows]


def arrivals_of(case: Case, folder: Path | None = None) -> Array:
    """When requests come, s: those of the trace in the folder, or the counts laid out.

    Of the load balancer with the gaps of the Azure excerpt, of the tweets as Poisson arrivals.
    """
    if case.file and case.days == 1:
        assert folder is not None
        return read_trace(str(folder / case.file)).times / case.speed
    counts = counts_of(case, folder)
    rng = np.random.default_rng(1)
    drawn = rng.poisson(counts * case.rate * WINDOW / counts.mean())
    if case.load == "tweets":
        return np.concatenate([WINDOW * k + np.sort(rng.uniform(0, WINDOW, n)) for k, n in enumerate(drawn)])
    gaps = read_trace(str(EXCERPT)).interarrivals
    found, at = [], 0
    for k, n in enumerate(drawn):
        some = np.cumsum(gaps[(at + np.arange(n + 1)) % len(gaps)])
        at += n + 1
        found.append(WINDOW * k + some[:n] * (WINDOW / some[-1]))
    return np.concatenate(found)


def counts_of(case: Case, folder: Path | None) -> Array:
    """Requests of each window: of the day that is kept, or of more of the file in the folder."""
    if not case.file:
        return np.array([counted.requests for counted in read_rows(LOADS, Counted) if counted.load == case.load], dtype=np.float64)
    assert folder is not None
    with gzip.open(folder / case.file, "rt") as file:
        counts = [float(line.rpartition(",")[2]) for line in islice(file, 1, None)]
    return np.array(counts[case.before : case.before + case.days * WINDOWS_A_DAY])


def laid_out(case: Case, folder: Path | None = None) -> tuple[TuningSetup, Array, Array]:
    """What is tuned, the arrivals that were seen beforehand, and those of the run (s)."""
    times = arrivals_of(case, folder)
    cut = int(np.searchsorted(times, float(times[0]) + min(SEEN * WINDOW, np.ptp(times) / QUARTERS)))
    slos = (Slo(case.latency, PERCENTILE),)
    return TuningSetup("perceptron", slos, profile(), max_batch_size=LARGEST), times[:cut], times[cut:]


def of_load(case: Case, folder: Path | None = None) -> Iterator[Row]:
    """A row for each policy."""
    setup, seen, times = laid_out(case, folder)
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
    window, budget = runs[CONTROL].windows(WINDOW), setup.slos[0].error_budget
    n, usd, late = by_window(chain(runs.values(), others), window, setup.slos[0].latency)
    keeps = late <= budget * n
    feasible = keeps.any(axis=0)
    least = np.where(keeps, usd, np.inf).min(axis=0)
    best = float(np.where(feasible, least, usd.min(axis=0)).sum()) / len(times)

    def row(name: str, which: Indices, plans: int, near: Sequence[float | None] = (None,) * 7) -> Row:
        """Of the run that serves each window."""
        each = which, np.arange(len(n))
        shares = float(usd[each].sum()) / len(times), best, float(late[each].sum()) / len(times), plans
        return Row(case.name, name, len(times), len(n), int(feasible.sum()), int((keeps[each] & feasible).sum()), *shares, *near)

    for k, (name, run) in enumerate(runs.items()):
        if name == CONTROL:
            choice = rehearsed(n, usd, late, budget)
            yield row(REHEARSED, choice, 1 + int((np.diff(choice) != 0).sum()))
        near = nearness(setup, run, window) if name == CONTROL else (None,) * 7
        yield row(name, np.full(len(n), k), max(1, len(run.plans)), near)


def rehearsed(n: Array, usd: Array, late: Array, budget: float) -> Indices:
    """Which run serves each window, (n_windows,): each half hour the one that was cheapest in the last hour of those that kept the
    promise there, or was late least; in the first half hour the first. Not those that change themselves.
    """
    choice = np.zeros(len(n), dtype=np.int64)
    stay = np.r_[0, 1, np.arange(N_RUNS, len(usd))]
    for begin in range(AGAIN, len(n), AGAIN):
        past = slice(max(0, begin - SEEN), begin)
        share, cost = late[stay, past].sum(axis=1) / n[past].sum(), usd[stay, past].sum(axis=1)
        choice[begin:] = stay[np.lexsort((cost, np.maximum(share - budget, 0)))[0]]
    return choice


def static_plans(setup: TuningSetup, seen: Array) -> dict[str, Plan]:
    """What is recommended for the first windows once and for all, and the plan for every load."""
    best = recommend(Question(fitted(seen), profile(), setup.slos, environments=LAMBDA)).winner
    rate = (len(seen) - 1) / float(np.ptp(seen))
    plan = every_load(setup, profile(), rate, setup.slos)
    assert plan is not None
    return {RECOMMENDED: plan_of(best, setup.slos, setup.model), EVERY_LOAD: plan.plan}


def batch_plans(setup: TuningSetup, times: Array, start: float) -> list[tuple[float, Plan]]:
    """BATCH: size-or-timeout for the last hour, each half hour, at the memory size of one core."""
    function = Function(profile(), setup.memory_sizes[-1], setup.billing, setup.environments, LARGEST)
    hour = min(SEEN * WINDOW, start - float(times[0]))
    schedule = reoptimised(function, setup.slos, past_windows(times, hour, start=start)).schedule
    tables = [PolicyDocument.of(schedule.tables[i]) for i in (schedule.first, *schedule.swap_to)]
    plan = unbatched(setup)[0].plan
    return [
        (at, replace(plan, policy=table, digest=""))
        for at, table in zip([start, *schedule.swap_times.tolist()], tables, strict=True)
    ]


def tried(setup: TuningSetup, times: Array, case: Case) -> list[Plan]:
    """What the clairvoyant has besides: settings and tables of every memory size, and proposals for each sixth of a load, which is
    four hours of a day.
    """
    found, rate = [], len(times) / float(np.ptp(times))
    for factor in (1.0, FACTOR) if case.drifts else (1.0,):
        truth = stretched(profile(), factor)
        proposals = [*unbatched(setup), *([] if factor == 1 else [every_load(setup, truth, rate, setup.slos)])]
        width = min(48 * case.days * WINDOW, np.ptp(times) / QUARTERS)
        edges = np.searchsorted(times, np.arange(times[0], times[-1], width))
        for first, last in pairwise(edges.tolist()):
            proposals += propose(setup, truth, fitted(times[first:last]), setup.slos)
        found += [proposal.plan for proposal in proposals if proposal is not None]
        for memory_mb in setup.memory_sizes:
            alone = replace(found[0], function=setup.function_at(memory_mb), memory_mb=memory_mb, digest="")
            table = last_moment(service_times(truth, memory_mb), setup.slos)
            tables = [] if table is None else [table]
            tables += [policies.size_or_timeout(size, timeout) for size in TRIED_SIZES for timeout in TRIED_TIMEOUTS]
            found += [replace(alone, policy=PolicyDocument.of(of), digest="") for of in tables]
    return list({plan.digest: plan for plan in found}.values())


def by_window(runs: Iterable[ControlledRun], window: Indices, latency: float) -> tuple[Array, Array, Array]:
    """Requests by window, (n_windows,), and by run and window USD and requests that took longer than ``latency`` (s)."""
    _, places = np.unique(window, return_inverse=True)
    found = [
        (np.bincount(places, weights=run.usd), np.bincount(places, weights=~(run.latency <= latency))) for run in runs
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
            percentile = float(np.quantile(run.latency[first:last], setup.slos[0].quantile, method="inverted_cdf"))
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
    bill = Bill.of(deployment)
    usd = bill.usd(run.batch_sizes, run.tables.astype(np.int64), run.cold.astype(np.int64))
    return float((usd / run.batch_sizes)[run.batch_of][-n_last:].mean() + bill.pings_per_second * WINDOW / n_last)
