"""The runs of the study: every system on every demand, and the bound that none can pass."""

from __future__ import annotations

import sys
import time
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.control.controller import ControlSettings
from sluice.optimizer.fleet.specification import Fleet

from .bound import BOUND, bound
from .drawn import FRESH, HELD_OUT, KINDS, WINDOW, Fresh, at_mean_rates, burst, drawn_again, fresh_demand, rates
from .instances import check_instances
from .one_queue import LOADS, REQUESTS, compare_tables
from .readers import DEVICES, Demand, published_fleet, read_deadlines, read_demand, unprofiled
from .results import Cell, Facts, Instances, Measured, Run, Study, Window
from .systems import ABLATIONS, BATCHING, FIRST_GUESS, MILDER, OURS, PROTEUS, SEED, STEPS, SYSTEMS, Ran, System, run_system

TIGHT = {"CPU": 4}
SCARCE = {"CPU": 6, "AMPERE": 3, "PASCAL": 3}
BOTH = {name: SYSTEMS[name] for name in (OURS, PROTEUS)}
PARTS = (
    "ablations",
    "headrooms",
    "deadlines",
    "loading",
    "seeds",
    "guesses",
    "fresh",
    "held out",
    "stress",
    "burst",
    "batching",
    "one queue",
    "real time",
)
STRESS = 3.5  # times the demand


@dataclass(frozen=True)
class Options:
    """What is run.

    Parameters
    ----------
    experiment, slo : str
        The trace of the main comparison: traces/EXPERIMENT/SLO.
    fleets : sequence of mappings
        Devices of each type.
    batching : sequence of str
        The experiments of the comparison of batching; Poisson and gamma arrivals are drawn at the rates of the first.
    tight : mapping
        A fleet on which that comparison is made as well, beside the first.
    parts : sequence of str
        What is run beside the main comparison.
    load_times : sequence of float
        Seconds that a device takes to load a variant.
    headrooms : sequence of float
        Of ours, each kept to.
    seeds : sequence of int
        Of arrivals drawn again.
    guesses : sequence of float
        Requests/s of each family that are expected before the first second, beside the mean rates of the trace.
    fresh : sequence of Fresh
    held_out : sequence of Fresh
        On every fleet.
    fresh_seconds : float
        Length of each.
    stressed : sequence of sequences of float
        Headrooms, of which ours takes the best each time, when demand is ``STRESS`` times as high.
    burst : tuple
        From, to, end (s), times the demand before.
    loads, requests : sequence of float, int
        Of one queue.
    """

    experiment: str = "zipf_exponential"
    slo: str = "300"
    fleets: Sequence[Mapping[str, int]] = (DEVICES, SCARCE)
    batching: Sequence[str] = ("zipf_flat_uniform", "zipf_gamma")
    tight: Mapping[str, int] = field(default_factory=lambda: TIGHT)
    parts: Sequence[str] = PARTS
    load_times: Sequence[float] = (0.0, 0.5, 2.0, 5.0)
    headrooms: Sequence[float] = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0)
    seeds: Sequence[int] = (1, 2, 3)
    guesses: Sequence[float] = (FIRST_GUESS, 10.0)
    fresh: Sequence[Fresh] = FRESH
    held_out: Sequence[Fresh] = HELD_OUT
    fresh_seconds: float = 120.0
    stressed: Sequence[Sequence[float]] = (ControlSettings.headrooms, (1.1,), (1.25,))
    burst: tuple[float, float, float, float] = (100.0, 160.0, 240.0, 4.0)
    loads: Sequence[float] = LOADS
    requests: int = REQUESTS


@dataclass
class Recorder:
    """Collects runs and windows, and says on stderr how far it is."""

    runs: list[Run] = field(default_factory=list)
    windows: list[Window] = field(default_factory=list)
    made: dict[Hashable, tuple[Run, System, Demand]] = field(default_factory=dict)  # so that nothing is run twice
    decisions: dict[str, list[float]] = field(default_factory=dict)  # seconds, by who decided

    def add(self, part: str, case: str, system: str, ran: Ran, *, keep_windows: bool = False) -> None:
        """One run."""
        run = ran.run
        self.runs.append(
            Run(
                part,
                case,
                system,
                run.n_requests,
                run.violation_ratio,
                run.effective_accuracy,
                run.max_accuracy_drop(WINDOW),
                run.throughput,
                float(np.isnan(run.latency).mean()),
                run.utilisation,
                ran.plans,
                ran.asked,
                ran.swaps,
            )
        )
        if part == "systems" and system in (OURS, PROTEUS):
            self.decisions[f"{system}, {case}"] = list(ran.seconds)
        if keep_windows:
            series = run.series(WINDOW)
            rows = (series.edges, series.arrival_rate, series.throughput, series.effective_accuracy, series.violation_ratio)
            self.windows += [Window(case, system, *map(float, row)) for row in zip(rows[0][:-1], *rows[1:], strict=True)]
        if not part.startswith("families"):
            print(f"{part}, {case}, {system}: {100 * run.violation_ratio:.2f} % violations", file=sys.stderr, flush=True)


