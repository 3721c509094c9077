"""The process that decides: reads tuners, has them decide, and writes them back (``deciding.py``); ends when nobody asks any more.

What happened is decided about at the priority of who started it, as requests may be late until then; what is periodic at a low one,
which is not gone back from: the process ends soon. What a decision prints goes to the log, and one that hangs is ended by the alarm
of the system, where nobody is left to do so.
"""

from __future__ import annotations

import os
import pickle
import signal
from typing import BinaryIO

from sluice.batching.log_lines import log_to_stderr
from sluice.controller.niceness import NICENESS


def serve(asked: BinaryIO, answers: BinaryIO) -> None:
    """Decide until there is no more that is asked."""
    calm = False
    while len(length := asked.read(8)) == 8:
        told = asked.read(int.from_bytes(length, "little"))
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


def main() -> None:
    """Serve whoever started this."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # of the whole group, whose parent ends this when it has no use for it
    log_to_stderr("info")
    asked, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    serve(asked, answers)


if __name__ == "__main__":
    main()
