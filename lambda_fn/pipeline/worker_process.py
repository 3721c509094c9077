"""A worker in a process of its own (child.py): what runs in it, from its first line to its last."""

from __future__ import annotations

import multiprocessing.spawn
import os
import pickle
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from sluice.batching.log_lines import FORMAT, LEVEL, log_to_stderr

from ..halving import said
from .calls import Raised, call_batch, call_one, encode_output, why_not
from .child import first_words
from .errors import StageError
from .frames import FrameSocket, Kind, pack, split
from .marks import Marks
from .one_by_one import OneByOne
from .payloads import Encoded, decode

starting = False
"""Whether this process is a worker that is still importing what it is to run."""


_Given = tuple[int, bool, Encoded]
_NOTHING = Encoded(b"")


class Setup(NamedTuple):
    """What a worker is told first. ``made`` is the pickle of a callable, its arguments and its keywords; ``main`` is what
    ``multiprocessing.spawn.prepare`` needs to import the main module of who started it; ``marks`` the descriptor of its ``Marks``,
    where it has such."""

    made: bytes
    main: dict[str, Any]
    single: bool
    cpus: list[int] | None
    max_payload: int
    marks: int | None = None


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
    marks = Marks(setup.marks)
    if setup.marks is not None:
        os.close(setup.marks)  # the memory stays, and what the stage starts does not get it
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
    _Loop(stream, predict, setup, marks).run()


class _Loop:
    def __init__(self, stream: FrameSocket, predict: Callable[[Any], Any], setup: Setup, marks: Marks) -> None:
        self._stream = stream
        self._predict = predict
        self._setup = setup
        self._main_imported = b"__main__" in setup.made
        self._marks = marks
        self._place = 0  # of the next batch

    def run(self) -> None:
        singles: OneByOne[_Given, _Given] = OneByOne(self._marks, self._one, self._return, self._skip, "results")
        together = singles.run if self._setup.single else self._together
        work: list[_Given] = []
        while self._stream.read():
            for frame in self._stream.frames():
                work += frame.payloads
                if frame.kind == Kind.WORK:
                    together(work)
                    work = []

    def _one(self, given: _Given) -> _Given:
        number, files, payload = given
        output = call_one(self._predict, self._value(payload))
        return (number, *encode_output(output, files, self._setup.max_payload))

    def _together(self, work: list[_Given]) -> None:
        place, self._place = self._place, self._place + len(work)
        if not self._marks.begin(place, len(work)):
            self._skip(range(place, self._place))
            return
        started = time.perf_counter()
        outputs = call_batch(self._predict, [self._value(payload) for _, _, payload in work])
        returned = []
        for (number, files, _), output in zip(work, outputs, strict=True):
            failed, payload = encode_output(output, files, self._setup.max_payload)
            returned.append((number, failed, payload))
        self._return(returned, time.perf_counter() - started)

    def _skip(self, places: Sequence[int]) -> None:
        self._stream.send(*pack(Kind.SKIPPED, [(place, False, _NOTHING) for place in places]))

    def _return(self, returned: list[_Given], seconds: float) -> None:
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
