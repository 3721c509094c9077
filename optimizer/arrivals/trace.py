"""Arrival traces: read from CSV, checked, and described by their statistics (docs/model.md, section 1.2).

A trace is timestamps (ascending) or inter-arrival times (>= 0), one per line, in s, ms or us, or ISO 8601 times with any number of
fractional digits; the file may be compressed by gzip, the column is chosen by name or is the first. Which of the two it holds
is said by the caller, else by the column's name, else by how the numbers rise and fall; where that does not tell, the trace is
refused, as times taken for gaps would give a wrong fit without a word.
"""

from __future__ import annotations

import csv
import gzip
import io
import re
import zlib
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from batching.errors import InvalidInput
from optimizer.arrivals.map import Array

Kind = Literal["auto", "timestamps", "interarrivals"]

MIN_ARRIVALS = 100
UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}
KIND_NAMES = {"timestamps": "timestamps", "interarrivals": "inter-arrival times"}

# A gap is named first: "inter-arrival time" and "time delta" speak of both.
_GAP_NAME = re.compile(
    r"inter[-_ ]?(arr|event|req)|interval|gap|delta|diff|between|spacing|(?<![a-z])iats?(?![a-z])", re.IGNORECASE
)
_TIME_NAME = re.compile(r"time|stamp|date|arriv|clock|epoch|when|(?<![a-z])(ts?|at)(?![a-z])", re.IGNORECASE)

_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d)(?:[.,](\d+))?\s*(Z|[+-]\d\d:?\d\d)?$")


@dataclass(frozen=True)
class TraceStatistics:
    """How arrivals come.

    Of the inter-arrival times ``mean`` (s), ``scv``, ``skewness``, and ``autocorrelation`` by lag; of the counts ``dispersion``
    (variance over mean) by window (s).
    """

    n: int
    duration: float
    arrival_rate: float
    mean: float
    scv: float
    skewness: float
    autocorrelation: dict[int, float]
    dispersion: dict[float, float]


