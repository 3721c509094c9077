"""A module of machine code that a library has, imported without its package, which may import far more than the module needs.

The module is imported with an empty package in the place of its own, which is taken away again: who imports the package later has
all of it, with this very module in it.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from types import ModuleType


def import_alone(name: str) -> ModuleType:
    """``package.module``, by its name, without the package where that is not imported yet; raises ``ImportError``."""
    package, _, _ = name.rpartition(".")
    if package in sys.modules:
        return importlib.import_module(name)
    above, _, last = package.rpartition(".")
    whole = importlib.util.find_spec(above)
    assert whole is not None and whole.submodule_search_locations is not None
    empty = ModuleType(package)
    empty.__path__ = [f"{place}/{last}" for place in whole.submodule_search_locations]
    sys.modules[package] = empty
    try:
        return importlib.import_module(name)
    finally:
        del sys.modules[package]
