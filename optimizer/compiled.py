"""Compiled functions: ``@compiled`` turns a function of numbers and numpy arrays into machine code at its first call.

The code is kept beside the module (``__pycache__``) or in the user's cache, so that later processes load it; where neither can be
written it is made anew in every process. It is made anew where any module of this room that has such functions is another: numba
looks at the one that the function is of alone, though code of others is in it, and cannot read what it kept of a record that is no
more. With ``NUMBA_DISABLE_JIT=1`` in the environment the functions run as plain Python, for debugging.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """``function`` as machine code; its arguments and results must be numbers, numpy arrays, or tuples of these."""
    return _as_machine_code(function)


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """The same for what compiled code alone calls, put into each caller: for parts of a loop that are given records.

    Every array of a record is counted when a function gets it and when it returns, which may take longer than what it does; and to
    make a function that Python can give records takes longer than to make the function.
    """
    return _as_machine_code(function, forceinline=True, no_cpython_wrapper=True, no_cfunc_wrapper=True)


def _as_machine_code(function: Callable[P, R], **options: Any) -> Callable[P, R]:
    try:
        made = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # numba's word for: no place to keep it
        return cast(Callable[P, R], numba.njit(**options)(function))
    kept = getattr(getattr(made, "_cache", None), "_cache_file", None)
    if kept is not None:
        kept._version += room_stamp(Path(__file__).parent)  # what is of another version numba does not read
    return cast(Callable[P, R], made)


@cache
def room_stamp(folder: Path) -> str:
    """Another one where a module in the folder that has compiled functions is another."""
    texts = ((str(path.relative_to(folder)), path.read_bytes()) for path in sorted(folder.rglob("*.py")))
    return hashlib.sha256(repr([text for text in texts if b"optimizer.compiled" in text[1]]).encode()).hexdigest()
