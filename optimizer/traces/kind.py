"""What the numbers of a trace are: timestamps, inter-arrival times, or counts (docs/traces.md).

The caller says it, else the column's name, else how the numbers rise and fall. Where that does not tell, the trace is refused:
times taken for gaps, or counts for either, would give a wrong fit without a word.
"""

from __future__ import annotations

import re
import shlex
from typing import Literal

import numpy as np

from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrays import Indices
from sluice.optimizer.traces.columns import Numbers

Kind = Literal["auto", "timestamps", "interarrivals", "counts"]
KINDS: tuple[Kind, ...] = ("auto", "timestamps", "interarrivals", "counts")
KIND_NAMES = {"timestamps": "timestamps", "interarrivals": "inter-arrival times", "counts": "counts"}

# Rates first, since "arrivals per second" speaks of arrivals, then gaps: "inter-arrival time" and "time delta" speak of time too.
# A count is a word, as in request_count and requestCount: one of a county, of an account or per person is none of requests.
_COUNT = r"(?<![A-Za-z])[Cc]ounts?(?![a-z])|(?<=[a-z])Counts?(?![a-z])|(?<![A-Z])COUNTS?(?![A-Z])"
_COUNT_NAME = re.compile(rf"{_COUNT}|(?i:requests|invocations|hits|queries|(?<![a-z])reqs(?![a-z]))")
_ANY_NAME = re.compile(r"^(value|sum|total|number|num|n|y|volume|load|traffic|amount)s?(?![a-z])", re.IGNORECASE)  # of anything
_RATE_NAME = re.compile(
    r"(?<![A-Za-z])(?i:[rqt]p(?P<ps>s))(?![A-Za-z])"
    r"|(?i:per[-_ ]?(?P<per>s(?:ec(?:ond)?)?|m(?:in(?:ute)?)?|h(?:(?:ou)?r)?)s?)(?![a-z]|(?<=[A-Z])[A-Z])"
)
_OF_A_REQUEST = re.compile(r"token|retr(y|ies)|word|char|byte", re.IGNORECASE)  # of which one has many
_RATE_SECONDS = {"s": 1, "m": 60, "h": 3600}
_GAP_NAME = re.compile(
    r"inter[-_ ]?(arr|event|req)|interval|gap|delta|diff|between|spacing|(?<![a-z])iats?(?![a-z])", re.IGNORECASE
)
_TIME_NAME = re.compile(r"time|stamp|date|arriv|clock|epoch|when|(?<![a-z])(ts?|at)(?![a-z])", re.IGNORECASE)

_UNIT_NAME = re.compile(r"(?<![a-z])(m|milli|u|µ|micro|n|nano)(?:s|secs?|seconds?)(?![a-z])", re.IGNORECASE)
_UNITS = {"m": "ms", "milli": "ms", "u": "us", "µ": "us", "micro": "us", "n": "ns", "nano": "ns"}


class Untold(InvalidInput):
    """How a trace is to be read must be said: ``options`` of `sluice fit` say it, and ``why`` they are needed."""

    def __init__(self, field: str, value: object, allowed: str, options: str, why: str) -> None:
        super().__init__(field, value, allowed)
        self.args = (field, value, allowed, options, why)
        self.options = options
        self.why = why


def named_unit(name: str | None) -> str:
    """The unit that a column's name has as a word, as in ``sent_at_ms``; seconds where it names none."""
    found = _UNIT_NAME.search(name or "")
    return _UNITS[found[1].lower()] if found else "s"


MIN_BINS = 3  # rows that can be evenly spaced
LARGEST_INDEX = 1e8  # with which rows begin to be numbered; what is more are seconds since 1970
_SECOND = re.compile(r"^sec(ond)?s?$", re.IGNORECASE)


def require_no_index(
    name: str | None,
    others: tuple[str, ...],
    values: Numbers,
    source: str,
    *,
    option: str = "--column",
    what: str = "times or gaps",
) -> None:
    """Refuse to take the first of several columns where it numbers the rows, unless its name says that it has times or gaps.

    ``option`` is what names another, which has ``what``.
    """
    named = name is not None and any(each.search(name) for each in (_TIME_NAME, _GAP_NAME, _SECOND))
    numbered = len(values) > 1 and values[0] == np.floor(values[0]) < LARGEST_INDEX and bool((np.diff(values) == 1).all())
    if others and not named and numbered:
        known = "" if name is None else f" among {', '.join(filter(None, (name, *others)))}"
        told = f"{option} with the name of the {what}{known}, as the first column numbers the rows"
        told = told if known else f"{told}: name the columns in a first line"
        raise Untold(f"{source}: column", None, told, f"{option} NAME", f"the first column{known} numbers the rows")


