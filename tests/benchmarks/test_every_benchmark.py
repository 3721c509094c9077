"""Every benchmark is reached by its name, and runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, IN_TURN, run
from benchmarks.smoke import VARIABLE, usually

ROOT = Path(__file__).parents[2]
ALONE = {"peers", "pipeline", "worker"}
"""Beside these stand others, which a smoke run does not install from the registry: it says so, and runs ours alone."""


def test_every_module_with_a_main_is_reached_by_its_name() -> None:
    modules = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if re.search(r"^def main\(", path.read_text(), re.M)}
    assert sorted(BENCHMARKS) == sorted(modules) and set(IN_TURN) < set(BENCHMARKS)


def test_pages_name_benchmarks_that_there_are() -> None:
    named = {
        name
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for name in re.findall(r"python -m benchmarks[ .](?:--smoke )?([a-z_]+)", page.read_text())
    }
    assert len(named) > 10 and named <= set(BENCHMARKS)


def test_a_name_that_is_none_and_options_for_several_are_refused() -> None:
    with pytest.raises(SystemExit, match="benchmark: 'nothing' is not allowed; allowed: buffer_throughput, "):
        run(["nothing"])
    with pytest.raises(SystemExit, match="benchmark: 'smdp' is not allowed; allowed: options of one benchmark alone"):
        run(["smdp", "overload", "--redis"])


def test_a_smoke_run_does_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert usually(5, smoke=1) == 5
    monkeypatch.setenv(VARIABLE, "1")
    assert usually(5, smoke=1) == 1


@pytest.mark.full
def test_every_benchmark_runs_through() -> None:
    """One after the other, as some listen at ports of their own, and in one test, for others would only wait for it."""
    wrong = {name: said for name in BENCHMARKS if (said := _what_is_wrong_with(name))}
    assert wrong == {}


def _what_is_wrong_with(name: str) -> str:
    command = [sys.executable, "-m", "benchmarks", "--smoke", name]
    ran = subprocess.run(command, cwd=ROOT, env=os.environ | {"COLUMNS": "150"}, capture_output=True, text=True, timeout=300)
    if ran.returncode != 0:
        return ran.stderr or f"exit code {ran.returncode}"
    if not ran.stdout.strip():
        return "it says nothing"
    said = name not in ALONE or re.search("not measured|measured alone", ran.stderr)
    return "" if said else "it does not say that it was measured alone"
