"""The networks with their times, the workers with their prices, the arrivals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from sluice.batching.documents import LinearServiceTime, ProfilePoint, ServiceProfile, ServiceTime
from sluice.optimizer.arrivals import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.billing.prices import default_prices
from sluice.optimizer.fits.choice import fit_arrivals
from sluice.optimizer.recommend import WorkerOffer, machine_offer
from sluice.optimizer.traces.trace import read_trace

from ..publishing import EXCERPT

CORE = 1769  # MB of memory that have one core
BATCH_SIZES = (1, 2, 4, 8, 16, 32)
LARGEST = 32
INIT = 0.5  # s
PERCENTILE = 95.0
RATES = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0)
CPU, CORES = "c5.xlarge", 4


@dataclass(frozen=True)
class Network:
    """A network as a function and on workers.

    Parameters
    ----------
    profile : ServiceProfile
        Of the function.
    workers : mapping of str to tuple of float
        Seconds of a batch, intercept and for each request, by machine; a ``CPU`` is a core of it, for its part of the price.
    slos : tuple of float
        Latencies that are promised, s.
    said : str
        What it is, and where its times are from.
    """

    profile: ServiceProfile
    workers: Mapping[str, tuple[float, float]]
    slos: tuple[float, ...]
    said: str

    def offers(self) -> tuple[WorkerOffer, ...]:
        """The workers with their prices, each with a name of its own."""
        prices, offers = default_prices(), []
        for machine, (intercept, slope) in self.workers.items():
            law = LinearServiceTime(intercept, slope)
            profile = ServiceProfile(function=f"http://{machine}:8500", service_time=law, max_batch_size=LARGEST)
            part = CORES if machine == CPU else 1
            offers.append(machine_offer(machine, profile, prices.machine(machine) / part, LARGEST))
        return tuple(offers)


def on_cores(intercept: float, slope: float) -> ServiceProfile:
    """Seconds of a batch on one core, in proportion to its share."""
    sizes = (CORE // 2 + 1, CORE)
    seconds = {(m, b): (intercept + slope * b) * CORE / m for m, b in product(sizes, BATCH_SIZES)}
    points = [ProfilePoint(m, b, ServiceTime(s), s) for (m, b), s in seconds.items()]
    return ServiceProfile(function="net-{memory_mb}", points=points, init={m: ServiceTime(INIT) for m in sizes})


# HarmonyBatch (Chen et al., 2024), latency of VGG-19 in s for a batch of 1 to 4 on c vCPU: alpha exp(-c / beta) + gamma,
# in the mean and at most; MIT licence, github.com/icloud-ecnu/HarmonyBatch, conf/model.json
VGG_MEAN = (
    (1.8260695578676214, 0.5283726420022545, 0.18015427168547402),
    (4.849070286817897, 0.4322505914521466, 0.3644750704985931),
    (6.525043654279533, 0.45923392645406674, 0.533468087304086),
    (8.922555068657605, 0.4484733129911248, 0.7569893954072374),
)
VGG_MOST = (
    (2.8046821487917626, 0.4861966854235096, 0.2486015254149421),
    (4.9219043468043475, 0.48909337170637446, 0.3932803431571859),
    (6.9439000301849525, 0.5051632662978255, 0.5695388754016029),
    (9.65159701751372, 0.46592585483072324, 0.8287713748262584),
)
VGG_GPU = (0.002113091944793135, 0.001679844365532822)  # s on a whole A10
VGG_CORES = (1, 2, 3, 4)


def vgg() -> ServiceProfile:
    """Promised by the most that was seen, paid by the mean."""

    def seconds(law: tuple[float, float, float], cores: int) -> float:
        alpha, beta, gamma = law
        return float(alpha * np.exp(-cores / beta) + gamma)

    points = [
        ProfilePoint(CORE * cores, b, ServiceTime(seconds(VGG_MOST[b - 1], cores)), seconds(VGG_MEAN[b - 1], cores))
        for cores, b in product(VGG_CORES, range(1, len(VGG_MOST) + 1))
    ]
    init = {CORE * cores: ServiceTime(INIT) for cores in VGG_CORES}
    return ServiceProfile(function="vgg-{memory_mb}", points=points, init=init)


NETWORKS = {
    "GoogLeNet": Network(
        on_cores(0.0, 0.0467),
        {"g4dn.xlarge": (0.0010524, 0.0003051), CPU: (0.0, 0.0467)},
        (0.1, 0.5),
        """convolutional. 46.7 b ms for a batch of b on one core, measured for [the policy zoo](policy-zoo.md). On a GPU
        1.0524 + 0.3051 b ms, which the [SMDP papers](smdp-figures.md) give for a Tesla P4 from its maker's figures; priced as a
        g4dn.xlarge, whose T4 is the P4's successor, for no machine with a P4 is on offer.""",
    ),
    "perceptron": Network(
        on_cores(0.0056, 0.00074),
        {CPU: (0.0056, 0.00074)},
        (0.1, 0.5),
        """its time is reading its weights. 5.6 + 0.74 b ms on one core, measured likewise. No times of it on a GPU are published,
        so that its workers are cores.""",
    ),
    "VGG-19": Network(
        vgg(),
        {"g5.xlarge": VGG_GPU},
        (0.5, 1.0),
        f"""large and convolutional. As HarmonyBatch measured it (Chen et al., 2024; coefficients under the MIT licence): as a
        function α exp(-c/β) + γ on c cores for batches of up to 4, promised by the most that was seen and paid by the mean, here
        at Lambda's price with {CORE} MB a core, where it was another cloud's; on an A10 2.11 + 1.68 b ms, priced as a g5.xlarge,
        which has an A10G.""",
    ),
}


@cache
def excerpt() -> ArrivalProcess:
    """An MMPP(2) of the trace that the project ships, by likelihood."""
    return fit_arrivals(read_trace(EXCERPT), model="mmpp2").arrivals


def bursty(rate: float) -> ArrivalProcess:
    """Its bursts at another rate: the phases last as long as they do there."""
    process = excerpt()
    factor = rate / process.arrival_rate
    busy, quiet = process.D1.sum(axis=1) * factor
    stays = -np.diag(process.D0) - process.D1.sum(axis=1)
    return mmpp2(float(busy), float(quiet), float(stays[0]), float(stays[1]))


ARRIVALS = {"Poisson": poisson, "bursty": bursty}
