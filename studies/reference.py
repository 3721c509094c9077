"""The pages of reference: every command and every setting as it explains itself, and what each package offers to Python.

python -m studies.reference
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pkgutil
from types import ModuleType
from typing import Any

import click

import sluice
from sluice.batching.variables import PREFIX
from sluice.buffer_service.settings import Settings
from sluice.cli.main import COMMANDS, LazyGroup
from sluice.cli.main import sluice as group

from .publishing import DOCS

WIDTH = 110
LONGEST = 200  # characters of a value that is shown


def command_line_page() -> str:
    """What ``sluice COMMAND --help`` says, command by command."""
    intro = """\
# Command line

Written by `python -m studies.reference` from what every command says of itself; a test makes it again and compares. Commands take
`--json` (one document on stdout, everything else on stderr) and exit with 0 when done, 1 when what was asked cannot be (with the
reason and the best found), 2 on misuse, naming the option or field, its value and what is allowed. So do `serve`, `control` and
`worker`, which are done when SIGTERM or SIGINT ends them, also while they start: 0, and nothing is left running. A Redis that
refuses the user, the password or the database of its URL is misuse when a command starts; while one runs it is told of, and tried
again.

Durations may have a unit (`us`, `ms`, `s`, `min`, `h`: `--slo 200ms`, `--period 5min`, `SLUICE_REQUEST_TIMEOUT=2min`); a number
alone is of seconds, and in an option one that was probably meant in milliseconds is a question. What somebody waits for, as an SLO
or a search, is 1 h at most, what `sluice profile` measures for 24 h, what `sluice recommend` holds a request for 50 s, and a rate
1e6 requests/s. A variable that is set and empty is no default, but refused where what it sets may not be empty. Several numbers
stand in one list, or in the option repeated: `--memory 512,1024`.

What a command writes (`--out`, `--report`, `--plot`, the plans of `fleet --plans`) replaces a file of its own kind, as the last
answer to the same question is, and an empty one. Over any other file it is refused before anything is computed or measured;
remove that first.

`serve`, `control` and `worker`, and the processes that they start, say on stderr what they do: a line of text each, or with
`--log-format json` (`SLUICE_LOG_FORMAT`) one of JSON (`time`, `level`, `logger`, `message`, and `traceback` where there is one),
from `--log-level` (`SLUICE_LOG_LEVEL`) on: `debug`, `info`, `warning`, `error`. What one of them ends with is such a line too. A
warning is told once a minute, with how often one like it came: one that differs in nothing but numbers, where those in a name
(`mlp-2`, `10.0.0.7:8500`) are part of the name. The stack of the template logs JSON.

Completion of commands and options: `eval "$(_SLUICE_COMPLETE=bash_source sluice)"` in `~/.bashrc`, `zsh_source` in `~/.zshrc`, or
`_SLUICE_COMPLETE=fish_source sluice | source` in fish.
"""
    return intro + "".join(f"\n## sluice {name}\n\n```text\n{_help(name)}\n```\n" for name in COMMANDS)


def _help(name: str) -> str:
    above = click.Context(group, info_name="sluice", **group.context_settings)
    command = LazyGroup().get_command(above, name)
    assert command is not None
    context = click.Context(command, above, name, terminal_width=WIDTH, max_content_width=WIDTH)
    return command.get_help(context)


def settings_page() -> str:
    """The environment variables of the buffer, with their defaults and what the record of settings says of each."""
    intro = """\
# Settings of the buffer

Written by `python -m studies.reference` from what the record of settings says; a test makes it again and compares. Each is an
environment variable; an option of [`sluice serve`](command-line.md#sluice-serve) wins over its variable. A value that is not
allowed ends the start with 2 and with what is allowed; of a name that is nearly one of these the log warns. Durations are
of seconds, or have their unit (`200ms`, `2min`); sizes are of bytes. AWS's own variables are read by boto3. Workers have
[settings of their own](worker.md), and so have [functions](models.md).

| variable | default | what it is |
|---|---|---|
"""
    return intro + "".join(
        f"| {', '.join(f'`{PREFIX}{name.upper()}`' for name in names)} | {', '.join(_default(name) for name in names)} | {text} |\n"
        for names, text in parameters(Settings)
    )


def parameters(record: type) -> list[tuple[list[str], str]]:
    """What the docstring of a record says of its fields, some of them together, in its order."""
    _, _, section = (inspect.getdoc(record) or "").partition("Parameters\n----------\n")
    found: list[tuple[list[str], list[str]]] = []
    for line in section.splitlines():
        if line.startswith(" "):
            found[-1][1].append(line.strip())
        else:
            found.append((line.split(", "), []))
    return [(names, " ".join(lines).replace("``", "`").replace("|", "\\|")) for names, lines in found]


def _default(name: str) -> str:
    field = Settings.__dataclass_fields__[name]
    if field.default is dataclasses.MISSING:
        return "of the machine"
    if field.default == "":
        return "none"
    return f"`{field.default:g}`" if isinstance(field.default, float) else f"`{field.default}`"


def api_page() -> str:
    """The names that each package exports, with what their docstrings say first."""
    intro = """\
# Python API

Written by `python -m studies.reference` from what each package exports (`__all__`); a test makes it again and compares. Everything
else may change without notice. Seconds, MB and USD everywhere; docstrings give shapes, units, errors and sources.
"""
    return intro + "".join(_package(package) for package in faces())


def faces() -> list[ModuleType]:
    """The packages that export names, by name."""
    found = pkgutil.walk_packages(sluice.__path__, "sluice.")
    packages = [importlib.import_module(info.name) for info in found if info.ispkg]
    return [package for package in packages if hasattr(package, "__all__")]


def _package(package: ModuleType) -> str:
    rows = "".join(f"| `{name}` | {_summary(getattr(package, name))} |\n" for name in sorted(package.__all__, key=_rank))
    return f"\n## {package.__name__}\n\n{_first_sentence(package)}\n\n| name | what it is |\n|---|---|\n{rows}"


def _rank(name: str) -> tuple[int, str]:
    """Constants last, else by letter."""
    return (int(name.isupper()), name.lower())


def _summary(thing: Any) -> str:
    if isinstance(thing, ModuleType) or inspect.isclass(thing) or inspect.isroutine(thing):
        return _first_sentence(thing).replace("|", "\\|")
    shown = repr(thing)
    return f"`{shown}`".replace("|", "\\|") if len(shown) <= LONGEST else f"a {type(thing).__name__} of {len(thing)}"


def _first_sentence(thing: object) -> str:
    text = inspect.getdoc(thing) or ""
    return " ".join(text.partition("\n\n")[0].split())


def main() -> None:
    """Write them."""
    for name, page in (("command-line.md", command_line_page()), ("settings.md", settings_page()), ("api.md", api_page())):
        (DOCS / name).write_text(page, encoding="utf-8")
        print(f"wrote docs/{name}")


if __name__ == "__main__":
    main()
