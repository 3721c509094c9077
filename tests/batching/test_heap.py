"""What is freed stays with a process of bodies, so that the next one finds its pages, and not with one that is to stay small."""

import ctypes
import subprocess
import sys

from sluice.batching import heap

FAULTS = """
import resource, sys
from sluice.batching.heap import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keeps" else None
bytes(600_000) + b"x"
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    b"x" + bytes(600_000) + bytes(2_000_000)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""

STAYS = """
import sys
from pathlib import Path
from sluice.batching.heap import give_freed_memory_back
held = lambda: 4096 * int(Path("/proc/self/statm").read_text().split()[1])
if sys.argv[1] == "gives back":
    give_freed_memory_back()
before = held()
bytearray(b"x" * 10_000_000)
blocks = [b"x" * 500_000 for _ in range(30)]
del blocks
print(held() - before)
"""


def faults(how: str) -> tuple[str, int]:
    """Whether it is kept, and how many pages the system had to find."""
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    kept, count = done.stdout.split()
    return kept, int(count)


def test_bodies_that_come_and_go_find_their_pages_again():
    (_, without), (kept, count) = faults("is left alone"), faults("keeps")
    assert kept == "True" and count < 5_000 < without


def test_a_process_that_is_to_stay_small_gives_back_what_another_keeps_once_a_large_block_was_freed():
    left_alone, small = (
        int(subprocess.check_output([sys.executable, "-c", STAYS, how])) for how in ("is left alone", "gives back")
    )
    assert small < 2_000_000 < 10_000_000 < left_alone


def test_an_allocator_that_has_no_such_setting_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not heap.keep_freed_memory() and not heap.give_freed_memory_back()
