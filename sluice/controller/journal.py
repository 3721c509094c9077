"""What controllers have decided, and why: lines of JSON in a file, and the newest in Redis for the live page.

An entry is an object with ``at`` (UTC, ISO 8601), ``model`` (``""`` of what concerns a whole fleet) and ``words``, a sentence;
what decided puts its figures beside them. The file is moved aside to ``NAME.1`` at ``MAX_FILE_BYTES``, so that two of them are the
most there is; in Redis the newest ``KEPT`` of all models stay, in the stream ``NAMESPACE:{plans}:decisions``, each as a field
``decision``.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from sluice.batching.errors import InvalidInput, StoreUnavailable
from sluice.buffer_service.redis_plans import RedisPlans

MAX_FILE_BYTES = 16 * 1024 * 1024
MAX_ENTRY_BYTES = 64 * 1024

_log = logging.getLogger(__name__)

Entry = Mapping[str, Any]


class Journal:
    """A journal that is written.

    Parameters
    ----------
    path
        ``None``: no file.
    plans
        Where the newest go besides; ``None``: nowhere.

    Raises
    ------
    InvalidInput
        A file that cannot be written.
    """

    def __init__(self, path: Path | None, plans: RedisPlans | None) -> None:
        self._path, self._plans = path, plans
        self._trouble = ""
        self._turn = asyncio.Lock()  # entries stand in the order in which they were told
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab"):
                    pass
            except OSError as error:
                raise InvalidInput("journal", str(path), f"a file that can be written ({error.strerror})") from None

    async def note(self, model: str, words: str, **figures: Any) -> None:
        """One entry. A journal that cannot be written is told of in the log, and keeps nobody from deciding."""
        entry = {"at": datetime.now(UTC).isoformat(timespec="milliseconds"), "model": model, "words": words} | figures
        line = msgspec.json.encode(entry)
        if len(line) > MAX_ENTRY_BYTES:
            line = msgspec.json.encode({name: entry[name] for name in ("at", "model")} | {"words": words[:1000]})
        troubles = []
        async with self._turn:  # of the file and of Redis each has the entry where the other has not
            try:
                self._append(line)
            except OSError as error:
                troubles.append(str(error))
            try:
                if self._plans is not None:
                    await self._plans.note_decision(line)
            except StoreUnavailable as error:
                troubles.append(str(error))
        trouble = "; ".join(troubles)
        if trouble not in ("", self._trouble):
            _log.warning("a decision is not in the journal: %s", trouble)
        self._trouble = trouble

    def _append(self, line: bytes) -> None:
        if self._path is None:
            return
        with self._path.open("ab") as file:
            full = file.tell() + len(line) >= MAX_FILE_BYTES
        if full:
            self._path.replace(f"{self._path}.1")
        with self._path.open("ab", buffering=0) as file:
            before, entry = file.tell(), line + b"\n"
            if file.write(entry) < len(entry):  # the rest of a disk: half an entry would take the next one with it
                file.truncate(before)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))


def read_journal(path: Path) -> Iterator[Entry]:
    """The entries of a file and of the one before it, oldest first; a line that was cut off is left out.

    Raises
    ------
    InvalidInput
        No such file.
    """
    if not path.is_file():
        raise InvalidInput("--explain", str(path), "a file that `sluice control --journal` wrote")
    for each in (Path(f"{path}.1"), path):
        if each.exists():
            with each.open("rb") as file:
                yield from (entry for line in file if (entry := _entry(line)) is not None)


def _entry(line: bytes) -> Entry | None:
    try:
        entry = msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return entry if isinstance(entry, dict) and {"at", "model", "words"} <= entry.keys() else None