def compute(folder: Path, options: Options) -> Study:
    """Run the study on the data of a folder.

    Raises
    ------
    InvalidInput
        What is missing in the folder, or cannot be read, named.
    """
    start = time.process_time()
    demand = read_demand(folder, options.experiment, options.slo)
    recorder = Recorder()
    for devices in options.fleets:
        _compare(recorder, folder, demand, devices)
    scarce = options.fleets[-1]
    if "ablations" in options.parts:
        for devices in options.fleets:
            _ablate(recorder, folder, demand, devices)
    if "headrooms" in options.parts:
        _vary_headroom(recorder, folder, demand, scarce, options.headrooms)
    if "deadlines" in options.parts:
        _vary_deadline(recorder, folder, demand, scarce)
    if "loading" in options.parts:
        _vary_loading(recorder, folder, demand, scarce, options.load_times)
    if "seeds" in options.parts:
        _resample(recorder, folder, demand, scarce, options.seeds)
    if "guesses" in options.parts:
        for devices in options.fleets:
            _vary_guess(recorder, folder, demand, devices, options.guesses)
    if "fresh" in options.parts:
        for fresh in options.fresh:
            _hold_out(recorder, "fresh", folder, demand, scarce, fresh, options.fresh_seconds)
    if "held out" in options.parts:
        for devices in options.fleets:
            for fresh in options.held_out:
                _hold_out(recorder, "held out", folder, demand, devices, fresh, options.fresh_seconds)
    if "stress" in options.parts:
        _stress(recorder, folder, demand, options.fleets[0], options.stressed)
    if "burst" in options.parts:
        _burst(recorder, folder, demand, scarce, options.burst)
    if "batching" in options.parts:
        _batch(recorder, folder, options)
    cells: list[Cell] = []
    if "one queue" in options.parts:
        whole = published_fleet(folder, demand.deadlines, options.fleets[0])
        cells = list(compare_tables(whole, options.loads, options.requests))
    decisions = {who: (float(np.mean(seconds)), max(seconds)) for who, seconds in recorder.decisions.items()}
    at_once = in_real_time(folder, demand, options.fleets) if "real time" in options.parts else {}
    measured = Measured(instances(folder), decisions, at_once, round(time.process_time() - start, 1))
    return Study(recorder.runs, recorder.windows, cells, facts_of(folder, demand, options, measured))


def facts_of(folder: Path, demand: Demand, options: Options, measured: Measured) -> Facts:
    """What the page says of the demand and the fleets."""
    return Facts(
        experiment=f"{options.experiment}/{options.slo}",
        families={name: len(times) for name, times in demand.arrivals.items()},
        requests=demand.n_requests,
        duration=round(demand.duration, 1),
        deadlines_ms={name: round(1000 * seconds, 3) for name, seconds in demand.deadlines.items()},
        burst=options.burst,
        fleets={named(devices): dict(devices) for devices in options.fleets},
        unprofiled=unprofiled(folder, demand.arrivals),
        best={named(devices): best_accuracies(folder, demand, devices) for devices in options.fleets},
        stress=STRESS,
        measured=measured,
    )


def instances(folder: Path) -> Instances | None:
    """How the planner does on the instances with proven optima, if the folder has them."""
    if not (folder / "milp_instances.json").exists():
        return None
    rows = check_instances(folder)
    seconds = [row.seconds for row in rows]
    off = max(abs(row.difference) for row in rows)
    return Instances(len(rows), sum(row.converged for row in rows), off, float(np.mean(seconds)), max(seconds))


def in_real_time(folder: Path, demand: Demand, fleets: Sequence[Mapping[str, int]]) -> dict[str, tuple[float, float]]:
    """Violations and accuracy of ours, by fleet, where a plan comes into force as soon as this machine has found it."""
    found = {}
    for devices in fleets:
        fleet = published_fleet(folder, demand.deadlines, devices)
        ran = run_system(SYSTEMS[OURS], fleet, list(demand.arrivals.values()), rates(demand)[0], decision_time=None)
        found[named(devices)] = ran.run.violation_ratio, ran.run.effective_accuracy
    return found


