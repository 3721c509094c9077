"""How a command is told how large requests are: a mix of sizes, or a trace that has them."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any

import click

from sluice.batching.documents import SIZE_HEADER, SIZE_SOURCES, RequestSize
from sluice.batching.errors import NOT_GIVEN, InvalidInput, require
from sluice.cli.groups import Command
from sluice.cli.values import FILE, integer
from sluice.optimizer.recommend import Question
from sluice.optimizer.recommend.sharing import ONE_SIZE
from sluice.optimizer.recommend.size_classes import MOST_CLASSES
from sluice.optimizer.service import SizeMix
from sluice.optimizer.traces.trace import read_sizes

SIZE_BY = "header"


def mix_options(command: Command) -> Command:
    """The sizes of requests, without ``--sizes`` those of the ``--trace`` that the command has; it gets ``mix: SizeMix | None``.

    And ``size_column``, that of the trace as well.
    """

    @click.option(
        "--sizes", type=FILE, metavar="FILE", help="Sizes of requests, for a profile that tells them apart: CSV, Parquet or NPY."
    )
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
        require(sizes is None or not Path(sizes).is_dir(), "--sizes", sizes, "a file of CSV, Parquet or NPY; this is a folder")
        mix = None if path is None else SizeMix.of(read_sizes(path, size_column), path)
        return command(mix=mix, size_column=size_column, **others)

    return with_mix


def class_options(command: Command) -> Command:
    """How many size classes there may be, and how the buffer reads a size; the command gets ``most_classes`` and ``size``.

    Inside of ``question_options``, whose question has the sizes or has none.
    """

    @click.option(
        "--size-classes",
        "most_classes",
        type=integer,
        metavar="K",
        help=f"Most queues, where requests have sizes.  [default: {MOST_CLASSES}]",
    )
    @click.option(
        "--size-by",
        metavar="SOURCE[:NAME]",
        help=f"Where the buffer reads sizes: {', '.join(SIZE_SOURCES)}; NAME is a header ({SIZE_HEADER}) or a path in the JSON."
        f"  [default: {SIZE_BY}]",
    )
    @wraps(command)
    def with_classes(*, question: Question, most_classes: int | None, size_by: str | None, **others: Any) -> Any:
        for option, value in (("--size-classes", most_classes), ("--size-by", size_by)):
            needed = ONE_SIZE if others.get("applications") else _only_with_sizes(question)
            require(value is None or question.mix is not None, option, value, needed)
        most_classes = MOST_CLASSES if most_classes is None else most_classes
        require(most_classes >= 1, "size_classes", most_classes, "an integer >= 1")
        size_by = SIZE_BY if size_by is None else size_by
        source, _, name = size_by.partition(":")
        try:
            size = RequestSize(source, name)
        except InvalidInput as error:  # which names the fields of a plan, and the user wrote an option
            raise InvalidInput("--size-by", size_by, f"{error.field.partition('.')[2]}: {error.allowed}") from None
        return command(question=question, most_classes=most_classes, size=size, **others)

    return with_classes


def _only_with_sizes(question: Question) -> str:
    return (
        "only where requests have sizes: "
        f"a profile that tells them apart (sluice profile --payload SIZE=FILE; {question.profile.function} has none), "
        "and how large requests are (--sizes, --size-column)"
    )
