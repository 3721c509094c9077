"""Service times, latency and cost of the settings of figure 4, and what the rounding of the bill does to the saving."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime
from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing.cost import BatchCost, Billing, predict_cost
from sluice.optimizer.billing.prices import read_prices
from sluice.optimizer.function.latency import predict_latency
from sluice.optimizer.service.times import ServiceTimes, service_times

from .results import Curve, Study

Model = Callable[[float, float], float]  # memory (MB), batch size -> seconds

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


def curve(
    model: Model, arrivals: ArrivalProcess, at: Sequence[float], points: Sequence[tuple[int, int, float]], granularity: float = THEN
) -> Curve:
    """The curve over settings (memory size, batch size, timeout)."""
    rows = [measures(arrivals, services(model, memory_mb, b), b, timeout, granularity) for memory_mb, b, timeout in points]
    return Curve(np.array(at), *np.array(rows).T)


def measures(
    arrivals: ArrivalProcess, service: ServiceTimes, batch_size: int, timeout: float, granularity: float
) -> tuple[float, float, float, float]:
    """A point of a curve: mean latency, of it the wait (s), requests/s of one environment, USD per million."""
    prediction = predict_latency(arrivals, service, batch_size, timeout)
    pmf = prediction.batch_size_pmf
    times = np.linspace(0, prediction.longest, 2001)
    latency = float(np.trapezoid(1 - prediction.cdf(times), times))
    served = np.arange(1, batch_size + 1) * pmf / prediction.mean_batch_size  # requests by the size of their batch
    waiting = latency - float(served @ service.mean_response)
    throughput = prediction.mean_batch_size / float(pmf @ service.mean_response)
    return latency, waiting, throughput, 1e6 * bill(pmf, service, granularity).per_request


def bill(pmf: Array, service: ServiceTimes, granularity: float) -> BatchCost:
    """BATCH, eq. (1), with a bill rounded up to ``granularity`` seconds."""
    return predict_cost(pmf, service, Billing(PRICES, granularity=granularity), buffered=False)


def figure_4a(model: Model, granularity: float = THEN) -> Curve:
    """Against the batch size: 3008 MB, timeout long enough."""
    sizes = list(range(1, 21))
    return curve(model, POISSON, sizes, [(3008, b, LONG) for b in sizes], granularity)


def figure_4b(model: Model, arrivals: ArrivalProcess) -> Curve:
    """Against the timeout: batch size 20, 3008 MB."""
    timeouts = np.linspace(0, 0.3, 31).tolist()
    return curve(model, arrivals, timeouts, [(3008, 20, t) for t in timeouts])


def figure_4c(model: Model, granularity: float = THEN) -> Curve:
    """Against the memory size: batch size 5, timeout long enough."""
    gb = [memory_mb / 1024 for memory_mb in MEMORY_SIZES]
    return curve(model, POISSON, gb, [(memory_mb, 5, LONG) for memory_mb in MEMORY_SIZES], granularity)


def compute() -> Study:
    """Everything computed."""
    model = regression()
    return Study(
        model.worst,
        figure_4a(model),
        figure_4a(model, NOW),
        figure_4b(model, POISSON),
        figure_4b(model, BURSTY),
        figure_4c(model),
        figure_4c(model, NOW),
    )


@dataclass(frozen=True)
class Network:
    """A network at a memory size, its service times linear in the batch size."""

    name: str
    memory_mb: int
    seconds: Callable[[float], float]
    colour: str  # of the figure


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
