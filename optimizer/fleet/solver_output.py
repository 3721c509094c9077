"""What the compiled solver prints by itself, as it does at times, past Python's stdout."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def solver_on_stderr() -> Iterator[None]:
    """What the compiled solver prints goes to stderr: the descriptor itself is exchanged, for the whole process."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        ctypes.CDLL(None).fflush(None)
        os.dup2(kept, 1)
        os.close(kept)
