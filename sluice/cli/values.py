"""Values of options that all commands read alike: durations with their units, and lists of whole numbers.

    200ms, 0.2s, 5min, 1h    a duration; a number without a unit is of seconds
    0.5                      a number
    4                        a whole number
    512,1024                 several numbers in one, or the option several times

What is read here has no default and no range of its own: what a duration is of decides these.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import inf
from typing import Any

import click
from click.shell_completion import CompletionItem

from sluice.batching.durations import LONGEST, LONGEST_HOLD, LONGEST_SWEEP, MEANT_MS, MOST, seconds
from sluice.batching.errors import require


def _duration(meant_ms: float = inf, few_minutes: float = 0, most: float = MOST) -> Callable[[Any], float]:
    """A type of click's: seconds, as ``seconds`` reads them."""

    def duration(value: Any) -> float:  # of this name, as it is the one in the help
        if isinstance(value, int | float):  # a default
            return float(value)
        try:
            return seconds(value, meant_ms, few_minutes, most)
        except ValueError as error:
            raise click.BadParameter(f"{value!r} is not allowed; allowed: {error}") from None

    return duration


DURATION = _duration()
WAIT = _duration(MEANT_MS, most=LONGEST)
"""Of what lasts for less than seconds, so that a large number without a unit is a question."""
HOLD = _duration(MEANT_MS, most=LONGEST_HOLD)
"""Of what a plan may hold a request."""
OVERHEAD = _duration(1.0, most=LONGEST)
"""Of what takes milliseconds."""
LIMIT = _duration(most=LONGEST)
"""Of what somebody waits for: an answer, a search, a run."""
SWEEP = _duration(most=LONGEST_SWEEP)
"""Of what is measured."""


PERIOD = _duration(few_minutes=60)
"""Of what is set in minutes elsewhere, so that a small number without a unit is a question."""


MOST_RATE, LEAST_RATE = 1e6, 1e-9
"""Requests/s: more than any deployment has, and one in 30 years."""

FILE = click.Path(readable=False)
"""Where a file or a folder is or will be, which a shell completes; what is wrong with it says who reads or writes it."""


def offered(names: Callable[[], Iterable[str]]) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """What a shell completes an option with: those of ``names`` that begin so; where none does, what its type offers."""

    def complete(context: click.Context, option: click.Parameter, incomplete: str) -> list[CompletionItem]:
        found = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
        return found or option.type.shell_complete(context, option, incomplete)

    return complete


def number(value: Any) -> float:  # of this name, as it is the one in the help
    """A type of click's."""
    try:
        return float(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not allowed; allowed: a number alone, as in 0.5") from None


def require_speed(speed: float, arrival_rate: float) -> None:
    """Raise ``InvalidInput`` where a trace of this rate would bring more requests than any deployment has."""
    allowed = f"a number > 0, at most {MOST_RATE / arrival_rate:.3g}: {MOST_RATE:.0f} requests per second"
    require(0 < speed <= MOST_RATE / arrival_rate, "--speed", speed, allowed)


def require_rate(field: str, rate: float) -> float:
    """The same; raises ``InvalidInput`` for what is no rate of requests."""
    require(LEAST_RATE <= rate <= MOST_RATE, field, rate, f"requests per second, {LEAST_RATE:g} to {MOST_RATE:.0f}")
    return rate


def integer(value: Any) -> int:  # of this name, as it is the one in the help
    """A type of click's."""
    try:
        return int(value)
    except ValueError:
        raise click.BadParameter(f"{value!r} is not allowed; allowed: a whole number alone") from None


def _numbers(value: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError:
        allowed = "whole numbers with commas between, as in 512,1024"
        raise click.BadParameter(f"{value!r} is not allowed; allowed: {allowed}") from None


def numbers_option(*names: str, metavar: str, help: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """An option whose numbers stand in one list, or that is repeated; the command gets them all, ``tuple[int, ...]``."""

    def joined(context: click.Context, option: click.Parameter, told: tuple[tuple[int, ...], ...]) -> tuple[int, ...]:
        return tuple(number for numbers in told for number in numbers)

    return click.option(*names, type=_numbers, multiple=True, callback=joined, metavar=f"{metavar}[,...]", help=help)
