"""Calls back at a moment, on an event loop: by the kernel's timer, to some ten microseconds, where there is one.

Timers of asyncio and of uvloop tick in milliseconds. Whoever waits to the last moment has that kept free of every promise, on
every batch. So a process has one timerfd (timerfd_create(2); Python has it from 3.13) for all that it waits for, of which there may
be a thousand, each seldom: what is due next is at the head of a heap. Where there is no such timer, or time is not the kernel's,
as in tests, the loop's own is used, rounded up, since a call before its time would be in vain.
"""

from __future__ import annotations

import asyncio
import ctypes
import heapq
import math
import os
import sys
import time
from collections.abc import Callable
from itertools import count
from typing import Protocol

FEW = 64  # cancelled alarms that are left in the heap however few there are in all


class Alarm(Protocol):
    """What may be cancelled before it calls, and afterwards in vain."""

    def cancel(self) -> None: ...


class Alarms(Protocol):
    """Where alarms are set."""

    def after(self, seconds: float, call: Callable[[], None]) -> Alarm:
        """Call once so much later, never sooner."""
        ...

    def close(self) -> None:
        """No alarm that is set calls any more."""
        ...


class LoopAlarms:
    """By the timers of the running loop."""

    def after(self, seconds: float, call: Callable[[], None]) -> asyncio.TimerHandle:
        return asyncio.get_running_loop().call_later(math.ceil(seconds * 1000) / 1000, call)

    def close(self) -> None:
        pass


class _Set:
    """One alarm of ``KernelAlarms``."""

    __slots__ = ("_alarms", "call")

    def __init__(self, alarms: KernelAlarms, call: Callable[[], None]) -> None:
        self._alarms = alarms
        self.call = call

    def cancel(self) -> None:
        if self.call is not _nothing:
            self.call = _nothing
            self._alarms.cancelled()


def _nothing() -> None:
    pass


class _Timespec(ctypes.Structure):
    _fields_ = [("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long)]


class _Itimerspec(ctypes.Structure):
    _fields_ = [("interval", _Timespec), ("value", _Timespec)]


class KernelAlarms:
    """By one timerfd, which the loop watches.

    Raises
    ------
    OSError, AttributeError
        This system has none.
    """

    _ABSOLUTE = 1  # TFD_TIMER_ABSTIME

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._due: list[tuple[float, int, _Set]] = []  # a heap; what was cancelled is passed over when its time comes
        self._serial = count()
        self._cancelled = 0
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._fd = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self._fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        loop.add_reader(self._fd, self._ring)

    def __len__(self) -> int:
        """Alarms in the heap, those that were cancelled among them."""
        return len(self._due)

    def after(self, seconds: float, call: Callable[[], None]) -> Alarm:
        alarm, when = _Set(self, call), time.monotonic() + seconds
        heapq.heappush(self._due, (when, next(self._serial), alarm))
        if self._due[0][2] is alarm:
            self._watch(when)
        return alarm

    def cancelled(self) -> None:
        """One more was: where they are the most, the heap is rid of them, so that it does not grow as one is set anew."""
        self._cancelled += 1
        if self._cancelled > max(FEW, len(self._due) // 2):
            self._due = [each for each in self._due if each[2].call is not _nothing]
            heapq.heapify(self._due)
            self._cancelled = 0

    def close(self) -> None:
        self._loop.remove_reader(self._fd)
        os.close(self._fd)
        self._fd = -1  # of which the kernel knows no timer, whatever is set now
        self._due.clear()

    def _ring(self) -> None:
        try:
            os.read(self._fd, 8)
        except BlockingIOError:  # set anew since it rang
            return
        now = time.monotonic()
        while self._due and self._due[0][0] <= now:
            alarm = heapq.heappop(self._due)[2]
            call, alarm.call = alarm.call, _nothing
            if call is _nothing:
                self._cancelled -= 1
            else:
                self._loop.call_soon(call)  # so that an error of one is the loop's to tell, and no other misses its time
        if self._due:
            self._watch(self._due[0][0])

    def _watch(self, when: float) -> None:
        # A zero value would disarm the timer; a past one rings at once.
        nanoseconds = max(1, math.ceil(when * 1e9))
        value = _Timespec(nanoseconds // 10**9, nanoseconds % 10**9)
        self._libc.timerfd_settime(self._fd, self._ABSOLUTE, ctypes.byref(_Itimerspec(_Timespec(0, 0), value)), None)


def open_alarms(clock: Callable[[], float] = time.monotonic) -> Alarms:
    """The most precise that this system has, on the running loop; where another clock than the kernel's counts, the loop's."""
    if clock in (time.monotonic, time.perf_counter) and sys.platform == "linux":
        try:
            return KernelAlarms(asyncio.get_running_loop())
        except (OSError, AttributeError):
            pass
    return LoopAlarms()
