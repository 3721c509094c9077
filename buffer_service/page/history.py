"""The last minutes of a model at this process: samples of its counters, and what happened between them. No clock, no I/O.

Counters rise as long as the process lives, so that what happened in a time is a difference. Those of a route or a class begin anew
where the plan loses it and has it again; what then seems to have been taken back is counted from 0.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple, TypeVar

from sluice.buffer_service.telemetry import ClassTotals, Counted, RouteTotals, Totals

SAMPLE_EVERY = 5.0  # s
KEPT = 60  # samples: five minutes
MOST_PARTS = 32  # classes, and routes, of which samples are kept

_Part = TypeVar("_Part", RouteTotals, ClassTotals)


class Interval(NamedTuple):
    """Between two samples: its end (s) and length (s), requests/s that came, batches, requests in them, who then waited."""

    end: float
    seconds: float
    arrival_rate: float
    batches: int
    requests: float
    ended: int
    late: int
    waiting: int


class Window(NamedTuple):
    """What happened in ``seconds``; the fields are those of ``Totals``, as differences."""

    seconds: float
    came: int
    ended: int
    late: int
    refused: Mapping[str, int]
    latency: Counted
    sizes: Counted
    routes: Mapping[str, RouteTotals]
    classes: Mapping[str, ClassTotals]

    @property
    def arrival_rate(self) -> float | None:
        """Requests/s; ``None`` before any time has passed."""
        return self.came / self.seconds if self.seconds > 0 else None


class History:
    """The newest ``KEPT`` samples of one model, oldest first."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, Totals]] = deque(maxlen=KEPT)

    def take(self, now: float, totals: Totals) -> None:
        """One more sample; the oldest of too many is forgotten."""
        self._samples.append((now, _bounded(totals)))

    def window(self, now: float, totals: Totals) -> Window:
        """What happened from the oldest sample until now."""
        since, before = self._samples[0] if self._samples else (now, totals)
        return Window(
            now - since,
            totals.came - before.came,
            totals.ended - before.ended,
            totals.late - before.late,
            {error: n - before.refused.get(error, 0) for error, n in totals.refused.items() if n > before.refused.get(error, 0)},
            _less(totals.latency, before.latency),
            _less(totals.sizes, before.sizes),
            {name: _route_since(each, before.routes.get(name)) for name, each in _first(totals.routes).items()},
            {name: _class_since(each, before.classes.get(name)) for name, each in _first(totals.classes).items()},
        )

    def intervals(self, now: float, totals: Totals) -> list[Interval]:
        """What happened between each sample and the next, until now."""
        found = []
        for (start, before), (end, after) in pairwise([*self._samples, (now, totals)]):
            if end <= start:
                continue
            sizes, rate = _less(after.sizes, before.sizes), (after.came - before.came) / (end - start)
            ended, late, waiting = after.ended - before.ended, after.late - before.late, sum(after.waiting.values())
            found.append(Interval(end, end - start, rate, sum(sizes.counts), sizes.sum, ended, late, waiting))
        return found


def quantile_bounds(counts: Sequence[int], ends: Sequence[float], quantile: float) -> tuple[float, float] | None:
    """Between which two ends of buckets a quantile (0 to 1) lies; ``None`` of nothing.

    ``counts`` has one bucket more than there are ``ends``: of what is above the last, up to ``inf``.
    """
    total, reached = sum(counts), 0
    if not total:
        return None
    for place, count in enumerate(counts):
        reached += count
        if reached >= quantile * total and reached:
            return ends[place - 1] if place else 0.0, ends[place] if place < len(ends) else math.inf
    raise AssertionError("unreachable: all of them are not above the last")


def _bounded(totals: Totals) -> Totals:
    return totals._replace(routes=_first(totals.routes), classes=_first(totals.classes))


def _first(parts: Mapping[str, _Part]) -> Mapping[str, _Part]:
    return parts if len(parts) <= MOST_PARTS else dict(list(parts.items())[:MOST_PARTS])


def _less(after: Counted, before: Counted) -> Counted:
    if any(new < old for new, old in zip(after.counts, before.counts, strict=True)):
        return after
    return Counted(tuple(new - old for new, old in zip(after.counts, before.counts, strict=True)), after.sum - before.sum)


def _route_since(after: RouteTotals, before: RouteTotals | None) -> RouteTotals:
    if before is None or after.answered < before.answered:
        return after
    return RouteTotals(after.answered - before.answered, _less(after.sizes, before.sizes))


def _class_since(after: ClassTotals, before: ClassTotals | None) -> ClassTotals:
    if before is None or after.ended < before.ended:
        return after
    return ClassTotals(after.ended - before.ended, after.late - before.late, _less(after.latency, before.latency))
