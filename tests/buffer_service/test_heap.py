"""What is freed stays with the process, so that the next body of a request finds its pages."""

import ctypes
import subprocess
import sys

from sluice.http import heap

FAULTS = """
import resource, sys
from sluice.http.heap import keep_freed_memory
kept = keep_freed_memory() if sys.argv[1] == "keeps" else None
bytes(600_000) + b"x"
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(50):
    b"x" + bytes(600_000) + bytes(2_000_000)
print(kept, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(how: str) -> tuple[str, int]:
    """Whether it is kept, and how many pages the system had to find."""
    done = subprocess.run([sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True)
    kept, count = done.stdout.split()
    return kept, int(count)


def test_bodies_that_come_and_go_find_their_pages_again():
    (_, without), (kept, count) = faults("gives back"), faults("keeps")
    assert kept == "True" and count < 5_000 < without


def test_an_allocator_that_has_no_such_setting_is_left_as_it_is(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", lambda name: object())
    assert not heap.keep_freed_memory()
