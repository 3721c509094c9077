"""What one table per phase saves where arrivals have phases: writes docs/modulated-arrivals.md, its figures and its data.

    python studies/modulated_arrivals.py [--simulate]

The server is the one of the papers (GoogLeNet on a Tesla P4); arrivals are MMPP(2) of several contrasts, durations and loads, and a
real trace. Of every policy stands what it costs exactly where it does not look at the phase, or could see it; what the tables cost
under a filter that must guess the phase is simulated, always as the difference to another policy on the same arrivals.

The data in studies/modulated-arrivals.csv has a row for each setting and policy; the page and the first figure are made from
it. Seconds in the data, milliseconds on the page.
"""

from __future__ import annotations

import argparse
import csv
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from itertools import pairwise, product
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

import matplotlib
import numba
import numpy as np
from matplotlib.figure import Figure

from sluice.batching import policy as policies
from sluice.batching.policy import Policy
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.service.law import deterministic
from sluice.optimizer.simulation.event_loop import SimulationResult, simulate, simulate_schedule
from sluice.optimizer.simulation.schedule import Schedule
from sluice.optimizer.smdp import SmdpProblem, SmdpSolution, affine, solve
from sluice.optimizer.smdp.modulated import evaluate_modulated, solve_modulated
from sluice.optimizer.smdp.modulated_queue import ModulatedQueue
from sluice.optimizer.smdp.phase_filter import FilteredPhases, filter_phases
from sluice.optimizer.smdp.policy_iteration import greedy
from sluice.optimizer.smdp.solution import Performance
from sluice.optimizer.traces.trace import Trace, read_trace

F = TypeVar("F", bound=Callable[..., Any])

DOCS = Path(__file__).parents[1] / "docs"
DATA = Path(__file__).parent / "modulated-arrivals.csv"
TRACE = DOCS.parent / "examples" / "traces" / "azure_llm_code_excerpt.csv.gz"

LARGEST = 32
SMALL = 8  # of the example that the model was first checked on
LATENCY_WEIGHT, POWER_WEIGHT = 1e3, 1.0  # 1 per ms and 1 per W, as in the papers' basic scenario
ENERGIES = {"papers'": 19.603e-3, "dear batch": 196.03e-3}  # J that a batch costs beside those of its requests
PER_REQUEST = 19.899e-3  # J

KINDS = {
    "8 : 2": (8.0, 2.0, 1.0),
    "1 : 0": (1.0, 0.0, 1.0),
    "80 : 1": (80.0, 1.0, 8.0),
}  # rates, and how much longer the second lasts
STAYS = (0.005, 0.05, 0.5)  # s, mean stay in the busy phase
SHOWN_STAY = 0.05
LOADS = {0.005: (0.1, 0.3, 0.7), 0.05: (0.05, 0.1, 0.2, 0.3, 0.5, 0.7), 0.5: (0.1, 0.3, 0.7)}
# Beyond this load the queue remembers a burst of that kind for longer than a run lasts.
LARGEST_LOAD = {"8 : 2": 1.0, "1 : 0": 1.0, "80 : 1": 0.3}
N_RUNS, N_REQUESTS = 20, 200_000

TRACE_LOADS = (0.05, 0.1, 0.3, 0.5)
TRACE_MODELS = {"mmpp2": "filtered, MMPP(2)", "auto": "filtered, MAP"}
TRACE_BLOCKS = 20  # of each half, for the standard error


@dataclass(frozen=True)
class Row:
    """What a policy costs in a setting.

    ``group`` is example, grid, overload or trace. ``exact`` is the cost computed, ``nan`` where it cannot be; ``simulated`` that in
    simulation. ``excess`` is the simulated cost beyond the reference's on the same arrivals, the reference being the tables of a
    server that sees the phase (on the trace, where nobody does, the Poisson policy); errors are standard errors. ``latency`` and
    ``p99`` are in s, simulated; ``right`` is the share of the time in which the likeliest phase is the true one.
    """

    group: str
    process: str
    stay: float
    energy: str
    load: float
    policy: str
    exact: float
    simulated: float
    error: float
    excess: float
    excess_error: float
    latency: float
    p99: float
    right: float

    @property
    def z(self) -> float:
        """The simulated cost less the exact one, in standard errors."""
        return (self.simulated - self.exact) / self.error