def named(devices: Mapping[str, int]) -> str:
    """A fleet in words."""
    return f"{sum(devices.values())} devices"


def _run(recorder: Recorder, part: str, case: str, names: Mapping[str, System], fleet: Fleet, demand: Demand, **how: Any) -> None:
    keep, expected = how.pop("keep_windows", False), how.pop("expected", FIRST_GUESS)
    peak, _ = rates(demand)
    standard = ControlSettings()
    fixed = tuple((family.name, family.slo.latency) for family in fleet.families), tuple((d.name, d.count) for d in fleet.devices)
    for name, system in names.items():
        usual = {key: system.settings.get(key, getattr(standard, key)) for key in how}
        changes = tuple((key, value) for key, value in sorted(how.items()) if usual[key] != value)
        # of objects that ``made`` keeps alive
        key = id(system), id(demand.arrivals), fixed, changes, np.array(expected).tobytes()
        if key in recorder.made and not keep:
            recorder.runs.append(replace(recorder.made[key][0], part=part, case=case, system=name))
            continue
        ran = run_system(system, fleet, list(demand.arrivals.values()), peak, expected, **how)
        recorder.add(part, case, name, ran, keep_windows=keep)
        recorder.made[key] = recorder.runs[-1], system, demand
        if part == "systems" and name in (OURS, PROTEUS):
            for q, family in enumerate(demand.arrivals):
                recorder.add(f"families, {name}", case, family, replace(ran, run=ran.run.of_family(q)))


def _compare(recorder: Recorder, folder: Path, demand: Demand, devices: Mapping[str, int]) -> None:
    """The main comparison on one fleet, with the bound."""
    fleet, case = published_fleet(folder, demand.deadlines, devices), named(devices)
    _run(recorder, "systems", case, SYSTEMS, fleet, demand, keep_windows=True)
    _run(recorder, "milder", case, MILDER, fleet, demand)
    _bound(recorder, "systems", case, fleet, demand, keep_windows=True)


def _bound(recorder: Recorder, part: str, case: str, fleet: Fleet, demand: Demand, keep_windows: bool = False) -> None:
    """The bound as one more system."""
    windows = list(bound(fleet, demand, WINDOW))
    total = sum(window.demand for window in windows)
    served = sum(window.throughput for window in windows)
    earned = sum(window.throughput * window.accuracy for window in windows if window.throughput)
    worst = max(100 - window.accuracy for window in windows if window.throughput)
    rate, accuracy, missed = WINDOW * served / demand.duration, earned / served, max(0.0, round(1 - served / total, 9))
    recorder.runs.append(Run(part, case, BOUND, demand.n_requests, missed, accuracy, worst, rate, 0.0, np.nan, 0, 0, 0))
    if keep_windows:
        recorder.windows += [replace(window, case=case) for window in windows]


def best_accuracies(folder: Path, demand: Demand, devices: Mapping[str, int]) -> dict[str, float]:
    """Accuracy of the most accurate variant of each family that a device serves, percent."""
    problem = published_fleet(folder, demand.deadlines, devices).problem()
    able = problem.throughput.any(axis=0)
    best = [problem.accuracy[able & (problem.family == q)].max(initial=0.0) for q in range(problem.n_families)]
    return {family: float(accuracy) for family, accuracy in zip(demand.arrivals, best, strict=True)}


def _ablate(recorder: Recorder, folder: Path, demand: Demand, devices: Mapping[str, int]) -> None:
    fleet = published_fleet(folder, demand.deadlines, devices)
    _run(recorder, "ablations", named(devices), {PROTEUS: SYSTEMS[PROTEUS], **ABLATIONS}, fleet, demand)
    _run(recorder, "steps", named(devices), {PROTEUS: SYSTEMS[PROTEUS], **STEPS, OURS: SYSTEMS[OURS]}, fleet, demand)


def _vary_deadline(recorder: Recorder, folder: Path, demand: Demand, devices: Mapping[str, int]) -> None:
    for setting, deadlines in read_deadlines(folder).items():
        if all(family in deadlines for family in demand.arrivals):
            fleet = published_fleet(folder, {family: deadlines[family] for family in demand.arrivals}, devices)
            _run(recorder, "deadlines", setting, SYSTEMS, fleet, demand)


