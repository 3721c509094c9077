"""Entries of a YAML file, each with its path: a refusal names the entry by its path in the file, its value, and what is allowed."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

import yaml

from sluice.batching.durations import LONGEST, MEANT_MS, seconds
from sluice.batching.errors import InvalidInput

_LISTED = 20  # names that a refusal lists


class Entry(NamedTuple):
    """A value of a file, with the name of the file and the path to the value in it."""

    file: str
    path: str
    value: Any

    @property
    def where(self) -> str:
        """What an error names."""
        return f"{self.file}: {self.path}" if self.path else self.file

    def refuse(self, allowed: str) -> NoReturn:
        raise InvalidInput(self.where, self.value, allowed)

    def check(self, ok: bool, allowed: str) -> None:
        if not ok:
            self.refuse(allowed)

    def below(self, key: str | int, value: Any) -> Entry:
        """An entry of a mapping, or of a list."""
        step = f"[{key}]" if isinstance(self.value, list) else f".{key}" if self.path else str(key)
        return Entry(self.file, self.path + step, value)

    def items(self) -> Iterator[tuple[str, Entry]]:
        """The entries of a mapping by their names."""
        self.check(isinstance(self.value, dict) and bool(self.value), "a mapping with at least one entry")
        for key, value in self.value.items():
            if not isinstance(key, str) or not key:
                self.below(key, key).refuse("a name; in quotes if it looks like a number, a date or a yes or no")
            yield key, self.below(key, value)

    def fields(self, *known: str, needed: Sequence[str] = ()) -> dict[str, Entry]:
        """The entries of a mapping that has only these keys."""
        entries = dict(self.items())
        for key, entry in entries.items():
            if key not in known:
                raise InvalidInput(entry.where, entry.value, one_of(known, "keys"))
        for key in needed:
            if key not in entries:
                self.below(key, None).refuse(f"an entry, beside {', '.join(entries)}")
        return entries

    def number(self, allowed: str, least: float = -math.inf, most: float = math.inf, above: bool = False) -> float:
        """A finite number between bounds; ``above``: the least is excluded."""
        value = self.value
        if isinstance(value, str) and re.fullmatch(r"[+-]?\d+(\.\d*)?[eE][+-]?\d+", value):
            value = float(value)  # 1e-3, which YAML 1.1 takes for text
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.refuse(allowed)
        self.check(least <= value <= most and not (above and value == least), allowed)
        return float(value)

    def duration(self, allowed: str, least: float = 0, above: bool = True, asked_from: float = MEANT_MS) -> float:
        """Seconds from ``least`` on, or ``above`` it: a number, from ``asked_from`` on a question, or one with its unit."""
        value = self.value
        if isinstance(value, str) and re.search("[a-z]$", value):
            try:
                found = seconds(value, most=LONGEST)
            except ValueError as error:
                self.refuse(str(error))
            self.check(found >= least and not (above and found == least), allowed)
            return found
        found = self.number(allowed, least, above=above)
        self.check(found < asked_from, f"{found:g}ms if milliseconds are meant, {found:g}s if seconds are")
        return found

    def whole(self, allowed: str, least: int = 0, most: float = math.inf) -> int:
        """An integer."""
        self.check(isinstance(self.value, int) and not isinstance(self.value, bool) and self.value >= least, allowed)
        self.check(self.value <= most, f"at most {most}")
        return int(self.value)

    def text(self, allowed: str) -> str:
        """Text that is not empty."""
        self.check(isinstance(self.value, str) and bool(self.value), allowed)
        return str(self.value)


class _Loader(yaml.SafeLoader):
    """YAML in which a key occurs once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            if not isinstance(key, str | int | float | bool | None):
                raise InvalidInput(f"line {line}", str(key), "a plain name for a key")
            if key in seen:
                raise InvalidInput(f"line {line}", key, "each name once in a mapping")
            seen.add(key)
        return super().construct_mapping(node, deep)


def load(path: Path, field: str) -> Entry:
    """The whole of the file that ``field`` names."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise InvalidInput(field, str(path), "a file that exists") from None
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise InvalidInput(field, str(path), f"a readable file ({reason})") from None
    try:
        return Entry(path.name, "", yaml.load(text, _Loader))  # a SafeLoader
    except InvalidInput as error:
        raise InvalidInput(f"{path.name}: {error.field}", error.value, error.allowed) from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else text[:80]
        where = f"{path.name}: line {mark.line + 1}" if mark else path.name
        raise InvalidInput(where, line, f"YAML ({getattr(error, 'problem', None) or error})") from None
    except RecursionError:
        raise InvalidInput(path.name, text[:80], "YAML that is not nested so deeply") from None


def one_of(names: Any, what: str) -> str:
    """What is allowed where one of these ``names`` is."""
    listed = [str(name) for name in names]
    more = f", and {len(listed) - _LISTED} more" if len(listed) > _LISTED else ""
    return f"one of the {what}: " + ", ".join(listed[:_LISTED]) + more
