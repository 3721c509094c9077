"""Arrival traces: what they are, how they vary, and how they are read from files (docs/traces.md).

A trace is the times between arrivals. ``read_trace`` recognises what a file is by its content: CSV, Parquet, NPY or the access log
of a load balancer, plain or compressed by gzip; each has a module of its own that gives numbers, and here they become arrivals.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.optimizer.arrays import Array, Indices
from sluice.optimizer.fast_length import fast_length
from sluice.optimizer.service.mix import checked_sizes
from sluice.optimizer.traces.access_log import is_access_log, log_files, read_access_logs
from sluice.optimizer.traces.columns import (
    ISO_KIND,
    SECONDS,
    Column,
    Numbers,
    read_csv_column,
    read_csv_names,
    read_npy_column,
    read_parquet_column,
    read_parquet_names,
)
from sluice.optimizer.traces.counts import spread_counts
from sluice.optimizer.traces.kind import (
    KIND_NAMES,
    KINDS,
    Kind,
    Untold,
    assumed_kind,
    bins_of,
    is_gap,
    is_time,
    named_unit,
    require_gaps,
    require_no_bins,
    require_no_index,
)

MIN_ARRIVALS = 100
LATEST = 1e11  # s; clocks count seconds since 1970, and later than the year 5000 means another unit
FEWEST_WINDOWS, MOST_WINDOWS = 10, 1_000_000  # that an index of dispersion is estimated from


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

    ``reading`` says what its file was taken to hold, and why; ``sizes``, (len(self),), are those of the requests, where they are
    known, and ``classes`` the names of theirs.

    Raises
    ------
    InvalidInput
        Fewer than 100 arrivals, a negative gap, or all arrivals at one time; a size that is none, or not one for each arrival.
    """

    interarrivals: Array
    source: str = "trace"
    reading: str = ""
    sizes: Array | None = None
    classes: NDArray[np.str_] | None = None

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
        if self.sizes is not None:
            sizes = checked_sizes(self.sizes, self.source)
            object.__setattr__(self, "sizes", sizes)
            require(len(sizes) == len(gaps) + 1, f"{self.source}: sizes", len(sizes), f"one for each of {len(gaps) + 1} arrivals")

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
            raise InvalidInput("speed", factor, "a number > 0")
        return replace(self, interarrivals=self.interarrivals / factor)

    def between(self, start: float, end: float) -> Trace:
        """The arrivals from ``start`` to ``end``, in seconds since the first arrival."""
        if not 0 <= start < end:
            raise InvalidInput("from, to", (start, end), "seconds since the first arrival, 0 <= from < to")
        first, last = (int(np.searchsorted(self.times, *edge)) for edge in ((start, "left"), (end, "right")))
        source = f"{self.source} from {start:g} s" + (f" to {end:g} s" if np.isfinite(end) else "")
        last = max(first + 1, last)
        return self._part(first, last, source)

    def last(self, seconds: float) -> Trace:
        """The arrivals of the last ``seconds``, up to the last arrival."""
        if not seconds > 0:
            raise InvalidInput("window", seconds, "a number of seconds > 0")
        first = int(np.searchsorted(self.times, self.duration - seconds))
        source = f"{self.source}, last {seconds:g} s"
        return self._part(first, len(self), source)

    def _part(self, first: int, last: int, source: str) -> Trace:
        sizes = None if self.sizes is None else self.sizes[first:last]
        classes = None if self.classes is None else self.classes[first:last]
        return Trace(self.interarrivals[first : last - 1], source, self.reading, sizes, classes)

    def counts(self, n_windows: int) -> Array:
        """Arrivals in each of ``n_windows`` equal windows from the first arrival to the last, which itself is not counted."""
        places = self.times[:-1] / (self.duration / n_windows)
        return np.bincount(np.minimum(places.astype(np.int64), n_windows - 1), minlength=n_windows).astype(np.float64)

    def autocorrelation(self, lags: ArrayLike) -> Array:
        """Sample autocorrelation of the inter-arrival times at ``lags``."""
        centred = self.interarrivals - self.interarrivals.mean()
        power = float(centred @ centred)
        if power == 0:
            return np.zeros(len(np.atleast_1d(lags)))
        wanted = np.atleast_1d(lags)
        size = fast_length(len(centred) + int(wanted.max()))  # as much more than there are: nothing meets its other end
        products = np.fft.irfft(np.abs(np.fft.rfft(centred, size)) ** 2, size)[wanted]
        return np.asarray(products / power)

    def dispersion(self, window: float) -> float:
        """Index of dispersion of the counts in successive windows of ``window`` seconds; nan with fewer than two windows."""
        n_windows = int(self.duration / window)
        if n_windows < 2:
            return float("nan")
        counts = np.diff(np.searchsorted(self.times, window * np.arange(n_windows + 1)))
        return float(counts.var(ddof=1) / counts.mean()) if counts.any() else float("nan")

    def dispersion_windows(self, per_decade: int) -> Array:
        """Windows in seconds, ``per_decade`` to a factor of ten, from the mean gap up to a tenth of the trace."""
        shortest, longest = self.duration / min(len(self.interarrivals), MOST_WINDOWS), self.duration / FEWEST_WINDOWS
        steps = int(np.floor(per_decade * np.log10(longest / shortest) + 1e-9))
        return np.asarray(shortest * 10 ** (np.arange(steps + 1) / per_decade))

    def statistics(self) -> TraceStatistics:
        """Mean, variability, memory and dispersion."""
        gaps = self.interarrivals
        mean, deviation = float(gaps.mean()), float(gaps.std())
        lags = [lag for lag in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000) if lag <= len(gaps) // FEWEST_WINDOWS]
        return TraceStatistics(
            n=len(self),
            duration=self.duration,
            arrival_rate=self.arrival_rate,
            mean=mean,
            scv=(deviation / mean) ** 2,
            skewness=float(((gaps - mean) ** 3).mean() / deviation**3) if deviation else 0.0,
            autocorrelation=dict(zip(lags, self.autocorrelation(lags).tolist(), strict=True)),
            dispersion={
                float(f"{window:.6g}"): self.dispersion(window) for window in self.dispersion_windows(per_decade=1).tolist()
            },
        )

    def size_correlations(self) -> tuple[float, float] | None:
        """Correlation of the sizes of consecutive requests, and of a size with the gap before it; ``None`` without sizes.

        Both are near 0 where sizes are drawn independently (docs/model.md, 9.2); 0 where nothing varies.
        """
        if self.sizes is None:
            return None
        later = self.sizes[1:] - self.sizes.mean()
        pairs = ((self.sizes[:-1] - self.sizes.mean(), later), (self.interarrivals - self.interarrivals.mean(), later))
        of_next, of_gap = (float(a @ b / np.sqrt(max((a @ a) * (b @ b), np.finfo(float).tiny))) for a, b in pairs)
        return of_next, of_gap

    def dithered(self, rng: np.random.Generator) -> Array:
        """Inter-arrival times > 0, for densities: stamps that lie on a clock's grid are spread over its tick.

        A grid is taken for granted when every gap is a multiple of the smallest positive one, some gaps are repeated, and some are
        zero or the smallest is below half the mean (a regular source is no clock). Otherwise zero gaps become a thousandth of the
        smallest positive one.
        """
        gaps = self.interarrivals
        mean, tick = float(gaps.mean()), float(gaps[gaps > 0].min())
        multiples = gaps / tick
        rounded = np.round(multiples)
        on_grid = bool(np.all(np.abs(multiples - rounded) < 1e-3)) and len(np.unique(rounded)) < len(gaps)
        if on_grid and 1e-4 * mean < tick and (tick < 0.5 * mean or not gaps.all()):
            gaps = np.diff(np.sort(self.times + rng.uniform(0, tick, len(self.times))))
        return np.maximum(gaps, 1e-3 * tick)


