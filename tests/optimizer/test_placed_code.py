"""Object code that is put into memory without LLVM."""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable

import llvmlite.binding as llvm
import pytest

from sluice.optimizer import placed_code
from sluice.optimizer.placed_code import ObjectFile

X86 = llvm.get_process_triple().startswith("x86_64") and sys.platform == "linux"
placed_here = pytest.mark.skipif(not X86, reason="code of x86-64 alone is placed")

CODE = """
declare double @its_other(double)

@counted = common global i64 0, align 8
@scale = internal constant [2 x double] [double 3.0, double 4.0]
@where = global double* getelementptr ([2 x double], [2 x double]* @scale, i64 0, i64 1)

define double @scaled(double %x) {
  %n = load i64, i64* @counted
  %more = add i64 %n, 1
  store i64 %more, i64* @counted
  %at = load double*, double** @where
  %by = load double, double* %at
  %y = fmul double %x, %by
  %z = call double @its_other(double %y)
  ret double %z
}
"""


def object_code(text: str = CODE, codemodel: str = "large") -> bytes:
    """What LLVM makes of it for this machine."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    machine = llvm.Target.from_default_triple().create_target_machine(codemodel=codemodel, reloc="static")
    return bytes(machine.emit_object(llvm.parse_assembly(text)))


@ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)
def other(x: float) -> float:
    """What the code calls."""
    return x + 1.0


def others(name: str) -> int | None:
    """Where what the code calls is."""
    return ctypes.cast(other, ctypes.c_void_p).value if name == "its_other" else None


def nowhere(name: str) -> int | None:
    """Nothing is there."""
    return None


@placed_here
def test_placed_code_computes_reads_its_constants_counts_and_calls_others() -> None:
    placed = ObjectFile(object_code()).place(others)
    assert placed is not None
    scaled = ctypes.CFUNCTYPE(ctypes.c_double, ctypes.c_double)(placed.addresses["scaled"])
    assert [scaled(2.0), scaled(-0.5)] == [9.0, -1.0]
    assert ctypes.c_int64.from_address(placed.addresses["counted"]).value == 2
    assert "its_other" not in placed.addresses


@placed_here
def test_instructions_can_be_run_and_not_written_and_data_the_other_way_round() -> None:
    placed = ObjectFile(object_code()).place(others)
    assert placed is not None

    def rights(name: str) -> str:
        with open("/proc/self/maps", encoding="ascii") as maps:
            for line in maps:
                extent, allowed = line.split()[:2]
                first, last = (int(at, 16) for at in extent.split("-"))
                if first <= placed.addresses[name] < last:
                    return allowed
        raise AssertionError(name)

    assert rights("scaled") == "r-xp" and rights("counted") == "rw-p"


def altered(code: bytes, offset: int, form: str, value: int) -> bytes:
    """Another one in its place."""
    return code[:offset] + struct.pack(form, value) + code[offset + struct.calcsize(form) :]


@placed_here
@pytest.mark.parametrize(
    "changed",
    [
        lambda code: altered(code, 0x12, "<H", 183),  # of another processor
        lambda code: object_code(codemodel="small"),  # with addresses of another kind
    ],
)
def test_code_that_is_to_be_linked_otherwise_is_not_placed(changed: Callable[[bytes], bytes]) -> None:
    assert ObjectFile(changed(object_code())).place(others) is None


@placed_here
def test_code_that_calls_what_is_not_there_is_not_placed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ObjectFile(object_code()).place(nowhere) is None
    monkeypatch.setattr(placed_code, "_made_executable", lambda address, size: False)  # as where a system forbids it
    assert ObjectFile(object_code()).place(others) is None


def test_an_object_file_tells_what_it_takes_from_others() -> None:
    assert ObjectFile(object_code()).undefined == ["its_other"]


def test_object_code_of_another_form_is_refused() -> None:
    with pytest.raises(ValueError, match="another form than ELF"):
        ObjectFile(b"\xcf\xfa\xed\xfe" + bytes(100))
