"""Pipelines with real processes and threads."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sluice.batching.errors import InvalidInput
from sluice.lambda_fn.halving import WrongOutputs
from sluice.lambda_fn.pipeline import (
    DeadlinePassed,
    Ensemble,
    ItemTooLarge,
    Pipeline,
    PipelineFull,
    PipelineStopped,
    ProcessDied,
    Sequential,
    Stage,
    StageDown,
    StageError,
    StageTimeout,
    StartupFailed,
    Switch,
)
from sluice.lambda_fn.pipeline.frames import FrameSocket, Kind, pack
from sluice.lambda_fn.pipeline.payloads import OUT_OF_BAND, decode, encode
from tests.lambda_fn import pipeline_stages as stages
from tests.processes import Gate
from tests.waiting import eventually

ROOT = Path(__file__).parents[2]
SOON = 60.0  # s: nothing here takes so long, however busy the machine


def children(parent: int) -> set[int]:
    """The processes that a process has started and that are not gone."""
    found = set()
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # it has ended meanwhile
            if entry.name.isdecimal() and int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                found.add(int(entry.name))
    return found


def held() -> tuple[set[int], set[str], set[str], set[str]]:
    """Processes, descriptors, shared memory and threads of this process; what lies in /dev/shm may be of any other."""
    gc.collect()
    descriptors = set()
    for entry in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError):
            descriptors.add(f"{entry.name} {entry.readlink()}")
    threads = {thread.name for thread in threading.enumerate() if thread.name.startswith(("pipeline", "stage"))}
    shared = {
        line.split()[-1] for line in Path("/proc/self/maps").read_text().splitlines() if "/dev/shm/" in line or "memfd:" in line
    }
    return children(os.getpid()), descriptors, shared, threads


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Every test leaves no process, descriptor, shared memory or thread."""
    before = held()
    yield
    until = time.monotonic() + SOON
    while (after := held()) != before and time.monotonic() < until:
        time.sleep(0.01)
    for was, now in zip(before, after, strict=True):
        assert now <= was


def error_of(future: Future[Any]) -> BaseException:
    error = future.exception(SOON)
    assert error is not None
    return error


@pytest.fixture
def gate(tmp_path: Path, nothing_left: None) -> Iterator[Gate]:
    """What the stages work on is held there."""
    gate = Gate(tmp_path / "gate")
    yield gate
    gate.close()


@pytest.mark.parametrize("processes", [True, False])
def test_scale_and_shift(processes: bool) -> None:
    """The example of Zepu Zhang, Service Batching from Scratch, Again, with its numbers."""
    scale, shift = Stage(stages.Scale, workers=2, processes=processes), Stage(stages.Shift, processes=processes)
    with Pipeline(Sequential(scale, shift)) as pipeline:
        assert pipeline.submit(3).result(SOON) == 3 * 2 + 3
        assert pipeline.predict(list(range(10))) == [v * 2 + 3 for v in range(10)]
        assert asyncio.run(pipeline.ask(3)) == 9


def test_processes_and_threads_in_ensembles_and_switches_within_each_other() -> None:
    plus = Sequential(Stage(stages.Shift, processes=False), Ensemble(Stage(stages.Scale), Stage(stages.Shift, processes=False)))
    flow = Switch(
        lambda x: x % 2, Ensemble(Stage(stages.Scale), plus, combine=lambda outputs: {"outputs": outputs}), Stage(stages.Shift)
    )
    with Pipeline(flow) as pipeline:
        assert pipeline.predict([1, 2]) == [4, {"outputs": [4, [10, 8]]}]
        failed = pipeline.predict(["no number"])[0]
    assert isinstance(failed, TypeError) and failed.__notes__ == ["in stage 'switch'"]


