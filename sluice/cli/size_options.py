"""How a command is told how large requests are: a mix of sizes, or a trace that has them."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

import click

from sluice.batching.documents import SIZE_HEADER, SIZE_SOURCES, RequestSize
from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.cli.groups import Command
from sluice.optimizer.recommend.size_classes import MOST_CLASSES
from sluice.optimizer.service import SizeMix
from sluice.optimizer.traces.trace import read_sizes


def mix_options(command: Command) -> Command:
    """The sizes of requests, without ``--sizes`` those of the ``--trace`` that the command has; it gets ``mix: SizeMix | None``.

    And ``size_column``, that of the trace as well.
    """

    @click.option("--sizes", metavar="FILE", help="Sizes of requests, for a profile that tells them apart: CSV, Parquet or NPY.")
    @click.option("--size-column", metavar="NAME", help="Their column in it, and in the trace  [default: the first of it]")
    @wraps(command)
    def with_mix(*, sizes: str | None, size_column: str | None, **others: Any) -> Any:
        path = sizes
        if sizes is None and size_column is not None:
            path = others.get("trace")
            if path is None:
                raise InvalidInput("sizes", NOT_GIVEN, "the file, or the trace, whose column --size-column is")
        if path is not None:
            require(Path(path).exists(), "--trace" if sizes is None else "--sizes", path, "a file that exists")
        mix = None if path is None else SizeMix.of(read_sizes(path, size_column), path)
        return command(mix=mix, size_column=size_column, **others)

    return with_mix


def class_options(command: Command) -> Command:
    """How many size classes there may be, and how the buffer reads a size; the command gets ``most_classes`` and ``size``."""

    @click.option(
        "--size-classes",
        "most_classes",
        type=int,
        default=MOST_CLASSES,
        show_default=True,
        metavar="K",
        help="Most queues.",
    )
    @click.option(
        "--size-by",
        default="header",
        show_default=True,
        metavar="SOURCE[:NAME]",
        help=f"Where the buffer reads sizes: {', '.join(SIZE_SOURCES)}; NAME is a header ({SIZE_HEADER}) or a path in the JSON.",
    )
    @wraps(command)
    def with_classes(*, most_classes: int, size_by: str, **others: Any) -> Any:
        require(most_classes >= 1, "size_classes", most_classes, "an integer >= 1")
        source, _, name = size_by.partition(":")
        try:
            size = RequestSize(source, name)
        except InvalidInput as error:  # which names the fields of a plan, and the user wrote an option
            raise InvalidInput("--size-by", size_by, f"{error.field.partition('.')[2]}: {error.allowed}") from None
        return command(most_classes=most_classes, size=size, **others)

    return with_classes
