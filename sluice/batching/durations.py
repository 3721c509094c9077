"""How long something takes, as people write it: ``200ms``, ``0.2s``, ``5min``; a number without a unit is of seconds."""

from __future__ import annotations

import re
from math import inf

UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "h": 3600.0}
"""Seconds."""
MEANT_MS = 10.0
"""Seconds of a latency or a wait from which on a number without a unit was probably meant in milliseconds."""
LONGEST = 3600.0
"""Seconds: nobody waits longer for an answer, nor for a search; what is searched grows with a latency, too."""
LONGEST_HOLD = 50.0
"""Seconds that a plan made here holds a request: callers of a buffer wait for 60, and what serves it takes some of them."""

LONGEST_SWEEP = 86_400.0
"""Seconds that a function is measured for at the most, as over a night."""

MOST = 1e9
"""Seconds, 30 years: of what nothing else limits."""
_WRITTEN = re.compile(r"\s*([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)\s*([A-Za-z]*)\s*")


def seconds(text: str, meant_ms: float = inf, few_minutes: float = 0.0, most: float = MOST) -> float:
    """What a duration is in seconds.

    Raises
    ------
    ValueError
        It is none, or a number without a unit of ``meant_ms`` or more, or above 0 and below ``few_minutes``, of which the message
        asks what it is; or more than ``most`` seconds.
    """
    match = _WRITTEN.fullmatch(text)
    if match is None or (match[2] and match[2] not in UNITS):
        raise ValueError(f"a number of seconds, or one with its unit ({', '.join(UNITS)}), as in 200ms")
    number = float(match[1])
    if not match[2] and meant_ms <= number < inf:
        raise ValueError(f"{match[1]}ms if milliseconds are meant, {match[1]}s if seconds are")
    if not match[2] and 0 < number < few_minutes:
        raise ValueError(f"{match[1]}min if minutes are meant, {match[1]}s if seconds are")
    found = number * UNITS[match[2] or "s"]
    if found > most:
        raise ValueError(f"at most {most:g} s")
    return found
