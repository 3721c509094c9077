"""Figure 4 of BATCH and its 100 ms bill by this project's model: writes docs/batch-figures.md and the figures it shows.

    python studies/batch_figures.py

Of the paper (Ali et al., BATCH, SC'20, section II and eq. (1)) are the prices, K1 = 1.66667e-5 USD per GB-second and K2 = 2e-7 USD
per call, the batch sizes, timeouts and memory sizes of figure 4, and the 100 ms that AWS rounded durations up to until December
2020. What the paper does not give is ours and stands at the top of this file: the service times of the network, and the arrivals.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing.cost import BatchCost, Billing, predict_cost
from sluice.optimizer.billing.prices import read_prices
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.service.times import ServiceTimes, service_times

Model = Callable[[float, float], float]  # memory (MB), batch size -> seconds

DOCS = Path(__file__).parents[1] / "docs"
PRICES = read_prices(b'{"lambda": {"gb_second": {"x86_64": 1.66667e-5}, "request": 2e-7}}')
THEN, NOW = 0.1, 0.001  # s, what durations were and are rounded up to

# An image network of about 13 GFLOP, as Inception-ResNet-v2 is: seconds of one vCPU, and what no memory size makes shorter.
FLOOR, PER_BATCH, PER_IMAGE = 0.04, 0.06, 0.24
PARALLEL = 0.9  # the part of the work that a second vCPU shares
VCPU = 1769  # MB of memory that bring one vCPU
MEMORY_SIZES = range(1536, 3009, 64)
MEASURED_BATCH_SIZES = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 18, 20)
DEGREE = 4

POISSON = poisson(150)
BURSTY = mmpp2(300, 50, 0.6, 0.4)  # as many requests/s on average
LONG = 2.0  # s; a batch of 20 is still open then once in 10^100 times, so that 1 h gives the same batches


def law(memory_mb: float, batch_size: float) -> float:
    """Service time of a batch, s: the network that is profiled."""
    vcpus = memory_mb / VCPU
    speed = vcpus if vcpus <= 1 else 1 / (1 - PARALLEL + PARALLEL / vcpus)
    return FLOOR + (PER_BATCH + PER_IMAGE * batch_size) / speed


class Regression:
    """Service time as a polynomial in memory and batch size, fitted to a profile by least squares of the relative error."""

    def __init__(self, memory: Array, batch_sizes: Array, seconds: Array) -> None:
        weighted = self._terms(memory, batch_sizes) / seconds[:, None]
        self.coefficients = np.linalg.lstsq(weighted, np.ones(len(seconds)))[0]
        self.worst = float(np.abs(weighted @ self.coefficients - 1).max())

    def __call__(self, memory_mb: float, batch_size: float) -> float:
        return float(self._terms(np.array([memory_mb]), np.array([batch_size]))[0] @ self.coefficients)

    @staticmethod
    def _terms(memory: Array, batch_sizes: Array) -> Array:
        gb, items = memory / 1024, batch_sizes / 10
        powers = [(i, j) for i in range(DEGREE + 1) for j in range(DEGREE + 1 - i)]
        return np.column_stack([gb**i * items**j for i, j in powers])


def regression() -> Regression:
    """BATCH's service-time model, from the profile of ``law``."""
    grid = [(memory_mb, b) for memory_mb in MEMORY_SIZES for b in MEASURED_BATCH_SIZES]
    memory, batch_sizes = np.array(grid, dtype=float).T
    return Regression(memory, batch_sizes, np.array([law(*point) for point in grid]))


def services(model: Model, memory_mb: int, largest: int) -> ServiceTimes:
    """Service times of batches of 1 to ``largest``."""
    points = [ProfilePoint(memory_mb, b, ServiceTime(s), s) for b in range(1, largest + 1) for s in [model(memory_mb, b)]]
    return service_times(ServiceProfile(function="f", points=points), memory_mb)


@dataclass(frozen=True)
class Curve:
    """What figure 4 shows along one parameter: mean latency, of it the wait (s), requests/s of one environment, USD per million."""

    at: Array
    latency: Array
    waiting: Array
    throughput: Array
    cost: Array


