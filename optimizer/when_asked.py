"""Imports that wait until something is asked for: of rooms, and of libraries that take long to import.

A room's ``__init__`` imports what it names when it is asked for, so that who needs one small module of a room loads no other.

The imports of such an ``__init__`` stand under ``if TYPE_CHECKING:``, as they would stand elsewhere, and are read from there. No
name may be that of a module of the room as well: who imports the module would then find it in the place of what is named.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import sys
from collections.abc import Callable
from typing import Any


class module_when_asked:
    """A library's module, imported when the first of its names is asked for, as few commands ask for all that they may."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        value = getattr(importlib.import_module(self._name), name)
        setattr(self, name, value)  # so that the next does not come here
        return value


def names_when_asked(room: str) -> Callable[[str], Any]:
    """The ``__getattr__`` of a room (PEP 562)."""
    module = sys.modules[room]
    guarded = [node for node in ast.parse(inspect.getsource(module)).body if isinstance(node, ast.If)]
    froms = [line for node in guarded for line in node.body if isinstance(line, ast.ImportFrom)]
    home = {alias.name: str(line.module) for line in froms for alias in line.names}

    def found(name: str) -> Any:
        if name not in home:
            raise AttributeError(f"module {room!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(home[name]), name)
        setattr(module, name, value)
        return value

    return found