def test_a_stage_in_a_process_logs_as_the_environment_says(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    for form, told in (("json", lambda line: json.loads(line)["message"]), ("", str)):
        if form:
            monkeypatch.setenv("SLUICE_LOG_FORMAT", form)
        else:
            monkeypatch.delenv("SLUICE_LOG_FORMAT")
        with Pipeline(Stage(stages.Warns)) as pipeline:
            assert pipeline.predict([7]) == [7]
        assert [told(line) for line in capfd.readouterr().err.splitlines()] == ["of 7"]


def test_a_choice_that_is_none_is_the_error_of_its_item() -> None:
    with Pipeline(Switch(lambda x: x, Stage(stages.Scale, processes=False))) as pipeline:
        assert pipeline.predict([0]) == [0]
        with pytest.raises(InvalidInput, match="choose: 1 is not allowed; allowed: the number of a part, from 0 to 0"):
            pipeline.submit(1).result(SOON)


def test_an_item_alone_waits_for_no_others_longer_than_it_may() -> None:
    with Pipeline(Stage(stages.Sizes, batch_size=4, wait=0.05, processes=False)) as pipeline:
        assert pipeline.predict(list("abcdef")) == [4, 4, 4, 4, 2, 2]


def test_outputs_go_to_their_callers_in_whatever_order_they_come(gate: Gate) -> None:
    with Pipeline(Stage(stages.Picky, workers=2)) as pipeline:
        slow = pipeline.submit(("held", gate.path))
        quick = [pipeline.submit(i) for i in range(20)]
        assert [future.result(SOON) for future in quick] == list(range(20)) and not slow.done()
        gate.open()
        assert slow.result(SOON) == ("held", gate.path)


@pytest.mark.parametrize("processes", [True, False])
@pytest.mark.parametrize("batch_size", [None, 4])
def test_nothing_waits_behind_an_item_that_takes_long_while_another_worker_is_free(
    gate: Gate, processes: bool, batch_size: int | None
) -> None:
    held = ("held", gate.path)
    made_by = stages.Picky if batch_size is None else stages.PickyBatch
    with Pipeline(Stage(made_by, workers=2, processes=processes, batch_size=batch_size)) as pipeline:
        pipeline.predict(list(range(200)))  # it is known to be quick, and its workers are given work ahead
        items = [*range(40), held, *range(41, 400)]
        futures = [pipeline.submit(item) for item in items]
        beside = set() if batch_size is None else {i for i in range(33, 48) if i != 40}  # of its batch, whichever it is
        for i, future in enumerate(futures):
            if i != 40 and i not in beside:
                assert future.result(SOON) == i
        eventually(lambda: sum(not futures[i].done() for i in beside) < 4)
        assert not futures[40].done()
        gate.open()
        assert futures[40].result(SOON) == held
        assert pipeline.predict(list(range(200))) == list(range(200))  # both workers go on


@pytest.mark.parametrize("processes", [True, False])
def test_what_was_made_before_an_item_that_takes_long_does_not_wait_for_it(gate: Gate, processes: bool) -> None:
    with Pipeline(Stage(stages.Picky, processes=processes)) as pipeline:
        pipeline.predict(list(range(200)))  # it is known to be quick, and is given several at once
        futures = [pipeline.submit(item) for item in (*range(40), ("held", gate.path), "behind")]
        assert [future.result(SOON) for future in futures[:40]] == list(range(40))
        assert not futures[40].done() and not futures[41].done()
        gate.open()
        assert futures[41].result(SOON) == "behind"


@pytest.fixture(scope="module")
def picky() -> Iterator[Pipeline]:
    with Pipeline(Sequential(Stage(stages.Picky), Stage(stages.Picky)), max_payload=50_000) as pipeline:
        yield pipeline


class TestErrors:
    def test_what_a_stage_raises_reaches_its_caller_with_the_traceback(self, picky: Pipeline) -> None:
        bad, good = picky.submit("raise"), picky.submit("fine")
        error = error_of(bad)
        assert type(error) is KeyError and error.args == ("no such word",) and error.__notes__ == ["in stage 'Picky'"]
        assert 'raise KeyError("no such word")' in str(error.__cause__) and "pipeline_stages.py" in str(error.__cause__)
        assert good.result(SOON) == "fine"

    def test_an_exception_that_is_returned_is_the_error_of_its_item(self, picky: Pipeline) -> None:
        error = error_of(picky.submit("return"))
        assert type(error) is ValueError and str(error) == "bad, and returned"

    @pytest.mark.parametrize(
        ("item", "kind", "message"),
        [
            ("exit", StageError, "SystemExit: 3"),
            ("odd", StageError, "OddError: a and b"),
            ("lambda", StageError, "output: a function cannot be pickled, as a stage in another process needs it"),
            ("large", ItemTooLarge, r"output: 1000\d\d bytes are not allowed; allowed: at most 50000 \(max_payload\)"),
            ("unreadable", ValueError, "invalid literal for int"),
        ],
    )
    def test_what_cannot_be_handed_on_is_the_error_of_its_item(self, picky: Pipeline, item: str, kind: Any, message: str) -> None:
        with pytest.raises(kind, match=message):
            picky.submit(item).result(SOON)
        assert picky.submit("fine").result(SOON) == "fine"

    def test_an_item_that_cannot_go_to_a_process_is_refused_at_once(self, picky: Pipeline) -> None:
        with pytest.raises((AttributeError, TypeError), match="pickle"):
            picky.submit(lambda: 0)
        with pytest.raises(ItemTooLarge, match=r"item: 600\d\d bytes are not allowed; allowed: at most 50000"):
            picky.submit(b"x" * 60_000)
        with pytest.raises(InvalidInput, match="deadline: '5s' is not allowed; allowed: a number of seconds > 0 from now"):
            picky.submit("x", "5s")  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="deadline: True is not allowed"):
            picky.submit("x", True)
        with pytest.raises(InvalidInput, match="deadline: -1 is not allowed"):
            picky.submit(1, deadline=-1)
        fine, refused = picky.predict(["fine", lambda: 0])
        assert fine == "fine" and "pickle" in str(refused)


