"""One column of a CSV, Parquet or NumPy file, as numbers, with the place of each value for messages.

A CSV file is parsed by Arrow; only where that fails, or a value must be named, is it read again line by line. Whole numbers stay
integers, so that nanoseconds since 1970 lose no digit. Cells are parted by commas, or by semicolons or tabs where the first line
has these; numbers may have decimal commas then. Values whose type or form says what they are, timestamps and durations, come with
it.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import InvalidInput
from sluice.optimizer.when_asked import module_when_asked

if TYPE_CHECKING:
    import pyarrow as pa
else:
    pa = module_when_asked("pyarrow")
arrow_csv, arrow_parquet = module_when_asked("pyarrow.csv"), module_when_asked("pyarrow.parquet")

Numbers = NDArray[np.float64] | NDArray[np.int64]

SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}
ISO_KIND = "ISO 8601"

_ISO = re.compile(r"(\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d)?)(?:(?<=:\d\d:\d\d)[.,](\d+))?\s*(Z|[+-]\d\d:?\d\d)?$")
_FRACTION = re.compile(r"0\d+$|\d+;")  # what is behind a decimal comma, and no number of its own
_DECIMAL_COMMA = re.compile(r"[+-]?\d+,\d+(?:[eE][+-]?\d+)?$")
_HEAD = 1 << 16  # bytes in which the first line must end


@dataclass(frozen=True, eq=False)
class Column:
    """A column of a file.

    Parameters
    ----------
    values : array, shape (n,)
        Integers or floats, perhaps not finite.
    place : callable
        ``place(i)`` is where value ``i`` stands, e.g. ``trace.csv, line 7``, and its text.
    name : str, optional
        As the file has it.
    others : tuple of str
        The columns that were not taken, by name or number.
    means : str
        ``timestamps`` or ``interarrivals`` where the type of the values says so, else empty.
    typed : str
        That type.
    tick : float
        Seconds per unit of typed values.
    """

    values: Numbers
    place: Callable[[int], tuple[str, str]]
    name: str | None = None
    others: tuple[str, ...] = ()
    means: str = ""
    typed: str = ""
    tick: float = 1.0


def read_csv_column(data: bytes, column: str | None, source: str) -> Column:
    """The column of that name, or the first, of the text of a CSV file.

    Raises
    ------
    InvalidInput
        No such column; a cell that is not a number, or not a time where the first is one; a decimal comma, or more cells than the
        first line has; with line and text.
    """
    head = data[:_HEAD].decode("utf-8-sig", "replace")
    separator = _separator(head)
    reader = csv.reader(io.StringIO(head), delimiter=separator)
    first = next((row for row in reader if any(cell.strip() for cell in row)), None)
    if first is None:
        return Column(np.empty(0), lambda i: (source, ""))
    first = [cell.strip() for cell in first]
    headed = column is not None or not (_number(first[0], separator != ",") is not None or _ISO.match(first[0]))
    index = 0 if column is None else _index(column, first, source)
    # Arrow is not asked about a header alone: its readers run in threads that it would leave behind as the command ends.
    alone = headed and len(data) <= _HEAD and not any(line.strip() for line in data.splitlines()[reader.line_num :])

    @cache
    def cells() -> list[tuple[int, str]]:
        return _cells(data, index, headed, source, separator)

    def place(i: int) -> tuple[str, str]:
        line, cell = cells()[i]
        return f"{source}, line {line}", cell

    name = first[index] if headed else None
    skip = reader.line_num if headed else 0
    if not headed and separator == ",":
        _refuse_decimal_commas(head, source)
    found = (np.empty(0), False) if alone else _parsed_by_arrow(data, index, len(first), skip, separator)
    if found is None:
        found = _parsed_by_line(cells(), source, f" of column {name}" if name else "", separator != ",")
    values, is_time = found
    others = tuple(cell if headed else f"column {i + 1}" for i, cell in enumerate(first) if i != index)
    if is_time:
        return Column(values, place, name, others, "timestamps", ISO_KIND, SECONDS["ns"])
    return Column(values, place, name, others)


def read_csv_names(data: bytes, column: str, source: str) -> list[tuple[str, str]]:
    """(place, text) of every cell of a column of a CSV file with a header; raises ``InvalidInput`` where there is none such."""
    head = data[:_HEAD].decode("utf-8-sig", "replace")
    separator = _separator(head)
    reader = csv.reader(io.StringIO(head), delimiter=separator)
    first = [cell.strip() for cell in next((row for row in reader if any(cell.strip() for cell in row)), [])]
    cells = _cells(data, _index(column, first, source), True, source, separator)
    return [(f"{source}, line {line}", cell) for line, cell in cells]


def read_parquet_names(file: Path | bytes, column: str, source: str) -> list[tuple[str, str]]:
    """(place, text) of every value of a column of a Parquet file, empty where it is missing; raises as ``read_csv_names``."""
    try:
        parquet = arrow_parquet.ParquetFile(pa.BufferReader(file) if isinstance(file, bytes) else file)
        names = parquet.schema_arrow.names
        values = parquet.read(columns=[names[_index(column, names, source)]]).column(0).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput("trace", source, f"a readable Parquet file ({_first_line(error)})") from None
    return [(f"{source}, row {i + 1}", "" if value is None else str(value)) for i, value in enumerate(values)]


def _index(column: str, names: list[str], source: str) -> int:
    if column not in names:
        raise InvalidInput("column", column, f"one of the columns of {source}: " + ", ".join(names))
    return names.index(column)


def _separator(head: str) -> str:
    """What parts the cells of the first two lines: a comma, unless both have semicolons or tabs and the first no comma of its own.

    A comma between digits may be a decimal one, but for what stands before it: a number with a point, or a time.
    """
    lines = [line.strip() for line in head.splitlines() if line.strip()][:2]
    before, comma, _ = lines[0].partition(",") if lines else ("", "", "")
    whole = "." in before and _number(before, False) is not None
    if comma and (whole or _ISO.match(before) or re.search(r",(?!\d)|(?<!\d),", lines[0])):
        return ","
    return next((each for each in ";\t" if lines and all(each in line for line in lines)), ",")


def _parsed_by_arrow(data: bytes, index: int, width: int, skip: int, separator: str) -> tuple[Numbers, bool] | None:
    """Numbers, or nanoseconds since 1970 and true; ``None`` where some line is not plain."""
    try:
        table = arrow_csv.read_csv(
            pa.BufferReader(data),
            read_options=arrow_csv.ReadOptions(column_names=[str(i) for i in range(width)], skip_rows=skip),
            parse_options=arrow_csv.ParseOptions(delimiter=separator),
            convert_options=arrow_csv.ConvertOptions(include_columns=[str(index)], null_values=[]),
        )
    except pa.ArrowInvalid:
        return None
    values = table.column(0)
    if pa.types.is_int64(values.type) or pa.types.is_float64(values.type):
        return values.to_numpy(), False
    if pa.types.is_timestamp(values.type):
        return _nanoseconds(values).to_numpy(), True
    return None


def _nanoseconds(values: pa.ChunkedArray) -> pa.ChunkedArray:
    """Timestamps as integers; with or without a zone they count from 1970 in UTC."""
    return values.cast(pa.timestamp("ns", values.type.tz)).cast(pa.int64())


def _refuse_decimal_commas(head: str, source: str) -> None:
    """Refuse lines without a header whose second cell is part of the number in the first."""
    reader = csv.reader(io.StringIO(head))
    for row in reader:
        if len(row) > 1 and "." not in row[0] and _FRACTION.match(row[1].strip()):
            told = "columns that commas part and numbers with decimal points, or a header that names the columns"
            raise InvalidInput(f"{source}, line {reader.line_num}", ",".join(row), told)


def _cells(data: bytes, index: int, headed: bool, source: str, separator: str) -> list[tuple[int, str]]:
    """(line number, cell) of every line that is not blank."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InvalidInput("trace", source, f"a file of text in UTF-8, or Parquet or NPY ({error})") from None
    reader = csv.reader(io.StringIO(text), delimiter=separator)
    try:
        rows = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    except csv.Error as error:
        raise InvalidInput(f"{source}, line {reader.line_num}", "", f"CSV ({error})") from None
    cells, width = [], len(rows[0][1]) if rows else 0
    for line, row in rows[1:] if headed else rows:
        if len(row) <= index:
            raise InvalidInput(f"{source}, line {line}", separator.join(row), f"at least {index + 1} columns")
        if any(cell.strip() for cell in row[width:]):
            first = f"{width} cell{'s' * (width > 1)}, as the {'header' if headed else 'first line'} has"
            told = f"{first}, where this has {len(row)}: numbers with decimal points, and quotes around cells with commas"
            raise InvalidInput(f"{source}, line {line}", separator.join(row), told)
        cells.append((line, row[index].strip()))
    return cells


