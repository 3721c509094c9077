"""Arrival times in access logs of an AWS Application Load Balancer.

One line per request, fields separated by spaces, some of them in quotes (AWS, Access logs for your Application Load Balancer). The
first time in a line is when the answer was made; the 22nd field, ``request_creation_time``, is when the request came, and that one
is taken. Each node of the balancer writes a file of its own every five minutes, its lines in the order of the answers, so the times
are sorted here. Every line counts, whatever its status: what the balancer refused came as well.
"""

from __future__ import annotations

import gzip
import re
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sluice.batching.errors import InvalidInput
from sluice.optimizer.when_asked import module_when_asked

pa = module_when_asked("pyarrow")

_PLAIN = rb'[^ "\n]+ '
_QUOTED = rb'"[^"\\\n]*(?:\\.[^"\\\n]*)*" '
_CREATED = re.compile(
    rb"^(?:" + _PLAIN + rb"){12}" + _QUOTED * 2 + rb"(?:" + _PLAIN + rb"){3}" + _QUOTED * 3 + _PLAIN + rb"(\S+)(?= |\r?$)",
    re.MULTILINE,
)
_TIME = rb"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?Z"
_FIRST = re.compile(rb"\s*(?:https?|h2|grpcs?|wss?) " + _TIME + rb" \S+ \S+ ")

# Of other kinds, or AWS's trial write; all stand in the same folders.
_OTHER_FILES = re.compile(r"conn_log|health_check_log|ELBAccessLogTestFile")


def is_access_log(data: bytes) -> bool:
    """Whether a file begins as such a log does."""
    return _FIRST.match(data) is not None


def log_files(folder: Path) -> list[Path]:
    """The logs, plain or gzip, in a folder and those below it, by name.

    Raises
    ------
    InvalidInput
        When there is none.
    """
    files = sorted(p for p in folder.rglob("*") if p.name.endswith((".log", ".log.gz")) and not _OTHER_FILES.search(p.name))
    if not files:
        raise InvalidInput("trace", str(folder), "a folder with access logs of a load balancer (*.log, *.log.gz)")
    return files


def read_access_logs(files: list[Path]) -> NDArray[np.int64]:
    """Times at which requests came, nanoseconds since 1970, ascending, of all files together.

    Raises
    ------
    InvalidInput
        Names the file, the line and what it holds when it is not one of such a log.
    """
    return np.sort(np.concatenate([_creation_times(_content(file), str(file)) for file in files]))


def _content(file: Path) -> bytes:
    try:
        data = file.read_bytes()
        return gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data
    except (OSError, EOFError, zlib.error) as error:
        raise InvalidInput("trace", str(file), f"a readable access log, plain or gzip ({error})") from None


def _creation_times(data: bytes, source: str) -> NDArray[np.int64]:
    found = _CREATED.findall(data)
    lines = [line for line in data.splitlines() if line.strip()]
    if len(found) == len(lines):
        try:
            stamps = pa.array([stamp.decode("ascii") for stamp in found], pa.string()).cast(pa.timestamp("ns", "UTC"))
            return np.asarray(stamps.cast(pa.int64()).to_numpy(), dtype=np.int64)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            pass
    for number, line in enumerate(data.splitlines(), 1):
        match = _CREATED.match(line)
        if line.strip() and not (match and re.fullmatch(_TIME, match[1])):
            shown = match[1] if match else line
            raise InvalidInput(
                f"{source}, line {number}",
                shown.decode("utf-8", "replace"),
                "a record with its request_creation_time",
            )
    raise InvalidInput("trace", source, "an access log whose request_creation_times are dates that exist")
