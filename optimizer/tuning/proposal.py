"""What is proposed: a record that is kept between decisions; who makes it is ``candidates.py``."""

from __future__ import annotations

from dataclasses import dataclass

from sluice.batching.documents import Plan


@dataclass(frozen=True, eq=False)
class Proposal:
    """A plan, and what is expected of it on paper.

    Parameters
    ----------
    name : str
        What it is, in a few words.
    usd, percentile : float or None
        Per request, and of the first SLO, s; ``None`` where it was not worked out.
    rests_on_fit : bool
        Whether more may be late than promised where the arrivals are not those that were fitted.
    """

    name: str
    plan: Plan
    usd: float | None = None
    percentile: float | None = None
    rests_on_fit: bool = False
