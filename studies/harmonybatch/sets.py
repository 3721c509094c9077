"""The sets of applications: HarmonyBatch's own, a random family, and a wide one of which groupings alone are compared."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

import numpy as np

from .merging import Application

MAIN, TABLE, EIGHT, SELDOM = "main.py", "Table I", "eight, 5/s each", "eight, 1/s each"


class Family(NamedTuple):
    """So many sets; the least and most applications, promises (s) and rates (requests/s) of each."""

    number: int
    seed: int
    members: tuple[int, int]
    slos: tuple[float, float]
    rates: tuple[float, float]

    def draw(self) -> Iterator[tuple[Application, ...]]:
        """The sets, each by promise: each number as likely; promises evenly, rates by their logarithm."""
        rng = np.random.default_rng(self.seed)
        for _ in range(self.number):
            n = int(rng.integers(self.members[0], self.members[1] + 1))
            slos, rates = rng.uniform(*self.slos, n), np.exp(rng.uniform(np.log(self.rates[0]), np.log(self.rates[1]), n))
            some = zip(slos, rates, strict=True)
            yield tuple(sorted(Application(round(float(slo), 3), float(f"{rate:.3g}")) for slo, rate in some))


FAMILY = Family(40, 2024, (3, 8), (0.2, 2.0), (0.5, 50.0))
WIDE = Family(150, 77, (3, 5), (0.15, 3.0), (0.02, 500.0))


@cache
def sets() -> dict[str, tuple[Application, ...]]:
    """By name, each by promise.

    Those of HarmonyBatch's main.py and of its paper's Table I; the eight promises of its config.json, which names no rates; then
    the random family.
    """
    own = {
        MAIN: [(0.2, 5.0), (0.3, 5.0), (0.4, 5.0)],
        TABLE: [(0.5, 5.0), (0.8, 10.0), (1.0, 20.0)],
        EIGHT: [(k / 10, 5.0) for k in range(3, 11)],
        SELDOM: [(k / 10, 1.0) for k in range(3, 11)],
    }
    found = {name: tuple(Application(*of) for of in some) for name, some in own.items()}
    return found | {f"random {k}": some for k, some in enumerate(FAMILY.draw(), 1)}
