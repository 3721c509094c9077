"""The sets of applications: HarmonyBatch's own, and a random family."""

from __future__ import annotations

from functools import cache

import numpy as np

from .merging import Application

MAIN, TABLE, EIGHT, SELDOM = "main.py", "Table I", "eight, 5/s each", "eight, 1/s each"
N_RANDOM = 40
SEED = 2024
MEMBERS, SLOS, RATES = (3, 8), (0.2, 2.0), (0.5, 50.0)  # applications, s, requests/s


@cache
def sets() -> dict[str, tuple[Application, ...]]:
    """By name, each by promise.

    Those of HarmonyBatch's main.py and of its paper's Table I; the eight promises of its config.json, which names no rates; then
    the family: so many applications, each number as likely; promises evenly, rates by their logarithm.
    """
    found = {
        MAIN: [(0.2, 5.0), (0.3, 5.0), (0.4, 5.0)],
        TABLE: [(0.5, 5.0), (0.8, 10.0), (1.0, 20.0)],
        EIGHT: [(k / 10, 5.0) for k in range(3, 11)],
        SELDOM: [(k / 10, 1.0) for k in range(3, 11)],
    }
    rng = np.random.default_rng(SEED)
    for k in range(1, N_RANDOM + 1):
        n = int(rng.integers(MEMBERS[0], MEMBERS[1] + 1))
        slos, rates = rng.uniform(*SLOS, n), np.exp(rng.uniform(np.log(RATES[0]), np.log(RATES[1]), n))
        found[f"random {k}"] = [(round(float(slo), 3), float(f"{rate:.3g}")) for slo, rate in zip(slos, rates, strict=True)]
    return {name: tuple(Application(*of) for of in sorted(some)) for name, some in found.items()}
