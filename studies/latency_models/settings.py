"""What is simulated and predicted: the grid, the settings of BATCH's kind, and those held out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.service.times import ServiceTimes
from sluice.optimizer.traces.trace import read_trace

from ..publishing import EXCERPT

BATCH_SIZES = (4, 8, 16, 32)
FILLS = (0.3, 1.0, 3.0)  # timeout as a multiple of the mean time that B - 1 further requests take


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


@cache
def processes() -> dict[str, ArrivalProcess]:
    """The arrivals of the grid, 100 requests/s but for the trace's."""
    stages = 400 * (np.eye(4, k=1) - np.eye(4))
    last_to_first = np.zeros((4, 4))
    last_to_first[3, 0] = 400
    trace = read_trace(EXCERPT).sped_up(10)
    return {
        "Poisson": poisson(100),
        "MMPP(2), mild": mmpp2(150, 50, 1, 1),
        "MMPP(2), bursty": mmpp2(460, 20, 4.5, 1),
        "Erlang-4 gaps": ArrivalProcess(stages, last_to_first),
        "trace, fitted": fit_arrivals(trace).arrivals,
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
    """The image network of batch_figures at 3008 MB."""
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
