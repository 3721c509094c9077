"""Options that are refused where they were given, each by its own name and value."""

from __future__ import annotations

from collections.abc import Iterable

import click
from click.core import ParameterSource

from sluice.batching.errors import InvalidInput
from sluice.batching.urls import without_password


def require_none_given(parameters: Iterable[str], allowed: str) -> None:
    """Raise ``InvalidInput`` for the first of these parameters of the running command that its command line gives a value."""
    context, names = click.get_current_context(), set(parameters)
    for option in context.command.params:
        if option.name in names and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            value = context.params[option.name]
            shown = " ".join(map(str, value)) if isinstance(value, tuple) else value
            raise InvalidInput(max(option.opts, key=len), without_password(shown) if isinstance(shown, str) else shown, allowed)
