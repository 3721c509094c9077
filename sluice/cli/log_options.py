"""How a command that goes on until it is told to end is told what its log looks like."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from typing import Any

import click

from sluice.batching.log_lines import FORMAT, FORMATS, LEVEL, LEVELS, log_to_stderr
from sluice.cli.groups import Command


def log_options(level: str) -> Callable[[Command], Command]:
    """``--log-level``, by default this one, and ``--log-format``; the command logs so from its first line on.

    Either wins over its variable, and becomes it: what the process starts logs the same way.
    """

    def decorated(command: Command) -> Command:
        @click.option("--log-level", type=click.Choice(LEVELS), help=f"How much to log on stderr  [default: {level}]")
        @click.option(
            "--log-format", type=click.Choice(FORMATS), help=f"Lines for persons or for programs  [default: {FORMATS[0]}]"
        )
        @wraps(command)
        def with_log(*, log_level: str | None, log_format: str | None, **others: Any) -> Any:
            os.environ |= {name: value for name, value in ((LEVEL, log_level), (FORMAT, log_format)) if value is not None}
            log_to_stderr(level)
            return command(**others)

        return with_log

    return decorated