class Setting(NamedTuple):
    """A server and its arrivals."""

    group: str
    process: str
    stay: float
    energy: str
    load: float
    arrivals: ArrivalProcess
    max_batch_size: int = LARGEST

    @property
    def key(self) -> tuple[str, str, float, str, float]:
        """What rows of the setting have in common."""
        return self.group, self.process, self.stay, self.energy, self.load


# --- the settings


def server(arrivals: ArrivalProcess | float, energy: str, max_batch_size: int = LARGEST) -> SmdpProblem:
    """The papers' server with one of the ``ENERGIES``."""
    service = deterministic(affine(1.0524e-3, 0.3051e-3, max_batch_size))
    joules = affine(ENERGIES[energy], PER_REQUEST, max_batch_size)
    return SmdpProblem(arrivals, service, joules, 1, LATENCY_WEIGHT, POWER_WEIGHT)


def full_rate(max_batch_size: int = LARGEST) -> float:
    """Requests per second that the server serves in full batches."""
    return max_batch_size / float(affine(1.0524e-3, 0.3051e-3, max_batch_size)[-1])


def settings() -> Iterator[Setting]:
    """All synthetic ones."""
    full = full_rate(SMALL)
    for busy, quiet in ((0.8, 0.2), (1.3, 0.2)):
        process = f"{busy:g} μ, {quiet:g} μ"
        arrivals = mmpp2(busy * full, quiet * full, 20, 20)
        yield Setting("example", process, 0.05, "papers'", arrivals.arrival_rate / full, arrivals, SMALL)
    for stay in STAYS:
        for kind, energy, load in product(KINDS, ENERGIES, LOADS[stay]):
            if load <= LARGEST_LOAD[kind]:
                yield Setting("grid", kind, stay, energy, load, process_of(kind, stay, load))
    full = full_rate()
    for stay, energy in product(STAYS, ENERGIES):
        arrivals = mmpp2(1.3 * full, 0.1 * full, 1 / stay, 1 / stay)
        yield Setting("overload", "1.3 μ, 0.1 μ", stay, energy, arrivals.arrival_rate / full, arrivals)


def process_of(kind: str, stay: float, load: float) -> ArrivalProcess:
    """The MMPP(2) of a kind, at a load of the server."""
    busy, quiet, longer = KINDS[kind]
    shape = mmpp2(busy, quiet, 1 / stay, 1 / (stay * longer))
    factor = load * full_rate() / shape.arrival_rate
    return mmpp2(busy * factor, quiet * factor, 1 / stay, 1 / (stay * longer))


