"""What benchmarks are told: numbers and files, refused before anything is started as argparse refuses what is no number."""

from __future__ import annotations

import math
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

Number = TypeVar("Number", int, float)


def positive(text: str) -> float:
    """A number above 0."""
    return _read(float, text, lambda value: 0 < value < math.inf, "a number > 0")


def count(text: str) -> int:
    """A whole number from 1."""
    return _read(int, text, lambda value: value >= 1, "a whole number >= 1")


def existing(path: str) -> str:
    """The path of a file that is there."""
    if not Path(path).is_file():
        raise ArgumentTypeError(f"{path!r} is not allowed; allowed: a file that exists")
    return path


def _read(kind: Callable[[str], Number], text: str, known: Callable[[Number], bool], allowed: str) -> Number:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not known(value):
        raise ArgumentTypeError(f"{text!r} is not allowed; allowed: {allowed}")
    return value