def settings(
    model: Model, arrivals: ArrivalProcess, at: Sequence[float], points: Sequence[tuple[int, int, float]], granularity: float = THEN
) -> Curve:
    """The curve over settings (memory size, batch size, timeout)."""
    rows = []
    for memory_mb, batch_size, timeout in points:
        service = services(model, memory_mb, batch_size)
        prediction = predict_latency(arrivals, service, batch_size, timeout)
        pmf = prediction.batch_size_pmf
        times = np.linspace(0, prediction.longest, 2001)
        latency = float(np.trapezoid(1 - prediction.cdf(times), times))
        served = np.arange(1, batch_size + 1) * pmf / prediction.mean_batch_size  # requests by the size of their batch
        throughput = prediction.mean_batch_size / float(pmf @ service.mean_response)
        rows.append(
            (
                latency,
                latency - float(served @ service.mean_response),
                throughput,
                1e6 * bill(pmf, service, granularity).per_request,
            )
        )
    return Curve(np.array(at), *np.array(rows).T)


def bill(pmf: Array, service: ServiceTimes, granularity: float) -> BatchCost:
    """BATCH, eq. (1), with a bill rounded up to ``granularity`` seconds."""
    return predict_cost(pmf, service, Billing(PRICES, granularity=granularity), buffered=False)


def figure_4a(model: Model, granularity: float = THEN) -> Curve:
    """Against the batch size: 3008 MB, timeout long enough."""
    sizes = list(range(1, 21))
    return settings(model, POISSON, sizes, [(3008, b, LONG) for b in sizes], granularity)


def figure_4b(model: Model, arrivals: ArrivalProcess) -> Curve:
    """Against the timeout: batch size 20, 3008 MB."""
    timeouts = np.linspace(0, 0.3, 31).tolist()
    return settings(model, arrivals, timeouts, [(3008, 20, t) for t in timeouts])


def figure_4c(model: Model, granularity: float = THEN) -> Curve:
    """Against the memory size: batch size 5, timeout long enough."""
    gb = [memory_mb / 1024 for memory_mb in MEMORY_SIZES]
    return settings(model, POISSON, gb, [(memory_mb, 5, LONG) for memory_mb in MEMORY_SIZES], granularity)


# --- what the paper says of its figure, held against ours


def steps(values: Array) -> tuple[int, int]:
    """How often the curve goes up and down from one setting to the next, by more than its numerical error."""
    changes = [(b - a) / a for a, b in pairwise(values)]
    return sum(c > 1e-4 for c in changes), sum(c < -1e-4 for c in changes)


