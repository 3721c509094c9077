"""How commands speak: one JSON document on stdout with ``--json``, tables and progress on stderr or a terminal otherwise."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import TracebackType
from typing import Any

import click
from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn
from rich.table import Column, Table
from rich.text import Text

from sluice.batching.documents import write


class WholeConsole(Console):
    """A table that needs more columns than the terminal has gets them, at the price of lines that go on: no figure is left out."""

    def print(self, *objects: Any, **options: Any) -> None:
        """As rich has it."""
        needed = max((self._needed(each) for each in objects if isinstance(each, Table)), default=0)
        if needed > self.width:
            Console(file=self.file, width=needed, force_terminal=self.is_terminal).print(*objects, **options)
        else:
            super().print(*objects, **options)

    def _needed(self, table: Table) -> int:
        """Columns of the terminal, so that no cell is cut off of those that do not wrap."""
        _, right, _, left = table.padding
        return 1 + sum(1 + left + right + self._width_of(column) for column in table.columns)

    def _width_of(self, column: Column) -> int:
        if not column.no_wrap:
            return column.min_width or 1
        cells = [self.render_str(cell) if isinstance(cell, str) else cell for cell in (column.header, *column.cells)]
        return max((line.cell_len for cell in cells if isinstance(cell, Text) for line in cell.split()), default=0)


stdout = WholeConsole()
stderr = Console(stderr=True)

json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout; everything else goes to stderr."
)


def print_json(document: object) -> None:
    """Write one JSON document to stdout."""
    click.echo(write(document), nl=False)


class SeldomDrawn:
    """A bar that is drawn when it is told something, and no more often than every so many seconds.

    Drawing takes milliseconds, in which no request of a replay leaves.
    """

    def __init__(self, every: float, total: float, *columns: ProgressColumn) -> None:
        shown = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), *columns)
        hidden = not stderr.is_terminal
        self._progress = Progress(*shown, console=stderr, disable=hidden, transient=True, auto_refresh=False)
        self._task = self._progress.add_task("", total=total)
        self._every, self._drawn = every, 0.0

    def __enter__(self) -> SeldomDrawn:
        self._progress.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.stop()

    def show(self, done: float, description: str) -> None:
        """So much of the total is ``done``."""
        if not self._progress.disable and time.monotonic() - self._drawn >= self._every:
            self._progress.update(self._task, completed=done, description=description, refresh=True)
            self._drawn = time.monotonic()
