"""What becomes of memory that is freed: who takes bodies of hundreds of kilobytes over and over keeps it, who is to stay small not.

glibc gives each block of more than 128 KB back to the system as soon as it is freed, and so the end of its heap; the next body of
that size gets pages that the system clears one by one when they are touched first. With bodies of 600 KB that is a third of all the
CPU of a buffer and its worker (docs/benchmarks.md). And when a larger block was freed, it keeps those up to its size from then on:
a process that is to stay small has it not do so. Other allocators, as musl's, have no such settings, and stay as they are.
"""

from __future__ import annotations

import ctypes

KEPT = 64 * 1024 * 1024
"""Bytes at the end of the heap that stay with the process when they are freed, at the most."""
OWN_BLOCK = 32 * 1024 * 1024
"""Bytes from which on a block is the system's own, and goes back to it at once; glibc takes no more."""
SMALL_BLOCK = 128 * 1024
"""Bytes from which on it is so in a process that keeps nothing, as of any that has freed no such block yet."""

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # malloc.h


def keep_freed_memory(kept: int = KEPT) -> bool:
    """Have this process keep ``kept`` bytes of what it frees, blocks below ``OWN_BLOCK``; whether its allocator knows how."""
    return _told(OWN_BLOCK, kept)


def give_freed_memory_back(block: int = SMALL_BLOCK) -> bool:
    """Have this process give back blocks of so many bytes, and as many at its heap's end; whether its allocator knows how."""
    return _told(block, block)


def _told(own_block: int, kept: int) -> bool:
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_MMAP_THRESHOLD, own_block) and mallopt(_TRIM_THRESHOLD, kept))
