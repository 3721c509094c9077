"""What the rows come to: costs beyond the bound, and what the filtered tables save."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .results import Row

SINGLE = ("Poisson", "control limit", "greedy")


def pick(rows: Sequence[Row], **values: str | float) -> list[Row]:
    """The rows with these values."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in values.items())]


def by_setting(rows: Sequence[Row]) -> list[dict[str, Row]]:
    """The rows of each setting by policy."""
    found: dict[tuple[str, str, float, str, float], dict[str, Row]] = {}
    for row in rows:
        stay = 0.0 if np.isnan(row.stay) else row.stay  # of the trace, which has none: nan is not nan
        found.setdefault((row.group, row.process, stay, row.energy, row.load), {})[row.policy] = row
    return list(found.values())


def above(setting: dict[str, Row], policy: str) -> float:
    """By how many % of it a policy costs more than the tables of a server that sees the phase."""
    row, bound = setting[policy], setting["seen"].exact
    return 100 * (row.excess / bound if policy == "filtered" else row.exact / bound - 1)


def saved(setting: dict[str, Row], policies: Sequence[str]) -> float:
    """What the filtered tables save, % of the cheapest of these policies."""
    cost = setting["seen"].exact + setting["filtered"].excess
    return 100 * (1 - cost / min(setting[policy].exact for policy in policies))


def median_and_most(settings: Sequence[dict[str, Row]], policies: Sequence[str]) -> tuple[float, float]:
    """Of what the filtered tables save over the settings, %."""
    found = [saved(setting, policies) for setting in settings]
    return float(np.median(found)), max(found)
