"""Every policy of every setting on the same arrivals, and on the two halves of a trace."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

import numpy as np

from sluice.batching import policy as policies
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate, simulate_schedule
from sluice.optimizer.simulation.schedule import Schedule
from sluice.optimizer.smdp import SmdpProblem, solve
from sluice.optimizer.smdp.modulated import solve_modulated
from sluice.optimizer.smdp.phase_filter import FilteredPhases, filter_phases
from sluice.optimizer.traces.trace import Trace, read_trace

from ..publishing import EXCERPT
from .results import Row
from .sampling import Sampled, sample, share_right
from .settings import ENERGIES, LARGEST, Setting, full_rate, server, settings
from .tables import Tables

N_RUNS, N_REQUESTS = 20, 200_000

TRACE_LOADS = (0.05, 0.1, 0.3, 0.5)
TRACE_MODELS = {"mmpp2": "filtered, MMPP(2)", "auto": "filtered, MAP"}
TRACE_BLOCKS = 20  # of each half, for the standard error


def compute(n_runs: int, n_requests: int) -> Iterator[Row]:
    """Every row of the page."""
    for i, setting in enumerate(settings()):
        yield from compare(setting, n_runs, n_requests, np.random.default_rng([1, i]))
        print(setting.key, flush=True)
    fitted = {model: fits(read_trace(EXCERPT), model) for model in TRACE_MODELS}
    for load, energy in product(TRACE_LOADS, ENERGIES):
        yield from run_trace(load, energy, fitted)
        print("trace", load, energy, flush=True)


def simulated_cost(problem: SmdpProblem, run: SimulationResult) -> float:
    """The weighted cost of a run, its energy by the sizes of its batches."""
    power = problem.energy[run.batch_sizes - 1].sum() / run.arrival_times[-1]
    return problem.cost(float(np.nanmean(run.latency)), float(power))


def compare(setting: Setting, n_runs: int, n_requests: int, rng: np.random.Generator) -> Iterator[Row]:
    """All policies of a setting on the same arrivals, ``n_runs`` times."""
    tables = Tables(setting)
    costs: dict[str, list[float]] = {}
    latencies: dict[str, list[tuple[float, float]]] = {}
    right = []
    for _ in range(n_runs):
        sampled = sample(setting.arrivals, n_requests, rng)
        filtered = filter_phases(setting.arrivals, sampled.times)
        right.append(share_right(sampled, filtered))
        for name, run in runs_of(tables, sampled, filtered, rng):
            costs.setdefault(name, []).append(simulated_cost(tables.problem, run))
            latencies.setdefault(name, []).append((float(np.nanmean(run.latency)), run.percentile_of_answered(99)))
    exact = {"seen": tables.seen.gain, "filtered": np.nan, **{name: tables.cost(table) for name, table in tables.single.items()}}
    for name, values in costs.items():
        beyond = np.array(values) - np.array(costs["seen"])
        latency, p99 = np.mean(latencies[name], axis=0)
        yield Row(
            *setting.key,
            name,
            exact[name],
            float(np.mean(values)),
            standard_error(np.array(values)),
            float(beyond.mean()),
            standard_error(beyond),
            float(latency),
            float(p99),
            float(np.mean(right)) if name == "filtered" else np.nan,
        )


def runs_of(
    tables: Tables, sampled: Sampled, filtered: FilteredPhases, rng: np.random.Generator
) -> Iterator[tuple[str, SimulationResult]]:
    """Each policy on the same arrivals: the tables by phase where it is seen and where it is guessed, and the single ones."""
    service = tables.problem.service.service_times()
    seen = Schedule(tables.by_phase, sampled.shift_times, sampled.shift_to, sampled.first)
    guessed = Schedule(tables.by_phase, filtered.change_times, filtered.change_to, filtered.first)
    yield "seen", simulate_schedule(seen, sampled.times, service, rng)
    yield "filtered", simulate_schedule(guessed, sampled.times, service, rng)
    for name, table in tables.single.items():
        yield name, simulate(policies.smdp(table.tolist()), sampled.times, service, rng)


def standard_error(values: Array) -> float:
    """Standard error of the mean of independent ``values``."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def halves(trace: Trace) -> tuple[Trace, Trace]:
    """The trace cut in the middle of its time."""
    middle = trace.duration / 2
    return trace.between(0, middle), trace.between(middle, np.inf)


