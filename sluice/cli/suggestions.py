"""A group that says of a command that it does not have which one may be meant, or which it has."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence

import click

FEW = 6  # commands that are all named


class SuggestingGroup(click.Group):
    """As click's own, but for what it says of an unknown command.

    Attributes
    ----------
    elsewhere : mapping of str to str
        Words of other tools, and what to say of each: what is written most like it is something else here.
    """

    elsewhere: Mapping[str, str] = {}

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            names = self.list_commands(ctx)
            if args[0] in names:
                raise
            near = difflib.get_close_matches(args[0], names, n=1)
            if "Did you mean" in error.format_message():  # as click says where it has its own
                more = ""
            elif args[0] in self.elsewhere:
                more = self.elsewhere[args[0]]
            elif near:
                more = f"Did you mean {near[0]!r}?"
            else:
                more = f"Allowed: {', '.join(names)}." if len(names) <= FEW else f"{ctx.command_path} --help names them."
            raise click.UsageError(f"{error.format_message()} {more}".rstrip(), ctx) from None


def with_two_dashes(error: click.NoSuchOption, words: Sequence[str]) -> click.NoSuchOption:
    """The same error; where an option was written with one dash, so that its first letter alone was read, it names that option."""
    if error.ctx is None or error.possibilities:
        return error
    known = {name for option in error.ctx.command.params for name in option.opts}
    written = (word.partition("=")[0] for word in words if word.startswith(error.option_name) and not word.startswith("--"))
    meant = sorted({f"-{word}" for word in written} & known)
    if not meant:
        return error
    message = f"{error.format_message()} Did you mean {' or '.join(map(repr, meant))}?"
    return click.NoSuchOption(error.option_name, message, ctx=error.ctx)
