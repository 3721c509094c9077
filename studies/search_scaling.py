"""What a search costs in time and memory: writes docs/search-scaling.md, its figure and its data.

    python studies/search_scaling.py

Measured on one core, the compiled code warm, each point in a process of its own: the least CPU time of three runs (on an idle
machine, as there is one thread, the time it takes), and by how much the first of them raised the peak of the resident memory. From
one base setting the largest batch size, the number of phases, of timeouts and of memory sizes are varied one at a time. The data
stays in studies/search-scaling.json; page and figure are made from it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing.cost import invocation_costs
from sluice.optimizer.function.waiting_time import SizeOrTimeout
from sluice.optimizer.recommend import Limits, Question, recommend
from sluice.optimizer.recommend.function_choice import N_RUNNERS_UP
from sluice.optimizer.recommend.search import Search
from sluice.optimizer.service.times import ServiceTimes, service_times

DOCS = Path(__file__).parents[1] / "docs"
DATA = Path(__file__).parent / "search-scaling.json"
ONE_CORE = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

ARRIVAL_RATE = 300.0  # requests/s, so that the longest timeout can gather the largest batch
SLO = Slo(0.2, 95)
LONGEST_TIMEOUT = 2 * SLO.latency
LEVELS = (0.0, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0)
SHAPE = (0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.8)  # of the mean service time, at these levels
RUNS = 3


@dataclass(frozen=True)
class Size:
    """How large a search is."""

    batch_size: int = 64
    phases: int = 2
    timeouts: int = 64
    memory_sizes: int = 46


BASE = Size()
SWEEPS: dict[str, Sequence[int]] = {
    "batch_size": (8, 16, 32, 64, 128),
    "phases": (1, 2, 4, 8, 16),
    "timeouts": (16, 32, 64, 128, 256),
    "memory_sizes": (1, 3, 6, 12, 23, 46),
}
LABELS = {"batch_size": "largest batch size", "phases": "phases", "timeouts": "timeouts", "memory_sizes": "memory sizes"}


@dataclass(frozen=True)
class Point:
    """CPU seconds and megabytes that ``task`` took when ``parameter`` was ``value`` and all else as in the base setting."""

    task: str
    parameter: str
    value: int
    seconds: float
    megabytes: float


# --- what is measured


def arrivals(phases: int) -> ArrivalProcess:
    """An MMPP whose rates span a factor of 16 and whose phases last about a second; Poisson for one."""
    if phases == 1:
        return poisson(ARRIVAL_RATE)
    neighbours = np.eye(phases, k=1) + np.eye(phases, k=-1)
    process = mmpp(np.geomspace(1, 16, phases), neighbours - np.diag(neighbours.sum(axis=1)))
    faster = ARRIVAL_RATE / process.arrival_rate
    return ArrivalProcess(process.D0 - (faster - 1) * process.D1, faster * process.D1, "mmpp")


def profile(memory_sizes: int, batch_size: int) -> ServiceProfile:
    """6 + b ms at 1769 MB, slower with less memory, at seven quantile points."""
    points = []
    for memory_mb in np.linspace(10240, 128, memory_sizes).astype(int).tolist():
        for b in (2**i for i in range(batch_size.bit_length())):
            mean = (0.006 + 0.001 * b) * max(1769 / memory_mb, 0.2)
            quantiles = [(q, mean * part) for q, part in zip(LEVELS, SHAPE, strict=True)]
            points.append(ProfilePoint(memory_mb, b, ServiceTime(mean, quantiles, 100), mean))
    return ServiceProfile(function="f", points=points)


def services(size: Size) -> list[ServiceTimes]:
    """Service times at every memory size."""
    measured = profile(size.memory_sizes, size.batch_size)
    return [service_times(measured, memory_mb, size.batch_size) for memory_mb in measured.memory_sizes]


def grid(size: Size) -> Array:
    """The timeouts, s."""
    return np.linspace(0, LONGEST_TIMEOUT, size.timeouts + 1)[1:]


def one_setting(size: Size) -> Callable[[], object]:
    """The batching law at one timeout and what fraction keeps the SLO, for every batch size."""
    process, service = arrivals(size.phases), services(Size(size.batch_size, memory_sizes=1))[0]

    def run() -> object:
        law = SizeOrTimeout(process, size.batch_size, SLO.latency)
        return law.fraction_within(service.response[None], service.quantile_levels, np.array([SLO.latency]))

    return run


def whole_grid(size: Size) -> Callable[[], object]:
    """Cost and margin at every point of the grid, none skipped."""
    return _landscape(size, size.memory_sizes + 1)


def search(size: Size) -> Callable[[], object]:
    """The best setting of each of the best memory sizes, in ``recommend``'s number, by visiting what may be one."""
    return _landscape(size, min(N_RUNNERS_UP + 1, size.memory_sizes))


