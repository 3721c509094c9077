"""A worker gives way: on a machine that it shares, it is batches that wait for requests, and not requests for batches.

Where all cores are busy, who has been woken takes the core of whom it finds there. A worker that does so as its batch comes, in the
middle of what the buffer reads, has all that is to be read next wait, the next batches among it; and these hold more than the few
microseconds by which its own begins the sooner. As a batch process of the system (``SCHED_BATCH``) it has its turn all the same,
and as long a one, but takes nobody's. On a core that is free it begins at once.
"""

from __future__ import annotations

import contextlib
import os


def give_way() -> None:
    """Have this process, its threads to come and what it starts take no core from who is running; no more than it is told to.

    Where there is no such policy, or none may be chosen, and where somebody has chosen another one, all stays as it is.
    """
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):
            if os.sched_getscheduler(0) == os.SCHED_OTHER:
                os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
