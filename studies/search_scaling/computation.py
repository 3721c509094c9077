"""The searches of every size, and the CPU seconds and megabytes that each takes."""

from __future__ import annotations

import multiprocessing
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, Slo
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing.cost import invocation_costs
from sluice.optimizer.function.waiting_time import SizeOrTimeout
from sluice.optimizer.recommend import Limits, Question, recommend
from sluice.optimizer.recommend.function_choice import N_RUNNERS_UP
from sluice.optimizer.recommend.search import Landscape, Search
from sluice.optimizer.service.times import ServiceTimes, service_times

from .results import Point, Study

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
    return ServiceProfile(function="f-{memory_mb}", points=points)


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


def whole_grid(size: Size) -> Callable[[], tuple[Landscape, float | None]]:
    """Cost and margin at every point of the grid, none skipped."""
    return _landscape(size, size.memory_sizes + 1)


def search(size: Size) -> Callable[[], object]:
    """The best setting of each of the best memory sizes, in ``recommend``'s number, by visiting what may be one."""
    return _landscape(size, min(N_RUNNERS_UP + 1, size.memory_sizes))


def _landscape(size: Size, n_best: int) -> Callable[[], tuple[Landscape, float | None]]:
    process, functions, timeouts = arrivals(size.phases), services(size), grid(size)
    bills = [invocation_costs(function) for function in functions]
    compute, fees = np.array([by_size for by_size, _ in bills]), np.array([fee for _, fee in bills])

    def run() -> tuple[Landscape, float | None]:
        search = Search(process, functions, compute, fees, LONGEST_TIMEOUT)
        return search.landscape([SLO], timeouts, n_best=n_best, refine=False)

    return run


def recommendation(size: Size) -> Callable[[], object]:
    """The whole answer from that grid: search, frontier, sensitivity, break-even rate."""
    process, measured, timeouts = arrivals(size.phases), profile(size.memory_sizes, size.batch_size), grid(size)
    limits = Limits(max_batch_size=size.batch_size, timeouts=tuple(timeouts.tolist()), policies="size-or-timeout")
    question = Question(process, measured, (SLO,), limits=limits)
    return lambda: recommend(question).frontier


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


def compute() -> Study:
    """Everything; compiled code is warm before the processes part."""
    for build in TASKS.values():
        build(Size(4, 2, 4, 2))()
    wanted = [(task, parameter, value) for task in TASKS for parameter in GOVERNING[task] for value in SWEEPS[parameter]]
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        points = pool.starmap(measure, wanted, chunksize=1)
    return Study(machine(), points)


def machine() -> str:
    """What it ran on."""
    with open("/proc/cpuinfo", encoding="ascii", errors="replace") as file:
        names = {line.split(":", 1)[1].strip() for line in file if line.startswith("model name")}
    return f"{', '.join(sorted(names)) or platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}"