def test_who_is_told_to_end_as_a_turn_begins_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(Stage(stages.Picky, processes=False)).start()
    turn, hear = pipeline._thread, pipeline._hear

    def told_to_end_first(events: list[Any], now: float) -> None:
        pipeline._closing = True  # as `stop` does in its thread
        pipeline._wake()
        hear(events, now)

    monkeypatch.setattr(pipeline, "_hear", told_to_end_first)
    pipeline._wake()
    assert turn is not None
    turn.join(SOON)
    sleeps_on = turn.is_alive()
    pipeline.stop()
    assert not sleeps_on


@pytest.mark.parametrize("processes", [True, False])
def test_one_item_fails_and_its_batch_is_served(processes: bool) -> None:
    items = ["a", "raise", "b", "return", "c", "d", "e", "f"]
    with Pipeline(Stage(stages.PickyBatch, batch_size=8, wait=0.5, processes=processes)) as pipeline:
        answers = pipeline.predict(items)
        assert [answer if isinstance(answer, str) else type(answer) for answer in answers] == [
            *("a", KeyError, "b", ValueError, "c", "d", "e", "f"),
        ]
        for answer in pipeline.predict(["a", "b", "short"]):
            assert isinstance(answer, WrongOutputs)
            assert str(answer) == "predict returned 2 outputs for 3 inputs; allowed: as many as there are inputs"
        hopeless = pipeline.predict(["raise"] * 8)
        assert {type(answer) for answer in hopeless} == {KeyError}


@pytest.mark.parametrize("processes", [True, False])
@pytest.mark.parametrize(("class_", "batch_size"), [(stages.Picky, None), (stages.PickyBatch, 4)])
def test_whatever_a_stage_raises_or_returns_is_its_items_and_the_next_are_served(
    processes: bool, class_: type, batch_size: int | None
) -> None:
    odd = ("frozen", "mute", "no error", "stop", "cancel", "interrupt", "return exit")
    with Pipeline(Stage(class_, processes=processes, batch_size=batch_size), deadline=SOON) as pipeline:
        for item in odd:
            assert type(error_of(pipeline.submit(item))) in (stages.FrozenError, stages.MuteError, stages.NoError, StageError), item
        assert isinstance(pipeline.submit("sizeless").result(SOON), stages.Sizeless)
        both = pipeline.predict(["fine", "cancel"])
        assert both[0] == "fine" and str(both[1]) == "CancelledError: a task within"


async def test_who_awaits_beside_an_item_that_stops_an_iteration_is_answered() -> None:
    with Pipeline(Stage(stages.PickyBatch, batch_size=2, wait=0.5), deadline=SOON) as pipeline:
        stops, fine = await asyncio.gather(pipeline.ask("stop"), pipeline.ask("fine"), return_exceptions=True)
    assert isinstance(stops, StageError) and fine == "fine"


def test_arguments_of_a_stage_may_be_larger_than_a_socket_takes_at_once() -> None:
    with Pipeline(Stage(stages.Holds, bytes(20_000_000))) as pipeline:
        assert pipeline.submit("x").result(SOON) == 20_000_000


