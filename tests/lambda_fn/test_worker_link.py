"""The loop's end of the process that computes."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from sluice.batching.policy import greedy
from sluice.lambda_fn.contract import Item
from sluice.lambda_fn.models.sleeper import Sleeper
from sluice.lambda_fn.worker import link as link_module
from sluice.lambda_fn.worker.computer import ComputerThread
from sluice.lambda_fn.worker.link import Link, LoadFailed, Source
from sluice.lambda_fn.worker.served_model import Life, ServedModel, Serving
from tests.lambda_fn.worker_sockets import in_thread
from tests.waiting import until


class Lingering(ComputerThread):
    """Does not end while it is ``held``, however often it is killed."""

    held = True

    def __init__(self) -> None:
        super().__init__([lambda: Sleeper("echo")])

    def has_ended(self) -> bool:
        return not self.held and super().has_ended()


class Started:
    """A link whose computers linger, and these."""

    def __init__(self) -> None:
        self.computers: list[Lingering] = []
        self.link = Link(self._begin)

    def _begin(self) -> Lingering:
        self.computers.append(Lingering())
        return self.computers[-1]


async def test_a_computer_that_dies_as_soon_as_it_has_said_that_a_model_is_loaded_has_not_loaded_it() -> None:
    """Both are read in one round of the loop, before whoever waits for the model goes on."""
    link = Link(lambda: ComputerThread([lambda: Sleeper("echo")]))
    hear = link._hear

    def hear_and_see_it_end(frame: object) -> None:
        hear(frame)  # type: ignore[arg-type]
        link._end_of_computer()

    link._hear = hear_and_see_it_end  # type: ignore[method-assign,assignment]
    with pytest.raises(LoadFailed, match="the process that computes has ended: its thread ended"):
        await Source(link, 0).load(1)
    link._hear = hear  # type: ignore[method-assign]
    loaded = await Source(link, 0).load(1)
    assert loaded.name == "echo" and not loaded.lost
    link.close()


async def test_while_a_computer_does_not_die_the_loop_goes_on_and_the_next_is_started_when_it_is_gone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    started = Started()
    lost = ServedModel("lost", Source(started.link, 0), Serving(greedy(4)))
    other = ServedModel("other", in_thread(lambda: Sleeper("other")), Serving(greedy(4)))
    answered: list[Any] = []
    await lost.load()
    await other.load()
    started.link._end_of_computer()
    assert started.link._burial is not None and lost.life is Life.READY
    await until(lambda: lost.life is Life.LOADING)
    assert lost.reason == "being loaded again, as the process that computes has ended: it was killed, and has not ended yet"
    other.submit([Item("a", "text/plain", b"x")], True, answered.append)
    assert lost.submit([Item("b", "text/plain", b"x")], True, answered.append) is None
    await until(lambda: len(answered) == 2)
    assert not started.link._burial.done() and len(started.computers) == 1
    started.computers[0].held = False
    await until(lambda: lost.life is Life.READY)
    assert len(started.computers) == 2
    started.computers[1].held = False
    await asyncio.gather(started.link.end(), other.link.end())
    assert "left behind" not in caplog.text


async def test_who_asked_something_of_a_computer_that_is_killed_learns_it_without_waiting_for_its_end() -> None:
    started = Started()
    loaded = await Source(started.link, 0).load(1)
    asked = asyncio.create_task(loaded.describe())
    await asyncio.sleep(0)
    started.link._end_of_computer()
    with pytest.raises(LoadFailed, match="the process that computes has ended: it was killed, and has not ended yet"):
        await asked
    with pytest.raises(LoadFailed, match="the process that computes has ended: it is not running"):
        await loaded.describe()
    started.computers[0].held = False
    await started.link.end()


async def test_a_computer_that_cannot_be_killed_is_left_behind_after_a_while_and_of_such_there_are_so_many_and_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(link_module, "CAUSE_WITHIN", 0.01)
    monkeypatch.setattr(link_module, "END_WITHIN", 0.02)
    monkeypatch.setattr(link_module, "PAUSES", (0.0,))
    started = Started()
    for _ in range(link_module.MOST_LEFT):
        await Source(started.link, 0).load(1)
        started.link._end_of_computer()
    with pytest.raises(LoadFailed, match="^3 processes that computed were killed and are still there$"):
        await Source(started.link, 0).load(1)
    left = "the process that computed was killed and has not ended within 0.02 s; it is left behind"
    assert caplog.messages == [left] * link_module.MOST_LEFT == [left] * len(started.computers)
    started.computers[1].held = False  # one is gone after all
    await until(started.computers[1].has_ended)
    loaded = await Source(started.link, 0).load(1)
    assert not loaded.lost and len(started.link._left) == link_module.MOST_LEFT - 1
    await started.link.end()
    assert caplog.messages == [left] * (link_module.MOST_LEFT + 1)


async def test_the_end_of_a_link_waits_for_a_computer_that_cannot_be_killed_for_a_while_and_no_longer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(link_module, "END_WITHIN", 0.02)
    for end_at_once in (False, True):
        started = Started()
        loaded = await Source(started.link, 0).load(1)
        if end_at_once:
            started.link.close()
        else:
            await started.link.end()
        assert started.link._computer is None and loaded.lost == "it was killed, and has not ended yet"
