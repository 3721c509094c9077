"""Classes that share a queue: what is simulated and predicted of them, some as applications are and some drawn at random."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.arrivals.mmpp import mmpp2
from sluice.optimizer.arrivals.poisson import poisson
from sluice.optimizer.service.times import ServiceTimes

from .settings import processes, random_service

N_DRAWN = 12


@dataclass(frozen=True)
class ClassSetting:
    """Classes with slacks (s, (n_classes,)) before a table with holds (s, (largest batch - 1,))."""

    name: str
    classes: tuple[ArrivalProcess, ...]
    slacks: Array
    holds: Array
    service: ServiceTimes


def named() -> Iterator[ClassSetting]:
    """Of some applications."""
    falling, short = np.linspace(0.17, 0.11, 15), np.linspace(0.1, 0.02, 31)
    bursty, mild, stages = (processes()[name] for name in ("MMPP(2), bursty", "MMPP(2), mild", "Erlang-4 gaps"))
    for name, classes, slacks, holds in (
        ("interactive, report, nightly", [poisson(20), poisson(10), poisson(2)], [0, 1.8, 50], falling),
        ("few in a hurry", [poisson(0.5), poisson(100)], [0, 2], short),
        ("ten promises", [poisson(3.0 + c) for c in range(10)], np.linspace(0, 0.5, 10), falling),
        ("bursts among the patient", [poisson(20), bursty.sped_up(0.2)], [0, 0.5], falling),
        ("bursts in a hurry", [bursty.sped_up(0.2), poisson(20)], [0, 0.5], falling),
        ("smooth and bursty", [stages.sped_up(0.1), mild.sped_up(0.1), mmpp2(40, 2, 2, 1)], [0, 0.1, 1], short),
        ("a full batch of five", [mild.sped_up(0.3), poisson(5)], [0, 0.3], np.array([0.2, 0.2, 0.1, 0.05, 0, 0, 0])),
    ):
        yield ClassSetting(name, tuple(classes), np.asarray(slacks, dtype=np.float64), holds, random_service(len(holds) + 1))


def drawn(rng: np.random.Generator) -> ClassSetting:
    """One to four classes of 1 to 3 phases, batch sizes to 40, holds of 0.1 to 3 mean times to fill, slacks of up to ten holds."""
    classes = tuple(_process(int(rng.integers(1, 4)), rng) for _ in range(int(rng.integers(1, 5))))
    batch_size = int(rng.integers(2, 41))
    fill = (batch_size - 1) / sum(arrivals.arrival_rate for arrivals in classes)
    holds = np.sort(fill * np.exp(rng.uniform(np.log(0.1), np.log(3))) * rng.uniform(0.1, 1, batch_size - 1))[::-1]
    slacks = holds[0] * np.exp(rng.uniform(np.log(0.01), np.log(10), len(classes)))
    slacks[int(rng.integers(len(classes)))] = 0.0
    phases = ", ".join(str(arrivals.n_phases) for arrivals in classes)
    return ClassSetting(f"drawn, MAP({phases})", classes, slacks, holds, random_service(batch_size))


def _process(n: int, rng: np.random.Generator) -> ArrivalProcess:
    """Of ``n`` phases, which stay for some arrivals each, some 10 to 100 requests/s."""
    D0 = rng.exponential(2, (n, n))
    D1 = np.diag(rng.exponential(1, n) * rng.choice([5, 50, 200], n)) + rng.exponential(1, (n, n))
    np.fill_diagonal(D0, 0)
    np.fill_diagonal(D0, -(D0.sum(axis=1) + D1.sum(axis=1)))
    return ArrivalProcess(D0, D1)
