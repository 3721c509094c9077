"""A group that says of a command that it does not have which one may be meant, or which it has."""

from __future__ import annotations

import difflib

import click

FEW = 6  # commands that are all named


class SuggestingGroup(click.Group):
    """As click's own, but for what it says of an unknown command."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            names = self.list_commands(ctx)
            if args[0] in names:
                raise
            near = difflib.get_close_matches(args[0], names, n=1)
            if near:
                more = f"Did you mean {near[0]!r}?"
            else:
                more = f"Allowed: {', '.join(names)}." if len(names) <= FEW else f"{ctx.command_path} --help names them."
            raise click.UsageError(f"{error.format_message()} {more}", ctx) from None
