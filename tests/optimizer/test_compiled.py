"""Compiled functions."""

from typing import Any, NamedTuple

import numpy as np

from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled, inlined


def test_what_cannot_be_kept_is_compiled_all_the_same() -> None:
    made: dict[str, Any] = {}
    exec("def double(x):\n    return 2 * x", made)  # in no file, so that there is no place beside it
    assert compiled(made["double"])(3) == 6


def test_what_is_compiled_is_machine_code() -> None:
    def double(x: int) -> int:
        return 2 * x

    function: Any = compiled(double)
    assert function(3) == 6 and function.signatures


def test_what_is_put_into_its_callers_gives_them_what_it_gives_alone() -> None:
    class Line(NamedTuple):
        slope: float
        at: Array

    def value(line: Line, x: float) -> float:
        return float(line.slope * x + line.at[0])

    part = inlined(value)

    def total(line: Line) -> float:
        return part(line, 2.0) + part(line, 3.0)

    function: Any = compiled(total)
    line = Line(2.0, np.array([0.5]))
    assert function(line) == value(line, 2.0) + value(line, 3.0) and function.signatures
