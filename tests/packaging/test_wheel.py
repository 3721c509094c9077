"""The wheel, installed where nothing else is."""

import ast
import itertools
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from sluice.cli.main import COMMANDS

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
PACKAGED = ("sluice", "buffer_service", "lambda_fn", "optimizer", "profiler")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
NOT_CODE = ("Dockerfile",)  # beside the code for who builds the image of the buffer
BASE = (
    "click",
    "msgspec",
    "rich",
    "markdown_it",
    "mdurl",
    "pygments",
    "yaml",
    "_yaml",
)  # what pip installs without an extra, and what that needs
IMPORTED_AS = {
    "pyyaml": "yaml",
    "prometheus-client": "prometheus_client",
    "async-timeout": "",
    "setuptools": "",
    "nvidia-ml-py": "pynvml",
    "opentelemetry-sdk": "opentelemetry",
    "opentelemetry-exporter-otlp-proto-http": "opentelemetry",
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """Built from a copy, so that neither what an earlier build left here comes in nor anything stays."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in PACKAGED:
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    for name in ("pyproject.toml", "README.md", "LICENSE", "template.yaml"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run([*pip, "--wheel-dir", str(out), str(source)], check=True, capture_output=True)
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def bare(wheel, tmp_path_factory):
    """An environment that holds the wheel, and of the libraries those that are installed with it."""
    path, libraries = tmp_path_factory.mktemp("bare"), tmp_path_factory.mktemp("libraries")
    for name in BASE:
        (libraries / name).symlink_to(Path(sysconfig.get_path("purelib")) / name)
    venv.create(path, with_pip=False)
    python = path / "bin" / "python"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(python), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-compile", str(wheel)], check=True, capture_output=True)
    (site,) = path.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(f"{libraries}\n")
    return path


def run(path, *arguments, **told):
    """``told`` is what the environment says beside what it says here."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | told
    return subprocess.run([*map(str, arguments)], cwd=path, env=inherited, capture_output=True, text=True, timeout=120)


EVERY_LIBRARY = {"PYTHONPATH": sysconfig.get_path("purelib")}  # of which the wheel is none, as it is not installed there but linked


def test_it_installs_one_package_with_every_file_of_it(wheel):
    held = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert {name.partition("/")[0] for name in held} == {"sluice"}
    listed = subprocess.run(["git", "ls-files", *PACKAGED], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    files = {name if name.startswith("sluice/") else f"sluice/{name}" for name in listed}
    links = {f"sluice/{name}" for name in PACKAGED[1:]}
    assert held == {name for name in files - links if Path(name).name not in NOT_CODE}


def test_every_command_is_there(bare):
    done = run(bare, bare / "bin" / "sluice", "--help", **EVERY_LIBRARY)
    assert done.returncode == 0
    assert set(re.findall(r"^  (\w+) ", done.stdout, re.MULTILINE)) >= set(COMMANDS)
    load = "import click, sluice; from sluice.cli.main import COMMANDS, LazyGroup, sluice as group; print(sluice.__file__)\n"
    load += "print(*(LazyGroup().get_command(click.Context(group), name).name for name in COMMANDS))"
    done = run(bare, bare / "bin" / "python", "-c", load, **EVERY_LIBRARY)
    assert done.returncode == 0, done.stderr
    where, names = done.stdout.splitlines()
    assert Path(where).is_relative_to(bare)
    assert len(names.split()) == len(COMMANDS)


def test_the_demo_finds_its_trace_from_any_folder(bare):
    read = "from sluice.local.demo import Demo\nfrom sluice.optimizer.traces.trace import read_trace\n"
    read += "print(len(read_trace(Demo().trace)))"
    done = run(bare, bare / "bin" / "python", "-c", read, **EVERY_LIBRARY)
    assert done.stdout.strip().isdecimal(), done.stderr


@pytest.mark.parametrize("name", [name for name, (_, extras, _) in COMMANDS.items() if extras])
def test_a_command_whose_libraries_are_missing_says_what_to_install(bare, name):
    arguments = [] if name == "serve" else ["--help"]  # whose help needs none
    done = run(bare, bare / "bin" / "sluice", name, *arguments)
    assert done.returncode == 2
    assert f"{name} needs a library that is not installed" in done.stderr
    assert f'pip install "sluice-batching[{COMMANDS[name][1]}]"' in done.stderr


def test_a_project_is_laid_out_and_packaged_without_any_extra(bare, tmp_path):
    done = run(bare, bare / "bin" / "sluice", "new", "iris", "--dir", tmp_path)
    assert done.returncode == 0, done.stderr
    done = run(bare, bare / "bin" / "sluice", "package", tmp_path / "iris")
    assert "pip" in done.stderr and done.returncode == 2  # the environment has none; everything else was there
    assert (tmp_path / "iris" / "build" / "function" / "sluice" / "lambda_fn" / "handler.py").exists()


def declared(*extras):
    """The names that the dependencies of some extras are imported by."""
    requirements = PROJECT["dependencies"] + [r for extra in extras for r in PROJECT["optional-dependencies"][extra]]
    names = {re.match(r"[\w-]+", requirement)[0] for requirement in requirements}
    return {IMPORTED_AS.get(name, name.replace("-", "_")) for name in names} - {""}


def imported(folder):
    """The libraries that the modules of a folder import, on top or within a function."""
    found = set()
    for path in (ROOT / folder).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.partition(".")[0])
    return found - set(sys.stdlib_module_names) - {"sluice"}


@pytest.mark.parametrize("named", sorted({extras for _, extras, _ in COMMANDS.values()}))
def test_the_commands_start_with_the_libraries_of_the_extras_that_they_name(named):
    """A library that only another extra declares is not there for them."""
    extras = ["serve", "worker", "optimizer", "local"]
    own = extras if named == "all" else [extra for extra in named.split(",") if extra]
    missing = sorted(declared(*extras) - declared(*own))
    start = f"import sys\nsys.modules.update(dict.fromkeys({missing}))\n"
    start += "from sluice.cli.main import sluice\n"
    commands = [name for name, (_, of_command, _) in COMMANDS.items() if of_command == named]
    start += f"for name in {commands}: sluice([name, '--help'], standalone_mode=False)"
    done = run(ROOT, sys.executable, "-c", start)
    assert done.returncode == 0, done.stderr
    assert [done.stdout.count(f"Usage: -c {name} ") for name in commands] == [1] * len(commands)


BROUGHT = {"botocore", "hiredis", "llvmlite", "markupsafe", "PIL"}
"""Parts of boto3, redis, numba and jinja2; and what a model of images brings itself."""


@pytest.mark.parametrize(
    ("folder", "extras"),
    [
        ("sluice/batching", []),
        ("sluice/http", ["worker"]),
        ("sluice/packaging", []),
        ("buffer_service", ["serve", "jwt", "otel"]),
        ("optimizer", ["optimizer"]),
        ("profiler", ["optimizer"]),
        ("sluice/cli", ["serve", "optimizer"]),
        ("lambda_fn", ["worker", "energy", "optimizer", "local"]),
        ("sluice/local", ["serve", "optimizer", "local"]),
        ("sluice/testing", ["serve", "local", "testing"]),
    ],
)
def test_a_room_imports_what_its_extra_declares(folder, extras):
    assert imported(folder) - BROUGHT <= declared(*extras)


def test_every_dependency_is_bounded():
    extras = {name: r for name, r in PROJECT["optional-dependencies"].items() if name not in ("all", "dev")}
    for requirement in [*PROJECT["dependencies"], *itertools.chain(*extras.values())]:
        assert ">=" in requirement, requirement
        assert "<" in requirement or requirement.startswith("setuptools"), requirement