def read_trace(
    path: str | Path,
    column: str | None = None,
    kind: Kind = "auto",
    unit: str = "s",
    bin_width: float | None = None,
    rng: np.random.Generator | None = None,
    size_column: str | None = None,
    class_column: str | None = None,
) -> Trace:
    """The trace in a file, or in the access logs of a folder.

    Parameters
    ----------
    column : str, optional
        Its name in the file; by default the first, where it does not number the rows of others.
    kind : {"auto", "timestamps", "interarrivals", "counts"}
        By default what the type of the values says, else what ``assumed_kind`` finds.
    unit : {"s", "ms", "us", "ns"}
        Of plain numbers that are times or gaps.
    bin_width : float, optional
        Seconds that each count covers, by default 1; with ``kind="auto"`` it says that they are counts.
    rng : numpy.random.Generator, optional
        Places counted arrivals in their bins (``sluice.optimizer.traces.counts``); seeded with 0 by default.
    size_column, class_column : str, optional
        The columns with the sizes and with the classes of the requests, of a file whose rows are arrivals.

    Raises
    ------
    InvalidInput
        Names the file, the line or row and the value: text among numbers, a negative time, gap or count, unsorted times; fewer
        than 100 arrivals; a file that is torn or of no kind that is read.
    Untold
        Numbers that might be either kind, or are in another unit or column than is said; times of bins beside counts.
    """
    if unit not in SECONDS:
        raise InvalidInput("unit", unit, "one of " + ", ".join(SECONDS))
    if kind not in KINDS:
        raise InvalidInput("kind", kind, "one of " + ", ".join(KINDS))
    if bin_width is not None and kind == "auto":
        kind = "counts"
    if bin_width is not None and kind != "counts":
        raise InvalidInput("bin", bin_width, "none but for counts")
    source = str(path)
    found = _column_or_logs(Path(path), column, source)
    if isinstance(found, Column):
        unread = () if column is not None else tuple(name for name in found.others if name not in (size_column, class_column))
        rng = rng or np.random.default_rng(0)
        if kind == "counts":
            trace = _of_counts(Path(path), found, column, 1.0 if bin_width is None else bin_width, source, rng)
        else:
            trace = _of_column(found, column, unread, kind, unit, source)
        if class_column is not None:
            trace = _with(trace, "classes", read_classes(path, class_column))
        another = f"another column than {found.name}, which has the arrivals"
        require(size_column is None or size_column != found.name, "size_column", size_column, another)
        return trace if size_column is None else _with(trace, "sizes", read_sizes(path, size_column))
    require(size_column is None, "size_column", size_column, "none for an access log: it tells no sizes")
    require(class_column is None, "class_column", class_column, "none for an access log: it tells no classes")
    if unit != "s":
        raise InvalidInput("unit", unit, "none for an access log: its times carry their own")
    if column is not None or kind in ("interarrivals", "counts"):
        given = ("column", column) if column is not None else ("kind", kind)
        raise InvalidInput(*given, "none for an access log: it holds times in a field of its own")
    times = read_access_logs(found)
    _require_arrivals(len(times), source)
    some = "an access log" if len(found) == 1 else f"{len(found)} access logs"
    return Trace(np.diff(times) * SECONDS["ns"], source, f"request_creation_time in {some} of a load balancer")