def _parsed_by_line(cells: list[tuple[int, str]], source: str, column: str, commas: bool) -> tuple[Numbers, bool]:
    if cells and _ISO.match(cells[0][1]):
        return np.array([_iso_nanoseconds(cell, f"{source}, line {line}") for line, cell in cells], dtype=np.int64), True
    values = np.empty(len(cells))
    for i, (line, cell) in enumerate(cells):
        number = _number(cell, commas)
        if number is None:
            raise InvalidInput(f"{source}, line {line}", cell, f"a number{column}")
        values[i] = number
    return values, False


def _number(cell: str, commas: bool) -> float | None:
    """Of a cell, in which there may be a decimal comma where commas part no cells; ``None`` where it is none."""
    if commas and _DECIMAL_COMMA.match(cell):
        cell = cell.replace(",", ".")
    try:
        return None if "_" in cell else float(cell)
    except ValueError:
        return None


def _iso_nanoseconds(cell: str, where: str) -> int:
    """Nanoseconds since 1970; a time without a zone is UTC."""
    match = _ISO.match(cell)
    try:
        stamp = datetime.fromisoformat(match[1] + (match[3] or "").replace("Z", "+00:00")) if match else None
    except ValueError:
        stamp = None
    if match is None or stamp is None:
        raise InvalidInput(where, cell, "an ISO 8601 time, as the first one is")
    whole = int((stamp if stamp.tzinfo else stamp.replace(tzinfo=UTC)).timestamp())
    return whole * 10**9 + int((match[2] or "0")[:9].ljust(9, "0"))


