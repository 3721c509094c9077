"""How commands speak: one JSON document on stdout with ``--json``, tables and progress on stderr or a terminal otherwise."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console

from sluice.batching.errors import InvalidInput

stdout = Console()
stderr = Console(stderr=True)

json_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document on stdout; everything else goes to stderr."
)


def to_json(document: Any) -> bytes:
    """One JSON document (a record of msgspec or plain data), indented for people."""
    return msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n"


def print_json(document: Any) -> None:
    """Write one JSON document to stdout."""
    click.echo(to_json(document), nl=False)


def read_file(path: str) -> bytes:
    """The bytes of a file that the user named."""
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise InvalidInput("file", path, f"a readable file ({error.strerror})") from None


def write_file(path: str, data: bytes) -> None:
    """Write a file that the user named, in a directory that may be new."""
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_bytes(data)
    except OSError as error:
        raise InvalidInput("file", path, f"a writable path ({error.strerror})") from None
