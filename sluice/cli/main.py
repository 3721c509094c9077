"""`sluice`: the command line. Commands are imported when they are called, so that `--help` is quick.

Exit codes: 0 done; 1 infeasible or failed, with the reason and the best found; 2 misuse.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import sys
from typing import Any

import click
from click.shell_completion import CompletionItem

from sluice.batching.errors import Infeasible, InvalidInput, KeyRefused, SluiceError
from sluice.batching.log_lines import last_words
from sluice.batching.told_to_end import done_when_told
from sluice.cli.suggestions import SuggestingGroup, with_two_dashes

EXIT_CODES: dict[type[SluiceError], int] = {InvalidInput: 2, KeyRefused: 2}
"""Of misuse; whatever else cannot be done ends with 1."""

DISTRIBUTION = "sluice-batching"
"""What pip calls the package."""

# name: module, the extras with the libraries that it needs, one-line help (shown without importing the module)
COMMANDS = {
    "new": ("sluice.cli.new", "", "Lay out a model: its class, its test, a sample request, its settings."),
    "package": ("sluice.cli.package", "", "Package a model for Lambda, or as an image."),
    "fit": ("sluice.cli.fit", "optimizer", "Fit an arrival process to a trace."),
    "profile": ("sluice.cli.profile", "optimizer", "Measure a function's service times over memory and batch sizes."),
    "predict": ("sluice.cli.predict", "optimizer", "Predict latency, batch sizes and cost of one setting."),
    "recommend": ("sluice.cli.recommend", "optimizer", "Find the cheapest setting that keeps a percentile SLO."),
    "smdp": ("sluice.cli.smdp", "optimizer", "Find the optimal batching policy of one server."),
    "fleet": ("sluice.cli.fleet", "optimizer", "Choose and place model variants on a fixed fleet."),
    "simulate": ("sluice.cli.simulate", "optimizer", "Run policies side by side on the same arrivals."),
    "serve": ("sluice.cli.serve", "serve", "Serve models through the batching buffer."),
    "plans": ("sluice.cli.plans", "serve", "Put plans into force at all buffers at once, see them, go back."),
    "status": (
        "sluice.cli.status",
        "serve,optimizer",
        "Say which plans are in force, whether promises are kept, and what it cost.",
    ),
    "control": ("sluice.cli.control", "serve,optimizer", "Watch what runs, plan anew as it changes, put the plans into force."),
    "worker": ("sluice.cli.worker", "worker", "Serve models over HTTP, in batches."),
    "replay": ("sluice.cli.replay", "serve,optimizer", "Replay a trace against a running buffer."),
    "compile": ("sluice.cli.compile", "optimizer", "Compile the optimizer now, so that no command waits for that later."),
    "demo": ("sluice.cli.demo", "all", "Run the whole loop on this machine: profile, fit, recommend, serve, replay."),
}

COMPUTING = frozenset({"fit", "predict", "recommend", "smdp", "fleet", "simulate", "control", "compile"})
"""Those that solve linear systems of middling size, whose threads wait longer for each other on busy cores than they work."""

ENDLESS = frozenset({"serve", "control", "worker"})
"""Those that are done when they are told to end, whatever they are at."""


ELSEWHERE = {
    "build": "Did you mean 'package'?",
    "completion": "The shell asks: docs/command-line.md has the line for it.",
    "deploy": "`sluice package` and `sam deploy` do that (docs/deploy.md).",
    "init": "Did you mean 'new'?",
    "optimize": "Did you mean 'recommend'?",
    "run": "Did you mean 'serve'?",
    "start": "Did you mean 'serve'?",
    "tune": "Did you mean 'recommend', or 'control' of what runs?",
}


def _missing(name: str, error: ModuleNotFoundError) -> Exception:
    """What to say where a command has not found a module: what to install, but for one of ours, which is a defect.

    The buffer's image has no more of ours than the buffer needs.
    """
    if name in COMMANDS and re.fullmatch(r"sluice\.(optimizer|profiler)", str(error.name)):
        where = "the image of the buffer is without it, the one of --target control is not (docs/deploy.md)"
        return click.UsageError(f"{name} needs {error.name}, which is not here: {where}")
    if str(error.name).partition(".")[0] == __package__.partition(".")[0] or name not in COMMANDS:
        return error
    wanted = f'pip install "{DISTRIBUTION}[{COMMANDS[name][1]}]"'
    return click.UsageError(f"{name} needs a library that is not installed, {error.name}: {wanted}")


class LazyGroup(SuggestingGroup):
    """A group whose commands live in modules of their own, each as ``command``."""

    elsewhere = ELSEWHERE

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in ENDLESS and not ctx.resilient_parsing:
            ctx.with_resource(done_when_told())  # from here on: what is imported next takes seconds
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """Commands as they are told here: their own help would have to be imported."""
        named = [CompletionItem(name, help=text) for name, (_, _, text) in COMMANDS.items() if name.startswith(incomplete)]
        return named or super().shell_complete(ctx, incomplete)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _, _ = COMMANDS[cmd_name]
        if cmd_name in COMPUTING:
            os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when numpy is imported
        try:
            command: click.Command = importlib.import_module(module).command
        except ModuleNotFoundError as error:
            raise _missing(cmd_name, error) from None
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; some import what their help does not need."""
        try:
            return super().invoke(ctx)
        except click.NoSuchOption as error:
            raise with_two_dashes(error, sys.argv) from None
        except ModuleNotFoundError as error:
            raise _missing(str(ctx.invoked_subcommand), error) from None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, _, text) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name=DISTRIBUTION)
def sluice() -> None:
    """SLO-aware batching for serverless inference.

    Begin with `sluice demo`, which runs all of it on this machine. For a model of your own: `sluice new`; then `sluice fit` (from a
    trace to arrivals), `sluice profile` (from a function to its times), `sluice recommend` (what to deploy, and whether), `sluice
    serve`, and `sluice control`, which goes on tuning it.
    """


def exit_code(error: SluiceError) -> int:
    """That of the nearest ancestor of the error that has one, else 1."""
    return next((EXIT_CODES[kind] for kind in type(error).__mro__ if kind in EXIT_CODES), 1)


def main() -> None:
    """The console entry point: errors become one line on stderr and an exit code."""
    try:
        sluice.main(standalone_mode=True)
    except SluiceError as error:
        last_words("sluice", str(error))
        if isinstance(error, Infeasible) and error.best is not None:
            if "--json" in sys.argv:
                click.echo(json.dumps({"version": 1, "infeasible": str(error), "best": error.best}))
            else:
                click.echo("best found: " + json.dumps(error.best), err=True)
        sys.exit(exit_code(error))


if __name__ == "__main__":
    main()
