"""How a command is told the headers of the requests that it sends: ``--header NAME:VALUE``, repeated."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import click

from sluice.batching.errors import InvalidInput, require

CREDENTIALS = frozenset(("authorization", "cookie", "proxy-authorization", "x-api-key"))
"""Headers that are for the buffer, and for nobody behind it."""

FRAMING = frozenset(("content-length", "transfer-encoding"))
"""Headers that say where a body ends."""

header_option: Callable[[Callable[..., Any]], Callable[..., Any]] = click.option(
    "--header",
    "headers",
    multiple=True,
    metavar="NAME:VALUE",
    help="A header of the request, such as x-api-key or authorization where the buffer asks for a key or a token; may be repeated.",
)


def require_header(option: str, name: str, told: str, shown: str | None = None) -> None:
    """Refuse a name that no header has; ``told`` is what was written, and is not ``shown`` where that is something else."""
    allowed = "a name of letters, digits and ! # $ % & ' * + - . ^ _ ` | ~, and visible characters after it"
    require(
        re.fullmatch(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+", name) is not None and told.isprintable(),
        option,
        told if shown is None else shown,
        allowed,
    )


def require_content_type(text: str) -> None:
    """Raise ``InvalidInput`` for what is the type of no content."""
    known = re.fullmatch(r"[\w!#$&^.+-]+/[\w!#$&^.+-]+( *;.*)?", text, re.ASCII) is not None and text.isprintable()
    require(known, "--content-type", text, "a type, as application/json")


def read_headers(told: Sequence[str]) -> dict[str, str]:
    """Headers by their names in lower case; what is refused is shown without its value, which may be a key or a token."""
    found = {}
    for header in told:
        name, colon, value = header.partition(":")
        shown = re.split(r"[:=\s]", header.strip(), maxsplit=1)[0]  # a value may stand behind what parts others from their names
        if not colon or not name.strip():
            raise InvalidInput("--header", shown, "NAME:VALUE")
        require_header("--header", name.strip(), header, shown)
        named = name.strip().lower()
        require(named not in FRAMING, "--header", named, "none that says where the body ends, which each request does by itself")
        require(named not in found, "--header", named, "each header once")
        found[named] = value.strip()
    return found