def _landscape(size: Size, n_best: int) -> Callable[[], object]:
    process, functions, timeouts = arrivals(size.phases), services(size), grid(size)
    bills = [invocation_costs(function) for function in functions]
    compute, fees = np.array([by_size for by_size, _ in bills]), np.array([fee for _, fee in bills])

    def run() -> object:
        search = Search(process, functions, compute, fees, LONGEST_TIMEOUT)
        return search.landscape([SLO], timeouts, n_best=n_best, refine=False)

    return run


def recommendation(size: Size) -> Callable[[], object]:
    """The whole answer from that grid: search, frontier, sensitivity, break-even rate."""
    process, measured, timeouts = arrivals(size.phases), profile(size.memory_sizes, size.batch_size), grid(size)
    limits = Limits(max_batch_size=size.batch_size, timeouts=tuple(timeouts.tolist()), policies="size-or-timeout")
    question = Question(process, measured, (SLO,), limits=limits)
    return lambda: recommend(question)


TASKS: dict[str, Callable[[Size], Callable[[], object]]] = {
    "one timeout, one memory size": one_setting,
    "search": search,
    "every point of the grid": whole_grid,
    "recommend": recommendation,
}
GOVERNING = {task: ("batch_size", "phases") if build is one_setting else tuple(SWEEPS) for task, build in TASKS.items()}


def measure(task: str, parameter: str, value: int) -> Point:
    """One point; call it in a fresh process, as memory once taken is kept."""
    run = TASKS[task](Size(**{**asdict(BASE), parameter: value}))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak starts anew
    before = _resident("VmRSS")
    seconds = [_timed(run)]
    peak = _resident("VmHWM")
    seconds += [_timed(run) for _ in range(RUNS - 1)]
    return Point(task, parameter, value, min(seconds), max(0.0, peak - before))


def _timed(run: Callable[[], object]) -> float:
    start = time.process_time()
    run()
    return time.process_time() - start


def _resident(name: str) -> float:
    """MB of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith(name))


def measure_all() -> dict[str, object]:
    """Everything; compiled code is warm before the processes part."""
    for build in TASKS.values():
        build(Size(4, 2, 4, 2))()
    wanted = [(task, parameter, value) for task in TASKS for parameter in GOVERNING[task] for value in SWEEPS[parameter]]
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        points = pool.starmap(measure, wanted, chunksize=1)
    return {"machine": machine(), "points": [asdict(point) for point in points]}


def machine() -> str:
    """What it ran on."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        names = {line.split(":", 1)[1].strip() for line in file if line.startswith("model name")}
    return f"{', '.join(sorted(names)) or platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}"


# --- the page


def read() -> tuple[str, list[Point]]:
    """Machine and points of the last run."""
    data = json.loads(DATA.read_text(encoding="utf-8"))
    return data["machine"], [Point(**point) for point in data["points"]]


def curve(points: Sequence[Point], task: str, parameter: str) -> list[Point]:
    """The points of one task along one parameter."""
    return [point for point in points if (point.task, point.parameter) == (task, parameter)]


def exponent(points: Sequence[Point]) -> float:
    """Slope of log time over log parameter through the last three points."""
    x, y = np.log([(point.value, point.seconds) for point in points[-3:]]).T
    return float(np.polyfit(x, y, 1)[0])


def at_base(points: Sequence[Point], task: str) -> Point:
    """The task at the base setting: the quickest of the times it was measured there."""
    base = [p for p in points if p.task == task and p.value == getattr(BASE, p.parameter)]
    return min(base, key=lambda point: point.seconds)


def table(points: Sequence[Point]) -> str:
    """Time, memory and exponent by task and parameter."""
    lines = ["| | varied | from, to | CPU seconds | MB | time grows as |", "|---|---|---|---|---|---|"]
    for task in TASKS:
        for parameter in GOVERNING[task]:
            along = curve(points, task, parameter)
            first, last = along[0], along[-1]
            lines.append(
                f"| {task if parameter == GOVERNING[task][0] else ''} | {LABELS[parameter]} | {first.value}, {last.value} "
                f"| {first.seconds:.3g}, {last.seconds:.3g} | {first.megabytes:.0f}, {last.megabytes:.0f} "
                f"| power {exponent(along):.1f} |"
            )
    return "\n".join(lines)


