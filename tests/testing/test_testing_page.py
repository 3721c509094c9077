"""docs/testing.md: its tests pass."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sluice.testing import sluice_account, sluice_buffer, sluice_lambda  # noqa: F401

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text(encoding="utf-8")
BLOCKS = [block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "def test_" in block]
SLOW = ("sluice_lambda", "sluice_account")  # a process of Python, moto


def of_the_page() -> list[Any]:
    found = []
    for block in BLOCKS:
        for name in re.findall(r"^def (test_\w+)", block, re.MULTILINE):
            slow = any(fixture in block for fixture in SLOW)
            found.append(pytest.param(block, name, id=name, marks=[pytest.mark.full] if slow else []))
    return found


@pytest.mark.parametrize(("block", "name"), of_the_page())
def test_a_test_of_the_page_passes(block: str, name: str, request: pytest.FixtureRequest) -> None:
    room: dict[str, Any] = {}
    exec(compile(block, "docs/testing.md", "exec"), room)
    test: Callable[..., None] = room[name]
    test(**{fixture: request.getfixturevalue(fixture) for fixture in inspect.signature(test).parameters})


@pytest.mark.full
def test_the_first_block_passes_beside_the_conftest_of_the_page(tmp_path: Path) -> None:
    (conftest,) = re.findall(r"```python\n(pytest_plugins.*?)```", PAGE, re.DOTALL)
    (tmp_path / "conftest.py").write_text(conftest)
    (tmp_path / "test_doubler.py").write_text(BLOCKS[0])
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4 passed" in done.stdout