def read_parquet_column(file: Path | bytes, column: str | None, source: str) -> Column:
    """The column of that name, or the first, of a Parquet file: numbers, timestamps or durations.

    Raises
    ------
    InvalidInput
        A torn file, no such column, another type, a value that is missing.
    """
    try:
        parquet = arrow_parquet.ParquetFile(pa.BufferReader(file) if isinstance(file, bytes) else file)
        names = parquet.schema_arrow.names
        index = 0 if column is None else _index(column, names, source)
        if not names:
            raise InvalidInput("trace", source, "a Parquet file with a column")
        values = parquet.read(columns=[names[index]]).column(0)
    except (pa.ArrowException, OSError) as error:
        raise InvalidInput("trace", source, f"a readable Parquet file ({_first_line(error)})") from None
    others = tuple(name for i, name in enumerate(names) if i != index)
    name, typed = names[index], str(values.type)

    def place(i: int) -> tuple[str, str]:
        return f"{source}, row {i + 1}", str(values[i].as_py())

    if values.null_count:
        missing = int(np.flatnonzero(values.is_null().to_numpy())[0])
        raise InvalidInput(f"{source}, row {missing + 1}", None, f"a value in column {name}")
    if pa.types.is_timestamp(values.type) or pa.types.is_duration(values.type):
        means = "timestamps" if pa.types.is_timestamp(values.type) else "interarrivals"
        return Column(values.cast(pa.int64()).to_numpy(), place, name, others, means, typed, SECONDS[values.type.unit])
    if pa.types.is_decimal(values.type):
        values = values.cast(pa.float64())
    if not (pa.types.is_integer(values.type) or pa.types.is_floating(values.type)):
        raise InvalidInput(f"{source}: type of column {name}", typed, "numbers, timestamps or durations")
    return Column(_plain(values.to_numpy()), place, name, others)


def read_npy_column(data: bytes, column: str | None, source: str) -> Column:
    """The values of a NumPy array of one dimension (``numpy.save``): numbers, datetime64, timedelta64, or a named field of records.

    Raises
    ------
    InvalidInput
        A torn file, pickled objects (they are never unpickled), another shape or type, a time that is missing.
    """
    try:
        values = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, EOFError, OSError, MemoryError, SyntaxError) as error:
        raise InvalidInput("trace", source, f"a readable NPY file without pickled objects ({_first_line(error)})") from None
    names = list(values.dtype.names or ())
    index = _index(column, names, source) if column is not None else 0
    if names:
        values = values[names[index]]
    if values.ndim != 1:
        raise InvalidInput(f"{source}: shape", values.shape, "one dimension")
    others = tuple(name for i, name in enumerate(names) if i != index)
    name = names[index] if names else None

    def place(i: int) -> tuple[str, str]:
        return f"{source}, row {i + 1}", str(values[i])

    if values.dtype.kind in "mM":
        missing = np.flatnonzero(np.isnat(values))
        if len(missing):
            raise InvalidInput(f"{source}, row {missing[0] + 1}", "NaT", "a time")
        means = "timestamps" if values.dtype.kind == "M" else "interarrivals"
        unit, step = np.datetime_data(values.dtype)
        if unit not in SECONDS:
            raise InvalidInput(f"{source}: type", str(values.dtype), "a unit of " + ", ".join(SECONDS))
        return Column(values.astype(np.int64), place, name, others, means, str(values.dtype), SECONDS[unit] * step)
    if values.dtype.kind not in "iuf":
        raise InvalidInput(f"{source}: type", str(values.dtype), "numbers, datetime64 or timedelta64")
    return Column(_plain(values), place, name, others)


def _plain(values: NDArray[np.generic]) -> Numbers:
    """Integers as int64 where they fit, everything else as float64."""
    if values.dtype.kind == "i" or (values.dtype.kind == "u" and (not len(values) or int(values.max()) < 2**63)):
        return values.astype(np.int64)
    return values.astype(np.float64)


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