def test_what_comes_with_files_for_which_there_is_no_descriptor_is_not_taken_for_something_else() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        files, sender, receiver = [encode(bytes(OUT_OF_BAND), True) for _ in range(2)], FrameSocket(theirs), FrameSocket(ours)
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        free = os.dup(0)  # the lowest that is free
        os.close(free)
        resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))
        try:
            sender.send(*pack(Kind.WORK, [(i, False, file) for i, file in enumerate(files)]))
            assert not receiver.read()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        sender.send(*pack(Kind.WORK, [(3, False, files[0])]))
        assert receiver.frames() == [] and not receiver.read() and receiver.frames() == []
        receiver.close()


def test_large_arrays_go_beside_the_message_and_can_be_written_over() -> None:
    arrays = [np.full(OUT_OF_BAND, i, np.float32) for i in range(100)]
    flow = Sequential(
        Stage(stages.Double), Stage(stages.DoubleBatch, batch_size=100, wait=1.0), Stage(stages.Double, processes=False)
    )
    with Pipeline(flow) as pipeline:
        for i, array in enumerate(pipeline.predict(arrays)):
            assert array.shape == (OUT_OF_BAND,) and (array == 8 * i).all()
        body = os.urandom(OUT_OF_BAND)
    with Pipeline(Sequential(Stage(stages.Picky), Stage(stages.Picky))) as pipeline:
        assert pipeline.predict([body, {"body": body, "array": arrays[3]}])[0] == body


def test_payloads_survive_without_files_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    value = {"a": np.arange(OUT_OF_BAND), "b": np.arange(3), "c": b"x" * OUT_OF_BAND}
    with_file = encode(value, files=True)
    assert with_file.file is not None and len(with_file.head) < 2 * OUT_OF_BAND
    monkeypatch.delattr(os, "memfd_create")
    without = encode(value, files=True)
    assert without.file is None
    for payload in (with_file, without, encode(value, files=False)):
        read = decode(payload)
        assert all((read[key] == value[key]).all() for key in "ab") and read["c"] == value["c"]
        assert read["a"].flags.writeable
    assert decode(encode(b"y" * OUT_OF_BAND, files=True)) == b"y" * OUT_OF_BAND


def test_at_its_bounds_a_pipeline_refuses_or_lets_wait(tmp_path: Path, gate: Gate) -> None:
    with Pipeline(Stage(stages.Picky, processes=False), max_items=2) as pipeline:
        first = [pipeline.submit(("held", gate.path)) for _ in range(2)]
        with pytest.raises(PipelineFull, match=r"holds 2 items of \d+ bytes; allowed: 2 \(max_items\) and 268435456 \(max_bytes\)"):
            pipeline.submit("x", block=False)
        with pytest.raises(DeadlinePassed, match="no room among 2 items"):
            pipeline.submit("x", deadline=0.01)
        opening = threading.Timer(0.05, gate.open)  # while the next waits for room
        opening.start()
        assert pipeline.submit("x").result(SOON) == "x"
        assert all(future.done() for future in first[:1])
        opening.join()
    with Pipeline(Stage(stages.Picky), max_bytes=100_000, max_payload=60_000) as pipeline:
        second = Gate(tmp_path / "second")
        slow = pipeline.submit(("held", second.path))
        pipeline.submit(b"x" * 50_000)
        with pytest.raises(PipelineFull):
            pipeline.submit(b"x" * 50_000, block=False)
        second.open()
        assert slow.result(SOON)
        second.close()
        assert pipeline.submit(b"x" * 50_000).result(SOON)
    with pytest.raises(InvalidInput, match="max_bytes: 1 is not allowed; allowed: an integer >= 67108864"):
        Pipeline(Stage(stages.Picky), max_bytes=1)
    with pytest.raises(InvalidInput, match="deadline: '10s' is not allowed; allowed: a number of seconds > 0, or None"):
        Pipeline(Stage(stages.Picky), deadline="10s")


def test_a_caller_who_leaves_makes_room(gate: Gate) -> None:
    with Pipeline(Stage(stages.Picky), max_items=2) as pipeline:
        slow, left = pipeline.submit(("held", gate.path)), pipeline.submit("left")
        assert left.cancel()
        comes = pipeline.submit("x", block=False)
        gate.open()
        assert comes.result(SOON) == "x"
        with pytest.raises(CancelledError):
            left.result()
        assert slow.done()


