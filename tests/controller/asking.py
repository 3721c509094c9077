"""In the place of a controller that a test kills: has something decided, whose fate it is told, and tells by which process."""

from __future__ import annotations

import asyncio
import sys

from sluice.batching.log_lines import log_to_stderr
from sluice.controller.deciding import DecidingProcess
from sluice.optimizer.tuning.decision import Trigger
from tests.controller.deciding_tuner import DecidingTuner
from tests.waiting import until


async def main(fate: str) -> None:
    """Until it is killed."""
    process = DecidingProcess(idle=60.0, hangs=1.0)
    asked = asyncio.create_task(process.decide(DecidingTuner(fates=(fate,)), 1.0, Trigger("rate", 1.0, "the rate is another")))
    await until(lambda: process.pid is not None)
    if fate != "hangs":
        await asked
    print(process.pid, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    log_to_stderr("info")
    asyncio.run(main(sys.argv[1]))
