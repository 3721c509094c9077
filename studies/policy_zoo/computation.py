"""The policies of each cell, and what they come to in the half that they have not seen."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, cached_property
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.batching.errors import Infeasible, InvalidInput
from sluice.optimizer import baselines
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.baselines import Function, TargetTracking
from sluice.optimizer.baselines.autoscaling import SAFETY
from sluice.optimizer.billing.cost import Billing
from sluice.optimizer.billing.prices import default_prices
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.fits.windows import WindowFit
from sluice.optimizer.recommend.answer import Recommendation, Setting
from sluice.optimizer.recommend.recommend import recommend
from sluice.optimizer.recommend.workers import WorkerOffer
from sluice.optimizer.service.times import service_times
from sluice.optimizer.simulation.chunks import TraceArrivals
from sluice.optimizer.simulation.deployment import Deployment, Environments
from sluice.optimizer.simulation.streaming import simulate_deployments
from sluice.optimizer.traces.trace import Trace, read_trace

from .results import PERCENTILE, Row

LATENCIES = (0.1, 0.2, 0.5)  # s
CORE = 1769  # MB of memory that have one core
MEMORY_SIZES = (885, CORE)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
INIT = 0.5  # s
KEEP_ALIVE, SCALING_RATE, BURST = 300.0, 100.0, 1000
MACHINE, CORES = "c5.xlarge", 4
FIXED = (8, 0.05)
STATIC = 8
WINDOWS = 5  # of half a trace, that reoptimised goes by
LAG = 180.0  # s, until a new worker serves
CHOSEN = "rehearsed"  # the cheapest of all that surely kept the SLO in the first half


class Kind(NamedTuple):
    """A trace: its file, how many times as fast it is run, and what it is."""

    file: str
    speed: float
    said: str


TRACES = {
    "LLM, 15 min": Kind(
        "azure_llm_code_excerpt.csv.gz",
        1.0,
        "requests to a code LLM, 3.6/s: [the excerpt](../examples/traces/README.md) that the project ships.",
    ),
    "LLM, 1 h × 5": Kind(
        "azure_llm_code.csv.gz", 5.0, "the hour that it was cut from (Azure Public Dataset, CC-BY 4.0), run five times as fast."
    ),
    "Ethernet × 1/10": Kind(
        "bc_aug89_first200k.csv.gz",
        0.1,
        "the first 200 000 packets of Bellcore's BC-pAug89, a tenth as fast: bursts on every scale.",
    ),
    "maps": Kind(
        "livemaps_1030.csv.gz",
        1.0,
        "requests to a storage back end of a map service, 111/s, smoother than Poisson.",
    ),
}
SHIPPED = "LLM, 15 min"

# seconds of a batch on one core: intercept, and for each request
NETWORKS = {"perceptron": (0.0056, 0.00074), "GoogLeNet": (0.0, 0.0467)}


def profile_of(network: str) -> ServiceProfile:
    """Service times in proportion to the share of a core."""
    intercept, slope = NETWORKS[network]
    points = []
    for memory_mb, size in product(MEMORY_SIZES, BATCH_SIZES):
        seconds = (intercept + slope * size) * CORE / memory_mb
        points.append(ProfilePoint(memory_mb, size, ServiceTime(seconds), seconds))
    return ServiceProfile(function=network, points=points, init={m: ServiceTime(INIT) for m in MEMORY_SIZES})


class Halves(NamedTuple):
    """A trace cut in the middle, what was fitted to its first half, and to windows that slide into the second (s)."""

    past: Array
    run: Array
    process: ArrivalProcess
    windows: tuple[WindowFit, ...]

    @classmethod
    def of(cls, trace: Trace) -> Halves:
        """Cut and fitted."""
        middle = trace.duration / 2
        run = trace.times[trace.times >= middle]
        first = trace.between(0, middle)
        process = fit_arrivals(first).arrivals
        width = middle / WINDOWS
        windows = baselines.past_windows(trace.times, width, start=float(run[0]), step=width)
        return cls(trace.times[trace.times < middle], run, process, windows)


class Cell:
    """A trace, a network and an SLO: the policies made for them."""

    def __init__(self, halves: Halves, network: str, latency: float) -> None:
        self.halves, self.slo = halves, Slo(latency, PERCENTILE)
        profile = profile_of(network)
        billing = Billing(default_prices(), "x86_64", None, 0.0)
        self.function = Function(profile, CORE, billing, Environments(INIT, KEEP_ALIVE, None, SCALING_RATE, BURST))
        self.offer = WorkerOffer("worker", service_times(profile, CORE), billing.prices.machine(MACHINE) / CORES)

    def policies(self) -> Iterator[tuple[str, Callable[[Array], Deployment]]]:
        """Every policy by name, to be made for arrivals at given times, of which it knows those that have come."""
        slos, offer, process = [self.slo], self.offer, self.halves.process
        yield "no batching", self._cheapest(lambda function, _: baselines.no_batching(function))
        yield "size or timeout", self._cheapest(lambda function, _: baselines.size_or_timeout(function, *FIXED))
        yield "last moment", self._cheapest(lambda function, _: baselines.last_moment(function, slos))
        yield "BATCH", lambda _: baselines.recommended(replace(self._batch, workers=()), self.function)
        yield "BATCH again", self._reoptimised
        yield "recommended", lambda _: baselines.recommended(self._answer, self.function, [offer])
        yield "without premium", lambda _: baselines.recommended(self._cheapest_predicted, self.function, [offer])
        yield "greedy", self._sized(lambda k: baselines.greedy(offer, k, self.slo))
        yield "static", self._sized(lambda k: baselines.static(offer, k, STATIC))
        yield "SMDP", self._sized(lambda k: baselines.smdp(offer, k, process.arrival_rate, slos))
        yield "deadline", self._sized(lambda k: baselines.deadline(offer, k, self.slo))
        yield "AIMD", self._sized(lambda k: baselines.aimd(offer, k, self.slo))
        yield "early drop", self._sized(lambda k: baselines.early_drop(offer, k, self.slo))
        yield "fixed workers", lambda _: baselines.fixed_workers(offer, process, slos)
        yield "autoscaling", self._autoscaled
        yield "hybrid", self._cheapest(self._hybrid)

    def rows(self, trace: str, network: str) -> Iterator[Row]:
        """What they come to in the second half, and the one that the first half would choose."""
        halves, latency = self.halves, self.slo.latency
        made: dict[str, Deployment] = {}
        rehearsals: dict[str, Deployment] = {}
        for name, make in self.policies():
            try:
                made[name] = make(halves.run)
                rehearsals[name] = make(halves.past)
            except (Infeasible, InvalidInput):  # nothing of this kind keeps the SLO, or can be asked to
                yield Row(trace, network, latency, name, *[np.nan] * 8)
        past = simulate_deployments(rehearsals, TraceArrivals(halves.past), [latency])
        runs = simulate_deployments(made, TraceArrivals(halves.run), [latency])
        allowed = 1 - PERCENTILE / 100
        sure = [name for name in past if past[name].violations().high <= allowed and name != "BATCH again"]
        chosen = min(sure, key=lambda name: past[name].cost.per_request, default="no batching")
        for name, of in [*((name, name) for name in runs), (CHOSEN, chosen)]:
            run = runs[of]
            yield Row(
                trace,
                network,
                latency,
                name,
                1e6 * run.cost.per_request,
                1e6 * run.cost.init,
                run.percentile(PERCENTILE).value,
                run.violation_ratio(),
                run.mean_batch_size,
                run.server_seconds / (run.end - run.start),
                run.by_function,
                past[of].violation_ratio(),
            )

    @cached_property
    def _answer(self) -> Recommendation:
        """Of `sluice recommend`."""
        return recommend(
            self.halves.process,
            self.function.profile,
            self.slo,
            memory_sizes=MEMORY_SIZES,
            prices=self.function.billing.prices,
            workers=[self.offer],
        )

    @property
    def _settings(self) -> list[Setting]:
        """The best setting of every kind, the cheapest first."""
        return sorted([self._answer.best, *self._answer.runners_up], key=lambda setting: setting.cost.per_request)

    @property
    def _cheapest_predicted(self) -> Recommendation:
        """The answer without a premium for a table that keeps the SLO whatever comes."""
        return replace(self._answer, best=self._settings[0])

    @property
    def _batch(self) -> Recommendation:
        """The answer among size-or-timeout settings alone."""
        return replace(self._answer, best=next(setting for setting in self._settings if setting.table is None))

    def _cheapest(self, make: Callable[[Function, Array], Deployment]) -> Callable[[Array], Deployment]:
        """At the memory size at which it was cheapest on the past among those that kept the SLO, or was late least."""
        past = self.halves.past
        tried = {str(m): make(self.function.at(m), past) for m in MEMORY_SIZES}
        runs = simulate_deployments(tried, TraceArrivals(past), [self.slo.latency])

        def regret(memory_mb: int) -> tuple[float, float]:
            run = runs[str(memory_mb)]
            return max(run.violation_ratio() - (1 - PERCENTILE / 100), 0.0), run.cost.per_request

        best = self.function.at(min(MEMORY_SIZES, key=regret))
        return lambda times: make(best, times)

    def _sized(self, make: Callable[[int], Deployment]) -> Callable[[Array], Deployment]:
        throughput = np.arange(1, self.offer.service.max_batch_size + 1) / self.offer.service.mean_response
        least = int(self.halves.process.arrival_rate / throughput.max()) + 1

        @cache
        def sized() -> Deployment:
            return make(baselines.fewest_workers(make, self.halves.past, [self.slo], least=least))

        return lambda _: sized()

    def _reoptimised(self, times: Array) -> Deployment:
        """In the past, where there are no windows, the setting that it begins with."""
        best = self._batch.best
        windows = self.halves.windows if times is self.halves.run else ()
        return baselines.reoptimised(self.function.at(best.memory_mb), [self.slo], windows, best.policy())

    def _autoscaled(self, times: Array) -> Deployment:
        tracking = TargetTracking(SAFETY * baselines.largest_throughput(self.offer.service, self.slo), lag=LAG)
        return baselines.autoscaled(self.offer, self.slo, times, tracking, tracking.wanted(self.halves.process.arrival_rate))

    def _hybrid(self, function: Function, times: Array) -> Deployment:
        forecasting = baselines.Forecasting(lag=LAG)
        return baselines.hybrid(self.offer, function, self.slo, times, forecasting, self.halves.process.arrival_rate)


def run_trace(name: str, folder: Path) -> Iterator[Row]:
    """All cells of a trace."""
    kind = TRACES[name]
    halves = Halves.of(read_trace(folder / kind.file).sped_up(kind.speed))
    for network, latency in product(NETWORKS, LATENCIES):
        yield from Cell(halves, network, latency).rows(name, network)


def remade(rows: Sequence[Row], name: str, folder: Path) -> list[Row]:
    """The rows, with those of one trace made anew."""
    fresh = list(run_trace(name, folder))
    found = {row.trace: [other for other in rows if other.trace == row.trace] for row in rows} | {name: fresh}
    return [row for trace in TRACES for row in found.get(trace, [])]
