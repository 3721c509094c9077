"""Which model this environment runs: read once, from environment variables.

SLUICE_MODEL               its name, required
SLUICE_MODEL_FILE          an ONNX network, relative to the task root
SLUICE_SLEEPER_INTERCEPT   seconds, and
SLUICE_SLEEPER_SLOPE       seconds per request: a model that only takes time; 0 and 0 is the no-op
SLUICE_THREADS             threads of one execution; by default one per vCPU that the memory size buys, at least 1
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from .models.base import Model
from .models.sleeper import Sleeper

MB_PER_VCPU = 1769


class LoadingError(ValueError):
    """The environment does not describe a model; the message names the variable."""


def load_model(environment: Mapping[str, str] = os.environ) -> Model:
    """The model that the environment describes; raises ``LoadingError``."""
    name = environment.get("SLUICE_MODEL", "")
    if not name:
        raise LoadingError("SLUICE_MODEL: not set; allowed: the model's name")
    file = environment.get("SLUICE_MODEL_FILE")
    sleeps = [variable for variable in ("SLUICE_SLEEPER_INTERCEPT", "SLUICE_SLEEPER_SLOPE") if variable in environment]
    if file is not None and sleeps:
        raise LoadingError(f"SLUICE_MODEL_FILE and {sleeps[0]} are both set; allowed: one kind of model")
    if file is not None:
        from .models.onnx import OnnxModel  # 100 ms of import that the sleeper does without

        path = os.path.join(environment.get("LAMBDA_TASK_ROOT", ""), file)
        if not os.path.isfile(path):
            raise LoadingError(f"SLUICE_MODEL_FILE: {path!r} is not a file; allowed: the path of an ONNX network")
        return OnnxModel(name, path, threads=threads(environment))
    if sleeps:
        return Sleeper(name, _seconds(environment, "SLUICE_SLEEPER_INTERCEPT"), _seconds(environment, "SLUICE_SLEEPER_SLOPE"))
    raise LoadingError("no model: set SLUICE_MODEL_FILE, or SLUICE_SLEEPER_INTERCEPT and SLUICE_SLEEPER_SLOPE")


def threads(environment: Mapping[str, str]) -> int:
    """Threads of one execution. Never from the machine's cores: on Lambda those are not what the function may use."""
    named = environment.get("SLUICE_THREADS")
    if named is not None:
        if not named.isdecimal() or int(named) < 1:
            raise LoadingError(f"SLUICE_THREADS: {named!r} is not allowed; allowed: an integer >= 1")
        return int(named)
    return max(1, round(int(environment.get("AWS_LAMBDA_FUNCTION_MEMORY_SIZE", "0")) / MB_PER_VCPU))


def _seconds(environment: Mapping[str, str], variable: str) -> float:
    text = environment.get(variable, "0")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise LoadingError(f"{variable}: {text!r} is not allowed; allowed: seconds >= 0")
    return value