def read_sizes(path: str | Path, column: str | None = None) -> Array:
    """The sizes of requests in a column of a file, by default the first: numbers >= 0, (n_requests,).

    Raises
    ------
    InvalidInput
        Names the file, the line or row and the value: text among numbers, a negative or missing one; a file that is none of CSV,
        Parquet and NPY.
    """
    found = _column_or_logs(Path(path), column, str(path))
    if not isinstance(found, Column) or found.means:
        told = NOT_GIVEN if column is None else column
        raise InvalidInput(f"{path}: column", told, "one of numbers, the sizes of requests (--size-column NAME), not times")
    if column is None:
        require_no_index(found.name, found.others, found.values, str(path), option="--size-column", what="sizes")
    for i in np.flatnonzero(~(np.isfinite(found.values) & (found.values >= 0)))[:1]:
        where, text = found.place(int(i))
        raise InvalidInput(where, text, "a size >= 0")
    require(len(found.values) > 0, f"{path}: sizes", 0, "at least one")
    return np.asarray(found.values, dtype=np.float64)


def read_classes(path: str | Path, column: str) -> NDArray[np.str_]:
    """The names of the classes of requests in a column of a file, (n_requests,).

    Raises
    ------
    InvalidInput
        No such column; a request without a class, with its line or row; a file that is neither CSV nor Parquet.
    """
    kind, content = _content(Path(path), str(path))
    require(kind in ("csv", "parquet"), "class_column", column, f"of a CSV or Parquet file: {path} is none")
    assert isinstance(content, Path | bytes)
    if kind == "parquet":
        named = read_parquet_names(content, column, str(path))
    else:
        assert isinstance(content, bytes)
        named = read_csv_names(content, column, str(path))
    for where, name in named:
        require(bool(name), where, name, "the name of a class")
    return np.array([name for _, name in named], dtype=np.str_)


