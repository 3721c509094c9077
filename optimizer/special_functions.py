"""The special functions that are used here: those of SciPy, without what `scipy.special` imports besides.

That wraps every function for the arrays of other libraries and writes their help: 0.17 s of CPU, more than most commands compute.
The functions are in one module of machine code, `scipy.special._ufuncs`, which needs none of it and is imported alone. Of a SciPy
that has them elsewhere `scipy.special` is imported as ever.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

from sluice.optimizer.module_alone import import_alone

PACKAGE = "scipy.special"
NAMES = {"digamma": "psi", "hurwitz_zeta": "_zeta"} | {
    name: name
    for name in (
        "bdtrik",
        "betainc",
        "betaincinv",
        "chdtr",
        "chdtrc",
        "fdtrc",
        "gammainc",
        "gammaincinv",
        "gammaln",
        "ndtri",
        "stdtr",
        "stdtrit",
        "xlogy",
    )
}


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = sys.modules[__name__]
    found = _of(_machine_code())
    for each, function in found.items():
        setattr(module, each, function)
    return found[name]


def _of(module: ModuleType) -> dict[str, Any]:
    """The functions of a module; of `scipy.special` where it lacks one."""
    functions = {name: getattr(module, theirs, None) for name, theirs in NAMES.items()}
    if None in functions.values():
        special = importlib.import_module(PACKAGE)
        functions = {name: getattr(special, theirs, None) for name, theirs in NAMES.items()}
        functions["hurwitz_zeta"] = functions["hurwitz_zeta"] or special.zeta
    return functions


def _machine_code() -> ModuleType:
    """`scipy.special._ufuncs`, alone; empty where it is elsewhere."""
    try:
        return import_alone(f"{PACKAGE}._ufuncs")
    except ImportError:
        return ModuleType(PACKAGE)