class Tables:
    """The policies of a setting with their exact costs."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting
        self.problem = server(setting.arrivals, setting.energy, setting.max_batch_size)
        self._queue = ModulatedQueue(self.problem)

    @cached_property
    def seen(self) -> SmdpSolution:
        """One table per phase."""
        return solve_modulated(self.problem, queue=self._queue)

    @cached_property
    def single(self) -> dict[str, Array]:
        """Tables that do not look at the phase: Poisson at the mean rate, the best control limit, greedy."""
        setting = self._setting
        poisson = solve(server(self.problem.arrival_rate, setting.energy, setting.max_batch_size)).actions[0]
        largest = setting.max_batch_size
        limits = [np.array(policies.control_limit(limit, largest).take) for limit in range(1, largest + 1)]
        return {"Poisson": poisson, "control limit": min(limits, key=self.cost), "greedy": greedy(self.problem)}

    def performance(self, table: Array) -> Performance:
        """What a table comes to, exactly."""
        return evaluate_modulated(self.problem, table, self._queue)

    def cost(self, table: Array) -> float:
        """The weighted cost of a table, exactly."""
        performance = self.performance(table)
        return self.problem.cost(performance.mean_latency, performance.power)

    @cached_property
    def by_phase(self) -> list[Policy]:
        """One policy per phase."""
        return [self.seen.policy(phase) for phase in range(self.problem.arrivals.n_phases)]


# --- arrivals with the phases they hide


def compiled(function: F) -> F:
    """``function`` as machine code that is not kept: code kept by the script could not be loaded by the test, nor the reverse."""
    return cast(F, numba.njit(function))


class Sampled(NamedTuple):
    """Arrival times (s), and the phases: ``first``, from ``shift_times`` on those of ``shift_to``."""

    times: Array
    first: int
    shift_times: Array
    shift_to: Indices


def sample(arrivals: ArrivalProcess, n: int, rng: np.random.Generator) -> Sampled:
    """``n`` arrivals of an MMPP(2) in equilibrium."""
    first = int(rng.choice(2, p=arrivals.stationary))
    rates = np.ascontiguousarray(arrivals.D1.diagonal())
    leave = np.array([arrivals.D0[0, 1], arrivals.D0[1, 0]])
    times, shift_times = _sample(rates, leave, first, n, rng)
    return Sampled(times, first, shift_times, (first + 1 + np.arange(len(shift_times))) % 2)


@compiled
def _sample(rates: Array, leave: Array, phase: int, n: int, rng: np.random.Generator) -> tuple[Array, Array]:
    """Times of ``n`` arrivals, and of the shifts between two phases up to the last of them."""
    times, shifts = np.empty(n), np.empty(1024)
    n_shifts, now, i = 0, 0.0, 0
    while i < n:
        now += rng.standard_exponential() / (rates[phase] + leave[phase])
        if rng.random() * (rates[phase] + leave[phase]) < rates[phase]:
            times[i] = now
            i += 1
        else:
            if n_shifts == len(shifts):
                longer = np.empty(2 * n_shifts)
                longer[:n_shifts] = shifts
                shifts = longer
            shifts[n_shifts] = now
            n_shifts += 1
            phase = 1 - phase
    return times, shifts[:n_shifts].copy()


def share_right(sampled: Sampled, filtered: FilteredPhases) -> float:
    """Share of the time in which the likeliest phase is the true one."""
    edges = np.unique(np.concatenate([[0.0], sampled.shift_times, filtered.change_times, sampled.times[-1:]]))
    edges = edges[edges <= sampled.times[-1]]
    middle = (edges[1:] + edges[:-1]) / 2
    truth = np.append(sampled.first, sampled.shift_to)[np.searchsorted(sampled.shift_times, middle)]
    return float(np.diff(edges) @ (filtered.likeliest(middle) == truth) / edges[-1])


# --- the comparison


def simulated_cost(problem: SmdpProblem, run: SimulationResult) -> float:
    """The weighted cost of a run, its energy by the sizes of its batches."""
    power = problem.energy[run.batch_sizes - 1].sum() / run.arrival_times[-1]
    return problem.cost(float(np.nanmean(run.latency)), float(power))


def compare(setting: Setting, n_runs: int, n_requests: int, rng: np.random.Generator) -> Iterator[Row]:
    """All policies of a setting on the same arrivals, ``n_runs`` times."""
    tables = Tables(setting)
    problem, service = tables.problem, tables.problem.service.service_times()
    costs: dict[str, list[float]] = {}
    latencies: dict[str, list[tuple[float, float]]] = {}
    right = []
    for _ in range(n_runs):
        sampled = sample(setting.arrivals, n_requests, rng)
        filtered = filter_phases(setting.arrivals, sampled.times)
        right.append(share_right(sampled, filtered))
        schedules = {
            "seen": Schedule(tables.by_phase, sampled.shift_times, sampled.shift_to, sampled.first),
            "filtered": Schedule(tables.by_phase, filtered.change_times, filtered.change_to, filtered.first),
        }
        runs = {name: simulate_schedule(schedule, sampled.times, service, rng) for name, schedule in schedules.items()}
        for name, table in tables.single.items():
            runs[name] = simulate(policies.smdp(table.tolist()), sampled.times, service, rng)
        for name, run in runs.items():
            costs.setdefault(name, []).append(simulated_cost(problem, run))
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


def standard_error(values: Array) -> float:
    """Standard error of the mean of independent ``values``."""
    return float(values.std(ddof=1) / np.sqrt(len(values)))


# --- the trace


def halves(trace: Trace) -> tuple[Trace, Trace]:
    """The trace cut in the middle of its time."""
    middle = trace.duration / 2
    return trace.between(0, middle), trace.between(middle, np.inf)


def fits(trace: Trace, model: str) -> tuple[ArrivalProcess, ArrivalProcess]:
    """The process fitted to each half."""
    first, second = (ArrivalProcess.of(fit_arrivals(half, model)) for half in halves(trace))
    return first, second


def run_trace(load: float, energy: str, fitted: dict[str, tuple[ArrivalProcess, ArrivalProcess]]) -> Iterator[Row]:
    """Each half of the trace under the policies made for the other half's arrivals."""
    both = halves(read_trace(TRACE))
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


# --- the data


