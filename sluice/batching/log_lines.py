"""How a line of the log looks, the same in every process: text or JSON by one switch, and no line again and again.

``SLUICE_LOG_FORMAT`` and ``SLUICE_LOG_LEVEL`` say it for a process and those that it starts. What libraries log goes the same way,
and so does what a process dies of. A warning or an error that was told is told again after a minute at the soonest, with how often
it came meanwhile: a Redis that is away says so to every call. Those are like each other that differ in nothing but their numbers;
a number within a name (``mlp-2``, ``10.0.0.7:8500``) is part of the name.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, NamedTuple, Protocol

from sluice.batching.errors import InvalidInput

FORMATS = ("text", "json")
LEVELS = ("debug", "info", "warning", "error")
FORMAT, LEVEL = "SLUICE_LOG_FORMAT", "SLUICE_LOG_LEVEL"
LONGEST_LINE = 16 * 1024  # characters of what is said, and of its traceback; what is longer is cut
AGAIN = 60.0  # s after which the same warning is told again
MOST_KINDS = 256  # of warnings that are counted; beyond them the one that came longest ago is forgotten

_NUMBER = re.compile(r"""(?<![\w.:/'"-])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?:[mu]?s|min|h|[kKMG]?B|%)?(?![\w:/'"-]|\.\w)|\b0x[0-9a-f]+""")
"""One that stands by itself, with its unit; or where something lies in memory."""


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
        return cls(environment.get(FORMAT, FORMATS[0]), environment.get(LEVEL, level)).checked()

    def checked(self) -> LogLines:
        """The same; raises ``InvalidInput`` with the variable."""
        for variable, value, allowed in ((FORMAT, self.format, FORMATS), (LEVEL, self.level, LEVELS)):
            if value not in allowed:
                raise InvalidInput(variable, value, f"{', '.join(allowed[:-1])} or {allowed[-1]}")
        return self

    @property
    def formatter(self) -> logging.Formatter:
        """What makes them."""
        return _Json() if self.format == "json" else _Text("%(asctime)s %(levelname)s %(name)s: %(message)s")

    def line(self, logger: str, level: int, said: str, stack: str = "") -> str:
        """One of them, for what cannot be logged as everything else is; ``stack`` is a traceback."""
        record = logging.LogRecord(logger, level, "", 0, said, (), None)
        record.exc_text = stack or None
        return self.formatter.format(record)


TEXT = LogLines()


class Stream(Protocol):
    """Where lines go."""

    def write(self, line: str, /) -> int: ...

    def flush(self) -> None: ...


def log_to(stream: Stream, lines: LogLines) -> None:
    """Have everything that is logged, by libraries too, and what the process dies of, written to this stream alone."""
    handler = _Handler(stream, lines)
    handler.addFilter(Repeated())
    logging.basicConfig(level=lines.level.upper(), handlers=[handler], force=True)
    logging.captureWarnings(True)
    for library in ("botocore", "urllib3"):  # at `debug` AWS's writes what it sends and gets, its session's token among it
        logging.getLogger(library).setLevel(logging.WARNING)
    logging.getLogger("botocore.credentials").setLevel(logging.DEBUG if lines.level == "debug" else logging.WARNING)
    sys.excepthook, threading.excepthook = _die, _thread_dies


def log_to_stderr(level: str, environment: Mapping[str, str] | None = None) -> None:
    """As the environment says, from ``level`` on where it names none; raises ``InvalidInput``."""
    log_to(sys.stderr, LogLines.of(os.environ if environment is None else environment, level))


def last_words(program: str, said: str, stack: str = "") -> None:
    """Say on stderr why a process does not go on: as it logs where that is JSON, and else to who typed its name."""
    lines = next((handler.lines for handler in logging.getLogger().handlers if isinstance(handler, _Handler)), TEXT)
    if lines.format == "json":
        print(lines.line(program, logging.CRITICAL, said, stack), file=sys.stderr)
    else:
        print(f"{stack}{program}: {said}", file=sys.stderr)


class Repeated(logging.Filter):
    """Passes a warning, or what is worse, once in ``interval`` seconds; the next one says how many were left out."""

    def __init__(self, interval: float = AGAIN, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._interval, self._clock = interval, clock
        self._told: dict[tuple[object, ...], tuple[float, int]] = {}  # when, and how many since; the last that came at the end
        self._begin_alone()
        os.register_at_fork(after_in_child=self._begin_alone)  # as a copy of this process has not the thread that counts

    def _begin_alone(self) -> None:
        self._counting = threading.Lock()  # threads log too

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno < logging.WARNING:
            return True
        try:
            now, said = self._clock(), record.getMessage()
        except Exception:  # what is logged does not fit its own text: the handler's to tell
            return True
        raised = record.exc_info[0] if record.exc_info else None
        kind = record.name, record.levelno, raised, _NUMBER.sub("0", said[:LONGEST_LINE])
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


class _Handler(logging.StreamHandler[Stream]):
    """Also of what does not fit its own text there is a line like all others; who logs never learns that it cannot be written."""

    def __init__(self, stream: Stream, lines: LogLines) -> None:
        super().__init__(stream)
        self.lines = lines
        self.setFormatter(lines.formatter)

    def handleError(self, record: logging.LogRecord) -> None:
        with suppress(Exception):
            said = f"a line of {record.name} cannot be written: {record.msg!r:.200}"
            self.stream.write(self.lines.line(record.name, record.levelno, said) + self.terminator)


def _die(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """What the process dies of, where it was nobody's to catch."""
    if not issubclass(kind, Exception):
        sys.__excepthook__(kind, error, trace)
        return
    last_words("sluice", f"a defect: {error!r}", "".join(traceback.format_exception(kind, error, trace)))


def _thread_dies(died: threading.ExceptHookArgs) -> None:
    logging.getLogger(__name__).critical("a thread has a defect, and has ended", exc_info=died.exc_value)


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
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            told["traceback"] = _cut(record.exc_text)
        return json.dumps(told, ensure_ascii=False)


def _cut(line: str) -> str:
    return line if len(line) <= LONGEST_LINE else line[: LONGEST_LINE - 1] + "…"
