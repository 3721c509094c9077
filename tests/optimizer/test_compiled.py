"""Compiled functions."""

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from sluice.optimizer import compiled as module
from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled, inlined, room_stamp
from sluice.optimizer.simulation import queue_loop


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


def test_what_is_kept_is_of_the_modules_as_they_are_that_have_compiled_functions(tmp_path: Path) -> None:
    for name, text in (("loops.py", "from sluice.optimizer.compiled import compiled\n"), ("words.py", "")):
        (tmp_path / name).write_text(text)

    def stamp() -> str:
        return room_stamp.__wrapped__(tmp_path)

    first = stamp()
    (tmp_path / "words.py").write_text("x = 1\n")
    assert stamp() == first
    with (tmp_path / "loops.py").open("a") as loops:
        loops.write("y = 1\n")
    assert stamp() != first
    kept: Any = queue_loop.run
    assert kept._cache._cache_file._version.endswith(room_stamp(Path(module.__file__).parent))
