"""The images of the buffer and of control: there is no docker here, so what can be known of their recipe without it."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECIPE = (ROOT / "buffer_service" / "Dockerfile").read_text()
EXTRAS = {"buffer": ("serve", "jwt"), "control": ("serve", "optimizer")}


def stage(name: str) -> str:
    """The lines of a stage and of the one that it begins with."""
    stages = dict(re.findall(r"^FROM \S+ AS (\w+)\n(.*?)(?=^FROM|\Z)", RECIPE, re.M | re.S))
    return f"{stages['base']}{stages[name]}"


@pytest.mark.parametrize("name", EXTRAS)
def test_what_an_image_copies_is_there_and_it_runs_as_nobody(name: str) -> None:
    lines = stage(name)
    copied = [source for sources in re.findall(r"^COPY (.*) \S+$", lines, re.M) for source in sources.split()]
    assert copied and all((ROOT / source).exists() for source in copied)
    assert lines.rstrip().splitlines()[-1].startswith("CMD") and "USER nobody" in lines
    assert ("optimizer" in copied) == (name == "control")
    assert RECIPE.rindex(" AS buffer") > RECIPE.rindex(" AS control")  # what is built where no target is named


@pytest.mark.parametrize(("name", "extras"), EXTRAS.items())
def test_an_image_has_the_libraries_of_what_it_runs_with_their_hashes(name: str, extras: tuple[str, ...]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *(line for extra in extras for line in project["optional-dependencies"][extra])]
    wanted = {match[0] for line in asked if (match := re.match(r"[\w-]+", line))} | {"setuptools"}
    locked = set(re.findall(r"^([\w-]+)==", (ROOT / "requirements" / f"{name}.txt").read_text(), re.M))
    assert wanted <= locked
    assert f"--require-hashes -r {name}.txt" in stage(name)


NO_OPTIMIZER = """
import importlib.abc, sys

class Absent(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "sluice.optimizer":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
from sluice.cli.main import main
sys.argv = ["sluice", *sys.argv[1:]]
main()
"""


@pytest.mark.parametrize("command", ["fit", "control"])
def test_a_command_of_which_the_buffers_image_has_no_code_says_where_it_is(command: str) -> None:
    """A module of ours that is not there, as the image of the buffer is without the optimizer."""
    done = subprocess.run([sys.executable, "-c", NO_OPTIMIZER, command, "--help"], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, "Traceback" in done.stderr) == (2, False), done.stderr
    assert f"{command} needs sluice.optimizer, which is not here" in done.stderr and "--target control" in done.stderr
