"""Coroutines that go on in the breath in which what they wait for comes, where a task goes on in the next round of the loop.

A round reads what hundreds of connections have sent, which takes milliseconds: a batch, or its answers, would wait for the rest of
it, and who computes would rest meanwhile. What may live here: who goes on when. What may not: what is waited for.

    Promised    a future of asyncio: a ``Prompt`` that waits for it goes on within ``set_result``, a task as ever
    Prompt      a coroutine that begins, and goes on, at once; what it waits for is a future, of whatever kind, or ``sleep(0)``

A ``Prompt`` is no task: what asks for the current one, as ``asyncio.timeout`` does, must be in a task that it waits for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any, TypeVar

T = TypeVar("T")


class GivenUp(asyncio.CancelledError):
    """``Prompt.cancel`` was called."""


class Promised(asyncio.Future[T]):
    """Whoever settles it has its waiter go on before that returns, and so does it last."""

    _go_on: Callable[[], None] | None = None

    def set_result(self, result: T) -> None:
        super().set_result(result)
        self._settled()

    def set_exception(self, exception: type | BaseException) -> None:
        super().set_exception(exception)
        self._settled()

    def cancel(self, msg: Any = None) -> bool:
        if not super().cancel(msg):
            return False
        self._settled()
        return True

    def waited_for(self, go_on: Callable[[], None] | None) -> None:
        """By one at a time, or by none any more."""
        assert go_on is None or self._go_on is None, "another waits for it"
        self._go_on = go_on

    def _settled(self) -> None:
        go_on, self._go_on = self._go_on, None
        if go_on is not None:
            go_on()


class Prompt:
    """A coroutine, once it has begun; ``ended`` is told that it has, and the error, if that is how.

    It has a context of its own, as a task has.
    """

    __slots__ = ("_context", "_coroutine", "_ended", "_waits_for")

    def __init__(self, coroutine: Coroutine[Any, Any, None], ended: Callable[[BaseException | None], None]) -> None:
        self._coroutine = coroutine
        self._ended = ended
        self._context = copy_context()
        self._waits_for: asyncio.Future[Any] | asyncio.Handle | None = None

    def go_on(self) -> None:
        """Begin, or go on, as far as it can now."""
        self._context.run(self._step, self._coroutine.send, None)

    def cancel(self) -> None:
        """``GivenUp`` is raised where it waits, and what it waits for is cancelled; not before it has begun."""
        waits_for = self._waits_for
        assert waits_for is not None, "it waits for nothing"
        if type(waits_for) is Promised:
            waits_for.waited_for(None)
        elif isinstance(waits_for, asyncio.Future):
            waits_for.remove_done_callback(self._go_on)
        waits_for.cancel()
        self._context.run(self._step, self._coroutine.throw, GivenUp())

    def _go_on(self, settled: object = None) -> None:
        """The loop calls, in the context that this has, perhaps of what it does not wait for any more, as it was cancelled."""
        if settled is None or settled is self._waits_for:
            self._step(self._coroutine.send, None)

    def _step(self, step: Callable[[Any], Any], value: object) -> None:
        self._waits_for = None
        try:
            waits_for = step(value)
        except StopIteration:
            self._ended(None)
        except (Exception, asyncio.CancelledError) as error:
            self._ended(error)
        else:
            self._wait_for(waits_for)

    def _wait_for(self, waits_for: Any) -> None:
        if waits_for is not None:
            waits_for._asyncio_future_blocking = False  # as whoever drives a coroutine says that he has heard
        if type(waits_for) is Promised:
            waits_for.waited_for(self.go_on)
        elif waits_for is None:  # another round of the loop
            waits_for = asyncio.get_running_loop().call_soon(self._go_on, context=self._context)
        else:
            waits_for.add_done_callback(self._go_on, context=self._context)
        self._waits_for = waits_for
