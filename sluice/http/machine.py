"""What this process may use of its machine: the least of what there is and of what the control groups around it allow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

ROOT = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


def memory(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Memory, in bytes."""
    amounts = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    version_1 = root / "memory/memory.limit_in_bytes"
    for file in (version_1, *(group / "memory.max" for group in _groups(root, membership))):
        with suppress(OSError, ValueError):  # where there is no limit, there is no file, or it says "max"
            amounts.append(int(file.read_text()))
    return min(amounts)


def memory_mb(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """Memory, in MB; at least 1."""
    return max(1, memory(root, membership) >> 20)


def cpus(root: Path = ROOT, membership: Path = MEMBERSHIP) -> int:
    """CPUs, whole ones; at least 1."""
    amounts = [len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1]
    for group in _groups(root, membership):
        with suppress(OSError, ValueError):
            quota, period = (group / "cpu.max").read_text().split()
            amounts.append(int(quota) // int(period))
    return max(1, min(amounts))


def _groups(root: Path, membership: Path) -> Iterator[Path]:
    """The control group (version 2) of this process, and those around it."""
    with suppress(OSError):
        own = root / membership.read_text().strip().rpartition(":")[2].lstrip("/")
        yield from (own, *own.parents)
