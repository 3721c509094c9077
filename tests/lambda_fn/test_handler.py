"""The Lambda handler answers each request of a batch and reports in one line."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from types import ModuleType

import pytest

from sluice.lambda_fn import clock
from sluice.lambda_fn.contract import Batch, Item, WireError, decode_answers, encode_batch


@pytest.fixture(scope="module")
def handler_module() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SLUICE_MODEL_NAME", "echo")
        patch.setenv("SLUICE_SLEEPER_INTERCEPT", "0")
        sys.modules.pop("sluice.lambda_fn.handler", None)
        return importlib.import_module("sluice.lambda_fn.handler")


def test_every_request_is_answered_and_one_line_of_metrics_is_written(
    handler_module: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = Batch("echo", [Item("a", "application/json", b'{"x":1}'), Item("b", "text/plain", b"two")])
    answer = handler_module.handler(json.loads(encode_batch(batch)), None)
    document = answer if isinstance(answer, bytes) else json.dumps(answer, separators=(",", ":")).encode()
    assert [(a.status, a.body) for a in decode_answers(document, batch)] == [(200, b'{"x":1}'), (200, b"two")]
    (line,) = capsys.readouterr().out.splitlines()
    metrics = json.loads(line)
    assert (metrics["BatchSize"], metrics["ItemFailures"]) == ([2.0], [0.0])


def test_failed_items_are_counted_and_the_first_is_told(
    handler_module: ModuleType, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    batch = Batch("other", [Item("a", "text/plain", b""), Item("b", "text/plain", b"")])
    handler_module.handler(json.loads(encode_batch(batch)), None)
    out = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["ItemFailures"] for line in out if "ItemFailures" in line] == [[2.0]]
    (told,) = [vars(record) for record in caplog.records]
    assert (told["message"], told["failures"]) == ("items failed", 2) and "model: 'other' is not allowed" in told["first"]


def test_a_description_is_given_and_not_counted(handler_module: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    answer = handler_module.handler({"version": 1, "model": "echo", "describe": True}, None)
    document = json.loads(answer) if isinstance(answer, bytes) else answer
    assert document["metadata"]["name"] == "echo"
    assert capsys.readouterr().out == ""


def test_a_ping_is_answered_with_nothing_and_the_model_is_not_asked(
    handler_module: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_module, "model", None)
    batch = Batch("echo", [], ping=True)
    assert json.loads(encode_batch(batch)) == {"version": 1, "model": "echo", "ping": True}
    answer = handler_module.handler(json.loads(encode_batch(batch)), None)
    document = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
    assert decode_answers(document, batch) == [] and capsys.readouterr().out == ""


def test_a_ping_holds_its_environment_for_as_long_as_it_says(handler_module: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(clock, "sleep", slept.append)
    handler_module.handler(json.loads(encode_batch(Batch("echo", [], ping=True, hold=0.25))), None)
    assert slept == [0.25]
    for hold in (-0.1, 1.5):
        with pytest.raises(WireError, match=f"hold: {hold} is not allowed; allowed: seconds from 0 to 1"):
            handler_module.handler({"version": 1, "model": "echo", "ping": True, "hold": hold}, None)


def test_a_model_that_says_it_cannot_serve_any_more_is_not_described(
    handler_module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handler_module.model.model, "broken", "the GPU has gone", raising=False)
    with pytest.raises(RuntimeError, match="the GPU has gone"):
        handler_module.handler({"version": 1, "model": "echo", "describe": True}, None)


def test_an_event_that_is_no_batch_fails_the_invocation(handler_module: ModuleType) -> None:
    with pytest.raises(WireError, match="not a batch"):
        handler_module.handler({"hello": "world"}, None)


def test_the_package_stands_alone_and_a_sleeper_starts_without_numpy() -> None:
    program = (
        "import sys; import sluice.lambda_fn.handler;"
        "heavy = {'numpy', 'onnxruntime', 'PIL', 'boto3', 'sluice.buffer_service', 'sluice.local', 'sluice.optimizer'};"
        "print(sorted(heavy & sys.modules.keys()))"
    )
    environment = {
        "SLUICE_MODEL_NAME": "echo",
        "SLUICE_SLEEPER_SLOPE": "0",
        "PYTHONPATH": ":".join(path for path in sys.path if path),
    }
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
