"""`sluice compile`: what it asks, and that nothing is left to compile for those who ask next."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from sluice.cli.compile import QUESTIONS
from sluice.cli.main import COMPUTING, LazyGroup, sluice

INTERPRETED = {"control"}  # it asks the others, in processes of their own, and interprets the loops that it runs itself
OTHERS = """
import sys
from pathlib import Path
from sluice.cli.compile import _ask, _write_documents
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    _write_documents(folder)
    print(_ask(sys.stdin.read().splitlines(), str(folder)))
"""


def test_every_command_that_computes_is_asked_something_that_it_takes() -> None:
    above = click.Context(sluice, **sluice.context_settings)
    lines = [line for question in QUESTIONS for line in question]
    for line in lines:
        name, *arguments = line.split()
        command = LazyGroup().get_command(above, name)
        assert command is not None
        command.make_context(name, arguments, above)
    assert {line.split()[0] for line in lines} == COMPUTING - INTERPRETED - {"compile"}


def test_where_numba_compiles_nothing_it_says_so(
    exit_of: Callable[..., tuple[int, str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NUMBA_DISABLE_JIT", "1")
    code, _, stderr = exit_of("compile")
    assert code == 2 and "NUMBA_DISABLE_JIT: '1' is not allowed; allowed: 0, as with it nothing is compiled" in stderr


def test_it_says_how_many_functions_were_compiled_and_how_long_that_took(
    shown_by: Callable[..., str], document_of: Callable[..., dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["sluice.cli.compile"], "QUESTIONS", ())
    assert shown_by("compile") == "0 functions compiled in 0 s\n"
    document = document_of("compile")
    assert set(document) == {"version", "compiled", "seconds"} and document["compiled"] == 0


@pytest.mark.full
def test_after_it_the_commands_compile_nothing(tmp_path: Path) -> None:
    """By what is kept for all tests, where it was asked before them; else by what it keeps elsewhere, which takes a minute."""
    asked = (
        "recommend --poisson 200 --profile profile.json --slo p95=0.15 --slo p99=0.3",
        "recommend --mmpp2 500000,2,50,1 --profile profile.json --memory 1769 --slo 0.2",
        "predict --mmpp2 100,20,0.5,0.5 --profile profile.json --memory 512 -b 8 -t 0.1",
        "smdp --unit ms --service 1.0524,0.3051 --energy 19.603,19.899 --batch-max 32 --rho 0.9",
        "simulate --poisson 20 --profile profile.json --slo 0.3 --policy recommended --policy no-batching --requests 3000",
        "fit sizes.csv --column time",
    )
    (tmp_path / "asks.py").write_text(OTHERS)
    (tmp_path / "files").mkdir()

    def said(*arguments: str, **more: str) -> str:
        command = [sys.executable, *arguments]
        return subprocess.run(command, input="\n".join(asked), env=os.environ | more, capture_output=True, text=True).stdout

    others = str(tmp_path / "asks.py"), str(tmp_path / "files")
    if said(*others) != "0\n":
        elsewhere = {"NUMBA_CACHE_DIR": str(tmp_path / "kept")}
        assert " functions compiled in " in said("-m", "sluice", "compile", **elsewhere)
        assert said(*others, **elsewhere) == "0\n"
