"""What who pings environments and who simulates that go by: how long a ping holds one, and which functions of a plan have some.

What may live here: rules that the buffer and the optimizer share about environments that are there before requests ask for them.
What may not: the plan's own fields (``documents.py``), and who sends a ping (``buffer_service/environments.py``).
"""

from __future__ import annotations

from collections import defaultdict

from sluice.batching.documents import Plan

PREPARED_WITHIN = 5.0  # s for which a plan waits, at most, for environments of functions that do not serve yet
PING_HOLD, PING_HOLD_EACH, LONGEST_PING = 0.05, 0.01, 1.0  # s for which a ping holds its environment: and for each, at most


def held_by_ping(number: int) -> float:
    """Seconds for which each of so many pings at once holds its environment, until the last has come; one alone need not."""
    return min(PING_HOLD + PING_HOLD_EACH * number, LONGEST_PING) if number > 1 else 0.0


def not_serving(before: Plan, plan: Plan) -> set[str]:
    """Functions of a plan that have no environments of the one before: they had less than half of the share that they get."""
    had, gets = _shares(before), _shares(plan)
    return {function for function, share in gets.items() if had[function] < share / 2}


def _shares(plan: Plan) -> defaultdict[str, float]:
    found: defaultdict[str, float] = defaultdict(float)
    for route in plan.all_routes:
        for function in route.functions:
            found[function] += route.share
    return found
