"""Waiting for what others do, on a machine that may be busy."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any


def eventually(holds: Callable[[], Any]) -> None:
    """Return when it holds, for who runs no loop."""
    gives_up = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < gives_up
        time.sleep(0.001)


async def until(holds: Callable[[], Any]) -> None:
    """Until it holds; nothing takes a minute."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)
