"""The worker beside mosec and LitServe: the same ONNX network, the same JSON, single requests over HTTP, alternately in one run.

Each serves with one process that computes, one thread of ONNX Runtime and batches of at most 32, and one process before it that
holds the sockets (mosec's has several threads, and a third process only watches). mosec and LitServe wait for a batch for 1 ms, the
worker takes what waits. All run from the start; a round loads one after the other, every other round in the reverse order. First
each is loaded by 64 connections that never rest, and by one, then by Poisson arrivals at 30 % and 80 % of what the slower of worker
and mosec got through in this very round (LitServe, where it cannot keep up, at its own): a share of what was measured minutes ago
is, on a machine that others use, now and then more than either can serve, and a latency then tells when the queue began to grow. A
latency counts from when the request came. In how many rounds a server answered less than ``KEPT_UP`` of what came is printed, and
how late the generator itself was. CPU is a request's, of all processes of the server, in the closed loop of 64. Load and server
share the machine, and so may others: what is compared are therefore the worker and a peer in the same round, and the median of
these ratios over all rounds is printed, with the quartiles.

The peers live in an environment of their own, ``.venv-peers``: ``python3 -m venv .venv-peers && .venv-peers/bin/pip install mosec
litserve onnxruntime msgspec``, with the ONNX Runtime of this one; ``SLUICE_PEERS`` names another. Which of them is not there is
said, and the others are measured.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.buffer_throughput import cpu, wait_for
from benchmarks.request_load import WARM
from benchmarks.smoke import usually
from sluice.local.networks import make_mlp
from sluice.local.ports import chosen_port

ROUNDS = usually(9, smoke=1)
SECONDS = usually(1.0, smoke=0.1)
STARTED = 60.0  # s that a server may take until it answers
JSON = {"content-type": "application/json"}
ZEROS = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 64], "data": [0.0] * 64}]}
CONNECTIONS = 64
BATCH_SIZE = 32
WAIT_MS = 1
NETWORKS = {"small": (64, 256, 256, 10), "large": (64, 2048, 2048, 2048, 10)}
"""Widths of perceptrons: one whose cost is the server's, one whose cost is its own."""
OURS, LITSERVE = "sluice worker", "LitServe"
PARTS = (0.3, 0.8)
KEPT_UP = 0.95
PEERS = Path(__file__).parent / "worker_peers"
ROOT = Path(__file__).parent.parent

Result = dict[str, float]


class Runs(NamedTuple):
    """What each server did, round by round: in the closed loops of 64 and of one, and at each share of load."""

    closed: dict[str, list[Result]]
    alone: dict[str, list[Result]]
    opened: dict[float, dict[str, list[Result]]]


def main() -> None:
    """Measure every server ``ROUNDS`` times, interleaved, and print medians, and medians of ratios."""
    servers = [OURS, *(peer for peer in ("mosec", LITSERVE) if is_installed(peer))]
    with tempfile.TemporaryDirectory() as folder:
        body = Path(folder) / "request.json"
        numbers = np.random.default_rng(0).standard_normal(64).round(4).tolist()
        body.write_text(json.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 64], "data": numbers}]}))
        for name, widths in list(NETWORKS.items())[: usually(2, smoke=1)]:
            network = Path(folder) / f"{name}.onnx"
            network.write_bytes(make_mlp(seed=1, widths=widths).SerializeToString())
            runs = measure(servers, network, body)
            Console(width=140).print(
                medians(f"{name} network, {'-'.join(map(str, widths))}", runs),
                *(ratios(f"{name} network", runs, peer) for peer in servers[1:]),
            )


def measure(servers: Sequence[str], network: Path, body: Path) -> Runs:
    """All servers on one network."""
    runs = Runs({of: [] for of in servers}, {of: [] for of in servers}, {part: {of: [] for of in servers} for part in PARTS})
    with contextlib.ExitStack() as running:
        at = {server: running.enter_context(started(server, network)) for server in servers}
        for number in range(ROUNDS):
            order = servers if number % 2 == 0 else servers[::-1]
            for server in order:
                url, pid = at[server]
                before = cpu_of_tree(pid)
                result = load(url, body)
                result["cpu_us"] = 1e6 * (cpu_of_tree(pid) - before) / (result["requests_per_second"] * (SECONDS + WARM))
                runs.closed[server].append(result)
                runs.alone[server].append(load(url, body, connections=1))
            for part, rates in rates_of({server: runs.closed[server][-1]["requests_per_second"] for server in servers}).items():
                for server in order:
                    result = load(at[server][0], body, rate=rates[server])
                    result["kept_up"] = result["requests_per_second"] >= KEPT_UP * rates[server]
                    runs.opened[part][server].append(result)
    return runs


def rates_of(throughput: dict[str, float]) -> dict[float, dict[str, float]]:
    """What each server is given at each share of load, requests/s, by what all got through in this round."""
    capacity = min(throughput[server] for server in throughput if server != LITSERVE)
    return {part: {server: part * min(capacity, own) for server, own in throughput.items()} for part in PARTS}