def fits(trace: Trace, model: str) -> tuple[ArrivalProcess, ArrivalProcess]:
    """The process fitted to each half."""
    first, second = (fit_arrivals(half, model).arrivals for half in halves(trace))
    return first, second


def run_trace(load: float, energy: str, fitted: dict[str, tuple[ArrivalProcess, ArrivalProcess]]) -> Iterator[Row]:
    """Each half of the trace under the policies made for the other half's arrivals."""
    both = halves(read_trace(EXCERPT))
    blocks: dict[str, list[Array]] = {}
    seconds: dict[str, list[Array]] = {}
    for i, half in enumerate(both):
        factor = load * full_rate() / half.arrival_rate
        times = half.times / factor
        runs = dict(trace_runs(times, factor, energy, {model: pair[1 - i] for model, pair in fitted.items()}))
        for name, run in runs.items():
            blocks.setdefault(name, []).append(block_costs(server(load * full_rate(), energy), run))
            seconds.setdefault(name, []).append(run.latency[run.answered])
    reference = np.concatenate(blocks["Poisson"])
    for name, parts in blocks.items():
        costs = np.concatenate(parts)
        latency = np.concatenate(seconds[name])
        yield Row(
            "trace",
            "azure",
            np.nan,
            energy,
            load,
            name,
            np.nan,
            float(costs.mean()),
            standard_error(costs),
            float((costs - reference).mean()),
            standard_error(costs - reference),
            float(latency.mean()),
            float(np.percentile(latency, 99)),
            np.nan,
        )


def trace_runs(
    times: Array, factor: float, energy: str, fitted: dict[str, ArrivalProcess]
) -> Iterator[tuple[str, SimulationResult]]:
    """The runs over one half, its arrivals ``factor`` times as fast as they came, of policies made without it."""
    service = server(1.0, energy).service.service_times()
    rng = np.random.default_rng(0)  # not drawn from: service is fixed
    for model, arrivals in fitted.items():
        if arrivals.n_phases > 1:
            process = arrivals.sped_up(factor)
            solution = solve_modulated(server(process, energy))
            found = filter_phases(process, times)
            by_phase = [solution.policy(phase) for phase in range(process.n_phases)]
            schedule = Schedule(by_phase, found.change_times, found.change_to, found.first)
            yield TRACE_MODELS[model], simulate_schedule(schedule, times, service, rng)
    rate = next(iter(fitted.values())).arrival_rate * factor  # the mean rate of the other half
    poisson = solve(server(rate, energy)).policy()
    yield "Poisson", simulate(poisson, times, service, rng)
    yield "greedy", simulate(policies.greedy(LARGEST), times, service, rng)
    runs = [simulate(policies.control_limit(limit, LARGEST), times, service, rng) for limit in range(1, LARGEST + 1)]
    problem = server(1.0, energy)
    yield "control limit, in hindsight", min(runs, key=lambda run: simulated_cost(problem, run))


def block_costs(problem: SmdpProblem, run: SimulationResult) -> Array:
    """The cost of a run as the mean of ``TRACE_BLOCKS`` numbers, each from as many successive requests."""
    n = len(run.arrival_times)
    block = np.minimum(np.arange(n) * TRACE_BLOCKS // n, TRACE_BLOCKS - 1)
    latency = np.bincount(block, np.nan_to_num(run.latency), TRACE_BLOCKS) / np.count_nonzero(run.answered)
    energy = np.bincount(block[run.first_of_batch], problem.energy[run.batch_sizes - 1], TRACE_BLOCKS) / run.arrival_times[-1]
    return np.asarray(TRACE_BLOCKS * (problem.latency_weight * latency + problem.power_weight * energy))
