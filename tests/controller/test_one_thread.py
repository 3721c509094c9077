"""A thread of its own for what takes long: in turn, with what it raises, and nobody waits for it in the end."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from sluice.controller.one_thread import OneThread


async def test_what_is_called_is_done_in_turn_in_another_thread_and_what_it_raises_is_raised_here() -> None:
    thread = OneThread()
    order: list[int] = []
    calls = [asyncio.create_task(thread.call(order.append, i)) for i in range(3)]
    with pytest.raises(ZeroDivisionError):
        await thread.call(divmod, 1, 0)
    await asyncio.gather(*calls)
    assert order == [0, 1, 2]
    assert await thread.call(threading.get_ident) != threading.get_ident()
    thread.end()


async def test_who_does_not_wait_any_more_keeps_the_next_from_nothing() -> None:
    thread, go_on = OneThread(), threading.Event()
    waiting = asyncio.create_task(thread.call(go_on.wait))
    await asyncio.sleep(0)
    waiting.cancel()
    go_on.set()
    assert await thread.call(abs, -1) == 1
    thread.end()


def test_a_process_ends_while_its_thread_is_at_work() -> None:
    script = (
        "import asyncio, threading\n"
        "from sluice.controller.one_thread import OneThread\n"
        "async def main():\n"
        "    task = asyncio.create_task(OneThread().call(threading.Event().wait))\n"
        "    await asyncio.sleep(0)\n"
        "    task.cancel()\n"
        "asyncio.run(main())\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60, check=False).returncode == 0
