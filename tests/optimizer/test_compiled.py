"""Compiled functions."""

import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np
import pytest

from sluice.optimizer import compiled as module
from sluice.optimizer.arrays import Array
from sluice.optimizer.compiled import compiled, inlined, look_again, room_stamp, with_numba, without_numba
from sluice.optimizer.simulation import queue_loop
from sluice.optimizer.tuning import dispersion, level_scan, step_sum
from sluice.optimizer.tuning.level_scan import LevelScan
from sluice.optimizer.tuning.step_sum import StepSum

TOTAL = """
from sluice.optimizer.compiled import compiled, without_numba
@compiled
def total(values):
    found = 0.0
    for value in values:
        found += value
    return found
"""


def test_what_cannot_be_kept_is_compiled_all_the_same() -> None:
    made: dict[str, Any] = {}
    exec("def double(x):\n    return 2 * x", made)  # in no file, so that there is no place beside it
    assert compiled(made["double"])(3) == 6


def made_of_it(function: Any) -> Any:
    """What was called the one time: numba's now, or what it left in an earlier run."""
    (called,) = function._ready.values()
    return called


def test_what_is_compiled_is_machine_code() -> None:
    def double(x: int) -> int:
        return 2 * x

    function: Any = compiled(double)
    assert function(3) == 6 and made_of_it(function) not in (None, double)


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
    assert function(line) == value(line, 2.0) + value(line, 3.0) and made_of_it(function) not in (None, total)


def test_loops_are_made_at_the_first_level_and_the_loops_of_others_as_before(tmp_path: Path) -> None:
    config, levels = numba.core.config, []
    (tmp_path / "loops.py").write_text("from sluice.optimizer.compiled import compiled\n@compiled\ndef twice(x): return 2 * x\n")
    twice = runpy.run_path(str(tmp_path / "loops.py"))["twice"]

    def seen(event: str, told: object = None) -> None:
        levels.append(int(config.OPT))

    before = config.OPT
    listener = type("Listener", (numba.core.event.Listener,), {"on_start": seen, "on_end": seen})()
    with numba.core.event.install_listener("numba:compile", listener):
        assert twice(3.0) == 6.0
    assert set(levels) == {int(os.environ.get("NUMBA_OPT", "1"))} and config.OPT is before


def test_what_is_interpreted_finds_what_machine_code_finds_to_the_last_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    pages = [rng.normal(0.3 * (k > 20), 0.1, rng.integers(1, 40)) for k in range(40)]

    def found() -> list[Any]:
        scan, sums = LevelScan("gaussian", 0.095, 1e5, 9), StepSum(0.4, 1e5, 9)
        for each in (scan, sums):
            each.dispersion.begin(0.01, 16.0)
        by_sums = [sums.see(page, np.where(page > 0.4, 2.0, 1.0)) for page in pages]
        by_scan = [scan.see(page) for page in pages]
        return [(by_scan, by_sums), [array.tobytes() for each in (scan, sums) for array in each.dispersion]]

    machine_code = found()
    assert all(any(change is not None for change in found) for found in machine_code[0])
    for loop in (level_scan._scan, step_sum._add, dispersion.estimate):
        loop_: Any = loop
        monkeypatch.setattr(loop_, "_ready", {})
        monkeypatch.setattr(loop_, "_kept", None)  # nothing is kept of it
    with without_numba():
        assert found() == machine_code


def test_loops_that_are_not_kept_are_python_without_numba_and_machine_code_with_it() -> None:
    def fills(array: Any) -> float:
        array[:] = 2.0  # which a view of Python does not take
        return float(array[0])

    function: Any = compiled(fills)
    function._kept = None
    for _ in range(2):  # the second time nothing is looked for
        with pytest.raises(TypeError, match="float"), without_numba():
            function(np.zeros(3))
    assert function(np.zeros(3)) == 2.0
    with without_numba(), with_numba():
        assert function(np.zeros(3)) == 2.0


def doubling(is_kept: Callable[[list[bool]], bool]) -> tuple[Any, list[bool]]:
    """A loop that is compiled, of three times its argument where it is kept; and how it was looked for each time."""

    def double(x: float) -> float:
        return 2 * x

    function: Any = compiled(double)
    looked: list[bool] = []

    class Kept:
        def find(self, kinds: Any, without_llvm: bool) -> Any:
            looked.append(without_llvm)
            return (lambda x: 3 * x) if is_kept(looked) else None

    function._kept = Kept()
    return function, looked


def test_what_was_not_kept_without_numba_is_looked_for_again_with_it() -> None:
    """Another process may have made it meanwhile, and of another processor LLVM links it."""
    function, looked = doubling(lambda looked: not looked[-1])
    with without_numba():
        assert [function(1.0), function(1.0)] == [2.0, 2.0]
    assert function(1.0) == 3.0 and looked == [True, False]


def test_what_another_process_has_kept_meanwhile_is_run_without_numba_once_it_is_looked_for_again() -> None:
    function, looked = doubling(lambda looked: len(looked) > 1)
    with without_numba():
        assert [function(1.0), function(1.0)] == [2.0, 2.0] and len(looked) == 1
        look_again()
        assert [function(1.0), function(1.0)] == [3.0, 3.0] and looked == [True, True]


def test_where_nothing_is_to_be_compiled_loops_run_as_python() -> None:
    script = (
        "import numpy as np\n"
        "from sluice.optimizer.tuning.level_scan import LevelScan\n"
        "scan = LevelScan('gaussian', 0.095, 1e5, 9)\n"
        "scan.dispersion.begin(0.01, 16.0)\n"
        "print(scan.see(np.zeros(40)), scan.see(np.ones(40)) is not None)\n"
    )
    told = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    ran = subprocess.run([sys.executable, "-c", script], env=told, capture_output=True, text=True)
    assert ran.stdout == "None True\n", ran.stderr[-500:]


def test_what_is_kept_runs_as_machine_code_without_numba(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(TOTAL)
    script = (
        "import sys, numpy as np, loops\n"
        "from contextlib import nullcontext\n"
        "with loops.without_numba() if len(sys.argv) > 1 else nullcontext():\n"
        "    print(loops.total(np.arange(4.0)), len(loops.total._ready), 'numba' in sys.modules)\n"
    )

    def run(*without: str) -> str:
        told = os.environ | {"PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}"}
        return subprocess.run([sys.executable, "-c", script, *without], env=told, capture_output=True, text=True, check=True).stdout

    assert run("without") == "6.0 0 False\n"  # as Python: nothing is kept yet
    assert run() == "6.0 1 True\n"
    assert run("without") == "6.0 1 False\n"


def test_numba_is_imported_when_something_is_called() -> None:
    script = "import sys, sluice.optimizer.tuning.level_scan; print('numba' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() == ["False"]


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


@pytest.mark.full
def test_of_two_processes_that_need_the_code_one_makes_it_and_the_other_reads_it(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(TOTAL)
    script = (
        "import sys, numba, numpy as np, loops\n"
        "loops.total.machine_code\n"
        "print('ready', flush=True)\n"
        "sys.stdin.readline()\n"
        "assert loops.total(np.ones(3)) == 3\n"
        "print(sum(loops.total.stats.cache_misses.values()))\n"
    )
    pipe = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "cwd": tmp_path}
    both = [subprocess.Popen([sys.executable, "-c", script], **pipe) for _ in range(2)]  # type: ignore[call-overload]
    for process in both:
        assert process.stdout.readline() == "ready\n"
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    assert sorted(process.communicate()[0].split() for process in both) == [["0"], ["1"]]
