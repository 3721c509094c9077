"""The buffer and its worker beside mosec, mpservice and LitServe, over real HTTP, alternately in one run.

Of the others each is one program: HTTP, a queue of batches, a process that computes. Ours is `sluice serve` with a plan, before one
`python -m sluice.lambda_fn.worker`, started as a user starts them, with the queue in Redis and in memory; ``in process`` is the
buffer with a function that sends bodies back and no worker. All batch 32 requests within ``WAIT_MS``. The scenarios:

    echo N        bodies of 64 numbers in JSON sent back, N connections that never rest
    work N        the model parses the JSON, sums, and writes JSON
    Poisson       an open loop of ``RATE`` requests/s; a batch of b takes l(b) = 1.05 + 0.305 b ms, asleep. Ours is greedy; of the
                  others the better of a wait of 1 ms and of 5 ms counts
    JSON, OIP     bodies of 1, 100 and 600 KB: numbers in JSON, and a binary tensor of the Open Inference Protocol, summed

A round runs all servers of a scenario one after the other, every other round in the reverse order; meanwhile the others are
stopped, as some use a twentieth of a core while they wait. Printed are medians, and the ratio to mosec's throughput in the same
round. CPU is a request's, of all processes of a server and of its Redis; memory is what they share in parts (PSS) at the end. Load
and servers share the machine. ``client`` is how much of one core the load generator used: at 90 % and more it is what was measured.

The others live in environments of their own, ``.venv-peers/NAME``, where they are installed the first time, of the versions of
``PEERS``. Which of them cannot be is said, and the rest is measured.

``python -m benchmarks peers [--quick] [--rounds 3] [--seconds 3] [--only echo,work,Poisson,JSON,OIP]``
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.buffer_throughput import wait_for
from benchmarks.request_load import WARM
from benchmarks.smoke import usually
from benchmarks.told import count, positive
from benchmarks.worker import JSON, cpu_of_tree, family_of, until_it_answers
from sluice.batching.documents import Plan, PolicyDocument, write
from sluice.batching.policy import greedy, size_or_timeout
from sluice.local.ports import chosen_port
from sluice.local.redis_server import RedisServer

ROOT = Path(__file__).parent.parent
SERVERS = Path(__file__).parent / "peer_servers"
ENVIRONMENTS = ROOT / ".venv-peers"
PEERS = {"mosec": "0.9.8", "mpservice": "0.16.8", "litserve": "0.2.19"}
"""The others, and of which version they are installed."""
BESIDE = ("msgspec==0.20.0", "numpy==2.4.6", "uvloop==0.23.0", "httptools==0.9.0")
"""What their servers here use, and what makes uvicorn as fast as it can be."""

MEMORY, REDIS, INSIDE_MEMORY, INSIDE_REDIS = "ours, memory", "ours, Redis", "in process, memory", "in process, Redis"
OURS = (REDIS, MEMORY)
INSIDE = (INSIDE_REDIS, INSIDE_MEMORY)
REFERENCE = "mosec"

BATCH_SIZE, WAIT_MS, RATE = 32, 5, 500.0
OPEN_WAITS = (1, 5)  # ms, of the others before l(b)
LAW = {"SLUICE_MODEL_NAME": "sleeper", "SLUICE_SLEEPER_INTERCEPT": "0.00105", "SLUICE_SLEEPER_SLOPE": "0.000305"}
MODELS = {"echo": "Echo", "total": "Total", "tensors": "Tensors"}

Result = dict[str, float]


class Scenario(NamedTuple):
    """A load: what is done with a request, what it is, and how many come."""

    name: str
    work: str
    body: bytes
    servers: tuple[str, ...]
    connections: int = 64
    rate: float | None = None
    head_length: int = 0
    """Bytes of JSON before a binary tensor."""

    @property
    def headers(self) -> dict[str, str]:
        """Of a request."""
        binary = {"content-type": "application/octet-stream", "inference-header-content-length": str(self.head_length)}
        return binary if self.head_length else JSON


def main() -> None:
    """Measure every scenario and print a table of each."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true", help="seconds, of which little is to be read")
    parser.add_argument("--rounds", type=count)
    parser.add_argument("--seconds", type=positive)
    parser.add_argument("--only", default="", help="scenarios that begin so, with commas between")
    asked = parser.parse_args()
    quick = usually(asked.quick, smoke=True)
    rounds = asked.rounds or (1 if quick else 3)
    seconds = asked.seconds or (usually(1.0, smoke=0.1) if quick else 3.0)
    others = [peer for peer in PEERS if is_installed(peer)]
    wanted = tuple(asked.only.split(","))
    for scenario in scenarios(others, quick):
        if scenario.name.startswith(wanted):
            Console(width=132).print(table_of(scenario, measured(scenario, rounds, seconds), rounds))


