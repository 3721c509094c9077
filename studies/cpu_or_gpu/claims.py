"""What the rows come to: which kind wins at which rate, by how much, and what MArk costs beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from sluice.batching.documents import quantile_of
from sluice.optimizer.billing.prices import default_prices

from .results import KINDS, MARK, Row
from .settings import PERCENTILE

NEAR = 0.005  # part of the cost: what is no cheaper than that is as cheap
ALLOWED = 1 - quantile_of(PERCENTILE)  # of the requests, late

Kinds = dict[str, Row]
"""The rows of one network, arrivals, SLO and rate by kind."""


def winner(cell: Kinds) -> Row:
    """The cheapest of the three kinds; of equals the simpler one."""
    return min((cell[kind] for kind in KINDS if np.isfinite(cell[kind].cost)), key=lambda row: row.cost)


def saving(cell: Kinds) -> float:
    """The part of the cost of the next kind that the winner saves."""
    first, second, *_ = sorted(cell[kind].cost for kind in KINDS if np.isfinite(cell[kind].cost))
    return 1 - first / second


@dataclass(frozen=True)
class Findings:
    """What is read off all cells."""

    cells: Sequence[Kinds]

    @classmethod
    def of(cls, rows: Iterable[Row]) -> Findings:
        """Of the rows."""
        found: dict[tuple[str, str, float, float], Kinds] = {}
        for row in rows:
            found.setdefault(row.cell, {})[row.kind] = row
        return cls(list(found.values()))

    @cached_property
    def lines(self) -> dict[tuple[str, str, float], list[Kinds]]:
        """The cells of a network, arrivals and SLO, by rate."""
        found: dict[tuple[str, str, float], list[Kinds]] = {}
        for cell in self.cells:
            found.setdefault(cell[MARK].cell[:3], []).append(cell)
        return {key: sorted(some, key=lambda cell: cell[MARK].rate) for key, some in found.items()}

    def won_by(self, kind: str) -> list[Kinds]:
        """The cells in which a kind is the cheapest."""
        return [cell for cell in self.cells if winner(cell).kind == kind]

    @property
    def most_saved(self) -> Kinds:
        """Where both save most against the next kind."""
        return max(self.won_by("both"), key=saving)

    @property
    def mark_beyond(self) -> list[tuple[float, Kinds]]:
        """What MArk costs beyond the winner where it keeps the SLO, part of the winner's cost; the most first."""
        kept = [(cell[MARK].cost / winner(cell).cost - 1, cell) for cell in self.cells if cell[MARK].late <= ALLOWED]
        return sorted(kept, key=lambda pair: -pair[0])

    @property
    def mark_beyond_both(self) -> list[tuple[float, Kinds]]:
        """The same beyond workers and function where these win."""
        return [(beyond, cell) for beyond, cell in self.mark_beyond if winner(cell).kind == "both"]


def ranges(line: Sequence[Kinds]) -> dict[str, str]:
    """By kind, the rates at which it wins, in words."""
    runs: list[tuple[str, list[float]]] = []
    for cell in line:
        best = winner(cell)
        if not runs or runs[-1][0] != best.kind:
            runs.append((best.kind, []))
        runs[-1][1].append(best.rate)
    said: dict[str, list[str]] = {kind: [] for kind in KINDS}
    for kind, rates in runs:
        said[kind].append(f"{rates[0]:g}" if len(rates) == 1 else f"{rates[0]:g} to {rates[-1]:g}")
    return {kind: ", ".join(some) or "-" for kind, some in said.items()}


def one_worker_pays_from(cell: Kinds, machine: str, part: float = 1.0) -> float:
    """Requests/s at which an hour of a machine costs what the function bills in it."""
    return default_prices().machine(machine) / part / 3600 / (1e-6 * cell["function"].cost)
