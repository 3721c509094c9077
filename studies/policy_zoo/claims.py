"""What the rows come to: who wins each cell, and why the recommended policy does where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from .computation import CHOSEN
from .results import ALLOWED, Row

SAME, NEAR = 1e-4, 0.005  # parts of the cost: of equals the first is named; what is no cheaper than that is as cheap
VERDICTS = ("cheapest", "cold", "family", "fit", "drift")


Outcomes = dict[str, Row]
"""The rows of one trace, network and SLO by policy."""


def cells(rows: Sequence[Row]) -> list[Outcomes]:
    """The rows of each cell, by policy."""
    found: dict[tuple[str, str, float], Outcomes] = {}
    for row in rows:
        found.setdefault(row.cell, {})[row.policy] = row
    return list(found.values())


def winner(cell: Outcomes) -> Row:
    """The cheapest policy that keeps the SLO; of all but equal ones the first of the list."""
    kept = [row for name, row in cell.items() if row.keeps and name != CHOSEN]
    least = min(row.cost for row in kept)
    return next(row for row in kept if row.cost <= least * (1 + SAME))


def verdict(cell: Outcomes) -> str:
    """How the recommended policy stands: cheapest, or why not."""
    row, best = cell["recommended"], winner(cell)
    if not row.keeps:
        return "fit" if row.past_violations > ALLOWED else "drift"
    if row.cost <= best.cost * (1 + NEAR):
        return "cheapest"
    return "cold" if row.init - best.init > (row.cost - best.cost) / 2 else "family"


@dataclass(frozen=True)
class Findings:
    """What is counted over all cells."""

    cells: Sequence[Outcomes]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> Findings:
        """Of the rows of all cells."""
        return cls(cells(rows))

    @cached_property
    def by_verdict(self) -> dict[str, list[Outcomes]]:
        """The cells by how the recommended policy stands."""
        return {said: [cell for cell in self.cells if verdict(cell) == said] for said in VERDICTS}

    @cached_property
    def wins(self) -> dict[str, int]:
        """In how many cells each policy is the winner."""
        return {name: sum(winner(cell).policy == name for cell in self.cells) for name in self.cells[0] if name != CHOSEN}

    @property
    def ranked(self) -> list[str]:
        """The policies that win somewhere, the most often first."""
        return sorted((name for name, count in self.wins.items() if count), key=lambda name: -self.wins[name])

    def kept(self, policy: str) -> int:
        """In how many cells a policy keeps the SLO."""
        return sum(cell[policy].keeps for cell in self.cells)

    def missed(self, policy: str) -> int:
        """In how many it does not, or cannot be had."""
        return len(self.cells) - self.kept(policy)

    def beyond_winner(self, policy: str) -> list[float]:
        """What a policy costs beyond the winner where it keeps the SLO, part of the winner's cost."""
        return [cell[policy].cost / winner(cell).cost - 1 for cell in self.cells if cell[policy].keeps]

    @property
    def by_workers(self) -> list[Row]:
        """The rehearsed choice where workers by the hour are part of the winner."""
        return [cell[CHOSEN] for cell in self.cells if winner(cell).workers > 0]

    def most_saved(self) -> float:
        """The most that BATCH saves against the last moment, part of the cost."""
        pairs = [(cell["BATCH"], cell["last moment"]) for cell in self.cells]
        return max(1 - one.cost / other.cost for one, other in pairs if one.keeps and other.keeps)

    def worker_ratios(self) -> tuple[float, float]:
        """How many times the perceptron's fixed workers cost what the last moment costs on the LLM traces: least and most."""
        some = [cell for cell in self.cells if cell[CHOSEN].network == "perceptron" and cell[CHOSEN].trace.startswith("LLM")]
        ratios = [cell["fixed workers"].cost / cell["last moment"].cost for cell in some]
        return min(ratios), max(ratios)
