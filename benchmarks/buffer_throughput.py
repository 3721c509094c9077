"""Throughput of the buffer itself: no-op function in-process, batch size 32, timeout 5 ms, JSON of 64 floats.

Buffer, Redis and load generator share the machine. The alternatives are bare uvicorn (no buffer, no batching) and the queue in
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

from rich.console import Console
from rich.table import Table

from local.redis_server import RedisServer

CONNECTIONS = 64
SECONDS = 8.0
ROUNDS = 3
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure every server ``ROUNDS`` times, interleaved, and print medians."""
    rows: dict[str, list[dict[str, float]]] = {"bare": [], "memory": [], "redis": []}
    for _ in range(ROUNDS):
        for kind, results in rows.items():
            results.append(measure(kind))
    table = Table(title=f"No-op function, batch size 32, timeout 5 ms, {CONNECTIONS} connections, median of {ROUNDS}")
    for name in ("server", "requests/s", "to bare", "p50 ms", "p99 ms", "server CPU us", "Redis CPU us", "peak MB", "failures"):
        table.add_column(name, justify="left" if name == "server" else "right")
    names = {"bare": "bare uvicorn, no buffer", "memory": "buffer, queue in memory", "redis": "buffer, queue in Redis"}
    floor = statistics.median(r["requests_per_second"] for r in rows["bare"])
    for kind, results in rows.items():
        middle = {key: statistics.median(r[key] for r in results) for key in results[0]}
        table.add_row(
            names[kind],
            f"{middle['requests_per_second']:.0f}",
            f"{middle['requests_per_second'] / floor:.2f}",
            f"{middle['p50_ms']:.1f}",
            f"{middle['p99_ms']:.1f}",
            f"{middle['server_cpu_us']:.0f}",
            f"{middle['redis_cpu_us']:.0f}",
            f"{middle['peak_mb']:.0f}",
            f"{sum(r['failures'] for r in results):.0f}",
        )
    Console().print(table)


def measure(kind: str) -> dict[str, float]:
    """One run of one server under load."""
    with RedisServer() as redis, socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        listener.close()
        server = subprocess.Popen([sys.executable, "-m", "benchmarks.buffer_server", kind, str(port), redis.url])
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
