"""What was found: one kind of row per file data/smdp-*.csv, the papers' tables in data/smdp-tables.json.

Milliseconds, W and mJ, as in the papers.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Generic, TypeVar

import msgspec
import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.smdp import solve

from ..publishing import DATA
from ..rows import read_rows, write_rows
from .coefficients import allowed
from .servers import PRINTED, Server

PUBLISHED = DATA / "smdp-tables.json"
DIGITS = 7

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """A solved table; ``actions`` by number waiting, the last for every longer queue; ``None`` where it has no control limit."""

    case: str
    load: float
    power_weight: float
    control_limit: int | None
    actions: str

    @property
    def takes(self) -> list[int]:
        """The actions as numbers."""
        return [int(a) for a in self.actions.split()]

    @property
    def first_served(self) -> int:
        """The least number waiting at which the server begins."""
        return next(s for s, a in enumerate(self.takes) if a)

    @property
    def thresholds(self) -> int:
        """How often serving turns into waiting or waiting into serving as the queue grows."""
        return sum((a > 0) != (b > 0) for a, b in pairwise(self.takes))

    def of_states(self, n_states: int) -> list[int]:
        """The actions with 0 ... ``n_states`` - 1 waiting."""
        return (self.takes + [self.takes[-1]] * n_states)[:n_states]

    def deviations(self, n_states: int) -> list[int]:
        """The states in which it is not a control limit that takes all it can from ``first_served`` on."""
        first, largest = self.first_served, self.takes[-1]
        return [s for s, a in enumerate(self.of_states(n_states)) if a != (0 if s < first else min(s, largest))]


@dataclass(frozen=True)
class Cost:
    """w1 W + w2 P of figure 4, ms + w2 W; ``None`` where the policy does not keep up."""

    load: float
    power_weight: float
    smdp: float
    greedy: float
    static_8: float | None
    static_16: float | None
    static_32: float | None


@dataclass(frozen=True)
class Point:
    """Mean latency (ms) and power (W) of a policy; of ``smdp`` those on the curve, each with a weight that it is best at.

    In figures 5, 7 and 8 these are all corners of the curve, each with the least such weight.
    """

    setting: str
    load: float
    policy: str
    power_weight: float
    latency: float
    power: float


@dataclass(frozen=True)
class Percentile:
    """Of the latency at load 0.7: mean and percentiles (ms), the share (%) within 10 ms, and the power (W)."""

    policy: str
    power_weight: float
    power: float
    mean: float
    p50: float
    p90: float
    p95: float
    within_10: float


@dataclass(frozen=True)
class Share:
    """Shares (%) of the requests answered within ``ms`` at load 0.7."""

    ms: float
    greedy: float
    static_8: float
    static_16: float
    static_32: float
    smdp_1_6: float
    smdp_2_2: float


@dataclass(frozen=True)
class Approximation:
    """A value iteration of figure 10: gain and Delta in the finite chain."""

    overflow_cost: float
    max_state: int
    iterations: int
    gain: float
    overflow: float


class ByCoefficients(msgspec.Struct, Generic[T], frozen=True):
    """The same with the printed coefficients, and with those behind them."""

    printed: T
    refined: T


class FirstTable(msgspec.Struct, frozen=True):
    """Table I: power (W), mean, p50, p90 and p95 (ms) by policy.

    ``allowed`` over what the printed coefficients allow; ``simulated`` the means of simulations and the standard deviation of one.
    """

    printed: dict[str, list[float]]
    refined: dict[str, list[float]]
    allowed: list[dict[str, list[float]]]
    simulated: dict[str, tuple[list[float], list[float]]]


class LeastStates(msgspec.Struct, frozen=True):
    """A column of Table II: value iteration at the least s_max with Delta below 0.001."""

    max_state: int = msgspec.field(name="min s_max")
    iterations: int
    overflow: float = msgspec.field(name="Δ")
    gain: float = msgspec.field(name="g")


class Published(msgspec.Struct, frozen=True):
    """The papers' tables, here.

    Parameters
    ----------
    table_1 : FirstTable
    table_2 : ByCoefficients
        A column for each overflow cost.
    patience : tuple
        An s_max at which the iteration without an overflow cost is let go on, and how many steps it takes.
    table_3 : ByCoefficients
        By overflow cost: after how many iterations the table changes, and its gain.
    """

    table_1: FirstTable
    table_2: ByCoefficients[list[LeastStates]]
    patience: tuple[int, int]
    table_3: ByCoefficients[dict[str, list[tuple[int, float]]]]


def optimal_costs(server: Server) -> tuple[float, float]:
    """At loads 0.9 and 0.5 with w = (1, 1)."""
    return solve(server.problem(0.9, 1)).gain, solve(server.problem(0.5, 1)).gain


@dataclass(frozen=True)
class Study:
    """All that the page shows."""

    tables: list[Table]
    costs: list[Cost]
    points: list[Point]
    percentiles: list[Percentile]
    shares: list[Share]
    approximations: list[Approximation]
    published: Published

    def limits(self, case: str, weight: float) -> list[int | None]:
        """Control limits by load."""
        return [row.control_limit for row in self.tables if row.case == case and row.power_weight == weight]

    def without_limit(self, case: str) -> list[Table]:
        """The tables of a case that are no control limits."""
        return [row for row in self.tables if row.case == case and row.control_limit is None]

    def curve(self, setting: str, load: float) -> list[Point]:
        """The corners of the curve, from the least latency on."""
        return [p for p in self.points if p.setting == setting and p.load == load and p.policy == "smdp"]

    def benchmarks(self, setting: str) -> list[Point]:
        """The other policies at the loads that they keep up with."""
        return [p for p in self.points if p.setting == setting and p.policy != "smdp"]

    def by_load(self, setting: str, policy: str) -> dict[float, Point]:
        """One of them."""
        return {p.load: p for p in self.benchmarks(setting) if p.policy == policy}

    def power_at(self, setting: str, load: float, latency: float) -> float:
        """Least power (W) of tables, and mixtures of two, of a mean latency (ms)."""
        corners = self.curve(setting, load)
        return float(np.interp(latency, [p.latency for p in corners], [p.power for p in corners]))

    def latency_at(self, setting: str, load: float, power: float) -> float:
        """Least mean latency (ms) of tables, and mixtures of two, of a power (W)."""
        corners = self.curve(setting, load)[::-1]
        return float(np.interp(power, [p.power for p in corners], [p.latency for p in corners]))

    @cached_property
    def gains(self) -> tuple[float, float]:
        """The optimal costs at loads 0.9 and 0.5 by the printed coefficients."""
        return optimal_costs(PRINTED)

    @cached_property
    def allowed_gains(self) -> Array:
        """The same over what the printed numbers allow, shape (2, n)."""
        return np.array([optimal_costs(server) for server in allowed()]).T


def write(study: Study) -> None:
    """Leave it in the files, numbers of rows to seven digits, of tables to nine."""
    write_rows(DATA / "smdp-policies.csv", Table, study.tables, DIGITS)
    write_rows(DATA / "smdp-cost.csv", Cost, study.costs, DIGITS)
    write_rows(DATA / "smdp-tradeoff.csv", Point, study.points, DIGITS)
    write_rows(DATA / "smdp-percentiles.csv", Percentile, study.percentiles, DIGITS)
    write_rows(DATA / "smdp-latency.csv", Share, study.shares, DIGITS)
    write_rows(DATA / "smdp-convergence.csv", Approximation, study.approximations, DIGITS)
    tables = json.dumps(msgspec.to_builtins(study.published))
    rounded = json.loads(tables, parse_float=lambda text: float(f"{float(text):.9g}"))
    PUBLISHED.write_text(json.dumps(rounded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def read() -> Study:
    """What the last run left."""
    return Study(
        read_rows(DATA / "smdp-policies.csv", Table),
        read_rows(DATA / "smdp-cost.csv", Cost),
        read_rows(DATA / "smdp-tradeoff.csv", Point),
        read_rows(DATA / "smdp-percentiles.csv", Percentile),
        read_rows(DATA / "smdp-latency.csv", Share),
        read_rows(DATA / "smdp-convergence.csv", Approximation),
        msgspec.json.decode(PUBLISHED.read_bytes(), type=Published),
    )