def _with(trace: Trace, field: str, values: NDArray[np.generic]) -> Trace:
    """The trace with what stands in the rows of its times."""
    rows = f"times of a trace that has {field}: a row for each arrival"
    require(len(values) == len(trace), f"{trace.source}: kind", trace.reading, rows)
    named: dict[str, Any] = {field: values}
    return replace(trace, **named)


def _column_or_logs(path: Path, column: str | None, source: str) -> Column | list[Path]:
    """A column of a file, by what the file is; or the access logs to be read."""
    kind, content = _content(path, source)
    if isinstance(content, list):
        return content
    if kind == "parquet":
        return read_parquet_column(content, column, source)
    assert isinstance(content, bytes)
    return (read_npy_column if kind == "npy" else read_csv_column)(content, column, source)


def _content(path: Path, source: str) -> tuple[str, Path | bytes | list[Path]]:
    """What a file is, ``parquet``, ``npy``, ``csv`` or ``logs``, and what is to be read of it."""
    try:
        if path.is_dir():
            return "logs", log_files(path)
        with path.open("rb") as file:
            start = file.read(8)
        if start[:4] == b"PAR1" or path.suffix == ".parquet":
            return "parquet", path
        data = path.read_bytes()
        if data[:2] == b"\x1f\x8b":
            data = gzip.decompress(data)
    except FileNotFoundError:
        url = "; what is elsewhere is fetched first" if "://" in source else ""
        raise InvalidInput("trace", source, f"a file that exists{url}") from None
    except (OSError, EOFError, zlib.error) as error:
        told = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise InvalidInput(
            "trace", source, f"a readable file of CSV, Parquet, NPY or a load balancer's log, plain or gzip ({told})"
        ) from None
    if data[:4] == b"PAR1":
        return "parquet", data
    if data[:6] == b"\x93NUMPY" or path.suffix == ".npy":
        return "npy", data
    if b"\0" in data[:4096]:
        raise InvalidInput(
            "trace", source, "CSV, Parquet, NPY or a load balancer's log, plain or gzip; this is some other binary file"
        )
    if data.lstrip()[:1] in (b"{", b"["):
        raise InvalidInput(
            "trace", source, "CSV, Parquet, NPY or a load balancer's log, plain or gzip; this is JSON, which is no trace"
        )
    return ("logs", [path]) if is_access_log(data) else ("csv", data)


def _checked(found: Column, kind: Kind, source: str) -> Numbers:
    """What a column has, which are numbers all, of a type that can be read so."""
    _require_arrivals(len(found.values), source, at_least=1)
    missing = np.flatnonzero(~np.isfinite(found.values))
    if len(missing):
        where, text = found.place(int(missing[0]))
        raise InvalidInput(where, text, "a finite number")
    if found.means and kind not in ("auto", found.means):
        where, text = found.place(0)
        raise InvalidInput(where, text, f"a number, as it is read as {kind} (--kind, --bin)")
    return found.values


def _of_counts(path: Path, found: Column, column: str | None, width: float, source: str, rng: np.random.Generator) -> Trace:
    """The arrivals of a column of counts; where a column of times leaves bins out, none came in these."""
    _checked(found, "counts", source)
    if column is None and found.others:
        names = ", ".join(filter(None, (found.name, *found.others)))
        told = f"the name of the counts among {names}" if found.name is not None else "a first line that names the columns"
        raise InvalidInput(f"{source}: column", None, told)
    bins, note = None, ""
    if by_time := list(_bins_by_time(path, found, width, source)):
        name, bins = min(by_time, key=lambda each: int(np.diff(each[1]).min()))  # in the unit in which bins follow each other
        apart, left_out = int(np.diff(bins).min()), int(bins[-1]) + 1 - len(bins)
        if apart > 1:
            note, bins = f"; by column {name} they are {apart * width:g} s apart, which is not heeded", None
        elif left_out:
            note = f"; none in the {left_out} that column {name} leaves out"
    times = spread_counts(found, width, source, rng, bins)
    _require_arrivals(len(times), source)
    return Trace(np.diff(times), source, f"counts per {width:g} s, placed in their bins at random{note}")


