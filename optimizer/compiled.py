"""Compiled functions: ``@compiled`` turns a function of numbers and numpy arrays into machine code at its first call.

The code is kept beside the module (``__pycache__``) or in the user's cache, so that later processes load it; where neither can be
written it is made anew in every process. With ``NUMBA_DISABLE_JIT=1`` in the
environment the functions run as plain Python, for debugging.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar, cast

import numba

P = ParamSpec("P")
R = TypeVar("R")


def compiled(function: Callable[P, R]) -> Callable[P, R]:
    """``function`` as machine code; its arguments and results must be numbers, numpy arrays, or tuples of these."""
    try:
        return cast(Callable[P, R], numba.njit(cache=True)(function))
    except RuntimeError:  # numba's word for: no place to keep it
        return cast(Callable[P, R], numba.njit(function))
