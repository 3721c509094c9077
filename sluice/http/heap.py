"""What becomes of memory that is freed: who takes and gives back bodies of hundreds of kilobytes again and again keeps it.

glibc gives each block of more than 128 KB back to the system as soon as it is freed, and so the end of its heap; the next body of
that size gets pages that the system clears one by one when they are touched first. With bodies of 600 KB that is a third of all the
CPU of a buffer and its worker (docs/benchmarks.md). Other allocators, as musl's, have no such setting, and stay as they are.
"""

from __future__ import annotations

import ctypes

KEPT = 64 * 1024 * 1024
"""Bytes at the end of the heap that stay with the process when they are freed, at the most."""
OWN_BLOCK = 32 * 1024 * 1024
"""Bytes from which on a block is the system's own, and goes back to it at once; glibc takes no more."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory(kept: int = KEPT) -> bool:
    """Have this process keep ``kept`` bytes of what it frees, blocks below ``OWN_BLOCK``; whether its allocator knows how."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, OWN_BLOCK) and mallopt(_TRIM_THRESHOLD, kept))
