"""The fleet, and the requests of a day in minutes, with an end in which a worker is killed."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.control import ControlSettings
from sluice.optimizer.fleet import Fleet, read_fleet

from ..publishing import DATA

FOLDER = Path(__file__).parent
DAY = DATA / "fleet-live-day.csv"
STEP = 1.0  # s that five minutes of the day become
PART = {"vision": 0.6, "text": 0.35}  # of the counts
SEED = 2015
CALM = 50.0  # s after the day, at ``CALM_RATE``
CALM_RATE = 20.0  # requests/s of each family
KILLED = 20.0  # s after the end of the day, at which a worker is killed
SETTINGS = ControlSettings(look=0.5, period=10.0, load_time=0.5, decision_time=None)
"""What ``sluice control --fleet --load-time 0.5`` follows a fleet with."""


def fleet() -> Fleet:
    """That of fleet.yaml."""
    return read_fleet(FOLDER / "fleet.yaml")


def day() -> list[Array]:
    """When the requests of each family come, s, in the order of the fleet: whole counts, at random within each step."""
    with DAY.open(newline="", encoding="utf-8") as lines:
        rows = list(csv.DictReader(lines))
    rng = np.random.default_rng(SEED)
    arrivals = []
    for name in fleet().family_names:
        counts = np.floor(PART[name] * np.array([int(row[name]) for row in rows]) + rng.random(len(rows))).astype(np.int64)
        arrivals.append(np.sort(STEP * (np.repeat(np.arange(len(counts)), counts) + rng.random(counts.sum()))))
    return arrivals


def length() -> float:
    """Seconds that the day takes."""
    with DAY.open(encoding="utf-8") as lines:
        return STEP * (sum(1 for _ in lines) - 1)


def calm() -> list[Array]:
    """The requests after the day, s since its end."""
    rng = np.random.default_rng([SEED, 1])
    return [np.sort(rng.uniform(0.0, CALM, rng.poisson(CALM_RATE * CALM))) for _ in fleet().family_names]