async def test_who_awaits_may_leave_too(gate: Gate) -> None:
    with Pipeline(Stage(stages.Picky), max_items=2) as pipeline:
        slow = asyncio.create_task(pipeline.ask(("held", gate.path)))
        left = asyncio.create_task(pipeline.ask("left"))
        await asyncio.sleep(0)
        with pytest.raises(PipelineFull):
            await pipeline.ask("x")
        left.cancel()
        await asyncio.sleep(0)
        gate.open()
        assert await pipeline.ask("x") == "x"
        with pytest.raises(KeyError, match="no such word"):
            await pipeline.ask("raise")
        assert await slow


def test_a_deadline_may_be_as_far_away_as_anybody_likes() -> None:
    with Pipeline(Stage(stages.Picky, timeout=1e100)) as pipeline:
        slow = [pipeline.submit(("sleep", 0.2), deadline=deadline) for deadline in (1e12, float("inf"))]
        assert [future.result(SOON) for future in slow] == [("sleep", 0.2)] * 2


def test_an_item_that_is_late_fails_and_the_next_are_served() -> None:
    with Pipeline(Stage(stages.Picky, workers=2), deadline=0.1) as pipeline:
        late = pipeline.submit(("sleep", 0.4))
        assert isinstance(error_of(late), DeadlinePassed)
        assert pipeline.submit("x", deadline=SOON).result(SOON) == "x"
        others = [pipeline.submit(i, deadline=SOON) for i in range(10)]
        assert [future.result(SOON) for future in others] == list(range(10))


def test_a_process_that_works_too_long_is_killed_and_another_goes_on() -> None:
    with Pipeline(Stage(stages.Picky, timeout=1.0)) as pipeline:
        stuck = pipeline.submit(("sleep", 1000))
        waits = pipeline.submit("waits")
        with pytest.raises(StageTimeout, match=r"stage 'Picky' worked on this item for longer than 1.0 s"):
            stuck.result(SOON)
        assert waits.result(SOON) == "waits"


def test_an_item_under_which_processes_die_fails_alone() -> None:
    with Pipeline(Stage(stages.PickyBatch, workers=2, batch_size=4, wait=0.2)) as pipeline:
        answers = pipeline.predict(["a", "die", "b", "c", "d"])
        assert [answers[0], *answers[2:]] == ["a", "b", "c", "d"]
        assert isinstance(answers[1], ProcessDied)
        assert str(answers[1]) == "two processes of stage 'PickyBatch' died under this item: it was killed by SIGKILL"
        eventually(lambda: pipeline.predict(["pid"])[0])


def test_a_death_is_noticed_where_the_kernel_has_no_descriptors_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    with Pipeline(Stage(stages.Picky)) as pipeline:
        (pid,) = pipeline.predict(["pid"])
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: pipeline.predict(["pid"])[0] not in (pid, None))


@pytest.mark.parametrize("fact", ["came", "returned"])
def test_a_defect_of_the_pipeline_leaves_nobody_waiting(monkeypatch: pytest.MonkeyPatch, gate: Gate, fact: str) -> None:
    with Pipeline(Stage(stages.Picky)) as pipeline:
        inside = pipeline.submit(("held", gate.path))
        monkeypatch.delattr(type(pipeline._state), fact)
        if fact == "came":  # the turn that an item is put in by
            with pytest.raises(AttributeError):
                pipeline.submit("x")
        gate.open()
        assert isinstance(error_of(inside), PipelineStopped)
        eventually(lambda: not pipeline._admission.open)
        with pytest.raises(PipelineStopped):
            pipeline.submit("x")


def test_a_stage_that_cannot_be_started_says_so_at_the_start(tmp_path: Path) -> None:
    switch = tmp_path / "broken"
    switch.touch()
    for processes in (True, False):
        pipeline = Pipeline(Sequential(Stage(stages.Scale), Stage(stages.Fails, str(switch), processes=processes, name="weights")))
        where = rf"\({stages.__file__}, line \d+, in __init__\)"
        told = f"stage 'weights' could not be started: FileNotFoundError: weights.bin is missing {where}"
        with pytest.raises(StartupFailed, match=f"^{told}$") as caught:
            pipeline.start()
        assert "Traceback (most recent call last):" in str(caught.value.__cause__)
        with pytest.raises(PipelineStopped, match="not running"):
            pipeline.submit(1)
    with pytest.raises(InvalidInput, match="a class that can be imported"):
        Pipeline(Stage(type("Local", (), {"predict": lambda self, x: x}))).start()
    with pytest.raises(StartupFailed, match="'int' object has no attribute 'predict'|takes no arguments"):
        Pipeline(Stage(eval, "3")).start()


