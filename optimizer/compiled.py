"""Compiled functions: ``@compiled`` turns a function of numbers and numpy arrays into machine code at its first call.

The code is kept beside the module (``__pycache__``) or in the user's cache, so that later processes load it; where neither can be
written it is made anew in every process. With ``NUMBA_DISABLE_JIT=1`` in the
environment the functions run as plain Python, for debugging.
"""

from __future__ import annotations

from collections.abc import Callable
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
        return cast(Callable[P, R], numba.njit(cache=True, **options)(function))
    except RuntimeError:  # numba's word for: no place to keep it
        return cast(Callable[P, R], numba.njit(**options)(function))
