"""`sluice compile`: the optimizer's machine code made before it is asked for, as after an installation or in an image.

Loops are compiled for the kinds of arguments they are called with. So small questions are asked of the commands themselves, and
code is made for what real ones need; what no question here comes to is compiled when it is first called, as ever.
"""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import click
import numpy as np

from sluice.batching.documents import ProfilePoint, ServiceProfile, ServiceTime, write
from sluice.batching.errors import InvalidInput
from sluice.optimizer.arrivals import mmpp2

from .output import json_option, print_json

MEMORY_SIZES, BATCH_SIZES, SIZES = (512, 1769), (1, 4, 8), (8.0, 64.0)
SPREAD = [(0.05, 0.93), (0.25, 0.96), (0.5, 0.99), (0.75, 1.02), (0.95, 1.1), (0.99, 1.3)]

FLEET = """
devices: {cpu: {count: 3, memory_mb: 4000}}
families:
  a:
    slo: 0.3
    variants:
      small: {accuracy: 70, profiles: {cpu: {1: 0.02, 4: 0.07}}}
      large: {accuracy: 78, profiles: {cpu: {1: 0.1}}}
  b:
    slo: 0.5
    variants:
      only: {accuracy: 80, profiles: {cpu: {intercept: 0.004, slope: 0.002, max_batch: 8}}}
demand: {a: 20, b: 10}
"""

SERVED = "--profile profile.json --memory 1769"
SIZED = "--profile sized.json --sizes sizes.csv --size-column tokens"
SERVER = "smdp --service 0.001,0.0005 --energy 1,0.1 --batch-max 4 --max-seconds 600"  # the compilation is within these
CLASSES = "--class a:50 --class b:5"
QUESTIONS: tuple[tuple[str, ...], ...] = (
    # Those that take long first, and those that share much code far from each other, for they are asked side by side.
    (f"simulate --trace trace.csv {SERVED} --slo 0.3 --policy all",),
    (f"{SERVER} --rho 0.5 --distribution erlang:3 --slo p95=0.02", f"{SERVER} --rho 0.5 --servers 2"),
    (f"recommend --poisson 50 {SIZED} --slo 0.3 --trace sizes.csv",),
    (
        f"{SERVER} --mmpp2 300,40,2,2 --w1 1000 --out tables.json",
        f"simulate --mmpp2 300,40,2,2 {SERVED} --servers 1 --policy tables.json --policy greedy:4 --requests 2000",
    ),
    (f"predict --mmpp2 20000,1,100,1 {SERVED} -b 8 -t 60s", f"predict --arrivals bursty.json {SERVED} -b 4 -t 0.05"),
    (f"recommend --mmpp2 1000000,1,100,1 {SERVED} --slo 0.3",),  # of which too many come for what counts them exactly
    (f"{SERVER} --class a:300:1 --class b:100:0.1",),
    (
        "recommend --class a:50:0.1 --class b:5:0.5 --profile profile.json --loads 1 --out classes.json",
        f"simulate {CLASSES} {SERVED} --policy classes.json --requests 2000",
        f"simulate {CLASSES} {SERVED} --policy size-or-timeout:4,0.05 --policy classes.json --requests 2000",
    ),
    (f"simulate --poisson 50 {SERVED} --slo 0.1 --policy control --service-change 100:1.5 --requests 10000",),
    ("recommend --arrivals bursty.json --profile profile.json --slo 0.2 --worker worker.json:0.02",),
    (f"predict --poisson 50 {SERVED} -b 4 -t 0.05 --cold-start-probability 0.1",),
    ("fit trace.csv",),
    (f"simulate --poisson 50 {SIZED} --memory 1769 --policy size-or-timeout:4,0.05 --requests 2000",),
    (f"{SERVER} --rho 0.5 --method value-iteration",),
    ("fleet fleet.yaml",),
)
"""Each a few commands in a row, of which the later may read what the earlier wrote."""


@click.command()
@json_option
def command(as_json: bool) -> None:
    """Compile the optimizer's loops now, so that no command waits for that later.

    The code is kept beside the modules, or in the user's cache where they cannot be written; NUMBA_CACHE_DIR says another place. It
    is made again for another processor, numba, or version of Sluice. What is there already is left as it is.
    """
    if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0":
        raise InvalidInput("NUMBA_DISABLE_JIT", os.environ["NUMBA_DISABLE_JIT"], "0, as with it nothing is compiled")
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        _write_documents(Path(folder))
        # numba keeps most of what it makes, at all of which every collection looks: an eighth of the time, if they are not seldom.
        spawn, seldom = multiprocessing.get_context("spawn"), (100_000,)
        with ProcessPoolExecutor(os.cpu_count(), spawn, gc.set_threshold, seldom) as processes:
            compiled = sum(processes.map(_ask, QUESTIONS, [folder] * len(QUESTIONS)))
    seconds = time.monotonic() - begun
    if as_json:
        print_json({"version": 1, "compiled": compiled, "seconds": seconds})
    else:
        click.echo(f"{compiled} functions compiled in {seconds:.0f} s")


def _ask(question: Sequence[str], folder: str) -> int:
    """How many functions were compiled to answer a question."""
    from numba.core import event

    from .main import sluice

    os.chdir(folder)
    unread = io.TextIOWrapper(io.BytesIO())
    with event.install_recorder("numba:compile") as recorder, redirect_stdout(unread), redirect_stderr(unread):
        for line in question:
            with suppress(SystemExit):  # of a fleet that cannot serve all
                sluice.main([*line.split(), "--json"], standalone_mode=False)
    return sum(told.is_start for _, told in recorder.buffer)


def _write_documents(folder: Path) -> None:
    """What the questions name."""
    for name, sizes in (("profile", (None,)), ("sized", SIZES)):
        points = [_point(m, b, size) for m in MEMORY_SIZES for b in BATCH_SIZES for size in sizes]
        profile = ServiceProfile(function="f-{memory_mb}", points=points, init={m: ServiceTime(0.4) for m in MEMORY_SIZES})
        (folder / f"{name}.json").write_bytes(write(profile))
    worker = ServiceProfile(function="http://worker:8500", points=[_point(1769, b, None) for b in BATCH_SIZES])
    (folder / "worker.json").write_bytes(write(worker))
    (folder / "bursty.json").write_bytes(write(mmpp2(80.0, 20.0, 0.5, 0.5).document()))
    (folder / "fleet.yaml").write_text(FLEET)
    rng = np.random.default_rng(1)
    times, tokens = np.cumsum(rng.exponential(0.02, 1000)), rng.integers(1, 64, 1000)
    _write_table(folder / "trace.csv", "time", [f"{time:.6f}" for time in times])
    _write_table(folder / "sizes.csv", "time,tokens", [f"{time:.6f},{n}" for time, n in zip(times, tokens, strict=True)])


def _point(memory_mb: int, batch_size: int, size: float | None) -> ProfilePoint:
    mean = (0.006 + 0.001 * batch_size * (1.0 if size is None else size / 16)) * 1769 / memory_mb
    time = ServiceTime(mean, [(q, mean * by) for q, by in SPREAD], 50)
    return ProfilePoint(memory_mb, batch_size, time, mean, 0.001, size=size)


def _write_table(path: Path, header: str, rows: Sequence[str]) -> None:
    path.write_text("\n".join((header, *rows)) + "\n")
