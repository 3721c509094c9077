"""`sluice worker` serves what it is given or what the environment says, and names what is not allowed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluice.local.networks import make_mlp
from tests.cli.conftest import Run

MODEL = """
class Doubler:
    name = "doubler"

    def predict(self, inputs: list[float]) -> list[float]:
        return [2 * x for x in inputs]
"""


@contextmanager
def started(folder: Path, *arguments: str, **variables: str) -> Iterator[str]:
    """The command in this folder, and its URL."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SLUICE_")} | variables
    command = [sys.executable, "-m", "sluice.cli.main", "worker", *arguments, "--port", "0"]
    worker = subprocess.Popen(command, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert worker.stdout is not None
        yield worker.stdout.readline().strip()
        worker.terminate()
        assert worker.wait(20) == 0
    finally:
        worker.kill()
        worker.wait()
        assert worker.stdout is not None
        worker.stdout.close()


def ask(url: str, body: bytes | None = None) -> object:
    request = urllib.request.Request(url, body, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=20) as answer:
        return json.load(answer)


def test_several_models_are_served_by_the_names_they_are_given_and_one_is_loaded_later(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(make_mlp(widths=(4, 3)).SerializeToString())
    (tmp_path / "code.py").write_text(MODEL)
    arguments = ["net.onnx", "twice=code.py:Doubler", "late=code.py:Doubler", "--unloaded", "late", "--executions", "2"]
    with started(tmp_path, *arguments) as url:
        states = {entry["name"]: entry["state"] for entry in ask(f"{url}/v2/repository/index", b"")}  # type: ignore[attr-defined]
        assert states == {"net": "READY", "twice": "READY", "late": "UNAVAILABLE"}
        assert ask(f"{url}/models/twice", b"21") == 42
        assert ask(f"{url}/v2/repository/models/late/load", b"") == {}
        assert ask(f"{url}/models/late", b"1.5") == 3.0


def test_without_a_model_the_environment_says_what_is_served(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text(MODEL)
    with started(tmp_path, SLUICE_MODEL="code.py:Doubler") as url:
        assert ask(f"{url}/models/doubler", b"4") == 8


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.onnx"], "model: 'none.onnx' is not a file; allowed: the path of an ONNX network"),
        (["code.py:Missing"], "Missing"),
        (["a=none.onnx", "a=none.onnx"], "model: 'a' is not allowed; allowed: each name once; NAME=SPEC gives another"),
        (["a=none.onnx", "--unloaded", "b"], "unloaded: 'b' is not allowed; allowed: one of a"),
        (["a=none.onnx", "--queue", "0"], "--queue (SLUICE_QUEUE): 0 is not allowed; allowed: an integer from 1 to 1000000"),
        (["a=none.onnx", "--wait", "-1"], "--wait (SLUICE_WAIT): -1.0 is not allowed; allowed: seconds from 0 to 60"),
        (["a=none.onnx", "--host", "203.0.113.1"], "host, port: ('203.0.113.1', 0) is not allowed; allowed: an address of this"),
        ([], "SLUICE_MODEL: not set; allowed: package.module:Class, file.py:Class or network.onnx"),
    ],
)
def test_what_cannot_be_served_ends_it_with_the_reason(
    exit_of: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "code.py").write_text(MODEL)
    code, out, err = exit_of("worker", *arguments, "--port", "0")
    assert (code, out) == (2, "")
    assert said in err


def test_a_setting_that_is_misspelt_is_told_of(exit_of: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SLUICE_TIME_OUT", "SLUICE_REQUEST_TIMEOUT"):  # this one is the buffer's
        monkeypatch.setenv(name, "1")
    _, _, err = exit_of("worker", "a=none.onnx", "--port", "0")
    assert "SLUICE_TIME_OUT is no setting of a worker and changes nothing; is SLUICE_TIMEOUT meant?" in err
    assert "SLUICE_REQUEST_TIMEOUT" not in err
