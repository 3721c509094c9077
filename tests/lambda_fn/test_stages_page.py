"""docs/stages.md: its programs are those of examples/stages, and print what it says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sluice.lambda_fn.pipeline import errors

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "stages.md").read_text()


@pytest.mark.parametrize("name", ["scale_and_shift", "digits"])
def test_a_program_of_the_page_prints_what_the_page_says(name: str) -> None:
    program = ROOT / "examples" / "stages" / f"{name}.py"
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    printed = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=True, env=variables, timeout=60
    ).stdout
    assert printed == program.with_suffix(".out").read_text()
    assert f"```python\n{program.read_text()}```\n\n```text\n{printed}```\n" in PAGE


def test_the_page_names_every_error_of_a_pipeline() -> None:
    kinds = {kind.__name__ for kind in errors.PipelineError.__subclasses__() if kind.__module__ == errors.__name__}
    assert kinds <= set(re.findall(r"`([A-Z][A-Za-z]+)`", PAGE))
