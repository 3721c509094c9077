"""The system's own processes on this machine: a Lambda runtime and a buffer, each a child that ends with its owner.

What may live here: starting, waiting for and stopping one process. Both speak HTTP on a free port of the loopback interface.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, NoReturn

from sluice.batching.documents import Plan, write
from sluice.batching.errors import DispatchFailed
from sluice.local.parent_death import die_with_parent
from sluice.local.ports import chosen_port

START_TIMEOUT = 30.0  # seconds
STOP_TIMEOUT = 10.0  # seconds
AWS_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "local",
    "AWS_SECRET_ACCESS_KEY": "local",
    "AWS_REGION": "us-east-1",
    "AWS_DEFAULT_REGION": "us-east-1",
}
"""What a client of the local stack signs with: nothing of it means anything to AWS."""


class LambdaProcess:
    """``sluice.local.lambda_runtime`` as a child process."""

    def __init__(self, url: str) -> None:
        self.url = url

    def usage(self, function: str) -> dict[str, float]:
        """What a function has used since the last reset (``sluice.local.functions.Usage``)."""
        usage: dict[str, float] = json.loads(_request(f"{self.url}/usage/{function}"))
        return usage

    def reset_usage(self) -> None:
        """Count from zero."""
        _request(f"{self.url}/usage", "DELETE")

    def forget_environments(self, function: str) -> None:
        """End those that are idle: what comes next starts cold."""
        _request(f"{self.url}/environments/{function}", "DELETE")


class BufferProcess:
    """`sluice serve` as a child process, following one plan."""

    def __init__(self, url: str, plan_file: Path) -> None:
        self.url = url
        self._plan_file = plan_file

    def apply(self, plan: Plan) -> None:
        """Write the plan, and return when it is in force."""
        part = self._plan_file.with_suffix(".part")
        part.write_bytes(write(plan))
        part.replace(self._plan_file)
        info = 'sluice_plan_info{{digest="{}",function="{}",model="{}",policy="{}"}} 1.0'
        wanted = {info.format(plan.digest, route.function, plan.model, route.policy.kind) for route in plan.all_routes}
        deadline = time.monotonic() + START_TIMEOUT
        while not wanted <= set(_request(f"{self.url}/metrics").decode().splitlines()):
            if time.monotonic() > deadline:
                functions = ", ".join(route.function for route in plan.all_routes)
                raise DispatchFailed(f"the buffer does not follow plan {plan.digest} for {plan.model!r} on {functions}")
            time.sleep(0.05)


@contextlib.contextmanager
def lambda_process(functions: list[dict[str, Any]], **settings: Any) -> Iterator[LambdaProcess]:
    """Run these functions (fields of ``sluice.local.functions.Function``); ``settings`` are others of its configuration."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as config:
        json.dump({"functions": functions, **settings}, config)
        config.flush()
        with _child([sys.executable, "-m", "sluice.local.lambda_runtime", config.name], {}, subprocess.PIPE) as child:
            assert child.stdout is not None
            url = child.stdout.readline().decode().strip()
            if not url.startswith("http://"):
                _did_not_start("the Lambda runtime", child)
            yield LambdaProcess(url)


@contextlib.contextmanager
def buffer_process(redis_url: str, lambda_url: str, directory: Path, log: IO[bytes], **settings: str) -> Iterator[BufferProcess]:
    """Run a buffer on this Redis in front of that Lambda; ``settings`` are ``SLUICE_*`` by their names."""
    plan_file = directory / "plan.json"
    port = chosen_port()
    environment = AWS_ENVIRONMENT | {
        "AWS_ENDPOINT_URL_LAMBDA": lambda_url,
        "SLUICE_REDIS_URL": redis_url,
        "SLUICE_PLANS": f"file:{directory}",
        "SLUICE_PLAN_INTERVAL": "0.2",
        "SLUICE_PORT": str(port),
        "SLUICE_LEAVE_DELAY": "0",
        **{f"SLUICE_{name.upper()}": value for name, value in settings.items()},
    }
    url = f"http://127.0.0.1:{port}"
    with _child([sys.executable, "-m", "sluice.cli.main", "serve"], environment, log) as child:
        deadline = time.monotonic() + START_TIMEOUT
        while not _lives(url):
            if child.poll() is not None or time.monotonic() > deadline:
                _did_not_start("the buffer", child)
            time.sleep(0.02)
        yield BufferProcess(url, plan_file)


@contextlib.contextmanager
def control_process(redis_url: str, namespace: str, profile: Path, log: IO[bytes], kept_in: float) -> Iterator[None]:
    """Run a controller of the models that have a plan there, whose promises are to be kept in every ``kept_in`` seconds."""
    command = [sys.executable, "-m", "sluice.cli.main", "control", "--redis-url", redis_url, "--namespace", namespace]
    command += ["--profile", str(profile), "--architecture", "x86_64", "--kept-in", str(kept_in)]
    with _child(command, {}, log, log):  # its log is the journal, and long
        yield


@contextlib.contextmanager
def _child(
    command: list[str], environment: dict[str, str], stdout: int | IO[bytes], stderr: IO[bytes] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    # A session of its own: Ctrl-C at the terminal reaches the owner alone, who then stops its children in good order.
    child = subprocess.Popen(
        command, env=os.environ | environment, stdout=stdout, stderr=stderr, start_new_session=True, preexec_fn=die_with_parent()
    )
    try:
        yield child
    finally:
        child.terminate()
        try:
            child.wait(STOP_TIMEOUT)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        if child.stdout is not None:
            child.stdout.close()


def _did_not_start(what: str, child: subprocess.Popen[bytes]) -> NoReturn:
    raise DispatchFailed(f"{what} did not start (exit status {child.poll()}); what it printed stands above")


def _lives(url: str) -> bool:
    try:
        return bool(_request(f"{url}/v2/health/live"))
    except (urllib.error.URLError, ConnectionError):
        return False


def _request(url: str, method: str = "GET") -> bytes:
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=10) as response:
        body: bytes = response.read()
        return body
