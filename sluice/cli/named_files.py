"""Files that the user names: read whole, and written with a word about it. Without what draws tables and bars."""

from __future__ import annotations

from pathlib import Path

import click

from sluice.batching.documents import without_mark
from sluice.batching.errors import InvalidInput


def read_file(path: str, option: str) -> bytes:
    """The bytes of a file that the user named by an option."""
    try:
        return Path(path).read_bytes()
    except FileNotFoundError:
        raise InvalidInput(option, path, "a file that exists") from None
    except OSError as error:
        raise InvalidInput(option, path, f"a readable file ({error.strerror})") from None


def read_json(path: str, option: str) -> bytes:
    """The bytes of such a file that holds JSON, without the mark that an editor may have put before it."""
    return without_mark(read_file(path, option))


def write_file(path: str, data: bytes) -> None:
    """Write a file that the user named, in a directory that may be new, and say so on stderr."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)
    except OSError as error:
        raise InvalidInput("file", path, f"a writable path ({error.strerror})") from None
    wrote(path)


def wrote(path: str) -> None:
    """Say on stderr that a file was written."""
    click.echo(f"wrote {path}", err=True)