def test_a_start_for_which_there_is_no_thread_leaves_nothing_and_can_be_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(Stage(stages.Scale, processes=False))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", lambda thread: (_ for _ in ()).throw(RuntimeError("can't start new thread")))
        with pytest.raises(RuntimeError, match="new thread"):
            pipeline.start()
    with pipeline:
        assert pipeline.submit(3).result(SOON) == 6


def test_items_of_a_stage_that_cannot_be_started_again_fail_at_once_until_it_can(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    switch = tmp_path / "broken"
    with Pipeline(Stage(stages.Fails, str(switch))) as pipeline:
        assert pipeline.predict(["x"]) == ["x"]
        switch.touch()
        os.kill(pipeline.predict(["pid"])[0], signal.SIGKILL)
        eventually(lambda: isinstance(pipeline.predict(["x"])[0], StageDown))
        down = pipeline.predict(["x"])[0]  # a line for who asked, and the traceback for who serves him
        assert str(down).startswith("no worker of stage 'Fails' can be started: FileNotFoundError: weights.bin is missing (")
        assert "\n" not in str(down) and "Traceback" in str(down.__cause__)
        switch.unlink()
        eventually(lambda: pipeline.predict(["x"]) == ["x"])
    told = [record.getMessage() for record in caplog.records]
    assert "a process of stage 'Fails' has ended, and is started again: it was killed by SIGKILL" in told
    assert any("a process of stage 'Fails' cannot be started: FileNotFoundError" in line and "Traceback" in line for line in told)


def test_workers_run_on_the_cpus_they_are_given() -> None:
    cpu = max(os.sched_getaffinity(0))
    for processes in (True, False):
        with Pipeline(Stage(stages.Picky, cpus=[cpu], processes=processes), cpus=[min(os.sched_getaffinity(0))]) as pipeline:
            assert pipeline.predict(["cpus"]) == [[cpu]]
        with Pipeline(Stage(stages.Picky, processes=processes), cpus=[cpu]) as pipeline:
            assert pipeline.predict(["cpus"]) == [sorted(os.sched_getaffinity(0))]
    with Pipeline(Stage(stages.Picky, cpus=[{cpu}]), cpus=os.sched_getaffinity(0)) as pipeline:  # which is a set
        assert pipeline.predict(["cpus"]) == [[cpu]]
    with pytest.raises(InvalidInput, match=r"cpus: \[4096\] is not allowed; allowed: some of \d"):
        Pipeline(Stage(stages.Picky), cpus=[4096])


def test_a_stop_waits_for_those_inside_as_long_as_it_may() -> None:
    pipeline = Pipeline(Stage(stages.Picky)).start()
    served = pipeline.submit(("sleep", 0.2))
    pipeline.stop()
    assert served.result(0) == ("sleep", 0.2)
    pipeline.start()
    never = pipeline.submit(("sleep", 1000))
    pipeline.stop(timeout=0.1)
    with pytest.raises(PipelineStopped, match="was stopped before this item was answered"):
        never.result(0)
    pipeline.stop()


def script(tmp_path: Path, text: str) -> subprocess.Popen[str]:
    path = tmp_path / "program.py"
    path.write_text(text)
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    return subprocess.Popen([sys.executable, path], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables)


IN_MAIN = """
from sluice.lambda_fn.halving import WrongOutputs
from sluice.lambda_fn.pipeline import Pipeline, Stage

class Thing:
    def __init__(self, x): self.x = x

class Echo:
    def predict(self, thing): return thing

def serve():
    with Pipeline({stage}) as pipeline:
        print(pipeline.predict([Thing(7)])[0].x)

{call}
"""


def test_classes_of_the_main_module_are_found(tmp_path: Path) -> None:
    for stage in ("Stage(Echo)", "Stage(__import__('tests.lambda_fn.pipeline_stages', fromlist=['x']).Picky)"):
        with script(tmp_path, IN_MAIN.format(stage=stage, call='if __name__ == "__main__": serve()')) as program:
            assert program.communicate(timeout=SOON) == ("7\n", "")


def test_a_program_that_starts_its_pipeline_when_it_is_imported_is_told_so(tmp_path: Path) -> None:
    with script(tmp_path, IN_MAIN.format(stage="Stage(Echo)", call="serve()")) as program:
        out, err = program.communicate(timeout=SOON)
    assert out == "" and "start it below `if __name__ == '__main__':`" in err


@pytest.mark.full
def test_workers_end_when_who_started_them_is_killed(tmp_path: Path) -> None:
    call = 'if __name__ == "__main__":\n    pipeline = Pipeline(Stage(__import__("time").sleep and Sleeps, workers=2)).start()\n'
    call += "    futures = [pipeline.submit(1)]\n    print('busy', flush=True)\n    futures[0].result()\n"
    sleeps = "import time\nclass Sleeps:\n    def predict(self, x): time.sleep(1000)\n"
    with script(tmp_path, sleeps + IN_MAIN.format(stage="Stage(Echo)", call=call)) as program:
        assert program.stdout is not None and program.stdout.readline() == "busy\n"
        workers = children(program.pid)
        assert len(workers) == 2
        program.kill()
    eventually(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))