def read() -> list[Row]:
    """The rows that the last run of this script left."""
    with DATA.open(encoding="utf-8", newline="") as file:
        kinds = {f.name: {"str": str, "float": float}[str(f.type)] for f in fields(Row)}
        return [Row(**{name: kinds[name](value) for name, value in line.items()}) for line in csv.DictReader(file)]


def write(rows: Iterable[Row]) -> None:
    """The rows, seven digits."""
    with DATA.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([f.name for f in fields(Row)])
        for row in rows:
            table.writerow([f"{value:.7g}" if isinstance(value, float) else value for value in asdict(row).values()])


def compare_all(n_runs: int, n_requests: int) -> Iterator[Row]:
    """Every row of the page."""
    for i, setting in enumerate(settings()):
        yield from compare(setting, n_runs, n_requests, np.random.default_rng([1, i]))
        print(setting.key, flush=True)
    fitted = {model: fits(read_trace(TRACE), model) for model in TRACE_MODELS}
    for load, energy in product(TRACE_LOADS, ENERGIES):
        yield from run_trace(load, energy, fitted)
        print("trace", load, energy, flush=True)


# --- the page

SINGLE = ("Poisson", "control limit", "greedy")


def pick(rows: Sequence[Row], **values: str | float) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in values.items())]


def by_setting(rows: Sequence[Row]) -> list[dict[str, Row]]:
    """The rows of each setting by policy."""
    found: dict[tuple[str, str, float, str, float], dict[str, Row]] = {}
    for row in rows:
        found.setdefault((row.group, row.process, 0.0 if np.isnan(row.stay) else row.stay, row.energy, row.load), {})[
            row.policy
        ] = row
    return list(found.values())


def above(setting: dict[str, Row], policy: str) -> float:
    """By how many % of it a policy costs more than the tables of a server that sees the phase."""
    row, bound = setting[policy], setting["seen"].exact
    return 100 * (row.excess / bound if policy == "filtered" else row.exact / bound - 1)


def saved(setting: dict[str, Row], policies: Sequence[str]) -> float:
    """What the filtered tables save, % of the cheapest of these policies."""
    cost = setting["seen"].exact + setting["filtered"].excess
    return 100 * (1 - cost / min(setting[policy].exact for policy in policies))


def percent(value: float) -> str:
    """Two digits that mean something."""
    return f"{value:.0f}" if abs(value) >= 9.5 else f"{value:.1f}" if abs(value) >= 0.95 else f"{abs(value):.2f}"


def grid_table(rows: Sequence[Row]) -> str:
    """A line for each setting: the bound, and what the policies cost beyond it in %."""
    mixed = len({row.energy for row in rows}) > 1
    lines = [
        f"|{' energy |' * mixed} phases | stay, ms | load | seen | filtered | Poisson | control limit | greedy | right, % |",
        "|---|---|---|---|---|---|---|---|---|" + "---|" * mixed,
    ]
    for setting in by_setting(rows):
        seen, filtered = setting["seen"], setting["filtered"]
        beyond = f"{percent(above(setting, 'filtered'))} ± {percent(100 * filtered.excess_error / seen.exact)}"
        others = " | ".join(percent(above(setting, policy)) for policy in SINGLE)
        lines.append(
            f"|{f' {seen.energy} |' if mixed else ''} {seen.process} | {1e3 * seen.stay:g} | {seen.load:.3g} | {seen.exact:.2f} "
            f"| {beyond} | {others} | {100 * filtered.right:.0f} |"
        )
    return "\n".join(lines)


def cost_table(rows: Sequence[Row]) -> str:
    """A line for each setting and policy: the cost computed and simulated, and the latencies."""
    lines = ["| phases | policy | exact | simulated | mean latency, ms | p99, ms |", "|---|---|---|---|---|---|"]
    for setting in by_setting(rows):
        for name, row in setting.items():
            exact = "" if np.isnan(row.exact) else f"{row.exact:.3f}"
            lines.append(
                f"| {row.process if name == 'seen' else ''} | {name} | {exact} | {row.simulated:.3f} ± {row.error:.3f} "
                f"| {1e3 * row.latency:.2f} | {1e3 * row.p99:.1f} |"
            )
    return "\n".join(lines)


def latency_table(rows: Sequence[Row]) -> str:
    """The 99th percentile of the latency by policy, ms."""
    names = ("seen", "filtered", *SINGLE)
    lines = ["| phases | load | " + " | ".join(names) + " |", "|---|---|" + "---|" * len(names)]
    for setting in by_setting(rows):
        shown = " | ".join(f"{1e3 * setting[name].p99:.3g}" for name in names)
        lines.append(f"| {setting['seen'].process} | {setting['seen'].load:g} | {shown} |")
    return "\n".join(lines)


