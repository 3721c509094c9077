import importlib
import os
import pkgutil
import re
import shlex
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click
import pytest
from click.shell_completion import BashComplete

from sluice.batching.errors import SluiceError
from sluice.cli.cost_options import ARCHITECTURES
from sluice.cli.main import COMMANDS, COMPUTING, DISTRIBUTION, EXIT_CODES, LazyGroup, exit_code, sluice
from sluice.optimizer.baselines import NAMES
from tests import sam_template

ROOT = Path(__file__).parents[2]
ROOMS = ("batching", "buffer_service", "cli", "controller", "http", "local", "optimizer", "packaging", "profiler")
PACKAGES = tuple(f"sluice.{room}" for room in ROOMS)


def every_error():
    for package in PACKAGES:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
            importlib.import_module(module.name)

    def below(kind):
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    return {kind for kind in below(SluiceError) - {SluiceError} if kind.__module__.startswith(PACKAGES)}


def test_misuse_ends_with_2_and_every_other_error_with_1():
    for kind in every_error():
        assert exit_code(kind.__new__(kind)) == (2 if issubclass(kind, tuple(EXIT_CODES)) else 1), kind
    assert {kind.__name__ for kind in every_error() if exit_code(kind.__new__(kind)) == 1} >= {
        "Infeasible",
        "DecisionLost",
        "StoreUnavailable",
    }


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name):
    command = LazyGroup().get_command(click.Context(sluice), name)
    assert command is not None
    assert command.help
    assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_functions_are_priced_as_the_template_deploys_them():
    parameter = sam_template.load(ROOT / "template.yaml")["Parameters"]["Architecture"]
    assert ARCHITECTURES[0] == parameter["Default"] and set(ARCHITECTURES) == set(parameter["AllowedValues"])
    for name in ("predict", "recommend", "simulate", "profile", "control", "status"):
        command = LazyGroup().get_command(click.Context(sluice), name)
        (option,) = (option for option in command.params if option.name == "architecture")
        assert option.default == ARCHITECTURES[0], name


def shown_commands():
    """Commands in the blocks of the pages, by page and line."""
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in re.findall(r"```sh\n(.*?)```", page.read_text(), re.DOTALL):
            yield from (line for line in block.replace("\\\n", " ").splitlines() if line.startswith("sluice "))


def test_the_tutorial_shows_commands():
    assert sum(line.startswith("sluice ") for line in (ROOT / "docs/tutorial.md").read_text().splitlines()) >= 5


@pytest.mark.parametrize("line", list(shown_commands()))
def test_a_command_that_a_page_shows_exists_with_the_options_it_has(line):
    _, name, *arguments = shlex.split(line.rstrip("& "), comments=True)
    above = click.Context(sluice, **sluice.context_settings)
    command = LazyGroup().get_command(above, name)
    assert command is not None
    command.make_context(name, arguments, above)  # its options of help are those of the group, from the first context on


@pytest.mark.full
@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["--help"], 0, "SLO-aware batching"),
        (["no-such-command"], 2, "no-such-command"),
        (["fit", "/no/such/trace.csv"], 2, "sluice: "),
        (["fit"], 2, "TRACE"),
        (["fti", "trace.csv"], 2, "No such command 'fti'. Did you mean 'fit'?"),
    ],
)
def test_the_console_entry_prints_one_line_and_the_exit_code_of_the_error(arguments, status, said):
    done = subprocess.run([sys.executable, "-m", "sluice", *arguments], capture_output=True, text=True)
    assert done.returncode == status
    assert said in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_commands_that_compute_use_one_thread_for_linear_algebra_unless_told_otherwise(monkeypatch):
    monkeypatch.delenv("OPENBLAS_NUM_THREADS", raising=False)
    context = click.Context(sluice)
    assert set(COMMANDS) > COMPUTING
    sluice.get_command(context, "worker")  # a model's own libraries may use as many as they like
    assert "OPENBLAS_NUM_THREADS" not in os.environ
    sluice.get_command(context, "smdp")
    assert os.environ["OPENBLAS_NUM_THREADS"] == "1"
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "2")
    sluice.get_command(context, "smdp")
    assert os.environ["OPENBLAS_NUM_THREADS"] == "2"


HELP = """
import contextlib, io, sys
from sluice.cli.main import LazyGroup, sluice
import click
for name in sys.argv[1:]:
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            sluice.main([name, "--help"])
        except SystemExit as ended:
            assert ended.code == 0, name
print(*sorted({name.partition(".")[0] for name in sys.modules}))
"""


