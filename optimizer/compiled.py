"""Compiled functions: ``@compiled`` turns a function of numbers and numpy arrays into machine code at its first call.

The code is kept beside the module (``__pycache__``) or in the user's cache, so that later processes load it; where neither can be
written it is made anew in every process. It is made anew where any module of this room that has such functions is another: numba
looks at the one that the function is of alone, though code of others is in it, and cannot read what it kept of a record that is no
more. With ``NUMBA_DISABLE_JIT=1`` in the environment the functions run as plain Python, for debugging.

numba is imported at the first call of any that is not kept; what is kept is called without it (``kept_code``), as with the code
that it loads it takes 130 MB. A process that gives its loops few numbers, and is to stay small, goes ``without_numba``: what is not
kept runs as Python there, over views of the same arrays, whose items are numbers of Python and so thrice as quick as those of
numpy. There a loop may not assign to a slice, nor call what numbers of Python do not have.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from functools import cache, cached_property, update_wrapper
from pathlib import Path
from types import FunctionType
from typing import Any, ClassVar, Generic, ParamSpec, TypeVar, cast

import numpy as np

from sluice.optimizer.kept_code import KeptCode, Kinds, kinds_of, machine_stamp

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """``function`` as machine code; its arguments and results must be numbers, numpy arrays, or tuples of these."""
    return _Loop(function)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """The same for what compiled code alone calls, put into each caller: for parts of a loop that are given records.

    Every array of a record is counted when a function gets it and when it returns, which may take longer than what it does; and to
    make a function that Python can give records takes longer than to make the function.
    """
    return _Loop(function, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


@contextmanager
def without_numba() -> Iterator[None]:
    """The loops of this process that are not kept as machine code run as Python."""
    with _small(True):
        yield


@contextmanager
def with_numba() -> Iterator[None]:
    """They are made, in a part of what goes ``without_numba``."""
    with _small(False):
        yield


@contextmanager
def _small(wanted: bool) -> Iterator[None]:
    before, _Loop.without_numba = _Loop.without_numba, wanted
    try:
        yield
    finally:
        _Loop.without_numba = before


def look_again() -> None:
    """What was not kept when it was looked for may be now: a process that goes ``without_numba`` asks for that now and then."""
    _Loop.not_kept.clear()


class _Loop(Generic[P, R]):
    """A function that becomes machine code when it, or a loop that calls it, is first called."""

    without_numba = False
    not_kept: ClassVar[set[tuple[_Loop[Any, Any], Kinds]]] = set()  # of all loops, where nothing was found

    def __init__(self, function: Callable[P, R], **options: Any) -> None:
        self._function, self._options = function, options
        self._ready: dict[Kinds, Callable[..., R]] = {}
        update_wrapper(self, function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        kinds = None if kwargs or self._options else kinds_of(args)
        if kinds is None:
            return (self._as_python if _Loop.without_numba else self.machine_code)(*args, **kwargs)
        return (self._ready.get(kinds) or self._readied(kinds, args))(*args)

    def _as_python(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self._python(*map(_view, args), **{name: _view(value) for name, value in kwargs.items()})

    @cached_property
    def _python(self) -> Callable[..., R]:
        """The function that calls other loops as Python has them, with the views that it was given."""
        function = cast(FunctionType, self._function)
        called = {name: function.__globals__.get(name) for name in function.__code__.co_names}
        plain = {name: loop._python for name, loop in called.items() if isinstance(loop, _Loop)}
        if not plain:
            return function
        defaults, closure = function.__defaults__, function.__closure__
        return FunctionType(function.__code__, function.__globals__ | plain, function.__name__, defaults, closure)

    @cached_property
    def machine_code(self) -> Callable[P, R]:
        return _as_machine_code(self._function, **self._options)

    def _readied(self, kinds: Kinds, args: tuple[Any, ...]) -> Callable[..., R]:
        """What to call with arguments of these kinds: what is kept, or else what numba makes now, which is kept, or Python."""
        small = _Loop.without_numba
        looked_for = small and (self, kinds) in _Loop.not_kept
        found = self._kept.find(kinds, without_llvm=small) if self._kept is not None and not looked_for else None
        if found is None and small:
            _Loop.not_kept.add((self, kinds))
            return self._as_python
        if found is None:
            made: Any = self.machine_code
            found = made
            if self._kept is not None:
                types = tuple(map(made.typeof_pyval, args))
                made.compile(types)
                self._kept.keep(kinds, made, types)
        self._ready[kinds] = found
        return found

    @cached_property
    def _kept(self) -> KeptCode | None:
        """Nothing is kept of a function that is in no file, or where functions are to run as plain Python."""
        function = cast(FunctionType, self._function)
        source = Path(function.__code__.co_filename)
        if os.environ.get("NUMBA_DISABLE_JIT", "0") != "0" or not source.is_file():
            return None
        return KeptCode(function, machine_stamp() + room_stamp(Path(__file__).parent) + _text_stamp(source))

    @property
    def _numba_type_(self) -> Any:
        """What numba takes it for where another loop calls it."""
        return cast(Any, self.machine_code)._numba_type_

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.machine_code, name)


def _view(value: Any) -> Any:
    """An array, or those of a record, so that its items are numbers of Python."""
    if isinstance(value, np.ndarray):
        return memoryview(cast(Any, value))
    if isinstance(value, tuple):
        views = [memoryview(cast(Any, each)) if type(each) is np.ndarray else _view(each) for each in value]
        return cast(Any, getattr(type(value), "_make", tuple))(views)
    return value


def _as_machine_code(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    import numba

    try:
        made = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba's word for: no place to keep it
        made = numba.njit(**options)(function)
    if not hasattr(made, "compile"):  # NUMBA_DISABLE_JIT has it as it is
        return function
    made.compile = _at_first_level(made.compile)
    kept = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if kept is not None:
        kept._version += room_stamp(Path(__file__).parent)  # what is of another version numba does not read
        made.compile = _one_at_a_time(made.compile, Path(kept._index_path).with_suffix(".lock"))
    return cast(Callable[P, R], made)


def _one_at_a_time(compile: Callable[..., Any], lock: Path) -> Callable[..., Any]:
    """Of several processes that need the code one makes it, and the others read what it kept.

    Each of them would make it, and the last to write would lose what the others had added to the index. A loop is locked before
    those that it calls, and no loop calls those that call it, so that nobody waits in a circle.
    """
    from numba.core.compiler_lock import global_compiler_lock

    def compiled_once(signature: Any) -> Any:
        with global_compiler_lock, lock.open("a") as file:  # the threads of this process first, for they share what it holds
            flock(file, LOCK_EX)
            return compile(signature)

    return compiled_once


def _at_first_level(compile: Callable[..., Any]) -> Callable[..., Any]:
    """LLVM's first level in place of its third, unless NUMBA_OPT says another: loops are made in three quarters of the time.

    Of simulator, fits, search and SMDP none is then more than 5 % slower, and a process that has made the code is 20 MB smaller.
    """
    import numba
    from numba.core.compiler_lock import global_compiler_lock

    config: Any = numba.core.config

    def compiled_so(signature: Any) -> Any:
        with global_compiler_lock:  # for the level is that of all threads
            before = config.OPT
            if "NUMBA_OPT" not in os.environ:
                config.OPT = type(before)(1)
            try:
                return compile(signature)
            finally:
                config.OPT = before

    return compiled_so


@cache
def _text_stamp(source: Path) -> str:
    return hashlib.sha256(source.read_bytes()).hexdigest()


@cache
def room_stamp(folder: Path) -> str:
    """Another one where a module in the folder that has compiled functions is another."""
    texts = ((str(path.relative_to(folder)), path.read_bytes()) for path in sorted(folder.rglob("*.py")))
    return hashlib.sha256(repr([text for text in texts if b"optimizer.compiled" in text[1]]).encode()).hexdigest()
