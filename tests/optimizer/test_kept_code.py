"""Machine code that processes run without numba."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np
import pytest

from sluice.optimizer import kept_code
from sluice.optimizer.kept_code import KeptCode, ObjectCode, kinds_of

LOOPS = '''
from typing import NamedTuple
import numpy as np
from sluice.optimizer.compiled import compiled, inlined

class Line(NamedTuple):
    slope: float
    at: np.ndarray

@inlined
def value(line, x):
    return line.slope * x + line.at[0]

@compiled
def line_at(line, n):
    """A record in; an array and a record out."""
    y = np.zeros(n)
    for k in range(n):
        y[k] = value(line, float(k))
    return y, Line(2 * line.slope, line.at), n > 2, np.exp(line.slope)

@compiled
def root(x):
    if x < 0:
        raise ValueError("below 0")
    return x**0.5

@compiled
def drawn(n, rng):
    total = 0.0
    for k in range(n):
        total += rng.standard_exponential() * rng.random()
    return total
'''

ASKED = """
import sys
import numpy as np
import loops
rng = np.random.default_rng(7)
print(loops.line_at(loops.Line(0.5, np.array([1.0])), 4), loops.root(2.0), loops.root(4), loops.drawn(1000, rng), rng.random())
print("numba" in sys.modules, "llvmlite.binding" in sys.modules)
try:
    loops.root(-1.0)
except ValueError as error:
    print(repr(error))
