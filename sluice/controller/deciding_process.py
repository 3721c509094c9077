"""The process that decides: reads tuners, has them decide, and writes them back (``deciding.py``); ends when nobody asks any more.

What happened is decided about at the priority of who started it, as requests may be late until then; what is periodic at a low one,
which is not gone back from: the process ends soon. What a decision prints goes to the log, and one that hangs is ended by the alarm
of the system, where nobody is left to do so.
"""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import pickle
import signal
import stat
import sys
from collections.abc import Iterable
from typing import BinaryIO, NoReturn

from sluice.controller.niceness import NICENESS
from sluice.optimizer.compiled import with_numba

_log = logging.getLogger(__name__)


def serve_parent(connection: int, unblocked: Iterable[int]) -> NoReturn:
    """In a copy of a controller, over this socket: serve it, and end, without what a process does that ends by itself.

    Of its connections none is kept, but files are: one may be the log. ``unblocked`` is the signal mask that it had.
    """
    code = 1
    try:
        gc.freeze()  # what is the controller's is not looked at, and so neither copied nor closed
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)  # of the whole group, whose parent ends this when it has no use for it
        signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(2, 1)  # who reads what the controller prints hears of its end
        sys.stdout = sys.stderr  # with nothing in it that the controller has not printed yet
        _close_sockets_but(connection)
        with with_numba(), os.fdopen(connection, "rb") as asked, os.fdopen(os.dup(connection), "wb") as answers:
            serve(asked, answers)
        code = 0
    except BaseException:
        _log.exception("the process that decides")
    finally:
        os._exit(code)


def _close_sockets_but(own: int) -> None:
    """Those of this process, or who is connected would not hear that the controller has ended; also its end of ours."""
    for opened in map(int, os.listdir("/dev/fd")):
        with contextlib.suppress(OSError):  # of the list itself
            if opened > 2 and opened != own and stat.S_ISSOCK(os.fstat(opened).st_mode):
                os.close(opened)


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Decide until there is no more that is asked."""
    calm = False
    while len(length := asked.read(8)) == 8:
        tuner, told = None, asked.read(int.from_bytes(length, "little"))
        try:
            tuner, now, trigger, hangs = pickle.loads(told)
            signal.setitimer(signal.ITIMER_REAL, 1.1 * hangs)
            if trigger.kind == "periodic" and not calm:
                calm = bool(os.nice(NICENESS))
            answer = pickle.dumps((tuner.decide(now, trigger), tuner), pickle.HIGHEST_PROTOCOL)
            signal.setitimer(signal.ITIMER_REAL, 0.0)
        except Exception as error:  # a defect, of one model's figures perhaps: the next is decided all the same
            answer = pickle.dumps(f"an error inside the controller: {error!r}", pickle.HIGHEST_PROTOCOL)
        answers.write(len(answer).to_bytes(8, "little") + answer)
        answers.flush()
        del told, answer, tuner
        gc.collect()  # laws of arrivals at hundreds of timeouts, before the next makes its own
