"""docs/stages.md: its programs are those of examples/stages, and print what it says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from sluice.lambda_fn.contract import Batch, Item, decode_answers, encode_batch
from sluice.lambda_fn.pipeline import errors
from sluice.local.parent_death import die_with_parent
from tests.processes import LONG, ended

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "stages.md").read_text()


@pytest.mark.parametrize("name", ["scale_and_shift", "digits"])
def test_a_program_of_the_page_prints_what_the_page_says(name: str) -> None:
    program = ROOT / "examples" / "stages" / f"{name}.py"
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    printed = subprocess.run(
        [sys.executable, program], capture_output=True, text=True, check=True, env=variables, timeout=LONG
    ).stdout
    assert printed == program.with_suffix(".out").read_text()
    assert f"```python\n{program.read_text()}```\n\n```text\n{printed}```\n" in PAGE


def test_the_page_names_every_error_of_a_pipeline() -> None:
    kinds = {kind.__name__ for kind in errors.PipelineError.__subclasses__() if kind.__module__ == errors.__name__}
    assert kinds <= set(re.findall(r"`([A-Z][A-Za-z]+)`", PAGE))


def test_the_page_serves_a_pipeline_whose_processes_die_and_end_with_the_worker() -> None:
    (line,) = re.findall(r"^(SLUICE_MODEL=\S+) python -m sluice.lambda_fn.worker --port 8500$", PAGE, re.M)
    variables = os.environ | {"PYTHONPATH": str(ROOT)} | dict([line.split("=")])
    (model, content_type, text) = re.findall(r"models/(\S+) -H 'content-type: (\S+)' -d (\S+)$", PAGE, re.M)[0]
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", "0"]
    batch = Batch(model, [Item("a", content_type, text.encode())])
    with subprocess.Popen(
        command, cwd=ROOT / "examples" / "stages", env=variables, stdout=subprocess.PIPE, text=True, preexec_fn=die_with_parent()
    ) as worker:
        try:
            assert worker.stdout is not None
            url = worker.stdout.readline().strip()
            (first,) = children(worker.pid)
            for _ in range(2):
                (answer,) = decode_answers(asked_again(url, encode_batch(batch)), batch)
                assert (answer.status, answer.body) == (200, b"one four four (3 digits)")
                if first in children(worker.pid):
                    os.kill(first, signal.SIGKILL)
            (second,) = children(worker.pid)
            assert second != first
        finally:
            worker.terminate()
            worker.wait()
    assert ended(second)


def asked_again(url: str, body: bytes) -> bytes:
    """The answer; while the model is loaded again the worker says 503, and when to ask again."""
    deadline = time.monotonic() + LONG
    while True:
        try:
            with urllib.request.urlopen(urllib.request.Request(url, body), timeout=LONG) as response:
                return bytes(response.read())
        except urllib.error.HTTPError as error:
            if error.code != 503 or "Retry-After" not in error.headers or time.monotonic() > deadline:
                raise
        time.sleep(0.02)


def children(pid: int) -> list[int]:
    return [int(child) for task in Path(f"/proc/{pid}/task").glob("*/children") for child in task.read_text().split()]