def _has_counts(name: str) -> bool:
    return bool(_COUNT_NAME.search(name) or _RATE_NAME.search(name))


def is_time(name: str) -> bool:
    """Whether a column has times by its name."""
    return _TIME_NAME.search(name) is not None and not is_gap(name)


def is_gap(name: str) -> bool:
    """Whether a column has times between arrivals by its name."""
    return _GAP_NAME.search(name) is not None


def bins_of(times: Numbers, width: float) -> Indices | None:
    """The number of the bin of that width that begins at each of some times, from 0 on; ``None`` where one does not begin there."""
    gaps = np.diff(times)
    steps = np.round(gaps / width) if width > 0 else np.zeros(len(gaps))
    if len(times) < MIN_BINS or (steps < 1).any() or (np.abs(gaps - steps * width) > 1e-3 * width).any():
        return None
    return np.concatenate([[0], np.cumsum(steps).astype(np.int64)])


def require_no_bins(times: Numbers, scale: float, unread: tuple[str, ...], source: str, *, headed: bool = True) -> None:
    """Refuse to take one arrival a row where ``times`` are evenly spaced and a column that nobody named may be counts.

    It may by its name; or, of rows that are whole minutes apart, where its name tells nothing, as ``value``, or it has none, where
    the columns are not ``headed``. ``scale`` is what a unit of the times has of seconds. Bins may be left out.
    """
    counts = [name for name in unread if _has_counts(name) and not _OF_A_REQUEST.search(name)]
    perhaps = [name for name in unread if not headed or (_ANY_NAME.search(name) and not _OF_A_REQUEST.search(name))]
    if not (counts or perhaps):
        return
    name = (counts or perhaps)[0]
    width = float(np.median(np.diff(times))) if len(times) > 1 else 0.0
    if bins_of(times, width) is None:
        return
    seconds, rate = float(f"{width * scale:.6g}"), _RATE_NAME.search(name)
    if not counts and seconds % 60:
        return
    called = shlex.quote(name) if headed else "NAME"
    options = f"--kind counts --bin {seconds:.15g} --column {called}"
    first = [] if headed else ["a first line that names the columns"]
    if rate is not None and seconds != (unit := _RATE_SECONDS[(rate["ps"] or rate["per"])[0].lower()]):
        first.append(f"the rates of {name} times {seconds / unit:.6g}, which are counts")
    beside = f", with {' and '.join(first)}" if first else ""
    rows, why = "--kind timestamps where each row is a request", f"its rows are {seconds:.15g} s apart"
    why = f"{why}, and {f'column {name} is named as counts are' if counts else f'{name} may be counts'}"
    raise Untold(f"{source}: kind", "auto", f"{options}{beside}; or {rows}: {why}", options, f"{why}{beside} ({rows})")


def never_fall(values: Numbers) -> bool:
    """Whether numbers rise and never fall, as arrival times do."""
    steps = np.diff(values)
    return bool((steps > 0).any() and (steps >= 0).all())


def require_gaps(values: Numbers, reason: str, source: str) -> None:
    """Refuse to take arrival times for the gaps between them; ``reason`` is why they would be."""
    told = f"timestamps (--kind timestamps): taken for gaps {reason}, these never fall, as arrival times do and gaps do not"
    if never_fall(values):
        raise Untold(f"{source}: kind", "interarrivals", told, "--kind timestamps", "its numbers never fall, as no gaps do")


def assumed_kind(name: str | None, values: Numbers, source: str) -> tuple[Kind, str]:
    """What the numbers under a name are taken for, and why.

    Raises
    ------
    Untold
        They may be either kind, or are counts by their name: the width of a bin must be said then.
    """
    if name is not None and is_gap(name):
        return "interarrivals", f"by the column's name, {name}"
    if name is not None and _has_counts(name):
        told = f"counts --bin SECONDS, or else timestamps or interarrivals, for column {name}"
        options = f"--kind counts --bin SECONDS --column {shlex.quote(name)}"
        raise Untold(f"{source}: kind", "auto", told, options, f"column {name} is named as counts are")
    if name is not None and _TIME_NAME.search(name):
        return "timestamps", f"by the column's name, {name}"
    if never_fall(values):
        return "timestamps", "as they never fall"
    steps = np.diff(values)
    rises, falls = int((steps > 0).sum()), int((steps < 0).sum())
    balanced = max(rises, falls) <= 2 * min(rises, falls)
    # arrivals in disorder spread over their whole span; gaps have a few that are large
    if values.min() < 0 or (balanced and values.max() > 4 * values.mean()):
        return "interarrivals", "as they rise and fall, and few are large"
    why = f"with {rises} rises and {falls} falls these may be timestamps or interarrivals"
    raise Untold(f"{source}: kind", "auto", f"timestamps or interarrivals (--kind): {why}", "--kind KIND", why)
