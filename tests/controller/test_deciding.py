"""Decisions in a process of their own: one for all that are due, ended afterwards, and nothing lost with it but a decision."""

from __future__ import annotations

import asyncio
import os
import pickle
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from sluice.controller import deciding
from sluice.controller.deciding import COMMAND, DecidingProcess, DecisionLost
from sluice.controller.niceness import NICENESS
from sluice.optimizer.tuning.decision import Trigger
from tests.controller.deciding_tuner import DecidingTuner
from tests.waiting import until

TRIGGER = Trigger("rate", 1.0, "the rate is another")


@pytest.fixture
async def process_of() -> AsyncIterator[Callable[..., DecidingProcess]]:
    made: list[DecidingProcess] = []

    def make(**options: Any) -> DecidingProcess:
        made.append(DecidingProcess(**options))
        return made[-1]

    yield make
    for each in made:
        await each.close()


def gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    return False


async def test_what_happened_is_decided_about_at_the_priority_of_the_controller_and_what_is_periodic_at_a_low_one(
    process_of: Any,
) -> None:
    process, own = process_of(), os.getpriority(os.PRIO_PROCESS, 0)
    for trigger, niceness in ((TRIGGER, own), (Trigger("periodic", 1.0, "300 s have passed"), min(own + NICENESS, 19))):
        for _ in range(2):
            _, after = await process.decide(DecidingTuner(), 1.0, trigger)
            assert after.niceness == niceness


async def test_all_that_is_due_is_decided_by_one_process_which_ends_when_nothing_is(process_of: Any) -> None:
    process = process_of(idle=0.1)
    tuner = DecidingTuner()
    found = await asyncio.gather(*(process.decide(tuner, float(at), TRIGGER) for at in (1, 2)))
    assert [decision.at for decision, _ in found] == [1.0, 2.0]
    assert tuner.decided == 0 and [after.decided for _, after in found] == [1, 1]
    pids = {after.pid for _, after in found}
    assert len(pids) == 1 and os.getpid() not in pids
    await until(lambda: not process.running)
    _, after = await process.decide(found[0][1], 3.0, TRIGGER)
    assert after.decided == 2 and after.pid not in pids


async def test_what_is_asked_in_the_moment_in_which_the_idle_process_is_ended_is_decided_by_another(process_of: Any) -> None:
    process = process_of(idle=60.0)
    _, before = await process.decide(DecidingTuner(), 1.0, TRIGGER)
    process._kill()  # as when it was idle for so long; that it has ended nobody has heard
    decision, after = await process.decide(DecidingTuner(), 2.0, TRIGGER)
    assert decision.at == 2.0 and after.pid != before.pid


@pytest.mark.parametrize(("fate", "words"), [("dies", "died .-9."), ("hangs", "within 0.7 s"), ("fails", "ZeroDivisionError")])
async def test_what_is_lost_with_a_process_that_dies_or_hangs_is_one_decision(process_of: Any, fate: str, words: str) -> None:
    process = process_of(hangs=0.7 if fate == "hangs" else 30.0)
    tuner = DecidingTuner(fates=(fate,))
    with pytest.raises(DecisionLost, match=words):
        await process.decide(tuner, 1.0, TRIGGER)
    assert tuner.decided == 0
    if fate == "hangs":
        process._hangs = 30.0
    decision, _ = await process.decide(DecidingTuner(), 2.0, TRIGGER)
    assert decision.at == 2.0


async def test_what_is_known_of_a_model_is_bounded(process_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deciding, "MOST_BYTES", 1000)
    with pytest.raises(DecisionLost, match="1000 is the most"):
        await process_of().decide(DecidingTuner(fates=("decides",) * 1000), 1.0, TRIGGER)


async def test_who_does_not_wait_for_a_decision_any_more_ends_the_process(process_of: Any) -> None:
    process = process_of()
    asking = asyncio.create_task(process.decide(DecidingTuner(fates=("hangs",)), 1.0, TRIGGER))
    await until(lambda: process.pid is not None)
    pid = process.pid
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert gone(pid)


def test_what_decides_ends_with_who_asked_and_by_itself_where_it_hangs() -> None:
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as idle:
        assert idle.stdin is not None
        idle.stdin.close()
        assert idle.wait(60) == 0
    with subprocess.Popen(COMMAND, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as hanging:
        assert hanging.stdin is not None
        told = pickle.dumps((DecidingTuner(fates=("hangs",)), 1.0, TRIGGER, 0.1))
        hanging.stdin.write(len(told).to_bytes(8, "little") + told)
        hanging.stdin.close()
        assert hanging.wait(60) < 0


def test_what_decides_is_without_what_watches_and_without_what_is_for_servers_alone() -> None:
    script = (
        "import sys, sluice.controller.deciding_process, sluice.optimizer.tuning.candidates\n"
        "print(*sys.modules.keys() & {'asyncio', 'redis', 'numba', 'sluice.optimizer.smdp'})"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() == []


def test_what_watches_is_without_what_decides() -> None:
    libraries = "{'numba', 'matplotlib', 'boto3', 'joserfc'}"
    modules = "{'scipy.optimize', 'scipy.linalg', 'sluice.optimizer.tuning.candidates', 'sluice.optimizer.fits'}"
    script = f"import sys, sluice.cli.control; loaded = sys.modules.keys(); print(*loaded & {modules}, *loaded & {libraries})"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() == []
