"""What the local Lambda knows of a function: its settings, its limits, how its use is billed and reported.

What may live here: records and arithmetic. What may not: a clock, a process, a socket. Limits and texts are Lambda's own.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, field
from typing import Any

import msgspec

from sluice.batching.errors import InvalidInput
from sluice.lambda_fn.contract import PAYLOAD_LIMIT

MB_PER_VCPU = 1769
"""A function of this memory has one vCPU; the share is proportional (AWS Lambda developer guide, memory)."""
MEMORY_MB = (128, 10240)
MAX_TIMEOUT = 900.0
MAX_ASYNC_REQUEST = 1024 * 1024
MAX_RESPONSE = PAYLOAD_LIMIT + 100
LOG_TAIL = 4096
REGION = "us-east-1"
ACCOUNT = "123456789012"
LATEST = "$LATEST"


class Function(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A function to run.

    Parameters
    ----------
    name, handler : str
        ``handler`` is ``module.attribute``.
    memory_mb : int
        Sets the CPU share too: ``memory_mb / 1769`` vCPU.
    environment : dict
        Its own environment variables.
    timeout : float
        Seconds of one invocation, cold start apart.
    concurrency_limit : int
        Invocations at once, each in a process of its own; one more is answered 429. Lambda's default is the account's 1000;
        this machine's memory asks for less.
    working_directory : str
        The task root: where it runs and what is first on its path.
    enforce_memory : bool
        Kill it when its resident memory has passed ``memory_mb``, as Lambda does.
    aliases : tuple of str
        Qualifiers that it answers to beside ``$LATEST``.
    """

    name: str
    handler: str = "sluice.lambda_fn.handler.handler"
    memory_mb: int = MB_PER_VCPU
    environment: dict[str, str] = {}
    timeout: float = 30.0
    concurrency_limit: int = 50
    working_directory: str = msgspec.field(default_factory=os.getcwd)
    enforce_memory: bool = True
    aliases: tuple[str, ...] = ("live",)

    def __post_init__(self) -> None:
        low, high = MEMORY_MB
        for ok, name, value, allowed in [
            (self.name != "", "name", self.name, "a name"),
            ("." in self.handler, "handler", self.handler, "module.attribute"),
            (low <= self.memory_mb <= high, "memory_mb", self.memory_mb, f"{low} to {high}"),
            (0 < self.timeout <= MAX_TIMEOUT, "timeout", self.timeout, f"seconds in (0, {MAX_TIMEOUT:g}]"),
            (self.concurrency_limit >= 0, "concurrency_limit", self.concurrency_limit, "a number >= 0"),
        ]:
            if not ok:
                raise InvalidInput(f"function {name}", value, allowed)

    @property
    def cpu_share(self) -> float:
        """vCPUs that Lambda gives to this memory."""
        return self.memory_mb / MB_PER_VCPU

    @property
    def arn(self) -> str:
        return f"arn:aws:lambda:{REGION}:{ACCOUNT}:function:{self.name}"

    def configuration(self) -> dict[str, Any]:
        """As GetFunctionConfiguration answers."""
        return {
            "FunctionName": self.name,
            "FunctionArn": self.arn,
            "Runtime": "python3.11",
            "Role": f"arn:aws:iam::{ACCOUNT}:role/local",
            "Handler": self.handler,
            "MemorySize": self.memory_mb,
            "Timeout": math.ceil(self.timeout),
            "Version": LATEST,
            "PackageType": "Zip",
            "Architectures": [os.uname().machine.replace("aarch64", "arm64")],
            "Environment": {"Variables": self.environment},
            "State": "Active",
            "LastUpdateStatus": "Successful",
        }


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one invocation ended: what the caller gets and what is billed. Durations in seconds."""

    request_id: str
    payload: bytes
    error: str | None
    duration: float
    init_duration: float | None
    max_memory_mb: int
    log: bytes
    status: str | None = None

    @property
    def billed_duration(self) -> float:
        """Whole milliseconds, the cold start included (as Lambda bills since 2025-08-01), in seconds."""
        # Rounded at the microsecond first: 0.003 s must not become 4 ms by its binary neighbour.
        return max(1, math.ceil(round((self.duration + (self.init_duration or 0.0)) * 1e3, 3))) / 1e3

    def report(self, memory_mb: int) -> str:
        """The REPORT line of the log."""
        parts = [
            f"REPORT RequestId: {self.request_id}",
            f"Duration: {self.duration * 1e3:.2f} ms",
            f"Billed Duration: {self.billed_duration * 1e3:.0f} ms",
            f"Memory Size: {memory_mb} MB",
            f"Max Memory Used: {self.max_memory_mb} MB",
        ]
        if self.init_duration is not None:
            parts.append(f"Init Duration: {self.init_duration * 1e3:.2f} ms")
        if self.status is not None:
            parts.append(f"Status: {self.status}")
        return "\t".join(parts) + "\t\n"

    def log_tail(self, memory_mb: int, version: str) -> bytes:
        """The last 4 KB of the invocation's log, as ``LogType=Tail`` has them."""
        start = f"START RequestId: {self.request_id} Version: {version}\n".encode()
        end = f"END RequestId: {self.request_id}\n{self.report(memory_mb)}".encode()
        return (start + self.log + end)[-LOG_TAIL:]


@dataclass(slots=True)
class Usage:
    """What a function has used since the start or the last reset. Times in seconds; ``gb_seconds`` is billed time × GB."""

    invocations: int = 0
    errors: int = 0
    timeouts: int = 0
    throttles: int = 0
    cold_starts: int = 0
    duration: float = 0.0
    init_duration: float = 0.0
    billed_duration: float = 0.0
    gb_seconds: float = 0.0
    max_concurrency: int = 0
    max_memory_mb: int = 0

    def add(self, outcome: Outcome, memory_mb: int) -> None:
        """Count one invocation that ended."""
        self.invocations += 1
        self.errors += outcome.error is not None
        self.timeouts += outcome.status == "timeout"
        self.cold_starts += outcome.init_duration is not None
        self.duration += outcome.duration
        self.init_duration += outcome.init_duration or 0.0
        self.billed_duration += outcome.billed_duration
        self.gb_seconds += outcome.billed_duration * memory_mb / 1024
        self.max_memory_mb = max(self.max_memory_mb, outcome.max_memory_mb)

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Invocation:
    """What an environment is handed."""

    request_id: str
    payload: bytes
    arn: str
    headers: dict[str, str] = field(default_factory=dict)
