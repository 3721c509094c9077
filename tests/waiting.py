"""Waiting for what others do, on a machine that may be busy."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any


async def until(holds: Callable[[], Any]) -> None:
    """Until it holds; nothing takes a minute."""
    async with asyncio.timeout(60):
        while not holds():
            await asyncio.sleep(0.001)
