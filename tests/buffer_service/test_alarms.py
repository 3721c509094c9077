"""Alarms by the kernel's timer: in order, never too soon, none lost, and no more of them than are waited for."""

from __future__ import annotations

import asyncio
import sys
import time

import pytest

from sluice.buffer_service.alarms import FEW, KernelAlarms, LoopAlarms, open_alarms

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="timerfd is Linux's")


async def rung(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def test_they_ring_in_the_order_of_their_times_and_never_too_soon() -> None:
    alarms, began, heard = KernelAlarms(asyncio.get_running_loop()), time.monotonic(), list[tuple[str, float]]()
    all_heard = asyncio.Event()

    def hear(name: str, seconds: float) -> None:
        assert time.monotonic() >= began + seconds
        heard.append((name, seconds))
        if len(heard) == 4:
            all_heard.set()

    for name, seconds in (("third", 0.03), ("first", -1.0), ("second", 0.0154), ("fourth", 0.0301)):
        alarms.after(seconds, lambda name=name, seconds=seconds: hear(name, seconds))  # type: ignore[misc]
    await asyncio.wait_for(all_heard.wait(), 5.0)
    assert [name for name, _ in heard] == ["first", "second", "third", "fourth"]
    assert not len(alarms)
    alarms.close()


async def test_one_that_is_cancelled_does_not_ring_and_those_behind_it_do() -> None:
    alarms, heard, last = KernelAlarms(asyncio.get_running_loop()), list[str](), asyncio.Event()
    gone = alarms.after(0.005, lambda: heard.append("gone"))
    alarms.after(0.01, last.set)
    gone.cancel()
    gone.cancel()
    await asyncio.wait_for(last.wait(), 5.0)
    assert heard == []
    gone.cancel()  # in vain, and harmless
    alarms.after(0.0, lambda: heard.append("one more"))
    await rung(0.01)
    assert heard == ["one more"]
    alarms.close()


async def test_an_alarm_that_is_set_anew_again_and_again_leaves_nothing_behind() -> None:
    alarms = KernelAlarms(asyncio.get_running_loop())
    kept = [alarms.after(60.0, lambda: None) for _ in range(10)]
    for k in range(100 * FEW):
        alarms.after(30.0 + k, lambda: None).cancel()
        assert len(alarms) <= 10 + FEW + 1
    for each in kept:
        each.cancel()
    alarms.close()


async def test_an_error_of_one_is_told_by_the_loop_and_the_next_rings() -> None:
    loop, told, heard = asyncio.get_running_loop(), list[str](), asyncio.Event()
    loop.set_exception_handler(lambda loop, context: told.append(str(context.get("exception"))))
    alarms = KernelAlarms(loop)

    def fail() -> None:
        raise RuntimeError("of the first")

    alarms.after(0.0, fail)
    alarms.after(0.0, heard.set)
    await asyncio.wait_for(heard.wait(), 5.0)
    assert told == ["of the first"]
    alarms.close()


async def test_none_rings_after_the_end_and_setting_one_is_harmless() -> None:
    alarms, heard = KernelAlarms(asyncio.get_running_loop()), list[str]()
    alarms.after(0.002, lambda: heard.append("late"))
    alarms.close()
    alarms.after(0.001, lambda: heard.append("later"))
    await rung(0.01)
    assert heard == []


async def test_where_another_clock_counts_the_loop_rings() -> None:
    assert isinstance(open_alarms(asyncio.get_running_loop().time), LoopAlarms)
    real = open_alarms(time.perf_counter)
    assert isinstance(real, KernelAlarms)
    real.close()


async def test_a_system_without_such_a_timer_has_the_loops(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert isinstance(open_alarms(), LoopAlarms)