def imported_for_the_help_of(*names):
    ran = subprocess.run([sys.executable, "-c", HELP, *names], capture_output=True, text=True, check=True)
    return set(ran.stdout.splitlines()[-1].split())


HEAVY = {"numba", "llvmlite", "scipy", "pyarrow", "pandas", "matplotlib", "jinja2"}


def test_light_commands_import_nothing_heavy():
    light = imported_for_the_help_of("new", "package", "plans", "serve", "worker")
    assert not light & (HEAVY | {"numpy", "boto3", "botocore", "aiohttp"})


def test_commands_that_compute_import_what_they_compute_with_when_they_do():
    assert not imported_for_the_help_of(*sorted(COMPUTING - {"control"}), "profile", "replay") & HEAVY
    assert not imported_for_the_help_of("--help") & (HEAVY | {"numpy", "msgspec.json", "asyncio"})


def test_the_version_is_that_of_the_package(exit_of):
    assert exit_of("--version") == (0, f"sluice, version {version(DISTRIBUTION)}\n", "")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_that_the_page_names_gets_its_completion(shell, exit_of, monkeypatch):
    assert f"{shell}_source" in (ROOT / "docs/command-line.md").read_text()
    monkeypatch.setenv("_SLUICE_COMPLETE", f"{shell}_source")
    if shell == "bash":  # click asks that for its version, and there may be none
        monkeypatch.setattr(BashComplete, "_check_version", lambda *_: None)
    code, out, _ = exit_of()
    assert code == 0 and f"_SLUICE_COMPLETE={shell}_complete" in out


def completed(monkeypatch, exit_of, *words):
    """What is offered for the last of these words."""
    monkeypatch.setenv("_SLUICE_COMPLETE", "bash_complete")
    monkeypatch.setenv("COMP_WORDS", " ".join(["sluice", *words]))
    monkeypatch.setenv("COMP_CWORD", str(len(words)))
    code, out, _ = exit_of()
    assert code == 0
    return [line.partition(",")[2] for line in out.splitlines()]


def test_commands_are_completed_without_importing_one(exit_of, monkeypatch):
    monkeypatch.setattr(LazyGroup, "get_command", None)
    assert completed(monkeypatch, exit_of, "") == list(COMMANDS)
    assert completed(monkeypatch, exit_of, "s") == ["smdp", "simulate", "serve", "status"]


def test_options_and_their_values_are_completed_too(exit_of, monkeypatch):
    assert completed(monkeypatch, exit_of, "--v") == ["--version"]
    assert completed(monkeypatch, exit_of, "serve", "--log") == ["--log-level", "--log-format"]
    assert completed(monkeypatch, exit_of, "serve", "--log-format", "j") == ["json"]
    assert completed(monkeypatch, exit_of, "plans", "p") == ["push"]
    for command in ("recommend", "predict", "simulate", "profile", "status"):
        assert completed(monkeypatch, exit_of, command, "--architecture", "") == list(ARCHITECTURES)
    for command in ("recommend", "predict", "simulate"):
        assert completed(monkeypatch, exit_of, command, "--stack", "") == ["nat", "lambda-endpoint", "endpoints", "public", "small"]
    policies = completed(monkeypatch, exit_of, "simulate", "--policy", "")
    assert policies[:2] == ["all", "control"] and policies[2:] == list(NAMES)
    assert completed(monkeypatch, exit_of, "simulate", "--policy", "re") == ["recommended", "reoptimised"]
    assert completed(monkeypatch, exit_of, "simulate", "--policy", "plans/") == ["plans/"]  # a file


def test_files_are_completed_by_the_shell_wherever_one_is_named(exit_of, monkeypatch):
    options = ("--arrivals", "--profile", "--sizes", "--worker", "--prices", "--out", "--report", "--trace", "--measured")
    asked = [["recommend", option] for option in options]
    asked += [["simulate", "--plot"], ["control", "--fleet"], ["fit"], ["fleet"], ["plans", "push"], ["package"], ["new", "--dir"]]
    monkeypatch.setenv("_SLUICE_COMPLETE", "bash_complete")
    for words in asked:
        monkeypatch.setenv("COMP_WORDS", " ".join(["sluice", *words, "p"]))
        monkeypatch.setenv("COMP_CWORD", str(len(words) + 1))
        assert exit_of() == (0, "file,p\n", ""), words
