"""What a process may use of its machine, as the control groups say."""

import os
from pathlib import Path

from sluice.http.machine import cpus, memory, memory_mb

MEMORY = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 20
CPUS = len(os.sched_getaffinity(0))


def grouped(tmp_path: Path) -> tuple[Path, Path]:
    (tmp_path / "membership").write_text("0::/service/task\n")
    (tmp_path / "service/task").mkdir(parents=True)
    return tmp_path, tmp_path / "membership"


def test_the_memory_is_what_the_control_groups_leave(tmp_path: Path) -> None:
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert memory(tmp_path, tmp_path / "none") == machine
    place = grouped(tmp_path)
    (tmp_path / "memory").mkdir()
    for file, text, left in (
        ("service/task/memory.max", "max", machine),
        ("memory/memory.limit_in_bytes", "9223372036854771712", machine),  # version 1
        ("service/memory.max", str(300 << 20), 300 << 20),
        ("service/task/memory.max", str(200 << 20), 200 << 20),
        ("memory.max", str(250 << 20), 200 << 20),
        ("memory/memory.limit_in_bytes", str(100 << 20), 100 << 20),
        ("service/memory.max", "", 100 << 20),
    ):
        (tmp_path / file).write_text(text)
        assert (memory(*place), memory_mb(*place)) == (left, left >> 20)


def test_memory_of_less_than_a_megabyte_counts_as_one(tmp_path: Path) -> None:
    place = grouped(tmp_path)
    (tmp_path / "memory.max").write_text("4096")
    assert memory_mb(*place) == 1


def test_the_cpus_are_those_that_the_control_groups_leave_and_at_least_one(tmp_path: Path) -> None:
    place = grouped(tmp_path)
    for file, text, usable in (
        ("cpu.max", "max 100000", CPUS),
        ("service/cpu.max", f"{CPUS * 100000 - 50000} 100000", max(1, CPUS - 1)),
        ("service/task/cpu.max", "50000 100000", 1),
    ):
        (tmp_path / file).write_text(text)
        assert cpus(*place) == usable


def test_without_control_groups_all_of_the_machine_may_be_used(tmp_path: Path) -> None:
    assert (memory_mb(tmp_path, tmp_path / "none"), cpus(tmp_path, tmp_path / "none")) == (MEMORY, CPUS)
