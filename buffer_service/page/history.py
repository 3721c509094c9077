"""The last minutes of a model at this process: samples of its counters, and what happened between them. No clock, no I/O.

Counters rise as long as the process lives, so that what happened in a time is a difference. Those of a route or a class begin anew
where the plan loses it and has it again; what then seems to have been taken back is counted from 0.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from sluice.buffer_service.telemetry import ClassTotals, Counted, Invoked, RouteTotals, Totals

SAMPLE_EVERY = 5.0  # s
KEPT = 60  # samples: five minutes
SHORTEST = 1.0  # s, below which an interval says little
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
    invoked: Invoked
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
        self._between: deque[Interval] = deque(maxlen=KEPT - 1)  # each sample and the next

    def take(self, now: float, totals: Totals) -> None:
        """One more sample; the oldest of too many is forgotten."""
        if self._samples:
            self._between.append(_interval(*self._samples[-1], now, totals))
        self._samples.append((now, _bounded(totals)))

    def came_since(self, came: int) -> int:
        """Of so many requests since the process began, those since the oldest sample, if there is one."""
        return came - self._samples[0][1].came if self._samples else came

    def window(self, now: float, totals: Totals) -> Window:
        """What happened from the oldest sample until now."""
        return _window(*(self._samples[0] if self._samples else (now, totals)), now, totals)

    def between(self, start: float, end: float, now: float, totals: Totals) -> Window | None:
        """What happened from the first sample since ``start`` to the last until ``end``.

        ``None`` where no two samples lie within, or ``start`` is before all that are kept.
        """
        within = [sample for sample in (*self._samples, (now, totals)) if start <= sample[0] <= end]
        if len(within) < 2 or within[0][0] > start + 2 * SAMPLE_EVERY:
            return None
        return _window(*within[0], *within[-1])

    def intervals(self, now: float, totals: Totals) -> list[Interval]:
        """What happened between each sample and the next, and since the last one where that is a while ago."""
        under_way = self._samples and now - self._samples[-1][0] >= SHORTEST
        return [*self._between, *([_interval(*self._samples[-1], now, totals)] if under_way else [])]


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


def _window(start: float, before: Totals, end: float, after: Totals) -> Window:
    return Window(
        end - start,
        after.came - before.came,
        after.ended - before.ended,
        after.late - before.late,
        {error: n - before.refused.get(error, 0) for error, n in after.refused.items() if n > before.refused.get(error, 0)},
        _less(after.latency, before.latency),
        _less(after.sizes, before.sizes),
        after.invoked.since(before.invoked),
        {name: _route_since(each, before.routes.get(name)) for name, each in _first(after.routes).items()},
        {name: _class_since(each, before.classes.get(name)) for name, each in _first(after.classes).items()},
    )


def _interval(start: float, before: Totals, end: float, after: Totals) -> Interval:
    sizes, rate = _less(after.sizes, before.sizes), (after.came - before.came) / (end - start)
    ended, late, waiting = after.ended - before.ended, after.late - before.late, sum(after.waiting.values())
    return Interval(end, end - start, rate, sum(sizes.counts), sizes.sum, ended, late, waiting)


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