def page(machine: str, points: Sequence[Point]) -> str:
    """The page in Markdown."""
    found, whole, answer = (at_base(points, task) for task in ("search", "every point of the grid", "recommend"))
    settings = BASE.memory_sizes * BASE.batch_size * BASE.timeouts
    return (
        "\n\n".join(
            [
                "# What a search costs",
                paragraph(f"""
                Made by `python studies/search_scaling.py` from the data that it leaves in
                [search-scaling.json](../studies/search-scaling.json). CPU seconds of one core, the least of {RUNS} runs with the
                compiled code warm, on {machine}; the powers travel better than the seconds."""),
                paragraph(f"""
                **{BASE.memory_sizes} memory sizes × {BASE.batch_size} batch sizes × {BASE.timeouts} timeouts, MMPP(2):
                {found.seconds:.2f} s** and {found.megabytes:.0f} MB. The search (docs/model.md, 3.3) visits what may be the
                best setting of one of the {N_RUNNERS_UP + 1} best memory sizes; cost and SLO margin at every one of the
                {settings} points take {whole.seconds:.2f} s,
                {1e6 * whole.seconds / settings:.1f} µs each. `recommend` adds the frontier, the sensitivity and the
                break-even rate: {answer.seconds:.2f} s in all."""),
                paragraph(f"""
                Setting: an MMPP of {ARRIVAL_RATE:.0f} requests/s whose phases differ in their rates by up to a factor of 16,
                {BASE.timeouts} timeouts to {LONGEST_TIMEOUT:g} s, {SLO.name} within {SLO.latency:g} s,
                service times by {len(LEVELS)} quantile points. From there one number at a time is varied. A power is the slope
                of log time over log number through the last three points; less than 1 means that a part is
                shared. MB are what the first run added to the peak of the process."""),
                table(points),
                "![seconds and megabytes against each number](figures/search-scaling.svg)",
                paragraph("""
                One batching law per timeout serves every batch size and memory size, so more memory sizes cost only the SLO's
                evaluation. Every phase of an MMPP may follow an arrival, which is the dearest case: a fit by Erlang states has
                as few rows to follow as it has states, however many stages these have. Memory goes to the uniformized chain,
                docs/model.md (1.4), which grows with the batch size, with the square of the phases, and with the largest
                rate times the longest timeout; and to the laws, which are kept for each timeout."""),
            ]
        )
        + "\n"
    )


def paragraph(text: str) -> str:
    """The text in lines of the repository's width."""
    return textwrap.fill(" ".join(text.split()), 132, break_long_words=False, break_on_hyphens=False)


def draw(points: Sequence[Point]) -> Figure:
    """Time and memory, log-log, a column for each parameter."""
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    panels = figure.subplots(2, len(SWEEPS), sharex="col", sharey="row")
    for column, parameter in enumerate(SWEEPS):
        for color, task in enumerate(TASKS):
            along = curve(points, task, parameter)
            at = [point.value for point in along]
            panels[0, column].loglog(at, [point.seconds for point in along], f"C{color}s-", markersize=2.5, label=task)
            panels[1, column].loglog(at, [max(point.megabytes, 0.1) for point in along], f"C{color}s-", markersize=2.5)
        panels[1, column].set_xlabel(LABELS[parameter])
        panels[1, column].set_xticks(SWEEPS[parameter], [str(value) for value in SWEEPS[parameter]], minor=False)
        for axes in panels[:, column]:
            axes.xaxis.set_minor_locator(NullLocator())
            axes.yaxis.set_minor_locator(NullLocator())
            axes.tick_params(bottom=False, left=False)  # the grid shows the same
    panels[0, 0].set_ylabel("CPU seconds")
    panels[1, 0].set_ylabel("MB")
    figure.legend(*panels[0, 0].get_legend_handles_labels(), loc="outside upper center", ncols=len(TASKS), fontsize=7)
    return figure


def main() -> None:
    """Measure in a process that has one core, then write data, figure and page."""
    if not ONE_CORE.items() <= os.environ.items():  # numpy reads them as it is imported
        raise SystemExit(subprocess.run([sys.executable, __file__], env={**os.environ, **ONE_CORE}, check=False).returncode)
    DATA.write_text(json.dumps(measure_all(), indent=1) + "\n", encoding="utf-8")
    where, points = read()
    matplotlib.rcParams.update(
        {"svg.hashsalt": "search-scaling", "svg.fonttype": "none", "font.size": 8, "axes.grid": True, "grid.alpha": 0.3}
    )
    (DOCS / "figures").mkdir(exist_ok=True)
    draw(points).savefig(DOCS / "figures" / "search-scaling.svg", metadata={"Date": None})
    (DOCS / "search-scaling.md").write_text(page(where, points), encoding="utf-8")
    written = (DATA, DOCS / "search-scaling.md", DOCS / "figures" / "search-scaling.svg")
    print("wrote", ", ".join(str(path.relative_to(DOCS.parent)) for path in written))


if __name__ == "__main__":
    main()