def _vary_headroom(
    recorder: Recorder, folder: Path, demand: Demand, devices: Mapping[str, int], headrooms: Sequence[float]
) -> None:
    fleet = published_fleet(folder, demand.deadlines, devices)
    for headroom in headrooms:
        _run(recorder, "headrooms", f"{headroom:g}", {OURS: SYSTEMS[OURS]}, fleet, demand, headrooms=(headroom,))


def _vary_loading(
    recorder: Recorder, folder: Path, demand: Demand, devices: Mapping[str, int], load_times: Sequence[float]
) -> None:
    fleet = published_fleet(folder, demand.deadlines, devices)
    for load_time in load_times:
        _run(recorder, "loading", f"{load_time:g} s", BOTH, fleet, demand, load_time=load_time)


def _resample(recorder: Recorder, folder: Path, demand: Demand, devices: Mapping[str, int], seeds: Sequence[int]) -> None:
    """The demand of every second again, arriving at random within it."""
    fleet = published_fleet(folder, demand.deadlines, devices)
    for seed in seeds:
        _run(recorder, "seeds", str(seed), BOTH, fleet, drawn_again(demand, seed))


def _vary_guess(recorder: Recorder, folder: Path, demand: Demand, devices: Mapping[str, int], guesses: Sequence[float]) -> None:
    """By what is expected before the first second, and told the mean rates of the trace."""
    fleet = published_fleet(folder, demand.deadlines, devices)
    cases = {f"{guess:g}/s": guess for guess in guesses} | {"the mean rates": np.maximum(rates(demand)[1], 1e-3)}
    for case, expected in cases.items():
        _run(recorder, "guesses", f"{named(devices)}, {case}", BOTH, fleet, demand, expected=expected)


def _hold_out(
    recorder: Recorder, part: str, folder: Path, demand: Demand, devices: Mapping[str, int], fresh: Fresh, seconds: float
) -> None:
    """Demand that nobody tuned for, with the bound."""
    new = fresh_demand(demand, fresh, seconds)
    fleet = published_fleet(folder, new.deadlines, devices)
    case = f"{KINDS[fresh.kind]}, demand x {fresh.factor:g}, {1000 * fresh.deadline:g} ms"
    if part != "fresh":
        case = f"{named(devices)}: {case}"
    _run(recorder, part, case, BOTH, fleet, new)
    _bound(recorder, part, case, fleet, new)


def _stress(
    recorder: Recorder, folder: Path, demand: Demand, devices: Mapping[str, int], stressed: Sequence[Sequence[float]]
) -> None:
    """Several times the demand: ours with its headrooms, and keeping to one."""
    fleet = published_fleet(folder, demand.deadlines, devices)
    more = drawn_again(demand, SEED, STRESS)
    for headrooms in stressed:
        case = f"ours, headroom {headrooms[0]:g}" if len(headrooms) == 1 else OURS
        _run(recorder, "stress", named(devices), {case: SYSTEMS[OURS]}, fleet, more, headrooms=tuple(headrooms))
    _run(recorder, "stress", named(devices), {PROTEUS: SYSTEMS[PROTEUS]}, fleet, more)
    _bound(recorder, "stress", named(devices), fleet, more)


def _burst(
    recorder: Recorder, folder: Path, demand: Demand, devices: Mapping[str, int], shape: tuple[float, float, float, float]
) -> None:
    """A burst of Poisson arrivals in the mix of the trace."""
    fleet = published_fleet(folder, demand.deadlines, devices)
    _run(recorder, "burst", "burst", SYSTEMS, fleet, burst(demand, shape, SEED), keep_windows=True)


def _batch(recorder: Recorder, folder: Path, options: Options) -> None:
    """Tables under one planner, on each experiment, and on Poisson and gamma arrivals at the rates of the first."""
    demands = {}
    for experiment in options.batching:
        try:
            demands[experiment] = read_demand(folder, experiment, options.slo)
        except InvalidInput as error:
            print(f"batching: {error}", file=sys.stderr)
    if not demands:
        return
    demands |= at_mean_rates(next(iter(demands.values())), SEED)
    tables = {table: replace(SYSTEMS[PROTEUS], table=rule) for table, rule in BATCHING.items()}
    for devices in (options.fleets[0], options.tight):
        for name, demand in demands.items():
            fleet = published_fleet(folder, demand.deadlines, devices)
            _run(recorder, "batching", f"{name}, {named(devices)}", {**tables, "ours, whole": SYSTEMS[OURS]}, fleet, demand)
