"""Problems of one server that several tests share."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.service.law import ServiceLaw, deterministic, erlang, exponential, gamma, hyperexponential
from sluice.optimizer.smdp import SmdpProblem, affine

LAWS: dict[str, Callable[[Array], ServiceLaw]] = {
    "deterministic": deterministic,
    "erlang": lambda mean: erlang(mean, 3),
    "exponential": exponential,
    "hyperexponential": hyperexponential,
    "gamma": lambda mean: gamma(mean, 0.7),
}


def googlenet(
    rho: float,
    power_weight: float = 1.0,
    max_batch_size: int = 32,
    law: Callable[[Array], ServiceLaw] = deterministic,
    min_batch_size: int = 1,
) -> SmdpProblem:
    """GoogLeNet on a Tesla P4, the papers' basic scenario, in s and J; the latency weighs 1 per ms."""
    mean = affine(1.0524e-3, 0.3051e-3, max_batch_size)
    energy = affine(19.603e-3, 19.899e-3, max_batch_size)
    return SmdpProblem(rho * max_batch_size / mean[-1], law(mean), energy, min_batch_size, 1e3, power_weight)


def random_problem(rng: np.random.Generator, law: Callable[[Array], ServiceLaw], largest: int = 12) -> SmdpProblem:
    """A server whose throughput and energy per request get better with the batch, by a concave or an affine law."""
    max_batch_size = int(rng.integers(1, largest + 1))
    sizes = np.arange(1, max_batch_size + 1)
    mean = 1e-3 * (rng.uniform(0.1, 3) + rng.uniform(0.05, 1) * sizes ** rng.uniform(0.3, 1))
    energy = rng.uniform(0, 3) + rng.uniform(0, 1) * sizes ** rng.uniform(0.3, 1)
    smallest = int(rng.integers(1, max_batch_size + 1)) if rng.random() < 0.3 else 1
    rate = rng.uniform(0.1, 0.95) * max_batch_size / mean[-1]
    return SmdpProblem(
        rate, law(mean), energy, smallest, float(rng.uniform(100, 2000)), float(rng.uniform(0, 3) / energy[-1] / 100)
    )
