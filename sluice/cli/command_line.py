"""The command line that a command was called with, to be told to others."""

from __future__ import annotations

import shlex

import click
from click.core import ParameterSource


def command_line(context: click.Context) -> str:
    """The command as it can be typed again, with the options that were given to it."""
    words = [f"sluice {context.info_name}"]
    for parameter in context.command.params:
        name = str(parameter.name)
        if context.get_parameter_source(name) is not ParameterSource.COMMANDLINE:
            continue
        value = context.params[name]
        for one in value if parameter.multiple else [value]:
            named = [] if isinstance(parameter, click.Argument) else [max(parameter.opts, key=len)]
            words += named if isinstance(one, bool) else [*named, str(one).removesuffix(".0")]
    return " ".join([words[0], shlex.join(words[1:])])
