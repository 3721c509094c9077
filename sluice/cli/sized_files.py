"""Files that the user names with sizes before them, ``[SIZE=]FILE``: `profile --payload`, `replay --body`."""

from __future__ import annotations

from collections.abc import Sequence

from sluice.batching.errors import InvalidInput
from sluice.cli.named_files import read_file


def read_sized_files(named: Sequence[str], option: str) -> list[tuple[float | None, bytes]]:
    """Sizes and contents, ascending by size: one file with a size or without, or several with one each.

    What stands before the first ``=`` is a size where it is a number, and else the beginning of the file's name.
    """
    files = [_read(text, option) for text in named]
    sizes = [size for size, _ in files]
    if len(files) > 1 and (None in sizes or len(set(sizes)) < len(sizes)):
        raise InvalidInput(option, " ".join(named), "SIZE=FILE of each, every size once, where there are several")
    return sorted(files, key=lambda file: file[0] or 0.0)


def _read(text: str, option: str) -> tuple[float | None, bytes]:
    told, _, file = text.partition("=")
    try:
        size = float(told) if file else None
    except ValueError:
        size = None
    if size is not None and not 0 <= size < float("inf"):
        raise InvalidInput(option, told, "a size >= 0 before the file")
    return size, read_file(text if size is None else file, option)
