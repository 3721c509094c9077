"""Children that die with their parent, even when that is killed: Linux's parent-death signal.

Elsewhere than on Linux there is no such thing, and a killed parent leaves its children behind. The signal comes when the thread
that started the child ends.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable
from functools import partial

PR_SET_PDEATHSIG = 1
_prctl = ctypes.CDLL(None, use_errno=True).prctl if sys.platform == "linux" else None


def die_with_parent() -> Callable[[], None] | None:
    """What to pass as ``preexec_fn`` of a program that is not ours. It forks the caller, which takes milliseconds."""
    return None if _prctl is None else partial(die_with, os.getpid())


def die_with(parent: int) -> None:
    """Get SIGKILL when the parent, which had this process id, ends; end now if it has already."""
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the call: the signal will not come
            os._exit(1)
