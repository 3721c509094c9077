"""What Lambda says of one invocation: the REPORT line at the end of the log tail.

    REPORT RequestId: 8f5…  Duration: 12.34 ms  Billed Duration: 13 ms  Memory Size: 512 MB  Max Memory Used: 90 MB
    Init Duration: 210.00 ms

The fields stand on one line, separated by tabs; ``Init Duration`` stands only on a cold start. A function whose log format is JSON
says the same in a ``platform.report`` record. The log tail is the last 4 KB of the invocation's log, base64 encoded
(``LogType=Tail``).

Source: AWS Lambda Developer Guide, "Understanding the Lambda report log" and "Lambda Telemetry API Event schema reference".
"""

from __future__ import annotations

import base64
import re

import msgspec

from sluice.batching.errors import FunctionFailed


class Report(msgspec.Struct, frozen=True):
    """Durations in seconds, memory in MB; ``init_duration`` is ``None`` unless the invocation was a cold start.

    ``max_memory_used_mb`` is 0 where nobody said it.
    """

    duration: float
    billed_duration: float
    memory_mb: int
    max_memory_used_mb: int
    init_duration: float | None = None


class _Metrics(msgspec.Struct, rename="camel"):
    duration_ms: float
    billed_duration_ms: float
    memory_size_mb: int = msgspec.field(name="memorySizeMB")
    max_memory_used_mb: int = msgspec.field(name="maxMemoryUsedMB")
    init_duration_ms: float | None = None


class _Record(msgspec.Struct):
    metrics: _Metrics


class _Event(msgspec.Struct):
    type: str
    record: _Record


_FIELD = re.compile(r"(?:^|\t)\s*([A-Za-z ]+): ([0-9.]+) (?:ms|MB)")
_FIELDS = ("Duration", "Billed Duration", "Memory Size", "Max Memory Used")


def parse_report(log_result: str) -> Report:
    """The report in the ``LogResult`` of an invocation; the last one, should the function have printed something like it.

    Raises
    ------
    FunctionFailed
        There is no report, or a field is missing from it: the message shows the end of the log.
    """
    try:
        log = base64.b64decode(log_result, validate=True).decode("utf-8", "replace")
    except ValueError as error:
        raise FunctionFailed(f"the log tail is not base64 ({error}): {log_result[:80]!r}") from None
    for line in reversed(log.splitlines()):
        if line.startswith("REPORT "):
            return _of_text(line)
        if '"platform.report"' in line:
            return _of_json(line)
    raise FunctionFailed(
        f"no REPORT line in the log tail (was the function invoked with LogType=Tail?); the log ends: {log[-200:]!r}"
    )


def has_report(log_result: str) -> bool:
    """Whether a log tail has a report in it; also where it is not readable, which ``parse_report`` says."""
    try:
        log = base64.b64decode(log_result, validate=True)
    except ValueError:
        return True
    return any(line.startswith(b"REPORT ") or b'"platform.report"' in line for line in log.splitlines())


def _of_text(line: str) -> Report:
    fields = dict(_FIELD.findall(line))
    missing = [name for name in _FIELDS if name not in fields]
    if missing:
        raise FunctionFailed(f"the REPORT line lacks {', '.join(missing)}: {line!r}")
    duration_ms, billed_ms, memory_mb, used_mb = (float(fields[name]) for name in _FIELDS)
    init_ms = fields.get("Init Duration")
    return Report(
        duration_ms / 1e3, billed_ms / 1e3, int(memory_mb), int(used_mb), None if init_ms is None else float(init_ms) / 1e3
    )


def _of_json(line: str) -> Report:
    try:
        metrics = msgspec.json.decode(line, type=_Event).record.metrics
    except msgspec.DecodeError as error:
        raise FunctionFailed(f"the platform.report record is not one ({error}): {line!r}") from None
    init_ms = metrics.init_duration_ms
    return Report(
        metrics.duration_ms / 1e3,
        metrics.billed_duration_ms / 1e3,
        metrics.memory_size_mb,
        metrics.max_memory_used_mb,
        None if init_ms is None else init_ms / 1e3,
    )
