"""When the requests of a model came, and how large they were, as calls to its queues noted it. What may live here: the record and
how it is read, no store.

A call notes when it was made, how old each of its accepted arrivals was then, and the size of each where any was told;
``arrival_stream.py`` has the same in Redis. The clock of the calls may be set back: it is the newest call's that dates all, and
where a call is dated after the next one, no time is taken to have passed between the two. A clock that is set forward looks like
time without arrivals.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from collections.abc import Iterable, Sequence
from typing import NamedTuple


class Call(NamedTuple):
    """An entry: when a call was made (s), how old its arrivals were then (s), how many were recorded before them, their sizes.

    A size is ``nan`` where it was not told; there are none where none was.
    """

    made_at: float
    ages: Sequence[float]
    before: int
    sizes: Sequence[float] = ()


class Arrivals(NamedTuple):
    """When requests came, ascending (s), and the size of each, ``nan`` where it was not told; no sizes where none was."""

    times: array[float]
    sizes: array[float]


class ArrivalRecord:
    """The newest calls of a model, oldest first."""

    def __init__(self) -> None:
        self.calls: deque[Call] = deque()

    def note(self, now: float, ages: Sequence[float], kept: int, sizes: Sequence[float] = ()) -> None:
        """Note the arrivals of a call; forget the oldest calls without which ``kept`` arrivals remain."""
        calls = self.calls
        before = calls[-1].before + len(calls[-1].ages) if calls else 0
        calls.append(Call(now, ages, before, sizes))
        while calls[0].before + len(calls[0].ages) <= before + len(ages) - kept:
            calls.popleft()

    def arrivals(self) -> Arrivals:
        """The arrivals of these calls, on their clock."""
        return arrivals(reversed(self.calls))


def arrivals(*records: Iterable[Call]) -> Arrivals:
    """The arrivals of all calls, by the time when they came (arrays of doubles, shape (n,), seconds); each record is newest first.

    Where calls before the oldest of a record are missing, these may have brought arrivals up to its time: nothing before that time
    is returned, so that from there on the arrivals are complete.
    """
    times, sizes = array("d"), array("d")
    told = False
    complete_from = -math.inf
    for newest_first in records:
        oldest = None
        next_at, set_back = math.inf, 0.0  # s; by how much the clock was set back after a call, in sum
        for oldest in newest_first:
            made_at, ages, _, sizes_told = oldest
            set_back += max(0.0, made_at - set_back - next_at)
            next_at = made_at - set_back
            times.extend([next_at - age for age in ages])
            if told or sizes_told:
                told = True
                sizes.extend([math.nan] * (len(times) - len(ages) - len(sizes)))
                sizes.extend(sizes_told or [math.nan] * len(ages))
        if oldest is not None and oldest.before:
            complete_from = max(complete_from, next_at)
    if not told:
        return Arrivals(array("d", sorted(time for time in times if time >= complete_from)), sizes)
    order = sorted((i for i, time in enumerate(times) if time >= complete_from), key=times.__getitem__)
    return Arrivals(array("d", [times[i] for i in order]), array("d", [sizes[i] for i in order]))