def share_beyond(values: Array, at: Array, bound: float) -> float:
    """The part of the whole range of ``values`` that the settings from ``bound`` on span."""
    return float(np.ptp(values[at >= bound - 1e-9]) / np.ptp(values))


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about figure 4, whether it holds here, and the figures."""

    sentence: str
    holds: bool
    figures: str


@dataclass(frozen=True)
class Study:
    """All that the page shows."""

    regression: Regression
    a: Curve
    a_now: Curve
    b: Curve
    b_bursty: Curve
    c: Curve
    c_now: Curve

    def claims(self) -> list[Claim]:
        """The shapes of figure 4."""
        a, b, c = self.a, self.b, self.c
        rises, falls = steps(c.cost)
        rises_now, falls_now = steps(self.c_now.cost)
        return [
            Claim(
                "(a) cost falls as the batch size grows",
                bool(a.cost[-1] == a.cost.min()),
                f"${a.cost[0]:.2f} at 1, ${a.cost[-1]:.2f} per million at 20; up at {steps(a.cost)[0]} of 19 steps, "
                f"at {steps(self.a_now.cost)[0]} with 1 ms",
            ),
            Claim(
                "(a) throughput rises with it",
                steps(a.throughput) == (19, 0),
                f"{a.throughput[0]:.1f} to {a.throughput[-1]:.1f} requests/s of one environment",
            ),
            Claim(
                "(a) service time suffers, as early requests wait for the batch",
                steps(a.latency) == (19, 0),
                f"mean {a.latency[0]:.2f} to {a.latency[-1]:.2f} s, of which {a.waiting[-1]:.2f} s waiting",
            ),
            Claim(
                "(b) the same with the timeout",
                steps(b.latency)[1] == steps(b.throughput)[1] == steps(b.cost)[0] == 0,
                f"${b.cost[0]:.2f} to ${b.cost[-1]:.2f}, {b.throughput[0]:.1f} to {b.throughput[-1]:.1f} requests/s, "
                f"{b.latency[0]:.2f} to {b.latency[-1]:.2f} s",
            ),
            Claim(
                "(b) beyond 0.2 s its effect is small",
                max(share_beyond(y, b.at, 0.2) for y in (b.latency, b.throughput, b.cost)) < 0.05,
                f"{100 * share_beyond(b.latency, b.at, 0.2):.1f} % of the change of the service time, "
                f"{100 * share_beyond(b.cost, b.at, 0.2):.1f} % of that of the cost; with bursts "
                f"{100 * share_beyond(self.b_bursty.latency, b.at, 0.2):.0f} % and "
                f"{100 * share_beyond(self.b_bursty.cost, b.at, 0.2):.1f} %",
            ),
            Claim(
                "(c) more memory makes service quicker",
                steps(c.latency) == (0, 23) and steps(c.throughput) == (23, 0),
                f"{c.latency[0]:.2f} to {c.latency[-1]:.2f} s, {c.throughput[0]:.1f} to {c.throughput[-1]:.1f} requests/s",
            ),
            Claim(
                "(c) cost is not monotonous in memory",
                min(rises, falls) > 0,
                f"${c.cost.min():.2f} to ${c.cost.max():.2f}, up at {rises} and down at {falls} of 23 steps; "
                f"with 1 ms up at {rises_now} and down at {falls_now}",
            ),
        ]


def study() -> Study:
    """Everything computed."""
    model = regression()
    return Study(
        model,
        figure_4a(model),
        figure_4a(model, NOW),
        figure_4b(model, POISSON),
        figure_4b(model, BURSTY),
        figure_4c(model),
        figure_4c(model, NOW),
    )


# --- what the rounding of the bill does to the saving


@dataclass(frozen=True)
class Network:
    """A network at a memory size, its service times linear in the batch size."""

    name: str
    memory_mb: int
    seconds: Callable[[float], float]
    color: str


NETWORKS = (
    Network("12 ms alone, 45 ms for 8, at 1769 MB", 1769, lambda b: 0.012 + 0.033 / 7 * (b - 1), "C0"),
    Network("bound by its weights, 5.6 + 0.74 b ms, at 1769 MB", 1769, lambda b: 0.0056 + 0.00074 * b, "C1"),
    Network("the image network above, at 3008 MB", 3008, lambda b: law(3008, b), "C2"),
)
LARGEST = 32


def saving(network: Network, granularity: float) -> Array:
    """Bill of requests one by one over that in full batches of 1, 2, ..., ``LARGEST``."""
    service = services(lambda _, b: network.seconds(b), network.memory_mb, LARGEST)
    cost = np.array([bill(np.eye(LARGEST)[b], service, granularity).per_request for b in range(LARGEST)])
    return np.asarray(cost[0] / cost)


# --- the page


def min_max(values: Array) -> Array:
    """Values on the scale of figure 4."""
    return np.asarray((values - values.min()) / np.ptp(values))


def draw(study: Study) -> dict[str, Figure]:
    """The figures by file name."""
    panels = {
        "batch-figure-4a.svg": ("batch size (3008 MB, timeout 1 h)", [(study.a, "-", "")]),
        "batch-figure-4b.svg": (
            "timeout, s (batch size 20, 3008 MB)",
            [(study.b, "-", ""), (study.b_bursty, ":", ", bursty")],
        ),
        "batch-figure-4c.svg": (
            "memory, GB (batch size 5, timeout 1 h)",
            [(study.c, "-", ""), (study.c_now, ":", ", 1 ms bill")],
        ),
    }
    figures = {}
    for name, (label, curves) in panels.items():
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        axes = figure.subplots()
        for curve, style, more in curves:
            for color, quantity in (("C0", "latency"), ("C2", "throughput"), ("C3", "cost")):
                if more == ", 1 ms bill" and quantity != "cost":
                    continue
                shown = {"latency": "service time"}.get(quantity, quantity) + more
                axes.plot(curve.at, min_max(getattr(curve, quantity)), color + style, label=shown)
        axes.set_xlabel(label)
        axes.set_ylabel("normalised (min-max)")
        axes.xaxis.set_major_locator(MaxNLocator(integer=curves[0][0] is study.a))
        axes.legend(fontsize=7)
        figures[name] = figure
    figure = Figure(figsize=(6.4, 3.6), layout="constrained")
    axes = figure.subplots()
    for network in NETWORKS:
        for granularity, style, bill_of in ((THEN, "-", "100 ms"), (NOW, ":", "1 ms")):
            axes.plot(
                range(1, LARGEST + 1), saving(network, granularity), network.color + style, label=f"{network.name}: {bill_of}"
            )
    axes.set_xlabel("batch size")
    axes.set_ylabel("bill one by one / bill batched")
    axes.legend(fontsize=7)
    figures["batch-rounding.svg"] = figure
    return figures


def page(study: Study) -> str:
    """The page in Markdown."""
    claims = "\n".join(f"| {c.sentence} | {'yes' if c.holds else '**no**'} | {c.figures} |" for c in study.claims())
    savings = "\n".join(
        f"| {network.name} | " + " | ".join(f"{saving(network, g)[b - 1]:.1f}" for b in (8, LARGEST) for g in (THEN, NOW)) + " |"
        for network in NETWORKS
    )
    worst, sizes, batches = 100 * study.regression.worst, len(MEMORY_SIZES), len(MEASURED_BATCH_SIZES)
    floor, per_batch, per_image = 1000 * FLOOR, 1000 * PER_BATCH, 1000 * PER_IMAGE
    return (
        "\n\n".join(
            [
                "# BATCH's figure 4, and what its 100 ms bill did",
                "Made by `python studies/batch_figures.py`; a test makes it again and compares.",
                paragraph("""
                Ali, Pinciroli, Yan and Smirni (BATCH, SC'20) show in their figure 4 how batch size, timeout and memory size
                bear on the service time of a request, the throughput and the cost, for ResNet-v2 on AWS Lambda. Here are the
                same settings in this project's model."""),
                paragraph("""
                **Of the paper:** eq. (1) with K1 = 1.66667·10⁻⁵ USD per GB-second and K2 = 2·10⁻⁷ USD per call, durations
                rounded up to 100 ms, as AWS billed until December 2020, memory up to 3008 MB; (a) batch sizes 1 to 20, 3008 MB,
                a timeout of 1 h; (b) timeouts to 0.3 s, batch size 20, 3008 MB; (c) memory from 1.5 GB, batch size 5, a timeout
                of 1 h; service times by polynomial regression over a profile."""),
                paragraph(f"""
                **Ours**, as the paper gives neither its profile nor the arrivals: an image network that takes {floor:.0f} ms
                which no memory makes shorter, and {per_batch:.0f} ms + {per_image:.0f} ms · b of
                one vCPU; {VCPU} MB bring one, and a second one shares {100 * PARALLEL:.0f} % of the work. Its profile at
                {sizes} memory sizes and {batches} batch sizes is met by a polynomial of degree {DEGREE} to {worst:.1f} %.
                Arrivals are Poisson, {POISSON.arrival_rate:.0f} requests/s; in (b) there is beside it an MMPP(2) of the same
                mean, with phases of 300 and 50 requests/s that last 1.7 and 2.5 s. Service time is the mean from arrival to
                answer, the wait for the batch included; throughput is what one environment of the function answers per second
                while it works, E[N] / E[S]."""),
                " ".join(f"![figure 4({panel})](figures/batch-figure-4{panel}.svg)" for panel in "abc"),
                f"| the paper says | here | figures |\n|---|---|---|\n{claims}",
                paragraph("""
                The shapes are the paper's. The curve of (c) owes its teeth to the rounding: a batch of 5 that takes a little
                over 1.0 s is billed 1.1 s until more memory takes it below 1.0 s. By the millisecond the same network costs
                least with the least memory, as its service time falls more slowly than its memory grows. So the memory size
                that was cheapest by BATCH's bill need not be today; the granularity is a parameter of the search. (A network
                that is short of memory at the small sizes has its own minimum, whatever the rounding; its profile shows it.)"""),
                "## What rounding did to the saving",
                paragraph("""
                Cost of requests one by one over that of the same requests in full batches, at the prices above, which are still
                those of x86 today:"""),
                f"| network | 8, 100 ms | 8, 1 ms | {LARGEST}, 100 ms | {LARGEST}, 1 ms |\n|---|---|---|---|---|\n{savings}",
                "![saving against batch size](figures/batch-rounding.svg)",
                paragraph("""
                In steps of 100 ms a request of 12 ms paid for 100 ms, and the others of a batch that took no more than that
                were free: the saving is the batch size, whatever the network gains by batching. By the millisecond there remain
                the request fee, paid once per batch, and what the network itself gains. A saving quoted from BATCH's year is no
                guide to today's."""),
                paragraph("""
                The paper's savings against SageMaker and MArk rest on measurements of its own; they are not reproduced."""),
            ]
        )
        + "\n"
    )


def paragraph(text: str) -> str:
    """The text in lines of the repository's width."""
    return textwrap.fill(" ".join(text.split()), 132, break_long_words=False, break_on_hyphens=False)


def main() -> None:
    """Write the page and its figures."""
    matplotlib.rcParams.update(
        {"svg.hashsalt": "batch", "svg.fonttype": "none", "font.size": 8, "axes.grid": True, "grid.alpha": 0.3}
    )
    results = study()
    (DOCS / "figures").mkdir(exist_ok=True)
    for name, figure in draw(results).items():
        figure.savefig(DOCS / "figures" / name, metadata={"Date": None})
    (DOCS / "batch-figures.md").write_text(page(results), encoding="utf-8")


if __name__ == "__main__":
    main()
