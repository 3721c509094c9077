"""What comes through when more comes than can be served: goodput over the capacity, refusals, and how soon all is well again.

One worker (a sleeper), a real buffer process, clients over HTTP. The capacity is what a closed loop gets out of the same two
processes. Then an open loop: 5 s at half the capacity, ``--seconds`` at each multiple of it, 10 s at half again. Goodput counts
answers that came within the patience of who asked, as a part of the capacity; the first second of the overload counts too.

``python -m benchmarks overload [--redis] [--slo S] [--multiples 3,10] [--patience 2,60] [--seconds 20]``
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.buffer_throughput import cpu, wait_for
from benchmarks.smoke import usually
from benchmarks.told import positive
from sluice.batching.documents import Plan, PolicyDocument, Slo, write
from sluice.batching.policy import Policy, greedy
from sluice.local.ports import chosen_port
from sluice.local.redis_server import RedisServer
from sluice.local.replay import Replay, replay, run

INTERCEPT, SLOPE, BATCH_SIZE = 0.02, 0.004, 16  # s, s, requests: 84 ms a full batch
CALM, AFTER = usually((5.0, 10.0), smoke=(0.2, 0.3))  # s before and after


def main() -> None:
    """Print a row for each multiple and patience."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--redis", action="store_true")
    parser.add_argument("--slo", type=positive)
    parser.add_argument("--multiples", default=usually("3,10", smoke="3"))
    parser.add_argument("--patience", default=usually("2,60", smoke="2"))
    parser.add_argument("--seconds", type=positive, default=usually(20.0, smoke=0.3))
    parser.add_argument("--each-second", action="store_true")
    options = parser.parse_args()
    print(f"batches of up to {BATCH_SIZE} requests, {INTERCEPT + SLOPE * BATCH_SIZE:g} s; SLO {options.slo} s")
    print(
        "capacity  times  patience  goodput  refused  p50, p99 of that  p95 before, under, in 1st, 2nd, later s after  buffer CPU"
    )
    for multiple in map(float, options.multiples.split(",")):
        for patience in map(float, options.patience.split(",")):
            with ExitStack() as stack:
                url = stack.enter_context(RedisServer()).url if options.redis else "memory://"
                slo = Slo(options.slo) if options.slo is not None else None
                buffer, address = stack.enter_context(serving(url, greedy(BATCH_SIZE, servers=1), slo=slo))
                url = f"{address}/models/sleeper"
                capacity = closed_loop(url, 3 * BATCH_SIZE)  # two batches more than are at work
                times = arrivals(capacity, multiple, options.seconds)
                before = cpu(buffer)
                result = run(replay(times, url, body=b"1", timeout=patience))
                busy = (cpu(buffer) - before) / result.seconds
            shown = row(result, capacity, options.seconds)
            print(f"{capacity:6.0f}/s  {multiple:5g}  {patience:6g} s  {shown}  {busy:.0%}", flush=True)
            if options.each_second:
                print(each_second(result, capacity), flush=True)


def closed_loop(url: str, connections: int) -> float:
    """Requests/s while so many are under way at all times."""
    command = [
        sys.executable,
        "-m",
        "benchmarks.closed_loop",
        url,
        "--connections",
        str(connections),
        "--seconds",
        usually("4", smoke="0.2"),
    ]
    result = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    assert not result["failures"], result["first_failure"]
    return float(result["requests_per_second"])


def arrivals(capacity: float, multiple: float, seconds: float) -> npt.NDArray[np.float64]:
    """Poisson: half the capacity, the multiple, half again."""
    rng = np.random.default_rng(7)
    spans = ((0.0, CALM, 0.5), (CALM, seconds, multiple), (CALM + seconds, AFTER, 0.5))
    parts = [start + np.sort(rng.uniform(0, span, rng.poisson(capacity * times * span))) for start, span, times in spans]
    return np.concatenate(parts)


def row(result: Replay, capacity: float, seconds: float) -> str:
    """Goodput over the overload, and the latencies around it."""
    at, ended = result.intended, result.intended + result.latency
    good, refused = result.answered, np.isin(result.status, (429, 503))
    end = CALM + seconds
    under = good & (ended >= CALM) & (ended < end)
    goodput = under.sum() / (capacity * seconds)
    told = np.percentile(result.latency[refused], (50, 99)) * 1000 if refused.any() else (np.nan, np.nan)
    latency = np.where(good, result.latency, np.inf)
    windows = ((0, CALM), (CALM, end), (end, end + 1), (end + 1, end + 2), (end + 2, end + AFTER))
    p95 = []
    for start, stop in windows:
        inside = (at >= start) & (at < stop) & (good if start == CALM else True)
        p95.append(np.percentile(latency[inside], 95, method="inverted_cdf") * 1000 if inside.any() else np.nan)
    shown = ", ".join(f"{value:.0f}" for value in p95)
    return f"{goodput:7.1%}  {refused.mean():7.1%}  {told[0]:.1f}, {told[1]:.1f} ms  {shown} ms"


def each_second(result: Replay, capacity: float) -> str:
    """Answers of each second as a part of the capacity."""
    ended = (result.intended + result.latency)[result.answered]
    counts = np.bincount(ended.astype(int), minlength=int(result.intended[-1]) + 1)
    return "answers of each second over the capacity: " + " ".join(f"{count / capacity:.2f}" for count in counts)


@contextmanager
def serving(url: str, policy: Policy, **fields: Any) -> Iterator[tuple[int, str]]:
    """The worker and the buffer, whose plan has this policy and these fields: the process id of the latter, and its address."""
    worker_port, port = chosen_port(), chosen_port()
    plan = Plan(model="sleeper", function=f"http://127.0.0.1:{worker_port}/", policy=PolicyDocument.of(policy), **fields)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (directory / "plan.json").write_bytes(write(plan))
        model = {"SLUICE_MODEL_NAME": "sleeper", "SLUICE_SLEEPER_INTERCEPT": str(INTERCEPT), "SLUICE_SLEEPER_SLOPE": str(SLOPE)}
        worker = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", str(worker_port)]
        stack.enter_context(child(worker, model))
        wait_for(worker_port)
        buffer = [sys.executable, "-m", "sluice.cli.main", "serve", "--port", str(port), "--log-level", "warning"]
        process = stack.enter_context(child([*buffer, "--redis-url", url, "--plans", f"file:{directory}"], {}))
        wait_for(port)
        yield process.pid, f"http://127.0.0.1:{port}"


@contextmanager
def child(command: list[str], environment: dict[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    """A process, until the block ends."""
    process = subprocess.Popen(command, env=os.environ | environment, stdout=subprocess.DEVNULL)  # lines of metrics
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


if __name__ == "__main__":
    main()
