"""Frozen records as rows of a CSV file: a column for each field, ``None`` as an empty cell, numbers to so many digits."""

from __future__ import annotations

import csv
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

R = TypeVar("R", bound="DataclassInstance")


def read_rows(path: Path, kind: type[R]) -> list[R]:
    """The records of a file, each cell of its field's type."""
    with path.open(encoding="utf-8", newline="") as file:
        lines = [{name: text or None for name, text in line.items()} for line in csv.DictReader(file)]
    return msgspec.convert(lines, list[kind], strict=False)  # type: ignore[valid-type]


def write_rows(path: Path, kind: type[R], rows: Iterable[R], digits: int) -> None:
    """The records as a file, numbers that are not whole to ``digits``."""
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file, lineterminator="\n")
        lines.writerow([field.name for field in fields(kind)])
        for row in rows:
            lines.writerow([f"{value:.{digits}g}" if isinstance(value, float) else value for value in asdict(row).values()])


@dataclass(frozen=True)
class Kept(Generic[R]):
    """The rows that the last run of a study left in a file, numbers that are not whole to ``digits``."""

    path: Path
    kind: type[R]
    digits: int

    def read(self) -> list[R]:
        """As they were left."""
        return read_rows(self.path, self.kind)

    def write(self, rows: Iterable[R]) -> None:
        """Leave these instead."""
        write_rows(self.path, self.kind, rows, self.digits)
