"""Every benchmark is reached by its name, and runs."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS, BY_NAME, IN_TURN, run
from benchmarks.one_core import ONE_CORE, on_one_core
from benchmarks.smoke import VARIABLE, usually

ROOT = Path(__file__).parents[2]
ALONE = {"peers", "pipeline", "worker"}
"""Beside these stand others, which a smoke run does not install from the registry: it says so, and runs ours alone."""


def test_every_module_with_a_main_is_reached_by_its_name() -> None:
    modules = {path.stem for path in (ROOT / "benchmarks").glob("*.py") if re.search(r"^def main\(", path.read_text(), re.M)}
    assert sorted(BENCHMARKS) == sorted(modules) and set(IN_TURN) < set(BENCHMARKS)


def test_options_that_follow_a_name_are_those_that_a_benchmark_reads() -> None:
    for name in BENCHMARKS:
        reads = re.findall(r"parse_args\((.*?)\)", (ROOT / "benchmarks" / f"{name}.py").read_text())
        assert set(reads) <= {""}, name  # of the command line, as `run` leaves it


def test_pages_name_benchmarks_that_there_are() -> None:
    named = {
        name
        for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
        for name in re.findall(r"python -m benchmarks[ .](?:--smoke )?([a-z_]+)", page.read_text())
    }
    assert len(named) > 10 and named <= set(BENCHMARKS)


def test_options_that_pages_give_a_benchmark_are_its_own() -> None:
    given = {
        (name, option)
        for page in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
        for name, options in re.findall(r"python -m benchmarks[ .]([a-z_]+)([^`]*)`", page.read_text())
        for option in re.findall(r"--[a-z-]+", options)
    }
    has = {name: (ROOT / "benchmarks" / f"{name}.py").read_text() for name in BENCHMARKS}
    assert len(given) > 5 and {each for each in given if f'"{each[1]}"' not in has[each[0]]} == set()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["nothing"], "benchmark: 'nothing' is not allowed; allowed: buffer_throughput, "),
        (["overlod", "--redis"], "'overlod' is not allowed; allowed: .*; did you mean overload?"),
        (["--smok", "smdp"], "'--smok' is not allowed; allowed: .*; did you mean --smoke?"),
        (["smdp", "overload", "--redis"], "benchmark: 'smdp' is not allowed; allowed: options of one benchmark alone"),
    ],
)
def test_a_mistake_is_refused_as_misuse_with_what_to_write_instead(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.import_module", lambda name: pytest.fail(f"{name} was run"))
    monkeypatch.setenv(VARIABLE, "")  # which --smoke sets
    with pytest.raises(SystemExit) as refused:
        run(words)
    assert refused.value.code == 2 and re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("soak --minutes -3", "argument --minutes: '-3' is not allowed; allowed: a whole number >= 1"),
        ("bodies abc", "argument seconds: 'abc' is not allowed; allowed: a number > 0"),
        ("throttling --seconds 0", "argument --seconds: '0' is not allowed; allowed: a number > 0"),
        ("flood --seconds inf", "argument --seconds: 'inf' is not allowed; allowed: a number > 0"),
        ("control_day --rate nan", "argument --rate: 'nan' is not allowed; allowed: a number > 0"),
        ("deployed none.csv --sleeper", "argument traces: 'none.csv' is not allowed; allowed: a file that exists"),
        ("change_tests rates", "argument tests: 'rates' is not allowed; allowed: rate, burstiness, promise, service"),
    ],
)
def test_what_a_benchmark_cannot_measure_by_is_refused_before_it_starts(
    line: str, said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", sys.argv)  # which `run` replaces
    with pytest.raises(SystemExit) as refused:
        run(line.split())
    assert refused.value.code == 2 and said in capsys.readouterr().err


def test_what_a_benchmark_reads_of_the_command_line_it_reads_by_argparse() -> None:
    for name in BENCHMARKS:
        text = (ROOT / "benchmarks" / f"{name}.py").read_text()
        main = text[text.index("def main(") :].partition("__name__ ==")[0]
        assert "argv" not in main and ("parse_args()" in main) == ("import argparse" in text), name


@pytest.mark.parametrize("name", ["smdp", "bodies", "arrival_fits"])
def test_a_benchmark_says_what_it_measures_and_refuses_what_it_does_not_read(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    benchmark = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", sys.argv)  # which `run` replaces
    with pytest.raises(SystemExit) as ended:
        run([name, "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and benchmark.__doc__ and said.startswith(benchmark.__doc__)
    assert f"usage: python -m benchmarks {name}" in said
    with pytest.raises(SystemExit) as ended:
        run([name, "--nothing"])
    assert ended.value.code == 2 and "unrecognized arguments: --nothing" in capsys.readouterr().err


def test_help_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    run(["--help"])
    assert set(BENCHMARKS) <= set(re.findall(r"[a-z_]+", capsys.readouterr().out))


def test_a_smoke_run_does_less(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)
    assert usually(5, smoke=1) == 5
    monkeypatch.setenv(VARIABLE, "1")
    assert usually(5, smoke=1) == 1


def test_where_a_process_has_more_than_one_core_another_measures(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr("subprocess.run", lambda command, env, check: started.append((command, env)))
    for name in ONE_CORE:
        monkeypatch.delenv(name, raising=False)
    on_one_core("smdp", lambda: pytest.fail("here"))
    ((command, told),) = started
    assert command == [sys.executable, "-m", "benchmarks.smdp"] and ONE_CORE.items() <= told.items()
    here: list[str] = []
    for name, value in ONE_CORE.items():
        monkeypatch.setenv(name, value)
    on_one_core("smdp", lambda: here.append("measured"))
    assert here == ["measured"] and len(started) == 1


FORKED = """
import importlib, os, sys
from benchmarks.__main__ import run
folder, *names = sys.argv[1:]
for name in names:
    importlib.import_module(f"benchmarks.{name}")
