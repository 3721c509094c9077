"""A worker in a process of its own (child.py): what runs in it, from its first line to its last."""

from __future__ import annotations

import multiprocessing.spawn
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any, NamedTuple

from sluice.batching.log_lines import FORMAT, LEVEL, log_to_stderr

from ..halving import said
from .calls import Raised, call_batch, call_one, encode_output, why_not
from .child import first_words
from .errors import StageError
from .frames import FrameSocket, Kind, pack, split
from .payloads import Encoded, decode

RETURN_WITHIN = 0.001  # s for which results of single items are kept to be sent together

starting = False
"""Whether this process is a worker that is still importing what it is to run."""


class Setup(NamedTuple):
    """What a worker is told first. ``made`` is the pickle of a callable, its arguments and its keywords; ``main`` is what
    ``multiprocessing.spawn.prepare`` needs to import the main module of who started it."""

    made: bytes
    main: dict[str, Any]
    single: bool
    cpus: list[int] | None
    max_payload: int


def main_module() -> dict[str, Any]:
    """What a worker needs to import the main module of this process."""
    data: dict[str, Any] = {"sys_argv": sys.argv, "dir": os.getcwd()}
    module = sys.modules["__main__"]
    name = getattr(getattr(module, "__spec__", None), "name", None)
    path = getattr(module, "__file__", None)
    if name is not None:
        data["init_main_from_name"] = name
    elif path is not None:
        data["init_main_from_path"] = os.path.abspath(path)
    return data


def main(fd: int) -> None:
    """Run a worker until the other end of ``fd`` is closed."""
    global starting
    told = first_words(fd)
    if told is None:
        return
    stream: FrameSocket = told[0]
    setup: Setup = told[1]
    starting = True
    sys.argv = setup.main["sys_argv"]
    try:
        if not {FORMAT, LEVEL}.isdisjoint(os.environ):  # else who runs stages in a program of his own says how they log
            log_to_stderr("warning")
        if setup.cpus is not None:
            os.sched_setaffinity(0, setup.cpus)
        if b"__main__" in setup.made:
            _import_main(setup.main)
        made_by, args, kwargs = pickle.loads(setup.made)
        predict = made_by(*args, **kwargs).predict
    except BaseException as error:
        stream.send(*pack(Kind.FAILED, [(0, False, Encoded(why_not(error).encode()))]))
        return
    starting = False
    stream.send(*pack(Kind.READY, []))
    _Loop(stream, predict, setup).run()


class _Loop:
    def __init__(self, stream: FrameSocket, predict: Callable[[Any], Any], setup: Setup) -> None:
        self._stream = stream
        self._predict = predict
        self._setup = setup
        self._main_imported = b"__main__" in setup.made

    def run(self) -> None:
        work: list[tuple[int, bool, Encoded]] = []
        while self._stream.read():
            for frame in self._stream.frames():
                work += frame.payloads
                if frame.kind == Kind.WORK:
                    if self._setup.single:
                        self._one_by_one(work)
                    else:
                        self._together(work)
                    work = []

    def _one_by_one(self, work: list[tuple[int, bool, Encoded]]) -> None:
        returned: list[tuple[int, bool, Encoded]] = []
        started = time.perf_counter()
        for number, files, payload in work:
            value = self._value(payload)
            output = value if isinstance(value, Raised) else call_one(self._predict, value)
            failed, result = encode_output(output, files, self._setup.max_payload)
            returned.append((number, failed, result))
            now = time.perf_counter()
            if now - started > RETURN_WITHIN:
                self._return(returned, now - started)
                returned = []
                started = time.perf_counter()
        if returned:
            self._return(returned, time.perf_counter() - started)

    def _together(self, work: list[tuple[int, bool, Encoded]]) -> None:
        started = time.perf_counter()
        outputs: list[Any] = [self._value(payload) for _, _, payload in work]
        read = [i for i, value in enumerate(outputs) if not isinstance(value, Raised)]
        if read:
            for i, output in zip(read, call_batch(self._predict, [outputs[i] for i in read]), strict=True):
                outputs[i] = output
        returned = []
        for (number, files, _), output in zip(work, outputs, strict=True):
            failed, payload = encode_output(output, files, self._setup.max_payload)
            returned.append((number, failed, payload))
        self._return(returned, time.perf_counter() - started)

    def _return(self, returned: list[tuple[int, bool, Encoded]], seconds: float) -> None:
        for part in split(returned):
            self._stream.send(*pack(Kind.RETURNED, part, seconds))

    def _value(self, payload: Encoded) -> Any:
        try:
            try:
                return decode(payload)
            except AttributeError:
                if self._main_imported:
                    raise
                self._main_imported = True  # it may be of a class of the main module, which has not been needed yet
                _import_main(self._setup.main)
                return decode(payload)
        except BaseException as error:
            return Raised(error if isinstance(error, Exception) else StageError(said(error)), traceback.format_exc())


def _import_main(data: dict[str, Any]) -> None:
    multiprocessing.spawn.prepare(data)
