"""The server, and the arrivals that it is put under."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.service.law import deterministic
from sluice.optimizer.smdp import SmdpProblem, affine

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


def server(arrivals: ArrivalProcess | float, energy: str, max_batch_size: int = LARGEST) -> SmdpProblem:
    """The papers' server with one of the ``ENERGIES``; a number of ``arrivals`` is the rate (1/s) of Poisson ones."""
    service = deterministic(affine(1.0524e-3, 0.3051e-3, max_batch_size))
    joules = affine(ENERGIES[energy], PER_REQUEST, max_batch_size)
    process = arrivals if isinstance(arrivals, ArrivalProcess) else poisson(arrivals)
    return SmdpProblem(process, service, joules, 1, LATENCY_WEIGHT, POWER_WEIGHT)


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
