"""The exact latency law and BATCH's approximation against simulation: writes docs/latency-models.md, its figures and its data.

    python studies/latency_models.py [--requests N]

Every setting of a grid arrivals x batch size x timeout x service is simulated by the simulator of this file, which shares nothing
with the event loop of ``sluice.optimizer.simulation`` and nothing with the models: it walks the jumps of the arrival process, fills
batches by their definition and draws each service time by inverting its quantile function. Beside the grid there are settings of
the kind that BATCH (Ali et al., SC'20) was tried on, and held-out ones whose arrivals, timeout and service are drawn at random.

The data in studies/latency-models.csv has a row for each setting and quantile; page and figures but the CDFs are made from it.
"""

from __future__ import annotations

import argparse
import csv
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar, cast

import matplotlib
import numba
import numpy as np
from matplotlib.figure import Figure

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.traces.trace import read_trace

F = TypeVar("F", bound=Callable[..., Any])

DOCS = Path(__file__).parents[1] / "docs"
DATA = Path(__file__).parent / "latency-models.csv"
TRACE = DOCS.parent / "examples" / "traces" / "azure_llm_code_excerpt.csv.gz"

BATCH_SIZES = (4, 8, 16, 32)
FILLS = (0.3, 1.0, 3.0)  # timeout as a multiple of the mean time that B - 1 further requests take
QUANTILES = (0.5, 0.9, 0.95, 0.99)
HELD_OUT_QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999)
N_HELD_OUT = 40
N_REQUESTS = 10_000_000
WARM_UP = 10_000  # requests
N_BLOCKS = 200  # for the standard error; the slowest bursts here last some hundreds of requests
REPORTED = 9.0  # %, the average error that BATCH reports


@dataclass(frozen=True)
class Setting:
    """What is simulated and predicted; ``group`` is grid, batch (as in BATCH's own trials) or held-out."""

    group: str
    process: str
    arrivals: ArrivalProcess
    law: str
    service: ServiceTimes
    batch_size: int
    timeout: float


@dataclass(frozen=True)
class Row:
    """A quantile of the latency (s) in a setting, three ways.

    ``standard_error`` (s) is that of ``simulated``; ``z`` is the simulated probability of a latency up to ``exact``, less the
    predicted one, in standard errors of the simulation.
    """

    group: str
    process: str
    law: str
    batch_size: int
    timeout: float
    mean_batch_size: float
    quantile: float
    simulated: float
    standard_error: float
    exact: float
    batch_paper: float
    z: float

    def error(self, method: str) -> float:
        """Relative error of a method, or what the simulation's standard error makes of it, in %."""
        if method == "simulation":
            return 100 * self.standard_error / self.simulated
        return 100 * float(getattr(self, method) / self.simulated - 1)


# --- the settings


def processes() -> dict[str, ArrivalProcess]:
    """The arrivals of the grid, 100 requests/s but for the trace's."""
    stages = 400 * (np.eye(4, k=1) - np.eye(4))
    last_to_first = np.zeros((4, 4))
    last_to_first[3, 0] = 400
    trace = read_trace(TRACE).sped_up(10)
    return {
        "Poisson": poisson(100),
        "MMPP(2), mild": mmpp2(150, 50, 1, 1),
        "MMPP(2), bursty": mmpp2(460, 20, 4.5, 1),
        "Erlang-4 gaps": ArrivalProcess(stages, last_to_first),
        "trace, fitted": ArrivalProcess.of(fit_arrivals(trace)),
    }


def deterministic(seconds: Callable[[Array], Array], largest: int) -> ServiceTimes:
    """Service times that batch size alone decides."""
    law = seconds(np.arange(1.0, largest + 1))
    return ServiceTimes(1769, law[:, None], np.zeros(largest), law)


def random_service(largest: int) -> ServiceTimes:
    """The mean of ``10 + 2 b`` ms, by seven quantile points with a tail."""
    levels = np.array([0, 0.05, 0.5, 0.9, 0.95, 0.99, 1])
    shape = np.array([0.6, 0.75, 0.95, 1.3, 1.5, 2.0, 3.0])
    mean = 0.010 + 0.002 * np.arange(1.0, largest + 1)
    seconds = mean[:, None] * (shape / np.trapezoid(shape, levels))
    return ServiceTimes(1769, seconds, np.zeros(largest), mean, levels)


