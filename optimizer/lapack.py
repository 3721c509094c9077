"""The routines of LAPACK that are used here: those of SciPy, without what `scipy.linalg` imports besides.

They are in one module of machine code, `scipy.linalg._flapack`, 0.01 s of CPU to import; its package takes 0.1 s, of which most
wraps functions for the arrays of other libraries. Of a SciPy that has them elsewhere `scipy.linalg` is imported as ever.
"""

from __future__ import annotations

import importlib
import sys
from typing import Any

from sluice.optimizer.module_alone import import_alone

NAMES = ("dgbtrf", "dgbtrs")
"""To factor a band of doubles, and to solve with its factors."""
_ALONE, _WHOLE = "scipy.linalg._flapack", "scipy.linalg.lapack"


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = _found(_ALONE)
    for each, routine in found.items():
        setattr(sys.modules[__name__], each, routine)
    return found[name]


def _found(alone: str) -> dict[str, Any]:
    """The routines of a module; of `scipy.linalg.lapack` where it is not there, or lacks one."""
    try:
        module = import_alone(alone)
        return {name: getattr(module, name) for name in NAMES}
    except (ImportError, AttributeError):
        module = importlib.import_module(_WHOLE)
        return {name: getattr(module, name) for name in NAMES}
