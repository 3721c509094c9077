"""What the commands that go on until they are told to end have in common: how they log, and how they end."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import click
import pytest

from sluice.cli.main import ENDLESS, LazyGroup, sluice
from sluice.local import lambda_runtime
from tests.cli.conftest import Run

WRONG = {"serve": ["--plans", "nowhere"], "control": ["--lease", "0.1"], "worker": ["=x"]}
"""What each refuses once it logs."""


@pytest.mark.parametrize("name", sorted(ENDLESS))
def test_each_is_told_how_to_log_by_the_same_options(name: str) -> None:
    command = LazyGroup().get_command(click.Context(sluice), name)
    assert command is not None
    told = {option.opts[0]: option.type for option in command.params if option.opts[0].startswith("--log")}
    assert {name: list(kind.choices) for name, kind in told.items() if isinstance(kind, click.Choice)} == {
        "--log-level": ["debug", "info", "warning", "error"],
        "--log-format": ["text", "json"],
    }


@pytest.mark.parametrize("name", sorted(ENDLESS))
@pytest.mark.parametrize("variable", ["SLUICE_LOG_FORMAT", "SLUICE_LOG_LEVEL"])
def test_an_empty_variable_is_refused_by_each(name: str, variable: str, exit_of: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(variable, "")
    code, out, err = exit_of(name, *WRONG[name])
    assert (code, out) == (2, "") and err.startswith(f"sluice: {variable}: '' is not allowed; allowed: ")


@pytest.mark.parametrize("name", sorted(ENDLESS))
def test_an_option_wins_over_its_variable_and_becomes_it_for_what_is_started(
    name: str, exit_of: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLUICE_LOG_FORMAT", "text")
    code, _, err = exit_of(name, *WRONG[name], "--log-format", "json", "--log-level", "debug")
    told = json.loads(err)
    assert code == 2 and (told["level"], told["logger"]) == ("CRITICAL", "sluice")
    assert "is not allowed; allowed: " in told["message"]
    assert (os.environ["SLUICE_LOG_FORMAT"], os.environ["SLUICE_LOG_LEVEL"]) == ("json", "debug")


@pytest.mark.parametrize("name", sorted(ENDLESS))
def test_a_person_is_told_in_words(name: str, exit_of: Run) -> None:
    code, _, err = exit_of(name, *WRONG[name])
    assert code == 2 and err.startswith("sluice: ")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_is_told_to_end_while_it_is_imported_or_starts_is_done(
    number: signal.Signals, exit_of: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = signal.getsignal(number)

    def get_command(*_: object) -> None:
        signal.raise_signal(number)

    monkeypatch.setattr(LazyGroup, "get_command", get_command)
    assert exit_of("serve") == (0, "", "")
    assert signal.getsignal(number) is before


def test_what_answers_a_question_is_interrupted_as_anything_is(exit_of: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    met = []
    monkeypatch.setattr(LazyGroup, "get_command", lambda *_: met.append(signal.getsignal(signal.SIGTERM)))
    assert exit_of("fit")[0] == 2 and met == [signal.getsignal(signal.SIGTERM)]


def test_why_the_local_lambda_does_not_start(
    log_as_before: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["lambda_runtime", "no/such/file"])
    for form, said in (("json", "no/such/file: No such file or directory"), ("xml", "SLUICE_LOG_FORMAT: 'xml' is not allowed")):
        monkeypatch.setenv("SLUICE_LOG_FORMAT", form)
        with pytest.raises(SystemExit, match="2"):
            lambda_runtime.main()
        line = capsys.readouterr().err
        assert (json.loads(line)["message"] if form == "json" else line).find(said) >= 0


SLOW = """
import time
class Slow:
    name = "slow"
    def __init__(self):
        print("made", flush=True)
        time.sleep(600)
    def predict(self, inputs: list[float]) -> list[float]:
        return inputs
"""


@pytest.mark.full
@pytest.mark.parametrize(
    ("program", "model", "number"),
    [
        ("sluice worker", "slow.py:Slow", signal.SIGTERM),
        ("sluice worker", "named=slow.py:Slow", signal.SIGINT),
        ("sluice.lambda_fn.worker", "slow.py:Slow", signal.SIGINT),
        ("sluice.lambda_fn.worker", "named=slow.py:Slow", signal.SIGTERM),
        pytest.param("sluice worker", "slow.py:Slow", signal.SIGINT, marks=pytest.mark.proof),
        pytest.param("sluice worker", "named=slow.py:Slow", signal.SIGTERM, marks=pytest.mark.proof),
        pytest.param("sluice.lambda_fn.worker", "slow.py:Slow", signal.SIGTERM, marks=pytest.mark.proof),
        pytest.param("sluice.lambda_fn.worker", "named=slow.py:Slow", signal.SIGINT, marks=pytest.mark.proof),
    ],
)
def test_a_worker_that_is_told_to_end_while_a_model_is_loaded_leaves_nothing_behind(
    program: str, model: str, number: signal.Signals, tmp_path: Path
) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [sys.executable, "-m", *program.split(), model, "--port", "0"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=tmp_path, stdout=pipe, stderr=pipe, text=True, start_new_session=True) as worker:
        try:
            assert worker.stdout is not None and worker.stderr is not None
            assert worker.stdout.readline() == "made\n"  # by the process that computes
            worker.send_signal(number)
            assert (worker.stdout.read(), worker.stderr.read()) == ("", ""), "read to its end: nobody has it any more"
            assert worker.wait(60) == 0
        finally:
            worker.kill()