LAWS: dict[str, Callable[[int], ServiceTimes]] = {
    "10 + 2 b ms": lambda largest: deterministic(lambda b: 0.010 + 0.002 * b, largest),
    "10 + 2 b ms, random": random_service,
    "10 b ms": lambda largest: deterministic(lambda b: 0.010 * b, largest),
}
IMAGE_NETWORK = "78 + 151 b ms"


def image_network(largest: int) -> ServiceTimes:
    """The image network of batch_figures.py at 3008 MB."""
    return deterministic(lambda b: 0.078 + 0.151 * b, largest)


def grid() -> Iterator[Setting]:
    """Arrivals x batch size x timeout x service."""
    for process, arrivals in processes().items():
        for batch_size in BATCH_SIZES:
            for fill in FILLS:
                timeout = fill * (batch_size - 1) / arrivals.arrival_rate
                for law, service in LAWS.items():
                    yield Setting("grid", process, arrivals, law, service(batch_size), batch_size, timeout)


def as_in_batch() -> Iterator[Setting]:
    """Batch sizes to 20 and timeouts to 0.3 s in front of an image network, Poisson and MMPP(2): the scale of BATCH's figures."""
    for process, arrivals in {"Poisson, 150/s": poisson(150), "MMPP(2), 300 and 50/s": mmpp2(300, 50, 0.6, 0.4)}.items():
        for batch_size in (5, 10, 20):
            for timeout in (0.05, 0.1, 0.2, 0.3):
                for law, service in {IMAGE_NETWORK: image_network, "10 + 2 b ms": LAWS["10 + 2 b ms"]}.items():
                    yield Setting("batch", process, arrivals, law, service(batch_size), batch_size, timeout)


def held_out(rng: np.random.Generator) -> Setting:
    """A setting drawn at random: 1 to 6 phases, batch size to 64, 2 to 7 quantile points, timeout of 0.04 to 4 mean fill times."""
    n = int(rng.integers(1, 7))
    D0 = rng.exponential(1, (n, n)) * rng.choice([0.1, 1, 10], (n, n))
    D1 = rng.exponential(1, (n, n)) * rng.choice([0, 0, 1, 10, 100], (n, n))
    D1[0, 0] += 20
    np.fill_diagonal(D0, 0)
    np.fill_diagonal(D0, -(D0.sum(axis=1) + D1.sum(axis=1)))
    arrivals = ArrivalProcess(D0, D1)
    batch_size, n_levels = int(rng.integers(1, 65)), int(rng.integers(2, 8))
    fill = max(batch_size - 1, 1) / arrivals.arrival_rate
    levels = np.concatenate([[0], np.sort(rng.uniform(0, 1, n_levels - 2)), [1]])
    shape = 0.2 + np.cumsum(rng.exponential(1, n_levels))
    mean = fill * rng.uniform(0.05, 1) * (1 + rng.uniform(0, 0.3) * np.arange(batch_size))
    seconds = mean[:, None] * (shape / np.trapezoid(shape, levels))
    service = ServiceTimes(1769, seconds, np.zeros(batch_size), np.asarray(mean, dtype=np.float64), levels)
    timeout = fill * float(np.exp(rng.uniform(np.log(0.04), np.log(4))))
    return Setting("held-out", f"MAP({n})", arrivals, f"{n_levels} points", service, batch_size, timeout)


# --- the simulator


def compiled(function: F) -> F:
    """``function`` as machine code that is not kept: code kept by the script could not be loaded by the test, nor the reverse."""
    return cast(F, numba.njit(function))


@compiled
def simulated_latencies(
    jumps: Array,
    rates: Array,
    phase: int,
    timeout: float,
    response: Array,
    levels: Array,
    n_requests: int,
    rng: np.random.Generator,
) -> Array:
    """Latencies (s) of ``n_requests`` successive requests, the first of which opens a batch in ``phase``.

    Parameters
    ----------
    jumps : array, shape (n_phases, 2 n_phases)
        Cumulated probabilities of where a phase jumps to: silently, then with an arrival.
    rates : array, shape (n_phases,)
        1/s at which phases are left.
    response : array, shape (batch_size, n_levels)
        Quantile functions at ``levels``.
    """
    batch_size = len(response)
    latencies = np.empty(n_requests)
    came = np.zeros(batch_size)  # s after the batch opened
    done = 0
    while True:
        size, clock, late = 1, 0.0, False
        while size < batch_size and not late:
            gap, phase = next_arrival(jumps, rates, phase, rng)
            clock += gap
            late = clock > timeout  # then it opens the next batch
            if not late:
                came[size] = clock
                size += 1
        leaves = timeout if late else clock
        draw = rng.random()
        piece = max(0, min(int(np.searchsorted(levels, draw)), len(levels) - 1) - 1)
        service = response[size - 1, piece]
        if len(levels) > 1:
            part = (draw - levels[piece]) / (levels[piece + 1] - levels[piece])
            service += part * (response[size - 1, piece + 1] - service)
        for i in range(size):
            latencies[done] = leaves - came[i] + service
            done += 1
            if done == n_requests:
                return latencies
        if not late:
            _, phase = next_arrival(jumps, rates, phase, rng)


