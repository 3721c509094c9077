"""Which model this environment runs: read once, from environment variables.

SLUICE_MODEL               what is served: package.module:Class, file.py:Class or network.onnx, files relative to the task root
SLUICE_MODEL_NAME          the name it answers to; by default the class's `name`, or else its name, or the file's, as `text-encoder`
SLUICE_SLEEPER_INTERCEPT   seconds, and
SLUICE_SLEEPER_SLOPE       seconds per request: instead of SLUICE_MODEL, a model that only takes time; 0 and 0 is the no-op
SLUICE_SLEEPER_SIZE_SLOPE  seconds per request and unit of the size of the largest in the batch, as of a model that pads
SLUICE_THREADS             threads of one execution; by default one per vCPU that the memory size buys, at least 1

The task root is LAMBDA_TASK_ROOT, or else the folder that this was started in. Instead of a class, an object with ``predict`` may
be named, or a function without arguments that makes one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from .models.base import Model
from .models.sleeper import Sleeper

MB_PER_VCPU = 1769
SLEEPER = ("SLUICE_SLEEPER_INTERCEPT", "SLUICE_SLEEPER_SLOPE", "SLUICE_SLEEPER_SIZE_SLOPE")
VARIABLES = ("SLUICE_MODEL", "SLUICE_MODEL_NAME", "SLUICE_MODEL_FILE", *SLEEPER, "SLUICE_THREADS", "SLUICE_PROVIDERS")
NETWORK = ".onnx"


class LoadingError(ValueError):
    """The environment does not describe a model that can be served; the message names the variable, a cause is the model's own."""


def load_model(environment: Mapping[str, str] = os.environ) -> Model:
    """The model that the environment describes; raises ``LoadingError``."""
    if "SLUICE_MODEL_FILE" in environment:
        file, name = environment["SLUICE_MODEL_FILE"], environment.get("SLUICE_MODEL", "NAME")
        raise LoadingError(f"SLUICE_MODEL_FILE: no longer read; set SLUICE_MODEL={file} and SLUICE_MODEL_NAME={name}")
    named = environment.get("SLUICE_MODEL", "")
    sleeps = [variable for variable in SLEEPER if variable in environment]
    if named and sleeps:
        raise LoadingError(f"SLUICE_MODEL and {sleeps[0]} are both set; allowed: one kind of model")
    if sleeps:
        return Sleeper(_name(environment, ""), *(_seconds(environment, variable) for variable in SLEEPER))
    if not named:
        raise LoadingError("SLUICE_MODEL: not set; allowed: package.module:Class, file.py:Class or network.onnx")
    if named.endswith(NETWORK):
        return _network(environment, named)
    if not re.fullmatch(r"[^:]+:[A-Za-z_][\w.]*", named):
        raise LoadingError(f"SLUICE_MODEL: {named!r} is not allowed; allowed: package.module:Class, file.py:Class or network.onnx")
    return _python_model(environment, named)


def named_file(environment: Mapping[str, str]) -> str | None:
    """The file that SLUICE_MODEL names, as it names it; ``None`` where it names none."""
    place, colon, _ = environment.get("SLUICE_MODEL", "").rpartition(":")
    file = place if colon else environment.get("SLUICE_MODEL", "")
    return file if file.endswith((NETWORK, ".py")) else None


def threads(environment: Mapping[str, str]) -> int:
    """Threads of one execution. Never from the machine's cores: on Lambda those are not what the function may use."""
    named = environment.get("SLUICE_THREADS")
    if named is not None:
        if not named.isdecimal() or int(named) < 1:
            raise LoadingError(f"SLUICE_THREADS: {named!r} is not allowed; allowed: an integer >= 1")
        return int(named)
    return max(1, round(int(environment.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "0")) / MB_PER_VCPU))


def _network(environment: Mapping[str, str], file: str) -> Model:
    path = os.path.join(_task_root(environment), file)
    if not os.path.isfile(path):
        raise LoadingError(f"SLUICE_MODEL: {path!r} is not a file; allowed: the path of an ONNX network")
    name = _name(environment, dashed(os.path.basename(file).removesuffix(NETWORK)))
    n_threads = threads(environment)
    try:
        from .models.onnx import OnnxModel  # 100 ms of import that the others do without

        return OnnxModel(name, path, threads=n_threads)
    except Exception as error:  # of which nothing is the model's own code
        raise LoadingError(f"SLUICE_MODEL: {path!r} cannot be loaded: {type(error).__name__}: {error}") from None


def _python_model(environment: Mapping[str, str], named: str) -> Model:
    from .importing import CannotServe, make_served, start_served
    from .models.inputs import UnreadableKind
    from .models.python_model import PythonModel

    try:
        served = make_served(named, _task_root(environment))
        by_class = getattr(served, "name", None)
        by_class = by_class if isinstance(by_class, str) else dashed(named.rpartition(":")[2].rpartition(".")[2])
        name = _name(environment, by_class)
        model = PythonModel(name, served)
        start_served(served)
        return model
    except (CannotServe, UnreadableKind) as error:
        raise LoadingError(f"SLUICE_MODEL: {named!r}: {error}") from error.__cause__


def _task_root(environment: Mapping[str, str]) -> str:
    return environment.get("LAMBDA_TASK_ROOT", "")


def dashed(name: str) -> str:
    """In lower case with dashes: ``TextEncoder`` is ``text-encoder``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[^A-Za-z0-9.-]+", "-", name).strip("-").lower()


def _name(environment: Mapping[str, str], otherwise: str) -> str:
    name = environment.get("SLUICE_MODEL_NAME", otherwise)
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,128}", name):
        shown = repr(name) if name else "not set"
        raise LoadingError(f"SLUICE_MODEL_NAME: {shown} is not allowed; allowed: 1 to 128 of A-Z a-z 0-9 . _ -")
    return name


def _seconds(environment: Mapping[str, str], variable: str) -> float:
    text = environment.get(variable, "0")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise LoadingError(f"{variable}: {text!r} is not allowed; allowed: seconds >= 0")
    return value