def expected(n: int) -> str | tuple[int, int]:
    """What becomes of item ``n`` in the run below."""
    for salt in (1, 2, 3):
        if stages.Raises(17, salt).wrong((n, 0)):
            return f"item {n} at {salt}"
    return n, 3


@pytest.mark.parametrize("requests", [2_000, pytest.param(30_000, marks=pytest.mark.proof)])
def test_everybody_gets_his_own_answer_or_error_while_a_worker_is_killed(requests: int) -> None:
    flow = Sequential(
        Stage(stages.Raises, 17, 1, workers=2),
        Stage(stages.RaisesInBatch, 17, 2, workers=2, batch_size=32, wait=0.002),
        Stage(stages.Raises, 17, 3, workers=2),
    )
    dice = random.Random(1)
    before = children(os.getpid())
    with Pipeline(flow, deadline=60.0) as pipeline:
        workers = sorted(children(os.getpid()) - before)
        assert len(workers) == 6
        futures = []
        for n in range(requests):
            futures.append(pipeline.submit((n, 0)))
            if n == requests // 2:
                os.kill(dice.choice(workers), signal.SIGKILL)
        for n, future in enumerate(futures):
            error = future.exception(60.0)
            assert (future.result() if error is None else str(error)) == expected(n)
        eventually(lambda: len(children(os.getpid()) - before) == 6)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"timeout": "5s"}, "timeout: '5s' is not allowed; allowed: a number of seconds > 0, or None"),
        ({"timeout": True}, "timeout: True is not allowed; allowed: a number of seconds > 0, or None"),
        ({"timeout": float("inf")}, "timeout: inf is not allowed; allowed: a number of seconds > 0, or None"),
        ({"processes": 4}, "processes: 4 is not allowed; allowed: True or False; how many there are is said by workers"),
        ({"processes": "no"}, "processes: 'no' is not allowed; allowed: True or False"),
        ({"cpus": [0.5]}, "cpus: 0.5 is not allowed; allowed: a CPU, or a list of them, for each worker"),
    ],
)
def test_an_option_of_a_stage_that_is_of_another_type_is_named(option: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Stage(stages.Scale, **option)
    assert str(caught.value).startswith(message)


def test_the_cpus_of_a_pipeline_are_a_list() -> None:
    with pytest.raises(InvalidInput, match="cpus: 0 is not allowed; allowed: some of "):
        Pipeline(Stage(stages.Scale), cpus=0)  # type: ignore[arg-type]


def test_a_part_may_be_chosen_by_an_integer_of_numpy() -> None:
    parts = [Stage(stages.Scale, processes=False), Stage(stages.Shift, processes=False)]
    with Pipeline(Switch(lambda x: np.argmax([0, x]), *parts)) as pipeline:  # type: ignore[arg-type, return-value]
        assert pipeline.predict([5]) == [8]
    with Pipeline(Switch(lambda x: np.True_, *parts)) as pipeline:  # type: ignore[arg-type, return-value]
        (refused,) = pipeline.predict([5])
        assert str(refused).endswith("is not allowed; allowed: the number of a part, from 0 to 1")