def _bins_by_time(path: Path, found: Column, width: float, source: str) -> Iterator[tuple[str, Indices]]:
    """The columns beside one of counts that have times at which bins of so many seconds begin, and the bin of each row by them.

    The first may have another name: it does where its type tells so, or bins are whole minutes. Plain numbers may be in any unit.
    """
    for place, name in enumerate(found.others if found.name is not None else ()):
        if is_gap(name) or (place and not is_time(name)):
            continue
        with suppress(InvalidInput):
            times = _column_or_logs(path, name, source)
            assert isinstance(times, Column)
            told = times.means == "timestamps" or (not times.means and (is_time(name) or width % 60 == 0))
            for unit in [times.tick] if times.means else SECONDS.values():
                bins = bins_of(times.values, width / unit) if told and np.isfinite(times.values).all() else None
                if bins is not None:
                    yield name, bins


def _of_column(
    found: Column,
    column: str | None,
    unread: tuple[str, ...],
    kind: Kind,
    unit: str,
    source: str,
) -> Trace:
    """The arrivals that a column means, beside ``unread`` that nobody named."""
    values = _checked(found, kind, source)
    if not unread:  # else they may be few as they are bins
        _require_arrivals(len(values), source, at_least=MIN_ARRIVALS - 1)
    if column is None and not found.means:
        require_no_index(found.name, found.others, values, source)
    of_column = f" of column {found.name or 1}" if found.others else ""
    if found.means and unit != "s":
        raise InvalidInput("unit", unit, f"none for {found.typed}: they carry their own")
    if found.means:
        reading = f"{KIND_NAMES[found.means]}{of_column} ({'' if found.typed == ISO_KIND else 'by their type, '}{found.typed})"
        known, scale = found.means, found.tick
    else:
        named = named_unit(found.name)
        if unit == "s" and named != "s":
            told = f"--unit {named}, as column {found.name} is named"
            raise Untold("unit", unit, told, f"--unit {named}", f"column {found.name} is named by that unit")
        known, reason = (kind, "as asked") if kind != "auto" else assumed_kind(found.name, values, source)
        named_already = "" if reason.startswith("by the column's name") else of_column
        if known == "interarrivals":
            require_gaps(values, reason, source)
        reading, scale = f"{KIND_NAMES[known]}{named_already} in {unit} ({reason})", SECONDS[unit]
        if known == "timestamps" and values[-1] * scale > LATEST:
            fits = next((unit for unit in SECONDS if values[-1] * SECONDS[unit] <= LATEST), "ns")
            told = f"a smaller one for times such as {values[-1]:g}: --unit {fits}"
            raise Untold("unit", unit, told, f"--unit {fits}", f"times such as {values[-1]:g} are no seconds")
    if kind == "auto" and known == "timestamps":
        require_no_bins(values, scale, unread, source, headed=found.name is not None)
    negative = np.flatnonzero(values < 0)
    if len(negative) and found.means != "timestamps":
        where, text = found.place(int(negative[0]))
        raise InvalidInput(where, text, "an inter-arrival time >= 0" if known == "interarrivals" else "a time >= 0")
    if known == "interarrivals":
        return Trace(np.asarray(values * scale, dtype=np.float64), source, reading)
    gaps = np.diff(values)
    falling = np.flatnonzero(gaps < 0)
    if len(falling):
        where, text = found.place(int(falling[0]) + 1)
        otherwise = "; if these are gaps, say --kind interarrivals (sluice fit)" if kind == "auto" and not found.means else ""
        above = found.place(int(falling[0]))[1]
        raise InvalidInput(where, text, f"a time not before the one above it ({above}): sort the file by it{otherwise}")
    return Trace(np.asarray(gaps * scale, dtype=np.float64), source, reading)


def _require_arrivals(n: int, source: str, at_least: int = MIN_ARRIVALS) -> None:
    if n < at_least:
        raise InvalidInput(f"{source}: arrivals", n, f"at least {MIN_ARRIVALS}")