def scenarios(others: Sequence[str], quick: bool) -> list[Scenario]:
    """All; the quick ones are a worker that works, Poisson arrivals, large tensors, of which a smoke run leaves out the first.

    A smoke run has one of ours serve each of them.
    """
    beside = (*others, *OURS)
    numbers = numbers_in_json(64)
    found = [Scenario(f"echo {n}", "echo", numbers, (*beside, *INSIDE), n) for n in (64, 256)]
    found += [Scenario(f"work {n}", "total", numbers, beside, n) for n in (64, 256)]
    waits = [f"{peer}, {wait} ms" for peer in others for wait in OPEN_WAITS]
    found += [Scenario("Poisson", "sleep", numbers, (*waits, *OURS), 256, RATE)]
    binary = tuple(peer for peer in beside if peer != "litserve")  # which takes JSON alone
    for kilobytes in (1, 100, 600):
        size = 1000 * kilobytes
        found += [Scenario(f"JSON {kilobytes} KB", "total", numbers_in_json(size // 8), beside, 16 if size > 10_000 else 64)]
        head, raw = tensor_of(size // 4)
        found += [Scenario(f"OIP {kilobytes} KB", "tensors", head + raw, binary, 16 if size > 10_000 else 64, None, len(head))]
    if usually(False, smoke=True):
        return [found[4]._replace(servers=(MEMORY,)), found[8]._replace(servers=(REDIS,))]
    return [found[2], found[4], found[8]] if quick else found


def numbers_in_json(n: int) -> bytes:
    """A list of ``n`` numbers, some 8 bytes each."""
    return json.dumps(np.random.default_rng(0).uniform(0.1, 1, n).round(5).tolist(), separators=(",", ":")).encode()


def tensor_of(n: int) -> tuple[bytes, bytes]:
    """The JSON before a tensor of ``n`` numbers, a line, and its bytes."""
    raw = np.random.default_rng(0).uniform(0.1, 1, n).astype(np.float32).tobytes()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, n], "parameters": {"binary_data_size": len(raw)}}
    return json.dumps({"inputs": [tensor]}).encode() + b"\n", raw


def measured(scenario: Scenario, rounds: int, seconds: float) -> dict[str, list[Result]]:
    """Every server in every round; each is started once for all of them."""
    results: dict[str, list[Result]] = {server: [] for server in scenario.servers}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as running:
        body = Path(folder) / "body"
        body.write_bytes(scenario.body)
        at = {name: running.enter_context(started(name, scenario)) for name in scenario.servers}
        for number in range(rounds):
            for name in scenario.servers if number % 2 == 0 else scenario.servers[::-1]:
                url, processes = at[name]
                with stopped(other for others, (_, its) in at.items() if others != name for other in its):
                    results[name].append(load(url, processes, scenario, body, seconds))
    return results


@contextmanager
def stopped(processes: Iterable[int]) -> Iterator[None]:
    """Processes, and all that they started, do nothing until the block ends."""
    families = [member for process in processes for member in family_of(process)]
    try:
        for member in families:
            os.kill(member, signal.SIGSTOP)
        yield
    finally:
        for member in families:
            with contextlib.suppress(ProcessLookupError):  # it has ended
                os.kill(member, signal.SIGCONT)


def load(url: str, processes: Sequence[int], scenario: Scenario, body: Path, seconds: float) -> Result:
    """One run of the load generator, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.request_load", url, "--body", str(body), "--seconds", str(seconds)]
    command += ["--connections", str(scenario.connections)]
    command += [] if scenario.rate is None else ["--rate", str(scenario.rate)]
    for name, value in scenario.headers.items():
        command += ["--header", f"{name}: {value}"]
    before = sum(map(cpu_of_tree, processes))
    result: Result = json.loads(subprocess.run(command, check=True, capture_output=True, cwd=ROOT).stdout)
    if first := result.pop("first_failure"):
        print(f"{scenario.name}: failure:", str(first)[:200], file=sys.stderr)
    spent = sum(map(cpu_of_tree, processes)) - before
    result["cpu_us"] = 1e6 * spent / (result["requests_per_second"] * (seconds + WARM))
    result["memory_mb"] = sum(shared_memory(member) for process in processes for member in family_of(process))
    return result


def table_of(scenario: Scenario, results: dict[str, list[Result]], rounds: int) -> Table:
    """A row a server."""
    rate = "" if scenario.rate is None else f", {scenario.rate:g} requests/s"
    table = Table(
        title=f"{scenario.name}: {len(scenario.body)} bytes, {scenario.connections} connections{rate}; median of {rounds}"
    )
    table.add_column("")
    for name in ("requests/s", f"of {REFERENCE}'s", "p50 ms", "p95 ms", "p99 ms", "CPU us", "memory MB", "client", "failures"):
        table.add_column(name, justify="right")
    reference = next((results[name] for name in results if name.startswith(REFERENCE)), None)
    for name, runs in results.items():
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        share = "-"
        if reference is not None:
            pairs = zip(runs, reference, strict=True)
            share = f"{statistics.median(run['requests_per_second'] / its['requests_per_second'] for run, its in pairs):.2f}"
        table.add_row(
            name,
            f"{middle['requests_per_second']:.0f}",
            share,
            *(f"{middle[key]:.2f}" for key in ("p50_ms", "p95_ms", "p99_ms")),
            *(f"{middle[key]:.0f}" for key in ("cpu_us", "memory_mb")),
            f"{100 * middle['client_busy']:.0f} %",
            f"{sum(run['failures'] for run in runs):.0f}",
        )
    return table


@contextmanager
def started(name: str, scenario: Scenario) -> Iterator[tuple[str, list[int]]]:
    """A server: where it answers, and the processes that were started for it."""
    with ExitStack() as stack:
        if name in (*OURS, *INSIDE):
            url, processes = _ours(stack, name, scenario)
        else:
            url, processes = _peer(stack, name, scenario)
        until_it_answers(url, scenario.body, scenario.headers)  # it may listen before its plan is loaded
        yield url, processes


def _ours(stack: ExitStack, name: str, scenario: Scenario) -> tuple[str, list[int]]:
    redis = stack.enter_context(RedisServer()) if name in (REDIS, INSIDE_REDIS) else None
    store, processes = ("memory://", []) if redis is None else (redis.url, [redis.pid])
    if name in INSIDE:
        kind, port = "memory" if redis is None else "redis", chosen_port()
        command = [sys.executable, "-m", "benchmarks.buffer_server", kind, str(port), store]
        processes.append(stack.enter_context(child(command, {}, port)))
        return f"http://127.0.0.1:{port}/models/noop", processes
    [url], others = buffers(stack, scenario, store)
    return url, processes + others


def buffers(stack: ExitStack, scenario: Scenario, store: str, number: int = 1) -> tuple[list[str], list[int]]:
    """A worker, and so many processes of the buffer before it: where these answer, and all processes."""
    folder, worker = Path(stack.enter_context(tempfile.TemporaryDirectory())), chosen_port()
    asleep = scenario.work == "sleep"
    model = "sleeper" if asleep else MODELS[scenario.work].lower()
    environment = LAW if asleep else {"SLUICE_MODEL": f"model.py:{MODELS[scenario.work]}", "LAMBDA_TASK_ROOT": str(SERVERS)}
    command = [sys.executable, "-m", "sluice.lambda_fn.worker", "--port", str(worker)]
    processes = [stack.enter_context(child(command, {"PYTHONPATH": str(ROOT), **environment}, worker))]
    policy = greedy(BATCH_SIZE, servers=1) if asleep else size_or_timeout(BATCH_SIZE, WAIT_MS / 1000)
    plan = Plan(model=model, function=f"http://127.0.0.1:{worker}/", policy=PolicyDocument.of(policy))
    (folder / "plan.json").write_bytes(write(plan))
    path = f"/v2/models/{model}/infer" if scenario.head_length else f"/models/{model}"
    urls = []
    for _ in range(number):
        port = chosen_port()
        command = [sys.executable, "-m", "sluice", "serve", "--port", str(port), "--log-level", "error", "--redis-url", store]
        processes.append(stack.enter_context(child([*command, "--plans", f"file:{folder}"], {}, port)))
        urls.append(f"http://127.0.0.1:{port}{path}")
    return urls, processes


def _peer(stack: ExitStack, name: str, scenario: Scenario) -> tuple[str, list[int]]:
    peer, _, wait = name.partition(", ")
    port = chosen_port()
    told = {"WORK": scenario.work, "BATCH_SIZE": str(BATCH_SIZE), "WAIT_MS": wait.removesuffix(" ms") or str(WAIT_MS)}
    command = [str(python_of(peer)), str(SERVERS / f"{peer}_server.py"), "--port", str(port)]
    command += ["--address", "127.0.0.1", "--log-level", "error"] if peer == "mosec" else []
    return f"http://127.0.0.1:{port}/inference", [stack.enter_context(child(command, told, port))]


@contextmanager
def child(command: Sequence[str], environment: dict[str, str], port: int) -> Iterator[int]:
    """A process that listens at a port, and all that it starts, until the block ends."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, env=known | environment, stdout=quiet, stderr=quiet, cwd=ROOT, start_new_session=True)
    try:
        wait_for(port)
        yield process.pid
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
        with contextlib.suppress(ProcessLookupError):  # what it left behind
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def shared_memory(pid: int) -> float:
    """MB of a process, what it shares counted in parts; 0 of one that has ended."""
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0.0
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def python_of(peer: str) -> Path:
    """The Python of the environment that a peer lives in."""
    return ENVIRONMENTS / peer / "bin" / "python"


def is_installed(peer: str) -> bool:
    """Whether a peer is there, or could be installed; says so where it could not."""
    if usually(False, smoke=True):
        print(f"{peer}: not installed for a smoke run; it is not measured", file=sys.stderr)
        return False
    python = python_of(peer)
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(python.parent.parent)], check=True)
    try:
        if subprocess.run([python, "-c", f"import {peer}, uvloop, numpy"], capture_output=True).returncode:
            install = ["python3", "-m", "pip", "--python", str(python), "install", "--quiet", "--disable-pip-version-check"]
            subprocess.run([*install, f"{peer}=={PEERS[peer]}", *BESIDE], check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"{peer}: it is absent and cannot be installed ({error}); it is not measured", file=sys.stderr)
        return False
    return True


if __name__ == "__main__":
    main()
