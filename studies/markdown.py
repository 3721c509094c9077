"""Pieces of a page in Markdown, in lines of the repository's width."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence

WIDTH = 132
RAW = ("#", "|", "!", "- ", "```")  # how headings, tables, figures, lists and blocks begin: what is not to be filled


def page_of(parts: Iterable[str]) -> str:
    """A page of headings, tables, figures, lists and paragraphs; empty parts are left out."""
    return "\n\n".join(part if part.startswith(RAW) else paragraph(part) for part in parts if part) + "\n"


def paragraph(text: str) -> str:
    """The text in full lines."""
    return textwrap.fill(_words(text), WIDTH, break_long_words=False, break_on_hyphens=False)


def bullets(*texts: str) -> str:
    """A list of paragraphs."""
    wrapped = (
        textwrap.fill(_words(text), WIDTH, initial_indent="- ", subsequent_indent="  ", break_on_hyphens=False) for text in texts
    )
    return "\n".join(wrapped)


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, spaced: bool = False) -> str:
    """A table; ``spaced`` is how the rule under its header, and what of the header is empty, is written."""
    rule = "| --- " if spaced else "|---"
    head = _line(header) if spaced else _line(header).replace("|  |", "| |")
    return "\n".join([head, rule * len(header) + "|", *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _words(text: str) -> str:
    return " ".join(text.split())