@dataclass(frozen=True, eq=False)
class Trace:
    """Arrivals as they were seen: ``interarrivals`` in seconds, the first counted from an arrival at time 0.

    ``reading`` says what its file was taken to hold, and why.

    Raises
    ------
    InvalidInput
        Fewer than 100 arrivals, a negative gap, or all arrivals at one time.
    """

    interarrivals: Array
    source: str = "trace"
    reading: str = ""

    def __post_init__(self) -> None:
        gaps = np.asarray(self.interarrivals, dtype=float)
        object.__setattr__(self, "interarrivals", gaps)
        if len(gaps) + 1 < MIN_ARRIVALS:
            raise InvalidInput(f"{self.source}: arrivals", len(gaps) + 1, f"at least {MIN_ARRIVALS}")
        bad = np.flatnonzero(~(np.isfinite(gaps) & (gaps >= 0)))
        if len(bad):
            raise InvalidInput(f"{self.source}: inter-arrival time {bad[0] + 1}", float(gaps[bad[0]]), "a number of seconds >= 0")
        if not gaps.any():
            raise InvalidInput(f"{self.source}: times", "all equal", "arrivals at different times")

    def __len__(self) -> int:
        return len(self.interarrivals) + 1

    @cached_property
    def times(self) -> Array:
        """Arrival times in seconds, from 0, shape (len(self),)."""
        return np.concatenate([[0.0], np.cumsum(self.interarrivals)])

    @property
    def duration(self) -> float:
        """Seconds from the first arrival to the last."""
        return float(self.times[-1])

    @property
    def arrival_rate(self) -> float:
        """Requests per second."""
        return len(self.interarrivals) / self.duration

    def sped_up(self, factor: float) -> Trace:
        """The trace replayed ``factor`` times as fast."""
        if not 0 < factor < np.inf:
            raise InvalidInput("factor", factor, "a number > 0")
        return Trace(self.interarrivals / factor, self.source, self.reading)

    def autocorrelation(self, lags: ArrayLike) -> Array:
        """Sample autocorrelation of the inter-arrival times at ``lags``."""
        centred = self.interarrivals - self.interarrivals.mean()
        power = float(centred @ centred)
        if power == 0:
            return np.zeros(len(np.atleast_1d(lags)))
        return np.array([float(centred[:-lag] @ centred[lag:]) / power for lag in np.atleast_1d(lags).tolist()])

    def dispersion(self, window: float) -> float:
        """Index of dispersion of the counts in successive windows of ``window`` seconds; nan with fewer than two windows."""
        n_windows = int(self.duration / window)
        if n_windows < 2:
            return float("nan")
        counts = np.bincount((self.times / window).astype(int), minlength=n_windows)[:n_windows]
        return float(counts.var() / counts.mean()) if counts.any() else float("nan")

    def statistics(self) -> TraceStatistics:
        """Mean, variability, memory and dispersion."""
        gaps = self.interarrivals
        mean, deviation = float(gaps.mean()), float(gaps.std())
        lags = [lag for lag in (1, 2, 5, 10, 20, 50, 100) if lag < len(gaps) // 2]
        windows = [mean * factor for factor in (10, 100, 1000) if mean * factor * 2 <= self.duration]
        return TraceStatistics(
            n=len(self),
            duration=self.duration,
            arrival_rate=self.arrival_rate,
            mean=mean,
            scv=(deviation / mean) ** 2,
            skewness=float(((gaps - mean) ** 3).mean() / deviation**3) if deviation else 0.0,
            autocorrelation=dict(zip(lags, self.autocorrelation(lags).tolist(), strict=True)) if lags else {},
            dispersion={float(f"{window:.6g}"): self.dispersion(window) for window in windows},
        )

    def dithered(self, rng: np.random.Generator) -> Array:
        """Inter-arrival times > 0, for densities: stamps that lie on a clock's grid are spread over its tick.

        A grid is taken for granted when every gap is a multiple of the smallest positive one and some gaps are zero or repeated;
        otherwise zero gaps become a thousandth of the smallest positive one.
        """
        gaps = self.interarrivals
        tick = float(gaps[gaps > 0].min())
        multiples = gaps / tick
        on_grid = bool(np.all(np.abs(multiples - np.round(multiples)) < 1e-3)) and len(np.unique(np.round(multiples))) < len(gaps)
        if on_grid and tick > 1e-4 * float(gaps.mean()):
            gaps = np.diff(np.sort(self.times + rng.uniform(0, tick, len(self.times))))
        return np.maximum(gaps, 1e-3 * tick)


def read_trace(path: str | Path, column: str | None = None, kind: Kind = "auto", unit: str = "s") -> Trace:
    """The trace in a CSV file, plain or compressed by gzip.

    Parameters
    ----------
    column : str, optional
        Its name in the header; by default the first.
    kind : {"auto", "timestamps", "interarrivals"}
        By default ISO times are timestamps and of numbers the column's name decides. Where it does not say, numbers that never fall
        are timestamps, and numbers that rise and fall about as often with a largest beyond four times their mean are inter-arrival
        times: arrivals in disorder spread over their whole span. Anything else is ambiguous.
    unit : {"s", "ms", "us"}
        Of numbers.

    Raises
    ------
    InvalidInput
        Names the file, the line and the value: text among numbers, a negative time or gap, unsorted times; fewer than 100 arrivals;
        numbers that might be either kind.
    """
    if unit not in UNITS:
        raise InvalidInput("unit", unit, "one of " + ", ".join(UNITS))
    source = str(path)
    name, cells = _column(_text(Path(path)), column, source)
    if len(cells) < MIN_ARRIVALS - 1:
        raise InvalidInput(f"{source}: arrivals", len(cells), f"at least {MIN_ARRIVALS}")
    if _ISO.match(cells[0][1]):
        if kind == "interarrivals":
            raise InvalidInput(f"{source}, line {cells[0][0]}", cells[0][1], "a number, as --kind interarrivals was asked for")
        return _from_timestamps(_iso_seconds(cells, source), cells, source, "timestamps (ISO 8601)")
    values = _numbers(cells, source)
    known, reason = (kind, "as asked") if kind != "auto" else _assumed_kind(name, values, source)
    negative = np.flatnonzero(values < 0)
    if len(negative):
        line, text = cells[negative[0]]
        raise InvalidInput(
            f"{source}, line {line}", text, "an inter-arrival time >= 0" if known == "interarrivals" else "a time >= 0"
        )
    reading = f"{KIND_NAMES[known]} in {unit} ({reason})"
    if known == "timestamps":
        return _from_timestamps((values - values[0]) * UNITS[unit], cells, source, reading, assumed=kind == "auto")
    return Trace(values * UNITS[unit], source, reading)


def _text(path: Path) -> str:
    try:
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
        return data.decode("utf-8-sig")
    except OSError as error:
        raise InvalidInput("trace", str(path), f"a readable CSV file, plain or gzip ({error.strerror or error})") from None
    except (EOFError, UnicodeDecodeError, zlib.error) as error:
        raise InvalidInput("trace", str(path), f"a readable CSV file, plain or gzip ({error})") from None


def _column(text: str, column: str | None, source: str) -> tuple[str | None, list[tuple[int, str]]]:
    """Name of the column, and (line number, cell) of every line that is not blank."""
    reader = csv.reader(io.StringIO(text))
    rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    if not rows:
        raise InvalidInput(f"{source}: arrivals", 0, f"at least {MIN_ARRIVALS}")
    first = [cell.strip() for cell in rows[0][1]]
    headed = column is not None or not (_is_number(first[0]) or _ISO.match(first[0]))
    index = 0
    if column is not None:
        if column not in first:
            raise InvalidInput("column", column, f"one of the columns of {source}: " + ", ".join(first))
        index = first.index(column)
    cells = []
    for line, row in rows[1:] if headed else rows:
        if len(row) <= index:
            raise InvalidInput(f"{source}, line {line}", ",".join(row), f"at least {index + 1} columns")
        cells.append((line, row[index].strip()))
    return (first[index] if headed else None), cells


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _numbers(cells: list[tuple[int, str]], source: str) -> Array:
    values = np.empty(len(cells))
    for i, (line, cell) in enumerate(cells):
        try:
            values[i] = float(cell)
        except ValueError:
            raise InvalidInput(f"{source}, line {line}", cell, "a number") from None
        if not np.isfinite(values[i]):
            raise InvalidInput(f"{source}, line {line}", cell, "a finite number")
    return values


def _iso_seconds(cells: list[tuple[int, str]], source: str) -> Array:
    """Seconds since the first; whole seconds and fractions apart, so that no digit is lost to the epoch's."""
    whole, fraction = np.empty(len(cells), dtype=np.int64), np.empty(len(cells))
    for i, (line, cell) in enumerate(cells):
        match = _ISO.match(cell)
        try:
            stamp = datetime.fromisoformat(match[1] + (match[3] or "").replace("Z", "+00:00")) if match else None
        except ValueError:
            stamp = None
        if match is None or stamp is None:
            raise InvalidInput(f"{source}, line {line}", cell, "an ISO 8601 time, as the first one is")
        whole[i] = int((stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp())
        fraction[i] = float("0." + (match[2] or "0"))
    return np.asarray((whole - whole[0]) + (fraction - fraction[0]), dtype=np.float64)


def _assumed_kind(name: str | None, values: Array, source: str) -> tuple[Kind, str]:
    """What the numbers are, and why it is so; a negative number is refused by either kind."""
    if name is not None and _GAP_NAME.search(name):
        return "interarrivals", f"by the column's name, {name}"
    if name is not None and _TIME_NAME.search(name):
        return "timestamps", f"by the column's name, {name}"
    steps = np.diff(values)
    rises, falls = int((steps > 0).sum()), int((steps < 0).sum())
    if rises and not falls:
        return "timestamps", "as they never fall"
    balanced = max(rises, falls) <= 2 * min(rises, falls)
    if values.min() < 0 or (balanced and values.max() > 4 * values.mean()):
        return "interarrivals", "as they rise and fall, and few are large"
    raise InvalidInput(
        f"{source}: kind", "auto", f"timestamps or interarrivals (--kind): with {rises} rises and {falls} falls these may be either"
    )


def _from_timestamps(times: Array, cells: list[tuple[int, str]], source: str, reading: str, assumed: bool = False) -> Trace:
    gaps = np.diff(times)
    falling = np.flatnonzero(gaps < 0)
    if len(falling):
        line, text = cells[falling[0] + 1]
        otherwise = "; if these are gaps, say --kind interarrivals" if assumed else ""
        raise InvalidInput(
            f"{source}, line {line}", text, f"a time not before the one above it ({cells[falling[0]][1]}){otherwise}"
        )
    return Trace(gaps, source, reading)
