"""Kinds of files that commands read and write. What is written replaces a file of its own kind, and no other.

A search is run again and again, and its answer takes the place of the last one; a profile was paid for, and a trace may be the only
one. So another kind is refused, before anything takes time, and nothing forces it: whoever means it removes the file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec

from sluice.batching.documents import VERSION, without_mark
from sluice.batching.errors import InvalidInput, require
from sluice.cli.values import FILE

ARRIVALS = "an arrivals document (--arrivals)"
PLAN = "a plan"
POLICY = "a policy"
PROFILE = "a service profile (--profile)"
REPLAYED = "what a replay measured"
FLEET = "an answer of `sluice fleet`"
DEMO = "a report of `sluice demo`"
JOURNAL = "a journal of `sluice control`"
PAGE = "a page of `sluice recommend`"
FIGURE = "a figure of Sluice"


class _Versioned(msgspec.Struct):
    version: int = VERSION


# What only a document of each kind has.
_FIELDS = {
    "D0": ARRIVALS,
    "policy": PLAN,
    "routes": PLAN,
    "hold": POLICY,
    "tables": POLICY,
    "points": PROFILE,
    "service_time": PROFILE,
    "summary": REPLAYED,
    "placement": FLEET,
    "break_even_arrival_rate": DEMO,
}
# How files begin that are no documents, and what is in them where a command wrote them.
_STARTS = {
    b"<!doctype html": (PAGE, b'content="sluice recommend"'),
    b"\x89png": (FIGURE, b"Matplotlib"),
    b"%pdf-": (FIGURE, b"Matplotlib"),
    b"<?xml": (FIGURE, b"Matplotlib"),
    b'{"at":': (JOURNAL, b""),
}


def kind_of(data: bytes) -> str | None:
    """What kind of file has this content; ``None``: none that a command writes."""
    begin = data[:1000].lstrip().lower()
    for start, (kind, mark) in _STARTS.items():
        if begin.startswith(start):
            return kind if mark in data else None
    try:
        fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return next((kind for field, kind in _FIELDS.items() if field in fields), None)


def is_object(data: bytes) -> bool:
    """Whether this is a JSON object."""
    try:
        msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def require_replaceable(path: str, option: str, *kinds: str) -> None:
    """Refuse a path at which something is that is none of these kinds; nothing in it is of any, and so is what is no file."""
    file = Path(path)
    above = next((folder for folder in file.parents if folder.exists()), file.parent)
    require(above.is_dir() or not above.exists(), option, path, f"a file in a folder; {above} is none")
    if file.is_dir():
        raise InvalidInput(option, path, "a file; this is a folder")
    if not file.is_file():  # new, or a pipe or a device
        return
    try:
        data = without_mark(file.read_bytes())
    except OSError as error:
        raise InvalidInput(option, path, f"a writable path ({error.strerror})") from None
    found, of_later = kind_of(data), _is_of_later(data)
    if data.strip() and (found not in kinds or of_later):
        this = f"{found or 'something else'}{' of a later Sluice' if of_later else ''}"
        allowed = f"a new file, or {' or '.join(kinds)} to replace; this is {this}"
        raise InvalidInput(option, path, f"{allowed}, to be removed first if it may go")


def _is_of_later(data: bytes) -> bool:
    """Whether this is a document that no command of this version reads, as a later one wrote it."""
    try:
        return msgspec.json.decode(data, type=_Versioned).version > VERSION
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False


def written_option(*names: str, kinds: tuple[str, ...], help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option that names a file to write, of one of these kinds; another is refused when the command line is read."""

    def written(context: click.Context, option: click.Parameter, path: str | None) -> str | None:
        if path is not None and not context.resilient_parsing:
            require_written(context, option, path, *kinds)
        return path

    return click.option(*names, type=FILE, callback=written, metavar="FILE", help=help)


_NOT_JSON = frozenset([".html", ".htm", ".svg", ".png", ".pdf", ".csv", ".parquet", ".npy", ".yaml", ".yml", ".txt", ".gz"])


def require_written(context: click.Context, option: click.Parameter, path: str, *kinds: str) -> None:
    """Refuse a path that may not be replaced, that another option of the command writes too, or whose name tells another kind."""
    name = option.opts[0]
    require_replaceable(path, name, *kinds)
    if Path(path).exists() and not Path(path).is_file():  # a pipe or a device
        return
    if PAGE in kinds:
        require(Path(path).suffix.lower() in (".html", ".htm"), name, path, "a file name that ends in .html")
    first = context.meta.setdefault(__name__, {}).setdefault(Path(path).resolve(), name)
    require(first == name, name, path, f"another file than {first} writes")
    if not {PAGE, FIGURE} & {*kinds}:
        require(Path(path).suffix.lower() not in _NOT_JSON, name, path, "a file name that ends in .json, as JSON is written")
