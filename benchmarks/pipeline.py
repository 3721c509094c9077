"""A pipeline of three stages beside the same in mpservice, alternately in one run: throughput, and latency at 30 % load.

mpservice is no dependency: it and numpy are installed into ``.venv-mpservice`` the first time, and both run there. Where it cannot
be installed, that is said, and the pipeline is measured alone. Throughput is of 128 callers; the load of 30 % is that of the slower
of the two. Every other round has the reverse order, and the median of the ratios within a round is printed, with the quartiles: on
a machine that others use, rounds differ by more than the two do.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.smoke import usually

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / ".venv-mpservice"
ROUNDS = usually(5, smoke=1)
SECONDS = usually(3.0, smoke=0.1)  # of a run
LOAD = 0.3
LINES = (
    ("items/s", "full", "items_per_second", 0),
    ("CPU us per item", "full", "cpu_us", 0),
    ("p50 ms at 30 % load", "part", "p50_ms", 2),
    ("p99 ms at 30 % load", "part", "p99_ms", 2),
    ("failures at 30 % load", "part", "failures", 0),
)


def main() -> None:
    """Measure ``ROUNDS`` times each and print medians, with the least and the most beside them, and the ratio."""
    python, kinds = environment()
    full: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    part: dict[str, list[dict[str, float]]] = {kind: [] for kind in kinds}
    for number in range(ROUNDS):
        for kind in kinds if number % 2 == 0 else kinds[::-1]:
            full[kind].append(run(python, kind))
    rate = LOAD * min(statistics.median(r["items_per_second"] for r in full[kind]) for kind in kinds)
    for number in range(ROUNDS):
        for kind in kinds if number % 2 == 0 else kinds[::-1]:
            part[kind].append(run(python, kind, "--rate", str(rate)))
    table = Table(title=f"decode, network (batches of 32, 2 ms), postprocess: one process each; median of {ROUNDS} (least to most)")
    for name in ("", *kinds, *(f"{kinds[0]} / {other}" for other in kinds[1:])):
        table.add_column(name, justify="right" if name else "left")
    for name, load, key, digits in LINES:
        cells = []
        runs = {kind: [r[key] for r in (full if load == "full" else part)[kind]] for kind in kinds}
        for values in runs.values():
            cells.append(f"{statistics.median(values):.{digits}f} ({min(values):.{digits}f} to {max(values):.{digits}f})")
        for other in kinds[1:]:
            pairs = list(zip(runs[kinds[0]], runs[other], strict=True))
            cells.append(ratio(pairs) if all(theirs for _, theirs in pairs) else "")
        table.add_row(name, *cells)
    Console(width=132).print(table)


def ratio(pairs: list[tuple[float, float]]) -> str:
    """Of the first to the second, round by round."""
    low, middle, high = statistics.quantiles((ours / theirs for ours, theirs in pairs), n=4)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def environment() -> tuple[str, list[str]]:
    """The Python that both run with, and who runs."""
    if usually(False, smoke=True):
        print("mpservice: not installed for a smoke run; the pipeline is measured alone", file=sys.stderr)
        return sys.executable, ["sluice"]
    python = ENVIRONMENT / "bin" / "python"
    installed = [str(python), "-c", "import mpservice.mpserver, numpy"]
    try:
        if not python.exists() or subprocess.run(installed, capture_output=True).returncode != 0:
            subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--clear", str(ENVIRONMENT)], check=True)
            install = [
                "-m",
                "pip",
                "--python",
                str(python),
                "install",
                "--quiet",
                "--disable-pip-version-check",
                "mpservice",
                "numpy",
            ]
            subprocess.run([os.environ.get("PYTHON", "python3"), *install], check=True)
            subprocess.run(installed, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"mpservice: it is absent and cannot be installed ({error}); the pipeline is measured alone", file=sys.stderr)
        return sys.executable, ["sluice"]
    return str(python), ["sluice", "mpservice"]


def run(python: str, kind: str, *options: str) -> dict[str, float]:
    """One run in a process of its own."""
    command = [python, "-m", "benchmarks.pipeline_run", kind, "--seconds", str(SECONDS), *options]
    variables = os.environ | {"OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT, env=variables).stdout)
    return result
