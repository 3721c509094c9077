"""The papers' servers: GoogLeNet on a Tesla P4 (the basic scenario), Cases 1 to 7, and those of figures 7 to 9."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from sluice.optimizer.arrays import Array
from sluice.optimizer.service.law import ScaledLaw, ServiceLaw, deterministic, erlang, exponential, hyperexponential
from sluice.optimizer.smdp import Performance, SmdpProblem, SmdpSolution, affine

LARGEST = 32
LOADS = tuple(round(0.1 * i, 1) for i in range(1, 10))
STATIC = (8, 16, 32)
CONSTANT = 6.0859  # ms, figure 7
LAWS: dict[str, Callable[[ArrayLike], ScaledLaw]] = {
    "basic": deterministic,
    "Erlang-2": lambda mean: erlang(mean, 2),
    "exponential": exponential,
    "hyperexponential": hyperexponential,
}


@dataclass(frozen=True)
class Server:
    """l(b) = ``slope`` b + ``intercept`` ms, zeta(b) = ``energy_slope`` b + ``energy_intercept`` mJ."""

    slope: float = 0.3051
    intercept: float = 1.0524
    energy_slope: float = 19.899
    energy_intercept: float = 19.603

    def service_time(self, largest: int = LARGEST) -> Array:
        """l(1) ... l(largest), s."""
        return affine(self.intercept / 1000, self.slope / 1000, largest)

    def energy(self, largest: int = LARGEST) -> Array:
        """zeta(1) ... zeta(largest), J."""
        return affine(self.energy_intercept / 1000, self.energy_slope / 1000, largest)

    def problem(self, load: float, power_weight: float = 0.0) -> SmdpProblem:
        """The basic scenario."""
        return problem(deterministic(self.service_time()), self.energy(), load, power_weight)


PRINTED = Server()


def problem(law: ServiceLaw, energy: Array, load: float, power_weight: float = 0.0, smallest: int = 1) -> SmdpProblem:
    """A server at ``load``, with the papers' weights: 1 per ms and ``power_weight`` per W."""
    return SmdpProblem(load * len(energy) / law.mean[-1], law, energy, smallest, 1e3, power_weight)


def cost(server: SmdpProblem, found: Performance | SmdpSolution) -> float:
    """w1 W + w2 P of a policy by the weights of ``server``."""
    return server.cost(found.mean_latency, found.power)


def logarithmic(largest: int) -> Array:
    """105 ln b + 60 mJ, in J."""
    return np.asarray((105 * np.log(np.arange(1, largest + 1)) + 60) / 1000)


def static(batch_size: int) -> list[int]:
    """The table of static batching, (15)."""
    return [0] * batch_size + [batch_size]


@dataclass(frozen=True)
class Case:
    """A scenario of figures 3 and 11, with batches of up to 8."""

    name: str
    what: str
    law: ServiceLaw
    energy: Array
    smallest: int = 1

    def problem(self, load: float, power_weight: float) -> SmdpProblem:
        """The case at a load."""
        return problem(self.law, self.energy, load, power_weight, self.smallest)


def cases() -> list[Case]:
    """Cases 1 to 7. Of the papers are the means and laws of Cases 2 and 3, B_min of 4, and which assumption 4, 5, 6 violate."""
    linear, sized = PRINTED.energy(8), PRINTED.service_time(8)
    steps = 0.08 * np.ceil(np.arange(1, 9) / 4)
    even, short = np.full(8, 2.4252e-3), np.full(8, 1.7465e-3)
    fixed = deterministic(even)
    return [
        Case("1", "service 2.4252 ms, fixed", fixed, linear),
        Case("2", "service 2.4252 ms, exponential", exponential(even), linear),
        Case("3", "service 1.7465 ms, exponential", exponential(short), linear),
        Case("4", "as 1, B_min = 5", fixed, linear, 5),
        Case("5a", "as 1, energy 105 ln b + 60 mJ", fixed, logarithmic(8)),
        Case("5b", "as 1, energy 80 mJ per four begun", fixed, steps),
        Case("6", "as 1, service l(b)", deterministic(sized), linear),
        Case("7a", "service l(b), energy 105 ln b + 60 mJ, B_min = 5", deterministic(sized), logarithmic(8), 5),
        Case("7b", "as 7a, service hyperexponential", hyperexponential(sized), logarithmic(8), 5),
    ]


def settings() -> list[tuple[str, SmdpProblem]]:
    """The servers of figures 5, 7, 8 and 9 at every load."""
    mean, energy = PRINTED.service_time(), PRINTED.energy()
    whole = {
        "basic": (deterministic(mean), energy),
        "constant": (deterministic(np.full(LARGEST, CONSTANT / 1000)), energy),
        "logarithmic": (deterministic(mean), logarithmic(LARGEST)),
    }
    found = [(name, problem(*server, load)) for name, server in whole.items() for load in LOADS]
    others = [(name, law(mean)) for name, law in LAWS.items() if name != "basic"]
    return found + [(name, problem(law, energy, load)) for name, law in others for load in (0.3, 0.7)]
