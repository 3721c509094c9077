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
from sluice.optimizer.arrivals import ArrivalProcess
from sluice.optimizer.baselines import Situation, Workload
from sluice.optimizer.baselines.names import FIXED, STATIC
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.fits.windows import WindowFit
from sluice.optimizer.recommend import Answer, FunctionSetting, WorkerOffer
from sluice.optimizer.recommend.candidate import plan_of
from sluice.optimizer.recommend.function_setting import FunctionSettings
from sluice.optimizer.service import service_times
from sluice.optimizer.simulation import Deployment, Environments, Function, TraceArrivals, simulate_deployments
from sluice.optimizer.traces.trace import Trace, read_trace
from sluice.optimizer.tuning.setup import TuningSetup
from sluice.optimizer.tuning.simulated import simulate_control

from .results import PERCENTILE, Row

LATENCIES = (0.1, 0.2, 0.5)  # s
CORE = 1769  # MB of memory that have one core
MEMORY_SIZES = (885, CORE)
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
INIT = 0.5  # s
KEEP_ALIVE, SCALING_RATE, BURST = 300.0, 100.0, 1000
MACHINE, CORES, WORKERS = "c5.xlarge", 4, "http://workers:8500"
WINDOWS = 5  # of half a trace, that reoptimised goes by
CHOSEN = "rehearsed"  # the cheapest of all that surely kept the SLO in the first half
CONTROL = "control"  # tuned while requests come


class Kind(NamedTuple):
    """A trace: its file, how many times as fast it is run, and what it is."""

    file: str
    speed: float
    said: str


TRACES = {
    "LLM, 15 min": Kind(
        "azure_llm_code_excerpt.csv.gz",
        1.0,
        "requests to a code LLM, 3.6/s: [the excerpt](../sluice/local/traces/README.md) that the project ships.",
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
    return ServiceProfile(function=network + "-{memory_mb}", points=points, init={m: ServiceTime(INIT) for m in MEMORY_SIZES})


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
        self.halves, profile = halves, profile_of(network)
        function = Function(profile, CORE, environments=Environments(INIT, KEEP_ALIVE, None, SCALING_RATE, BURST))
        worker = WorkerOffer(
            "worker", service_times(profile, CORE), function.billing.prices.machine(MACHINE) / CORES, function=WORKERS
        )
        workload = Workload(halves.process, halves.past, TraceArrivals(halves.run))
        self.situation = Situation(workload, function, (Slo(latency, PERCENTILE),), worker=worker)

    def policies(self) -> Iterator[tuple[str, Callable[[Array], Deployment]]]:
        """Every policy by name, to be made for arrivals at given times, of which it knows those that have come."""
        yield "no batching", self._cheapest("no-batching")
        yield "size or timeout", self._cheapest(f"size-or-timeout:{FIXED[0]},{FIXED[1]}")
        yield "last moment", self._cheapest("last-moment")
        yield "BATCH", lambda _: self._recommended(replace(self._batch, workers=(), overflow=None))
        yield "BATCH again", self._reoptimised
        yield "recommended", lambda _: self._recommended(self._answer)
        yield "without premium", lambda _: self._recommended(self._cheapest_predicted)
        yield "greedy", self._sized("greedy")
        yield "static", self._sized(f"static:{STATIC}")
        yield "SMDP", self._sized("smdp")
        yield "deadline", self._sized("deadline")
        yield "AIMD", self._sized("aimd")
        yield "early drop", self._sized("early-drop")
        yield "fixed workers", self._sized("workers")
        yield "autoscaling", lambda times: baselines.named("autoscaling", self._over(times))
        yield "overflow", self._cheapest("overflow")

    def rows(self, trace: str, network: str) -> Iterator[Row]:
        """What they come to in the second half, and the one that the first half would choose."""
        halves, slo = self.halves, self.situation.slo
        latency = slo.latency
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
        sure = [name for name in past if past[name].violations().high <= slo.error_budget and name != "BATCH again"]
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
                run.worker_seconds / run.span,
                run.by_function,
                past[of].violation_ratio(),
            )
        yield self._controlled(trace, network)

    def _controlled(self, trace: str, network: str) -> Row:
        """What becomes of the recommended plan where it is tuned while the second half comes."""
        function, worker, slos = self.situation.any_function, self.situation.worker, self.situation.slos
        profile, environments = function.profile, function.environments
        assert worker is not None and environments is not None
        setup = TuningSetup(network, slos, profile, billing=function.billing, environments=environments, offers=(worker,))
        first = plan_of(self._answer.winner, slos, setup.model)
        run = simulate_control(setup, self.halves.run, first=first)
        late, hours = float((run.latency > slos[0].latency).mean()), np.ptp(run.arrival_times) / 3600
        return Row(
            trace,
            network,
            slos[0].latency,
            CONTROL,
            1e6 * run.cost_per_request,
            1e6 * run.cold_usd / len(run.usd),
            float(np.quantile(run.latency, slos[0].quantile, method="inverted_cdf")),
            late,
            len(run.usd) / run.batches,
            run.machines_usd / (hours * worker.price_per_hour),
            np.nan,
            np.nan,
        )

    def _over(self, times: Array, memory_mb: int | None = None) -> Situation:
        """The situation in which these arrivals come, for the function with so much memory."""
        workload = self.situation.workload._replace(run=TraceArrivals(times))
        return replace(self.situation, workload=workload, memory_mb=memory_mb)

    @cached_property
    def _answer(self) -> Answer:
        """Of `sluice recommend`."""
        return self.situation.answer()

    @property
    def _settings(self) -> list[FunctionSetting]:
        """The best setting of every kind, the cheapest first."""
        return sorted([self._answer.best, *self._answer.runners_up], key=lambda setting: setting.cost.per_request)

    @property
    def _cheapest_predicted(self) -> Answer:
        """The answer without a premium for what keeps the SLO whatever comes."""
        question = self._answer.question
        unpaid = replace(question, goal=replace(question.goal, premium=0.0))
        return replace(self._answer, settings=FunctionSettings(unpaid), best=self._settings[0])

    @property
    def _batch(self) -> Answer:
        """The answer among size-or-timeout settings alone."""
        return replace(self._answer, best=next(setting for setting in self._settings if setting.table is None))

    def _recommended(self, answer: Answer) -> Deployment:
        return baselines.recommended(answer, self.situation.any_function)

    def _cheapest(self, name: str) -> Callable[[Array], Deployment]:
        """At the memory size at which it was cheapest on the past among those that kept the SLO, or was late least."""
        past, slo = self.halves.past, self.situation.slo
        tried = {str(memory_mb): baselines.named(name, self._over(past, memory_mb)) for memory_mb in MEMORY_SIZES}
        runs = simulate_deployments(tried, TraceArrivals(past), [slo.latency])

        def regret(memory_mb: int) -> tuple[float, float]:
            run = runs[str(memory_mb)]
            return max(run.violation_ratio() - slo.error_budget, 0.0), run.cost.per_request

        best = min(MEMORY_SIZES, key=regret)
        return lambda times: baselines.named(name, self._over(times, best))

    def _sized(self, name: str) -> Callable[[Array], Deployment]:
        """With the fewest workers that kept the SLO in the past, whatever comes."""
        sized = cache(lambda: baselines.named(name, self.situation))
        return lambda _: sized()

    def _reoptimised(self, times: Array) -> Deployment:
        """In the past, where there are no windows, the setting that it begins with."""
        best, situation = self._batch.best, self.situation
        windows = self.halves.windows if times is self.halves.run else ()
        return baselines.reoptimised(situation.any_function.at(best.memory_mb), situation.slos, windows, best.policy)


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
