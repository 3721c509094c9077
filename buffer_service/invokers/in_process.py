"""Python callables as functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from sluice.buffer_service.invokers.port import UnknownFunction


class LocalInvoker:
    """Python callables by function name: the public fake, and the function in-process where that is wanted."""

    def __init__(self, functions: Mapping[str, Callable[[bytes], Awaitable[bytes]]]) -> None:
        self._functions = functions

    async def invoke(self, function: str, payload: bytes, avoid: str = "") -> bytes:
        if function not in self._functions:
            raise UnknownFunction(f"function: {function!r} does not exist")
        return await self._functions[function](payload)

    async def close(self) -> None:
        return None