def trace_table(rows: Sequence[Row]) -> str:
    """What the policies cost on the trace beyond the Poisson policy, in %."""
    names = [name for name in dict.fromkeys(row.policy for row in rows) if name != "Poisson"]
    lines = ["| energy | load | Poisson | " + " | ".join(names) + " |", "|---|---|---|" + "---|" * len(names)]
    for setting in by_setting(rows):
        poisson = setting["Poisson"]
        cells = [
            f"{100 * setting[name].excess / poisson.simulated:+.1f} ± {100 * setting[name].excess_error / poisson.simulated:.1f}"
            for name in names
        ]
        lines.append(f"| {poisson.energy} | {poisson.load:g} | {poisson.simulated:.2f} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def page(rows: Sequence[Row]) -> str:
    """The page in Markdown."""
    grid = pick(rows, group="grid")
    settings_of = {energy: by_setting(pick(grid, energy=energy)) for energy in ENERGIES}
    known = [row for row in rows if not np.isnan(row.exact)]
    z = np.array([row.z for row in known])
    against_poisson = {energy: [saved(setting, ("Poisson",)) for setting in some] for energy, some in settings_of.items()}
    against_single = {energy: [saved(setting, SINGLE) for setting in some] for energy, some in settings_of.items()}
    everything = [setting for some in settings_of.values() for setting in some]
    lost = [setting for setting in everything if saved(setting, SINGLE) < 0]
    short = [setting for setting in lost if setting["seen"].stay == min(STAYS)]
    busy = [setting for setting in everything if setting["seen"].load >= 0.5]
    example = by_setting(pick(rows, group="example"))
    halved = by_setting(pick(rows, group="trace"))
    clear = [s for s in halved if s["filtered, MMPP(2)"].excess < -2 * s["filtered, MMPP(2)"].excess_error]
    return (
        "\n\n".join(
            [
                "# Arrivals with phases: what a table per phase saves",
                paragraph("""
                Made by `python studies/modulated_arrivals.py` from the data that it leaves in
                [modulated-arrivals.csv](../studies/modulated-arrivals.csv); a test makes this page again from the data, and some of
                the data from the models."""),
                paragraph(f"""
                The server is that of the SMDP papers, l(b) = 1.0524 + 0.3051 b ms, batches of up to {LARGEST}, and the cost is
                theirs, mean latency in ms plus mean power in W. A batch takes 19.6 mJ, and 19.9 mJ for each request in it; or ten
                times as much for itself (*dear batch*: an invocation that is paid for, a model that is loaded). Arrivals are an
                MMPP(2): a busy phase that lasts `stay` in the mean and a quiet one, with rates in the proportion 8 : 2 or 1 : 0,
                both phases lasting equally long, or 80 : 1, the quiet one eight times as long. The `load` is that of the mean
                rate."""),
                "## What is compared",
                "- **seen**: the optimal tables (docs/model.md, 4.5) on a server that sees the phase: the bound.\n"
                "- **filtered**: the same tables, that of the likeliest phase in force, the phase followed from the gaps alone.\n"
                "- **Poisson**: the one table that is optimal under Poisson arrivals of the mean rate.\n"
                "- **control limit**: wait for Q requests, then take all; the best Q under these very arrivals.\n"
                "- **greedy**: never wait.",
                paragraph(f"""
                All but the filtered one are computed exactly. What the filter costs beyond the bound is the difference of two
                simulations of the same {N_REQUESTS} arrivals, {N_RUNS} times over, after ± its standard error. The simulations of
                the others are the check of the exact figures: of {len(known)} simulated costs,
                {100 * np.mean(np.abs(z) > 2):.1f} % are further than 2 standard errors from the exact one, the furthest
                {np.abs(z).max():.1f} (errors are estimated from {N_RUNS} runs; policies of a setting share their arrivals)."""),
                "## An example",
                paragraph(f"""
                Batches of up to {SMALL}, phases of 50 ms, μ the rate of full batches. The busy phase may overload the server by
                itself; the tail of the tables is exact there too. One table is nearly as good as two in both: a table has the
                number waiting for its argument, and that tells most of what the phase would. Knowing the phase saves
                {" and ".join(f"{percent(above(setting, 'Poisson'))} %" for setting in example)} of the Poisson policy's cost,
                guessing it {" and ".join(f"{percent(saved(setting, ('Poisson',)))} %" for setting in example)}."""),
                cost_table(pick(rows, group="example")),
                "## Where it saves",
                paragraph(f"""
                Cost of the bound, and of the policies beyond it in %. With the papers' energies the filtered tables save
                {percent(float(np.median(against_poisson["papers'"])))} % of the Poisson policy's cost in the median over the
                settings and {percent(max(against_poisson["papers'"]))} % at most; of the cheapest single table's
                {percent(float(np.median(against_single["papers'"])))} % and {percent(max(against_single["papers'"]))} %. Where
                a batch is dear it is {percent(float(np.median(against_poisson["dear batch"])))} % and
                {percent(max(against_poisson["dear batch"]))} %, {percent(float(np.median(against_single["dear batch"])))} % and
                {percent(max(against_single["dear batch"]))} %. *Right* is the share of the time in which the likeliest phase is
                the true one."""),
                "The papers' energies:",
                grid_table(pick(grid, energy="papers'")),
                "A dear batch:",
                grid_table(pick(grid, energy="dear batch")),
                "![cost beyond the bound against the load](figures/modulated-saving.svg)",
                paragraph("""
                It saves where three things come together. Waiting must pay, else all tables are greedy (a load of 0.05 at the
                papers' energies). The load must be low: under a high one the queue is long in the busy phase and short in the quiet
                one, and tells the phase by itself. And the quiet phase must be so quiet that to wait there for the requests that
                the busy phase would bring in a moment takes long: then the Poisson policy holds the last requests of a burst
                until the next burst comes, and greedy forgoes the batches within it."""),
                paragraph(f"""
                It does not save where the phase cannot be told. In {len(lost)} of {len(everything)} settings one table for all
                phases costs less than filtered ones, in {len(short)} of these the phases last {1e3 * min(STAYS):g} ms, a few
                arrivals; the likeliest phase is then a poor summary of what is known. From a load of 0.5 on nothing beyond
                {percent(max(saved(setting, SINGLE) for setting in busy))} % is saved of the cheapest single table."""),
                "## The requests of the quiet phase",
                paragraph(f"""
                A mean hides that few requests bear it. The 99th percentile of the latency in ms, papers' energies, stay of
                {1e3 * SHOWN_STAY:g} ms; tables of least cost, so greedy has shorter ones where it costs more power."""),
                latency_table([row for row in pick(grid, energy="papers'", stay=SHOWN_STAY) if 0.1 <= row.load <= 0.3]),
                "## A phase that overloads the server",
                grid_table(pick(rows, group="overload")),
                paragraph("""
                The backlog of the busy phase makes the cost, and no table serves it faster; a control limit that was chosen with
                these arrivals in mind has next to all that can be had."""),
                "## A real trace",
                paragraph(f"""
                The [trace of a code-generation service](../examples/traces/README.md), so much faster that the mean load is as
                said, is cut in the middle of its time. Every policy is made for the arrivals of one half and run over the other,
                both ways; costs are relative to the Poisson policy's, in %, ± the standard error of the paired difference over
                {2 * TRACE_BLOCKS} blocks of successive requests. MMPP(2) is the likelihood fit (two phases), MAP what `sluice fit`
                chooses (here sixteen, most of them stages of Erlang gaps). The control limit is the best one in hindsight, for each
                half by itself, which nobody can have."""),
                trace_table(pick(rows, group="trace")),
                paragraph(f"""
                In {len(clear)} of {len(halved)} lines the filtered tables of the MMPP(2) are cheaper by more than two standard
                errors. Bursts of this trace are short and dense and its silences long, the case in which phases pay; the load at
                which they stop to pay is the same as above. At a load of 0.05 and the papers' energies the two phases fitted to one
                half are too coarse for the other and cost more than never waiting, which is what Poisson comes to there."""),
                "## The filter",
                "![a second of arrivals, the belief and the table in force](figures/modulated-filter.svg)",
                paragraph("""
                Arrivals in proportion 8 : 2 with phases of 50 ms at a load of 0.3: above each arrival, and the busy phase shaded;
                below the probability of the busy phase that the filter gives, which rises with each arrival and falls in each
                silence. The likeliest phase changes where it passes one half. A probability of 0.8 is right in 80 % of
                the cases (a test)."""),
            ]
        )
        + "\n"
    )


def paragraph(text: str) -> str:
    """The text in lines of the repository's width."""
    return textwrap.fill(" ".join(text.split()), 132, break_long_words=False, break_on_hyphens=False)


# --- the figures


def draw_savings(rows: Sequence[Row]) -> Figure:
    """Cost beyond the bound against the load, by energy and kind of phases."""
    figure = Figure((8, 4.4), layout="constrained")
    axes = figure.subplots(len(ENERGIES), len(KINDS), squeeze=False)
    for (row, energy), (column, kind) in product(enumerate(ENERGIES), enumerate(KINDS)):
        ax = axes[row][column]
        some = by_setting(pick(rows, group="grid", energy=energy, process=kind, stay=SHOWN_STAY))
        loads = [setting["seen"].load for setting in some]
        for policy, colour in zip(SINGLE, ("C1", "C2", "C7"), strict=True):
            ax.plot(loads, [above(setting, policy) for setting in some], ".-", color=colour, linewidth=1, label=policy)
        errors = [200 * setting["filtered"].excess_error / setting["seen"].exact for setting in some]
        ax.errorbar(loads, [above(setting, "filtered") for setting in some], errors, fmt="o-", color="C0", ms=3, label="filtered")
        ax.set_ylim(0, 1.15 * max(max(above(setting, policy) for policy in ("Poisson", "filtered")) for setting in some))
        ax.set_title(f"{kind}, {energy}", fontsize=8)
        if row == len(ENERGIES) - 1:
            ax.set_xlabel("load")
        if column == 0:
            ax.set_ylabel("cost beyond the bound, %")
    axes[0][0].legend(fontsize=7)
    return figure


def draw_filter(rng: np.random.Generator) -> Figure:
    """A stretch of arrivals with their hidden phases, and the probability that the filter gives the busy one."""
    arrivals = process_of("8 : 2", SHOWN_STAY, 0.3)
    sampled = sample(arrivals, 4000, rng)
    filtered = filter_phases(arrivals, sampled.times)
    start, end = 1.0, 1.6
    at = np.union1d(np.linspace(start, end, 400), sampled.times[(sampled.times > start) & (sampled.times < end)])
    figure = Figure((8, 2.8), layout="constrained")
    above_ax, below_ax = figure.subplots(2, 1, sharex=True, height_ratios=(1, 3))
    within = sampled.times[(sampled.times > start) & (sampled.times < end)]
    above_ax.vlines(within, 0, 1, color="k", linewidth=0.4)
    above_ax.set_yticks([])
    edges = np.concatenate([[0.0], sampled.shift_times, sampled.times[-1:]])
    for i, (left, right) in enumerate(pairwise(edges)):
        if (sampled.first + i) % 2 == 0 and right > start and left < end:
            for ax in (above_ax, below_ax):
                ax.axvspan(left, right, color="C0", alpha=0.15, linewidth=0)
    below_ax.plot(at, filtered.belief(at)[:, 0], color="C0", linewidth=0.8)
    below_ax.step(at, np.where(filtered.likeliest(at) == 0, 1.03, -0.03), where="post", color="C3", linewidth=1)
    below_ax.axhline(0.5, color="k", linewidth=0.5)
    below_ax.set_xlim(start, end)
    below_ax.set_xlabel("s")
    below_ax.set_ylabel("probability of busy")
    return figure


def main() -> None:
    """Write the figures and the page, and the data where they are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--simulate", action="store_true", help="make the data anew, which takes half an hour; else they are read")
    if parser.parse_args().simulate:
        write(compare_all(N_RUNS, N_REQUESTS))
    rows = read()
    matplotlib.rcParams.update(
        {"svg.hashsalt": "modulated-arrivals", "svg.fonttype": "none", "font.size": 8, "axes.grid": True, "grid.alpha": 0.3}
    )
    (DOCS / "figures").mkdir(exist_ok=True)
    figures = {"modulated-saving.svg": draw_savings(rows), "modulated-filter.svg": draw_filter(np.random.default_rng(4))}
    for name, figure in figures.items():
        figure.savefig(DOCS / "figures" / name, metadata={"Date": None})
    (DOCS / "modulated-arrivals.md").write_text(page(rows), encoding="utf-8")
    print("wrote", DATA.name, "modulated-arrivals.md", *figures)


if __name__ == "__main__":
    main()
