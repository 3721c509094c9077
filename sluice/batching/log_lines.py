"""How a line of the log looks, the same in every process: text or JSON by one switch, and no line again and again.

``SLUICE_LOG_FORMAT`` and ``SLUICE_LOG_LEVEL`` say it for a process and those that it starts. What libraries log goes the same way.
A warning or an error that was told is told again after a minute at the soonest, with how often it came meanwhile: a Redis that is
away says so to every call.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

from sluice.batching.errors import InvalidInput

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
FORMAT, LEVEL = "SLUICE_LOG_FORMAT", "SLUICE_LOG_LEVEL"
LONGEST_LINE = 16 * 1024  # characters of what is said, and of its traceback; what is longer is cut
AGAIN = 60.0  # s after which the same warning is told again
MOST_KINDS = 256  # of warnings that are counted; beyond them the one that came longest ago is forgotten


class LogLines(NamedTuple):
    """How lines look, and from which level on they are told."""

    format: str = FORMATS[0]
    level: str = "info"

    @classmethod
    def of(cls, environment: Mapping[str, str], level: str = "info") -> LogLines:
        """As the environment says; it need not say a level.

        Raises
        ------
        InvalidInput
            Another format or level.
        """
        return cls(environment.get(FORMAT) or FORMATS[0], environment.get(LEVEL) or level).checked()

    def checked(self) -> LogLines:
        """The same; raises ``InvalidInput`` with the variable."""
        for variable, value, allowed in ((FORMAT, self.format, FORMATS), (LEVEL, self.level, LEVELS)):
            if value not in allowed:
                raise InvalidInput(variable, value, f"{', '.join(allowed[:-1])} or {allowed[-1]}")
        return self


def log_to(handler: logging.Handler, lines: LogLines) -> None:
    """Have everything that is logged, by libraries too, written by this handler alone."""
    handler.setFormatter(_Json() if lines.format == "json" else _Text("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    handler.addFilter(Repeated())
    logging.basicConfig(level=lines.level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)


def log_to_stderr(level: str, environment: Mapping[str, str] | None = None) -> None:
    """As the environment says, from ``level`` on where it names none; raises ``InvalidInput``."""
    log_to(logging.StreamHandler(), LogLines.of(os.environ if environment is None else environment, level))


class Repeated(logging.Filter):
    """Passes a warning, or what is worse, once in ``interval`` seconds; the next one says how many were left out."""

    def __init__(self, interval: float = AGAIN, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._interval, self._clock = interval, clock
        self._told: dict[tuple[str, int, str], tuple[float, int]] = {}  # when, and how many since; the last that came at the end
        self._counting = threading.Lock()  # threads log too

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        try:
            now, said = self._clock(), record.getMessage()
        except Exception:  # what is logged does not fit its own text: the handler's to tell
            return True
        kind = record.name, record.levelno, said
        with self._counting:
            at, more = self._told.pop(kind, (-float("inf"), 0))
            if again := now >= at + self._interval:
                self._told[kind] = now, 0
            else:
                self._told[kind] = at, more + 1
            if len(self._told) > MOST_KINDS:
                del self._told[next(iter(self._told))]
        if not again:
            return False
        if more:
            record.msg, record.args = f"{said} ({more} more like it in the last {now - at:.0f} s)", ()
        return True


class _Text(logging.Formatter):
    """A line for a person; a stack of calls has several."""

    def format(self, record: logging.LogRecord) -> str:
        return _cut(super().format(record))


class _Json(logging.Formatter):
    """A line of JSON, whatever it says, the stack of calls within it."""

    def format(self, record: logging.LogRecord) -> str:
        told: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": _cut(record.getMessage()),
        }
        if record.exc_info:
            told["traceback"] = _cut(self.formatException(record.exc_info))
        return json.dumps(told, ensure_ascii=False)


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"