@compiled
def next_arrival(jumps: Array, rates: Array, phase: int, rng: np.random.Generator) -> tuple[float, int]:
    """Seconds to the next arrival, and the phase after it."""
    elapsed = 0.0
    while True:
        elapsed += rng.standard_exponential() / rates[phase]
        target = int(np.searchsorted(jumps[phase], rng.random(), side="right"))
        if target >= len(rates):
            return elapsed, target - len(rates)
        phase = target


def simulate(setting: Setting, n_requests: int, rng: np.random.Generator) -> Array:
    """Latencies (s), (n_requests,), after a warm-up."""
    arrivals = setting.arrivals
    rates = -arrivals.D0.diagonal()
    jumps = np.hstack([arrivals.D0 + np.diag(rates), arrivals.D1]) / rates[:, None]
    cumulated = np.cumsum(jumps, axis=1)
    cumulated[cumulated >= cumulated[:, -1:]] = 1.0  # whatever the rounding, some jump is drawn
    phase = int(rng.choice(arrivals.n_phases, p=arrivals.embedded))
    service = setting.service
    return simulated_latencies(
        np.ascontiguousarray(cumulated),
        np.ascontiguousarray(rates),
        phase,
        setting.timeout,
        np.ascontiguousarray(service.response),
        np.ascontiguousarray(service.quantile_levels),
        WARM_UP + n_requests,
        rng,
    )[WARM_UP:]


# --- the comparison


def compare(setting: Setting, quantiles: Sequence[float], n_requests: int, rng: np.random.Generator) -> Iterator[Row]:
    """The quantiles of one setting, a row for each."""
    exact = predict_latency(setting.arrivals, setting.service, setting.batch_size, setting.timeout)
    paper = predict_latency(setting.arrivals, setting.service, setting.batch_size, setting.timeout, "batch-paper")
    latencies = simulate(setting, n_requests, rng)
    ascending = np.sort(latencies)

    def simulated_quantile(q: float) -> float:
        return float(ascending[min(max(int(np.ceil(q * n_requests)) - 1, 0), n_requests - 1)])

    for q in quantiles:
        predicted, simulated = exact.quantile(q), simulated_quantile(q)
        _, error = share_within(latencies, simulated)
        edge = predicted + 1e-8 * exact.longest  # beyond what the search for the quantile leaves open: atoms are on one side
        share, error_there = share_within(latencies, edge)
        difference = share - exact.probability_within(edge)
        yield Row(
            setting.group,
            setting.process,
            setting.law,
            setting.batch_size,
            setting.timeout,
            exact.mean_batch_size,
            q,
            simulated,
            (simulated_quantile(q + error) - simulated_quantile(q - error)) / 2,
            predicted,
            paper.quantile(q),
            difference / max(error_there, 1e-12),
        )


def compare_all(n_requests: int) -> Iterator[Row]:
    """Every setting of the page."""
    for i, setting in enumerate([*grid(), *as_in_batch()]):
        yield from compare(setting, QUANTILES, n_requests, np.random.default_rng([1, i]))
    for i in range(N_HELD_OUT):
        rng = np.random.default_rng([2, i])
        yield from compare(held_out(rng), HELD_OUT_QUANTILES, n_requests, rng)


def share_within(latencies: Array, seconds: float) -> tuple[float, float]:
    """The share of latencies up to ``seconds``, and its standard error by means of successive blocks."""
    blocks = (latencies <= seconds).reshape(N_BLOCKS, -1).mean(axis=1)
    return float(blocks.mean()), float(blocks.std(ddof=1) / np.sqrt(N_BLOCKS))


