"""A journal read back as sentences: what a decision was due for, compared and expected, and what came of the one before."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from sluice.optimizer.recommend.words import milliseconds

Interval = tuple[float | None, float | None, float | None]
"""An estimate and its bounds."""

MOST_RATES = 5
"""Of the cost by rate, that are told."""


class _Rehearsed(msgspec.Struct):
    usd_per_million: Interval
    percentile: Interval
    late: Interval


class _Considered(msgspec.Struct):
    name: str
    digest: str
    rehearsed: _Rehearsed
    keeps: bool


class _ExpectedOfLast(msgspec.Struct):
    late: float
    percentile: float | None
    usd_per_million: Interval


class _SinceLast(msgspec.Struct):
    seconds: float
    requests: int
    arrival_rate: float | None
    mean_batch_size: float
    late: float
    percentile: float | None
    usd_per_million: float | None
    expected: _ExpectedOfLast | None


class _ExpectedOfFamily(msgspec.Struct):
    arrival_rate: float
    room_for: float
    late: float
    accuracy: float | None


class _Family(msgspec.Struct):
    requests: int
    arrival_rate: float
    late: float | None
    accuracy: float | None
    expected: _ExpectedOfFamily


class _SincePlacement(msgspec.Struct):
    """Of a fleet."""

    seconds: float
    families: dict[str, _Family]


class _Correction(msgspec.Struct):
    memory_mb: int
    batch_size: int
    batches: int
    latency: tuple[float | None, float | None]
    cost: tuple[float | None, float | None]


class _Rate(NamedTuple):
    """A rate, and USD per million requests at it with the bounds of a window."""

    rate: float
    usd: float | None
    low: float | None
    high: float | None


class _Decision(msgspec.Struct):
    """What is read of an entry; an older version may have written less."""

    arrival_rate: float | None = None
    considered: list[_Considered] = []
    expected: _Considered | None = None
    given: str = ""
    promise: str = ""
    since_last: _SinceLast | None = None
    since_last_placement: _SincePlacement | None = None
    measured_less_predicted: list[_Correction] = []
    cost_by_rate: list[_Rate] = []
    bias: float = 0.0
    way: float = 0.0


def explained(entry: Mapping[str, Any]) -> Iterator[str]:
    """The lines of an entry; of one that has figures of another kind than are known the sentence alone."""
    model = f"{entry['model']}: " if entry["model"] else ""
    yield f"{entry['at']}  {model}{entry['words']}"
    try:
        decision = msgspec.convert(entry, _Decision)
    except msgspec.ValidationError:
        return
    yield from (f"    {line}" for line in _figures(decision))


def _figures(decision: _Decision) -> Iterator[str]:
    percentile = decision.promise or "percentile"
    if (since := decision.since_last) is not None:
        yield f"what came of the decision before: {_came(since, percentile)}"
    if (placed := decision.since_last_placement) is not None:
        yield f"what came of the placement before, of {placed.seconds:.4g} s; as planned in brackets:"
        yield from (f"  {name}: {_came_of(family)}" for name, family in placed.families.items())
    if decision.considered:
        rate = f" at {decision.arrival_rate:.4g} requests/s" if decision.arrival_rate is not None else ""
        yield f"compared{rate}, as rehearsed; USD per million requests, {percentile}, late:"
        yield from (f"  {_compared(each, decision)}" for each in decision.considered)
    if decision.measured_less_predicted:
        yield "measured less predicted, with standard errors; seconds of a batch, and part of its cost:"
        yield from (f"  {_corrected(each)}" for each in decision.measured_less_predicted)
    if decision.way or decision.bias:
        way, bias = milliseconds(decision.way), milliseconds(decision.bias)
        yield f"on the way through the buffer: {way}; added to every rehearsal: {bias}"
    if decision.cost_by_rate:
        curve = decision.cost_by_rate
        step = max(1, -(-(len(curve) - 1) // (MOST_RATES - 1)))
        told = [f"{_interval((usd, low, high), _usd)} at {rate:.3g}/s" for rate, usd, low, high in curve[::step]]
        yield f"USD per million requests (in 95 % of windows): {', '.join(told)}"


def _came(since: _SinceLast, percentile: str) -> str:
    rate = f", {since.arrival_rate:.4g}/s" if since.arrival_rate is not None else ""
    requests = f"{since.requests} requests in {since.seconds:.4g} s{rate}, {since.mean_batch_size:.3g} a batch"
    expected = since.expected
    told = [
        f"{percentile} {_seconds(since.percentile)}{'' if expected is None else f' (expected {_seconds(expected.percentile)})'}",
        f"{_percent(since.late)} late{'' if expected is None else f' (expected {_percent(expected.late)})'}",
    ]
    if since.usd_per_million is not None:
        told.append(f"{_usd(since.usd_per_million)} USD per million")
        if expected is not None:
            told[-1] += f" (expected at this rate {_interval(expected.usd_per_million, _usd)})"
    return f"{requests}: {', '.join(told)}"


def _came_of(family: _Family) -> str:
    expected = family.expected
    return (
        f"{family.requests} requests, {family.arrival_rate:.4g}/s ({expected.arrival_rate:.4g}, with room for "
        f"{expected.room_for:.4g}), {_percent(family.late)} late ({_percent(expected.late)} are promised at most), "
        f"accuracy {_accuracy(family.accuracy)} ({_accuracy(expected.accuracy)})"
    )


def _compared(each: _Considered, decision: _Decision) -> str:
    what = [
        "serves from now on" if decision.expected is not None and decision.expected.digest == each.digest else "",
        "as somebody gave it" if decision.given == each.digest else "",
    ]
    marks = ", ".join(filter(None, what))
    rehearsed = each.rehearsed
    figures = f"{_interval(rehearsed.usd_per_million, _usd)}, {_seconds(rehearsed.percentile[0])}, {_percent(rehearsed.late[0])}"
    keeps = "" if each.keeps else ", does not surely keep the promise"
    return f"{each.name}{f' ({marks})' if marks else ''}: {figures}{keeps}"


def _corrected(each: _Correction) -> str:
    told = [f"{_signed(each.latency, 1000)} ms"]
    if each.cost[0] is not None:
        told.append(f"{_signed(each.cost, 100)} % of the cost")
    return f"{each.memory_mb} MB, batches of {each.batch_size}: {', '.join(told)} ({each.batches} batches)"


def _signed(value: tuple[float | None, float | None], scale: float) -> str:
    mean, error = value
    if mean is None:
        return "?"
    return f"{scale * mean:+.3g}{f' ± {scale * error:.2g}' if error is not None else ''}"


def _interval(interval: Interval, tell: Any) -> str:
    value, low, high = interval
    if low is None or high is None or low >= high:
        return str(tell(value))
    return f"{tell(value)} ({tell(low)} to {tell(high)})"


def _usd(value: float | None) -> str:
    return "not known" if value is None else f"{value:.3g}"


def _seconds(value: float | None) -> str:
    return "not known" if value is None else milliseconds(value)


def _accuracy(percent: float | None) -> str:
    return "not known" if percent is None else f"{percent:.4g} %"


def _percent(share: float | None) -> str:
    return "not known" if share is None else f"{100 * share:.3g} %"
