"""The object that ``package.module:Class`` or ``file.py:Class`` names, made ready to serve.

What may live here: finding it, making it, and saying why that cannot be done. What may not: the environment, or what is served.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
import sysconfig
import traceback
from types import ModuleType
from typing import Any

_SLUICE = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")


class CannotServe(ValueError):
    """What is named is not there, fails, or has no ``predict``; the cause, where it has one, is what the user's code raised."""


def make_served(target: str, root: str) -> Any:
    """What ``target`` names: an object with ``predict``, or a class or a function that makes one without arguments.

    Parameters
    ----------
    root : str
        The folder of files, and where modules are looked for beside the rest of the path.

    Raises
    ------
    CannotServe
    """
    place, _, attribute = target.rpartition(":")
    module = _import_file(os.path.join(root, place)) if place.endswith(".py") else _import_module(place, root)
    found: Any = module
    for name in attribute.split("."):
        if not hasattr(found, name):
            served = [n for n, value in vars(module).items() if isinstance(value, type) and hasattr(value, "predict")]
            raise CannotServe(f"{place} has no {attribute!r}; classes with predict there: {', '.join(served) or 'none'}")
        found = getattr(found, name)
    if isinstance(found, type):
        _check_predict(found, attribute)
    if not isinstance(found, type) and hasattr(found, "predict"):
        made = found
    elif callable(found):
        made = _make(found, attribute)
    else:
        raise CannotServe(f"{attribute} is {type(found).__name__}; allowed: a class, an object with predict, or what makes one")
    _check_predict(
        made, attribute if made is found or isinstance(found, type) else f"{type(made).__name__}, which {attribute}() returned,"
    )
    return made


def start_served(served: Any) -> None:
    """Start what has ``start``, as a pipeline has; once nothing else can be wrong with it. Raises ``CannotServe``."""
    if callable(start := getattr(served, "start", None)):
        _make(start, f"start of {type(served).__name__}")


def _import_file(path: str) -> ModuleType:
    """As a module of the file's name, so that what is pickled by it is found again; its neighbours can be imported by it."""
    path = os.path.abspath(path)
    if not os.path.isfile(path):
        raise CannotServe(f"{path!r} is not a file")
    name = os.path.basename(path).removesuffix(".py")
    if "." in name:
        raise CannotServe(f"{path!r} cannot be imported; allowed: a file's name without dots")
    module = _import_module(name, os.path.dirname(path))
    found = getattr(module, "__file__", None) or "Python itself"
    if not (os.path.exists(found) and os.path.samefile(found, path)):
        raise CannotServe(f"{path!r} has the name of another module, from {found}; give the file another")
    return module


def _import_module(name: str, root: str) -> ModuleType:
    folder = os.path.abspath(root)
    if sys.path[:1] != [folder]:  # and no more than once, however often models are loaded
        sys.path[:] = [folder, *(entry for entry in sys.path if entry != folder)]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise CannotServe(f"there is no module {error.name!r}, neither in {folder} nor installed") from None
        raise CannotServe(f"importing {name} failed: {told(error)}; is it among the requirements?") from error
    except (Exception, SystemExit) as error:
        raise CannotServe(f"importing {name} failed: {told(error)}") from error


def _make(factory: Any, name: str) -> Any:
    try:
        required = [
            p.name
            for p in inspect.signature(factory).parameters.values()
            if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
    except (TypeError, ValueError):  # a class written in C has none
        required = []
    if required:
        raise CannotServe(f"{name} takes ({', '.join(required)}); allowed: no arguments, or defaults for all of them")
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise CannotServe(f"{name}() failed: {told(error)}") from error


def _check_predict(served: Any, name: str) -> None:
    predict = getattr(served, "predict", None)
    if not callable(predict):
        raise CannotServe(
            f"{name} has no method predict; allowed: def predict(self, inputs) that returns a list of as many outputs"
        )
    if inspect.iscoroutinefunction(predict) or inspect.isasyncgenfunction(predict) or inspect.isgeneratorfunction(predict):
        kind = "a generator" if inspect.isgeneratorfunction(predict) else "asynchronous"
        raise CannotServe(f"predict of {name} is {kind}; allowed: a plain method that returns a list")


def told(error: BaseException) -> str:
    """An error of the user's code: the last line of its traceback, and the last line of his own code in it."""
    text = traceback.format_exception_only(error)[-1].strip()
    if isinstance(error, SyntaxError):
        return f"{text} ({error.filename}, line {error.lineno})"
    others = ("<", _SLUICE, sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(others)]
    return f"{text} ({own[-1].filename}, line {own[-1].lineno}, in {own[-1].name})" if own else text
