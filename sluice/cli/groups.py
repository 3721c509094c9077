"""Groups of options: a decorator that reads several and gives the command one argument that is made of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import wraps
from typing import Any

Command = Callable[..., Any]


def group(
    argument: str, make: Callable[..., Any], names: Iterable[str], options: Sequence[Callable[[Command], Command]]
) -> Callable[[Command], Command]:
    """The group of ``options``, told in this order; the command gets ``argument``, made of what those ``names`` were given."""
    parts = tuple(names)

    def decorated(command: Command) -> Command:
        @wraps(command)
        def with_group(**given: Any) -> Any:
            return command(**{argument: make(**{name: given.pop(name) for name in parts})}, **given)

        told: Command = with_group
        for option in reversed(options):
            told = option(told)
        return told

    return decorated