def agrees(row: Row) -> bool:
    """Whether the exact prediction is within four standard errors of the simulation or 0.1 %."""
    return abs(row.z) <= 4 or abs(row.error("exact")) <= 0.1


def read() -> list[Row]:
    """The rows that the last run of this script left."""
    with DATA.open(encoding="utf-8", newline="") as file:
        kinds = {f.name: {"str": str, "int": int, "float": float}[str(f.type)] for f in fields(Row)}
        return [Row(**{name: kinds[name](value) for name, value in line.items()}) for line in csv.DictReader(file)]


def write(rows: Iterable[Row]) -> None:
    """The rows, six digits."""
    with DATA.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow([f.name for f in fields(Row)])
        for row in rows:
            table.writerow([f"{value:.6g}" if isinstance(value, float) else value for value in asdict(row).values()])


# --- the page


SHOWN = {"exact": "exact", "batch_paper": "batch-paper", "simulation": "standard error of the simulation"}


def table(rows: Sequence[Row], methods: Sequence[str] = ("exact", "batch_paper", "simulation")) -> str:
    """Mean and worst size of the relative error in %, by arrivals, method and quantile."""
    lines = ["| arrivals | | " + " | ".join(f"p{100 * q:g}" for q in QUANTILES) + " |", "|---|---|" + "---|" * len(QUANTILES)]
    for process in dict.fromkeys(row.process for row in rows):
        for method in methods:
            cells = []
            for q in QUANTILES:
                errors = np.abs([row.error(method) for row in rows if row.process == process and row.quantile == q])
                cells.append(f"{percent(errors.mean())}, {percent(errors.max())}")
            lines.append(f"| {process if method == methods[0] else ''} | {SHOWN[method]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def percent(value: float) -> str:
    """Two digits that mean something."""
    return f"{value:.0f}" if value >= 9.5 else f"{value:.1f}" if value >= 0.95 else f"{value:.2f}"


def held_out_table(rows: Sequence[Row]) -> str:
    """A line for each held-out setting."""
    lines = ["| arrivals | B | E[N] | service | largest error, % | largest abs z | agrees |", "|---|---|---|---|---|---|---|"]
    for setting in _by_setting(rows):
        first = setting[0]
        lines.append(
            f"| {first.process} | {first.batch_size} | {first.mean_batch_size:.1f} | {first.law} "
            f"| {max(abs(row.error('exact')) for row in setting):.3f} | {max(abs(row.z) for row in setting):.1f} "
            f"| {'yes' if all(map(agrees, setting)) else '**no**'} |"
        )
    return "\n".join(lines)


def _by_setting(rows: Sequence[Row]) -> list[list[Row]]:
    settings: dict[tuple[str, str, int, float], list[Row]] = {}
    for row in rows:
        settings.setdefault((row.process, row.law, row.batch_size, row.timeout), []).append(row)
    return list(settings.values())


def mean_error(rows: Sequence[Row], method: str) -> float:
    """Mean size of the relative error over settings and quantiles, %."""
    return float(np.mean([abs(row.error(method)) for row in rows]))


def page(rows: Sequence[Row]) -> str:
    """The page in Markdown."""
    in_grid = [row for row in rows if row.group == "grid"]
    batch = [row for row in rows if row.group == "batch"]
    apart = [row for row in rows if row.group == "held-out"]
    z = np.array([row.z for row in rows])
    n_settings = len(_by_setting(in_grid))
    markov = [row for row in in_grid if row.process in ("Poisson", "MMPP(2), mild", "MMPP(2), bursty") and "random" not in row.law]
    own = {law: [row for row in batch if row.law == law] for law in dict.fromkeys(row.law for row in batch)}
    worst_held_out = max(apart, key=lambda row: abs(row.z))
    late = [row for row in in_grid if row.quantile == 0.95 and row.batch_paper < row.simulated]
    return (
        "\n\n".join(
            [
                "# Latency models against simulation",
                paragraph("""
                Made by `python studies/latency_models.py` from the data that it leaves in
                [latency-models.csv](../studies/latency-models.csv); a test makes this page again from the data, and some of the
                data from the models."""),
                paragraph(f"""
                `exact` is docs/model.md, (2.1)–(2.7); `batch-paper` is the approximation of BATCH, eqs (7)–(10). Both predict the
                quantiles of a request's latency, from arrival to answer, for {n_settings} settings: five arrival processes, batch
                sizes {", ".join(map(str, BATCH_SIZES))}, timeouts of {", ".join(f"{f:g}" for f in FILLS)} times the mean time
                that a batch takes to fill, and three laws of the service time. Each setting is held against a simulation of
                {N_REQUESTS / 1e6:g} million requests by a simulator that shares no code with the models or with the project's own
                event loop; its standard error is that of the means of {N_BLOCKS} successive blocks."""),
                "## Why a uniform wait is off",
                paragraph("""
                BATCH takes the wait as uniform. In a batch that leaves by timeout the first request waits exactly T: a whole share
                of the requests sits at the very end of the interval over which the approximation spreads them. In a full batch the
                last request waits nothing, and the time to fill is random: half of the time longer than the (B - 1)/λ at which the
                approximation ends. Under bursts that mean says little at all, since full batches come from the bursts and fill much
                faster; with gaps smoother than Poisson it is met, and the approximation is at its best."""),
                "## The error",
                "Relative error of the predicted quantile, in %: mean, worst.",
                table(in_grid),
                paragraph(f"""
                What remains of the error of `exact` is that of the simulation. In probability, at all {len(rows)} quantiles of this
                page, the simulated share of latencies up to the predicted quantile differs from the predicted share by more than 2
                of its standard errors in {100 * np.mean(np.abs(z) > 2):.1f} % of the cases (a normal law: 4.6 %), by more than 3 in
                {100 * np.mean(np.abs(z) > 3):.2f} % (0.27 %), by {np.abs(z).max():.1f} at most; their root mean square is
                {np.sqrt(np.mean(z**2)):.2f}. Quantiles of one setting share a simulation, so these are not as many independent
                trials."""),
                "![error of the 95th percentile, and standard scores](figures/latency-models.svg)",
                paragraph(f"""
                On the left the error of the 95th percentile under `batch-paper` against how full batches leave: too short in
                {len(late)} of {n_settings} settings, which is the direction that breaks an SLO. On the right the
                standard scores of `exact` beside the normal law."""),
                "![four distributions](figures/latency-models-cdf.svg)",
                "## BATCH's own error",
                paragraph(f"""
                BATCH reports an average error below {REPORTED:g} % against measurements on AWS Lambda, over frameworks, networks,
                memory sizes, batch sizes and timeouts; that error contains its profile's, its fit's and the network's as well, and
                depends on how much of a latency is service. On settings of its kind (Poisson and MMPP(2) of 150 requests/s, batch
                sizes 5, 10, 20, timeouts of 50 to 300 ms, deterministic service) `batch-paper` alone is off in the mean over these
                four quantiles by
                {"; ".join(f"{mean_error(some, 'batch_paper'):.1f} % for a service of {law}" for law, some in own.items())}:
                little where the service outlasts the wait, as in its image networks, and much where it does not.
                Over the part of the grid above that the paper speaks of (Poisson and MMPP(2), deterministic service) it is
                {mean_error(markov, "batch_paper"):.0f} %. `exact` is off by
                {percent(max(mean_error(some, "exact") for some in (*own.values(), markov)))} % or less, as the simulation is."""),
                table(batch, ("exact", "batch_paper")),
                "## Held-out cases",
                paragraph(f"""
                {len(_by_setting(apart))} settings drawn at random (1 to 6 phases, batch sizes to 64, service times by 2 to 7
                quantile points, timeouts of 0.04 to 4 mean times to fill), quantiles
                {", ".join(f"{100 * q:g}" for q in HELD_OUT_QUANTILES)} %. A quantile agrees when it is within 4
                standard errors or 0.1 % of the simulation: {sum(map(agrees, apart))} of {len(apart)} do; the largest
                standard score is {abs(worst_held_out.z):.1f}."""),
                held_out_table(apart),
            ]
        )
        + "\n"
    )


def paragraph(text: str) -> str:
    """The text in lines of the repository's width."""
    return textwrap.fill(" ".join(text.split()), 132, break_long_words=False, break_on_hyphens=False)


# --- the figures


def draw_errors(rows: Sequence[Row]) -> Figure:
    """The error of BATCH's 95th percentile against how full batches are, and the standard scores of the exact law."""
    figure = Figure(figsize=(8.4, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    some = [row for row in rows if row.group == "grid" and row.quantile == 0.95]
    for color, process in enumerate(dict.fromkeys(row.process for row in some)):
        points = [(row.mean_batch_size / row.batch_size, row.error("batch_paper")) for row in some if row.process == process]
        left.plot(*np.array(points).T, f"C{color}o", markersize=3.5, alpha=0.7, label=process)
    left.axhline(0, color="black", linewidth=0.8, label="exact: within the noise")
    left.set_xlabel("mean batch size / B")
    left.set_ylabel("error of p95 by batch-paper, %")
    left.legend(fontsize=7)
    edges = np.linspace(-4.5, 4.5, 28)
    right.hist([row.z for row in rows], edges, density=True, color="C0", alpha=0.5, label="exact")
    at = np.linspace(-4.5, 4.5, 91)
    right.plot(at, np.exp(-(at**2) / 2) / np.sqrt(2 * np.pi), "k", linewidth=1, label="normal")
    right.set_xlabel("standard errors from the simulation")
    right.set_ylabel("density")
    right.legend(fontsize=7)
    return figure


TELLING = (
    ("Poisson", 8, 1.0, "10 + 2 b ms"),
    ("MMPP(2), bursty", 16, 1.0, "10 + 2 b ms"),
    ("Erlang-4 gaps", 8, 3.0, "10 + 2 b ms, random"),
    ("trace, fitted", 8, 3.0, "10 b ms"),
)


def draw_distributions(rng: np.random.Generator) -> Figure:
    """The latency CDF of four settings, three ways."""
    figure = Figure(figsize=(8.4, 5.6), layout="constrained")
    arrivals_of = processes()
    for axes, (process, batch_size, fill, law) in zip(figure.subplots(2, 2).flat, TELLING, strict=True):
        arrivals = arrivals_of[process]
        timeout = fill * (batch_size - 1) / arrivals.arrival_rate
        setting = Setting("grid", process, arrivals, law, LAWS[law](batch_size), batch_size, timeout)
        exact, paper = (predict_latency(arrivals, setting.service, batch_size, timeout, m) for m in ("exact", "batch-paper"))
        ascending = np.sort(simulate(setting, 1_000_000, rng))
        times = np.linspace(0, 1.02 * max(ascending[-2000], paper.quantile(0.999)), 400)
        simulated = np.searchsorted(ascending, times, side="right") / len(ascending)
        axes.plot(1e3 * times, simulated, "C0", linewidth=4, alpha=0.35, label="simulated")
        axes.plot(1e3 * times, exact.cdf(times), "k", linewidth=0.9, label="exact")
        axes.plot(1e3 * times, paper.cdf(times), "C3--", linewidth=1.1, label="batch-paper")
        axes.set_title(f"{process}; B = {batch_size}, T = {1e3 * timeout:.0f} ms; {law}", fontsize=8)
        axes.set_xlabel("latency, ms")
    figure.axes[0].set_ylabel("share of the requests")
    figure.axes[0].legend(fontsize=7)
    return figure


def main() -> None:
    """Simulate, compare, and write data, figures and page."""
    parser = argparse.ArgumentParser(description="The latency models against simulation.")
    parser.add_argument("--requests", type=int, help=f"a multiple of {N_BLOCKS}: a quick look, which writes nothing")
    quick = parser.parse_args().requests
    rows = list(compare_all(quick or N_REQUESTS))
    z = np.array([row.z for row in rows])
    largest, rms = np.abs(z).max(), np.sqrt(np.mean(z**2))
    print(f"{len(rows)} quantiles; standard scores of exact: largest {largest:.2f}, root mean square {rms:.2f}")
    for row in rows:
        if not agrees(row):
            print("disagrees:", row)
    if quick:
        return
    write(rows)
    rows = read()
    matplotlib.rcParams.update(
        {"svg.hashsalt": "latency-models", "svg.fonttype": "none", "font.size": 8, "axes.grid": True, "grid.alpha": 0.3}
    )
    (DOCS / "figures").mkdir(exist_ok=True)
    figures = {
        "latency-models.svg": draw_errors(rows),
        "latency-models-cdf.svg": draw_distributions(np.random.default_rng(3)),
    }
    written = [DATA, DOCS / "latency-models.md"]
    for name, figure in figures.items():
        figure.savefig(DOCS / "figures" / name, metadata={"Date": None})
        written.append(DOCS / "figures" / name)
    (DOCS / "latency-models.md").write_text(page(rows), encoding="utf-8")
    print("wrote", ", ".join(str(path.relative_to(DOCS.parent)) for path in written))


if __name__ == "__main__":
    main()
