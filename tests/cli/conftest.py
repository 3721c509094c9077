"""What the tests of the optimizer's commands share."""

from __future__ import annotations

import importlib
import json
import logging
import os
import pickle
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, write
from sluice.cli.main import main
from sluice.optimizer.arrivals.map import ArrivalProcess
from sluice.optimizer.billing.cold_starts import ColdStarts

Run = Callable[..., tuple[int, str, str]]
Document = Callable[..., dict[str, Any]]
Shown = Callable[..., str]
SEARCHES = (
    ("sluice.cli.recommend", "recommend"),
    ("sluice.cli.recommend_sizes", "recommend_classes"),
    ("sluice.cli.fleet", "plan_fleet"),
)


def _once(search: Callable[..., Any]) -> Callable[..., Any]:
    """A search that is made once for each question, whoever is told how far it is."""
    found: dict[bytes, Any] = {}

    def searched(*question: Any, **more: Any) -> Any:
        told = [value for value in question if not callable(value)], {k: v for k, v in more.items() if not callable(v)}
        key = pickle.dumps(told)
        if key not in found:
            found[key] = search(*question, **more)
        return found[key]

    return searched


_estimated: dict[tuple[object, ...], ColdStarts] = {}


def _estimated_once(arrivals: ArrivalProcess, *told: float) -> ColdStarts:
    """What is known of the cold starts of arrivals that another question had too."""
    return _estimated.setdefault((arrivals.D0.tobytes(), arrivals.D1.tobytes(), *told), ColdStarts(arrivals, *told))


@pytest.fixture(scope="module")
def searched_once() -> Iterator[None]:
    """For tests of what is asked and of how answers are told: what a question was answered in one test it is in the next.

    And a frontier has few points, each of which is a search of its own.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sluice.optimizer.recommend.comparisons.N_FRONTIER", 4)
        patch.setattr("sluice.optimizer.recommend.function_starts.ColdStarts", _estimated_once)
        for module, name in SEARCHES:
            owner = importlib.import_module(module)
            patch.setattr(owner, name, _once(getattr(owner, name)))
        yield


@pytest.fixture
def profile(tmp_path: Path) -> str:
    """A file: 6 ms and 1 ms a request at 1769 MB, in proportion at 512 MB, batches up to 8; INIT takes 0.4 s."""
    points = [
        ProfilePoint(m, b, ServiceTime((0.006 + 0.001 * b) * 1769 / m), (0.006 + 0.001 * b) * 1769 / m)
        for m in (512, 1769)
        for b in (1, 4, 8)
    ]
    init = {m: ServiceTime(0.4) for m in (512, 1769)}
    path = tmp_path / "profile.json"
    path.write_bytes(
        write(ServiceProfile(function="mlp-{memory_mb}", points=points, init=init, measured_at="2026-11-01T10:00:00Z"))
    )
    return str(path)


@pytest.fixture
def log_as_before() -> Iterator[None]:
    """What a command that logs does to its process ends with the test."""
    root = logging.getLogger()
    handlers, level, hooks = root.handlers[:], root.level, (sys.excepthook, threading.excepthook)
    with patch.dict(os.environ):
        yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)
    sys.excepthook, threading.excepthook = hooks


@pytest.fixture
def exit_of(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], log_as_before: None) -> Run:
    """Run `sluice` with arguments as the console does: exit code, stdout, stderr with its lines joined."""

    def run(*arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["sluice", *arguments])
        code = 0
        try:
            main()
        except SystemExit as caught:
            code = int(caught.code or 0)
        streams = capsys.readouterr()
        return code, streams.out, " ".join(streams.err.split())

    return run


@pytest.fixture
def shown_by(exit_of: Run) -> Shown:
    """Run `sluice` with arguments that it accepts: its stdout."""

    def run(*arguments: str) -> str:
        code, out, err = exit_of(*arguments)
        assert code == 0, err
        return out

    return run


@pytest.fixture
def document_of(shown_by: Shown) -> Document:
    """The same with `--json`: the one document on stdout."""

    def run(*arguments: str) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(shown_by(*arguments, "--json"))
        return document

    return run