for name in names:
    child = os.fork()
    if not child:
        for descriptor, end in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{folder}/{name}.{end}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), descriptor)
        run(["--smoke", name])
        sys.exit()
    print(name, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""Each in a process of its own, forked from one that has imported them all: many take less than their imports."""


@pytest.mark.parametrize(
    "names",
    [pytest.param(IN_TURN, marks=pytest.mark.full, id="in turn"), pytest.param(BY_NAME, marks=pytest.mark.proof, id="by name")],
)
def test_every_benchmark_runs_through(names: tuple[str, ...], tmp_path: Path) -> None:
    """One after the other, as some listen at ports of their own, and in one test, for others would only wait for it.

    Where other work takes the cores for a moment, one that lives on what it measured may end with that; it does not twice.
    """
    wrong = dict.fromkeys(names, "")
    for _ in range(2):
        wrong = _smoke(tuple(wrong), tmp_path)
        if not wrong:
            return
    pytest.fail("\n".join(f"{name}: {said}" for name, said in wrong.items()))


def _smoke(names: tuple[str, ...], folder: Path) -> dict[str, str]:
    """What is wrong with which of these."""
    command = [sys.executable, "-c", FORKED, str(folder), *names]
    told = os.environ | ONE_CORE | {"COLUMNS": "150", "SLUICE_LEAVE_DELAY": "0", VARIABLE: "1"}
    ran = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, timeout=900)
    ended = dict(line.split() for line in ran.stdout.splitlines())
    assert tuple(ended) == names, ran.stderr
    return {name: said for name in names if (said := _what_is_wrong_with(name, ended[name], folder))}


def _what_is_wrong_with(name: str, code: str, folder: Path) -> str:
    out, err = ((folder / f"{name}.{end}").read_text() for end in ("out", "err"))
    if code != "0":
        return err or f"exit code {code}"
    if not out.strip():
        return "it says nothing"
    said = name not in ALONE or re.search("not measured|measured alone", err)
    return "" if said else "it does not say that it was measured alone"
