"""The latency of classes in one queue two ways, simulated and by the exact law, as data/latency-classes.csv keeps it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from sluice.optimizer.function.class_holds import shared_holds_law

from ..publishing import DATA
from ..rows import read_rows, write_rows
from .class_settings import N_DRAWN, ClassSetting, drawn, named
from .class_simulator import simulate_classes
from .computation import N_BLOCKS, QUANTILES, held_against

FILE = DATA / "latency-classes.csv"


@dataclass(frozen=True)
class ClassRow:
    """A quantile of the latency (s) of a class in a setting, and the mean batch size, each simulated and by the exact law.

    ``standard_error`` (s) is that of ``simulated``; ``z`` and ``batch_z`` are the simulated probability of a latency up to
    ``exact``, and the simulated mean batch size, less the predicted ones, in standard errors of the simulation.
    """

    setting: str
    of_class: int
    slack: float
    batch_size: int
    mean_batch_size: float
    batch_simulated: float
    batch_z: float
    quantile: float
    simulated: float
    standard_error: float
    exact: float
    z: float

    @property
    def error(self) -> float:
        """Of the predicted quantile, in % of the simulated."""
        return 100 * (self.exact / self.simulated - 1)

    @property
    def batch_error(self) -> float:
        """Of the predicted mean batch size, in % of the simulated."""
        return 100 * (self.mean_batch_size / self.batch_simulated - 1)

    @property
    def agrees(self) -> bool:
        """Whether both are within four standard errors of the simulation or 0.1 %."""
        return (abs(self.z) <= 4 or abs(self.error) <= 0.1) and (abs(self.batch_z) <= 4 or abs(self.batch_error) <= 0.1)


def settings() -> list[ClassSetting]:
    """All of the page."""
    return [*named(), *(drawn(np.random.default_rng([4, i])) for i in range(N_DRAWN))]


def compute_classes(n_requests: int) -> Iterator[ClassRow]:
    """Every setting of the page, with so many requests of all classes together."""
    for i, setting in enumerate(settings()):
        yield from compare_classes(setting, n_requests, np.random.default_rng([3, i]))


def compare_classes(setting: ClassSetting, n_requests: int, rng: np.random.Generator) -> Iterator[ClassRow]:
    """A row for each class and quantile."""
    law = shared_holds_law(setting.classes, setting.slacks.tolist(), setting.holds)
    latency, of, size = simulate_classes(setting, n_requests, rng)
    batches = (1 / size).reshape(N_BLOCKS, -1).mean(axis=1)  # per request
    mean = float(law.mean_batch_size[-1])
    batch_z = (1 / batches.mean() - mean) / max(float(batches.std(ddof=1)) / N_BLOCKS**0.5 * mean**2, 1e-12)
    for c, slack in enumerate(setting.slacks.tolist()):
        exact = law.latency(c, setting.service)
        if exact.method != "exact":
            raise AssertionError(f"{setting.name}: class {c} is {exact.method}")
        own = latency[of == c]
        own = own[: len(own) // N_BLOCKS * N_BLOCKS]
        for q, met in zip(QUANTILES, held_against(own, exact, QUANTILES), strict=True):
            known = (setting.name, c, slack, len(setting.holds) + 1, mean, 1 / float(batches.mean()), batch_z, q)
            yield ClassRow(*known, *met)


def read_classes() -> list[ClassRow]:
    """The rows that the last run left."""
    return read_rows(FILE, ClassRow)


def write_classes(rows: Iterable[ClassRow]) -> None:
    """The rows, six digits."""
    write_rows(FILE, ClassRow, rows, digits=6)
