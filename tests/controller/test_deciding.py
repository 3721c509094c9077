"""Decisions in a process of their own: one for all that are due, ended afterwards, and nothing lost with it but a decision."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.controller import deciding
from sluice.controller.deciding import DecidingProcess, DecisionLost
from sluice.controller.niceness import NICENESS
from sluice.optimizer.compiled import without_numba
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


def reaped(pid: int) -> bool:
    """Whether a process has ended, and its code was asked for."""
    return not Path(f"/proc/{pid}").exists()


def gone(pid: int) -> bool:
    """Or ended, where it is another's to ask for its code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


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
    process._end_idle()  # as when it was idle for so long
    decision, after = await process.decide(DecidingTuner(), 2.0, TRIGGER)
    assert decision.at == 2.0 and after.pid != before.pid


async def test_one_that_dies_while_nothing_is_decided_costs_no_decision(process_of: Any) -> None:
    process = process_of(idle=60.0)
    _, before = await process.decide(DecidingTuner(), 1.0, TRIGGER)
    os.kill(before.pid, signal.SIGKILL)
    await until(lambda: not process.running)
    decision, after = await process.decide(DecidingTuner(), 2.0, TRIGGER)
    assert decision.at == 2.0 and after.pid != before.pid
    await until(lambda: reaped(before.pid))


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


async def test_where_no_process_can_be_started_a_decision_is_lost(process_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused() -> int:
        raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")

    process = process_of()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fork", refused)
        with pytest.raises(DecisionLost, match="Resource temporarily unavailable"):
            await process.decide(DecidingTuner(), 1.0, TRIGGER)
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
    assert reaped(pid)


async def test_who_does_not_wait_for_its_start_any_more_ends_the_process(process_of: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    started, fork = list[int](), os.fork

    def told() -> int:
        started.append(fork())
        return started[-1]

    async def never(**_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(os, "fork", told)
    monkeypatch.setattr(asyncio, "open_unix_connection", never)
    asking = asyncio.create_task(process_of().decide(DecidingTuner(), 1.0, TRIGGER))
    await until(lambda: bool(started))
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert reaped(started[0])


async def test_where_the_system_keeps_no_codes_of_children_nothing_else_is_lost(process_of: Any) -> None:
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        process = process_of()
        with pytest.raises(DecisionLost, match="died"):
            await process.decide(DecidingTuner(fates=("dies",)), 1.0, TRIGGER)
        decision, after = await process.decide(DecidingTuner(), 2.0, TRIGGER)
        await process.close()
    finally:
        signal.signal(signal.SIGCHLD, before)
    assert decision.at == 2.0 and reaped(after.pid)


@pytest.mark.parametrize("fate", ["decides", "hangs"])
async def test_what_decides_ends_when_who_asked_was_killed_and_by_itself_where_it_hangs(fate: str) -> None:
    with subprocess.Popen([sys.executable, "-m", "tests.controller.asking", fate], stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        pid = int(asking.stdout.readline())
        assert not gone(pid)
        asking.kill()
    await until(lambda: gone(pid))


def test_what_it_says_is_in_the_form_in_which_who_asked_logs() -> None:
    command = [sys.executable, "-m", "tests.controller.asking", "warns"]
    told = os.environ | {"SLUICE_LOG_FORMAT": "json"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=told) as asking:
        assert asking.stderr is not None
        lines = [asking.stderr.readline() for _ in range(2)]
        asking.kill()
    assert lines[0] == "what a decision prints is no answer\n"
    assert "UserWarning: two\nlines" in json.loads(lines[1])["message"]


async def test_what_decides_has_no_connection_of_who_asked(process_of: Any) -> None:
    here, there = socket.socketpair()
    with here, there:
        _, after = await process_of(idle=60.0).decide(DecidingTuner(), 1.0, TRIGGER)
        opened = {os.readlink(link) for link in Path(f"/proc/{after.pid}/fd").iterdir() if int(link.name) > 2}
        assert {os.readlink(f"/proc/self/fd/{end.fileno()}") for end in (here, there)}.isdisjoint(opened)
        assert sum(each.startswith("socket:") for each in opened) == 1  # by which it is asked


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_all_processes_is_the_one_that_asked_to_follow(
    number: signal.Signals, process_of: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the moment after the fork, in which the copy has the other's handlers, which would tell the loop of that."""
    told, fork = asyncio.Event(), os.fork

    def signalled() -> int:
        if not (pid := fork()):
            os.kill(os.getpid(), number)
        return pid

    monkeypatch.setattr(os, "fork", signalled)
    loop, process = asyncio.get_running_loop(), process_of(idle=60.0)
    loop.add_signal_handler(number, told.set)
    try:
        _, before = await process.decide(DecidingTuner(), 1.0, TRIGGER)
        os.kill(before.pid, number)
        _, after = await process.decide(DecidingTuner(), 2.0, TRIGGER)
    finally:
        loop.remove_signal_handler(number)
    assert after.pid == before.pid and not told.is_set()
    assert number not in after.blocked and number not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


async def test_what_decides_reads_and_prints_nothing_of_who_asked(process_of: Any) -> None:
    _, after = await process_of(idle=60.0).decide(DecidingTuner(), 1.0, TRIGGER)
    opened = [os.readlink(f"/proc/{after.pid}/fd/{number}") for number in range(3)]
    assert opened[0] == "/dev/null" and opened[1] == opened[2] == os.readlink("/proc/self/fd/2")


async def test_what_decides_makes_machine_code_though_what_watches_is_without_numba(process_of: Any) -> None:
    with without_numba():
        _, after = await process_of().decide(DecidingTuner(), 1.0, TRIGGER)
    assert after.may_compile


def test_what_decides_is_without_numba_and_without_what_is_for_servers_alone() -> None:
    script = (
        "import sys, sluice.cli.control, sluice.optimizer.tuning.candidates\n"
        "print(*sys.modules.keys() & {'numba', 'sluice.optimizer.smdp'})"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() == []


def test_what_watches_is_without_what_decides() -> None:
    libraries = "{'numba', 'rich', 'matplotlib', 'boto3', 'joserfc'}"
    rooms = {f"sluice.optimizer.{room}" for room in ("fits", "function", "recommend.search", "simulation.event_loop")}
    deciding = {f"sluice.optimizer.tuning.{module}" for module in ("candidates", "choice", "rehearsal", "trials", "warmed")}
    modules = {"scipy.optimize", "scipy.linalg", *rooms, *deciding}
    script = f"import sys, sluice.cli.control; loaded = sys.modules.keys(); print(*loaded & {modules}, *loaded & {libraries})"
    assert subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split() == []