"""


NOT_PLACED = """
from sluice.optimizer.placed_code import ObjectFile
ObjectFile.place = lambda code, address_of: None
"""


def run(folder: Path, before: str = "") -> list[str]:
    """What the questions print, in a process of its own."""
    path = f"{folder}{os.pathsep}{Path(__file__).parents[2]}"
    told = os.environ | {"PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"}
    ran = subprocess.run([sys.executable, "-c", before + ASKED], env=told, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


@pytest.mark.full
def test_what_numba_made_once_other_processes_run_without_it(tmp_path: Path) -> None:
    (tmp_path / "loops.py").write_text(LOOPS)
    first, second = run(tmp_path), run(tmp_path)
    assert first[1] == "True True" and second[1] == "False False"
    assert second[0] == first[0] and "array([1. , 1.5, 2. , 2.5]), Line(slope=1.0, at=array([1.])), True" in first[0]
    assert second[2] == first[2] == "ValueError('below 0')"
    assert run(tmp_path, NOT_PLACED) == [second[0], "False True", second[2]]  # where LLVM's linker is needed
    files = sorted((tmp_path / "__pycache__").glob("*.code"))
    assert [file.name.partition("-")[0] for file in files] == ["loops.drawn", "loops.line_at", "loops.root"]
    rng = np.random.default_rng(7)
    total = sum(rng.standard_exponential() * rng.random() for _ in range(1000))
    assert first[0].endswith(f"{total} {rng.random()}")  # and the generator is where it would be
    for file in files:
        file.write_bytes(file.read_bytes()[:-20])  # torn
    assert run(tmp_path)[0] == first[0] and run(tmp_path)[:2] == second[:2]
    (tmp_path / "loops.py").write_text(LOOPS.replace("below 0", "negative").replace("x**0.5", "x**0.25"))
    assert run(tmp_path)[2] == "ValueError('negative')" and run(tmp_path)[0] != first[0]


def test_kinds_of_arguments_are_told_apart_as_numba_does() -> None:
    class Pair(NamedTuple):
        x: float
        y: Any

    class Other(NamedTuple):
        x: float
        y: Any

    grid = np.zeros((3, 4))
    locked = np.zeros(3)
    locked.setflags(write=False)
    values = [1, 1.0, True, None, 1j, np.float64(1), np.int32(1), (1,), (1.0,), Pair(1.0, 1), Other(1.0, 1), Pair(1.0, 1.0)]
    values.append(np.random.default_rng(1))
    values += [np.zeros(3), np.zeros(3, np.int64), np.zeros(3, ">f8"), locked, grid, grid.T, grid[:, ::2], np.zeros(6)[::2]]
    kinds = [kinds_of((value,)) for value in values]
    assert None not in kinds and len(set(kinds)) == len(values)
    assert kinds_of((np.zeros(3), 7)) == kinds_of((np.ones(5)[1:3], -8))
    assert kinds_of((grid[:1],)) == kinds_of((grid,))  # by rows, and as there is one, by columns too
    assert pickle.loads(pickle.dumps(kinds)) == kinds


@pytest.mark.parametrize("value", [2**63, "text", [1.0], {}, np.array(["a"]), np.zeros(2, [("x", "f8")]), (1, "text")])
def test_what_numba_must_look_at_itself_has_no_kind(value: object) -> None:
    assert kinds_of((1.0, value)) is None


def function_in(folder: Path) -> FunctionType:
    made: dict[str, Any] = {"__name__": "loops"}
    source = folder / "loops.py"
    source.write_text("def f(x):\n    return x\n")
    exec(compile(source.read_text(), str(source), "exec"), made)
    return cast(FunctionType, made["f"])


def test_what_is_torn_or_of_another_version_is_not_there(tmp_path: Path) -> None:
    function = function_in(tmp_path)
    kept = KeptCode(function, "this")
    (file, *_) = kept._files
    assert file == tmp_path / "__pycache__" / "loops.f-1.code"
    file.parent.mkdir()
    code = ObjectCode(b"", "f", "f", {}, ["a_function_that_is_nowhere"])
    for content in (b"", b"torn", pickle.dumps(("another", {("int",): code})), pickle.dumps(5)):
        kept_code._write(file, content)
        assert kept.find(("int",)) is None
    for content in (b"", b"torn", pickle.dumps(("this", {("int",): code}))):
        file.write_bytes(content)
        assert kept._read(file) == {}


def test_what_a_disk_has_lost_a_part_of_is_not_there(tmp_path: Path) -> None:
    """A block of zeros within the instructions is a file like any other to who unpickles it."""
    kept, given = KeptCode(function_in(tmp_path), "this"), ("int",)
    (tmp_path / "__pycache__").mkdir()
    (file, *_) = kept._files
    kept_code._write(file, pickle.dumps(("this", {given: ObjectCode(b"code" * 4096, "f", "f", {}, [])})))
    whole = file.read_bytes()
    assert given in kept._read(file)
    file.write_bytes(whole[:8192] + bytes(4096) + whole[12288:])
    assert kept._read(file) == {}
    file.write_bytes(whole[:-20])
    assert kept._read(file) == {}


def test_code_that_llvm_must_link_is_not_there_for_who_goes_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept, given = KeptCode(function_in(tmp_path), "this"), ("int",)
    (tmp_path / "__pycache__").mkdir()
    kept_code._write(kept._files[0], pickle.dumps(("this", {given: ObjectCode(b"\x7fELF\x02\x01", "f", "f", {}, [])})))
    monkeypatch.setattr(kept_code, "ObjectFile", lambda code: SimpleNamespace(place=lambda address_of: None))
    asked: list[ObjectCode] = []
    monkeypatch.setattr(kept_code, "_placed_by_llvm", asked.append)
    assert kept.find(given, without_llvm=True) is None and not asked


def test_code_that_calls_what_is_not_there_is_not_linked(tmp_path: Path) -> None:
    kept = KeptCode(function_in(tmp_path), "this")
    (tmp_path / "__pycache__").mkdir()
    code = ObjectCode(b"", "f", "f", {}, ["a_function_that_is_nowhere"])
    kept_code._write(kept._files[0], pickle.dumps(("this", {("int",): code})))
    assert kept.find(("int",)) is None


def test_what_cannot_be_kept_beside_its_module_is_kept_in_the_user_s_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    beside, user = KeptCode(function_in(tmp_path), "")._files
    assert beside.parent == tmp_path / "__pycache__" and user.is_relative_to(tmp_path / "cache/sluice")
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "own"))
    assert [file.parent.parent for file in KeptCode(function_in(tmp_path), "")._files] == [tmp_path / "own"]


def test_code_is_of_a_processor_and_what_it_can_do_and_not_of_its_pace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = "processor\t: 0\nmodel\t\t: 17\nflags\t\t: sse avx\ncpu MHz\t\t: 2000\n\nprocessor\t: 1\n"
    texts = [told, told.replace("2000", "3000").replace("avx", "avx ibpb_exit_to_user")]  # a kernel's word
    texts += [told.replace("avx", "avx2"), told.replace("17", "18"), ""]
    found = []
    for n, text in enumerate(texts):
        (tmp_path / str(n)).write_text(text)
        monkeypatch.setattr(kept_code, "_PROCESSORS", str(tmp_path / str(n)))
        found.append(kept_code._processor())
    assert found[0] == found[1] and len(set(found)) == 4
    monkeypatch.setattr(kept_code, "_PROCESSORS", str(tmp_path / "nothing"))
    assert kept_code._processor() == found[-1]  # as LLVM says
