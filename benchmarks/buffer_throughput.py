"""Throughput of the buffer itself: no-op function in-process, batch size 32, timeout 5 ms, JSON of 64 floats.

Buffer, Redis and load generator share the machine. The alternatives are bare HTTP server (no buffer, no batching) and the queue in
memory; CPU is that of the server process alone, Redis's is beside it.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable

from rich.console import Console
from rich.table import Table

from benchmarks.smoke import usually
from sluice.local.ports import chosen_port
from sluice.local.redis_server import RedisServer

CONNECTIONS = 64
SECONDS = usually(8.0, smoke=0.1)
ROUNDS = usually(3, smoke=1)
BARE, REDIS = {"bare": "bare HTTP server"}, {"redis": "in Redis"}
KINDS = BARE | usually({"memory": "queue in memory", "unmeasured": "in Redis, batches not recorded"}, smoke={}) | REDIS
"""What serves, and how it is called."""
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure every server ``ROUNDS`` times, interleaved, and print medians."""
    rows: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(ROUNDS):
        for kind, results in rows.items():
            results.append(measure(kind))
    medians = {kind: {key: statistics.median(r[key] for r in results) for key in results[0]} for kind, results in rows.items()}
    floor = medians["bare"]["requests_per_second"]
    table = Table(title=f"No-op function, batch size 32, timeout 5 ms, {CONNECTIONS} connections, median of {ROUNDS}")
    for name in ("", *KINDS.values()):
        table.add_column(name, justify="right" if name else "left")
    for name, show in LINES:
        table.add_row(name, *(show(middle) for middle in medians.values()))
    table.add_row("ratio to it", *(f"{middle['requests_per_second'] / floor:.2f}" for middle in medians.values()))
    Console().print(table)


LINES: list[tuple[str, Callable[[dict[str, float]], str]]] = [
    ("requests/s", lambda r: f"{r['requests_per_second']:.0f}"),
    ("p50 ms", lambda r: f"{r['p50_ms']:.1f}"),
    ("p99 ms", lambda r: f"{r['p99_ms']:.1f}"),
    ("server CPU us per request", lambda r: f"{r['server_cpu_us']:.0f}"),
    ("Redis CPU us per request", lambda r: f"{r['redis_cpu_us']:.0f}"),
    ("client CPU us per request", lambda r: f"{r['client_cpu_us_per_request']:.0f}"),
    ("server peak memory MB", lambda r: f"{r['peak_mb']:.0f}"),
    ("failures", lambda r: f"{r['failures']:.0f}"),
]


def measure(kind: str) -> dict[str, float]:
    """One run of one server under load."""
    with RedisServer() as redis:
        port = chosen_port()
        command = [sys.executable, "-m", "benchmarks.buffer_server", kind, str(port), redis.url]
        server = subprocess.Popen(command, stdout=subprocess.DEVNULL)  # lines of metrics
        try:
            wait_for(port)
            before = cpu(server.pid), cpu(redis.pid)
            url = f"http://127.0.0.1:{port}/models/noop"
            command = [sys.executable, "-m", "benchmarks.closed_loop", url]
            command += ["--connections", str(CONNECTIONS), "--seconds", str(SECONDS)]
            result: dict[str, float] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
            after = cpu(server.pid), cpu(redis.pid)
            if result["failures"]:
                print("failure:", result["first_failure"], file=sys.stderr)
            result.pop("first_failure")
            requests = result["requests_per_second"] * (SECONDS + min(1.0, SECONDS / 5))  # the warm-up costs CPU too
            result["server_cpu_us"] = 1e6 * (after[0] - before[0]) / requests
            result["redis_cpu_us"] = 1e6 * (after[1] - before[1]) / requests
            result["peak_mb"] = peak_memory(server.pid)
            return result
        finally:
            server.terminate()
            server.wait()


def wait_for(port: int) -> None:
    """Until something listens."""
    for _ in range(500):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.02)
    raise RuntimeError("the server did not start")


def cpu(pid: int) -> float:
    """CPU seconds of a process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def peak_memory(pid: int) -> float:
    """Peak resident MB of a process."""
    with open(f"/proc/{pid}/status") as file:
        return next(int(line.split()[1]) / 1024 for line in file if line.startswith("VmHWM"))


if __name__ == "__main__":
    main()