def medians(title: str, runs: Runs) -> Table:
    """A row a server; failures are of all its runs."""
    table = Table(title=f"{title}; medians of {len(runs.closed[OURS])}")
    for column in (
        "",
        "requests/s",
        "CPU us",
        "closed 1: p50 ms",
        *(f"{100 * part:.0f} %: {what}" if what == "req/s" else what for part in PARTS for what in ("req/s", "p50 ms", "p95 ms")),
        "sent late: p95 ms",
        "rounds that it did not keep up",
        "failures",
    ):
        table.add_column(column, justify="right" if column else "left")
    for server, closed in runs.closed.items():
        opened = [runs.opened[part][server] for part in PARTS]
        table.add_row(
            server,
            f"{median(closed)['requests_per_second']:.0f}",
            f"{median(closed)['cpu_us']:.0f}",
            f"{median(runs.alone[server])['p50_ms']:.2f}",
            *(
                f"{median(run)[key]:.{digits}f}"
                for run in opened
                for key, digits in (("requests_per_second", 0), ("p50_ms", 2), ("p95_ms", 2))
            ),
            f"{median(opened[-1])['late_p95_ms']:.2f}",
            f"{sum(not result['kept_up'] for result in opened[-1])}",
            f"{sum(result['failures'] for run in (closed, runs.alone[server], *opened) for result in run):.0f}",
        )
    return table


def ratios(title: str, runs: Runs, peer: str) -> Table:
    """Of the worker to a peer in the same round."""
    table = Table(title=f"{title}: worker / {peer} in the same round; median of {len(runs.closed[OURS])} [quartiles]")
    of = [
        ("requests/s", runs.closed, "requests_per_second"),
        ("CPU", runs.closed, "cpu_us"),
        ("closed 1: p50", runs.alone, "p50_ms"),
        *((f"{100 * part:.0f} %: {key[:3]}", runs.opened[part], key) for part in PARTS for key in ("p50_ms", "p95_ms")),
    ]
    for column, _, _ in of:
        table.add_column(column, justify="right")
    table.add_row(*(ratio(results, peer, key) for _, results, key in of))
    return table


def ratio(runs: dict[str, list[Result]], peer: str, key: str) -> str:
    """Of the worker to a peer, round by round."""
    ratios = [ours[key] / theirs[key] for ours, theirs in zip(runs[OURS], runs[peer], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    return f"{middle:.2f} [{low:.2f}, {high:.2f}]"


def median(runs: list[Result]) -> Result:
    """Each figure's."""
    return {key: statistics.median(run[key] for run in runs) for key in runs[0]}


def load(url: str, body: Path, rate: float | None = None, connections: int = CONNECTIONS) -> Result:
    """One run of the load generator, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.request_load", url, "--body", str(body), "--seconds", str(SECONDS)]
    command += ["--connections", str(connections if rate is None else 4 * connections)]
    command += [] if rate is None else ["--rate", str(rate)]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
    if first := result.pop("first_failure"):
        print("failure:", first, file=sys.stderr)
    return dict(result)


@contextmanager
def started(server: str, network: Path) -> Iterator[tuple[str, int]]:
    """A server: where it answers, and its process."""
    port = str(chosen_port())
    limits = {"NETWORK": str(network), "BATCH_SIZE": str(BATCH_SIZE), "WAIT_MS": str(WAIT_MS), "OMP_NUM_THREADS": "1"}
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | limits
    if server == OURS:
        command = [sys.executable, "-m", "sluice.lambda_fn.worker", f"mlp={network}", "--port", port]
        environment |= {"SLUICE_THREADS": "1", "SLUICE_BATCH_SIZE": str(BATCH_SIZE), "PYTHONPATH": str(ROOT)}
        path = "/v2/models/mlp/infer"
    else:
        address = ["--address", "127.0.0.1", "--log-level", "error"] if server == "mosec" else []
        command = [str(python_of_peers()), str(PEERS / f"{server.lower()}_server.py"), "--port", port, *address]
        path = "/inference"
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=environment, stdout=quiet, stderr=quiet, start_new_session=True)
    try:
        wait_for(int(port))
        url = f"http://127.0.0.1:{port}{path}"
        until_it_answers(url, json.dumps(ZEROS).encode())
        yield url, process.pid
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with contextlib.suppress(ProcessLookupError):  # LitServe leaves its children behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def until_it_answers(url: str, body: bytes, headers: Mapping[str, str] = JSON) -> None:
    """A server may listen before its model is loaded."""
    deadline = time.monotonic() + STARTED
    while True:
        try:
            urllib.request.urlopen(urllib.request.Request(url, body, dict(headers))).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def cpu_of_tree(pid: int) -> float:
    """CPU seconds of a process and of all that it started."""
    return sum(cpu(member) for member in family_of(pid))


def family_of(pid: int) -> set[int]:
    """A process and all that it started."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):  # it has ended
                continue
    family = {pid}
    while more := {child for child, parent in parents.items() if parent in family} - family:
        family |= more
    return family


def python_of_peers() -> Path:
    """The Python of the environment that the peers live in."""
    return Path(os.environ.get("SLUICE_PEERS", ROOT / ".venv-peers")) / "bin" / "python"


def is_installed(peer: str) -> bool:
    """Whether a peer is there; says so where it is not."""
    python = python_of_peers()
    there = (
        usually(True, smoke=False)
        and python.exists()
        and subprocess.run([python, "-c", f"import {peer.lower()}"], capture_output=True).returncode == 0
    )
    if not there:
        print(f"{peer} is not installed in {python.parent.parent}, and is not measured", file=sys.stderr)
    return there


if __name__ == "__main__":
    main()
